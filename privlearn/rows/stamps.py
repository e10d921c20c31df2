"""Who admitted rows to be learned from, and which person each of them is of: sealed with the rows.

A registry (`privlearn.people`) decides which visits of a person are learned.  Rows that it let
through carry its stamp, without which a receipt opens nothing under a rule of participation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PeopleError, ProvenanceError, UsersError
from privlearn.values.participation import Participation

Persons = NDArray[np.int64]
"""Numbers of persons, for one registry; −1 is nobody."""


Counted = NDArray[np.bool_]
"""Which visits used up a place in the rule: of a pooled one, the first of each batch."""


Calls = tuple[int, int]
"""The first and the last call of the registry that admitted some rows, by number."""


class Registry(Protocol):
    """What rows know of the registry that admitted them."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """Its public name."""

    @property
    def rule(self) -> Participation:
        """That it keeps."""

    @property
    def clock(self) -> int | None:
        """The next slot that it will admit."""

    @property
    def serving_only(self) -> bool:
        """Whether it stands in place of one that was lost."""

    def batches(self, users: range) -> Sequence[range]:
        """The public batches of a range of slots, which is cut nowhere else."""

    def forgotten(self, persons: Persons) -> NDArray[np.bool_]:
        """Which of these persons asked to be forgotten."""


class Admission(Protocol):
    """Which visits of one call a registry let through."""

    @property
    def learned(self) -> NDArray[np.bool_]:
        """Which are learned."""

    @property
    def persons(self) -> Persons:
        """Of whom they are."""

    @property
    def counted(self) -> Counted:
        """Which used up a place in the rule."""

    @property
    def call(self) -> int:
        """Its number."""


class AdmittingRegistry(Registry):
    """A registry that admits visits here, not in another process: only `privlearn.people.People`.

    Rows are admitted by no other class: which of them count would follow from code that no ledger
    names.
    """

    __slots__ = ()

    @abstractmethod
    def admit_visits(self, ids: Sequence[Any], users: range) -> Admission:
        """See `privlearn.people.People.admit_visits`."""


@final
@dataclass(frozen=True, slots=True)
class RegistryElsewhere:
    """What is public of a registry: for a process that adds up rows which were admitted elsewhere.

    Who asked to be forgotten was looked at there, before rows were handed to this process.
    """

    id: str
    rule: Participation
    clock: int
    serving_only: ClassVar[bool] = False

    def batches(self, users: range) -> Sequence[range]:
        """Raises ProvenanceError: visits of a batch may lie in other processes."""
        raise ProvenanceError(
            f"pool: visits of one person at slots of {users!r} may lie in other processes; pool "
            "where the registry is"
        )

    def forgotten(self, persons: Persons) -> NDArray[np.bool_]:
        return np.zeros(len(persons), dtype=np.bool_)


class Admitted(Protocol):
    """What a registry found of visits, one entry for each."""

    @property
    def learned(self) -> NDArray[np.bool_]: ...
    @property
    def persons(self) -> Persons: ...
    @property
    def counted(self) -> Counted: ...
    @property
    def call(self) -> int: ...


@final
class Stamp:
    """Which registry admitted rows, in which calls, and of whom they are.

    They are nobody's where persons is None, and then none of them is counted.
    """

    __slots__ = ("calls", "counted", "persons", "pooled", "registry")

    def __init__(
        self,
        registry: Registry | None,
        persons: Persons | None,
        counted: Counted | None = None,
        pooled: bool = False,
        calls: Calls = (0, 0),
    ) -> None:
        self.registry, self.persons, self.counted = registry, persons, counted
        self.pooled, self.calls = pooled, calls

    def part(self, low: int, high: int) -> Stamp:
        if self.persons is None or self.counted is None:
            return self
        persons, counted = self.persons[low:high], self.counted[low:high]
        return Stamp(self.registry, persons, counted, self.pooled, self.calls)

    def of_sum(self) -> Stamp:
        """Of a sum of the rows, which says no more of whom they are."""
        if self is NOBODY:
            return self
        return Stamp(self.registry, None, pooled=self.pooled, calls=self.calls)

    def gone(self) -> NDArray[np.bool_] | None:
        """Of which rows the person was forgotten meanwhile; None where of none."""
        if self.registry is None or self.persons is None:
            return None
        found = self.registry.forgotten(self.persons)
        return found if found.any() else None


NOBODY = Stamp(None, None)
"""Of rows that are publicly null: they hold nothing, whoever opens them."""


def check_registry(name: str, registry: Registry | None, stop: int) -> None:
    """Checks that ``registry`` is the one of this name, which admitted the slots before ``stop``.

    For what came from another process: that a person is in it no more often than the rule allows,
    together with all that other processes hold, is what this registry saw to.

    Raises:
        ProvenanceError: it is another one, or stands in place of the one that did.
        PeopleError: it is older.
    """
    if registry is None or registry.id != name:
        given = "none" if registry is None else f"registry {registry.id}"
        raise ProvenanceError(
            f"people: registry {name} admitted these rows, and knows how often a person is in "
            f"them; given was {given}"
        )
    if registry.serving_only:
        raise ProvenanceError(
            f"people: registry {name} stands in place of the one that admitted these rows, and "
            "does not know how often a person is in them"
        )
    clock = registry.clock
    if clock is None or stop > clock:
        raise PeopleError(
            f"this registry of people is older than these rows: they were admitted up to slot "
            f"{stop - 1}, and its next slot is {clock}"
        )


def joined(parts: Sequence[tuple[Stamp | None, int]]) -> Stamp | None:
    """Of joined rows, with how many each part has; None if some have none or stamps differ."""
    stamps = [stamp for stamp, _ in parts if stamp is not NOBODY]
    if not stamps:
        return NOBODY
    first = stamps[0]
    if first is None:
        return None
    low, high = first.calls
    for stamp in stamps:
        if stamp is None or stamp.registry is not first.registry or stamp.pooled != first.pooled:
            return None
        low, high = min(low, stamp.calls[0]), max(high, stamp.calls[1])
    persons = [
        np.full(n, -1, dtype=np.int64) if stamp is None or stamp.persons is None else stamp.persons
        for stamp, n in parts
    ]
    counted = [
        np.zeros(n, dtype=np.bool_) if stamp is None or stamp.counted is None else stamp.counted
        for stamp, n in parts
    ]
    return Stamp(
        first.registry, np.concatenate(persons), np.concatenate(counted), first.pooled, (low, high)
    )


def check_shared(parts: Sequence[tuple[range, Stamp | None]]) -> None:
    """Checks rows on a timetable that are to be joined, where one slot goes on in the next part.

    A visit stands in the joined rows once: of a slot in two parts, the later holds later calls of
    the registry.  Pooled rows have one row for each person and batch, which no part adds to.

    Raises:
        UsersError: it does not.
        ProvenanceError: rows that were pooled.
    """
    before: Stamp | None = None  # of the parts that hold the last slot so far
    calls: list[Calls] = []
    stop = -1
    for users, stamp in parts:
        if users.start != stop - 1:
            before, calls = None, []
        stop = users.stop
        if stamp is None or stamp.registry is None:
            continue
        if before is not None and (before.pooled or stamp.pooled):
            raise ProvenanceError(
                f"slot {users.start} is in two parts that were pooled: join rows first, and then "
                "use rows.pool(combine)"
            )
        if any(last >= stamp.calls[0] for _, last in calls):
            raise UsersError(
                f"slot {users.start}: the same visits would stand in the joined rows twice; the "
                "part in which a slot goes on must hold visits that were admitted later"
            )
        before = stamp
        calls.append(stamp.calls)
