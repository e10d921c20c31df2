# expect: incompatible type .*arg-type
"""Neighbours are data sets of what is checked."""

from numpy.random import Generator

from privlearn.checking import check_mechanism
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


check_mechanism(noisy, PureDP(1), neighbours=("alice", "bob"))
