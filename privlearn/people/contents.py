"""What a registry holds: one head, the starts of the batches, and one standing for each person."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from privlearn.people.identities import new_key
from privlearn.people.quotas import Standing
from privlearn.values.participation import Participation
from privlearn.values.validate import count, text


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


def new_head(rule: Participation | None) -> Head:
    """Of a new registry.

    Raises:
        TypeError: ``rule`` is no Participation.
    """
    if not isinstance(rule, Participation):
        raise TypeError(f"rule = {rule!r}: must be a Participation")
    return Head(secrets.token_hex(16), new_key(), rule)


def head_in_place(rule: Participation | None, id: str | None, clock: int | None) -> Head:
    """Of a registry in place of a lost one.

    Raises:
        TypeError, ValueError: no rule, name or clock.
    """
    head = new_head(rule)
    if id is None or not re.fullmatch("[0-9a-f]{32}", text(id=id)):
        raise ValueError(f"id = {id!r}: must be the 32 digits of the lost registry's name")
    if clock is None:
        raise ValueError("clock = None: must be the first slot that is admitted")
    count(clock=clock, at_least=0)
    return replace(head, id=id, clock=clock, serving_only=True)
