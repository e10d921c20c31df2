# expect: call-overload
"""Nobody knows the worst data sets of a plain function but its author."""

from numpy.random import Generator

from privlearn.budgets import PureDP
from privlearn.checking.asserts import assert_private


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, PureDP(1))
