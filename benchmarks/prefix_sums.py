"""Errors and speed of the prefix-sum factorisations.

    python benchmarks/prefix_sums.py

Error: column_norm() * max_error_std(), the largest standard deviation of a prefix sum at mu = 1
(rho = 1/2), sensitivity 1; the AnytimeBLT's is its error at time n.  Speed: microseconds per
arrival of NoiseStream.next in calls of ROWS rows (or 1), drawing included, and in parentheses the
ratio to drawing the same normals with the same numpy Generator in calls of the same size; both
timed in turn, minimum of REPEATS.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from privlearn.mechanisms.factorization import (
    AnytimeBLT,
    BinaryTree,
    BufferedToeplitz,
    ColumnNormalizedBLT,
    Factorization,
)

LOG_HORIZONS = (10, 14, 16, 20)
DIMS = (15, 120, 1275)
ROWS = 256
REPEATS = 9
ENTRIES = 1_000_000  # normals per timing


def factorizations(horizon: int) -> list[Factorization]:
    """All four, for one horizon."""
    return [
        BinaryTree(horizon),
        BufferedToeplitz.fitted(horizon),
        ColumnNormalizedBLT.fitted(horizon),
        AnytimeBLT(),
    ]


def error(factorization: Factorization, horizon: int) -> float:
    """Largest standard deviation at mu = 1, sensitivity 1; without a horizon, that at time n."""
    bounded = factorization.horizon is not None
    std = factorization.max_error_std() if bounded else factorization.error_std(horizon)
    return factorization.column_norm() * std


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_arrival(index: int, dim: int, rows: int) -> tuple[float, float]:
    """(Microseconds per arrival of the stream, of drawing alone), the minima of several."""
    generator = np.random.default_rng(0)
    calls = max(ENTRIES // (dim * rows), 1)

    def draw(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return generator.standard_normal((n, dim))

    def drawn() -> None:
        for _ in range(calls):
            draw(rows)

    stream = factorizations(calls * rows * (REPEATS + 1))[index].stream(draw)

    def streamed() -> None:
        for _ in range(calls):
            stream.next(rows)

    times = [(seconds(streamed), seconds(drawn)) for _ in range(REPEATS)]
    best, floor = (min(column) * 1e6 / (calls * rows) for column in zip(*times, strict=True))
    return best, floor


def main() -> None:
    """Prints both tables."""
    print("error" + " " * 19 + "".join(f"{'n = 2^' + str(k):>12}" for k in LOG_HORIZONS))
    for index, first in enumerate(factorizations(1)):
        errors = [error(factorizations(2**k)[index], 2**k) for k in LOG_HORIZONS]
        print(f"{first.kind:24}" + "".join(f"{e:12.3f}" for e in errors))
    for rows in (ROWS, 1):
        print(f"\nus per arrival, next({rows})" + "".join(f"{'D = ' + str(d):>18}" for d in DIMS))
        for index, first in enumerate(factorizations(1)):
            cells = []
            for dim in DIMS:
                best, floor = per_arrival(index, dim, rows)
                cells.append(f"{best:.2f} ({best / floor:.2f}x)")
            print(f"{first.kind:24}" + "".join(f"{cell:>18}" for cell in cells))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
