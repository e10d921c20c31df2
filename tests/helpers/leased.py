"""Mechanisms that run under a lease, as mechanisms that can be checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import numpy as np

from privlearn.contract.leases import Lease
from privlearn.contract.protocols import Mechanism
from privlearn.contract.tokens import Token
from privlearn.losses import Loss, compose
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.validate import count

X = TypeVar("X")


@final
@dataclass(frozen=True)
class Outputs:
    """What all runs of a lease released, one after the other."""

    value: Array


def _as_it_is(lease: Lease[Any]) -> None:
    """Changes nothing."""


@final
@dataclass(frozen=True)
class UnderLease(Generic[X]):
    """All runs of a lease as one mechanism, at the price of the lease: for
    `check_mechanism`.

    Runs after the first open the first row alone, so that noise which two runs share, and which the
    difference of their outputs is without, shows what the other rows hold.

    Args:
        mechanism: that runs; it must take any number of rows.
        runs: of the lease, all of which are used; >= 1.
        taken: is handed the lease before its first run: to plant a fault.
        used: how many runs are asked for; default all.
    """

    mechanism: Mechanism[X]
    runs: int
    taken: Callable[[Lease[X]], object] = _as_it_is
    used: int | None = None

    def __post_init__(self) -> None:
        count(runs=self.runs)

    @property
    def name(self) -> str:
        """For reports."""
        own = getattr(self.mechanism, "name", "") or type(self.mechanism).__name__
        return f"{own} under a lease of {self.runs}"

    def loss(self) -> Loss:
        """The price of the lease."""
        return compose([(self.mechanism.loss(), self.runs)])

    def release(self, rows: Rows[X], token: Token[Any]) -> Outputs:
        """Takes a lease, and uses its runs."""
        with Lease(token, self.mechanism, self.runs) as lease:
            self.taken(lease)
            values = [lease.release(rows).value]
            first = rows.slice(range(rows.users.start, rows.users.start + 1))
            for _ in range((self.used or self.runs) - 1):
                values.append(lease.release(first).value)
        return Outputs(np.concatenate([np.ravel(value) for value in values]))
