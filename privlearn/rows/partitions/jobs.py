"""The two functions that a cluster runs, whatever cluster: rows to a sum, and two sums to one.

They take and return bytes, so that a framework neither sees what it carries nor has to know how to
carry it: `SumJob.partial` and `SumJob.merge` are what Dask submits, what Spark's ``map`` and
``treeReduce`` are given, and, with `SumJob.zero`, a ``CombineFn`` of Beam.  Nothing that a worker
returns is in clear, failures are not either (an exception would be logged with its arguments, which
may be rows), and the total can be opened by nobody but a mechanism that spends a token
(`release_partial`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import PartitionError, PrivlearnError, ProvenanceError, UsersError
from privlearn.rows import PartialSum, Rows, merge
from privlearn.rows.partitions.frames import (
    Kind,
    check_travels,
    failure_of,
    framed,
    kinds_of,
    unframed,
)
from privlearn.rows.partitions.keys import Job, JobKey
from privlearn.rows.record_forms import form_of
from privlearn.rows.stamps import Registry, RegistryElsewhere
from privlearn.rows.tabular import records_from
from privlearn.rows.travel import rows_packed, rows_unpacked
from privlearn.values.records import length, record_at
from privlearn.values.user_code import from_outside

X = TypeVar("X")

_PIECE = 2**15
"""Rows that are sealed and added up at once: a block may be a file that is mapped to memory."""


class Summing(Protocol[X]):
    """A mechanism whose sums can be made apart."""

    def partial(self, rows: Rows[X], /) -> PartialSum:
        """The sealed sum over ``rows``."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How a block of a partition becomes the rows that are added up; public code.

    ``read`` makes a block of what the partition says that it is; ``maps`` are functions of rows.
    """

    read: Callable[[Any], Any] | None = None
    maps: tuple[tuple[str, Callable[[Any], Any]], ...] = ()

    def then(self, name: str, function: Callable[[Any], Any]) -> Steps:
        """With one more function of rows, by the name of a method of `Rows`."""
        return Steps(self.read, (*self.maps, (name, function)))

    def mapped(self, rows: Rows[Any]) -> Rows[Any]:
        for name, function in self.maps:
            rows = rows.map(function) if name == "map" else rows.map_rows(function)
        return rows

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of user code that rows pass through."""
        return self.mapped(Rows.null(range(1))).functions


@final
@dataclass(frozen=True, slots=True)
class Held:
    """A partition whose rows come with the task, encrypted; made for one range of users."""

    frame: bytes
    kinds: tuple[type[Any], ...]
    """The named tuples that its records are made of: public, as the classes are."""

    @classmethod
    def of(cls, block: Any, users: range, key: bytes) -> Held:
        """A block of records of these users.

        Raises:
            TypeError: an array of Python objects.
        """
        check_travels(block)
        kinds = tuple(dict.fromkeys(kinds_of(block)))
        rows: Rows[Any] = Rows.seal(block, users=users)
        frame = framed(Kind.ROWS, rows_packed(rows, kinds), key, about=named(users))
        return cls(frame, kinds)

    def rows(self, users: range, key: bytes) -> Rows[Any]:
        """What `of` was given.

        Raises:
            PartitionError: it was of others, or it was changed on the way.
        """
        data = unframed(Kind.ROWS, self.frame, key, about=named(users))
        return rows_unpacked(data, users, self.kinds)

    def __repr__(self) -> str:
        return f"Held({len(self.frame)} bytes, encrypted)"


@final
@dataclass(frozen=True, slots=True)
class Admitted:
    """A partition of rows that a registry admitted: which of them are learned is encrypted."""

    source: Any
    learned: bytes

    @classmethod
    def of(
        cls, source: Any, learned: NDArray[np.bool_], users: range, registry: str, key: bytes
    ) -> Admitted:
        """``learned`` says of each of ``users`` whether the registry of that name learns them."""
        about = f"{named(users)} of {registry}"
        return cls(source, framed(Kind.LEARNED, np.packbits(learned).tobytes(), key, about))

    def which(self, users: range, registry: str, key: bytes) -> NDArray[np.bool_]:
        """What `of` was given for these users and this registry.

        Raises:
            PartitionError: it was given others, or it was changed on the way.
        """
        about = f"{named(users)} of {registry}"
        bits = np.frombuffer(unframed(Kind.LEARNED, self.learned, key, about), np.uint8)
        return np.unpackbits(bits, count=len(users)).astype(np.bool_)

    def __repr__(self) -> str:
        return f"Admitted({len(self.learned)} bytes, encrypted)"


@final
@dataclass(frozen=True, slots=True)
class SumJob(Generic[X]):
    """Sums of one mechanism over partitions, as encrypted bytes.

    Args:
        job: the public side of a key that owner and workers have; `SumJob.begin` makes one.
        mechanism: with ``partial``; public, and the same everywhere.
        steps: from a partition to rows.
        only: of these users, where not all rows of a partition are added up.
        registry: that admitted the rows, if one did; every source is then an `Admitted`.
    """

    job: Job
    mechanism: Summing[X]
    steps: Steps = Steps()
    only: range | None = None
    registry: RegistryElsewhere | None = None

    @classmethod
    def begin(
        cls, mechanism: Summing[X], *, key: JobKey, read: Callable[[Any], X] | None = None
    ) -> SumJob[X]:
        """A job of its own; with other jobs' sums its own cannot be merged.

        Args:
            mechanism: with ``partial`` and ``release_partial``.
            key: the place of a key, which the owner reads now and each worker when it works.
            read: makes a block of rows of a partition, at the worker; default: it is one.

        Raises:
            TypeError: no mechanism of sums, or no `JobKey`.
            PartitionError: the key cannot be read.
        """
        if not callable(getattr(mechanism, "partial", None)):
            raise TypeError(
                f"mechanism = {mechanism!r:.200}: has no partial(rows), and cannot be added up in "
                "parts"
            )
        return cls(Job.begin(key), mechanism, Steps(read))

    def partial(self, users: range, source: Any) -> bytes:
        """The sum over one partition; never raises, as that would be logged with its arguments.

        Args:
            users: their arrival indices, one for each row; none for an empty partition.
            source: the partition itself, or what ``read`` takes.
        """
        try:
            key = self.job.key()
        except PartitionError as error:
            return Kind.KEYLESS.value + str(error).encode()
        except Exception as error:  # noqa: BLE001 - of reading a key, with no row at hand
            return Kind.KEYLESS.value + type(error).__name__.encode()
        try:
            return self._sealed(self._sum(users, source, key), key)
        except BaseException as error:
            if from_outside(error):
                raise
            told = f"partition of users {named(users)}: {_public(error)}"
            return framed(Kind.FAILURE, told.encode(), key)

    def merge(self, one: bytes, other: bytes) -> bytes:
        """Two sums as one, in any order; a failure if one of them is.

        Raises:
            PartitionError: bytes of something else, or changed on the way.
            UsersError: a user is in both.
            ValueError: sums of other parameters.
        """
        for frame in (one, other):
            if frame[:1] in (Kind.KEYLESS.value, Kind.FAILURE.value):
                return frame
        key = self.job.key()
        opened = (self._opened(frame, key, self.registry) for frame in (one, other))
        return self._sealed(merge(*opened), key)

    def zero(self) -> bytes:
        """The sum over no rows, with which any other stays what it is."""
        return self._sealed(self._of_nobody(), self.job.key())

    def total(self, frame: bytes, *, people: Registry | None = None) -> PartialSum:
        """The sum that a cluster returned, sealed; for ``release_partial`` of the mechanism.

        Args:
            frame: the bytes.
            people: the registry that admitted the rows, if one did.

        Raises:
            PartitionError: a worker failed, which is told; or bytes of something else, of another
                job, or changed on the way.
            ProvenanceError: another registry admitted the rows, or one did, and none is given.
        """
        told = failure_of(frame, self.job)
        if told is not None:
            raise PartitionError(f"{told}. Nothing was spent for this sum")
        return self._opened(frame, self.job.key(), people)

    def _sum(self, users: range, source: Any, key: bytes) -> PartialSum:
        wanted = overlap(users, self.only)
        if not len(wanted):
            return self._of_nobody()
        learned: NDArray[np.bool_] | None = None
        if self.registry is not None:
            learned, source = source.which(wanted, self.registry.id, key), source.source
        piece_of = self._pieces(users, source, key)
        pieces = []
        for start in range(wanted.start, wanted.stop, _PIECE):
            part = range(start, min(start + _PIECE, wanted.stop))
            rows = piece_of(part)
            if self.registry is not None and learned is not None:
                these = learned[start - wanted.start :][: len(part)]
                rows = Rows._admitted_elsewhere(rows, self.registry, these)
            pieces.append(self.mechanism.partial(self.steps.mapped(rows)))
        return merge(*pieces)

    def _pieces(self, users: range, source: Any, key: bytes) -> Callable[[range], Rows[Any]]:
        """The sealed rows of some of the users."""
        if isinstance(source, Held):
            return source.rows(users, key).slice
        made = source if self.steps.read is None else self.steps.read(source)
        block = records_from("partition", made)
        if length(block) != len(users):
            raise UsersError(f"holds {length(block)} rows, and is said to hold {len(users)}")

        def piece(part: range) -> Rows[Any]:
            some = slice(part.start - users.start, part.stop - users.start)
            return _sealed_piece(record_at(block, some), part)

        return piece

    def _of_nobody(self) -> PartialSum:
        null: Rows[Any] = self.steps.mapped(Rows.null(range(1)))
        return PartialSum._of_nobody(self.mechanism.partial(null))

    def _sealed(self, total: PartialSum, key: bytes) -> bytes:
        return Kind.SUM.value + total.to_bytes(key)

    def _opened(self, frame: bytes, key: bytes, people: Registry | None) -> PartialSum:
        if not isinstance(frame, bytes) or frame[:1] != Kind.SUM.value:
            raise PartitionError("no sum of this package: the cluster returned something else")
        try:
            return PartialSum.from_bytes(frame[1:], key, people=people)
        except ProvenanceError:
            raise
        except ValueError as error:
            raise PartitionError(f"{error}, or of another job") from None


def _sealed_piece(block: Any, users: range) -> Rows[Any]:
    """Without a copy, where that is safe: nobody at a worker writes to numbers it has read.

    Row after row in memory, as `Rows.seal` has them: results then have the same bits.
    """
    if _is_plain(block):
        return Rows._of_own(block, users, form=form_of(block))
    return Rows.seal(block, users=users)


def _is_plain(block: Any) -> bool:
    if isinstance(block, tuple):
        return all(_is_plain(field) for field in block)
    return isinstance(block, np.ndarray) and block.flags.c_contiguous and not block.dtype.hasobject


def overlap(users: range, only: range | None) -> range:
    """Those of the users that are wanted."""
    if only is None:
        return users
    return range(max(users.start, only.start), min(users.stop, only.stop))


def named(users: range) -> str:
    """First and last of them, for messages."""
    return f"{users.start}..{users.stop - 1}" if len(users) else "none"


def _public(error: BaseException) -> str:
    """What of an error may leave a worker: messages of others may quote rows."""
    if isinstance(error, PrivlearnError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__}: {os.strerror(error.errno)} ({error.filename})"
    return f"{type(error).__name__} where its rows are read (its text may tell of them)"
