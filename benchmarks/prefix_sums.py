"""Errors and speed of the prefix-sum factorisations, alone and through the mechanism.

    OMP_NUM_THREADS=1 python benchmarks/prefix_sums.py

Error: column_norm() * max_error_std(), the largest standard deviation of a prefix sum at mu = 1
(rho = 1/2), sensitivity 1.  Speed: microseconds per arrival of R = encoder(X), N drawn from a pool
of exact noise, and decoder(R + N), in calls of ROWS rows (or 1), and in parentheses the ratio to
drawing as many normals with a numpy Generator in calls of the same size; both timed in turn,
minimum of REPEATS.  Then the same through `PrefixSum` with the banded BLT: sealed rows, clipping
(`Ball`, or `PSDTrace` on factors of 1 or 10 rows), a central accountant with a ledger in memory,
receipts and digests, with simulated and with secure noise; the ratio is to the same numpy floor,
and then to drawing the same normals from the accountant's own source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from reporting import Table, parser, write

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import PrefixSum
from privlearn.mechanisms.banded_blt import BandedBLT
from privlearn.mechanisms.binary_tree import BinaryTree
from privlearn.mechanisms.buffered_toeplitz import AnytimeBLT, BufferedToeplitz
from privlearn.mechanisms.factorization import Factorization
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Domain, PSDTrace

LOG_HORIZONS = (10, 14, 16, 20)
DIMS = (15, 120, 1275)
ROWS = 256
REPEATS = 9
ENTRIES = 1_000_000  # normals per timing
ANCHORS = {  # best known at n = 2^10, 2^14, 2^16, by kind
    "binary_tree": (10.49, 14.49, 16.49),
    "buffered_toeplitz": (3.273, 4.156, 4.600),
    "banded_blt": (2.971, 3.842, 4.280),
}
LIMITS = {15: 15.0, 120: 3.0, 1275: 1.6}  # largest ratio to the floor asked of plain vectors


def factorizations(horizon: int) -> list[Factorization]:
    """All four, for one horizon."""
    return [
        BinaryTree(horizon),
        BufferedToeplitz.fitted(horizon),
        BandedBLT.fitted(horizon),
        AnytimeBLT(horizon=horizon),
    ]


def error(factorization: Factorization) -> float:
    """Largest standard deviation at mu = 1, sensitivity 1."""
    return factorization.column_norm() * factorization.max_error_std()


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_arrival(index: int, dim: int, rows: int) -> tuple[float, float]:
    """(Microseconds per arrival of the stream, of drawing alone), the minima of several."""
    generator, pool = np.random.default_rng(0), NoiseSource.secure().pool()
    calls = max(ENTRIES // (dim * rows), 1)
    factorization = factorizations(calls * rows * (REPEATS + 1))[index]
    encoder, decoder = factorization.encoder(dim), factorization.decoder(dim)
    x = generator.integers(-(2**38), 2**38, size=(rows, dim))

    def drawn() -> None:
        for _ in range(calls):
            generator.standard_normal((rows, dim))

    def streamed() -> None:
        for _ in range(calls):
            decoder(encoder(x) + pool.floors("normal", rows * dim).reshape(rows, dim))

    times = [(seconds(streamed), seconds(drawn)) for _ in range(REPEATS)]
    best, floor = (min(column) * 1e6 / (calls * rows) for column in zip(*times, strict=True))
    return best, floor


class Step(NamedTuple):
    """Microseconds per arrival: of the mechanism, of numpy's normals, of the own source's."""

    mechanism: float
    floor: float
    own_floor: float

    def cell(self) -> str:
        """Time and both ratios."""
        ratios = self.mechanism / self.floor, self.mechanism / self.own_floor
        return f"{self.mechanism:.2f} ({ratios[0]:.2f}x, {ratios[1]:.2f}x)"


def domains(dim: int) -> dict[str, tuple[Domain[Any], tuple[int, ...]]]:
    """Domains of ``dim`` coordinates and the shape of a record, by title."""
    side = round((2 * dim) ** 0.5 - 0.5)
    return {
        "Ball": (Ball(1.0, dim), (dim,)),
        "PSDTrace, 1 factor row": (PSDTrace(1.0, side), (1, side)),
        "PSDTrace, 10 factor rows": (PSDTrace(1.0, side), (10, side)),
    }


def through_mechanism(
    domain: Domain[Any], shape: tuple[int, ...], rows: int, source: Callable[[], NoiseSource]
) -> Step:
    """Times one stream against drawing alone, in turn."""
    calls = max(ENTRIES // (10 * domain.size * rows), 2)
    horizon = calls * rows * (REPEATS + 1)
    mechanism = PrefixSum.calibrated(domain, ZCDP("1"), horizon=horizon)
    users = range(horizon)
    accountant = CentralAccountant(ZCDP("1"), users=users, ledger=Ledger.memory(), noise=source())
    token = accountant.issue(mechanism.loss(), users=users, label="benchmark")
    generator, own = np.random.default_rng(0), source().pool()
    block: Array = generator.standard_normal((rows, *shape))
    clock = 0

    with mechanism.open(token) as stream:

        def streamed() -> None:
            nonlocal clock
            for _ in range(calls):
                stream.append(Rows.seal(block, users=range(clock, clock + rows)))
                clock += rows

        def drawn() -> None:
            for _ in range(calls):
                generator.standard_normal((rows, domain.size))

        def drawn_own() -> None:
            for _ in range(calls):
                own.floors("normal", rows * domain.size)

        streamed()
        times = [(seconds(streamed), seconds(drawn), seconds(drawn_own)) for _ in range(REPEATS)]
    accountant.close()
    return Step(*(min(column) * 1e6 / (calls * rows) for column in zip(*times, strict=True)))


def error_table() -> tuple[Table, dict[str, list[float]]]:
    """Largest errors against the best known."""
    found, rows = {}, []
    for index, first in enumerate(factorizations(1)):
        errors = [error(factorizations(2**k)[index]) for k in LOG_HORIZONS]
        found[first.kind] = errors
        cells = [f"{e:.3f}" for e in errors]
        for i, known in enumerate(ANCHORS.get(first.kind, ())):
            cells[i] += f" ({errors[i] / known - 1:+.2%})"
        rows.append([first.kind, *cells])
    header = ["", *(f"n = 2^{k}" for k in LOG_HORIZONS)]
    return Table("Largest error (against the best known)", header, rows), found


def speed_table(rows: int) -> tuple[Table, dict[str, dict[int, tuple[float, float]]]]:
    """The factorisations alone, in integers."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for index, first in enumerate(factorizations(1)):
        found[first.kind] = {dim: per_arrival(index, dim, rows) for dim in DIMS}
    lines = [
        [kind, *(f"{best:.2f} ({best / floor:.2f}x)" for best, floor in by_dim.values())]
        for kind, by_dim in found.items()
    ]
    header = ["", *(f"D = {dim}" for dim in DIMS)]
    return Table(
        f"Without clipping and ledger, us per arrival (ratio to the floor), {rows} rows a call",
        header,
        lines,
    ), found


def mechanism_table(rows: int) -> tuple[Table, dict[str, dict[int, Step]]]:
    """Through the mechanism."""
    found: dict[str, dict[int, Step]] = {}
    for title in domains(DIMS[0]):
        for source, make in (
            ("simulated", lambda: NoiseSource.simulation(0)),
            ("secure", NoiseSource.secure),
        ):
            found[f"{title}, {source}"] = {
                dim: through_mechanism(*domains(dim)[title], rows, make) for dim in DIMS
            }
    lines = [[k, *(step.cell() for step in by_dim.values())] for k, by_dim in found.items()]
    header = ["", *(f"D = {dim}" for dim in DIMS)]
    title = (
        f"Through PrefixSum, us per arrival (ratio to the floor, to the own source), append({rows})"
    )
    return Table(title, header, lines), found


def main() -> None:
    """Prints and writes all tables."""
    parser(__doc__).parse_args()
    errors, error_numbers = error_table()
    tables = [errors]
    numbers: dict[str, Any] = {"errors": error_numbers, "log_horizons": LOG_HORIZONS}
    for rows in (ROWS, 1):
        table, alone = speed_table(rows)
        tables.append(table)
        numbers[f"alone, {rows} rows per call"] = alone
    for rows in (ROWS, 1):
        table, steps = mechanism_table(rows)
        tables.append(table)
        numbers[f"mechanism, {rows} rows per call"] = {
            k: {dim: step._asdict() for dim, step in by_dim.items()} for k, by_dim in steps.items()
        }
    limits = ", ".join(f"{limit:g}x at D = {dim}" for dim, limit in LIMITS.items())
    write(
        "prefix_sums",
        tables,
        numbers,
        f"Targets: errors within 1% of the best known; plain vectors at most {limits}.",
    )


if __name__ == "__main__":
    main()
