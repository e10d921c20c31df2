"""What the users with the least protection were promised, or what was spent on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from privlearn.accountants.charged import Tallies
from privlearn.accountants.epsilon_delta import largest_epsilon
from privlearn.accountants.guarantee import as_loss, epsilon_of
from privlearn.accountants.multiple_accountants import composition, promised_pieces, spent_pieces
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError, CheckError, CurrencyError
from privlearn.losses import FailingLoss, Loss, compose, loss_from_dict
from privlearn.losses.budgets import ApproxDP, Currency, Renyi
from privlearn.values.adjacency import Adjacency


@dataclass(frozen=True, slots=True)
class BudgetItem:
    """One reason why somebody's budget is used up.

    Attributes:
        label: what the tokens were issued for.
        mechanism: what spent them, or why nothing did: "planned", "token not spent", "delegated".
        count: how many tokens.
        share: part of all that is counted for the users of the report, 0 to 1.
    """

    label: str
    mechanism: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """How much is promised to the users with the least protection, or was spent on them.

    Attributes:
        what: what was compared with the limit: "guarantee", "spent", or "used", which is what a run
            took of the accountant that it was given.
        used: of the worst users, in the limit's unit, as text.
        ratio: used over limit, the largest of all amounts.
        users: the worst range of arrival indices; None if several accountants are added up, or
            persons are counted.
        who: the same in words.
        items: what it was used for, the largest first.
        excess: by how much it is too much, as text; empty if it is not.
        other: the other figure, the guarantee or what was spent, where there is too much.
    """

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


class Basis(Enum):
    """What of an accountant counts."""

    GUARANTEE = "guarantee"
    """The plan, or else the cap."""
    SPENT = "spent"
    """Spends, whatever came of them, and what clients attest."""
    USED = "used"
    """The plan, or else spends and whatever was reserved."""


GUARANTEE, SPENT, USED = Basis.GUARANTEE, Basis.SPENT, Basis.USED


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
    """The worst users of each accountant, or of several together, which one person may be in.

    Of the accountant ``made`` for a run its cap is no promise of the run.
    """

    def basis_of(state: AccountState) -> Basis:
        return USED if basis is GUARANTEE and state.opened.accountant == made else basis

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
    nothing = BudgetReport(limit, basis.value, "nothing", 0.0, states[0].users, "nobody", (), "")
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
    if state.plan is not None and basis is not SPENT:
        for planned in state.plan:
            for users, loss in planned.loss.over(planned.users):
                add(users, (planned.label, "planned", loss), planned.count)
        return book
    if basis is GUARANTEE:
        add(state.users, ("cap", "no plan", _holding(state, state.cap, state.failure)))
        return book
    reserved = basis is USED
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
        return (spent_pieces if basis is SPENT else promised_pieces)(state)
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
    shares = [
        BudgetItem(label, mechanism, count, float(amount / whole))
        for (label, mechanism), (count, amount) in rows.items()
    ]
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


_ENDLESS = Fraction(10) ** 300
_NONE = Fraction(0)


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
    return BudgetReport(at_most, basis.value, used, ratio, users, who, items, told)
