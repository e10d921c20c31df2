"""x^p and its inverse for doubles p >= 1: in doubles with an error bound, and between integers.

A double p >= 1 is n + Σ b_j·2^−j with at most 52 digits b_j.  So x^p = x^n·x^{p−n}, and x^{p−n} is
a chain of square roots: √(x^{b_1}·√(x^{b_2}·√(…·√x))).  Products and square roots round by a known
amount, in doubles as in integers; no power function, logarithm or exponential is relied on.
Roots of order p are guessed, and judged by their p-th power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.noise.exact.tails import Bounds

Doubles: TypeAlias = NDArray[np.float64]

_GUARD = 32  # Bits beyond a precision, for the rounding of a norm
_GUESSED = 1000  # Bits of a number from which a double guesses its root


@final
@dataclass(frozen=True, slots=True)
class RealPower:
    """x ↦ x^p for x >= 0.

    Args:
        p: any double >= 1.
        whole: n = ⌊p⌋.
        digits: b_1, b_2, …, the last one 1; none for an integer p.
    """

    p: float
    whole: int
    digits: tuple[bool, ...]

    @property
    def roundings(self) -> int:
        """`doubles` has a relative error below 1.01·2^−53 times this.

        n − 1 products; a chain of roots, where e becomes at most (e + u)/2 + u in each, has 3u at
        most; and their product.
        """
        return self.whole + 3 if self.digits else self.whole - 1

    def doubles(self, x: Doubles) -> Doubles:
        """x^p; NaN for NaN."""
        found = integer_power(x, self.whole)
        if not self.digits:
            return found
        part = np.sqrt(x)
        for digit in self.digits[-2::-1]:
            if digit:
                part *= x
            np.sqrt(part, out=part)
        part *= found
        return part

    def between(self, x: Bounds, precision: int) -> Bounds:
        """Bounds of x^p from bounds of x: every product and root is rounded outwards."""
        low, high = least, most = x
        for bit in f"{self.whole:b}"[1:]:
            least, most = least * least >> precision, -(-most * most >> precision)
            if bit == "1":
                least, most = least * low >> precision, -(-most * high >> precision)
        if not self.digits:
            return least, most
        root, above = math.isqrt(low << precision), math.isqrt(high << precision) + 1
        for digit in self.digits[-2::-1]:
            root = math.isqrt(root * low if digit else root << precision)
            above = math.isqrt(above * high if digit else above << precision) + 1
        return least * root >> precision, -(-most * above >> precision)

    def norm(self, x: list[Bounds], precision: int) -> Bounds:
        """Bounds of (Σ x_i^p)^{1/p}, at the precision of the bounds of x_i >= 0."""
        if not self.digits:
            low, high = (sum(each[end] ** self.whole for each in x) for end in (0, 1))
            return integer_root(low, self.whole), integer_root(high, self.whole) + 1
        largest = max(high for _, high in x)
        if not largest:
            return 0, 0
        # of all x_i divided by the largest, so that the sum is about 1 or more
        bits = precision + _GUARD
        least = most = 0
        for low, high in x:
            ratio = (low << bits) // largest, -(-(high << bits) // largest)
            power = self.between(ratio, bits)
            least, most = least + power[0], most + power[1]
        root = self.root((least, most), bits)
        return root[0] * largest >> bits, -(-root[1] * largest >> bits)

    def root(self, x: Bounds, precision: int) -> Bounds:
        """Bounds of x^{1/p} from bounds of x >= 0."""
        low, high = near = [self._near_root(end, precision) for end in x]
        step = 1
        while low > 0 and self.between((low, low), precision)[1] > x[0]:
            low, step = max(near[0] - step, 0), 4 * step
        step = 1
        while self.between((high, high), precision)[0] < x[1]:
            high, step = near[1] + step, 4 * step
        return low, high

    def _near_root(self, x: int, precision: int) -> int:
        """Near x^{1/p} by Newton's method from a guess in doubles; any number >= 0 is correct."""
        if not x:
            return 0
        drop = max(x.bit_length() - _GUESSED, 0)
        log = (math.log2(x >> drop) + drop - precision) / self.p
        whole = math.floor(log)
        mantissa = int(2.0 ** (log - whole) * 2.0**53)
        shift = precision + whole - 53
        found = mantissa << shift if shift >= 0 else mantissa >> -shift
        numerator, denominator = self.p.as_integer_ratio()
        good = 40
        while good < precision and found:
            power = self.between((found, found), precision)[0]
            if not power:
                break
            found += found * (x - power) * denominator // (numerator * power)
            good += good - self.whole.bit_length()  # an error e becomes (p + 1)/2·e²
        return max(found, 0)


@lru_cache(maxsize=64)
def real_power(p: float) -> RealPower:
    """The power of a double or an integer p >= 1."""
    numerator, denominator = float(p).as_integer_ratio()
    whole, rest = divmod(numerator, denominator)
    digits = [bool(rest >> j & 1) for j in range(denominator.bit_length() - 2, -1, -1)]
    return RealPower(float(p), whole, tuple(digits))


@lru_cache(maxsize=256)
def root_above(n: int, p: float) -> float:
    """A double at least n^{1/p}, and not far above."""
    power, unit = real_power(p), 1 << 44  # 2^−20 at 64 bits
    found = math.ceil(n ** (1 / p) * 1.001 * 2**20) * unit
    while power.between((found, found), 64)[0] < n << 64:
        found += unit
    return float(found * 2.0**-64)


def integer_power(x: Doubles, p: int) -> Doubles:
    """x^p by products, with a relative error below (p − 1)·1.01·2^−53 whatever their order."""
    found: Doubles | None = None
    while True:
        if p & 1:
            found = x if found is None else found * x
        p >>= 1
        if not p:
            break
        x = x * x
    assert found is not None
    return found


def integer_root(number: int, p: int) -> int:
    """⌊number^{1/p}⌋, by Newton's method from above."""
    if number < 2:
        return number
    length = number.bit_length()
    drop = max(length - 64, 0)
    exponent = (math.log2(number >> drop) + drop) / p
    whole = max(int(exponent) - 60, 0)
    # a guess, made a little too large; should it not be, the first step makes it so
    root: int = (int(2 ** (exponent - whole) * (1 + 2.0**-40)) + 1) << whole
    root = ((p - 1) * root + number // root ** (p - 1)) // p + 1
    while True:
        smaller: int = ((p - 1) * root + number // root ** (p - 1)) // p
        if smaller >= root:
            return root
        root = smaller
