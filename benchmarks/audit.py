"""Time and memory of an audit, by the number of entries; ledgers are made up as they are read.

    OMP_NUM_THREADS=1 python benchmarks/audit.py [--entries 100000 1000000]

Three kinds of ledgers: spends on all users, spends on one user each, in turn, and the same in an
order that jumps about.  Every case runs in a process of its own.  ``account`` is the audit without
the check of the chain, ``chain`` is that check; reading a file and its JSON are not in it, as
records come from memory, one at a time.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from reporting import Table, write

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import Certificate, certify
from privlearn.accountants.chain import Chain
from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.ledger import GENESIS, Ledger, Record
from privlearn.mechanisms import GaussianSum
from privlearn.rows import Rows

KINDS = ("all users", "one user each", "one user each, shuffled")
STEP = 389
"""Users of the shuffled case come in steps of so many; a prime that divides no number used here."""


def bodies(kind: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Entries of a ledger with that many tokens, each issued, spent and retired."""
    book = Ledger.memory()
    users = range(8 if kind == "all users" else tokens)
    with CentralAccountant(ZCDP(tokens), users=users, ledger=book) as accountant:
        mechanism = GaussianSum(Ball(1.0, 2), 20.0)
        token = accountant.issue(mechanism.loss(), users=range(8), label="sum")
        mechanism.release(Rows.seal(np.ones((8, 2)), users=range(8)), token)
    opened, *three, closed = (record.body for record in book.records)
    yield opened
    for number in range(tokens):
        whom = [0, 8]
        if kind != "all users":
            user = number if kind == "one user each" else number * STEP % tokens
            whom = [user, user + 1]
        for body in copy.deepcopy(three):
            body["token"] = f"{opened['accountant']}/{number + 1}"
            yield body | ({"users": whom} if "users" in body else {})
    yield closed


def records(kind: str, tokens: int) -> Iterator[Record]:
    """The chained entries, made one at a time."""
    head = GENESIS
    for seq, body in enumerate(bodies(kind, tokens)):
        record = Record.make(head, seq, body)
        head = record.hash
        yield record


def unchained(kind: str, tokens: int) -> Iterator[Record]:
    """The same without digests and hashes."""
    for seq, body in enumerate(bodies(kind, tokens)):
        yield Record(seq, body, {}, "")


def measured(kind: str, entries: int) -> tuple[float, float, float, int]:
    """CPU seconds of making, accounting and chaining, and peak memory in bytes."""
    tokens = entries // 3
    start = time.process_time()
    for _ in unchained(kind, tokens):
        pass
    made = time.process_time() - start
    start = time.process_time()
    with patch.object(Chain, "add", _follow):
        found = certify(unchained(kind, tokens))
    accounted = time.process_time() - start - made
    _check(found, tokens)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    part = min(tokens, 10_000)
    chained = list(records(kind, part))
    chain = Chain()
    start = time.process_time()
    assert not [problem for record in chained for problem in chain.add(record)]
    per_entry = (time.process_time() - start) / len(chained)
    return made, accounted, per_entry * entries, peak


def _follow(chain: Chain, record: Record) -> list[str]:
    chain.size = record.seq + 1
    return []


def _check(found: Certificate, tokens: int) -> None:
    assert not found.problems, found.problems[:3]
    assert found.spends == tokens
    assert found.mechanisms[0].share == 1


def _run(case: tuple[str, int]) -> tuple[float, float, float, int]:
    return measured(*case)


def main() -> None:
    """Measures and writes the tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--entries", type=int, nargs="+", default=[100_000, 1_000_000])
    rows, numbers = [], []
    for entries in arguments.parse_args().entries:
        for kind in KINDS:
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                made, accounted, chain, peak = pool.apply(_run, ((kind, entries),))
            rows.append(
                [kind, f"{entries:,}", f"{accounted:.1f}", f"{chain:.1f}", f"{peak / 1e6:.0f}"]
            )
            numbers.append(
                {"kind": kind, "entries": entries, "account_s": accounted, "chain_s": chain,
                 "made_s": made, "peak_bytes": peak}
            )  # fmt: skip
            print(rows[-1], flush=True)
    header = ["spends on", "entries", "account, CPU s", "chain, CPU s", "peak, MB"]
    write("audit", [Table("Audit of long ledgers", header, rows)], {"cases": numbers})


if __name__ == "__main__":
    main()
