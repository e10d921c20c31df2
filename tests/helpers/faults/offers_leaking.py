"""Offers with a single fault each, which tell of the order of answers or of who never answered.

`Offers` itself is the control.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from faults.cases import Fault, ReplayCase
from privlearn.checking.replay.populations import shopper
from privlearn.checking.replay.protocols import Tardy, offered
from privlearn.errors import HorizonError, OfferError
from privlearn.learners import Offer, Offers, OnePassNewtonMNL
from privlearn.learners.open_users import OpenUsers
from privlearn.learners.served import Mask


class _ClosesByAnswers(OpenUsers[Any, Any, Any]):
    def answer(self, heard: Mapping[int, Any]) -> None:
        super().answer(heard)
        end = self._learner._next_change()
        if all(user in self._heard for user in range(self.first, end)):
            self.close(end)


class ClosesByNumberOfAnswers(Offers[Any]):
    """A batch is closed once everybody in it has answered, if that is earlier."""

    _kept_open_by = _ClosesByAnswers


class _TellsOfTheMissing(OpenUsers[Any, Any, Any]):
    def _tell(self, users: range, usable: Mask) -> None:
        super()._tell(users, usable)
        missing = [user for user in users if user not in self._heard]
        print(f"{len(missing)} users never answered", file=sys.stderr)


class LogsWhoNeverAnswered(Offers[Any]):
    """The number of unanswered offers goes to the log when a batch is closed."""

    _kept_open_by = _TellsOfTheMissing


class ErrorTellsOfOthers(Offers[Any]):
    """Whoever answers twice is told how many others have answered."""

    def _index(self, offer_id: Any) -> int:
        index = super()._index(offer_id)
        if self._open.has_answered(index):
            raise OfferError(f"offer_id: answered before; {len(self._open._heard)} have answered")
        return index


class _Own:
    """What a learner does one by one, called when somebody else thinks fit."""

    def __init__(self, learner: Any, *, wait: int) -> None:
        self.learner, self.open = learner, dict[str, Any]()

    def _offered(self, features: Any) -> Offer:
        """From the present public state, and without an index."""
        data, _ = self.learner._arriving([self.learner._sent(features)], None)
        items = self.learner._policy((data, np.ones(1, dtype=np.int64)))[0]
        offer = Offer(str(id(data)), self.learner._to_show(items, 0))
        self.open[offer.id] = features, data
        return offer

    def _learned(self, offer_id: str, choice: Any) -> None:
        features, _ = self.open.pop(offer_id)
        self.learner.select(features)
        self.learner.observe(choice)

    def close_batch(self) -> None:
        if self.learner.clock_ < self.learner._accountant.users.stop:
            self.learner.skip(self.learner._accountant.users.stop - self.learner.clock_)
        raise HorizonError("all batches are closed")


class FixesIndexAtAnswer(_Own):
    """A user's arrival index is that of the answer."""

    def select(self, features: Any) -> Offer:
        return self._offered(features)

    def observe(self, offer_id: str, choice: Any) -> None:
        self._learned(offer_id, choice)


class LearnsInOrderOfAnswers(_Own):
    """Batches close by the number of offers, and hold answers in the order in which they came."""

    def __init__(self, learner: Any, *, wait: int) -> None:
        super().__init__(learner, wait=wait)
        self.made, self.answered = 0, dict[str, Any]()

    def select(self, features: Any) -> Offer:
        if self.made == self.learner._next_change():
            self._close()
        self.made += 1
        return self._offered(features)

    def observe(self, offer_id: str, choice: Any) -> None:
        self.answered[offer_id] = choice

    def _close(self) -> None:
        for offer_id, choice in self.answered.items():
            self._learned(offer_id, choice)
        self.answered.clear()
        if self.learner.clock_ < self.made:
            self.learner.skip(self.made - self.learner.clock_)

    def close_batch(self) -> None:
        self._close()
        super().close_batch()


# As faults ----------------------------------------------------------------------------------------

LEAKS: tuple[Callable[..., Any], ...] = (
    ClosesByNumberOfAnswers,
    LogsWhoNeverAnswered,
    ErrorTellsOfOthers,
    FixesIndexAtAnswer,
    LearnsInOrderOfAnswers,
)


def newton(accountant: Any) -> OnePassNewtonMNL:
    """The learner that all of them serve for."""
    learner = OnePassNewtonMNL(n_items=6, dim=2, max_items=3, first_batch=6)
    return learner.start(accountant)


def crowd_and_absent(users: int = 30) -> tuple[list[Tardy], list[Tardy]]:
    """Users who answer within two offers; and the same with one of them who never answers."""
    rng = np.random.default_rng(3)
    data = [Tardy(shopper(rng), number % 3, number == 10) for number in range(users)]
    return data, [*data[:8], Tardy(data[8].user, None), *data[9:]]


def _fault(offers: Callable[..., Any]) -> Fault:
    data, neighbour = crowd_and_absent()
    return Fault(
        f"offers: {offers.__name__}",
        offers.__doc__ or "",
        "what must not follow from answers: docs/how-to/serve-many-users.md",
        ReplayCase(newton, data, neighbour, offered(6, offers=offers)),
        ReplayCase(newton, data, neighbour, offered(6)),
    )


FAULTS = tuple(map(_fault, LEAKS))
