"""Ledgers of a few entries, and keys, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.signing import SigningKey

Written = Callable[..., Path]
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
USERS = range(4)


@pytest.fixture
def write(tmp_path: Path) -> Written:
    """Writes a ledger of an account that released ``releases`` sums; again, it goes on."""

    def written(
        name: str = "ledger.db", *, releases: int = 2, close: bool = False, simulated: bool = False
    ) -> Path:
        path = tmp_path / name
        noise = NoiseSource.simulation(0) if simulated else NoiseSource.secure()
        goes_on = path.exists()
        ledger = Ledger.open(path) if goes_on else Ledger.create(path)
        if goes_on:
            accountant = CentralAccountant[ZCDP].resume(ledger, noise=noise)
        else:
            accountant = CentralAccountant(ZCDP(1), users=USERS, ledger=ledger, noise=noise)
        for _ in range(releases):
            rows = Rows.seal(np.ones((4, 2)), users=USERS)
            SUM.release(rows, accountant.issue(ZCDP("0.01"), users=USERS, label="sum"))
        if close:
            accountant.close()
        ledger.close()
        return path

    return written


@pytest.fixture(scope="session")
def signer() -> SigningKey:
    return SigningKey.new("example.com/audits")


@pytest.fixture(scope="session")
def witness_key() -> SigningKey:
    return SigningKey.new("witness.example/w1", witness=True)
