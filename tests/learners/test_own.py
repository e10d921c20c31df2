"""Learners of other people: what they build on is exported, and their mistakes are named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from privlearn import ZCDP, Box, Ledger, NoiseSource, Plan, Rows
from privlearn.accountants import CentralAccountant
from privlearn.errors import LedgerError
from privlearn.learners import Learner
from privlearn.mechanisms import NoisySum


@dataclass(eq=False, repr=False, kw_only=True)
class Total(Learner):
    """One noisy sum of all users, after the last of them."""

    high: float = 10.0
    _rule_batches = ()

    def _prepare(self, accountant: Any) -> None:
        self._open_board(accountant)
        self._sums = self._fixed(
            "sums", lambda: NoisySum.calibrated(Box(0, self.high, 1), accountant.budget)
        )
        self._rows: list[Rows[Any]] = []

    def _plan(self) -> list[Plan]:
        return [Plan("sum", self._sums.loss(), self._board.users)]

    def _pass_again(self, users: range) -> None:
        self._rows.append(Rows.null(users))
        self.clock_ = users.stop

    def _needed_from(self) -> int:
        return 0


def account() -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(1), users=range(9), ledger=Ledger.memory(), noise=noise)


def test_users_who_never_came_are_counted_without_a_method_of_its_own() -> None:
    learner = Total().start(account())
    assert learner.skip(4) is learner
    assert learner.clock_ == 4
    assert len(learner.private_messages_) == 1
    with pytest.raises(RuntimeError, match=r"call start\(accountant\) first"):
        Total().skip(1)


def test_a_learner_that_opens_no_billboard_is_told_to() -> None:
    class Hasty(Total):
        def _prepare(self, accountant: Any) -> None:
            self._sums = NoisySum.calibrated(Box(0, 1, 1), accountant.budget)

    with pytest.raises(TypeError, match=r"Hasty\._prepare: must call self\._open_board"):
        Hasty().start(account())


def test_a_parameter_that_is_not_kept_is_named() -> None:
    class Renames(Total):
        def __init__(self, most: float) -> None:
            super().__init__(high=most)

    with pytest.raises(AttributeError, match="Renames has no attribute 'most'"):
        Renames(3.0).start(account())


def test_a_plan_without_items_is_refused() -> None:
    class Aimless(Total):
        def _plan(self) -> list[Plan]:
            return []

    with pytest.raises(ValueError, match=r"plan = \[\]: must have an item"):
        Aimless().start(account())


def test_what_cannot_be_written_down_is_named() -> None:
    class WithAFunction(Total):
        def _prepare(self, accountant: Any) -> None:
            super()._prepare(accountant)
            self._weights = self._fixed("weights", lambda: len)

    wanted = r"WithAFunction\._fixed\('weights'\): .*; keep numbers, text, arrays, and mechanisms"
    with pytest.raises(TypeError, match=wanted):
        WithAFunction().start(account())


def test_users_that_are_passed_again_without_their_releases_are_told_of(tmp_path: Path) -> None:
    class Skipping(Total):
        def learn(self, amount: float) -> None:
            self._rows.append(Rows.seal([[amount]], users=self._next_users(1)))
            self.clock_ += 1
            if self.clock_ == 9:
                token = self._accountant.issue(self._sums.loss(), users=range(9), label="sum")
                self._board.post("sum", self._sums.release(Rows.concat(self._rows), token))

    ledger, noise = Ledger.create(tmp_path / "ledger.db"), NoiseSource.simulation(0)
    first = CentralAccountant(ZCDP(1), users=range(9), ledger=ledger, noise=noise)
    learner = Skipping().start(first)
    for _ in range(9):
        learner.learn(1.0)
    first.ledger.close()
    again: Any = CentralAccountant.resume(tmp_path / "ledger.db", noise=noise)
    with pytest.raises(LedgerError, match="_pass_again must take null records as real ones"):
        Skipping.resume(again)
    again.ledger.close()
