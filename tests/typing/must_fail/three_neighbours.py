# expect: incompatible type .*arg-type
"""A pair has two data sets."""

from numpy.random import Generator

from privlearn.checking import check_mechanism
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


check_mechanism(noisy, PureDP(1), neighbours=([0.0], [1.0], [2.0]))
