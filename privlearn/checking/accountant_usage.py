"""Which accountants a run opens or writes to, wherever it has them from.

Every accountant starts with a log of its entries and appends to it, by two methods that are wrapped
when a check watches first.  Other processes are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.state import AccountState
from privlearn.checking.full_messages import told_in_full
from privlearn.errors import InsufficientBudgetError

__tracebackhide__ = told_in_full


@dataclass
class AccountantUsage:
    """Accountants that were opened or used while they were watched.

    Attributes:
        opened: the states of accountants that were made or resumed, by name; they go on changing.
        used: names of accountants that wrote an entry.
        refused: what accountants said when they had no budget left.
    """

    opened: dict[str, AccountState] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    @property
    def older(self) -> set[str]:
        return self.used - set(self.opened)


_WATCHING: list[AccountantUsage] = []
_LOG: Any = AccountLog
_REFUSAL: Any = InsufficientBudgetError


@cache
def _wrapped() -> None:
    """Wraps the methods once and for good: watches end in any order, also in other threads."""
    start, append, refuse = _LOG.__init__, _LOG.append, _REFUSAL.__init__

    @wraps(start)
    def started(self: Any, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        for seen in list(_WATCHING):
            seen.opened[self.id] = self.state

    @wraps(append)
    def appended(self: Any, *args: Any, **options: Any) -> None:
        for seen in list(_WATCHING):
            seen.used.add(self.id)
        append(self, *args, **options)

    @wraps(refuse)
    def refused(self: Any, *args: Any, **options: Any) -> None:
        refuse(self, *args, **options)
        for seen in list(_WATCHING):
            seen.refused.append(str(self))

    _LOG.__init__, _LOG.append, _REFUSAL.__init__ = started, appended, refused


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
