"""What a ledger file holds that is to go on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from privlearn.errors import LedgerHeadError, LedgerSchemaError, LedgerUnreadableError
from privlearn.ledger.chain import SCHEMA, Chain, minute_of, text_of_minute
from privlearn.ledger.entries import Entry, OpenEntry, parse_entry
from privlearn.ledger.entry_log import this_minute
from privlearn.ledger.heads import Claimed, kept_elsewhere
from privlearn.ledger.reader import is_export, iterate_records, readable


class Continued(NamedTuple):
    """What was read of a file, all of which checks."""

    entries: list[Entry]
    chain: Chain
    unknown_head: bool
    """Whether nothing is known of its head, which was said to be so."""


def read_to_continue(
    path: str | os.PathLike[str],
    where: Path,
    *,
    head: str | None,
    unknown_head: bool,
    keeps_heads: bool,
) -> Continued:
    """Reads a ledger file behind which further entries are to be written.

    Args:
        path: as it was given, for messages.
        where: the file.
        head, unknown_head: as of `Ledger.open`.
        keeps_heads: whether somebody takes the heads to a safer place.

    Raises:
        LedgerError: as `Ledger.open`.
    """
    claimed = Claimed(where, head=head, unknown=unknown_head)
    entries: list[Entry] = []
    problems, chain = list[str](), Chain()
    for record in iterate_records(where, vouched=head is not None or unknown_head):
        if record.format != SCHEMA:
            raise LedgerSchemaError(
                f"{path} cannot be resumed: it is of format {record.format}, which is read and "
                "audited but takes no further entries; begin a new ledger with what is left "
                "of the budget, and keep this one: what both promise adds up"
            )
        problems += chain.add(record)
        claimed.compare([record])
        if not problems:
            try:
                entries.append(parse_entry(record.body, record.ext))
            except ValueError as error:
                problems.append(str(error))
    problems += chain.end()
    if problems:
        raise LedgerUnreadableError(f"{path} cannot be resumed: {'; '.join(problems)}")
    with readable(where):
        export = is_export(where)
    if export:
        raise LedgerUnreadableError(f"{path} cannot be resumed: it is an export")
    elsewhere = any(kept_elsewhere(entry) for entry in entries if isinstance(entry, OpenEntry))
    unknown = claimed.check(chain, elsewhere=elsewhere)
    if elsewhere and not keeps_heads:
        raise LedgerHeadError(
            f"{path} says that its heads are kept elsewhere: open it with keep_head=, and hand "
            "the Ledger to resume(...)"
        )
    return Continued(entries, chain, unknown)


def warn_of_clock(path: str | os.PathLike[str], chain: Chain) -> None:
    """Warns the caller's caller of a clock that is behind the last entry."""
    now = this_minute()
    if minute_of(chain.minute) > now + _CLOCK_MAY_BE_OFF:
        warnings.warn(
            f"{path}: the last entry was written at {chain.minute}, and the clock says "
            f"{text_of_minute(now)}: until it is past that, entries tell "
            "the former; look after the clock",
            stacklevel=3,
        )


_CLOCK_MAY_BE_OFF = 2  # minutes
