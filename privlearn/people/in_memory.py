"""A registry that one process alone writes to: in memory, and on disk if it has a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.people.contents import Contents, Head, Store
from privlearn.people.quotas import FORGOTTEN, Standing
from privlearn.people.turns import Turn

T = TypeVar("T")


@final
class Kept:
    """The turns of one process, each of which is a turn itself: nobody is waited for.

    Args:
        contents: everything, as it stands in the store.
        store: where each change is written before it counts; None for memory alone.
    """

    def __init__(self, contents: Contents, store: Store | None) -> None:
        self._store = store
        self._stale = False
        self._calls = 0  # in this process
        self._take(contents)

    def _take(self, contents: Contents) -> None:
        self.head, self.starts, self._standings = contents
        self._forgotten = {
            standing.number for standing in contents.standings.values() if _is_forgotten(standing)
        }

    @property
    def durable(self) -> bool:
        return self._store is not None

    @property
    def fresh(self) -> bool:
        """False after a write that was interrupted, until `look`."""
        return not self._stale

    @property
    def seen(self) -> tuple[Head, tuple[int, ...] | None]:
        return self.head, self.starts

    def look(self) -> None:
        if self._stale and self._store is not None:
            self._take(self._store.read())
            self._stale = False

    def take(self, action: Callable[[Turn], T]) -> T:
        self.look()
        return action(self)

    @property
    def known(self) -> int:
        return len(self._standings)

    def standings(self, keys: Sequence[bytes | None]) -> Mapping[bytes, Standing]:
        return self._standings

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def write(
        self,
        head: Head,
        starts: tuple[int, ...] | None = None,
        changed: Mapping[bytes, Standing] | None = None,
    ) -> None:
        """Writes, and then knows; what ends it in between costs visits and gives none back.

        Raises:
            PeopleError: it could not be written.
        """
        changed = changed or {}
        if self._store is not None:
            self._stale = True  # until it is known what stands in the file
            self._store.write(head, starts, changed)
        self.head = head  # with its clock, before anything else
        if starts is not None:
            self.starts = starts
        self._standings.update(changed)
        self._forgotten.update(each.number for each in changed.values() if _is_forgotten(each))
        self._stale = False

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        self.look()
        return self.forgotten_as_known(persons)

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._forgotten:
            return np.zeros(len(persons), dtype=np.bool_)
        return np.isin(persons, np.array(sorted(self._forgotten), dtype=np.int64))

    def clean(self) -> None:
        if self._store is not None:
            self._store.clean()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _is_forgotten(standing: Standing) -> bool:
    return standing.last == FORGOTTEN
