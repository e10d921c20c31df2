"""Who admitted rows to be learned from, and which person each of them is of: sealed with the rows.

A registry (`privlearn.people`) decides which visits of a person are learned.  Rows that it let
through carry its stamp, without which a receipt opens nothing under a rule of participation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

Persons = NDArray[np.int64]
"""Numbers of persons, for one registry; −1 is nobody."""


class Registry(Protocol):
    """What rows know of the registry that admitted them."""

    def batches(self, users: range) -> Sequence[range]:
        """The public batches of a range of slots, which is cut nowhere else."""


@final
class Stamp:
    """Which registry admitted rows, and of whom they are; nobody's where persons is None."""

    __slots__ = ("persons", "pooled", "registry")

    def __init__(
        self, registry: Registry | None, persons: Persons | None, pooled: bool = False
    ) -> None:
        self.registry, self.persons, self.pooled = registry, persons, pooled

    def part(self, low: int, high: int) -> Stamp:
        """Of some of the rows."""
        if self.persons is None:
            return self
        return Stamp(self.registry, self.persons[low:high], self.pooled)

    def of_sum(self) -> Stamp:
        """Of a sum of the rows, which says no more of whom they are."""
        return self if self is NOBODY else Stamp(self.registry, None, self.pooled)


NOBODY = Stamp(None, None)
"""Of rows that are publicly null: they hold nothing, whoever opens them."""


def joined(parts: Sequence[tuple[Stamp | None, int]]) -> Stamp | None:
    """Of joined rows, with how many each part has; None if some have none or stamps differ."""
    stamps = [stamp for stamp, _ in parts if stamp is not NOBODY]
    if not stamps:
        return NOBODY
    first = stamps[0]
    if first is None:
        return None
    for stamp in stamps:
        if stamp is None or stamp.registry is not first.registry or stamp.pooled != first.pooled:
            return None
    persons = [
        np.full(n, -1, dtype=np.int64) if stamp is None or stamp.persons is None else stamp.persons
        for stamp, n in parts
    ]
    return Stamp(first.registry, np.concatenate(persons), first.pooled)
