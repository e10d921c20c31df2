"""Which spends a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.ledger.chain import text_of_minute
from privlearn.reporting.spend_table import UNKNOWN_TIME, Columns, Group


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """Which spends a report is about; all of them if nothing is said."""

    user: int | None = None
    since: int | None = None  # The first minute that counts
    label: str | None = None
    mechanism: str | None = None
    after: int | None = None  # Entries from this position on count

    @property
    def anything(self) -> bool:
        return self != Asked()

    def of(self, columns: Columns, groups: Sequence[Group]) -> Columns:
        which = np.ones(len(columns), dtype=bool)
        if self.user is not None:
            which &= columns.touching(self.user, self.user + 1)
        if self.since is not None:
            which &= columns.minute >= self.since
        if self.after is not None:
            which &= columns.seq >= self.after
        for name in ("label", "mechanism"):
            wanted = getattr(self, name)
            if wanted is not None:
                named = np.array([getattr(g, name) == wanted for g in groups], dtype=bool)
                which &= named[columns.group] if len(named) else False
        return columns if which.all() else columns.only(which)


def minute_text(minute: int) -> str | None:
    """As entries tell it; None where it is not known."""
    return None if minute == UNKNOWN_TIME else text_of_minute(minute)
