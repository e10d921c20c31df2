"""(ε, δ) of exact budgets and losses by their curves.

`privlearn.accountants.epsilon_delta` looks for smaller bounds by tight composition, and
`privlearn.accountants.account_totals` says what stands for the users of an account.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from privlearn.accountants.tight_composition import step_of
from privlearn.errors import BudgetError
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PureLoss,
    RenyiCurve,
    ZCDPLoss,
    compose,
    parts_of,
    without_visits,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.losses.conversion import (
    Bounded,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu_squared,
    renyi_delta,
    renyi_epsilon,
    renyi_order,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from privlearn.losses.steps import CurveStep, Step
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact, exact_text, float_down, float_up
from privlearn.values.validate import count as valid_count
from privlearn.values.validate import probability

Composite = Loss | Currency | None
"""Something with an (ε, δ) curve: a composed loss, a cap, or nothing."""


def unless_failed(promise: ApproxDP, failure: Fraction) -> ApproxDP:
    """The (ε, δ′) that is left to keep where a failure of that probability is counted by itself.

    (ε, δ′) apart from a failure is (ε, f + (1−f)δ′).

    Raises:
        BudgetError: the failure takes all of δ.
    """
    if not 0 <= failure < promise.delta:
        raise BudgetError(
            f"failure = {exact_text(failure)}: must lie in [0, δ), δ = {exact_text(promise.delta)}"
        )
    return ApproxDP(promise.epsilon, (promise.delta - failure) / (1 - failure))


def in_zcdp(promise: ApproxDP) -> ZCDP:
    """The largest ρ that implies ``promise`` (Canonne, Kamath & Steinke 2020)."""
    return ZCDP(zcdp_rho(float_down(promise.epsilon), float_down(promise.delta)))


def reached_in_zcdp(promise: ApproxDP, failure: Fraction = Fraction(0)) -> float:
    """The ε at which Gaussian noise uses up the cap that `in_zcdp` makes of ``promise``.

    It is below the promised one, by a tenth or so: ρ does not know that the noise is Gaussian.
    """
    apart = unless_failed(promise, failure)
    mass = float_down(2 * in_zcdp(apart).rho)
    return gaussian_epsilon(mass, float_down(apart.delta)).value


def in_gaussian(promise: ApproxDP) -> GaussianDP:
    """The largest Gaussian budget that satisfies ``promise`` (Balle & Wang 2018)."""
    return GaussianDP.from_mu_squared(
        gaussian_mu_squared(float_down(promise.epsilon), float_down(promise.delta))
    )


def in_renyi(promise: ApproxDP, loss: Loss | None = None) -> Renyi:
    """A cap at the one Rényi order where ``promise`` allows the most runs of ``loss``.

    Without a loss it is a Gaussian's: as much Gaussian noise as `in_zcdp`, and more of mechanisms
    whose curve is not a line.  Every loss may be spent under either.
    """
    curve = None if loss is None else loss.renyi
    order, divergence = renyi_order(float_down(promise.epsilon), float_down(promise.delta), curve)
    return Renyi({order: divergence})


def as_loss(cap: Currency, adjacency: Adjacency) -> Loss:
    """A cap as the loss of everything under it.

    Raises:
        TypeError: a currency of another package.
    """
    match cap:
        case ZCDP():
            return ZCDPLoss(cap.rho, adjacency=adjacency)
        case GaussianDP():
            return GaussianLoss(cap.mu_squared, adjacency=adjacency)
        case PureDP():
            return PureLoss(cap.epsilon, adjacency=adjacency)
        case Renyi():
            return RenyiCurve({a: e for a, e in cap.curve.items()}, adjacency=adjacency)
    raise TypeError(f"{cap}: a cap of this kind has no loss of its own")


_gaussian_epsilon = lru_cache(maxsize=1024)(gaussian_epsilon)
_zcdp_epsilon = lru_cache(maxsize=1024)(zcdp_epsilon)
"""Both work in decimals of many digits, and an audit asks for the same ones again and again."""


def epsilon_of(what: Composite, delta: float) -> Bounded:
    """ε at δ: exact for Gaussian mass, else Canonne-Kamath-Steinke over continuous orders.

    A finite worst-case loss is used where it is smaller.  A loss that fails with probability f is
    (ε, f + (1−f)δ′)-DP if it is (ε, δ′)-DP unless it fails; ε is infinite where f > delta.

    Raises:
        ValueError: delta outside (0, 1).
    """
    failed, what = _split(what)
    if failed:
        # floats count as their shortest decimal here: a δ of 1e-6 takes a failure of "1e-6"
        total = exact("delta", probability(delta=delta))
        rest = (total - failed) / (1 - failed) if failed < total else Fraction(0)
        if rest == 0:
            pure = _curve(what)[2]
            return Bounded(math.inf if failed > total or pure is None else pure, 0.0)
        delta = max(float_down(rest), math.ulp(0.0))
    mass, curve, pure, orders = _curve(what)
    if mass is not None:
        return _gaussian_epsilon(mass, probability(delta=delta))
    if isinstance(what, ZCDP):
        bound = _zcdp_epsilon(float_up(what.rho), probability(delta=delta))
    else:
        bound = renyi_epsilon(curve, delta, orders=orders)
    return bound if pure is None or bound.value <= pure else Bounded(pure, 0.0)


def delta_of(what: Composite, epsilon: float) -> Bounded:
    """δ at ε, by the same bounds as `epsilon_of`."""
    failed, what = _split(what)
    if failed:
        rest, share = delta_of(what, epsilon), max(1 - failed, Fraction(0))
        total = min(failed + share * Fraction(rest.value), Fraction(1))
        return Bounded(float_up(total), float_up(share * Fraction(rest.error_bound)))
    mass, curve, pure, orders = _curve(what)
    if mass is not None:
        return gaussian_delta(mass, epsilon)
    if pure is not None and epsilon >= pure:
        return Bounded(0.0, 0.0)
    if isinstance(what, ZCDP):
        return zcdp_delta(float_up(what.rho), epsilon)
    return renyi_delta(curve, epsilon, orders=orders)


def group_epsilon(what: Composite, delta: float, rounds: int) -> Bounded:
    """ε at δ for a person with ``rounds`` rows: the least of the bounds that hold.

    k·ε for pure ε, k·μ (Dong, Roth & Su 2022, Theorem 2.14), k²·ρ (Bun & Steinke 2016, Proposition
    1.9), a Rényi curve at orders 2^c·α (Mironov 2017, Proposition 2, with k <= 2^c), and, also
    where something may fail, (k·ε, δ·(e^{kε}−1)/(e^ε−1)); ``docs/proofs.md#groups``.

    Raises:
        ValueError: delta outside (0, 1), or rounds below 1.
    """
    k = valid_count(rounds=rounds)
    if k == 1 or what is None:
        return epsilon_of(what, delta)
    failed, apart = _split(what)
    mass, curve, pure, orders = _curve(apart)
    if mass is not None and not failed:
        return gaussian_epsilon(float_up(Fraction(mass) * k * k), probability(delta=delta))
    bounds = [_repeated(what, probability(delta=delta), k)]
    if not failed:
        if pure is not None:
            bounds.append(Bounded(float_up(Fraction(pure) * k), 0.0))
        rho = rho_of(apart)
        if rho is not None:
            bounds.append(zcdp_epsilon(float_up(Fraction(rho) * k * k), delta))
        else:
            bounds.append(_renyi_group(curve, orders, delta, k))
    return min(bounds, key=lambda bound: bound.value)


def _renyi_group(
    curve: Callable[[float], float], orders: list[float] | None, delta: float, k: int
) -> Bounded:
    steps = (k - 1).bit_length()
    fold, growth = 2.0**steps, 3.0**steps
    kept = None if orders is None else [a / fold for a in orders if a >= 2 * fold]
    if kept is not None and not kept:
        return Bounded(math.inf, 0.0)

    def wider(order: float) -> float:
        # the proposition is for orders from 2 on; divergences grow with the order
        return curve(fold * max(order, 2.0)) * growth * (1 + 1e-15)

    return renyi_epsilon(wider, delta, orders=kept)


def _repeated(what: Composite, delta: float, k: int) -> Bounded:
    """k·ε for a small ε with δ(ε)·(e^{kε}−1)/(e^ε−1) <= delta, if one is found."""

    def holds(epsilon: float) -> bool:
        loose = delta_of(what, epsilon).value
        if loose == 0:
            return True
        if k * epsilon > 600:
            return False
        factor = math.fsum(math.exp(i * epsilon) for i in range(k)) * (1 + 1e-12)
        return loose * factor <= delta

    if k > _MOST_ROUNDS:
        return Bounded(math.inf, 0.0)
    high = 2.0**-10
    while not holds(high):
        high *= 2
        if k * high > 600:
            return Bounded(math.inf, 0.0)
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return Bounded(float_up(Fraction(high) * k), 0.0)


_MOST_ROUNDS = 4096  # Above this many rounds (k·ε, …) is not looked at: it gives nothing of use


def _split(what: Composite) -> tuple[Fraction, Composite]:
    if not isinstance(what, Loss):
        return Fraction(0), what
    failed = what.failure()
    apart: Composite = without_visits(what.unless_failed() if failed else what)
    return failed, ZCDP(apart.rho) if isinstance(apart, ZCDPLoss) else apart


def _curve(
    what: Composite,
) -> tuple[float | None, Callable[[float], float], float | None, list[float] | None]:
    """Gaussian mass, Rényi curve, worst case and the orders the curve is limited to."""

    def no_curve(order: float) -> float:
        raise AssertionError(f"no curve is needed at order {order} for {what!r}")

    match what:
        case None:
            return 0.0, no_curve, 0.0, None
        case Loss():
            mass, pure = what.gaussian(), what.pure()
            return (
                None if mass is None else float_up(mass),
                _renyi_of(what),
                None if pure is None else float_up(pure),
                None,
            )
        case GaussianDP():
            return float_up(what.mu_squared), no_curve, None, None
        case PureDP():
            epsilon = float_up(what.epsilon)
            return None, lambda order: min(epsilon, order * _pure_rho(epsilon)), epsilon, None
        case Renyi():
            points = {float(a): float_up(e) for a, e in what.curve.items()}
            return None, lambda order: points[order], None, list(points)
    return None, no_curve, None, None


def _renyi_of(loss: Loss) -> Callable[[float], float]:
    """The Rényi curve; of very many losses, those with a formula for arrays together."""
    if len(parts_of(loss)) <= _FEW:
        return loss.renyi
    from privlearn.accountants.step_curves import StepCurve

    steps: list[tuple[Step, int]] = []
    rest: list[tuple[Loss, int]] = []
    for part, count in parts_of(loss):
        step = step_of(part) if isinstance(part, _WITH_FORMULAS) else None
        if step is None or isinstance(step, CurveStep):
            rest.append((part, count))
        else:
            steps.append((step, count))
    together, others = StepCurve(steps), compose(rest).renyi if rest else lambda order: 0.0
    return lambda order: (together(order) + others(order)) * (1 + 1e-15)


_FEW = 64
_WITH_FORMULAS = GaussianLoss, LaplaceLoss, BoundedRangeLoss


def rho_of(what: Composite) -> float | None:
    """The zCDP constant, rounded up; None where there is none."""
    match what:
        case None:
            return 0.0
        case Loss():
            rho = what.zcdp()
            return None if rho is None else float_up(rho)
        case ZCDP():
            return float_up(what.rho)
        case GaussianDP():
            return float_up(what.mu_squared / 2)
        case PureDP():
            return _pure_rho(float_up(what.epsilon))
    return None


def _pure_rho(epsilon: float) -> float:
    """ρ of a pure ε-DP mechanism: ε·tanh(ε/2), with a few ulps; docs/proofs.md#pure."""
    return epsilon * math.tanh(epsilon / 2) * (1 + 1e-14)


def pure_of(what: Composite) -> float | None:
    """The worst case, rounded up: ε at δ = 0; None where it is infinite."""
    failed, what = _split(what)
    return None if failed else _curve(what)[2]


def mu_of(what: Composite) -> float | None:
    """μ where all mass is Gaussian, rounded up; else None."""
    mass, _, _, _ = _curve(what)
    return None if mass is None else mass**0.5 * (1 + 1e-15)
