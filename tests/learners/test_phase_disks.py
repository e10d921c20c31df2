"""Learners in phases on disks that fail at any write: nothing is unpaid, and phases stay."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deaths import phase_problems
from grids import thinned

from privlearn import PureDP
from privlearn.accountants import JointAccountant, audit
from privlearn.contract.receipts import Receipt
from privlearn.errors import LedgerError
from privlearn.learners import PrivateArms
from privlearn.ledger import Ledger, read_records
from privlearn.noise import NoiseSource

USERS = 24
REWARDS = np.random.default_rng(0).random(USERS)


class Disk:
    """Fails at the ``at``-th write or sync of a process, counted from 1, and at no other."""

    def __init__(self, at: int) -> None:
        self.left = at

    def fails(self) -> bool:
        self.left -= 1
        return self.left == 0

    def connect(self, *arguments: Any, **named: Any) -> sqlite3.Connection:
        disk = self

        class Failing(sqlite3.Connection):
            def execute(self, sql: str, *arguments: Any) -> Any:
                if sql.split()[0] in ("INSERT", "COMMIT", "BEGIN") and disk.fails():
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *arguments)

        return _CONNECT(*arguments, factory=Failing, **named)

    def sync(self, file: int) -> None:
        if self.fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        _SYNC(file)


_CONNECT, _SYNC = sqlite3.connect, os.fdatasync
WAYS: dict[str, Callable[[pytest.MonkeyPatch, Disk], None]] = {
    "writes": lambda patch, disk: patch.setattr(sqlite3, "connect", disk.connect),
    "syncs": lambda patch, disk: patch.setattr(os, "fdatasync", disk.sync),
}


def bodies(path: Path) -> list[dict[str, Any]]:
    """Entries on the disk, as another process reads them, each with the digest of its value."""
    found = []
    for record in read_records(path):
        body = dict(record.body)
        if body["entry"] == "retire":
            body |= {"digest": None, **record.ext.get("resume/1", {})}
        found.append(body)
    return found


def go_on(learner: Any) -> None:
    while (user := learner.clock_) < USERS:
        learner.select()
        learner.observe(float(REWARDS[user]) if user % 5 else None)


def life(path: Path) -> None:
    """One process, from the beginning or from where the one before it was."""
    noise, before = NoiseSource.simulation(0), bodies(path) if path.exists() else []
    if before:
        if before[-1]["entry"] == "close":
            return
        accountant: Any = JointAccountant.resume(path, noise=noise)
    else:
        Path(path).unlink(missing_ok=True)
        accountant = JointAccountant(
            PureDP(1), users=range(USERS), ledger=Ledger.create(path), noise=noise
        )
    try:
        learner = PrivateArms(2, first_phase=3).start(accountant)
        go_on(learner)
        accountant.close()
    finally:
        accountant.ledger._disk._end()


def interrupted(path: Path, way: str, at: int, patch: pytest.MonkeyPatch) -> bool:
    """A process on a disk that fails once; whether it did so, and perhaps for a reader only."""
    released = Receipt._released

    @wraps(released)
    def watched(self: Receipt, *arguments: Any, **named: Any) -> Any:
        found = released(self, *arguments, **named)
        on_disk = bodies(path)
        assert found.digest in [body.get("digest") for body in on_disk], "it left before it stood"
        spent = [body["token"] for body in on_disk if body["entry"] == "spend"]
        assert found.paid_by in spent, "nobody paid"
        return found

    disk = Disk(at)
    with patch.context() as failing:
        failing.setattr(Receipt, "_released", watched)
        WAYS[way](failing, disk)
        try:
            life(path)
        except LedgerError:
            assert disk.left <= 0
    return disk.left <= 0


@pytest.mark.parametrize(("way", "step"), thinned([("writes", 7), ("syncs", 3), ("writes", 1)], 3))
def test_phases_outlive_a_disk_that_fails_at_any_write(
    way: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for at in range(1, 500, step):
        path = tmp_path / str(at) / "ledger.db"
        path.parent.mkdir()
        if not interrupted(path, way, at, monkeypatch):
            break
        failures += 1
        said = bodies(path) if path.exists() else []
        begun = [body["stop"] for body in said if body["entry"] == "phase"]
        life(path)
        found = bodies(path)
        assert phase_problems(found, done=True) == []
        assert set(begun) <= {body["stop"] for body in found if body["entry"] == "phase"}
        assert audit(path).problems == []
    assert failures > 5
