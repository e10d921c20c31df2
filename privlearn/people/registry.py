"""The registry of people: who has used up how much of the rule.

Whether a visit is learned depends on that person's earlier slots and on public numbers only
(`privlearn.people.quotas`).  It is debited before anybody acts on it: when `People.admit_visits`
returns, a visit that is learned is on disk as used, and a process that dies before that has learned
nothing of it.  Nothing that a registry shows, raises or writes outside its file depends on ids.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.errors import PeopleError, ProvenanceError, UsersError
from privlearn.people.contents import Contents, Head, head_in_place, new_head
from privlearn.people.file import RegistryFile
from privlearn.people.identities import id_list, kind_of
from privlearn.people.in_memory import Kept
from privlearn.people.keeper import Found, Keeper, Public, TurnKeeper, bound
from privlearn.rows import Rows, Sealed
from privlearn.rows.sealed import slots_within
from privlearn.rows.stamps import AdmittingRegistry
from privlearn.rows.tabular import records_from
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive
from privlearn.values.participation import Participation
from privlearn.values.records import length
from privlearn.values.validate import count, text, user_range

if TYPE_CHECKING:
    from privlearn.ledger import Ledger

T = TypeVar("T")


@final
class Admission(Sealed):
    """What was found of the visits at slots ``users``; for `privlearn.contract.billboard` and rows.

    Attributes:
        users: the slots, public.
        learned: for each visit whether its row may be learned from, shape (n,), sealed.
        persons: for each visit whose it is, a number >= 0 of this registry, or -1 for nobody;
            int64, shape (n,), sealed.
        counted: for each visit whether it used up a place in the rule, shape (n,), sealed; of a
            person's visits in one batch of a pooled rule the first one does.
        call: the number of the call that it is of: greater than those before it, of the registry
            where several processes use it, and else of this process.
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

    @staticmethod
    def of(found: Found) -> Admission:
        """What a keeper found."""
        return Admission(
            found.users,
            np.array(found.learned, dtype=np.bool_),
            np.array(found.persons, dtype=np.int64),
            np.array(found.counted, dtype=np.bool_),
            found.call,
        )

    def part(self, low: int, high: int) -> Admission:
        """Of some of the visits, by their places; not on a timetable."""
        return Admission(
            self.users[low:high],
            self.learned[low:high],
            self.persons[low:high],
            self.counted[low:high],
            self.call,
        )

    @staticmethod
    def joined(parts: Sequence[Admission]) -> Admission:
        """Of consecutive visits, as that of the last call; not on a timetable."""
        return Admission(
            range(parts[0].users.start, parts[-1].users.stop),
            np.concatenate([part.learned for part in parts]),
            np.concatenate([part.persons for part in parts]),
            np.concatenate([part.counted for part in parts]),
            parts[-1].call,
        )

    def __repr__(self) -> str:
        return f"Admission(users={self.users.start}..{self.users.stop - 1}, sealed)"


@final
class People(Sealed, AdmittingRegistry):
    """The registry of one accountant's people: who used up how much of its rule; sealed.

    `create`, `open` or `memory` make one.  Ids are text, bytes or integers, one kind in a registry,
    and are taken as they are.  One call at a time; other threads wait.  See docs/people.md.
    """

    __slots__ = (
        "__closed",
        "__id",
        "__keeper",
        "__lock",
        "__passed",
        "__rule",
        "__serving_only",
        "__weakref__",
    )

    def __init__(self, keeper: Keeper) -> None:
        self.__keeper = keeper
        self.__lock = Exclusive(
            "a registry of people",
            PeopleError,
            "two of them would each give everybody the whole of the rule",
        )
        self.__closed, self.__passed = False, 0
        seen = keeper.seen
        self.__id, self.__rule, self.__serving_only = seen.id, seen.rule, seen.serving_only

    @classmethod
    def memory(cls, rule: Participation) -> People:
        """A registry in memory, which ends with this process; for simulations.

        Raises:
            TypeError: ``rule`` is no Participation.
        """
        return cls(TurnKeeper(Kept(Contents(new_head(rule), None, {}), None)))

    @classmethod
    def create(cls, path: str | os.PathLike[str], rule: Participation) -> People:
        """A registry in a new file, which only its owner may read.

        Raises:
            PeopleError: something stands there, or it cannot be written.
            TypeError: ``rule`` is no Participation.
        """
        return cls._made(path, new_head(rule))

    @classmethod
    def replace_lost(
        cls, path: str | os.PathLike[str], rule: Participation, *, id: str, clock: int
    ) -> People:
        """A registry in place of one that is lost, for its accountant to go on: it learns nobody.

        Who used up what is not known any more, so every visit is served only, for good; then
        nothing is paid.  To learn again, begin a further accountant with a registry and a cap of
        its own (``shared=True`` in the same ledger).  In PostgreSQL it is `People.postgres` that
        does this.

        Args:
            path: of the new file.
            rule: the same as before.
            id: the public name of the lost one, as it stands in the ledger.
            clock: the first slot that is admitted, behind all that were.

        Raises:
            PeopleError, TypeError: as in `create`.
            ValueError: no name, or a clock below 0.
        """
        return cls._made(path, head_in_place(rule, id, clock))

    @classmethod
    def _made(cls, path: str | os.PathLike[str], head: Head) -> People:
        return cls(TurnKeeper(Kept(Contents(head, None, {}), RegistryFile.create(path, head))))

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], rule: Participation | None = None, *, moved: bool = False
    ) -> People:
        """A registry that was created before; one process at a time.

        Args:
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
        return cls(TurnKeeper(Kept(contents, store)))

    @classmethod
    def connect(cls, path: str | os.PathLike[str]) -> People:
        """The registry that the owner of a ledger keeps (``privlearn ledger serve``).

        Any number of processes of this host may be connected.  Ids are sent to the owner, which
        hashes them; its key is not sent here.

        Raises:
            LocalSocketError: nobody serves there.
            PeopleError: the owner keeps no registry.
        """
        from privlearn.people.remote import AskedKeeper

        return cls(AskedKeeper.at(path))

    @classmethod
    def postgres(
        cls,
        ledger: Ledger | str,
        how: Literal["create", "open", "replace_lost"] = "open",
        *,
        key: str | os.PathLike[str],
        rule: Participation | None = None,
        name: str = "people",
        id: str | None = None,
        clock: int | None = None,
    ) -> People:
        """A registry in the database of a ledger, for processes on several hosts.

        Any number of processes of the ledger's epoch may have it open; those of an earlier epoch
        admit nobody.

        Args:
            ledger: a `Ledger.postgres` of this process; or the address of one, whose present epoch
                is joined, for processes that admit and do not spend.
            how: ``"create"`` makes it, with a new key, and where the role may the tables.
                ``"replace_lost"`` puts one in place of one whose key is lost on all hosts, or
                whose tables are gone: see `replace_lost`; who still has the former open is refused.
            key: the file of its secret key, which is not in the database: it is written where
                the registry is made or replaced, and each other host needs a copy.
            rule: which it keeps; checked where it is given to ``"open"``, and needed else.
            name: of the registry, where there are several beside one ledger.
            id, clock: for ``"replace_lost"``, as of `replace_lost`.

        Raises:
            PeopleError: there is none, or one already; the key is of another one, or may be read by
                others; it keeps another rule; or the database cannot be used.  It is another one
                than ``id``, or has come further than to ``clock``.
            LedgerFencedError: the ledger was opened anew since.
            TypeError, ValueError: no such ledger, ``how``, rule, id or clock.
            ModuleNotFoundError: the extra ``postgres`` is not installed.
        """
        from privlearn.people.postgres import turns_of

        return cls(TurnKeeper(turns_of(ledger, how, key, rule, name, id, clock)))

    @property
    def rule(self) -> Participation:
        """The rule that it keeps."""
        return self.__rule

    @property
    def id(self) -> str:
        """A public name, drawn at random when it was made."""
        return self.__id

    @property
    def durable(self) -> bool:
        """Whether it outlives the processes that use it: it is a file, or stands in a database."""
        return self.__keeper.seen.durable

    @property
    def serving_only(self) -> bool:
        """Whether it stands in place of one that was lost, and learns nobody."""
        return self.__serving_only

    @property
    def accountant(self) -> str | None:
        """The public id of the accountant that it belongs to; None before `bind`."""
        return self.__look().accountant

    @property
    def clock(self) -> int | None:
        """The next slot: all before it were admitted or skipped; None before `bind`.

        Public, but for a timetable: there it follows from who came last, until time has passed.
        """
        return self.__look().clock

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
            self.__check_open()
            self.__keeper.bind(accountant, users)

    def divide(self, starts: Sequence[int]) -> None:
        """Declares the batches of a rule that counts in them, once, before the first visit.

        Args:
            starts: the first slot of each batch, ascending, the first that of the accountant.

        Raises:
            ValueError: no such list, or a rule that counts in no batches.
            PeopleError: others were declared, or it was given to no accountant.
        """
        given = _batch_starts(self.rule, starts)
        with self.__lock:
            self.__check_open()
            self.__keeper.divide(given)

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
        return self.__admit(given, users, _slots_of(self.rule, given, users, slots))

    def admit_next(self, ids: Sequence[Any]) -> Admission:
        """As `admit_visits`, at the next slots that are free, whoever else admits meanwhile.

        For processes that share a registry: which slots these are says ``users`` of the answer.

        Raises:
            UsersError: there are no ids, or not as many slots are left.
            TypeError, PeopleError: as `admit_visits`.
            ProvenanceError: on a timetable, where the time of a visit is its slot.
        """
        given = id_list(ids)
        if self.__rule.clock == "timetable":
            raise ProvenanceError(
                "clock = 'timetable': the slot of a visit is when it is made; use "
                "admit_visits(ids, users, slots)"
            )
        if not given:
            raise UsersError("ids: there are none; each visit takes one slot")
        return self.__admit(given, None, None)

    def seal_next(self, block: Any, ids: Sequence[Any]) -> Rows[Any]:
        """Seals records at the next slots that are free, and debits them: see `admit_next`.

        Args:
            block: the records, as `Rows.seal` takes them.
            ids: who each of them is.

        Raises:
            UsersError: not one id for each record, or not as many slots are left.
            TypeError, PeopleError, ProvenanceError: as `Rows.seal` and `admit_next`.
        """
        records, given = records_from("block", block), id_list(ids)
        if length(records) != len(given):
            raise UsersError(
                f"ids: {len(given)} for a block of {length(records)} records: each is somebody's"
            )
        # what is no block of records is refused before anybody is debited
        rows = Rows.seal(records, users=range(len(given))) if given else None
        found = self.admit_next(given)
        assert rows is not None  # where there are no ids, it was refused
        return Rows._admitted(Rows._moved(rows, found.users), self, found)

    def __admit(self, ids: list[Any], users: range | None, at: list[int] | None) -> Admission:
        with self.__lock:
            self.__check_open()
            found = self.__keeper.admit(ids, users, at)
        return Admission.of(found)

    def nobody(self, ids: Sequence[Any]) -> NDArray[np.bool_]:
        """Which ids say that there is nobody to be told apart, shape (n,); debits nothing.

        Raises:
            TypeError: as `admit_visits`, which would refuse the same.
        """
        given = id_list(ids)
        with self.__lock:
            self.__check_open()
            kind_of(given, self.__keeper.look().kind)
        return np.array([kind_of([each], None) is None for each in given], dtype=np.bool_)

    def skip(self, users: range) -> None:
        """Passes over the next slots, in which nobody came; so time passes on a timetable.

        Raises:
            UsersError: not the next slots.
            PeopleError: as in `admit_visits`.
        """
        user_range(users=users)
        with self.__lock:
            self.__check_open()
            self.__keeper.skip(users)
            self.__passed = users.stop

    def skip_to(self, slot: int) -> None:
        """Passes over all slots before ``slot`` that were not passed before.

        On a timetable they are over then, whether somebody came in the last of them or not.

        Raises:
            UsersError: there is no such slot.
            PeopleError: as in `admit_visits`.
        """
        count(slot=slot, at_least=0)
        clock = self.clock
        if clock is None or slot > clock:
            with self.__lock:
                self.__check_open()
                self.__keeper.skip_to(slot)
        self.__passed = max(self.__passed, slot)

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
        seen = self.__keeper.seen
        if seen.starts is None:  # once they are declared they stay
            seen = self.__look()
        starts = seen.starts or ()
        return _whole_batches(starts, bound(seen).stop, users)

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
            self.__check_open()
            self.__keeper.forget(id)

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these persons were forgotten, by their numbers; for rows that are pending."""
        if self.__closed:  # it knows what it knew
            return self.__keeper.forgotten_as_known(persons)
        with self.__lock:
            return self.__keeper.forgotten(persons)

    def close(self) -> None:
        """Lets go of the file; the registry cannot be used any more.

        In a forked process the file is left alone, as it is the parent's.
        """
        if self.__lock.made_in != processes.here():
            self.__closed = True
            return
        with self.__lock:
            if not self.__closed:
                self.__keeper.close()
            self.__closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _public_of(people: People) -> Public:
        return people.__look()

    def __check_open(self) -> None:
        if self.__closed:
            raise PeopleError("this registry of people was closed")

    def __look(self) -> Public:
        """What is public, as it is now; of a closed one, as it was."""
        if self.__closed or self.__keeper.fresh:
            return self.__keeper.seen
        with self.__lock:
            return self.__keeper.look()


def _slots_of(
    rule: Participation, ids: Sequence[Any], users: range, slots: ArrayLike | None
) -> list[int] | None:
    if (rule.clock == "timetable") is not (slots is not None):
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
        raise UsersError(f"users = {users!r} names {len(users)} slots, there are {len(ids)} ids")
    return None


def _whole_batches(starts: Sequence[int], end: int, users: range) -> list[range]:
    first, stop = bisect_left(starts, users.start), bisect_left(starts, users.stop)
    inside = [*starts[first:stop], users.stop]
    whole = users.stop == end or users.stop in starts[stop : stop + 1]
    if inside[0] != users.start or not whole:
        raise UsersError(
            f"users = {users!r}: must be whole batches of the rule; the batches begin at "
            f"{starts[max(first - 1, 0) : stop + 1]!r}"
        )
    return [range(a, b) for a, b in pairwise(inside)]


def _batch_starts(rule: Participation, starts: Sequence[int]) -> tuple[int, ...]:
    if not rule.batched:
        raise ValueError(
            f"starts = {starts!r}: the rule counts in no batches (pooled = False, "
            "per_batch = None): none may be declared"
        )
    if not len(starts):
        raise ValueError(f"starts = {starts!r}: must name the first slot of each batch")
    return tuple(count(**{f"starts[{i}]": start}, at_least=0) for i, start in enumerate(starts))
