r"""Value functions of the adaptive adversary, and mechanisms of bounded range.

With x = e^L, L the privacy loss of all outputs so far, U(x) = x V(log x) is the best an adversary
can still reach.  V is held on a grid of L.  `Values.dominated` goes one step back over a dominating
pair, `Values.ranged` over a mechanism of bounded range, where the adversary picks t.  Between two
values a < b of t, for convex U with second-derivative measure nu and r = e^-eta,

    sup over [a, b] of E U(x Y_t) <= max of both ends
        + (b - a)^2/8 * x/(1 - r) * integral over (x r e^a, x e^b) of (r e^b + e^(b - a)) nu.

Here are also the order-free majorants of many bounded-range steps.  Proofs:
``docs/proofs.md#composition``, points 2 to 6.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privlearn.accountants.loss_grid import ULP, DeltaCurve, Law
from privlearn.losses.steps import (
    Array,
    BoundedRangeStep,
    Direction,
    GaussianStep,
    PairStep,
    Points,
    integrated,
)

_WIDTH = 1 / 32  # Distance of neighbouring t near the maximum, as a share of the range
_SHORT = 8192  # Terms of a product that BLAS does in one thread
_RATIO = 0.5  # Growth of that distance away from the maximum


@dataclass(frozen=True, slots=True)
class SupremumStep(PairStep):
    """The law whose hockey-stick curve is the supremum over all laws of bounded range epsilon.

    E_Q(Y - u)_+ = (1 - sqrt(r u))^2/(1 - r) on [r, 1/r], r = e^-eps, the maximum over t.  Its
    second derivative is sqrt(r) u^(-3/2)/(2(1 - r)): a Q-density, times u for P; the slopes at the
    ends leave no atoms: -1 at u = r and 0 at u = 1/r.
    """

    epsilon: float

    def points(self, way: Direction, step: float, tail: float) -> Points:
        eps = self.epsilon
        scale = -2 * math.expm1(-eps)
        return integrated(
            lambda z: z,
            lambda z: np.exp((z - eps) / 2) / scale,
            (-eps, eps),
            step,
            inverse=lambda z: z,
        )


@dataclass(frozen=True, slots=True)
class FixedStep(PairStep):
    """The two-point law on {e^top, e^(top - epsilon)}: one fixed choice, for lower bounds."""

    epsilon: float
    top: float

    def points(self, way: Direction, step: float, tail: float) -> Points:
        share = math.expm1(self.top - self.epsilon) / math.expm1(-self.epsilon)
        losses = np.array([self.top, self.top - self.epsilon])
        return Points(losses, np.array([share, 1 - share]))


class Values:
    """V (upper side) and the probabilities of the lower side on a grid of losses.

    Below the grid V is at most its first value (U is below its chord from 0); above it the slope
    of U is at most 1, so V <= 1 - (1 - V_last) e^-(L - L_last).  The lower side rejects below the
    grid, and above it accepts and stops playing.  ``p - q``, with p = P(accept) and
    q = e^-L Q(accept), is a lower bound of V.
    """

    def __init__(self, low: float, high: float, step: float, two_sided: bool = True):
        self.step = step
        self.two_sided = two_sided
        self.first = math.floor(low / step)
        self.losses = np.arange(self.first, math.ceil(high / step) + 1) * step
        self.v = -np.expm1(-np.maximum(self.losses, 0.0))
        self.p = (self.losses >= 0).astype(np.float64)
        self.q = np.where(self.losses >= 0, np.exp(-np.maximum(self.losses, 0.0)), 0.0)
        self.rounding = 1e-15
        self.lower_rounding = 1e-15
        self.spill = 0.0

    def copy(self) -> Values:
        return copy.copy(self)

    def join(self, other: Values) -> None:
        """The larger of two values (upper side only): the adversary picks."""
        self.v = np.maximum(self.v, other.v)
        self.rounding = max(self.rounding, other.rounding)

    def _padded(self, below: int, above: int) -> tuple[Array, Array, Array]:
        fall = np.exp(-self.step * np.arange(1, above + 1))
        v = np.concatenate((np.full(below, self.v[0]), self.v, 1 - (1 - self.v[-1]) * fall))
        end = math.exp(-float(self.losses[-1]))
        zero = np.zeros(below)
        p = np.concatenate((zero, self.p, np.ones(above)))
        q = np.concatenate((zero, self.q, end * fall))
        return v, p, q

    def dominated(self, law: Law) -> None:
        """One step backward over a dominating pair on the same lattice."""
        below, above = max(-law.low, 0), max(law.low + len(law.p) - 1, 0)
        v, p, q = self._padded(below, above)
        begin, size = below + law.low, len(self.v) + len(law.p) - 1
        window = slice(begin, begin + size)
        self.v = np.minimum(_correlated(v[window], law.p) + law.lost, 1.0)
        self.p = _correlated(p[window], law.floor)
        self.q = _correlated(q[window], law.q)
        self.spill += law.spill
        added = law.rounding + (len(law.p) + 4) * ULP
        self.rounding += added
        self.lower_rounding += added

    def ranged(self, eta: float, order: float, even: bool) -> None:
        """One step backward over a bounded range eta: the sup over t, see the module."""
        step = self.step
        pad = math.ceil(eta / step) + 3
        v, p, q = self._padded(pad, pad)
        size = len(self.v)
        up = math.exp(step)
        slope = (up * v[1:] - v[:-1]) / math.expm1(step)
        convex = np.maximum.accumulate(slope)
        excess = float(np.max((convex - slope) / (v[1:] + 1e-300)))
        if (
            excess > 1e-7 and len(v) * step < 600
        ):  # not convex: raise V to the function with these slopes
            growth = np.exp(step * np.arange(len(v)) - step * len(v))
            raised = np.cumsum(convex * np.diff(growth)) + v[0] * growth[0]
            v[1:] = np.maximum(v[1:], raised / growth[1:] * (1 + 4 * len(v) * ULP))
            slope = (up * v[1:] - v[:-1]) / math.expm1(step)
            convex = np.maximum.accumulate(slope)
            excess = float(np.max((convex - slope) / (v[1:] + 1e-300)))
        self.rounding += excess + 64 * ULP + 16 * ULP / step
        self.lower_rounding += 64 * ULP
        shrink = -math.expm1(-eta)  # 1 - r
        best, spare = np.zeros(size), np.empty(size)
        reached = np.zeros(size)
        choice = np.zeros(size, dtype=np.intp)
        stencils: list[tuple[tuple[int, int, int, int], Array, Array]] = []
        before: Array | None = None
        last = 0.0
        for number, t in enumerate(_choices(eta, order, even)):
            top = -math.expm1(t - eta) / shrink
            bottom = math.expm1(t) * math.exp(-eta) / shrink
            (a, a_up), (b, b_up) = share_above(t, step), share_above(t - eta, step)
            w = np.array([top * (1 - a_up), top * a_up, bottom * (1 - b_up), bottom * b_up])
            at = (pad + a, pad + a + 1, pad + b, pad + b + 1)
            value = np.multiply(v[at[0] : at[0] + size], w[0])
            for weight, start in zip(w[1:], at[1:], strict=True):
                np.multiply(v[start : start + size], weight, out=spare)
                value += spare
            scale = np.exp(
                [a * step - t, (a + 1) * step - t, b * step - t + eta, (b + 1) * step - t + eta]
            )
            stencils.append((at, w, w * scale))
            if self.two_sided:
                np.copyto(choice, number, where=value > reached)
                np.maximum(reached, value, out=reached)
            if before is not None:
                rise = math.exp(t - eta) + math.exp(t - last)
                factor = (t - last) ** 2 / 8 * rise / shrink
                right = pad + math.ceil(t / step) - 1
                left = pad + math.floor((last - eta) / step)
                np.subtract(convex[right : right + size], convex[left : left + size], out=spare)
                spare *= factor
                np.maximum(before, value, out=before)
                spare += before
                np.maximum(best, spare, out=best)
            before, last = value, t
        self.v = np.minimum(best, 1.0)
        if not self.two_sided:
            return
        starts = np.array([at for at, _, _ in stencils])
        w_p = np.array([w for _, w, _ in stencils])
        w_q = np.array([w for _, _, w in stencils])
        here = np.arange(size)
        new_p, new_q = np.zeros(size), np.zeros(size)
        for part in range(4):
            source = here + starts[choice, part]
            new_p += w_p[choice, part] * p[source]
            new_q += w_q[choice, part] * q[source]
        self.p, self.q = new_p, new_q

    def curve(self) -> DeltaCurve:
        """delta(epsilon) = V(-epsilon), from both sides."""
        v, p, q, step, size = self.v, self.p, self.q, self.step, len(self.v)
        high, low = 1 + self.rounding + 1e-12, self.lower_rounding + 1e-12

        def place(epsilon: float) -> tuple[int, int, float, float]:
            k, share = share_above(-epsilon, step)
            index = k - self.first
            return min(max(index, 0), size - 1), min(max(index + 1, 0), size - 1), share, k * step

        def upper(epsilon: float) -> float:
            if -epsilon > self.losses[-1]:
                return 1.0
            one, two, share, _ = place(epsilon)
            return min((float(v[one]) * (1 - share) + float(v[two]) * share) * high, 1.0)

        def lower(epsilon: float) -> float:
            if not self.losses[0] <= -epsilon < self.losses[-1]:
                return 0.0
            one, two, share, at = place(epsilon)
            chance = float(p[one]) * (1 - share) + float(p[two]) * share
            # q is scaled by e^(lattice point); the true start is -epsilon
            cost = float(q[one]) * (1 - share) * math.exp(at + epsilon)
            cost += float(q[two]) * share * math.exp(at + step + epsilon)
            return max(chance * (1 - low) - cost * (1 + low) - self.spill, 0.0)

        return DeltaCurve(upper, lower)


def _correlated(values: Array, weights: Array) -> Array:
    """As `numpy.correlate`, in products so short that they wake no threads of BLAS."""
    size = len(values) - len(weights) + 1
    found: Array = np.zeros(size)
    for start in range(0, len(weights), _SHORT):
        piece = weights[start : start + _SHORT]
        found += np.correlate(values[start : start + size + len(piece) - 1], piece)
    return found


def share_above(loss: float, step: float) -> tuple[int, float]:
    """Lattice point below a loss, and the share of P-mass that goes to the one above it."""
    k = math.floor(loss / step)
    slack = 16 * ULP * (2 + abs(loss) / step)
    share = math.expm1(-(loss - k * step)) / math.expm1(-step) + slack
    return k, min(max(share, 0.0), 1.0)


def _choices(eta: float, order: float, even: bool) -> list[float]:
    """Values of t from 0 to eta, close together where the maximum usually is.

    Where U grows like x^a the best t is that of the Renyi divergence of order a (see
    `privlearn.losses.BoundedRangeLoss`), from eta/2 at a = 1/2 up; ``order`` is the largest a that
    gets close points.  Any choice is valid.
    """
    if even or eta > 2:
        parts = max(math.ceil(eta / 0.03), 64)
        return [eta * k / parts for k in range(parts + 1)]
    width = eta * _WIDTH
    right = best_top(eta, order)
    left = eta / 2
    parts = max(math.ceil((right - left) / width), 1)
    values = [left + (right - left) * k / parts for k in range(parts + 1)]
    for end, sign in ((left, -1), (right, 1)):
        distance, room = width, (left if sign < 0 else eta - right)
        gap = 0.0
        while gap < room:
            gap = min(gap + distance, room)
            values.append(min(max(end + sign * gap, 0.0), eta))
            distance = max(width, _RATIO * gap)
    return sorted(set(values))


def best_top(eta: float, order: float) -> float:
    """The t in [eta/2, eta] with the largest Renyi divergence of this order, about."""
    growth = math.expm1(-order * eta) / math.expm1((1 - order) * eta) * (order - 1) / order
    return min(max(math.log(growth) + eta, eta / 2), eta)


def order_free(ranged: Sequence[tuple[BoundedRangeStep, int]]) -> list[tuple[PairStep, int]]:
    """Dominating pairs that cover these steps in every order, see the docs.

    The largest become `SupremumStep`; the rest one Gaussian of mass `gaussian_cover`.  The
    number of large ones that gives the least variance is taken.
    """
    sizes = sorted(((s.epsilon, n) for s, n in ranged), reverse=True)
    etas = np.repeat(*(np.array(x) for x in zip(*sizes, strict=True)))
    best, choice, at = math.inf, 0, 0.0
    for large in {0, *(min(2**k // 2, len(etas)) for k in range(1, 20)), len(etas)}:
        mass = gaussian_cover(etas[large:])
        variance = mass + float((etas[:large] ** 2).sum()) / 3
        if variance < best:
            best, choice, at = variance, large, mass
    cover: list[tuple[PairStep, int]] = [(SupremumStep(float(e)), 1) for e in etas[:choice]]
    return [*cover, (GaussianStep(at), 1)] if at else cover


def gaussian_cover(etas: Array) -> float:
    """A mass s_n such that these steps, in every order, are dominated by that Gaussian.

    s_0 >= eta^2/2 is free, s' = s/(1 - eta^2/(4s)) for each step, from the largest to the smallest:
    ``docs/proofs.md#composition``, lemma 6.
    """
    if not len(etas):
        return 0.0
    parts = [float(x) for x in etas * etas / 4]

    def total(start: float) -> float:
        s = start
        for part in parts:
            s /= 1 - part / s
        return s * (1 + 32 * len(parts) * ULP)

    return min(total(2.001 * parts[0] * 1.2**k) for k in range(14))
