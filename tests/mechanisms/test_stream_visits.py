"""Streams priced for a person who comes back: exact moves of R, replays, batches and choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from streams_and_matrices import matrix_c, open_stream
from visit_patterns import patterns

from privlearn.accountants import JointAccountant
from privlearn.errors import UsersError
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import BoundedRangeLoss, GaussianLoss, VisitsLoss
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    CrossPolytope,
    NoisyMaxStream,
    PrefixSum,
    ReportNoisyMax,
)
from privlearn.mechanisms.factorization import Factorization, Rounding
from privlearn.mechanisms.noisy_max_stream import growth
from privlearn.mechanisms.stream_price import largest_gain, visits_gain
from privlearn.mechanisms.stream_visits import StreamVisits, visits_in_batches, visits_in_slots
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ZERO = Adjacency.ZERO_OUT
N = 8


def made(n: int) -> list[Factorization]:
    return [
        BinaryTree(n),
        BufferedToeplitz.fitted(n),
        AnytimeBLT(horizon=n),
        BandedBLT(n, 4, (0.4, -0.2), (0.3, 0.02), (1.0, 0.8)),
        BandedBLT(n, 4, (0.4, -0.2), (0.3, 0.02), (1.0, 0.8), (1.0, 0.9, 0.6)),
    ]


by_kind = pytest.mark.parametrize("factorization", made(N), ids=lambda f: f.kind)


# The gain -----------------------------------------------------------------------------------------


def signed(most: int, apart: int) -> Integers:
    """All changes of +-1 at all patterns of visits, one in each column: (N, cases)."""
    signs = np.array(list(itertools.product((1, -1), repeat=N)))
    found = {
        tuple(row)
        for pattern in patterns(N, most, apart)
        for row in (signs * pattern.astype(int)).tolist()
    }
    return np.array(sorted(found), dtype=np.int64).T


def largest_square(factorization: Factorization, most: int, apart: int, size: int) -> int:
    """The largest sum of squares by which R moves, exactly; rows move by ``size`` steps.

    Whoever chooses visits and signs after seeing outputs takes one of these paths.
    """
    changes = signed(most, apart)
    cases = changes.shape[1]
    base = np.random.default_rng(size).integers(-3 * size, 3 * size + 1, (N, cases))
    moved = factorization.encoder(cases)(base + size * changes) - factorization.encoder(cases)(base)
    return int((moved**2).sum(axis=0).max())


SIZES = (1, 2, 3, 17, 10**7)


@by_kind
@pytest.mark.parametrize(("most", "apart"), [(2, 1), (3, 2), (8, 1), (2, 4)])
def test_no_change_of_a_persons_rows_moves_the_integers_by_more_than_the_gain(
    factorization: Factorization, most: int, apart: int
) -> None:
    visits = visits_in_slots(Participation(most, apart), N)
    for size in SIZES:
        rounding = factorization.rounding(4 * size)
        gain = Fraction(visits_gain(factorization, visits, rounding, Fraction(1, size)))
        square = largest_square(factorization, most, apart, size)
        assert square <= (gain * size) ** 2
    loose = isinstance(factorization, BinaryTree)
    loose |= isinstance(factorization, BandedBLT) and apart < factorization.band
    assert square >= (gain * size) ** 2 * (Fraction(1, 3) if loose else 1 - Fraction(1, 10**5))


def test_rounding_of_one_row_would_not_do_for_several() -> None:
    """The planted defect: half steps of many rows add up to more than those of one."""
    n, apart = 256, 4
    factorization = BandedBLT(n, apart, (0.6,), (0.05,), (1.0,))
    ones = np.zeros((n, 1), dtype=np.int64)
    ones[::apart] = 1  # all are rounded up, by up to half a step
    square = int((factorization.encoder(1)(ones) ** 2).sum())
    visits, rounding = StreamVisits(n // apart, apart), factorization.rounding(1)
    of_one = Rounding(rounding.column / n, rounding.each / n)
    assert square > Fraction(visits_gain(factorization, visits, of_one, Fraction(1))) ** 2
    assert square <= Fraction(visits_gain(factorization, visits, rounding, Fraction(1))) ** 2


@by_kind
def test_for_one_visit_the_gain_is_that_of_a_row(factorization: Factorization) -> None:
    for size in SIZES:
        rounding, step = factorization.rounding(4 * size), Fraction(1, size)
        one = visits_gain(factorization, StreamVisits(1, 1), rounding, step)
        row = largest_gain(factorization, rounding, step)
        if isinstance(factorization, AnytimeBLT):  # which bounds a row over all time
            assert one < row
        else:
            assert one == pytest.approx(row, rel=1e-11)


@by_kind
@pytest.mark.parametrize(("most", "apart"), [(2, 3), (3, 2)])
def test_in_exact_arithmetic_the_integers_move_by_no_more_than_the_charge(
    factorization: Factorization, most: int, apart: int
) -> None:
    """The outputs follow N(g R, std**2): their ratio of likelihoods is (g |R - R'| / std)**2."""
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 1),
        GaussianDP(1),
        factorization=factorization,
        participation=Participation(most, apart),
    )
    grid, mass = mechanism.spend().grid, mechanism.loss().gaussian()
    assert grid is not None
    assert mass is not None
    bound = int(mechanism.spend().exact_form()["bound"]["largest"])  # type: ignore[index]
    changes = signed(most, apart)
    cases = changes.shape[1]
    base = bound * np.where(np.arange(N)[:, None] % 3, 1, -1) * np.ones((1, cases), dtype=np.int64)
    base[changes != 0] = (-bound * changes)[changes != 0]
    theirs = base + 2 * bound * changes  # rows at one end of the ball, and at the other
    moved = factorization.encoder(cases)(theirs) - factorization.encoder(cases)(base)
    largest = max(sum(int(x) ** 2 for x in column) for column in moved.T)
    ratio = largest * (Fraction(grid.step) / Fraction(mechanism.noise_std)) ** 2
    assert ratio <= mass
    exact = isinstance(factorization, BufferedToeplitz | AnytimeBLT)
    assert ratio >= mass * (1 - Fraction(1, 10**6) if exact else Fraction(1, 2))


# Replays: likelihood ratios follow from how far the noise has to move -----------------------------

Chooser = Callable[[int, Array], Array | None]


def others(t: int, shown: Array) -> Array:
    """Somebody else's row, which jumps with all outputs so far."""
    return np.array([np.sign(math.sin(3.0 * float(shown.sum()) + t)), 0.3])


def transcript(
    mechanism: PrefixSum[Any], visit: Chooser, z: Array, *, nulled: bool
) -> tuple[Array, Array, list[int]]:
    """Runs the real stream; outputs, clipped rows, and the slots in which the person came."""
    n = mechanism.factorization.horizon
    stream, _ = open_stream(mechanism, range(n), z)
    shown, rows, came = [np.zeros(2)], [], []
    for t in range(n):
        mine = visit(t, np.array(shown))
        row = others(t, np.array(shown)) if mine is None else mine * (not nulled)
        if mine is not None:
            came.append(t)
        rows.append(mechanism.domain.clip(row[None])[0])
        shown.append(stream.append(Rows.seal(row[None], users=range(t, t + 1))).value[0])
    return np.array(shown[1:]), np.array(rows), came


def visitor(rule: Participation, seed: int, *, ignores: bool = False) -> Chooser:
    """Comes when the last output says so, and when the rule lets a further visit be learned.

    The direction of the row follows all outputs.  ``ignores``: every visit is learned.
    """
    rng = np.random.default_rng(seed)
    coins = rng.random(64)
    came: list[int] = []

    def visit(t: int, shown: Array) -> Array | None:
        if t == 0:
            came.clear()
        liked = math.sin(50 * float(shown[-1, 0]) + seed) > -0.5 or coins[t] < 0.3
        room = len(came) < rule.most and (not came or t - came[-1] >= rule.apart)
        if not liked or not (room or ignores):
            return None
        came.append(t)
        angle = 0.3 * math.sin(float(shown.sum())) + seed
        return np.array([math.cos(angle), math.sin(angle)])

    return visit


def moved_noise(mechanism: PrefixSum[Any], visit: Chooser, seed: int) -> tuple[float, list[int]]:
    """Squared shift of the noise that gives the world without the person the same transcript."""
    n = mechanism.factorization.horizon
    z = np.random.default_rng(seed).normal(size=(n, 2))
    outputs, rows, came = transcript(mechanism, visit, z, nulled=False)
    without = rows.copy()
    without[came] = 0.0
    shift = matrix_c(mechanism.factorization, n) @ (rows - without) / mechanism.noise_std
    replay, again, slots = transcript(mechanism, visit, z + shift, nulled=True)
    assert slots == came
    np.testing.assert_allclose(again, without, atol=1e-9)
    np.testing.assert_allclose(replay, outputs, atol=1e-6)
    return float((shift**2).sum()), came


@pytest.mark.parametrize("factorization", made(24)[:3], ids=lambda f: f.kind)
def test_a_person_who_comes_when_the_outputs_say_so_costs_no_more_than_charged(
    factorization: Factorization,
) -> None:
    rule = Participation(4, apart=5)
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 2),
        GaussianDP(1),
        factorization=factorization,
        adjacency=ZERO,
        participation=rule,
    )
    mass = mechanism.loss().gaussian()
    assert mass is not None
    assert mass <= 1
    seen, largest = set(), 0.0
    for seed in range(6):
        squared, came = moved_noise(mechanism, visitor(rule, seed), seed)
        assert squared <= float(mass) * (1 + 1e-9)
        seen.add(tuple(came))
        largest = max(largest, squared)
    assert len(seen) > 2  # it does come when outputs say so
    assert largest > 0.5


def test_visits_that_the_rule_forbids_cost_more_than_charged() -> None:
    """Broken twin: every visit is learned."""
    rule = Participation(4, apart=5)
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 2), GaussianDP(1), horizon=24, adjacency=ZERO, participation=rule
    )
    squared, came = moved_noise(mechanism, visitor(rule, 1, ignores=True), 1)
    assert len(came) > 4
    assert squared > 2


def test_the_charge_is_reached_by_visits_as_early_as_they_may_be() -> None:
    rule = Participation(4, apart=5)
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 2),
        GaussianDP(1),
        factorization=BufferedToeplitz.fitted(24),
        adjacency=ZERO,
        participation=rule,
    )

    def visit(t: int, shown: Array) -> Array | None:
        return np.array([1.0, 0.0]) if t in (0, 5, 10, 15) else None

    squared, _ = moved_noise(mechanism, visit, 0)
    assert squared == pytest.approx(1, rel=1e-8)


# What is stated -----------------------------------------------------------------------------------


def test_the_spend_states_the_rule_and_s() -> None:
    rule = Participation(8, apart=128)
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 5),
        ZCDP("0.5"),
        factorization=BufferedToeplitz.fitted(1024),
        participation=rule,
    )
    loss = mechanism.loss()
    assert isinstance(loss, VisitsLoss)
    assert isinstance(loss.loss, GaussianLoss)
    assert (loss.most, loss.apart) == (8, 128)
    assert loss.gaussian() == 1
    assert loss.for_visits(8, 128) is loss.for_visits(3, 200) is loss
    assert loss.for_visits(9, 128).gaussian() == 4
    parameters = mechanism.spend().parameters
    norm = BufferedToeplitz.fitted(1024).participation_norm(8, 128)
    assert parameters["participation"] == rule.to_dict()
    assert parameters["visits"] == {"most": 8, "apart": 128, "together": 1, "norm": norm}
    assert norm <= mechanism.spend().gain <= norm * (1 + 1e-7)
    assert mechanism.spend().derived
    # 13.71 of returning persons, where groups of 8 would have 26.18
    assert mechanism.error_std(1024) / 2 == pytest.approx(13.706, abs=1e-3)


def test_a_person_pays_the_streams_price_once() -> None:
    people = People.memory(Participation(3, apart=4))
    accountant = JointAccountant(
        ZCDP("0.5"), users=range(12), people=people, noise=NoiseSource.simulation(0)
    )
    mechanism = PrefixSum.calibrated(
        Ball(1.0, 2), ZCDP("0.5"), horizon=12, adjacency=ZERO, participation=people.rule
    )
    token = accountant.issue(mechanism.loss(), users=range(12), label="sums")
    assert token.budget == ZCDP("0.5")
    with mechanism.open(token):
        pass
    (spend,) = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
    assert spend.loss["kind"] == "visits"
    assert spend.derived
    plain = PrefixSum(Ball(1.0, 2), mechanism.factorization, mechanism.noise_std, ZERO)
    grouped = accountant.of_person(plain.loss(), range(12)).zcdp()
    assert grouped is not None
    assert grouped > Fraction(1, 2)  # what it would cost as a group of three


def test_generalized_gaussian_noise_takes_the_same_s() -> None:
    """rho is (p - 1)(S D)**2 / (2 std**2), by Minkowski in lp row by row."""
    domain, rule = Ball(1.0, 6, "linf"), Participation(4, apart=3)
    mechanism = PrefixSum.calibrated(
        domain,
        ZCDP("0.5"),
        factorization=BufferedToeplitz.fitted(16),
        participation=rule,
        exponent=4.0,
    )
    rho = mechanism.loss().zcdp()
    assert rho is not None
    s = mechanism.factorization.participation_norm(4, 3)
    reach = domain.sensitivity(Adjacency.REPLACE_ONE, 4.0)
    assert float(rho) == pytest.approx(3 * (s * reach / mechanism.noise_std) ** 2 / 2, rel=1e-6)
    assert rho <= Fraction(1, 2)
    c = matrix_c(mechanism.factorization, 16)
    rng = np.random.default_rng(0)
    for _ in range(50):
        moves = rng.choice([-reach, 0, reach], size=(16, 6)) * 6**-0.25
        moves[[t for t in range(16) if t % 3 or t > 9]] = 0.0
        square = float((np.linalg.norm(c @ moves, ord=4, axis=1) ** 2).sum())
        assert square <= (s * reach) ** 2


def test_by_arrival_is_refused() -> None:
    with pytest.raises(ValueError, match="by_arrival = True with a rule of participation"):
        PrefixSum(Ball(1.0, 1), BinaryTree(8), 1.0, by_arrival=True, participation=Participation(2))


# Batches ------------------------------------------------------------------------------------------

BATCHES: list[tuple[tuple[int, ...], Participation]] = [
    ((3, 3, 3, 3), Participation(3, pooled=True)),
    ((3, 3, 3, 3), Participation(3, per_batch=1)),
    ((2, 5, 1, 4), Participation(3, apart=4, per_batch=1)),
    ((2, 5, 1, 4), Participation(4, apart=2)),
    ((2, 5, 1, 4), Participation(4)),
    ((4, 4, 4), Participation(5, per_batch=2)),
    ((1,) * 12, Participation(4, apart=3)),
    ((3, 3, 3, 3), Participation(3, apart=7)),
    ((6, 6), Participation(2, apart=12)),
    ((1, 1, 5, 5), Participation(4, apart=3, per_batch=1)),
]


def counts(sizes: tuple[int, ...], rule: Participation) -> Iterator[list[int]]:
    """How many rows of a person are in each batch, over all that the rule lets be learned."""
    if rule.pooled:
        yield from patterns(len(sizes), rule.most, 1).astype(int).tolist()
        return
    batch = [j for j, size in enumerate(sizes) for _ in range(size)]
    for pattern in patterns(len(batch), rule.most, rule.apart):
        found = np.bincount(np.array(batch)[pattern > 0], minlength=len(sizes)).tolist()
        if rule.per_batch is None or max(found) <= rule.per_batch:
            yield found


@pytest.mark.parametrize(("sizes", "rule"), BATCHES)
def test_no_visits_to_batches_move_more_than_stated(
    sizes: tuple[int, ...], rule: Participation
) -> None:
    visits = visits_in_batches(rule, sizes)
    cases = np.unique(np.array(list(counts(sizes, rule))), axis=0)
    assert cases.sum(axis=1).max() <= visits.most
    for factorization in made(len(sizes))[:3]:
        c = matrix_c(factorization, len(sizes))
        largest = np.linalg.norm(cases @ c.T, axis=1).max()
        found = float(visits.norm(factorization))
        assert largest <= found * (1 + 1e-12)
        assert found <= largest * 1.4


def test_double_visits_to_a_batch_are_more_than_visits_to_different_ones() -> None:
    """Broken twin: a price for one visit a batch, where two may be learned in one."""
    factorization = BufferedToeplitz.fitted(4)
    twice, once = Participation(3, per_batch=2), Participation(3, per_batch=1)
    sizes = (3, 3, 3, 3)
    c = matrix_c(factorization, 4)
    cases = np.array(list(counts(sizes, twice)))
    largest = np.linalg.norm(cases @ c.T, axis=1).max()
    assert largest > 1.05 * float(visits_in_batches(once, sizes).norm(factorization))
    assert largest <= float(visits_in_batches(twice, sizes).norm(factorization))


def test_slots_apart_are_counted_in_batches() -> None:
    assert visits_in_batches(Participation(4, apart=128, per_batch=1), (64,) * 16) == StreamVisits(
        4, 2
    )
    assert visits_in_batches(Participation(4, apart=127), (64,) * 16) == StreamVisits(4, 1)
    assert visits_in_batches(Participation(4, apart=32), (64,) * 16) == StreamVisits(4, 1, 2)
    assert visits_in_batches(Participation(9, pooled=True), (5, 5)) == StreamVisits(2, 1)


def batched_accountant(rule: Participation, starts: list[int]) -> JointAccountant[ZCDP]:
    accountant = JointAccountant(
        ZCDP(1), users=range(12), people=People.memory(rule), noise=NoiseSource.simulation(0)
    )
    accountant.divide(starts)
    return accountant


def batched(rule: Participation) -> BatchedPrefixSum[Any]:
    return BatchedPrefixSum.calibrated(
        Ball(1.0, 2), ZCDP(1), sizes=(3, 3, 3, 3), adjacency=ZERO, participation=rule
    )


@pytest.mark.parametrize("rule", [Participation(3, per_batch=1), Participation(3, pooled=True)])
def test_batches_lie_within_those_of_the_rule(rule: Participation) -> None:
    mechanism = batched(rule)
    for starts in ([0, 3, 6, 9], [0, 6]):
        accountant = batched_accountant(rule, starts)
        token = accountant.issue(mechanism.loss(), users=range(12), label="sums")
        with pytest.raises(RuntimeError, match="stop"), mechanism.open(token):
            raise RuntimeError("stop")
    accountant = batched_accountant(rule, [0, 3, 8, 9])
    token = accountant.issue(mechanism.loss(), users=range(12), label="sums")
    with pytest.raises(UsersError, match="begins at slot 8, within one of the mechanism's"):
        mechanism.open(token)
    token.retire()  # nothing was spent


def test_a_price_for_one_row_a_batch_needs_a_rule_that_says_so() -> None:
    mechanism = batched(Participation(3, per_batch=1))
    accountant = JointAccountant(
        ZCDP(1),
        users=range(12),
        people=People.memory(Participation(3)),
        noise=NoiseSource.simulation(0),
    )
    token = accountant.issue(mechanism.loss(), users=range(12), label="sums")
    with pytest.raises(UsersError, match="may have more rows in a batch"):
        mechanism.open(token)


# Choices ------------------------------------------------------------------------------------------


def stream_of_choices(horizon: int, rule: Participation | None) -> NoisyMaxStream:
    """Noise in units of 1/log 2, so that odds are powers of 2 (and of 2**(2**-.5), ...)."""
    return NoisyMaxStream(CrossPolytope(1), 1.0, 1 / math.log(2), horizon, ZERO, rule)


def sum_over_picks(mechanism: NoisyMaxStream, slots: tuple[int, ...]) -> float:
    spread = ReportNoisyMax(mechanism.vertices, 1.0, mechanism.scale, adjacency=ZERO).spread
    total = 0.0
    for t in range(1, mechanism.horizon + 1):
        visits = sum(slot < t for slot in slots)
        if visits:
            scale = mechanism.scale * float(growth(t.bit_length() - 1))
            eta = visits * spread / scale
            total += float(BoundedRangeLoss(Fraction(eta), adjacency=ZERO).zcdp())
    return total


@pytest.mark.parametrize(("most", "apart"), [(1, 1), (2, 3), (3, 2), (8, 1)])
def test_choices_cost_what_the_worst_pattern_costs(most: int, apart: int) -> None:
    mechanism = stream_of_choices(8, Participation(most, apart))
    totals = [
        sum_over_picks(mechanism, tuple(np.flatnonzero(pattern)))
        for pattern in patterns(8, most, apart)
    ]
    rho = mechanism.loss().zcdp()
    assert rho is not None
    assert float(rho) == pytest.approx(max(totals), rel=1e-9)
    assert float(rho) >= max(totals) * (1 - 1e-12)


def exact_divergence(mechanism: NoisyMaxStream, most: int, apart: int, seed: int) -> float:
    """D_2 between the transcripts with and without a person, by listing all of them.

    Others' rows, and when the person comes, follow the picks so far.
    """
    n = mechanism.horizon
    moment = 0.0
    for picks in itertools.product((0, 1), repeat=n):
        law = [1.0, 1.0]  # of this transcript with the person, and without
        sums = [0.0, 0.0]
        came: list[int] = []
        for t in range(n):
            coin = (sum(p << i for i, p in enumerate(picks[:t])) * 7 + t + seed) % 4
            room = len(came) < most and (not came or t - came[-1] >= apart)
            if room and coin:
                came.append(t)
                sums[0] += 1.0
            else:
                sums = [s + (-1.0 if coin % 2 else 0.5) for s in sums]
            scale = mechanism.scale * float(growth((t + 1).bit_length() - 1))
            for world in (0, 1):  # points are +1 and -1
                odds = math.exp(2 * sums[world] / scale)
                law[world] *= odds / (1 + odds) if picks[t] == 0 else 1 / (1 + odds)
        moment += law[0] ** 2 / law[1]
    return math.log(moment)


def test_choices_of_a_person_who_comes_when_picks_say_so_cost_no_more_than_charged() -> None:
    mechanism = stream_of_choices(8, Participation(3, apart=2))
    rho = mechanism.loss().zcdp()
    one = stream_of_choices(8, None).loss().zcdp()
    assert rho is not None
    assert one is not None
    found = [exact_divergence(mechanism, 3, 2, seed) for seed in range(4)]
    assert max(found) <= 2 * float(rho)
    assert max(found) > 2 * float(one)  # broken twin: the price of one row


def test_choices_with_a_rule_fit_their_budget() -> None:
    mechanism = NoisyMaxStream.calibrated(
        CrossPolytope(2), 1.0, ZCDP("0.5"), horizon=64, participation=Participation(4, apart=16)
    )
    loss = mechanism.loss()
    assert isinstance(loss, VisitsLoss)
    rho = loss.zcdp()
    assert rho is not None
    assert Fraction("0.499999") <= rho <= Fraction(1, 2)
    assert mechanism.spend().parameters["participation"] == Participation(4, apart=16).to_dict()
    with pytest.raises(ValueError, match="the price is a sum over visits"):
        NoisyMaxStream(CrossPolytope(2), 1.0, 1e9, 2**20, participation=Participation(2**20))
