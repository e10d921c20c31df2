"""Steps of a composition: what the tight accounting can do with one run of a mechanism.

`Loss.step` says which one stands for a loss.  Parameters are floats, rounded up.

A `PairStep` is known by its dominating pair: two laws P, Q such that no two neighbours are easier
to tell apart (Zhu, Dong & Wang 2022).  It states the law of the loss log dP/dQ under P as `Points`:
atoms by themselves, a density through `integrated`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Order = Literal["listed", "any"]
"""Steps run in the listed order; or in any order, also one chosen from earlier outputs."""
Direction = Literal["remove", "add"]
_SLACK = 1 + 1e-12  # For masses of tails in floating point
_MOST_ATOMS = 4096


class Points(NamedTuple):
    """A law of the privacy loss: P-masses ``p`` at finite losses ``loss``, in any order.

    ``p`` is known to a relative 1e-13.  ``lost``: at least the P-mass that counts as an infinite
    loss, absent from ``p``.  ``spill``: at least the P-mass in ``p`` that stands higher than it is,
    such as a cut tail: nothing below the truth may count it.
    """

    loss: Array
    p: Array
    lost: float = 0.0
    spill: float = 0.0

    def plus(self, loss: Sequence[float], p: Sequence[float], spill: float = 0.0) -> Points:
        """Atoms beside these."""
        losses, masses = np.append(self.loss, loss), np.append(self.p, p)
        return Points(losses, masses, self.lost, self.spill + spill)


class PairStep(ABC):
    """A step given by a dominating pair (P, Q): a frozen dataclass of floats, rounded up.

    ``both_ways``: whether the pair with P and Q changed over has another curve.  "remove" and "add"
    are then computed apart, and in every step of a plan the same of the two is meant.
    """

    __slots__ = ()
    both_ways = False

    @abstractmethod
    def points(self, way: Direction, step: float, tail: float) -> Points:
        """The law of the loss under P.

        Args:
            way: "remove": P has the record; "add": Q has it.
            step: of the lattice on which the law will be laid; a density is cut at its points.
            tail: about the P-mass that may be cut on each side.
        """

    def largest(self) -> float:
        """The largest absolute loss; infinite where there is none."""
        return math.inf

    def lattice(self) -> float:
        """A number of which all losses are multiples; 0 where there is none."""
        return 0.0

    def renyi(self, order: float) -> float:
        """An upper bound on the divergence of this order, both ways; infinite: none is known."""
        return math.inf

    def in_range(self) -> bool:
        """Whether `points` can be asked for."""
        return True


def integrated(
    loss: Callable[[Array], Array],
    density: Callable[[Array], Array],
    ends: tuple[float, float],
    step: float,
    *,
    outside: tuple[float, float] = (0.0, 0.0),
    width: float = 1 / 16,
    inverse: Callable[[Array], Array] | None = None,
    breaks: Sequence[float] = (),
    top: float = math.inf,
) -> Points:
    """The law of ``loss(z)``, not falling in z, where z has ``density`` under P.

    By Gauss-Legendre quadrature on pieces that end at lattice points of the loss, with an error
    below 1e-13 of the local mass (``docs/proofs.md#composition``, 2d).

    Args:
        ends: where z is cut.
        step: of the lattice.
        outside: at least the P-masses beyond the two ends.  That below goes to the loss at the
            lower end, that above to ``top``, an upper bound of all losses.
        width: the radius on which both functions are analytic and vary by a small factor, over 16;
            1/16 for a normal density.
        inverse: where given losses are reached; by bisection if None.
        breaks: where ``loss`` or ``density`` bend or jump.
    """
    low, high = ends
    first, last = (float(x) for x in loss(np.array([low, high])))
    inner = np.arange(math.floor(first / step) + 1, math.ceil(last / step), dtype=np.float64)
    lattice: Array = inner * step
    cuts = _bisected(loss, lattice, ends) if inverse is None else inverse(lattice)
    regular = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    cuts = np.concatenate((cuts, np.array(breaks, dtype=np.float64)))
    edges = np.sort(np.concatenate((regular, cuts[(cuts > low) & (cuts < high)])))
    edges = edges[np.append(True, np.diff(edges) > 0)]  # np.unique imports masked arrays
    z, weight = _pieces(edges, width)
    below, above = outside[0] * _SLACK, outside[1] * _SLACK
    found = Points(loss(z), weight * density(z))
    if below:
        found = found.plus([first], [below], below)
    if above and top < math.inf:
        found = found.plus([top], [above], above)
    return found._replace(lost=above) if top == math.inf else found


_NODES = {n: np.polynomial.legendre.leggauss(n) for n in (2, 3, 6)}


def _pieces(edges: Array, width: float) -> tuple[Array, Array]:
    """Points and weights on all intervals between edges: fewer where these are short.

    With n points the error on an interval of length w is at most
    w^(2n+1) (n!)^4/((2n+1) ((2n)!)^3) times a derivative of order 2n.
    """
    size = np.diff(edges)
    nodes = np.where(size > width / 32, 6, np.where(size > width / 1024, 3, 2))
    z, weights = [], []
    for number, (node, weight) in _NODES.items():
        here = nodes == number
        half = size[here, None] / 2
        z.append((edges[:-1][here, None] + half * (1 + node)).ravel())
        weights.append((half * weight).ravel())
    return np.concatenate(z), np.concatenate(weights)


def _bisected(loss: Callable[[Array], Array], values: Array, ends: tuple[float, float]) -> Array:
    low, high = np.full(len(values), ends[0]), np.full(len(values), ends[1])
    for _ in range(54):
        middle = (low + high) / 2
        below = loss(middle) < values
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return high


def normal_tail(z: float) -> float:
    """The probability that a standard normal number exceeds z."""
    return math.erfc(z / math.sqrt(2)) / 2


def normal_density(z: Array) -> Array:
    """That of a standard normal number."""
    return np.asarray(np.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def normal_reach(tail: float) -> float:
    """A z with `normal_tail` of at most ``tail``, or 16: whoever uses it counts the true tail."""
    return min(max(math.sqrt(max(-2 * math.log(tail), 1.0)), 3.0), 16.0)


@dataclass(frozen=True, slots=True)
class GaussianStep(PairStep):
    """N(0, std^2) noise, (sensitivity/std)^2 = mu_squared."""

    mu_squared: float

    def points(self, way: Direction, step: float, tail: float) -> Points:
        """Loss mu^2/2 + mu z, z standard normal."""
        mu, reach = math.sqrt(self.mu_squared) * (1 + 2.0**-51), normal_reach(tail)
        return integrated(
            lambda z: mu * mu / 2 + mu * z,
            normal_density,
            (-reach, reach),
            step,
            outside=(normal_tail(reach), normal_tail(reach)),
            inverse=lambda loss: (loss - mu * mu / 2) / mu,
        )

    def in_range(self) -> bool:
        return 1e-30 < self.mu_squared < 1e6


class _OfEpsilon(PairStep):
    """A step whose losses lie in [-epsilon, epsilon]."""

    __slots__ = ()
    epsilon: float

    def largest(self) -> float:
        return self.epsilon

    def in_range(self) -> bool:
        return 1e-300 <= self.epsilon <= 700


@dataclass(frozen=True, slots=True)
class LaplaceStep(_OfEpsilon):
    """Laplace noise with l1 sensitivity/scale = epsilon, in any dimension."""

    epsilon: float

    def points(self, way: Direction, step: float, tail: float) -> Points:
        """Loss eps w.p. 1/2, -eps w.p. e^-eps/2, density e^((l - eps)/2)/4 between them."""
        eps = self.epsilon
        ends = -eps, eps
        inner = integrated(
            lambda z: z, lambda z: np.exp((z - eps) / 2) / 4, ends, step, inverse=lambda z: z
        )
        return inner.plus([eps, -eps], [0.5, math.exp(-eps) / 2])


@dataclass(frozen=True, slots=True)
class RandomizedResponseStep(_OfEpsilon):
    """k-ary randomized response: the truth with probability e^epsilon/(e^epsilon + k - 1)."""

    epsilon: float
    k: int = 2

    def points(self, way: Direction, step: float, tail: float) -> Points:
        small = math.exp(-self.epsilon)
        masses = np.array([1.0, small, (self.k - 2) * small]) / (1 + (self.k - 1) * small)
        losses = np.array([self.epsilon, -self.epsilon, 0.0])
        return Points(losses, masses) if self.k > 2 else Points(losses[:2], masses[:2])

    def lattice(self) -> float:
        return self.epsilon

    def in_range(self) -> bool:
        return _OfEpsilon.in_range(self) and self.k >= 2


@dataclass(frozen=True, slots=True)
class PureStep(_OfEpsilon):
    """Any epsilon-DP mechanism: dominated by binary randomized response."""

    epsilon: float

    def points(self, way: Direction, step: float, tail: float) -> Points:
        return RandomizedResponseStep(self.epsilon).points(way, step, tail)

    def lattice(self) -> float:
        return self.epsilon


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceStep(_OfEpsilon):
    """Integer noise, P(x) proportional to e^(-epsilon |x|/sensitivity), l1 sensitivity as named."""

    epsilon: float
    sensitivity: int

    def points(self, way: Direction, step: float, tail: float) -> Points:
        """The law of `LaplaceStep` split between the losses eps (1 - 2k/sensitivity).

        Its hockey stick is 1 - e^((l - eps)/2) there and a chord in e^l between them; so a subset
        of these losses with both ends gives a law above it, which is used where there are very
        many.  An inner loss l with gaps u, d to the next ones has P-mass
        e^((l - eps)/2) (1/(1 + e^(-d/2)) - 1/(1 + e^(u/2))).
        """
        eps, stride = self.epsilon, -(-self.sensitivity // _MOST_ATOMS)
        k = np.append(np.arange(0, self.sensitivity, stride), self.sensitivity)
        loss = eps * (1 - 2 * (k / self.sensitivity))
        gap = 2 * eps * (np.diff(k) / self.sensitivity)
        up, down = gap[:-1] / 2, gap[1:] / 2
        # 1/(1 + e^-d) - 1/(1 + e^u) = (e^u - e^-d)/((1 + e^-d)(1 + e^u)), without cancellation
        share = np.exp(-down) * np.expm1(up + down) / ((1 + np.exp(-down)) * (1 + np.exp(up)))
        inner = np.exp((loss[1:-1] - eps) / 2) * share
        top = 1 / (1 + math.exp(-float(gap[0]) / 2))
        bottom = math.exp(-eps) / (1 + math.exp(-float(gap[-1]) / 2))
        return Points(loss, np.concatenate(([top], inner, [bottom])))

    def lattice(self) -> float:
        if self.sensitivity > _MOST_ATOMS:
            return 0.0
        return self.epsilon * (2 - self.sensitivity % 2) / self.sensitivity

    def in_range(self) -> bool:
        return _OfEpsilon.in_range(self) and self.sensitivity >= 1


@dataclass(frozen=True, slots=True)
class BoundedRangeStep:
    """The loss lies in some interval of length epsilon: the exponential mechanism."""

    epsilon: float

    def in_range(self) -> bool:
        return 1e-12 <= self.epsilon <= 200

    def largest(self) -> float:
        return self.epsilon


@dataclass(frozen=True, slots=True)
class CurveStep:
    """Anything else: an upper bound on the Renyi divergence of every order, both directions."""

    renyi: Callable[[float], float]

    def in_range(self) -> bool:
        return True

    def largest(self) -> float:
        return math.inf


Step = PairStep | BoundedRangeStep | CurveStep
StepPlan = Sequence[tuple[Step, int]]


def check_step(step: Step, count: int) -> None:
    """Raises ValueError for a count below 1 or a parameter out of range."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count = {count!r}: must be an integer >= 1")
    if not step.in_range():
        raise ValueError(f"{step!r}: a parameter is out of range")
