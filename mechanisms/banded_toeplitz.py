"""Numbers of a banded BLT: coefficients with any signs, cut at a lag; bounds on what was rounded.

Symbols:  decay a_i = 1 - theta_i; c_0 = 1, c_u = sum w_i theta_i**(u - 1) for 1 <= u < lags, 0
          from there on; T is the lower triangular Toeplitz matrix of c.
Exact:    a_i and w_i are doubles, so all numbers are rational.  Powers are integers over 2**256,
          rounded down by less than 2**-225 in all, for exponents below 2**25; what is multiplied
          by data is rounded from those to nearest, once.
Bounds:   `sizes` are not below |c_u|.  Powers come from products of doubles, of at most 24 factors
          (2**k-th powers, rounded from integers), off by 50u relative, u = 2**-53; products with w
          and their sum by 18u more: less than 2**-46 sum |w_i| theta_i**(u - 1) in all.
          `moments` are prefix sums of u**k sizes**2, relative to 2**-43: sums of at most 64 terms
          within blocks, of blocks within blocks, and so on, four times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

MOST_LAGS = 2**24
LEAST_DECAY, MOST_WEIGHT = 2.0**-60, 2.0**20
_BITS = 256  # Binary places of powers
_PART = 64


@final
@dataclass(frozen=True, slots=True)
class BandedToeplitz:
    """Numbers of one banded Toeplitz T that its price needs."""

    weights: tuple[Fraction, ...]
    decay: tuple[Fraction, ...]
    norm: Fraction
    """Upper bound on the root of the sum of c**2."""
    total: Fraction
    """Upper bound on the sum of |c|."""


@lru_cache(maxsize=64)
def banded_toeplitz(
    lags: int, weights: tuple[float, ...], decay: tuple[float, ...]
) -> BandedToeplitz:
    """Sums of squares are geometric: w_i w_j (1 - (theta_i theta_j)**(lags - 1))/(1 - ..)."""
    w, a = [Fraction(x) for x in weights], [Fraction(x) for x in decay]
    energy = Fraction(1)
    for i, x in enumerate(a):
        for j, y in enumerate(a):
            lost = x + y - x * y
            low = (1 - powers(1 - lost, lags - 1, 1)[0]) / lost
            energy += w[i] * w[j] * low + abs(w[i] * w[j]) / lost / 2**225
    return BandedToeplitz(tuple(w), tuple(a), _root_up(energy), _root_up(lags * energy))


def _root_up(square: Fraction) -> Fraction:
    return Fraction(math.isqrt(math.ceil(square * 2**80)) + 1, 2**40)


@final
@dataclass(frozen=True, slots=True)
class Lags:
    """Numbers of one banded Toeplitz T for each lag."""

    coefficients: Array
    """c_0, c_1, ..., within a few ulps of their sizes: for errors of the noise."""
    moments: Array
    """Prefix sums over lags of u**k |c_u|**2 for k = 0, 1, 2, bounds on c: (3, lags + 1)."""


@lru_cache(maxsize=4)
def lags_of(lags: int, weights: tuple[float, ...], decay: tuple[float, ...]) -> Lags:
    """Some 0.1 us per lag and weight the first time."""
    signed, sizes = np.zeros(lags), np.zeros(lags)
    for w, a in zip(weights, decay, strict=True):
        some = w * _powers_by_doubling(1 - Fraction(a), lags - 1)
        signed[1:] += some
        sizes[1:] += np.abs(some)
    sizes = np.abs(signed) + 2.0**-46 * sizes
    signed[0] = sizes[0] = 1.0
    squares = sizes**2 * (1 + 2.0**-50)
    lag = np.arange(lags, dtype=np.float64)
    moments = np.zeros((3, lags + 1))
    for k in range(3):
        moments[k, 1:] = prefix_sums(squares)
        squares = squares * lag
    moments.flags.writeable = signed.flags.writeable = False
    return Lags(signed, moments)


def check_weights(weights: tuple[float, ...], decay: tuple[float, ...]) -> None:
    """Raises ValueError unless there are as many of each, 1 to 16, all in range."""
    if len(weights) != len(decay) or not 1 <= len(decay) <= 16:
        raise ValueError(
            f"weights, decay have {len(weights)}, {len(decay)} entries: "
            "must have the same number, 1 to 16"
        )
    if not all(LEAST_DECAY <= x < 1 for x in decay):
        raise ValueError(f"decay = {decay!r}: must be numbers in [2^-60, 1)")
    if not all(abs(x) <= MOST_WEIGHT for x in weights):
        raise ValueError(f"weights = {weights!r}: must be numbers in [-2^20, 2^20]")


def prefix_sums(values: Array) -> Array:
    """Sums of the first 1, 2, ... values, each a tree of sums of at most 64 terms."""
    if len(values) <= _PART:
        return np.asarray(np.cumsum(values))
    whole = np.zeros(-(-len(values) // _PART) * _PART)
    whole[: len(values)] = values
    within = np.cumsum(whole.reshape(-1, _PART), axis=1)
    before = prefix_sums(within[:-1, -1])
    within[1:] += before[:, None]
    return np.asarray(within.reshape(-1)[: len(values)])


def powers(base: Fraction, first: int, size: int) -> list[Fraction]:
    """base**first, ..., for 0 < base < 1, each at most 2**-225 too small."""
    found, square, exponent = 1 << _BITS, (base.numerator << _BITS) // base.denominator, first
    step = square
    while exponent:
        if exponent & 1:
            found = found * square >> _BITS
        square = square * square >> _BITS
        exponent >>= 1
    all_of_them = [found]
    while len(all_of_them) < size:
        all_of_them.append(all_of_them[-1] * step >> _BITS)
    return [Fraction(x, 1 << _BITS) for x in all_of_them]


def _powers_by_doubling(base: Fraction, size: int) -> Array:
    found = np.ones(size)
    done = 1
    while done < size:
        more = min(done, size - done)
        np.multiply(found[:more], float(powers(base, done, 1)[0]), out=found[done : done + more])
        done += more
    return found


def inverse(c: Array, size: int) -> Array:
    """The first coefficients of 1/c(x), by Newton's iteration; for errors of the noise."""
    from scipy.fft import irfft, next_fast_len, rfft

    def times(a: Array, b: Array, n: int) -> Array:
        length = next_fast_len(len(a) + len(b) - 1, real=True)
        return np.asarray(irfft(rfft(a, length) * rfft(b, length), length)[:n])

    found: Array = np.ones(1) / c[0]
    c = np.concatenate([c, np.zeros(max(size - len(c), 0))])
    while len(found) < size:
        n = min(2 * len(found), size)
        rest = -times(c[:n], found, n)
        rest[0] += 2.0
        found = times(found, rest, n)
    return found
