"""What is told of caps inside an account: what each allows one person, and what was charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from privlearn.accountants.allowances import Allowance
from privlearn.accountants.audited_accounts import AuditedAccount
from privlearn.accountants.capped import CappedSums
from privlearn.accountants.certificate import Guarantee, InnerCap
from privlearn.accountants.epsilon_delta import Work, largest_epsilon
from privlearn.accountants.account_totals import bound
from privlearn.accountants.state import AccountState
from privlearn.accountants.stated_guarantees import Asked
from privlearn.errors import PrivlearnError
from privlearn.ledger.entries import CapEntry
from privlearn.values.exact import exact_text, float_up

RENEWED_BY_CLOCKS = (
    "Of a cap that renews by the clock, the epoch of a spend follows from the minute that its "
    "entry tells: its writer's word, behind which no later entry goes."
)


def stated_caps(
    books: Sequence[AuditedAccount], guarantees: Sequence[Guarantee], asked: Asked, work: Work
) -> Iterator[InnerCap]:
    """Every cap inside an account whose guarantee is stated, in the order of the ledger."""
    stated = {one.accountants[0]: one for one in guarantees}
    for book in books:
        guarantee = stated.get(book.state.number)
        for part in book.state.allowances.values():
            concerns = asked.users is None or asked.users.start in part.meter.users
            if guarantee is not None and concerns and isinstance(part.entry, CapEntry):
                yield _stated(book, part, part.entry, guarantee.delta, asked, work)


def _stated(
    book: AuditedAccount,
    part: Allowance,
    entry: CapEntry,
    delta: float,
    asked: Asked,
    work: Work,
) -> InnerCap:
    state, meter, users = book.state, part.meter, asked.users
    numbers = sorted(n for n, inside in part.epochs.items() if _charged(inside, users))
    each = [part.epochs[number] for number in numbers] if part.renewal else [meter]

    def epsilon(of: CappedSums, *, cap: bool = False) -> float | None:
        amount, failure = meter.cap, meter.failure
        if not cap:
            amount, failure = of.largest(users), of.largest_failure(users)
        if not any(amount.amounts) and not failure:
            return 0.0
        try:
            whole = bound(state, amount, failure)
            return largest_epsilon([whole], delta, asked.rounds, work).value
        except (PrivlearnError, ValueError, ArithmeticError):  # whatever a file holds
            return None

    shares = [share for one in each for share in _shares(one, users)]
    known = not book.unpriced
    return InnerCap(
        accountant=state.number,
        allowance=entry.allowance,
        path=tuple(part.path),
        users=entry.users,
        budget=meter.cap.to_dict(),
        failure=exact_text(meter.failure),
        every=entry.every,
        since=entry.since,
        epochs=entry.epochs,
        closed=part.returned or state.closed,
        delta=delta,
        epsilon=epsilon(meter, cap=True),
        charged_in=(numbers[0], numbers[-1]) if numbers else (),
        epochs_charged=len(numbers),
        share=float_up(max(shares, default=Fraction(0))) if known else None,
        most=max((epsilon(one) or 0.0 for one in each), default=0.0) if known else None,
        in_all=epsilon(meter) if known else None,
    )


def _charged(meter: CappedSums, users: range | None) -> bool:
    return any(meter.largest(users).amounts) or bool(meter.largest_failure(users))


def _shares(meter: CappedSums, users: range | None) -> list[Fraction]:
    return [
        spent / cap
        for spent, cap in zip(meter.largest(users).amounts, meter.cap.amounts, strict=True)
    ]


def told_by_clocks(states: Sequence[AccountState]) -> list[str]:
    """What is to be said of caps that renew by the clock."""
    return [RENEWED_BY_CLOCKS] if any(state.allowances.timed for state in states) else []
