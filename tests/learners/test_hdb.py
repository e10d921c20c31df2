"""DP-HDB: one path in two forms, its price, who moves what, broken variants, bad rows, learning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from choosing_users import bodies
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from rewarding_users import RewardingCrowd

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.audit import audit
from privlearn.checking.isolation import muted
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import replaced
from privlearn.checking.replay.protocols import InteractionProtocol
from privlearn.errors import (
    BudgetError,
    HorizonError,
    InterferenceError,
    ProvenanceError,
    UsersError,
)
from privlearn.learners.contextual import Visitor
from privlearn.learners.hdb import DPHDB
from privlearn.learners.hdb_epochs import (
    CorrelatedEpochs,
    epoch_ends,
    into_l1_ball,
    posterior,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import PlanEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP
from privlearn.mechanisms.scalar_objectives import SquaredObjective
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs.references import RandomArms
from privlearn.runs.simulated_arms import ArmMarket, sparse_market
from privlearn.values.adjacency import Adjacency
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

DIM, ARMS, HORIZON, FIRST = 3, 3, 40, 8
METHODS: list[Any] = [CorrelatedEpochs(), NoisyMaxEpochs()]


def joint(
    horizon: int = HORIZON, *, rho: Any = 1, seed: int = 0, ledger: Ledger | None = None
) -> JointAccountant[ZCDP]:
    noise = NoiseSource.simulation(seed)
    return JointAccountant(ZCDP(rho), users=range(horizon), noise=noise, ledger=ledger)


def unstarted(**changes: Any) -> DPHDB:
    params: dict[str, Any] = {"n_arms": ARMS, "dim": DIM, "first_epoch": FIRST, **changes}
    return DPHDB(**params)


def fresh(**changes: Any) -> DPHDB:
    return unstarted(**changes).start(joint())


class Crowd(RewardingCrowd):
    def __init__(self, seed: int = 0, n: int = HORIZON) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(rng.uniform(-1.2, 1.2, (n, DIM)), rng.uniform(-1.2, 1.2, (n, ARMS)))


# Users with a reward from every arm ----------------------------------------------------


@dataclass(eq=False)
class ArmUser:
    """A context, and the reward from any arm; together the record."""

    context: Any
    pay: Callable[[int], Any]
    kind: str = "user"

    def __repr__(self) -> str:
        return f"ArmUser({self.kind})"


def pull(learner: Any, users: Iterable[ArmUser]) -> Iterator[int]:
    """`select` and `observe`, one user after the other; each receives the arm."""
    for user in users:
        arm = learner.select(user.context)
        yield arm
        with muted():
            reward = user.pay(arm)
        learner.observe(reward)


def pulled(size: int = 1_000_000) -> InteractionProtocol:
    """`play`, in blocks of so many users; each receives the arm that is asked about first."""

    def drive(learner: Any, users: Iterable[ArmUser]) -> Iterator[int | None]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            received: list[int | None] = [None] * len(block)
            numbers = np.arange(len(block), dtype=np.float64)[:, None]
            learner.play([user.context for user in block], _paying(block, received), numbers)
            yield from received

    return drive


def _paying(block: list[ArmUser], received: list[int | None]) -> Callable[[Any, Any], list[Any]]:
    """The users' side of `play`; ``private`` holds their places in the block."""

    def respond(own: Any, arms: Any) -> list[Any]:
        rewards: list[Any] = []
        for number, arm in zip(own.private[:, 0], arms, strict=True):
            place = int(number)
            if received[place] is None:
                received[place] = int(arm)
            with muted():
                rewards.append(block[place].pay(int(arm)))
        return rewards

    return respond


def linear_user(rng: np.random.Generator, dim: int = 3, n_arms: int = 8) -> ArmUser:
    """Proper data; the rewards are linear in the context."""
    context = rng.uniform(-1, 1, dim)
    worth = rng.uniform(-1, 1, (n_arms, dim)) @ context
    return ArmUser(context, lambda arm: float(worth[arm]), "linear user")


def null_arm_user(dim: int = 3) -> ArmUser:
    """A user who counts as the null record: no number and no reward."""
    return ArmUser(np.full(dim, np.nan), lambda arm: None, "null record")


def odd_contexts(dim: int = 3) -> list[Any]:
    """What users may send instead of d numbers, besides numbers that overflow."""
    return [
        np.full(dim, np.nan),
        np.where(np.arange(dim) == 0, np.inf, 0.5),
        np.full(dim, 1e308),
        np.full(dim, 1e-310),
        np.zeros(dim + 1),
        np.zeros((1, dim)),
        "not numbers",
        None,
        [[1.0], [1.0, 2.0]],
        [10**400] * dim,
        {"age": 3.0},
    ]


def odd_rewards() -> list[Any]:
    """What users may answer instead of a reward, besides rewards beyond every bound."""
    return [None, math.nan, -math.inf, "much", [1.0, 2.0], 10**400, 1e308, -5, object()]


def odd_arm_user(rng: np.random.Generator, dim: int = 3) -> ArmUser:
    """A user with data or rewards that no learner may trust."""
    good, contexts, rewards = linear_user(rng, dim), odd_contexts(dim), odd_rewards()
    context = contexts[int(rng.integers(len(contexts)))] if rng.random() < 0.6 else good.context
    odd = rewards[int(rng.integers(len(rewards)))]
    return ArmUser(context, good.pay if rng.random() < 0.4 else lambda arm: odd, "odd user")


def arm_pair(
    seed: int, number: int = 0, *, dim: int = 3, users: int = 12, positions: Sequence[int] = ()
) -> tuple[list[ArmUser], list[ArmUser]]:
    """One pair of neighbouring populations; the same arguments give the same pair.

    Who is replaced is in turn the first user, the last, one of ``positions``, and anybody; what
    changes is the whole record, only the rewards (the arm stays), only the context (the arm may
    change), or the user becomes the null record; either population may come first.
    """
    rng = np.random.default_rng([seed, number])
    data = [
        odd_arm_user(rng, dim) if rng.random() < 0.1 else linear_user(rng, dim)
        for _ in range(users)
    ]
    places = [0, users - 1, *positions, int(rng.integers(users))]
    at = places[number % len(places)]
    old, new = data[at], linear_user(rng, dim)
    others = [
        new,
        odd_arm_user(rng, dim),
        null_arm_user(dim),
        ArmUser(old.context, new.pay, "the same context, other rewards"),
        ArmUser(new.context, old.pay, "another context, the same rewards"),
    ]
    pair = data, replaced(data, at, others[int(rng.integers(len(others)))])
    return pair if rng.random() < 0.5 else pair[::-1]


# One path in two forms ------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("more", [{}, {"preselection": 0.3}, {"loss": "logistic"}], ids=str)
def test_the_block_path_is_the_one_user_path(method: Any, more: dict[str, Any]) -> None:
    slow, fast = fresh(method=method, **more), fresh(method=method, **more)
    here, there = Crowd(), Crowd()
    if "loss" in more:
        here.rewards = there.rewards = (here.rewards > 0).astype(float)
    here.one_by_one(slow)
    there.play(fast)
    assert here.arms == there.arms
    assert slow.public_state() == fast.public_state()
    assert bodies(slow) == bodies(fast), "digests of every release included"
    assert len(set(here.arms[FIRST:])) > 1, "arms were chosen, not fixed"


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, HORIZON - 1), max_size=6), mixed=st.booleans())
def test_any_split_of_the_users_over_calls_gives_the_same_result(
    cuts: list[int], mixed: bool
) -> None:
    whole, parts, one, two = fresh(), fresh(), Crowd(1), Crowd(1)
    one.play(whole)
    for number, (a, b) in enumerate(pairwise([0, *sorted(cuts), HORIZON])):
        (two.one_by_one if mixed and number % 2 else two.play)(parts, a, b)
    assert one.arms == two.arms
    assert whole.public_state() == parts.public_state()
    assert bodies(whole) == bodies(parts)


def test_the_warm_up_and_ties_go_in_turn() -> None:
    crowd = Crowd()
    crowd.play(fresh(), 0, FIRST)
    assert crowd.arms == [i % ARMS for i in range(FIRST)]
    blind = fresh()
    crowd.one_by_one(blind, 0, FIRST)
    crowd.arms.clear()
    flat = np.zeros((2 * ARMS, DIM))
    blind.play(flat, lambda own, arms: crowd.arms.extend(arms) or np.zeros(len(arms)))  # type: ignore[func-returns-value]
    assert sorted(crowd.arms) == sorted(list(range(ARMS)) * 2), "contexts that say nothing"


def test_after_the_warm_up_users_get_the_arm_of_the_highest_public_score() -> None:
    learner, crowd = fresh(), Crowd()
    crowd.play(learner, 0, FIRST)
    for context in crowd.contexts[FIRST : FIRST + 5]:
        values = learner.decision_function(np.clip(context, -1, 1)[None])[0]
        assert learner.select(context) == values.argmax()
        learner.observe(0.0)


def test_preselection_keeps_arms_that_the_warm_up_thought_near_the_best() -> None:
    choosy = fresh(preselection=1e-9)
    Crowd().play(choosy, 0, 20)
    early, late = np.array(choosy._warm), choosy._estimate.theta
    chosen = []
    for context in np.random.default_rng(5).uniform(-1, 1, (HORIZON, DIM)):
        arms = choosy._arms(context[None], np.zeros(1, dtype=np.int64))
        assert arms[0] == (early @ context).argmax(), "a tiny gap leaves the warm-up's best"
        chosen.append((arms[0], (late @ context).argmax()))
    assert any(a != b for a, b in chosen), "which is not what the running estimates say"


def test_epochs_cover_everybody_and_grow() -> None:
    assert epoch_ends(100, 20, 1.5) == [20, 50, 95, 100]
    assert epoch_ends(10, 20, 1.5) == [10]
    assert epoch_ends(7, 2, 1.0) == [2, 4, 6, 7]
    learner = fresh()
    ends = [stop for _, stop in learner.public_state()["epochs"]]
    assert ends == epoch_ends(HORIZON, FIRST, CorrelatedEpochs().growth)


def bell(x: Array, variance: Any) -> Array:
    """The density of N(0, variance)."""
    return np.asarray(np.exp(-(x**2) / variance / 2) / np.sqrt(2 * np.pi * variance))


def test_the_posterior_is_that_of_entries_which_are_zero_or_normal() -> None:
    """By numerical integration, over the same grids."""
    found, variance = np.array([[0.9, -0.05], [0.02, 0.1]]), np.array([[0.04, 0.01], [0.04, 0.09]])
    mean, left = posterior(found, variance, 2.0)
    at = np.linspace(-9, 9, 36_001)
    step = at[1] - at[0]
    whole, first, second = 0.0, np.zeros(4), np.zeros(4)
    for size in 2.0 * np.geomspace(0.02, 1, 6):
        for part in (0.03, 0.1, 0.3, 1.0):
            joint = (
                part * bell(at, size**2) * bell(found.reshape(4, 1) - at, variance.reshape(4, 1))
            )
            none = (1 - part) * bell(found.ravel(), variance.ravel())
            evidence = joint.sum(axis=1) * step + none
            whole += evidence.prod()
            first += evidence.prod() * (joint @ at) * step / evidence
            second += evidence.prod() * (joint @ at**2) * step / evidence
    np.testing.assert_allclose(mean.ravel(), first / whole, rtol=1e-6)
    np.testing.assert_allclose(left.ravel(), second / whole - (first / whole) ** 2, rtol=1e-6)


def test_the_ball() -> None:
    theta = into_l1_ball(np.array([[3.0, -1.0], [0.1, 0.2], [0.0, 0.0]]), 2.0)
    wanted: list[list[float]] = [[1.5, -0.5], [0.1, 0.2], [0.0, 0.0]]
    assert theta.tolist() == wanted


def test_estimates_are_the_generalized_least_squares_ones_of_noise_that_is_correlated() -> None:
    learner: Any = unstarted(first_epoch=4).start(joint(12))
    sums = learner._sums
    rng, numbers = np.random.default_rng(0), [0, 1, 2]
    sums._released = dict.fromkeys(numbers, (0, 0)) | {k: (0, k) for k in numbers}
    estimate = learner._estimate
    for number in numbers:
        theta, scale = estimate.theta, estimate.scale
        signal = estimate._kept * scale / learner._estimate._setting.step(len(sums.batches[number]))
        released = rng.normal(size=theta.shape) * 3
        estimate.learn(number, released)
        assert np.array_equal(estimate._epochs[number].signal, signal)
        np.testing.assert_allclose(estimate._epochs[number].seen, released + signal * theta)
    found, variance = estimate._least_squares()
    noise = sums.covariance(numbers)
    assert noise[0, 1] < -0.3 * noise[0, 0], "correlated"
    noise = noise + np.diag([len(sums.batches[k]) / ARMS / DIM for k in numbers])
    for arm in range(ARMS):
        for j in range(DIM):
            u = np.array([estimate._epochs[k].signal[arm, j] for k in numbers])
            y = np.array([estimate._epochs[k].seen[arm, j] for k in numbers])
            precision = u @ np.linalg.solve(noise, u)
            assert variance[arm, j] == pytest.approx(1 / precision)
            assert found[arm, j] == pytest.approx(u @ np.linalg.solve(noise, y) / precision)


def test_coordinates_that_are_known_are_measured_less() -> None:
    learner: Any = fresh(first_epoch=4)
    estimate = learner._estimate
    estimate._hold(estimate.theta, np.array([[1.0, 0.25, 1e-6]] * ARMS) * 0.01)
    weights = estimate.scale[0] / estimate.scale[0, 0]
    np.testing.assert_allclose(weights, [1.0, 0.5, 0.1])
    usual = np.sqrt((estimate.scale**2).sum(axis=1)) * estimate._setting.spread / math.sqrt(DIM)
    bound, _ = learner._method.bound(
        estimate._setting, math.sqrt(estimate._setting.curvature * 0.01250001)
    )
    np.testing.assert_allclose(usual, estimate._setting.spread / bound)


# Privacy --------------------------------------------------------------------------------


def factory(**changes: Any) -> Callable[[Any], DPHDB]:
    return lambda accountant: unstarted(first_epoch=4, **changes).start(accountant)


USERS = 12
WAYS = {
    "one by one": (factory(), pull),
    "in blocks": (factory(), pulled(5)),
    "logistic": (factory(loss="logistic"), pulled(3)),
    "preselection": (factory(preselection=0.2), pull),
    "noisy max": (factory(method=NoisyMaxEpochs(first_std=1.0)), pull),
    "noisy max, in blocks": (factory(method=NoisyMaxEpochs()), pulled()),
}


def binary(*populations: list[ArmUser]) -> list[list[ArmUser]]:
    """The same users with rewards 0 and 1 where they are numbers; shared ones stay shared."""

    def answering(user: ArmUser) -> ArmUser:
        def pay(arm: int) -> Any:
            reward = user.pay(arm)
            return float(reward > 0) if isinstance(reward, float) else reward

        return ArmUser(user.context, pay, user.kind)

    made = {id(user): answering(user) for people in populations for user in people}
    return [[made[id(user)] for user in people] for people in populations]


@pytest.mark.parametrize("way", thinned(WAYS))
def test_nobody_else_and_nothing_public_depends_on_one_user(way: str) -> None:
    make, drive = WAYS[way]
    moved = 0
    for number in range(16):
        data, neighbour = arm_pair(5, number, dim=DIM, users=USERS, positions=(3, 4))
        if way == "logistic":
            data, neighbour = binary(data, neighbour)
        moved += (
            assert_noninterference(make, data, neighbour, protocol=drive, seed=number).moved > 0
        )
    assert moved > 5


def arms_changed() -> tuple[list[ArmUser], list[ArmUser]]:
    """The user behind the warm-up has the opposite context, hence another arm."""
    rng = np.random.default_rng(3)
    data = [linear_user(rng, DIM) for _ in range(USERS)]
    old = data[5]
    other = ArmUser(-np.asarray(old.context), lambda arm: -1.0 if arm else 1.0)
    return data, [other if i == 5 else user for i, user in enumerate(data)]


def test_a_changed_arm_is_a_neighbour_that_passes() -> None:
    data, neighbour = arms_changed()
    received: list[list[int]] = []

    def drive(learner: Any, users: Any) -> Any:
        received.append([])
        for arm in pull(learner, users):
            received[-1].append(arm)
            yield arm

    assert_noninterference(factory(), data, neighbour, protocol=drive, budget=ZCDP(100))
    assert received[0][5] != received[1][5]


def sums_of(data: list[ArmUser], **changes: Any) -> Array:
    """The first epoch's release; the noise is the same for all data."""
    learner = factory(**changes)(joint(USERS))
    for _ in pull(learner, data):
        pass
    return np.array(learner.billboard_["epoch/0"])


@pytest.mark.parametrize("user", [0, 1, 3])
def test_the_sensitivity_that_is_paid_for_is_attained_on_one_arm(user: int) -> None:
    rng = np.random.default_rng(0)
    data = [linear_user(rng, DIM) for _ in range(USERS)]
    best, worst = (ArmUser(np.ones(DIM), lambda arm, r=r: r) for r in (1.0, -1.0))  # type: ignore[misc]
    sums = [sums_of([who if i == user else u for i, u in enumerate(data)]) for who in (best, worst)]
    move = np.linalg.norm(sums[0] - sums[1])
    learner: Any = unstarted(first_epoch=4).start(joint(USERS))
    steps = learner._sums._stream.sums
    assert move == pytest.approx(2.0, rel=1e-6)
    # a column of C holds what one row moves, of which the first sum is its first entry
    assert (move * steps.factorization.column_norm() / steps.noise_std) ** 2 / 2 == pytest.approx(
        1.0, rel=1e-6
    ), "ρ = 1"


def test_a_changed_arm_moves_the_sums_by_the_root_of_two() -> None:
    learner: Any = unstarted(first_epoch=4).start(joint(USERS))
    domain, theta = learner._sums._stream.sums.domain, np.zeros((ARMS, DIM))
    arms, scale = np.array([0, 1]), learner._estimate.scale
    heard: Any = SimpleNamespace(context=np.ones((2, DIM)), arm=arms, reward=np.array([1.0, -1.0]))
    rows = domain.clip(learner._increments(heard, theta, scale))
    assert np.linalg.norm(rows[0] - rows[1]) == pytest.approx(math.sqrt(2), rel=1e-9)
    assert np.linalg.norm(rows[0] - rows[1]) < domain.diameter()
    assert (np.count_nonzero(rows.reshape(2, ARMS, DIM).any(axis=2), axis=1) == 1).all()


def test_scores_of_noisy_max_move_by_the_spread_that_is_paid_for() -> None:
    learner: Any = unstarted(method=NoisyMaxEpochs()).start(joint())
    step = learner._sums._steps[0]
    one = step.mechanism
    rows = one.domain.clip(np.array([[9.0, -9.0, 9.0], [-9.0, 9.0, -9.0], [0.0, 0.0, 0.0]]))
    scores = one.vertices.scores(rows)
    same, apart = (np.ptp(scores[0] - scores[other]) for other in (1, 2))
    assert same == pytest.approx(one.spread, rel=1e-9)
    assert 2 * apart == pytest.approx(one.spread, rel=1e-9), "two arms, half of it in each"
    ratio = float(one.eta) / math.expm1(float(one.eta))
    rho = one.top * (ratio - 1 - math.log(ratio))
    assert rho < one.top * float(one.eta) ** 2 / 8
    assert float(ZCDP(0).price(step.loss()).rho) == pytest.approx(rho, rel=1e-9)


class Wrapped:
    """A learner with one flaw planted."""

    def __init__(self, accountant: Any, plant: Callable[[DPHDB], None], **changes: Any) -> None:
        self.inner = factory(**changes)(accountant)
        plant(self.inner)
        self.select, self.observe = self.inner.select, self.inner.observe
        self.public_state = self.inner.public_state


def true_pull_counts(learner: Any) -> None:
    """Divides each arm's sum by how often it was really pulled."""
    counts = np.zeros(ARMS)
    increments, estimate = learner._increments, learner._estimate
    learn = estimate.learn

    def counting(heard: Any, theta: Array, scale: Array) -> Any:
        counts[:] = np.bincount(heard.arm[np.isfinite(heard.reward)], minlength=ARMS)
        return increments(heard, theta, scale)

    def fairly(epoch: int, released: Array) -> None:
        learn(
            epoch,
            (len(learner._batches[epoch]) / ARMS / np.maximum(counts, 1))[:, None]
            * released.reshape(ARMS, DIM),
        )

    learner._increments = counting
    estimate.learn = fairly
    learner.public_state = lambda: learner._estimate.theta.tolist()


def unnoised_signs(learner: Any) -> None:
    """Takes the coordinate from the noisy arg max and the sign from the sums themselves."""
    sums = np.zeros((ARMS, DIM))
    increments, estimate = learner._increments, learner._estimate
    learn = estimate.learn

    def summing(heard: Any, theta: Array, scale: Array) -> Any:
        rows, arms = increments(heard, theta, scale)
        sums[:] = [np.nansum(rows[arms == arm], axis=0) for arm in range(ARMS)]
        return rows, arms

    def signed(epoch: int, released: Array) -> None:
        axis = np.asarray(released, dtype=np.int64) % DIM
        learn(epoch, np.where(np.take_along_axis(sums, axis, axis=1) >= 0, axis, axis + DIM))

    learner._increments = summing
    estimate.learn = signed
    learner.public_state = lambda: learner._estimate.theta.tolist()


FLAWS: list[tuple[Callable[[Any], None], dict[str, Any], str]] = [
    (true_pull_counts, {}, "public state|received"),
    (unnoised_signs, {"method": NoisyMaxEpochs()}, "public state|received"),
]


@pytest.mark.parametrize(
    ("plant", "changes", "message"), FLAWS, ids=lambda x: getattr(x, "__name__", "")
)
def test_broken_variants_are_caught(
    plant: Callable[[Any], None], changes: dict[str, Any], message: str
) -> None:
    found = []
    for number in range(40):
        data, neighbour = arm_pair(7, number, dim=DIM, users=USERS, positions=(3, 4))
        try:
            assert_noninterference(
                lambda accountant: Wrapped(accountant, plant, **changes),
                data,
                neighbour,
                protocol=pull,
                budget=ZCDP(50),
                seed=number,
            )
        except InterferenceError as error:
            found.append(str(error))
        if len(found) == 3:
            break
    assert len(found) == 3
    assert any(part in text for text in found for part in message.split("|"))


def test_the_null_record_adds_nothing_whatever_the_estimates() -> None:
    for loss in ("squared", "logistic"):
        learner = unstarted(loss=loss)
        learner.start(
            JointAccountant(ZCDP(10**12), users=range(20), noise=NoiseSource.simulation(0))
        )
        crowd = Crowd()
        crowd.rewards = (crowd.rewards > 0).astype(float)
        crowd.play(learner, 0, FIRST)
        while learner.clock_ < 20:
            learner.select("no numbers")
            learner.observe(1.0)
        assert np.abs(learner.billboard_["epoch/0"]).max() > 1e-2
        more = learner.billboard_["epoch/1"] - learner.billboard_["epoch/0"]
        assert np.abs(more).max() < 1e-4


# The budget -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_arms", [2, 5])
def test_all_arms_and_epochs_together_cost_the_cap(method: Any, n_arms: int) -> None:
    accountant = joint()
    learner = unstarted(method=method, n_arms=n_arms).start(accountant)
    Crowd().play(learner) if n_arms == ARMS else learner.play(
        Crowd().contexts, lambda own, arms: np.ones(len(arms))
    )
    accountant.close()
    certificate = accountant.certificate(1e-6)
    assert certificate.problems == []
    for (statement,) in (certificate.guarantees, certificate.spent):
        assert statement.rho == pytest.approx(1.0, rel=1e-7)
        assert statement.rho is not None
        assert statement.rho <= math.nextafter(1.0, 2)
    spends = [entry for entry in accountant.ledger.entries if isinstance(entry, SpendEntry)]
    stream = [(0, HORIZON)]
    assert [entry.users for entry in spends] == (
        stream if isinstance(method, CorrelatedEpochs) else learner_epochs(learner)
    )


def learner_epochs(learner: DPHDB) -> list[tuple[int, int]]:
    return [(start, stop) for start, stop in learner.public_state()["epochs"]]


@pytest.mark.parametrize("budget", [GaussianDP("0.8"), ApproxDP("1", "1e-4")], ids=["mu", "eps"])
def test_any_gaussian_budget_is_filled(budget: Any) -> None:
    accountant: JointAccountant[Any] = JointAccountant(
        budget, users=range(HORIZON), noise=NoiseSource.simulation(0)
    )
    Crowd().play(unstarted().start(accountant))
    cap = accountant.budget
    assert float(accountant.spent().gaussian_mass() / cap.gaussian_mass()) == pytest.approx(1)
    if isinstance(budget, ApproxDP):
        assert accountant.epsilon(1e-4) <= 1 + 1e-9


def test_choices_are_planned_in_gaussian_privacy_too() -> None:
    accountant = JointAccountant(
        GaussianDP(1), users=range(HORIZON), noise=NoiseSource.simulation(0)
    )
    learner = unstarted(method=NoisyMaxEpochs()).start(accountant)
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    assert len(plan.items) == len(learner_epochs(learner)) > 0


def test_the_plan_names_every_epoch_and_nothing_else() -> None:
    accountant = joint()
    learner = unstarted(method=NoisyMaxEpochs()).start(accountant)
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    assert len(plan.items) == len(learner_epochs(learner))
    with pytest.raises(BudgetError, match="committed plan"):
        accountant.issue(ZCDP("0.001"), users=range(HORIZON), label="more")


def test_zero_out_costs_half_the_noise() -> None:
    accountant = JointAccountant(
        ZCDP(1),
        users=range(HORIZON),
        noise=NoiseSource.simulation(0),
        adjacency=Adjacency.ZERO_OUT,
    )
    learner: Any = unstarted().start(accountant)
    whole: Any = fresh()
    ratio = learner._sums.std / whole._sums.std
    assert ratio == pytest.approx(0.5)
    Crowd().play(learner)


# Learning -------------------------------------------------------------------------------


def regret(market: ArmMarket, learner: Any, rho: Any = "0.05") -> float:
    if hasattr(learner, "start"):
        users = range(market.horizon)
        learner.start(JointAccountant(ZCDP(rho), users=users, noise=NoiseSource.simulation(1)))
    return float(market.serve(learner).sum())


@pytest.mark.parametrize(
    ("method", "logistic", "share"),
    [("gaussian", False, 0.35), (NoisyMaxEpochs(), False, 0.5), ("gaussian", True, 0.6)],
)
def test_regret_is_far_below_random(method: Any, logistic: bool, share: float) -> None:
    markets = [sparse_market(s, horizon=4000, dim=20, logistic=logistic) for s in (1, 2)]
    mine = sum(
        regret(
            market,
            DPHDB(n_arms=2, dim=20, method=method, loss="logistic" if logistic else "squared"),
        )
        for market in markets
    )
    blind = sum(regret(market, RandomArms(n_arms=2)) for market in markets)
    assert 0 < mine < share * blind


def test_more_budget_and_more_arms() -> None:
    market = sparse_market(3, horizon=3000, dim=10, n_arms=4)
    blind = regret(market, RandomArms(n_arms=4))
    poor, rich = (regret(market, DPHDB(n_arms=4, dim=10), rho) for rho in ("0.01", "5"))
    assert rich < 0.6 * poor
    assert rich < 0.3 * blind


def test_units_of_contexts_and_rewards_are_public_constants_and_nothing_else() -> None:
    market = sparse_market(4, horizon=2000, dim=10)
    scaled = ArmMarket(1000 * market.contexts, 1e-3 * market.rewards, market.means)
    one, two = (
        DPHDB(n_arms=2, dim=10),
        DPHDB(n_arms=2, dim=10, context_bound=1000.0, reward_bound=1e-3),
    )
    assert regret(market, one) == pytest.approx(regret(scaled, two), rel=1e-9)
    np.testing.assert_allclose(two.coef_, 1e-6 * one.coef_, rtol=1e-6, atol=1e-15)


def test_classes_become_arms() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=3000)
    features = np.clip(np.eye(6)[labels] + 0.2 * rng.standard_normal((3000, 6)), -1, 1)
    hits = np.eye(3)[labels]
    market = ArmMarket(features, hits, hits)
    learner = DPHDB(n_arms=3, dim=6)
    assert regret(market, learner, 1) < 0.5 * regret(market, RandomArms(n_arms=3, random_state=9))
    assert (market.means.sum(axis=1) == 1).all()


def correlated(seed: int) -> ArmMarket:
    """Neighbouring context entries have correlation 0.9."""
    rng = np.random.default_rng([seed, 78])
    contexts, theta = rng.normal(size=(5_000, 30)), np.zeros((2, 30))
    for column in range(1, 30):
        contexts[:, column] *= math.sqrt(1 - 0.9**2)
        contexts[:, column] += 0.9 * contexts[:, column - 1]
    contexts /= np.abs(contexts).max(axis=1, keepdims=True)
    for arm in range(2):
        theta[arm, rng.choice(30, 5, replace=False)] = 0.2
    means = contexts @ theta.T
    return ArmMarket(contexts, means + 0.05 * rng.normal(size=means.shape), means)


def test_correlated_contexts() -> None:
    totals = [0.0, 0.0]
    for seed in (1, 2):
        totals[0] += regret(correlated(seed), DPHDB(n_arms=2, dim=30), "1")
        totals[1] += regret(correlated(seed), RandomArms(n_arms=2))
    assert totals[0] < 0.2 * totals[1], totals


# Restarts -------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, FIRST, 13, 30])
def test_after_a_restart_it_is_as_if_it_had_never_stopped(at: int, tmp_path: Path) -> None:
    """With a release for each epoch, whose users come again; but for its noise it is the same."""
    method = NoisyMaxEpochs()
    crowd, path = Crowd(13), tmp_path / "ledger.sqlite"
    with Ledger.create(path) as ledger:
        learner = unstarted(method=method).start(joint(ledger=ledger))
        crowd.play(learner, 0, at)
        begun = learner._batches[learner._batch].start
    accountant: Any = JointAccountant.resume(path, noise=NoiseSource.simulation(0))
    resumed = DPHDB.resume(accountant)
    accountant.issuer.noise = NoiseSource.simulation(99)
    assert resumed.clock_ == begun
    crowd.play(resumed, begun)

    other, whole = Crowd(13), joint()
    reference = unstarted(method=method).start(whole)
    other.play(reference, 0, begun)
    whole.issuer.noise = NoiseSource.simulation(99)
    other.play(reference, begun)
    assert crowd.arms[:begun] + crowd.arms[at:] == other.arms
    assert resumed.public_state() == reference.public_state()
    accountant.close()
    certificate = audit(path)
    assert (certificate.problems, certificate.lost) == ([], 0)
    assert certificate.spends == len(resumed._batches)


# Bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(odd_contexts())))
@pytest.mark.parametrize("position", thinned([FIRST - 1, 0, FIRST, HORIZON - 1], 4))
def test_a_bad_context_is_null_alone_and_the_clock_goes_on(number: int, position: int) -> None:
    bad = odd_contexts(DIM)[number]
    learner, reference, crowd = fresh(), fresh(), Crowd(6)
    usable = isinstance(bad, np.ndarray) and bad.shape == (DIM,) and np.isfinite(bad).all()
    instead = np.clip(bad, -1, 1) if usable else np.full(DIM, np.nan)
    for i, (context, rewards) in enumerate(zip(crowd.contexts, crowd.rewards, strict=True)):
        arm = learner.select(bad if i == position else context)
        assert arm == reference.select(instead if i == position else context)
        learner.observe(float(rewards[arm]))
        reference.observe(float(rewards[arm]))
    assert learner.clock_ == HORIZON
    assert learner.public_state() == reference.public_state()
    assert bodies(learner) == bodies(reference)
    told = [user for user, _ in learner.private_messages_]
    assert told == ([] if usable else [position])
    assert "not numbers" not in str(learner.private_messages_)


@pytest.mark.parametrize("number", range(len(odd_rewards())))
def test_a_bad_reward_is_null_alone_or_clipped(number: int) -> None:
    bad = odd_rewards()[number]
    learner, reference, block, crowd = fresh(), fresh(), fresh(), Crowd(7)
    clipped = isinstance(bad, int | float) and abs(bad) <= 1e308
    instead: Any = (math.copysign(1.0, bad)) if clipped else None
    for i, (context, rewards) in enumerate(zip(crowd.contexts, crowd.rewards, strict=True)):
        arm = learner.select(context)
        assert arm == reference.select(context)
        learner.observe(bad if i == 5 else float(rewards[arm]))
        reference.observe(instead if i == 5 else float(rewards[arm]))

    def respond(own: Visitor, arms: Any) -> Any:
        places = own.private[:, 0].astype(int)
        return [bad if i == 5 else crowd.rewards[i, a] for i, a in zip(places, arms, strict=True)]

    block.play(crowd.contexts, respond, crowd.places)
    assert learner.public_state() == reference.public_state() == block.public_state()
    told = [] if clipped else [5]
    for one in (learner, block):
        assert [user for user, _ in one.private_messages_] == told
        assert "much" not in str(one.private_messages_)


def test_an_environment_that_fails_on_one_user_makes_that_user_null() -> None:
    learner, reference, crowd = fresh(), fresh(), Crowd(8)

    def fails(own: Visitor, arms: Any) -> Any:
        if (own.private == 11).any():
            raise RuntimeError("the secret")
        return crowd.respond(own, arms)

    learner.play(crowd.contexts, fails, crowd.places)
    crowd.play(reference, 0, 11)
    reference.select(crowd.contexts[11])
    reference.observe(None)
    crowd.play(reference, 12)
    assert learner.public_state() == reference.public_state()
    assert [user for user, _ in learner.private_messages_] == [11]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_arms": 1}, "n_arms = 1: must be an integer >= 2"),
        ({"dim": 0}, "dim = 0"),
        ({"context_bound": 0.0}, "context_bound = 0.0"),
        ({"reward_bound": -1.0}, "reward_bound = -1.0"),
        ({"loss": "hinge"}, "loss = 'hinge'"),
        ({"method": "laplace"}, "method = 'laplace'"),
        ({"first_epoch": 0}, "first_epoch = 0"),
        ({"first_epoch": HORIZON + 1}, "first_epoch = 41: must be at most 40"),
        ({"preselection": 0.0}, "preselection = 0.0"),
        ({"radius": 0.0}, "radius = 0.0"),
        ({"radius": math.nan}, "radius = nan"),
        ({"curvature": 1.5}, "curvature = 1.5"),
        ({"random_state": -1}, "random_state = -1"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_committed(
    changes: dict[str, Any], message: str
) -> None:
    accountant = joint()
    learner = unstarted().set_params(**changes)
    with pytest.raises(ValueError, match=message):
        learner.start(accountant)
    assert len(accountant.ledger.entries) == 1
    learner.set_params(**{name: unstarted().get_params()[name] for name in changes})
    learner.start(accountant)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (CorrelatedEpochs, {"growth": 0.9}, "growth = 0.9: must be >= 1"),
        (CorrelatedEpochs, {"clip": 0.0}, "clip = 0.0"),
        (CorrelatedEpochs, {"first_std": -1.0}, "first_std = -1.0"),
        (NoisyMaxEpochs, {"clip_decay": 1.1}, "clip_decay = 1.1"),
        (NoisyMaxEpochs, {"clip_floor": 1.0}, "clip_floor = 1.0: must be at most clip"),
        (NoisyMaxEpochs, {"growth": math.inf}, "growth = inf"),
        (NoisyMaxEpochs, {"picks": 0}, "picks = 0"),
        (NoisyMaxEpochs, {"step_decay": 0.0}, "step_decay = 0.0"),
        (NoisyMaxEpochs, {"first_std": 0.0}, "first_std = 0.0"),
    ],
)
def test_bad_constants_of_a_method_are_refused(
    kind: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**changes)


def test_types_that_are_no_method_or_loss_are_refused() -> None:
    with pytest.raises(TypeError, match="method = 3"):
        fresh(method=3)
    with pytest.raises(TypeError, match="loss = 3"):
        fresh(loss=3)
    state = fresh(loss=SquaredObjective(1.0), method=CorrelatedEpochs()).public_state()
    assert state == json.loads(json.dumps(state))
    assert state["epochs"] == fresh().public_state()["epochs"]


def test_turns_horizons_and_trust() -> None:
    learner, crowd = fresh(), Crowd()
    with pytest.raises(RuntimeError, match=r"call start\(accountant\) first"):
        unstarted().select(np.ones(DIM))
    with pytest.raises(UsersError, match="call select first"):
        learner.observe(1.0)
    learner.select(np.ones(DIM))
    with pytest.raises(UsersError, match="user 0 had an arm pulled but has not answered"):
        learner.select(np.ones(DIM))
    learner.observe(1.0)
    with pytest.raises(HorizonError, match=r"40 users after 1: the horizon is range\(0, 40\)"):
        crowd.play(learner)
    assert learner.clock_ == 1
    with pytest.raises(ValueError, match=r"contexts of shape \(4, 2\): must be \(n, 3\)"):
        learner.play(np.ones((4, 2)), crowd.respond)
    with pytest.raises(ValueError, match="private of shape"):
        learner.play(np.ones((4, DIM)), crowd.respond, np.zeros((3, 1)))
    with pytest.raises(RuntimeError, match="the learner has started"):
        learner.set_params(radius=1.0)
    crowd.play(learner, 1)
    with pytest.raises(HorizonError, match="were served"):
        learner.select(np.ones(DIM))
    logged = CentralAccountant(ZCDP(1), users=range(HORIZON), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="needs a JointAccountant"):
        unstarted().start(logged).select(np.ones(DIM))


def test_numbers_of_any_size_give_no_warning_and_no_error() -> None:
    rng, learner = np.random.default_rng(0), fresh(context_bound=1e-3)
    for i in range(HORIZON):
        learner.select((1e308, 1e-320, 1e160, 1.0)[i % 4] * rng.uniform(-1, 1, DIM))
        learner.observe((1e308, -1e308, 1e-320)[i % 3])
    assert np.isfinite(learner.coef_).all()


def test_markets_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="must be"):
        ArmMarket(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 3)))
    market = sparse_market(0, horizon=50, dim=4)
    assert (market.horizon, market.n_arms, market.dim) == (50, 2, 4)
    assert np.abs(market.contexts).max() == 1.0
