"""What an accountant does before it looks or writes, where other processes write to its ledger."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import final

from privlearn.ledger import Ledger
from privlearn.ledger.entries import Entry
from privlearn.storage.exclusive import Block, Exclusive


@final
class News:
    """Takes the entries of one accountant that others have written, with the minutes they tell."""

    def __init__(self, accountant: str, ledger: Ledger) -> None:
        self._accountant, self._ledger = accountant, ledger
        self._waiting: list[tuple[Entry, int]] = []
        self.own: Entry | None = None
        """That this process is about to write, and knows of."""

    def put(self, entry: Entry) -> None:
        if entry.accountant == self._accountant and entry is not self.own:
            self._waiting.append((entry, self._ledger.minute))

    def take(self) -> list[tuple[Entry, int]]:
        found, self._waiting = self._waiting, []
        return found


@final
class TurnLock(Block[None]):
    """An accountant's lock, for which the ledger's turn is taken, too; a context manager.

    Args:
        lock: against other threads of this process.
        ledger: shared with other processes.
        catch_up: is told the tokens and reserved parts of processes that are gone, once nobody else
            can write.
    """

    def __init__(
        self, lock: Exclusive, ledger: Ledger, catch_up: Callable[[Sequence[str]], None]
    ) -> None:
        super().__init__(self._taken)
        self._lock, self._ledger, self._catch_up = lock, ledger, catch_up

    def _taken(self) -> Generator[None]:
        with self._lock, self._ledger.turn() as orphans:
            self._catch_up(orphans)
            yield
