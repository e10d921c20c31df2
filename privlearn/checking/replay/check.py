"""Record, freeze, replay: whether a learner or a pipeline earns what its certificate says.

A learner is run while an observer records what it does with its accountant; then again on a
neighbouring data set, with the frozen releases in place of its own. Compared is what may not
change: tokens, parameters, clock, clipped rows and outputs of everybody else, public state, what is
printed, warned of or logged. The replaced user's contribution may move by the sensitivity that was
paid for, and so may what was about to be released, as the noise is the same, draw by draw.
Mechanisms with arithmetic of their own are run a third time, with the rows of the first run put
back: they must then release the same. What no replay sees is in `learners.UNSEEN`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking.isolation import OutputCapture, TimeLimit, is_output
from privlearn.checking.replay.canonical import (
    CanonicalForm,
    alike,
    answers,
    marshalled,
    operator_only,
    short,
)
from privlearn.checking.replay.protocols import InteractionProtocol, serve, serve_people
from privlearn.checking.replay.recording import (
    RecordedRun,
    Recorder,
    Replayer,
    TokenEvent,
    check_phases,
    compare,
    named,
)
from privlearn.checking.replay.side_effects import Globals, side_effects
from privlearn.errors import CheckError, InterferenceError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.adjacency import Trust
from privlearn.values.participation import Participation
from privlearn.values.records import leaves, length


class FailsOnBothError(CheckError):
    """A learner fails on two data sets alike, so that little was checked; others may show more."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a passed check has gone through; it says nothing beyond these runs.

    ``replaced`` is the user, or the first slot of a person with so many ``visits``; ``moved``
    counts spends that opened a changed row: if 0, only leaks beside what is paid for were looked
    for. ``runs`` are 2, or 3 with the rows put back; ``operator_only`` attributes were not
    compared; ``failures`` users got an error, the same in all runs; ``telling`` public methods
    answered otherwise at the end of another run.
    """

    users: int
    replaced: int
    spends: int
    releases: int
    moved: int
    runs: int
    visits: int = 1
    operator_only: tuple[str, ...] = ()
    failures: int = 0
    telling: tuple[str, ...] = ()


def assert_noninterference(
    learner_factory: Callable[[Any], Any],
    data: Sequence[Any],
    neighbour: Sequence[Any],
    *,
    budget: Currency | None = None,
    seed: int = 0,
    protocol: InteractionProtocol | None = None,
    accountant: Callable[..., Any] = JointAccountant,
    rule: Participation | None = None,
    may_spend_nothing: bool = False,
    restarts: Sequence[int] = (),
    probe: Callable[[Any], Any] | None = None,
    crowd: bool = False,
    looks: Container[int] | None = None,
    seconds: float = 60.0,
) -> Replay:
    """Runs a learner on two neighbouring data sets and raises if it breaks the billboard lemma.

    The public state is looked at after each user: attributes and properties without a leading
    underscore, ``public_state()`` (JSON values and arrays), and ``repr``, ``str``, ``len`` and
    iteration where the class defines them, but for names in its frozenset ``operator_only``.

    Args:
        learner_factory: starts a fresh learner with the accountant it is given.
        data: the users in order of arrival, for the default protocol as `protocols.User`.
        neighbour: the same objects, but for one position; for zero-out a `null_person` is there.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the simulated noise.
        protocol: how the learner is run and what users receive; default `serve`.
        accountant: makes it from the cap, ``users``, ``noise`` and ``observer``.  Under a
            `CentralAccountant` all outputs are public, that to the replaced user included.
        rule: of participation.  Users are then visits with an ``id`` (None is nobody); neighbours
            differ in all visits of one person: in what the records hold under a public pattern,
            else they are nobody's in one of the two.
        may_spend_nothing: whether it is right that nothing is spent on these data.
        restarts: after how many users the process ends, to be resumed from the accountant's file.
        probe: what anybody may ask of the learner with methods; looked at with the public state.
        crowd: whether many users may differ, of whom nothing may show to others or in public.
        looks: after how many users the public state is looked at; default all, and a third run.
        seconds: for everything together.

    Raises:
        InterferenceError: something changed that must not, or by more than was paid for.
        CheckError: nothing can be concluded, which is never a pass: the data sets are no
            neighbours; the learner fails on both, spends nothing, does not end in time, cannot be
            compared, or does not do the same on the same data.
    """
    n = len(data)
    protocol = protocol or (serve if rule is None else serve_people)
    replaced = (
        _some_replaced(data, neighbour, crowd)
        if rule is None
        else _person_replaced(data, neighbour, rule)
    )

    body = lives(learner_factory, protocol, sorted(restarts), n)
    more: dict[str, Any] = {"in_file": bool(restarts), "probe": probe, "looks": looks}
    cap, held = budget or ZCDP(1), Globals(learner_factory)
    setup = Setup(body, accountant, cap, n, seed, held, rule, crowd=crowd, **more)
    return _check(setup, data, neighbour, replaced, may_spend_nothing, seconds, "the learner")


def lives(
    learner_factory: Callable[[Any], Any],
    protocol: InteractionProtocol,
    restarts: Sequence[int],
    n: int,
) -> Callable[[Any, Any, Recorder], None]:
    """How a learner is run on its users, in one process or several, for a `Setup`."""

    def body(accountant: Any, users: Sequence[Any], observer: Recorder) -> None:
        canonical = CanonicalForm({"accountant": accountant}, objects=True)
        arriving = observer.arriving(users, n)
        for start, stop in pairwise([0, *restarts, n]):
            if start:
                accountant = _restarted(accountant)
            observer.accountant = accountant
            observer.learner = learner = learner_factory(accountant)
            late = range(start, min(learner.clock_, stop)) if start else range(0)
            if start > getattr(learner, "clock_", start):
                learner.skip(start - learner.clock_)
            observer.run.outputs += [
                canonical.of(None, "the output") for _ in islice(arriving, len(late))
            ]
            come = islice(arriving, stop - start - len(late))
            for output in _received(learner, protocol, come, observer, stop):
                observer.run.outputs.append(canonical.of(output, "the output"))
        if len(observer.run.outputs) != n:
            done = len(observer.run.outputs)
            raise CheckError(
                f"protocol: must yield once per user; yielded {done} times for {n} users"
            )

    return body


def _received(
    learner: Any, protocol: InteractionProtocol, users: Iterator[Any], observer: Recorder, stop: int
) -> Iterator[Any]:
    """What each user receives: an error like anything else, after which the next ones come."""
    run, before = observer.run, -1
    while before < observer.clock < stop or before < 0:
        before = observer.clock
        try:
            yield from protocol(learner, users)
            return
        except BaseException as error:
            if not is_output(error) or observer.clock == before:
                raise  # not of a user's making
            told = observer.failed(error, "raises ")
        waiting = range(len(run.outputs), observer.clock)
        run.failures |= {*waiting} or {observer.clock - 1}
        if not waiting:
            run.outputs[-1] = ["list", run.outputs[-1], told]
        yield from [told] * len(waiting)


def assert_pipeline_noninterference(
    run: Callable[[Any, Rows[Any]], Any],
    data: Any,
    neighbour: Any,
    *,
    budget: Currency | None = None,
    seed: int = 0,
    accountant: Callable[..., Any] = CentralAccountant,
    may_spend_nothing: bool = False,
    seconds: float = 60.0,
) -> Replay:
    """Runs a pipeline of mechanisms on two neighbouring data sets; all that it returns is public.
    ``run`` takes an accountant and the sealed rows; ``neighbour`` is a block that differs in one
    row, or the index of the user who becomes null. All else is as for `assert_noninterference`."""
    n = length(data)
    users = range(n)

    def body(accountant: Any, rows: Rows[Any], observer: Recorder) -> None:
        observer.clock = n
        output = run(accountant, rows)
        canonical = CanonicalForm({"accountant": accountant}, objects=True)
        observer.saw({"the output": marshalled(canonical.of(output, "the output"))})

    first: Rows[Any] = Rows.seal(data, users=users)
    if isinstance(neighbour, int | np.integer):
        replaced = int(neighbour)
        if replaced not in users:
            raise CheckError(f"neighbour = {replaced}: must be one of {n} users")
        places = users[:replaced], users[replaced : replaced + 1], users[replaced + 1 :]
        parts = [first.slice(part) for part in places if part]
        parts[int(replaced > 0)] = Rows.null(places[1])
        second = Rows.concat(parts)
    else:
        replaced, second = _one_row_replaced(data, neighbour), Rows.seal(neighbour, users=users)
    setup = Setup(body, accountant, budget or ZCDP(1), n, seed, Globals(run))
    return _check(setup, first, second, (replaced,), may_spend_nothing, seconds, "the pipeline")


def differing(data: Sequence[Any], neighbour: Sequence[Any]) -> list[int]:
    """Where two populations hold different objects."""
    return [i for i, (a, b) in enumerate(zip(data, neighbour, strict=False)) if a is not b]


def _some_replaced(data: Sequence[Any], neighbour: Sequence[Any], crowd: bool) -> tuple[int, ...]:
    changed, n = differing(data, neighbour), len(data)
    if n != len(neighbour) or not changed or (len(changed) > 1 and not crowd):
        told = f"has {len(neighbour)} users and differs at {changed[:5]}"
        raise CheckError(
            f"neighbour: must replace exactly one of {n} users, the same objects; {told}"
        )
    return tuple(changed)


def _person_replaced(
    data: Sequence[Any], neighbour: Sequence[Any], rule: Participation
) -> tuple[int, ...]:
    changed = differing(data, neighbour) if len(data) == len(neighbour) else []
    here, there = ([users[i].id for i in changed] for users in (data, neighbour))
    ids = {*here, *there} - {None}
    wrong = ""
    if len(ids) != 1:
        wrong = f"the visits of exactly one of the persons of {len(data)} visits; has "
        wrong += f"{len(neighbour)} and differs at {changed[:5]}, visits of {len(ids)} persons"
    elif left := [i for i, u in enumerate(data) if u.id in ids and i not in set(changed)]:
        wrong = f"all visits of one person; the same person also comes at slots {left[:5]}"
    elif rule.pattern == "public" and here != there:
        wrong = "records under a public pattern, where a person's slots stay, and no ids"
    elif rule.pattern == "private" and {None} not in ({*here}, {*there}):
        wrong = "all slots of a person under a private pattern: ids must be None in one of the two"
    if wrong:
        raise CheckError(f"neighbour: must replace {wrong}")
    return tuple(changed)


def _one_row_replaced(data: Any, neighbour: Any) -> int:
    n, found = length(data), f"has {length(neighbour)} rows"
    if length(neighbour) == n:
        of = CanonicalForm({}, objects=True).of
        both = [[[of(x[i], "") for x in leaves(b)] for i in range(n)] for b in (data, neighbour)]
        changed = [i for i, rows in enumerate(zip(*both, strict=True)) if not alike(*rows)]
        if len(changed) == 1:
            return changed[0]
        found = f"differs at {changed[:5]}"
    raise CheckError(f"neighbour: must replace exactly one of {n} rows; {found}")


@dataclass(frozen=True)
class Setup:
    """All that is alike for both data sets."""

    body: Callable[[Any, Any, Recorder], None]
    accountant: Callable[..., Any]
    cap: Currency
    users: int
    seed: int
    globals: Globals
    rule: Participation | None = None
    in_file: bool = False  # Whether the ledger is a file, so that another process can go on from it
    probe: Callable[[Any], Any] | None = None
    looks: Container[int] | None = None
    crowd: bool = False

    def run(self, data: Any, observer: Recorder) -> tuple[RecordedRun, bool]:
        """One run, and whether all outputs are public."""
        try:
            with TemporaryDirectory() as folder, ExitStack() as stack:
                given: dict[str, Any] = {}
                if self.in_file:
                    ledger = Ledger.create(Path(folder) / "ledger")
                    given["ledger"] = stack.enter_context(ledger)
                return self._run(data, observer, given, folder)
        finally:
            self.globals.put_back()

    def _run(
        self, data: Any, observer: Recorder, given: dict[str, Any], folder: str
    ) -> tuple[RecordedRun, bool]:
        noise = NoiseSource.simulation(self.seed)
        people = None if self.rule is None else People.memory(self.rule)
        if people is not None:
            given["people"] = people
        accountant = self.accountant(
            self.cap, users=range(self.users), noise=noise, observer=observer, **given
        )
        names = {accountant.id: "accountant"}
        run = observer.run
        observer.accountant, observer.probe, observer.looks = accountant, self.probe, self.looks
        run.users = range(self.users)
        if people is not None:
            names[people.id] = "registry"
            visits, parts = people.rule.visits, people.batches if people.rule.batched else None
            run.room = lambda users: visits(len(users), len(parts(users)) if parts else 1)
        observer.follow(accountant.ledger, names)
        if self.crowd:
            run.room = len
        capture = OutputCapture(lambda: observer.clock)
        with capture.capturing(), side_effects(capture.record, self.seed, folder):
            try:
                self.body(accountant, data, observer)
            except BaseException as error:
                if not is_output(error):
                    raise
                run.error = observer.failed(error)
                if observer.learner is not None:
                    run.error = f"it stopped at user {observer.clock} of {self.users}: {run.error}"
            accountant, learner = observer.accountant, observer.learner
            if learner is not None:
                observer.look(last=True)
                run.operator_only |= operator_only(learner) & set(dir(learner))
            if people is not None:
                observer.saw({"the clock of the registry": marshalled(people.clock)})
        if changed := self.globals.changed():
            observer.saw(changed)
        entries = accountant.ledger.entries
        if self.in_file:
            accountant.ledger.close()
        run.ledger = [observer.nameless(entry.model_dump_json()) for entry in entries]
        said = capture.captured
        run.captured = [(at, observer.nameless(text), where) for at, text, where in said]
        if learner is not None:
            events = len(run.events)
            with OutputCapture(lambda: 0).capturing():
                run.asked = answers(learner, {"accountant": accountant})
            del run.events[events:]  # of the asking
        return run, accountant.trust is Trust.CENTRAL


def _restarted(accountant: Any) -> Any:
    ledger = accountant.ledger
    ledger.close()
    again = type(accountant).resume(ledger.path, noise=accountant.noise, people=accountant.people)
    again.issuer.observer = accountant.issuer.observer
    again.issuer.observer.follow(again.ledger)
    return again


def _check(
    setup: Setup,
    data: Any,
    neighbour: Any,
    replaced: tuple[int, ...],
    may_spend_nothing: bool,
    seconds: float,
    who: str,
) -> Replay:
    how = f"{named(replaced)} of {setup.users} was replaced; reproduce it with seed={setup.seed}"
    with TimeLimit(seconds, who) as limit:
        first, public = setup.run(data, Recorder(limit))
        if first.coupled:
            raise InterferenceError(f"{who} lets users' rows depend on each other: {first.coupled}")
        telling = set[str]()

        def replayed(on: Any, observer: Recorder, at: Any, note: str = "") -> list[TokenEvent]:
            second, _ = setup.run(on, observer)
            both = first.asked.keys() & second.asked.keys()
            telling.update(name for name in both if first.asked[name] != second.asked[name])
            try:
                return compare(first, second, at, public=public)
            except InterferenceError as difference:
                failed = ""  # who got an error in one run only, and which
                if users := sorted(first.failures ^ second.failures):
                    run = first if users[0] in first.failures else second
                    failed = short(run.outputs[users[0]])
                    failed = f"\n  in one of the runs user {users[0]} got: {failed}"
                raise InterferenceError(f"{note}{difference}{failed}\n  {how}") from None

        runs = 2
        try:
            moved = replayed(neighbour, Replayer(limit, first), replaced)
            if setup.looks is None and any(e.spend.arithmetic != "sum" for e in moved):
                runs = 3
                note = "with the opened rows of the first run put back: "
                replayed(neighbour, Replayer(limit, first, rows=True), replaced, note)
        except InterferenceError as difference:
            _check_reproducible(replayed, data, Replayer(limit, first), difference, who)
            raise
    check_phases(first)
    spends, releases = (sum(e.what == w for e in first.events) for w in ("spend", "release"))
    n, told = setup.users, first.error
    ended = next(user for user in range(n, -1, -1) if user - 1 not in first.failures)
    if 2 * len(first.failures) >= n or ended < n - 1:
        text = next(text for text in map(str, first.outputs) if "raises" in text)
        told = f"it stopped after user {ended} of {n}; " if ended < n else ""
        told += f"an error for {len(first.failures)} of {n} users: {text:.300}"
    if told:
        told = f"{who} fails on both data sets, so that little was checked: {told}"
        raise FailsOnBothError(f"{told}\n  {how}")
    if not spends and not may_spend_nothing:
        raise CheckError(f"{who} spent nothing on these {n} users, so that no release was checked")
    counts = n, replaced[0], spends, releases, len(moved), runs, len(replaced)
    named_only, told_by = tuple(sorted(first.operator_only)), tuple(sorted(telling))
    return Replay(*counts, named_only, len(first.failures), told_by)


def _check_reproducible(
    replayed: Callable[..., Any], data: Any, observer: Recorder, difference: Exception, who: str
) -> None:
    """Nothing follows from two runs that differ if one data set gives different runs."""
    try:
        replayed(data, observer, ())
    except InterferenceError as error:
        told = (
            f"{who} does not do the same twice on the same data, so that nothing can be concluded"
        )
        raise CheckError(
            f"{told}; it may depend on nothing but fixed seeds: {error}"
        ) from difference
