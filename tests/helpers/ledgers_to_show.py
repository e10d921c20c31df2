"""A ledger of each kind that a page must show rightly; `KINDS` makes each at a path."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from person_ledgers import APART, SLOTS, STREAM, admitted
from person_ledgers import SUM as PERSON_SUM

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.contract.protocols import Plan
from privlearn.ledger import Ledger, iterate_records
from privlearn.ledger.chain import chained
from privlearn.losses import PureLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

FIRST_MINUTE = 29_870_000
"""Of the clock: 2026-10-17, 03:20."""
WEEK = 7 * 24 * 60


@contextmanager
def clock() -> Iterator[Callable[[int], None]]:
    """A clock that stands still but for what the value is told to put it on by, in minutes."""
    now = [FIRST_MINUTE]

    def on(minutes: int) -> None:
        now[0] += minutes

    with mock.patch("time.time", side_effect=lambda: 60.0 * now[0]):
        yield on


def release(book: Any, users: range, label: str, scale: float = 20.0) -> None:
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(scale))
    token = book.issue(mechanism.loss(), users=users, label=label)
    mechanism.release(Rows.seal(np.ones((len(users), 2)), users=users), token)


def weeks(path: Path) -> None:
    """Open: sums each week, two of them on half of the users; one token waits, one is lost."""
    with clock() as on:
        book: CentralAccountant[Any] = CentralAccountant(
            ApproxDP(1, "1e-6"), users=range(5000), ledger=Ledger.create(path), population="shop"
        )
        for week in range(9):
            release(book, range(5000), "weekly demand", 40.0)
            if week % 3 == 0:
                release(
                    book, range(2500 * (week % 2), 2500 + 2500 * (week % 2)), "price test", 50.0
                )
            on(WEEK)
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(40.0))
        lost = book.issue(mechanism.loss(), users=range(5000), label="weekly demand")
        lost.spend(mechanism.spend()).__enter__()
        on(60)
        book.issue(mechanism.loss(), users=range(100, 4000), label="end of year")
        book.ledger.close()


def closed(path: Path) -> None:
    with clock() as on:
        book = CentralAccountant(ZCDP("0.1"), users=range(1000), ledger=Ledger.create(path))
        for start in range(0, 1000, 200):
            release(book, range(start, start + 200), f"cohort {start // 200 + 1}", 5.0)
            on(WEEK)
        book.close()


def several(path: Path) -> None:
    """Two accountants of one population, one of them planned."""
    book = Ledger.create(path)
    with CentralAccountant(ZCDP(1), users=range(80), ledger=book, population="shop") as first:
        release(first, range(80), "first")
        release(first, range(40), "first")
        second = CentralAccountant(
            ZCDP("0.5"), users=range(80), ledger=book, shared=True, population="shop"
        )
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(8.0))
        second.commit([Plan("fit", mechanism.loss(), range(80), count=3)])
        token = second.issue(mechanism.loss(), users=range(80), label="fit")
        mechanism.release(Rows.seal(np.ones((80, 2)), users=range(80)), token)


def persons(path: Path) -> None:
    book = CentralAccountant(
        ZCDP("4"), users=SLOTS, people=People.memory(APART), ledger=Ledger.create(path)
    )
    token = book.issue(PERSON_SUM.loss(), users=range(6), label="sum")
    PERSON_SUM.release(admitted(book, range(6)), token)
    with STREAM.open(book.issue(STREAM.loss(), users=SLOTS, label="stream")) as stream:
        stream.append(Rows.null(SLOTS))
    book.close()


def attested(path: Path) -> None:
    claims = LocalAccountant(PureDP(2), users=range(100), ledger=Ledger.create(path), attested=True)
    claims.attest(
        PureLoss("0.5"),
        users=range(100),
        most_messages=2,
        count=150,
        by="app 1.2",
        mechanism="randomized response",
        label="clicks",
        unseen=["the time of a message"],
    )
    claims.close()


def simulated(path: Path) -> None:
    with CentralAccountant(
        ZCDP(1), users=range(50), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ) as book:
        release(book, range(50), "tried")


def infinite(path: Path) -> None:
    """A pure budget of which δ = 0 asks too much: Gaussian noise has no ε there."""
    with CentralAccountant(ZCDP(1), users=range(50), ledger=Ledger.create(path)) as book:
        release(book, range(50), "sum")


def pure(path: Path) -> None:
    mechanism = NoisySum(Ball(1.0, 2, "l1"), LaplaceNoise(4.0))
    with CentralAccountant(PureDP(2), users=range(50), ledger=Ledger.create(path)) as book:
        for label in ("one", "two"):
            token = book.issue(mechanism.loss(), users=range(50), label=label)
            mechanism.release(Rows.seal(np.ones((50, 2)), users=range(50)), token)


def unspent(path: Path) -> None:
    """Nothing happened yet."""
    CentralAccountant(ZCDP(1), users=range(10), ledger=Ledger.create(path)).ledger.close()


def tampered(path: Path) -> None:
    """As `weeks`, and an entry in the middle was taken out."""
    weeks(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE seq = 12")


def unknown(path: Path) -> None:
    """As `several`, with a plan of a loss that no version knows."""
    several(path)
    bodies = [record.body for record in iterate_records(path)]
    for body in bodies:
        if body["entry"] == "plan":
            body["items"][0]["loss"]["kind"] = "magic"
    path.unlink()
    path.with_name(f"{path.name}.head").unlink()
    Ledger.create(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [(r.seq, r.data.decode(), r.hash) for r in chained(bodies)]
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
    path.with_name(f"{path.name}.head").unlink(missing_ok=True)


def hostile(path: Path) -> None:
    """Labels that would like to be something else."""
    with CentralAccountant(
        ZCDP(1), users=range(50), ledger=Ledger.create(path), population="</title><script>x"
    ) as book:
        for label in (
            "<script>alert(1)</script>",
            "</style><img src=x onerror=alert(1)>",
            '"><svg onload=alert(1)> &amp; {{ 7 * 7 }} {% raw %}',
            "x\x1b[2J\x1b[HVERIFIED\nVERIFIED from the ledger alone (closed)",
            "\u202edesolc\u202c \u2066x\u2069 \u200f",
            "שלום 17 עולם",
            "x" * 3000,
        ):
            release(book, range(50), label)


KINDS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        weeks,
        closed,
        several,
        persons,
        attested,
        simulated,
        infinite,
        pure,
        unspent,
        tampered,
        unknown,
        hostile,
    )
}
