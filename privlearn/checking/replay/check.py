"""Record, freeze, replay: whether a learner or a pipeline earns what its certificate says.

`assert_noninterference` is the billboard lemma as a test.  A learner is run on a data set while an
observer records everything it does with its accountant; every released value is frozen; then it is
run again on a neighbouring data set with the frozen values in place of its own.  What it may not
change is then compared: tokens, mechanisms and all their parameters, the public clock, the clipped
rows of everybody else, the outputs of everybody else, the public state, the billboard, and whatever
is printed, warned of or logged.  The replaced user's own contribution may differ, by at most the
sensitivity that was paid for; so may the value that a mechanism was about to release, as the noise
is the same in both runs (for streams other than prefix sums, and for losses of their own other than
that of objective perturbation, no bound is known).  Mechanisms with arithmetic of their own are run
a third time, on the neighbour with the rows of the first run put back where they are opened: what
they release must then be the same, so that nothing but opened rows and noise can be in it.
`assert_pipeline_noninterference` does the same for whole data sets and a central accountant.

Inside a mechanism the noise of one run is that of the other, draw by draw: a mechanism whose number
of draws or steps depends on data must go on from what `Receipt.publish` returns, or is refused.

What it cannot see: whether the noise is of the stated law, and that it is in the release at all if
no bound on its move is known (a black-box test does); public methods, what `__getattr__` makes up,
other special methods than repr, str, len and iteration, and what a class holds that is a value;
files, sockets and subprocesses, such as a public file that is written beside the billboard; the
time taken; loggers that are switched off or do not propagate; faults that these data do not bring
out, so give it many and malformed ones (`privlearn.checking.replay.populations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.isolation import OutputCapture, TimeLimit, is_output
from privlearn.checking.replay.canonical import (
    CanonicalForm,
    alike,
    marshalled,
    operator_only,
    public_parts,
)
from privlearn.checking.replay.comparison import check_phases, compare, named
from privlearn.checking.replay.protocols import InteractionProtocol, serve, serve_people
from privlearn.checking.replay.recording import (
    PublicState,
    RecordedRun,
    Recorder,
    Replayer,
    TokenEvent,
    Transplanter,
)
from privlearn.contract.protocols import Accountant
from privlearn.errors import CheckError, InterferenceError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.adjacency import Trust
from privlearn.values.participation import Participation
from privlearn.values.records import leaves, length

__tracebackhide__ = told_in_full

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replay:
    """What a passed check has gone through; it says nothing beyond these runs.

    Attributes:
        users: how many there were.
        replaced: which of them; of a person the first slot.
        spends: tokens spent in one run.
        releases: values released in one run.
        moved: how many spends opened the replaced user's row and found it changed; if 0, nothing
            that was paid for depended on that user, and only leaks beside it were looked for.
        runs: 2, or 3 with the rows put back.
        visits: how many of the users are the replaced person's; 1 without a rule of participation.
        operator_only: attributes that were not compared, as the learner's class declares them to be
            for the operator only, with those of learners inside it (by class and name); whoever
            shows them to others shows data.
    """

    users: int
    replaced: int
    spends: int
    releases: int
    moved: int
    runs: int
    visits: int = 1
    operator_only: tuple[str, ...] = ()


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
    seconds: float = 60.0,
) -> Replay:
    """Runs a learner on two neighbouring data sets and raises if it breaks the billboard lemma.

    The public state is looked at after each user: all attributes and properties without a leading
    underscore, ``public_state()`` (JSON values and numpy arrays), and ``repr``, ``str``, ``len``
    and iteration where the class defines them.  Only names in ``operator_only`` of its class, a
    frozenset, are left out, and the report lists them.  A mechanism without a loss of its own must
    release the noisy vector itself; what follows from it is computed outside.

    Args:
        learner_factory: starts a fresh learner with the accountant it is given.
        data: the users in order of arrival; for the default protocol, with ``features`` and
            ``respond`` (see `protocols.User`).
        neighbour: the same objects, but for exactly one position.  For zero-out the user there is
            one that counts as the null record, such as `populations.null_person`.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the simulated noise.
        protocol: how the learner is run and what users receive, `serve` if not given; see
            `privlearn.checking.replay.protocols`.
        accountant: makes it from the cap, ``users``, ``noise`` and ``observer``; wrap it in
            `functools.partial` for another adjacency.  Under a `CentralAccountant` all outputs are
            public, that to the replaced user included.
        rule: of participation.  Users are then visits, with an ``id`` (None is nobody); neighbours
            differ in all visits of one person: under a public pattern in what the records hold,
            under a private one these slots are nobody's in one of the two.  The accountant gets a
            fresh registry as ``people``, and the protocol (`serve_people` if none is given) must
            hand the ids on.
        may_spend_nothing: whether it is right that nothing is spent on these data.
        restarts: after how many users the process ends each time.  The ledger is then a file, the
            accountant is resumed, and the factory's learner goes on from what was released; users
            whom its ``clock_`` is past by then receive nothing, others that it misses are skipped.
        seconds: for everything together.

    Returns:
        What was gone through.

    Raises:
        InterferenceError: something changed that must not, or by more than was paid for; the
            message says what and where.
        CheckError: nothing can be concluded, which is never a pass: the data sets are not
            neighbours, the learner fails on both, spends nothing, does not end in time, holds
            something in public that cannot be compared, or does not do the same on the same data.
    """
    n = len(data)
    protocol = protocol or (serve if rule is None else serve_people)
    replaced = (
        _one_replaced(data, neighbour) if rule is None else _person_replaced(data, neighbour, rule)
    )

    body = _lives(learner_factory, protocol, sorted(restarts), n)
    cap = ZCDP(1) if budget is None else budget
    setup = Setup(body, accountant, cap, n, seed, rule, in_file=bool(restarts))
    return _check(setup, data, neighbour, replaced, may_spend_nothing, seconds, "the learner")


def _lives(
    learner_factory: Callable[[Any], Any],
    protocol: InteractionProtocol,
    restarts: Sequence[int],
    n: int,
) -> Callable[[Any, Any, Recorder, Note], None]:
    def body(accountant: Any, users: Sequence[Any], observer: Recorder, note: Note) -> None:
        canonical = CanonicalForm({"accountant": accountant}, objects=True)

        arriving = observer.arriving(users, n, partial(note.look, observer))
        for start, stop in pairwise([0, *restarts, n]):
            if start:
                accountant = _restarted(accountant)
            note.accountant = accountant
            note.learner = learner = learner_factory(accountant)
            late = range(start, min(learner.clock_, stop)) if start else range(0)
            if start > getattr(learner, "clock_", start):
                learner.skip(start - learner.clock_)
            observer.run.outputs += [
                canonical.of(None, "the output") for _ in islice(arriving, len(late))
            ]
            for output in protocol(learner, islice(arriving, stop - start - len(late))):
                observer.run.outputs.append(canonical.of(output, "the output"))
        if len(observer.run.outputs) != n:
            raise CheckError(
                "protocol: must yield once per user, and yielded "
                f"{len(observer.run.outputs)} times for {n} users"
            )

    return body


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

    With the released values frozen, tokens, mechanisms, parameters, ledger and output must be the
    same, and every opened contribution and released value may move by no more than was paid for.

    Args:
        run: takes an accountant and the sealed rows, and returns the public output.
        data: a block of records (what `Rows.seal` takes), leading axis: users.
        neighbour: another block that differs in exactly one row, or the index of the user whose
            record becomes the null record.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the simulated noise.
        accountant: as for `assert_noninterference`.
        may_spend_nothing: as there.
        seconds: as there.

    Raises:
        InterferenceError, CheckError: as `assert_noninterference`.
    """
    n = length(data)
    users = range(n)

    def body(accountant: Any, rows: Rows[Any], observer: Recorder, note: Note) -> None:
        observer.clock = n
        output = run(accountant, rows)
        canonical = CanonicalForm({"accountant": accountant}, objects=True)
        form = canonical.of(output, "the output")
        observer.run.states.append({"the output": marshalled(form)})

    first: Rows[Any] = Rows.seal(data, users=users)
    if isinstance(neighbour, int | np.integer):
        replaced = int(neighbour)
        if replaced not in users:
            raise CheckError(f"neighbour = {replaced}: must be one of {n} users")
        parts = [first.slice(range(replaced)) if replaced else None]
        parts += [Rows.null(users[replaced : replaced + 1])]
        parts += [first.slice(users[replaced + 1 :]) if replaced + 1 < n else None]
        second = Rows.concat([part for part in parts if part is not None])
    else:
        replaced = _one_row_replaced(data, neighbour)
        second = Rows.seal(neighbour, users=users)
    setup = Setup(body, accountant, ZCDP(1) if budget is None else budget, n, seed)
    return _check(setup, first, second, (replaced,), may_spend_nothing, seconds, "the pipeline")


def _changed(data: Sequence[Any], neighbour: Sequence[Any]) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(data, neighbour, strict=False)) if a is not b]


def _one_replaced(data: Sequence[Any], neighbour: Sequence[Any]) -> tuple[int, ...]:
    changed = _changed(data, neighbour)
    if len(data) != len(neighbour) or len(changed) != 1:
        raise CheckError(
            f"neighbour: must replace exactly one of {len(data)} users, and hold the same objects "
            f"in all other places; has {len(neighbour)} users and differs at {changed[:5]}"
        )
    return (changed[0],)


def _person_replaced(
    data: Sequence[Any], neighbour: Sequence[Any], rule: Participation
) -> tuple[int, ...]:
    changed = _changed(data, neighbour)
    pairs = [(data[i].id, neighbour[i].id) for i in changed] if len(data) == len(neighbour) else []
    ids = {id for pair in pairs for id in pair if id is not None}
    if len(ids) != 1:
        raise CheckError(
            f"neighbour: must replace the visits of exactly one of the persons of {len(data)} "
            f"visits, and hold the same objects in all other places; has {len(neighbour)} visits "
            f"and differs at {changed[:5]}, which are visits of {len(ids)} persons"
        )
    (who,) = ids
    left = [i for i, user in enumerate(data) if user.id == who and i not in set(changed)]
    if left:
        raise CheckError(
            f"neighbour: must replace all visits of one person; the same person also comes at "
            f"slots {left[:5]}, which are alike"
        )
    here, there = ({pair[side] for pair in pairs} for side in (0, 1))
    if rule.pattern == "public" and any(a != b for a, b in pairs):
        raise CheckError(
            "neighbour: under a public pattern a person's slots stay, so that ids must be the same "
            "in both data sets"
        )
    if rule.pattern == "private" and here != {None} and there != {None}:
        raise CheckError(
            "neighbour: under a private pattern all slots of a person become empty, so that their "
            "ids must be None in one of the two data sets"
        )
    return tuple(changed)


def _one_row_replaced(data: Any, neighbour: Any) -> int:
    n = length(data)
    if length(neighbour) != n:
        raise CheckError(
            f"neighbour: must replace exactly one of {n} rows; has {length(neighbour)} rows"
        )
    canonical = CanonicalForm({}, objects=True)
    rows = [
        [canonical.of(x[i], "") for x in leaves(block)]
        for block in (data, neighbour)
        for i in range(n)
    ]
    changed = [i for i in range(n) if not alike(rows[i], rows[n + i])]
    if len(changed) != 1:
        raise CheckError(
            f"neighbour: must replace exactly one of {n} rows; differs at {changed[:5]}"
        )
    return changed[0]


@dataclass
class Note:
    """What a run leaves for its end."""

    learner: Any = None
    accountant: Any = None

    def look(self, observer: Recorder, *, last: bool = False) -> None:
        """Writes down what can be seen of the learner now."""
        if self.learner is not None:
            state, left_out = _public_state(self.learner, self.accountant, posts=last)
            observer.run.states.append(state)
            observer.run.operator_only |= left_out


@dataclass(frozen=True)
class Setup:
    """All that is alike for both data sets."""

    body: Callable[[Any, Any, Recorder, Note], None]
    accountant: Callable[..., Any]
    cap: Currency
    users: int
    seed: int
    rule: Participation | None = None
    in_file: bool = False  # Whether the ledger is a file, so that another process can go on from it

    def run(self, data: Any, observer: Recorder) -> tuple[RecordedRun, bool]:
        """One run, and whether all outputs are public."""
        if not self.in_file:
            return self._run(data, observer, {})
        with TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger") as ledger:
            return self._run(data, observer, {"ledger": ledger})

    def _run(
        self, data: Any, observer: Recorder, given: dict[str, Any]
    ) -> tuple[RecordedRun, bool]:
        noise = NoiseSource.simulation(self.seed)
        people = None if self.rule is None else People.memory(self.rule)
        if people is not None:
            given["people"] = people
        accountant = self.accountant(
            self.cap, users=range(self.users), noise=noise, observer=observer, **given
        )
        names = {accountant.id: "accountant"}
        run, note = observer.run, Note()
        run.users = range(self.users)
        if people is not None:
            names[people.id] = "registry"
            run.room = partial(_room, people)
        observer.follow(accountant.ledger, names)
        capture = OutputCapture(lambda: observer.clock)
        with capture.capturing():
            try:
                self.body(accountant, data, observer, note)
            except BaseException as error:
                if not is_output(error):
                    raise
                run.error = observer.nameless(f"{type(error).__name__}: {error}")
            accountant = note.accountant = note.accountant or accountant
            if note.learner is not None:
                note.look(observer, last=True)
                run.operator_only |= operator_only(note.learner) & set(dir(note.learner))
            if people is not None:
                run.states.append({"the clock of the registry": marshalled(people.clock)})
        entries = accountant.ledger.entries
        if self.in_file:
            accountant.ledger.close()
        run.ledger = [observer.nameless(entry.model_dump_json()) for entry in entries]
        run.captured = [
            (at, observer.nameless(text), where) for at, text, where in capture.captured
        ]
        return run, accountant.trust is Trust.CENTRAL


def _restarted(accountant: Any) -> Any:
    ledger = accountant.ledger
    ledger.close()
    again = type(accountant).resume(ledger.path, noise=accountant.noise, people=accountant.people)
    again.issuer.observer = accountant.issuer.observer
    again.issuer.observer.follow(again.ledger)
    return again


def _room(people: People, users: range) -> int:
    rule = people.rule
    return rule.visits(len(users), len(people.batches(users)) if rule.batched else 1)


def _public_state(
    learner: Any, accountant: Accountant[Any], *, posts: bool
) -> tuple[PublicState, set[str]]:
    known = {"accountant": accountant, "learner": learner}
    json, objects = CanonicalForm(known), CanonicalForm(known, objects=True, posts=posts)
    state = {
        name: marshalled((json if name == "public_state()" else objects).of(value, name))
        for name, value in public_parts(learner).items()
    }
    return state, objects.left_out


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

        def replayed(
            on: Any, observer: Recorder, at: tuple[int, ...], note: str = ""
        ) -> list[TokenEvent]:
            try:
                return compare(first, setup.run(on, observer)[0], at, public=public)
            except InterferenceError as difference:
                raise InterferenceError(f"{note}{difference}\n  {how}") from None

        runs = 2
        try:
            moved = replayed(neighbour, Replayer(limit, first), replaced)
            if any(event.spend.arithmetic != "sum" for event in moved):
                runs = 3
                note = "with the opened rows of the first run put back: "
                replayed(neighbour, Transplanter(limit, first), replaced, note)
        except InterferenceError as difference:
            _check_reproducible(replayed, data, Replayer(limit, first), difference, who)
            raise
    check_phases(first)
    spends, releases = (sum(e.what == w for e in first.events) for w in ("spend", "release"))
    if first.error:
        raise CheckError(
            f"{who} fails on both data sets, so that little was checked: {first.error}\n  {how}"
        )
    if not spends and not may_spend_nothing:
        raise CheckError(
            f"{who} spent nothing on these {setup.users} users, so that no release was checked: "
            "take more users, or say may_spend_nothing=True"
        )
    visits = len(replaced)
    private = tuple(sorted(first.operator_only))
    return Replay(setup.users, replaced[0], spends, releases, len(moved), runs, visits, private)


def _check_reproducible(
    replayed: Callable[..., Any], data: Any, observer: Recorder, difference: Exception, who: str
) -> None:
    """Nothing follows from two runs that differ if one data set gives different runs."""
    try:
        replayed(data, observer, ())
    except InterferenceError as error:
        raise CheckError(
            f"{who} does not do the same twice on the same data, so that nothing can be concluded "
            f"from neighbours; it and its users may depend on nothing but fixed seeds: {error}"
        ) from difference
