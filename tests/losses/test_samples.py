"""Losses on samples: their pairs against 30-digit integrals, and against mechanisms that run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.stats import binom

from privlearn.accountants.composition import Composition
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.accountants.tight_composition import step_of
from privlearn.errors import AdjacencyError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedBatch,
    GaussianLoss,
    GaussianMixture,
    LaplaceLoss,
    Loss,
    PoissonSampled,
    PureLoss,
    RandomizedResponse,
    SelectedLoss,
    SubsampledGaussian,
    TruncatedPoisson,
    as_replace_one,
    as_zero_out,
    loss_from_dict,
)
from privlearn.losses.sampling import JoinedStep, ReplacedStep
from privlearn.losses.steps import Direction, PairStep
from privlearn.values.adjacency import Adjacency

ADD, OUT, ONE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
GAUSS, LAPLACE = GaussianLoss(1, adjacency=ADD), LaplaceLoss("0.8", adjacency=ADD)
EPSILONS = (0.03, 0.4, 1.1)
Law = Callable[[Any], Any]


def stick(p: Law, q: Law, epsilon: float, bends: Sequence[float]) -> float:
    """∫(p − e^ε·q)₊ on the line, by mpmath between the given points and the zeros."""
    with mp.workdps(20):
        level = mp.exp(mpf(epsilon))
        gap: Law = lambda x: p(x) - level * q(x)  # noqa: E731
        grid = sorted(
            {float(x) for x in [-45, -22, -11, *np.linspace(-6, 6, 9), 11, 22, 45, *bends]}
        )
        values = [gap(mpf(x)) for x in grid]
        total = mpf(0)
        for a, b, u, v in zip(grid, grid[1:], values, values[1:], strict=False):
            ends = [a, b]
            if u * v < 0:
                root = mp.findroot(gap, (a, b), solver="anderson", tol=1e-30, verify=False)
                ends = [a, root] if u > 0 else [root, b]
            if u > 0 or v > 0:
                total += mp.quad(gap, ends, maxdegree=4)
    return float(total)


def normal(mean: float, std: float = 1.0) -> Law:
    return lambda x: mp.npdf(x, mean, std)


def laplace(mean: float, scale: float) -> Law:
    return lambda x: mp.exp(-abs(x - mean) / scale) / (2 * scale)


def mixed(parts: Sequence[tuple[float, Law]]) -> Law:
    return lambda x: mp.fsum(share * law(x) for share, law in parts)


SCALE = 1 / 0.8
PAIRS: list[tuple[Loss, Law, Law, Sequence[float]]] = [
    (
        PoissonSampled(LAPLACE, "0.1"),
        mixed([(0.9, laplace(0, SCALE)), (0.1, laplace(1, SCALE))]),
        laplace(0, SCALE),
        (0.0, 1.0),
    ),
    (
        PoissonSampled(GAUSS, "0.1", adjacency=ONE),
        mixed([(0.9, normal(0)), (0.1, normal(1))]),
        mixed([(0.9, normal(0)), (0.1, normal(-1))]),
        (),
    ),
    (
        GaussianMixture([0, 1, "2.5"], ["0.7", "0.2", "0.1"], 2),
        mixed([(0.7, normal(0, 2)), (0.2, normal(1, 2)), (0.1, normal(2.5, 2))]),
        normal(0, 2),
        (),
    ),
    (
        GaussianMixture(["0.5", 2], ["0.75", "0.25"], 2, adjacency=ONE),
        mixed([(0.75, normal(0.5, 2)), (0.25, normal(2, 2))]),
        mixed([(0.75, normal(-0.5, 2)), (0.25, normal(-2, 2))]),
        (),
    ),
    (  # others at −1, the record at 1 or −1
        FixedBatch(GaussianLoss(4), 10, 1),
        mixed([(0.9, normal(-1)), (0.1, normal(1))]),
        normal(-1),
        (),
    ),
    (
        FixedBatch(LaplaceLoss("0.8"), 10, 1),
        mixed([(0.9, laplace(0, SCALE)), (0.1, laplace(1, SCALE))]),
        laplace(0, SCALE),
        (0.0, 1.0),
    ),
]


def pair_of(loss: Loss) -> PairStep:
    step = step_of(loss)
    assert isinstance(step, PairStep)
    return step


def directed(step: PairStep, way: Direction, epsilon: float) -> float:
    """The hockey stick of a step in one direction, by its points on a lattice that holds ε."""
    law = step.points(way, epsilon, 1e-25)
    above = law.loss > epsilon
    return float((law.p[above] * -np.expm1(epsilon - law.loss[above])).sum()) + law.lost


@pytest.mark.parametrize(("loss", "p", "q", "bends"), PAIRS, ids=lambda x: getattr(x, "kind", ""))
def test_every_direction_of_a_pair_is_its_integral(
    loss: Loss, p: Law, q: Law, bends: Sequence[float]
) -> None:
    step = pair_of(loss)
    for epsilon in (0.05, 1.1) if loss.pure() else (0.3,):
        remove, add = stick(p, q, epsilon, bends), stick(q, p, epsilon, bends)
        assert directed(step, "remove", epsilon) == pytest.approx(remove, rel=1e-10, abs=1e-20)
        if step.both_ways:
            assert directed(step, "add", epsilon) == pytest.approx(add, rel=1e-10, abs=1e-20)
        answer = Composition([(step, 1)]).delta(epsilon)
        truth = max(remove, add)
        assert answer.value - answer.error_bound <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= answer.value <= truth * (1 + 1e-4) + 1e-12


def test_the_law_of_a_replacement_is_a_law_and_has_the_curve_of_both_branches() -> None:
    """At a < 1 the curve is H_a(P‖(1−γ)P + γQ), which mass at negative losses makes."""
    gamma, mu = 0.1, 2.0
    step = ReplacedStep(((1.0, GaussianLoss(4)),), gamma)
    law = step.points("remove", 2.0**-8, 1e-25)
    assert law.p.sum() == pytest.approx(1, rel=1e-12)
    assert (law.p * np.exp(-law.loss)).sum() == pytest.approx(1, rel=1e-9)
    for log_a in (-0.0625, -0.03125):
        found = float((law.p * -np.expm1(np.minimum(log_a - law.loss, 0))).sum())
        part = mixed([(1 - gamma, normal(mu)), (gamma, normal(0))])
        assert found == pytest.approx(stick(normal(mu), part, log_a, ()), rel=1e-8)


@pytest.mark.parametrize("way", ["remove", "add"])
def test_two_noises_on_one_sample_are_their_product(way: Direction) -> None:
    """H_a of the sampled pair is a multiple of H_b of the product, an integral over one noise."""
    q, eps, epsilon = 0.2, 0.8, 0.1
    a = math.exp(epsilon)
    b = (a - 1 + q) / q if way == "remove" else a * q / (1 - a * (1 - q))
    factor = q if way == "remove" else 1 - a * (1 - q)

    def gaussian(level: Any) -> Any:
        return mp.ncdf(0.5 - level) - mp.exp(level) * mp.ncdf(-0.5 - level)

    def inner(loss: Any) -> Any:
        return gaussian(mp.log(b) - loss)

    ends = mp.exp(-eps) / 2 * inner(-eps) + inner(eps) / 2
    between = mp.quad(lambda loss: mp.exp((loss - eps) / 2) / 4 * inner(loss), [-eps, 0, eps])
    truth = factor * float(ends + between)
    step = pair_of(PoissonSampled(GAUSS + LAPLACE, "0.2"))
    assert truth <= directed(step, way, epsilon) <= truth * (1 + 1e-5)
    separately = factor * float(gaussian(mp.log(b)))  # one noise forgotten
    assert separately < truth


@pytest.mark.parametrize(
    "inside",
    [
        PureLoss("0.6", adjacency=ADD),
        RandomizedResponse("0.6", 5, adjacency=ADD),
        DiscreteLaplace("0.9", 3, adjacency=ADD),
        DiscreteLaplace("0.9", 3, adjacency=ADD) * 2 + PureLoss("0.6", adjacency=ADD),
    ],
    ids=lambda loss: loss.kind,
)
def test_atoms_on_a_sample_against_enumeration(inside: Loss) -> None:
    q = 0.3
    logs_p, logs_q = np.zeros(1), np.zeros(1)
    parts = inside.parts if hasattr(inside, "parts") else ((inside, 1),)
    for part, count in parts:
        ((p_law, q_law),) = part.worst_pairs((2.0,)) or []
        for _ in range(count):
            logs_p = np.add.outer(logs_p, p_law.log_mass).ravel()  # type: ignore[union-attr]
            logs_q = np.add.outer(logs_q, q_law.log_mass).ravel()  # type: ignore[union-attr]
    p, without = np.exp(logs_p), np.exp(logs_q)
    joined = (1 - q) * without + q * p
    loss = PoissonSampled(inside, "0.3")
    step = pair_of(loss)
    for epsilon in (0.05, 0.2):
        remove = np.maximum(joined - math.exp(epsilon) * without, 0).sum()
        add = np.maximum(without - math.exp(epsilon) * joined, 0).sum()
        assert directed(step, "remove", epsilon) == pytest.approx(remove, rel=1e-11)
        assert directed(step, "add", epsilon) == pytest.approx(add, rel=1e-11)
    worst = max(np.log(joined / without).max(), np.log(without / joined).max())
    pure = loss.pure()
    assert pure is not None
    assert float(pure) == pytest.approx(worst, rel=1e-12)
    for order in (1.3, 2.0, 5.5, 40.0):
        truth = math.log((joined**order * without ** (1 - order)).sum()) / (order - 1)
        assert truth <= loss.renyi(order) * (1 + 1e-12)
        if order == 2.0:
            assert loss.renyi(order) == pytest.approx(truth, rel=1e-9)


# -- mechanisms that run on samples, by enumeration

GRID = np.linspace(-16, 16, 6401)


def density(means: dict[float, float], std: float) -> Any:
    found = np.zeros(len(GRID))
    for mean, share in means.items():
        found += share * np.exp(-(((GRID - mean) / std) ** 2) / 2)
    return found / (std * math.sqrt(2 * math.pi))


def grid_stick(p: Any, q: Any, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (GRID[1] - GRID[0]))


def cut_sample(records: Sequence[float], q: float, most: int) -> dict[float, float]:
    """The law of the sum of a Poisson sample of which at most so many are kept."""
    found: dict[float, float] = {}
    for drawn in itertools.product((0, 1), repeat=len(records)):
        chance = math.prod(q if one else 1 - q for one in drawn)
        chosen = [x for x, one in zip(records, drawn, strict=True) if one]
        kept = list(itertools.combinations(chosen, min(most, len(chosen))))
        for some in kept:
            found[sum(some)] = found.get(sum(some), 0.0) + chance / len(kept)
    return found


def fixed_sample(records: Sequence[float], size: int, replacement: bool) -> dict[float, float]:
    draws: list[tuple[float, ...]] = (
        list(itertools.product(records, repeat=size))
        if replacement
        else list(itertools.combinations(records, size))
    )
    found: dict[float, float] = {}
    for some in draws:
        found[sum(some)] = found.get(sum(some), 0.0) + 1 / len(draws)
    return found


def promised(loss: Loss) -> list[float]:
    whole = Composition([(step_of(loss), 1)])
    return [whole.delta(epsilon).value for epsilon in EPSILONS]


def worst(pairs: Sequence[tuple[Any, Any]]) -> list[float]:
    both = [way for p, q in pairs for way in ((p, q), (q, p))]
    return [max(grid_stick(p, q, epsilon) for p, q in both) for epsilon in EPSILONS]


def is_above(price: Sequence[float], truth: Sequence[float]) -> bool:
    return all(t <= p * (1 + 1e-5) + 1e-12 for p, t in zip(price, truth, strict=True))


OTHERS = list(itertools.combinations_with_replacement((-1.0, 0.0, 1.0), 3))


@pytest.mark.parametrize("relation", [ADD, OUT, ONE])
def test_no_truncated_sample_has_more_than_the_price(relation: Adjacency) -> None:
    q, most, std = 0.4, 2, 1.5
    choices: dict[Adjacency, list[float | None]] = {ADD: [None], OUT: [0.0], ONE: [-1.0, 1.0, 0.0]}
    ends = choices[relation]
    pairs = []
    for others in OTHERS:
        for end in ends:
            first = density(cut_sample([*others, 1.0], q, most), std)
            rest = others if end is None else (*others, end)
            pairs.append((first, density(cut_sample(rest, q, most), std)))
    inside = GaussianLoss(1 / Fraction("1.5") ** 2, adjacency=ADD if relation is ONE else relation)
    truth = worst(pairs)
    loss = TruncatedPoisson(inside, "0.4", 4, most, adjacency=relation)
    assert is_above(promised(loss), truth)
    assert not is_above([d * 0.5 for d in promised(loss)], truth)
    if relation is ADD:  # whoever forgets that a cut sample replaces
        assert not is_above(promised(PoissonSampled(inside, "0.4")), truth)


@pytest.mark.parametrize("replacement", [False, True])
def test_no_fixed_batch_has_more_than_the_price(replacement: bool) -> None:
    std = 1.5
    pairs = []
    for others in OTHERS:
        for end in (-1.0, 0.0):
            laws = [density(fixed_sample([*others, x], 2, replacement), std) for x in (1.0, end)]
            pairs.append((laws[0], laws[1]))
    truth = worst(pairs)
    inside = GaussianLoss((2 / Fraction("1.5")) ** 2)
    price = promised(FixedBatch(inside, 4, 2, replacement=replacement))
    assert is_above(price, truth)
    if replacement:  # copies of one record forgotten
        assert not is_above(promised(FixedBatch(inside, 4, 2)), truth)
    else:
        assert price[1] == pytest.approx(truth[1], rel=1e-4)
        plain = GaussianLoss(1 / Fraction("1.5") ** 2, adjacency=ADD)  # the others stay
        assert not is_above(promised(PoissonSampled(plain, "0.5")), truth)


def test_two_records_in_any_directions_are_below_opposite_ones() -> None:
    """(1−q)N(0) + qN(x) against (1−q)N(0) + qN(y) in the plane, |x|, |y| <= 1."""
    q, axis = 0.3, np.linspace(-8, 8, 401)
    u, v = np.meshgrid(axis, axis)
    area = (axis[1] - axis[0]) ** 2

    def plane(x: float, y: float) -> Any:
        without = np.exp(-(u**2 + v**2) / 2)
        return ((1 - q) * without + q * np.exp(-((u - x) ** 2 + (v - y) ** 2) / 2)) / 2 / math.pi

    price = promised(PoissonSampled(GAUSS, "0.3", adjacency=ONE))
    for angle, size in ((math.pi, 1.0), (2.0, 1.0), (math.pi, 0.4), (0.5, 0.7), (1.0, 0.0)):
        p, other = plane(1, 0), plane(size * math.cos(angle), size * math.sin(angle))
        for epsilon, most in zip(EPSILONS, price, strict=True):
            for one, two in ((p, other), (other, p)):
                found = float(np.maximum(one - math.exp(epsilon) * two, 0).sum() * area)
                assert found <= most * (1 + 1e-3)
                if size == 1 and angle == math.pi:
                    assert found >= most * (1 - 1e-3)


def test_several_rows_on_a_sample_are_a_mixture() -> None:
    loss = PoissonSampled(GAUSS, "0.3").for_visits(2)
    known = GaussianMixture([0, 1, 2], ["0.49", "0.42", "0.09"], 1)
    assert loss.renyi(2.0) == pytest.approx(known.renyi(2.0), rel=1e-12)
    one_by_one = [density(cut_sample([*([0.0]), *rows], 0.3, 9), 1.0) for rows in ([1, 1], [])]
    truth = worst([(one_by_one[0], one_by_one[1])])
    assert is_above(promised(loss), truth)
    assert not is_above(promised(PoissonSampled(GAUSS, "0.3")), truth)
    with pytest.raises(ValueError, match="laplace loss on a Poisson sample has no known price"):
        PoissonSampled(LAPLACE, "0.3").for_visits(2)


# -- Rényi curves, which are bounds of the same pairs


@pytest.mark.parametrize(
    "loss",
    [
        PoissonSampled(GAUSS, "0.05"),
        PoissonSampled(LAPLACE, "0.05"),
        PoissonSampled(LAPLACE, "0.05", adjacency=ONE),
        PoissonSampled(GAUSS, "0.05", adjacency=ONE),
        GaussianMixture([0, 1, 2], ["0.9", "0.09", "0.01"], 2),
        FixedBatch(GaussianLoss(1), 100, 5),
        FixedBatch(GaussianLoss(1), 100, 5, replacement=True),
        TruncatedPoisson(GAUSS, "0.05", 100, 8),
    ],
    ids=lambda loss: loss.kind,
)
def test_a_renyi_curve_is_above_the_moments_of_its_pair(loss: Loss) -> None:
    step = pair_of(loss)
    for way in ("remove", "add") if step.both_ways else ("remove",):
        law = step.points(way, 2.0**-6, 1e-40)
        for order in (1.2, 2.0, 3.5, 9.0):
            terms = np.log(law.p / law.p.sum()) + (order - 1) * law.loss
            top = terms.max()
            truth = (top + math.log(np.exp(terms - top).sum())) / (order - 1)
            assert truth <= loss.renyi(order) * (1 + 1e-9) + 1e-12
    assert loss.renyi(8.0) <= loss.renyi(8.5)


def test_the_price_of_subsampled_gaussians_is_the_same_from_every_kind() -> None:
    known = SubsampledGaussian(1, "0.1", adjacency=ADD)
    for loss in (
        PoissonSampled(GAUSS, "0.1"),
        GaussianMixture([0, 1], ["0.9", "0.1"], 1),
        PoissonSampled(GaussianLoss("0.5", adjacency=ADD) * 2, "0.1"),
    ):
        assert promised(loss) == pytest.approx(promised(known), rel=1e-9)
    assert GaussianMixture([1], [1], 1).sampled("0.1") == GaussianMixture([0, 1], ["0.9", "0.1"], 1)
    joined = JoinedStep(((1.0, GAUSS),), 0.1)
    assert joined.renyi(3.0) == pytest.approx(known.renyi(3.0), rel=1e-9)


def test_a_rare_cut_costs_what_its_chance_says() -> None:
    loss = TruncatedPoisson(GAUSS, "0.1", 50, 15)
    step = pair_of(loss)
    ((uncut, _), (cut, last)) = step.parts  # type: ignore[attr-defined]
    assert cut == pytest.approx(binom.sf(14, 49, 0.1), rel=1e-8)
    assert uncut + cut == pytest.approx(1, rel=1e-8)
    chances = [binom.pmf(k, 49, 0.1) * 0.1 * 15 / (k + 1) for k in range(15, 50)]
    assert last.rate == pytest.approx(sum(chances) / cut, rel=1e-6)


def test_fixed_batches_with_replacement_hold_a_record_so_often() -> None:
    step = pair_of(FixedBatch(GaussianLoss("0.01"), 500, 100, replacement=True))
    assert isinstance(step, ReplacedStep)
    assert step.rate == pytest.approx(1 - (1 - 1 / 500) ** 100, rel=1e-9)
    for k, (share, loss) in enumerate(step.groups[:10], 1):
        assert share * step.rate == pytest.approx(binom.pmf(k, 100, 1 / 500), rel=1e-9)
        assert loss == GaussianLoss(Fraction("0.01") * k * k)


# -- forms and refusals


def test_relations_of_samples() -> None:
    joined = PoissonSampled(GAUSS, "0.1")
    replaced = as_replace_one(joined).loss
    assert replaced == PoissonSampled(GAUSS, "0.1", adjacency=ONE)
    zeroed = as_zero_out(replaced).loss
    assert zeroed.adjacency is OUT
    assert promised(zeroed) == promised(replaced)
    batch = FixedBatch(GaussianLoss(4), 10, 1)
    assert promised(as_zero_out(batch).loss) == promised(batch)
    assert loss_from_dict(zeroed.to_dict()) == zeroed
    for wrong in (
        lambda: PoissonSampled(GaussianLoss(1), "0.1"),
        lambda: FixedBatch(GAUSS, 10, 1),
        lambda: FixedBatch(GaussianLoss(1), 10, 1, adjacency=ADD),
        lambda: PoissonSampled(GaussianLoss(1, adjacency=OUT), "0.1", adjacency=ADD),
    ):
        with pytest.raises(AdjacencyError):
            wrong()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PoissonSampled(GAUSS, 0), r"rate = 0: must lie in"),
        (lambda: PoissonSampled(GAUSS, 1), r"rate = 1: must lie in .*without a sample"),
        (lambda: PoissonSampled(GAUSS, 1 - Fraction(1, 2**60)), "rate = .*must lie in"),
        (lambda: PoissonSampled(GAUSS, "-0.1"), "rate = .*must lie in"),
        (lambda: PoissonSampled(BoundedRangeLoss(1, adjacency=ADD), "0.1"), "bounded-range loss"),
        (lambda: PoissonSampled(PoissonSampled(GAUSS, "0.1"), "0.1"), "poisson-sampled loss on a"),
        (lambda: FixedBatch(GaussianLoss(1), 10, 11), "batch = 11: must be at most 10"),
        (lambda: FixedBatch(GaussianLoss(1), 10, 10), "batch = 10: must be below the population"),
        (lambda: FixedBatch(GaussianLoss(1), 10, 0), "batch = 0"),
        (lambda: TruncatedPoisson(GAUSS, "0.1", 10, 10), "largest_batch = 10: must be below"),
        (lambda: TruncatedPoisson(GAUSS, "0.1", 10, 0), "largest_batch = 0"),
        (lambda: GaussianMixture([0, 1], ["0.5", "0.4"], 1), "add up to exactly 1, not 0.9"),
        (lambda: GaussianMixture([0], [1], 1), "sensitivities: must be >= 0, one of them > 0"),
        (lambda: GaussianMixture([1], [1, 0], 1), "1 and 2 of them"),
        (lambda: GaussianMixture([1, -1], ["0.5", "0.5"], 1), "sensitivities: must be >= 0"),
    ],
)
def test_numbers_out_of_range_are_named(make: Callable[[], Loss], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_has_no_listed_law_is_priced_by_its_curve() -> None:
    loss = PoissonSampled(DiscreteGaussian(1, "1e6", adjacency=ADD) * 3, "0.1")
    assert 0 < Composition([(step_of(loss), 10)]).delta(0.01).value < 1
    wide = PoissonSampled(GaussianLoss(10**6, adjacency=ADD), "0.1")
    assert wide.renyi(2.0) > 1e5


def test_what_is_too_large_or_too_small_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="loss: one record for another costs twice of it"):
        PoissonSampled(PureLoss(700, adjacency=ADD), "0.5", adjacency=ONE)
    with pytest.raises(ValueError, match="loss: one record for another costs twice of it"):
        TruncatedPoisson(PureLoss(400, adjacency=ADD), "0.5", 10, 3)
    tiny = Fraction(1, 10**400)
    with pytest.raises(ValueError, match="probabilities: must be at least 1e-290"):
        GaussianMixture([0, 1], [tiny, 1 - tiny], 1)
    chosen = SelectedLoss(ApproxLoss(1, "1e-3"), "0.05", 3, 1)
    assert 1 <= evaluate([(chosen, 1)]).epsilon(0.06).value < 10
