"""Open streams, on noise that is known, and the explicit matrices they stand for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BinaryTree,
    BufferedToeplitz,
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


FALLING = (1.0, 0.97, 0.97, 0.6, 0.3)
"""Norms of columns at knots."""


def banded(horizon: int, band: int = 9, columns: tuple[float, ...] = (1.0,)) -> BandedBLT:
    """Weights of both signs, row scales that fall and rise."""
    weights, decay = (0.5, -0.2, 0.15), (0.6, 0.3, 0.01)
    return BandedBLT(horizon, band, weights, decay, (0.9, 1.0, 0.55, 0.4, 0.5), columns)


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
        accountant.issuer.noise = cast(NoiseSource, Tape(z))
    token = accountant.issue(mechanism.loss(), users=users, label="stream")
    return mechanism.open(token), accountant


def matrix_c(factorization: Factorization, n: int) -> Array:
    """C from its definition: tree nodes, or long division of the two polynomials."""
    c = np.zeros((n, n))
    if isinstance(factorization, BinaryTree):
        for t in range(1, n + 1):
            c[t - 1, t - (t & -t) : t] = 1.0
        return c
    if isinstance(factorization, BandedBLT):
        return banded_c(factorization)
    assert isinstance(factorization, BufferedToeplitz | AnytimeBLT)
    above = np.poly(1.0 - np.array(factorization.output_decay))
    below = np.poly(1.0 - np.array(factorization.decay))
    series = np.zeros(n)
    for k in range(n):
        series[k] = above[k] if k < len(above) else 0.0
        series[k] -= sum(below[i] * series[k - i] for i in range(1, min(k, len(below) - 1) + 1))
    for j in range(n):
        c[j:, j] = series[: n - j]
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


def coefficients_of(made: BandedBLT, size: int | None = None) -> list[Fraction]:
    """c_0, c_1, ... up to the band, exactly."""
    pairs = [(Fraction(w), 1 - Fraction(a)) for w, a in zip(made.weights, made.decay, strict=True)]
    stop = min(made.band, size or made.horizon)
    return [Fraction(1)] + [
        sum((w * theta ** (u - 1) for w, theta in pairs), Fraction(0)) for u in range(1, stop)
    ]


def line_of(n: int, scales: tuple[float, ...]) -> list[Fraction]:
    """Scales of rows or columns: the straight lines between the knots, exactly."""
    knots = [Fraction(x) for x in scales]
    q = max(len(knots) - 1, 1)
    times = [1 + Fraction((n - 1) * k * k * (3 * q - 2 * k), q**3) for k in range(len(knots))]
    found = []
    for t in range(1, n + 1):
        k = max((i for i in range(len(knots) - 1) if times[i] <= t), default=0)
        if n == 1 or len(knots) == 1:
            found.append(knots[0])
        else:
            slope = (knots[k + 1] - knots[k]) / (times[k + 1] - times[k])
            found.append(knots[k] + slope * (t - times[k]))
    return found


def banded_c(made: BandedBLT) -> Array:
    """C from its definition: banded Toeplitz, rows scaled, then columns to their norms."""
    n = made.horizon
    c = [float(x) for x in coefficients_of(made)]
    found = np.zeros((n, n))
    for j in range(n):
        found[j : j + len(c), j] = c[: n - j]
    rows, columns = (
        np.array([float(x) for x in line_of(n, scales)])
        for scales in (made.row_scales, made.column_scales)
    )
    found *= rows[:, None]
    return np.asarray(found * (columns / np.linalg.norm(found, axis=0)))


def true_banded_sums(made: BandedBLT, y: NDArray[np.int64]) -> list[list[int]]:
    """T·y in steps of 2⁻²⁰⁰, term by term."""
    pairs = [
        (int(Fraction(w) * 2**PLACES), int((1 - Fraction(a)) * 2**PLACES))
        for w, a in zip(made.weights, made.decay, strict=True)
    ]
    c, terms = [1 << PLACES], [w for w, _ in pairs]
    for _ in range(1, min(made.band, len(y))):
        c.append(sum(terms))
        terms = [term * theta >> PLACES for term, (_, theta) in zip(terms, pairs, strict=True)]
    columns = [
        np.convolve(np.array(x, dtype=object), np.array(c, dtype=object)) for x in y.T.tolist()
    ]
    return [list(row) for row in zip(*(column[: len(y)] for column in columns), strict=True)]
