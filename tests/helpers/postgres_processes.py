"""Processes that share a ledger in PostgreSQL, and some that are killed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from kill_points import Points, tell, watch

from privlearn import NoiseSource, Rows
from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger, Record, iterate_records
from privlearn.ledger.postgres import PostgresStore
from privlearn.ledger.postgres_sessions import Session
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball

Account = CentralAccountant[ZCDP]
USERS = range(10)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
"""ρ = 2/20² = 1/200 for one that replaces."""
ROWS = np.ones((10, 2))
NOISE = NoiseSource.simulation


def run(accountant: Account, label: str = "sum") -> Any:
    token = accountant.issue(SUM.loss(), users=USERS, label=label)
    return SUM.release(Rows.seal(ROWS, users=USERS), token)


def forked(work: Callable[[int], object]) -> tuple[int, int]:
    """Runs something in a child, which may write to a pipe; its number, and the pipe to read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def told_by(child: int, pipe: int) -> list[str]:
    """What a child wrote to its pipe, once it has ended."""
    with open(pipe, "rb") as file:
        lines = file.read().decode().splitlines()
    os.waitpid(child, 0)
    return lines


def watched(points: Points) -> None:
    """Puts points into this process around all that it asks of the server, too."""
    watch(points)
    points.around(Session, "run", "statement")


def live(
    address: str, stop: int, pipe: int, *, charges_late: bool = False, joining: bool = False
) -> None:
    """Joins, spends and releases twice until it is killed; says what left, and the points.

    Args:
        address: of the ledger.
        stop: the number of the point; 0 to pass them all.
        pipe: where it says so.
        charges_late: the broken variant.
        joining: whether points are counted while it joins, too.
    """
    points = Points(stop)
    if joining:
        watched(points)
    account = Account.join(Ledger.postgres(address, "join"), noise=NOISE(os.getpid()))
    if not joining:
        watched(points)
    if charges_late:
        charge_late()
    for label in ("first", "second"):
        released = run(account, label)
        tell(pipe, f"left {released.paid_by}".encode())
        points.at("left")
    if not stop:
        tell(pipe, f"points {len(points.names)}".encode())


def charge_late() -> None:
    """The broken variant: a spend is written once the value has left."""
    write = PostgresStore.write

    def written(self: PostgresStore, record: Record, value: Any) -> Record:
        return record if record.body["entry"] == "spend" else write(self, record, value)

    PostgresStore.write = written  # type: ignore[method-assign]


def unpaid(address: str, lines: list[str]) -> int:
    """How many values left a process that no spend paid for."""
    records = list(iterate_records(address))
    spent = {each.body["token"] for each in records if each.body["entry"] == "spend"}
    return sum(line.removeprefix("left ") not in spent for line in lines if line[:5] == "left ")
