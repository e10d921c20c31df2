"""`assert_budget`: what a run may lose of anybody's privacy, as its ledgers say.

It returns what it found, and leaves a line for the summary of the pytest plugin, because a test
that passes says nothing by itself: who spent how much."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, wraps
from typing import Any, Literal

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.audit import certify
from privlearn.accountants.charged import Tallies
from privlearn.accountants.epsilon_delta import largest_epsilon
from privlearn.accountants.guarantee import as_loss, epsilon_of
from privlearn.accountants.multiple_accountants import composition, promised_pieces, spent_pieces
from privlearn.accountants.state import AccountState, Checked
from privlearn.checking.isolation import TimeLimit, kept_alive
from privlearn.checking.replay.side_effects import beside_the_accountant
from privlearn.checking.reports import Axis, CheckReport, Coverage, Finding
from privlearn.checking.session import note
from privlearn.errors import (
    BudgetError,
    CheckError,
    CurrencyError,
    InsufficientBudgetError,
    PrivacyViolation,
)
from privlearn.ledger import Ledger, Record, read_records
from privlearn.ledger.entries import OpenEntry, parse_entry
from privlearn.losses import FailingLoss, Loss, compose, loss_from_dict
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency, Trust


@dataclass
class AccountantUsage:
    """Accountants that were opened while they were watched, names of those that wrote an entry, and
    what they said when they had no budget left."""

    opened: dict[str, AccountState] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    @property
    def older(self) -> set[str]:
        return self.used - set(self.opened)


_WATCHING: list[AccountantUsage] = []


def _told(kind: Any, name: str, tell: Callable[[AccountantUsage, Any], object]) -> None:
    """Tells all that watch when a method was called."""
    method = getattr(kind, name)

    @wraps(method)
    def told(self: Any, *args: Any, **options: Any) -> None:
        method(self, *args, **options)
        for seen in list(_WATCHING):
            tell(seen, self)

    setattr(kind, name, told)


@cache
def _wrapped() -> None:
    """Wraps the methods once and for good: watches end in any order, also in other threads."""
    _told(AccountLog, "__init__", lambda seen, log: seen.opened.update({log.id: log.state}))
    _told(AccountLog, "append", lambda seen, log: seen.used.add(log.id))
    _told(InsufficientBudgetError, "__init__", lambda seen, error: seen.refused.append(str(error)))


@contextmanager
def watch_accountants() -> Iterator[AccountantUsage]:
    """Watches all accountants of this process, also those of other threads."""
    _wrapped()
    seen = AccountantUsage()
    _WATCHING.append(seen)
    try:
        yield seen
    finally:
        _WATCHING[:] = [other for other in _WATCHING if other is not seen]


USERS = range(1_000)  # Whom the accountant protects that `assert_budget` makes
UNSEEN = (
    "whether mechanisms earn the losses that they state (check_mechanism)",
    "what the run returns, prints or keeps without a mechanism, raw data included",
    "noise that compiled code draws by itself",
    "what other processes release, and what they spend from ledgers of their own",
)  # What no ledger tells
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
    """An accountant that forgets everything when the process ends, for tests. Raises ValueError:
    no such trust."""
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
        as its ``evidence``; and what a run does beside its accountant.

    Raises:
        PrivacyViolation: too much, with both figures; the `BudgetReport` is its ``evidence``.
        CheckError: nothing was used, or it cannot be compared with a limit; the ledger does not
            check; a run spends from an accountant that was made before it.
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
        raise CheckError(f"run = {run!r}: must take an accountant, or be one, its ledger or path")
    _check_used(states, within, may_spend_nothing)
    name = str(getattr(run, "__name__", type(run).__name__))
    reports = [measure(states, limit, within, basis, made) for limit, basis in limits]
    for report, (limit, basis) in zip(reports, limits, strict=True):
        if report.exceeded:
            other: Basis = SPENT if basis == GUARANTEE else GUARANTEE
            figure = "no such number"
            with suppress(CheckError):
                figure = measure(states, limit, within, other, made).used
            told = replace(report, other=f"{other}: {figure}")
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
            raise CheckError(f"{name} = {limit!r}: must be a budget, such as ZCDP('0.5')")
    return limits


def _check_used(
    states: Sequence[AccountState], within: range | None, may_spend_nothing: bool
) -> None:
    """Raises CheckError: nothing is tested, or ``within`` are no users of the accountants."""
    if within is not None and not any(set(within) & set(state.users) for state in states):
        raise CheckError(f"users = {within!r}: the accountant protects {states[0].users!r}")
    if within is not None and any(state.visits is not None for state in states):
        raise CheckError(f"users = {within!r}: under a rule of participation an index is no person")
    if not may_spend_nothing and not any(used_at_all(state, within) for state in states):
        raise CheckError("run: it spent and reserved nothing; or pass may_spend_nothing=True")


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


@dataclass(frozen=True, slots=True)
class BudgetItem:
    """One reason why somebody's budget is used up: ``mechanism`` is what spent ``count`` tokens, or
    why nothing did; ``share`` is its part of all that is counted."""

    label: str
    mechanism: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """How much is promised to the users with the least protection, or was spent on them. ``what``
    was compared with the limit: "guarantee", "spent", or "used", which is what a run took;
    ``ratio`` is used over limit. ``users`` is the worst range of indices, None if several
    accountants are added up, or persons are counted; ``excess`` is empty if it is not too much."""

    at_most: Currency | ApproxDP
    what: str
    used: str
    ratio: float
    users: range | None
    who: str
    items: tuple[BudgetItem, ...]
    excess: str
    other: str = ""

    @property
    def exceeded(self) -> bool:
        return bool(self.excess)

    def __str__(self) -> str:
        verdict = f", {self.excess} too much" if self.exceeded else ""
        verb = {"used": " used", "spent": " spent"}.get(self.what, ": the guarantee is")
        lines = [
            f"{self.who}{verb} {self.used} of {self.at_most}{verdict} ({self.ratio:.4g} times)"
            f"{self.other and f'; {self.other}'}"
        ]
        for item in self.items:
            times = f"{item.count} time{'s' * (item.count > 1)}"
            lines.append(f"  {item.label}: {item.mechanism}, {times}, {item.share:.1%}")
        return "\n".join(lines)


Basis = Literal["guarantee", "spent", "used"]  # What of an accountant counts
GUARANTEE: Basis = "guarantee"  # The plan, or else the cap
SPENT: Basis = "spent"  # Spends, whatever came of them, and what clients attest
USED: Basis = "used"  # The plan, or else spends and whatever was reserved


def used_at_all(state: AccountState, within: range | None) -> bool:
    """Whether anything was spent or reserved for those users."""
    if state.visits is not None:
        return bool(state.charged.runs_committed or state.charged.runs_spent)
    return any(items for _, items in _within(state, within, USED))


def measure(
    states: Sequence[AccountState],
    limit: Currency | ApproxDP,
    within: range | None,
    basis: Basis,
    made: str,
) -> BudgetReport:
    """The worst users of each accountant, or of several together, which one person may be in. Of
    the accountant ``made`` for a run its cap is no promise of the run."""

    def basis_of(state: AccountState) -> Basis:
        return USED if basis == GUARANTEE and state.opened.accountant == made else basis

    worst = (_worst(state, limit, within, basis_of(state)) for state in states)
    reports = [report for report in worst if report is not None]
    if len(states) > 1 or any(state.visits is not None for state in states):
        try:
            added = composition(states, lambda s: _composites(s, within, basis_of(s)))
        except BudgetError as error:
            raise CheckError(f"run: {error}") from None
        if not added.parts:
            raise CheckError(f"run: too many kinds of users to add up, for {added.who}")
        for part in added.parts:
            if part is not None:
                amounts = _priced(limit, {part: 1})
                reports.append(_judged(limit, amounts, None, added.who, (), basis))
    nothing = BudgetReport(limit, basis, "nothing", 0.0, states[0].users, "nobody", (), "")
    return max(reports, key=lambda report: (report.exceeded, report.ratio), default=nothing)


_Item = tuple[str, str, Loss | Currency]
"""Label, mechanism, and what one token costs: its loss, or what it holds."""


def _worst(
    state: AccountState, at_most: Currency | ApproxDP, within: range | None, basis: Basis
) -> BudgetReport | None:
    if state.visits is not None:  # an index is no person
        return None
    pieces = [(users, items) for users, items in _within(state, within, basis) if items]
    if not pieces:
        return None
    adjacency = state.opened.adjacency
    totals = [_losses(items, adjacency, at_most) for _, items in pieces]
    distinct = dict.fromkeys(frozenset(total.items()) for total in totals)
    if isinstance(at_most, ApproxDP):
        # Tight composition takes a while, so the quick bound says who is worst.
        delta = float(at_most.delta)
        parts = {key: compose(_only_losses(dict(key))) for key in distinct}
        rank = {key: epsilon_of(part, delta).value for key, part in parts.items()}
        epsilon = largest_epsilon(list(parts.values()), delta).value
        amounts = {key: _in_epsilon(epsilon) for key in distinct}
    else:
        amounts = {key: _priced(at_most, dict(key)) for key in distinct}
        rank = {key: _ratio(at_most, spent) for key, spent in amounts.items()}
    keys = [frozenset(total.items()) for total in totals]
    most = max(range(len(pieces)), key=lambda i: rank[keys[i]])
    users, items = pieces[most]
    who = f"users {users.start}..{users.stop - 1}"
    return _judged(at_most, amounts[keys[most]], users, who, _listed(state, items), basis)


def _counted(state: AccountState, basis: Basis) -> Tallies[_Item]:
    book: Tallies[_Item] = Tallies(state.users)
    add = book.add
    if state.plan is not None and basis != SPENT:
        for planned in state.plan:
            for users, loss in planned.loss.over(planned.users):
                add(users, (planned.label, "planned", loss), planned.count)
        return book
    if basis == GUARANTEE:
        add(state.users, ("cap", "no plan", _holding(state, state.cap, state.failure)))
        return book
    reserved = basis == USED
    allowances = state.delegated() if reserved else []
    for allowance in allowances:
        inner = _holding(state, allowance.meter.cap, allowance.meter.failure)
        add(range(*allowance.entry.users), (allowance.entry.label, "delegated", inner), 1)
    for account in state.accounts.values():
        users = range(*account.users)
        apart = reserved and state.allowances.paid_before(account.allowance)
        if apart or account.outcome == "unused":
            continue
        if account.spend is None or account.loss is None:
            if reserved:
                held = _holding(state, account.budget, account.failure)
                add(users, (account.label, "token not spent", held), 1)
            continue
        name = account.label, account.spend.mechanism
        for piece, loss in account.loss.over(users):
            add(piece, (*name, loss), 1)
        for freed, kept, part in account.stream.freed if account.stream is not None else ():
            add(freed, (*name, part), -1)
            if kept:
                add(kept, (*name, part), 1)
    for attested in state.attested:
        item = attested.label, f"{attested.mechanism}, attested", loss_from_dict(attested.loss)
        add(range(*attested.users), item, attested.most_messages)
    return book


def _holding(state: AccountState, budget: Currency, failure: Fraction) -> Loss | Currency:
    return FailingLoss(as_loss(budget, state.opened.adjacency), failure) if failure else budget


def _within(
    state: AccountState, within: range | None, basis: Basis
) -> list[tuple[range, Counter[_Item]]]:
    users = state.users if within is None else range(within.start, within.stop)
    common = range(max(users.start, state.users.start), min(users.stop, state.users.stop))
    if not common:
        return []
    return [(piece, Counter(items)) for piece, items in _counted(state, basis).pieces(common)]


def _composites(state: AccountState, within: range | None, basis: Basis) -> Tallies[Loss]:
    if state.visits is not None:
        return (spent_pieces if basis == SPENT else promised_pieces)(state)
    tallies: Tallies[Loss] = Tallies(state.users)
    for users, items in _within(state, within, basis):
        for loss, count in _only_losses(_losses(items, state.opened.adjacency, None)):
            tallies.add(users, loss, count)
    return tallies


def _losses(
    items: Counter[_Item], adjacency: Adjacency, at_most: Currency | ApproxDP | None
) -> Counter[Loss | Currency]:
    """Only the costs; what is in the limit's own currency stays so, for exact sums."""
    total: Counter[Loss | Currency] = Counter()
    for (_, _, what), count in items.items():
        if isinstance(what, Currency) and not _same(what, at_most):
            what = as_loss(what, adjacency)
        total[what] += count
    return total


def _same(what: Currency, at_most: Currency | ApproxDP | None) -> bool:
    if isinstance(what, Renyi) and isinstance(at_most, Renyi):
        return list(what.curve) == list(at_most.curve)
    return type(what) is type(at_most)


def _only_losses(total: Mapping[Loss | Currency, int]) -> list[tuple[Loss, int]]:
    return [(what, count) for what, count in total.items() if isinstance(what, Loss)]


def _listed(state: AccountState, items: Counter[_Item]) -> tuple[BudgetItem, ...]:
    rows: dict[tuple[str, str], tuple[int, Fraction]] = {}
    for (label, mechanism, what), count in items.items():
        own = what if isinstance(what, Currency) else state.prices.of(what).budget
        before, amount = rows.get((label, mechanism), (0, Fraction(0)))
        rows[label, mechanism] = before + count, amount + own.amounts[0] * count
    whole = sum((amount for _, amount in rows.values()), Fraction(0)) or Fraction(1)
    shares = [BudgetItem(*key, n, float(amount / whole)) for key, (n, amount) in rows.items()]
    return tuple(sorted(shares, key=lambda item: -item.share))


def _priced(
    at_most: Currency | ApproxDP, total: Mapping[Loss | Currency, int]
) -> tuple[Fraction, ...]:
    if isinstance(at_most, ApproxDP):
        losses = compose(_only_losses(total))
        return _in_epsilon(largest_epsilon([losses], float(at_most.delta)).value)
    spent = at_most.zero()
    for what, count in total.items():
        try:
            if isinstance(what, Loss) and what.failure():
                raise CurrencyError(f"a {what.kind} loss may fail; use ApproxDP")
            spent += (at_most.price(what) if isinstance(what, Loss) else what) * count
        except CurrencyError as error:
            raise CheckError(f"at_most = {at_most!r} cannot hold what was used: {error}") from None
    return spent.amounts


def _in_epsilon(epsilon: float) -> tuple[Fraction, ...]:
    return (Fraction(epsilon) if math.isfinite(epsilon) else _ENDLESS,)


def _ratio(at_most: Currency | ApproxDP, amounts: tuple[Fraction, ...]) -> float:
    limits = at_most.amounts[: len(amounts)]
    return max(
        float(used / limit) if limit else (math.inf if used else 0.0)
        for used, limit in zip(amounts, limits, strict=True)
    )


_ENDLESS, _NONE = Fraction(10) ** 300, Fraction(0)


def _judged(
    at_most: Currency | ApproxDP,
    amounts: tuple[Fraction, ...],
    users: range | None,
    who: str,
    items: tuple[BudgetItem, ...],
    basis: Basis,
) -> BudgetReport:
    limits = at_most.amounts[: len(amounts)]
    over = tuple(max(used - limit, _NONE) for used, limit in zip(amounts, limits, strict=True))
    if isinstance(at_most, ApproxDP):
        used = f"epsilon = {float(amounts[0]):.6g} at delta = {float(at_most.delta):g}"
        excess = f"epsilon = {float(over[0]):.4g}"
    else:
        used, excess = str(at_most._of(amounts)), str(at_most._of(over))
    told = excess if any(over) else ""
    ratio = _ratio(at_most, amounts)
    return BudgetReport(at_most, basis, used, ratio, users, who, items, told)
