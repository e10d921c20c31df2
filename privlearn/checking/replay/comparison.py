"""What two runs on neighbouring data must have in common, and by how much the rest may differ."""

from __future__ import annotations

import json
import marshal
from collections import Counter
from collections.abc import Collection
from itertools import zip_longest

import numpy as np

from privlearn.checking.replay.canonical import MISSING, CanonicalForm, alike, difference, short
from privlearn.checking.replay.recording import PublicState, RecordedRun, TokenEvent
from privlearn.contract.spends import Spend
from privlearn.errors import InterferenceError
from privlearn.losses import MinimizerLoss, leaves_of
from privlearn.rows.domains import Array, encoded, exponent_of

MOST_VISITS = 12  # Of one person; more are a crowd
ROUNDING = 1e-12  # Relative slack for sums that were added up in another order


def compare(
    first: RecordedRun, second: RecordedRun, replaced: Collection[int], *, public: bool = False
) -> list[TokenEvent]:
    """Compares a run with its replay on a neighbouring data set.

    Args:
        first: on the data.
        second: on the neighbour, with the released values of the first.
        replaced: which user differs, or all visits of which person; none if the data are the same.
        public: whether the replaced user's own output must be the same as well.

    Returns:
        Where the replaced user's rows were opened and found to differ.

    Raises:
        InterferenceError: something differs that must not, or by more than was paid for.
    """
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
            raise InterferenceError(
                f"printed, warned, logged or written {i}: {_heard(said)}, then {_heard(now)}"
            )
    return moved


def _heard(said: tuple[int, str, str] | None) -> str:
    return "nothing" if said is None else f"at clock {said[0]}: {said[1:]!r:.500}"


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
        raise InterferenceError(
            f"the public state depends on data beyond what was released: {names}{details}\n  as "
            f"it was {when}"
        )


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
                raise InterferenceError(
                    f"{where}: {len(rows)} rows of {named(replaced)} are opened with one token, "
                    f"paid for {room}: slots {sorted(rows)}"
                )
        else:
            _compare_released(a, b, len(rows), releases[a.token] == 1, where)
    all_rows = set[int]().union(*moved.values())
    if all_rows and len(all_rows) > (room := first.room(first.users)):
        raise InterferenceError(
            f"{len(all_rows)} rows of {named(replaced)} are opened, the rule has room for {room}: "
            f"slots {sorted(all_rows)}"
        )
    return [spends[token] for token, rows in moved.items() if rows]


def check_phases(run: RecordedRun) -> None:
    """Checks that every phase was begun before the first of its users was served.

    Raises:
        InterferenceError: one was not, so that whoever has seen rows may have chosen its end.
    """
    begun: set[tuple[str, int]] = set()  # after a restart they are begun again
    for event in run.events:
        if event.what != "begin":
            continue
        phase = event.label, event.users.stop
        if event.at > event.users.start and phase not in begun:
            raise InterferenceError(
                f"{_named(event)}: {event.at - event.users.start} of its users had been "
                "served, whose rows may have chosen where it ends"
            )
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
    """Compares what was about to leave, before the frozen value took its place.

    Noise and all other rows are alike in both runs; ``moved`` rows are not.
    """
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
    """How far one user, or so many rows, can move what objective perturbation releases.

    The objective is Δ-strongly convex and two neighbouring ones have gradients at most s apart, so
    their minimisers over one convex set are at most s/Δ apart; each is computed up to the solver's
    error, and blurring and projection do not widen the gap.  None for other mechanisms.
    """
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
