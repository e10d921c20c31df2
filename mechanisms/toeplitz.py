"""Numbers of a buffered linear Toeplitz (BLT) factorisation, with bounds on what was rounded.

Symbols:  decay a_i = 1 - theta_i, output decay b_i = 1 - theta^_i.  The Toeplitz C has the
          generating function C(x) = prod(1 - theta^_i x) / prod(1 - theta_i x) = sum c_k x**k, with
          c_0 = 1 and c_k = sum w_i theta_i**(k - 1); B(x) = 1 / ((1 - x) C(x)) = sum b_k x**k, with
          b_k = sum beta_j lambda_j**k and lambda = (1, theta^).  Arrivals are t = 1, 2, ...
Exact:    decays are doubles, so theta, w, beta, c and all powers are rational numbers.  Those that
          are multiplied by data are computed as such and rounded once, to nearest.
Signs:    interlacing makes all of w, beta, c, b positive, and 1 = c_0 > c_1 > c_2 > ...:
          c_1 = sum(b_i - a_i) is the length of disjoint intervals in (0, 1).
Norms:    are in the price, so they are upper bounds: powers are doubles below the true ones, made
          from integers by products alone, and each bound has a factor for its roundings (`_power`,
          `column_energy`).  Nothing of the C library but + - * / and the square root is in them.
Errors:   standard deviations of the noise, for whoever chooses a factorisation, are ordinary
          doubles, sums and products of positive terms within a few ulps.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.block_products import BLOCK
from privlearn.values.exact import float_down, float_up

Array: TypeAlias = NDArray[np.float64]
_POWER_BITS = 192  # Binary places of the powers that bounds are made from
_MOST_LENGTH_BITS = 40  # Columns have fewer than 2**41 entries, or infinitely many


@final
@dataclass(frozen=True, slots=True, eq=False)
class Toeplitz:
    """Numbers of one BLT; all arrays positive but for the log rates.  Each is only itself."""

    decay: tuple[Fraction, ...]
    weights: tuple[Fraction, ...]
    """w, exactly."""
    state_rows: Array
    """[S_0; X_1 .. X_rows] -> C X, less the term c_0 X_r itself: (rows, buffers + rows)."""
    state_lost: Array
    """1 - theta**rows, (buffers, 1)."""
    input_lost: Array
    """1 - theta**(rows - r) at X_r: what is lost of it by the end of its block, (buffers, rows)."""
    output_rows: Array
    """[S_0; y_1 .. y_rows] -> B y, (rows, buffers + 1 + rows)."""
    output_moves: Array
    """[S_0; y_1 .. y_rows] -> S_rows - S_0, (buffers + 1, buffers + 1 + rows)."""
    powers: Array
    """Lower bounds on (theta_i theta_j)**(2**b) over pairs i <= j: (bits, pairs)."""
    scale: Array
    """Upper bounds on w_i w_j / (1 - theta_i theta_j), twice where i < j."""
    log_output: Array
    """log lambda, (buffers + 1,), the first 0."""
    beta: Array
    """(buffers + 1,)"""
    pair_rate: Array
    """log(lambda_i lambda_j), (buffers + 1, buffers + 1)"""
    pair_gap: Array
    """1 - lambda_i lambda_j, 1 in the corner, which is not used"""

    def column_norms(self, length: NDArray[np.int64]) -> Array:
        """Upper bounds on the norm of a column of C with ``length`` >= 1 entries, any shape.

        sqrt and the last product are off by 2**-53 each, less than the factor.
        """
        return np.asarray(np.sqrt(self._energy(1.0 - self._power(length - 1))) * (1 + 2.0**-50))

    def endless_norm(self) -> float:
        """The same for infinite columns."""
        return float(np.sqrt(self._energy(np.ones(len(self.scale)))) * (1 + 2.0**-50))

    def _energy(self, gone: Array) -> Array:
        """Upper bound on 1 + sum scale * gone, for shares ``gone`` = 1 - power (rounded once).

        All terms are positive; with at most 136 pairs, fewer than 141 roundings of 2**-53 relative
        each stay below 2**-44, whatever the order of the additions.
        """
        return np.asarray((1.0 + gone @ self.scale) * (1 + 2.0**-44))

    def _power(self, exponent: NDArray[np.int64]) -> Array:
        """Lower bounds on (theta_i theta_j)**exponent, shape (..., pairs).

        At most 41 products of lower bounds, each rounded by 2**-53, stay below 1 + 2**-47 times the
        true power; the last factor takes that back.
        """
        found = np.ones((*np.shape(exponent), self.powers.shape[1]))
        for bit, power in enumerate(self.powers[: int(np.max(exponent, initial=0)).bit_length()]):
            found *= np.where((np.asarray(exponent) >> bit & 1)[..., None] == 1, power, 1.0)
        return np.asarray(found * (1 - 2.0**-46))

    def state_covariance(self, t: Array) -> Array:
        """Covariance of the states S_t = sum_s lambda**(t - s) z_s, (len(t), d + 1, d + 1)."""
        covariance = -np.expm1(np.multiply.outer(t, self.pair_rate)) / self.pair_gap
        covariance[:, 0, 0] = t
        return np.asarray(covariance)

    def error_std(self, t: int) -> float:
        """Standard deviation of (B z)_t = beta . S_t."""
        covariance = self.state_covariance(np.array([float(t)]))[0]
        return math.sqrt(self.beta @ covariance @ self.beta)

    def rms_error_std(self, n: int) -> float:
        """Root of the mean of the variances of (B z)_1, ..., (B z)_n.

        The sum of (1 - q**t)/(1 - q) over t is (n - q (1 - q**n)/(1 - q))/(1 - q).
        """
        gone = -np.expm1(n * self.pair_rate) / self.pair_gap
        mean = (1.0 - np.exp(self.pair_rate) * gone / n) / self.pair_gap
        mean[0, 0] = (n + 1) / 2
        return math.sqrt(self.beta @ mean @ self.beta)


@lru_cache(maxsize=64)
def toeplitz(decay: tuple[float, ...], output_decay: tuple[float, ...]) -> Toeplitz:
    """The numbers of one BLT; about 10 ms the first time."""
    a, b = [Fraction(x) for x in decay], [Fraction(x) for x in output_decay]
    w = [_residue(a, b, i) for i in range(len(a))]
    ratios = (x / y for x, y in zip(a, b, strict=True))
    beta = [math.prod(ratios, start=Fraction(1))]
    beta += [_residue(b, a, j) / b[j] for j in range(len(b))]
    pairs = [(i, j) for i in range(len(a)) for j in range(i, len(a))]
    outputs = [Fraction(0), *b]
    log_output = np.log1p(-np.array([float(x) for x in outputs]))
    gap = np.array([[float(x + y - x * y) for y in outputs] for x in outputs])
    gap[0, 0] = 1.0
    found = Toeplitz(
        decay=tuple(a),
        weights=tuple(w),
        **_data_matrices(a, w),
        **_output_matrices(outputs, beta),
        powers=np.array([_squares((1 - a[i]) * (1 - a[j])) for i, j in pairs]).T.copy(),
        scale=np.array(
            [float_up((1 + (i < j)) * w[i] * w[j] / (a[i] + a[j] - a[i] * a[j])) for i, j in pairs]
        ),
        log_output=log_output,
        beta=np.array([float(x) for x in beta]),
        pair_rate=np.add.outer(log_output, log_output),
        pair_gap=gap,
    )
    for field in fields(found):
        each = getattr(found, field.name)
        if isinstance(each, np.ndarray):  # all streams share them
            each.flags.writeable = False
    return found


def _residue(a: list[Fraction], b: list[Fraction], i: int) -> Fraction:
    above = math.prod((y - a[i] for y in b), start=Fraction(1))
    rest = (x - a[i] for k, x in enumerate(a) if k != i)
    return abs(above / math.prod(rest, start=Fraction(1)))


def _squares(base: Fraction) -> list[float]:
    """Doubles that are not above base**1, base**2, base**4, ...; for 0 < base < 1."""
    power = (base.numerator << _POWER_BITS) // base.denominator
    found = []
    for _ in range(_MOST_LENGTH_BITS + 1):
        found.append(float_down(Fraction(power, 1 << _POWER_BITS)))
        power = power * power >> _POWER_BITS
    return found


class _Sequences:
    """sum_i factor_i * rate_i**k for k = 0, 1, ..., exactly; rates are dyadic."""

    def __init__(self, rates: list[Fraction], factors: list[Fraction]) -> None:
        self._shift = max(rate.denominator for rate in rates).bit_length() - 1
        self._common = math.lcm(*(factor.denominator for factor in factors))
        self._tops = [int(factor * self._common) for factor in factors]
        self._rates = [int(rate * 2**self._shift) for rate in rates]

    def term(self, i: int, k: int) -> float:
        """factor_i * rate_i**k, rounded to nearest: Python divides integers so."""
        return self._tops[i] * self._power(i, k) / (self._common << self._shift * k)

    def total(self, k: int) -> float:
        """The whole sum, rounded to nearest."""
        top = sum(top * self._power(i, k) for i, top in enumerate(self._tops))
        return top / (self._common << self._shift * k)

    def lost(self, i: int, k: int) -> float:
        """1 - rate_i**k, rounded to nearest."""
        whole = 1 << self._shift * k
        return (whole - self._power(i, k)) / whole

    def _power(self, i: int, k: int) -> int:
        return int(self._rates[i] ** k)


def _data_matrices(a: list[Fraction], w: list[Fraction]) -> dict[str, Array]:
    theta = [1 - x for x in a]
    weighted, plain = _Sequences(theta, w), _Sequences(theta, [Fraction(1)] * len(a))
    buffers = len(a)
    rows = np.zeros((BLOCK, buffers + BLOCK))
    lost = np.empty((buffers, BLOCK + 1))
    for i in range(buffers):
        rows[:, i] = [weighted.term(i, r) for r in range(BLOCK)]
        lost[i] = [plain.lost(i, BLOCK - r) for r in range(BLOCK + 1)]
    below = [weighted.total(k - 1) for k in range(1, BLOCK)]
    for r in range(1, BLOCK):
        rows[r, buffers : buffers + r] = below[r - 1 :: -1]
    return {"state_rows": rows, "state_lost": lost[:, :1], "input_lost": lost[:, 1:].copy()}


def _output_matrices(outputs: list[Fraction], beta: list[Fraction]) -> dict[str, Array]:
    rates = [1 - x for x in outputs]
    weighted, plain = _Sequences(rates, beta), _Sequences(rates, [Fraction(1)] * len(rates))
    states = len(rates)
    rows = np.zeros((BLOCK, states + BLOCK))
    move = np.zeros((states, states + BLOCK))
    for j in range(states):
        rows[:, j] = [weighted.term(j, r + 1) for r in range(BLOCK)]
        move[j, j] = -plain.lost(j, BLOCK)
        move[j, states:] = [plain.term(j, BLOCK - 1 - r) for r in range(BLOCK)]
    below = [weighted.total(k) for k in range(BLOCK)]
    for r in range(BLOCK):
        rows[r, states : states + r + 1] = below[r::-1]
    return {"output_rows": rows, "output_moves": move}


def check_decays(decay: tuple[float, ...], output_decay: tuple[float, ...]) -> None:
    """Interlacing makes all coefficients positive (Signs, above); the gaps prevent overflow.

    Raises:
        TypeError: not tuples.
        ValueError: they do not interlace.
    """
    if not (isinstance(decay, tuple) and isinstance(output_decay, tuple)):
        raise TypeError("decay, output_decay: must be tuples of floats")
    if len(decay) != len(output_decay) or not 1 <= len(decay) <= 16:
        raise ValueError(
            f"decay, output_decay have {len(decay)}, {len(output_decay)} entries: "
            "must have the same number, 1 to 16"
        )
    chain = [1.0, *(p for pair in zip(output_decay, decay, strict=True) for p in pair)]
    gaps = all(p - q >= p * 2.0**-30 for p, q in itertools.pairwise(chain))
    if not (gaps and chain[-1] >= 2.0**-100):
        raise ValueError(
            f"decay = {decay}, output_decay = {output_decay}: must interlace, "
            "1 > output_decay[0] > decay[0] > output_decay[1] > ... > 0, "
            "with relative gaps >= 2**-30 and all >= 2**-100"
        )
