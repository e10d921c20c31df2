"""Gaussian noise, also in norms other than the Euclidean one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

from privlearn.losses.base import Loss, register
from privlearn.losses.numerics import up, valid_number, valid_order
from privlearn.losses.output_laws import LawPair, shifted
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_up, round_up
from privlearn.values.validate import finite


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class GaussianLoss(Loss):
    """Noise N(0, std²) on each coordinate of a vector with ℓ2 sensitivity mu·std.

    D_α = α·mu²/2 exactly, attained at the extremal pair (Bun & Steinke 2016, Lemma 2.4), and the
    loss is dominated by N(mu, 1) against N(0, 1) (Dong, Roth & Su 2022, Theorem 2.7).
    """

    kind = "gaussian"
    mu_squared: Fraction
    adjacency: Adjacency

    def __init__(self, mu_squared: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        mass = exact("mu_squared", mu_squared)
        if mass <= 0:
            raise ValueError(f"mu_squared = {mu_squared!r}: must be > 0")
        self._set(mu_squared=mass, adjacency=adjacency)

    def __hash__(self) -> int:  # that of a fraction takes a modular inverse
        return hash((self.mu_squared.numerator, self.mu_squared.denominator))

    def renyi(self, order: float) -> float:
        return up(valid_order(order) * float_up(self.mu_squared) / 2)

    def zcdp(self) -> Fraction:
        return self.mu_squared / 2

    def gaussian(self) -> Fraction:
        return self.mu_squared

    def doubled(self) -> GaussianLoss:
        return GaussianLoss(4 * self.mu_squared)

    def several(self, visits: int, apart: int) -> GaussianLoss:
        return replace(self, mu_squared=visits**2 * self.mu_squared)

    def noisier(self, factor: Fraction) -> GaussianLoss:
        return replace(self, mu_squared=self.mu_squared / factor**2)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        return [shifted(math.sqrt(self.mu_squared))]


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class GeneralizedGaussian(Loss):
    """Noise with density ∝ exp(−‖z‖₊²/(2σ²)), sensitivity s in a κ-regular norm.

    ‖·‖₊ is κ₊-smooth and ‖·‖₊² <= (κ/κ₊)‖·‖², as in Han et al. 2022, Lemma 2.1.
    D_α <= α·κs²/(2σ²): ``docs/errata/generalized-gaussian.md`` has the proof.  A bound only: for
    norms far from Euclidean the truth can be lower.
    """

    kind = "generalized-gaussian"
    kappa: Fraction
    sensitivity: Fraction
    std: Fraction
    adjacency: Adjacency

    def __init__(
        self,
        kappa: Exact,
        sensitivity: Exact,
        std: Exact,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ):
        self._set(
            kappa=valid_number("kappa", kappa, "1", "1e75"),
            sensitivity=valid_number("sensitivity", sensitivity, "1e-75", "1e75"),
            std=valid_number("std", std, "1e-75", "1e75"),
            adjacency=adjacency,
        )

    def renyi(self, order: float) -> float:
        return up(valid_order(order) * float_up(self.zcdp()))

    def zcdp(self) -> Fraction:
        return self.kappa * (self.sensitivity / self.std) ** 2 / 2

    def doubled(self) -> GeneralizedGaussian:
        return GeneralizedGaussian(self.kappa, 2 * self.sensitivity, self.std)

    def several(self, visits: int, apart: int) -> GeneralizedGaussian:
        return replace(self, sensitivity=visits * self.sensitivity)

    def noisier(self, factor: Fraction) -> GeneralizedGaussian:
        return replace(self, std=self.std * factor)

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        """On the line, where the norm is the Euclidean one."""
        return [shifted(float(self.sensitivity / self.std))]


def gaussian_loss(sensitivity: float, noise_std: float, adjacency: Adjacency) -> GaussianLoss:
    """The loss of N(0, noise_std²) per coordinate at an ℓ2 sensitivity (same unit), rounded up.

    Raises:
        ValueError: a number is not finite and > 0.
    """
    return GaussianLoss(round_up(_squared_ratio(sensitivity, noise_std)), adjacency=adjacency)


def gaussian_std(sensitivity: float, mass: Fraction) -> float:
    """A noise std (unit of the sensitivity) whose rounded-up loss is at most ``mass``.

    It is within a relative 1e-11 of the smallest such std.

    Raises:
        ValueError: sensitivity or mass is not > 0.
    """
    if mass <= 0:
        raise ValueError(f"mass = {exact_text(mass)}: noise needs a budget > 0")
    std = sensitivity / math.sqrt(mass)
    step = math.ulp(std)
    while round_up(_squared_ratio(sensitivity, std)) > mass:
        std, step = std + step, 2 * step
    return std


def _squared_ratio(sensitivity: float, noise_std: float) -> Fraction:
    top, bottom = finite(sensitivity=sensitivity), finite(noise_std=noise_std)
    if top <= 0 or bottom <= 0:
        raise ValueError(
            f"sensitivity = {sensitivity!r}, noise_std = {noise_std!r}: both must be > 0"
        )
    return (Fraction(top) / Fraction(bottom)) ** 2
