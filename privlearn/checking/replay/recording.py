"""What one run looks like from outside, written down at the accountant's receipts."""

from __future__ import annotations

import json
import marshal
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.isolation import TimeLimit
from privlearn.checking.replay.canonical import (
    MISSING,
    CanonicalForm,
    CanonicalValue,
    alike,
    difference,
    marshalled,
    public_parts,
    short,
)
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import InterferenceError, RowLocalityError
from privlearn.ledger import Ledger
from privlearn.losses import MinimizerLoss, leaves_of
from privlearn.rows.domains import Array, encoded, exponent_of
from privlearn.values.adjacency import Adjacency

U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A spend, the beginning of a phase, an opening of rows, or a release."""

    what: str
    at: int
    """Number of users who had arrived, the public clock; when a phase begins, who had received
    something, as a block of users is there before the first of them is served."""
    token: str  # Its number; the whole id has the accountant's in it, which is random
    label: str
    users: range
    spend: Spend
    adjacency: Adjacency
    said: str  # For a spend its ledger entry, in full; for a release shape and type
    rows: NDArray[Any] | None = None
    """The clipped rows, integers where the spend has a grid; or the value before it was frozen."""

    @property
    def numbers(self) -> Array:
        if self.what == "open" and self.spend.grid is not None and self.rows is not None:
            return self.spend.grid.values(self.rows)
        return np.asarray(self.rows, dtype=np.float64)

    @property
    def reach(self) -> float:
        return self.spend.domain.sensitivity(self.adjacency, self.spend.noise.norm)

    def key(self) -> tuple[Any, ...]:
        return (self.what, self.at, self.token, self.label, self.users, self.said)


PublicState = dict[str, bytes]  # What can be seen, by name, as `marshalled` forms


@dataclass(slots=True)
class RecordedRun:
    """One run, seen from outside."""

    events: list[TokenEvent] = field(default_factory=list)
    outputs: list[CanonicalValue] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    states: list[PublicState] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # When they were looked at
    asked: dict[str, bytes] = field(default_factory=dict)  # What methods answered at the end
    failures: set[int] = field(default_factory=set)  # Users who got an error
    operator_only: frozenset[str] = frozenset()  # Attributes that are not in them
    captured: list[tuple[int, str, str]] = field(default_factory=list)
    error: str = ""
    coupled: str = ""  # What was said where rows were found to depend on each other
    users: range = range(0)  # Of the accountant
    room: Callable[[range], int] = lambda users: 1
    """How many rows of the person who differs a token for some slots may open."""


class Recorder:
    """An observer that writes down what happens."""

    def __init__(self, limit: TimeLimit) -> None:
        self.run = RecordedRun()
        self.clock = 0
        self.learner: Any = None
        self.accountant: Any = None
        self.probe: Callable[[Any], Any] | None = None
        self.looks: Container[int] | None = None
        self._limit = limit
        self._names: Mapping[str, str] = {}
        self._spends: dict[str, Spend] = {}

    def follow(self, ledger: Ledger, names: Mapping[str, str] | None = None) -> None:
        """Says where the entries stand, and what random names in them are replaced by."""
        self._ledger, self._names = ledger, self._names if names is None else names

    def nameless(self, text: str) -> str:
        for name, by in self._names.items():
            text = text.replace(name, by)
        return text

    def failed(self, error: BaseException, how: str = "") -> str:
        """What an error tells its user, or if it ends the run everybody."""
        told = self.nameless(f"{how}{type(error).__name__}: {error}")
        if isinstance(error, RowLocalityError):
            self.run.coupled = told
        return told

    def look(self, *, last: bool = False) -> None:
        """Writes down what can be seen of the learner now."""
        known = {"accountant": self.accountant, "learner": self.learner}
        parts = public_parts(self.learner)
        if self.probe is not None:
            parts["the answer to the probe"] = self.probe(self.learner)
        json, objects = CanonicalForm(known), CanonicalForm(known, objects=True, posts=last)
        self.saw(
            {
                name: marshalled((json if name == "public_state()" else objects).of(value, name))
                for name, value in parts.items()
            }
        )
        self.run.operator_only |= objects.left_out

    def saw(self, state: PublicState) -> None:
        """Writes down what is public now."""
        self.run.states.append(state)
        self.run.times.append(self.clock)

    def arriving(self, users: Iterable[U], total: int) -> Iterator[U]:
        """The users, one by one, while the clock ticks; there is a look before some."""
        for user in users:
            if self.learner is not None and (self.looks is None or self.clock in self.looks):
                self.look()
            self.clock += 1
            self._limit.where = f"; {self.clock} of {total} users had arrived"
            self._limit.check()
            yield user

    def spent(self, token: Token[Any], spend: Spend) -> None:
        self._spends[token.id] = spend
        entry = self._ledger.entries[-1].model_dump_json()
        self._note("spend", token, token.users, self.nameless(entry))

    def begun(self, token: Token[Any], users: range) -> None:
        self._note("begin", token, users)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self._note("open", token, users, rows=np.array(rows))

    def released(self, token: Token[Any], value: Array) -> Array:
        array = np.array(value)
        self._note("release", token, token.users, f"{array.dtype.str}{array.shape}", array)
        return value

    def _note(
        self, what: str, token: Token[Any], users: range, said: str = "", rows: Any = None
    ) -> None:
        at = len(self.run.outputs) if what == "begin" else self.clock
        number, spend = token.id.rpartition("/")[2], self._spends[token.id]
        event = TokenEvent(what, at, number, token.label, users, spend, token.adjacency, said, rows)
        self.run.events.append(event)


class Replayer(Recorder):
    """An observer that hands out the values released in an earlier run. With ``rows`` it also puts
    back the rows that were opened there: noise and rows are then those of that run, so that
    everything released must be as well."""

    def __init__(self, limit: TimeLimit, earlier: RecordedRun, *, rows: bool = False) -> None:
        super().__init__(limit)
        self._releases = iter([event for event in earlier.events if event.what == "release"])
        self._opened = iter([event for event in earlier.events if event.what == "open" and rows])

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        """Clipped rows were opened; the earlier ones overwrite them, before anybody reads them."""
        earlier = next(self._opened, None)
        if earlier is not None and earlier.rows is not None and earlier.rows.shape == rows.shape:
            rows[...] = earlier.rows
        super().opened(token, spend, users, rows)

    def released(self, token: Token[Any], value: Array) -> Array:
        super().released(token, value)
        frozen = next(self._releases, None)
        # One release too many, or of something else, is found when the runs are compared.
        return value if frozen is None or frozen.rows is None else frozen.rows


MOST_VISITS = 12  # Of one person; more are a crowd
ROUNDING = 1e-12  # Relative slack for sums that were added up in another order


def compare(
    first: RecordedRun, second: RecordedRun, replaced: Collection[int], *, public: bool = False
) -> list[TokenEvent]:
    """Compares a run with its replay on a neighbouring data set; returns where ``replaced`` moved.
    ``public``: whether the replaced user's own output must be the same as well. Raises
    InterferenceError: something differs that must not, or by more than was paid for."""
    if first.error != second.error:
        before, after = (run.error or "none" for run in (first, second))
        told = f"the run ends with error {before}, then {after}"
        for i, (a, b) in enumerate(zip_longest(first.events, second.events)):
            if a is None or b is None or a.key() != b.key():
                raise InterferenceError(f"{told}; before that, {_events_differ(i, a, b)}")
        raise InterferenceError(told)
    moved = _compare_events(first, second, replaced)
    for i, (x, y) in enumerate(zip_longest(first.ledger, second.ledger)):
        if x != y:
            raise InterferenceError(_entries_differ(x, y, f"ledger entry {i}"))
    for user, (mine, yours) in enumerate(zip_longest(first.outputs, second.outputs)):
        if (user not in replaced or public) and not alike(mine, yours):
            what = difference(mine, yours, "")
            because = f", when {named(replaced)} was replaced" if replaced else ""
            raise InterferenceError(f"user {user} received {what.lstrip(': ')}{because}")
    _compare_states(first, second)
    for i, (said, now) in enumerate(zip_longest(first.captured, second.captured)):
        if said != now:
            both = (f"at clock {x[0]}: {x[1:]!r:.500}" if x else "nothing" for x in (said, now))
            raise InterferenceError(
                f"printed, warned, logged or written {i}: {', then '.join(both)}"
            )
    return moved


def _entries_differ(x: str | None, y: str | None, where: str) -> str:
    a, b = (None if text is None else CanonicalForm({}).of(json.loads(text), "") for text in (x, y))
    return difference(a, b, where)


def _compare_states(first: RecordedRun, second: RecordedRun) -> None:
    nothing: PublicState = {}
    both = zip_longest(first.states, second.states, fillvalue=nothing)
    times = max(first.times, second.times, key=len)
    for time, (mine, yours) in zip(times, both, strict=False):
        if mine == yours:
            continue
        changed = []
        for name in sorted(mine.keys() | yours.keys()):
            x, y = (
                marshal.loads(state[name]) if name in state else MISSING for state in (mine, yours)
            )
            if not alike(x, y):
                changed.append((name, difference(x, y, name)))
        names = ", ".join(name for name, _ in changed)
        early = time < len(first.users) and len(first.states) > 1
        when = f"before user {time} came" if early else "at the end"
        details = "".join(f"\n  {detail}" for _, detail in changed[:3])
        told = "the public state depends on data beyond what was released"
        raise InterferenceError(f"{told}: {names}{details}\n  as it was {when}")


def _compare_events(
    first: RecordedRun, second: RecordedRun, replaced: Collection[int]
) -> list[TokenEvent]:
    releases = Counter(event.token for event in first.events if event.what == "release")
    spends = {event.token: event for event in first.events if event.what == "spend"}
    moved: dict[str, set[int]] = {}  # slots of opened rows that were found to differ, by token
    for i, (a, b) in enumerate(zip_longest(first.events, second.events)):
        if a is None or b is None or a.key() != b.key():
            raise InterferenceError(_events_differ(i, a, b))
        if a.rows is None or b.rows is None or a.rows.tobytes() == b.rows.tobytes():
            continue
        where = f"event {i} ({a.what} of {a.label!r} at clock {a.at})"
        rows = moved.setdefault(a.token, set())
        if a.what == "open":
            rows |= _compare_opened(a, b, replaced, where)
            if len(rows) > (room := first.room(spends[a.token].users)):
                told = f"{len(rows)} rows of {named(replaced)} are opened with one token"
                raise InterferenceError(f"{where}: {told}, paid for {room}: slots {sorted(rows)}")
        else:
            _compare_released(a, b, len(rows), releases[a.token] == 1, where)
    all_rows = set[int]().union(*moved.values())
    if all_rows and len(all_rows) > (room := first.room(first.users)):
        told = f"{len(all_rows)} rows of {named(replaced)} are opened, the rule has room for {room}"
        raise InterferenceError(f"{told}: slots {sorted(all_rows)}")
    return [spends[token] for token, rows in moved.items() if rows]


def check_phases(run: RecordedRun) -> None:
    """Checks that every phase was begun before the first of its users was served. Raises
    InterferenceError: one was not, so that whoever has seen rows may have chosen its end."""
    begun: set[tuple[str, int]] = set()  # after a restart they are begun again
    for event in run.events:
        if event.what != "begin":
            continue
        phase = event.label, event.users.stop
        if event.at > event.users.start and phase not in begun:
            served = event.at - event.users.start
            raise InterferenceError(f"{_named(event)}: {served} of its users had been served")
        begun.add(phase)


def named(replaced: Collection[int]) -> str:
    """Who differs, for messages."""
    slots = sorted(replaced)
    if len(slots) > MOST_VISITS:
        return f"{len(slots)} users"
    return f"user {slots[0]}" if len(slots) == 1 else f"the person at slots {slots}"


def _events_differ(i: int, a: TokenEvent | None, b: TokenEvent | None) -> str:
    if a is None or b is None:
        return f"event {i}: {_named(a)}, then {_named(b)}"
    if a.what == b.what == "spend" and a.key()[1:4] == b.key()[1:4]:
        return _entries_differ(a.said, b.said, f"event {i} (spend of {a.label!r} at clock {a.at})")
    return f"event {i}: {_named(a)}, then {_named(b)}"


def _named(event: TokenEvent | None) -> str:
    if event is None:
        return "nothing"
    users = f"users {event.users.start}..{event.users.stop - 1}"
    said = "" if event.what == "spend" or not event.said else f" {event.said}"
    return f"{event.what} of {event.label!r}{said} (token {event.token}, {users}, at {event.at})"


def _change(a: TokenEvent, b: TokenEvent) -> Array:
    x, y = a.numbers, b.numbers
    with np.errstate(all="ignore"):
        return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, y - x)


def _compare_opened(
    a: TokenEvent, b: TokenEvent, replaced: Collection[int], where: str
) -> set[int]:
    change = _change(a, b)
    moved = np.flatnonzero((change != 0).any(axis=1))
    others = [a.users.start + int(i) for i in moved if a.users.start + int(i) not in replaced]
    if others:
        x, y = (event.numbers[others[0] - a.users.start].tolist() for event in (a, b))
        raise InterferenceError(
            f"{where}: rows of users {others[:5]} changed with {named(replaced)}; "
            f"that of user {others[0]}: {short(['list', *x])}, then {short(['list', *y])}"
        )
    for i in moved:
        what = f"{where}: user {a.users.start + int(i)} moves the sum"
        _check_size(change[i], a.spend, a.reach, 0.0, what)
    return {a.users.start + int(i) for i in moved}


def _compare_released(a: TokenEvent, b: TokenEvent, moved: int, single: bool, where: str) -> None:
    """Compares what was about to leave, before the frozen value took its place. Noise and all other
    rows are alike in both runs; ``moved`` rows are not."""
    size = float(np.linalg.norm(np.nan_to_num(np.asarray(a.rows, dtype=np.float64)).ravel()))
    rounding = ROUNDING * (a.reach + size)
    change = _change(a, b)
    worst = np.unravel_index(np.argmax(np.nan_to_num(np.abs(change), nan=np.inf)), change.shape)
    x, y = (np.asarray(event.rows)[worst].item() for event in (a, b))
    what = f"{where}: with the noise held fixed the value moves"
    entry = f"; entry {list(map(int, worst))}: {x!r}, then {y!r}"
    if not moved:
        _check_size(change, a.spend, 0.0, rounding, what, entry)
    elif a.spend.mechanism in ("prefix-sum", "batched-prefix-sum"):
        # A contribution is in every later sum, once.
        for row in change if a.spend.mechanism == "prefix-sum" else [change]:
            _check_size(row, a.spend, a.reach * moved, rounding, what, entry)
    elif single and a.spend.own_loss is None:
        _check_size(change, a.spend, a.reach * a.spend.gain * moved, rounding, what, entry)
    elif (far := minimiser_moves(a.spend, moved)) is not None:
        _check_size(change, a.spend, far, rounding, what, entry)
    # A loss of its own speaks of no vector; nor does the gain speak of the later values of other
    # streams, which sum up the protected vector in ways that only the mechanism knows.  That they
    # are functions of opened rows and noise is what the third run shows.


def minimiser_moves(spend: Spend, rows: int = 1) -> float | None:
    """How far one user, or so many rows, can move what objective perturbation releases; None of
    others. The objective is Δ-strongly convex and two neighbouring ones have gradients at most s
    apart, so that minimisers over one convex set are at most s/Δ apart; each is off by the solver's
    error."""
    if spend.mechanism != "objective-perturbation" or spend.own_loss is None:
        return None
    for part, _ in leaves_of(spend.own_loss):
        if isinstance(part, MinimizerLoss):
            error = float(spend.parameters.get("solver_error", np.inf))
            return rows * part.difference / part.ridge + 2 * error
    return None


def _check_size(
    change: Array, spend: Spend, paid: float, slack: float, what: str, entry: str = ""
) -> None:
    norm = spend.noise.norm
    size = float(np.linalg.norm(encoded(spend.domain, change), exponent_of(norm)))
    if not size <= paid * (1 + 1e-9) + slack:  # also if it is not a number
        raise InterferenceError(f"{what} by {size:.6g} in {norm}, paid for {paid:.6g}{entry}")
