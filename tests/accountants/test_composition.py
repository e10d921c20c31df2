"""The tight composition against closed forms, exhaustive games, mpmath and dp-accounting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.accountants.composition import Composition
from privlearn.accountants.epsilon_delta import evaluate, largest_delta, largest_epsilon
from privlearn.accountants.loss_grid import Mesh, block, curve_of_law
from privlearn.accountants.step_curves import StepCurve
from privlearn.accountants.tight_composition import QUICK, in_order, step_of
from privlearn.contract.protocols import Plan
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
    compose,
)
from privlearn.losses.budgets import ZCDP
from privlearn.losses.conversion import (
    RoundedNumber,
    gaussian_delta,
    gaussian_epsilon,
    renyi_epsilon,
)
from privlearn.losses.steps import (
    BoundedRangeStep,
    CurveStep,
    Direction,
    DiscreteLaplaceStep,
    GaussianStep,
    LaplaceStep,
    PureStep,
    RandomizedResponseStep,
    Step,
)
from privlearn.losses.subsampled import SubsampledGaussianStep
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up


def encloses(answer: RoundedNumber, exact: float, slack: float = 1e-12) -> bool:
    low = answer.value - answer.error_bound
    return low * (1 - slack) <= exact <= answer.value * (1 + slack)


# ------------------------------------------------------------------------ dominating pairs


def atoms(step: Any) -> list[tuple[float, float]]:
    """(P, Q) of each outcome."""
    k = step.k if isinstance(step, RandomizedResponseStep) else 2
    big = math.exp(step.epsilon)
    total = big + k - 1
    return [(big / total, 1 / total), (1 / total, big / total)] + [(1 / total, 1 / total)] * (k - 2)


@pytest.mark.parametrize(
    "plan",
    [
        [(RandomizedResponseStep(0.7, 2), 9)],
        [(RandomizedResponseStep(1.3, 5), 6)],
        [(PureStep(0.31), 4), (RandomizedResponseStep(1.1, 3), 4)],
        [(PureStep(4.0), 3)],
    ],
)
def test_atoms_against_enumeration(plan: list[tuple[Any, int]]) -> None:
    laws = [atoms(step) for step, count in plan for _ in range(count)]
    outcomes = [
        (math.prod(p for p, _ in combo), math.prod(q for _, q in combo))
        for combo in itertools.product(*laws)
    ]
    total = Composition(plan)
    for eps in (0.0, 0.5, 1.7, 3.0):
        exact = math.fsum(max(p - math.exp(eps) * q, 0.0) for p, q in outcomes)
        answer = total.delta(eps)
        assert encloses(answer, exact)
        assert answer.error_bound <= 2e-3 * exact + 1e-12


def test_gaussian_alone_is_exact_and_the_lattice_encloses_it() -> None:
    assert Composition([(GaussianStep(0.0025), 1000)]).epsilon(1e-6).value == pytest.approx(
        8.3062, abs=1e-4
    )
    for mass in (1e-4, 0.3, 2.5, 40.0):
        law = block([(GaussianStep(mass), 1)], 1e-14, Mesh(), "remove")
        curve = curve_of_law(law)
        for eps in (0.0, 0.5 * math.sqrt(mass), 3 * math.sqrt(mass) + mass / 2):
            exact = gaussian_delta(mass, eps).value
            assert curve.lower(eps) <= exact <= curve.upper(eps)
            assert curve.upper(eps) - curve.lower(eps) <= 2e-3 * exact + 1e-13


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.2, 0.6), (0.5, 4.0)])
def test_one_subsampled_gaussian(direction: Direction, q: float, sigma: float) -> None:
    law = block([(SubsampledGaussianStep(q, sigma), 1)], 1e-14, Mesh(), direction)
    curve = curve_of_law(law)
    top = -math.log1p(-q) if direction == "add" else 3.0

    def tail(z: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(z / mpmath.sqrt(2)) / 2

    for eps in (0.0, 0.3 * top, 0.8 * top):
        with mpmath.workdps(30):
            if direction == "remove":
                ratio = (mpmath.e**eps - 1 + q) / q
                z = sigma * mpmath.log(ratio) + mpmath.mpf(1) / (2 * sigma)
                mixed = (1 - q) * tail(z) + q * tail(z - mpmath.mpf(1) / sigma)
                exact = mixed - mpmath.e**eps * tail(z)
            else:
                ratio = (mpmath.e ** (-eps) - 1 + q) / q
                z = sigma * mpmath.log(ratio) + mpmath.mpf(1) / (2 * sigma)
                mixed = (1 - q) * (1 - tail(z)) + q * (1 - tail(z - mpmath.mpf(1) / sigma))
                exact = (1 - tail(z)) - mpmath.e**eps * mixed
        assert curve.lower(eps) <= exact <= curve.upper(eps)
        assert curve.upper(eps) - curve.lower(eps) <= 3e-2 * float(exact) + 1e-12


def test_two_laplace_against_quadrature() -> None:
    e1, e2 = 0.9, 0.4

    def one(x: float) -> float:
        return abs(x - e1) - abs(x)

    for eps in (0.0, 0.3, 1.0):

        def inner(x: mpmath.mpf, eps: float = eps) -> mpmath.mpf:
            # hockey stick of the second at eps - loss of the first
            left = eps - float(one(float(x)))
            if left >= e2:
                value = mpmath.mpf(0)
            elif left <= -e2:
                value = 1 - mpmath.e**left
            else:
                value = 1 - mpmath.e ** ((mpmath.mpf(left) - e2) / 2)
            return value * mpmath.e ** (-abs(x)) / 2

        kinks = sorted({-40.0, 0.0, e1, (e1 - eps + e2) / 2, (e1 - eps - e2) / 2, 40.0})
        exact = float(mpmath.quad(inner, kinks))
        answer = Composition([(LaplaceStep(e1), 1), (LaplaceStep(e2), 1)]).delta(eps)
        assert encloses(answer, exact, 1e-9)
        assert answer.error_bound < 1e-3 * exact


def test_merging_equal_steps_and_directions() -> None:
    single = Composition([(LaplaceStep(0.1), 1)] * 30).epsilon(1e-5)
    merged = Composition([(LaplaceStep(0.1), 30)]).epsilon(1e-5)
    assert single == merged


def test_against_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    sampled = pld.from_gaussian_mechanism(
        1.0, value_discretization_interval=1e-3, sampling_prob=0.02
    ).self_compose(500)
    ours = Composition([(SubsampledGaussianStep(0.02, 1.0), 500)]).epsilon(1e-5)
    peer = sampled.get_epsilon_for_delta(1e-5)
    assert ours.value - ours.error_bound <= peer
    assert ours.value <= peer + 1e-3
    mixed = pld.from_laplace_mechanism(10.0, value_discretization_interval=1e-3).self_compose(60)
    mixed = mixed.compose(pld.from_gaussian_mechanism(2.0, value_discretization_interval=1e-3))
    plan: list[tuple[Step, int]] = [(LaplaceStep(0.1), 60), (GaussianStep(0.25), 1)]
    ours = Composition(plan).epsilon(1e-6)
    peer = mixed.get_epsilon_for_delta(1e-6)
    assert ours.value - ours.error_bound <= peer
    assert ours.value <= peer + 1e-3


def test_ten_thousand_subsampled_steps() -> None:
    answer = Composition([(SubsampledGaussianStep(0.01, 1.0), 10_000)]).epsilon(1e-6)
    assert encloses(answer, 6.9074, 1e-5)
    assert answer.value < 6.9075


# --------------------------------------------------------------------------- bounded range


def test_one_bounded_range_is_the_closed_form() -> None:
    for eta in (0.05, 0.5, 1.5, 4.0):
        r = math.exp(-eta)
        total = Composition([(BoundedRangeStep(eta), 1)])
        for eps in (0.0, 0.3 * eta, 0.7 * eta):
            exact = (1 - math.sqrt(r * math.exp(eps))) ** 2 / (1 - r)
            answer = total.delta(eps)
            assert encloses(answer, exact)
            assert answer.error_bound <= 0.03 * exact


def test_one_bounded_range_dominates_real_exponential_mechanisms() -> None:
    # quality scores of sensitivity 1 on 4 candidates, any two neighbours
    eta, rng = 0.8, np.random.default_rng(1)
    total = Composition([(BoundedRangeStep(eta), 1)])
    bounds = {eps: total.delta(eps).value for eps in (0.0, 0.2, 0.4)}
    for _ in range(200):
        score = rng.normal(size=4) * 2
        other = score + rng.uniform(0, 1, size=4)
        p, q = np.exp(eta * score), np.exp(eta * other)
        p, q = p / p.sum(), q / q.sum()
        assert np.ptp(np.log(p / q)) <= eta + 1e-12
        for eps, bound in bounds.items():
            for one, two in ((p, q), (q, p)):
                delta = np.maximum(one - math.exp(eps) * two, 0).sum()
                assert delta <= bound


def game(
    plan: Sequence[tuple[str, Fraction]], x: Fraction, choices: int
) -> tuple[Fraction, Fraction]:
    """Exact value of a finite game at x = e^L, by exhaustive recursion in fractions.

    ``("range", R)``: two-point laws on {y, y/R}, y = R^(k/choices) rounded; ``("response", R)``:
    binary randomized response with e^epsilon = R.
    """
    if not plan:
        return max(x - 1, Fraction(0)), Fraction(0)
    (kind, ratio), rest = plan[0], plan[1:]
    if kind == "response":
        high = game(rest, x * ratio, choices)[0]
        low = game(rest, x / ratio, choices)[0]
        return (high + ratio * low) / (1 + ratio), Fraction(0)
    best = game(rest, x, choices)[0]
    for k in range(1, choices):
        y = Fraction(float(ratio) ** (k / choices)).limit_denominator(10**6)
        y = min(max(y, Fraction(1)), ratio)
        chance = (1 - y / ratio) / (y - y / ratio)  # of y, under Q; mean one
        value = chance * game(rest, x * y, choices)[0]
        value += (1 - chance) * game(rest, x * y / ratio, choices)[0]
        best = max(best, value)
    return best, Fraction(0)


@pytest.mark.parametrize(
    ("plan", "choices"),
    [
        ([("range", Fraction(2)), ("range", Fraction(2))], 40),
        ([("range", Fraction(3)), ("response", Fraction(2)), ("range", Fraction(3, 2))], 16),
        ([("response", Fraction(2)), ("range", Fraction(2)), ("range", Fraction(4))], 16),
        ([("range", Fraction(5, 4))] * 3, 10),
    ],
)
def test_exhaustive_adaptive_games(plan: list[tuple[str, Fraction]], choices: int) -> None:
    steps: list[tuple[Step, int]] = [
        (
            BoundedRangeStep(math.log(ratio)) if kind == "range" else PureStep(math.log(ratio)),
            1,
        )
        for kind, ratio in plan
    ]
    total = Composition(steps)
    anyway = Composition(steps, order="any")
    for x in (Fraction(1), Fraction(4, 5), Fraction(1, 2)):
        exact, _ = game(plan, x, choices)
        delta = float(exact / x)  # V = U/x
        answer = total.delta(-math.log(x))
        assert delta <= answer.value
        # enough choices come close to the value
        assert answer.value <= 1.05 * delta + 1e-3
        assert delta <= anyway.delta(-math.log(x)).value


def test_fixed_inputs_are_below_the_adaptive_worst_case() -> None:
    eta, n = 0.5, 8
    total = Composition([(BoundedRangeStep(eta), n)]).delta(1.0)
    shrink = -math.expm1(-eta)
    for t in np.linspace(0.05, 0.45, 9):
        top = -math.expm1(t - eta) / shrink
        delta = sum(
            math.comb(n, k)
            * top**k
            * (1 - top) ** (n - k)
            * max(-math.expm1(1.0 - k * t - (n - k) * (t - eta)), 0)
            for k in range(n + 1)
        )
        assert delta <= total.value


def test_order_matters_and_any_covers_both() -> None:
    sizes = [0.8, 0.4, 0.2, 0.1]
    falling = Composition([(BoundedRangeStep(s), 1) for s in sizes])
    rising = Composition([(BoundedRangeStep(s), 1) for s in sizes[::-1]])
    both = Composition([(BoundedRangeStep(s), 1) for s in sizes], order="any")
    for eps in (0.1, 0.4, 0.8):
        bound = both.delta(eps)
        assert max(falling.delta(eps).value, rising.delta(eps).value) <= bound.value * 1.02
        low = bound.value - bound.error_bound
        assert low <= min(max(falling.delta(eps).value, rising.delta(eps).value), bound.value)


def test_dominating_pairs_first_are_worst() -> None:
    ranged, noise = (BoundedRangeStep(1.0), 3), (GaussianStep(0.2), 1)
    first = Composition([noise, ranged]).delta(1.0)
    last = Composition([ranged, noise]).delta(1.0)
    assert last.value - last.error_bound <= first.value


def test_mixed_workload() -> None:
    plan: list[tuple[Step, int]] = [
        (GaussianStep(1 / s**2), 1) for s in np.linspace(10, 30, 50).tolist()
    ]
    plan += [(LaplaceStep(1 / b), 1) for b in np.linspace(20, 60, 200).tolist()]
    plan += [(BoundedRangeStep(0.5 / math.sqrt(t)), 1) for t in range(1, 501)]
    answer = Composition(plan).epsilon(1e-6)
    assert 4.148 <= answer.value <= 4.16
    assert answer.value - answer.error_bound >= 4.148


def test_many_small_bounded_ranges_use_the_gaussian_majorant() -> None:
    plan = [(BoundedRangeStep(0.01), 10_000)]
    answer = Composition(plan, effort=1e5).epsilon(1e-6)
    assert gaussian_epsilon(0.25, 1e-6).value <= answer.value <= 1.01 * 2.25


def test_gaussian_majorant_lemma_numerically() -> None:
    # two-point laws times a lognormal lie below the wider lognormal, in convex order
    from scipy.stats import norm

    def call(s: float, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        d = np.log(x) / math.sqrt(s) + math.sqrt(s) / 2
        return np.asarray(x * norm.cdf(d) - norm.cdf(d - math.sqrt(s)))

    x = np.exp(np.linspace(-6, 6, 2001))
    for eta, s in ((0.5, 0.13), (0.2, 0.05), (1.0, 0.6), (0.05, 2.0)):
        wider = s / (1 - eta * eta / (4 * s))
        for t in np.linspace(0, eta, 21):
            p = -math.expm1(t - eta) / -math.expm1(-eta) * math.exp(-t)
            mixed = p * call(s, x * math.exp(t)) + (1 - p) * call(s, x * math.exp(t - eta))
            assert np.all(mixed <= call(wider, x) + 1e-13)


# ----------------------------------------------------------------------------------- rest


def test_renyi_formulas_agree_with_core() -> None:
    sizes = [0.001, 0.02, 0.3, 2.0]
    for order in (1.001, 1.0625, 2.0, 7.3, 80.0):
        for size in sizes:
            ours = StepCurve([(LaplaceStep(size), 1)])(order)
            assert ours == pytest.approx(LaplaceLoss(size).renyi(order), rel=1e-4)
            ours = StepCurve([(BoundedRangeStep(size), 1)])(order)
            core = BoundedRangeLoss(size).renyi(order)
            assert core * (1 - 1e-9) <= ours <= core * 1.05


def test_curves_join_by_splitting_delta() -> None:
    def curve(order: float) -> float:
        return 0.05 * order

    plan: list[tuple[Step, int]] = [(LaplaceStep(1.0), 4), (CurveStep(curve), 2)]
    answer = Composition(plan).epsilon(1e-6)
    alone = Composition(plan[:1]).epsilon(1e-6)
    # the curve could be a Gaussian of mass 2*0.1: never below that
    with_gaussian = Composition([(LaplaceStep(1.0), 4), (GaussianStep(0.2), 1)]).epsilon(1e-6)
    assert answer.value >= with_gaussian.value - with_gaussian.error_bound >= 0
    assert answer.value >= alone.value - alone.error_bound
    only = Composition([(CurveStep(curve), 2)]).epsilon(1e-6)
    assert only.value == pytest.approx(renyi_epsilon(lambda a: 0.1 * a, 1e-6).value)
    assert math.isinf(only.error_bound)


def test_epsilon_and_delta_are_inverse_and_monotone() -> None:
    base: list[tuple[Step, int]] = [(GaussianStep(0.05), 1), (BoundedRangeStep(0.3), 20)]
    total = Composition(base)
    epsilon = total.epsilon(1e-6).value
    assert total.delta(epsilon).value <= 1e-6 * (1 + 1e-9)
    more = Composition([*base, (LaplaceStep(0.2), 1)]).epsilon(1e-6)
    assert more.value >= epsilon
    deltas = [total.delta(e).value for e in np.linspace(0, 4, 30)]
    assert all(a >= b for a, b in itertools.pairwise(deltas))


def test_deep_tails() -> None:
    answer = Composition([(LaplaceStep(0.5), 40), (GaussianStep(0.5), 1)], delta=1e-30)
    low = answer.epsilon(1e-30)
    assert low.error_bound < 0.02 * low.value
    assert low.value < 20 + gaussian_epsilon(0.5, 1e-30).value


@pytest.mark.parametrize(
    "plan",
    [
        [],
        [(GaussianStep(0.1), 0)],
        [(GaussianStep(0.1), True)],
        [(LaplaceStep(-1.0), 1)],
        [(BoundedRangeStep(math.nan), 1)],
        [(SubsampledGaussianStep(1.5, 1.0), 1)],
        [(RandomizedResponseStep(1.0, 1), 1)],
    ],
)
def test_bad_plans_are_refused(plan: list[tuple[Step, int]]) -> None:
    with pytest.raises(ValueError, match=r"plan|count|out of range"):
        Composition(plan)


def test_a_gaussian_and_one_bounded_range_in_both_orders() -> None:
    from scipy.integrate import quad

    mass, eta = 0.6, 0.7
    mu, r = math.sqrt(mass), math.exp(-0.7)

    def ranged(loss: float) -> float:  # V of the bounded-range step alone
        u = math.exp(-loss)
        if u >= 1 / r or u <= r:
            return max(1 - u, 0.0)
        return (1 - math.sqrt(r * u)) ** 2 / (1 - r)

    def normal(loss: float) -> float:  # V of the Gaussian alone
        if loss <= 0:
            return gaussian_delta(mass, -loss).value
        # by symmetry of the pair: V(L) = 1 - e^-L + e^-L delta(L)
        return 1 - math.exp(-loss) * (1 - gaussian_delta(mass, loss).value)

    for eps in (0.5, 2.0):

        def inner(z: float, eps: float = eps) -> float:
            weight = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            return weight * ranged(mass / 2 + mu * z - eps)

        kinks = [(eps - mass / 2 + s) / mu for s in (-eta, 0.0, eta)]
        exact = quad(inner, -12, 12, points=kinks, limit=400)[0]
        first = Composition([(GaussianStep(mass), 1), (BoundedRangeStep(eta), 1)]).delta(eps)
        assert encloses(first, exact, 1e-7)
        best = 0.0
        for t in np.linspace(0, eta, 400).tolist():
            p = math.expm1(t - eta) / math.expm1(-eta)
            best = max(best, p * normal(t - eps) + (1 - p) * normal(t - eta - eps))
        last = Composition([(BoundedRangeStep(eta), 1), (GaussianStep(mass), 1)]).delta(eps)
        assert encloses(last, best, 1e-5)
        assert last.value - last.error_bound < first.value


# ----------------------------------------------------------------------------- from losses


@pytest.mark.parametrize("sensitivity", [1, 2, 3, 7])
def test_discrete_laplace_against_its_own_sums(sensitivity: int) -> None:
    eps = 0.8
    x = np.arange(-400 * sensitivity, 400 * sensitivity)
    p = np.exp(-np.abs(x) * eps / sensitivity)
    p /= p.sum()
    q = np.roll(p, sensitivity)
    total = Composition([(DiscreteLaplaceStep(eps, sensitivity), 1)])
    for level in (0.0, 0.1, 0.5, 0.79):
        exact = float(np.maximum(p - math.exp(level) * q, 0).sum())
        assert encloses(total.delta(level), exact, 1e-9)


def test_discrete_laplace_lies_between_randomized_response_and_laplace() -> None:
    def at(step: Step) -> float:
        return Composition([(step, 60)]).epsilon(1e-6).value

    steps = [DiscreteLaplaceStep(0.1, s) for s in (1, 2, 4, 64, 5000, 10**15)]
    values = [at(PureStep(0.1)), *(at(step) for step in steps), at(LaplaceStep(0.1))]
    assert all(a >= b - 3e-4 for a, b in itertools.pairwise(values))
    assert values[0] == values[1]
    assert values[-2] == pytest.approx(values[-1], abs=3e-4)


def test_parameters_are_rounded_up_and_odd_losses_join_by_their_curves() -> None:
    third = Fraction(1, 3)
    for loss in (
        LaplaceLoss(third),
        BoundedRangeLoss(third),
        PureLoss(third),
        DiscreteLaplace(third),
    ):
        step = step_of(loss)
        assert not isinstance(step, CurveStep | GaussianStep)
        assert Fraction(step.epsilon) >= third  # type: ignore[union-attr]
    assert step_of(RandomizedResponse(third, 5)) == RandomizedResponseStep(float_up(third), 5)
    sampled = step_of(SubsampledGaussian("1.1", "0.3"))
    assert isinstance(sampled, SubsampledGaussianStep)
    assert Fraction(sampled.q) >= Fraction("0.3")
    assert Fraction(sampled.sigma) <= Fraction("1.1")
    odd: list[Loss] = [
        ZCDPLoss("0.1"),
        DiscreteGaussian(2, 3),
        RenyiCurve({2: "0.1"}),
        ApproxLoss("0.1", "1e-9"),
    ]
    assert all(isinstance(step_of(loss), CurveStep) for loss in odd)


def test_losses_give_what_their_steps_give() -> None:
    parts: list[tuple[Loss, int]] = [(GaussianLoss("0.2"), 1), (BoundedRangeLoss("0.5"), 6)]
    steps: list[tuple[Step, int]] = [(GaussianStep(0.2), 1), (BoundedRangeStep(0.5), 6)]
    found = evaluate(parts, order="listed").epsilon(1e-6)
    assert found.method == "backward recursion, listed order"
    assert found.value == pytest.approx(Composition(steps).epsilon(1e-6).value, rel=1e-3)
    assert found.value < evaluate(parts, effort=0).epsilon(1e-6).value
    first = evaluate(parts[::-1], order="listed").epsilon(1e-6)
    anyhow = evaluate(parts[::-1], order="any").epsilon(1e-6)
    assert first.value - first.error_bound <= found.value <= anyhow.value + found.error_bound
    delta = evaluate(parts, order="listed").delta(found.value)
    assert delta.value == pytest.approx(1e-6, rel=0.05)


def test_parts_of_one_run_have_no_order() -> None:
    # `compose` sorts: the bounded range comes first, which would be too little
    pair = compose([(GaussianLoss("0.2"), 1), (BoundedRangeLoss("0.5"), 1)])
    assert in_order([(pair, 2)], "listed") == (
        ((GaussianLoss("0.2"), 1), (BoundedRangeLoss("0.5"), 1)) * 2,
        "listed",
    )
    sizes = compose([(BoundedRangeLoss("0.4"), 1), (BoundedRangeLoss("0.5"), 1)])
    assert in_order([(sizes, 1)], "listed")[1] == "any"


def test_failures_are_added() -> None:
    box, pure = ApproxLoss("0.1", "1e-9"), PureLoss("0.1")
    boxes = evaluate([(box, 50)])
    rest = (1e-6 - 50e-9) / (1 - 50e-9)
    alone = evaluate([(pure, 50)])
    assert boxes.epsilon(1e-6).value == pytest.approx(alone.epsilon(rest).value, rel=1e-6)
    assert boxes.delta(2.0).value == pytest.approx(alone.delta(2.0).value + 50e-9, rel=1e-3)
    assert evaluate([(box, 5)]).epsilon(4e-9).method == "failure"
    assert evaluate([(box, 5)]).delta(0.5).value >= 5e-9


def test_curves_join_and_gaussians_stay_exact() -> None:
    mixed = evaluate([(ZCDPLoss("1e-6"), 1), (PureLoss("0.1"), 50)]).epsilon(1e-6)
    assert mixed.method == "dominating pairs+renyi"
    with_gaussian = evaluate([(GaussianLoss("2e-6"), 1), (PureLoss("0.1"), 50)]).epsilon(1e-6)
    assert with_gaussian.method == "dominating pairs"
    assert with_gaussian.value - with_gaussian.error_bound <= mixed.value
    assert evaluate([(ZCDPLoss("1"), 1)]).epsilon(1e-6).method == "renyi"
    assert evaluate([(GaussianLoss("0.0025"), 1000)]).epsilon(1e-6).method == "gaussian"
    assert 1999.99 < evaluate([(PureLoss(200), 10)]).epsilon(1e-6).value <= 2000


def test_the_largest_over_users() -> None:
    small, large = PureLoss("0.1") * 20, PureLoss("0.1") * 60
    both = largest_epsilon([small, None, large], 1e-6)
    assert both == largest_epsilon([large], 1e-6)
    assert largest_delta([small, large], 1.0) == largest_delta([large], 1.0)
    assert largest_epsilon([None], 1e-6) == (0.0, 0.0, "nothing")
    many = [PureLoss("0.1") * n for n in range(50, 60)]
    assert largest_epsilon(many, 1e-6).value == largest_epsilon(many[-1:], 1e-6).value


def test_a_plan_is_certified_tightly_in_any_order() -> None:
    accountant = CentralAccountant(
        ZCDP(3), users=range(10), noise=NoiseSource.simulation(1), adjacency=Adjacency.REPLACE_ONE
    )
    accountant.commit(
        [
            Plan("select", BoundedRangeLoss("0.4"), range(10), 10),
            Plan("refine", BoundedRangeLoss("0.2"), range(5), 10),
            Plan("count", LaplaceLoss("0.2"), range(10), 20),
        ]
    )
    (found,) = accountant.certificate(1e-6).guarantees
    assert found.method == "backward recursion, any order"
    parts: list[tuple[Loss, int]] = [
        (LaplaceLoss("0.2"), 20),
        (BoundedRangeLoss("0.2"), 10),
        (BoundedRangeLoss("0.4"), 10),
    ]
    listed = evaluate(parts, order="listed").epsilon(1e-6)
    assert listed.value - listed.error_bound <= found.epsilon
    assert found.epsilon < evaluate(parts, effort=0).epsilon(1e-6).value
    assert accountant.epsilon(1e-6) == found.epsilon
    assert 0 <= found.error_bound < 0.05 * found.epsilon
    assert accountant.delta(found.epsilon) <= 1.05e-6
    assert accountant.epsilon(1e-6, of="spent") == 0


@pytest.mark.parametrize(
    ("parts", "delta", "low", "high"),
    [  # the truth, by contour integrals, by sums over all integers or by hand
        ([(SubsampledGaussian("0.3", "0.01"), 1000)], 1e-6, 78.1400, 78.1430),
        ([(DiscreteGaussian(1, 20), 1000)], 1e-6, 8.30615, 8.3064),
        ([(DiscreteGaussian(1, "0.7"), 1)], 1e-6, 7.12632, 7.12633),
        ([(LaplaceLoss("0.1"), 100)], 1e-6, 4.69265, 4.6927),
        ([(ApproxLoss("1e-90", "0.01"), 1), (GaussianLoss(1), 1)], 0.02, 2.31369, 2.31370),
        ([(ApproxLoss(1, "0.1"), 1), (ApproxLoss(2, "0.2"), 1)], 0.28, 3, 3),
    ],
)
def test_nothing_falls_to_curves_without_need(
    parts: list[tuple[Loss, int]], delta: float, low: float, high: float
) -> None:
    assert low <= evaluate(parts).epsilon(delta).value <= high


def test_failures_are_independent() -> None:
    found = evaluate([(ApproxLoss("1e-100", "0.001"), 10)]).delta(0.0).value
    exact = 1 - Fraction(999, 1000) ** 10
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 10**14))


def test_two_integers_that_change_are_a_sum_over_the_plane() -> None:
    std, epsilon = 0.9, 1.3
    x = np.arange(-40, 41)
    p = np.exp(-(x**2) / (2 * std**2))
    p /= p.sum()
    loss = np.add.outer(2 * x + 1, 2 * x + 1) / (2 * std**2)
    exact = float((np.outer(p, p) * np.maximum(-np.expm1(epsilon - loss), 0)).sum())
    answer = evaluate([(DiscreteGaussian("1.5", "0.9"), 1)]).delta(epsilon)
    assert encloses(answer, exact, 1e-9)
    assert answer.error_bound < 1e-4 * exact


@pytest.mark.parametrize("count", [1, 65536, 10**12])
@pytest.mark.parametrize("delta", [1e-6, 1e-300])
@pytest.mark.parametrize(("sigma", "q"), [("0.1", "0.01"), ("1e6", "0.999999"), ("0.001", "1e-9")])
def test_extremes_have_a_bound(sigma: str, q: str, delta: float, count: int) -> None:
    total = evaluate([(SubsampledGaussian(sigma, q), count)], effort=QUICK)
    assert total.epsilon(delta).value >= 0
    assert 0 <= total.delta(1.0).value <= 1
