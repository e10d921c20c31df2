"""Time and memory of an audit of a ledger file, by the number of entries.

    OMP_NUM_THREADS=1 python benchmarks/audit.py [--entries 100000 1000000]

Spends on all users, spends on one user each, in turn, and the same in an order that jumps about;
and tokens that have no end, as they were spent and never retired, or never spent.  Every audit runs
in a process of its own: once up to the certificate (reading, the chain, the account), and once with
all that ``privlearn audit --json`` says beyond it (balances, spends by label and time, curves).
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeVar

import numpy as np
from reporting import Table, write

from privlearn.accountants import CentralAccountant, audit
from privlearn.ledger import GENESIS, Ledger, Record
from privlearn.ledger.chain import MerkleTree
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.reporting.report import report
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

T = TypeVar("T")

NO_END = {"one user each, never retired": 2, "one user each, never spent": 1}
"""Entries of each token, the first of an issue, a spend and a retire."""
KINDS = ("all users", "one user each", "one user each, shuffled", *NO_END)
STEP = 389
"""Users of the shuffled case come in steps of so many; a prime that divides no number used here."""


def bodies(kind: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Entries of a ledger with that many tokens, which is issued, spent and retired."""
    book = Ledger.memory()
    users = range(8 if kind == "all users" else tokens)
    with CentralAccountant(ZCDP(tokens), users=users, ledger=book) as accountant:
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
        token = accountant.issue(mechanism.loss(), users=range(8), label="sum")
        mechanism.release(Rows.seal(np.ones((8, 2)), users=range(8)), token)
    opened, *three, closed = (record.body for record in book.records)
    yield opened
    for number in range(tokens):
        whom = [0, 8]
        if kind != "all users":
            user = number * STEP % tokens if kind.endswith("shuffled") else number
            whom = [user, user + 1]
        for body in copy.deepcopy(three[: NO_END.get(kind)]):
            body["token"] = f"{opened['accountant']}/{number + 1}"
            yield body | ({"users": whom} if "users" in body else {})
    if kind not in NO_END:
        yield closed


def records(kind: str, tokens: int) -> Iterator[Record]:
    """The chained entries, made one at a time."""
    head, tree = GENESIS, MerkleTree()
    for seq, body in enumerate(bodies(kind, tokens)):
        record = Record.make(head, seq, body, root=tree.root if body["entry"] == "close" else None)
        head = record.hash
        tree.add(bytes.fromhex(head))
        yield record


def written(case: tuple[str, int, str]) -> None:
    """Writes a ledger file."""
    kind, tokens, path = case
    Ledger.create(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = ((r.seq, r.data.decode(), r.hash) for r in records(kind, tokens))
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)


def audited(case: tuple[str, int, str]) -> tuple[float, int]:
    """CPU seconds of the audit of a file, and peak memory in bytes."""
    kind, tokens, path = case
    start = time.process_time()
    found = audit(path)
    spent = time.process_time() - start
    assert not found.problems, found.problems[:3]
    spends = 0 if NO_END.get(kind) == 1 else tokens
    assert found.spends == spends
    assert [share.share for share in found.mechanisms] == [1] * bool(spends)
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reported(case: tuple[str, int, str]) -> tuple[float, int]:
    """As `audited`, of the whole report and its JSON."""
    _, _, path = case
    start = time.process_time()
    found = report(path)
    length = len(found.model_dump_json())
    spent = time.process_time() - start
    assert not found.problems, found.problems[:3]
    assert length < 2_000_000
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _alone(run: Callable[[tuple[str, int, str]], T], case: tuple[str, int, str]) -> T:
    """In a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(run, (case,))


def main() -> None:
    """Measures and writes the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--entries", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = arguments.parse_args()
    rows, numbers = [], []
    for entries in options.entries:
        for kind in options.kinds:
            with tempfile.TemporaryDirectory() as folder:
                case = kind, entries // NO_END.get(kind, 3), f"{folder}/ledger.db"
                _alone(written, case)
                size = os.path.getsize(case[2])
                spent, peak = _alone(audited, case)
                whole, most = _alone(reported, case)
            figures = f"{spent:.1f}", f"{peak / 1e6:.0f}", f"{whole:.1f}", f"{most / 1e6:.0f}"
            rows.append([kind, f"{entries:,}", f"{size / 1e6:.0f}", *figures])
            told = {"cpu_s": spent, "peak_bytes": peak}
            told |= {"report_cpu_s": whole, "report_peak_bytes": most}
            numbers.append({"kind": kind, "entries": entries, **told})
            print(rows[-1], flush=True)
    header = ["spends on", "entries", "file, MB", "CPU s", "peak, MB", "report, CPU s", "peak, MB"]
    write("audit", [Table("Audit of long ledgers", header, rows)], {"cases": numbers})


if __name__ == "__main__":
    main()
