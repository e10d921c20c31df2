"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from privlearn.accountants.plain_words import first_screen
from privlearn.accountants.shown_numbers import counted, down, indices, part, up
from privlearn.reporting.certificates import (
    print_caps,
    print_claims,
    print_findings,
    print_first_screen,
    print_guarantee,
    print_record,
    print_sums,
    whose,
)
from privlearn.reporting.model import Balance, By, OneSpend, OpenToken, Report, Spent
from privlearn.reporting.terminal_page import Page
from privlearn.reporting.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

_DETAILS = "add --full (text), --html FILE (a page) or --json (for programs)"


def print_report(
    report: Report, console: Console, *, by: By | None = None, full: bool = False
) -> None:
    """Prints the first screen, and behind it what was asked for, or all.

    All text of the ledger is indented, so that it cannot be taken for the verdict.
    """
    page = Page(console)
    whole = report.composition
    told = zip(
        [*report.guarantees, *report.sums], [*report.readings, *report.sum_readings], strict=True
    )
    guess = min((reading.guess for guarantee, reading in told if guarantee == whole), default=None)
    lines = first_screen(report, guess=guess, spent=_spent(report), details=_DETAILS)
    print_first_screen(report, lines, page)
    if full or by is not None or report.asked:
        _print_details(report, page, by=by, full=full)


def _spent(report: Report) -> str:
    told = report.balances
    known = [_shares(one) for one in told if one.spent is not None]
    whole = report.composition
    of_all = whole is not None and len(told) == len(whole.accountants)
    if not of_all or len(known) < len(told) or report.accounts_left_out or not known:
        return "not known of every budget"
    spent = max(spent for spent, _, _ in known)
    user = report.asked.get("user")
    whose = "one person's budget" if user is None else f"user {user}'s budget"
    whose += f" in each of {len(told)} accounts" if len(told) > 1 else ""
    if report.closed:
        return f"at most {part(spent)} of {whose}; closed: nothing more can be spent"
    held, left = max(held for _, held, _ in known), min(left for _, _, left in known)
    kept = f", at most {part(held)} set aside" if held else ""
    return f"at most {part(spent)} of {whose}{kept}, at least {part(left, down=True)} left"


def _shares(balance: Balance) -> tuple[float, float, float]:
    cap = balance.cap
    left = 0.0 if balance.closed else balance.remaining or 0.0
    return (balance.spent or 0.0) / cap, (balance.reserved or 0.0) / cap, left / cap


def _print_details(report: Report, page: Page, *, by: By | None, full: bool) -> None:
    print_findings(report, page, full=full)
    several = len(report.guarantees) > 1
    sentences = {one.accountant: one.sentence for one in report.readings}
    balances = {one.accountant: one for one in report.balances}
    for guarantee, spent in zip(report.guarantees, report.spent, strict=True):
        number = guarantee.accountants[0]
        page.line(f"\n{whose(guarantee)}" if several else "", style="bold")
        print_guarantee(guarantee, spent, page, sentences[number])
        if number in balances:
            _print_balance(balances.pop(number), page)
        _print_spends(report, number, by, page)
        print_claims(report, guarantee, page)
        print_caps(report, guarantee, page)
        _print_tokens(report, number, page)
        _print_listed(report, number, page)
    for balance in balances.values():  # of those whose guarantee could not be worked out
        page.line(f"\naccountant {balance.accountant}", style="bold")
        _print_balance(balance, page)
    if report.accounts_left_out:
        page.items([f"{report.accounts_left_out:,} further accountants: only their guarantees"])
    print_sums(report, page, [one.sentence for one in report.sum_readings])
    if report.asked:
        page.line("")
        page.named("asked for", f"{asked_words(report)}; {_whole(report)}")
    print_record(report, page, full=full)
    if report.first is not None:
        page.named("written", f"{report.first} to {report.last}, as the ledger declares")


def asked_words(report: Report) -> str:
    """What a report was restricted to."""
    return ", ".join(f"{name} {value}" for name, value in report.asked.items())


def _whole(report: Report) -> str:
    spends = sum(line.spends for line in report.total)
    whose = f"user {report.asked['user']}" if "user" in report.asked else "the whole ledger"
    return f"{counted(spends, 'spend')}; guarantee and budget are those of {whose}"


def _print_balance(balance: Balance, page: Page) -> None:
    unit = balance.unit
    name = f"{unit} = {up(balance.cap)}"
    if balance.unknown:
        page.named("budget", f"cap {name}; what is left is unknown: {visible(balance.unknown)}")
        return
    page.named("budget", f"cap {name}{'' if balance.promise is None else f', {balance.promise}'}")
    if balance.counted:
        page.named("", balance.counted)
    page.named("  spent", f"{up(balance.spent)} {_of_whom(balance)}")
    page.named("  reserved", f"{up(balance.reserved)}{_reserved(balance)}")
    closed = ", which can no longer be spent" if balance.closed and balance.remaining else ""
    least = balance.most_remaining
    other = least is not None and least != balance.remaining
    told = f"; the least charged user has {down(least)}" if other else ""
    page.named("  remaining", f"{down(balance.remaining)}{closed}{told}")
    failing = balance.failing
    if failing is not None and failing.spent is not None:
        page.named(
            "  failures",
            f"set aside {up(failing.cap)}: spent {up(failing.spent)}, reserved "
            f"{up(failing.reserved)}, remaining {down(failing.remaining)}",
        )
    elif failing is not None:
        page.named("  failures", f"set aside {up(failing.cap)}")
    for lead, purchase in zip(["  it buys", *["    or"] * 100], balance.buys, strict=False):
        page.named(lead, purchase.what)
    if balance.plan_left:
        heads = ("left of the plan", "users", "runs", "of")
        page.table(
            heads,
            [(i.label, indices(i.users), str(i.left), str(i.count)) for i in balance.plan_left],
        )


def _of_whom(balance: Balance) -> str:
    if balance.user is None:
        return "(of the person who is charged most)"
    everybody = balance.most_remaining == balance.remaining
    return f"(user {balance.user}{', as everybody' if everybody else ''})"


def _reserved(balance: Balance) -> str:
    if not balance.reserved:
        return ""
    return " (by the committed plan)" if balance.planned else " (issued or delegated, not spent)"


_NAMES: dict[By, tuple[str, ...]] = {
    "time": ("from", "to"),
    "label": ("label",),
    "mechanism": ("mechanism",),
    "user-range": ("users",),
}


def lines_by(report: Report, by: By | None) -> list[Spent]:
    """The lines of a report that add spends up in that way."""
    match by:
        case "time":
            return report.by_time
        case "label":
            return report.by_label
        case "mechanism":
            return report.by_mechanism
        case "user-range":
            return report.by_user_range
    return report.by_mechanism_and_label


def _print_spends(report: Report, number: int, by: By | None, page: Page) -> None:
    lines = [line for line in lines_by(report, by) if line.accountant == number]
    if not lines:
        if report.asked:
            page.items(["no spend is as asked for"])
        return
    names = ("mechanism", "label") if by is None else _NAMES[by]
    if by == "time" and all(line.since == line.until for line in lines):
        names = ("when",)
    every = [line for line in report.total if line.accountant == number]
    rows = [
        (*_name(line, by)[: len(names)], f"{line.spends:,}", _cost(line), _part(line.of_cap))
        for line in lines
    ]
    if len(lines) > 1:
        rows += [
            ("all", *[""] * (len(names) - 1), f"{line.spends:,}", _cost(line), _part(line.of_cap))
            for line in every
        ]
    unit = lines[0].unit
    page.table((*names, "spends", f"{unit} of one user, at most", "of the cap"), rows, most=210)


def _name(line: Spent, by: By | None) -> Sequence[str]:
    if line.others:
        return f"{line.others:,} others", *[""] * (by is None)
    match by:
        case "time":
            return line.since or "unknown", line.until or "unknown"
        case "user-range":
            return (indices(line.users),)
        case "label":
            return (line.label or "",)
        case "mechanism":
            return (line.mechanism or "",)
    return line.mechanism or "", line.label or ""


def _cost(line: Spent) -> str:
    return up(line.most)


def _part(of_cap: float | None) -> str:
    return "" if of_cap is None else part(of_cap)


def _print_tokens(report: Report, number: int, page: Page) -> None:
    tokens = [token for token in report.open_tokens if token.accountant == number]
    unspent = [token for token in tokens if token.mechanism is None]
    running = [token for token in tokens if token.mechanism is not None]
    page.table(
        ("issued, not spent", "label", "users", "since", "reserved"),
        [_token(t, up(t.reserved)) for t in unspent],
    )
    page.table(
        ("spent, without an end", "label", "users", "since", "mechanism"),
        [_token(t, t.mechanism or "") for t in running],
    )


def _token(token: OpenToken, last: str) -> tuple[str, ...]:
    return token.token, token.label, indices(token.users), token.issued or "unknown", last


def _print_listed(report: Report, number: int, page: Page) -> None:
    listed = [one for one in report.listed if one.accountant == number]
    if report.not_listed:
        page.items([f"{report.not_listed:,} earlier spends are counted above, and not listed"])
    page.table(
        ("entry", "when", "mechanism", "label", "users", "cost"), [_one(one) for one in listed]
    )


def _one(one: OneSpend) -> tuple[str, ...]:
    cost = up(one.cost)
    when = one.at or "unknown"
    return str(one.entry), when, one.mechanism, one.label, indices(one.users), cost
