"""`assert_budget`: what a run may lose of anybody's privacy, as its ledgers say.

It returns what it found, and leaves a line for the summary of the pytest plugin, because a test
that passes says nothing by itself: who spent how much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.state import AccountState, Checked
from privlearn.checking.accountant_usage import AccountantUsage, watch_accountants
from privlearn.checking.budget_reports import (
    GUARANTEE,
    SPENT,
    Basis,
    measure,
    used_at_all,
)
from privlearn.checking.isolation import TimeLimit, kept_alive
from privlearn.checking.replay.side_effects import beside_the_accountant
from privlearn.checking.reports import Axis, CheckReport, Coverage, Finding
from privlearn.checking.session import note
from privlearn.errors import CheckError, InsufficientBudgetError, PrivacyViolation
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.entries import OpenEntry, parse_entry
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency, Trust

USERS = range(1_000)
"""Whom the accountant protects that `assert_budget` makes."""
UNSEEN = (
    "whether mechanisms earn the losses that they state (check_mechanism)",
    "what the run returns, prints or keeps without a mechanism, raw data included",
    "noise that compiled code draws by itself",
    "what other processes release, and what they spend from ledgers of their own",
)
"""What no ledger tells."""
_ROOM = 1_000
"""How many times ``at_most`` a run may spend before it is refused, once it was found to spend more
than that."""

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
    kinds: dict[str, Any] = dict(zip(("central", "joint", "local"), _ACCOUNTANTS, strict=True))
    made: Used = kinds[Trust(trust).value](
        budget,
        users=users,
        ledger=Ledger.memory(),
        noise=noise,
        currency=currency,
        adjacency=adjacency or Adjacency.REPLACE_ONE,
    )
    return made


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
    seconds: float = 60.0,
) -> CheckReport:
    """Raises if a run may lose more than ``at_most`` of some person's privacy, as its ledger says.

    That is the guarantee, as in a certificate: of an accountant with a committed plan the plan, of
    another one its cap.  All accountants of a ledger, or of a run, add up, whatever their ledger
    and trust: one person may be behind an index in each.  The accountant that a run is given has
    ``at_most`` for its cap; of that one counts what the run takes: plan, spends, tokens that were
    issued and not handed back, what was delegated or attested.

    Args:
        run: takes an accountant in memory; or an accountant that was used, its ledger, or the path
            of one.  A run that is refused for lack of budget is done once more with a larger cap,
            to say by how much it was too much.
        at_most: a currency; or ApproxDP, for which ε is computed as in a certificate.
        spent: what may be spent, ex post, which is no guarantee; by itself or besides ``at_most``.
        users: of the accountant that is made, default ``range(1000)``; else whom to look at.
        trust: of the accountant that is made: "central", "joint" or "local".
        adjacency: of the accountant that is made; default replace-one.
        may_spend_nothing: whether a run that uses nothing is in order.
        seed: of the accountant's noise.
        seconds: for the run, or twice that where it is done once more.

    Returns:
        A finding on ``at_most`` ("guarantee"), on ``spent``, or on both, each with a `BudgetReport`
        as its ``evidence``; and what a run does beside its accountant, which may be noise that
        nobody paid for.

    Raises:
        PrivacyViolation: too much, with both figures; the `BudgetReport` is its ``evidence``.
        CheckError: nothing was used; a limit cannot be compared with what was used; the ledger
            does not check; a run spends from an accountant that was made before it, or under
            several neighbour relations, and a loss has no price under replace-one.
    """
    limits = _limits(at_most, spent)
    cap, made = limits[0][0], ""
    refused: InsufficientBudgetError | None = None
    within, beside, swallowed = users, set[str](), list[str]()
    if isinstance(run, (*_ACCOUNTANTS, Ledger, str, os.PathLike)):
        states = _states(run)
    elif callable(run):
        index, within = USERS if users is None else users, None
        with kept_alive("the run"), beside_the_accountant(beside):
            states, refused, made, swallowed = _run(
                run, cap, index, trust, adjacency, seed, seconds
            )
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
            figure = "no such number"
            with suppress(CheckError):
                figure = measure(states, limit, within, other, made).used
            told = replace(report, other=f"{other.value}: {figure}")
            note(f"{name}: {str(told).splitlines()[0]}")
            raise PrivacyViolation(f"{name}: {told}", told)
    if refused is not None and isinstance(cap, Currency):  # ε may fit where its ρ did not
        raise PrivacyViolation(f"{name}: with a cap of {cap}: {refused}", reports[0])
    found = [Finding(report.what, "holds", str(report), evidence=report) for report in reports]
    if swallowed:
        detail = f"{len(swallowed)} requests were refused, and it went on; first: {swallowed[0]}"
        found.append(Finding("refused", "not applicable", detail))
    if beside:
        what = ", ".join(sorted(beside))
        axis = Axis("what is released without the accountant", what, enough=False)
        detail = f"seen beside the accountant: {what}: is anything released with it?"
        found.append(Finding("beside the accountant", "weak", detail, Coverage((axis,))))
    for finding in found:
        note(f"{name}: {finding.detail.splitlines()[0]}")
    return CheckReport(name, tuple(found), UNSEEN)


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
    seconds: float,
) -> tuple[list[AccountState], InsufficientBudgetError | None, str, list[str]]:
    cap, refusals = at_most, list[InsufficientBudgetError]()
    for _ in range(2):
        with watch_accountants() as seen:
            noise = NoiseSource.simulation(seed)
            book = in_memory(cap, noise, users=users, trust=trust, adjacency=adjacency)
            try:
                with TimeLimit(seconds, "the run"):
                    run(book)
            except InsufficientBudgetError as error:
                refusals.append(error)
                cap = book.budget * _ROOM
                continue
        first, swallowed = (refusals[0], []) if refusals else (None, seen.refused)
        return _opened(seen), first, book.id, swallowed
    told = f"more than {_ROOM} times at_most = {at_most}: {refusals[1]}"
    raise PrivacyViolation(told) from refusals[0]


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
