"""`check_learner`: one learner on many neighbours, in every way of running it that its kind has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking.isolation import kept_alive
from privlearn.checking.mined import Mined, mined
from privlearn.checking.replay.check import (
    FailsOnBothError,
    Replay,
    assert_noninterference,
    assert_pipeline_noninterference,
    differing,
)
from privlearn.checking.replay.populations import crowd_pair, generated_pairs, returning_pair
from privlearn.checking.replay.protocols import (
    InteractionProtocol,
    examples,
    late,
    offered,
    played,
    pulled,
    serve,
    serve_people,
)
from privlearn.checking.reports import Axis, CheckReport, Coverage, Finding, Verdict
from privlearn.errors import CheckError, InterferenceError
from privlearn.learners.base import Learner
from privlearn.learners.contextual import ServedBandit
from privlearn.learners.phases import PhaseLearner
from privlearn.learners.private_experts import PrivateExperts
from privlearn.learners.served import ServedMNL
from privlearn.learners.served_actions import ServedActions
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.values.records import length
from privlearn.values.validate import count

_BLOCK, _WAIT = 3, 2
_LATE = "with late answers"
LONG = 1_000  # Users of a long run; more if the learner's code compares with a larger number
_LONGEST = 2_000
_SECONDS, _SECONDS_OF_LONG = 60.0, 30.0  # At most, of one pair
UNSEEN = (
    "whether the noise has the stated law (check_mechanism of what the learner releases with)",
    "the time that anything takes",
    "deaths inside a release, as those after which accountant.lost is asked (assert_survives)",
    "what is sent over connections, or done by other processes; that they are begun is seen",
    "writes to files that were open before the run, and to file descriptors",
    "public methods with arguments (name them in probe), and what __getattr__ makes up",
    "what a private attribute holds; whoever may read the operator's attributes and methods",
    "values that code compares only hashes, texts or sums with, in fewer than 1 of 1,000 users",
)  # What no replay can see, and a person has to
Population = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class Way:
    """One way of running a learner: who starts it, the protocol, further arguments of
    `assert_noninterference`, and the rows and columns of the users' arrays."""

    how: str
    factory: Callable[[Any], Any]
    protocol: InteractionProtocol = serve
    options: Mapping[str, Any] = field(default_factory=dict)
    n_items: int = 6
    dim: int = 2


def check_learner(
    learner: Any,
    *,
    protocol: InteractionProtocol | None = None,
    neighbours: Population | Iterable[Population] | int | None = None,
    rows: Any = None,
    pairs: int = 20,
    users: int = 12,
    budget: Currency | None = None,
    seed: int = 0,
    seconds: float = 120.0,
    **options: Any,
) -> CheckReport:
    """Runs a learner on pairs of neighbours, and raises if it breaks the billboard lemma.

    A learner of this package's kinds is run on generated users, well-formed and malformed, one by
    one, in blocks, with answers that come late or never, and with a restart from its ledger.  In
    half of the pairs one user differs, in the others every second one.  Two runs have `LONG` users.
    Numbers that the learner's code mentions are tried as data, answers and numbers of users.
    `assert_noninterference` says what is compared; errors are outputs like any other.

    Args:
        learner: not started, of which every run has a copy; or what starts one with an accountant;
            or with ``rows`` a pipeline, of an accountant and sealed rows; all it returns is public.
        protocol: how it is run; needed for a learner of a kind of its own, where it is not `serve`.
        neighbours: a pair of populations, or several, from which long runs draw, too; default
            generated.  For a pipeline another block, or the index of who becomes null.
        rows: of a pipeline, a block of records.
        pairs: short ones, in all ways together.
        users: of each short run.
        budget: the cap; default ``ZCDP(1)``.
        seed: of users and noise.
        seconds: for everything together; what is not done by then is said, or an error.
        options: further arguments of `assert_noninterference`.

    Raises:
        InterferenceError: something changed that must not, or by more than was paid for; the
            report so far is its ``evidence``.
        CheckError: nothing can be concluded: the learner fails, spends nothing, or nothing that was
            paid for moved; or it is of a kind of its own.
        TypeError: no learner, and nothing that starts one.
    """
    count(pairs=pairs)
    options["budget"] = ZCDP(1) if budget is None else budget
    factory = callable(learner) and not (isinstance(learner, type) and protocol is None)
    if not (isinstance(learner, Learner) or factory):
        raise TypeError(f"learner = {learner!r:.80}: must be a learner that was not started")
    with kept_alive("the learner"):
        if rows is not None:
            options["seconds"] = seconds
            return _checked_pipeline(learner, rows, neighbours, seed, options)
        pairs_given: Any = neighbours or []
        given = [pairs_given] if isinstance(pairs_given, tuple) else list(pairs_given)
        people = _People(seed, count(users=users, at_least=2), mined(learner), given)
        return _checked(learner, protocol, people, pairs, seconds, options)


def _checked(
    learner: Any,
    protocol: InteractionProtocol | None,
    people: _People,
    pairs: int,
    seconds: float,
    options: dict[str, Any],
) -> CheckReport:
    if isinstance(learner, Learner) and protocol is None:
        ways = _ways(learner, people.users, options)
    else:
        factory = _starter(learner) if isinstance(learner, Learner) else learner
        usual = serve_people if "rule" in options else serve
        ways = [Way("as given", factory, protocol or usual, options)]
    share, sizes = -(-pairs // len(ways)), people.numbers.sizes
    plans = [(way, people.pairs(way, share, i), "") for i, way in enumerate(ways)]
    if "rule" not in options:
        longest = max([LONG, *(size + 2 for size in sizes(_LONGEST))])
        for way, size in zip(ways, (longest, LONG // 3), strict=False):
            times = 5 if size >= LONG and max(sizes(size), default=0) > people.users else 1
            crowds = [people.crowd(way, size, i) for i in range(times)]
            plans.append((_long(way, people.numbers), crowds, "long, "))
    name = getattr(learner, "__name__", type(learner).__name__)
    report, end = CheckReport(name, (), UNSEEN), time.monotonic() + seconds
    for way, found, long in plans:
        finding = _finding(way, found, people, long, end)
        report = replace(report, findings=(*report.findings, finding))
        if isinstance(finding.evidence, InterferenceError):
            finding.evidence.evidence = report
            raise finding.evidence
    return _concluded(report, options)


def _finding(
    way: Way, pairs: Iterable[Population], people: _People, long: str, end: float
) -> Finding:
    """What one way of running showed; a long run that cannot be done is no more than weak."""
    began = time.perf_counter()
    try:
        found = replayed(way, pairs, people.seed, end)
    except InterferenceError as error:
        return Finding(long + way.how, "violated", str(error), evidence=error)
    except FailsOnBothError as error:
        return Finding(long + way.how, "not done", str(error), evidence=error)
    except CheckError as error:
        if not long and time.monotonic() >= end:
            raise CheckError(f"the seconds of check_learner are over: {error}") from None
        if not long:
            raise
        short = Axis("users", "a long run could not be done", enough=False)
        return Finding(long + way.how, "weak", str(error), Coverage((short,)))
    numbers = people.numbers.numbers
    mentioned = f"; {len(numbers)} that the code mentions" if numbers else ""
    moved = sum(replay.moved > 0 for replay in found)
    users = max((replay.users for replay in found), default=0)
    axes = (
        Axis("users", f"{users:,}"),
        Axis("pairs", f"{len(found)}, of which {moved} moved what is paid for", enough=moved > 0),
        Axis("records", "well-formed, malformed, null; one user differs, and about half of them"),
        Axis("values", f"random{mentioned}"),
    )
    told = "nothing of one user's record was found but what was paid for, on "
    told += f"{len(found)} pairs of {users:,} users; the same errors went to "
    told += f"{sum(each.failures for each in found)} users"
    verdict: Verdict = "not refuted" if moved else "weak"
    seconds = time.perf_counter() - began
    return Finding(long + way.how, verdict, told, Coverage(axes), found, seconds)


def replayed(
    way: Way, people: Iterable[Population], seed: int, end: float = math.inf
) -> list[Replay]:
    """Checks a learner on pairs of neighbours or of crowds, until ``end`` of `time.monotonic`.
    Raises as `assert_noninterference`; where a learner fails on both data sets, after all others.
    """
    found, failed = list[Replay](), list[FailsOnBothError]()
    for number, (data, neighbour) in enumerate(people):
        alone = "rule" in way.options or len(differing(data, neighbour)) == 1
        options = {"protocol": way.protocol, "seed": number, "crowd": not alone, **way.options}
        left = max(end - time.monotonic(), 0.01)
        options["seconds"] = min(options.get("seconds", _SECONDS), left)
        try:
            found.append(assert_noninterference(way.factory, data, neighbour, **options))
        except FailsOnBothError as error:
            failed.append(error)
        except Exception as error:
            error.add_note(f"{way.how}: pair {number} of seed {seed}")
            raise
    if failed:
        raise failed[0]
    return found


def _concluded(report: CheckReport, options: dict[str, Any]) -> CheckReport:
    """With what the operator has to keep to himself; raises where nothing that was paid moved."""
    replays = [one for f in report if isinstance(f.evidence, list) for one in f.evidence]
    for finding in report.undone:
        raise CheckError(finding.detail)
    if not (any(replay.moved for replay in replays) or options.get("may_spend_nothing")):
        raise CheckError(f"{report.subject}: nothing that was paid for moved: take more users")
    hidden, telling = (
        ", ".join(sorted({name for replay in replays for name in getattr(replay, names)}))
        for names in ("operator_only", "telling")
    )
    told = f"not compared: {hidden or 'nothing'}"
    findings = [*report, Finding("operator_only", "not applicable", told)]
    if telling:
        methods = Axis("methods", f"{telling} tell of data", enough=False)
        why = "answer otherwise for a neighbour: only the operator may call them, or they leak"
        findings.append(Finding("methods", "weak", f"{methods.tried}: {why}", Coverage((methods,))))
    return replace(report, findings=tuple(findings))


def _checked_pipeline(
    run: Any, rows: Any, neighbours: Any, seed: int, options: dict[str, Any]
) -> CheckReport:
    n, name, found = length(rows), getattr(run, "__name__", "the pipeline"), list[Replay]()
    nulls = dict.fromkeys((0, n // 2, n - 1))
    for other in nulls if neighbours is None else [neighbours]:
        try:
            found.append(assert_pipeline_noninterference(run, rows, other, seed=seed, **options))
        except InterferenceError as error:
            finding = Finding("replay", "violated", str(error), evidence=error)
            error.evidence = CheckReport(name, (finding,), UNSEEN)
            raise
    moved = sum(replay.moved > 0 for replay in found)
    axes = Axis("sizes", f"{n} rows only", enough=False), Axis("pairs", f"{len(found)}", moved > 0)
    what = f"{moved} of {len(found)} neighbours moved what was paid for, and nothing else changed"
    finding = Finding("replay", "not refuted" if moved else "weak", what, Coverage(axes), found)
    return CheckReport(name, (finding,), UNSEEN)


@dataclass(frozen=True)
class _People:
    """Makes pairs of populations, or takes users of those that are given."""

    seed: int
    users: int
    numbers: Mined
    given: list[Population]

    def pairs(self, way: Way, pairs: int, number: int) -> Iterable[Population]:
        """For one way of running."""
        if self.given:
            return self.given
        seed, rule = self.seed + number, way.options.get("rule")
        sizes: dict[str, Any] = {"n_items": way.n_items, "dim": way.dim, "users": self.users}
        if rule is not None:
            public = rule.pattern == "public"
            found = [returning_pair(seed, i, public=public, **sizes) for i in range(pairs)]
        else:
            more: dict[str, Any] = {**sizes, "numbers": self.numbers.values()}
            crowds = range(-(-pairs // 2))
            found = [crowd_pair(seed, i, malformed=0.1 * (i % 2), **more) for i in crowds]
            found += generated_pairs(pairs // 2, seed, **sizes)
        return late(found, seed) if way.how == _LATE else found

    def crowd(self, way: Way, users: int, pair: int) -> Population:
        """For a long run."""
        if not self.given:
            sizes: dict[str, Any] = {"n_items": way.n_items, "dim": way.dim, "users": users}
            bad, numbers = 0.0 if users >= LONG else 0.1, self.numbers.values()
            return crowd_pair(self.seed, pair, numbers=numbers, malformed=bad, **sizes)
        rng = np.random.default_rng([self.seed, pair])
        pool = [*self.given[0][0], *self.given[0][1]]
        data = [pool[i] for i in rng.integers(len(pool), size=users)]
        draw = rng.integers(2 * len(pool), size=users)
        return data, [data[k] if i >= len(pool) else pool[i] for k, i in enumerate(draw)]


def _long(way: Way, numbers: Mined) -> Way:
    """The same with fewer looks, and those about sizes that the code mentions."""
    rng = np.random.default_rng(0)
    looks = {*range(8), *(int(1.3**k) for k in range(6, 30)), *numbers.sizes(_LONGEST)}
    looks |= {int(at) for at in rng.integers(LONG, size=12)}
    options = {**way.options, "looks": looks, "seconds": _SECONDS_OF_LONG, "restarts": ()}
    return replace(way, options=options)


def _starter(learner: Learner) -> Callable[[Any], Any]:
    kind, params = type(learner), learner.get_params()
    return lambda accountant: kind(**params).start(accountant)


def _ways(learner: Learner, users: int, options: dict[str, Any]) -> list[Way]:
    kind = _kind(learner, people="rule" in options)
    probe = partial(predictions, width=kind.width)

    def way(how: str, protocol: InteractionProtocol, **more: Any) -> Way:
        given = {"accountant": kind.accountant, "probe": probe, **options, **more}
        return Way(how, started, protocol, given, *kind.sizes)

    started = _starter(learner)
    ways = [way("one by one", kind.one), way(f"in blocks of {_BLOCK}", kind.block)]
    if kind.late is not None:
        ways.append(way(_LATE, kind.late))
    return [*ways, way("with a restart", kind.one, restarts=(users // 2,))]


class _Kind(NamedTuple):
    one: InteractionProtocol
    block: InteractionProtocol
    late: InteractionProtocol | None
    sizes: tuple[int, int]
    """Of the arrays that users send: rows, of which each is an item or an arm, and columns."""
    accountant: Callable[..., Any] = JointAccountant
    width: int = 1  # Of made-up rows that predictions are for


def predictions(learner: Any, *, width: int) -> list[Any]:
    """What a learner says of made-up rows, if it has such methods: a probe of replays."""
    names = ("predict", "decision_function")
    return [getattr(learner, name)(np.eye(width)) for name in names if hasattr(learner, name)]


def _kind(learner: Learner, *, people: bool) -> _Kind:
    how: dict[str, Any] = {}
    match learner:
        case ServedMNL():
            usual: InteractionProtocol = serve_people if people else serve
            block, late = played(_BLOCK, people=people), offered(_WAIT, people=people)
            return _Kind(usual, block, late, (learner.n_items, learner.dim))
        case StreamLearner():
            one, block = examples(people=people), examples(_BLOCK, people=people)
            return _Kind(one, block, None, (learner._dim, 1), CentralAccountant, learner._dim)
        case ServedBandit():
            sizes, width = (learner.dim, 1), learner.dim
        case ServedActions():
            how, width = {"slates": not learner.per_action}, learner.dim
            sizes = (learner.dim, 1) if learner.per_action else (learner.n_actions, learner.dim)
        case PhaseLearner():
            how, sizes, width = {"contexts": False}, (learner.n_arms, 1), 1
        case PrivateExperts():
            wide = learner.n_experts if learner.n_actions is None else learner.n_actions
            how = {"contexts": learner.dim is not None, "losses": wide}
            sizes, width = (learner.dim or wide, 1), 1
        case _:
            raise CheckError(f"{type(learner).__name__}: of a kind of its own, give a protocol=")
    how["people"] = people
    wait = 0 if isinstance(learner, PhaseLearner) else _WAIT
    late = offered(wait, arms=True, **how)
    return _Kind(pulled(**how), pulled(_BLOCK, **how), late, sizes, width=width)
