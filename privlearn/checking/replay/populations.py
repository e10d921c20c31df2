"""Neighbouring populations of choosing users, well-formed and malformed ones, for replay.

A user is own data plus a response function, which together are the record: what is answered to an
offer that was never made on the other data set is then defined as well.  Malformed users send NaN,
numbers that overflow, arrays of the wrong shape, text, or answers that name no item; a learner must
turn each of these records, and no other, into the null record, without any public trace.

Nothing here needs hypothesis; the strategies of the pytest plugin draw seeds and hand them on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.values.validate import count

U = TypeVar("U")


@dataclass(eq=False)
class Person:
    """A user whose answer to any offer follows from a rule.

    Args:
        features: item features, shape (N, d), or whatever a malformed user sends.
        answer: from the items on offer to the chosen one; None is "no purchase".
        kind: what sort of user this is, for messages.
        id: whose visit this is, under a rule of participation; None is nobody.
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


_ODD_DATA = (
    "proper data",
    "one NaN",
    "one infinity",
    "nothing but NaN",
    "squares that overflow",
    "sums that overflow",
    "subnormal numbers",
)
_NO_ARRAYS = (
    "an item too few",
    "an axis too few",
    "an axis too many",
    "text",
    "None",
    "integers beyond floats",
    "objects",
)
_ODD_ANSWERS: tuple[Any, ...] = (None, NO_ITEM, -5, 10**6, 10**30, 0.5, math.nan, "three", (1, 2))


def _odd_data(kind: str, rng: np.random.Generator, n_items: int, dim: int) -> Any:
    good = rng.normal(size=(n_items, dim))
    at = int(rng.integers(n_items)), int(rng.integers(dim))
    match kind:
        case "one NaN":
            good[at] = np.nan
        case "one infinity":
            good[at] = -np.inf
        case "nothing but NaN":
            good[:] = np.nan
        case "squares that overflow":
            good *= 1e200
        case "sums that overflow":
            good = 1e308 * np.sign(good)
        case "subnormal numbers":
            good *= 1e-310
        case "an item too few":
            return good[:-1]
        case "an axis too few":
            return good.ravel()
        case "an axis too many":
            return good[None]
        case "text":
            return "not numbers"
        case "None":
            return None
        case "integers beyond floats":
            return [[10**400] * dim] * n_items
        case "objects":
            return np.full((n_items, dim), None, dtype=object)
    return good


def stranger(
    rng: np.random.Generator, n_items: int = 6, dim: int = 2, *, arrays: bool = False
) -> Person:
    """A user of any kind, most of them with data or answers that no learner may trust.

    Args:
        rng: where everything comes from.
        n_items: N.
        dim: d.
        arrays: whether data are float arrays of shape (N, d) in any case, malformed only
            in their numbers.
    """
    if rng.random() < 0.3:
        return shopper(rng, n_items, dim)
    kinds = _ODD_DATA if arrays else _ODD_DATA + _NO_ARRAYS
    kind = kinds[int(rng.integers(len(kinds)))]
    features = _odd_data(kind, rng, n_items, dim)
    answers = (*_ODD_ANSWERS, int(rng.integers(n_items)), n_items)
    fixed = answers[int(rng.integers(len(answers)))]
    return Person(features, lambda items: fixed, f"stranger with {kind} who answers {fixed!r}")


def replaced(data: Sequence[U], at: int, by: U) -> list[U]:
    """The neighbouring population in which user ``at`` is ``by``."""
    return [by if i == at else person for i, person in enumerate(data)]


def generated_pair(
    seed: int,
    number: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    positions: Sequence[int] = (),
    arrays: bool = False,
) -> tuple[list[Person], list[Person]]:
    """One pair of neighbouring populations; the same arguments give the same pair.

    Half of the populations have malformed users throughout.  Who is replaced is in turn the first
    user, the last, one of ``positions``, and anybody; what changes is the whole record (a
    stranger), only the response, only the data, or the user becomes the null record; either may
    come first.

    Raises:
        ValueError: there is no user, or a position is none of them.
    """
    rng = np.random.default_rng([seed, number])
    malformed = rng.random() < 0.5
    data = [
        stranger(rng, n_items, dim, arrays=arrays)
        if malformed and rng.random() < 0.2
        else shopper(rng, n_items, dim)
        for _ in range(count(users=users))
    ]
    places = [0, users - 1, *positions, int(rng.integers(users))]
    at = places[number % len(places)]
    if not all(0 <= place < users for place in positions):
        raise ValueError(f"positions = {list(positions)!r}: must lie in 0..{users - 1}")
    old, new = data[at], stranger(rng, n_items, dim, arrays=arrays)
    others = [
        new,
        new,
        Person(old.features, new.answer, f"{old.kind}, with the answers of a {new.kind}"),
        Person(new.features, old.answer, f"{old.kind}, with the data of a {new.kind}"),
        null_person(n_items, dim),
    ]
    pair = data, replaced(data, at, others[int(rng.integers(len(others)))])
    return pair if rng.random() < 0.5 else pair[::-1]


def generated_pairs(
    n: int,
    seed: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    positions: Sequence[int] = (),
    arrays: bool = False,
) -> Iterator[tuple[list[Person], list[Person]]]:
    """``n`` pairs of neighbouring populations, one by one; see `generated_pair`."""
    for number in range(n):
        yield generated_pair(
            seed, number, n_items=n_items, dim=dim, users=users, positions=positions, arrays=arrays
        )


def returning_pair(
    seed: int,
    number: int = 0,
    *,
    n_items: int = 6,
    dim: int = 2,
    users: int = 10,
    public: bool = False,
    arrays: bool = False,
) -> tuple[list[Person], list[Person]]:
    """One pair of populations in which people return, and all visits of one person differ.

    That person comes first and last, twice in a row, and in between as often as everybody else: to
    most rules too often.  One of the visits under this id may be somebody else's by mistake, and is
    this person's nevertheless.  The neighbour has nobody at these slots, or under a public pattern
    other records, well-formed or not; either may come first.

    Args:
        seed: of everything.
        number: which pair.
        n_items: N.
        dim: d.
        users: how many visits there are, of about a quarter as many persons.
        public: whether the slots of a person stay, as under a public pattern.
        arrays: as for `stranger`.

    Raises:
        ValueError: fewer than four visits.
    """
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
            data[at] = replace(stranger(rng, n_items, dim, arrays=arrays), id="person 0")

    def another() -> Person:
        if public:
            return replace(stranger(rng, n_items, dim, arrays=arrays), id="person 0")
        return null_person(n_items, dim)

    other = [another() if user.id == "person 0" else user for user in data]
    return (data, other) if rng.random() < 0.5 else (other, data)
