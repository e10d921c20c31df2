"""One line in a test: `assert_private` and `assert_budget`.

Both return what they found, and leave a line for the summary of the pytest plugin, because a test
that passes says nothing by itself: `assert_private` says which loss the samples exclude, with
which confidence; `assert_budget` says who spent how much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.random import Generator as RandomGenerator

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.state import AccountState, Checked
from privlearn.checking.accountant_usage import AccountantUsage, watch_accountants
from privlearn.checking.budget_reports import (
    GUARANTEE,
    SPENT,
    Basis,
    BudgetReport,
    measure,
    other_figure,
    used_at_all,
)
from privlearn.checking.evidence import Evidence
from privlearn.checking.exact.check import ExactResult, white_box
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.isolation import TimeLimit, silenced
from privlearn.checking.power import noted, weakness
from privlearn.checking.sampling.check import black_box
from privlearn.checking.session import current, note
from privlearn.checking.targets import Claimable, SamplingTarget, sampling_target
from privlearn.errors import CheckError, InsufficientBudgetError, PrivacyViolation
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.entries import OpenEntry, parse_entry
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency, Trust

__tracebackhide__ = told_in_full

D = TypeVar("D")
D_contra = TypeVar("D_contra", contravariant=True)
X = TypeVar("X")

CONFIDENCE = 0.99
"""Of bounds in tests that name none: one correct check in a hundred may fail, and with a fixed seed
it does so always or never."""
SAMPLES = 5_000
"""Runs, on both data sets together, where none are asked for."""
SECOND_LOOK = 4
"""So many times as many are taken where these show little and nothing exact is known."""
SECONDS = 60.0
"""Time limit of one check."""
USERS = range(1_000)
"""Whom the accountant protects that `assert_budget` makes."""
_ROOM = 1_000
"""How many times ``at_most`` a run may spend before it is refused, once it was found to spend more
than that."""


class _NamedGenerator(Protocol[D_contra]):
    def __call__(self, data: D_contra, /, *, rng: RandomGenerator) -> object: ...


class _Releasing(Protocol[X]):
    def loss(self) -> Loss: ...
    def release(self, rows: Rows[X], token: Any, /) -> Any: ...


class _Appending(Protocol[X]):
    def append(self, rows: Rows[X], /) -> Any: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class _Streaming(Protocol[X]):
    def loss(self) -> Loss: ...
    def open(self, token: Any, /) -> _Appending[X]: ...


Pairs = tuple[D, D] | Iterable[tuple[D, D]]
"""One pair of neighbours, or several."""


@overload
def assert_private(
    mechanism: Callable[[D, RandomGenerator], object] | Callable[[D], object] | _NamedGenerator[D],
    claim: Claimable,
    *,
    neighbours: Pairs[D],
    samples: int | None = ...,
    sequential: bool = ...,
    confidence: float | None = ...,
    distinguisher: Callable[[Any], float] | None = ...,
    seed: int = ...,
    seconds: float | None = ...,
    adjacency: Adjacency | None = ...,
    bits: bool | None = ...,
    name: str | None = ...,
) -> Evidence: ...
@overload
def assert_private(
    mechanism: _Releasing[X] | _Streaming[X] | SamplingTarget[X],
    claim: Claimable | None = ...,
    *,
    neighbours: Pairs[X] | None = ...,
    samples: int | None = ...,
    sequential: bool = ...,
    confidence: float | None = ...,
    distinguisher: Callable[[Any], float] | None = ...,
    seed: int = ...,
    seconds: float | None = ...,
    adjacency: Adjacency | None = ...,
    bits: bool | None = ...,
    name: str | None = ...,
) -> Evidence: ...
@silenced
def assert_private(
    mechanism: Any,
    claim: Claimable | None = None,
    *,
    neighbours: Any = None,
    samples: int | None = None,
    sequential: bool = False,
    confidence: float | None = None,
    distinguisher: Callable[[Any], float] | None = None,
    seed: int = 0,
    seconds: float | None = None,
    adjacency: Adjacency | None = None,
    bits: bool | None = None,
    name: str | None = None,
) -> Evidence:
    """Raises if a mechanism is seen to lose more privacy than it claims.

    A check that passes proves nothing: what is returned says which loss the samples exclude.  For a
    mechanism that adds its noise to one release or along a stream, the exact divergence is computed
    too (`white_box`), which finds what is too little for samples; a note says what came of that.

    Args:
        mechanism: ``f(data, rng)``, ``f(data)``, a mechanism of this package's protocol, or a
            `SamplingTarget`; see `sampling_target`.
        claim: what it promises; default, for a mechanism, its ``loss()``.
        neighbours: a pair of data sets, or a list of pairs; default, for a mechanism with a shipped
            domain, its extreme records.
        samples: runs, of both data sets; default 5000, and 20,000 more where these do not even
            refute half the claim and nothing exact is known (each look then errs with half of the
            probability).
        sequential: stop as soon as the claim is refuted.
        confidence: of the bound; default that of the test (marker ``privacy``, or
            ``--privacy-confidence``), else 0.99.
        distinguisher: scores outputs, larger ones speak for the first data set; default: learned.
        seed: the same seed gives the same samples.
        seconds: time limit; default 60, or what the test has left.
        adjacency: if given, pairs that are no such neighbours are refused.
        bits: look at the last bits of floating-point numbers too; default: where noise is said to
            be exact; see `black_box`.
        name: for messages.

    Raises:
        PrivacyViolation: with the bound, the event that separates them, and a line that finds
            it again; its ``evidence`` is the `Evidence`, or the `ExactResult`.
        CheckError: the check cannot be done as asked for, or takes too long.
    """
    subject = sampling_target(mechanism, claim, neighbours, name=name, adjacency=adjacency)
    settings: dict[str, Any] = {} if samples is None else {"samples": samples}
    settings |= {"sequential": sequential, "confidence": level_of(confidence), "seed": seed}
    if bits is not None:
        settings["bits"] = bits
    look = partial(
        _look, subject, distinguisher=distinguisher, seconds=time_of(seconds), **settings
    )
    evidence = look()
    given = neighbours is not None or not hasattr(mechanism, "domain")
    pairs = list(subject.neighbours) if given else None
    exact = _exact(mechanism, claim, pairs, time_of(seconds))
    if not (isinstance(exact, ExactResult) and exact.whole):
        if samples is None and weakness(evidence):
            evidence = _looked_at_again(evidence, look)
        evidence = noted(evidence)
    if exact is not None:
        evidence = replace(evidence, notes=(*evidence.notes, str(exact).splitlines()[0]))
    note(summary_line(evidence))
    if isinstance(exact, ExactResult) and exact.violated and not evidence.violated:
        note(f"{subject.name}: VIOLATED by the exact divergence")
        raise PrivacyViolation(
            f"{exact}\n{evidence}\n  reproduce: white_box({_name(mechanism)}).demand()", exact
        )
    if evidence.violated:
        passed = {"claim": claim, "neighbours": neighbours, "distinguisher": distinguisher}
        line = _call(mechanism, passed | {"adjacency": adjacency}, settings)
        raise PrivacyViolation(
            f"{evidence}\n  reproduce: {line}\n  where: pair {evidence.pair} of "
            f"{len(subject.neighbours)} (counted from 0)",
            evidence,
        )
    return evidence


def _look(
    subject: SamplingTarget[Any],
    *,
    confidence: float,
    seed: int,
    samples: int | None = None,
    times: int = 1,
    **options: Any,
) -> Evidence:
    if samples is not None:
        return black_box(subject, samples=samples, confidence=confidence, seed=seed, **options)
    fresh = int(np.random.SeedSequence([seed, times]).generate_state(1)[0])
    evidence = black_box(
        subject,
        samples=times * SAMPLES,
        confidence=(1 + confidence) / 2,
        seed=seed if times == 1 else fresh,
        **options,
    )
    return replace(evidence, confidence=confidence)


def _looked_at_again(first: Evidence, look: Callable[..., Evidence]) -> Evidence:
    try:
        second = look(times=SECOND_LOOK)
    except CheckError as error:  # they take too long
        return replace(first, notes=(*first.notes, f"not looked at again: {error}"))
    return max(first, second, key=lambda evidence: evidence.bound)


def level_of(confidence: float | None) -> float:
    """What was asked for, else the running test's confidence, else the default."""
    session = current()
    if confidence is None and session is not None:
        confidence = session.confidence
    return CONFIDENCE if confidence is None else confidence


def time_of(seconds: float | None) -> float:
    """What was asked for or the default, but no more than the running test has left.

    Raises:
        CheckError: the test has nothing left.
    """
    session = current()
    left = None if session is None else session.seconds_left
    if left is not None and left <= 0:
        raise CheckError("seconds: the time that the test's privacy marker allows is used up")
    limit = SECONDS if seconds is None else seconds
    return limit if left is None else min(limit, left)


def summary_line(evidence: Evidence) -> str:
    """What one check found, on one line."""
    verdict = "VIOLATED" if evidence.violated else "not refuted"
    verdict += " (weak)" if weakness(evidence) in evidence.notes else ""
    return (
        f"{evidence.subject}: claim {evidence.claim}: {verdict}; {evidence.unit} >= "
        f"{evidence.bound:.4g} of {evidence.claimed:.4g} at confidence {evidence.confidence:g} "
        f"({evidence.samples} samples, {evidence.seconds:.2f} s)"
    )


def _exact(
    mechanism: Any, claim: Claimable | None, pairs: list[tuple[Any, Any]] | None, seconds: float
) -> ExactResult | str | None:
    """The exact divergence; or why it is not known; None for what is no mechanism."""
    if not (hasattr(mechanism, "release") or hasattr(mechanism, "open")):
        return None
    if not hasattr(mechanism, "loss"):
        return None
    try:
        with TimeLimit(seconds, "it"):
            return white_box(mechanism, claim, pairs)
    except CheckError as error:
        return f"not checked exactly: {error}"


def _name(mechanism: Any) -> str:
    return str(getattr(mechanism, "__name__", None) or type(mechanism).__name__)


def _call(mechanism: Any, given: dict[str, Any], settings: dict[str, Any]) -> str:
    shown = [_name(mechanism)]
    for argument, value in given.items():
        if value is None:
            continue
        if argument == "claim":
            stated = isinstance(value, Loss)
            shown.append(f"loss_from_dict({value.to_dict()!r})" if stated else repr(value))
        else:
            text = str(value) if argument == "adjacency" else getattr(value, "__name__", argument)
            shown.append(f"{argument}={text}")
    shown += [f"{setting}={value!r}" for setting, value in settings.items()]
    return f"assert_private({', '.join(shown)})"


# Budgets ----------------------------------------------------------------------------------------


Used = CentralAccountant[Any] | JointAccountant[Any] | LocalAccountant[Any]
_ACCOUNTANTS = (CentralAccountant, JointAccountant, LocalAccountant)


def in_memory(
    budget: Currency | ApproxDP,
    noise: NoiseSource,
    *,
    users: range,
    trust: Trust | str = Trust.CENTRAL,
    adjacency: Adjacency | None = None,
    currency: type[Currency] | None = None,
) -> Used:
    """An accountant that forgets everything when the process ends, for tests.

    Raises:
        ValueError: no such trust.
    """
    kinds: dict[Trust, Any] = {
        Trust.CENTRAL: CentralAccountant,
        Trust.JOINT: JointAccountant,
        Trust.LOCAL: LocalAccountant,
    }
    made: Used = kinds[Trust(trust)](
        budget,
        users=users,
        ledger=Ledger.memory(),
        noise=noise,
        currency=currency,
        adjacency=Adjacency.REPLACE_ONE if adjacency is None else adjacency,
    )
    return made


@overload
def assert_budget(
    run: Callable[[Any], object] | Used | Ledger | str | os.PathLike[str],
    *,
    at_most: Currency | ApproxDP,
    spent: Currency | ApproxDP | None = ...,
    users: range | None = ...,
    trust: Trust | str = ...,
    adjacency: Adjacency | None = ...,
    may_spend_nothing: bool = ...,
    seed: int = ...,
) -> BudgetReport: ...
@overload
def assert_budget(
    run: Callable[[Any], object] | Used | Ledger | str | os.PathLike[str],
    *,
    spent: Currency | ApproxDP,
    users: range | None = ...,
    trust: Trust | str = ...,
    adjacency: Adjacency | None = ...,
    may_spend_nothing: bool = ...,
    seed: int = ...,
) -> BudgetReport: ...
def assert_budget(
    run: Callable[[Any], object] | Used | Ledger | str | os.PathLike[str],
    *,
    at_most: Currency | ApproxDP | None = None,
    spent: Currency | ApproxDP | None = None,
    users: range | None = None,
    trust: Trust | str = Trust.CENTRAL,
    adjacency: Adjacency | None = None,
    may_spend_nothing: bool = False,
    seed: int = 0,
) -> BudgetReport:
    """Raises if a run may lose more than ``at_most`` of some person's privacy, as its ledger says.

    That is the guarantee, as in a certificate: of an accountant with a committed plan the plan, of
    another one its cap, whatever was spent.  All accountants of a ledger, or of a run, add up as in
    `Certificate.epsilon`.  The accountant that a run is given has ``at_most`` for its cap, so that
    nothing beyond can be spent; of that one counts what the run takes: plan, spends, tokens that
    were issued and not handed back, what was delegated or attested.

    Args:
        run: takes an accountant in memory, whose cap is ``at_most``; or an accountant that was
            used, which is looked at by itself, its ledger, or the path of one.  A run that is
            refused for lack of budget is done once more with a larger cap, to say by how much it
            was too much.  Accountants that a run opens or resumes besides the one it was given
            count with it, whatever their ledger and trust: one person may be behind an index in
            each.
        at_most: a currency; or ApproxDP, for which ε is computed as in a certificate.
        spent: what may be spent, ex post, which is no guarantee; by itself or besides ``at_most``.
        users: of the accountant that is made, default ``range(1000)``; else whom to look at, all
            by default.
        trust: of the accountant that is made: "central", "joint" or "local".
        adjacency: of the accountant that is made; default replace-one.
        may_spend_nothing: whether a run that uses nothing is in order.
        seed: of the accountant's noise.

    Returns:
        The report on ``at_most``, or on ``spent`` if only that was given.

    Raises:
        PrivacyViolation: too much, with both figures; the report is its ``evidence``.
        CheckError: nothing was used; a limit cannot be compared with what was used; the ledger
            does not check; a run spends from an accountant that was made before it, or under
            several neighbour relations, and a loss has no price under replace-one.
    """
    limits = _limits(at_most, spent)
    cap, made = limits[0][0], ""
    refused: InsufficientBudgetError | None = None
    within = users
    if isinstance(run, (*_ACCOUNTANTS, Ledger, str, os.PathLike)):
        states = _states(run)
    elif callable(run):
        index, within = USERS if users is None else users, None
        states, refused, made = _run(run, cap, index, trust, adjacency, seed)
    else:
        raise CheckError(
            f"run = {run!r}: must take an accountant, or be a used one, its ledger or its path"
        )
    _check_used(states, within, may_spend_nothing)
    name = str(getattr(run, "__name__", type(run).__name__))
    reports = [measure(states, limit, within, basis, made) for limit, basis in limits]
    for report, (limit, basis) in zip(reports, limits, strict=True):
        if report.exceeded:
            other = SPENT if basis is GUARANTEE else GUARANTEE
            told = replace(report, other=other_figure(states, limit, within, other, made))
            note(f"{name}: {str(told).splitlines()[0]}")
            raise PrivacyViolation(f"{name}: {told}", told)
        note(f"{name}: {str(report).splitlines()[0]}")
    if refused is not None and isinstance(cap, Currency):  # ε may fit where its ρ did not
        raise PrivacyViolation(f"{name}: with a cap of {cap}: {refused}", reports[0])
    return reports[0]


def _limits(
    at_most: Currency | ApproxDP | None, spent: Currency | ApproxDP | None
) -> list[tuple[Currency | ApproxDP, Basis]]:
    limits: list[tuple[Currency | ApproxDP, Basis]] = []
    for name, limit, basis in (("at_most", at_most, GUARANTEE), ("spent", spent, SPENT)):
        if isinstance(limit, PureDP | ZCDP | GaussianDP | Renyi | ApproxDP):
            limits.append((limit, basis))
        elif limit is not None or at_most is spent is None:
            raise CheckError(
                f"{name} = {limit!r}: must be a budget, such as ZCDP('0.5') or ApproxDP(1, 1e-6)"
            )
    return limits


def _check_used(
    states: Sequence[AccountState], within: range | None, may_spend_nothing: bool
) -> None:
    """Raises CheckError where nothing is tested, or ``within`` are no users of the accountants."""
    if within is not None and not any(set(within) & set(state.users) for state in states):
        raise CheckError(f"users = {within!r}: the accountant protects {states[0].users!r}")
    if within is not None and any(state.visits is not None for state in states):
        raise CheckError(f"users = {within!r}: under a rule of participation an index is no person")
    if not may_spend_nothing and not any(used_at_all(state, within) for state in states):
        raise CheckError(
            "run: it spent and reserved nothing, so that nothing is tested; pass "
            "may_spend_nothing=True if that is what it should do"
        )


def _run(
    run: Callable[[Any], object],
    at_most: Currency | ApproxDP,
    users: range,
    trust: Trust | str,
    adjacency: Adjacency | None,
    seed: int,
) -> tuple[list[AccountState], InsufficientBudgetError | None, str]:
    def account(cap: Currency | ApproxDP) -> Used:
        noise = NoiseSource.simulation(seed)
        return in_memory(cap, noise, users=users, trust=trust, adjacency=adjacency)

    with watch_accountants() as seen:
        book = account(at_most)
        try:
            run(book)
        except InsufficientBudgetError as error:
            refused = error
        else:
            return _opened(seen), None, book.id
    with watch_accountants() as seen:
        book = account(book.budget * _ROOM)
        try:
            run(book)
        except InsufficientBudgetError as again:
            raise PrivacyViolation(
                f"more than {_ROOM} times at_most = {at_most}: {again}"
            ) from refused
    return _opened(seen), refused, book.id


def _opened(seen: AccountantUsage) -> list[AccountState]:
    """All accountants of a run, its own and those that it opened besides, numbered in order."""
    if seen.older:
        raise CheckError(
            f"run: it also spends from an accountant that was made before it, "
            f"{', '.join(sorted(seen.older))}: make it inside, or check its ledger by itself"
        )
    states = [copy(state) for state in seen.opened.values()]
    for number, state in enumerate(states, start=1):
        state.number = number
    return states


def _states(used: Used | Ledger | str | os.PathLike[str]) -> list[AccountState]:
    if isinstance(used, _ACCOUNTANTS):
        # Others may share its ledger; asked for is this one.
        return [_folded(used.ledger.records, only=used.id)[0]]
    records = used.records if isinstance(used, Ledger) else read_records(used)
    if problems := certify(records).problems:
        raise CheckError(f"run: the ledger does not check: {'; '.join(problems)}")
    return _folded(records)


def _folded(records: Sequence[Record], only: str | None = None) -> list[AccountState]:
    states: dict[str, AccountState] = {}
    for record in records:
        entry = parse_entry(record.body, record.ext)
        if only not in (None, entry.accountant):
            continue
        if isinstance(entry, OpenEntry):
            states[entry.accountant] = state = AccountState(entry)
            state.number = len(states)
        states[entry.accountant].record(Checked(entry))
    return list(states.values())
