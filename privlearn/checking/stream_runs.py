"""How a mechanism is run on all of its users at once, whatever shape its streams have."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Any, ClassVar, Self

import numpy as np

from privlearn.contract.issuing import Outcome, Past, RecordedToken, ReleasedValue, ReleaseObserver
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency, Trust


class _Anything(Currency):
    __slots__ = ()
    kind: ClassVar[str] = "anything"

    def __init__(self) -> None:
        self.amounts = ()

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self)()

    def price(self, loss: Loss) -> Self:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(slots=True)
class _StubRecord:
    outcome: str | None = None
    past: Past | None = None


class StubAccountant:
    """Issues tokens for mechanisms under test, thousands a second, and remembers the last spend.
    `record_spend` unlocks the ``noise`` (a number is the seed of a simulation), so that a mechanism
    that draws first fails as it would fail to be durable."""

    trust: ClassVar[Trust] = Trust.CENTRAL
    observer: ClassVar[ReleaseObserver | None] = None

    def __init__(
        self,
        noise: int | NoiseSource,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        *,
        people: People | None = None,
    ) -> None:
        self.people = people
        self.id, self.adjacency = "stub", adjacency
        self.last_spend: Spend | None = None
        self._noise = NoiseSource.simulation(noise) if isinstance(noise, int) else noise
        self._open: dict[str, _StubRecord] = {}
        self._count = 0
        self._budget = _Anything()

    @property
    def noise(self) -> NoiseSource:
        if not self._open:
            raise CheckError("noise was drawn before a token was spent, or after it was retired")
        return self._noise

    def issue(self, users: range) -> Token[Currency]:
        self._count += 1
        token: Token[Currency] = mint_token(
            self, f"stub/{self._count}", self._budget, users, "check", Fraction(1)
        )
        return token

    def of_person(self, loss: Loss, users: range) -> Loss:
        return loss

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        self.last_spend = spend
        account = self._open[token.id] = _StubRecord()
        return account

    def record_reach(self, token: Token[Any], stop: int) -> int:
        return token.users.stop

    def _nothing(self, *_: Any, **__: Any) -> None:
        """There is no ledger."""

    check_ledger = record_functions = record_phase = record_publish = _nothing

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        if token.id in self._open:
            self._open.pop(token.id).outcome = outcome


_CALLS, _UNEVEN = (1, 2, 3, 7), (1, 2, 3, 5, 8, 13)  # Rows that come at once


def is_stream(mechanism: Any) -> bool:
    """Whether it can only be opened: rows come one after the other, and one token pays for all."""
    return hasattr(mechanism, "open") and not hasattr(mechanism, "release")


def declared_users(mechanism: Any) -> int | None:
    """The most users of a stream that says so: by ``sizes`` of batches, or a ``horizon``. Either
    its own or that of its ``factorization``; None if it says nothing or has no horizon."""
    if not is_stream(mechanism):
        return None
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    for holder in (mechanism, getattr(mechanism, "factorization", None)):
        horizon = getattr(holder, "horizon", None)
        if isinstance(horizon, int | np.integer):
            return int(horizon)
    return None


def fixed_users(mechanism: Any) -> int | None:
    """The number of users of a stream of public batches, which takes neither more nor fewer."""
    sizes = getattr(mechanism, "sizes", None)
    if is_stream(mechanism) and isinstance(sizes, tuple):
        return int(sum(sizes))
    return None


def released_by(
    mechanism: Any, rows: Rows[Any], token: Token[Any], calls: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    """What leaves last for a token, and the values of all that leaves for it, in one array. A
    stream takes its rows at once, or in turn as many at a time as ``calls`` says."""
    if not is_stream(mechanism):
        released = mechanism.release(rows, token)
        return released, getattr(released, "value", released)
    with mechanism.open(token) as stream:
        if has_phases(stream) or hasattr(stream, "next_end"):
            return _part_by_part(mechanism, stream, rows)
        at, end, parts = rows.users.start, rows.users.stop, list[Any]()
        for size in cycle(calls or (max(len(rows), 1),)):
            parts.append(stream.append(rows.slice(range(at, min(at + size, end)))))
            at += size
            if at >= end:
                break
        values = [getattr(part, "value", part) for part in parts if part is not None]
        if not values:  # of so few rows nothing is let out
            return None, np.empty((0, 1))
        return parts[-1], values[0] if len(parts) == 1 else np.concatenate(
            [np.atleast_1d(value) for value in values]
        )


def in_parts(mechanism: Any) -> bool:
    """Whether the rows of a stream come in parts that are fixed, or declared before them."""
    return fixed_users(mechanism) is not None or hasattr(mechanism, "outputs")


def calls_tried(mechanism: Any) -> list[tuple[int, ...]]:
    """How many rows come at once, in turn: all, one, two, three or seven, and more and more."""
    if not is_stream(mechanism) or in_parts(mechanism):
        return [()]
    return [(), *((size,) for size in _CALLS), _UNEVEN]


def _part_by_part(mechanism: Any, stream: Any, rows: Rows[Any]) -> tuple[Any, Any]:
    """In its public batches, or in phases of one user, two, three, …"""
    at, parts = rows.users.start, list[Any]()
    while at < rows.users.stop:
        end = at + 1 + len(parts) if has_phases(stream) else stream.next_end
        users = range(at, min(end, rows.users.stop))
        released = appended(mechanism, stream, rows.slice(users))
        parts += [] if released is None else [released]
        at = users.stop
    if not parts:
        raise CheckError(f"{len(rows)} rows do not complete the first batch: nothing is let out")
    return parts[-1], np.stack([part.value for part in parts])


def has_phases(stream: Any) -> bool:
    """Whether an open stream takes phases, which are declared before their rows come."""
    return hasattr(stream, "begin") and hasattr(stream, "end")


def appended(mechanism: Any, stream: Any, rows: Rows[Any]) -> Any:
    """What an open stream releases of the next rows, in a phase of their own if it takes phases."""
    if not has_phases(stream):
        return stream.append(rows)
    begin_phase(mechanism, stream, rows.users)
    return stream.end(rows)


def begin_phase(mechanism: Any, stream: Any, users: range) -> None:
    """Declares a phase; of several sums each user is in one, added or taken away, in turn."""
    outputs = getattr(mechanism, "outputs", 1)
    if outputs == 1:
        stream.begin(users.stop)
        return
    signs = np.zeros((len(users), outputs), dtype=np.int8)
    for place, user in enumerate(users):
        signs[place, user % outputs] = -1 if user // outputs % 2 else 1
    stream.begin(users.stop, signs)


def accepted_users(mechanism: Any, adjacency: Adjacency, most: int) -> int:
    """How many null records a stream takes, at most ``most``; 0 if it takes not even one."""
    if _takes(mechanism, adjacency, most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _takes(mechanism, adjacency, middle) else (low, middle)
    return low


def _takes(mechanism: Any, adjacency: Adjacency, users: int) -> bool:
    stub = StubAccountant(0, adjacency)
    try:
        released_by(mechanism, Rows.null(range(users)), stub.issue(range(users)))
    except Exception:
        return False
    return True
