"""`WhitenedDescent`: its price, its sums, and what it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import WhitenedDescent, whitened_descent
from privlearn.learners.clip_follower import EXTRA, RADIUS, ClipFollower, with_extra
from privlearn.learners.descent_noise import curvature_of_scores
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import PartialSum
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

USERS, DIM = 40, 3
LOSSES = ("squared", "logistic", "softmax")
RNG = np.random.default_rng(11)


def accountant(users: int, budget: Currency, seed: int = 0) -> CentralAccountant[Any]:
    return CentralAccountant(budget, users=range(users), noise=NoiseSource.simulation(seed))


def learner(loss: str, dim: int = DIM, classes: int = 3) -> WhitenedDescent:
    return WhitenedDescent(dim, loss, row_norm=math.sqrt(dim) / 2, classes=classes)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("budget", [GaussianDP("0.3"), ZCDP("0.2")])
@pytest.mark.parametrize("users", [40, 4000])
def test_the_plan_takes_the_whole_cap(loss: str, budget: Currency, users: int) -> None:
    account = accountant(users, budget)
    plan = learner(loss).start(account)._plan()
    labels = [item.label for item in plan]
    assert labels == ["moments", "step"] or labels == ["moments", "mean", "step"]
    mass = math.fsum(item.count * float(item.loss.gaussian() or 0) for item in plan)
    assert float(budget.gaussian_mass()) * (1 - 1e-9) <= mass <= float(budget.gaussian_mass())


class Sums:
    """Catches what is summed in each release, in units of the data, without noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, Any]] = []
        real = NoisySum.release

        def release(own: Any, rows: Any, token: Any) -> Any:
            total = PartialSum._opened(own.partial(rows)) * own.spend().grid.step
            self.found.append((type(own.domain).__name__, total))
            return real(own, rows, token)

        monkeypatch.setattr(NoisySum, "release", release)


def test_one_record_moves_second_moments_by_what_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.uniform(-1, 1, (4, DIM))
    y = np.zeros(4)
    trace, seen = 1.25 * DIM / 4, []
    for row in ([1e9, 0, 0], [0, 1e9, 0], [-1, 0.5, 0], [math.nan, 0, 0]):
        x[2] = row
        sums = Sums(monkeypatch)
        player = learner("squared").start(accountant(4, GaussianDP(50)))
        player.partial_fit(x, y)
        monkeypatch.undo()
        (found,) = (total for name, total in sums.found if name == "PSDTrace")
        seen.append(found)
        assert player._made_of.moments.domain.sensitivity(Adjacency.REPLACE_ONE) == pytest.approx(
            math.sqrt(2) * trace
        )
    apart = [np.linalg.norm(one - two) for one in seen for two in seen]
    assert math.sqrt(2) * trace * (1 - 1e-6) < max(apart) <= math.sqrt(2) * trace


def test_sums_that_are_made_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, answers = RNG.uniform(-1, 1, (USERS, DIM)), RNG.uniform(-1, 1, USERS), []
    for size in (USERS, 7):
        monkeypatch.setattr(whitened_descent, "_ROWS_AT_ONCE", size)
        player = learner("squared").start(accountant(USERS, GaussianDP(50)))
        answers.append(player.partial_fit(x, y).coef_)
    assert answers[0] == pytest.approx(answers[1], abs=1e-9)


@pytest.mark.parametrize("wide", [1.0, 1e12])
def test_what_a_step_adds_is_in_the_ball_that_is_paid(wide: float) -> None:
    block = wide * RNG.normal(size=(500, DIM + 1))
    found = with_extra(block)
    assert np.linalg.norm(found, axis=1).max() <= RADIUS * (1 + 1e-12)
    assert np.linalg.norm(found[:, :DIM], axis=1).max() <= 1 + 1e-12
    assert Ball(RADIUS, DIM + EXTRA).clip(found) == pytest.approx(found)


def test_the_clip_rises_where_what_it_cuts_off_is_one_sided() -> None:
    clips = []
    for skewed in (False, True):
        noise = RNG.exponential(size=(4000, 1)) - 1 if skewed else RNG.normal(size=(4000, 1))
        follower = ClipFollower(0.3, steps=64, records=4000, noise=1.0, least=0.01)
        for _ in range(64):
            residuals = 0.1 * noise[:, 0] - (0.0 if not skewed else -0.02)
            block = np.stack([residuals / follower.clip, residuals], axis=1)
            follower.see(with_extra(block).sum(axis=0))
        clips.append(follower.clip)
    assert 0.06 < clips[0] < 0.12  # about .6 of |N(0, .1²)|
    assert clips[1] > 2 * clips[0]


def rows_of(loss: str, users: int = 3000) -> tuple[Any, Any]:
    """Two columns, one that hardly varies, and an indicator that never occurs."""
    rng = np.random.default_rng(99)
    x = rng.uniform(-1, 1, (users, 4))
    x[:, 2], x[:, 3] = 0.3 + 0.02 * rng.normal(size=users), 0.0
    score = 0.3 * x[:, 0] - 0.2 * x[:, 1] - 0.4
    if loss == "squared":
        return x, score + 0.1 * rng.normal(size=users)
    return x, (rng.uniform(size=users) < 1 / (1 + np.exp(-8 * score - 3))).astype(float)


def fits_of(loss: str, count: int) -> list[WhitenedDescent]:
    x, y = rows_of(loss)
    return [
        learner(loss, 4).start(accountant(len(y), GaussianDP("0.3"), seed)).partial_fit(x, y)
        for seed in range(count)
    ]


def test_it_predicts_and_says_how_noisy_it_is() -> None:
    x, y = rows_of("squared")
    players = fits_of("squared", 4)
    for player in players:
        assert ((player.predict(x) - y) ** 2).mean() < 0.35 * y.var()
    spread = np.std([player.coef_ for player in players], axis=0)
    told = np.array([player.noise_std_ for player in players]).mean(axis=0)
    assert np.all((0.1 * told < spread) & (spread < 1.5 * told))
    assert told[2:].min() > 5 * told[:2].max()  # nothing is known of them
    assert told[2:].min() > 2 * spread[2:].max()  # nor of how far second moments hold them


@pytest.mark.calibration
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_stated_intervals_cover_the_mean_of_all_answers(loss: str) -> None:
    players = fits_of(loss, 40)
    coefs = np.array([player.coef_ for player in players])
    told = np.array([player.noise_std_ for player in players])
    inside = np.abs(coefs - coefs.mean(axis=0)) < 1.96 * told
    assert inside.mean(axis=0).min() >= 0.9


def test_one_feature_whose_scores_never_vary_has_a_curvature() -> None:
    """As of rows of usual length: a clip of 1/2 cuts off half of the residuals, which are 1/2."""
    still = curvature_of_scores(np.zeros(1), np.zeros((1, 1)), 0.5, 1)
    assert 0.4 < still[0, 0] / 0.25 < 0.6
    assert curvature_of_scores(np.zeros(1), np.zeros((1, 1)), 9.0, 1)[0, 0] == 0.25


def test_a_column_that_never_varies_has_a_small_coefficient() -> None:
    (player,) = fits_of("logistic", 1)
    assert np.abs(player.coef_[3]) < 1.5 < np.abs(player.coef_[0])


POOLED = Participation(most=1, pooled=True)


def pooled(users: int, rule: Participation = POOLED) -> CentralAccountant[Any]:
    return CentralAccountant(
        GaussianDP(20),
        users=range(users),
        noise=NoiseSource.simulation(1),
        people=People.memory(rule),
    )


def test_rows_of_a_person_are_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, float] = {}
    x = np.full((USERS, DIM), 1.0)
    for people in (["a"] * USERS, list(range(USERS))):
        sums = Sums(monkeypatch)
        player = WhitenedDescent(DIM, row_norm=1.0, rows_per_person=2.0).start(pooled(USERS))
        player.partial_fit(x, np.ones(USERS), people=people)
        monkeypatch.undo()
        assert len(sums.found) > 3
        for name, total in sums.found:
            sizes.setdefault(f"{name} {people[0]}", float(np.linalg.norm(total)))
    # one person with all rows is no longer than one record may be
    assert sizes["PSDTrace a"] <= 1.25 * 2.0
    assert sizes["Ball a"] <= 2.0
    assert sizes["PSDTrace 0"] > 1.25 * 2.0 * 10


def test_a_rule_without_pooling_has_no_price() -> None:
    account = pooled(USERS, Participation(most=2))
    with pytest.raises(ValueError, match="no price for a person"):
        learner("squared").start(account)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_record_that_is_null_adds_nothing(loss: str) -> None:
    x = RNG.uniform(-1, 1, (USERS, DIM))
    y = RNG.integers(0, 2, USERS).astype(float)
    broken_x, broken_y = x.copy(), y.copy()
    broken_x[::4, 1], broken_y[1::4], y[2::4] = math.nan, math.nan, math.inf
    found = []
    for with_nulls in (True, False):
        account = accountant(USERS, GaussianDP(50))
        player = learner(loss).start(account)
        if with_nulls:
            player.partial_fit(broken_x, np.where(np.arange(USERS) % 4 == 2, y, broken_y))
        else:
            for i in range(USERS):
                player.partial_fit(x[i], y[i]) if i % 4 == 3 else player.skip(1)
        found.append((player.coef_, player.intercept_))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    assert np.abs(found[0][0]).max() > 0
