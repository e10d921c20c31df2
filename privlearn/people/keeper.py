"""What is done to a registry, wherever it is kept, and whoever else does it at the same time.

`TurnKeeper` does it in this process, each call in one turn of a place (`privlearn.people.turns`):
all calls of all processes have one order, and each is answered as if there were one process only.
`privlearn.people.remote` asks another process, which has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PeopleError, UsersError
from privlearn.people.contents import Head
from privlearn.people.identities import hashes, kind_of
from privlearn.people.quotas import Verdict, judge, tombstone
from privlearn.people.turns import Turn, Turns
from privlearn.values.participation import Participation


class Public(NamedTuple):
    """What is public of a registry, and of which kind its ids are; see `People`."""

    id: str
    rule: Participation
    serving_only: bool
    accountant: str | None
    users: range | None
    clock: int | None
    kind: str | None
    starts: tuple[int, ...] | None
    durable: bool


class Found(NamedTuple):
    """What was found of visits; see `privlearn.people.Admission`."""

    users: range
    learned: list[bool]
    persons: list[int]
    counted: list[bool]
    call: int


class Keeper(Protocol):
    """Who keeps a registry; one call at a time, of values that were checked for their form."""

    @property
    def fresh(self) -> bool:
        """Whether `seen` cannot have changed since."""

    @property
    def seen(self) -> Public:
        """As it was seen last; asks nobody."""

    def look(self) -> Public:
        """As it is now."""

    def bind(self, accountant: str, users: range) -> None:
        """See `People.bind`."""

    def divide(self, starts: tuple[int, ...]) -> None:
        """See `People.divide`."""

    def admit(self, ids: Sequence[Any], users: range | None, at: Sequence[int] | None) -> Found:
        """See `People.admit_visits`; the next slots that are free where ``users`` is None.

        ``at`` are the slots of the visits on a timetable, and None elsewhere.
        """

    def skip(self, users: range) -> None:
        """See `People.skip`."""

    def skip_to(self, slot: int) -> None:
        """See `People.skip_to`; whoever else skips meanwhile."""

    def forget(self, id: Any) -> None:
        """See `People.forget`."""

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `People.forgotten`."""

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """As far as it was seen; asks nobody."""

    def close(self) -> None:
        """Lets go of the place."""


@final
class TurnKeeper:
    """Does it here, in turns.

    Args:
        turns: of the place where the registry is kept.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @property
    def fresh(self) -> bool:
        return self._turns.fresh

    @property
    def seen(self) -> Public:
        head, starts = self._turns.seen
        return Public(
            head.id,
            head.rule,
            head.serving_only,
            head.accountant,
            head.users,
            head.clock,
            head.kind,
            starts,
            self._turns.durable,
        )

    def look(self) -> Public:
        self._turns.look()
        return self.seen

    def bind(self, accountant: str, users: range) -> None:
        self._turns.take(lambda turn: _bind(turn, accountant, users))

    def divide(self, starts: tuple[int, ...]) -> None:
        self._turns.take(lambda turn: _divide(turn, starts))

    def admit(self, ids: Sequence[Any], users: range | None, at: Sequence[int] | None) -> Found:
        return self._turns.take(lambda turn: _admit(turn, ids, users, at))

    def skip(self, users: range) -> None:
        self._turns.take(lambda turn: _skip(turn, users))

    def skip_to(self, slot: int) -> None:
        self._turns.take(lambda turn: _skip_to(turn, slot))

    def forget(self, id: Any) -> None:
        self._turns.take(lambda turn: _forget(turn, id))
        self._turns.clean()

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._turns.forgotten(persons)

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._turns.forgotten_as_known(persons)

    def close(self) -> None:
        self._turns.close()


def bound(state: Head | Public) -> range:
    """The slots of its accountant.

    Raises:
        PeopleError: it has none.
    """
    if state.users is None:
        raise PeopleError(
            "this registry of people belongs to no accountant yet: hand it to one, as people="
        )
    return state.users


def _bind(turn: Turn, accountant: str, users: range) -> None:
    head = turn.head
    if head.accountant is not None:
        if head.accountant != accountant:
            raise PeopleError(
                f"this registry of people belongs to accountant {head.accountant!r}, not "
                f"to {accountant!r}: one registry keeps the rule of one accountant"
            )
        if head.users != users:
            raise PeopleError(
                f"users = {users!r}: this registry of people was made for {head.users!r}"
            )
        return
    clock = users.start if head.clock is None else head.clock
    if not users.start <= clock <= users.stop:
        raise UsersError(f"users = {users!r}: the registry begins at slot {clock}")
    turn.write(replace(head, accountant=accountant, users=users, clock=clock))


def _divide(turn: Turn, starts: tuple[int, ...]) -> None:
    users = bound(turn.head)
    if any(left >= right for left, right in pairwise(starts)):
        raise ValueError("starts: must ascend")
    if starts[0] != users.start or starts[-1] >= users.stop:
        raise ValueError(
            f"starts = {starts[0]}, ..., {starts[-1]}: must begin with {users.start} and "
            f"end before {users.stop}"
        )
    if turn.starts is None:
        turn.write(turn.head, starts)
    elif turn.starts != starts:
        raise PeopleError(
            "starts: other batches were declared: they are fixed before the first visit"
        )


def _admit(turn: Turn, ids: Sequence[Any], users: range | None, at: Sequence[int] | None) -> Found:
    head = turn.head
    if users is None:
        clock = head.clock or bound(head).start
        users = range(clock, clock + len(ids))
    _check_next(turn, users, going_on=at is not None)
    if head.rule.batched and turn.starts is None:
        raise PeopleError("the rule counts in batches, and none were declared: call divide first")
    kind = kind_of(ids, head.kind)
    if head.serving_only:
        nobody = [False] * len(ids)
        verdict = Verdict(nobody, [-1] * len(ids), nobody, {})
    else:
        keys = hashes(head.key, ids)
        verdict = judge(
            head.rule,
            turn.standings(keys),
            keys,
            users if at is None else at,
            turn.starts,
            turn.known,
        )
    call = turn.next_call()
    turn.write(replace(head, clock=users.stop, kind=kind), changed=verdict.changed)
    return Found(users, verdict.learned, verdict.persons, verdict.counted, call)


def _skip(turn: Turn, users: range) -> None:
    _check_next(turn, users)
    turn.write(replace(turn.head, clock=users.stop))


def _skip_to(turn: Turn, slot: int) -> None:
    clock = turn.head.clock or bound(turn.head).start
    if slot > clock:
        _skip(turn, range(clock, slot))


def _forget(turn: Turn, id: Any) -> None:
    head = turn.head
    kind = kind_of([id], head.kind)
    (key,) = hashes(head.key, [id])
    if key is None:
        raise ValueError("id: there is none: nobody can be forgotten")
    known = turn.standings([key]).get(key)
    number = turn.known if known is None else known.number
    turn.write(replace(head, kind=kind), changed={key: tombstone(number, head.rule)})


def _check_next(turn: Turn, users: range, *, going_on: bool = False) -> None:
    """``going_on``: the last slot may be the first once more."""
    slots, clock = bound(turn.head), turn.head.clock or 0
    again = going_on and users.start == clock - 1 >= slots.start
    if not (users.start == clock or again) or users.stop > slots.stop:
        raise UsersError(
            f"users = {users!r}: must begin with the next slot, {clock}, and end by {slots.stop}"
        )
