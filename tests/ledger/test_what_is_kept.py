"""What a process remembers of spends and entries changes no answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.spends import Spend
from privlearn.errors import LossExceedsTokenError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry, OpenEntry
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Norm
from privlearn.values.adjacency import Adjacency, Trust

ONE = range(1)
REPLACE = Adjacency.REPLACE_ONE


def accountant() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP("1"), users=ONE, noise=NoiseSource.simulation(0))


@dataclass
class Growing:
    """A domain of somebody else's, which is not what it was."""

    radius: float = 1.0
    size: int = field(default=2)

    def clip(self, block: Array) -> Array:
        return np.clip(block, -self.radius, self.radius)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 2 * self.radius

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "growing", "radius": self.radius}


def test_only_what_cannot_change_is_remembered_of_a_spend() -> None:
    domain = Growing()
    spend = Spend("sum", domain, GaussianNoise(2.0))
    before, derived = spend.loss(REPLACE), spend.derived
    domain.radius = 3.0
    assert before.gaussian() == 1
    assert not derived
    assert spend.loss(REPLACE).gaussian() == 9
    ours = Spend("sum", Ball(1.0, 2), GaussianNoise(2.0))
    for _ in range(2):
        assert ours.derived
        assert ours.loss(REPLACE).gaussian() == 1
        assert ours.loss(Adjacency.ZERO_OUT).gaussian() == GaussianLoss("1/4").mu_squared
        assert ours.loss(Adjacency.ZERO_OUT).adjacency is Adjacency.ZERO_OUT


def test_a_token_pays_for_the_loss_that_it_was_issued_for_and_for_no_dearer_one() -> None:
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    for price in (mechanism.loss(), GaussianLoss("0.01"), ZCDP("0.005")):
        account = accountant()
        token = account.issue(price, users=ONE, label="sum")
        with pytest.raises(LossExceedsTokenError, match="the token 'sum' holds"):
            token.spend(NoisySum(Ball(1.0, 2), GaussianNoise(19.9)).spend())
        with token.spend(mechanism.spend()):
            pass
        assert account.spent() == ZCDP("0.005")
        assert account.certificate().problems == []


def test_equal_losses_have_equal_hashes() -> None:
    assert GaussianLoss("0.01") == GaussianLoss("1/100")
    assert hash(GaussianLoss("0.01")) == hash(GaussianLoss("1/100"))
    assert GaussianLoss("0.01") != GaussianLoss("0.01", adjacency=Adjacency.ZERO_OUT)
    assert len({GaussianLoss(i) for i in range(1, 50)}) == 49


OPEN = OpenEntry(
    accountant="a",
    software="privlearn 0",
    trust=Trust.CENTRAL,
    adjacency=REPLACE,
    users=(0, 4),
    cap={"kind": "zcdp", "rho": "1"},
    promise=None,
    noise="simulation, seed 0",
    simulated=True,
    side_information=(),
    durable=False,
)
ISSUE = IssueEntry(
    accountant="a", token="a/1", label="Größe", users=(0, 4), budget={"kind": "zcdp", "rho": "1"}
)


@pytest.mark.parametrize(
    "more", [{"a": "\ud800"}, {"\ud800": 1}, {"a": [[{"b": "\udc00"}]]}, {1: 2}, {"a": {2: "b"}}]
)
def test_half_a_character_and_names_that_are_no_text_stand_in_no_ledger(
    more: dict[Any, Any], tmp_path: Path
) -> None:
    """A ledger in memory took them, and failed when somebody asked for its head."""
    bad = ISSUE.model_copy(update={"budget": {"kind": "zcdp", "rho": "1", "more": more}})
    names = isinstance(next(iter(more)), int) or isinstance(more.get("a"), dict)
    for ledger in (Ledger.create(tmp_path / "ledger.db"), Ledger.memory()):
        ledger.append(OPEN)
        if names:  # JSON has no other names than texts: these become some
            ledger.append(bad)
        else:
            with pytest.raises(ValueError, match=r"UTF-8|utf-8|surrogate"):
                ledger.append(bad)
        ledger.append(ISSUE)
        assert len(ledger.records) == len(ledger.entries) == (3 if names else 2)


@pytest.mark.parametrize("durable", [False, True])
def test_a_token_that_ended_keeps_no_spend_in_memory(durable: bool, tmp_path: Path) -> None:
    """Entries of 4 kB a spend were kept for as long as the account lived."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path) if durable else Ledger.memory()
    users, mechanism = range(2), NoisySum(Ball(1.0, 1), GaussianNoise(20.0))
    rows = Rows.seal(np.ones((2, 1)), users=users)
    accountant: Any = CentralAccountant(
        ZCDP(1), users=users, ledger=ledger, noise=NoiseSource.simulation(0)
    )

    def kept() -> set[int]:
        return {id(account.spend) for account in accountant._state.accounts.values()}

    for _ in range(5):
        mechanism.release(rows, accountant.issue(mechanism.loss(), users=users, label="sum"))
    assert len(kept()) == 1
    assert accountant.held("sum", users) == [users] * 5
    if durable:
        ledger.close()
        accountant = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
        assert len(kept()) == 1
        assert accountant.held("sum", users) == [users] * 5
        accountant.close()
        assert audit(path).spends == 5
