"""What a durable issue, spend and retire costs: syncs, CPU and wall time, memory, resuming.

    OMP_NUM_THREADS=1 python benchmarks/durable_spends.py [--spends 2000] [--memory 100000]

CPU and wall times are minima over tries, on a machine that others may use, too; system time within
a sync is counted as CPU.  Syncs are those of the library (SQLite is told to make none, which the
tests count with strace).  Memory is the growth of the resident set over a run whose syncs are left
out, as they change nothing about it.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from reporting import Table, parser, write

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
ROWS = Rows.seal(np.ones((4, 2)), users=USERS)
TRIES = 10


def accountant(book: Ledger) -> CentralAccountant[ZCDP]:
    """With a cap for as many spends as anybody waits for."""
    return CentralAccountant(ZCDP(10**6), users=USERS, ledger=book, noise=NoiseSource.simulation(0))


def release(spender: CentralAccountant[ZCDP]) -> None:
    """Issue, spend, two numbers with noise, and the end with its value."""
    MECHANISM.release(ROWS, spender.issue(ZCDP("0.01"), users=USERS, label="sum"))


class Cost(NamedTuple):
    """Of one release."""

    cpu: float
    wall: float
    syncs: float


def cost(spender: CentralAccountant[ZCDP], spends: int) -> Cost:
    """The least of several tries; microseconds."""
    syncs = Counter[str]()
    real, real_data = os.fsync, os.fdatasync

    def fsync(file: int) -> None:
        syncs["all"] += 1
        real(file)

    def fdatasync(file: int) -> None:
        syncs["all"] += 1
        real_data(file)

    found = []
    each = max(spends // TRIES, 1)
    with patch("os.fsync", fsync), patch("os.fdatasync", fdatasync):
        for _ in range(TRIES):
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(each):
                release(spender)
            found.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpus, walls = zip(*found, strict=True)
    return Cost(min(cpus) / each * 1e6, min(walls) / each * 1e6, syncs["all"] / (TRIES * each))


def costs(folder: Path, spends: int) -> Table:
    """In memory, in a file, and in a file whose syncs are left out."""
    rows = []
    memory = cost(accountant(Ledger.memory()), spends)
    file = cost(accountant(Ledger.create(folder / "file.db")), spends)
    with patch("os.fsync", lambda file: None), patch("os.fdatasync", lambda file: None):
        unsynced = cost(accountant(Ledger.create(folder / "unsynced.db")), spends)._replace(syncs=0)
    for name, each in (("memory", memory), ("file", file), ("file, syncs left out", unsynced)):
        beyond = each.cpu - memory.cpu
        rows.append(
            [name, *(f"{value:.0f}" for value in each[:2]), f"{each.syncs:.2f}", f"{beyond:.0f}"]
        )
    header = ["ledger", "CPU, µs", "wall, µs", "syncs", "CPU beyond memory, µs"]
    return Table("Durable issue + spend + retire", header, rows)


def streams(folder: Path, spends: int) -> Table:
    """Of a stream: how far it comes, and a value of it."""
    users = range(max(spends, 1024))
    book = Ledger.create(folder / "stream.db")
    spender: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(1), users=users, ledger=book, noise=NoiseSource.simulation(0)
    )
    mechanism: Any = PrefixSum(Ball(1.0, 2), BinaryTree(len(users)), 100.0)
    stream = mechanism.open(spender.issue(mechanism.loss(), users=users, label="sums"))
    rows = [Rows.seal(np.ones((1, 2)), users=range(user, user + 1)) for user in users]
    syncs = Counter[str]()
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        syncs["all"] += 1
        real(file)

    cpu, wall = time.process_time(), time.perf_counter()
    with patch("os.fdatasync", fdatasync):
        for user in users:
            stream.append(rows[user])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    n = len(users)
    row = ["publish, and reach every 256", f"{cpu / n * 1e6:.0f}", f"{wall / n * 1e6:.0f}"]
    header = ["step", "CPU, µs", "wall, µs", "syncs"]
    return Table("A stream of one user a step", header, [[*row, f"{syncs['all'] / n:.4f}"]])


def resident() -> int:
    """Of this process, bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def memory(folder: Path, spends: int) -> Table:
    """Of a long run: the ledger alone, and with its accountant."""
    path = folder / "long.db"
    with patch("os.fsync", lambda file: None), patch("os.fdatasync", lambda file: None):
        spender = accountant(Ledger.create(path))
        for _ in range(1000):
            release(spender)
        before = resident()
        for _ in range(spends):
            release(spender)
        grown = resident() - before
        spender.ledger.close()
        start = time.perf_counter()
        Ledger.open(path).close()
        opened = time.perf_counter() - start
        start = time.perf_counter()
        again: CentralAccountant[ZCDP] = CentralAccountant.resume(
            path, noise=NoiseSource.simulation(1)
        )
        resumed = time.perf_counter() - start
        assert again.spent() == spender.spent()
    size = path.stat().st_size / 2**20
    row = [f"{spends + 1000:,}", f"{size:.0f}", f"{grown / 2**20:.1f}", f"{grown / spends:.0f}"]
    header = ["spends", "ledger file, MiB", "growth, MiB", "bytes a spend", "open, s", "resume, s"]
    return Table(
        "Memory and resuming of a long run", header, [[*row, f"{opened:.1f}", f"{resumed:.1f}"]]
    )


def main() -> None:
    """Measures and prints."""
    options = parser(__doc__)
    options.add_argument("--spends", type=int, default=2000)
    options.add_argument("--memory", type=int, default=100_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = [costs(folder, given.spends), streams(folder, given.spends)]
        if given.memory:
            tables.append(memory(folder, given.memory))
    write("durable_spends", tables, {})


if __name__ == "__main__":
    main()
