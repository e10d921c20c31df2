"""What it costs to keep rows in an encrypted store, and to go on with them.

    OMP_NUM_THREADS=1 python benchmarks/row_store.py [--users 100000]

A row is an answer to 4 items with 5 features: 200 bytes of numbers.  The disk is waited for in
the first two figures, and not while the users of the third come.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import Answer
from privlearn.rows import Rows, RowStore


def answers(n: int, users: range) -> Rows[Answer]:
    features = np.random.default_rng(users.start).normal(size=(n, 4, 5))
    return Rows.seal(Answer(features, np.ones((n, 4)), np.zeros(n, int)), users=users)


def keeping(folder: Path, block: int, calls: int) -> None:
    path = folder / f"{block}.db"
    blocks = [answers(block, range(block * i, block * (i + 1))) for i in range(calls)]
    store = RowStore.create(path, RowStore.new_key())
    store.bind("me", (Answer,))
    wall, cpu = time.perf_counter(), time.process_time()
    for rows in blocks:
        store.keep(rows)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    store.close()
    n = block * calls
    print(
        f"rows in blocks of {block}: {cpu / n * 1e6:.1f} µs of CPU, {wall / n * 1e6:.1f} µs, "
        f"{path.stat().st_size / n:.0f} bytes each"
    )


def going_on(folder: Path, users: int) -> None:
    """One user after the other, in a batch that is still open."""
    ledger, path, key = folder / "ledger.db", folder / "rows.db", RowStore.new_key()
    accountant = JointAccountant(ZCDP(1), users=range(2 * users), ledger=Ledger.create(ledger))
    store = RowStore.create(path, key)
    store._RowStore__file.connection.execute("PRAGMA synchronous = OFF")  # type: ignore[attr-defined]
    learner = OnePassNewtonMNL(n_items=10, dim=5, max_items=4, first_batch=users + 1)
    learner.start(accountant, store=store)
    features = np.random.default_rng(0).normal(size=(1_000, 10, 5))
    for i in range(users):
        learner.observe(int(learner.select(features[i % 1_000])[0]))
    disk = accountant.ledger._disk
    assert disk is not None
    disk._end()  # as if the process had died
    store.close()
    wall, cpu = time.perf_counter(), time.process_time()
    learner = OnePassNewtonMNL.resume(
        JointAccountant.resume(ledger), store=RowStore.open(path, key)
    )
    assert learner.clock_ == users
    print(
        f"going on with {users:,} rows that came one by one: "
        f"{time.process_time() - cpu:.1f} s of CPU, {time.perf_counter() - wall:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=100_000)
    users = parser.parse_args().users
    with tempfile.TemporaryDirectory() as folder:
        keeping(Path(folder), 1, 2_000)
        keeping(Path(folder), 100, 200)
        going_on(Path(folder), users)


if __name__ == "__main__":
    main()
