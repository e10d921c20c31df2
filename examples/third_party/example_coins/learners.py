"""How many users say yes, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from example_coins.mechanisms import CoinCount
from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import ProvenanceError
from privlearn.learners.base import Learner
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Trust
from privlearn.values.validate import count


class CoinRates(Learner):
    """The rate of yes in each full batch, in ``rates_``, by a `CoinCount` of each.

    Args:
        batch: users of a batch.
        flip: with which probability an answer is flipped.
    """

    def __init__(self, batch: int = 100, flip: Fraction = Fraction(1, 4)):
        self.batch, self.flip = batch, flip

    def _check_accountant(self, accountant: Accountant[Any]) -> None:
        if accountant.trust is not Trust.CENTRAL or accountant.people is not None:
            raise ProvenanceError("CoinRates takes a CentralAccountant without people=")
        super()._check_accountant(accountant)

    def _prepare(self, accountant: Accountant[Any]) -> None:
        self._count = CoinCount(self.flip)
        self._size = count(batch=self.batch)
        self.rates_: list[float] = []
        self._waiting: list[Rows[Array]] = []
        self._open_board(accountant)

    def _batches(self) -> list[range]:
        users = self._board.users
        starts = range(users.start, users.stop - self._size + 1, self._size)
        return [range(start, start + self._size) for start in starts]

    def _plan(self) -> list[Plan]:
        return [Plan("count", self._count.loss(), users) for users in self._batches()]

    @property
    def _rule_batches(self) -> Sequence[int]:
        return ()

    def _needed_from(self) -> int:
        return self._waiting[0].users.start if self._waiting else self.clock_

    def _pass_again(self, users: range) -> None:
        self._take(Rows.null(users))

    def partial_fit(self, answers: ArrayLike) -> Self:
        """Takes the answers of the next users, in [0, 1], shape (n,)."""
        self._check_started()
        values = np.asarray(answers, dtype=np.float64).reshape(-1, 1)
        self._take(Rows.seal(values, users=self._next_users(len(values))))
        return self

    def _take(self, rows: Rows[Array]) -> None:
        rows = self._kept.arrived(rows, self._needed_from)
        for users in self._batches():
            stop = min(users.stop, rows.users.stop)
            if users.start <= self.clock_ < stop:
                self._waiting.append(rows.slice(range(self.clock_, stop)))
                self.clock_ = stop
                if stop == users.stop:
                    self._release(users)
        self.clock_ = rows.users.stop
        self._kept.over(self.clock_)

    def _release(self, users: range) -> None:
        whole, self._waiting = Rows.concat(self._waiting), []
        if self._accountant.lost("count", users):
            return  # a process that died had spent it: no second draw
        token = self._accountant.issue(self._count.loss(), users=users, label="count")
        value = self._board.post(f"count/{users.start}", self._count.release(whole, token))
        self.rates_.append(float(value[0]) / len(users))
