"""E-processes for A/B tests on noisy sums: public arithmetic on released numbers, no rows.

A block holds h pairs of users, one user of each pair in the control and one in another arm.  What
is released of it is S = Σ(X − Y) + Z, over pairs with rewards X of the arm and Y of the control in
[0, 1], Z the noise.  For every tilt λ of a grid, and for its negative, L = λ·V/(V + v) with V = 2hq
and v the variance of Z (less where the noise needs it), and

    log E_λ += L·S − h·log B(L) − log E[exp(LZ)] − |L|·rounding.

B(L) bounds E[exp(L(X − Y))] under the hypothesis (`Pairs`), so that E_λ, and the mean of several,
is a nonnegative supermartingale that begins at 1: the probability that it ever reaches 1/α is at
most α, however often one looks (Ville 1939; Ramdas, Grünwald, Vovk & Shafer 2023).  The whole
argument stands in ``docs/proofs.md``, "A/B tests".

The mean over λ > 0 is evidence that the arm is better than the control, that over λ < 0 that it is
worse.  All arrays have leading axes ``runs``: arms, simulated runs, or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows.domains import Array

Assume = Literal["iid", "coin"]
Mask = NDArray[np.bool_]
TILTS: Final = 16
"""How many tilts λ > 0 there are; 24 are no better, 8 cost 2 to 5% more users."""
STEEPEST: Final = 1.0
"""The largest λ: a pair's odds ratio of e², above which sample sizes are a few blocks."""
NEAREST_POLE: Final = 0.9
"""Largest |L|·scale of Laplace noise, whose moment 1/(1 − (L·scale)²) ends at 1."""
FIRST_PAIRS: Final = 50
GROWTH: Final = 1.05
_ROUNDING_OF_DOUBLES: Final = 1e-9
"""Above what 10⁴ additions of numbers below 10⁴ are off by; asked for beyond log(1/α)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is assumed of the two users of a pair, and what follows for exp(L(X − Y)).

    ``"iid"``: given all that came before, the two rewards are independent, and have the same mean p
    under the hypothesis; with a declared ``rate`` r <= 1/2, p <= r.  Then 1 + q(e^L + e^−L − 2)
    bounds the moment, with q = r(1 − r), or 1/4.  ``"coin"``: nobody's reward depends on the arm;
    only the coin is random.  The bound is cosh L.
    """

    rate: float | None = None
    assume: Assume = "iid"

    @property
    def variance(self) -> float:
        """q: half of the largest variance of X − Y under the hypothesis."""
        if self.assume == "coin":
            return 0.5
        return 0.25 if self.rate is None else self.rate * (1 - self.rate)

    @property
    def shifts(self) -> tuple[float, float]:
        """Smallest and largest difference of means that can be."""
        return (-1.0 if self.rate is None else -self.rate), 1.0

    def log_bound(self, tilt: Array) -> Array:
        """log B(L), shape of ``tilt``."""
        spread = 4 * np.sinh(tilt / 2) ** 2  # e^L + e^−L − 2, exact for small L
        return np.asarray(np.log1p(self.variance * spread))

    def log_shifted_bound(self, tilt: Array, shift: Array) -> Array:
        """log of the largest E[exp(L(X − Y))] if X has mean p + τ and Y mean p, p any (iid only).

        A concave quadratic in p, at most at (1 − τ)/2 or at the end of what p can be that is next
        to it.  It rises with τ for L > 0, and falls for L < 0 (proofs, "A/B tests").
        """
        spread = 4 * np.sinh(tilt / 2) ** 2
        highest = np.minimum(1.0 if self.rate is None else self.rate, 1 - shift)
        mean = np.clip((1 - shift) / 2, np.maximum(0.0, -shift), highest)
        return np.asarray(np.log1p(shift * np.expm1(tilt) + spread * mean * (1 - shift - mean)))


@dataclass(frozen=True, slots=True)
class BlockNoise:
    """Noise on the released difference of a block.

    Attributes:
        law: of the noise on one released sum; None: there is none, as a comparison.
        sums: 1 where the difference itself is released, 2 where it is of two released sums.
        grid: the step of released numbers; 0 where they are not rounded.
    """

    law: LaplaceNoise | GaussianNoise | None
    sums: int = 1
    grid: float = 0.0

    @property
    def variance(self) -> float:
        return 0.0 if self.law is None else self.sums * self.law.variance(1)

    @property
    def steepest(self) -> float:
        """The largest |L| that is used."""
        laplace = isinstance(self.law, LaplaceNoise)
        return NEAREST_POLE / self.law.scale if laplace else math.inf  # type: ignore[union-attr]

    def log_moment(self, tilt: Array, pairs: ArrayLike) -> Array:
        """log E[exp(LZ)], and what rounding can add: a step for each user and noise at most."""
        rounding = np.abs(tilt) * self.grid * (2 * np.asarray(pairs) + self.sums)
        if isinstance(self.law, LaplaceNoise):
            return np.asarray(rounding - self.sums * np.log1p(-((tilt * self.law.scale) ** 2)))
        return np.asarray(rounding + tilt**2 * self.variance / 2)


def first_pairs(pairs: Pairs, noise: BlockNoise) -> int:
    """How many pairs the first block has: as many as tell as much as the noise hides, or 50."""
    return max(FIRST_PAIRS, math.ceil(min(noise.variance / pairs.variance, 2.0**62)))


def pairs_of_block(number: int, first: int) -> int:
    """How many pairs block ``number`` = 0, 1, … has: ``first``, and 5% more in each."""
    return math.ceil(first * GROWTH**number)


def tilts(pairs: Pairs, horizon: int, alpha: float) -> Array:
    """The grid of λ > 0, shape (TILTS,), for at most ``horizon`` pairs.

    Geometric.  λ is the best for effects of 2qλ; the least that is reliably found by the horizon
    has λ² = 2·log(2/α)/(q·horizon).
    """
    least = math.sqrt(2 * math.log(2 / alpha) / (pairs.variance * horizon))
    return np.geomspace(min(least, STEEPEST / 2), STEEPEST, TILTS)


def log_mean(values: Array) -> Array:
    """log of the mean of exp(values) over the last axis, without overflow."""
    most = values.max(axis=-1, keepdims=True)
    return np.asarray(most[..., 0] + np.log(np.exp(values - most).mean(axis=-1)))


@dataclass(slots=True)
class EProcess:
    """Both sides of the e-process of each run, after any number of blocks.

    Args:
        pairs, noise: what is assumed, and what is released.
        grid: λ > 0, as of `tilts`.
        runs: shape of what is released of one block.
    """

    pairs: Pairs
    noise: BlockNoise
    grid: Array
    runs: tuple[int, ...] = ()
    _logs: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._logs = np.zeros((*self.runs, 2, len(self.grid)))

    def add(self, sums: ArrayLike, pairs: int) -> None:
        """Takes the noisy sums of a block of ``pairs`` pairs, of shape ``runs``."""
        if pairs > 0:
            tilt = _signed(block_tilts(self.grid, self.pairs, self.noise, pairs))
            cost = pairs * self.pairs.log_bound(tilt) + self.noise.log_moment(tilt, pairs)
            self._logs += np.asarray(sums, dtype=float)[..., None, None] * tilt - cost

    @property
    def log_sides(self) -> Array:
        """log E of "better" and of "worse", shape (*runs, 2)."""
        return log_mean(self._logs)


def block_tilts(grid: Array, pairs: Pairs, noise: BlockNoise, n_pairs: ArrayLike) -> Array:
    """L for each λ and each number of pairs in a block, shape (*n_pairs.shape, G)."""
    signal = 2 * pairs.variance * np.asarray(n_pairs, dtype=float)[..., None]
    return np.asarray(np.minimum(grid * signal / (signal + noise.variance), noise.steepest))


def _signed(tilt: Array) -> Array:
    return np.stack([tilt, -tilt])


def corrected(log_sides: Array) -> Array:
    """Evidence for each of 2·arms statements, to be held against log(1/α): log(E/(2·arms)).

    Whatever is true, the probability that a false statement's number ever reaches log(1/α) is at
    most α, for all arms, both directions and all times together.  (Bonferroni.  Closed testing by
    means, Vovk & Wang 2021, would save at most a tenth of the users where all arms differ; with
    this, statements agree with intervals, and all of both hold together.)

    Args:
        log_sides: shape (*runs, arms, 2), "arm is better" and "arm is worse" than the control.
    """
    return log_sides - math.log(2 * log_sides.shape[-2])


def passes(log_values: Array, alpha: float) -> Mask:
    """Whether e-values, in logarithms, reach 1/α."""
    return np.asarray(log_values >= _ROUNDING_OF_DOUBLES - math.log(alpha))


def shift_bound(
    side: int,
    sums: Array,
    n_pairs: Array,
    *,
    process: EProcess,
    alpha: float,
) -> Array:
    """The end of the interval of differences τ that no block has ruled out; iid only.

    Args:
        side: 1: the lower end, below which all τ are ruled out; −1: the upper end.
        sums: all that was released, shape (blocks, *runs).
        n_pairs: shape (blocks,).
        process: says what is assumed and released; not changed.
        alpha: the probability with which the true τ is ever ruled out on this side.

    Returns:
        Shape ``runs``: at most 2^−40 outside of the last τ that is not ruled out.
    """
    pairs, noise = process.pairs, process.noise
    tilt = side * block_tilts(process.grid, pairs, noise, n_pairs)
    tilt = tilt.reshape(len(n_pairs), *(1,) * (sums.ndim - 1), len(process.grid))
    count = n_pairs.reshape(len(n_pairs), *(1,) * sums.ndim)
    fixed = sums[..., None] * tilt - noise.log_moment(tilt, count)

    def ruled_out(shift: Array) -> Mask:
        logs = np.cumsum(fixed - count * pairs.log_shifted_bound(tilt, shift[..., None]), axis=0)
        return passes(log_mean(logs).max(axis=0, initial=-math.inf), alpha)

    outer, inner = pairs.shifts[::side]
    out, kept = np.full(sums.shape[1:], outer), np.full(sums.shape[1:], inner)
    none_out = ~ruled_out(out)
    for _ in range(41):
        middle = (out + kept) / 2
        excluded = ruled_out(middle)
        out, kept = np.where(excluded, middle, out), np.where(excluded, kept, middle)
    return np.asarray(np.where(none_out, outer, out))
