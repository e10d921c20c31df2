"""The append-only, hash-chained record of every plan, token, spend and release.

Each entry is stored as canonical JSON (RFC 8785) and hashed together with the hash before it, so a
changed, cut or re-ordered entry breaks the chain; every ``close`` states a Merkle root of all that
stands before it.  Somebody who can rewrite the whole file can rebuild the chain: keep the head hash
elsewhere to detect that.  docs/ledger.md has the format.

A file ledger is one SQLite database in WAL mode.  `Ledger.append` returns when what the entry must
protect is on disk, in the very file that was made or opened: spends, and all that is promised,
claimed or committed, at once.  The issue of a token and its end, but for an uncovered one, are on
disk with the next of these, at the latest when `Ledger.head` is asked for: a cut of the power that
takes them away frees nothing, as an unspent token paid for nothing, and a spend without end is lost
and stays charged.

A ledger file has one writer; a second process that writes makes the first one's next append fail
instead of losing count.  Several accountants of one process may share a `Ledger`; each keeps count
of its own entries.  Where a ledger stands in a `SharedStore`, several processes write to it, each
in its turns (`Ledger.turn`), with all entries before it in view.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Literal, NamedTuple, Self, final

from privlearn.errors import (
    ONE_PROCESS,
    LedgerError,
    LedgerHeadError,
    LedgerSchemaError,
    LedgerUnreadableError,
    TokenCopyError,
)
from privlearn.ledger.addresses import extra_needed
from privlearn.ledger.chain import GENESIS, SCHEMA, Chain, minute_of, text_of_minute
from privlearn.ledger.disk import located
from privlearn.ledger.entries import Entry, OpenEntry, parse_entry
from privlearn.ledger.entry_log import CLOCK_MAY_BE_OFF, this_minute
from privlearn.ledger.file_store import unwritable
from privlearn.ledger.file_systems import check_on_this_host
from privlearn.ledger.heads import Claimed, check_form_of_head, kept_elsewhere
from privlearn.ledger.kept_heads import KeepHead
from privlearn.ledger.last_record import Tip
from privlearn.ledger.new_files import create_ledger
from privlearn.ledger.open_ledger import OpenLedger
from privlearn.ledger.owner_lock import check_not_served
from privlearn.ledger.reader import is_export, iterate_records, readable
from privlearn.ledger.stores import SharedStore
from privlearn.storage.new_names import unlink_leftover_names
from privlearn.storage.users import user_number


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
    if minute_of(chain.minute) > now + CLOCK_MAY_BE_OFF:
        warnings.warn(
            f"{path}: the last entry was written at {chain.minute}, and the clock says "
            f"{text_of_minute(now)}: until it is past that, entries tell "
            "the former; look after the clock",
            stacklevel=3,
        )


@final
class Ledger(OpenLedger):
    """A ledger open for writing; `create`, `open` or `memory` make one.

    ``path`` is absolute, and None for a ledger in memory.  ``unknown_head`` says that it was opened
    without a head to compare it with, which accountants that go on with it write down.
    """

    def __sklearn_clone__(self) -> Self:
        """Itself: what `sklearn.base.clone` makes of an estimator writes to the same ledger."""
        return self

    def __reduce__(self) -> str:
        raise TokenCopyError(f"a ledger cannot be copied or pickled; {ONE_PROCESS}")

    @classmethod
    def memory(cls) -> Ledger:
        """A ledger in memory, which ends with this process; for simulations."""
        return cls()

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, keep_head: KeepHead | None = None) -> Ledger:
        """Creates a new ledger file, and beside it one that keeps its head.

        ``keep_head`` takes each head that is on disk, 64 hexadecimal digits, to a safer place: it
        is called before any noise of the spend that stands there is drawn, and if it raises,
        nothing is released.  It must not call this ledger.

        Raises:
            LedgerError: the file exists, or the head or log of one that is gone; the directory is
                missing or not writable, the path names no file (a URI, ``":memory:"``), or SQLite
                writes somewhere else.
        """
        where = located(path)
        check_on_this_host(where)
        create_ledger(where)
        ledger = cls(where, keep_head)
        try:
            assert ledger._disk is not None
            ledger._disk.check_header()
        except LedgerError:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        head: str | None = None,
        unknown_head: bool = False,
        keep_head: KeepHead | None = None,
    ) -> Ledger:
        """Opens an existing ledger file for further entries.

        The ledger must hold the head that is kept beside it, and ``head``, if it is given: one that
        was kept elsewhere, and needed where the file beside it is missing, and where the ledger
        says that its heads are kept elsewhere (``keep_head``, see `create`).  An older copy, which
        forgets spends, does not hold them.  ``unknown_head`` goes on without, and every audit
        reports it.

        Raises:
            LedgerHeadError: the head is not known, or not in this file.
            LedgerUnreadableError: missing, torn or broken.
            LedgerSchemaError: newer version, or format 1, which takes no further entries.
            LedgerFeatureError: it needs an unknown extension.
            LedgerBusyError: its owner serves it, `privlearn ledger serve`.
            LedgerError: the path names no file, or one on a network file system.
        """
        where = located(path)
        check_on_this_host(where)
        check_not_served(where)
        found = read_to_continue(
            path, where, head=head, unknown_head=unknown_head, keeps_heads=keep_head is not None
        )
        try:
            unlink_leftover_names(where)
        except OSError as error:
            raise unwritable(where, error) from None
        ledger = cls(where, keep_head, tip=Tip.behind(found.chain))
        ledger.unknown_head = found.unknown_head
        warn_of_clock(path, found.chain)
        ledger.log.go_on_with(found.entries, unsaid=found.unknown_head)
        return ledger

    @classmethod
    def over(
        cls, store: SharedStore, *, head: str | None = None, keep_head: KeepHead | None = None
    ) -> Ledger:
        """A ledger that other processes write to as well.

        Args:
            store: where it stands; closed with the ledger.
            head: one that was kept elsewhere, which it must hold.
            keep_head: as for `create`; each process keeps those of its own entries.

        Raises:
            LedgerHeadError: ``head`` is not in it.
            LedgerUnreadableError: broken.
            LedgerFencedError, LedgerError: the store cannot be used.
            ValueError: ``head`` is none.
        """
        ledger = cls(None, keep_head, store)
        try:
            check_form_of_head(head)
            found = head in (None, GENESIS)
            for record in store.iterate(0):
                ledger.log.take_in(record)
                found = found or record.hash == head
            if not found:
                raise LedgerHeadError(
                    f"{store.name}: its head is {ledger.log.tip.head}, not {head}, which no entry "
                    "has: it lost entries, as after a fail-over, or was rewritten; restore the "
                    "newest"
                )
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def postgres(
        cls,
        address: str,
        how: Literal["create", "open", "join"] = "open",
        *,
        head: str | None = None,
        keep_head: KeepHead | None = None,
    ) -> Ledger:
        """A ledger in PostgreSQL, to which processes on several hosts write; see docs/how-to.

        Args:
            address: ``postgresql://user@host/database?ledger=name``, and whatever else libpq takes.
            how: ``"create"`` makes it, and where the role may the tables; ``"open"`` begins a new
                epoch: processes of earlier ones can neither spend nor release any more; ``"join"``
                writes beside the others of the epoch, for `Accountant.join`.
            head: one that was kept elsewhere, which it must hold: a server that lost entries, as
                after a fail-over to a standby that was behind, does not.
            keep_head: as for `create`; each process keeps those of its own entries.

        Raises:
            LedgerHeadError: ``head`` is not in it, or must be given, as it says that heads are kept
                elsewhere.
            LedgerUnreadableError: there is none, or it is broken.
            LedgerError: ``"create"``, and there is one; the server cannot be reached, or does not
                keep what it commits (``fsync``, ``full_page_writes``, a standby); or the extra
                ``postgres`` is not installed.
            ValueError: no such ``how``, or ``head`` is none.
        """
        if how not in ("create", "open", "join"):  # "open" would end all other processes' epoch
            raise ValueError(f"how = {how!r}: must be 'create', 'open' or 'join'")
        check_form_of_head(head)
        with extra_needed():
            from privlearn.ledger.postgres import PostgresStore
        store = PostgresStore(address, how)
        ledger = cls.over(store, head=head, keep_head=keep_head)
        if any(map(kept_elsewhere, ledger.opened)) and (head is None or keep_head is None):
            ledger.close()
            raise LedgerHeadError(
                f"{store.name} says that its heads are kept elsewhere: give head=, the last of "
                "them, and keep_head="
            )
        return ledger

    @classmethod
    def connect(
        cls,
        socket: str | os.PathLike[str],
        *,
        head: str | None = None,
        owner: str | None = None,
    ) -> Ledger:
        """A ledger file whose owner, `privlearn ledger serve`, other processes write to as well.

        Heads are kept elsewhere by the owner, if they are.

        Args:
            socket: of the owner, which is a process on this host.
            head: one that was kept elsewhere, which it must hold.
            owner: the user whose process that must be; default, this one's.  Under another one
                `CentralAccountant.granted` spends what was granted to this process's user.

        Raises:
            LedgerError: nobody serves there, or not a process of that user.
            LedgerHeadError: ``head`` is not in it.
            LedgerUnreadableError: broken.
            ValueError: ``head`` is none, or there is no such user.
        """
        check_form_of_head(head)
        from privlearn.ledger.socket_store import SocketStore  # asyncio takes long to import

        store = SocketStore(socket, None if owner is None else user_number(owner))
        ledger = cls.over(store, head=head)
        ledger._heads.elsewhere = store.heads_elsewhere
        return ledger
