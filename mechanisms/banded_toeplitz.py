"""Numbers of a banded BLT: coefficients with any signs, cut at a lag, and bounds on what was rounded.

Symbols:  decay a_i = 1 - theta_i; c_0 = 1, c_u = sum w_i theta_i**(u - 1) for 1 <= u < lags, 0
          from there on; T is the lower triangular Toeplitz matrix of c.
Exact:    a_i and w_i are doubles, so all numbers are rational.  Powers are integers over 2**256,
          rounded down by less than 2**-245 in all; what is multiplied by data is rounded from those
          to nearest, once.
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

from privlearn.exact import float_up

Array: TypeAlias = NDArray[np.float64]

MOST_LAGS = 2**24
LEAST_DECAY, MOST_WEIGHT = 2.0**-60, 2.0**20
_BITS = 256
"""Binary places of powers."""
_PART = 64


@final
@dataclass(frozen=True, slots=True)
class BandedToeplitz:
    """Numbers of one banded Toeplitz T."""

    lags: int
    """Number of lags with a coefficient, at most the horizon."""
    weights: tuple[Fraction, ...]
    decay: tuple[Fraction, ...]
    coefficients: Array
    """c_0, ..., c_{lags-1}, within a few ulps of their sizes: for errors of the noise."""
    moments: Array
    """Prefix sums over lags of u**k |c_u|**2 for k = 0, 1, 2, bounds on c: (3, lags + 1)."""
    norm: Fraction
    """Upper bound on the root of the sum of c**2."""
    total: Fraction
    """Upper bound on the sum of |c|."""


@lru_cache(maxsize=16)
def banded_toeplitz(
    lags: int, weights: tuple[float, ...], decay: tuple[float, ...]
) -> BandedToeplitz:
    """The numbers of one T; the first time some 0.2 us per lag and weight."""
    signed, sizes = np.zeros(lags), np.zeros(lags)
    for w, a in zip(weights, decay, strict=True):
        powers = w * _powers(1 - Fraction(a), lags - 1)
        signed[1:] += powers
        sizes[1:] += np.abs(powers)
    sizes = np.abs(signed) + 2.0**-46 * sizes
    signed[0] = sizes[0] = 1.0
    squares = sizes**2 * (1 + 2.0**-50)
    lag = np.arange(lags, dtype=np.float64)
    moments = np.zeros((3, lags + 1))
    for k in range(3):
        moments[k, 1:] = prefix_sums(squares)
        squares = squares * lag
    moments.flags.writeable = signed.flags.writeable = False
    up = Fraction(float(moments[0, -1])) * (1 + Fraction(1, 2**40))
    return BandedToeplitz(
        lags=lags,
        weights=tuple(map(Fraction, weights)),
        decay=tuple(map(Fraction, decay)),
        coefficients=signed,
        moments=moments,
        norm=Fraction(float_up(Fraction(math.sqrt(up)) * (1 + Fraction(1, 2**50)))),
        total=Fraction(float(prefix_sums(sizes)[-1])) * (1 + Fraction(1, 2**40)),
    )


def check_weights(weights: tuple[float, ...], decay: tuple[float, ...]) -> None:
    """Raises TypeError, ValueError unless there are as many weights as decays, 1 to 16, in range."""
    for name, values in (("weights", weights), ("decay", decay)):
        if not isinstance(values, tuple) or not all(isinstance(x, float) for x in values):
            raise TypeError(f"{name} = {values!r}: must be a tuple of floats")
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
        return np.cumsum(values)
    whole = np.zeros(-(-len(values) // _PART) * _PART)
    whole[: len(values)] = values
    within = np.cumsum(whole.reshape(-1, _PART), axis=1)
    before = prefix_sums(within[:-1, -1])
    within[1:] += before[:, None]
    return within.reshape(-1)[: len(values)]


def power(base: Fraction, exponent: int) -> Fraction:
    """base**exponent for 0 < base < 1, at most 2**-245 too small."""
    found, square = 1 << _BITS, (base.numerator << _BITS) // base.denominator
    while exponent:
        if exponent & 1:
            found = found * square >> _BITS
        square = square * square >> _BITS
        exponent >>= 1
    return Fraction(found, 1 << _BITS)


def _powers(base: Fraction, size: int) -> Array:
    """1, base, base**2, ..., by doubling."""
    found = np.ones(size)
    done = 1
    while done < size:
        more = min(done, size - done)
        np.multiply(found[:more], float(power(base, done)), out=found[done : done + more])
        done += more
    return found


def inverse(c: Array, size: int) -> Array:
    """The first coefficients of 1/c(x), by Newton's iteration; for errors of the noise."""
    from scipy.fft import irfft, next_fast_len, rfft

    def times(a: Array, b: Array, n: int) -> Array:
        length = next_fast_len(len(a) + len(b) - 1, real=True)
        return np.asarray(irfft(rfft(a, length) * rfft(b, length), length)[:n])

    found = np.ones(1) / c[0]
    c = np.concatenate([c, np.zeros(max(size - len(c), 0))])
    while len(found) < size:
        n = min(2 * len(found), size)
        rest = -times(c[:n], found, n)
        rest[0] += 2.0
        found = times(found, rest, n)
    return found


@lru_cache(maxsize=64)
def growth(
    horizon: int, lags: int, weights: tuple[float, ...], decay: tuple[float, ...]
) -> float:
    """Sum of |coefficients of 1/c| over the second half of twice the lags, against the first.

    Noise in a row goes on with these: they decay, or an error of the first row would grow.
    """
    size = min(horizon, 2 * lags)
    with np.errstate(all="ignore"):
        found = np.abs(inverse(banded_toeplitz(lags, weights, decay).coefficients, size))
        ratio = float(found[-(-size // 2) :].sum() / found[: -(-size // 2)].sum())
    return ratio if math.isfinite(ratio) else math.inf


