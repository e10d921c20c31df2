"""Open streams, on noise that is known, and the explicit matrices they stand for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.budgets import ZCDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BinaryTree,
    BufferedToeplitz,
    ColumnNormalizedBLT,
    PrefixSum,
    PrefixSumStream,
)
from privlearn.mechanisms.factorization import Factorization
from privlearn.noise import NoiseSource

Array = NDArray[np.float64]
PLACES = 200
"""Binary places of what is computed in integers."""


class Tape:
    """A noise source that plays recorded standard normal rows, in steps of 2⁻⁴⁰, then zeros."""

    simulated = True

    def __init__(self, z: Array) -> None:
        self.floors_ahead, self.at = np.floor(z * 2.0**40).astype(np.int64).reshape(-1), 0

    def pool(self) -> Tape:
        return self

    def floors(self, kind: str, n: int) -> NDArray[np.int64]:
        assert kind == "normal"
        found = np.zeros(n, dtype=np.int64)
        part = self.floors_ahead[self.at : self.at + n]
        found[: len(part)] = part
        self.at += n
        return found


def open_stream(
    mechanism: PrefixSum[Any], users: range, z: Array | None = None, seed: int = 0
) -> tuple[PrefixSumStream[Any], CentralAccountant[ZCDP]]:
    accountant = CentralAccountant(
        ZCDP("1e30"),
        users=users,
        noise=NoiseSource.simulation(seed),
        adjacency=mechanism.adjacency,
    )
    if z is not None:
        accountant.noise = cast(NoiseSource, Tape(z))
    token = accountant.issue(mechanism.loss(), users=users, label="stream")
    return mechanism.open(token), accountant


def matrix_c(factorization: Factorization, n: int) -> Array:
    """C from its definition: tree nodes, or long division of the two polynomials."""
    c = np.zeros((n, n))
    if isinstance(factorization, BinaryTree):
        for t in range(1, n + 1):
            c[t - 1, t - (t & -t) : t] = 1.0
        return c
    assert isinstance(factorization, BufferedToeplitz | ColumnNormalizedBLT | AnytimeBLT)
    above = np.poly(1.0 - np.array(factorization.output_decay))
    below = np.poly(1.0 - np.array(factorization.decay))
    series = np.zeros(n)
    for k in range(n):
        series[k] = above[k] if k < len(above) else 0.0
        series[k] -= sum(below[i] * series[k - i] for i in range(1, min(k, len(below) - 1) + 1))
    for j in range(n):
        c[j:, j] = series[: n - j]
    if isinstance(factorization, ColumnNormalizedBLT):
        c = c / np.linalg.norm(c, axis=0)
    return c


def true_sums(
    decay: tuple[float, ...], output_decay: tuple[float, ...], x: NDArray[np.int64]
) -> list[list[int]]:
    """C·x in steps of 2⁻²⁰⁰, by a recursion on integers with w from its definition."""
    a, b = [Fraction(y) for y in decay], [Fraction(y) for y in output_decay]
    weights = []
    for i, here in enumerate(a):
        weight = Fraction(1)
        for j, other in enumerate(b):
            weight *= other - here
            weight /= a[j] - here if j != i else 1
        weights.append(int(abs(weight) * 2**PLACES))
    thetas = [int((1 - y) * 2**PLACES) for y in a]
    states = [[0] * x.shape[1] for _ in a]
    found = []
    for row in x.tolist():
        sums = [v << PLACES for v in row]
        for i, factor in enumerate(weights):
            for d, v in enumerate(row):
                sums[d] += factor * states[i][d] >> PLACES
                states[i][d] = (thetas[i] * states[i][d] >> PLACES) + (v << PLACES)
        found.append(sums)
    return found
