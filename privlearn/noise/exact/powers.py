"""⌊2^k z⌋ for vectors z of density ∝ exp(−‖z‖²/2), ‖·‖ the norm of ℓp.

z = r·x/‖x‖, r² a sum of d squared normals, x_i independent with density ∝ exp(−|x_i|^p)
(`privlearn.noise.GeneralizedGaussianNoise`).  Two squared normals are twice an exponential.

**|x_i| by rejection**, with no table for p.  n = ⌊p⌋.  With probability n/(n+1) propose a uniform
x in (0, 1), and accept it if an exponential E′ exceeds x^p; else propose x = 1 + E/n, E
exponential, and accept it if E + E′ > x^p.  The proposal has density n/(n+1) on (0, 1) and
n/(n+1)·e^{−n(x−1)} beyond, and it is accepted with probability e^{−x^p} and e^{−x^p + n(x−1)}
(x^p >= x^n >= 1 + n(x−1) there): n/(n+1)·e^{−x^p} either way.  Of the proposals n/(n+1)·Γ(1 + 1/p)
are accepted.

**Exactness.**  All variates are real numbers whose bits are drawn as they are needed.  Comparisons
and floors come from doubles (+ − × ÷ √ only, with bounds on what rounding does: powers by
`privlearn.noise.exact.real_powers`; the p-th root is guessed and then judged by its p-th power)
where these bounds decide, and from integers that enclose the same variates, to more and more bits,
where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.fast import Floors, WordArray
from privlearn.noise.exact.near import NEAR_BITS, TOO_LARGE, near
from privlearn.noise.exact.pool import STEP, Pool, Variates, below
from privlearn.noise.exact.real_powers import Doubles, RealPower, real_power, root_above
from privlearn.noise.exact.slow import Bits
from privlearn.noise.exact.tables import WORD_BITS
from privlearn.noise.exact.tails import Bounds

_U = 2.0**-53  # Relative rounding error of one operation
_SATURATED = 2.0**22  # Where floors end
_NUMBERS = 1 << 14  # Coordinates at a time
_Enclosed: TypeAlias = tuple[list[Bounds], Bounds, Bounds]
"""Bounds of the |x_i| of one vector, of ‖x‖ and of r, all at one precision."""
_MORE = 64  # Bits by which integers grow where they do not decide


def power_vectors(pool: Pool, n: int, dim: int, p: float, bits: int) -> Floors:
    """⌊2^bits z⌋ of ``n`` vectors of standard noise in ℓp, exactly; int64, shape (n, dim).

    Args:
        pool: of the spend.
        n, dim: how many, and of which length.
        p: 2 to 1000.  Integers take the least time.
        bits: at most 40.
    """
    found = np.empty((n, dim), np.int64)
    at_once = max(_NUMBERS // max(dim, 1), 1)
    for start in range(0, n if dim else 0, at_once):
        part = found[start : start + at_once]
        part[:] = _Vectors.drawn(pool, len(part), dim, p).floors(bits)
    return found


@final
@dataclass(slots=True)
class Sizes:
    """Independent |x_i| of density ∝ e^{−x^p} on (0, ∞).

    Args:
        power: x^p.
        words: bits 1 to 63 begin a uniform x_i; bit 0 is free, for a sign, in either case.
        near: integers near 2^58·x_i; 2^62 where x_i may be too large for that.
        off: by how much they may be off, at most 10: x_i is known to 2^−54.
        tails: the exponential E of each x_i = 1 + E/p.
        more: 64 further bits.
        extended: the bits of uniform x_i that took more than their word.
        accepted: of proposals, which ones are.
    """

    power: RealPower
    words: WordArray
    near: Floors
    off: Floors
    tails: dict[int, tuple[Variates, int]]
    more: Callable[[], int]
    extended: dict[int, Bits] = field(default_factory=dict)
    accepted: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, np.bool_))

    @classmethod
    def drawn(cls, pool: Pool, n: int, p: float) -> Sizes:
        power = real_power(p)
        words, about, off = np.empty(n, np.uint64), np.empty(n, np.int64), np.empty(n, np.int64)
        made = cls(power, words, about, off, {}, pool.more)
        at = 0
        while at < n:
            # six in ten are accepted, or more: nearly or quite enough at once
            tried = cls._proposed(pool, int((n - at) * 1.6) + 16, power)
            at += made._take(tried, np.flatnonzero(tried.accepted)[: n - at], at)
        return made

    @classmethod
    def _proposed(cls, pool: Pool, n: int, power: RealPower) -> Sizes:
        p, whole = power.p, power.whole
        words = np.array(pool.words(n))
        sizes = (words >> np.uint64(WORD_BITS + 1 - NEAR_BITS)).astype(np.int64)
        beyond = np.flatnonzero(below(pool, whole + 1, n) == 0)
        tails = pool.variates("exponential", len(beyond))
        deep, off = near(tails)
        sizes[beyond] = np.where(deep < TOO_LARGE, (1 << NEAR_BITS) + deep // whole, TOO_LARGE)
        words[beyond] = tails.words
        made = cls(power, words, sizes, np.ones(n, np.int64), {}, pool.more)
        made.off[beyond] = off // whole + 2
        made.tails = {place: (tails, j) for j, place in enumerate(beyond.tolist())}
        levels = pool.variates("exponential", n)
        shift = np.zeros(n)
        shift[beyond] = as_doubles(deep)
        reached = power.doubles(as_doubles(sizes))
        level = levels.floors * STEP
        lead = level + shift - reached
        # 2^−40 of the floor; x to 2u(x + 1), so x^p to 2pu·2·max(x^p, 1), and its at most p + 3
        # roundings; E to u(E + 1); the two sums
        margin = STEP + 8 * _U * (p * np.maximum(reached, 1) + level + shift + 1)
        made.accepted = np.asarray(lead > margin)
        for place in np.flatnonzero(
            ~(made.accepted | (lead < -margin) & (level < _SATURATED))
        ).tolist():
            made.accepted[place] = made._accepts(place, levels)
        return made

    def _take(self, tried: Sizes, places: NDArray[np.intp], at: int) -> int:
        to = slice(at, at + len(places))
        self.words[to], self.near[to] = tried.words[places], tried.near[places]
        self.off[to] = tried.off[places]
        for i, place in enumerate(places.tolist(), at):
            if place in tried.tails:
                self.tails[i] = tried.tails[place]
            elif place in tried.extended:
                self.extended[i] = tried.extended[place]
        return len(places)

    def _accepts(self, place: int, levels: Variates) -> bool:
        """Whether E′ (+ E) > x^p, by integers."""
        precision = 2 * _MORE
        while True:
            low, high = self.power.between(self.between(place, precision), precision)
            least = most = levels.refined(place, precision)
            most += 1
            if place in self.tails:
                variates, j = self.tails[place]
                tail = variates.refined(j, precision)
                least, most = least + tail, most + tail + 1
            if least >= high:
                return True
            if most <= low:
                return False
            precision += _MORE

    def between(self, place: int, precision: int) -> Bounds:
        """Bounds of x_i at a precision; the bits that it takes are kept for later."""
        if place in self.tails:
            variates, j = self.tails[place]
            tail, one, whole = variates.refined(j, precision), 1 << precision, self.power.whole
            return one + tail // whole, one + (tail + 1) // whole + 1
        bits = self.extended.setdefault(place, Bits(int(self.words[place]) >> 1, WORD_BITS))
        while bits.count < precision:
            bits.extend(self.more)
        low = bits.prefix >> (bits.count - precision)
        return low, low + 1


@final
@dataclass(slots=True)
class _Vectors:
    """Some z, with all that they were made from.

    Args:
        sizes: of all coordinates, one vector after the other.
        halves: d // 2 exponentials for each vector.
        odd: one normal for each vector, if d is odd.
        dim: d.
        near_halves, near_odd: of these, as `near` has them, shape (n, d // 2) and (n, d % 2).
    """

    sizes: Sizes
    halves: Variates
    odd: Variates
    dim: int
    near_halves: tuple[Floors, Floors]
    near_odd: tuple[Floors, Floors]

    @classmethod
    def drawn(cls, pool: Pool, n: int, dim: int, p: float) -> _Vectors:
        sizes = Sizes.drawn(pool, n * dim, p)
        halves = pool.variates("exponential", n * (dim // 2))
        odd = pool.variates("normal", n * (dim % 2))

        def shaped(variates: Variates, each: int) -> tuple[Floors, Floors]:
            numbers, off = near(variates)
            return numbers.reshape(n, each), off.reshape(n, each)

        return cls(sizes, halves, odd, dim, shaped(halves, dim // 2), shaped(odd, dim % 2))

    def floors(self, bits: int) -> Floors:
        """⌊2^bits z⌋, shape (n, d)."""
        found, unsure = self._in_doubles(bits)
        for row in np.flatnonzero(unsure.any(axis=1)).tolist():
            for column, exact in self._by_integers(
                row, np.flatnonzero(unsure[row]).tolist(), bits
            ).items():
                found[row, column] = exact
        signs = (self.sizes.words & np.uint64(1)).view(np.int64).reshape(found.shape)
        found ^= -signs  # ⌊−y⌋ = −⌊y⌋ − 1 for y that is no integer
        return found

    def _in_doubles(self, bits: int) -> tuple[Floors, NDArray[np.bool_]]:
        """⌊2^bits|z|⌋, and where rounding leaves it open."""
        power, dim = self.sizes.power, self.dim
        p = power.p
        x = as_doubles(self.sizes.near).reshape(-1, dim)
        rounds = (dim - 1).bit_length()
        # numbers that are too large are NaN, for which every comparison is false
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            halves, odd = as_doubles(self.near_halves[0]), as_doubles(self.near_odd[0])
            square = 2 * pairwise(halves) + pairwise(odd * odd)
            # every E and N is known to u(E + 1), N² to 2u(N² + N) and u² besides
            off = _U * ((rounds + 5) * square + 2 * halves.shape[1] + 2 * pairwise(odd) + 1e-15)
            radius = np.sqrt(square)
            radius_error = 0.51 * off / square + _U

            total = pairwise(power.doubles(x))
            length = np.power(total, 1 / p)
            miss = np.abs(power.doubles(length) - total) / total
            # what the p-th power of the length is wrong by, a power, sums, a power; then, by the
            # triangle inequality in ℓp, that each x is known to u(x + 1)
            power_error = 1.01 * miss + 1.01 * _U * (2 * power.roundings + 2 + rounds)
            wide = _U * (1 + x.max(axis=1, keepdims=True)) * root_above(dim, p)
            length_error = 1.05 * power_error / p + 1.01 * wide / length
            known = (radius_error < 1e-3) & (power_error < 1e-2) & (length_error < 1e-2)
            known &= (total > 1e-200) & (total < 1e200)

            ratio = radius / length
            y = ratio * x
            error = 1.05 * (y * (radius_error + length_error + 2 * _U) + ratio * (_U * (x + 1)))
            scale = 2.0**bits
            y *= scale
            error *= scale
            whole = np.floor(y)
            sure = known & (np.abs(y - whole - 0.5) + error < 0.4999999)
            found = np.where(sure, whole, 0.0).astype(np.int64)
        return found, ~sure

    def _by_integers(self, row: int, columns: list[int], bits: int) -> dict[int, int]:
        """⌊2^bits|z_i|⌋ for some coordinates of one vector."""
        found: dict[int, int] = {}
        precision = NEAR_BITS
        enclosed = self._nearly(row)
        while columns:
            if enclosed is not None:
                sizes, length, radius = enclosed
                shift = precision - bits
                for column in columns:
                    low = radius[0] * sizes[column][0] // (length[1] << shift)
                    if length[0] and low == radius[1] * sizes[column][1] // (length[0] << shift):
                        found[column] = low
                columns = [column for column in columns if column not in found]
            precision = 2 * _MORE if precision == NEAR_BITS else precision + _MORE
            enclosed = self._closely(row, precision) if columns else None
        return found

    def _nearly(self, row: int) -> _Enclosed | None:
        """One vector by what `near` says; None where a number is too large for it."""
        part, power = slice(row * self.dim, (row + 1) * self.dim), self.sizes.power
        near_x, off_x = self.sizes.near[part], self.sizes.off[part]
        (halves, off_halves), (odd, off_odd) = (
            (numbers[row], off[row]) for numbers, off in (self.near_halves, self.near_odd)
        )
        x = near_x.tolist()
        if TOO_LARGE in x or TOO_LARGE in halves or TOO_LARGE in odd:
            return None
        # the triangle inequality in ℓp
        wide = math.ceil(int(off_x.max()) * root_above(self.dim, power.p))
        least, most = power.norm([(each, each) for each in x], NEAR_BITS)
        square, off = 2 * sum(halves.tolist()), 2 * sum(off_halves.tolist())
        for normal, error in zip(odd.tolist(), off_odd.tolist(), strict=True):
            square += normal * normal >> NEAR_BITS
            off += (2 * normal * error + error * error >> NEAR_BITS) + 2
        return (
            [(max(each - e, 0), each + e) for each, e in zip(x, off_x.tolist(), strict=True)],
            (max(least - wide, 0), most + wide),
            _root_between((max(square - off, 0), square + off), NEAR_BITS),
        )

    def _closely(self, row: int, precision: int) -> _Enclosed:
        """The same with as many bits as one likes."""
        first = row * self.dim
        sizes = [self.sizes.between(i, precision) for i in range(first, first + self.dim)]
        length = self.sizes.power.norm(sizes, precision)
        count = self.dim // 2
        low = high = 0
        for i in range(row * count, (row + 1) * count):
            least = self.halves.refined(i, precision)
            low, high = low + 2 * least, high + 2 * (least + 1)
        if self.dim % 2:
            signed = self.odd.refined(row, precision)
            least = max(signed, ~signed)
            low += least * least >> precision
            high += ((least + 1) ** 2 >> precision) + 1
        return sizes, length, _root_between((low, high), precision)


def _root_between(square: Bounds, precision: int) -> Bounds:
    return math.isqrt(square[0] << precision), math.isqrt(square[1] << precision) + 1


def as_doubles(numbers: Floors) -> Doubles:
    """Numbers in units of 2^−58 to the nearest double; NaN where they are too large."""
    found = numbers * 2.0**-NEAR_BITS
    if (numbers >= TOO_LARGE).any():
        found[numbers >= TOO_LARGE] = np.nan
    return np.asarray(found)


def pairwise(x: Doubles) -> Doubles:
    """Sums over the last axis, kept as one of length 1, with ⌈log₂ d⌉ roundings in a row."""
    if not x.shape[-1]:
        return np.zeros((*x.shape[:-1], 1))
    while (width := x.shape[-1]) > 1:
        half = width // 2
        added = x[..., :half] + x[..., half : 2 * half]
        x = np.concatenate([added, x[..., 2 * half :]], axis=-1) if width % 2 else added
    return x
