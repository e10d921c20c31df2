"""What a registry holds: one head, the starts of the batches, and one standing for each person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from privlearn.people.quotas import Standing
from privlearn.values.participation import Participation


@dataclass(frozen=True, slots=True)
class Head:
    """All but the persons and the batches.

    ``key`` is secret, ``kind`` is that of the ids, and one that is ``serving_only`` learns nobody.
    """

    id: str
    key: bytes
    rule: Participation
    serving_only: bool = False
    accountant: str | None = None
    users: range | None = None
    clock: int | None = None
    kind: str | None = None

    def __repr__(self) -> str:
        return f"Head(id={self.id!r}, sealed)"


class Contents(NamedTuple):
    """Everything; ``starts`` is None until the batches are declared."""

    head: Head
    starts: tuple[int, ...] | None
    standings: dict[bytes, Standing]


class Store(Protocol):
    """Where the contents outlive the process."""

    def read(self) -> Contents:
        """Everything that was written."""

    def write(
        self, head: Head, starts: tuple[int, ...] | None, changed: Mapping[bytes, Standing]
    ) -> None:
        """Returns when all of it is durable, or raises, and then none of it counts.

        ``starts`` is None where they stay as they are.
        """

    def clean(self) -> None:
        """Takes what was overwritten off the disk, as far as it can."""

    def close(self) -> None:
        """Lets go of the place."""
