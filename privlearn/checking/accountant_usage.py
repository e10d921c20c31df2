"""Which accountants a run opens or writes to, wherever it has them from.

Every accountant starts with a log of its entries and appends to it, by two methods that are wrapped
while a check watches.  Other processes are not seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.state import AccountState
from privlearn.checking.full_messages import told_in_full

__tracebackhide__ = told_in_full


@dataclass
class AccountantUsage:
    """Accountants that were opened or used while they were watched.

    Attributes:
        opened: the states of accountants that were made or resumed, by name; they go on changing.
        used: names of accountants that wrote an entry.
    """

    opened: dict[str, AccountState] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @property
    def older(self) -> set[str]:
        return self.used - set(self.opened)


_LOCK = threading.Lock()
_WATCHING: list[AccountantUsage] = []
_LOG: Any = AccountLog
_ORIGINAL: dict[str, Callable[..., None]] = {}  # The methods themselves, while they are wrapped


def _in_child() -> None:
    global _LOCK
    _LOCK = threading.Lock()  # a thread that is not there may hold the other


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _started(self: Any, *args: Any, **options: Any) -> None:
    _ORIGINAL["__init__"](self, *args, **options)
    for seen in _WATCHING:
        seen.opened[self.id] = self.state


def _appended(self: Any, *args: Any, **options: Any) -> None:
    for seen in _WATCHING:
        seen.used.add(self.id)
    _ORIGINAL["append"](self, *args, **options)


@contextmanager
def watch_accountants() -> Iterator[AccountantUsage]:
    """Watches all accountants of this process, also those of other threads."""
    seen = AccountantUsage()
    with _LOCK:
        if not _WATCHING:
            _ORIGINAL.update(__init__=_LOG.__init__, append=_LOG.append)
            _LOG.__init__, _LOG.append = _started, _appended
        _WATCHING.append(seen)
    try:
        yield seen
    finally:
        with _LOCK:
            _WATCHING[:] = [other for other in _WATCHING if other is not seen]
            if not _WATCHING:
                _LOG.__init__, _LOG.append = _ORIGINAL["__init__"], _ORIGINAL["append"]
