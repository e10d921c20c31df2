r"""Convolutions and convolution powers of non-negative weights by FFT, enclosed at every index.

One FFT has an error of about 1e-15 of the largest weight everywhere, which says nothing about a
weight of 1e-20.  So weights w_j are first multiplied by e^(theta j), which moves the mass to where
the small ones are, and the result is multiplied back.  A few tilts theta are used, and at every
index the one with the least error.  Proofs: ``docs/proofs.md#composition``, point 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy import fft
from numpy.typing import NDArray

Array = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
ULP = 2.0**-53
LEVEL = 8 * ULP
"""Error of one radix-2 level of an FFT, on average: additions, products and tabulated factors."""
_TIMES = 2.25 * ULP
"""Relative error of a complex multiplication, at most sqrt(5) ULP (Brent et al. 2007)."""
_TINY = 1e-280  # More than all underflows together
_STEEPEST = 500.0  # Largest exponent that a tilt may reach
_RARE = 1e-3  # Mass, over the count of a factor, of what `power` looks at apart
_UNSEEN = 1e-9  # Share of a tail that nobody misses
_WASTE = 1.5  # Log of how much larger than with the best tilt an error may be, about
_ALIKE = 1.5  # 1.25 of a normal law
_FLAT = 12.0  # Log moment of a tilt with which enough is known of where most mass is
_BINS = 2048
_DEPTH = 5  # At most 2**_DEPTH + 1 tilts

CountedWeights = Sequence[tuple[Array, int]]
"""Weights >= 0, with indices from 0, and how often each comes."""


class Window(NamedTuple):
    """Indices first..last of a convolution; at most ``below`` and ``above`` mass lies beside them.

    ``up`` is the tilt with which Chernoff's bound gives ``above``.
    """

    first: int
    last: int
    up: float
    below: float
    above: float


class Enclosed(NamedTuple):
    """At every index of a window, a convolution is at least ``least`` and at most ``most``.

    Both up to the relative error ``rounding``.
    """

    least: Array
    most: Array
    rounding: float


def dot(one: Array, two: Array) -> float:
    """The sum of products without BLAS, whose threads cost more here than they do."""
    return float(np.einsum("i,i->", one, two))


def _binned(weights: Array, centre: int) -> tuple[Array, Array, Array]:
    """Of at most `_BINS` groups of neighbours: mean places, weights, half of the squares inside."""
    width = -(-len(weights) // _BINS)
    padded = np.zeros(-(-len(weights) // width) * width)
    padded[: len(weights)] = weights
    groups = padded.reshape(-1, width)
    sums = groups.sum(axis=1)
    first, groups, sums = np.flatnonzero(sums) * float(width), groups[sums > 0], sums[sums > 0]
    at = np.arange(float(width))
    mean = np.einsum("ij,j->i", groups, at) / sums
    squares = np.einsum("ij,j->i", groups, at * at) - mean * mean * sums
    return first - centre + mean, sums, np.maximum(squares, 0.0) / 2


class _Tilted:
    """Factors under tilts: their logarithmic moments about a centre."""

    def __init__(self, factors: CountedWeights):
        self.factors = factors
        self.count = sum(count for _, count in factors)
        self.end = sum(count * (len(weights) - 1) for weights, count in factors)
        self.longest = max(len(weights) for weights, _ in factors)
        self.steepest = _STEEPEST / self.longest
        self.flattest = min(1 / (self.end + 1), self.steepest / 2)
        self._places: list[Array] = []
        self._rough: list[tuple[Array, Array, Array]] = []
        self.centre = 0
        for weights, count in factors:
            index = np.arange(len(weights), dtype=np.float64)
            centre = round(dot(index, weights) / float(weights.sum()))
            self._places.append(index - centre)
            self._rough.append(_binned(weights, centre))
            self.centre += count * centre
        self._exact: dict[float, float] = {}
        self.rounding = math.expm1(self.count * 9 * _STEEPEST * ULP)
        self.slack = math.expm1(sum(count * len(w) for w, count in factors) * ULP) + self.rounding

    def moments(self, theta: float) -> list[float]:
        """About the log of sum w_j e^(theta (j - centre)) of every factor."""
        return [
            math.log(dot(np.exp(theta * place), w + theta * theta * squares))
            for place, w, squares in self._rough
        ]

    def moment(self, theta: float) -> float:
        """About the log moment of all factors together: for searches and scales."""
        pairs = zip(self.factors, self.moments(theta), strict=True)
        return math.fsum(count * moment for (_, count), moment in pairs)

    def exact_moment(self, theta: float) -> float:
        """That, up to rounding."""
        if theta not in self._exact:
            self._exact[theta] = math.fsum(
                count * math.log(dot(np.exp(theta * place), w))
                for (w, count), place in zip(self.factors, self._places, strict=True)
            )
        return self._exact[theta]

    def weights(self, theta: float, size: int) -> Iterator[tuple[Array, int, float]]:
        """Tilted factors of mass one, folded to ``size`` indices; counts and log moments."""
        moments = self.moments(theta)
        for (w, count), place, moment in zip(self.factors, self._places, moments, strict=True):
            tilted = np.zeros(-(-len(w) // size) * size)
            tilted[: len(w)] = w * np.exp(theta * place - moment)
            folded = tilted.reshape(-1, size).sum(axis=0) if len(tilted) > size else tilted
            mass = float(folded.sum()) or 1.0
            yield folded / mass, count, count * (moment + math.log(mass))

    def apart(self, theta: float, size: int, cut: int) -> tuple[Array, Array, float]:
        """As `weights` of the only factor, in two parts: below index ``cut``, and the others."""
        ((w, count),), (place,) = self.factors, self._places
        (moment,) = self.moments(theta)
        parts = np.zeros((2, -(-len(w) // size) * size))
        tilted = w * np.exp(theta * place - moment)
        parts[0, :cut], parts[1, cut : len(w)] = tilted[:cut], tilted[cut:]
        low, high = parts.reshape(2, -1, size).sum(axis=1)
        return low, high, count * moment

    def bound(
        self, theta: float, index: Array | NDArray[np.intp] | int, times: float = 0.0
    ) -> Array:
        """Chernoff: no weight at ``index`` nor the mass beyond it is larger; times e^``times``."""
        exponent = self.exact_moment(theta) - theta * (np.asarray(index) - self.centre) + times
        with np.errstate(over="ignore"):
            found: Array = np.exp(exponent) * (1 + self.slack) + _TINY
        return found


def window(factors: CountedWeights, tail: float) -> Window:
    """Where all but about ``tail`` of the mass lies, on each side."""
    tilted = _Tilted(factors)
    room = -math.log(tail)

    def reach(theta: float) -> float:
        return tilted.centre + (tilted.moment(theta) + room) / theta

    up = _argmin(reach, tilted.flattest, tilted.steepest)
    down = -_argmin(lambda theta: -reach(-theta), tilted.flattest, tilted.steepest)
    last = max(min(math.ceil(reach(up)), tilted.end), 0)
    first = min(max(math.floor(reach(down)), 0), last)
    below = float(tilted.bound(down, first - 1)) if first else 0.0
    above = float(tilted.bound(up, last + 1)) if last < tilted.end else 0.0
    return Window(first, last, up, below, above)


def _argmin(value: Callable[[float], float], low: float, high: float) -> float:
    """About where a unimodal function is least: golden sections of the logarithm."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = value(math.exp(c)), value(math.exp(d))
    for _ in range(12):
        if at_c < at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = value(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = value(math.exp(d))
    return math.exp(c if at_c < at_d else d)


def power(weights: Array, count: int, where: Window, tail: float, care: int = 1) -> Enclosed:
    """As `convolve` of one factor, for a thin long tail, all of it known to about ``tail``.

    With w = b + t, t what lies beyond all but a small mass, w^n is b^n and the sum of the
    b^i * t * w^(n-1-i): the first has a short tail of its own, and the FFT of the others errs by
    about the mass of t only.
    """
    cut = rare(weights, count)
    if cut is None:
        return convolve([(weights, count)], where, care=3)
    bulk = [(weights[:cut], count)]
    index = np.arange(where.first, where.last + 1)
    short = window(bulk, _UNSEEN * tail / len(index))
    common = convolve(bulk, short, care=care)
    rest = convolve([(weights, count)], where, care=care, cut=cut)
    # no weight beside the window of b^n is larger than all of them together
    most = rest.most + np.where(index > short.last, short.above, 0.0)
    most += np.where(index < short.first, short.below, 0.0)
    least = rest.least.copy()
    first, last = max(short.first, where.first), min(short.last, where.last)
    if first <= last:
        to = slice(first - where.first, last - where.first + 1)
        of = slice(first - short.first, last - short.first + 1)
        most[to] += common.most[of]
        least[to] += common.least[of]
    return Enclosed(least, most, max(common.rounding, rest.rounding) + 4 * ULP)


def rare(weights: Array, count: int) -> int | None:
    """From where on weights are so little that `power` looks at them apart; None for nowhere."""
    beyond = np.cumsum(weights[::-1])[::-1]
    cut = int(np.searchsorted(-beyond, -_RARE / count * float(beyond[0])))
    return cut if 0 < cut < len(weights) and weights[cut:].any() else None


def convolve(
    factors: CountedWeights, where: Window, *, care: int = 1, cut: int | None = None
) -> Enclosed:
    """All factors convolved, on a window that may have been found for other weights.

    ``care``: 0 for one tilt, between none and the steepest; 1 for several; 3 for more and steeper
    ones, in four times the time.  ``cut``: of one factor, only where at least one of its indices is
    ``cut`` or above.
    """
    index = np.arange(where.first, where.last + 1)
    if not all(weights.any() for weights, _ in factors):
        return Enclosed(np.zeros(len(index)), np.zeros(len(index)), 0.0)
    tilted = _Tilted(factors)
    size = 2 ** ((5 * len(index) // 4 + 1).bit_length() + (care > 0))
    wrapped = int(index[0]) % size
    folded = _Folded(tilted, index, size)
    gap = np.full(len(index), np.inf)
    least, most = np.zeros(len(index)), np.full(len(index), np.inf)

    def look(theta: float) -> None:
        if cut is None:
            middle, error, moment = _spectral(tilted.weights(theta, size), tilted.count, size)
        else:
            low, high, moment = tilted.apart(theta, size, cut)
            middle, error = _spectral_rest(low, high, tilted.count)
        exponent = moment - theta * (index - tilted.centre)
        scale = np.exp(np.minimum(exponent, 700.0))
        middle = np.concatenate((middle[wrapped:], middle[:wrapped]))[: len(index)]
        top = middle * scale + error * scale * (1 + 1e-9)
        here = (2 * error * scale + folded(theta)) * (1 + 1e-8)
        better = (here < gap) & (exponent < 700)
        np.copyto(gap, here, where=better)
        np.copyto(most, top, where=better)
        np.copyto(least, top - here, where=better)

    steepest = min(where.up, folded.up / 1.25)
    for theta in _tilts(tilted, steepest, care) if care else [_one_tilt(tilted, where, steepest)]:
        look(theta)
    if not np.isfinite(most).all():
        look(0.0)  # with which no exponent is large
    rounding = tilted.rounding + tilted.count * (tilted.longest / size + 1) * ULP
    return Enclosed(np.maximum(least, 0.0), np.maximum(most, 0.0), rounding)


def _one_tilt(tilted: _Tilted, where: Window, steepest: float) -> float:
    """One for all: halfway to the one that serves the tail, if the other end bears it.

    That is if errors there are about as of a normal law; else they are made alike at both ends.
    """
    # logs of the mass at the last index, by Chernoff, and of the error at the first
    mass = tilted.moment(steepest) - steepest * (where.last - tilted.centre)
    half, reach = steepest / 2, tilted.centre - where.first
    moment = tilted.moment(half)
    if moment <= _FLAT and moment + half * reach <= -_ALIKE * mass:
        return half
    return min(max(-mass, 0.0) / (where.last - where.first + 1), half)


def _tilts(tilted: _Tilted, up: float, halvings: int) -> list[float]:
    """From none to ``up``; neighbours so close that little is lost between them.

    At least 2**halvings + 1, because where few outcomes make the tail the moments do not tell.
    """

    def between(a: float, at_a: float, b: float, at_b: float, depth: int) -> list[float]:
        middle = (a + b) / 2
        value = tilted.moment(middle)
        if depth <= 0 or (depth <= _DEPTH - halvings and (at_a + at_b) / 2 - value <= _WASTE):
            return [a]
        return between(a, at_a, middle, value, depth - 1) + between(
            middle, value, b, at_b, depth - 1
        )

    return [*between(0.0, tilted.moment(0.0), up, tilted.moment(up), _DEPTH), up]


class _Folded:
    """Bounds of what a cyclic convolution of tilted weights adds at each index, tilted back.

    A weight ``size`` indices higher counts e^(theta size) times, and is bounded by Chernoff.
    """

    def __init__(self, tilted: _Tilted, index: NDArray[np.intp], size: int):
        self._size = size
        first, middle, last = (float(index[k]) - tilted.centre for k in (0, len(index) // 2, -1))

        def above(place: float) -> float:
            return _argmin(
                lambda theta: tilted.moment(theta) - theta * (place + size),
                tilted.flattest,
                tilted.steepest,
            )

        self._ups = [above(first), above(middle)]
        self.up = max(self._ups)
        self._down = -_argmin(
            lambda theta: tilted.moment(-theta) + theta * (last - size),
            tilted.flattest,
            tilted.steepest,
        )
        self._tilted, self._index = tilted, index

    def __call__(self, theta: float) -> Array:
        """For a tilt below ``up``; infinite where nothing is known."""
        tilted, index, size = self._tilted, self._index, self._size
        rises = np.full(len(index), np.inf)
        for up in self._ups:
            if up > theta:
                rises = np.minimum(rises, tilted.bound(up, index, _log_series((up - theta) * size)))
        falls = tilted.bound(self._down, index, _log_series((theta - self._down) * size))
        above, below = index + size <= tilted.end, index >= size
        return np.where(above, rises, 0.0) + np.where(below, falls, 0.0)


def _log_series(x: float) -> float:
    """The log of the sum of e^(-x j), j from 1."""
    return -x - math.log(-math.expm1(-x)) + 1e-9


def _spectral(
    factors: Iterable[tuple[Array, int, float]], total: int, size: int
) -> tuple[Array, float, float]:
    """The cyclic convolution of all powers, the largest error of an entry, and the log moment."""
    level = math.expm1(math.log2(size) * LEVEL)
    times = math.expm1(total * _TIMES)
    moment = 0.0
    product: Spectrum | None = None
    logs = np.zeros(size // 2 + 1)
    relative = np.full(size // 2 + 1, times + level * (1 + times))
    for weight, count, part in factors:
        moment += part
        spectrum = fft.rfft(weight)
        wrong = level * float(weight.sum()) * (1 + 1e-9)
        largest = np.abs(spectrum) * (1 + 1e-12) + wrong
        logs += count * np.log(largest)
        relative += count * wrong / largest
        raised = _power(spectrum, count)
        product = raised if product is None else product * raised
    error = 2 * dot(np.exp(logs), relative) / size * (1 + 1e-9) + _TINY
    assert product is not None
    found: Array = fft.irfft(product, size)
    return found, error, moment


def _spectral_rest(low: Array, high: Array, count: int) -> tuple[Array, float]:
    """The cyclic convolution of all but low^count in (low + high)^count, and its largest error."""
    size = len(low)
    if not high.any():  # all underflows
        return np.zeros(size), _TINY
    level = math.expm1(math.log2(size) * LEVEL)
    times = math.expm1(count * _TIMES + (2 * math.log2(count) + 4) * ULP)
    one, two = fft.rfft(low), fft.rfft(high)
    both = one + two
    wrong = level * float(high.sum()) * (1 + 1e-9)
    wrong_both = (level + 2 * ULP) * float(low.sum() + high.sum()) * (1 + 1e-9)
    rare = np.abs(two) * (1 + 1e-12) + wrong
    largest = np.maximum(np.abs(one), np.abs(both)) * (1 + 1e-12) + wrong_both
    logs = math.log(count) + (count - 1) * np.log(largest) + np.log(rare)
    relative = times + level * (1 + times) + wrong / rare + (count - 1) * wrong_both / largest
    error = 2 * dot(np.exp(logs), relative) / size * (1 + 1e-9) + _TINY
    found: Array = fft.irfft(two * _telescope(one, both, count), size)
    return found, error


def _telescope(one: Spectrum, both: Spectrum, count: int) -> Spectrum:
    """The sum of one^i both^(count - 1 - i), i from 0, by halving ``count``."""
    total = np.ones_like(one)
    powers: tuple[Spectrum, Spectrum] = one, both
    for bit in bin(count)[3:]:
        total = total * (powers[0] + powers[1])
        powers = powers[0] * powers[0], powers[1] * powers[1]
        if bit == "1":
            total = total * both + powers[0]
            powers = powers[0] * one, powers[1] * both
    return total


def _power(base: Spectrum, count: int) -> Spectrum:
    result: Spectrum | None = None
    while True:
        if count & 1:
            result = base if result is None else result * base
        count >>= 1
        if not count:
            assert result is not None
            return result
        base = base * base
