"""Points of a cap around a direction, or outside of it, exactly, from variates with bounds.

Let z be uniform on the unit sphere, or N(0, I), and h = ⟨z, u⟩ its height along a unit vector u.
A report is z given h >= t with probability p and z given h < t otherwise.  All of it comes from
exact variates by rejection, with no function but + − × ÷ √:

- outside of the cap, and for a null report, from normals w: z = w/‖w‖, again until its height is
  below t;
- in the cap h = x/√(x² + r²) with x normal and r the length of d − 1 normals.  For caps of a large
  share of the sphere |x| is drawn again until h >= t.  For others (d >= 3), as x >= τr with
  τ = t/√(1 − t²), write r = ρ√(1 − t²) and x = tρ + s.  The density r^(d−2)·e^(−(x² + r²)/2) is
  ∝ ρ^(d−2)·e^(−ρ²/2)·e^(−tρs)·e^(−s²/2): so ρ is the length of d − 2 normals (the lost power of ρ
  is in ds), s = E/(tρ) with E exponential, kept with probability e^(−s²/2).  For d = 2 only the
  direction tρ + s, ρ√(1 − t²) counts: its angle is uniform in the cap if ρ and s are exponential
  and it is kept with probability ∝ (ρ + s)²/(ρ² + 2tρs + s²);
- for normals h = t + E/λ, kept with probability e^(−(h − λ)²/2);
- squared lengths of normals in pairs are twice an exponential; the rest of z across u is a
  direction of normals of its own.

A formula written with + − × ÷ and `root` runs on doubles with a bound on their error, which decide
nearly always, and on intervals of integers, from more bits, where these leave it open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import STEP, Pool, Variates

T = TypeVar("T")
Margin = Callable[[Any, Any, int | None], Any]
"""Of exponentials and normals, in doubles (bits None) or in intervals alike."""
Places = NDArray[np.int64]
REPORT_LEVELS: Final = 2**23
"""Released numbers are multiples of limit/2^23."""
NORMAL_LIMIT: Final = 12
"""Numbers of normal reports are cut there."""
_SPARE = 3  # Candidates that are drawn at once beyond those that are needed, while they are short
_SHORT = 128
_FIRST_BITS, _MORE_BITS = 48, 16
"""Of variates, when doubles on 40 of them do not decide; and more until the integers do."""
_FEW_ROUNDINGS = 2.0**-48  # Relative, of up to 30 operations
_WIDE = 0.36
"""Caps with t²·d below it are a large share of the sphere: rejection takes below 2 tries."""

_ROUNDING = 2.0**-52
"""Relative, twice that of one operation; the other half is room for the rounding of bounds."""
_MORE = 1 + 2.0**-48  # Covers the rounding of what computes a bound
_UNDERFLOW = 2.0**-1000
_HALF_STEP = STEP / 2
_LARGE = 2.0**12  # Below it ⌊2^40 z⌋ + ½ is a double


class Undecided(ArithmeticError):
    """More bits are needed."""


@final
class Approx:
    """Doubles with a bound on the distance of each from its true number, any shape.

    The bounds hold for IEEE arithmetic to nearest, and for sums in any order.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: NDArray[np.float64], error: NDArray[np.float64] | float = 0.0):
        self.value, self.error = value, error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __getitem__(self, place: Any) -> Approx:
        error = self.error
        return Approx(
            self.value[place], error if isinstance(error, float) or not error.ndim else error[place]
        )

    def _rounded(self, value: Any, error: Any) -> Approx:
        return Approx(value, error * _MORE + np.abs(value) * _ROUNDING)

    def __add__(self, other: Approx) -> Approx:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Approx) -> Approx:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Approx) -> Approx:
        error = np.abs(other.value) * self.error + (np.abs(self.value) + self.error) * other.error
        return self._rounded(self.value * other.value, error + _UNDERFLOW)

    def __truediv__(self, other: Approx) -> Approx:
        quotient = self.value / other.value
        room = np.abs(other.value) - other.error * _MORE
        error = (self.error + np.abs(quotient) * other.error + _UNDERFLOW) / room
        return self._rounded(quotient, np.where(room > 0, error, math.inf))

    def sqrt(self) -> Approx:
        """Of numbers >= 0."""
        root = np.sqrt(np.maximum(self.value, 0.0))
        return self._rounded(root, np.where(root > 0, self.error / root, math.inf))

    def sum(self, axis: int) -> Approx:
        total = self.value.sum(axis=axis)
        sizes = np.abs(self.value).sum(axis=axis)
        count = self.value.shape[axis]
        errors = np.broadcast_to(self.error, self.value.shape).sum(axis=axis)
        more = 1 + (count + 4) * _ROUNDING
        return Approx(total, (errors * more + sizes * (count * _ROUNDING * more)) * _MORE)

    def __abs__(self) -> Approx:
        return Approx(np.abs(self.value), self.error)

    def where(self, first: NDArray[np.bool_], other: Approx) -> Approx:
        """These numbers where ``first`` holds, and ``other`` ones elsewhere."""
        return Approx(
            np.where(first, self.value, other.value), np.where(first, self.error, other.error)
        )

    @property
    def unsure(self) -> NDArray[np.bool_]:
        """Where the sign is not certain."""
        return ~(np.abs(self.value) > self.error)  # also where a bound is NaN


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A number between low·2^−bits and high·2^−bits."""

    low: int
    high: int
    bits: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high, self.bits)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low, self.bits)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(ends) >> self.bits, -(-max(ends) >> self.bits), self.bits)

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0 <= other.high:
            raise Undecided
        pairs = [
            (a << self.bits, b) for a in (self.low, self.high) for b in (other.low, other.high)
        ]
        return Interval(min(a // b for a, b in pairs), max(-(-a // b) for a, b in pairs), self.bits)

    def sqrt(self) -> Interval:
        """Of a number >= 0."""
        low, high = max(self.low, 0) << self.bits, max(self.high, 0) << self.bits
        return Interval(math.isqrt(low), math.isqrt(high) + 1, self.bits)

    def __abs__(self) -> Interval:
        if self.low >= 0:
            return self
        return Interval(max(-self.high, 0), max(-self.low, self.high), self.bits)

    def positive(self) -> bool:
        """The sign, if it is certain."""
        if self.low <= 0 <= self.high:
            raise Undecided
        return self.low > 0

    def floor(self) -> int:
        """⌊x⌋, if it is certain."""
        if self.low >> self.bits != self.high >> self.bits:
            raise Undecided
        return self.low >> self.bits


Numbers: TypeAlias = Approx | NDArray[np.object_]
"""Doubles with their errors, or intervals in an array."""


def root(x: Any) -> Any:
    """√x, elementwise."""
    return x.sqrt() if isinstance(x, Approx) else np.sqrt(x)


def numbers(values: NDArray[np.float64], bits: int | None) -> Any:
    """Doubles as they are: with error 0, or to ``bits`` in intervals."""
    if bits is None:
        return Approx(values)
    return intervals([Fraction(x) for x in values.ravel().tolist()], bits).reshape(values.shape)


def number(x: Fraction | int, bits: int | None) -> Any:
    """One number, in an array of shape (1,)."""
    if bits is None:
        near = np.array([float(x)])
        return Approx(near, np.abs(near) * _ROUNDING)
    return intervals([Fraction(x)], bits)


def intervals(values: list[Fraction], bits: int) -> NDArray[np.object_]:
    """Exact numbers, or the two multiples of 2^−bits around them."""
    found = np.empty(len(values), object)
    for i, x in enumerate(values):
        low = (x.numerator << bits) // x.denominator
        found[i] = Interval(low, low + (low * x.denominator != x.numerator << bits), bits)
    return found


def approximate(floors: Floors) -> Approx:
    """Variates in doubles: the middles of their steps; with no bound if they are very large."""
    values = np.asarray((floors + 0.5) * STEP, np.float64)
    size = np.abs(values)
    if size.size and size.max() >= _LARGE:
        return Approx(values, np.where(size < _LARGE, _HALF_STEP, math.inf))
    return Approx(values, _HALF_STEP)


def enclosed(variates: Variates, places: range, bits: int) -> NDArray[np.object_]:
    """Variates to half of ``bits``, which leaves the other half to arithmetic; (1, len(places))."""
    found, known = np.empty((1, len(places)), object), bits // 2
    for column, place in enumerate(places):
        low = variates.refined(place, known)
        ends = low << bits - known, low + 1 << bits - known
        found[0, column] = Interval(*ends, bits)
    return found


@final
@dataclass(slots=True)
class Candidates:
    """Rows of variates of which a rule keeps some.

    Args:
        exponentials: ``wide[0]`` for each row; None for none.
        normals: ``wide[1]`` for each row; None for none.
        wide: variates of each kind in a row.
    """

    exponentials: Variates | None
    normals: Variates | None
    wide: tuple[int, int]
    _near: tuple[Approx, Approx] | None = field(default=None, init=False, repr=False)

    @classmethod
    def drawn(cls, pool: Pool, rows: int, wide: tuple[int, int]) -> Candidates:
        first, second = wide
        return cls(
            pool.variates("exponential", rows * first) if first else None,
            pool.variates("normal", rows * second) if second else None,
            wide,
        )

    def __len__(self) -> int:
        if self.exponentials is not None:
            return len(self.exponentials) // self.wide[0]
        return 0 if self.normals is None else len(self.normals) // self.wide[1]

    def joined(self, later: Candidates) -> Candidates:
        """These rows and then ``later`` ones."""
        pairs = ((self.exponentials, later.exponentials), (self.normals, later.normals))
        both = [a.joined(b) if a is not None and b is not None else None for a, b in pairs]
        return Candidates(both[0], both[1], self.wide)

    def approximate(self) -> tuple[Approx, Approx]:
        """Exponentials and normals in doubles, a row for each candidate."""
        if self._near is None:
            first, second = self.wide
            self._near = _rows(self.exponentials, first), _rows(self.normals, second)
        return self._near

    def normals_at(self, places: Places) -> Approx:
        """Normals of some candidates in doubles."""
        return self.approximate()[1][places]

    def in_child(self) -> None:
        """Overwrites them in a forked child."""
        for drawn in (self.exponentials, self.normals):
            if drawn is not None:
                drawn.words[:] = 0
                drawn.floors[:] = 0
                drawn.extended.clear()
        for near in self._near or ():
            near.value[:] = 0

    def enclosed(self, row: int, bits: int) -> tuple[Any, Any]:
        """Exponentials and normals of one row in intervals, of shape (1, wide)."""
        found = [
            np.empty((1, 0), object)
            if variates is None
            else enclosed(variates, range(row * wide, (row + 1) * wide), bits)
            for variates, wide in zip((self.exponentials, self.normals), self.wide, strict=True)
        ]
        return found[0], found[1]


def _rows(variates: Variates | None, wide: int) -> Approx:
    return _NONE if variates is None else approximate(variates.floors.reshape(-1, wide))


_NONE = approximate(np.empty((0, 0), np.int64))


def certainly(margin: Any, exactly: Any) -> NDArray[np.bool_]:
    """Where a margin in doubles is positive; ``exactly(row)`` says it where they do not decide."""
    found = margin.value > 0
    for row in np.flatnonzero(margin.unsure).tolist():
        found[row] = exactly(row)
    return np.asarray(found)


class _Constants(NamedTuple):
    """Of a law, in doubles or intervals, in arrays of one."""

    two: Any
    t: Any
    one_and_t: Any
    twice_t_squared: Any
    rate: Any  # λ: near the best one, (t + √(t² + 4))/2
    across: Any  # √(1 − t²) on the sphere


@final
@dataclass(frozen=True)
class CapLaw:
    """The law of `CapNoise`.

    Args:
        dim: d.
        threshold: t, a double.
        numerator: p·2^52.
        sphere: whether z is on the unit sphere; else normal.
    """

    dim: int
    threshold: float
    numerator: int
    sphere: bool

    def kept(
        self, pool: Pool, n: int, wide: tuple[int, int], margin: Margin
    ) -> tuple[Candidates, Places]:
        """Candidates, and the places of the first ``n`` for which the margin is positive.

        Candidates between two that are kept are used by nobody else: the first of them is one of
        the null law.
        """
        spare = _SPARE if sum(wide) <= _SHORT and self.threshold else 0
        found = Candidates.drawn(pool, n + spare, wide)
        places = self._where_kept(found, margin)
        while len(places) < n:
            later = Candidates.drawn(pool, 2 * (n - len(places)) + spare, wide)
            more = self._where_kept(later, margin) + len(found)
            found, places = found.joined(later), np.concatenate([places, more])
        return found, places[:n]

    def _where_kept(self, found: Candidates, margin: Any) -> Places:
        if not self.threshold:  # every one: its sign is set later
            return np.arange(len(found))

        def exactly(row: int) -> bool:
            def positive(bits: int) -> bool:
                value: Interval = margin(*found.enclosed(row, bits), bits)[0]
                return value.positive()

            return settled(positive)

        return np.flatnonzero(certainly(margin(*found.approximate(), None), exactly))

    def outside(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Positive where a normal vector has height below t."""
        t, x = self._constants(bits).t, normals[:, 0]
        if not self.sphere:
            return t - x
        if bits is not None:
            return t * root((normals * normals).sum(axis=1)) - x
        # the same, faster: length and x are off by √dδ and δ
        w, off = normals.value, (1 + math.sqrt(self.dim)) * largest_error(normals)
        length = np.sqrt(np.einsum("ij,ij->i", w, w))
        return Approx(self.threshold * length - w[:, 0], off * 1.01 + length * rounding(self.dim))

    @cached_property
    def _wide_cap(self) -> bool:
        return self.dim > 2 and self.threshold**2 * self.dim < _WIDE

    @cached_property
    def height_wide(self) -> tuple[int, int]:
        """Exponentials and normals for a height."""
        if not self.sphere:
            return 2, 0
        if self.dim == 2:
            return 4, 0
        squares = self.dim - 1 if self._wide_cap else self.dim - 2
        pairs, odd = divmod(squares, 2)
        return (pairs, odd + 1) if self._wide_cap else (pairs + 2, odd)

    def in_cap(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Positive where a candidate for a height in the cap is kept."""
        known = self._constants(bits)
        t, two = known.t, known.two
        if not self.sphere:
            above = self.height(exponentials, normals, bits)[0] - known.rate
            return two * exponentials[:, 1] - above * above
        if self.dim == 2:
            rho, s = exponentials[:, 0], exponentials[:, 1]
            least = known.one_and_t * (rho + s) * (rho + s)
            length = rho * rho + two * t * rho * s + s * s
            e, f = exponentials[:, 2], exponentials[:, 3]
            return least * (e + f) - two * e * length
        if bits is None:
            return self._in_cap_in_doubles(exponentials, normals)
        if self._wide_cap:
            x, r = self.height(exponentials, normals, bits)
            return x - t * root(x * x + r * r)
        square = self._length_squared(exponentials[:, 2:], normals, bits)
        e, f = exponentials[:, 0], exponentials[:, 1]
        return self._constants(bits).twice_t_squared * f * square - e * e

    def height(self, exponentials: Any, normals: Any, bits: int | None) -> tuple[Any, Any]:
        """x and r of a height x/√(x² + r²) in the cap; for normals the height, twice."""
        known = self._constants(bits)
        t = known.t
        if not self.sphere:
            height = t + exponentials[:, 0] / known.rate
            return height, height
        if self.dim > 2 and bits is None:
            return self._height_in_doubles(exponentials, normals)
        if self.dim > 2 and self._wide_cap:
            square = self._length_squared(exponentials, normals[:, 1:], bits)
            return abs(normals[:, 0]), root(square)
        if self.dim == 2:
            rho, s = exponentials[:, 0], exponentials[:, 1]
            along = t * rho
        else:
            rho = root(self._length_squared(exponentials[:, 2:], normals, bits))
            along = t * rho
            s = exponentials[:, 0] / along
        return along + s, rho * known.across

    # The same for d > 2 in fewer steps on doubles.  With δ the error of variates and ρ² off by ω, ρ
    # is off by ω/ρ; small multiples of 2^−52 stand for roundings, and 1.01 for terms of two errors.

    def _in_cap_in_doubles(self, exponentials: Approx, normals: Approx) -> Approx:
        t, delta = self.threshold, largest_error(exponentials, normals)
        if self._wide_cap:
            x, r = self._height_in_doubles(exponentials, normals)
            whole = np.sqrt(x.value * x.value + r.value * r.value)
            off = delta + t * (delta + r.error) + (x.value + whole) * _FEW_ROUNDINGS
            return Approx(x.value - t * whole, off * 1.01)
        square, error = self._square_in_doubles(exponentials.value[:, 2:], normals.value, delta)
        e, f = exponentials.value[:, 0], exponentials.value[:, 1]
        kept, tried = 2 * t * t * f * square, e * e
        off = 2 * t * t * (square * delta + (f + delta) * error) + (2 * e + delta) * delta
        return Approx(kept - tried, (off + (kept + tried) * _FEW_ROUNDINGS) * 1.01)

    def _height_in_doubles(self, exponentials: Approx, normals: Approx) -> tuple[Approx, Approx]:
        t, delta = self.threshold, largest_error(exponentials, normals)
        first = 0 if self._wide_cap else 2
        others = normals.value[:, 1:] if self._wide_cap else normals.value
        square, error = self._square_in_doubles(exponentials.value[:, first:], others, delta)
        rho = np.sqrt(square)
        off = np.where(square > error, error / rho * 1.01 + rho * _FEW_ROUNDINGS, math.inf)
        if self._wide_cap:
            return Approx(np.abs(normals.value[:, 0]), delta), Approx(rho, off)
        along, across = t * rho, rho * math.sqrt((1 - t) * (1 + t))
        s = exponentials.value[:, 0] / along
        room = along - t * off * 1.01
        beside = np.where(room > 0, (delta + s * t * off) / room, math.inf)
        more = (along + s) * _FEW_ROUNDINGS
        x = Approx(along + s, (t * off + beside + more) * 1.01)
        return x, Approx(across, (off + across * _FEW_ROUNDINGS) * 1.01)

    def _square_in_doubles(
        self, exponentials: NDArray[np.float64], normals: NDArray[np.float64], delta: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A squared length, as `_length_squared`, and how far it may be off."""
        count = exponentials.shape[1]
        square = 2 * np.einsum("ij->i", exponentials)
        error = 2 * count * delta + np.zeros(len(square))
        if normals.shape[1]:
            odd = normals[:, 0]
            square += odd * odd
            error += (2 * np.abs(odd) + delta) * delta
        return square, error + square * rounding(count)

    def _constants(self, bits: int | None) -> _Constants:
        return self._in_doubles if bits is None else self._known_to(bits)

    @cached_property
    def _in_doubles(self) -> _Constants:
        return self._known_to(None)

    def _known_to(self, bits: int | None) -> _Constants:
        t = Fraction(self.threshold)
        rate = Fraction((self.threshold + math.sqrt(self.threshold**2 + 4)) / 2)
        across = root(number(1 - t * t, bits)) if self.sphere else None
        two, one_and_t, square = number(2, bits), number(1 + t, bits), number(2 * t * t, bits)
        return _Constants(two, number(t, bits), one_and_t, square, number(rate, bits), across)

    def _length_squared(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Of as many normals as twice the exponentials, and one more if there is one."""
        odd = normals.shape[1] > 0
        if not exponentials.shape[1]:
            return normals[:, 0] * normals[:, 0]
        even = self._constants(bits).two * exponentials.sum(axis=1)
        return even + normals[:, 0] * normals[:, 0] if odd else even

    def length(self, normals: Any) -> Any:
        """Of all but the first."""
        others = normals[:, 1:]
        return root((others * others).sum(axis=1)) if self.dim > 1 else abs(normals[:, 0])

    def about_axis(self, x: Any, r: Any, length: Any, normals: Any) -> tuple[Any, Any]:
        """A point about the first axis: its first number, (n,), and the others, (n, d − 1).

        Args:
            x: with r the height x/√(x² + r²), (n,); for normals the height itself.
            r: (n,).
            length: of all normals but the first, (n,).
            normals: of whose others the point has the direction, (n, d).
        """
        others = normals[:, 1:]
        if not self.sphere:
            return x, others
        if self.dim == 1:
            return x / abs(x), others
        whole = root(x * x + r * r)
        return x / whole, others * (r / (length * whole))[:, None]

    def turned(self, about: tuple[Any, Any], units: Any, sign: Any, bits: int) -> Any:
        """z in steps of the grid, plus ½, in intervals, (1, d).

        A point about the first axis is turned to u by a rotation that takes the axis there: by
        half a turn about u ± e₁, with the same sign.

        Args:
            about: of `about_axis`.
            units: u times any positive number, (1, d).
            sign: of its first number, (1,).
            bits: of the intervals.
        """
        points = np.concatenate([about[0][:, None], about[1]], axis=1)
        units = units / root((units * units).sum(axis=1))[:, None]
        inner = (units * points).sum(axis=1) + sign * points[:, 0]
        along = inner / (number(1, bits) + abs(units[:, 0]))
        found = sign[:, None] * (units * along[:, None] - points)
        found[:, 0] += along
        return found * number(self.scale, bits) + number(Fraction(1, 2), bits)

    @property
    def scale(self) -> Fraction:
        """Steps in 1."""
        return Fraction(REPORT_LEVELS, 1 if self.sphere else NORMAL_LIMIT)


def settled(decide: Callable[[int], T]) -> T:
    """What intervals decide, on as many bits as it takes."""
    known = _FIRST_BITS
    while True:
        try:
            return decide(2 * known)
        except Undecided:
            known += _MORE_BITS


def rounding(d: int) -> float:
    """A bound on the rounding of a sum of d products and some 30 further operations, relative."""
    return (d + 32) * 2.0**-52


def largest_error(*blocks: Approx) -> NDArray[np.float64] | float:
    """Of each row, in all of these blocks of variates."""
    found: NDArray[np.float64] | float = 0.0
    for block in blocks:
        if block.value.size:
            error = block.error
            found = np.maximum(found, error if isinstance(error, float) else error.max(axis=1))
    return found
