"""Every pattern of visits of a small stream, and how far it moves C X: no formula is in it."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@cache
def patterns(n: int, most: int, apart: int) -> Array:
    """All non-empty patterns as rows of 0 and 1: every subset of n slots, one by one. n <= 16."""
    subsets = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    kept = subsets.sum(axis=1) <= most
    for gap in range(1, min(apart, n)):
        kept &= ~(subsets[:, gap:] & subsets[:, : n - gap]).any(axis=1)
    return np.asarray(subsets[kept].astype(float))


def largest_move(c: Array, most: int, apart: int) -> float:
    """max over patterns of the norm of sum |column j|."""
    return float(np.linalg.norm(patterns(len(c), most, apart) @ np.abs(c).T, axis=1).max())


def toeplitz_matrix(c: Array) -> Array:
    """Lower triangular, with c in its first column."""
    lag = np.subtract.outer(np.arange(len(c)), np.arange(len(c)))
    return np.where(lag >= 0, c[np.abs(lag)], 0.0)


def tree_matrix(n: int) -> Array:
    """Row t holds (t - lowbit(t), t]."""
    c = np.zeros((n, n))
    for t in range(1, n + 1):
        c[t - 1, t - (t & -t) : t] = 1.0
    return c
