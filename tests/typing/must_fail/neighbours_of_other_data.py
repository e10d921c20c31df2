# expect: incompatible type .*arg-type
"""Neighbours are data sets of what is checked."""

from numpy.random import Generator

from privlearn.budgets import PureDP
from privlearn.checking.asserts import assert_private


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, PureDP(1), neighbours=("alice", "bob"))
