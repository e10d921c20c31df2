# expect: call-overload
"""Nobody knows the worst data sets of a plain function but its author."""

from numpy.random import Generator

from privlearn.checking import check_mechanism
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


check_mechanism(noisy, PureDP(1))
