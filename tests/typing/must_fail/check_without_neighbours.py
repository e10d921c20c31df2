# expect: call-overload
"""Nobody knows the worst data sets of a plain function but its author."""

from numpy.random import Generator

from privlearn.checking.asserts import assert_private
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, PureDP(1))
