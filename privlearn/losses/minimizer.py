r"""What one run of objective perturbation costs: Theorem N, bound (B), and their best combination.

Released is the exact minimiser over θ (of R^d, or of a closed convex set) of

    J_Z(θ) = Σ_{z∈Z} ℓ(θ; z) + (Δ/2)‖θ‖² + bᵀθ,   b ~ N(0, σ²I),

for losses ℓ that are convex and C^{1,1}.  Neighbours differ in one record, and publicly known are

    s >= ‖∇ℓ(θ; z) − ∇ℓ(θ; z′)‖   and   T >= tr ∇²ℓ(θ; z)   for all θ, z, z′.

With τ = T/Δ, c = s/σ, R a bound on the rank of the Hessian of one record, r the dimension of a
subspace that holds ∇ℓ(θ; z) − ∇ℓ(θ; z′) for all θ, and χ_r the norm of an N(0, I_r) vector:

(A) Theorem N, for (α−1)τ < 1 and ατ² <= 1:
    D_α <= αc²/2 + log[(1+τ) / ((1−(α−1)τ)(1+ατ))] / (α−1);
(B) for every α > 1:
    D_α <= l + c²/2 + log E exp((α−1)cχ_r) / (α−1),   l = R·log(1 + T/(RΔ)).

Both are proved in ``docs/proofs.md#objective-perturbation``.  The loss at an order is the smaller
one.

**The zCDP constant.**  A(α)/α increases in α and B(α)/α decreases.  Hence for *every* order a of
(A)'s domain, D_α/α <= A(a)/a for α <= a and D_α/α <= B(a)/a for α >= a, so that
max(A(a)/a, B(a)/a) is a zCDP constant: a supremum over all orders, not a maximum over a grid.  The
best a is where the two cross; an inexact a costs a little and proves no less.

*A(α)/α increases.*  Put K(α) = log(1+τ) − log(1−(α−1)τ) − log(1+ατ), so that K(0) = K(1) = 0 and
A(α)/α = c²/2 + K(α)/(α(α−1)).  The quotient is the divided difference K[0,1,α] = ½∫MK″, M the
B-spline with knots 0, 1, α; its derivative is a positive multiple of ∫NK‴, N the B-spline with
knots 0, 1, α, α (see `privlearn.losses.pure`).  K″(½+v) = τ²/(g−vτ)² + τ²/(g+vτ)², g = 1+τ/2, is
even in v and increases for v > 0.  N(½+v) >= N(½−v) for v > 0, as M and N/M increase on [0, 1] and
both vanish left of 0.  So ∫NK‴ >= 0.  By the mean value theorem also K[0,1,α] <= max K″/2 on
[0, α], and K″ is largest at α.

*B(α)/α decreases.*  With t = α−1 and L(t) = log E e^{tcχ_r}, B(α)/α = (l + c²/2)/(1+t) +
L(t)/(t(1+t)), and the sign of its derivative is that of f(t) − (l + c²/2)t², where
f = L′·t(1+t) − L·(1+2t), f(0) = 0, f′ = L″·(t+t²) − 2L.  The log-density of χ_r has second
derivative −1 − (r−1)/x² <= −1, and so has every exponential tilt, whose variance is therefore at
most 1 (Brascamp & Lieb 1976): L″ <= c².  And L(t) >= log E e^{tc|N(0,1)|} >= c²t²/2.  So
f(t) <= c²t²/2 + c²t³/3 − c²t³/3 <= (l + c²/2)t².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import final

from privlearn.losses.base import Loss, register
from privlearn.losses.numerics import ULP
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_down, float_up, round_up
from privlearn.values.validate import count, positive

_MANY = 1_000  # Directions beyond which the linear form of (B) is used: close by then, and quick
_SLACK = 1e-13  # Relative slack for the float evaluation of the bounds (a few hundred ulps)


@final
@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MinimizerLoss(Loss):
    """The exact minimiser of a randomly tilted, strongly convex objective.

    Args:
        difference: s, the largest distance between the gradients of two neighbouring records at one
            θ (a record and the null record for zero-out and add-remove).
        trace: T, the largest trace of the Hessian of one record.
        rank: R, the largest rank of the Hessian of one record.
        directions: r, the dimension of a subspace that holds that difference at every θ (of the
            gradients of both records at different θ, for an envelope).
        ridge: Δ > 0, weight of ‖θ‖²/2.
        noise_std: σ > 0 of the tilt b, unit of the gradient.
        adjacency: the neighbour relation that ``difference`` was bounded for.
        dimension: d, that of θ; bounds ranks and directions where several rows change.

    Source: Cho & Sun, Theorem 1, whose proof fails and whose constants are improved here
    (``docs/errata/objective-perturbation.md``); the module's docstring has the bounds.
    """

    kind = "objective-perturbation"
    difference: float
    trace: float
    rank: int
    directions: int
    ridge: float
    noise_std: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    dimension: int | None = None

    def __post_init__(self) -> None:
        for name in ("difference", "trace", "ridge", "noise_std"):
            number = positive(**{name: getattr(self, name)})
            if not 1e-75 <= number <= 1e75:
                raise ValueError(f"{name} = {number!r}: must lie in [1e-75, 1e75]")
            self._set(**{name: number})
        count(rank=self.rank)
        count(directions=self.directions)
        if self.dimension is not None:
            count(dimension=self.dimension)

    @property
    def last_order(self) -> float:
        """Theorem N holds for the orders from 1 up to about this one."""
        tau = self.trace / self.ridge
        square = tau * tau
        return max(min(1 + 1 / tau, 1 / square if square > 0 else math.inf), 1.0)

    def renyi(self, order: float) -> float:
        alpha = positive(order=order)
        if alpha <= 1:
            raise ValueError(f"order = {order!r}: must be > 1")
        return min(self._general(alpha), self._sharp(alpha))

    def zcdp(self) -> Fraction:
        """sup over all orders of the curve over the order; see the module's docstring."""
        return _zcdp(self)

    def doubled(self) -> MinimizerLoss:
        return replace(
            self,
            difference=2 * self.difference,
            directions=self._within(2 * self.directions),
            adjacency=Adjacency.REPLACE_ONE,
        )

    def several(self, visits: int, apart: int) -> MinimizerLoss:
        """All rows of the person count as one record, whose loss is the sum of theirs."""
        return replace(
            self,
            difference=float_up(visits * Fraction(self.difference)),
            trace=float_up(visits * Fraction(self.trace)),
            rank=self._within(visits * self.rank),
            directions=self._within(visits * self.directions),
        )

    def _within(self, number: int) -> int:
        return number if self.dimension is None else min(number, self.dimension)

    def noisier(self, factor: Fraction) -> MinimizerLoss:
        return replace(self, noise_std=float_down(Fraction(self.noise_std) * factor))

    def _sharp(self, alpha: float) -> float:
        """(A); inf outside of its domain, which rounding can only make smaller."""
        tau, t = math.nextafter(self.trace / self.ridge, math.inf), alpha - 1
        left = (1 - t * tau) - 4 * ULP * (1 + t * tau)  # of 1 − tτ, rounded down
        if left <= 0 or alpha * tau * tau > 1:
            return math.inf
        pole = -math.log(left) if left < 0.5 else -math.log1p(-t * tau * (1 + 4 * ULP))
        parts = math.log1p(tau), pole, -math.log1p(alpha * tau)
        excess = (math.fsum(parts) + 1e-15 * sum(map(abs, parts))) / t
        # K[0,1,α] <= max K″/2, which loses no digits where tau is small
        simple = alpha * tau * tau / 2 * (1 / left / left + (1 + alpha * tau) ** -2)
        return (alpha * self._shift() + min(excess, simple)) * (1 + _SLACK)

    def _general(self, alpha: float) -> float:
        """(B), for all orders."""
        c, t = self.difference / self.noise_std, alpha - 1
        determinants = self.rank * math.log1p(self.trace / (self.rank * self.ridge))
        # E exp(tcχ) <= exp(tcE[χ] + t²c²/2), as χ is a 1-Lipschitz function of a Gaussian vector
        moment = c * _mean_norm(self.directions) * (1 + 1e-13 * self.directions) + t * c * c / 2
        if t * c < 1e150 and self.directions <= _MANY:
            # every step of the recursion may lose a few ulps
            rounding = 1e-14 + 1e-15 * self.directions
            moment = min(moment, (_log_moment(t * c, self.directions) + rounding) / t)
        return (determinants + self._shift() + moment) * (1 + _SLACK)

    def _shift(self) -> float:
        c = self.difference / self.noise_std
        return c * c / 2


@lru_cache(maxsize=4096)
def _zcdp(loss: MinimizerLoss) -> Fraction:
    return round_up(Fraction(zcdp_rate(loss)))


def zcdp_rate(loss: MinimizerLoss) -> float:
    """A zCDP constant of ``loss``, best up to a relative 1e-9; see the docstring."""
    from scipy.optimize import brentq

    tau = loss.trace / loss.ridge

    def order(u: float) -> float:
        """u = −log(1 − (α−1)τ) resolves the orders near the end of (A)'s domain."""
        return 1 - math.expm1(-u) / tau

    def gap(u: float) -> float:
        return math.log(loss._sharp(order(u)) / loss._general(order(u)))

    # B(α)/α is largest at α → 1, where its linear form l + c²/2 + cE[χ_r] is the limit.
    best = loss._general(1 + 1e-12)
    last = (loss.last_order - 1) * tau
    low, high = 2e-12 * tau, -math.log1p(-last) if last < 1 else 36.0
    high = min(high, 30.0) * (1 - 1e-12)
    if not low < high or order(low) == 1:
        return best
    if gap(low) >= 0 or gap(high) <= 0:
        crossing = [low, high]
    else:
        root = float(brentq(gap, low, high, xtol=1e-300, rtol=1e-12))
        crossing = [root * (1 - 1e-12), root]
    orders = [order(u) for u in crossing]
    return min([best, *(max(loss._sharp(a), loss._general(a)) / a for a in orders)])


@lru_cache(maxsize=256)
def _mean_norm(r: int) -> float:
    """E[χ_r] = √2·Γ((r+1)/2)/Γ(r/2), up to a relative 1e-13·r."""
    return math.sqrt(2) * math.exp(math.lgamma((r + 1) / 2) - math.lgamma(r / 2))


def _log_moment(c: float, r: int) -> float:
    """log E exp(cχ_r) for c >= 0, rounded up.

    E exp(cχ_r) = e^{c²/2}·m_r with m_1 = 2Φ(c), m_2 = e^{−c²/2} + c√(2π)Φ(c) and, integrating by
    parts, m_{r+1} = (c/E[χ_r])·m_r + m_{r−1}: all terms positive, so no digit is lost.
    """
    normal = math.erfc(-c / math.sqrt(2)) / 2
    before, now = 2 * normal, math.exp(-c * c / 2) + c * math.sqrt(2 * math.pi) * normal
    if r == 1:
        return c * c / 2 + math.log(before)
    scale = 0.0
    for k in range(2, r):
        before, now = now, c / (_mean_norm(k) * (1 - 1e-13 * k)) * now + before
        if now > 1e100:
            before, now, scale = before / now, 1.0, scale + math.log(now)
    return c * c / 2 + scale + math.log(now)
