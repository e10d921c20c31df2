"""Which records of a run were null, and why: for the operator only.

Whether a record could be used depends on what it says, so nothing of this may be public: it is
written to the private folder and shown in the half of the output that is for the operator.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from privlearn.learners.base import Learner

REASONS = 3  # The leading reasons are so many

Messages = Iterable[tuple[int, str]]


def messages_of(learner: Learner) -> list[tuple[int, str]]:
    """All messages of a learner from now on; it keeps the last ones only."""
    told: list[tuple[int, str]] = []

    def keep(user: int, text: str) -> None:
        told.append((user, text))

    learner.on_private_message = keep
    return told


@dataclass(frozen=True, slots=True)
class NullRecords:
    """Users whose records counted as null."""

    users: int
    reasons: Mapping[int, str]
    absent: range

    @classmethod
    def of(cls, users: int, *messages: Messages, absent: int = 0) -> Self:
        gone = range(users - absent, users)
        reasons = {user: text for told in reversed(messages) for user, text in told}
        return cls(users, {u: reasons[u] for u in sorted(reasons) if u not in gone}, gone)

    @property
    def count(self) -> int:
        return len(self.reasons) + len(self.absent)

    def by_reason(self) -> list[tuple[str, int]]:
        return Counter(self.reasons.values()).most_common()

    def lines(self, *, rule: bool = False) -> list[str]:
        """What the operator should see at once."""
        good, counted = self.users - self.count, "usable" if rule else "counted"
        if not self.count:
            return [f"records: all {self.users:,} {counted}"]
        told = [
            f"records: {good:,} of {self.users:,} {counted}, {self.count:,} "
            f"{'was' if self.count == 1 else 'were'} null (private/messages.txt)"
        ]
        if not good:
            told.insert(0, "WARNING: NO RECORD COUNTED: what was released is noise and no more")
        elif 2 * self.count >= self.users:
            told.insert(0, "WARNING: MOST RECORDS WERE NULL: what was released is mostly noise")
        leading = self.by_reason()
        told += [f"  {_times(count)}: {reason}" for reason, count in leading[:REASONS]]
        if len(leading) > REASONS:
            told.append(f"  and {len(leading) - REASONS} other reasons")
        if self.absent:
            told.append(
                f"  {_times(len(self.absent))}: the file ends before user {self.absent.start:,}, "
                f"and the horizon is {self.users:,}"
            )
        return told

    def write(self, private: Path) -> None:
        """Writes ``counts.json``, and ``messages.txt`` if a record was null: a line per user.

        Absent users have one line for all.
        """
        reasons = dict(Counter(self.reasons.values()).most_common())
        if self.absent:
            reasons["the file has no rows for them"] = len(self.absent)
        counts = {"records": self.users, "null": self.count, "reasons": reasons}
        (private / "counts.json").write_text(json.dumps(counts, indent=1), encoding="utf-8")
        if not self.count:
            return
        told = [f"user {user}: {reason}" for user, reason in self.reasons.items()]
        if self.absent:
            first, last = self.absent.start, self.absent.stop - 1
            told.append(f"users {first} to {last}: the file has no rows for them")
        (private / "messages.txt").write_text("\n".join(told) + "\n", encoding="utf-8")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
