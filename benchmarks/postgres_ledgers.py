"""A ledger in PostgreSQL: spends of many processes at once, and processes that are killed.

    OMP_NUM_THREADS=1 python benchmarks/postgres_ledgers.py [--spends 10000] [--deaths 1000]

**Spends.** Four processes of eight threads each spend from one account until it is empty.  Its cap
holds exactly ``--spends`` runs: more in the ledger would be an overspend.

**Deaths.** A process joins, spends and releases twice, and is killed at a random one of all points
that it passes: statements of the server, checks and records of entries, openings, draws of noise,
releases; every other one also while it joins.  After each death another process spends and
releases, and every value that left must have its spend in the ledger.
tests/helpers/postgres_processes.py does it, and a test does it for fifty deaths.

The server runs on this machine, on a Unix socket, with durable commits; it shares the cores with
the processes.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from reporting import Table, parser, write

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

from kill_points import tell
from postgres import Server, started
from postgres_processes import NOISE, USERS, Account, forked, live, run, told_by, unpaid

from privlearn import ZCDP
from privlearn.accountants import audit
from privlearn.errors import InsufficientBudgetError
from privlearn.ledger import Ledger

PROCESSES, THREADS = 4, 8
DEATHS_OF_A_LEDGER = 50
"""Whoever joins reads all of it."""


def begin(server: Server, runs: int) -> tuple[str, Account]:
    """A new ledger with an account for so many runs."""
    address = server.url(ledger=server.new_name())
    ledger = Ledger.postgres(address, "create")
    cap = ZCDP(f"{runs}/200")
    return address, Account(cap, users=USERS, ledger=ledger, noise=NOISE(0))


def spend_all(address: str, pipe: int) -> None:
    """One process: eight threads spend until nothing is left; says how often, and its CPU time."""
    account = Account.join(Ledger.postgres(address, "join"), noise=NOISE(os.getpid()))
    paid = [0] * THREADS

    def work(number: int) -> None:
        with suppress(InsufficientBudgetError):
            while True:
                run(account)
                paid[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell(pipe, f"{sum(paid)} {time.process_time()}".encode())


def spends(server: Server, wanted: int) -> list[str]:
    """One row: what four processes spent of an account, and how long it took."""
    address, account = begin(server, wanted)
    account.ledger.close()
    began = time.perf_counter()
    children = [forked(partial(spend_all, address)) for _ in range(PROCESSES)]
    told = [told_by(*child)[0].split() for child in children]
    wall = time.perf_counter() - began
    paid, cpu = sum(int(runs) for runs, _ in told), sum(float(cpu) for _, cpu in told)
    found = audit(address)
    assert found.problems == []
    over = max(found.spends, paid) - wanted
    assert (found.spends, paid, over) == (wanted, wanted, 0)
    each = 1e3 / wanted
    return [f"{wanted:,}", str(over), f"{wall:.0f}", f"{wall * each:.2f}", f"{cpu * each:.2f}"]


def deaths(server: Server, wanted: int, seed: int) -> list[str]:
    """One row: how many processes were killed, what left them, and what was not paid for."""
    rng, began = np.random.default_rng(seed), time.perf_counter()
    died = left = missing = went_on = 0
    while died < wanted:
        address, account = begin(server, 10**6)
        points = {}
        for joining in (False, True):
            lines = told_by(*forked(partial(live, address, 0, joining=joining)))
            points[joining] = int(lines[-1].removeprefix("points "))
        for number in range(min(DEATHS_OF_A_LEDGER, wanted - died)):
            joining = bool(number % 2)
            # of a longer ledger there are more; who passes them all is not counted
            stop = int(rng.integers(1, points[joining] + 1 + 10 * number * joining))
            child, pipe = forked(partial(live, address, stop, joining=joining))
            lines = told_by(child, pipe)
            died += not any(line.startswith("points") for line in lines)
            left += len(lines)
            missing += unpaid(address, lines) if lines else 0
            run(account)
            went_on += 1
        assert audit(address).problems == []
        account.close()
    wall = time.perf_counter() - began
    assert missing == 0
    return [f"{died:,}", str(left), str(missing), f"{went_on:,}", f"{wall:.0f}"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--spends", type=int, default=10_000)
    options.add_argument("--deaths", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    with started() as server:
        spent = spends(server, asked.spends)
        killed = deaths(server, asked.deaths, asked.seed)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    tables = [
        Table(
            f"{PROCESSES} processes of {THREADS} threads spend from one account",
            ["spends", "overspends", "wall s", "wall ms each", "CPU ms each, of the processes"],
            [spent],
        ),
        Table(
            "Processes that are killed",
            ["deaths", "values that left", "unpaid", "runs of others after them", "wall s"],
            [killed],
        ),
    ]
    notes = (
        f"CPU of all processes and of the server: {theirs.ru_utime + theirs.ru_stime:.0f} s; the "
        f"machine had a load of {os.getloadavg()[1]:.1f}."
    )
    write("postgres_ledgers", tables, {"spends": spent, "deaths": killed}, notes)


if __name__ == "__main__":
    main()
