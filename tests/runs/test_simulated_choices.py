"""Simulated markets: who they are, how they choose, and how regret is counted."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.assortment import best_assortments, largest_utilities
from privlearn.learners.serving import Arrival, Respond
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import NO_ITEM, Items, fit_mle, log_likelihoods, utilities
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs import simulated_choices as experiments
from privlearn.runs.cars import (
    FEATURE_NAMES,
    OUTSIDE,
    SCALE,
    car_features,
    car_market,
    load_car_choices,
    split,
)
from privlearn.runs.references import RandomAssortments
from privlearn.runs.simulated_choices import (
    Market,
    gaussian_market,
    held_out_gain,
    logged_answers,
    product_lines_market,
)


def arrival(market: Market, n: int) -> Arrival:
    """The first n users' rows."""
    users, features, earned, private = next(market.blocks())
    revenues = np.ones(features.shape[:2]) if earned is None else earned
    ties = np.zeros(features.shape[:2])
    assert len(users) >= n
    return Arrival(*(field[:n] for field in (features, revenues, ties, private)))


class Shows:
    """A player that shows everybody what a rule says; remembers the choices."""

    def __init__(self, rule: str, market: Market, size: int) -> None:
        self.rule, self.market, self.size = rule, market, size
        self.choices: list[int] = []

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
        /,
    ) -> None:
        assert private is not None
        values = utilities(features, self.market.theta)
        earned = np.ones(values.shape) if revenues is None else revenues
        shown: Items
        if self.rule == "best":
            shown = best_assortments(values, earned, self.size)
        elif self.rule == "worst":
            shown = largest_utilities(-values, self.size)
        elif self.rule == "nothing":
            shown = np.full((len(values), self.size), NO_ITEM)
        else:
            shown = np.broadcast_to(np.arange(self.size), (len(values), self.size))
        own = Arrival(features, earned, np.zeros(values.shape), private)
        self.choices.extend(respond(own, shown).tolist())


def test_choices_have_the_logit_frequencies() -> None:
    theta, n = np.array([1.0, -0.5]), 60_000
    stock = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5], [0.3, 0.3]])
    uniforms = np.random.default_rng(0).random(n)
    market = Market(theta, uniforms, lambda users: np.broadcast_to(stock, (len(users), 4, 2)))
    private = np.stack([uniforms, np.arange(n)], axis=1)
    own = Arrival(np.broadcast_to(stock, (n, 4, 2)), np.ones((n, 4)), np.zeros((n, 4)), private)
    shown = np.broadcast_to(np.array([0, 2, 3, NO_ITEM]), (n, 4))
    choices = market.respond(own, shown)
    weights = np.exp(stock @ theta)
    total = 1 + weights[[0, 2, 3]].sum()
    for item in (0, 2, 3):
        share = weights[item] / total
        error = 4 * np.sqrt(share * (1 - share) / n)
        assert (choices == item).mean() == pytest.approx(share, abs=error)
    assert (choices == NO_ITEM).mean() == pytest.approx(1 / total, abs=0.01)
    assert not (choices == 1).any(), "what is not shown is not bought"


def test_nothing_on_offer_is_nothing_bought() -> None:
    market = gaussian_market(1, horizon=50, n_items=5)
    player = Shows("nothing", market, 3)
    market.serve(player)
    assert player.choices == [NO_ITEM] * 50


def test_a_choice_depends_on_the_offer_and_the_own_row_only() -> None:
    market = gaussian_market(2, horizon=30, n_items=8)
    own = arrival(market, 30)
    rng = np.random.default_rng(0)
    shown = np.sort(np.argsort(rng.random((30, 8)), axis=1)[:, :4], axis=1)
    together = market.respond(own, shown)
    for i in rng.permutation(30):
        alone = Arrival(*(field[i : i + 1] for field in own))
        assert market.respond(alone, shown[i : i + 1])[0] == together[i]
    backwards = market.respond(Arrival(*(field[::-1] for field in own)), shown[::-1])
    assert np.array_equal(backwards[::-1], together)
    coins = own._replace(ties=rng.random((30, 8)), revenues=rng.random((30, 8)))
    assert np.array_equal(market.respond(coins, shown), together)


@pytest.mark.parametrize("general", [False, True])
def test_regret_is_zero_for_the_oracle_and_never_negative(general: bool) -> None:
    market = gaussian_market(3, horizon=400, n_items=12, general_revenue=general)
    assert np.abs(market.serve(Shows("best", market, 4))).max() < 1e-12
    for rule in ("worst", "first", "nothing"):
        regrets = market.serve(Shows(rule, market, 4))
        assert regrets.shape == (400,)
        assert regrets.min() >= -1e-12
        assert regrets.mean() > 0.01
    random = market.serve(RandomAssortments(max_items=4))
    assert random.min() >= -1e-12


def test_regret_is_the_difference_to_the_best_of_all_subsets() -> None:
    market = gaussian_market(4, horizon=20, n_items=5, dim=2, general_revenue=True)
    regrets = market.serve(Shows("first", market, 2))
    own = arrival(market, 20)
    for i in range(20):
        weights = np.exp(own.features[i] @ market.theta)

        def value(items: tuple[int, ...], i: int = i, weights: Array = weights) -> float:
            chosen = list(items)
            top = (weights[chosen] * own.revenues[i][chosen]).sum()
            return float(top / (1 + weights[chosen].sum()))

        best = max(value(items) for size in (1, 2) for items in combinations(range(5), size))
        assert regrets[i] == pytest.approx(best - value((0, 1)), abs=1e-12)


def test_the_size_of_blocks_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for size in (2_000, 77):
        monkeypatch.setattr(experiments, "BLOCK", size)
        market = gaussian_market(5, horizon=300, n_items=20, dim=3, general_revenue=True)
        learner = OnePassNewtonMNL(n_items=20, dim=3, max_items=4, first_batch=20)
        noise = NoiseSource.simulation(1)
        learner.start(JointAccountant(ZCDP(1), users=range(300), noise=noise))
        seen: list[int] = []
        regrets = market.serve(learner, seen.append)
        assert sum(seen) == 300
        results.append((regrets, learner.theta_))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


def test_serving_twice_forgets_the_first_time() -> None:
    market = gaussian_market(6, horizon=40, n_items=6)
    first = market.serve(Shows("first", market, 2))
    market.serve(Shows("worst", market, 3))
    assert np.array_equal(market.serve(Shows("first", market, 2)), first)


def test_gaussian_markets_follow_their_description() -> None:
    market = gaussian_market(7, horizon=200, n_items=30, dim=4)
    own = arrival(market, 200)
    norms = np.linalg.norm(own.features, axis=2)
    assert norms.max() <= 1 + 1e-12
    assert (norms > 0.999).mean() > 0.5, "most of N(0, I) in four dimensions is clipped"
    assert ((market.theta >= 0) & (market.theta <= 1)).all()
    assert market.revenues is None
    assert market.horizon == 200
    again, other = (gaussian_market(7, r, horizon=200, n_items=30, dim=4) for r in (0, 1))
    assert np.array_equal(arrival(again, 200).features, own.features)
    assert not np.array_equal(other.theta, market.theta), "replicates are independent"
    general = gaussian_market(7, horizon=50, n_items=30, general_revenue=True)
    assert general.revenues is not None
    assert general.revenues.shape == (50, 30)
    with pytest.raises(ValueError, match="seed = -1"):
        gaussian_market(-1)


def test_product_lines_have_near_identical_variants() -> None:
    market = product_lines_market(1, horizon=20, n_items=40, dim=10)
    own = arrival(market, 20)
    assert (own.features == own.features[:1]).all(), "one catalogue for everybody"
    stock = own.features[0]
    assert np.linalg.norm(stock, axis=1).max() <= 1 + 1e-12
    same = np.linalg.norm(stock[0] - stock[10])
    assert same < np.linalg.norm(stock[0] - stock[1])


def test_the_car_market_offers_real_cars_by_fitted_preferences() -> None:
    survey = load_car_choices()
    market = car_market(1, horizon=300, n_items=50)
    own = arrival(market, 300)
    assert own.features.shape == (300, 50, 22)
    np.testing.assert_allclose(own.features[..., -1], 1 / SCALE)
    coefficients = fit_mle(logged_answers(car_features(survey), survey.choices), outside=False)
    np.testing.assert_allclose(market.theta[:-1], coefficients, rtol=1e-12)
    assert market.theta[-1] / SCALE == pytest.approx(-OUTSIDE)
    assert market.theta[FEATURE_NAMES.index("price")] < 0
    # Three average cars are as attractive as buying none, so ten good ones sell more often.
    player = Shows("best", market, 10)
    market.serve(player)
    sold = np.mean([choice != NO_ITEM for choice in player.choices])
    assert 0.8 < sold < 1
    again = arrival(car_market(1, horizon=300, n_items=50), 300)
    assert np.array_equal(again.features, own.features)
    assert not np.array_equal(car_market(2, horizon=300).uniforms, market.uniforms)


def test_the_gain_of_the_reference_is_one_and_of_no_preferences_zero() -> None:
    survey = load_car_choices()
    features, choices = car_features(survey), survey.choices
    train, test = split(len(choices))
    fit = fit_mle(logged_answers(features[train], choices[train]), outside=False)
    held_out = logged_answers(features[test], choices[test])
    reference = float(log_likelihoods(held_out, fit, outside=False).mean())
    assert held_out_gain(fit, held_out, reference) == pytest.approx(1.0, abs=1e-12)
    assert held_out_gain(np.zeros(21), held_out, reference) == pytest.approx(0.0, abs=1e-12)
    assert 0 < held_out_gain(fit / 2, held_out, reference) < 1
    assert held_out_gain(-fit, held_out, reference) < 0
