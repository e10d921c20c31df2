"""Open users for replay: answers that come late, in any order, or never.

`offered` is an interaction protocol over `Offers`.  How late a user answers is part of that user's
record (`Tardy`), so that neighbours may differ in it as in data and choices: what
`assert_noninterference` then shows is that neither the order of answers nor who never answered is
told to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from privlearn.checking.isolation import is_output, muted
from privlearn.checking.replay.protocols import InteractionProtocol, answering, sent_by
from privlearn.errors import HorizonError
from privlearn.learners import Offers
from privlearn.values.validate import count


@dataclass(eq=False)
class Tardy:
    """A user with the time of the answer, which is part of the record.

    Args:
        user: whose data and response function these are.
        late: after how many further offers the answer comes; None is never.
        twice: whether the user sends it once more.
    """

    user: Any
    late: int | None = 0
    twice: bool = False

    @property
    def features(self) -> Any:
        """The user's own."""
        return self.user.features

    @property
    def id(self) -> Any:
        """Whose visit this is."""
        return self.user.id

    def respond(self, items: Any, /) -> Any:
        """The choice from an offer."""
        return self.user.respond(items)

    def __repr__(self) -> str:
        when = "never answers" if self.late is None else f"answers after {self.late} further offers"
        return f"{self.user!r} who {when}"


def offered(
    wait: int = 0,
    *,
    order: int | None = None,
    offers: Callable[..., Any] = Offers,
    people: bool = False,
    arms: bool = False,
    contexts: bool = True,
    slates: bool = False,
    losses: int | None = None,
) -> InteractionProtocol:
    """`Offers` over a learner, to users that answer when `Tardy` says, and others at once.

    Where a process ends before all users came (``restarts``), what is open then is never answered.
    A user receives the items, and then what every answer brings: None, or the text of the error.

    Args:
        wait: as `Offers` takes it.
        order: a seed from which the times of all answers are drawn anew, so that all of them are in
            time; default: the users' own times, and those of one time in order of arrival.
        offers: makes what takes the learner and ``wait``.
        people: hand the ids on.
        arms: of a bandit, see `protocols.pulled`.
        contexts, slates, losses: see there.
    """
    count(wait=wait, at_least=0)

    def protocol(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
        served = offers(learner, wait=wait)
        rng, first = np.random.default_rng(order), learner.clock_
        received: list[list[Any]] = []
        due: list[tuple[int, float, int, Callable[[], None]]] = []

        def answer_until(time: float) -> None:
            due.sort(key=lambda each: each[:3])
            while due and due[0][0] <= time:
                due.pop(0)[-1]()

        for number, user in enumerate(users):
            who = {"person": user.id} if people else {}
            sent = sent_by(user, contexts=contexts, slates=slates) if arms else [user.features]
            offer = served.select(*sent, **who)
            received.append([offer.items])
            if (late := getattr(user, "late", 0)) is not None:
                late = late if order is None else int(rng.integers(wait + 1))
                place = float(number) if order is None else float(rng.random())
                to_answer = answering(losses) if arms else type(user).respond
                answer = _answering(served, user, offer, received[-1], to_answer)
                due.append((number + late, place, number, answer))
            answer_until(number)
        if first + len(received) == learner.billboard_.users.stop:  # and not the end of a process
            answer_until(float("inf"))
            with suppress(HorizonError):
                while True:
                    served.close_batch()
        yield from received

    return protocol


def _answering(
    served: Any, user: Any, offer: Any, told: list[Any], to_answer: Callable[[Any, Any], Any]
) -> Callable[[], None]:
    def answer() -> None:
        with muted():
            choice = to_answer(user, offer.items)
        for _ in range(1 + getattr(user, "twice", False)):
            try:
                told.append(served.observe(offer.id, choice))
            except BaseException as error:
                if not is_output(error):
                    raise
                told.append(f"{type(error).__name__}: {error}".replace(offer.id, "the offer"))

    return answer


def late(
    pairs: Iterable[tuple[Sequence[Any], Sequence[Any]]], seed: int = 0
) -> Iterator[tuple[list[Tardy], list[Tardy]]]:
    """The same users, who answer after up to three further offers, or never."""
    rng = np.random.default_rng([seed, 2])

    def tardy(user: Any) -> Tardy:
        late = None if rng.random() < 0.2 else int(rng.integers(4))
        return Tardy(user, late, bool(rng.random() < 0.2))

    for data, neighbour in pairs:
        here = [tardy(user) for user in data]
        both = zip(here, data, neighbour, strict=True)
        yield here, [one if a is b else tardy(b) for one, a, b in both]
