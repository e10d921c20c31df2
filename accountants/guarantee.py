"""From exact budgets and losses to (ε, δ): what is promised, and what was spent.

The guarantee is the composition of the committed plan, or the cap where there is no plan; every
further entry of the ledger could only lower what is left, so cutting the ledger's tail cannot lower
a claim.  What was spent is a fact about one run (ex post), not a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from privlearn._validate import probability
from privlearn.accountants.conversion import (
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
from privlearn.accountants.state import AccountState, total
from privlearn.budgets import (
    ZCDP,
    ApproxDP,
    Currency,
    GaussianDP,
    PureDP,
    Renyi,
    exact,
    float_down,
    float_up,
)
from privlearn.losses import Loss

Composite = Loss | Currency | None
"""Something with an (ε, δ) curve: a composed loss, a cap, or nothing."""


def in_zcdp(promise: ApproxDP) -> ZCDP:
    """The largest ρ that implies ``promise`` (Canonne, Kamath & Steinke 2020)."""
    return ZCDP(zcdp_rho(float_down(promise.epsilon), float_down(promise.delta)))


def in_gaussian(promise: ApproxDP) -> GaussianDP:
    """The largest Gaussian budget that satisfies ``promise`` (Balle & Wang 2018)."""
    return GaussianDP.from_mu_squared(
        gaussian_mu_squared(float_down(promise.epsilon), float_down(promise.delta))
    )


def in_renyi(promise: ApproxDP) -> Renyi:
    """A cap at the one Rényi order where ``promise`` allows the most per order.

    It holds as much Gaussian noise as `in_zcdp` and more of mechanisms whose curve is not a line.
    """
    order, divergence = renyi_order(float_down(promise.epsilon), float_down(promise.delta))
    return Renyi({order: divergence})


def promised(state: AccountState) -> list[Composite]:
    """What stands for each user: the distinct plan compositions, or the cap."""
    if state.plan is None:
        return [state.cap]
    return _distinct([total(tally) for _, tally in state.committed.pieces()])


def spent(state: AccountState) -> list[Composite]:
    """What was actually spent on each user, distinct compositions only."""
    return _distinct([total(tally) for _, tally in state.spent.pieces()])


def _distinct(losses: list[Loss | None]) -> list[Composite]:
    return list(dict.fromkeys(losses))


def _largest(values: list[Bounded]) -> Bounded:
    return max(values, key=lambda bound: bound.value)


def promised_epsilon(state: AccountState, delta: float) -> Bounded:
    """ε of the guarantee at δ, the maximum over users."""
    return _largest([epsilon_of(what, delta) for what in promised(state)])


def spent_epsilon(state: AccountState, delta: float) -> Bounded:
    """ε of what was spent, ex post, the maximum over users."""
    return _largest([epsilon_of(what, delta) for what in spent(state)])


def promised_delta(state: AccountState, epsilon: float) -> Bounded:
    """δ of the guarantee at ε, the maximum over users."""
    return _largest([delta_of(what, epsilon) for what in promised(state)])


def spent_delta(state: AccountState, epsilon: float) -> Bounded:
    """δ of what was spent, ex post, the maximum over users."""
    return _largest([delta_of(what, epsilon) for what in spent(state)])


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
        return gaussian_epsilon(mass, delta)
    if isinstance(what, ZCDP):
        bound = zcdp_epsilon(float_up(what.rho), delta)
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


def _split(what: Composite) -> tuple[Fraction, Composite]:
    """The probability of failure, and what is left apart from it."""
    return (what.failure(), what.unless_failed()) if isinstance(what, Loss) else (Fraction(0), what)


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
                what.renyi,
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


def mu_of(what: Composite) -> float | None:
    """μ where all mass is Gaussian, rounded up; else None."""
    mass, _, _, _ = _curve(what)
    return None if mass is None else mass**0.5 * (1 + 1e-15)
