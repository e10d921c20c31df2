"""Kills the owner of a ledger again and again, under a process that spends through it.

One process, started by `asked`, is the one that spends, and forks the owners, one after the other.
What it was given of a release counts as having left; when an owner dies it connects to the next
one, and joins the account.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from deaths import Death, after_power, put_back
from kill_points import LEDGER, Disk, Points, die, tell, watch

from privlearn import Rows
from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.serving import default_socket, serve_ledger
from privlearn.accountants.token_entries import TokenEntries
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.open_ledger import Settling
from privlearn.ledger.owner import LedgerOwner
from privlearn.ledger.values import digest_of
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball

USERS = range(8)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
STREAM = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("1/50"), horizon=len(USERS))
RELEASES = 2
"""Of sums, behind a stream with as many values; each life of an owner sees some."""
LONGEST = 30
"""Seconds until an owner serves; more is a hang."""
Account = CentralAccountant[ZCDP]


@dataclass(frozen=True)
class Task:
    """The deaths of owners, one after the other; then one lives on to the end.

    ``fault``: a name of `FAULTS`, which every process has.
    """

    deaths: tuple[Death, ...]
    fault: str = ""


@dataclass
class Outcome:
    """What was found."""

    deaths: int = 0
    unpaid: int = 0
    """Values that left without a spend on the disk."""
    problems: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    """Where owners died; without a death, all that one passed."""
    released: int = 0
    finished: bool = False


def owner_syncs_nothing(left: list[tuple[str, str]]) -> None:
    """It tells that entries are on disk, and leaves that to the system."""
    Settling.sync = lambda self: None  # type: ignore[method-assign]
    setattr(os, "fdatasync", lambda file: None)  # noqa: B010


def process_lets_go_early(left: list[tuple[str, str]]) -> None:
    """What the spend is to pay for leaves before it stands."""
    record = TokenEntries.record_spend

    def early(self: TokenEntries, token: Any, *more: Any) -> Any:
        left.append((token.id, ""))
        return record(self, token, *more)

    TokenEntries.record_spend = early  # type: ignore[method-assign, assignment]


FAULTS = {each.__name__: each for each in (owner_syncs_nothing, process_lets_go_early)}


def _own(path: Path, death: Death | None, fault: str, pipe: int) -> None:
    """An owner, until it dies or is asked to end."""
    points, disk = Points(), None
    if death is not None:
        points = Points(death.at, death.name, lambda: _end(death, disk, path, points, pipe))
        if death.how == "power":
            disk = Disk(path.parent)
    watch(points, disk)
    if fault:
        FAULTS[fault]([])
    points.around(asyncio.StreamWriter, "write", "an answer")
    points.around(LedgerOwner, "_hold", "owner remembers")
    points.around(LedgerOwner, "_grant", "owner gives turns")
    points.at("before the ledger")
    serve_ledger(path, new=not path.exists(), grace=0, ready=lambda _: tell(pipe, b"ready"))
    if death is None:
        tell(pipe, b"points " + json.dumps(points.names).encode())


def _end(death: Death, disk: Disk | None, path: Path, points: Points, pipe: int) -> None:
    tell(pipe, b"points " + json.dumps(points.names[-1:]).encode())
    if disk is not None:
        disk.leave(after_power(path), np.random.default_rng(death.at))
    die()


class _Owner:
    """A forked owner."""

    def __init__(self, path: Path, death: Death | None, fault: str) -> None:
        self._pipe, theirs = os.pipe()
        self._told = bytearray()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._pipe)
            code = 3
            try:
                _own(path, death, fault, theirs)
                code = 0
            except BaseException as error:
                tell(theirs, b"error " + repr(error).encode())
            finally:
                os._exit(code)
        os.close(theirs)
        self.serves = self._until(b"ready\n")

    def _until(self, line: bytes) -> bool:
        while line not in self._told:
            ready, _, _ = select.select([self._pipe], [], [], LONGEST)
            part = os.read(self._pipe, 1 << 16) if ready else b""
            if not part:
                return False
            self._told += part
        return True

    def end(self, found: Outcome, *, gently: bool) -> bool:
        """Waits for its end; whether it was a death."""
        if gently:
            os.kill(self.process, signal.SIGTERM)
        self._until(b"no such line\n")
        os.close(self._pipe)
        _, status = os.waitpid(self.process, 0)
        died = os.WIFSIGNALED(status)
        for line in self._told.decode().splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "points" and (died or not found.deaths):
                found.points += json.loads(rest)
            elif kind == "error":
                found.problems.append(f"an owner failed: {rest}")
        return died


def run(task: Task) -> Outcome:
    """Lets owners live and die, and looks at the ledger after each."""
    found, left = Outcome(), list[tuple[str, str]]()
    if task.fault:
        FAULTS[task.fault](left)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" / LEDGER
        path.parent.mkdir()
        for number in range(len(task.deaths) + 1):
            death = task.deaths[number] if number < len(task.deaths) else None
            owner = _Owner(path, death, task.fault)
            done = owner.serves and _spend(path, left, found)
            died = owner.end(found, gently=done or number == len(task.deaths))
            if after_power(path).exists():
                put_back(after_power(path), path.parent)
            _check(path, left, found)
            found.deaths += died
            if done and not died:
                found.finished = True
                break
    found.released = len(left)
    return found


def _spend(path: Path, left: list[tuple[str, str]], found: Outcome) -> bool:
    """One process that spends until the account is closed, or its owner is gone."""
    try:
        with Ledger.connect(default_socket(path)) as ledger:
            if not ledger.open_accountants:
                account = CentralAccountant(ZCDP(1), users=USERS, ledger=ledger)
            else:
                account = Account.join(ledger)
            stream = STREAM.open(account.issue(STREAM.loss(), users=USERS, label="stream"))
            for user in USERS[:RELEASES]:
                value = stream.append(Rows.seal(np.ones((1, 2)), users=range(user, user + 1)))
                left.append((value.paid_by, digest_of(value.value)))
            for number in range(RELEASES):
                token = account.issue(SUM.loss(), users=USERS, label=f"sum {number}")
                total = SUM.release(Rows.seal(np.ones((8, 2)), users=USERS), token)
                left.append((total.paid_by, digest_of(total.value)))
    except LedgerError as error:
        if not any(text in str(error) for text in ("nothing is released", "nobody answers")):
            found.problems.append(f"a process was told: {error}")
        return False
    return True


def _check(path: Path, left: list[tuple[str, str]], found: Outcome) -> None:
    """Nothing left unpaid, and the ledger is whole."""
    try:
        records = read_records(path) if path.exists() else []
        if records:
            found.problems += audit(path).problems
    except LedgerError as error:
        found.problems.append(f"no ledger was left: {error}")
        records = []
    bodies = [record.body for record in records]
    spent = {body["token"] for body in bodies if body["entry"] == "spend"}
    found.unpaid = sum(token not in spent for token, _ in left)


@cache
def points() -> list[str]:
    """Those that an owner passes whom nobody kills."""
    run(Task(()))  # imports, and calibrates
    gc.freeze()
    found = run(Task(()))
    if not found.finished or found.problems:
        raise RuntimeError(str(found))
    return found.points


def campaign(deaths: int, rng: np.random.Generator) -> Iterator[tuple[Task, Outcome]]:
    """Runs tasks until so many owners have died; all kinds of points are equally likely.

    Of five tasks three have one kill, one a second kill soon after the first, and one a cut of the
    power.
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(points(), 1):
        places.setdefault(name, []).append(number)
    kinds = sorted(places)
    died, turn = 0, 0
    while died < deaths:
        at = int(rng.choice(places[kinds[int(rng.integers(len(kinds)))]]))
        each = [Death("power" if turn % 5 == 4 else "kill", at)]
        if turn % 5 == 2:
            each.append(Death("kill", int(np.exp(rng.uniform(0, np.log(200))))))
        task = Task(tuple(each[: deaths - died]))
        found = run(task)
        yield task, found
        turn, died = turn + 1, died + found.deaths


Answer = list[tuple[dict[str, Any], dict[str, Any]]]


def asked(deaths: int, seed: int, tasks: list[Task], folder: Path) -> Answer:
    """Runs a campaign, and further tasks, each in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        input=json.dumps({"deaths": deaths, "seed": seed, "tasks": [asdict(t) for t in tasks]}),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: Answer = json.loads(done.stdout)
    return answer


def main() -> None:
    """Answers a request."""
    given = json.load(sys.stdin)
    tempfile.tempdir = sys.argv[1]
    found = list(campaign(given["deaths"], np.random.default_rng(given["seed"])))
    for each in given["tasks"]:
        task = Task(tuple(Death(**death) for death in each["deaths"]), each["fault"])
        found.append((task, _apart(task)))
    json.dump([(asdict(task), asdict(outcome)) for task, outcome in found], sys.stdout)


def _apart(task: Task) -> Outcome:
    """In a child, as a fault stays."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        tell(theirs, json.dumps(asdict(run(task))).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return Outcome(**json.loads(data))


if __name__ == "__main__":
    main()
