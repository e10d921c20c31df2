"""An audit as one page of HTML: no script, nothing from elsewhere, only what the report says."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, final

from markupsafe import Markup, escape

from privlearn.accountants.assumption import KINDS, AssumptionKind
from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.plain_words import first_screen
from privlearn.reporting import page_charts, page_values
from privlearn.reporting.certificates import lease_words
from privlearn.reporting.model import Balance, Reading, Report
from privlearn.reporting.page_tables import Tables, numbers
from privlearn.reporting.written_files import check_own, write_over_own

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 2_000_000
"""Of a page."""
_BEGINNING = "<!doctype html>\n<!-- privlearn audit -->\n"
_WHAT = "page of an audit"


@final
@dataclass(frozen=True)
class Limits:
    """How much of a report a page shows; what it leaves out it counts."""

    accounts: int
    rows: int
    """Of a table or a list."""
    characters: int
    """Of one text of the ledger."""


_LIMITS = (Limits(50, 200, 1000), Limits(20, 100, 300), Limits(8, 50, 120), Limits(3, 20, 60))
"""Tried in turn until the page is small enough."""
_MOST_IN_CELL = 200  # Characters


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Writes the page of a report whole or not at all.

    Raises:
        DataError: the file that is there is not such a page.
        OSError: it cannot be written.
    """
    write_over_own(path, page_html(report), beginning=_BEGINNING, what=_WHAT)


def check_page_name(path: str | os.PathLike[str]) -> None:
    """Refuses to put a page in the place of anything else.

    Raises:
        DataError: the file that is there is not such a page.
        OSError: it cannot be read.
    """
    check_own(path, beginning=_BEGINNING, what=_WHAT)


def page_html(report: Report) -> str:
    """The page, of at most `MOST_BYTES` bytes in UTF-8: what is too much for it is counted."""
    for limits in _LIMITS:
        page = _rendered(report, limits)
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def _rendered(report: Report, limits: Limits) -> str:
    style = (files("privlearn.reporting") / "page.css").read_text("utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment(limits).get_template("page.html.j2")
    accounts = list(_accounts(report, limits))
    return page.render(
        report=report,
        limits=limits,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'",
        standing=standing(report),
        together=_together(report),
        accounts=accounts,
        drawn_curves=any(account.trade_off for account in accounts),
        several=len(accounts) > 1,
        left_out=_number_of_accounts(report) - len(accounts),
        tables=Tables(report),
        numbers=numbers,
        assumptions=_assumptions(report),
        commands=_commands(report),
    )


def _together(report: Report) -> str:
    if report.together is None or report.together in report.sums:
        return ""
    return dict(first_screen(report)).get("privacy loss", "")


def standing(report: Report) -> str:
    """What the verdict is, as one of ``problems``, ``simulation``, ``claimed``, ``verified``."""
    if report.problems:
        return "problems"
    if report.simulation:
        return "simulation"
    vague = any(one.unknown or math.isinf(one.epsilon) for one in report.guarantees)
    return "claimed" if report.attested or vague else "verified"


@final
@dataclass(frozen=True)
class Account:
    """All that a report says of one accountant."""

    number: int
    guarantee: Guarantee | None
    """None where it could not be worked out."""
    spent: Guarantee | None
    balance: Balance | None
    """None of very many accountants."""
    reading: Reading | None
    tables: Tables
    bar: list[page_charts.Bar]
    time: page_charts.Chart | None
    ranges: page_charts.Chart | None
    trade_off: page_charts.Chart | None


def _accounts(report: Report, limits: Limits) -> Iterator[Account]:
    balances = {one.accountant: one for one in report.balances}
    readings = {one.accountant: one for one in report.readings}
    curves = {one.accountant: one for one in report.curves}
    told = {one.accountants[0]: one for one in report.guarantees}
    spent = {one.accountants[0]: one for one in report.spent}
    for number in sorted({*told, *balances})[: limits.accounts]:
        balance, reading, curve = balances.get(number), readings.get(number), curves.get(number)
        drawn = curve is not None and reading is not None and bool(reading.words)
        tables = Tables(report, number, balance is not None and balance.user is None)
        yield Account(
            number=number,
            guarantee=told.get(number),
            spent=spent.get(number),
            balance=balance,
            reading=reading,
            tables=tables,
            bar=[] if balance is None else page_charts.budget_bar(balance),
            time=None
            if balance is None
            else page_charts.time_chart(tables.of(report.by_time), balance.cap),
            ranges=None
            if balance is None
            else page_charts.range_chart(tables.of(report.by_user_range), balance.users),
            trade_off=page_charts.trade_off_chart(curve) if curve and drawn else None,
        )


def _number_of_accounts(report: Report) -> int:
    told = {one.accountants[0] for one in report.guarantees}
    return len(told | {one.accountant for one in report.balances})


def _assumptions(report: Report) -> list[tuple[AssumptionKind, str, list[tuple[str, list[int]]]]]:
    """Kind, heading and sentences, the weakest kind first; with whose they are, if not all's."""
    whose: dict[AssumptionKind, dict[str, dict[int, None]]] = {kind: {} for kind in KINDS}
    for guarantee in [*report.guarantees, *report.sums]:
        for one in guarantee.rests_on:
            numbers = whose[one.kind].setdefault(one.text, {})
            numbers.update(dict.fromkeys(guarantee.accountants))
    everybody = len(report.guarantees)
    return [
        (
            kind,
            KINDS[kind],
            [
                (text, [] if len(numbers) >= everybody else sorted(numbers))
                for text, numbers in whose[kind].items()
            ],
        )
        for kind in reversed(KINDS)
        if whose[kind]
    ]


def _commands(report: Report) -> list[tuple[str, str]]:
    name = f"./{report.ledger}" if report.ledger.startswith("-") else report.ledger
    ledger = shlex.quote(name)
    asked = "".join(f" --{key} {shlex.quote(str(value))}" for key, value in report.asked.items())
    return [
        (
            "Work everything out again, with every assumption",
            f"privlearn audit {ledger}{asked} --full",
        ),
        (
            "Check that a ledger which you hold still has this record in it",
            f"privlearn audit {ledger} --head {shlex.quote(report.head)}",
        ),
        ("All of it for a program", f"privlearn audit {ledger}{asked} --json"),
    ]


@cache
def _environment(limits: Limits) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def finalized(value: object) -> object:
        """All text that is no markup of ours is shown as text of others."""
        return page_values.words(value, limits.characters) if type(value) is str else value

    environment = Environment(
        loader=PackageLoader("privlearn.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalized,
    )
    environment.filters |= {
        "number": page_values.number,
        "left": partial(page_values.number, down=True),
        "percent": page_values.percent,
        "chance": page_values.chance,
        "odds": page_values.odds,
        "count": page_values.count,
        "minute": page_values.minute,
        "users": page_values.users,
        "cell": partial(page_values.cell, most=min(limits.characters, _MOST_IN_CELL)),
        "attribute": escape,
        "plain": partial(page_values.plain, most=limits.characters),
        "asked": page_values.asked,
        "lease_words": lease_words,
        "above_a_coin": lambda chance: round(200 * (chance - 0.5), 2),
    }
    return environment
