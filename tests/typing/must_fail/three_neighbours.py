# expect: incompatible type .*arg-type
"""A pair has two data sets."""

from numpy.random import Generator

from privlearn.budgets import PureDP
from privlearn.checking.asserts import assert_private


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, PureDP(1), neighbours=([0.0], [1.0], [2.0]))
