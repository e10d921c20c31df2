"""Convolutions by FFT against exact integers, exact binomials, direct sums and dp-accounting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy import fft

from privlearn.accountants import fourier, loss_grid
from privlearn.accountants.composition import Composition
from privlearn.accountants.fourier import Array, CountedWeights, Enclosed, Window, convolve, window
from privlearn.accountants.loss_grid import Mesh, block, curve_of_law
from privlearn.losses.discrete import DiscreteGaussianStep
from privlearn.losses.steps import (
    BoundedRangeStep,
    Direction,
    DiscreteLaplaceStep,
    LaplaceStep,
    PairStep,
    PureStep,
    RandomizedResponseStep,
    Step,
)
from privlearn.losses.subsampled import SubsampledGaussianStep


def exact(factors: CountedWeights) -> list[Fraction]:
    """The convolution in integers: weights are digits of one long number."""
    scale = max(Fraction(float(w)).denominator for weights, _ in factors for w in weights)
    runs = sum(count for _, count in factors)
    slot = (scale.bit_length() + 40) * runs
    product = 1
    for weights, count in factors:
        digits = [int(Fraction(float(w)) * scale) for w in weights]
        product *= sum(digit << (slot * k) for k, digit in enumerate(digits)) ** count
    end = sum(count * (len(weights) - 1) for weights, count in factors)
    mask = (1 << slot) - 1
    return [Fraction((product >> (slot * k)) & mask, scale**runs) for k in range(end + 1)]


def bell(size: int = 25) -> Array:
    k = np.arange(size)
    weights: Array = np.exp(-0.5 * ((k - 9) / 2.5) ** 2)
    weights /= weights.sum()
    return weights


def heavy(size: int = 80) -> Array:
    """Almost all mass at two points and a long thin tail, as of a rarely sampled record."""
    weights: Array = 1e-4 * np.exp(-0.15 * np.arange(size))
    weights[2:4] = 0.5
    weights[:2] = 0.0
    weights /= weights.sum()
    return weights


def uneven(size: int = 60) -> Array:
    rng = np.random.default_rng(5)
    weights: Array = 10.0 ** rng.uniform(-25, 0, size)
    weights[rng.integers(0, size, 20)] = 0.0
    weights /= weights.sum()
    return weights


CASES: list[CountedWeights] = [
    [(bell(), 12)],
    [(heavy(), 9)],
    [(uneven(), 5)],
    [(bell(), 3), (heavy(), 4), (np.array([1.0]), 2)],
    [(np.array([0.25, 0.75]), 40)],
]


def holds(found: Enclosed, true: list[Fraction], where: Window) -> bool:
    """Whether every weight lies where it is said to, compared in fractions."""
    slack = Fraction(found.rounding)
    inside = true[where.first : where.last + 1]
    return all(
        Fraction(float(low)) <= at * (1 + slack) and at <= Fraction(float(high)) * (1 + slack)
        for low, at, high in zip(found.least, inside, found.most, strict=True)
    )


@pytest.mark.parametrize("tail", [1e-3, 1e-12, 1e-40])
@pytest.mark.parametrize("factors", CASES)
def test_every_weight_is_enclosed_and_nothing_is_lost(factors: CountedWeights, tail: float) -> None:
    true = exact(factors)
    where = window(factors, tail)
    found = convolve(factors, where)
    assert len(found.most) == where.last - where.first + 1
    assert holds(found, true, where)
    assert sum(true[: where.first]) <= Fraction(where.below) <= Fraction(2 * tail)
    assert sum(true[where.last + 1 :]) <= Fraction(where.above) <= Fraction(2 * tail)


@pytest.mark.parametrize("factors", CASES)
def test_tails_are_known_to_many_digits(factors: CountedWeights) -> None:
    true = np.array([float(w) for w in exact(factors)])
    where = window(factors, 1e-40)
    found = convolve(factors, where)
    beyond = true[::-1].cumsum()[::-1][where.first : where.last + 1]
    gap = (found.most - found.least)[::-1].cumsum()[::-1]
    middle = int((np.arange(len(true)) * true).sum() / true.sum()) - where.first
    seen = (beyond > 1e-35) & (np.arange(len(gap)) >= middle)
    assert seen.sum() > 10
    assert (gap[seen] / beyond[seen]).max() < 1e-8
    assert found.rounding < 1e-10


def test_the_error_is_not_made_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    # one tilt leaves the tail to the error bound: without it the tail is wrong by any factor
    factors: CountedWeights = [(bell(), 12)]
    true, where = exact(factors), window(factors, 1e-30)
    monkeypatch.setattr(fourier, "_tilts", lambda tilted, up, halvings: [0.0])
    assert holds(convolve(factors, where), true, where)
    for name in ("LEVEL", "_TIMES"):
        monkeypatch.setattr(fourier, name, 0.0)
    assert not holds(convolve(factors, where), true, where)


def steep(size: int = 90) -> Array:
    """Nearly all mass at a few points, and a valley before a thin bump."""
    k = np.arange(size)
    weights: Array = np.exp(-0.5 * ((k - 6) / 1.5) ** 2) + 1e-9 * np.exp(-(((k - 60) / 9) ** 2))
    weights /= weights.sum()
    return weights


ALONE = [(bell(), 12), (heavy(), 9), (uneven(), 5), (steep(), 7), (np.array([0.25, 0.75]), 40)]


@pytest.mark.parametrize("tail", [1e-12, 1e-40])
@pytest.mark.parametrize(("weights", "count"), ALONE)
def test_a_tail_that_is_looked_at_apart_is_enclosed(
    weights: Array, count: int, tail: float
) -> None:
    factors: CountedWeights = [(weights, count)]
    true, where = exact(factors), window(factors, tail)
    found = fourier.power(weights, count, where, tail)
    assert holds(found, true, where)
    parts = [convolve(factors, where, cut=fourier.rare(weights, count))]
    assert all(np.all(part.least <= part.most) for part in parts)


def test_a_tail_that_is_looked_at_apart_is_known_better() -> None:
    factors: CountedWeights = [(steep(), 7)]
    where = window(factors, 1e-30)
    true = np.array([float(w) for w in exact(factors)][where.first : where.last + 1])
    valley = slice(62 - where.first, 78 - where.first)  # beyond the bulk of seven, before the bump

    def gap(found: Enclosed) -> float:
        return float(((found.most - found.least)[valley] / true[valley]).max())

    closely = convolve(factors, where, care=3)
    assert gap(fourier.power(steep(), 7, where, 1e-30)) < 0.1 * gap(closely)


def test_the_error_of_a_tail_is_not_made_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    factors: CountedWeights = [(heavy(), 9)]
    true, where = exact(factors), window(factors, 1e-30)
    monkeypatch.setattr(fourier, "_tilts", lambda tilted, up, halvings: [0.0])
    assert holds(fourier.power(heavy(), 9, where, 1e-30), true, where)
    for name in ("LEVEL", "_TIMES", "ULP"):
        monkeypatch.setattr(fourier, name, 0.0)
    assert not holds(fourier.power(heavy(), 9, where, 1e-30), true, where)


def test_sums_of_products_with_one_rare_factor() -> None:
    one, both = np.array([2, -1, 3 + 1j]), np.array([3, 2j, -1 + 0j])
    for count in range(1, 40):
        terms = [one**i * both ** (count - 1 - i) for i in range(count)]
        found = fourier._telescope(one.astype(complex), both, count)
        assert np.allclose(found, np.sum(terms, axis=0), rtol=1e-12, atol=0)


def test_a_rare_record_at_a_tiny_delta_is_known_to_the_lattice() -> None:
    plan: list[tuple[Step, int]] = [(SubsampledGaussianStep(0.001, 0.8), 25)]
    answer = Composition(plan, delta=1e-9).epsilon(1e-9)
    assert answer.value == pytest.approx(0.7956462, abs=1e-6)  # by direct convolution: 0.7956465
    assert answer.error_bound < 1.5e-6  # 5.5e-6 with one transform for everything


def test_what_is_folded_back_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    factors: CountedWeights = [(heavy(), 9)]
    true, where = exact(factors), window(factors, 1e-2)
    assert holds(convolve(factors, where), true, where)
    monkeypatch.setattr(fourier, "_log_series", lambda x: -math.inf)
    assert not holds(convolve(factors, where), true, where)


def test_far_weights_that_tilts_make_huge_are_not_overlooked() -> None:
    # the window is shorter than the weights: what is folded in is bounded by e^1000 e^-900, say
    law = loss_grid._leaf(SubsampledGaussianStep(1e-6, 0.5), 2.5e-15, Mesh(long=12_000), "remove")
    factors: CountedWeights = [(law.p, 1), (law.p, 1)]
    where = window(factors, 2.5e-15)
    true = np.convolve(law.p, law.p)[where.first : where.last + 1]
    found = convolve(factors, where)
    assert np.all(found.least <= true * (1 + 1e-9))
    assert np.all(true <= found.most * (1 + 1e-9))


def test_one_transform_errs_by_less_than_its_levels_allow() -> None:
    rng = np.random.default_rng(3)
    for bits in (3, 10, 17):
        size = 2**bits
        allowed = bits * fourier.LEVEL
        for place in (1, 3, size // 2 - 1, int(rng.integers(size))):
            impulse = np.zeros(size)
            impulse[place] = 1.0
            spectrum = fft.rfft(impulse)
            assert np.abs(fft.irfft(spectrum, size) - impulse).max() <= 2 * allowed
            for k in rng.integers(0, size // 2, 12).tolist():
                turn = mpmath.mpf(-2 * (place * k % size)) / size
                true = mpmath.expjpi(turn)
                assert abs(mpmath.mpc(complex(spectrum[k])) - true) <= allowed


def test_a_transform_of_weights_errs_by_less_than_its_levels_allow_of_their_mass() -> None:
    rng = np.random.default_rng(4)
    for bits in (9, 10):  # a level of radix 2 beside those of radix 4, and none
        size = 2**bits
        weights = 10.0 ** rng.uniform(-12, 0, size)
        spectrum = fft.rfft(weights)
        allowed = bits * fourier.LEVEL * float(weights.sum())
        errors = []
        with mpmath.workdps(30):
            turns = [mpmath.expjpi(mpmath.mpf(-2 * k) / size) for k in range(size)]
            for k in rng.integers(0, size // 2, 6).tolist():
                true = mpmath.fdot(weights.tolist(), [turns[j * k % size] for j in range(size)])
                errors.append(float(abs(mpmath.mpc(complex(spectrum[k])) - true)))
        assert 0 < max(errors) <= allowed
        worse = spectrum * (1 + 1e-13)  # single errors of a table, say
        assert np.abs(worse - spectrum).max() > allowed


# ----------------------------------------------------------------------------------- laws


@pytest.fixture
def by_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution goes by FFT, also the short ones."""
    monkeypatch.setattr(loss_grid, "_DIRECT", 0)


@pytest.mark.usefixtures("by_fft")
@pytest.mark.parametrize("delta", [1e-6, 1e-30])
@pytest.mark.parametrize(("eps", "runs"), [(0.7, 60), (0.05, 700), (3.0, 9)])
def test_randomized_responses_against_binomials(eps: float, runs: int, delta: float) -> None:
    total = Composition([(RandomizedResponseStep(eps), runs)], delta=delta)
    for share in (0.0, 0.15, 0.4, 0.7):
        level = share * eps * runs
        with mpmath.workdps(60):
            p = 1 / (1 + mpmath.e ** (-mpmath.mpf(eps)))
            true = mpmath.fsum(
                mpmath.binomial(runs, k)
                * p**k
                * (1 - p) ** (runs - k)
                * (1 - mpmath.e ** (level - (2 * k - runs) * mpmath.mpf(eps)))
                for k in range(runs + 1)
                if (2 * k - runs) * eps > level
            )
        answer = total.delta(level)
        assert answer.value - answer.error_bound <= true <= answer.value
        assert answer.error_bound <= 0.03 * true + 1e-4 * delta


@pytest.mark.parametrize("way", ["remove", "add"])
@pytest.mark.parametrize(("q", "sigma", "runs"), [(0.01, 0.8, 25), (0.2, 1.0, 7), (0.001, 0.6, 40)])
def test_fft_and_direct_sums_overlap(
    q: float, sigma: float, runs: int, way: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(points=60, long=1500, least=40)
    plan = [(SubsampledGaussianStep(q, sigma), runs)]

    def curve(direct: int) -> loss_grid.DeltaCurve:
        monkeypatch.setattr(loss_grid, "_DIRECT", direct)
        return curve_of_law(block(plan, 1e-16, mesh, way))

    monkeypatch.setattr(loss_grid, "_UNSEEN", math.inf)
    monkeypatch.setattr(loss_grid, "_MOST_UNSEEN", math.inf)
    slow, quick = curve(10**12), curve(0)
    for eps in np.linspace(0, 4, 9).tolist():
        assert quick.lower(eps) <= slow.upper(eps)
        assert slow.lower(eps) <= quick.upper(eps)
        width = slow.upper(eps) - slow.lower(eps)
        assert quick.upper(eps) - quick.lower(eps) <= 1.05 * width + 1e-14


def test_a_law_without_what_it_lost_would_be_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [(RandomizedResponseStep(0.7), 60)]
    level, p = 25.0, 1 / (1 + math.exp(-0.7))
    true = math.fsum(
        math.comb(60, k) * p**k * (1 - p) ** (60 - k) * -math.expm1(level - (2 * k - 60) * 0.7)
        for k in range(61)
        if (2 * k - 60) * 0.7 > level
    )

    def upper() -> float:
        return curve_of_law(block(plan, 1e-4, Mesh(), "remove")).upper(level)

    monkeypatch.setattr(loss_grid, "_DIRECT", 0)
    assert upper() >= true

    def forgetful(change: Callable[[Window], Window]) -> None:
        monkeypatch.setattr(fourier, "window", lambda *args: change(window(*args)))

    forgetful(lambda found: found._replace(above=0.0))
    assert upper() < true


def test_the_recursion_takes_laws_made_by_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: list[tuple[Step, int]] = [
        (SubsampledGaussianStep(0.1, 1.0), 20),
        (BoundedRangeStep(0.3), 2),
    ]
    slow = Composition(plan).delta(1.0)
    monkeypatch.setattr(loss_grid, "_DIRECT", 0)
    quick = Composition(plan).delta(1.0)
    assert quick.value == pytest.approx(slow.value, rel=1e-4)
    assert quick.error_bound <= 1.05 * slow.error_bound


def test_bounds_are_monotone() -> None:
    answers = []
    for runs in (20, 25, 30):
        total = Composition([(SubsampledGaussianStep(0.01, 0.8), runs)], delta=1e-6, effort=1e6)
        levels = np.linspace(0, 3, 13).tolist()
        deltas = [total.delta(level) for level in levels]
        assert all(a.value >= b.value for a, b in itertools.pairwise(deltas))
        answers.append(total.epsilon(1e-5))
    assert all(a.value < b.value - b.error_bound for a, b in itertools.pairwise(answers))


def test_the_interval_meets_that_of_dp_accounting_and_is_narrower() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    def peer(interval: float, pessimistic: bool) -> float:
        single = pld.from_gaussian_mechanism(
            0.8,
            value_discretization_interval=interval,
            sampling_prob=0.01,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return float(single.self_compose(25).get_epsilon_for_delta(1e-5))

    ours = Composition([(SubsampledGaussianStep(0.01, 0.8), 25)], delta=1e-6).epsilon(1e-5)
    least = ours.value - ours.error_bound
    assert peer(1e-3, False) <= ours.value < peer(1e-3, True)
    assert least <= peer(1e-4, True) < ours.value + ours.error_bound
    assert ours.error_bound < 5e-6


def test_a_tail_that_ends_in_an_atom_is_known_at_every_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All twenty losses are the largest with probability 2**-20: one steep tilt overflows there."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def peer(pessimistic: bool) -> float:
        single = pld.from_laplace_mechanism(
            2.0, value_discretization_interval=1e-3, pessimistic_estimate=pessimistic
        )
        return float(single.self_compose(20).get_epsilon_for_delta(1e-6))

    ours = Composition([(LaplaceStep(0.5), 20)]).epsilon(1e-6)
    assert peer(False) <= ours.value <= peer(True)
    assert ours.error_bound < 1e-6
    parts = [(np.array([0.5] + [0.0] * 499 + [0.5]), 20)]
    monkeypatch.setattr(fourier, "_one_tilt", lambda tilted, where, steepest: steepest)
    found = convolve(parts, window(parts, 1e-12), care=0)
    assert np.isfinite(found.most).all()


@pytest.mark.parametrize(
    "step",
    [
        PureStep(0.3),
        RandomizedResponseStep(0.4, 3),
        DiscreteLaplaceStep(0.6, 3),
        DiscreteLaplaceStep(0.6, 4),
        DiscreteGaussianStep(2.5, 1),
        DiscreteGaussianStep(2.5, 2),
    ],
)
def test_losses_lie_on_the_lattice_that_is_stated(step: PairStep) -> None:
    places = step.points("remove", 0.01, 1e-9).loss / step.lattice()
    assert np.abs(places - np.round(places)).max() < 1e-9
    assert np.gcd.reduce(np.round(places).astype(int)) == 1  # a coarser one would not do
    answer = Composition([(step, 60)]).epsilon(1e-6)
    assert answer.error_bound < 1e-6 * answer.value  # nothing is split


def test_the_chance_of_only_largest_losses_bounds_from_below() -> None:
    near = Composition([(LaplaceStep(2.0), 3)])
    answer = near.epsilon(1e-9)
    assert near._solved is None  # no lattice was needed
    assert answer.value - answer.error_bound <= 6 + math.log1p(-8e-9) <= answer.value
    assert near.epsilon(1e-3).method == "dominating pairs"
