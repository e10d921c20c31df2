"""Points of a cap around a direction, or outside of it, exactly, and in steps of a public grid.

Let z be uniform on the unit sphere, or N(0, I), and h = ⟨z, u⟩ its height along a unit vector u.
A report is z given h >= t with probability p and z given h < t otherwise.  All of it comes from
exact variates by rejection, with no function but + − × ÷ √:

- outside of the cap, and for a null report, from normals w: z = w/‖w‖, again until its height is
  below t;
- in the cap h = x/√(x² + r²) with x normal and r the length of d − 1 normals.  For caps of a large
  share of the sphere |x| is drawn again until h >= t.  For others (d >= 3), as x >= τr with
  τ = t/√(1 − t²), write r = ρ√(1 − t²) and x = tρ + s.  The density r^(d−2)·e^(−(x² + r²)/2) is then
  ∝ ρ^(d−2)·e^(−ρ²/2)·e^(−tρs)·e^(−s²/2): so ρ is the length of d − 2 normals (the lost power of ρ
  is in ds), s = E/(tρ) with E exponential, kept with probability e^(−s²/2).  For d = 2 only the
  direction tρ + s, ρ√(1 − t²) counts: its angle is uniform in the cap if ρ and s are exponential and
  it is kept with probability ∝ (ρ + s)²/(ρ² + 2tρs + s²);
- for normals h = t + E/λ, kept with probability e^(−(h − λ)²/2), for any λ >= t;
- squared lengths of normals in pairs are twice an exponential; the rest of z across u is a
  direction of normals of its own.

What is released is ⌊2^23·z/limit + ½⌋, which doubles decide but for one report in thousands: then
the same formulas run in integers on more bits of the same variates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.exact_noise.enclosures import (
    Approx,
    Undecided,
    approximate,
    enclosed,
    number,
    numbers,
    root,
)
from privlearn.exact_noise.pool import Pool, bernoulli, uniform
from privlearn.exact_noise.variates import Variates
from privlearn.exact_noise.words import WordArray

T = TypeVar("T")
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
_WIDE = 0.36
"""Caps with t²·d below it are a large share of the sphere: rejection from it takes below 2 tries."""


@final
@dataclass(frozen=True, slots=True)
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
        return _rows(self.exponentials, self.wide[0]), _rows(self.normals, self.wide[1])

    def normals_at(self, places: Places) -> Approx:
        """Normals of some candidates in doubles."""
        assert self.normals is not None
        return approximate(self.normals.floors.reshape(-1, self.wide[1])[places])

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
    floors = np.empty((0, 0), np.int64) if variates is None else variates.floors.reshape(-1, wide)
    return approximate(floors)


def certainly(margin: Any, exactly: Any) -> NDArray[np.bool_]:
    """Where a margin in doubles is positive; ``exactly(row)`` says it where they do not decide."""
    found = margin.value > 0
    for row in np.flatnonzero(margin.unsure).tolist():
        found[row] = exactly(row)
    return np.asarray(found)


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
    _t: Fraction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_t", Fraction(self.threshold))

    def rows(self, pool: Pool, n: int) -> CapRows:
        """What ``n`` reports are made of; none of it depends on a record.

        A point outside of the cap and a height in it are drawn for every report, so that no time
        tells which one it takes.
        """
        with np.errstate(all="ignore"):
            inside = bernoulli(pool, self.numerator, n)
            turns, public = uniform(pool, n), pool.words(n)
            whole, last = self._kept(pool, n, (0, self.dim), self._outside)
            first = np.concatenate([[0], last[:-1] + 1])
            if not self.threshold:
                return CapRows(self, inside, turns, public, whole, first, last, None, last, ())
            cap, heights = self._kept(pool, n, self._height_wide, self._in_cap)
            known = self.height(*cap.approximate(), None)
            at = known[0][heights], known[1][heights]
            return CapRows(self, inside, turns, public, whole, first, last, cap, heights, at)

    def _kept(self, pool: Pool, n: int, wide: tuple[int, int], margin: Any) -> Any:
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
            return settled(lambda b: margin(*found.enclosed(row, b), b)[0].positive())

        return np.flatnonzero(certainly(margin(*found.approximate(), None), exactly))

    # The formulas: on doubles (bits None) and on intervals alike ------------------------------

    def _outside(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Positive where a normal vector has height below t."""
        t, x = number(self._t, bits), normals[:, 0]
        if not self.sphere:
            return t - x
        return t * root((normals * normals).sum(axis=1)) - x

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
        t, two = number(self._t, bits), number(2, bits)
        if not self.sphere:
            above = self.height(exponentials, normals, bits)[0] - number(self._rate, bits)
            return two * exponentials[:, 1] - above * above
        if self.dim == 2:
            rho, s = exponentials[:, 0], exponentials[:, 1]
            least = (number(1, bits) + t) * (rho + s) * (rho + s)
            length = rho * rho + two * t * rho * s + s * s
            e, f = exponentials[:, 2], exponentials[:, 3]
            return least * (e + f) - two * e * length
        if self._wide_cap:
            x, r = self.height(exponentials, normals, bits)
            return x - t * root(x * x + r * r)
        square = self._length_squared(exponentials[:, 2:], normals, bits)
        e, f = exponentials[:, 0], exponentials[:, 1]
        return two * f * t * t * square - e * e

    def height(self, exponentials: Any, normals: Any, bits: int | None) -> tuple[Any, Any]:
        """x and r of a height x/√(x² + r²) in the cap; for normals the height, twice."""
        t = number(self._t, bits)
        if not self.sphere:
            height = t + exponentials[:, 0] / number(self._rate, bits)
            return height, height
        if self.dim > 2 and self._wide_cap:
            square = self._length_squared(exponentials, normals[:, 1:], bits)
            return abs(normals[:, 0]), root(square)
        across = root(number(1 - self._t**2, bits))
        if self.dim == 2:
            rho, s = exponentials[:, 0], exponentials[:, 1]
        else:
            rho = root(self._length_squared(exponentials[:, 2:], normals, bits))
            s = exponentials[:, 0] / (t * rho)
        return t * rho + s, rho * across

    @cached_property
    def _rate(self) -> Fraction:
        """λ: near the best one, and at least t."""
        t = self.threshold
        return Fraction((t + math.sqrt(t * t + 4)) / 2)

    def _length_squared(self, exponentials: Any, normals: Any, bits: int | None) -> Any:
        """Of as many normals as twice the exponentials, and one more if there is one."""
        odd = normals.shape[1] > 0
        if not exponentials.shape[1]:
            return normals[:, 0] * normals[:, 0]
        even = number(2, bits) * exponentials.sum(axis=1)
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

    def turned(self, about: tuple[Any, Any], units: Any, sign: Any, bits: int | None) -> Any:
        """z in steps of the grid, plus ½: its first number, (n,), and the others, (n, d − 1).

        A point about the first axis is turned to u by a rotation that takes the axis there: by
        half a turn about u ± e₁, with the same sign.

        Args:
            about: of `about_axis`.
            units: u times any positive number, (n, d).
            sign: of its first numbers, (n,).
            bits: None for doubles.
        """
        first, others = about
        units = units / root((units * units).sum(axis=1))[:, None]
        one, ahead = number(1, bits), units[:, 0]
        inner = ahead * first + sign * first
        if self.dim > 1:
            inner = inner + (units[:, 1:] * others).sum(axis=1)
        along = inner / (one + abs(ahead))
        scale = number(Fraction(REPORT_LEVELS, 1 if self.sphere else NORMAL_LIMIT), bits)
        half = number(Fraction(1, 2), bits)
        top = (sign * (ahead * along - first) + along) * scale + half
        if self.dim == 1:
            return top, None
        rest = sign[:, None] * (units[:, 1:] * along[:, None] - others)
        return top, rest * scale[:, None] + half[:, None]


def settled(decide: Callable[[int], T]) -> T:
    """What intervals decide, on as many bits as it takes."""
    known = _FIRST_BITS
    while True:
        try:
            return decide(2 * known)
        except Undecided:
            known += _MORE_BITS


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
        known: these heights in doubles.
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
        )

    def steps(self, units: NDArray[np.float64], null: NDArray[np.bool_]) -> Places:
        """Reports in steps of limit/2^23, shape (n, d).

        Args:
            units: directions, (n, d), of length 1 nearly; what is reported about is u/‖u‖ exactly.
            null: which are to have the null law, whatever their direction.
        """
        with np.errstate(all="ignore"):
            inside = self.inside & ~null
            places = np.where(null, self.first, self.last)
            normals = self.whole.normals_at(places)
            sign = np.copysign(1.0, units[:, 0])
            x, length = normals[:, 0], self.law.length(normals)
            if self.known:
                x, r = self.known[0].where(inside, x), self.known[1].where(inside, length)
            else:
                sized = np.where(inside, np.abs(x.value), -np.abs(x.value))
                x, r = Approx(np.where(null, x.value, sized), x.error), length
            about = self.law.about_axis(x, r, length, normals)
            found = self.law.turned(about, Approx(units), Approx(sign), None)
            steps = np.empty(units.shape)
            unsure = np.empty(units.shape, np.bool_)
            _floors(found[0][:, None], steps[:, :1], unsure[:, :1])
            if self.law.dim > 1:
                _floors(found[1], steps[:, 1:], unsure[:, 1:])
            if not unsure.any():
                return steps.astype(np.int64)
            steps[unsure] = 0.0
            found = steps.astype(np.int64)
            for row in np.flatnonzero(unsure.any(axis=1)).tolist():
                columns = np.flatnonzero(unsure[row]).tolist()
                found[row, columns] = settled(
                    lambda bits, row=row, columns=columns: self._exactly(
                        row, columns, units[row : row + 1], bool(null[row]), bits
                    )
                )
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
        sign = numbers(np.copysign(1.0, unit[:, 0]), bits)
        first, others = law.turned(about, numbers(unit, bits), sign, bits)
        found = [(others[0, i - 1] if i else first[0]).floor() for i in columns]
        return [min(max(step, -REPORT_LEVELS), REPORT_LEVELS) for step in found]


def _floors(values: Approx, out: NDArray[np.float64], unsure: NDArray[np.bool_]) -> None:
    """Writes ⌊x⌋ within ±2^23, and where it is not certain."""
    floor = np.floor(values.value)
    above = values.value - floor
    certain = (above > values.error) & (1 - above > values.error)
    np.logical_not(certain, out=unsure)
    np.clip(floor, -REPORT_LEVELS, REPORT_LEVELS, out=out)
