"""The rows of a learner that outlive its process, if it was handed a store for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

from privlearn.contract.protocols import Accountant
from privlearn.errors import RowStoreError
from privlearn.rows import Rows, RowStore
from privlearn.rows.store import joined

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Recovered:
    """Which rows a learner has again after a restart, by arrival index; for the operator only.

    On a timetable it follows from who came, and when.
    """

    rows: tuple[range, ...] = ()
    """Of these users, from a store; that a row was null stays sealed with it."""
    null: tuple[range, ...] = ()
    """Of these users rows may have been needed, and are gone: their records stay null."""


class Taking(Protocol):
    """What is asked of a learner that begins again."""

    clock_: int

    def _needed_from(self) -> int: ...


@final
class KeptRows:
    """What one learner keeps, and takes again.

    Args:
        store: for the rows, or None.
        accountant: that the learner is started with.
        kinds: the classes of named tuples that rows are made of.

    Raises:
        TypeError: no store.
        RowStoreError: one of another accountant.
        PeopleError: the registry is older than the store.
    """

    def __init__(
        self, store: RowStore | None, accountant: Accountant[Any], kinds: Sequence[type[Any]]
    ) -> None:
        if store is not None and not isinstance(store, RowStore):
            raise TypeError(f"store = {store!r:.80}: must be a RowStore")
        self._store, self._accountant, self._kinds = store, accountant, kinds
        self._users = accountant.users
        self._again = self._new = False
        self._sent: Rows[Any] | None = None
        self._released = 0
        self._taken: list[range] = []
        self.recovered = Recovered()
        if store is None:
            return
        store.check_accountant(accountant.id)
        people = self._learning()
        if people is not None and store.clock > self._users.start:
            people.check_not_older(store.clock - 1)

    def begin(self) -> None:
        """Gives the store to the accountant; from here on rows can arrive.

        Raises:
            RowStoreError: it cannot be written.
        """
        if self._store is None:
            return
        self._new = self._store.accountant is None
        people = self._accountant.people
        timed = people is not None and people.rule.clock == "timetable"
        self._store.bind(self._accountant.id, self._kinds, self._learning(), timed=timed)

    def _learning(self) -> Any:
        """The registry, unless it stands in for one that was lost, and knows nobody."""
        people = self._accountant.people
        return None if people is None or people.serving_only else people

    @property
    def clock(self) -> int:
        """One past the last user whose row was kept; 0 without a store."""
        return 0 if self._store is None else self._store.clock

    def check(self, taken: int) -> None:
        """Checks the store against a ledger that knows of rows up to before user ``taken``.

        Raises:
            RowStoreError: the store does not, and is neither new nor said to be older.
        """
        self._released, store = taken, self._store
        if store is None or self._new or store.older or store.clock >= taken:
            return
        raise RowStoreError(
            f"this store of rows is older than its ledger: rows of users up to {taken - 1} were "
            f"learned, and it ends before user {store.clock}. Find the newer file, or go on with "
            "null records for the rows that it lacks: RowStore.open(..., older=True)"
        )

    @contextmanager
    def again(self, learner: Taking) -> Iterator[None]:
        """A block in which rows that arrive are null ones, which those that were kept replace."""
        self._again = True
        try:
            yield
        finally:
            self._again = False
        if self._store is not None:
            self._store.pass_to(learner.clock_)
        first = min(learner._needed_from(), self._released, learner.clock_)
        rows = joined(self._taken)
        null = gaps(range(max(first, self._users.start), learner.clock_), rows)
        self.recovered, self._taken = Recovered(tuple(rows), tuple(null)), []

    def arrived(self, rows: Rows[T], needed: Callable[[], int]) -> Rows[T]:
        """The rows, when they are on disk; in the block of `again`, those that were kept."""
        store = self._store
        if store is None:
            return self._of_sent(rows) if self._again else rows
        if not self._again:
            store.keep(rows, needed=needed())
            return rows
        self._taken += store.within(rows.users)
        return store.fill(rows)

    def send_again(self, rows: Rows[Any]) -> None:
        """Rows of the first users, as they came before a restart, in place of a store's.

        Raises:
            TypeError: there is a store.
        """
        if self._store is not None:
            raise TypeError("again: not beside store=, which holds the rows that are needed")
        self._sent = rows

    def _of_sent(self, rows: Rows[T]) -> Rows[T]:
        if self._sent is None:
            return rows
        users, stop = rows.users, min(rows.users.stop, self._sent.users.stop)
        if stop <= users.start:
            return rows
        self._taken.append(range(users.start, stop))
        sent = self._sent.slice(range(users.start, stop))
        return (
            sent if stop == users.stop else Rows.concat([sent, rows.slice(range(stop, users.stop))])
        )

    @property
    def has_rows(self) -> bool:
        """Whether rows that came before a restart are there for what the plan still holds."""
        return self._store is not None or self._sent is not None

    @property
    def fills(self) -> bool:
        """Whether rows that were kept take the place of null ones, as in the block of `again`."""
        return self._again and self._store is not None

    @property
    def stores(self) -> bool:
        return self._store is not None

    def served(self, clock: int) -> None:
        """Returns when it is on disk that users below ``clock`` were served, whoever answers.

        A registry of people in a file says so already.
        """
        people = self._accountant.people
        if people is None or not people.durable:
            self.closing(clock)

    def closing(self, clock: int) -> None:
        """Returns when it is on disk that the rows of users below ``clock`` may be learned from."""
        if self._store is not None:
            self._store.pass_to(clock)

    def answered(self, rows: Sequence[Rows[Any]], needed: Callable[[], int]) -> None:
        """Writes rows of users who were served before, in any order; returns when on disk."""
        if self._store is not None:
            self._store.keep_late(rows, needed=needed())

    def over(self, clock: int) -> None:
        """Deletes what is kept once all users have come."""
        if self._store is not None and clock == self._users.stop:
            self._store.drop(clock)

    def forget(self) -> None:
        """Deletes the rows of persons who were forgotten."""
        if self._store is not None:
            self._store.forget()


def gaps(users: range, parts: Sequence[range]) -> Iterator[range]:
    """What of the users is in none of the parts."""
    at = users.start
    for part in parts:
        if part.start > at:
            yield range(at, min(part.start, users.stop))
        at = max(at, part.stop)
        if at >= users.stop:
            return
    yield range(at, users.stop)
