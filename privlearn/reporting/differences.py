"""Two ledgers compared: does one continue the other, and what was spent in between."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.shown_numbers import down, indices, part, up
from privlearn.ledger import Record, iterate_records
from privlearn.reporting.certificates import guarantee_line, whose
from privlearn.reporting.model import Balance, OneSpend, Report, Spent
from privlearn.reporting.report import name_of, report
from privlearn.reporting.terminal_page import Page

if TYPE_CHECKING:
    from rich.console import Console


_SAID = attrgetter("seq", "hash", "data", "body", "digests")


class Difference(BaseModel):
    """Whether ``new`` continues ``old``, and what stands in it beyond."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    version: Literal["privlearn-difference/1"] = "privlearn-difference/1"
    old: str
    new: str
    """Names of the two files."""
    continues: bool
    """Whether the head of the old one is found in the new, and all entries before are the same."""
    part_at: int | None
    """The first entry, from 0, that is not the same in both; None where the new one continues."""
    why: str
    """In one sentence."""
    old_head: str
    new_head: str
    old_entries: int
    new_entries: int
    old_verdict: str
    new_verdict: str
    exit_code: int
    """Of an audit of the new one."""
    guarantees_before: list[Guarantee]
    guarantees: list[Guarantee]
    balances_before: list[Balance]
    balances: list[Balance]
    freed: int
    """Users whose charge was taken off in between, as streams ended before they came."""
    total: list[Spent]
    """What was spent in between, by accountant; and so on.  Empty where it does not continue."""
    by_mechanism: list[Spent]
    by_label: list[Spent]
    by_mechanism_and_label: list[Spent]
    by_time: list[Spent]
    by_user_range: list[Spent]
    listed: list[OneSpend]
    not_listed: int


def difference(
    old: str | os.PathLike[str], new: str | os.PathLike[str], *, delta: float | None = None
) -> Difference:
    """Compares two ledgers entry by entry, and audits both.

    Raises:
        As `privlearn.accountants.audit`.
    """
    part_at, before, after = _parting(old, new)
    first = report(old, delta=delta)
    second = report(new, delta=delta, after=first.entries)
    continues = part_at is None
    told = {
        name: getattr(second, name) if continues else []
        for name in (
            "total",
            "by_mechanism",
            "by_label",
            "by_mechanism_and_label",
            "by_time",
            "by_user_range",
            "listed",
        )
    }
    return Difference(
        old=name_of(old),
        new=name_of(new),
        continues=continues,
        part_at=part_at,
        why=_why(first, second, part_at, before, after),
        old_head=first.head,
        new_head=second.head,
        old_entries=first.entries,
        new_entries=second.entries,
        old_verdict=first.verdict,
        new_verdict=second.verdict,
        exit_code=second.exit_code,
        guarantees_before=first.guarantees,
        guarantees=second.guarantees,
        balances_before=first.balances,
        balances=second.balances,
        freed=max(second.freed - first.freed, 0) if continues else 0,
        not_listed=second.not_listed if continues else 0,
        **told,
    )


def _parting(
    old: str | os.PathLike[str], new: str | os.PathLike[str]
) -> tuple[int | None, Record | None, Record | None]:
    ours, theirs = iterate_records(old), iterate_records(new)
    for position, (before, after) in enumerate(zip_longest(ours, theirs)):
        if before is None:  # all of the old one was found
            return None, None, None
        if after is None or _SAID(before) != _SAID(after):
            return position, before, after
    return None, None, None


def _why(
    first: Report, second: Report, at: int | None, before: Record | None, after: Record | None
) -> str:
    if at is None:
        more = second.entries - first.entries
        if not more:
            return f"the two are the same, {first.entries:,} entries"
        return f"the first {first.entries:,} entries are those of the old one, {more:,} follow"
    if before is not None and after is None:
        return (
            f"the new one ends after entry {at - 1}, and the old one goes on: it was cut, or the "
            "two were given in the wrong order"
        )
    bodies = [one.body if one else {} for one in (before, after)]
    kinds = [str(body.get("entry")) for body in bodies]
    if kinds[0] == kinds[1]:
        return f"they part at entry {at}, {kinds[0]!r:.40}{_other_content(*bodies)}"
    return (
        f"they part at entry {at}, which is {kinds[0]!r:.40} in the old one and {kinds[1]!r:.40} "
        "in the new one"
    )


def _other_content(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parted = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if not parted:
        return ": its content is the same in both, and its hash, its time or its writer is not"
    name, *others = sorted(parted)
    more = f"; {len(others)} more of its fields differ" if others else ""
    old, new = (f"{body.get(name)!r:.80}" for body in (before, after))
    return f": {name:.40} is {old} in the old one and {new} in the new one{more}"


def print_difference(found: Difference, console: Console) -> None:
    """Prints whether it is a continuation, and what was spent in between."""
    page = Page(console)
    if not found.continues:
        page.line(
            "NO CONTINUATION: the new ledger does not hold all of the old one", style="bold red"
        )
        page.items([found.why], style="red")
    else:
        page.line("CONTINUATION: all entries of the old ledger stand in the new one")
        page.items([found.why])
    page.line("")
    page.named("old", f"{found.old}: {found.old_verdict}; head {found.old_head}")
    page.named("new", f"{found.new}: {found.new_verdict}; head {found.new_head}")
    earlier = {balance.accountant: balance for balance in found.balances_before}
    promised = {one.accountants[0]: one for one in found.guarantees_before}
    for guarantee in found.guarantees if found.continues else []:
        number = guarantee.accountants[0]
        page.line(f"\n{whose(guarantee)}", style="bold")
        if number not in promised:
            page.items(["it was opened in between"])
        elif guarantee_line(promised[number]) != guarantee_line(guarantee):
            page.named("guarantee before", guarantee_line(promised[number]))
        page.named("guarantee", guarantee_line(guarantee))
        balances = {balance.accountant: balance for balance in found.balances}
        for name, balance in (("before", earlier.get(number)), ("now", balances.get(number))):
            if balance is not None:
                page.named(name, _left(balance))
        lines = [line for line in found.by_mechanism_and_label if line.accountant == number]
        every = [line for line in found.total if line.accountant == number]
        if not every:
            page.items(["nothing was spent in between"])
        rows = [_row(line) for line in lines] + [
            ("all", "", *_row(line)[2:]) for line in every if len(lines) > 1
        ]
        heads = ("mechanism", "label", "spends", "users", "cost of one, at most", "of the cap")
        page.table(heads, rows, most=210)
    if found.freed:
        page.items([f"{found.freed:,} charges of users whom streams did not reach were taken off"])


def _left(balance: Balance) -> str:
    if balance.unknown:
        return "what is left is unknown"
    user = "" if balance.user is None else f", user {balance.user}"
    closed = ", closed" if balance.closed else ""
    return (
        f"{balance.unit}: spent {up(balance.spent)}, reserved {up(balance.reserved)}, remaining "
        f"{down(balance.remaining)} of {up(balance.cap)}{user}{closed}"
    )


def _row(line: Spent) -> tuple[str, ...]:
    name = (f"{line.others:,} others", "") if line.others else (line.mechanism, line.label)
    of_cap = "" if line.of_cap is None else part(line.of_cap)
    return (
        name[0] or "",
        name[1] or "",
        f"{line.spends:,}",
        indices(line.users),
        up(line.most),
        of_cap,
    )
