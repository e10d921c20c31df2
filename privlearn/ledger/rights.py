"""What somebody may write to whom no more than a part of an account was granted."""

from __future__ import annotations

from collections.abc import Callable

from privlearn.errors import BudgetError
from privlearn.ledger.entries import (
    CapEntry,
    DelegateEntry,
    Entry,
    FunctionsEntry,
    IssueEntry,
    PhaseEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
)


def check_right(
    entry: Entry,
    who: str,
    granted: Callable[[str, str | None, str], bool],
    own: Callable[[str], bool],
) -> None:
    """Raises unless an entry is of what was granted.

    Args:
        entry: that somebody would write.
        who: that is, by the name that grants tell.
        granted: whether a cap of an accountant, or one that it is inside of, was granted to them.
        own: whether a token is theirs.

    Raises:
        BudgetError: it is not: nothing is recorded.
    """
    match entry:
        case IssueEntry():
            may = granted(entry.accountant, entry.allowance, who)
        case CapEntry() | DelegateEntry():
            may = granted(entry.accountant, entry.within, who)
        case ReturnEntry():
            may = granted(entry.accountant, entry.allowance, who)
        case (
            SpendEntry()
            | FunctionsEntry()
            | PhaseEntry()
            | ReachEntry()
            | PublishEntry()
            | RetireEntry()
        ):
            may = own(entry.token)
        case _:
            may = False
    if not may:
        raise BudgetError(
            f"an entry {entry.entry!r} by {who!r}, who may only spend what was granted: "
            "accountant.granted(label) is what tokens are issued out of; nothing was recorded"
        )
