"""Checks that a learner earns what its certificate says.

`assert_noninterference` is the billboard lemma as a test.  A learner is run on a data set while a
tape records everything it does with its accountant; every released value is frozen; then it is run
again on a neighbouring data set with the frozen values in place of its own.  What it may not change
is then compared: tokens, mechanisms and all their parameters, the public clock, the clipped rows of
everybody else, the outputs of everybody else, the public state, the billboard, and whatever is
printed, warned of or logged.  The replaced user's own contribution may differ, by at most the
sensitivity that was paid for; so may the value that a mechanism was about to release, as the noise
is the same in both runs.

What it cannot see: un-noised data within the sensitivity that was paid for (`Receipt.release_sum`
leaves no room for that), mechanisms with a loss of their own and streams other than prefix sums
once they hold the replaced row, public methods, files, sockets and subprocesses, the time taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from inspect import isroutine
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import numpy as np

from privlearn._records import join, leaves, length, record_at
from privlearn.accountants import JointAccountant
from privlearn.billboard import Billboard
from privlearn.budgets import ZCDP, Currency
from privlearn.domains import Array, PSDTrace
from privlearn.errors import InterferenceError
from privlearn.mnl import Items
from privlearn.noise import NoiseSource
from privlearn.protocols import Accountant
from privlearn.rows import Sealed
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
    token: str
    """Its number; the whole id has the accountant's in it, which is random."""
    spend: Spend
    reach: float
    """Sensitivity of the spend."""
    detail: Any
    rows: Array | None = None
    users: range | None = None

    def key(self) -> tuple[Any, ...]:
        return (self.what, self.at, self.token, self.detail, self.users)


@dataclass(slots=True)
class _Run:
    """One run of the learner, seen from outside."""

    events: list[_Event] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    error: str = ""


class _Recorder:
    """A tape that writes down what happens."""

    def __init__(self) -> None:
        self.run = _Run()
        self.arrived = 0
        self._spends: dict[str, Spend] = {}

    def spent(self, token: Token[Any], spend: Spend) -> None:
        self._spends[token.id] = spend
        said = (
            token.label,
            (token.users, spend.mechanism, spend.domain.to_dict(), spend.noise.to_dict()),
            (spend.gain, spend.loss(token.adjacency).to_dict(), spend.calibration.value),
            _Printer({}).digest(dict(spend.parameters), "parameters"),
        )
        self._note("spend", token, said)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self._note("open", token, token.label, rows=np.array(rows), users=users)

    def released(self, token: Token[Any], value: Array) -> Array:
        array = np.array(value)
        self._note("release", token, (token.label, array.shape, array.dtype.str), rows=array)
        return value

    def _note(self, what: str, token: Token[Any], detail: Any, **arrays: Any) -> None:
        spend = self._spends[token.id]
        reach = spend.domain.sensitivity(token.adjacency, spend.noise.norm)
        number = token.id.rpartition("/")[2]
        self.run.events.append(_Event(what, self.arrived, number, spend, reach, detail, **arrays))


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


class _Printer:
    """Digests of values in full: JSON values and arrays, and other objects only if asked to.

    Args:
        known: objects that are the same in every run, with their names.
        objects: whether to look into other objects, private fields included.
    """

    def __init__(self, known: dict[str, Any], *, objects: bool = False) -> None:
        self._seen = {id(item): (name, item) for name, item in known.items()}
        self._id = getattr(known.get("accountant"), "id", "accountant")
        self._objects = objects

    def digest(self, value: Any, name: str) -> str:
        text = json.dumps(self._plain(value, name)).replace(self._id, "accountant")
        return hashlib.sha256(text.encode()).hexdigest()

    def _plain(self, item: Any, name: str) -> Any:
        if item is None or type(item) in (bool, int, float, str):
            return item
        if isinstance(item, Enum):
            return ["enum", type(item).__qualname__, item.name]
        is_array = type(item) is np.ndarray or isinstance(item, np.generic)
        if is_array and not item.dtype.hasobject:
            digest = hashlib.sha256(item.tobytes()).hexdigest()
            return ["array", repr(item.dtype), item.shape, digest]
        if id(item) in self._seen:
            return ["seen", self._seen[id(item)][0]]
        self._seen[id(item)] = (str(len(self._seen)), item)  # kept, so that no id is used twice
        if type(item) in (list, tuple):
            return ["list", *(self._plain(x, f"{name}[{i}]") for i, x in enumerate(item))]
        if type(item) is dict:
            values = [self._plain(v, f"{name}[{k!r}]") for k, v in item.items()]
            return ["dict", self._plain(list(item), name), values]
        if not self._objects:
            raise InterferenceError(
                f"{name} is of type {type(item).__qualname__}, which may hide something: it must "
                "be a JSON value or a numpy array"
            )
        return [type(item).__qualname__, self._plain(self._inside(item, name), name)]

    def _inside(self, item: Any, name: str) -> Any:
        if isinstance(item, Sealed | Token | type | bytes):
            return repr(item)
        if isinstance(item, Billboard):
            return [item.clock, item.history()]
        try:
            parts = item.__reduce_ex__(4)[1:]  # as for a pickle; also of types written in C
            listed = [list(x) if isinstance(x, Iterator) else x for x in parts]
            return [object.__getstate__(item), listed]
        except Exception as error:
            raise InterferenceError(
                f"{name} cannot be compared ({error}): make it private or define public_state()"
            ) from None


@contextlib.contextmanager
def _listening(said: list[str], at: int) -> Iterator[None]:
    """Writes down what is printed, warned of and logged meanwhile."""
    out, err, log, root = io.StringIO(), io.StringIO(), io.StringIO(), logging.getLogger()
    level, handler = root.level, logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.setLevel(level)
            root.removeHandler(handler)
            told = [f"{w.category.__name__}: {w.message}" for w in warned]
            if any(words := (out.getvalue(), err.getvalue(), told, log.getvalue())):
                said.append(f"at clock {at}: {words}")


def assert_noninterference(
    learner_factory: Callable[[Accountant[Any]], Assorting],
    data: Sequence[User],
    neighbour: Sequence[User],
    *,
    budget: Currency | None = None,
    seed: int = 0,
) -> None:
    """Runs a learner on two neighbouring data sets and raises if it breaks the billboard lemma.

    The public state is what ``public_state()`` returns (JSON values and numpy arrays), or else all
    attributes without a leading underscore.  A mechanism without a loss of its own must release the
    noisy vector itself; what follows from it is computed outside.

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
    learner: Any = None

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        with _listening(run.said, tape.arrived):  # to the learner, not to the users
            return function(*arguments)

    try:
        learner = call(factory, accountant)
        for user in data:
            tape.arrived += 1
            items = call(learner.select, user.features)
            run.outputs.append(np.array(items))
            call(learner.observe, user.respond(items))
    except InterferenceError:
        raise
    except Exception as error:  # an exception is an output like any other
        run.error = f"{type(error).__name__}: {error}".replace(accountant.id, "accountant")
    if learner is not None:
        run.state = call(_public_state, learner, accountant)
    entries = [json.dumps(entry.body(), sort_keys=True) for entry in accountant.ledger.entries]
    run.ledger = [entry.replace(accountant.id, "accountant") for entry in entries]
    run.said = [words.replace(accountant.id, "accountant") for words in run.said]
    return run


def _public_state(learner: Any, accountant: JointAccountant[Any]) -> dict[str, str]:
    """Digests by name."""
    known = {"accountant": accountant, "learner": learner}
    state = {}
    if callable(getattr(learner, "public_state", None)):
        state["public_state()"] = _Printer(known).digest(learner.public_state(), "public_state()")
        names = ["billboard_"] if hasattr(learner, "billboard_") else []
    else:
        names = [name for name in dir(learner) if not name.startswith("_")]
    own = getattr(learner, "__dict__", {})
    for name in names:
        value = getattr(learner, name)
        if name in own or not isroutine(value):
            state[name] = _Printer(known, objects=True).digest(value, name)
    return state


def _same(what: str, first: Iterable[Any], second: Iterable[Any]) -> None:
    for i, (x, y) in enumerate(zip_longest(first, second, fillvalue="nothing")):
        if x != y:
            raise InterferenceError(f"{what} {i}: {x}, then {y}")


def _compare(first: _Run, second: _Run, changed: int) -> None:
    _same("the run ends with error", [first.error], [second.error])
    releases = Counter(event.token for event in first.events if event.what == "release")
    moved: set[str] = set()  # tokens that opened the replaced user's row and found it changed
    for i, (a, b) in enumerate(zip(first.events, second.events, strict=False)):
        where = f"event {i} ({a.what} at clock {a.at})"
        _same(where, [a.key()], [b.key()])
        if a.what == "open" and _compare_opened(a, b, changed, where):
            moved.add(a.token)
        if a.what == "release":
            _compare_released(a, b, a.token in moved, releases[a.token] == 1, where)
    _same("event", map(_Event.key, first.events), map(_Event.key, second.events))
    _same("ledger entry", first.ledger, second.ledger)
    for user, (mine, yours) in enumerate(zip(first.outputs, second.outputs, strict=False)):
        if user != changed and not np.array_equal(mine, yours):
            raise InterferenceError(
                f"user {user} received {mine}, and {yours} when user {changed} was replaced"
            )
    if differ := sorted({name for name, _ in first.state.items() ^ second.state.items()}):
        raise InterferenceError(
            f"the public state depends on data beyond what was released: {', '.join(differ)}"
        )
    _same("printed, warned or logged", first.said, second.said)


def _difference(a: _Event, b: _Event) -> Array:
    """By how much the values of two events differ; 0 where both are the same NaN or infinity."""
    x, y = (np.asarray(event.rows, dtype=np.float64) for event in (a, b))
    with np.errstate(all="ignore"):
        return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, y - x)


def _check_size(difference: Array, spend: Spend, paid: float, slack: float, what: str) -> None:
    norm, flat = spend.noise.norm, difference.ravel()
    if norm == "l1" and isinstance(spend.domain, PSDTrace) and difference.ndim == 2:
        # svec has √2 times one of two equal entries; in l2 it has the norm of the matrix as it is.
        flat = np.where(np.eye(len(difference)) > 0, difference, difference / np.sqrt(2)).ravel()
    size = float(np.linalg.norm(flat, {"l1": 1, "l2": 2, "linf": np.inf}[norm]))
    if not size <= paid * (1 + 1e-9) + slack:  # also if it is not a number
        raise InterferenceError(f"{what} by {size:.6g} in {norm}, paid for {paid:.6g}")


def _compare_opened(a: _Event, b: _Event, changed: int, where: str) -> bool:
    """Whether the replaced user's row was opened and differs."""
    assert a.users is not None
    difference = _difference(a, b)
    moved = np.flatnonzero((difference != 0).any(axis=1))
    others = [a.users.start + int(i) for i in moved if a.users.start + int(i) != changed]
    if others:
        raise InterferenceError(f"{where}: rows of users {others[:5]} changed with user {changed}")
    what = f"{where}: user {changed} moves the sum"
    _check_size(difference[moved].ravel(), a.spend, a.reach, 0.0, what)
    return moved.size > 0


def _compare_released(a: _Event, b: _Event, moved: bool, single: bool, where: str) -> None:
    """Compares what was about to leave, before the frozen value took its place.

    Noise and all other rows are alike in both runs.
    """
    size = float(np.linalg.norm(np.nan_to_num(np.asarray(a.rows, dtype=np.float64)).ravel()))
    rounding = 1e-12 * (a.reach + size)
    what = f"{where}: with the noise held fixed the value moves"
    difference = _difference(a, b)
    if not moved:
        _check_size(difference, a.spend, 0.0, rounding, what)
    elif a.spend.mechanism == "prefix-sum":  # the contribution is in every later sum, once
        for row in difference:
            _check_size(row, a.spend, a.reach, rounding, what)
    elif single and a.spend.own_loss is None:
        _check_size(difference, a.spend, a.reach * a.spend.gain, rounding, what)
    # A loss of its own speaks of no vector; nor does the gain speak of the later values of other
    # streams, which sum up the protected vector in ways that only the mechanism knows.


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
