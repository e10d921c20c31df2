"""The packaged survey of electricity contracts, and the market that is made from it."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import numpy as np
import pytest

from privlearn.mechanisms.choice_model import Answer, fit_mle, gradients, log_likelihoods
from privlearn.rows.domains import Array
from privlearn_studies.data import electricity
from privlearn_studies.data.electricity import (
    Contracts,
    ElectricityChoices,
    contracts,
    electricity_market,
    fitted_tastes,
    load_electricity,
    other_answers,
)
from privlearn_studies.rivals.local_nonprivate import LinUCB


@pytest.fixture(scope="module")
def survey() -> ElectricityChoices:
    return load_electricity()


@pytest.fixture(scope="module")
def offers() -> Contracts:
    return contracts()


def test_the_survey_has_its_published_counts(survey: ElectricityChoices) -> None:
    """361 people, 4308 experiments, and the shares of the four suppliers that mlogit prints."""
    assert survey.offers.shape == (4308, 4, 6)
    assert len(np.unique(survey.person)) == survey.person.max() + 1 == 361
    assert (np.diff(survey.person) >= 0).all()
    assert np.bincount(survey.person).max() == 12
    assert np.bincount(survey.person).min() >= 8
    shares = np.bincount(survey.choice) / 4308
    assert shares.round(5).tolist() == [0.22702, 0.26393, 0.23816, 0.27089]


def test_every_offer_has_one_tariff_and_at_most_one_kind(survey: ElectricityChoices) -> None:
    price, years, local, known, day, season = survey.offers.reshape(-1, 6).T
    np.testing.assert_array_equal((price > 0) + day + season, 1)
    assert set((local + known).tolist()) == {0, 1}
    assert [int((price == cents).sum()) for cents in (7, 9)] == [4211, 4323]
    assert [int((years == length).sum()) for length in (0, 1, 5)] == [5868, 5431, 5933]
    assert [int(flags.sum()) for flags in (local, known, day, season)] == [3440, 6980, 4306, 4392]


def test_the_first_experiment_is_that_of_the_source(survey: ElectricityChoices) -> None:
    expected = [[7, 5, 0, 1, 0, 0], [9, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 5, 0, 1, 1, 0]]
    np.testing.assert_array_equal(survey.offers[0], expected)
    assert survey.choice[0] == 3


def test_the_conditional_logit_has_its_known_fit(survey: ElectricityChoices) -> None:
    """By an optimiser of our own; a day or season tariff is disliked like 9 cents, as published."""
    answer = Answer(survey.offers, np.ones((4308, 4)), survey.choice)
    theta = fit_mle(answer, outside=False)
    assert log_likelihoods(answer, theta, outside=False).sum() == pytest.approx(-4958.649, abs=1e-3)
    np.testing.assert_allclose(gradients(answer, theta, outside=False).sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(theta, [-0.625, -0.108, 1.442, 0.996, -5.463, -5.840], atol=1e-3)
    np.testing.assert_allclose(theta[4:] / theta[0], [8.74, 9.34], atol=0.01)


def test_the_file_is_the_one_its_readme_describes() -> None:
    folder = resources.files("privlearn_studies.data.files")
    packed = folder.joinpath("electricity_choices.csv.gz").read_bytes()
    told = folder.joinpath("README.md").read_text("utf-8")
    (digest,) = re.findall(r"[0-9a-f]{64}", told)
    assert hashlib.sha256(packed).hexdigest() == digest
    assert packed[4:8] == bytes(4), "the gzip header must carry no time"


def test_loaded_arrays_cannot_be_changed(survey: ElectricityChoices) -> None:
    assert not any(v.flags.writeable for v in (survey.person, survey.offers, survey.choice))
    assert load_electricity() is survey


def test_other_answers_leave_out_the_own_one(survey: ElectricityChoices) -> None:
    values = np.random.default_rng(0).normal(size=(4308, 2))
    found = other_answers(survey, values)
    for row in (0, 11, 12, 2000, 4307):
        others = (survey.person == survey.person[row]) & (np.arange(4308) != row)
        np.testing.assert_allclose(found[row], values[others].mean(axis=0), atol=1e-12)
    values[5] += 100.0
    np.testing.assert_allclose(other_answers(survey, values)[5], found[5], atol=1e-12)


def test_affinities_are_counted_by_hand(survey: ElectricityChoices, offers: Contracts) -> None:
    for at in (0, 1, 4000, 8533):
        experiment = int(offers.experiment[at])
        mine = [k for k in range(4) if survey.offers[experiment, k, 0] > 0]
        before = int((offers.experiment[:at] == experiment).sum())
        own = survey.offers[experiment, mine[before]]
        same = np.flatnonzero(survey.person == survey.person[experiment])
        chosen = [survey.offers[i, survey.choice[i]] for i in same if i != experiment]
        shares = [
            np.mean([float(c[0] > 0) for c in chosen]),
            np.mean([float((c[2:4] == own[2:4]).all()) for c in chosen]),
            np.mean([float(c[1] == own[1]) for c in chosen]),
        ]
        assert offers.affinity[at] == pytest.approx(np.mean(shares), abs=1e-12)
    assert offers.affinity.min() >= 0
    assert offers.affinity.max() <= 1


def test_acceptance_is_the_fitted_choice_probability(
    survey: ElectricityChoices, offers: Contracts
) -> None:
    """At the survey's own price, the chance is that of the softmax over the four offers."""
    tastes = fitted_tastes(survey)
    utilities = np.einsum("nja,na->nj", survey.offers, tastes)
    chances = np.exp(utilities - utilities.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    fixed = survey.offers[:, :, 0] > 0
    experiment, place = np.nonzero(fixed)
    own = survey.offers[experiment, place, 0]
    low, high = offers.acceptance(np.array([7.0, 9.0])).T
    found = np.where(own == 7, low, high)
    np.testing.assert_allclose(found, chances[experiment, place], atol=1e-9)
    assert (offers.sensitivity > 0.4).all(), "everybody minds a higher price"
    # Calibrated: the fit of a logit reproduces how often what was offered was taken.
    taken = np.equal(survey.choice[experiment], place)
    assert found.mean() == pytest.approx(taken.mean(), abs=0.01)
    fond = offers.affinity > 0.6
    assert found[fond].mean() == pytest.approx(taken[fond].mean(), abs=0.05)
    assert taken[fond].mean() > 2 * taken[offers.affinity < 0.3].mean()


def test_customers_get_what_the_market_promises() -> None:
    market = electricity_market(200, horizon=40_000)
    users = market.users
    assert (users.dim, users.n_arms, users.shared) == (2, 4, False)
    assert np.linalg.norm(users.contexts, axis=1).max() <= 1
    yes = users.rewards > 0
    assert (yes[:, 1:] <= yes[:, :-1]).all(), "who takes 8 cents takes 6"
    np.testing.assert_allclose(users.rewards, market.prices / 10 * yes)
    np.testing.assert_allclose(10 * users.means, market.revenue)
    noise = 4 * 0.5 / np.sqrt(40_000)
    np.testing.assert_allclose(yes.mean(axis=0), market.acceptance.mean(axis=0), atol=noise)
    again, other = (electricity_market(seed, horizon=40_000) for seed in (200, 201))
    np.testing.assert_array_equal(again.users.rewards, users.rewards)
    assert (other.users.means != users.means).any(axis=1).mean() > 0.9


def test_coins_keep_the_mean_and_are_tossed_for_those_who_accept() -> None:
    plain, coins = (electricity_market(200, horizon=40_000, coins=c) for c in (False, True))
    assert (plain.users.link, coins.users.link) == ("linear", "logistic")
    np.testing.assert_array_equal(coins.users.means, plain.users.means)
    assert set(np.unique(coins.users.rewards)) == {0, 1}
    assert (coins.users.rewards <= (plain.users.rewards > 0)).all()
    accepted = plain.users.rewards > 0
    shares = (coins.users.rewards * accepted).sum(axis=0) / accepted.sum(axis=0)
    np.testing.assert_allclose(shares, coins.prices / 10, atol=0.03)
    assert shares[-1] == 1


def test_personal_prices_make_more_than_one_price_and_that_more_than_chance() -> None:
    """Means over customers; what can be learned without privacy from 20,000 answers."""
    market = electricity_market(200, horizon=20_000)
    users, revenue = market.users, market.revenue
    learner = LinUCB(dim=2, n_arms=4, shared=False, horizon=20_000, noise_std=0.2)
    got: list[Array] = []
    for start in range(0, 20_000, 50):
        block = slice(start, start + 50)
        arms = learner.choose(users.contexts[block])
        contexts, rewards = users.pulled(block, arms)
        learner.learn(contexts, arms, rewards)
        got.append(np.take_along_axis(revenue[block], arms[:, None], axis=1)[:, 0])
    learned = float(np.concatenate(got)[-10_000:].mean())
    assert revenue.max(axis=1).mean() > 1.08 * revenue.mean(axis=0).max()
    assert learned > 1.02 * revenue.mean(axis=0).max()
    assert revenue.mean(axis=0).max() > 1.25 * revenue.mean()


@pytest.mark.parametrize(("seed", "horizon"), [(-1, 5), (0, 0)])
def test_bad_numbers_are_refused(seed: int, horizon: int) -> None:
    with pytest.raises(ValueError, match="must be an integer >="):
        electricity_market(seed, horizon=horizon)


def test_the_features_are_the_declared_ones() -> None:
    found = electricity.customer_features(np.array([0.0, 0.2, 0.45, 0.575, 1.0])) * np.sqrt(2)
    expected = np.array([[1, -1], [1, -1], [1, 0], [1, 0.5], [1, 1]])
    np.testing.assert_allclose(found, expected, atol=1e-12)
