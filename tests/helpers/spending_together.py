"""Threads of several processes that spend from one cap, more often than it allows, or from caps
inside it that together are larger than what they are inside of.

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
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from privlearn import Rows
from privlearn.accountants import CentralAccountant
from privlearn.errors import InsufficientBudgetError
from privlearn.ledger import Ledger, Record
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


def inside(account: Account, spends: int) -> list[Any]:
    """What processes spend from: caps inside an account for so many spends, then the account."""
    one = account.nested(PRICE * (spends // 2), label="one")
    other = account.nested(PRICE * (spends * 5 // 12), label="other")
    numbered = other.nested(PRICE * (spends // 8), label="numbered", epochs=range(4))
    return [
        *(one.nested(PRICE * (spends // 4), label=f"project {n}") for n in range(3)),
        *(numbered.epoch(n) for n in range(4)),
        other.nested(PRICE * (spends // 4), label="daily", every="1d"),
        one,
        account,
    ]


def overspends(records: Iterable[Record], spends: int) -> dict[str, int]:
    """By what was spent from, and its epoch: by how many spends it is above its cap.

    Counted from what the entries say, by nothing of the package.
    """
    caps: dict[str, tuple[str, str | None, Fraction, bool]] = {}
    tokens: dict[str, list[str]] = {}
    limits, counts = {"account": Fraction(spends)}, Counter[str]()
    for record in records:
        body = record.body
        if body["entry"] == "cap":
            most = Fraction(body["budget"]["rho"]) / PRICE.rho
            renews = "every" in body or "epochs" in body
            caps[body["allowance"]] = body["label"], body.get("within"), most, renews
        elif body["entry"] == "issue":
            name, epochs, levels = body["allowance"], [*body.get("epochs", [])], ["account"]
            while name is not None:
                label, name, most, renews = caps[name]
                level = f"{label}, epoch {epochs.pop()}" if renews else label
                limits[level] = most
                levels.append(level)
            tokens[body["token"]] = levels
        elif body["entry"] == "spend":
            counts.update(tokens[body["token"]])
    return {name: max(0, ceil(counts[name] - limits[name])) for name in limits}


def spend(address: str, attempts: int, processes: int, threads: int, nested: int = 0) -> Counted:
    """Tries to spend so often in each of so many threads of so many processes.

    ``nested``: from caps inside an account for so many spends, too.
    """
    before, wall = _cpu(), time.perf_counter()
    work = partial(_work, address, attempts, threads, nested)
    pipes = [_forked(work) for _ in range(processes)]
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


def _work(address: str, attempts: int, threads: int, nested: int) -> Counted:
    found = Counted()
    counting = threading.Lock()

    def run(issuers: list[Any]) -> None:
        rows = Rows.seal(np.ones((len(USERS), 2)), users=USERS)
        for number in range(attempts):
            try:
                issuer = issuers[number % len(issuers)]
                token = issuer.issue(SUM.loss(), users=USERS, label="sum")
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
        issuers = inside(account, nested) if nested else [account]
        workers = [threading.Thread(target=run, args=(issuers,)) for _ in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    return found


def asked(
    address: str, spends: int, attempts: int, processes: int, threads: int, nested: int = 0
) -> Counted:
    """Begins an account and spends, in a process of its own."""
    arguments = [str(each) for each in (spends, attempts, processes, threads, nested)]
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
    spends, attempts, processes, threads, nested = map(int, numbers)
    begin(address, spends)
    json.dump(asdict(spend(address, attempts, processes, threads, nested)), sys.stdout)


if __name__ == "__main__":
    main()
