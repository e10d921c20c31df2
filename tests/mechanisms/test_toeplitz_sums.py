"""The integers R near C·X of a BLT: within the stated error, however the rows come."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from streams_and_matrices import PLACES, banded, true_sums

from privlearn.mechanisms import AnytimeBLT, BufferedToeplitz, toeplitz_sums
from privlearn.mechanisms.buffered_toeplitz import blt_table
from privlearn.mechanisms.factorization import Factorization, Rounding
from privlearn.mechanisms.toeplitz import Toeplitz, toeplitz
from privlearn.mechanisms.toeplitz_sums import ToeplitzSums, sums_error

Integers = NDArray[np.int64]
LARGEST = 2**38
"""Half a standard deviation, in steps of 2⁻³⁹ of it."""
BLTS = [BufferedToeplitz.fitted(n) for n in (7, 300, 3000)] + [
    BufferedToeplitz(3000, *blt_table()[20]),
    BufferedToeplitz(3000, *blt_table()[30]),
    BufferedToeplitz(2000, (2.0**-90,), (0.3,)),
    AnytimeBLT(horizon=3000),
]


def rows_of(kind: str, n: int, largest: int) -> Integers:
    """Columns of adversarial data: constant at the bound, and signs at random."""
    rng = np.random.default_rng(n)
    if kind == "bound":
        return np.array([[largest, -largest]] * n)
    signs = rng.choice([-1, 1], size=(n, 2))
    if kind == "signs":
        return np.asarray(signs * largest)
    return rng.integers(-largest, largest, size=(n, 2), endpoint=True)


def largest_error(found: Integers, true: list[list[int]]) -> float:
    """Of any entry, in steps."""
    errors = [
        abs((int(value) << PLACES) - exact)
        for row, exacts in zip(found.tolist(), true, strict=True)
        for value, exact in zip(row, exacts, strict=True)
    ]
    return float(Fraction(max(errors), 2**PLACES))


def numbers_of(blt: BufferedToeplitz | AnytimeBLT) -> Toeplitz:
    return toeplitz(blt.decay, blt.output_decay)


@pytest.mark.parametrize("kind", ["bound", "signs", "random"])
@pytest.mark.parametrize("blt", BLTS, ids=lambda f: f"{f.kind}-{f.horizon}-{f.decay[-1]:.0e}")
def test_sums_are_within_the_stated_error(blt: BufferedToeplitz | AnytimeBLT, kind: str) -> None:
    x = rows_of(kind, blt.horizon, LARGEST)
    true = true_sums(blt.decay, blt.output_decay, x)
    stated = sums_error(numbers_of(blt), blt.horizon, LARGEST)
    assert blt.rounding(LARGEST) == Rounding(Fraction(0), 2 * stated)
    error = largest_error(blt.encoder(2)(x), true)
    assert error <= stated
    assert error > 0.4  # rounding to integers alone
    assert stated < 2


@pytest.mark.parametrize("horizon", [31, 64, 1000])
def test_numbers_that_no_double_holds_are_within_the_stated_error(horizon: int) -> None:
    """Up to 2⁶⁰ in all: rows are rounded to doubles, too."""
    blt = BufferedToeplitz.fitted(horizon)
    largest = int(2**60 / blt.reach())
    assert largest > 2**50
    x = rows_of("random", horizon, largest)
    stated = sums_error(numbers_of(blt), horizon, largest)
    error = largest_error(blt.encoder(2)(x), true_sums(blt.decay, blt.output_decay, x))
    assert error <= stated
    assert error > stated / 1000


def test_states_stay_within_the_reach() -> None:
    """A constant stream of the largest numbers on a grid that is just fine enough for them."""
    for blt in (BufferedToeplitz(500, (0.01,), (0.2,)), BufferedToeplitz.fitted(500)):
        largest = int(2**61 / blt.reach()) - 1
        sums = ToeplitzSums(numbers_of(blt), 1)
        x = np.full((500, 1), largest, dtype=np.int64)
        found = sums(x)
        assert max(abs(int(v)) for v in sums._state.flat) < 2**61
        true = true_sums(blt.decay, blt.output_decay, x)
        assert largest_error(found, true) <= sums_error(numbers_of(blt), 500, largest)
        assert max(row[0] for row in true) < 2 ** (61 + PLACES)


SPLITS: list[Callable[[int], list[int]]] = [
    lambda n: [1] * n,
    lambda n: [33] * (n // 33) + [n % 33],
    lambda n: [5, 27, 1, 31, 64, n - 128],
]


@pytest.mark.parametrize("dim", [1, 3, 300])
@pytest.mark.parametrize(
    "blt",
    [
        BufferedToeplitz.fitted(200),
        AnytimeBLT(),
        banded(200, 20),
        banded(200, 45),
        banded(200, 200),
    ],
    ids=str,
)
def test_rows_do_not_depend_on_how_they_come(blt: Factorization, dim: int) -> None:
    """Bit for bit, of R and of B·Y."""
    rng = np.random.default_rng(dim)
    x = rng.integers(-(2**45), 2**45, size=(200, dim))
    whole = blt.encoder(dim)(x)
    y = whole + rng.integers(-(2**42), 2**42, size=x.shape)
    outputs = blt.decoder(dim)(y)
    for split in SPLITS:
        encoder, decoder = blt.encoder(dim), blt.decoder(dim)
        at, sums, rows = 0, [], []
        for n in split(200):
            sums.append(encoder(x[at : at + n]))
            rows.append(decoder(y[at : at + n]))
            at += n
        assert np.array_equal(np.concatenate(sums), whole)
        assert np.concatenate(rows).tobytes() == outputs.tobytes()


def _without_residue(self: ToeplitzSums) -> None:
    _advance(self)
    self._input[: len(self._state)] -= self._residue
    self._residue[:] = 0.0


def _saturated(self: ToeplitzSums) -> None:
    _advance(self)
    np.clip(self._state, -(2**45), 2**45, out=self._state)
    self._input[: len(self._state)] = self._state


_advance = ToeplitzSums._advance


@pytest.mark.parametrize("broken", [_without_residue, _saturated])
def test_the_bound_is_missed_by_broken_sums(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[ToeplitzSums], None]
) -> None:
    monkeypatch.setattr(toeplitz_sums.ToeplitzSums, "_advance", broken)
    blt = BufferedToeplitz(3000, *blt_table()[20])
    x = rows_of("bound", 3000, LARGEST)
    x[:, 1] = rows_of("random", 3000, 2**20)[:, 1]
    error = largest_error(blt.encoder(2)(x), true_sums(blt.decay, blt.output_decay, x))
    assert error > sums_error(numbers_of(blt), 3000, LARGEST)


def test_another_order_of_additions_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin of the split: rows made one by one by another kernel than in blocks."""
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**50), 2**50, size=(320, 3))
    blt = BufferedToeplitz.fitted(2**20)
    whole = blt.encoder(3)(x)

    def row_by_row() -> Integers:
        encoder = blt.encoder(3)
        return np.concatenate([encoder(row[None]) for row in x])

    assert np.array_equal(row_by_row(), whole)
    monkeypatch.setattr(toeplitz_sums, "RowProducts", Reordered)
    assert not np.array_equal(row_by_row(), whole)


class Reordered:
    """Adds up from the last term to the first, as another kernel may."""

    def __init__(self, matrix: NDArray[np.float64], inputs: NDArray[np.float64]) -> None:
        self.matrix, self.inputs = matrix, inputs

    def __call__(self, first: int, stop: int) -> NDArray[np.float64]:
        out = np.zeros((stop - first, self.inputs.shape[1]))
        for k in reversed(range(len(self.inputs))):
            out += self.matrix[first:stop, k : k + 1] * self.inputs[k]
        return out
