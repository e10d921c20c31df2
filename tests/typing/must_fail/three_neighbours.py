# expect: incompatible type .*arg-type
"""A pair has two data sets."""

from numpy.random import Generator

from privlearn.checking.asserts import assert_private
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, PureDP(1), neighbours=([0.0], [1.0], [2.0]))
