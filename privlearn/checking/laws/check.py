"""`check_mechanism`: whether code that releases something keeps what it promises.

It is a function of data, or any object with ``loss()`` and ``release(rows, token)``, or ``open``
for a stream. A mechanism is run on a real accountant, with an observer of what it does; runs that
must agree are compared, since noise can be held fixed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

import numpy as np
from numpy.random import Generator as RandomGenerator

from privlearn.checking.exact.check import white_box
from privlearn.checking.exact.functions import function_finding
from privlearn.checking.exact.probe import UnpredictedError
from privlearn.checking.isolation import (
    FORKS,
    TimeLimit,
    contained,
    own_copy,
    silenced,
    tried_apart,
)
from privlearn.checking.laws.domains import example_records
from privlearn.checking.laws.mechanisms import MECHANISM_CHECKS, USERS, Case
from privlearn.checking.neighbours import default_pairs, informative_records, stated_spend
from privlearn.checking.reports import (
    COMPUTED,
    ORDER,
    SECONDS,
    Axis,
    Broken,
    CheckReport,
    Coverage,
    Evidence,
    Finding,
    LawFinding,
    Verdict,
    perform,
    perform_all,
)
from privlearn.checking.sampling.check import black_box
from privlearn.checking.session import CheckSession, current, note
from privlearn.checking.stream_runs import (
    StubAccountant,
    declared_users,
    fixed_users,
    is_stream,
    released_by,
)
from privlearn.checking.targets import Claimable, SamplingTarget, name_of, sampling_target
from privlearn.contract.protocols import Mechanism, Streaming
from privlearn.errors import CheckError, HorizonError, UsersError
from privlearn.losses import Loss
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import length, record_at
from privlearn.values.user_code import attempted

CONFIDENCE = 0.99
"""Of bounds in tests that name none: one correct check in a hundred may fail, and with a fixed seed
it does so always or never."""
SAMPLES = 5_000  # Runs, on both data sets together, where none are asked for
LEAST = 40
_TIMED = 3
FEW = 1_000  # As many where the exact loss is known


@dataclass(frozen=True, slots=True)
class Sampling:
    """How outputs are drawn; see `check_mechanism`."""

    samples: int | None = None
    confidence: float = CONFIDENCE
    seed: int = 0
    seconds: float = SECONDS
    bits: bool | None = None

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1:
            raise CheckError(f"confidence = {self.confidence!r}: must lie between 0.5 and 1")
        if self.samples is not None and self.samples < LEAST:
            raise CheckError(f"samples = {self.samples!r}: must be at least {LEAST}")
        if not 0 < self.seconds < float("inf"):
            raise CheckError(f"seconds = {self.seconds!r}: must be a finite number above 0")


def _how(
    samples: int | None, confidence: float | None, seed: int, seconds: float | None, bits: Any
) -> Sampling:
    """What was asked for or the default, and no more time than the running test has left."""
    session = current() or CheckSession()
    level = session.confidence if confidence is None else confidence
    level, limit = CONFIDENCE if level is None else level, SECONDS if seconds is None else seconds
    if (left := session.seconds_left) is not None and left <= 0:
        raise CheckError("seconds: the time that the test's privacy marker allows is used up")
    return Sampling(samples, level, seed, limit if left is None else min(limit, left), bits)


def exactly(mechanism: Any, claim: Claimable | None, pairs: Any, seconds: float) -> Finding:
    """The exact loss beside the claim, where it can be computed (`white_box`)."""
    try:
        with TimeLimit(seconds, "it"):
            result = white_box(mechanism, claim, pairs)
    except UnpredictedError as error:  # so it was looked at, and something was seen
        axis = Axis("noise", f"acts otherwise on {len(error.pairs)} pairs that were found", False)
        return Finding("exact", "window", f"not computed: {error}", Coverage((axis,)), error)
    except CheckError as error:
        return Finding("exact", "not applicable", f"not computed: {error}")
    verdict: Verdict = "tight" if result.tight else "holds" if result.whole else "window"
    if result.violated:
        verdict = "violated"
    detail = str(result) if result.violated else str(result).splitlines()[0]
    return Finding("exact", verdict, detail, result.coverage, result, result.seconds)


def by_samples(subject: SamplingTarget[Any], how: Sampling, known: bool = False) -> Finding:
    """A bound from samples, and whether they refute half the claim, fewer if its loss is known."""
    evidence = black_box(
        subject,
        samples=how.samples or _affordable(subject, how, FEW if known else SAMPLES),
        confidence=how.confidence,
        seed=how.seed,
        seconds=how.seconds,
        bits=how.bits,
    )
    strong = evidence.bound > evidence.claimed / 2
    told = "half the claim would be refuted" if strong else "NOT EVEN HALF THE CLAIM IS REFUTED"
    power = f"{told} (at least {evidence.bound:.3g} of {evidence.claimed:.3g})"
    verdict: Verdict = "not refuted" if strong else "weak"
    return Finding(
        "samples",
        "violated" if evidence.violated else verdict,
        str(evidence),
        Coverage((Axis("power", power, strong), *evidence.coverage.axes)),
        evidence,
        evidence.seconds,
    )


def _affordable(subject: SamplingTarget[Any], how: Sampling, most: int) -> int:
    """As many as take a third of the time limit, where a run is slow."""
    draw = subject.start(subject.neighbours[0][0], how.seed)
    took = []
    for _ in range(_TIMED):
        began = time.perf_counter()
        attempted(draw)
        took.append(time.perf_counter() - began)
    return max(LEAST, min(most, int(how.seconds / 3 / max(min(took), 1e-9))))


D = TypeVar("D")
D_contra = TypeVar("D_contra", contravariant=True)
X = TypeVar("X")
UNSEEN = "what a function prints, warns of or logs", "files, other processes, how long it takes"
_LONGEST = 64  # Users of a stream that says nothing of a horizon, and lets nothing out of fewer
_PAIRS = 3  # Pairs of a mechanism whose domain is known from its spend only


class _NamedGenerator(Protocol[D_contra]):
    def __call__(self, data: D_contra, /, *, rng: RandomGenerator) -> object: ...


Pairs = tuple[D, D] | Iterable[tuple[D, D]]  # One pair of neighbours, or several


class CheckOptions(TypedDict, total=False):
    """Of `check_mechanism`."""

    samples: int | None
    confidence: float | None
    seed: int
    seconds: float | None
    adjacency: Adjacency | None
    bits: bool | None
    name: str | None
    raise_error: bool


@overload
def check_mechanism(
    mechanism: Callable[[D, RandomGenerator], object] | Callable[[D], object] | _NamedGenerator[D],
    claim: Claimable,
    *,
    neighbours: Pairs[D],
    **options: Unpack[CheckOptions],
) -> CheckReport: ...
@overload
def check_mechanism(
    mechanism: Mechanism[X] | Streaming[Any] | SamplingTarget[X],
    claim: Claimable | None = ...,
    *,
    neighbours: Pairs[X] | None = ...,
    records: X | None = ...,
    **options: Unpack[CheckOptions],
) -> CheckReport: ...
@silenced
def check_mechanism(
    mechanism: Any,
    claim: Claimable | None = None,
    *,
    neighbours: Any = None,
    records: Any = None,
    samples: int | None = None,
    confidence: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
    adjacency: Adjacency | None = None,
    bits: bool | None = None,
    name: str | None = None,
    raise_error: bool = True,
) -> CheckReport:
    """Checks that code which releases something loses no more privacy than it claims.

    A mechanism is tried against every law that accountants and learners rely on; its loss and that
    of a function are computed exactly where that can be done, and bounded from below by samples.

    Args:
        mechanism: ``f(data, rng)`` or ``f(data)``; or a mechanism, with ``loss()`` and
            ``release(rows, token)`` or ``open(token)``; or a `SamplingTarget`.
        claim: what it promises; default, for a mechanism, its ``loss()``.
        neighbours: a pair of data sets, or several; default, for a mechanism, blocks of examples
            that are furthest apart.
        records: a block of example records (leading axis: users) of a mechanism; default extreme
            records of a shipped domain.  A domain of your own that takes no plain vectors needs
            them.
        samples: runs, of both data sets together; default 5,000, or 1,000 where the exact loss is
            known, and fewer where these take more than a third of the time limit.
        confidence: of the bound; default that of the test (marker ``privacy``, or
            ``--privacy-confidence``), else 0.99.
        seed: of noise and samples.
        seconds: time limit of one check, and a third of that of all; default 60, or what the test
            has left.
        adjacency: if given, pairs that are no such neighbours are refused.
        bits: whether what the last bits of floating-point numbers tell counts, too; default: where
            noise is said to be exact.  It refutes nearly all noise that is added to doubles.
        name: for messages.
        raise_error: whether to raise, or only report.

    Returns:
        One finding for each check: the laws of a mechanism by name, "exact" and "samples".

    Raises:
        PrivacyViolation: something was refuted; the message names it all.
        CheckError: something could not be done, or there is nothing to check.
    """
    how = _how(samples, confidence, seed, seconds, bits)
    report = checked(mechanism, claim, neighbours, records, adjacency, name, how=how)
    note(report.summary())
    if raise_error:
        report.raise_if_bad()
    return report


def checked(
    mechanism: Any,
    claim: Claimable | None = None,
    neighbours: Any = None,
    records: Any = None,
    adjacency: Adjacency | None = None,
    name: str | None = None,
    *,
    how: Sampling,
) -> CheckReport:
    """What `check_mechanism` finds."""
    case, laws, subject = None, CheckReport("", ()), None
    untouched = own_copy(mechanism) if is_mechanism(mechanism) else None

    def process(_: None) -> LawFinding:
        tried_apart(partial(_once, mechanism, claim, neighbours, records), how.seconds, "it")
        return "ends, and leaves its process as it is"

    apart = perform(process, None, 2 * how.seconds)
    if apart.verdict != "holds":
        return CheckReport(name or name_of(mechanism), (apart,))
    if neighbours is not None or not is_mechanism(mechanism):  # refused before anything is found
        subject = sampling_target(mechanism, claim, neighbours, name=name, adjacency=adjacency)
        neighbours = list(subject.neighbours)
    if is_mechanism(mechanism):
        loss = _stated(mechanism)
        first = perform(check_runs_on_null_records, (mechanism, loss), how.seconds)
        if first.verdict != "holds":
            return CheckReport(name or name_of(mechanism), (first,))
        case = case_of(mechanism, untouched, records=records, seed=how.seed, name=name)
        laws = perform_all(case.name, MECHANISM_CHECKS, case, how.seconds)
        subject = subject or sampled_subject(case, claim)
    assert subject is not None, "of a function it was made above"
    looks = looks_at_claim(subject, case, claim, neighbours, how)
    refuted = [look for look in looks if look.verdict == "violated" and look.evidence is not None]
    if refuted:
        last = refuted[-1]
        told = f"{last.detail}\n  reproduce: {_call(mechanism, claim, neighbours, adjacency, how)}"
        if isinstance(last.evidence, Evidence):
            pair, pairs = last.evidence.pair, len(subject.neighbours)
            told += f"\n  where: pair {pair} of {pairs} (counted from 0)"
        looks[looks.index(last)] = replace(last, detail=told)
    if contained.forks:
        looks.append(Finding("process", "not done", f"it {FORKS}, {contained.forks} times"))
    return CheckReport(subject.name, (*laws, *looks), UNSEEN if case is None else UNSEEN[1:])


def _once(mechanism: Any, claim: Claimable | None, neighbours: Any, records: Any) -> None:
    if neighbours is None and is_mechanism(mechanism):
        case = case_of(mechanism, records=records)
        case.run(case.rows)
        return
    target = sampling_target(mechanism, claim, neighbours)
    for data in target.neighbours[0]:
        target.start(data, 0)()


def looks_at_claim(
    subject: SamplingTarget[Any],
    case: Case | None,
    claim: Claimable | None,
    neighbours: Any,
    how: Sampling,
) -> list[Finding]:
    """The exact loss, where it can be computed, and what samples say."""

    def exact(case: Case | None) -> Finding:
        if case is not None:
            return exactly(case.mechanism, claim, _exact_pairs(case, neighbours), how.seconds)
        assert subject.function is not None
        try:
            with TimeLimit(how.seconds, "it"):
                return function_finding(subject.function, subject.claim, subject.neighbours)
        except CheckError as error:
            return Finding("exact", "not applicable", f"not computed: {error}")

    def samples(subject: SamplingTarget[Any]) -> Finding:
        return by_samples(subject, how, known)

    looks, known = list[Finding](), False
    if case is not None or subject.function is not None:
        first = perform(exact, case, 2 * how.seconds)
        looks = [first]
        if first.verdict == "not done":  # samples would not be independent
            return looks
        if isinstance(first.evidence, UnpredictedError):  # outputs were not as predicted
            subject = replace(subject, neighbours=[*first.evidence.pairs, *subject.neighbours])
        elif first.evidence is not None:
            # In a window, too, numbers were computed: samples are for what is no number.
            known = first.verdict in (COMPUTED if case is None else {*COMPUTED, "window"})
    sampled = perform(samples, subject, how.seconds)
    if all(x.verdict == "not applicable" for x in looks) and sampled.coverage.missing:
        sampled = replace(sampled, verdict=max(sampled.verdict, "weak", key=ORDER.index))
    return [*looks, sampled]


def is_mechanism(made: Any) -> bool:
    """Whether it has the protocol of a mechanism; else it is a function, or says what it is."""
    return hasattr(made, "release") or hasattr(made, "open")


def _stated(mechanism: Any) -> Loss:
    if not hasattr(mechanism, "loss"):
        raise CheckError(f"mechanism = {mechanism!r}: needs loss(), its price")
    loss = mechanism.loss()
    if not isinstance(loss, Loss):
        raise CheckError(f"{type(mechanism).__name__}.loss() is {loss!r}: must be a Loss")
    return loss


def check_runs_on_null_records(tried: tuple[Any, Loss]) -> LawFinding:
    """It can be run at all, and spends its token."""
    mechanism, loss = tried
    if stated_spend(mechanism, loss.adjacency) is None:
        raise Broken("it releases without spending its token")
    return "spends"


def case_of(
    mechanism: Any,
    untouched: Any = None,
    *,
    records: Any = None,
    seed: int = 0,
    name: str | None = None,
) -> Case:
    """A mechanism that runs on null records, with the records it is tried on. ``untouched``: a copy
    of it from before its first run."""
    loss = _stated(mechanism)
    spend = stated_spend(mechanism, loss.adjacency)
    assert spend is not None
    records = own_copy(records)
    examples = example_records(spend.domain, records, seed)
    # Extreme records come in opposite pairs; a block must not add up to the null record's zero.
    n = _most_users(mechanism, loss)
    order = np.concatenate([[0, 0], 2 * np.arange(n)])[:n] % length(examples)
    block, name = record_at(examples, order), name or name_of(mechanism)
    before = mechanism if untouched is None else untouched
    return Case(mechanism, name, loss, spend, block, seed, examples, records, before)


def _most_users(mechanism: Any, loss: Loss) -> int:
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    stub = StubAccountant(0, loss.adjacency)

    def released(n: int) -> Any:
        users = range(n)
        return released_by(mechanism, Rows.null(users), stub.issue(users))[1]

    for n in range(USERS, 1, -1):
        with contextlib.suppress(HorizonError, UsersError):
            released(n)
            # A stream may let nothing out of so few.
            longest = declared_users(mechanism) or _LONGEST
            more = range(n, longest + 1) if is_stream(mechanism) else ()
            return next((k for k in more if np.size(released(k))), n)
    return 1


def sampled_subject(case: Case, claim: Claimable | None) -> SamplingTarget[Any]:
    """What is sampled of a mechanism where no neighbours are given."""
    pairs = _default_pairs(case)
    given = sampling_target(case.mechanism, claim, pairs[:1], name=case.name)
    return replace(given, neighbours=pairs, default_neighbours=True)


def _exact_pairs(case: Case, neighbours: Any) -> Any:
    """Pairs for the exact loss; None where it is left to find them."""
    if neighbours is not None or hasattr(case.mechanism, "domain"):
        return neighbours
    if case.records is None:
        with contextlib.suppress(CheckError):  # a domain of somebody else's
            informative_records(case.spend.domain, seed=case.seed)
            return None
    pairs = _default_pairs(case)  # of choices the worst are looked for
    return pairs if isinstance(case.spend.noise, GumbelNoise) else pairs[:_PAIRS]


def _default_pairs(case: Case) -> list[tuple[Any, Any]]:
    records = case.records
    if records is None:
        try:
            records = informative_records(case.spend.domain, seed=case.seed)
        except CheckError:  # a domain of somebody else's
            records = case.examples
    return default_pairs(case.mechanism, adjacency=case.loss.adjacency, records=records)


def _call(mechanism: Any, claim: Any, neighbours: Any, adjacency: Any, how: Sampling) -> str:
    shown = [str(getattr(mechanism, "__name__", None) or type(mechanism).__name__)]
    if claim is not None:
        text = f"loss_from_dict({claim.to_dict()!r})" if isinstance(claim, Loss) else repr(claim)
        shown.append(text)
    shown += ["neighbours=neighbours"] if neighbours is not None else []
    given = {"adjacency": adjacency, "bits": how.bits, "samples": how.samples}
    shown += [f"{name}={value}" for name, value in given.items() if value is not None]
    shown += [f"confidence={how.confidence!r}, seed={how.seed}"]
    return f"check_mechanism({', '.join(shown)})"
