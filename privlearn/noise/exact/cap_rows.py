"""Reports that are points of a cap or outside of it, in steps of a public grid.

What is released is ⌊2^23·z/limit + ½⌋, which doubles decide but for one report in thousands: then
the same formulas run in integers on more bits of the same variates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.caps import (
    REPORT_LEVELS,
    Approx,
    Candidates,
    CapLaw,
    Places,
    largest_error,
    number,
    numbers,
    rounding,
    settled,
)
from privlearn.noise.exact.fast import WordArray
from privlearn.noise.exact.pool import Pool, bernoulli, uniform


@final
@dataclass(frozen=True, slots=True)
class CapRows:
    """What reports are made of, a row for each; see `drawn`.

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

    @classmethod
    def drawn(cls, law: CapLaw, pool: Pool, n: int) -> CapRows:
        """What ``n`` reports are made of; none of it depends on a record.

        A point outside of the cap and a height in it are drawn for every report, so that the time
        of this does not tell which one it takes.
        """
        with np.errstate(all="ignore"):
            coins, turning, public = pool.words(n), pool.words(n), pool.words(n)
            inside, turns = bernoulli(coins, law.numerator), uniform(turning)
            whole, last = law.kept(pool, n, (0, law.dim), law.outside)
            first = np.concatenate([[0], last[:-1] + 1])
            if not law.threshold:
                return cls(law, inside, turns, public, whole, first, last, None, last, ())
            cap, heights = law.kept(pool, n, law.height_wide, law.in_cap)
            known = law.height(*cap.approximate(), None)
            at = known[0][heights], known[1][heights]
            return cls(law, inside, turns, public, whole, first, last, cap, heights, at)

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
            tuple([part[rows] for part in self.known]),
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

    def in_child(self) -> None:
        """Overwrites them in a forked child."""
        for candidates in (self.whole, self.cap):
            if candidates is not None:
                candidates.in_child()
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
        delta, eta = largest_error(normals), rounding(d)
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
