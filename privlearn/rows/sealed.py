"""Sealed data: one row, one user, with a public arrival index.

A record is an array or a NamedTuple of arrays; a *block* of records has the same type with one more
leading axis.  `Rows.map` takes a function of one record; `Rows.map_rows` takes a function of a
whole block for speed, which must act on each row by itself (`privlearn.checking.check_row_local`
tests that in advance).  An exception on a record, in either, turns only that record into the *null
record*: it keeps its index, its data are passed to no further function, and it enters every sum as
its domain's null value.  Results are plain arrays; one of dtype object counts as a failure.

Functions that did not come with this package are trusted code: rows carry their names, which go to
the ledger before the rows are opened, and every block is spot-checked (`privlearn.rows.functions`).
Rows that failed such a check cannot be opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any, Generic, Never, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.errors import ProvenanceError, RowLocalityError, SealedError, UsersError
from privlearn.rows.contents import own_records, single_records
from privlearn.rows.domains import Domain, accepted_by
from privlearn.rows.functions import RowFunction
from privlearn.rows.packing import PackedStamp, Parts
from privlearn.rows.pooling import RECHECKED, mean_of_visits, pool, pool_means, sum_of_visits
from privlearn.rows.record_forms import Form, Forms, check_form
from privlearn.rows.stamps import NOBODY, Admitted, Registry, Stamp, check_shared, joined
from privlearn.rows.tabular import records_from
from privlearn.values.records import blanked, join, length, record_at, runs, stack
from privlearn.values.validate import user_range

T = TypeVar("T")
U = TypeVar("U")
Slots = NDArray[np.int64]
"""Of records on a timetable, ascending."""


class Sealed:
    """Mixin for values that only a mechanism with a receipt may look into."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> Never:
        raise SealedError(
            f"{type(self).__name__} is sealed: only a mechanism that spent a token can open it"
        )

    __float__ = __int__ = __index__ = __bool__ = __complex__ = _refuse
    __iter__ = __getitem__ = __contains__ = __reversed__ = _refuse
    __array__ = __array_ufunc__ = __array_function__ = __buffer__ = _refuse
    __reduce__ = __reduce_ex__ = __getstate__ = __copy__ = __deepcopy__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __hash__ = _refuse

    def __format__(self, spec: str) -> str:
        return self._refuse()

    def __str__(self) -> str:
        return repr(self)


class Source(Enum):
    """How rows came in."""

    LOGGED = "logged"
    SERVED = "served"


class _Chunk(Generic[T]):
    """A block and which of its rows are real; null rows hold zeros, unused.

    Null rows keep their place, so that later computations keep their size and with it the rounding
    of other users' results.  A row whose result has another shape or type than its neighbours'
    stands in a chunk of its own.
    """

    __slots__ = ("block", "valid")

    def __init__(self, block: T | None, valid: NDArray[np.bool_]) -> None:
        self.block, self.valid = block, valid

    @classmethod
    def of_nulls(cls, count: int) -> _Chunk[T]:
        return cls(None, np.zeros(count, dtype=bool))


_REAL = np.ones(1, dtype=bool)
_REAL.setflags(write=False)
"""What is real of a single row, which is sealed often."""


@final
class Rows(Sealed, Generic[T]):
    """Sealed records of the users ``users``, in order of arrival; made by `Rows.seal`.

    On a timetable an index is a stretch of time, a *slot*, with any number of visits; a record is
    then one visit, and in which slot it stands, and how many there are, is sealed with it.  User
    code is then called on each record by itself, as the length of a block would tell how many came.
    """

    __slots__ = (
        "__at",
        "__board",
        "__chunks",
        "__defect",
        "__forms",
        "__functions",
        "__stamp",
        "__users",
    )

    def __init__(
        self,
        users: range,
        chunks: Sequence[_Chunk[T]],
        board: object | None,
        functions: tuple[str, ...] = (),
        defect: RowLocalityError | None = None,
        stamp: Stamp | None = None,
        at: Slots | None = None,
        forms: Forms = (),
    ) -> None:
        self.__users, self.__chunks, self.__board = users, tuple(chunks), board
        self.__functions, self.__defect, self.__stamp = functions, defect, stamp
        self.__at, self.__forms = at, forms

    def __but(self, **changed: Any) -> Rows[Any]:
        """The same with some arguments of the constructor changed."""
        same: dict[str, Any] = {
            "users": self.__users,
            "chunks": self.__chunks,
            "board": self.__board,
            "functions": self.__functions,
            "defect": self.__defect,
            "stamp": self.__stamp,
            "at": self.__at,
            "forms": self.__forms,
        }
        return Rows(**(same | changed))

    @classmethod
    def seal(cls, block: T, *, users: range, slots: ArrayLike | None = None) -> Rows[T]:
        """Seals a block of records (leading axis: one row per index in ``users``).

        The block is copied: what is written to its arrays afterwards changes nothing.  A record
        with an object that cannot be copied is null.  Shapes and types of arrays and frames are
        public, and rows of a form that a mechanism cannot use are refused before a token is spent;
        of a list each record is taken by itself, and one of another form is null.

        Args:
            block: the records.
            users: their arrival indices, or on a timetable the slots that they are within.
            slots: on a timetable the slot of each record, shape (n,); ascending.

        Raises:
            UsersError: the block's length differs from the number of users, or ``slots`` are not
                ascending within ``users``.
            TypeError: it is no table (a generator, a dict, a sparse matrix), or a frame of
                something else than numbers.
        """
        own, form = own_records(records_from("block", block))
        at = None if slots is None else slots_within(slots, users)
        # on a timetable the form would tell whether, of a list how many, came
        rows: Rows[T] = cls._of_own(own, users, at, form if at is None else None)
        singles = single_records(own, rows.__visits)
        if singles is not None:
            apart = [_Chunk(single, np.array([single is not None])) for single in singles]
            rows.__chunks = tuple(_merge(apart))
        return rows

    @classmethod
    def _of_own(cls, block: T, users: range, at: Slots | None = None, form: Form = None) -> Rows[T]:
        """As `seal`, for numbers that nobody else holds: for `privlearn.learners`, which copy."""
        index = user_range(users=users)
        count = length(block)
        if at is not None and count != len(at):  # neither number is public
            raise UsersError(f"slots within {users!r}: there must be one for each record")
        if at is None and count != len(index):
            raise UsersError(f"users = {users!r} names {len(index)} rows, the block has {count}")
        real = _REAL if count == 1 else np.ones(count, dtype=bool)
        forms = () if form is None else (form,)
        return cls(index, [_Chunk(block, real)] if count else [], None, at=at, forms=forms)

    @classmethod
    def null(cls, users: range) -> Rows[T]:
        """Null records, for users whose data never arrived or cannot be used."""
        return cls(user_range(users=users), [_Chunk.of_nulls(len(users))], None, stamp=NOBODY)

    @property
    def users(self) -> range:
        return self.__users

    @property
    def source(self) -> Source:
        """Whether a billboard served these users, or the rows come from a log."""
        return Source.LOGGED if self.__board is None else Source.SERVED

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the user's functions that these rows passed through, oldest first."""
        return self.__functions

    def __len__(self) -> int:
        return len(self.__users)

    @property
    def __visits(self) -> int:
        return len(self.__users) if self.__at is None else len(self.__at)

    def __repr__(self) -> str:
        last = self.__users.stop - 1
        return f"Rows(users={self.__users.start}..{last}, {self.source.value}, sealed)"

    def map(self, function: Callable[[T], U]) -> Rows[U]:
        """Applies ``function`` to each record by itself."""

        def single(block: T) -> U:
            return stack([function(record_at(block, 0))])

        checked = RowFunction(single, "map", code=function)
        forms = checked.forms_of(self.__forms, 1)
        return self._mapped(checked, _map_singly, self.__board, forms)

    def map_rows(self, function: Callable[[T], U]) -> Rows[U]:
        """Applies a row-local ``function`` to whole blocks.

        If it raises on a block, or returns another number of rows, the rows on which it fails by
        themselves become null and the block is done again without them.
        """
        checked = RowFunction(function, "map_rows")
        forms = checked.forms_of(self.__forms, 2)
        return self._mapped(checked, _map_chunk, self.__board, forms)

    def _mapped(
        self,
        function: RowFunction[T, U],
        mapping: Callable[[RowFunction[T, U], _Chunk[T]], list[_Chunk[U]]],
        board: object | None,
        forms: Forms = (),
    ) -> Rows[U]:
        if self.__at is not None and not function.owned:
            mapping = _map_singly
        chunks: list[_Chunk[U]] = []
        defect = self.__defect
        for chunk in self.__chunks:
            try:
                chunks += mapping(function, chunk)
            except RowLocalityError as error:  # that it failed may depend on the rows: see `opened`
                defect = defect or error
                chunks.append(_Chunk.of_nulls(len(chunk.valid)))
        functions = self.__functions
        if function.names:
            functions = tuple(dict.fromkeys((*functions, *function.names)))
        stamp, at = self.__stamp, self.__at
        return Rows(self.__users, chunks, board, functions, defect, stamp, at, forms)

    def pool(self, combine: Callable[[T], U]) -> Rows[U]:
        """One row for each person in each public batch, at the slot of the person's first visit.

        The other rows are null.  What is pooled can be no part of what is released before the end
        of its batch, so ``self`` must hold whole batches.  A person whose first visit of a batch is
        not among these rows, as null ones stand in its place, has no row in it: at another slot it
        could be opened beside the one that was made of the first.

        Args:
            combine: makes one record of a block of one person's records, in order of arrival.  It
                is called for each person by itself; where it fails, and where the records are not
                all of one shape, that person's row is null.

        Raises:
            ProvenanceError: no registry admitted these rows, or they were pooled before.
            UsersError: they are not whole batches.
        """
        stamp = self.__stamp
        if stamp is None or stamp.pooled:
            had = "carry no stamp of a registry" if stamp is None else "were pooled before"
            raise ProvenanceError(f"pool: rows of users {self.__users!r} {had}; see people.admit")
        persons, counted = stamp.persons, stamp.counted
        if stamp.registry is None or persons is None or counted is None:
            nulls: list[_Chunk[U]] = [_Chunk.of_nulls(self.__visits)]
            return self.__but(chunks=nulls, defect=None, stamp=NOBODY, forms=())

        def single(block: T) -> U:
            return stack([combine(block)])

        function = RowFunction(single, "pool", code=combine)
        total = combine is sum_of_visits
        ours = total or combine is mean_of_visits  # of the form that the records have
        forms = self.__forms if ours else function.forms_of(self.__forms, 1)
        whole = stamp.registry.batches(self.__users)
        chunks, defect = self.__known(), self.__defect
        made: list[_Chunk[U]] = []
        try:
            parts, at = [(chunk.block, chunk.valid) for chunk in chunks], self.__places()
            given = (parts, persons, counted, whole, at)
            known = pool_means(*given, total=total) if ours else None
            if known is not None:
                made = [_Chunk(*known)]
            else:
                results = pool(*given, function)
                made = _merge([_Chunk(each, np.array([each is not None])) for each in results])
        except RowLocalityError as error:  # as in `_mapped`
            made, defect = [_Chunk.of_nulls(self.__visits)], defect or error
        functions = tuple(dict.fromkeys((*self.__functions, *function.names)))
        stamp = Stamp(stamp.registry, persons, counted, True, stamp.calls)
        return self.__but(chunks=made, functions=functions, defect=defect, stamp=stamp, forms=forms)

    def without_forgotten(self) -> Rows[T]:
        """The same rows, null where a person was forgotten since they were admitted.

        Receipts open, and `pool` joins, no others; this lets go of the data before.
        """
        return self.__but(chunks=self.__known())

    def __known(self) -> tuple[_Chunk[T], ...]:
        """The chunks, with rows null whose person was forgotten."""
        gone = None if self.__stamp is None else self.__stamp.gone()
        return self.__chunks if gone is None else tuple(_kept(self.__chunks, ~gone))

    def __places(self) -> Slots:
        users = self.__users
        return np.arange(users.start, users.stop) if self.__at is None else self.__at

    def slice(self, users: range) -> Rows[T]:
        """The rows of a contiguous part of the users.

        Raises:
            UsersError: an index is not among these rows.
        """
        user_range(users=users)
        if users.start < self.__users.start or users.stop > self.__users.stop:
            raise UsersError(f"users {users!r} are not all within {self.__users!r}")
        first, stop, at = users.start - self.__users.start, users.stop - self.__users.start, None
        if self.__at is not None:
            first, stop = (int(i) for i in np.searchsorted(self.__at, [users.start, users.stop]))
            at = self.__at[first:stop]
        chunks: list[_Chunk[T]] = []
        begin = 0
        for chunk in self.__chunks:
            low = max(first - begin, 0)
            high = min(stop - begin, len(chunk.valid))
            if low < high:
                block = None if chunk.block is None else record_at(chunk.block, slice(low, high))
                chunks.append(_Chunk(block, chunk.valid[low:high]))
            begin += len(chunk.valid)
        stamp = None if self.__stamp is None else self.__stamp.part(first, stop)
        return self.__but(users=users, chunks=chunks, stamp=stamp, at=at)

    @staticmethod
    def concat(parts: Sequence[Rows[T]]) -> Rows[T]:
        """Joins rows of consecutive users; on a timetable the last slot may go on in the next part.

        Raises:
            UsersError: the ranges are not consecutive, or a slot that goes on has the same visits
                twice.
            ProvenanceError: mixed sources, or a slot that goes on in pooled rows.
        """
        if not parts:
            raise ValueError("parts = []: needs at least one Rows")
        parts, timed = _timed(parts)
        for left, right in pairwise(parts):
            if right.users.start not in (left.users.stop, left.users.stop - timed):
                raise UsersError(f"users {left.users!r} and {right.users!r} are not consecutive")
            if left.__board is not right.__board:
                raise ProvenanceError("cannot join rows of different billboards or sources")
        if timed:
            check_shared([(part.__users, part.__stamp) for part in parts])
        users = range(parts[0].users.start, parts[-1].users.stop)
        chunks = [chunk for part in parts for chunk in part.__chunks]
        functions = tuple(dict.fromkeys(name for part in parts for name in part.__functions))
        defect = next((part.__defect for part in parts if part.__defect is not None), None)
        stamps = [(part.__stamp, part.__visits) for part in parts]
        stamped = any(stamp is not None for stamp, _ in stamps)  # by a registry, where there is one
        stamp = joined(stamps) if stamped else None
        at = np.concatenate([part.__places() for part in parts]) if timed else None
        forms = tuple(dict.fromkeys(form for part in parts for form in part.__forms))
        return Rows(users, _merge(chunks), parts[0].__board, functions, defect, stamp, at, forms)

    @staticmethod
    def _shown(rows: Rows[T], policy: RowFunction[T, U]) -> Rows[U]:
        """Maps rows to themselves with what they are shown; for the billboard only."""
        return rows._mapped(policy, _map_chunk, rows.__board)

    @staticmethod
    def _delivered(rows: Rows[T], answer: RowFunction[T, U], board: object) -> Rows[U]:
        """Maps real rows only and marks the result as served; for the billboard only."""
        return rows._mapped(answer, _map_real, board)

    @staticmethod
    def _unseal(rows: Rows[T]) -> tuple[_Chunk[T], ...]:
        """The chunks themselves; for `rows.clipping` and the billboard only.

        Rows of persons who were forgotten since they were admitted are null.
        """
        if rows.__defect is not None:
            raise rows.__defect
        return rows.__known()

    @staticmethod
    def _parts_of(rows: Rows[T]) -> Parts:
        """Everything that the rows hold, of persons that are not forgotten.

        For `privlearn.rows.store` only, which encrypts it.
        """
        stamp = rows.__stamp
        return Parts(
            rows.__users,
            tuple((chunk.block, chunk.valid) for chunk in rows.__known()),
            rows.__board is not None,
            rows.__functions,
            None if rows.__defect is None else str(rows.__defect),
            None
            if stamp is None
            else PackedStamp(
                None if stamp.registry is None else stamp.registry.id,
                stamp.persons,
                stamp.counted,
                stamp.pooled,
            ),
            rows.__at,
            rows.__forms,
        )

    @staticmethod
    def _of_parts(
        parts: Parts, board: object | None, registry: Registry | None, call: int
    ) -> Rows[T]:
        """Rows as they were before a restart; for `privlearn.rows.store` only.

        Args:
            parts: that the store's key says were written by the store.
            board: the billboard that served them, or None.
            registry: that admitted them; without it, rows that one admitted are null.
            call: stands for that of the registry, lower than any of this process.
        """
        chunks: list[_Chunk[T]] = [_Chunk(block, valid) for block, valid in parts.chunks]
        stamp: Stamp | None = None
        if parts.stamp is not None and parts.stamp.registry is None:
            stamp = NOBODY
        elif parts.stamp is not None and registry is None:
            stamp, chunks = NOBODY, [_Chunk.of_nulls(len(chunk.valid)) for chunk in chunks]
        elif parts.stamp is not None:
            _, persons, counted, pooled = parts.stamp
            stamp = Stamp(registry, persons, counted, pooled, (call, call))
        defect = None if parts.defect is None else RowLocalityError(parts.defect)
        rows: Rows[T] = Rows(
            parts.users, chunks, board, parts.functions, defect, stamp, parts.at, parts.forms
        )
        return rows.without_forgotten()

    @staticmethod
    def _only(rows: Rows[T], some: NDArray[np.bool_]) -> Rows[T]:
        """The rows with the others null; for the billboard only."""
        return rows.__but(chunks=_kept(rows.__chunks, some))

    @staticmethod
    def _of_nobody(rows: Rows[T]) -> Rows[T]:
        """Null records of the same users, for a release that is handed out again."""
        return Rows(rows.__users, Rows.null(rows.__users).__chunks, rows.__board, stamp=NOBODY)

    @staticmethod
    def _named(rows: Rows[T], functions: Sequence[str]) -> Rows[T]:
        """The rows with names of functions that they may have passed through; for learners."""
        return rows.__but(functions=tuple(dict.fromkeys((*rows.__functions, *functions))))

    @staticmethod
    def _served_by(rows: Rows[T], board: object) -> Rows[T]:
        """The same rows, marked as served by ``board``; for billboard and learners."""
        return rows.__but(board=board)

    @staticmethod
    def _admitted(rows: Rows[T], registry: Registry, found: Admitted) -> Rows[T]:
        """The rows with those null that are not learned, and the registry's stamp.

        For `privlearn.contract.billboard` and `privlearn.people` only.
        """
        learned, calls = found.learned, (found.call, found.call)
        persons = np.where(learned, found.persons, -1)
        stamp = Stamp(registry, persons, found.counted, calls=calls)
        return rows.__but(chunks=_kept(rows.__chunks, learned), stamp=stamp)

    @staticmethod
    def _admitted_elsewhere(
        rows: Rows[T], registry: Registry, learned: NDArray[np.bool_]
    ) -> Rows[T]:
        """As `_admitted`, where it is not known whose rows they are.

        For `privlearn.rows.partitions` only.
        """
        return rows.__but(chunks=_kept(rows.__chunks, learned), stamp=Stamp(registry, None))

    @staticmethod
    def _moved(rows: Rows[T], users: range) -> Rows[T]:
        """Rows that were just sealed, at other indices; for `privlearn.people` only."""
        return rows.__but(users=users)

    @staticmethod
    def _forms_of(rows: Rows[T]) -> Forms:
        """The public forms of the records; for `privlearn.contract.partial_sums` only."""
        return rows.__forms

    @staticmethod
    def _slots_of(rows: Rows[T]) -> Slots | None:
        """The slot of each record on a timetable; None where each slot has one record."""
        return rows.__at

    @staticmethod
    def _of_no_slots(rows: Rows[T]) -> Rows[T]:
        """Publicly null rows on a timetable: nobody came."""
        return Rows(rows.__users, [], rows.__board, stamp=NOBODY, at=np.zeros(0, dtype=np.int64))

    @staticmethod
    def _stamp_of(rows: Rows[T]) -> Stamp | None:
        return rows.__stamp

    @staticmethod
    def _board_of(rows: Rows[T]) -> object | None:
        return rows.__board


def check_forms(domain: Domain[Any], rows: Rows[Any]) -> None:
    """Raises unless records of the public form of ``rows`` can be in ``domain``.

    Rows are unknown, and pass, after code that cannot be tried (answers of users) or that fails on
    zeros; so does everything into a domain that does not state what it takes.

    Raises:
        DataError: none can be, whatever their numbers; it names both forms and a remedy.
    """
    forms = Rows._forms_of(rows)
    if forms and (accepted := accepted_by(domain)) is not None:
        check_form(accepted, forms, domain)


def slots_within(slots: ArrayLike, users: range) -> Slots:
    """The slots of records; raises UsersError unless they ascend within ``users``."""
    try:
        at = np.array(slots)
    except (TypeError, ValueError):  # of several lengths, say
        at = np.array(None)
    if at.shape == (0,):
        return np.zeros(0, dtype=np.int64)
    good = at.dtype.kind in "iu" and at.ndim == 1
    # no differences, which unsigned integers do not have below zero
    if not good or at[0] < users.start or at[-1] >= users.stop or (at[1:] < at[:-1]).any():
        raise UsersError(f"slots: must be integers that ascend within {users!r}, one per record")
    return at.astype(np.int64)


def _kept(chunks: Sequence[_Chunk[T]], kept: NDArray[np.bool_]) -> list[_Chunk[T]]:
    made: list[_Chunk[T]] = []
    begin = 0
    for chunk in chunks:
        valid = chunk.valid & kept[begin : begin + len(chunk.valid)]
        block = chunk.block
        if block is not None and not valid.all():
            block = blanked(block, ~valid)
        made.append(_Chunk(block, valid))
        begin += len(chunk.valid)
    return made


def _timed(parts: Sequence[Rows[T]]) -> tuple[list[Rows[T]], bool]:
    """The parts, all of them on a timetable or none, and whether they are."""
    timed = [Rows._slots_of(part) is not None for part in parts]
    if any(timed) and not all(timed):
        parts = [
            part if on or Rows._stamp_of(part) is not NOBODY else Rows._of_no_slots(part)
            for part, on in zip(parts, timed, strict=True)
        ]
        if any(Rows._slots_of(part) is None for part in parts):
            raise ProvenanceError("cannot join rows of a timetable and rows of one for each slot")
    return list(parts), any(timed)


def _map_singly(function: RowFunction[T, U], chunk: _Chunk[T]) -> list[_Chunk[U]]:
    block, real = chunk.block, np.flatnonzero(chunk.valid)
    if block is None or not real.size:
        return [_Chunk.of_nulls(len(chunk.valid))]
    singles = _singles(function, block, chunk.valid)
    _recheck(function, block, singles)
    return _merge(singles)


def _recheck(function: RowFunction[T, U], block: T, singles: Sequence[_Chunk[U]]) -> None:
    """Raises RowLocalityError where a function of one row remembers others."""
    for i in np.random.default_rng().permutation(len(singles))[:RECHECKED]:
        if (result := singles[i].block) is not None:
            function.check(record_at(block, slice(i, i + 1)), _REAL, result)


def _singles(function: RowFunction[T, U], block: T, valid: NDArray[np.bool_]) -> list[_Chunk[U]]:
    """Each row by itself; null where there is none, or where the function fails."""
    results = [
        function.attempt(record_at(block, slice(i, i + 1)), 1) if real else None
        for i, real in enumerate(valid)
    ]
    return [_Chunk(result, np.array([result is not None])) for result in results]


def _map_chunk(function: RowFunction[T, U], chunk: _Chunk[T]) -> list[_Chunk[U]]:
    count, block = len(chunk.valid), chunk.block
    if block is None:
        return [_Chunk.of_nulls(count)]
    result = function.attempt(block, count)
    if result is not None:
        function.check(block, chunk.valid, result)
        return [_Chunk(result, chunk.valid)]
    singles = _singles(function, block, chunk.valid)
    good = np.array([bool(single.valid) for single in singles])
    if not good.any():
        return [_Chunk.of_nulls(count)]
    others = blanked(block, ~good)
    repaired = function.attempt(others, count)
    if repaired is not None:
        function.check(others, good, repaired)
        return [_Chunk(repaired, good)]
    # The rows' results do not fit together; each stands by itself, and none suffers for another.
    _recheck(function, block, singles)
    return _merge(singles)


def _map_real(function: RowFunction[T, U], chunk: _Chunk[T]) -> list[_Chunk[U]]:
    """As `_map_chunk`, for a function that may not even see the place of a null row."""
    real = np.flatnonzero(chunk.valid)
    if chunk.block is None or not real.size:
        return [_Chunk.of_nulls(len(chunk.valid))]
    if real.size == len(chunk.valid):
        return _map_chunk(function, chunk)
    present = _Chunk(record_at(chunk.block, real), np.ones(real.size, dtype=bool))
    parts = iter(
        _Chunk(record_at(part.block, slice(i, i + 1)), part.valid[i : i + 1])
        if part.block is not None
        else _Chunk[U].of_nulls(1)
        for part in _map_chunk(function, present)
        for i in range(len(part.valid))
    )
    return _merge([next(parts) if valid else _Chunk.of_nulls(1) for valid in chunk.valid])


def _merge(chunks: Sequence[_Chunk[T]]) -> list[_Chunk[T]]:
    merged: list[_Chunk[T]] = []
    placed = _stand_ins(chunks)
    valid, start = [chunk.valid for chunk in placed], 0
    for count, blocks in runs([chunk.block for chunk in placed]):
        block = join(blocks) if blocks else None
        merged.append(_Chunk(block, np.concatenate(valid[start : start + count])))
        start += count
    return merged


def _stand_ins(chunks: Sequence[_Chunk[T]]) -> list[_Chunk[T]]:
    """Fills chunks of nulls with zeros of the shape before (or after) them, so that runs join."""
    near = next((chunk.block for chunk in chunks if chunk.block is not None), None)
    filled: list[_Chunk[T]] = []
    for chunk in chunks:
        if chunk.block is not None:
            near = chunk.block
        elif near is not None:
            places = record_at(near, np.zeros(len(chunk.valid), dtype=int))
            chunk = _Chunk(blanked(places, ~chunk.valid), chunk.valid)
        filled.append(chunk)
    return filled
