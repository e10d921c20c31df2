"""How a cap inside an account is asked for: its entry, and whether one that stands is the same."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from privlearn.accountants.allowances import Allowance
from privlearn.accountants.opening import in_currency
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError, CurrencyError
from privlearn.ledger.chain import minute_of, text_of_minute
from privlearn.ledger.entries import MINUTE, CapEntry, DelegateEntry
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.validate import text, user_range

_MINUTES: Final = {"m": 1, "h": 60, "d": 24 * 60}
_LONGEST: Final = 1000 * 366 * 24 * 60
"""Minutes of an epoch: no entry tells a time so late that a second one would begin."""


class Renews(NamedTuple):
    """When a cap renews and ends, and to whom it is granted, as it was asked for."""

    every: str | None
    epochs: range | None
    to: str | None = None
    until: str | None = None


def cap_entry(
    state: AccountState,
    cap: Currency | ApproxDP,
    label: str,
    users: range | None,
    failure: Exact,
    renews: Renews,
    within: str | None,
    minute: int,
) -> CapEntry:
    """How a further cap would begin now; args as of `CentralAccountant.nested`.

    Raises:
        BudgetError, CurrencyError, ValueError: as that.
    """
    outer = None if within is None else state.allowances[within]
    inside = state.users if outer is None else outer.meter.users
    index = inside if users is None else user_range(users=users)
    every, since = None, None
    if renews.every is not None:
        if renews.epochs is not None:
            raise BudgetError("every and epochs: a cap renews by the clock, or by number; give one")
        every = minutes_of(renews.every)
        clocked = [one.renewal for one in (outer.renewing if outer else ()) if one.renewal]
        with_theirs = [one.since for one in clocked if one.every is not None]
        unit = max(unit for unit in _MINUTES.values() if every % unit == 0)
        since = text_of_minute(with_theirs[-1] if with_theirs else minute // unit * unit)
    epochs = None if renews.epochs is None else user_range(epochs=renews.epochs)
    return CapEntry(
        accountant=state.opened.accountant,
        allowance=f"{state.opened.accountant}/cap-{len(state.allowances) + 1}",
        label=text(label=label),
        users=(index.start, index.stop),
        budget=_counted(cap, state.cap).to_dict(),
        failure=exact_text(exact("failure", failure)),
        within=within,
        every=every,
        since=since,
        epochs=None if epochs is None else (epochs.start, epochs.stop),
        to=None if renews.to is None else text(to=renews.to),
        until=None if renews.until is None else _until(renews.until, minute),
    )


def _until(said: str, now: int) -> str:
    """The minute of a day, or time of a day in UTC, that is to come."""
    day = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", said) if isinstance(said, str) else None
    told = f"{said}T00:00Z" if day else said
    if not isinstance(told, str) or not re.fullmatch(MINUTE, told) or minute_of(told) <= now:
        raise ValueError(
            f"until = {said!r:.80}: must be a day or time to come, in UTC, such as '2027-01-31' or "
            "'2027-01-31T12:00Z'"
        )
    return told


def _counted(cap: Currency | ApproxDP, of: Currency) -> Currency:
    """A cap in the currency of its account."""
    if isinstance(cap, ApproxDP):
        return in_currency(cap, type(of), None, exact("failure", 0))[0]
    if type(cap) is not type(of) or len(cap.amounts) != len(of.amounts):
        raise CurrencyError(
            f"cap = {cap}: the account counts in {type(of).__name__}, and each spend is charged to "
            f"both: give a cap in that, a part of {of} such as account.budget.share('1/10')"
        )
    return cap


def minutes_of(every: str) -> int:
    """The minutes of a time such as ``"7d"``.

    Raises:
        ValueError: no such time.
    """
    found = re.fullmatch("([1-9][0-9]{0,8})([mhd])", every) if isinstance(every, str) else None
    minutes = int(found[1]) * _MINUTES[found[2]] if found else 0
    if not 0 < minutes <= _LONGEST:
        raise ValueError(
            f"every = {every!r:.80}: must be a whole number of days, hours or minutes, such as "
            "'7d', '12h' or '30m', of at most 1000 years"
        )
    return minutes


def as_asked(stands: Allowance, asked: CapEntry) -> None:
    """Checks that a cap which stands is the one that is asked for.

    Raises:
        BudgetError: it stands with other terms, or is closed.
    """
    entry = stands.entry
    assert not isinstance(entry, DelegateEntry)
    if stands.returned:
        raise BudgetError(f"cap {asked.label!r} was closed: give another one another label")
    for name in ("users", "budget", "failure", "every", "epochs", "to", "until"):
        was, wanted = getattr(entry, name), getattr(asked, name)
        if was != wanted:
            raise BudgetError(
                f"cap {asked.label!r} stands with {name} = {was}, not {wanted}: ask for the same, "
                "or give another one another label"
            )
