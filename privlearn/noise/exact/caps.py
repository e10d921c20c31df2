"""Points of a cap around a direction, or outside of it, exactly, and in steps of a public grid.

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

What is released is ⌊2^23·z/limit + ½⌋, which doubles decide but for one report in thousands: then
the same formulas run in integers on more bits of the same variates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.enclosures import (
    Approx,
    Interval,
    Undecided,
    approximate,
    enclosed,
    number,
    numbers,
    root,
)
from privlearn.noise.exact.fast import WordArray
from privlearn.noise.exact.pool import Pool, Variates, bernoulli, uniform

T = TypeVar("T")
Margin = Callable[[Any, Any, int | None], Any]
"""Of exponentials and normals, in doubles (bits None) or in intervals alike."""
Places = NDArray[np.int64]
REPORT_LEVELS: Final = 2**23
"""Released numbers are multiples of limit/2^23."""
NORMAL_LIMIT: Final = 12
"""Numbers of normal reports are cut there."""
_SPARE = 3
"""Candidates that are drawn at once beyond those that are needed, while they are short."""
_SHORT = 128
_FIRST_BITS, _MORE_BITS = 48, 16
"""Of variates, when doubles on 40 of them do not decide; and more until the integers do."""
_FEW_ROUNDINGS = 2.0**-48
"""Relative, of up to 30 operations."""
_WIDE = 0.36
"""Caps with t²·d below it are a large share of the sphere: rejection takes below 2 tries."""


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
        pairs = (
            (self.exponentials, later.exponentials),
            (self.normals, later.normals),
        )
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

    def inherited(self) -> None:
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
    rate: Any
    """λ: near the best one, (t + √(t² + 4))/2."""
    across: Any
    """√(1 − t²) on the sphere."""


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

    def rows(self, pool: Pool, n: int) -> CapRows:
        """What ``n`` reports are made of; none of it depends on a record.

        A point outside of the cap and a height in it are drawn for every report, so that the time
        of this does not tell which one it takes.
        """
        with np.errstate(all="ignore"):
            words = pool.words(3 * n)
            inside, turns = bernoulli(words[:n], self.numerator), uniform(words[n : 2 * n])
            public = words[2 * n :]
            whole, last = self._kept(pool, n, (0, self.dim), self._outside)
            first = np.concatenate([[0], last[:-1] + 1])
            if not self.threshold:
                return CapRows(self, inside, turns, public, whole, first, last, None, last, ())
            cap, heights = self._kept(pool, n, self._height_wide, self._in_cap)
            known = self.height(*cap.approximate(), None)
            at = known[0][heights], known[1][heights]
            return CapRows(self, inside, turns, public, whole, first, last, cap, heights, at)

    def _kept(
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

    def _outside(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Positive where a normal vector has height below t."""
        t, x = self._constants(bits).t, normals[:, 0]
        if not self.sphere:
            return t - x
        if bits is not None:
            return t * root((normals * normals).sum(axis=1)) - x
        # the same, faster: length and x are off by √dδ and δ
        w, off = normals.value, (1 + math.sqrt(self.dim)) * _largest_error(normals)
        length = np.sqrt(np.einsum("ij,ij->i", w, w))
        return Approx(self.threshold * length - w[:, 0], off * 1.01 + length * _rounding(self.dim))

    @cached_property
    def _wide_cap(self) -> bool:
        return self.dim > 2 and self.threshold**2 * self.dim < _WIDE

    @cached_property
    def _height_wide(self) -> tuple[int, int]:
        """Exponentials and normals for a height."""
        if not self.sphere:
            return 2, 0
        if self.dim == 2:
            return 4, 0
        squares = self.dim - 1 if self._wide_cap else self.dim - 2
        pairs, odd = divmod(squares, 2)
        return (pairs, odd + 1) if self._wide_cap else (pairs + 2, odd)

    def _in_cap(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
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
        t, delta = self.threshold, _largest_error(exponentials, normals)
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
        t, delta = self.threshold, _largest_error(exponentials, normals)
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
        return square, error + square * _rounding(count)

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


def _rounding(d: int) -> float:
    """A bound on the rounding of a sum of d products and some 30 further operations, relative."""
    return (d + 32) * 2.0**-52


def _largest_error(*blocks: Approx) -> NDArray[np.float64] | float:
    """Of each row, in all of these blocks of variates."""
    found: NDArray[np.float64] | float = 0.0
    for block in blocks:
        if block.value.size:
            error = block.error
            found = np.maximum(found, error if isinstance(error, float) else error.max(axis=1))
    return found


@final
@dataclass(frozen=True, slots=True)
class CapRows:
    """What reports are made of, a row for each; made by `CapLaw.rows`.

    Args:
        law: of the reports.
        inside: which ones fall into their cap.
        turns: uniform doubles, for the direction of a record that is no unit vector.
        public: uniform words, for what everybody may see of a report's making.
        whole: normals.
        first: places of those of a null report.
        last: places of those outside of the cap.
        cap: candidates for heights in it; None if they are those outside with the other sign.
        heights: their places.
        known: these heights in doubles; empty with ``points``, or without ``cap``.
        points: of both laws, real and null, shape (2, n, 2d + 2): see `about_axis`.
    """

    law: CapLaw
    inside: NDArray[np.bool_]
    turns: NDArray[np.float64]
    public: WordArray
    whole: Candidates
    first: Places
    last: Places
    cap: Candidates | None
    heights: Places
    known: tuple[Approx, ...]
    points: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, rows: slice) -> CapRows:
        return CapRows(
            self.law,
            self.inside[rows],
            self.turns[rows],
            self.public[rows],
            self.whole,
            self.first[rows],
            self.last[rows],
            self.cap,
            self.heights[rows],
            tuple(part[rows] for part in self.known),
            None if self.points is None else self.points[:, rows],
        )

    def about_axis(self) -> CapRows:
        """The same, with what does not depend on records computed at once, for null ones, too.

        That takes longer than it saves where all rows are used together, and a fifth of it where
        each is used by itself.
        """
        with np.errstate(all="ignore"):
            both = [self._points(np.full(len(self), null)) for null in (False, True)]
        return replace(self, known=(), points=np.stack(both))

    def inherited(self) -> None:
        """Overwrites them in a forked child."""
        for candidates in (self.whole, self.cap):
            if candidates is not None:
                candidates.inherited()
        for part in (self.inside, self.turns, self.public, self.first, self.last, self.heights):
            part[:] = 0
        for known in self.known:
            known.value[:] = 0
        if self.points is not None:
            self.points[:] = 0

    def steps(self, units: NDArray[np.float64], null: NDArray[np.bool_]) -> Places:
        """Reports in steps of limit/2^23, shape (n, d).

        Args:
            units: directions, (n, d), of length 1 nearly; what is reported about is u/‖u‖ exactly.
            null: which are to have the null law, whatever their direction.
        """
        with np.errstate(all="ignore"):
            values, errors = self._in_doubles(units, null)
            floors = np.floor(values)
            values -= floors
            unsure = ~(np.minimum(values, 1 - values) > errors)  # also where one is NaN
            np.minimum(floors, REPORT_LEVELS, out=floors)
            np.maximum(floors, -REPORT_LEVELS, out=floors)
            if not np.count_nonzero(unsure):
                return floors.astype(np.int64)
            floors[unsure] = 0.0
            found = floors.astype(np.int64)
            for row in np.flatnonzero(unsure.any(axis=1)).tolist():
                columns = np.flatnonzero(unsure[row]).tolist()
                exactly = partial(self._exactly, row, columns, units[row], bool(null[row]))
                found[row, columns] = settled(exactly)
            return found

    def _in_doubles(
        self, units: NDArray[np.float64], null: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What `CapLaw.turned` gives, and bounds on the errors, both of shape (n, d).

        With Δp of `_points`, A = (⟨u, p⟩ ± p_0)/(1 + |u_0|) is off by ‖Δp‖ + |Δp_0|, by 3ν where
        ‖u‖² is off by 2ν, and by 2η in all; and z_i by |u_i| times that, 2ν|u_i| and |Δp_i|.  For
        normals ν and η count relative to ‖p‖.
        """
        d = self.law.dim
        if self.points is None:
            about = self._points(null)
        else:
            about = np.where(null[:, None], self.points[1], self.points[0])
        points, own, lever, size = about[:, :d], about[:, d:-2], about[:, -2], about[:, -1]
        errors, sign = np.abs(units), np.copysign(1.0, units[:, 0])
        along = np.einsum("ij,ij->i", units, points)
        along += sign * points[:, 0]
        along /= 1 + errors[:, 0]
        turned = units * along[:, None]
        turned -= points
        turned *= sign[:, None]
        turned[:, 0] += along
        turned += 0.5
        nu = np.abs(np.einsum("ij,ij->i", units, units) - 1)
        nu *= size
        nu += lever
        errors *= nu[:, None]
        errors += own
        errors[:, 0] += nu
        return turned, errors

    def _points(self, null: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Points p about the first axis and bounds of their errors, in steps, (n, 2d + 2).

        A row has p, bounds of |Δp_i|, one of ‖Δp‖ + |Δp_0| with roundings, and 3‖p‖.

        Let δ be the error of a normal w_i, and η a bound on the rounding of a sum of d products and
        of some further operations, relative.  Outside of a cap p = w/‖w‖: with N = ‖w‖ and
        κ = δ/(N − √dδ) it is off by |Δp_i| <= κ + √dκ|p_i|.  In a cap let ω be the error of the
        height c = x/√(x² + r²) and of √(1 − c²), and N the length of the normals but the first: p_i
        is off by κ + (ω + √dκ)|w_i|/N, and p_0 by ω.  If there is one of these normals, what counts
        is its sign, and κ = 0.  So always |Δp_i| <= κ + (ω + √dκ + η)|w_i|/N, |Δp_0| <= ω +
        (1 + √d)κ and ‖Δp‖ <= 2ω + 2√dκ, but for roundings.  For normals p_i is off by δ, and p_0 by
        ω or δ.
        """
        law, d = self.law, self.law.dim
        inside = self.inside & ~null
        normals = self.whole.normals_at(np.where(null, self.first, self.last))
        delta, eta = _largest_error(normals), _rounding(d)
        w = normals.value
        x = w[:, 0]
        length = np.sqrt(np.einsum("ij,ij->i", w[:, 1:], w[:, 1:]))
        if self.known:
            height, across = self.known
            x = np.where(inside, height.value, x)
            r = np.where(inside, across.value, length)
            off = np.where(inside, height.error + across.error, 0.0)
        else:
            x = np.where(null, x, np.where(inside, np.abs(x), -np.abs(x)))
            r, off = length, np.zeros(len(x))
        if law.sphere:
            whole = np.sqrt(x * x + r * r)
            off = 2 * off / (whole - off)
            off[~(off >= 0)] = math.inf
            if d > 1:
                apart = inside & (self.cap is not None)
                room = np.where(apart, length, whole)
                kappa = delta / (room * (1 - eta) - math.sqrt(d) * delta)
                if d == 2:
                    kappa[apart & (length > delta)] = 0.0
                kappa[~(kappa >= 0)] = math.inf
                share = r / (length * whole)
                slope = (off + math.sqrt(d) * kappa + eta) / room
            else:
                kappa, share, slope = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
            first, size = x / whole, np.ones(len(x))
            axis = off + (1 + math.sqrt(d)) * kappa
        else:
            first, share = x, np.ones(len(x))
            size = length + np.abs(x)
            kappa, slope = np.zeros(len(x)) + delta, np.full(len(x), eta)
            axis = off + delta
        found = np.empty((len(x), 2 * d + 2))
        np.multiply(w, share[:, None], out=found[:, :d])
        found[:, 0] = first
        own = found[:, d:-2]
        np.abs(w, out=own)
        own *= slope[:, None]
        own += kappa[:, None]
        own[:, 0] = axis + eta * size
        found[:, -2] = 2 * off + 2 * math.sqrt(d) * kappa + axis + 4 * eta * size
        found[:, -1] = 3 * size
        scale = float(law.scale)
        found[:, :d] *= scale
        found[:, d:] *= scale * 1.01
        return found

    def _exactly(
        self, row: int, columns: list[int], unit: NDArray[np.float64], null: bool, bits: int
    ) -> list[int]:
        """Some numbers of one report."""
        law, inside = self.law, bool(self.inside[row]) and not null
        place = int((self.first if null else self.last)[row])
        normals = self.whole.enclosed(place, bits)[1]
        x, length = normals[:, 0], law.length(normals)
        r = length
        if self.cap is None and not null:
            x = abs(x) if inside else number(0, bits) - abs(x)
        elif self.cap is not None and inside:
            x, r = law.height(*self.cap.enclosed(int(self.heights[row]), bits), bits)
        about = law.about_axis(x, r, length, normals)
        sign = numbers(np.copysign(1.0, unit[:1]), bits)
        steps = law.turned(about, numbers(unit[None], bits), sign, bits)[0, columns]
        return [min(max(step.floor(), -REPORT_LEVELS), REPORT_LEVELS) for step in steps]
