"""Many threads of several processes spend from one cap: is it ever exceeded, and how fast is it?

    OMP_NUM_THREADS=1 python benchmarks/concurrent_spends.py [--spends 10000] [--nested]
        [--postgres postgresql://user@host/database]

Each release is an issue, a spend that is on disk before any noise is drawn, and a retire: three
turns.  There are a tenth more attempts than the cap allows.  Afterwards the ledger is audited: a
spend above the cap is a problem there.  With ``--postgres`` the same is done in that database.
With ``--nested`` eight processes spend from eight caps, two deep, some by number or by day,
which together are larger than what they are inside of; overspends are counted at every level.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from reporting import Table, parser, write

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

from spending_together import begin, overspends, spend

from privlearn.accountants import audit
from privlearn.accountants.serving import default_socket
from privlearn.ledger import Ledger, iterate_records

PROCESSES, THREADS = 4, 8
NESTED_PROCESSES = 8
HEADER = [
    "ledger",
    "spends allowed",
    "released",
    "refused",
    "overspends",
    "problems of the audit",
    "releases/s",
    "CPU ms/release of processes",
    "CPU ms/release of the owner",
    "load",
]


@contextmanager
def owner(ledger: Path) -> Iterator[dict[str, float]]:
    """A ledger's owner, as the command line starts it; its CPU seconds, once it has ended."""
    used: dict[str, float] = {}
    command = [sys.executable, "-m", "privlearn.cli", "ledger", "serve", str(ledger), "--new"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield used
        finally:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            process.send_signal(signal.SIGTERM)
            process.wait()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(
    name: str, address: str, spends: int, *, nested: bool
) -> tuple[list[str], dict[str, Any]]:
    """Spends from a ledger."""
    begin(address, spends)
    processes = NESTED_PROCESSES if nested else PROCESSES
    more = 2 if nested else 1.1  # of nested caps some are used up before others
    attempts = ceil(spends * more / (processes * THREADS))
    load = os.getloadavg()[0]
    found = spend(address, attempts, processes, THREADS, spends if nested else 0)
    if found.errors:
        raise RuntimeError(found.errors[0])
    numbers: dict[str, Any] = {
        "spends": spends,
        "released": found.released,
        "refused": found.refused,
        "wall seconds": found.wall,
        "cpu seconds": found.cpu,
        "load": load,
    }
    row = [name, str(spends), str(found.released), str(found.refused)]
    return row, numbers


def finished(row: list[str], numbers: dict[str, Any], where: Any, owned: float) -> list[str]:
    """The row with what the audit finds."""
    looked = audit(where)
    numbers["audited spends"] = looked.spends
    numbers["overspends"] = overspends(iterate_records(where), numbers["spends"])
    numbers["problems"] = list(looked.problems)
    numbers["owner cpu seconds"] = owned
    released = numbers["released"]
    return [
        *row,
        str(sum(numbers["overspends"].values())),
        str(len(looked.problems)),
        f"{released / numbers['wall seconds']:.0f}",
        f"{1000 * numbers['cpu seconds'] / released:.2f}",
        f"{1000 * owned / released:.2f}" if owned else "",
        f"{numbers['load']:.1f}",
    ]


def main() -> None:
    """Runs it, and writes the table."""
    options = parser(__doc__)
    options.add_argument("--spends", type=int, default=10_000)
    options.add_argument("--postgres", metavar="URL")
    options.add_argument("--nested", action="store_true")
    chosen = options.parse_args()
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with owner(path) as used:
            row, numbers["owner"] = measured(
                "owner of a file", str(default_socket(path)), chosen.spends, nested=chosen.nested
            )
        rows.append(finished(row, numbers["owner"], path, used["cpu"]))
    if chosen.postgres:
        mark = "&" if "?" in chosen.postgres else "?"
        address = f"{chosen.postgres}{mark}ledger=spends_{secrets.token_hex(4)}"
        with Ledger.postgres(address, "create"):
            row, numbers["postgres"] = measured(
                "PostgreSQL", address, chosen.spends, nested=chosen.nested
            )
        rows.append(finished(row, numbers["postgres"], address, 0.0))
    processes, of = (NESTED_PROCESSES, "nested caps") if chosen.nested else (PROCESSES, "one cap")
    title = f"Spends by {THREADS} threads of each of {processes} processes from {of}"
    table = Table(title, HEADER, rows)
    name = "nested_caps" if chosen.nested else "concurrent_spends"
    write(name, [table], numbers, "Ledgers of files lie in the temporary folder.")


if __name__ == "__main__":
    main()
