"""Checks that a learner earns what its certificate says.

`assert_noninterference` is the billboard lemma as a test.  A learner is run on a data set while a
tape records everything it does with its accountant; every released value is frozen; then it is run
again on a neighbouring data set with the frozen values in place of its own.  What it may not change
is then compared: tokens, mechanisms and all their parameters, the public clock, the clipped rows of
everybody else, the outputs of everybody else and the public state.  The replaced user's own
contribution may differ, by at most the sensitivity that was paid for.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from privlearn._records import join, leaves, length, record_at
from privlearn.accountants import JointAccountant
from privlearn.budgets import ZCDP, Currency
from privlearn.domains import Array
from privlearn.errors import InterferenceError
from privlearn.learners.assortment import Items
from privlearn.noise import NoiseSource
from privlearn.protocols import Accountant
from privlearn.tokens import Spend, Token

T = TypeVar("T")


class User(Protocol):
    """One user: own data and response function, which together are the record."""

    @property
    def features(self) -> Array:
        """Item features, shape (N, d)."""

    def respond(self, items: Items, /) -> int | None:
        """The choice from any offer; None is "no purchase"."""


class Assorting(Protocol):
    """A learner that serves one user after the other."""

    def select(self, features: Array, /) -> Items:
        """Items for the next user."""

    def observe(self, choice: int | None, /) -> None:
        """That user's answer."""


@dataclass(frozen=True, slots=True)
class _Event:
    what: str
    at: int
    """Number of users who had arrived; the public clock."""
    detail: Any
    rows: Array | None = None
    users: range | None = None


@dataclass(slots=True)
class _Run:
    """One run of the learner, seen from outside."""

    events: list[_Event] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    state: str = ""
    error: str = ""


class _Recorder:
    """A tape that writes down what happens."""

    def __init__(self) -> None:
        self.run = _Run()
        self.arrived = 0

    def spent(self, token: Token[Any], spend: Spend) -> None:
        said = {
            "label": token.label,
            "users": [token.users.start, token.users.stop],
            "mechanism": spend.mechanism,
            "domain": spend.domain.to_dict(),
            "noise": spend.noise.to_dict(),
            "gain": spend.gain,
            "loss": spend.loss(token.adjacency).to_dict(),
            "calibration": spend.calibration.value,
            "parameters": _fingerprint(dict(spend.parameters)),
        }
        self._note("spend", said)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        reach = spend.domain.sensitivity(token.adjacency, spend.noise.norm)
        detail = (token.label, spend.noise.norm, reach)
        self._note("open", detail, rows=np.array(rows), users=users)

    def released(self, token: Token[Any], value: Array) -> Array:
        self._note("release", (token.label, np.shape(value)), rows=np.array(value))
        return value

    def _note(self, what: str, detail: Any, **arrays: Any) -> None:
        self.run.events.append(_Event(what, self.arrived, detail, **arrays))


class _Replayer(_Recorder):
    """A tape that hands out the values released in an earlier run."""

    def __init__(self, earlier: _Run) -> None:
        super().__init__()
        self._frozen = [event for event in earlier.events if event.what == "release"]
        self._next = 0

    def released(self, token: Token[Any], value: Array) -> Array:
        super().released(token, value)
        if self._next >= len(self._frozen):
            raise InterferenceError(f"release {self._next} of {token.label!r} happens only here")
        frozen = self._frozen[self._next].rows
        self._next += 1
        assert frozen is not None
        return frozen


def _fingerprint(value: Any) -> str:
    """A digest of a parameter in full, however long; arrays count byte by byte."""

    def plain(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            return [item.dtype.str, item.shape, hashlib.sha256(item.tobytes()).hexdigest()]
        return repr(item)

    # Arrays inside other objects are printed in full as well.
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        text = json.dumps(value, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()


def assert_noninterference(
    learner_factory: Callable[[Accountant[Any]], Assorting],
    data: Sequence[User],
    neighbour: Sequence[User],
    *,
    budget: Currency | None = None,
    seed: int = 0,
) -> None:
    """Runs a learner on two neighbouring data sets and raises if it breaks the billboard lemma.

    Args:
        learner_factory: starts a fresh learner with the accountant it is given.
        data: the users in order of arrival.
        neighbour: the same objects, but for exactly one position.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the simulated noise.

    Raises:
        InterferenceError: something changed that must not, or by more than was paid for; the
            message says what and where.
        ValueError: the data sets are not neighbours.
    """
    changed = [i for i, (a, b) in enumerate(zip(data, neighbour, strict=False)) if a is not b]
    if len(data) != len(neighbour) or len(changed) != 1:
        raise ValueError(
            f"neighbour: must replace exactly one of {len(data)} users; has {len(neighbour)} users "
            f"and differs at {changed[:5]}"
        )
    cap = ZCDP(1) if budget is None else budget
    first = _drive(learner_factory, data, _Recorder(), cap, seed)
    second = _drive(learner_factory, neighbour, _Replayer(first), cap, seed)
    _compare(first, second, changed[0])


def _drive(
    factory: Callable[[Accountant[Any]], Assorting],
    data: Sequence[User],
    tape: _Recorder,
    cap: Currency,
    seed: int,
) -> _Run:
    noise = NoiseSource.simulation(seed)
    accountant = JointAccountant(cap, users=range(len(data)), noise=noise, tape=tape)
    run = tape.run
    try:
        learner = factory(accountant)
        for user in data:
            tape.arrived += 1
            items = learner.select(user.features)
            run.outputs.append(np.array(items))
            learner.observe(user.respond(items))
        state = getattr(learner, "public_state", None)
        run.state = _fingerprint(state()) if state else ""
    except InterferenceError:
        raise
    except Exception as error:  # an exception is an output like any other
        run.error = f"{type(error).__name__}: {error}"
    entries = [json.dumps(entry.body(), sort_keys=True) for entry in accountant.ledger.entries]
    run.ledger = [entry.replace(accountant.id, "accountant") for entry in entries]
    return run


def _compare(first: _Run, second: _Run, changed: int) -> None:
    if first.error != second.error:
        raise InterferenceError(f"the run ends with {first.error!r}, then with {second.error!r}")
    for position, (a, b) in enumerate(zip(first.events, second.events, strict=False)):
        where = f"event {position} ({a.what} at clock {a.at})"
        if (a.what, a.at, a.detail, a.users) != (b.what, b.at, b.detail, b.users):
            raise InterferenceError(
                f"{where}: {a.detail!r} on {a.users}, then {b.what} at clock {b.at}: {b.detail!r} "
                f"on {b.users}"
            )
        if a.what == "open":
            _compare_opened(a, b, changed, where)
    if len(first.events) != len(second.events):
        raise InterferenceError(f"{len(first.events)} events, then {len(second.events)}")
    for position, (x, y) in enumerate(zip(first.ledger, second.ledger, strict=False)):
        if x != y:
            raise InterferenceError(f"ledger entry {position}: {x}, then {y}")
    if len(first.ledger) != len(second.ledger):
        raise InterferenceError(f"{len(first.ledger)} ledger entries, then {len(second.ledger)}")
    for user, (mine, yours) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if user != changed and not np.array_equal(mine, yours):
            raise InterferenceError(
                f"user {user} received {mine}, and {yours} when user {changed} was replaced"
            )
    if first.state != second.state:
        raise InterferenceError("the public state depends on data beyond what was released")


def _compare_opened(a: _Event, b: _Event, changed: int, where: str) -> None:
    assert a.rows is not None
    assert b.rows is not None
    assert a.users is not None
    difference = b.rows - a.rows
    moved = np.flatnonzero((difference != 0).any(axis=1))
    others = [a.users.start + int(i) for i in moved if a.users.start + int(i) != changed]
    if others:
        raise InterferenceError(f"{where}: rows of users {others[:5]} changed with user {changed}")
    if moved.size:
        _, norm, reach = a.detail
        row = difference[moved[0]]
        size = float(np.abs(row).sum() if norm == "l1" else np.linalg.norm(row))
        if size > reach * (1 + 1e-9):
            raise InterferenceError(
                f"{where}: user {changed} moves the sum by {size:.6g} in {norm}, "
                f"paid for {reach:.6g}"
            )


def check_row_local(function: Callable[[T], Any], block: T, other: T) -> None:
    """Checks that a function for `Rows.map_rows` acts on each row by itself.

    Args:
        function: takes a block (leading axis: users).
        block: at least two rows to try.
        other: one more row, as a block of one, to replace each row with.

    Raises:
        InterferenceError: permuting rows does not permute the results, or replacing one row changes
            another row's result.
    """
    n = length(block)
    if n < 2 or length(other) != 1:
        raise ValueError("block needs at least two rows, other exactly one")
    before = list(leaves(function(block)))
    order = np.roll(np.arange(n), 1)
    for x, y in zip(before, leaves(function(record_at(block, order))), strict=True):
        if not np.array_equal(x[order], y, equal_nan=True):
            raise InterferenceError("permuting the rows does not permute the results")
    both = join([block, other])
    for i in range(n):
        rows = np.where(np.arange(n) == i, n, np.arange(n))
        for x, y in zip(before, leaves(function(record_at(both, rows))), strict=True):
            keep = np.arange(n) != i
            if not np.array_equal(x[keep], y[keep], equal_nan=True):
                raise InterferenceError(f"replacing row {i} changes other rows' results")
