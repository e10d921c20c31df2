"""What every open stream does alike: order, closing, leaving, and whose tokens it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.errors import AdjacencyError, TokenSpentError, UsersError
from privlearn.ledger.entries import RetireEntry
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    CrossPolytope,
    NoisyMaxStream,
    NoisyReport,
    PrefixSum,
)
from privlearn.mechanisms.receipt_stream import ReceiptStream
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(5, 13)
MADE: dict[str, Any] = {
    "rows": PrefixSum.calibrated(Ball(1.0, 2), GaussianDP(1), horizon=8),
    "batches": BatchedPrefixSum.calibrated(Ball(1.0, 2), GaussianDP(1), sizes=(4, 4)),
    "picks": NoisyMaxStream.calibrated(CrossPolytope(2), 1.0, ZCDP(1), horizon=8),
    "reports": NoisyReport(Ball(1.0, 2), GaussianNoise(3.0)),
}
every = pytest.mark.parametrize("kind", MADE)


def opened(kind: str) -> tuple[Any, CentralAccountant[Any]]:
    book = CentralAccountant(ZCDP(9), users=range(20), noise=NoiseSource.simulation(0))
    token = book.issue(MADE[kind].loss(), users=USERS, label="stream")
    return MADE[kind].open(token), book


def rows(*users: int) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=range(users[0], users[-1] + 1))


def outcome(book: CentralAccountant[Any]) -> str:
    (end,) = [entry for entry in book.ledger.entries if isinstance(entry, RetireEntry)]
    return end.outcome


@every
def test_it_is_closed_by_leaving_and_then_takes_nothing(kind: str) -> None:
    stream, book = opened(kind)
    assert isinstance(stream, ReceiptStream)
    with stream:
        stream.append(rows(5, 6, 7, 8))
        stream.append(rows(9, 10, 11, 12))
        assert "next user 13, sealed" in repr(stream)
    assert stream.closed
    assert outcome(book) == "released"
    with pytest.raises((TokenSpentError, UsersError)):
        stream.append(rows(13))
    with pytest.raises(TokenSpentError):
        stream.close()


@every
def test_left_half_way_only_batches_are_lost(kind: str) -> None:
    stream, book = opened(kind)
    with stream:
        stream.append(rows(5, 6, 7, 8))
    assert outcome(book) == ("lost" if kind == "batches" else "released")


@every
def test_an_error_after_rows_were_opened_may_depend_on_them(kind: str) -> None:
    for users, expected in (((5, 6, 7, 8), "uncovered"), ((), "lost")):
        stream, book = opened(kind)
        with pytest.raises(RuntimeError):
            fail_inside(stream, users)
        assert outcome(book) == expected
        assert stream.closed


def fail_inside(stream: Any, users: tuple[int, ...]) -> None:
    with stream:
        if users:
            stream.append(rows(*users))
        raise RuntimeError


@every
def test_rows_out_of_order_are_refused_and_nothing_is_lost(kind: str) -> None:
    stream, _ = opened(kind)
    stream.append(rows(5))
    with pytest.raises(UsersError):
        stream.append(rows(5))
    if kind != "reports":  # of which users may be left out
        with pytest.raises(UsersError, match="the stream is at user 6"):
            stream.append(rows(7))
    stream.append(rows(6))


@every
def test_a_token_for_another_neighbour_relation_is_not_spent(kind: str) -> None:
    noise = NoiseSource.simulation(0)
    book = CentralAccountant(ZCDP(9), users=range(20), adjacency=Adjacency.ZERO_OUT, noise=noise)
    token = book.issue(ZCDP(5), users=USERS, label="stream")
    with pytest.raises(AdjacencyError, match="for replace-one, a token for zero-out"):
        MADE[kind].open(token)
    token.retire()
