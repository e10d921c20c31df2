"""Orders in which simulated people come, and come back."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from privlearn.values.validate import count, positive

Visitors = NDArray[np.int64]
"""The number of the person at each slot, shape (T,)."""

PARETO: Final = 1.1
"""Exponent of the heavy tail."""


def equally_often(persons: int, visits: int, rng: np.random.Generator) -> Visitors:
    """Everybody comes ``visits`` times, in random order.

    Raises:
        ValueError: no counts.
    """
    numbers = np.repeat(np.arange(count(persons=persons)), count(visits=visits))
    return rng.permutation(numbers)


def heavy_tailed(
    persons: int, horizon: int, rng: np.random.Generator, *, exponent: float = PARETO
) -> Visitors:
    """Everybody comes at least once, and how often is Pareto-like; ``horizon`` visits in all.

    Whoever has the share s of the sum of Pareto weights 1 + Lomax(exponent) gets one visit and
    ⌊s·(horizon − persons)⌋ more; those with the largest remainders get what is left over.

    Raises:
        ValueError: fewer visits than people.
    """
    if count(horizon=horizon) < count(persons=persons):
        raise ValueError(f"horizon = {horizon}: must be at least persons = {persons}")
    weights = 1 + rng.pareto(positive(exponent=exponent), size=persons)
    exact = weights * ((horizon - persons) / weights.sum())
    more = np.floor(exact).astype(np.int64)
    left = horizon - persons - int(more.sum())
    more[np.argsort(more - exact, kind="stable")[:left]] += 1
    return rng.permutation(np.repeat(np.arange(persons), 1 + more))
