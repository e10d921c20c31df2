"""Kill and resume: whether a learner goes on from its ledger, and from nothing else.

A learner is run once to its end, on a ledger in a file, of which copies are taken after entries, as
a process leaves them that dies. Then every copy is resumed, twice, on the users from its ``clock_``
on; what the learner keeps besides its ledger is of the end of the first run, and does not fit. Not
seen: power cuts, numbers that another *version* would work out otherwise, clocks of other functions
than ``time.time`` and ``time.time_ns``."""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from privlearn.accountants import JointAccountant, audit
from privlearn.checking.isolation import TimeLimit
from privlearn.checking.replay.canonical import CanonicalForm, CanonicalValue
from privlearn.checking.replay.protocols import InteractionProtocol, serve
from privlearn.errors import CheckError, SurvivalError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import Entry, PublishEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.noise import NoiseSource
from privlearn.values.validate import count

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Survival:
    """What a passed check has gone through; it says nothing beyond these deaths.

    ``compared``: after how many ``deaths`` it was known what the learner must have learned.
    ``again``: the most users who had come before one and come again; ``passed``: who come after
    none.
    """

    users: int
    deaths: int
    compared: int
    again: int
    passed: int


class _Copy(NamedTuple):
    path: Path
    entries: int
    last: str  # The kind of its last entry
    released: int
    upto: int  # One past the last user whose row is in a value that was released
    came: int

    def __str__(self) -> str:
        return (
            f"after a death behind entry {self.entries}, {self.last!r}, when {self.came} users had "
            "come"
        )


class _Thinned(list[_Copy]):
    """Evenly chosen of whatever is offered, at most so many, and at least half as many."""

    def __init__(self, most: int) -> None:
        self._most, self._step, self._offered = most, 1, 0

    def offer(self, make: Callable[[], _Copy]) -> None:
        self._offered += 1
        if self._offered % self._step == 0:
            self.append(make())
            if len(self) > self._most:
                del self[::2]
                self._step *= 2


@dataclass(eq=False)
class _Watched:
    data: Sequence[Any]
    learned: Callable[[Any], Any]
    accountant: Any
    start: int = 0
    came: int = 0
    released: int = 0
    upto: int = 0
    entries: int = 0
    spends: int = 0
    learner: Any = None
    states: defaultdict[int, list[CanonicalValue]] = field(
        default_factory=lambda: defaultdict(list)
    )
    outputs: list[CanonicalValue] = field(default_factory=list)
    between: Callable[[], None] | None = None
    """Called between two users, if something was released since the last time."""
    seen: int = 0

    def wrote(self, entry: Entry) -> None:
        self.entries += 1
        match entry:
            case SpendEntry():
                self.spends += 1
            case PublishEntry(upto=upto) | RetireEntry(value={"upto": upto}):
                self.released += 1
                self.upto = max(self.upto, upto)

    def state(self) -> CanonicalValue:
        return self.form(self.learned(self.learner), "what was learned")

    def form(self, value: Any, name: str) -> CanonicalValue:
        return CanonicalForm({"accountant": self.accountant}, objects=True).of(value, name)

    def run(self, protocol: InteractionProtocol) -> None:
        self.came = self.start
        for output in protocol(self.learner, self._arriving()):
            self.outputs.append(self.form(output, "the output"))
        self._look()

    def _arriving(self) -> Iterator[Any]:
        for user in islice(self.data, self.start, None):
            self._look()
            self.came += 1
            yield user

    def _look(self) -> None:
        state = self.state()
        if state not in self.states[self.released]:
            self.states[self.released].append(state)
        if self.between is not None and self.released > self.seen:
            self.between()
        self.seen = self.released

    def paid(self) -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for token in self.accountant._state.accounts.values():
            if token.spend is not None:
                found[token.label].update(self.accountant._state.users_of(token))
        return found


def assert_survives(
    learner_factory: Callable[[Any], Any],
    data: Sequence[Any],
    *,
    learned: Callable[[Any], Any],
    budget: Currency | None = None,
    seed: int = 0,
    protocol: InteractionProtocol = serve,
    accountant: Callable[..., Any] = JointAccountant,
    deaths: int = 12,
    seconds: float = 60.0,
) -> Survival:
    """Ends a learner's process at many points, and raises if it does not go on from its ledger.

    After each death the accountant is resumed, and ``learner_factory`` called with it again.  The
    learner then must have learned what it had before, from what was released and from nothing else,
    without spending anything; must serve the users from its ``clock_`` on to the end, none of whom
    is in a value that left before; must do the same twice; and must not pay again for what it has
    got.  The ledger must stand an audit.

    Args:
        learner_factory: starts a learner with the accountant it is given, new or resumed.  It has
            a public attribute ``clock_``, the index of the next user.
        data: the users in order of arrival, as ``protocol`` hands them over.
        learned: what the learner has learned from releases, such as
            ``lambda learner: learner.theta_``; nothing that follows from the clock alone.
        budget, seed, protocol: as for `assert_noninterference`.
        accountant: makes it from the cap, ``users``, ``noise`` and ``ledger``.
        deaths: the most; about half as many at least.
        seconds: for everything together.

    Raises:
        SurvivalError: it does not go on, or not as it must; the message says after which death.
        CheckError: nothing can be concluded: the learner fails without a death, releases nothing,
            ``learned`` never changes, or it does not end in time.
    """
    count(deaths=deaths, at_least=3)
    with TemporaryDirectory() as folder, TimeLimit(seconds, "the learner"):
        check = _Check(learner_factory, data, learned, protocol, Path(folder), seed)
        copies = check.first(accountant, ZCDP(1) if budget is None else budget, deaths)
        compared = again = passed = 0
        for number, copy in enumerate(reversed(copies), 1):
            once = check.resumed(copy, number, twin=False)
            twice = check.resumed(copy, number, twin=True)
            if (once.outputs, once.state()) != (twice.outputs, twice.state()):
                raise SurvivalError(f"{copy} it does not do the same when it is resumed twice")
            compared += bool(check.whole.states[copy.released])
            again = max(again, copy.came - once.start)
            passed = max(passed, once.start - copy.came)
    return Survival(len(data), len(copies), compared, again, passed)


@dataclass
class _Check:
    factory: Callable[[Any], Any]
    data: Sequence[Any]
    learned: Callable[[Any], Any]
    protocol: InteractionProtocol
    folder: Path
    seed: int

    def first(self, accountant: Callable[..., Any], cap: Currency, deaths: int) -> list[_Copy]:
        path = self.folder / "ledger"
        account = accountant(
            cap,
            users=range(len(self.data)),
            noise=NoiseSource.simulation(self.seed),
            ledger=Ledger.create(path),
        )
        self._kind = type(account)
        run = self.whole = _Watched(self.data, self.learned, account)
        # a step may release several values, and between them nobody sees what was learned
        anywhere, between, last = _Thinned(deaths - deaths // 3), _Thinned(deaths // 3), ""

        def copied(kind: str) -> _Copy:
            to = self.folder / f"{kind} {run.entries}" / path.name
            _copy(path, to)
            return _Copy(to, run.entries, last, run.released, run.upto, run.came)

        def wrote(entry: Entry) -> None:
            nonlocal last
            run.wrote(entry)
            last = entry.entry
            anywhere.offer(lambda: copied("anywhere"))

        run.between = lambda: between.offer(lambda: copied("between"))

        with _listening(account.ledger, wrote):
            try:
                run.learner = self.factory(account)
                run.run(self.protocol)
            except Exception as error:
                at = f"at user {run.came} of {len(self.data)}"
                raise CheckError(f"the learner fails without a death {at}: {error!r}") from error
        self._kept = run.paid()
        account.close()
        if not run.released:
            raise CheckError("the learner released nothing on these users: take more of them")
        if len({repr(state) for states in run.states.values() for state in states}) < 2:
            raise CheckError("learned: is the same at all times, so that no difference can be seen")
        found = {copy.entries: copy for copy in (*anywhere, *between)}
        return [found[entries] for entries in sorted(found)]

    def resumed(self, copy: _Copy, number: int, *, twin: bool) -> _Watched:
        path = copy.path.with_name("twin" if twin else "again") / copy.path.name
        _copy(copy.path, path)
        with _later(2 * number + twin):
            noise = NoiseSource.simulation(self.seed + number)
            account = self._kind.resume(path, noise=noise)
            tokens = account._state.accounts.values()
            lost = Counter(t.label for t in tokens if t.outcome in ("lost", "uncovered"))
            run = _Watched(self.data, self.learned, account)
            with _listening(account.ledger, run.wrote):
                with _as_death(copy, "it cannot go on"):
                    run.learner = self.factory(account)
                self._check_begun(run, copy)
                with _as_death(copy, f"it does not go on from user {run.start}"):
                    run.run(self.protocol)
            if run.learner.clock_ != len(self.data):
                raise SurvivalError(f"{copy} it comes to user {run.learner.clock_} only")
            self._check_paid(run, copy, lost)
            account.close()
            problems = audit(path).problems
        if problems:
            raise SurvivalError(f"{copy} the ledger does not stand an audit: {problems[0]}")
        return run

    def _check_begun(self, run: _Watched, copy: _Copy) -> None:
        if run.spends:
            raise SurvivalError(f"{copy} it spends {run.spends} tokens before anybody has come")
        run.start = run.learner.clock_
        if run.start < copy.upto:
            raise SurvivalError(
                f"{copy} its clock_ is {run.start}: user {copy.upto - 1} comes again"
            )
        account = run.accountant
        lost = [token for token in account._state.accounts.values() if token.outcome == "lost"]
        most = max([copy.came, *(account._state.users_of(token).stop for token in lost)])
        if run.start > most:
            raise SurvivalError(f"{copy} its clock_ is {run.start}: user {most} is passed over")
        states = self.whole.states[copy.released]
        if states and run.state() not in states:
            state = f"{self.learned(run.learner)!r:.200}"
            raise SurvivalError(f"{copy} it has not learned what it had learned, but {state}")

    def _check_paid(self, run: _Watched, copy: _Copy, lost: Counter[str]) -> None:
        """A label that has a plan needs no look: the accountant issues no more than it holds."""
        if run.accountant._state.plan is not None:
            return
        for label, paid in run.paid().items():
            for user, times in paid.items():
                most = self._kept[label][user] + lost[label]
                if times > most:
                    raise SurvivalError(
                        f"{copy} it pays {times} times for {label!r} of user {user}, and without "
                        f"a death {self._kept[label][user]} times"
                    )


@contextmanager
def _as_death(copy: _Copy, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise SurvivalError(f"{copy} {what}: {error!r}") from error


@contextmanager
def _listening(ledger: Ledger, wrote: Callable[[Entry], None]) -> Iterator[None]:
    append = ledger.append

    def told(entry: Entry, **named: Any) -> None:
        append(entry, **named)
        wrote(entry)

    with patch.object(ledger, "append", told):
        yield


@contextmanager
def _later(days: int) -> Iterator[None]:
    now, now_ns = time.time, time.time_ns
    with (
        patch.object(time, "time", lambda: now() + days * _DAY),
        patch.object(time, "time_ns", lambda: now_ns() + int(days * _DAY) * 10**9),
    ):
        yield


def _copy(ledger: Path, to: Path) -> None:
    to.parent.mkdir(parents=True)
    for ending in ("", "-wal", "-tail", ".head", ".values"):
        name = f"{ledger.name}{ending}"
        source = ledger.with_name(name)
        if source.is_dir():
            shutil.copytree(source, to.with_name(name))
        elif source.exists():
            shutil.copyfile(source, to.with_name(name))
