"""Mistakes that are easily made in leases and retries: each is found by a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.contract.leases import Lease, _Run
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.errors import LeaseError
from privlearn.ledger.entries import FunctionsEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(6)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
OTHER = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(30.0))
NONCE = "ab" * 16


def central() -> CentralAccountant[Any]:
    return CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))


def rows() -> Rows[Any]:
    return Rows.seal(np.full((6, 2), 0.25), users=USERS)


def leased(mechanism: Any, accountant: Any = None) -> Lease[Any]:
    found: Lease[Any] = (accountant or central()).lease(
        mechanism, runs=5, users=USERS, label="sums"
    )
    return found


def test_two_runs_at_a_time_draw_from_noise_of_their_own() -> None:
    lease = leased(SUM)
    lease.release(rows())
    one, other = _Run(lease), _Run(lease)
    assert one.pool() is not other.pool()
    assert one.pool() is one.pool()


def test_each_function_that_rows_pass_through_is_named() -> None:
    def halved(row: Any) -> Any:
        return row / 2

    def thirds(row: Any) -> Any:
        return row / 3

    accountant = central()
    with leased(SUM, accountant) as lease:
        for function in (halved, thirds, halved):
            lease.release(rows().map(function))
    named = [e.names for e in accountant.ledger.entries if isinstance(e, FunctionsEntry)]
    assert ["halved" in names[0] for names in named] == [True, False]


class Open:
    """Releases once, and says that it stays open."""

    def loss(self) -> Any:
        return SUM.loss()

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        with token.spend(replace(SUM.spend(), interactive=True, arithmetic="own")) as receipt:
            return receipt.release_sum(rows)


def test_what_stays_open_is_not_leased() -> None:
    accountant = central()
    lease = leased(Open(), accountant)
    with pytest.raises(LeaseError, match="stays open and releases again"):
        lease.release(rows())
    assert not any(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)


@pytest.mark.parametrize("mechanism", [None, 5, NoisySum])
def test_what_is_no_mechanism_is_not_released(mechanism: Any) -> None:
    accountant = central()
    with pytest.raises(
        TypeError, match=r"mechanism = .*: must be a mechanism, which states a loss"
    ):
        accountant.release_once(NONCE, mechanism, rows(), users=USERS, label="x")
    assert len(accountant.ledger.entries) == 1


class Meanwhile:
    """As `SUM`, and between its spend and its release another token is spent, once."""

    def __init__(self, accountant: CentralAccountant[Any]) -> None:
        self._accountant, self._done = accountant, False

    def loss(self) -> Any:
        return SUM.loss()

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        with token.spend(SUM.spend()) as receipt:
            if not self._done:
                self._done = True
                paid = self._accountant.issue(OTHER.loss(), users=USERS, label="other")
                OTHER.release(rows, paid)
            return receipt.release_sum(rows)


def test_what_others_spend_meanwhile_is_not_taken_for_a_first_try() -> None:
    accountant = central()
    mechanism = Meanwhile(accountant)

    def once() -> Any:
        return accountant.release_once(NONCE, mechanism, rows(), users=USERS, label="sum")

    first = once()
    assert np.array_equal(once().value, first.value)
    assert sum(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries) == 2
