"""Open users for replay: answers that come late, in any order, or never.

`offered` is an interaction protocol over `Offers`.  How late a user answers is part of that user's
record (`Tardy`), so that neighbours may differ in it as in data and choices: what
`assert_noninterference` then shows is that neither the order of answers nor who never answered is
told to anybody.  `assert_answers_in_any_order` runs one data set in many orders of answers that are
all in time, after which everything must be the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.isolation import TimeLimit, is_output, muted
from privlearn.checking.replay.canonical import CanonicalForm
from privlearn.checking.replay.check import Note, Setup
from privlearn.checking.replay.comparison import compare
from privlearn.checking.replay.populations import generated_pairs
from privlearn.checking.replay.protocols import InteractionProtocol, answering, as_vector
from privlearn.checking.replay.recording import Recorder
from privlearn.errors import CheckError, HorizonError, InterferenceError
from privlearn.learners import Offers
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.values.participation import Participation
from privlearn.values.validate import count

__tracebackhide__ = told_in_full


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
        contexts: whether the bandit takes any.
        losses: of experts, see there.
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
            sent = as_vector(user.features) if arms else user.features
            offer = served.select(*([sent] if contexts else []), **who)
            received.append([offer.items])
            if (late := getattr(user, "late", 0)) is not None:
                late = late if order is None else int(rng.integers(wait + 1))
                place = float(number) if order is None else float(rng.random())
                to_answer = answering(losses) if arms else _choice
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


def _choice(user: Any, items: Any) -> Any:
    return user.respond(items)


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


def late_pairs(
    n: int, seed: int = 0, *, most: int = 3, **population: Any
) -> Iterator[tuple[list[Tardy], list[Tardy]]]:
    """As `generated_pairs`, of users who answer after up to ``most`` further offers, or never."""
    rng = np.random.default_rng([seed, 2])

    def tardy(user: Any) -> Tardy:
        late = None if rng.random() < 0.2 else int(rng.integers(most + 1))
        return Tardy(user, late, bool(rng.random() < 0.2))

    for data, neighbour in generated_pairs(n, seed, **population):
        here = [tardy(user) for user in data]
        pairs = zip(here, data, neighbour, strict=True)
        yield here, [one if a is b else tardy(b) for one, a, b in pairs]


def assert_answers_in_any_order(
    learner_factory: Callable[[Any], Any],
    users: Sequence[Tardy],
    *,
    wait: int,
    orders: int = 4,
    budget: Currency | None = None,
    seed: int = 0,
    offers: Callable[..., Any] = Offers,
    rule: Participation | None = None,
    arms: bool = False,
    contexts: bool = True,
    losses: int | None = None,
    seconds: float = 60.0,
) -> None:
    """Serves users in several orders of their answers; raises if anything else is not the same.

    In every order each answer comes before its batch is closed, at a time drawn for it.  Compared
    are tokens, ledger, billboard, public state, opened rows and released values, everything printed
    or logged, and what each user receives, messages included.

    Args:
        learner_factory: starts a fresh learner with the accountant it is given.
        users: in order of arrival; of the times only "never" is used.
        wait: as `Offers` takes it, which is how late answers may be.
        orders: how many.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the noise, which is the same in all of them, and of the orders.
        offers: makes what serves, `Offers` if not given.
        rule: of participation; users then have an ``id``.
        arms, contexts, losses: as for `offered`.
        seconds: for everything together.

    Raises:
        InterferenceError: something follows from the order of the answers.
        CheckError: nothing was checked, as the learner fails or spends nothing.
    """
    n, who = len(users), "the learner"

    def run(order: int, limit: TimeLimit) -> Any:
        protocol = offered(
            wait,
            order=order,
            offers=offers,
            people=rule is not None,
            arms=arms,
            contexts=contexts,
            losses=losses,
        )

        def body(accountant: Any, on: Sequence[Any], observer: Recorder, note: Note) -> None:
            canonical = CanonicalForm({"accountant": accountant}, objects=True)
            note.accountant, note.learner = accountant, learner_factory(accountant)
            for output in protocol(
                note.learner, observer.arriving(on, n, partial(note.look, observer))
            ):
                observer.run.outputs.append(canonical.of(output, "the output"))

        cap = ZCDP(1) if budget is None else budget
        setup = Setup(body, JointAccountant, cap, n, seed, rule)
        return setup.run(users, Recorder(limit))[0]

    with TimeLimit(seconds, who) as limit:
        first = run(seed, limit)
        if first.error or not any(event.what == "spend" for event in first.events):
            raise CheckError(
                f"{who} {first.error or 'spends nothing'}: little was checked; take other users"
            )
        for order in range(seed + 1, seed + count(orders=orders, at_least=2)):
            try:
                compare(first, run(order, limit), ())
            except InterferenceError as difference:
                raise InterferenceError(
                    f"with the answers in another order: {difference}\n  orders {seed} and {order}"
                ) from None
