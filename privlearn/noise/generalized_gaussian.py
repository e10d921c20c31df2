"""Noise on vectors for sensitivities in ℓp."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, final

import numpy as np

from privlearn.losses import GeneralizedGaussian, Loss, gaussian_loss
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import NoisePool, Pool, integers_of
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.rows.domains import Array, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.validate import Checked, Positive, count, finite, positive


def _at_least_two(**named: float) -> float:
    ((name, value),) = named.items()
    if not 2 <= finite(**named) <= 1000:
        raise ValueError(f"{name} = {value!r}: must lie in [2, 1000]")
    return float(value)


SmoothExponent = Annotated[float, _at_least_two]

_VECTOR_BITS = 34
"""Of vectors in ℓp: doubles decide nearly all floors on this grid; on a finer one, fewer."""


@final
@dataclass(frozen=True, slots=True)
class GeneralizedGaussianNoise(Checked):
    """Vectors (along the last axis) with density ∝ exp(−‖z‖²/(2std²)), ‖·‖ the norm of ℓp, p >= 2.

    Sampling (Han et al. 2022, Lemma 3.1 with its scale corrected: ``docs/errata``).  In polar
    coordinates of ‖·‖ the radius r has density ∝ r^{d−1}·exp(−r²/(2std²)), so r² is Gamma(d/2,
    scale 2std²): std² times the sum of d squared normals.  The direction is independent of it, with
    the law of x/‖x‖ for any x of density f(‖x‖); take ∏exp(−|x_i|^p), where |x_i|^p is Gamma(1/p)
    with a random sign.  For p = 2 it is N(0, std²) on every coordinate, and drawn as such; else
    `privlearn.noise.exact.powers` draws it, exactly; integers p take the least time.

    Args:
        std: σ; the mean of ‖z‖² is d·std², and the std of a coordinate is `coordinate_std`.
        exponent: p in [2, 1000].
    """

    independent: ClassVar[bool] = False
    std: Positive
    exponent: SmoothExponent

    @property
    def norm(self) -> Norm:
        return "l2" if self.exponent == 2 else self.exponent

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """ρ = (p−1)·s²/(2std²) for a sensitivity s in ℓp, rounded up.

        ‖·‖ is (p−1)-smooth (Juditsky & Nemirovski 2008), and that is all that the proof in
        ``docs/errata/generalized-gaussian.md`` uses: κ = κ₊ = p − 1 in the norm of the noise
        itself.  Through ‖x‖_p <= d^{1/p−1/q}·‖x‖_q it is κs_q²/(2std²) with κ = (p−1)d^{2/p−2/q}.
        For p = 2 the Gaussian loss.
        """
        if self.exponent == 2:
            return gaussian_loss(sensitivity, self.std, adjacency)
        return GeneralizedGaussian(
            round_up(Fraction(self.exponent) - 1),
            round_up(Fraction(positive(sensitivity=sensitivity))),
            Fraction(self.std),
            adjacency=adjacency,
        )

    @property
    def unit(self) -> float:
        """σ."""
        return self.std

    @property
    def finest(self) -> int:
        """Bits of the finest grid that `privlearn.mechanisms.grids.grid_of` gives it."""
        return FLOOR_BITS if self.exponent == 2 else _VECTOR_BITS

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        """⌊2^bits·z⌋ of vectors at σ = 1 along the last axis, exactly, int64; bits <= 40."""
        if self.exponent == 2:
            return integers_of(pool, "normal", shape, bits)
        from privlearn.noise.exact.powers import power_vectors

        *vectors, dim = shape
        n, p = math.prod(vectors), self.exponent

        def make(count: int) -> Floors:
            return power_vectors(pool, count, dim, p, bits)

        law = "powers", dim, p, bits
        found = pool.rows(law, n, dim, make) if isinstance(pool, NoisePool) else make(n)
        return found.reshape(shape)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        found = self.integers(pool, shape, self.finest)
        return np.asarray((found + 0.5) * 2.0**-self.finest) * self.std

    def coordinate_std(self, dim: int) -> float:
        """Standard deviation of each coordinate of a vector of length ``dim``.

        E r²·E(x₁²/‖x‖²), where ‖x‖^p is Gamma(d/p) and independent of x/‖x‖, so that the second
        factor is E x₁²/E‖x‖² = Γ(3/p)Γ(d/p)/(Γ(1/p)Γ((d+2)/p)).
        """
        p, d = self.exponent, count(dim=dim)
        if p == 2:
            return self.std
        logs = math.lgamma(3 / p) - math.lgamma(1 / p) + math.lgamma(d / p)
        return self.std * math.sqrt(d * math.exp(logs - math.lgamma((d + 2) / p)))

    def variance(self, dim: int) -> float:
        return self.coordinate_std(dim) ** 2

    def reach(self, dim: int) -> float:
        """The norm is std·‖normals‖₂ for ``dim`` normals, each hardly ever above 12."""
        return 12 * self.std * math.sqrt(dim)

    def to_dict(self) -> dict[str, Any]:
        return {"family": "generalized-gaussian", "std": self.std, "exponent": self.exponent}
