# expect: (arg-type|call-overload|return-value)
"""A distinguisher scores outputs by numbers."""

from numpy.random import Generator

from privlearn.checking.asserts import assert_private
from privlearn.losses.budgets import PureDP


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


def speaks(output: object) -> str:
    return "first" if output else "second"


assert_private(noisy, PureDP(1), neighbours=([0.0], [1.0]), distinguisher=speaks)
