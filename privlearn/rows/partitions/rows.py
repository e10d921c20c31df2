"""Rows that lie in several processes: sealed, and added up where they lie."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PartitionError, ProvenanceError, RowLocalityError, UsersError
from privlearn.rows import PartialSum, Rows, Sealed
from privlearn.rows.clipping import clipping_of
from privlearn.rows.domains import Array, Domain
from privlearn.rows.partial_sums import Ranges, joined_ranges
from privlearn.rows.partitions.frames import Kind, framed, numbers_from, numbers_to_bytes, unframed
from privlearn.rows.partitions.jobs import Admitted, Held, Steps, SumJob, Summing, named, overlap
from privlearn.rows.partitions.keys import Job, JobKey
from privlearn.rows.sealed import check_forms
from privlearn.rows.stamps import NOBODY, AdmittingRegistry, RegistryElsewhere, Stamp
from privlearn.rows.tabular import records_from
from privlearn.values.records import length
from privlearn.values.user_code import FAILED, attempted
from privlearn.values.validate import count, user_range

X = TypeVar("X")
U = TypeVar("U")


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One partition: whose rows are in it, and what stands for them.

    ``source`` is whatever the engine turns into a block (a handle of the cluster), or what the
    function that reads takes, such as a path; it travels in clear.
    """

    users: range
    source: Any

    def __repr__(self) -> str:
        return f"Part(users={named(self.users)})"


class Engine(Protocol):
    """What adds up partitions: this process, Dask, or three lines around another framework."""

    def add_up(
        self,
        work: Callable[[range, Any], bytes],
        parts: Sequence[Part],
        merge: Callable[[bytes, bytes], bytes],
    ) -> bytes:
        """``work(part.users, part.source)`` of every part, once each, merged in any order."""


class InProcess:
    """Adds up one partition after the other, here."""

    def add_up(
        self,
        work: Callable[[range, Any], bytes],
        parts: Sequence[Part],
        merge: Callable[[bytes, bytes], bytes],
    ) -> bytes:
        total = work(parts[0].users, parts[0].source)
        for part in parts[1:]:
            total = merge(total, work(part.users, part.source))
        return total


class RowSums(Protocol):
    """Integers that are added up over records, given numbers that are sealed like the records.

    A mechanism's own code, as what it computes from opened rows is.
    """

    @property
    def domain(self) -> Domain[Any]:
        """Into which records are clipped, in doubles, before they come here."""

    @property
    def size(self) -> int:
        """How many integers."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form: equal for sums that can be merged."""

    def __call__(self, records: Array, at: Array, /) -> list[int]:
        """Sums over records (n, domain.size), each below 2⁶²·n in size.

        Raises:
            RowLocalityError: code of the user's is not row-local.
            Exception: whatever code of the user's raises about records.
        """

    def failed(self) -> list[int]:
        """In place of sums that could not be made; of any sum with one of these, too, it is seen.

        Whoever opens the rows is told of it, and nobody before: it may depend on them.
        """


@final
class PartitionedRows(Sealed, Generic[X]):
    """Sealed records of the users in several partitions; made by `of_blocks` and `of_sources`.

    They are logged rows: for a `CentralAccountant`.  What a partition holds must be the same each
    time it is read; every row of one user, at the place that its index says.  Under a rule of
    participation an index is a slot, and `admitted` has the registry say which rows are learned.
    """

    __slots__ = ("__engine", "__job", "__only", "__parts", "__stamp", "__steps")

    def __init__(
        self,
        job: Job,
        parts: Sequence[Part],
        engine: Engine,
        steps: Steps,
        only: range | None = None,
        stamp: Stamp | None = None,
    ) -> None:
        if not callable(getattr(engine, "add_up", None)):
            raise TypeError(f"engine = {engine!r:.80}: must have add_up(work, parts, merge)")
        self.__job, self.__engine, self.__steps, self.__only = job, engine, steps, only
        self.__stamp = stamp  # of its users, in their order; NOBODY where nothing is opened
        self.__parts = _in_order([part for part in parts if len(overlap(part.users, only))])

    @classmethod
    def of_blocks(
        cls, blocks: Sequence[X], *, key: JobKey, engine: Engine | None = None, first: int = 0
    ) -> PartitionedRows[X]:
        """Of blocks of records that this process holds; they travel encrypted.

        Args:
            blocks: arrays, named tuples of arrays, or data frames; a row for each user.
            key: the place of a key that this process and the workers can read.
            engine: what adds up; default `InProcess`.
            first: arrival index of the first row.

        Raises:
            TypeError: no table, or one of Python objects.
            ValueError: no rows.  PartitionError: the key cannot be read.
        """
        tables = [records_from("blocks", block) for block in blocks]
        job = Job.begin(key)
        users = _consecutive([length(table) for table in tables], first)
        parts = [
            Part(part, Held.of(table, part, job.key()))
            for part, table in zip(users, tables, strict=True)
            if len(part)
        ]
        return cls(job, parts, engine or InProcess(), Steps())

    @classmethod
    def of_sources(
        cls,
        sources: Sequence[Any],
        sizes: Sequence[int],
        *,
        key: JobKey,
        read: Callable[[Any], X] | None = None,
        engine: Engine | None = None,
        first: int = 0,
    ) -> PartitionedRows[X]:
        """Of partitions that lie at the workers: handles of the cluster, or files that it can read.

        Args:
            sources: what stands for each partition; it travels in clear.
            sizes: how many rows each of them has, which everybody may know; 0 for an empty one.
            key, engine, first: as for `of_blocks`.
            read: makes a block of records of a source, at the worker; default: it is one.

        Raises:
            ValueError: not one size for each source, or no rows.
            TypeError: sources are names of files, and nothing reads them.
            PartitionError: the key cannot be read.
        """
        if len(sources) != len(sizes):
            raise ValueError(f"sizes: {len(sizes)} numbers for {len(sources)} sources")
        if read is None and any(isinstance(source, str | os.PathLike) for source in sources):
            raise TypeError("read: must be given where sources are paths, such as read=np.load")
        users = _consecutive(sizes, first)
        parts = [Part(part, source) for part, source in zip(users, sources, strict=True)]
        return cls(Job.begin(key), parts, engine or InProcess(), Steps(read))

    @property
    def users(self) -> Ranges:
        """Whose rows they are: disjoint ranges in ascending order."""
        return joined_ranges([overlap(part.users, self.__only) for part in self.__parts])

    @property
    def count(self) -> int:
        return sum(map(len, self.users))

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the user's functions that the rows pass through."""
        return self.__steps.functions

    def __repr__(self) -> str:
        users = ", ".join(named(part) for part in self.users)
        return f"PartitionedRows(users={users}, {len(self.__parts)} partitions, sealed)"

    def map(self, function: Callable[[X], U]) -> PartitionedRows[U]:
        """Applies ``function`` to each record by itself, at the worker; see `Rows.map`."""
        return self._with_step("map", function)

    def map_rows(self, function: Callable[[X], U]) -> PartitionedRows[U]:
        """Applies a row-local ``function`` to blocks, at the worker; see `Rows.map_rows`."""
        return self._with_step("map_rows", function)

    def _with_step(self, name: str, function: Callable[[Any], Any]) -> PartitionedRows[Any]:
        return self._but(steps=self.__steps.then(name, function))

    def _but(
        self, *, steps: Steps | None = None, only: range | None = None, stamp: Stamp | None = None
    ) -> PartitionedRows[Any]:
        return PartitionedRows(
            self.__job,
            self.__parts,
            self.__engine,
            steps or self.__steps,
            self.__only if only is None else only,
            stamp or self.__stamp,
        )

    def slice(self, users: range) -> PartitionedRows[X]:
        """The rows of some consecutive users.

        Raises:
            UsersError: an index is not among these rows.
        """
        user_range(users=users)
        if not any(part.start <= users.start and users.stop <= part.stop for part in self.users):
            raise UsersError(f"users {users!r} are not all within {self!r}")
        stamp, first = self.__stamp, self.users[0].start
        if stamp is not None:  # which only consecutive users have
            stamp = stamp.part(users.start - first, users.stop - first)
        return self._but(only=users, stamp=stamp)

    def admitted(self, people: AdmittingRegistry, ids: Sequence[Any]) -> PartitionedRows[X]:
        """The same rows, of which those count that the rule of participation has room for.

        As `People.admit`: the visits are debited at the registry, on disk, before this returns,
        whichever partition they lie in.  Which rows are learned goes to the workers encrypted, and
        ids do not.  It ends with this object: visits of rows that are then not released are used
        up.

        Args:
            people: the accountant's registry.
            ids: who each row is, in order, as `People.admit_visits` takes them.

        Raises:
            ProvenanceError: a rule that is pooled or on a timetable, or rows that were admitted.
            UsersError: these are not the next slots, there are gaps, or not one id for each row.
            TypeError: no registry, or ids of another kind.
            PeopleError: as `People.admit_visits`.
        """
        if not isinstance(people, AdmittingRegistry):
            raise TypeError(f"people: must be a registry, People, not {type(people).__name__}")
        if self.__stamp is not None:
            raise ProvenanceError(f"{self!r}: a registry admitted these rows before")
        if people.rule.pooled:
            raise ProvenanceError(
                f"{people.rule}: one row is made of all visits of a person in a batch, which may "
                "lie in several partitions; a rule with per_batch=1 costs as much and takes the "
                "first of them, or bring the rows to one process (rows_to_bytes) and pool there"
            )
        if people.rule.clock == "timetable":
            raise ProvenanceError(
                f"{people.rule}: how many visits a slot has is not public, and sizes of partitions "
                "are; bring the rows to one process (rows_to_bytes)"
            )
        if len(self.users) != 1:
            raise UsersError(f"{self!r}: must be consecutive slots, from {people.clock} on")
        found = people.admit_visits(ids, self.users[0])
        persons, calls = np.where(found.learned, found.persons, -1), (found.call, found.call)
        return self._but(stamp=Stamp(people, persons, found.counted, calls=calls))

    def without_forgotten(self) -> PartitionedRows[X]:
        """The same rows, null where a person was forgotten since they were admitted; as of `Rows`.

        `partial` and `ObjectivePerturbation.release_partitions` begin with it.
        """
        stamp = self.__stamp
        gone = None if stamp is None else stamp.gone()
        if stamp is None or stamp.persons is None or gone is None:
            return self
        left = np.where(gone, -1, stamp.persons)
        return self._but(stamp=Stamp(stamp.registry, left, stamp.counted, calls=stamp.calls))

    def partial(self, mechanism: Summing[X]) -> PartialSum:
        """The sealed sum over all rows, for ``release_partial`` of the mechanism; nothing leaves.

        Raises:
            TypeError: a mechanism without ``partial``.
            PartitionError: a partition could not be read or added up, or a worker has another key.
            UsersError: a partition was added up twice, or left out.
        """
        return self.without_forgotten()._added_up(mechanism)

    def _added_up(self, mechanism: Summing[X]) -> PartialSum:
        if not callable(getattr(mechanism, "partial", None)):
            raise TypeError(f"mechanism = {mechanism!r:.200}: has no partial(rows)")
        if self.__stamp is NOBODY:
            null: Rows[Any] = self.__steps.mapped(Rows.null(range(1)))
            return PartialSum._of_nobody(mechanism.partial(null), self.users)
        work = SumJob(self.__job, mechanism, self.__steps, self.__only)
        parts, people = self.__parts, None
        if self.__stamp is not None and (people := self.__stamp.registry) is not None:
            seen = RegistryElsewhere(people.id, people.rule, self.users[0].stop)
            work, parts = replace(work, registry=seen), self._told(self.__stamp, people.id)
        frame = self.__engine.add_up(work.partial, parts, work.merge)
        total = work.total(frame, people=people)
        if total.users != self.users:
            raise UsersError(f"the cluster returned {total!r} for {self!r}: rows were left out")
        stamp = PartialSum._stamp_of(total)
        if people is not None and (stamp is None or stamp.registry is not people):
            raise PartitionError(
                f"the cluster returned {total!r} with rows of which registry {people.id} did not "
                "say that they are learned"
            )
        return total

    def _told(self, stamp: Stamp, registry: str) -> tuple[Part, ...]:
        """The partitions, each with which of its rows are learned, for its worker only."""
        key, first, told = self.__job.key(), self.users[0].start, []
        for part in self.__parts:
            users = overlap(part.users, self.__only)
            persons = stamp.part(users.start - first, users.stop - first).persons
            learned = np.zeros(len(users), dtype=np.bool_) if persons is None else persons >= 0
            source = Admitted.of(part.source, learned, users, registry, key)
            told.append(Part(part.users, source))
        return tuple(told)

    def _asked(self, sums: RowSums, at: Array) -> PartialSum:
        """The sealed sums over all rows, given ``at``, which travels encrypted."""
        question = framed(Kind.QUESTION, numbers_to_bytes(np.asarray(at)), self.__job.key())
        asked = _Asked(sums, self.__job, question, secrets.token_hex(16))
        total = self._added_up(asked)
        if total.terms.get("pass") != asked.number:  # at another point, or of something else
            raise PartitionError(f"the cluster returned {total!r} of another pass over {self!r}")
        return total

    @staticmethod
    def _of_nobody(rows: PartitionedRows[Any]) -> PartitionedRows[Any]:
        """Rows of the same users with nothing in them, for a release that is handed out again."""
        return rows._but(stamp=NOBODY)

    @staticmethod
    def _stamp_of(rows: PartitionedRows[Any]) -> Stamp | None:
        return rows.__stamp

    @staticmethod
    def _opened(rows: PartitionedRows[Any]) -> OpenedPartitions:
        """For receipts only."""
        return OpenedPartitions(rows)


@final
class OpenedPartitions:
    """What a receipt gives to a mechanism with arithmetic of its own: sums over opened rows."""

    __slots__ = ("_rows",)

    def __init__(self, rows: PartitionedRows[Any]) -> None:
        self._rows = rows

    def sums(self, sums: RowSums, at: Array) -> NDArray[Any]:
        """One pass over all partitions: Python's integers.

        Raises:
            PartitionError: a partition could not be read or added up.
            RowLocalityError: a function that rows pass through failed its spot check.
        """
        return self.of(self._rows._asked(sums, at))

    def of(self, total: PartialSum) -> NDArray[Any]:
        """As `sums`, of what was added up before the rows were opened."""
        if PartitionedRows._stamp_of(self._rows) is NOBODY:
            total = PartialSum._of_nobody(total)
        return PartialSum._opened(total)


@final
@dataclass(frozen=True, slots=True)
class _Asked:
    """`RowSums` at a sealed point, as a mechanism whose sums are made apart."""

    sums: RowSums
    job: Job
    question: bytes
    number: str
    """Of the pass; public.  Sums of two passes are never merged, nor is one taken for another."""

    def partial(self, rows: Rows[Any]) -> PartialSum:
        at = numbers_from(unframed(Kind.QUESTION, self.question, self.job.key()))
        terms = {"asked": self.sums.to_dict(), "pass": self.number}
        clipping = clipping_of(self.sums.domain, None)
        functions = tuple(dict.fromkeys((*rows.functions, *clipping.checked.names)))
        check_forms(self.sums.domain, rows)
        total, defect = [0] * self.sums.size, None

        def added_up() -> list[int] | RowLocalityError:
            try:
                return _bounded(self.sums(clipping.contributions(rows), at), len(rows))
            except RowLocalityError as error:
                return error

        found = attempted(added_up)
        if isinstance(found, RowLocalityError):
            defect = found  # told when it is paid for
        else:
            total = self.sums.failed() if found is FAILED else found
        made = np.array(total, dtype=object)
        stamp = Rows._stamp_of(rows)
        return PartialSum((rows.users,), made, terms, functions, None, defect, stamp)


def _bounded(total: list[int], rows: int) -> list[int]:
    """Within what partial sums have room for, whatever somebody's own code made."""
    most = rows << 62
    return [max(-most, min(most, number)) for number in total]


def _consecutive(sizes: Sequence[int], first: int) -> list[range]:
    """The users of partitions of these sizes, one after the other."""
    start = count(at_least=0, first=first)
    ends = accumulate((count(at_least=0, size=size) for size in sizes), initial=start)
    edges = list(ends)
    return [range(a, b) for a, b in pairwise(edges)]


def _in_order(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Those with rows, by their users."""
    filled = sorted((p for p in parts if len(p.users)), key=lambda part: part.users.start)
    if not filled:
        raise ValueError("partitions: all are empty; there is nothing to add up")
    for one, other in pairwise(filled):
        if other.users.start < one.users.stop:
            twice = range(other.users.start, min(one.users.stop, other.users.stop))
            raise UsersError(f"users {named(twice)} are in two partitions: every row counts once")
    return tuple(filled)
