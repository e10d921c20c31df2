"""Threads of several processes that spend from one cap, more often than it allows.

One process, started by `asked` or by a benchmark, forks the others, so that what they import is
there already.  The ledger is the file of an owner, or one in PostgreSQL.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privlearn import Rows
from privlearn.accountants import CentralAccountant
from privlearn.errors import InsufficientBudgetError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball

USERS = range(4)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(2000.0))
"""ρ = 2/2000²."""
PRICE = ZCDP("0.0000005")
Account = CentralAccountant[ZCDP]


@dataclass
class Counted:
    """What the processes counted together."""

    released: int = 0
    refused: int = 0
    errors: tuple[str, ...] = ()
    wall: float = 0.0
    cpu: float = 0.0
    """Seconds of the processes that spend."""


def join(address: str) -> Ledger:
    """A ledger by the path of its owner's socket, or by its address in PostgreSQL."""
    if address.startswith("postgresql://"):
        return Ledger.postgres(address, "join")
    return Ledger.connect(address)


def begin(address: str, spends: int) -> None:
    """Opens an account whose cap allows so many spends."""
    with join(address) as ledger:
        CentralAccountant(PRICE * spends, users=USERS, ledger=ledger)


def spend(address: str, attempts: int, processes: int, threads: int) -> Counted:
    """Tries to spend so often in each of so many threads of so many processes."""
    before, wall = _cpu(), time.perf_counter()
    pipes = [_forked(lambda: _work(address, attempts, threads)) for _ in range(processes)]
    found = Counted()
    for child, pipe in pipes:
        with os.fdopen(pipe, "rb") as told:
            data = told.read()
        os.waitpid(child, 0)
        one = Counted(**json.loads(data)) if data else Counted(errors=("a process died",))
        found.released += one.released
        found.refused += one.refused
        found.errors += tuple(one.errors)
    found.wall, found.cpu = time.perf_counter() - wall, _cpu() - before
    return found


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _forked(work: Callable[[], Counted]) -> tuple[int, int]:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        with suppress(BaseException):
            os.write(theirs, json.dumps(asdict(work())).encode())
        os._exit(0)
    os.close(theirs)
    return child, ours


def _work(address: str, attempts: int, threads: int) -> Counted:
    found = Counted()
    counting = threading.Lock()

    def run(account: Account) -> None:
        rows = Rows.seal(np.ones((len(USERS), 2)), users=USERS)
        for _ in range(attempts):
            try:
                token = account.issue(SUM.loss(), users=USERS, label="sum")
                SUM.release(rows, token)
            except InsufficientBudgetError:
                with counting:
                    found.refused += 1
            except Exception as error:
                with counting:
                    found.errors += (repr(error),)
                return
            else:
                with counting:
                    found.released += 1

    with join(address) as ledger:
        account = Account.join(ledger)
        workers = [threading.Thread(target=run, args=(account,)) for _ in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    return found


def asked(address: str, spends: int, attempts: int, processes: int, threads: int) -> Counted:
    """Begins an account and spends, in a process of its own."""
    arguments = [str(each) for each in (spends, attempts, processes, threads)]
    done = subprocess.run(
        [sys.executable, __file__, address, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return Counted(**found)


def main() -> None:
    """Answers a request."""
    address, *numbers = sys.argv[1:]
    spends, attempts, processes, threads = map(int, numbers)
    begin(address, spends)
    json.dump(asdict(spend(address, attempts, processes, threads)), sys.stdout)


if __name__ == "__main__":
    main()
