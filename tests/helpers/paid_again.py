"""Kills a release that is retried, and a lease, at their points, and looks at what came of it.

One process forks all the others, as in `deaths`.  After each death another process goes on with the
ledger and asks for the same again.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
from kill_points import LEDGER, Points, tell, watch

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.contract import leases
from privlearn.contract.receipts import Receipt
from privlearn.errors import SpendLostError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.entries import RetireEntry, SpendEntry, parse_entry
from privlearn.ledger.values import digest_of
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
SUM: NoisySum[Any] = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
NONCE = "0123456789abcdef" * 2
RUNS = 3
"""Of the lease, of which `USED` are used."""
USED = 2

Work = Callable[[Any], None]


def retried(accountant: Any) -> None:
    """A release under a nonce."""
    accountant.release_once(NONCE, SUM, _rows(), users=USERS, label="sum")


def leased(accountant: Any) -> None:
    """Some of the runs of a lease."""
    with accountant.lease(SUM, runs=RUNS, users=USERS, label="sum") as lease:
        for _ in range(USED):
            lease.release(_rows())


WORKS: dict[str, Work] = {"retried": retried, "leased": leased}


def _rows() -> Rows[Any]:
    return Rows.seal(np.full((4, 2), 0.25), users=USERS)


@dataclass
class Found:
    """What was found after one death and the process that went on."""

    work: str
    point: str
    died: bool = False
    left: list[str] = field(default_factory=list)
    """Digests of what left before the death, in their order."""
    again: list[str] = field(default_factory=list)
    """Of what left afterwards."""
    lost: bool = False
    """Whether the retry said that the first try was lost."""
    unpaid: int = 0
    spends: int = 0
    """Without those that the process which went on had to pay anew."""
    charged: str = ""
    outcomes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _begun(path: Path, seed: int) -> Any:
    noise = NoiseSource.simulation(seed)
    if path.exists():
        book = Ledger.open(path)
        if book.entries:
            return CentralAccountant.resume(book, noise=noise)
        return CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=noise)
    return CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=noise)


def _live(work: Work, path: Path, at: int, name: str, seed: int, pipe: int) -> None:
    points = Points(at, name)
    watch(points)
    released = Receipt._released

    @wraps(released)
    def reported(self: Receipt, value: Any, **named: Any) -> Any:
        found = released(self, value, **named)
        tell(pipe, f"value {found.paid_by} {digest_of(found.value)}".encode())
        points.at("a value left")
        return found

    Receipt._released = reported  # type: ignore[method-assign]
    points.around(leases.Lease, "_take", "a run is taken")
    points.around(leases.Lease, "close", "the lease is closed")
    accountant = _begun(path, seed)
    try:
        work(accountant)
    except SpendLostError:
        tell(pipe, b"lost")
    tell(pipe, b"points " + json.dumps(points.names).encode())
    accountant.ledger.close()


def _child(live: Callable[[int], None]) -> tuple[bool, list[list[str]]]:
    """Whether it was killed, and the words of the lines that it told."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            live(theirs)
        except BaseException as error:
            tell(theirs, f"error {type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        lines = [line.split(maxsplit=1) for line in pipe.read().splitlines()]
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, lines


def names_of(work: str, folder: Path) -> list[str]:
    """The points that nobody is killed at, in their order."""
    path = folder / work / LEDGER
    path.parent.mkdir()
    _, lines = _child(lambda pipe: _live(WORKS[work], path, 0, "", 1, pipe))
    (points,) = (rest for kind, rest in lines if kind == "points")
    names: list[str] = json.loads(points)
    return names


def killed(work: str, name: str, at: int, folder: Path) -> Found:
    """One process that is killed at the ``at``-th point of a name, and one that goes on."""
    found = Found(work, name)
    path = folder / f"{work}-{abs(hash((name, at)))}" / LEDGER
    path.parent.mkdir()
    values: list[str] = []
    for life in range(2):
        last = life == 1
        live = partial(_live, WORKS[work], path, 0 if last else at, "" if last else name, 1 + last)
        died, lines = _child(live)
        for kind, *rest in lines:
            match kind:
                case "value":
                    token, digest = rest[0].split()
                    values.append(token)
                    (found.again if life else found.left).append(digest)
                case "lost":
                    found.lost = True
                case "error":
                    found.problems.append(rest[0])
        found.died = found.died or died
    records = read_records(path)
    entries = [parse_entry(record.body, record.ext) for record in records]
    spent = [entry.token for entry in entries if isinstance(entry, SpendEntry)]
    found.unpaid = sum(token not in spent for token in values)
    found.spends = len(spent)
    found.outcomes = [entry.outcome for entry in entries if isinstance(entry, RetireEntry)]
    certificate = audit(path)
    found.problems += certificate.problems
    found.charged = str(certificate.spent[0].rho)
    return found


def all_of(folder: Path, which: str) -> list[Found]:
    """One death at each kind of point that comes with the token or later.

    Or at ``every`` point, or at a ``few``: every third kind.
    """
    found, kinds = [], 0
    for work in WORKS:
        seen: dict[str, int] = {}
        begun = False
        for name in names_of(work, folder):
            begun = begun or name == "before append (issue)"
            seen[name] = seen.get(name, 0) + 1
            kind = begun and seen[name] == 1
            kinds += kind
            if which == "every" or (kind and (which == "kinds" or kinds % 3 == 0)):
                found.append(killed(work, name, seen[name], folder))
    return found


def asked(folder: Path, which: str = "kinds") -> list[Found]:
    """What `all_of` finds in a process of its own."""
    command = [sys.executable, __file__, str(folder), which]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Found(**each) for each in json.loads(done.stdout)]


def prepare() -> None:
    """Does once what each child would do again: imports, tables, validators."""
    for work in WORKS.values():
        accountant = CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))
        work(accountant)
        accountant.close()
        certify(accountant.ledger.records)
    gc.freeze()


if __name__ == "__main__":
    prepare()
    print(json.dumps([asdict(f) for f in all_of(Path(sys.argv[1]), sys.argv[2])]))
