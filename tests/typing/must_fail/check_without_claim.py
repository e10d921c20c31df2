# expect: call-overload
"""A plain function promises nothing until somebody says what."""

from numpy.random import Generator

from privlearn.checking.asserts import assert_private


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


assert_private(noisy, neighbours=([0.0], [1.0]))
