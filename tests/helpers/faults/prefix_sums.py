"""Broken prefix sums over T = 256 steps: each shows all of its noisy running sums."""

from __future__ import annotations

import math

import numpy as np

from faults.cases import RandomFunction, sampling_fault
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.rows.domains import Array

T = 256
LEVELS = 9
"""Nodes that the first step is in: log2(T) + 1."""


def _fenwick() -> Array:
    """Row t sums the nodes of the prefix t + 1."""
    nodes = np.zeros((T, T))
    for t in range(1, T + 1):
        left = t
        while left:
            nodes[t - 1, left - 1] = 1.0
            left -= left & -left
    return nodes


_NODES = _fenwick()


def tree(std: float) -> RandomFunction:
    """Prefix sums with Gaussian noise on the nodes of a binary tree."""
    return lambda data, rng: np.cumsum(data) + _NODES @ rng.normal(scale=std, size=T)


def laplace_tree(scale: float) -> RandomFunction:
    """The same with Laplace noise."""
    return lambda data, rng: np.cumsum(data) + _NODES @ rng.laplace(scale=scale, size=T)


def walk(std: float) -> RandomFunction:
    """Prefix sums of noisy steps."""
    return lambda data, rng: np.cumsum(data + rng.normal(scale=std, size=T))


def fresh(std: float) -> RandomFunction:
    """Every running sum with noise of its own."""
    return lambda data, rng: np.cumsum(data) + rng.normal(scale=std, size=T)


def same(std: float) -> RandomFunction:
    """Every running sum with the same noise."""
    return lambda data, rng: np.cumsum(data) + rng.normal(scale=std)


_FIRST = (np.where(np.arange(T) == 0, 1.0, 0.0), np.zeros(T))
_ONE = math.sqrt(1 / (2 * 0.5))
"""σ of one sum at ρ = 1/2 and sensitivity 1."""

FAULTS = (
    sampling_fault(
        "log T forgotten in a tree",
        "Every node gets the noise of a single sum, although the first step is in nine nodes.",
        "Chan, Shi & Song 2011 and Dwork et al. 2010 divide by log T",
        tree(_ONE),
        tree(_ONE * math.sqrt(LEVELS)),
        ZCDP("0.5"),
        _FIRST,
        samples=2_000,
    ),
    sampling_fault(
        "log T forgotten in a tree with Laplace noise",
        "The same with pure ε.",
        "Chan, Shi & Song 2011, Private and continual release of statistics",
        laplace_tree(1.0),
        laplace_tree(float(LEVELS)),
        PureDP(1),
        _FIRST,
        samples=2_000,
    ),
    sampling_fault(
        "half the noise in a stream",
        "The noise of every node is half of what it should be.",
        "a clipping bound mistaken for the distance of two clipped records",
        tree(_ONE * math.sqrt(LEVELS) / 2),
        tree(_ONE * math.sqrt(LEVELS)),
        ZCDP("0.5"),
        _FIRST,
        samples=2_000,
    ),
    sampling_fault(
        "running sums sold one by one",
        "Every running sum has noise of its own, and the composition over T steps is left out.",
        "Dwork, Naor, Pitassi & Rothblum 2010, Differential privacy under continual observation",
        fresh(_ONE),
        fresh(_ONE * math.sqrt(T)),
        ZCDP("0.5"),
        _FIRST,
        samples=2_000,
    ),
    sampling_fault(
        "the same noise at every step",
        "Running sums share one draw, so that their differences are exact.",
        "Dwork et al. 2010: the noise of each node is independent; a usual slip",
        same(_ONE),
        walk(_ONE),
        ZCDP("0.5"),
        (np.where(np.arange(T) == 9, 1.0, 0.0), np.zeros(T)),
        samples=2_000,
    ),
)
