"""Laws of the output of a mechanism, as data: what exact checks integrate and compare."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import CheckError

Array = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class Discrete:
    """Probabilities of finitely many symbols, as logarithms; -inf where there is none."""

    log_mass: Array

    def __post_init__(self) -> None:
        logs = np.asarray(self.log_mass, dtype=np.float64)
        if logs.ndim != 1 or np.isnan(logs).any() or not abs(np.exp(logs).sum() - 1) < 1e-9:
            raise CheckError("log_mass: must be logarithms of probabilities that add up to 1")
        object.__setattr__(self, "log_mass", logs)


@final
@dataclass(frozen=True, eq=False)
class Density:
    """A density on R, as a logarithm, and where to look for it.

    Args:
        log_density: of points (n, 1), shape (n,); -inf where there is none.
        centre: a point that is not far out, (1,).
        scale: the width of the law there; the search begins with multiples of it.
        jumps: where the density jumps or bends, (1,) tuples of points.
    """

    log_density: Callable[[Array], Array]
    centre: tuple[float, ...]
    scale: float
    jumps: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.centre) != 1 or not self.scale > 0:
            raise CheckError("a density needs one dimension and a scale > 0")


@final
@dataclass(frozen=True, eq=False)
class Normal:
    """N(mean, factor·factorᵀ); two of them must have the same ``factor``, (m, k)."""

    mean: Array
    factor: Array


@final
@dataclass(frozen=True, eq=False)
class Product:
    """Independent parts, each with the number of its copies."""

    parts: tuple[tuple[Distribution, int], ...]


Distribution: TypeAlias = Discrete | Density | Normal | Product
LawPair: TypeAlias = tuple[Distribution, Distribution]  # Laws on two neighbouring data sets


def normal(mean: float, std: float) -> Density:
    """N(mean, std²) on R."""
    constant = math.log(std) + math.log(2 * math.pi) / 2
    return Density(
        lambda x: -(((x[:, 0] - mean) / std) ** 2) / 2 - constant, (float(mean),), float(std)
    )


def laplace(mean: float, scale: float) -> Density:
    """Laplace noise of the given scale around ``mean``."""
    return Density(
        lambda x: -np.abs(x[:, 0] - mean) / scale - math.log(2 * scale),
        (float(mean),),
        scale,
        jumps=((float(mean),),),
    )


def shifted(mu: float) -> LawPair:
    """N(mu, 1) against N(0, 1)."""
    return normal(mu, 1.0), normal(0.0, 1.0)
