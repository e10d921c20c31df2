"""``privlearn audit --follow``: a ledger that another process is writing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, final

from privlearn.accountants.prices import read_loss
from privlearn.accountants.shown_numbers import counted, indices, up
from privlearn.accountants.spend_checks import is_lease, runs_of
from privlearn.accountants.state import AccountState
from privlearn.cli.interruption import termination_interrupts, undisturbed
from privlearn.cli.output import BAD_INPUT, console, fail
from privlearn.errors import LedgerUnreadableError, PrivlearnError
from privlearn.ledger import Record
from privlearn.ledger.entries import AttestEntry, CloseEntry, Entry, OpenEntry, SpendEntry
from privlearn.ledger.reader import is_export, iterate_pages
from privlearn.reporting.audits import examination
from privlearn.reporting.costs import unit_of
from privlearn.reporting.report import Looked, name_of, report_of
from privlearn.reporting.spend_table import SpendTable
from privlearn.reporting.terminal import print_report
from privlearn.reporting.terminal_page import Page

if TYPE_CHECKING:
    from privlearn.accountants.audit import Examination

_SECONDS = 0.25  # Between two looks at whether the file has changed, which cost a system call each
_LOOKS = 8  # After so many the ledger is looked into even if the file seems the same
_TRIES = 20  # Looks at a file that cannot be read, as its writer is just ending its log, say


def follow_ledger(
    path: Path | str,
    *,
    delta: float | None = None,
    head: str | None = None,
    rounds: int = 1,
    full: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Prints spends as they are written, and the report once all accountants are closed.

    Every entry is audited once, as it comes.  SIGINT and SIGTERM end it, with the report so far.
    """
    if isinstance(path, Path) and path.is_file() and is_export(path):
        fail(f"{path} is an export, to which nothing is added: follow the ledger file", BAD_INPUT)
    screen = console()
    page = Page(screen)
    table = SpendTable()
    lines = _Lines(table, page)
    audited = examination(path, delta=delta, head=head, rounds=rounds, watcher=lines)
    try:
        with termination_interrupts():
            _follow(path, audited, lines, page, wait, vouched=head is not None)
    except KeyboardInterrupt:
        page.line("stopped; this is the state so far")
    with undisturbed():
        page.line("")
        found = report_of(Looked(audited.result(), table, name_of(path)))
        print_report(found, screen, full=full)
    return found.exit_code


def _follow(
    path: Path | str,
    audited: Examination,
    lines: _Lines,
    page: Page,
    wait: Callable[[float], None],
    *,
    vouched: bool,
) -> None:
    last: Record | None = None
    stamp: object = None
    known = failed = idle = 0
    while True:
        now = _stamp(path)
        if now != stamp or idle >= _LOOKS:
            stamp, idle = now, 0
            try:
                for records in _beyond(path, last, vouched):
                    audited.take(records)
                    last = records[-1]
                failed = 0
            except LedgerUnreadableError:
                failed += 1
                if lines.quiet or failed >= _TRIES:
                    raise
                stamp = None
            problems = audited.problems
            page.items(problems[known:], style="red")
            known = len(problems)
            if lines.quiet:
                entries = "1 entry" if audited.entries == 1 else f"{audited.entries:,} entries"
                spends = counted(lines.spends, "spend")
                page.line(f"{entries} with {spends} so far; Ctrl-C ends this")
                lines.quiet = False
            if audited.closed:
                return
        idle += 1
        wait(_SECONDS)


def _stamp(path: Path | str) -> list[tuple[int, int]]:
    """What changes in a file and its log when somebody writes."""
    found = []
    for name in (path, f"{path}-wal", f"{path}-tail"):
        with suppress(OSError):
            told = os.stat(name)
            found.append((told.st_size, told.st_mtime_ns))
    return found


def _beyond(path: Path | str, last: Record | None, vouched: bool) -> Iterator[list[Record]]:
    if last is None:
        yield from iterate_pages(path, vouched=vouched)
        return
    pages = iterate_pages(path, vouched=True, begin=last.seq)
    first = next(pages, [])
    if not first or (first[0].seq, first[0].hash) != (last.seq, last.hash):
        raise LedgerUnreadableError(
            f"{name_of(path)}: entry {last.seq}, which was read before, is not there any "
            "more: it was replaced, cut or rewritten"
        )
    yield from chain([first[1:]] if first[1:] else [], pages)


@final
class _Lines:
    def __init__(self, table: SpendTable, page: Page) -> None:
        self._table, self._page = table, page
        self.quiet = True
        self.spends = 0

    def see(self, record: Record, entry: Entry, state: AccountState) -> None:
        self._table.see(record, entry, state)
        if isinstance(entry, SpendEntry):
            self.spends += 1
        if self.quiet:
            return
        at = (record.envelope or {}).get("at", "")
        lead = f"{at} entry {record.seq}: " if isinstance(at, str) else f"entry {record.seq}: "
        match entry:
            case OpenEntry():
                self._page.items([f"{lead}accountant {state.number} was opened"])
            case CloseEntry():
                self._page.items([f"{lead}accountant {state.number} was closed"])
            case SpendEntry() | AttestEntry():
                self._page.items([f"{lead}{_told(entry, state)}"])


def _told(entry: SpendEntry | AttestEntry, state: AccountState) -> str:
    if isinstance(entry, SpendEntry):
        account = state.accounts.get(entry.token)
        label, times = "" if account is None else account.label, 1
    else:
        label, times = entry.label, entry.most_messages
    unit, users = unit_of(state.cap), range(*entry.users)
    try:
        price = state.prices.of_person(read_loss(entry.loss), users)
        cost = up(float(price.budget.amounts[0] * times))
        charged = up(float(state.meter.largest().amounts[0]))
    except (PrivlearnError, ValueError, ArithmeticError):  # of what is wrong, which is told, too
        cost = charged = "unknown"
    runs = ""
    if isinstance(entry, SpendEntry) and is_lease(entry):
        with suppress(PrivlearnError):  # of a wrong form, which is told, too
            runs = f"lease of {counted(runs_of(entry), 'run')}: "
    return (
        f"{runs}{entry.mechanism} under {label!r}, users {indices(entry.users)}: {unit} = "
        f"{cost}; charged to one user at most {charged} of {up(float(state.cap.amounts[0]))}"
    )
