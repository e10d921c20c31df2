"""What an accountant does before it looks or writes, where other processes write to its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import final

from privlearn._exclusive import Exclusive
from privlearn.entries import Entry
from privlearn.ledger import Ledger


@final
class News:
    """Takes the entries of one accountant that others have written."""

    def __init__(self, accountant: str) -> None:
        self._accountant = accountant
        self._waiting: list[Entry] = []
        self.own: Entry | None = None
        """That this process is about to write, and knows of."""

    def put(self, entry: Entry) -> None:
        """Takes one more."""
        if entry.accountant == self._accountant and entry is not self.own:
            self._waiting.append(entry)

    def take(self) -> list[Entry]:
        """What came since, the oldest first."""
        found, self._waiting = self._waiting, []
        return found


@final
class Turns:
    """An accountant's lock, for which the ledger's turn is taken, too; a context manager.

    Args:
        lock: against other threads of this process.
        ledger: shared with other processes.
        catch_up: is told the tokens of processes that are gone, once nobody else can write.
    """

    def __init__(
        self, lock: Exclusive, ledger: Ledger, catch_up: Callable[[Sequence[str]], None]
    ) -> None:
        self._lock, self._ledger, self._catch_up = lock, ledger, catch_up
        self._block: AbstractContextManager[None] | None = None
        """That is held, by whichever thread holds the lock."""

    @contextmanager
    def _both(self) -> Iterator[None]:
        with self._lock, self._ledger.turn() as orphans:
            self._catch_up(orphans)
            yield

    def __enter__(self) -> None:
        block = self._both()
        block.__enter__()
        self._block = block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block, self._block = self._block, None
        assert block is not None
        block.__exit__(kind, error, trace)
