"""What is told of caps inside an account: what each allows one person, and what was charged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Final

from privlearn.accountants.account_totals import bound
from privlearn.accountants.allowances import Allowance
from privlearn.accountants.audited_accounts import AuditedAccount
from privlearn.accountants.capped import CappedSums
from privlearn.accountants.certificate import Guarantee, InnerCap
from privlearn.accountants.epsilon_delta import Work, largest_epsilon
from privlearn.accountants.stated_guarantees import Asked
from privlearn.ledger.entries import CapEntry
from privlearn.losses.budgets import Currency
from privlearn.values.exact import exact_text, float_up

RENEWED_BY_CLOCKS: Final = (
    "Of a cap that renews by the clock, the epoch of a spend follows from the minute that its "
    "entry tells: its writer's word, behind which no later entry goes."
)


def stated_caps(
    books: Sequence[AuditedAccount], guarantees: Sequence[Guarantee], asked: Asked, work: Work
) -> list[InnerCap]:
    """Every cap inside an account whose guarantee is stated, in the order of the ledger."""
    found: list[InnerCap] = []
    stated = {one.accountants[0]: one for one in guarantees}
    for book in books:
        guarantee = stated.get(book.state.number)
        for part in book.state.allowances.values():
            concerns = asked.users is None or asked.users.start in part.meter.users
            if guarantee is not None and concerns and isinstance(part.entry, CapEntry):
                found.append(_stated(book, part, part.entry, guarantee.delta, asked, work))
    return found


def _stated(
    book: AuditedAccount,
    part: Allowance,
    entry: CapEntry,
    delta: float,
    asked: Asked,
    work: Work,
) -> InnerCap:
    state, cap, failure = book.state, part.meter.cap, part.meter.failure

    def epsilon(amount: Currency, failing: Fraction) -> float:
        if not any(amount.amounts) and not failing:
            return 0.0
        return largest_epsilon([bound(state, amount, failing)], delta, asked.rounds, work).value

    numbers: list[int] = []
    share = most = in_all = allowed = None
    with suppress(Exception):  # whatever a file holds, an audit ends
        allowed = epsilon(cap, failure)
        if not book.unpriced:
            each = {n: _most(meter, asked.users) for n, meter in part.epochs.items()}
            numbers = sorted(
                n for n, (spent, failed) in each.items() if any(spent.amounts) or failed
            )
            whole = _most(part.meter, asked.users)
            peaks = [each[number] for number in numbers] if part.renewal else [whole]
            most = max((epsilon(*peak) for peak in peaks), default=0.0)
            parts = [
                spent / of
                for peak, _ in peaks
                for spent, of in zip(peak.amounts, cap.amounts, strict=True)
            ]
            share, in_all = float_up(max(parts, default=Fraction(0))), epsilon(*whole)
    return InnerCap(
        accountant=state.number,
        allowance=entry.allowance,
        path=tuple(part.path),
        users=entry.users,
        budget=cap.to_dict(),
        failure=exact_text(failure),
        every=entry.every,
        since=entry.since,
        epochs=entry.epochs,
        to=entry.to,
        until=entry.until,
        closed=part.returned,
        delta=delta,
        epsilon=allowed,
        charged_in=(numbers[0], numbers[-1]) if numbers else (),
        epochs_charged=len(numbers),
        share=share,
        most=most,
        in_all=in_all,
    )


def _most(meter: CappedSums, users: range | None) -> tuple[Currency, Fraction]:
    return meter.largest(users), meter.largest_failure(users)
