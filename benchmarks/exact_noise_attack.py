"""The precision attack: what the last bits of released numbers tell of the data.

    OMP_NUM_THREADS=1 python benchmarks/exact_noise_attack.py [--samples 1000000]

Two data sets, a million released numbers of each.  From the first half it is learned which values
of the last bits are likelier on which data set; the bound on ε follows from how often they come in
the second half, at confidence 0.95.  Bits are those of the number in steps of the lattice that it
lies on; of NumPy's noise, which stands beside it, in steps of 2^-60.  Nothing here is asserted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from privlearn.checking.sampling.check import claim_of, event_bound
from privlearn.checking.stream_runs import StubAccountant, released_by
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import BinaryTree, NoisyReport, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count

BITS = (1, 4, 8, 12)
CONFIDENCE = 0.95
SIZE = 500
"""Numbers in one contribution, all of which differ."""
OFF_THE_GRID = 1 / 0.3
"""A scale of noise whose steps are no power of two."""


@dataclass(frozen=True)
class Subject:
    """Something that releases numbers of one of two data sets.

    Args:
        name: for the table.
        step: of the lattice that its numbers lie on, or of the finest digits that are looked at.
        numbers: for a data set and a seed.
    """

    name: str
    step: float
    numbers: Callable[[bool, int], Array]


def exact(name: str, made: Callable[[Any], Any], rows: int = 1) -> Subject:
    """A mechanism that releases integers times the step of its grid."""
    mechanism = made(Box(0.0, 1.0, SIZE))
    blocks = [np.zeros((rows, SIZE)), np.zeros((rows, SIZE))]
    blocks[1][0] = 0.7

    def numbers(second: bool, seed: int) -> Array:
        stub = StubAccountant(seed, Adjacency.REPLACE_ONE)
        sealed: Rows[Any] = Rows.seal(blocks[second], users=range(rows))
        return np.ravel(released_by(mechanism, sealed, stub.issue(range(rows)))[1])

    return Subject(name, mechanism.spend().grid.step, numbers)


def in_doubles(name: str, draw: Callable[[np.random.Generator], Array]) -> Subject:
    """NumPy's noise, added in doubles."""
    return Subject(
        name, 2.0**-60, lambda second, seed: 0.7 * second + draw(np.random.default_rng(seed))
    )


SUBJECTS = (
    exact("Gaussian sum, σ = 1", lambda box: NoisySum(box, GaussianNoise(1.0))),
    exact("Gaussian sum, σ = 1/0.3", lambda box: NoisySum(box, GaussianNoise(OFF_THE_GRID))),
    exact("Laplace sum, scale 10", lambda box: NoisySum(box, LaplaceNoise(10.0))),
    exact("Laplace sum, scale 1/0.3", lambda box: NoisySum(box, LaplaceNoise(OFF_THE_GRID))),
    exact("Gaussian report, σ = 1/0.3", lambda box: NoisyReport(box, GaussianNoise(OFF_THE_GRID))),
    exact("tree of 8 rows, σ = 1/0.3", lambda box: PrefixSum(box, BinaryTree(8), OFF_THE_GRID), 8),
)
IN_DOUBLES = (
    in_doubles("NumPy's normal, σ = 1", lambda rng: rng.normal(0, 1, SIZE)),
    in_doubles("NumPy's normal, σ = 1/0.3", lambda rng: rng.normal(0, OFF_THE_GRID, SIZE)),
    in_doubles("NumPy's Laplace, scale 10", lambda rng: rng.laplace(0, 10, SIZE)),
    in_doubles("NumPy's Laplace, scale 1/0.3", lambda rng: rng.laplace(0, OFF_THE_GRID, SIZE)),
)


def drawn(subject: Subject, second: bool, n: int) -> Array:
    """``n`` released numbers."""
    parts, have, seed = [], 0, int(second)
    while have < n:
        parts.append(subject.numbers(second, seed))
        have, seed = have + len(parts[-1]), seed + 2
    return np.concatenate(parts)[:n]


def last_bits(values: Array, step: float, bits: int) -> Any:
    """Of numbers in steps; those beyond 2^62 steps have none, and count as 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(values / step)
        whole = np.where(np.abs(steps) < 2.0**62, steps, 0.0).astype(np.int64)
    return whole & (1 << bits) - 1


def low_bits_bound(first: Array, second: Array, step: float, bits: int) -> float:
    """A lower bound on ε from the last bits of two samples of equal size."""
    claim, n = claim_of(PureDP(1)), len(first)
    half = n // 2
    one, two = (last_bits(values, step, bits) for values in (first, second))
    known = [np.bincount(code[:half], minlength=1 << bits) for code in (one, two)]
    likely = known[0] > known[1]
    p, q = (int(likely[code[half:]].sum()) for code in (one, two))
    m, sure = n - half, 1 - (1 - CONFIDENCE) / 2  # of two bounds, one for either way
    ways = ((p, q), (m - q, m - p))
    return max(0.0, *(event_bound(claim, k, m, low, m, sure) for k, low in ways))


def off_lattice(values: Array, step: float) -> int:
    """How many numbers are no multiple of ``step``."""
    return int(np.count_nonzero(np.rint(values / step) * step != values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    n = count(samples=parser.parse_args().samples, at_least=1000)
    print(f"{n} numbers of each data set; bounds on ε at confidence {CONFIDENCE}")
    head = " ".join(f"{f'{bits} bits':>8}" for bits in BITS)
    print(f"{'':32} {head}   off the lattice")
    for subject in (*SUBJECTS, *IN_DOUBLES):
        first, second = drawn(subject, False, n), drawn(subject, True, n)
        bounds = [low_bits_bound(first, second, subject.step, bits) for bits in BITS]
        row = " ".join(f"{bound:8.2f}" for bound in bounds)
        off = [off_lattice(x, subject.step) for x in (first, second)]
        said = f"{off[0]} and {off[1]}" if subject in SUBJECTS else "–"
        print(f"{subject.name:32} {row}   {said}", flush=True)


if __name__ == "__main__":
    main()
