# expect: call-overload
"""A number is no claim: of what?"""

from numpy.random import Generator

from privlearn.checking import check_mechanism


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


check_mechanism(noisy, 1.0, neighbours=([0.0], [1.0]))
