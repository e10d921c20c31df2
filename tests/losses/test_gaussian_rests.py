"""Costs in Gaussian mass, by the rest: against hockey-sticks at high precision, at every ε."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import pytest

from privlearn.losses import (
    BoundedRangeLoss,
    DiscreteGaussian,
    LaplaceLoss,
    Loss,
    PureLoss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
)
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.losses.gaussian_rest import gaussian_parts, rest_after
from privlearn.values.adjacency import Adjacency

Law = list[tuple[mpmath.mpf, mpmath.mpf]]
"""Probabilities under P, and losses."""


def gaussian(mass: Fraction | float, eps: mpmath.mpf) -> mpmath.mpf:
    """The hockey-stick of N(μ, 1) against N(0, 1) at e^ε, by its two tails; any real ε."""
    if mass == 0:
        return max(mpmath.mpf(0), 1 - mpmath.e**eps)
    mu = mpmath.sqrt(mpmath.mpf(Fraction(mass).numerator) / Fraction(mass).denominator)
    tails = [mpmath.ncdf(-(eps / mu + sign * mu / 2)) for sign in (-1, 1)]
    return tails[0] - mpmath.e**eps * tails[1]


def laws(loss: Loss, draw: random.Random) -> Law:
    """The worst pair of a loss; a random member for bounded range."""
    e = mpmath.e
    worst = loss.pure() or Fraction(0)
    eps = mpmath.mpf(worst.numerator) / worst.denominator
    match loss:
        case RandomizedResponse():
            z = e**eps + loss.categories - 1
            return [(e**eps / z, eps), (1 / z, -eps), ((loss.categories - 2) / z, mpmath.mpf(0))]
        case PureLoss():
            return [(1 / (1 + e**-eps), eps), (1 / (1 + e**eps), -eps)]
        case BoundedRangeLoss():
            top = eps * draw.choice([draw.random(), 0.5, 0.5 + draw.uniform(-0.01, 0.01), 0.99])
            high = (1 - e ** (top - eps)) / (1 - e**-eps)
            return [(high, top), (1 - high, top - eps)]
    raise AssertionError(loss)


def composed(loss: Loss, law: Law, rest: Fraction, eps: mpmath.mpf) -> mpmath.mpf:
    """The hockey-stick of the loss and then N(m, 1), m² = ``rest``."""
    if isinstance(loss, LaplaceLoss):
        top = mpmath.mpf(loss.epsilon.numerator) / loss.epsilon.denominator
        ends = gaussian(rest, eps - top) / 2 + mpmath.e**-top * gaussian(rest, eps + top) / 2
        knots = sorted({-top, *(x for x in (mpmath.mpf(0), eps) if abs(x) < top), top})
        return ends + mpmath.quad(
            lambda s: mpmath.e ** ((s - top) / 2) / 4 * gaussian(rest, eps - s), knots
        )
    return mpmath.fsum(p * gaussian(rest, eps - s) for p, s in law)


LOSSES: list[Loss] = [
    make(eps)
    for make in (PureLoss, LaplaceLoss, BoundedRangeLoss, lambda e: RandomizedResponse(e, 12))
    for eps in ("0.003", "0.4", "3.5", "9")
]


def cost(loss: Loss, rest: Fraction) -> Fraction | None:
    parts = gaussian_parts(loss)
    assert parts is not None
    after = rest_after(rest, parts, 1)
    return None if after is None else rest - after


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{float(loss.epsilon)}")
def test_a_loss_and_what_it_leaves_are_within_the_rest_at_every_epsilon(loss: Loss) -> None:
    draw = random.Random(repr(loss))
    unit = loss.pure() or Fraction(0)
    fixed = GaussianDP(1).price(loss).mu_squared
    rests = [
        fixed,
        *(fixed + unit**2 * Fraction(draw.uniform(1, 2) * 4.0**k) for k in range(-2, 6)),
    ]
    slow = isinstance(loss, LaplaceLoss)
    last = fixed
    with mpmath.workdps(20 if slow else 40):
        for rest in rests[:: 4 if slow else 1]:
            paid = cost(loss, rest)
            assert paid is not None
            assert paid <= last * Fraction("1.001")  # the more is left, the less it takes
            last = paid
            width = mpmath.sqrt(mpmath.mpf(float(rest)))
            for _ in range(1 if slow else 8):
                eps = width * draw.choice([0, draw.gauss(0, 1), draw.gauss(0, 8)])
                law = [] if slow else laws(loss, draw)
                bound = gaussian(rest, eps)
                assert composed(loss, law, rest - paid, eps) <= bound * (1 + mpmath.mpf(10) ** -12)


def test_costs_are_near_the_least_ones() -> None:
    """The planted defect is a cost 3% lower: it breaks at ε = 0, or in the tail."""
    draw = random.Random(1)
    with mpmath.workdps(30):
        for loss, rest in (
            (PureLoss("0.1"), Fraction("0.5")),
            (PureLoss("0.1"), Fraction("0.016")),
            (LaplaceLoss("1"), Fraction(5)),
            (RandomizedResponse("0.1", 12), Fraction(1)),
        ):
            paid = cost(loss, rest)
            assert paid is not None
            less = rest - paid * Fraction("0.97")
            law = [] if isinstance(loss, LaplaceLoss) else laws(loss, draw)
            steps = 200 if isinstance(loss, RandomizedResponse) else 1
            points = [mpmath.sqrt(float(rest)) * k / 2 for k in range(steps)]
            ratios = [composed(loss, law, less, mpmath.mpf(e)) / gaussian(rest, e) for e in points]
            assert max(ratios) > 1
    # what Rényi orders charge, in the limit: 2ρ of the exponential mechanism is ε²/4
    small = BoundedRangeLoss("0.01")
    assert cost(small, Fraction(1)) == pytest.approx(float(2 * small.zcdp()), rel=1e-3)


def test_a_fixed_price_is_the_total_variation_of_a_gaussian() -> None:
    for eps in (1e-100, 1e-9, 0.01, 1.0, 20.0, 300.0, 700.0):
        with mpmath.workdps(330):
            e = mpmath.mpf(eps)
            for loss, far in (
                (PureLoss(eps), 2 / (1 + mpmath.e**e)),
                (LaplaceLoss(eps), mpmath.e ** (-e / 2)),
                (BoundedRangeLoss(eps), 2 / (1 + mpmath.e ** (e / 2))),
            ):
                mass = GaussianDP(1).price(loss).mu_squared
                mu = mpmath.sqrt(mpmath.mpf(mass.numerator) / mass.denominator)
                assert mpmath.erfc(mu / mpmath.sqrt(8)) <= far
                assert mpmath.erfc(mu * (1 - mpmath.mpf("1e-6")) / mpmath.sqrt(8)) > far


def test_a_subsampled_gaussian_gets_no_amplification() -> None:
    """It binds in the tail: at ε = 0 a rest of 1.45 is within 1.5, at ε = 30 a hundred times over.

    The planted defect is the check at ε = 0 alone, which suffices for pure losses.
    """
    loss = SubsampledGaussian(1, "0.01")
    assert GaussianDP(1).price(loss).mu_squared == pytest.approx(1, rel=1e-6)
    assert GaussianDP(1).price(loss).mu_squared >= 1
    assert ZCDP(1).price(loss).rho == GaussianDP(1).price(loss).mu_squared / 2
    mu, m, q = 1.5, 1.45, mpmath.mpf("0.01")

    def ratio(eps: float) -> mpmath.mpf:
        def term(x: mpmath.mpf) -> mpmath.mpf:
            shift = mpmath.log(1 - q + q * mpmath.e ** (x - mpmath.mpf(1) / 2))
            law = (1 - q) * mpmath.npdf(x) + q * mpmath.npdf(x - 1)
            return law * gaussian(Fraction(m) ** 2, eps - shift)

        whole = mpmath.quad(term, [-12, -4, 0, 2, 4, 8, 12, 16, 24, 40])
        return whole / gaussian(Fraction(mu) ** 2, mpmath.mpf(eps))

    assert ratio(0) < 1
    assert ratio(30) > 100


def test_counts_pass_the_table_in_blocks() -> None:
    loss = PureLoss("0.05") + LaplaceLoss("0.03") * 2
    parts = gaussian_parts(loss)
    assert parts is not None
    rest: Fraction | None = Fraction("0.3")
    one_by_one = rest
    for part in parts:
        for _ in range(part.count * 25):
            assert one_by_one is not None
            one_by_one -= part.cost(one_by_one)[0]
    assert rest_after(Fraction("0.3"), parts, 25) == one_by_one
    many = rest_after(Fraction(10) ** 400, parts, 10**12)
    assert many is not None
    assert many < 10**400
    assert rest_after(Fraction(1), parts, 10**12) is None
    assert rest_after(Fraction(1, 10**9), parts, 1) is None
    assert math.isclose(float(cost(PureLoss("0.05"), Fraction(1)) or 0), 0.0025, rel_tol=1e-3)


def test_what_no_gaussian_dominates_has_no_price() -> None:
    for loss in (ZCDPLoss("0.1"), DiscreteGaussian(1, 2)):
        assert gaussian_parts(loss) is None
        assert gaussian_parts(loss + PureLoss(1)) is None
    assert gaussian_parts(SubsampledGaussian(2, "0.1", adjacency=Adjacency.ZERO_OUT)) is not None
