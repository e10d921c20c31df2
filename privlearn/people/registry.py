"""The registry of people: who has used up how much of the rule.

Whether a visit is learned depends on that person's earlier slots and on public numbers only
(`privlearn.people.quotas`).  It is debited before anybody acts on it: when `People.admit_visits`
returns, a visit that is learned is on disk as used, and a process that dies before that has learned
nothing of it.  Nothing that a registry shows, raises or writes outside its file depends on ids.
"""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self, TypeVar, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn import _processes
from privlearn._exclusive import Exclusive
from privlearn._validate import count, text, user_range
from privlearn.errors import PeopleError, ProvenanceError, UsersError
from privlearn.participation import Participation
from privlearn.people.contents import Contents, Head, Store
from privlearn.people.file import RegistryFile
from privlearn.people.identities import hashes, id_list, kind_of, new_key
from privlearn.people.quotas import FORGOTTEN, Standing, Verdict, judge, tombstone
from privlearn.rows import Rows, Sealed
from privlearn.rows.sealed import slots_within

T = TypeVar("T")


@final
class Admission(Sealed):
    """What was found of the visits at slots ``users``; for `privlearn.billboard` and rows.

    Attributes:
        users: the slots, public.
        learned: for each visit whether its row may be learned from, shape (n,), sealed.
        persons: for each visit whose it is, a number >= 0 of this registry, or -1 for nobody;
            int64, shape (n,), sealed.
        counted: for each visit whether it used up a place in the rule, shape (n,), sealed; of a
            person's visits in one batch of a pooled rule the first one does.
        call: the number of the call that it is of, from 1 on in one process.
    """

    __slots__ = ("call", "counted", "learned", "persons", "users")

    def __init__(
        self,
        users: range,
        learned: NDArray[np.bool_],
        persons: NDArray[np.int64],
        counted: NDArray[np.bool_],
        call: int,
    ) -> None:
        for each in (learned, persons, counted):
            each.setflags(write=False)
        self.users, self.learned, self.persons = users, learned, persons
        self.counted, self.call = counted, call

    def __repr__(self) -> str:
        return f"Admission(users={self.users.start}..{self.users.stop - 1}, sealed)"


@final
class People(Sealed):
    """The registry of one accountant's people: who used up how much of its rule; sealed.

    `create`, `open` or `memory` make one.  Ids are text, bytes or integers, one kind in a registry,
    and are taken as they are.  One call at a time; other threads wait.  See docs/people.md.
    """

    __slots__ = (
        "__calls",
        "__closed",
        "__forgotten",
        "__head",
        "__lock",
        "__passed",
        "__stale",
        "__standings",
        "__starts",
        "__store",
        "__weakref__",
    )

    def __init__(self, contents: Contents, store: Store | None) -> None:
        self.__store = store
        self.__lock = Exclusive(
            "a registry of people",
            PeopleError,
            "two of them would each give everybody the whole of the rule",
        )
        self.__closed = self.__stale = False
        self.__calls = 0  # of admit_visits, in this process
        self.__passed = 0
        self.__take(contents)

    def __take(self, contents: Contents) -> None:
        self.__head, self.__starts, self.__standings = contents
        self.__forgotten = {
            standing.number for standing in contents.standings.values() if _is_forgotten(standing)
        }

    @classmethod
    def memory(cls, rule: Participation) -> People:
        """A registry in memory, which ends with this process; for simulations.

        Raises:
            TypeError: ``rule`` is no Participation.
        """
        return cls(Contents(_new_head(rule), None, {}), None)

    @classmethod
    def create(cls, path: str | os.PathLike[str], rule: Participation) -> People:
        """A registry in a new file, which only its owner may read.

        Raises:
            PeopleError: something stands there, or it cannot be written.
            TypeError: ``rule`` is no Participation.
        """
        return cls._made(path, _new_head(rule))

    @classmethod
    def replace_lost(
        cls, path: str | os.PathLike[str], rule: Participation, *, id: str, clock: int
    ) -> People:
        """A registry in place of one that is lost, for its accountant to go on: it learns nobody.

        Who used up what is not known any more, so every visit is served only, for good; then
        nothing is paid.  To learn again, begin a further accountant with a registry and a cap of
        its own (``shared=True`` in the same ledger).

        Args:
            path: of the new file.
            rule: the same as before.
            id: the public name of the lost one, as it stands in the ledger.
            clock: the first slot that is admitted, behind all that were.

        Raises:
            PeopleError, TypeError: as in `create`.
            ValueError: no name, or a clock below 0.
        """
        head = _new_head(rule)
        if not re.fullmatch("[0-9a-f]{32}", text(id=id)):
            raise ValueError(f"id = {id!r}: must be the 32 digits of the lost registry's name")
        count(clock=clock, at_least=0)
        return cls._made(path, replace(head, id=id, clock=clock, serving_only=True))

    @classmethod
    def _made(cls, path: str | os.PathLike[str], head: Head) -> People:
        return cls(Contents(head, None, {}), RegistryFile.create(path, head))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        rule: Participation | None = None,
        *,
        moved: bool = False,
    ) -> People:
        """A registry that was created before; one process at a time.

        Args:
            path: its file.
            rule: which it must keep, if given.
            moved: it was moved or restored, and is the only one and the newest; it is taken where
                it stands now.

        Raises:
            PeopleError: missing, no registry, damaged, of another format, a copy, open already, or
                of another rule.
        """
        store, contents = RegistryFile.open(path, moved=moved)
        if rule is not None and rule != contents.head.rule:
            store.close()
            raise PeopleError(
                f"rule = {rule!r}: {path} keeps another, {contents.head.rule!r}, which cannot be "
                "changed"
            )
        return cls(contents, store)

    @property
    def rule(self) -> Participation:
        """The rule that it keeps."""
        return self.__head.rule

    @property
    def id(self) -> str:
        """A public name, drawn at random when it was made."""
        return self.__head.id

    @property
    def serving_only(self) -> bool:
        """Whether it stands in place of one that was lost, and learns nobody."""
        return self.__head.serving_only

    @property
    def accountant(self) -> str | None:
        """The public id of the accountant that it belongs to; None before `bind`."""
        return self.__head.accountant

    @property
    def clock(self) -> int | None:
        """The next slot: all before it were admitted or skipped; None before `bind`.

        Public, but for a timetable: there it follows from who came last, until time has passed.
        """
        if self.__stale:
            with self.__lock:
                self.__ready()
        return self.__head.clock

    @property
    def passed(self) -> int:
        """The end of the slots that were skipped, public; in this process.

        On a timetable what may be done follows from this, as the clock follows from who came.
        """
        return self.__passed

    def __repr__(self) -> str:
        return f"People(id={self.id!r}, rule={self.rule!r}, sealed)"

    def bind(self, accountant: str, users: range) -> None:
        """Gives it to one accountant, for good, with the slots that it counts.

        The same accountant with the same slots may come again, after a restart of the process.

        Raises:
            PeopleError: it belongs to another accountant, or to other slots.
            UsersError: it begins at a slot outside of ``users``.
        """
        text(accountant=accountant)
        user_range(users=users)
        with self.__lock:
            self.__ready()
            head = self.__head
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
            self.__change(replace(head, accountant=accountant, users=users, clock=clock))

    def divide(self, starts: Sequence[int]) -> None:
        """Declares the batches of a rule that counts in them, once, before the first visit.

        Args:
            starts: the first slot of each batch, ascending, the first that of the accountant.

        Raises:
            ValueError: no such list, or a rule that counts in no batches.
            PeopleError: others were declared, or it was given to no accountant.
        """
        if not self.rule.batched:
            raise ValueError(
                f"starts = {starts!r}: the rule counts in no batches (pooled = False, "
                "per_batch = None): none may be declared"
            )
        if not len(starts):
            raise ValueError(f"starts = {starts!r}: must name the first slot of each batch")
        given = tuple(
            count(**{f"starts[{i}]": start}, at_least=0) for i, start in enumerate(starts)
        )
        with self.__lock:
            self.__ready()
            users = self.__bound()
            if any(left >= right for left, right in pairwise(given)):
                raise ValueError("starts: must ascend")
            if given[0] != users.start or given[-1] >= users.stop:
                raise ValueError(
                    f"starts = {given[0]}, ..., {given[-1]}: must begin with {users.start} and "
                    f"end before {users.stop}"
                )
            if self.__starts is None:
                self.__change(self.__head, starts=given)
            elif self.__starts != given:
                raise PeopleError(
                    "starts: other batches were declared: they are fixed before the first visit"
                )

    def admit_visits(
        self, ids: Sequence[Any], users: range, slots: ArrayLike | None = None
    ) -> Admission:
        """Debits the visits at slots ``users``, and says which of them are learned.

        A visit is learned if the rule has room for its person.  When this returns, the learned ones
        are used up for good, on disk, whatever becomes of them; until then none is.

        Args:
            ids: one for each visit: str, bytes or int, one kind in one registry, taken as it is;
                None, an empty one and nan: nobody, whose row is null.
            users: the next slots; on a timetable the last slot may be the first once more.
            slots: on a timetable, and only there, the slot of each visit, shape (n,); ascending.

        Raises:
            UsersError: not the next slots, or another number of ids.
            TypeError: ids of another kind.
            PeopleError: it has no accountant or no batches yet, or is no longer usable.
            ProvenanceError: slots without a timetable, or none on one.
        """
        given = id_list(ids)
        user_range(users=users)
        at = self.__slots_of(given, users, slots)
        with self.__lock:
            self.__ready()
            self.__check_next(users, going_on=slots is not None)
            if self.rule.batched and self.__starts is None:
                raise PeopleError(
                    "the rule counts in batches, and none were declared: call divide first"
                )
            head = self.__head
            kind = kind_of(given, head.kind)
            if head.serving_only:
                nobody = [False] * len(given)
                verdict = Verdict(nobody, [-1] * len(given), nobody, {})
            else:
                keys = hashes(head.key, given)
                verdict = judge(head.rule, self.__standings, keys, at, self.__starts)
            self.__calls += 1
            call = self.__calls
            self.__change(replace(head, clock=users.stop, kind=kind), verdict.changed)
        return Admission(
            users,
            np.array(verdict.learned, dtype=np.bool_),
            np.array(verdict.persons, dtype=np.int64),
            np.array(verdict.counted, dtype=np.bool_),
            call,
        )

    def __slots_of(
        self, ids: Sequence[Any], users: range, slots: ArrayLike | None
    ) -> Sequence[int]:
        """The slot of each visit."""
        if (self.rule.clock == "timetable") is not (slots is not None):
            raise ProvenanceError(
                "slots: on a timetable each visit says its slot, which may hold any number of them"
                if slots is None
                else "slots: the rule counts arrivals (clock = 'arrivals'): each visit is the next "
                "slot, and none are given"
            )
        if slots is not None:
            at = slots_within(slots, users)
            if len(ids) != len(at):  # neither number is public
                raise UsersError(f"slots within {users!r}: there must be one for each id")
            return cast("list[int]", at.tolist())
        if len(ids) != len(users):
            raise UsersError(
                f"users = {users!r} names {len(users)} slots, there are {len(ids)} ids"
            )
        return users

    def nobody(self, ids: Sequence[Any]) -> NDArray[np.bool_]:
        """Which ids say that there is nobody to be told apart, shape (n,); debits nothing.

        Raises:
            TypeError: as `admit_visits`, which would refuse the same.
        """
        given = id_list(ids)
        with self.__lock:
            self.__ready()
            kind_of(given, self.__head.kind)
        return np.array([kind_of([each], None) is None for each in given], dtype=np.bool_)

    def skip(self, users: range) -> None:
        """Passes over the next slots, in which nobody came; so time passes on a timetable.

        Raises:
            UsersError: not the next slots.
            PeopleError: as in `admit_visits`.
        """
        user_range(users=users)
        with self.__lock:
            self.__ready()
            self.__check_next(users)
            self.__change(replace(self.__head, clock=users.stop))
            self.__passed = users.stop

    def skip_to(self, slot: int) -> None:
        """Passes over all slots before ``slot`` that were not passed before.

        On a timetable they are over then, whether somebody came in the last of them or not.

        Raises:
            UsersError: there is no such slot.
            PeopleError: as in `admit_visits`.
        """
        if (clock := self.clock) is not None and count(slot=slot, at_least=0) <= clock:
            self.__passed = max(self.__passed, slot)
            return
        self.skip(range(0 if clock is None else clock, slot))

    def admit(self, rows: Rows[T], ids: Sequence[Any]) -> Rows[T]:
        """Logged rows with those null that are not learned, and the stamp that receipts ask for.

        Args:
            rows: of the next slots; on a timetable with their slots, see `Rows.seal`.
            ids: who each of them is; see `admit_visits`, which debits them.

        Raises:
            UsersError, TypeError, PeopleError, ProvenanceError: as `admit_visits`.
        """
        found = self.admit_visits(ids, rows.users, Rows._slots_of(rows))
        return Rows._admitted(rows, self, found)

    def batches(self, users: range) -> list[range]:
        """The declared batches that make up a range of slots.

        Raises:
            UsersError: the range cuts a batch, or none were declared.
        """
        starts = self.__starts or ()
        end = self.__bound().stop
        first, stop = bisect_left(starts, users.start), bisect_left(starts, users.stop)
        inside = [*starts[first:stop], users.stop]
        whole = users.stop == end or users.stop in starts[stop : stop + 1]
        if inside[0] != users.start or not whole:
            raise UsersError(
                f"users = {users!r}: must be whole batches of the rule; the batches begin at "
                f"{starts[max(first - 1, 0) : stop + 1]!r}"
            )
        return [range(a, b) for a, b in pairwise(inside)]

    def check_not_older(self, slot: int) -> None:
        """Checks it against a ledger in which rows up to that of ``slot`` were opened.

        Raises:
            PeopleError: it does not know of that slot: it is an older copy.
        """
        count(slot=slot, at_least=0)
        clock = self.clock
        if clock is None or slot >= clock:
            raise PeopleError(
                f"this registry of people is older than its ledger: rows up to slot {slot} were "
                f"opened, and its next slot is {clock}; visits that were learned are not in it. "
                "Find the newer file, or go on without learning (People.replace_lost)"
            )

    def forget(self, id: Any) -> None:
        """Learns nothing more of a person, for good.

        What stays is the keyed hash of the id, as one that has used up everything, and no slot; a
        person that never came gets one, too.  Pending rows are those of `forgotten` persons.

        Raises:
            ValueError: no id.
            TypeError: one of another kind.
            PeopleError: it cannot be written, or is read by another process, so that its log still
                holds what was known: the person is forgotten in the second case; ask again when
                nobody reads.
        """
        with self.__lock:
            self.__ready()
            head = self.__head
            kind = kind_of([id], head.kind)
            (key,) = hashes(head.key, [id])
            if key is None:
                raise ValueError("id: there is none: nobody can be forgotten")
            known = self.__standings.get(key)
            number = len(self.__standings) if known is None else known.number
            self.__change(replace(head, kind=kind), {key: tombstone(number, head.rule)})
            if self.__store is not None:
                self.__store.clean()

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these persons were forgotten, by their numbers; for rows that are pending."""
        if not self.__stale and not self.__forgotten:
            return np.zeros(len(persons), dtype=np.bool_)
        with self.__lock:
            if not self.__closed:  # else it knows what it knew
                self.__ready()
            return np.isin(persons, np.array(sorted(self.__forgotten), dtype=np.int64))

    def close(self) -> None:
        """Lets go of the file; the registry cannot be used any more.

        In a forked process the file is left alone, as it is the parent's.
        """
        if self.__lock.made_in != _processes.here():
            self.__closed = True
            return
        with self.__lock:
            if not self.__closed and self.__store is not None:
                self.__store.close()
            self.__closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __ready(self) -> None:
        """Raises PeopleError where nothing may be written; makes good an interrupted write."""
        if self.__closed:
            raise PeopleError("this registry of people was closed")
        if self.__stale and self.__store is not None:
            self.__take(self.__store.read())
            self.__stale = False

    def __bound(self) -> range:
        if self.__head.users is None:
            raise PeopleError(
                "this registry of people belongs to no accountant yet: hand it to one, as people="
            )
        return self.__head.users

    def __check_next(self, users: range, *, going_on: bool = False) -> None:
        """``going_on``: the last slot may be the first once more."""
        slots, clock = self.__bound(), self.__head.clock or 0
        again = going_on and users.start == clock - 1 >= slots.start
        if not (users.start == clock or again) or users.stop > slots.stop:
            raise UsersError(
                f"users = {users!r}: must begin with the next slot, {clock}, and end by "
                f"{slots.stop}"
            )

    def __change(
        self,
        head: Head,
        changed: Mapping[bytes, Standing] | None = None,
        *,
        starts: tuple[int, ...] | None = None,
    ) -> None:
        """Writes, and then knows; what ends it in between costs visits and gives none back."""
        changed = changed or {}
        if self.__store is not None:
            self.__stale = True  # until it is known what stands in the file
            self.__store.write(head, starts, changed)
        self.__head = head  # with its clock, before anything else
        if starts is not None:
            self.__starts = starts
        self.__standings.update(changed)
        self.__forgotten.update(each.number for each in changed.values() if _is_forgotten(each))
        self.__stale = False


def _is_forgotten(standing: Standing) -> bool:
    return standing.last == FORGOTTEN


def _new_head(rule: Participation) -> Head:
    if not isinstance(rule, Participation):
        raise TypeError(f"rule = {rule!r}: must be a Participation")
    return Head(secrets.token_hex(16), new_key(), rule)
