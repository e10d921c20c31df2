"""How learners are run on users, and what each user receives: the protocols that replay knows.

An *interaction protocol* is a generator: it takes a learner and the users in order of arrival, and
yields, once for every user, what this user receives, or None::

    def online(learner, users):
        for x, y in users:
            yield learner.predict(x)
            learner.partial_fit(x, y)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np

from privlearn.checking.isolation import is_output, muted
from privlearn.errors import CheckError, HorizonError
from privlearn.learners import Offers
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array
from privlearn.values.validate import count


class User(Protocol):
    """One user: own data and response function, which together are the record."""

    @property
    def features(self) -> Array:
        """Item features, shape (N, d)."""

    def respond(self, items: Items, /) -> int | None:
        """The choice from any offer; None is "no purchase"."""


InteractionProtocol = Callable[[Any, Iterable[Any]], Iterable[Any]]
"""From a learner and its users, in order, to what each of them receives."""


def serve(learner: Any, users: Iterable[Any], *, people: bool = False) -> Iterator[Items]:
    """`select` and `observe`, one user after the other; ``people``: hand the ids on. Raises
    CheckError: a response function raises; it is the users' side and proves nothing."""
    for user in users:
        who = {"person": user.id} if people else {}
        items = learner.select(user.features, **who)
        yield items
        try:
            with muted():
                choice = user.respond(items)
        except BaseException as error:
            if not is_output(error):
                raise
            raise CheckError(f"{user!r}: its response function raises {error!r}") from error
        learner.observe(choice)


serve_people: InteractionProtocol = partial(serve, people=True)
"""As `serve`, with ``select(features, person=user.id)``."""


def _blocks(users: Iterable[Any], size: int | None) -> Iterator[list[Any]]:
    rest = iter(users)
    while block := list(islice(rest, size)):
        yield block


def _ids(block: Sequence[Any], people: bool) -> dict[str, list[Any]]:
    return {"people": [user.id for user in block]} if people else {}


def played(size: int = 1_000_000, *, people: bool = False) -> InteractionProtocol:
    """`play`, in blocks of so many users; response functions may raise. Each user receives the
    items that the response function is asked about first."""

    def protocol(learner: Any, users: Iterable[User]) -> Iterator[Items | None]:
        for block in _blocks(users, size):
            received: list[Items | None] = [None] * len(block)
            numbers = np.arange(len(block), dtype=np.float64)[:, None]
            learner.play(
                [user.features for user in block],
                _asking(block, received, _items, _chosen),
                None,
                numbers,
                **_ids(block, people),
            )
            yield from received

    return protocol


def _asking(
    block: list[Any],
    received: list[Any],
    shown_as: Callable[[Any], Any],
    answer: Callable[[Any, Any], Any],
) -> Callable[..., list[Any]]:
    """How `play` asks its users, who are told apart by their context, or else by their turn."""
    turns = iter(range(len(block)))

    def respond(*given: Any) -> list[Any]:
        *own, shown = given
        places = own[0].private[:, 0].astype(int) if own else [next(turns) for _ in shown]
        answers: list[Any] = []
        for place, one in zip(places, shown, strict=True):
            offer = shown_as(one)
            if received[place] is None:
                received[place] = offer
            with muted():
                answers.append(answer(block[place], offer))
        return answers

    return respond


def _items(offer: Items) -> Items:
    return np.array(offer[offer != NO_ITEM])


def _chosen(user: User, items: Items) -> Any:
    choice = user.respond(items)
    return NO_ITEM if choice is None else choice


def examples(size: int = 1, *, people: bool = False, actions: bool = False) -> InteractionProtocol:
    """`partial_fit` on rows (x, y), in blocks of so many users; everybody then sees ``coef_``. x is
    the user's array as one vector, y the answer to an offer of all items. A block of one is a
    single row, unless `partial_fit` would take that for a block. ``actions``: y is the action, too.
    """

    def protocol(learner: Any, users: Iterable[User]) -> Iterator[Any]:
        for block in _blocks(users, size):
            with muted():
                labels = [user.respond(_all_items(user.features)) for user in block]
            rows = [as_vector(user.features) for user in block]
            x, y = rows[0], labels[0]
            vector = isinstance(x, np.ndarray) and x.ndim == 1
            single = not isinstance(y, list | tuple) or (vector and len(x) != len(y))
            if size == 1 and not people and single:
                learner.partial_fit(x, y)
            else:
                more = {"actions": labels} if actions else {}
                learner.partial_fit(rows, labels, **more, **_ids(block, people))
            for _ in block:
                yield getattr(learner, "coef_", None)

    return protocol


Answering = Callable[[User, int], Any]  # From a user and what is shown to the answer


def pulled(
    size: int | None = None,
    *,
    people: bool = False,
    contexts: bool = True,
    slates: bool = False,
    losses: int | None = None,
) -> InteractionProtocol:
    """A bandit: `select` and `observe`, or `play` in blocks of ``size``; ``people``: hand the ids
    on. The context is the user's array as one vector, or there are no ``contexts``. With ``slates``
    it is a row for each action, and users whose first number is positive say what each earns, its
    first number. An item is an arm: the reward is 1 if it is the user's answer to an offer of all,
    0 for another one, and the answer itself if that is no item; or ``losses`` many, `losses_of`."""
    answer = answering(losses)

    def one_by_one(learner: Any, users: Iterable[Any]) -> Iterator[int]:
        for user in users:
            who = {"person": user.id} if people else {}
            shown = learner.select(*sent_by(user, contexts=contexts, slates=slates), **who)
            yield shown
            with muted():
                answered = answer(user, shown)
            learner.observe(answered)

    def in_blocks(learner: Any, users: Iterable[User]) -> Iterator[int | None]:
        for block in _blocks(users, size):
            received: list[int | None] = [None] * len(block)
            respond, ids = _asking(block, received, int, answer), _ids(block, people)
            if contexts:
                sent = [sent_by(user, slates=slates) for user in block]
                if slates:  # those on offer come first; what is not said earns 1
                    n: int = learner.n_actions
                    earned = [[x for part in own[1:] for x in part] for own in sent]
                    ids["revenues"] = [np.array([*some, *[1.0] * n][:n]) for some in earned]
                numbers = np.arange(len(block), dtype=np.float64)[:, None]
                learner.play([own[0] for own in sent], respond, private=numbers, **ids)
            else:
                learner.play(len(block), respond, **ids)
            yield from received

    return one_by_one if size is None else in_blocks


def answering(losses: int | None) -> Answering:
    """What users of `pulled` answer."""
    return reward_of if losses is None else lambda user, shown: losses_of(user, losses)


def losses_of(user: User, n: int) -> Any:
    """1 for all of n experts but the one that a user answers to an offer of all; or the answer. A
    number that names none is the loss of the last expert, of the others a part of it."""
    answer: Any = user.respond(np.arange(n))
    if type(answer) is float:
        return [answer * (expert + 1) / n for expert in range(n)]
    if type(answer) is int and 0 <= answer < n:
        return [float(expert != answer) for expert in range(n)]
    return answer


def reward_of(user: User, arm: int) -> Any:
    """What a user of `pulled` answers to an arm."""
    answer: Any = user.respond(_all_items(user.features))
    if type(answer) is int and 0 <= answer < 10**6:
        return float(answer == arm)
    return answer


def _all_items(features: Any) -> Items:
    return np.arange(len(features) if isinstance(features, np.ndarray) else 2)


def sent_by(user: User, *, contexts: bool = True, slates: bool = False) -> list[Any]:
    """What a user of `pulled` hands to `select`, if anything."""
    if not contexts:
        return []
    if not slates:
        return [as_vector(user.features)]
    table = user.features
    earning = isinstance(table, np.ndarray) and table.ndim == 2 and table.dtype.kind == "f"
    return [table, table[:, 0]] if earning and table.size and table[0, 0] > 0 else [table]


def as_vector(features: Any) -> Any:
    """A user's array as the context of `pulled`."""
    return features.ravel() if isinstance(features, np.ndarray) else features


@dataclass(eq=False)
class Tardy:
    """A user with the time of the answer, which is part of the record.

    It comes after ``late`` further offers (None is never), and once more if ``twice``.
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
        order: a seed from which the times of all answers are drawn anew, all of them in time.
        offers: makes what takes the learner and ``wait``.
        people: hand the ids on.
        arms, contexts, slates, losses: of a bandit, see `pulled`.
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
