"""A registry of people in PostgreSQL, beside its ledger, for processes on several hosts.

A turn is a transaction behind an advisory lock of the registry.  It is serializable, and begins by
reading the ledger's last epoch: a process of an earlier one admits nobody.  What a call finds is
told when the transaction is committed.  Where nothing is known of a commit, visits may be used up,
and are not learned.

Hashes of ids are made here, under a key that is not in the database (`privlearn.people.key_files`).
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from privlearn.errors import LedgerError, LedgerFencedError, PeopleError
from privlearn.ledger.postgres import PostgresStore
from privlearn.ledger.postgres_sessions import (
    Conflict,
    Connections,
    Denied,
    LostConnection,
    Session,
    Taken,
    TurnLock,
)
from privlearn.people.contents import Head, head_in_place, new_head
from privlearn.people.identities import KINDS
from privlearn.people.key_files import known, read_key, write_key
from privlearn.people.postgres_schema import statements
from privlearn.people.quotas import FORGOTTEN, Standing
from privlearn.people.turns import Turn
from privlearn.storage import processes
from privlearn.values.participation import Participation
from privlearn.values.validate import text as valid_text

T = TypeVar("T")
_LOST = "in place of one that is lost: People.postgres(ledger, 'replace_lost', ...)"
_TRIES = 20  # Of a turn that the server undoes for the sake of another transaction


@final
class PostgresTurns:
    """One process's turns of a registry, which `create` or `open` begins.

    Args:
        store: of the ledger, in the epoch that this process belongs to.
        name: of the registry, in this ledger.
        own: whether the store is closed with it.
    """

    def __init__(self, store: PostgresStore, name: str, *, own: bool) -> None:
        self._store, self._own, self._key = store, own, b""
        self._where = {"ledger": store.ledger, "name": name}
        self._called = f"{store.name}, registry of people {name!r}"
        self._held = Connections()
        self._turn_lock = TurnLock(self._held, ("people", store.ledger, name), self._connected)
        self._end = weakref.finalize(self, self._held.close, processes.here())
        self._reads = threading.Lock()
        self._closed = False
        self._seen: tuple[Head, tuple[int, ...] | None] | None = None
        self._forgotten: set[int] = set()
        processes.INHERITED.add(self)

    def create(self, head: Head, key: str | os.PathLike[str]) -> None:
        """A new registry, and a new file with its key; the tables, too, if the role may.

        Raises:
            PeopleError: there is one, or the file is there, or one of them cannot be written.
        """
        self._begin(head, key, self._make)

    def replace_lost(self, head: Head, key: str | os.PathLike[str]) -> None:
        """Puts one that learns nobody in place of one whose key is lost, or which is not there.

        Processes that have the lost one open are refused from then on.

        Args:
            head: with the id of the lost one, a new key, and the first slot that is admitted.
            key: the new file.

        Raises:
            PeopleError: as `create`; or what stands there is another registry, keeps another rule,
                has come further than to that slot, or ends before it.
        """
        self._begin(head, key, self._replace)

    def _begin(
        self,
        head: Head,
        key: str | os.PathLike[str],
        write: Callable[[Session, Head, bytes], object],
    ) -> None:
        write_key(key, head.key)
        self._key = head.key
        try:
            with self._said():
                self._make_tables()
                with self._turn_lock.turn() as session:
                    session.begin()
                    self._store.check_epoch(session)
                    write(session, head, known(head.key, head.id))
                    self._commit(session)
        except BaseException:
            with suppress(OSError):
                os.unlink(key)
            raise
        self.look()

    def open(self, key: str | os.PathLike[str], rule: Participation | None) -> None:
        """One that was created before.

        Raises:
            PeopleError: there is none, the key is of another one, or it keeps another rule than
                the one that is given.
        """
        self._key = read_key(key)
        self.look()
        kept = self.seen[0].rule
        if rule is not None and rule != kept:
            raise PeopleError(
                f"rule = {rule!r}: {self._called} keeps another, {kept!r}, which cannot be changed"
            )

    def _make_tables(self) -> None:
        (found,) = self._read(text("SELECT to_regclass('privlearn.registries') AS found"))
        if found.found is not None:
            return
        session = self._connected()
        try:
            session.begin()
            for statement in statements():
                session.run(text(statement))
            session.commit()
        except (Taken, Conflict):  # somebody else makes them at the same time
            session.rollback()

    def _make(self, session: Session, head: Head, key: bytes) -> None:
        try:
            session.run(
                _MAKE,
                **self._where,
                id=head.id,
                known=key,
                rule=json.dumps(head.rule.to_dict(), sort_keys=True),
                serving_only=head.serving_only,
                clock=head.clock,
            )
        except Taken:
            raise PeopleError(
                f"{self._called} exists: a registry of people is never overwritten; open it, "
                "or choose another name"
            ) from None

    def _replace(self, session: Session, head: Head, key: bytes) -> None:
        rows = session.run(_HEAD, **self._where)
        if not rows:
            return self._make(session, head, key)
        (row,) = rows
        if row.id != head.id:
            raise PeopleError(f"id = {head.id!r}: {self._called} is registry {row.id}")
        rule = Participation.from_dict(json.loads(row.rule))
        if rule != head.rule:
            raise PeopleError(f"rule = {head.rule!r}: {self._called} keeps another, {rule!r}")
        clock = head.clock or 0
        # before it has an accountant nobody was admitted, and a wrong clock may be set right
        if row.accountant is not None and clock < row.clock:
            raise PeopleError(f"clock = {clock}: {self._called} has come to slot {row.clock}")
        if row.accountant is not None and clock > row.stop:
            raise PeopleError(f"clock = {clock}: {self._called} has slots before {row.stop} only")
        session.run(_REPLACE, id=head.id, known=key, clock=head.clock)

    @property
    def durable(self) -> bool:
        return True

    @property
    def fresh(self) -> bool:
        """Others write to it, too."""
        return False

    @property
    def seen(self) -> tuple[Head, tuple[int, ...] | None]:
        assert self._seen is not None  # after `look`
        return self._seen

    def look(self) -> None:
        with self._said():
            self._see(self._read(_HEAD, **self._where))

    def _see(self, rows: Sequence[Any]) -> Any:
        """Takes down what was read of the head."""
        if not rows:
            raise PeopleError(
                f"{self._called}: there is none; People.postgres(ledger, 'create', ...) begins "
                f"one; {_LOST}"
            )
        try:
            head = _head_of(rows[0], self._key)
        except (ValueError, TypeError, KeyError) as error:
            raise PeopleError(f"{self._called} is damaged: {error}") from None
        if head is None:
            raise PeopleError(
                f"key: {self._called} was made with another one, without which nobody in it can be "
                f"told apart; copy the file from a host whose processes keep it; {_LOST}"
            )
        starts = rows[0].starts
        self._seen = head, None if starts is None else tuple(starts)
        return rows[0]

    def take(self, action: Callable[[Turn], T]) -> T:
        with self._said():
            for _ in range(_TRIES):
                with suppress(Conflict), self._turn_lock.turn() as session:
                    return self._taken(session, action)
        raise PeopleError(
            f"{self._called}: the server undid it {_TRIES} times for the sake of others; nothing "
            "was debited: try again"
        )

    def _taken(self, session: Session, action: Callable[[Turn], T]) -> T:
        session.begin()
        self._store.check_epoch(session)
        row = self._see(session.run(_HEAD, **self._where))
        turn = _PostgresTurn(session, *self.seen, row.calls, row.people)
        done = action(turn)
        if turn.written is None:
            return done
        self._commit(session)
        self._seen = turn.written
        return done

    def _commit(self, session: Session) -> None:
        session.commit()
        if session.warnings:
            raise LostConnection(session.warnings[0])

    def _connected(self) -> Session:
        if self._closed:
            raise PeopleError("this registry of people was closed")
        if self._held.session is None:
            session = self._store.session(writes=True)
            try:
                session.check_tables()
                self._held.session = session
            except BaseException:
                session.close()
                raise
        return self._held.session

    def _read(self, statement: Any, **parameters: Any) -> Sequence[Any]:
        with self._reads:
            for last in (False, True):
                if self._closed:
                    raise PeopleError("this registry of people was closed")
                if self._held.reading is None:
                    self._held.reading = self._store.session(writes=False)
                try:
                    return self._held.reading.run(statement, **parameters)
                except LostConnection:
                    self._held.drop_reading()
                    if last:
                        raise
            raise AssertionError

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        asked = sorted(set(persons.tolist()) - {-1} - self._forgotten)
        if asked:
            with self._said():
                rows = self._read(_FORGOTTEN, registry=self.seen[0].id, numbers=asked)
            self._forgotten.update(row.number for row in rows)
        return self.forgotten_as_known(persons)

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(persons, np.array(sorted(self._forgotten), dtype=np.int64))

    def clean(self) -> None:
        """Nothing: what was overwritten is the server's to vacuum (docs/people.md)."""

    def close(self) -> None:
        """Ends the connections; the registry goes on."""
        self._closed = True
        self._end()
        if self._own:
            self._store.close()

    def in_child(self) -> None:
        """Leaves the connections to the parent: a forked child must not end them, nor use them."""
        processes.never_end((self._held.session, self._held.reading))
        gone: Any = processes.Gone(PeopleError, "a registry of people")
        self._held.session = self._held.reading = gone

    def _said(self) -> _Errors:
        return _Errors(self._called)


def turns_of(
    ledger: object,
    how: str,
    key: str | os.PathLike[str],
    rule: Participation | None,
    name: str,
    id: str | None,
    clock: int | None,
) -> PostgresTurns:
    """A registry beside a ledger; see `privlearn.people.People.postgres`.

    Raises:
        PrivlearnError, TypeError, ValueError: as there.
    """
    if how not in ("create", "open", "replace_lost"):
        raise ValueError(f"how = {how!r}: must be 'create', 'open' or 'replace_lost'")
    if how != "replace_lost" and (id, clock) != (None, None):
        raise ValueError(f"id = {id!r}, clock = {clock!r}: are for how = 'replace_lost'")
    head = new_head(rule) if how == "create" else None
    if how == "replace_lost":
        head = head_in_place(rule, id, clock)
    valid_text(name=name)
    own = isinstance(ledger, str)
    store: object = getattr(ledger, "_shared", None)
    if isinstance(ledger, str):
        store = PostgresStore(ledger, "join")
    if not isinstance(store, PostgresStore):
        raise TypeError("ledger: must be one in PostgreSQL, Ledger.postgres(address)")
    turns = PostgresTurns(store, name, own=own)
    try:
        if head is None:
            turns.open(key, rule)
        elif how == "create":
            turns.create(head, key)
        else:
            turns.replace_lost(head, key)
    except BaseException:
        turns.close()
        raise
    return turns


@final
class _Errors:
    """A block in which what is wrong with the database is raised as PeopleError."""

    def __init__(self, called: str) -> None:
        self._called = called

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LostConnection):
            raise PeopleError(
                f"{self._called}: the connection was lost: {error}. Visits of this call may be "
                "used up, and are not learned; try again with the next"
            ) from None
        if isinstance(error, Taken | Conflict):
            raise PeopleError(
                f"{self._called}: somebody wrote to it who did not wait for a turn; nothing was "
                "debited"
            ) from None
        if isinstance(error, Denied):
            raise PeopleError(
                f"{self._called}: {error.said}; `privlearn people postgres-schema --keeper ROLE` "
                "prints what makes the tables of people, and what a role needs"
            ) from None
        if isinstance(error, LedgerError) and not isinstance(error, LedgerFencedError):
            raise PeopleError(str(error)) from None


@final
class _PostgresTurn:
    """A turn in a transaction of a session."""

    def __init__(
        self, session: Session, head: Head, starts: tuple[int, ...] | None, calls: int, known: int
    ) -> None:
        self._session, self._calls = session, calls
        self.head, self.starts, self.known = head, starts, known
        self.written: tuple[Head, tuple[int, ...] | None] | None = None

    def standings(self, keys: Sequence[bytes | None]) -> Mapping[bytes, Standing]:
        asked = sorted({key for key in keys if key is not None})
        if not asked:
            return {}
        rows = self._session.run(_STANDINGS, registry=self.head.id, hashes=asked)
        found = {
            bytes(row.hash): Standing(row.number, row.used, row.last, row.within) for row in rows
        }
        most, clock = self.head.rule.most, self.head.clock or 0
        for each in found.values():
            good = 0 <= each.number < self.known and 1 <= each.used <= most
            if not good or not FORGOTTEN <= each.last < clock:
                raise PeopleError("the registry of people is damaged: a standing cannot be right")
        return found

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def write(
        self,
        head: Head,
        starts: tuple[int, ...] | None = None,
        changed: Mapping[bytes, Standing] | None = None,
    ) -> None:
        changed = changed or {}
        users, people = head.users, self.known
        if changed:
            people = max(people, 1 + max(each.number for each in changed.values()))
            self._session.run(
                _KEEP,
                registry=head.id,
                hashes=list(changed),
                **{
                    name: [getattr(each, name) for each in changed.values()]
                    for name in Standing._fields
                },
            )
        self._session.run(
            _WRITE,
            id=head.id,
            accountant=head.accountant,
            first=None if users is None else users.start,
            stop=None if users is None else users.stop,
            clock=head.clock,
            kind=head.kind,
            starts=None if starts is None else list(starts),
            calls=self._calls,
            people=people,
        )
        self.written = head, self.starts if starts is None else starts


def _head_of(row: Any, key: bytes) -> Head | None:
    """The head in a row; None where the key is another one."""
    if bytes(row.known_key) != known(key, row.id):
        return None
    if row.kind is not None and row.kind not in KINDS:
        raise ValueError("the kind of its ids cannot be right")
    head = Head(row.id, key, Participation.from_dict(json.loads(row.rule)), row.serving_only)
    if row.accountant is None:
        return replace(head, clock=row.clock, kind=row.kind)
    if not 0 <= row.first <= row.clock <= row.stop or row.first == row.stop:
        raise ValueError("its slots cannot be right")
    users = range(row.first, row.stop)
    return replace(head, accountant=row.accountant, users=users, clock=row.clock, kind=row.kind)


_MAKE = text(
    "INSERT INTO privlearn.registries"
    " (ledger, name, id, known_key, rule, serving_only, clock, calls, people)"
    " SELECT :ledger, :name, :id, :known, :rule, :serving_only, CAST(:clock AS bigint), 0,"
    " coalesce(max(number) + 1, 0) FROM privlearn.people WHERE registry = :id"
)
_REPLACE = text(
    "UPDATE privlearn.registries SET known_key = :known, serving_only = true, clock = :clock"
    " WHERE id = :id"
)
_HEAD = text(
    "SELECT id, known_key, rule, serving_only, accountant, first, stop, clock, kind, starts, calls,"
    " people FROM privlearn.registries WHERE ledger = :ledger AND name = :name"
)
_WRITE = text(
    "UPDATE privlearn.registries SET accountant = :accountant, first = :first, stop = :stop,"
    " clock = :clock, kind = :kind, calls = :calls, people = :people,"
    " starts = coalesce(CAST(:starts AS bigint[]), starts) WHERE id = :id"
)
_STANDINGS = text(
    "SELECT hash, number, used, last, within FROM privlearn.people"
    " WHERE registry = :registry AND hash = ANY(CAST(:hashes AS bytea[]))"
)
_KEEP = text(
    "INSERT INTO privlearn.people (registry, hash, number, used, last, within)"
    " SELECT :registry, hash, number, used, last, within FROM unnest(CAST(:hashes AS bytea[]),"
    " CAST(:number AS bigint[]), CAST(:used AS integer[]), CAST(:last AS bigint[]),"
    " CAST(:within AS integer[])) AS changed (hash, number, used, last, within)"
    " ON CONFLICT (registry, hash) DO UPDATE SET used = excluded.used, last = excluded.last,"
    " within = excluded.within"
)
_FORGOTTEN = text(
    "SELECT number FROM privlearn.people WHERE registry = :registry AND last = -1"
    " AND number = ANY(CAST(:numbers AS bigint[]))"
)
