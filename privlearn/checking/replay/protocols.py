"""How learners are run on users, and what each user receives: the protocols that replay knows.

An *interaction protocol* is a generator: it takes a learner and the users in order of arrival, and
yields, once for every user, what this user receives (None if nothing).  `serve` is the usual one.
One for learners of another kind takes a few lines::

    def online(learner, users):                    # users are pairs (x, y)
        for x, y in users:
            yield learner.predict(x)               # goes to this user
            learner.partial_fit(x, y)

The clock of the check is the number of users that were taken from ``users``.

Under a rule of participation a user is a visit, and ``user.id`` says whose; protocols with
``people=True``, and `serve_people`, hand the ids on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from privlearn.checking.isolation import is_output, muted
from privlearn.errors import CheckError
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


class Visitor(User, Protocol):
    """A visit of a person who may come back."""

    @property
    def id(self) -> Any:
        """Who it is; None is nobody."""


class AssortmentLearner(Protocol):
    """A learner that serves one user after the other."""

    def select(self, features: Array, /) -> Items:
        """Items for the next user."""

    def observe(self, choice: int | None, /) -> None:
        """That user's answer."""


InteractionProtocol = Callable[[Any, Iterable[Any]], Iterable[Any]]
"""From a learner and its users, in order, to what each of them receives."""


def serve(learner: AssortmentLearner, users: Iterable[User]) -> Iterator[Items]:
    """`select` and `observe`, one user after the other.

    Raises:
        CheckError: a response function raises; it is the users' side and proves nothing.
    """
    return _served(learner, users, people=False)


def serve_people(learner: Any, users: Iterable[Visitor]) -> Iterator[Items]:
    """As `serve`, with ``select(features, person=user.id)``."""
    return _served(learner, users, people=True)


def _served(learner: Any, users: Iterable[Any], *, people: bool) -> Iterator[Items]:
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


def _ids(block: Sequence[Any], people: bool) -> dict[str, list[Any]]:
    return {"people": [user.id for user in block]} if people else {}


def played(size: int = 1_000_000, *, people: bool = False) -> InteractionProtocol:
    """`play`, in blocks of so many users; response functions may raise.

    Each user receives the items that the response function is asked about first.  ``people``: hand
    the ids on.
    """
    count(size=size)

    def protocol(learner: Any, users: Iterable[User]) -> Iterator[Items | None]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            received: list[Items | None] = [None] * len(block)
            numbers = np.arange(len(block), dtype=np.float64)[:, None]
            learner.play(
                [user.features for user in block],
                _asking(block, received),
                None,
                numbers,
                **_ids(block, people),
            )
            yield from received

    return protocol


def _asking(block: list[User], received: list[Items | None]) -> Callable[[Any, Items], list[Any]]:
    def respond(own: Any, shown: Items) -> list[Any]:
        answers: list[Any] = []
        for number, offer in zip(own.private[:, 0], shown, strict=True):
            place = int(number)
            items = np.array(offer[offer != NO_ITEM])
            if received[place] is None:
                received[place] = items
            with muted():
                choice = block[place].respond(items)
            answers.append(NO_ITEM if choice is None else choice)
        return answers

    return respond


def logged(size: int = 1, *, people: bool = False) -> InteractionProtocol:
    """`partial_fit` on users who were shown all items elsewhere; nobody receives anything.

    For central accountants; the learner must have ``n_items``.  ``people``: hand the ids on.
    """
    count(size=size)

    def protocol(learner: Any, users: Iterable[User]) -> Iterator[None]:
        everything = np.arange(learner.n_items)
        rest = iter(users)
        while block := list(islice(rest, size)):
            with muted():
                choices = [user.respond(everything) for user in block]
            answers = [NO_ITEM if choice is None else choice for choice in choices]
            features = [user.features for user in block]
            learner.partial_fit(features, answers, **_ids(block, people))
            yield from [None] * len(block)

    return protocol


def examples(size: int = 1, *, people: bool = False) -> InteractionProtocol:
    """`partial_fit` on rows (x, y), in blocks of so many users; everybody then sees ``coef_``.

    x is the user's array as one vector, y the answer to an offer of all items, whatever it is; for
    central accountants.  A block of one is sent as a single row, unless x is no vector and y a
    list, which `partial_fit` would take for a block.  ``people``: hand the ids on, in blocks.
    """
    count(size=size)

    def protocol(learner: Any, users: Iterable[User]) -> Iterator[Array]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            with muted():
                labels = [user.respond(_all_items(user.features)) for user in block]
            rows = [as_vector(user.features) for user in block]
            vector = isinstance(rows[0], np.ndarray) and rows[0].ndim == 1
            if size == 1 and not people and (vector or not isinstance(labels[0], list | tuple)):
                learner.partial_fit(rows[0], labels[0])
            else:
                learner.partial_fit(rows, labels, **_ids(block, people))
            for _ in block:
                yield learner.coef_

    return protocol


Answering = Callable[[User, int], Any]
"""From a user and what is shown to the answer."""


def pulled(
    size: int | None = None,
    *,
    people: bool = False,
    contexts: bool = True,
    losses: int | None = None,
) -> InteractionProtocol:
    """A bandit: `select` and `observe`, or `play` in blocks of so many users.

    The context is the user's array as one vector.  An item is an arm: the reward is 1 if it is the
    user's answer to an offer of all, 0 for another one, and the answer itself if that is no item.

    Args:
        size: of a block.
        people: hand the ids on.
        contexts: whether the learner takes any; one that does not sees nothing of a user but the
            answer.
        losses: of a learner from experts, how many losses a user answers with, `losses_of`.
    """
    answer = answering(losses)

    def one_by_one(learner: Any, users: Iterable[Any]) -> Iterator[int]:
        for user in users:
            who = {"person": user.id} if people else {}
            shown = learner.select(*([as_vector(user.features)] if contexts else []), **who)
            yield shown
            with muted():
                answered = answer(user, shown)
            learner.observe(answered)

    def in_blocks(learner: Any, users: Iterable[User]) -> Iterator[int | None]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            received: list[int | None] = [None] * len(block)
            respond, ids = _responding(block, received, answer), _ids(block, people)
            if contexts:
                learner.play(
                    [as_vector(user.features) for user in block],
                    respond,
                    np.arange(len(block), dtype=np.float64)[:, None],
                    **ids,
                )
            else:
                learner.play(len(block), respond, **ids)
            yield from received

    if size is None:
        return one_by_one
    count(size=size)
    return in_blocks


def answering(losses: int | None) -> Answering:
    """What users of `pulled` answer."""
    return reward_of if losses is None else lambda user, shown: losses_of(user, losses)


def _responding(
    block: list[User], received: list[int | None], answer: Answering
) -> Callable[..., list[Any]]:
    """Users without a context are told apart by their turn only."""
    turns = iter(range(len(block)))

    def respond(*given: Any) -> list[Any]:
        *own, shown = given
        places = own[0].private[:, 0].astype(int) if own else [next(turns) for _ in shown]
        answers: list[Any] = []
        for place, action in zip(places, shown, strict=True):
            if received[place] is None:
                received[place] = int(action)
            with muted():
                answers.append(answer(block[place], int(action)))
        return answers

    return respond


def losses_of(user: User, n: int) -> Any:
    """1 for all of n experts but the one that a user answers to an offer of all; or the answer."""
    answer: Any = user.respond(np.arange(n))
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


def as_vector(features: Any) -> Any:
    """A user's array as the context of `pulled`."""
    return features.ravel() if isinstance(features, np.ndarray) else features
