"""How far noise reaches: half widths of intervals at a level, and intervals of quotients.

An interval here holds the number that there would be without noise with at least the probability
that was asked for, whatever the data are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise import AdditiveNoise, LaplaceNoise
from privlearn.values.validate import within

Interval = tuple[float, float]
_HALVINGS = 48
_POINTS = 2000  # Of an integral
_TINY = math.log(1e-7)


def normal_width(level: float) -> float:
    """How many standard deviations hold a normal number with that probability."""
    return NormalDist().inv_cdf((1 + level) / 2)


@final
@dataclass(frozen=True, slots=True)
class NoiseLaw:
    """Independent noise of one law and scale on several numbers.

    Args:
        scale: standard deviation of Gaussian noise, scale of Laplace noise.
        laplace: which of the two.
    """

    scale: float
    laplace: bool

    @classmethod
    def of(cls, noise: AdditiveNoise) -> NoiseLaw:
        return cls(float(getattr(noise, "unit", 0.0)), isinstance(noise, LaplaceNoise))

    @property
    def std(self) -> float:
        return self.scale * (math.sqrt(2) if self.laplace else 1.0)

    def width(self, level: float, *weights: float) -> float:
        """The half width that holds a weighted sum of the noise with probability ``level``."""
        within("(0, 1)", level=level)
        sizes = sorted((abs(w) for w in weights if w), reverse=True)
        if not sizes:
            return 0.0
        if not self.laplace:
            return self.scale * normal_width(level) * math.sqrt(math.fsum(w * w for w in sizes))
        if len(sizes) == 2:  # up to the next of 512 ratios, so that most are known
            ratio = math.ceil(512 * sizes[1] / sizes[0]) / 512
            return self.scale * sizes[0] * _two_widths(ratio, round(level, 12))
        shape = Counter(round(w / sizes[0], 6) for w in sizes)
        return self.scale * sizes[0] * _laplace_width(tuple(shape.items()), round(level, 12))


@final
class NoiseSum:
    """A weighted sum of noise, the widths of which many cells share."""

    def __init__(self, law: NoiseLaw, weights: Sequence[float]) -> None:
        self._law, self._weights = law, weights
        self._known: dict[float, float] = {}

    def width(self, level: float) -> float:
        """As of `NoiseLaw`."""
        if level not in self._known:
            self._known[level] = self._law.width(level, *self._weights)
        return self._known[level]


@lru_cache(maxsize=2**14)
def _laplace_width(weights: tuple[tuple[float, int], ...], level: float) -> float:
    """The half width for Σ w_j L_j, by inverting its characteristic function ∏ 1/(1 + w_j² u²).

    P(|X| > t) = 1 − (2/π)∫ sin(tu)/u·φ(u) du, by the midpoint rule where φ is above 1e-7.
    """
    if weights == ((1.0, 1),):
        return -math.log(1 - level)
    sizes, numbers = np.array(weights).T

    def log_law(u: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(-np.log1p(np.square(np.multiply.outer(u, sizes))) @ numbers)

    end = 1.0
    while log_law(np.array([end]))[0] > _TINY:
        end *= 1.25
    step = end / _POINTS
    u = np.asarray((np.arange(_POINTS) + 0.5) * step, dtype=np.float64)
    law = np.exp(log_law(u)) / u * (2 * step / math.pi)
    low, high = 0.0, math.sqrt(2 * float(numbers @ sizes**2) / (1 - level))  # Chebyshev
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if float(np.sin(middle * u) @ law) < level else (low, middle)
    return high * (1 + 1e-4)  # above the error of the rule


@lru_cache(maxsize=2**14)
def _two_widths(other: float, level: float) -> float:
    """For L + w·L′: P(|X| > t) = (e^−t − w² e^(−t/w))/(1 − w²), and (1 + t/2)·e^−t for w = 1."""

    def beyond(t: float) -> float:
        if other > 1 - 1e-4:
            return (1 + t / 2) * math.exp(-t)
        square = other * other
        return (math.exp(-t) - square * math.exp(-t / other)) / (1 - square)

    low, high = 0.0, 2 - 2 * math.log(1 - level)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 1 - level else (low, middle)
    return high


@final
@dataclass(frozen=True, slots=True)
class NoisyQuotient:
    """A sum over a count, both noisy: a mean of numbers in [low, high].

    Args:
        top, bottom: as released.
        law: of the noise on either, times the weights.
        top_weight, bottom_weight: of that noise.
        low, high: where the mean lies.
    """

    top: float
    bottom: float
    law: NoiseLaw
    top_weight: float
    bottom_weight: float
    low: float = -1.0
    high: float = 1.0

    def value(self, most: float) -> float:
        """The quotient, put between the bounds; the middle where noise outweighs the count.

        A count that may be ``most``, the number of rows, is taken for that: where no cell is
        missing, as in most columns, its noise then adds nothing.
        """
        std = self.bottom_weight * self.law.std
        count = most if self.bottom >= most - 2 * std else self.bottom
        if count <= std:
            return (self.low + self.high) / 2
        return min(max(self.top / count, self.low), self.high)

    def interval(self, level: float, spread: float = 0.0) -> Interval:
        """All θ for which top − θ·bottom may be noise (Fieller 1954), within the bounds.

        For the true θ that is noise of known law, so the level holds whatever the count is.  Where
        the count itself may be 0, all of [low, high] is.

        Args:
            level: of the interval.
            spread: standard deviation of the sum for sampling, on top of noise.
        """
        normal = normal_width(level) * spread

        def width(theta: float) -> float:
            noise = self.law.width(level, self.top_weight, theta * self.bottom_weight)
            return noise + normal if self.law.laplace else math.hypot(noise, normal)

        if self.bottom <= self.law.width(level, self.bottom_weight) or self.bottom <= 0:
            return self.low, self.high

        def outside(theta: float) -> bool:  # once on either side, as widths grow more slowly
            return abs(self.top - theta * self.bottom) > width(theta)

        middle = self.top / self.bottom
        ends = [_crossing(outside, middle, end) for end in (self.low, self.high)]
        return min(max(ends[0], self.low), self.high), max(min(ends[1], self.high), self.low)


def _crossing(outside: Callable[[float], bool], low: float, end: float) -> float:
    """Between a point inside and an end, the last one that is not outside."""
    if not outside(end):
        return end
    high = end
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if outside(middle) else (middle, high)
    return high
