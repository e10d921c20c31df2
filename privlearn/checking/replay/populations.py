"""Neighbouring populations of choosing users, well-formed and malformed ones, for replay.

A user is own data plus a response function, so that answers to offers that were never made are
defined. Malformed users send NaN, numbers that overflow, arrays of the wrong shape, text, or
answers that name no item: each of them must become the null record, without any public trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, TypeVar

import numpy as np

from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array
from privlearn.values.validate import count

U = TypeVar("U")


@dataclass(eq=False)
class Person:
    """A user whose answer to any offer follows from a rule; None is "no purchase".

    ``features`` have shape (N, d), or are whatever a malformed user sends; ``id`` says whose visit
    this is, under a rule of participation; None is nobody.
    """

    features: Any
    answer: Callable[[Items], Any]
    kind: str = "person"
    id: Any = None

    def respond(self, items: Items, /) -> Any:
        """The choice from an offer."""
        return self.answer(items)

    def __repr__(self) -> str:
        return f"Person({self.kind})"


def buys_nothing(items: Items) -> None:
    """The response function of somebody who never buys."""


def shopper(rng: np.random.Generator, n_items: int = 6, dim: int = 2) -> Person:
    """A user with proper data who takes a favourite if it is on offer, or never buys."""
    favourites = [int(i) for i in rng.permutation(n_items)]
    if rng.random() < 0.2:
        return Person(rng.normal(size=(n_items, dim)), buys_nothing, "shopper who never buys")

    def answer(items: Items) -> int | None:
        offered = {int(i) for i in items}
        return next((i for i in favourites if i in offered), None)

    return Person(rng.normal(size=(n_items, dim)), answer, "shopper")


def null_person(n_items: int = 6, dim: int = 2) -> Person:
    """A user who counts as the null record: no number and no answer."""
    return Person(np.full((n_items, dim), np.nan), buys_nothing, "null record")


def _put(data: Array, at: tuple[int, int], value: float) -> Array:
    data[at] = value
    return data


_ODD_DATA: dict[str, Callable[[Array, tuple[int, int]], Any]] = {
    "one NaN": lambda x, at: _put(x, at, np.nan),
    "one infinity": lambda x, at: _put(x, at, -np.inf),
    "nothing but NaN": lambda x, at: np.full_like(x, np.nan),
    "squares that overflow": lambda x, at: x * 1e200,
    "sums that overflow": lambda x, at: 1e308 * np.sign(x),
    "subnormal numbers": lambda x, at: x * 1e-310,
}  # From proper data, and one place in them
_NO_NUMBERS: dict[str, Callable[[Array, tuple[int, int]], Any]] = {
    "proper data": lambda x, at: x,
    "no item": lambda x, at: x[:0],
    "an item too few": lambda x, at: x[:-1],
    "an item too many": lambda x, at: np.concatenate([x, x[:1]]),
    "a column too few": lambda x, at: x[:, :-1],
    "an axis too few": lambda x, at: x.ravel(),
    "an axis too many": lambda x, at: x[None],
    "text": lambda x, at: "not numbers",
    "None": lambda x, at: None,
}
_ANY_DATA = {
    **_ODD_DATA,
    **_NO_NUMBERS,
    "integers beyond floats": lambda x, at: [[10**400] * x.shape[1]] * len(x),
    "objects": lambda x, at: np.full(x.shape, None, dtype=object),
}
_ODD_ANSWERS: tuple[Any, ...] = (None, NO_ITEM, -5, 10**6, 10**30, 0.5, math.nan, "three", (1, 2))


def _drawn(
    kinds: dict[str, Callable[[Array, tuple[int, int]], Any]],
    rng: np.random.Generator,
    n_items: int,
    dim: int,
) -> tuple[str, Any]:
    """Data of a kind that is drawn, and its name."""
    kind = list(kinds)[int(rng.integers(len(kinds)))]
    good = rng.normal(size=(n_items, dim))
    return kind, kinds[kind](good, (int(rng.integers(n_items)), int(rng.integers(dim))))


def stranger(rng: np.random.Generator, n_items: int = 6, dim: int = 2) -> Person:
    """A user of any kind, most of them with data or answers that no learner may trust."""
    if rng.random() < 0.3:
        return shopper(rng, n_items, dim)
    kind, features = _drawn(_ANY_DATA, rng, n_items, dim)
    answers = (*_ODD_ANSWERS, int(rng.integers(n_items)), n_items)
    fixed = answers[int(rng.integers(len(answers)))] if rng.random() < 0.7 else _number(rng)
    told = f"stranger with {kind} who answers {fixed!r}"
    return Person(features, partial(_always, fixed), told)


def _number(rng: np.random.Generator) -> float:
    """Between 0 and 1 or, as often, any other, and with few decimals or many."""
    number = rng.random() if rng.random() < 0.5 else 2 * rng.standard_cauchy()
    return round(float(number), int(rng.choice([0, 1, 2, 17])))


def rater(rng: np.random.Generator, n_items: int = 6, dim: int = 2) -> Person:
    """A user with proper data who answers a number, whatever is on offer."""
    number, features = _number(rng), rng.normal(size=(n_items, dim))
    return Person(features, partial(_always, number), f"rater who answers {number!r}")


def mistaken(rng: np.random.Generator, n_items: int = 6, dim: int = 2) -> Person:
    """A user who sends something of another form, which is no number that could get into a sum."""
    kind, data = _drawn(_NO_NUMBERS, rng, n_items, dim)
    answer = (None, "three", (1, 2), -5)[int(rng.integers(4))]
    return Person(data, partial(_always, answer), f"mistaken with {kind} who answers {answer!r}")


def replaced(data: Sequence[U], at: int, by: U) -> list[U]:
    """The neighbouring population in which user ``at`` is ``by``."""
    return [by if i == at else person for i, person in enumerate(data)]


def generated_pairs(
    n: int,
    seed: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    positions: Sequence[int] = (),
) -> Iterator[tuple[list[Person], list[Person]]]:
    """``n`` pairs of neighbouring populations, one by one; the same arguments give the same ones.

    Half of them have malformed users throughout. The first user is replaced, the last, one of
    ``positions``, and anybody, by a stranger, or in the response or the data only, or by null.

    Raises:
        ValueError: there is no user, or a position is none of them.
    """
    if not all(0 <= place < count(users=users) for place in positions):
        raise ValueError(f"positions = {list(positions)!r}: must lie in 0..{users - 1}")
    for number in range(n):
        rng = np.random.default_rng([seed, number])
        malformed = rng.random() < 0.5
        data = [
            (stranger if malformed and rng.random() < 0.2 else shopper)(rng, n_items, dim)
            for _ in range(count(users=users))
        ]
        places = [0, users - 1, *positions, int(rng.integers(users))]
        at = places[number % len(places)]
        old, new = data[at], stranger(rng, n_items, dim)
        others = [
            new,
            new,
            Person(old.features, new.answer, f"{old.kind}, with the answers of a {new.kind}"),
            Person(new.features, old.answer, f"{old.kind}, with the data of a {new.kind}"),
            null_person(n_items, dim),
        ]
        pair = data, replaced(data, at, others[int(rng.integers(len(others)))])
        yield pair if rng.random() < 0.5 else pair[::-1]


def told_people(
    numbers: Sequence[float], n_items: int = 6, dim: int = 2, *, first: int = 0
) -> Iterator[Person]:
    """Users whose data or answers hold a number that some code mentions, without end. It is the
    answer, as a float or as an integer, or one of the data, or all; ``first`` turns later."""
    rng = np.random.default_rng(0)
    for turn in islice(cycle(range(4 * len(numbers))), first, None):
        number = numbers[turn // 4]
        user = shopper(rng, n_items, dim)
        if turn % 4 == 0:
            user.answer = partial(_always, number)
        elif turn % 4 == 1:
            user.features = np.full((n_items, dim), number)
        else:
            user.features[rng.integers(n_items), rng.integers(dim)] = number
        if turn % 4 == 3:
            user.answer = partial(_always, int(number) if number == math.floor(number) else number)
        yield replace(user, kind=f"shopper with the number {number!r}")


def _always(answer: Any, items: Items) -> Any:
    return answer


def crowd_pair(
    seed: int,
    number: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    numbers: Sequence[float] = (),
    malformed: float = 0.0,
) -> tuple[list[Person], list[Person]]:
    """Two populations of which about every second user differs, for replays of a crowd. Every third
    one differs by one of ``numbers``, which the code mentions (`told_people`); those of the next
    pair go on with them. The first user always differs, the last never; of those whose place the
    code mentions all do, or in every other pair none; in every third pair they answer 0 and 1,
    whatever is on offer. ``malformed``: the share of strangers who are so in both; one of ten is
    `mistaken` in any case. Raises ValueError: fewer than two users."""
    rng = np.random.default_rng([seed, number, 2])
    shares = [0.8 - malformed, 0.1, 0.1, malformed]
    kinds = rng.choice(4, size=count(users=users, at_least=2), p=shares)
    data = [(shopper, rater, mistaken, stranger)[kind](rng, n_items, dim) for kind in kinds]
    first = number * users // 3
    told = told_people(numbers, n_items, dim, first=first) if numbers else None
    other = list(data)
    special = {at - 1 for x in numbers for at in (x, x + 1)}
    for at in range(users - 1):
        if at in special and number % 3 == 0:
            zero, one = (partial(_always, answer) for answer in (0.0, 1.0))
            data[at], other[at] = replace(data[at], answer=zero), replace(data[at], answer=one)
        elif told is not None and (at + number) % 3 == 0 and at not in special:
            other[at] = next(told)
        elif at == 0 or (number % 2 == 0 if at in special else rng.random() < 0.5):
            make = (stranger, rater, shopper)[rng.choice(3, p=[0.25, 0.25, 0.5])]
            other[at] = make(rng, n_items, dim)
    return (data, other) if number % 2 else (other, data)


def returning_pair(
    seed: int,
    number: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    public: bool = False,
) -> tuple[list[Person], list[Person]]:
    """One pair of populations in which people return, and all visits of one person differ. That
    person comes first and last, twice in a row, and in between as often as everybody else: to most
    rules too often. The neighbour has nobody at these slots, or under a ``public`` pattern other
    records, well-formed or not. A quarter as many persons as visits (``users``) come. Raises
    ValueError: fewer than four visits."""
    rng = np.random.default_rng([seed, number, 1])
    count(users=users, at_least=4)
    ids: list[Any] = [f"person {i}" for i in rng.integers(0, 1 + users // 4, users)]
    ids[int(rng.integers(users))] = None
    twice = int(rng.integers(1, users - 2))
    mine = {0, twice, twice + 1, users - 1}
    for at in mine:
        ids[at] = "person 0"
    data = [replace(shopper(rng, n_items, dim), id=id) for id in ids]
    if rng.random() < 0.5:  # malformed ones among the person's records
        for at in mine:
            data[at] = replace(stranger(rng, n_items, dim), id="person 0")

    def another() -> Person:
        if public:
            return replace(stranger(rng, n_items, dim), id="person 0")
        return null_person(n_items, dim)

    other = [another() if user.id == "person 0" else user for user in data]
    return (data, other) if rng.random() < 0.5 else (other, data)
