"""Which entries a cut of the power may take away: none that somebody relies on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.ledger import Ledger
from privlearn.ledger.tail import needs_no_sync
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))


class Failing:
    """Opens rows, and fails: whether it does may follow from them."""

    def loss(self) -> Any:
        return SUM.loss()

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:

        with token.spend(replace(SUM.spend(), arithmetic="own")) as receipt:
            receipt.open_integers(rows)
            raise ArithmeticError("singular")


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        ({"entry": "issue"}, True),
        ({"entry": "publish"}, True),
        ({"entry": "sums"}, True),
        ({"entry": "retire", "outcome": "released"}, True),
        ({"entry": "retire", "outcome": "unused"}, True),
        ({"entry": "retire", "outcome": "lost"}, True),
        ({"entry": "retire", "outcome": "uncovered"}, False),
        *(
            ({"entry": kind}, False)
            for kind in (
                *("open", "plan", "batches", "learner", "spend", "functions", "phase", "reach"),
                *("attest", "delegate", "return", "resume", "close"),
            )
        ),
    ],
)
def test_only_what_can_be_said_again_may_wait(body: dict[str, str], waits: bool) -> None:
    assert needs_no_sync(body) is waits


def test_a_release_that_was_not_covered_is_on_disk_before_it_is_told(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db")
    noise = NoiseSource.simulation(1)
    accountant = CentralAccountant(ZCDP(1), users=USERS, noise=noise, ledger=ledger)
    rows = Rows.seal(np.ones((4, 2)), users=USERS)
    disk = ledger._disk
    assert disk is not None
    SUM.release(rows, accountant.issue(SUM.loss(), users=USERS, label="one"))
    assert disk.pending
    with pytest.raises(ArithmeticError):
        Failing().release(rows, accountant.issue(SUM.loss(), users=USERS, label="two"))
    assert ledger.entries[-1].body()["outcome"] == "uncovered"
    assert not disk.pending
    ledger.close()
