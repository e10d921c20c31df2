"""Leased runs a second, beside durable spends; retries by nonce; and both killed at every point.

    OMP_NUM_THREADS=1 python benchmarks/leases.py [--runs 20000] [--spends 300] [--tokens 100000]

The ledger is a file on disk, and noise is the secure one.  CPU is that of the process, system time
included, and wall time that of a machine that others may use.  ``fresh rows``: a record is sealed
for each run, as in a service; else all runs open the same rows.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reporting import Table, parser, write

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

from paid_again import asked

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry
from privlearn.ledger.nonces import IssueNonces
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BallReport,
    CategoryReport,
    CrossPolytope,
    NoisyReport,
    NoisySum,
    OneOfK,
    OneOfKReport,
    ReportNoisyMax,
)
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

CAP = ZCDP(10**9)
SUM: NoisySum[Any] = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
LONG_SUM: NoisySum[Any] = NoisySum(Ball(1.0, 64), GaussianNoise(20.0))
REPORT: NoisyReport[Any] = NoisyReport(Ball(1.0, 2), GaussianNoise(20.0))


class Case(NamedTuple):
    """A mechanism, with a block of records that each run opens."""

    name: str
    mechanism: Any
    block: Any
    local: bool = False


def _vectors(n: int, d: int = 2) -> Any:
    return np.full((n, d), 0.25)


CASES = (
    Case("NoisySum, 2 numbers, 1 row", SUM, _vectors(1)),
    Case("NoisySum, 2 numbers, 16 rows", SUM, _vectors(16)),
    Case(
        "NoisySum, 64 numbers, 1 row", NoisySum(Ball(1.0, 64), GaussianNoise(20.0)), _vectors(1, 64)
    ),
    Case("OneOfK of 5 sums, 1 row", OneOfK(SUM, 5), (_vectors(1), np.zeros(1, int))),
    Case(
        "ReportNoisyMax of 6, 1 row",
        ReportNoisyMax.calibrated(CrossPolytope(3), 1.0, ZCDP("0.01")),
        _vectors(1, 3),
    ),
    Case(
        "NoisyReport, 2 numbers", NoisyReport(Ball(1.0, 2), GaussianNoise(20.0)), _vectors(1), True
    ),
    Case("BallReport, 2 numbers", BallReport.best(2, 1.0, 1), _vectors(1), True),
    Case("CategoryReport of 10", CategoryReport.calibrated(10, 1), np.zeros(1, int), True),
    Case(
        "OneOfKReport of 5",
        OneOfKReport(BallReport.best(2, 1.0, 1), 5),
        (_vectors(1), np.zeros(1, int)),
        True,
    ),
)


class Cost(NamedTuple):
    """Of one run, in microseconds."""

    cpu: float
    wall: float


def timed(work: Callable[[], object], runs: int) -> Cost:
    """What ``work``, which does so many, costs each."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Cost((time.process_time() - cpu) / runs * 1e6, (time.perf_counter() - wall) / runs * 1e6)


def _accountant(case: Case, folder: Path, users: int) -> Any:
    kind = LocalAccountant if case.local else CentralAccountant
    book = Ledger.create(folder / f"{secrets.token_hex(4)}.db")
    return kind(CAP, users=range(users), ledger=book)


def leased(case: Case, folder: Path, runs: int, *, fresh: bool, threads: int = 1) -> Cost:
    """Runs of one lease, with a first one before the clock is started."""
    block = case.block
    users = range(len(block[0] if isinstance(block, tuple) else block))
    accountant = _accountant(case, folder, len(users))
    with accountant.lease(case.mechanism, runs=runs + 1, users=users, label="runs") as lease:
        rows = Rows.seal(block, users=users)
        lease.release(rows)

        def some(n: int) -> None:
            for _ in range(n):
                lease.release(Rows.seal(block, users=users) if fresh else rows)

        def work() -> None:
            several = [
                threading.Thread(target=some, args=(runs // threads,)) for _ in range(threads)
            ]
            for thread in several:
                thread.start()
            for thread in several:
                thread.join()

        found = timed((lambda: some(runs)) if threads == 1 else work, runs)
        assert lease.left == runs - runs // threads * threads
    accountant.close()
    return found


def single(case: Case, folder: Path, spends: int) -> Cost:
    """The same with a durable spend each."""
    block = case.block
    users = range(len(block[0] if isinstance(block, tuple) else block))
    accountant = _accountant(case, folder, len(users))
    rows, loss = Rows.seal(block, users=users), case.mechanism.loss()

    def work() -> None:
        for _ in range(spends):
            token = accountant.issue(loss, users=users, label="runs")
            case.mechanism.release(rows, token)

    work()
    return timed(work, spends)


def rates(folder: Path, runs: int, spends: int) -> Table:
    """Leased runs a second, mechanism by mechanism."""
    rows = []
    for case in CASES:
        same = leased(case, folder, runs, fresh=False)
        fresh = leased(case, folder, runs, fresh=True)
        four = leased(case, folder, runs, fresh=True, threads=4)
        paid = single(case, folder, spends)
        rows.append(
            (
                case.name,
                f"{1e6 / same.cpu:,.0f}",
                f"{1e6 / fresh.cpu:,.0f}",
                f"{1e6 / fresh.wall:,.0f}",
                f"{1e6 / four.wall:,.0f}",
                f"{1e6 / paid.cpu:,.0f}",
                f"{1e6 / paid.wall:,.0f}",
            )
        )
    header = [
        "mechanism",
        "leased, CPU",
        "fresh rows, CPU",
        "fresh rows, wall",
        "4 threads, wall",
        "durable spends, CPU",
        "durable spends, wall",
    ]
    return Table("Runs a second", header, rows)


def retries(folder: Path, spends: int, tokens: int) -> Table:
    """A release under a nonce, its retry, and the table of nonces of a long ledger."""
    users = range(4)
    accountant = CentralAccountant(CAP, users=users, ledger=Ledger.create(folder / "retries.db"))
    rows = Rows.seal(_vectors(4), users=users)
    nonces = [secrets.token_hex(16) for _ in range(spends)]

    def work() -> None:
        for nonce in nonces:
            accountant.release_once(nonce, SUM, rows, users=users, label="sum")

    first, again = timed(work, spends), timed(work, spends)
    known = IssueNonces()
    drawn = [secrets.token_hex(16) for _ in range(tokens)]

    def note() -> None:
        for position, nonce in enumerate(drawn):
            known.note(position, nonce)

    noted, repeated = timed(note, tokens), timed(known.repeated, tokens)
    table = timed(lambda: known.position(drawn[0]), tokens)
    assert sum(isinstance(e, IssueEntry) for e in accountant.ledger.entries) == spends
    cells = [
        ("a release under a new nonce", first),
        ("the same nonce again", again),
        ("a nonce that is noted, when a ledger is read or written", noted),
        ("an audit's look for nonces that stand twice, each", repeated),
        ("the table of nonces, at the first that is asked for, each", table),
    ]
    rows_ = [(name, f"{cost.cpu:.3g}", f"{cost.wall:.3g}") for name, cost in cells]
    return Table("Retries, microseconds", ["what", "CPU", "wall"], rows_)


def deaths(folder: Path) -> Table:
    """A retried release and a lease, killed at every point that they pass."""
    started = time.perf_counter()
    found = asked(folder, "every")
    rows = []
    for work in ("retried", "leased"):
        mine = [each for each in found if each.work == work]
        rows.append(
            (
                work,
                str(sum(each.died for each in mine)),
                str(sum(each.unpaid for each in mine)),
                str(sum(len(each.problems) for each in mine)),
                str(sum(each.lost or "lost" in each.outcomes for each in mine)),
                f"{time.perf_counter() - started:.1f}",
            )
        )
    return Table(
        "Killed at every point", ["what", "deaths", "unpaid", "problems", "lost", "wall s"], rows
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--runs", type=int, default=20_000)
    made.add_argument("--spends", type=int, default=300)
    made.add_argument("--tokens", type=int, default=1_000_000)
    asked_for = made.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        tables = [
            rates(folder, asked_for.runs, asked_for.spends),
            retries(folder, asked_for.spends, asked_for.tokens),
            deaths(Path(tempfile.mkdtemp(dir=folder))),
        ]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    numbers = {table.title: [list(row) for row in table.rows] for table in tables}
    write("leases", tables, numbers, f"Load of the machine (1, 5, 15 minutes): {load}.")


if __name__ == "__main__":
    main()
