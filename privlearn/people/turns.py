"""The registry while nobody else may change it.

Whoever judges visits takes a *turn* first: from its beginning to its end the clock, the batches and
the standings are what is written, whoever wrote it, and when it has ended what was changed is
durable.  Where one process alone writes, that is a look into its memory
(`privlearn.people.in_memory`); where others write as well, it is a transaction that locks the
registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.people.contents import Head
from privlearn.people.quotas import Standing

T = TypeVar("T")


class Turn(Protocol):
    """What may be read and written in one turn."""

    @property
    def head(self) -> Head:
        """With the clock as it is now."""

    @property
    def starts(self) -> tuple[int, ...] | None:
        """Of the batches; None until they are declared."""

    @property
    def known(self) -> int:
        """How many persons there are; the number of the next one."""

    def standings(self, keys: Sequence[bytes | None]) -> Mapping[bytes, Standing]:
        """Of those of these persons that are known; perhaps of others, too."""

    def next_call(self) -> int:
        """The number of this call: greater than that of all before it, whoever made them."""

    def write(
        self,
        head: Head,
        starts: tuple[int, ...] | None = None,
        changed: Mapping[bytes, Standing] | None = None,
    ) -> None:
        """All of it is durable when the turn has ended, or it raises, and then none of it counts.

        ``starts`` is None where they stay as they are.  Once in a turn.
        """


class Turns(Protocol):
    """Where a registry is kept, for one process that takes turns."""

    @property
    def durable(self) -> bool:
        """Whether it outlives the processes that use it."""

    @property
    def fresh(self) -> bool:
        """Whether what was seen last is what is written, as nobody else writes."""

    @property
    def seen(self) -> tuple[Head, tuple[int, ...] | None]:
        """The head and the starts of the batches as they were seen last; asks nobody."""

    def look(self) -> None:
        """Reads the head and the starts again, and waits for nobody's turn.

        Raises:
            PeopleError: it cannot be read.
        """

    def take(self, action: Callable[[Turn], T]) -> T:
        """Waits for the others, does ``action``, and lets them in again when that is durable.

        Where the place undid it for the sake of others it is done again, in another turn.

        Raises:
            PeopleError: it cannot be read or written.
            LedgerFencedError: the ledger has a later epoch than that of this process; nothing was
                done.
        """

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these persons were forgotten, by their numbers, shape (n,).

        Raises:
            PeopleError: it cannot be read.
        """

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        """As `forgotten`, as far as it was seen; asks nobody."""

    def clean(self) -> None:
        """Takes what was overwritten out of reach, as far as that can be done."""

    def close(self) -> None:
        """Lets go of the place."""
