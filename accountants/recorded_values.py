"""What an account released, read back from its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from privlearn.errors import LedgerUnreadableError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import Entry, IssueEntry, PublishEntry, RetireEntry
from privlearn.ledger.values import unpacked
from privlearn.rows.domains import Array


class RecordedValue(NamedTuple):
    """A value that left, as it stands in the ledger."""

    value: Array
    users: range
    """Whose rows it can be made of."""
    paid_by: str
    """The id of the token."""


def recorded_values(
    ledger: Ledger, entries: Iterable[Entry], label: str
) -> Iterator[RecordedValue]:
    """All that an account's tokens of one label released, in the order in which it left.

    Raises:
        LedgerUnreadableError: a value is missing, or was changed.
    """
    first: dict[str, int] = {}
    for entry in entries:
        match entry:
            case IssueEntry(label=found) if found == label:
                first[entry.token] = entry.users[0]
            case PublishEntry() if entry.token in first:
                value = recorded_value(ledger, entry.digest, f"token {entry.token}")
                yield RecordedValue(value, range(first[entry.token], entry.upto), entry.token)
            case RetireEntry(value={"digest": digest, "upto": upto}) if entry.token in first:
                value = recorded_value(ledger, digest, f"token {entry.token}")
                yield RecordedValue(value, range(first[entry.token], upto), entry.token)


def recorded_value(ledger: Ledger, digest: str, of: str) -> Array:
    """The value that was kept under a digest.

    Raises:
        LedgerUnreadableError: it is missing, or was changed.
    """
    data = ledger.value(digest)
    if data is None:
        raise LedgerUnreadableError(
            f"{ledger.name}: the value {digest} of {of} is missing; an export and its copies hold "
            "none"
        )
    return cast(Array, unpacked(data, digest))
