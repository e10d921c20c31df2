# expect: call-overload
"""A plain function promises nothing until somebody says what."""

from numpy.random import Generator

from privlearn.checking import check_mechanism


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


check_mechanism(noisy, neighbours=([0.0], [1.0]))
