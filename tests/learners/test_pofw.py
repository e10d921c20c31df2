"""DP-POFW: the choice of its way, its price, both forms of its path, and what it reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.scripted_noise import ScriptedVariates
from privlearn.errors import CurrencyError, InterferenceError
from privlearn.learners import base, pofw
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.mechanisms.constraint_sets import LpBall, Polytope, Simplex, norms
from privlearn.noise import GumbelNoise, NoiseSource
from privlearn.rows.domains import Array, Ball
from privlearn.values.grid import Grid

DIM, HORIZON = 4, 150
BALL = LpBall(DIM, 1, 2.0)
CORNERS = Polytope(np.random.default_rng(2).normal(size=(9, DIM)))
LEARNER_CASES = [
    (BALL, "thresholds"),
    (BALL, "choices"),
    (BALL, "vertices"),
    (BALL, "projections"),
    (Simplex(DIM, 1.0), "projections"),
    (Simplex(DIM, 1.0), "vertices"),
    (CORNERS, "projections"),
    (CORNERS, "vertices"),
    (BALL, "published"),
    (CORNERS, "published"),
]
every = pytest.mark.parametrize(("inside", "method"), LEARNER_CASES)


def central(
    horizon: int = HORIZON, seed: int = 0, budget: Any = None, **options: Any
) -> CentralAccountant[Any]:
    return CentralAccountant(
        ZCDP(3) if budget is None else budget,
        users=range(horizon),
        noise=NoiseSource.simulation(seed),
        **options,
    )


def stream(n: int = HORIZON, seed: int = 0, dim: int = DIM) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    x /= norms(x, math.inf)[:, None]
    theta = np.zeros(dim)
    theta[:3] = [0.6, -0.3, 0.1]
    return x, x @ theta + 0.05 * rng.normal(size=n)


# One path in two forms ------------------------------------------------------------------


@every
@pytest.mark.parametrize("loss", thinned(["squared", "logistic"]))
def test_the_block_path_is_the_one_user_path(inside: Any, method: Any, loss: str) -> None:
    x, y = stream()
    if loss == "logistic":
        y = (y > 0).astype(float)
    first, second = central(), central()
    whole = DPPOFW(inside, method=method, loss=loss).start(first).partial_fit(x, y)
    single = DPPOFW(inside, method=method, loss=loss).start(second)
    for row, label in zip(x, y, strict=True):
        single.partial_fit(row, float(label))
        assert inside.contains(single.coef_)
    assert np.array_equal(whole.coef_, single.coef_)
    histories = [learner.billboard_.history() for learner in (whole, single)]
    digests = [[item["digest"] for item in history] for history in histories]
    assert digests[0] == digests[1]
    assert whole.clock_ == HORIZON


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, HORIZON - 1), max_size=5), way=st.sampled_from(LEARNER_CASES))
def test_any_split_of_the_users_over_calls_gives_the_same_result(
    cuts: list[int], way: tuple[Any, Any]
) -> None:
    x, y = stream()
    whole = DPPOFW(way[0], method=way[1]).start(central()).partial_fit(x, y)
    parts, at = DPPOFW(way[0], method=way[1]).start(central()), 0
    for stop in sorted({*cuts, HORIZON}):
        parts.partial_fit(x[at:stop], y[at:stop])
        at = stop
    assert whole.public_state() == parts.public_state()


def test_rows_that_wait_for_the_end_of_an_epoch_are_the_learners_own() -> None:
    x, y = stream()
    expected = DPPOFW(BALL, method="choices").start(central()).partial_fit(x, y).coef_
    learner, buffer = DPPOFW(BALL, method="choices").start(central()), np.empty(DIM)
    for row, label in zip(x, y, strict=True):
        buffer[:] = row
        learner.partial_fit(buffer, float(label))
        buffer[:] = math.nan
    assert np.array_equal(learner.coef_, expected)


# Choice of the way ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "budget", "expected"),
    [
        (1, ZCDP(1), "thresholds"),
        (50, ZCDP(1), "thresholds"),
        (500, ZCDP(1), "thresholds"),
        (2000, ZCDP(1), "choices"),
        (2000, Renyi({4: 1}), "choices"),
        (2000, GaussianDP(1), "choices"),
        (2, PureDP(1), "choices"),
    ],
)
def test_the_way_is_chosen_by_computed_noise(dim: int, budget: Any, expected: str) -> None:
    learner: Any = DPPOFW(LpBall(dim, 1, 2.0)).start(central(budget=budget))
    assert learner.method_ == expected


def test_thresholds_have_no_price_under_pure_dp() -> None:
    with pytest.raises(CurrencyError):
        DPPOFW(BALL, method="thresholds").start(central(budget=PureDP(1)))


# Price ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("budget", [ZCDP("0.2"), Renyi({2: "0.3", 8: "0.9"})], ids=repr)
def test_the_plan_spends_the_whole_budget_and_no_more(
    inside: Any, method: Any, budget: Any
) -> None:
    accountant = central(budget=budget)
    DPPOFW(inside, method=method).start(accountant).partial_fit(*stream())
    for user in (0, HORIZON // 2, HORIZON - 1):  # everybody is in one epoch
        spent = accountant.spent(user)
        assert budget.covers(spent)
        assert not budget.share("0.999").covers(spent)


@pytest.mark.parametrize("inside", [BALL, Simplex(DIM), CORNERS])
def test_pure_budgets_are_kept(inside: Any) -> None:
    accountant = central(budget=PureDP(2))
    learner = DPPOFW(inside).start(accountant).partial_fit(*stream())
    assert accountant.spent().epsilon <= 2
    assert float(accountant.spent().epsilon) == pytest.approx(2.0)
    assert inside.contains(learner.coef_)


@pytest.mark.parametrize("inside", [BALL, Simplex(DIM, 1.5), CORNERS])
def test_the_spread_of_the_scores_is_attained_by_two_users(inside: Any) -> None:
    """Which is what the noise of a choice is for: worst rows, and two corners far apart."""
    learner: Any = DPPOFW(inside, method="vertices").start(central())
    strategy = learner._strategy
    choice, vertices = strategy._choices[0], strategy.vertices
    points = vertices.points(np.arange(vertices.count))
    apart = points[:, None] - points[None]
    i, j = np.unravel_index(np.abs(apart).sum(axis=2).argmax(), apart.shape[:2])
    worst = np.where(apart[i, j] >= 0, 1.0, -1.0)
    rows = choice.domain.clip(1e3 * np.stack([worst, -worst]))
    change = vertices.scores(rows[0] - rows[1])
    assert change[i] - change[j] == pytest.approx(choice.spread, rel=1e-9)
    assert change.max() - change.min() <= choice.spread


# Replay on neighbours -------------------------------------------------------------------


def logged(learner: StreamLearner, users: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    for x, y in users:
        learner.partial_fit(x, y)
        yield None


ODD: list[tuple[Any, Any]] = [
    (np.array([9.0, -9.0, 9.0, 0.0]), -5.0),
    (np.full(DIM, math.nan), 0.0),
    ("nothing", None),
    (np.full(DIM, 1e300), 1e300),
]


def replay(inside: Any, method: Any, at: int, other: tuple[Any, Any], budget: Any) -> Any:
    users: list[tuple[Any, Any]] = list(zip(*stream(40, 1), strict=True))
    return assert_noninterference(
        lambda accountant: DPPOFW(inside, method=method).start(accountant),
        users,
        [*users[:at], other, *users[at + 1 :]],
        protocol=logged,
        accountant=CentralAccountant,
        budget=budget,
    )


@every
@pytest.mark.parametrize(("at", "budget"), thinned([(39, ZCDP(1000)), (0, ZCDP(1))]), ids=repr)
def test_neighbours_change_nothing_but_what_was_paid_for(
    inside: Any, method: Any, at: int, budget: Any
) -> None:
    assert replay(inside, method, at, ODD[at % len(ODD)], budget).moved >= 1


class Unclipped:
    """A broken domain: it states a ball and clips nothing."""

    def __init__(self, *params: Any) -> None:
        self._ball = Ball(*params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ball, name)

    def clip(self, block: Array) -> Array:
        return np.nan_to_num(block)

    def integers(self, block: Array, grid: Grid) -> Any:
        return (np.nan_to_num(block) / grid.step).astype(np.int64)


@pytest.mark.parametrize("method", ["thresholds", "choices"])
def test_an_increment_that_is_not_clipped_is_caught(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pofw, "Ball", Unclipped)
    monkeypatch.setattr(base, "stored", lambda value: value)  # no ledger holds it
    with pytest.raises(InterferenceError, match="paid for"):
        replay(BALL, method, 5, ODD[0], ZCDP(1000))


# What it reaches ------------------------------------------------------------------------

STARTS = (1.0, np.array([1.3, -1.0, 0.8, -0.6, 0.45]))


def suboptimality(method: Any, horizon: int, dim: int, start: Any, seeds: range) -> float:
    theta, found = np.zeros(dim), []
    theta[:5] = start
    theta /= np.abs(theta).sum()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(horizon, dim))
        x /= norms(x, math.inf)[:, None]
        y = x @ theta + 0.05 * rng.normal(size=horizon)
        currency: Any = GaussianDP if method == "thresholds" else ZCDP
        budget = ApproxDP(1, Fraction(1, horizon))
        learner = DPPOFW(LpBall(dim, 1, 2.0), method=method)
        learner.start(central(horizon, seed, budget, currency=currency)).partial_fit(x, y)
        found.append(((learner.coef_ - theta) ** 2).sum() / (theta**2).sum())
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("method", "horizon", "dim", "bound"),
    [
        ("thresholds", 1000, 5, 0.003),
        ("thresholds", 1000, 20, 0.04),
        ("thresholds", 10000, 10, 0.0003),
        ("thresholds", 10000, 50, 0.0015),
        ("thresholds", 1000, 50, 1.0),
        ("choices", 10000, 10, 0.001),
        ("choices", 10000, 50, 0.002),
        ("vertices", 10000, 50, 0.05),
    ],
)
def test_targets_are_reached(method: str, horizon: int, dim: int, bound: float) -> None:
    found = [suboptimality(method, horizon, dim, start, range(500, 503)) for start in STARTS]
    assert max(found) <= bound


def test_without_noise_the_published_steps_are_online_frank_wolfe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """d_t = ∇f_t(θ_t) + (1 − 1/t)(d_{t−1} − ∇f_t(θ_{t−1})), to the best vertex, by 1/(t+1)."""

    def none(self: GumbelNoise, pool: Any, n: int) -> ScriptedVariates:
        return ScriptedVariates("gumbel", np.zeros(n, dtype=np.int64), 0)

    monkeypatch.setattr(GumbelNoise, "variates", none)
    x, y = stream(60)
    learner = DPPOFW(BALL, method="published").start(central(60))
    theta, before, d = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for t in range(60):
        new, old = ((x[t] @ at - y[t]) * x[t] for at in (theta, before))
        d = new + (1 - 1 / (t + 1)) * (d - old)
        before, theta = theta, theta + (BALL.minimize(d) - theta) / (t + 2)
        learner.partial_fit(x[t], float(y[t]))
        assert learner.coef_ == pytest.approx(theta, abs=1e-9), f"user {t + 1}"


def test_at_its_proved_price_the_published_way_does_not_learn_where_ours_does() -> None:
    assert suboptimality("published", 2000, 10, 1.0, range(500, 502)) > 0.3
    assert suboptimality("choices", 2000, 10, 1.0, range(500, 502)) < 0.05


def test_in_high_dimension_choices_beat_thresholds() -> None:
    few = suboptimality("choices", 5000, 1000, 1.0, range(500, 502))
    assert few < 0.5 * suboptimality("thresholds", 5000, 1000, 1.0, range(500, 501))


@pytest.mark.parametrize(("method", "part"), [("projections", 0.001), ("vertices", 0.6)])
def test_mixtures_are_learned_over_a_simplex(method: Any, part: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20000, 8))
    x /= norms(x, math.inf)[:, None]
    theta = np.array([0.6, 0.4, 0, 0, 0, 0, 0, 0])
    y = x @ theta + 0.05 * rng.normal(size=len(x))
    learner = DPPOFW(Simplex(8, 1.0), method=method)
    learner.start(central(20000, budget=ZCDP("0.05")))
    start = learner.coef_
    learner.partial_fit(x, y)
    assert ((learner.coef_ - theta) ** 2).sum() < part * ((start - theta) ** 2).sum()


def test_classes_are_learned_as_well() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20000, 6))
    x /= norms(x, math.inf)[:, None]
    theta = np.array([2.5, -1.5, 0, 0, 0, 0])
    y = (rng.random(len(x)) < expit(x @ theta)).astype(float)
    learner = DPPOFW(LpBall(6, 1, 5.0), loss="logistic")
    learner.start(central(20000, budget=GaussianDP(1))).partial_fit(x, y)
    assert ((learner.coef_ - theta) ** 2).sum() < 0.2 * (theta**2).sum()


# Sets and parameters --------------------------------------------------------------------


@every
@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_few_users_are_enough_to_run(inside: Any, method: Any, horizon: int) -> None:
    learner = DPPOFW(inside, method=method).start(central(horizon))
    learner.partial_fit(*stream(horizon))
    assert np.isfinite(learner.coef_).all()
    assert inside.contains(learner.coef_)


@every
def test_it_starts_where_it_is_told(inside: Any, method: Any) -> None:
    corner = inside.minimize(np.arange(1.0, DIM + 1))
    learner = DPPOFW(inside, method=method, initial=corner).start(central())
    assert np.array_equal(learner.coef_, corner)
    with pytest.raises(ValueError, match="outside"):
        DPPOFW(inside, method=method, initial=9 * np.ones(DIM)).start(central())


def test_bad_sets_and_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="use DPTOFW"):
        DPPOFW(LpBall(DIM, 1.5, 1.0)).start(central())
    with pytest.raises(ValueError, match="ℓ1 ball only"):
        DPPOFW(CORNERS, method="thresholds").start(central())
    broken: Any = np.eye(3)
    with pytest.raises((TypeError, AttributeError)):
        DPPOFW(broken).start(central())
    with pytest.raises(ValueError, match="nothing to choose"):
        DPPOFW(Polytope(np.ones((3, DIM)))).start(central())
