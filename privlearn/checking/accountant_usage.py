"""Which accountants a run opens or writes to, wherever it has them from.

Every accountant starts with a log of its entries and appends to it, by two methods that are wrapped
when a check watches first.  Other processes are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.state import AccountState
from privlearn.errors import InsufficientBudgetError


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
