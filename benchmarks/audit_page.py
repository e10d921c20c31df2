"""Time, memory and size of the page of an audit, of long ledgers and of hostile ones.

    OMP_NUM_THREADS=1 python benchmarks/audit_page.py [--entries 1000000]

Long: spends on all users and on one user each, a week apart for each hundredth.  Hostile: every
label is another one, full of markup; every spend is not paid for; every user has an accountant.
Each runs in a process of its own, and is all that ``privlearn audit --html`` does.
"""

from __future__ import annotations

import argparse
import copy
import resource
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from audit import _alone, bodies
from reporting import Table, write

from privlearn.ledger import GENESIS, Ledger, Record
from privlearn.ledger.chain import MerkleTree
from privlearn.reporting.page import MOST_BYTES, write_page
from privlearn.reporting.report import report

LONG = "all users", "one user each"
HOSTILE = {"a label for each spend": 100_000, "no spend is paid": 10_000, "accountants": 2_000}
FIRST_MINUTE, WEEK = 29_000_000, 7 * 24 * 60
MARKUP = "<script>\u202e\"'&</style>\x1b[2J" * 20


def told(kind: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Entries of a ledger of that kind."""
    if kind in LONG:
        yield from bodies(kind, tokens)
        return
    opened, *rest = bodies("all users", 1)
    three, closed = rest[:3], rest[3]
    if kind == "accountants":
        for number in range(tokens):
            yield opened | {"accountant": f"{number:08x}"}
        return
    yield opened | {"cap": {"kind": "zcdp", "rho": str(tokens)}}
    for number in range(tokens):
        for body in copy.deepcopy(three):
            body["token"] = f"{opened['accountant']}/{number + 1}"
            if "label" in body and kind == "a label for each spend":
                body["label"] = f"{number}{MARKUP}"
            if not (kind == "no spend is paid" and body["entry"] == "issue"):
                yield body
    yield closed


def records(kind: str, tokens: int) -> Iterator[Record]:
    """The chained entries, made one at a time, at minutes of two years."""
    head, tree = GENESIS, MerkleTree()
    for seq, body in enumerate(told(kind, tokens)):
        minute = FIRST_MINUTE + 100 * seq // (3 * tokens) * WEEK
        root = tree.root if body["entry"] == "close" else None
        record = Record.make(head, seq, body, root=root, minute=minute)
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


def shown(case: tuple[str, int, str]) -> tuple[int, float, int, int]:
    """Entries, CPU seconds, peak memory and the page's size in bytes."""
    _, _, path = case
    start = time.process_time()
    found = report(path)
    write_page(found, f"{path}.html")
    spent = time.process_time() - start
    size = Path(f"{path}.html").stat().st_size
    assert size <= MOST_BYTES, size
    return found.entries, spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size


def main() -> None:
    """Measures and writes the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--entries", type=int, default=1_000_000)
    options = arguments.parse_args()
    cases = {**dict.fromkeys(LONG, options.entries // 3), **HOSTILE}
    rows, numbers = [], []
    for kind, tokens in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            case = kind, tokens, f"{folder}/ledger.db"
            _alone(written, case)
            entries, spent, peak, size = _alone(shown, case)
        rows.append([kind, f"{entries:,}", f"{spent:.1f}", f"{peak / 1e6:.0f}", f"{size:,}"])
        numbers.append(
            {
                "kind": kind,
                "entries": entries,
                "cpu_s": spent,
                "peak_bytes": peak,
                "page_bytes": size,
            }
        )
        print(rows[-1], flush=True)
    header = ["ledger", "entries", "CPU s", "peak, MB", "page, bytes"]
    write("audit_page", [Table("Pages of long ledgers", header, rows)], {"cases": numbers})


if __name__ == "__main__":
    main()
