"""The page of an audit: what the report says, nothing else, and no way in for a ledger's text."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers_to_show import KINDS, clock, release, weeks
from rich.console import Console
from typer.testing import CliRunner

from privlearn import Ball, Plan
from privlearn.accountants import CentralAccountant
from privlearn.accountants.certificate import Attestation
from privlearn.accountants.shown_numbers import counted, fixed, part
from privlearn.cli.main import app
from privlearn.errors import DataError
from privlearn.ledger import Ledger
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.reporting.model import Report, Spent
from privlearn.reporting.page import MOST_BYTES, page_html, standing, write_page
from privlearn.reporting.page_values import rounded
from privlearn.reporting.report import report
from privlearn.reporting.terminal import print_report
from privlearn.reporting.visible import visible
from privlearn.values.adjacency import Adjacency

VOID = {"meta", "line", "rect", "polyline", "polygon", "path"}
FURNITURE = {"50", "1", "0"}
"""Numbers in the page's own words: a tossed coin, the 1% of an alarm, where counting begins."""


@dataclass
class Table:
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


class Seen(HTMLParser):
    """A page taken apart."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[tuple[str, ...], str]] = []
        self.values: list[str] = []
        """Of numbers, without those that count what a page leaves out."""
        self.tables: dict[str, Table] = {}
        self._open: list[tuple[str, dict[str, str]]] = []
        self._caption = ""
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag == "data" and not self._inside("summary", "more"):
            self.values.append(found["value"])
        if tag == "caption":
            self._caption = ""
        if tag == "tr":
            self._row: list[str] = []
        if tag in ("th", "td"):
            self._row.append("")
        if tag not in VOID:
            self._open.append((tag, found))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        name, _ = self._open.pop()
        assert name == tag
        if tag == "caption":
            self._caption = self._caption.removesuffix(", continued")
        if tag == "tr":
            table = self.tables.setdefault(self._caption, Table())
            if self._inside("thead"):
                table.heads = self._row
            else:
                table.rows.append(self._row)

    def handle_data(self, data: str) -> None:
        self.text.append((tuple(tag for tag, _ in self._open), data))
        if self._inside("caption"):
            self._caption += data
        if self._inside("th") or self._inside("td"):
            self._row[-1] += data

    def _inside(self, *names: str) -> bool:
        return any(tag in names or found.get("class") in names for tag, found in self._open)

    @property
    def own_words(self) -> str:
        """What is no part of the report."""
        of_the_report = {"bdi", "data", "time", "code", "svg", "style", "title", "span"}
        return " ".join(data for tags, data in self.text if not of_the_report & {*tags})

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and the names of their attributes."""
        return [(tag, tuple(found)) for tag, found in self.tags]


def ends(users: tuple[int, int]) -> str:
    first, last = users[0], users[1] - 1
    return f"{first}..{last}" if first < last else f"{first}"


@pytest.fixture(scope="module", params=KINDS)
def shown(request: Any, tmp_path_factory: Any) -> tuple[str, Report]:
    """A report of each kind."""
    path = tmp_path_factory.mktemp("ledgers") / f"{request.param}.db"
    KINDS[request.param](path)
    return request.param, report(path, delta=0 if request.param == "infinite" else None)


@pytest.fixture(scope="module")
def of_weeks(tmp_path_factory: Any) -> Report:
    path = tmp_path_factory.mktemp("ledgers") / "weeks.db"
    weeks(path)
    return report(path)


def numbers_of(value: object) -> Iterator[float]:
    """All numbers of a report, however deep."""
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from numbers_of(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


OUR_WORDS = re.compile(
    r"zCDP|GDP|ρ|\brho\b|\bμ|joint|billboard|adjacen|-one|-out|ex post|\bcap |accountants? \d"
)


def test_the_first_screen_is_short_plain_and_says_no_more(shown: tuple[str, Report]) -> None:
    name, told = shown
    screen = StringIO()
    print_report(told, Console(file=screen, width=80))
    for printed in (screen.getvalue(), str(told)):
        lines = printed.splitlines()
        assert len(lines) <= 14
        assert max(map(len, lines)) <= 80
        assert lines[0] == told.verdict
        own = " ".join(line for line in lines[1:] if not line.startswith(("  • ", "    ")))
        assert not OUR_WORDS.search(own), name
        said = " ".join(printed.split())
        sound = not told.problems and not told.simulation and math.isfinite(told.epsilon)
        condition = "if so, " if told.attested else ""
        assert (f"privacy loss {condition}at most ε = " in said) == sound
        assert ("is right in at most" in said) == sound
        if told.problems:
            assert "Rely on no number of it" in said
            continue
        things = len(told.weaknesses)
        assert (f"weakened by {counted(things, 'thing')}: " if things else "by nothing") in said
        assert ("which nobody has verified" in said) == told.attested
        assert ("without a recorded outcome" in said) == bool(told.lost)
    if told.problems:
        assert told.problems[0][:60] in " ".join(screen.getvalue().split())
    else:
        assert "at most" in re.findall(r"\nspent .*", screen.getvalue())[0]


def test_the_first_screen_of_one_user_is_about_that_user(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    first = CentralAccountant(ZCDP(4), users=range(10), ledger=book)
    first.commit([Plan("a", zcdp("0.001"), range(5)), Plan("b", zcdp("2"), range(5, 10))])
    alone = str(report(path, user=0))
    assert "changing the record of user 0 makes no output" in " ".join(alone.split())
    second = CentralAccountant(ZCDP(4), users=range(20, 30), ledger=book, shared=True)
    second.issue(zcdp("2"), users=range(20, 30), label="x")
    first.close()
    screen = StringIO()
    print_report(report(path, user=3), Console(file=screen, width=80))
    several = " ".join(screen.getvalue().split())
    assert "spent not known of every budget" in several
    assert "nothing more can be spent" not in several
    assert "all records of the person behind user 3" in several


def zcdp(rho: str) -> Loss:
    return NoisySum.calibrated(Ball(1.0, 2), ZCDP(rho)).loss()


def test_a_page_of_several_relations_leads_with_all_of_them_together(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "mixed.db")
    for relation in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        CentralAccountant(ZCDP("0.1"), users=range(9), ledger=book, shared=True, adjacency=relation)
    book.close()
    told = report(tmp_path / "mixed.db")
    assert told.sums == []
    page = page_html(told)
    lead = f"privacy loss <bdi>at most ε = {fixed(told.epsilon)} at δ = 1e-06: changing all records"
    assert page.index(lead) < page.index("under accountant 1 alone")
    KINDS["several"](tmp_path / "several.db")
    assert "privacy loss <bdi>" not in page_html(report(tmp_path / "several.db"))


def lines_of(lines: list[Spent], name: Callable[[Spent], str]) -> list[list[str]]:
    return [
        [
            name(line),
            f"{line.spends:,}",
            "no price" if line.most is None else rounded(line.most),
            "no price" if line.of_cap is None else part(line.of_cap),
        ]
        for line in lines
    ]


def check_against(told: Report) -> Seen:
    """The page of a report says what the report says."""
    seen = Seen(page_html(told))
    known = {repr(number) for number in numbers_of(told.model_dump())}
    assert {*seen.values} <= known
    assert len(seen.values) > 10
    assert {*re.findall(r"\d+", seen.own_words)} <= FURNITURE
    names: list[tuple[str, list[Spent], Callable[[Spent], str]]] = [
        ("By mechanism", told.by_mechanism, lambda one: one.mechanism or ""),
        ("By label", told.by_label, lambda one: visible(one.label or "", 200)),
        ("By arrival index", told.by_user_range, lambda o: ends(o.users)),
    ]
    for caption, lines, name in names:
        lines = [line for line in lines if not line.attested]
        if lines:
            assert seen.tables[caption].rows == lines_of(lines, name)
    text = " ".join(data for _, data in seen.text)
    for said in (told.verdict, told.meaning, told.head, told.root, told.noise, told.compared):
        assert said in text
    for one in [*told.readings, *told.sum_readings]:
        assert visible(one.sentence) in text
    for said in [*told.problems, *told.weaknesses, *told.remarks, *told.trusted_code]:
        assert visible(said, 1000) in text
    for guarantee in [*told.guarantees, *told.sums]:
        for assumption in guarantee.rests_on:
            assert visible(assumption.text, 1000) in text
    return seen


def test_a_page_says_what_the_report_says(shown: tuple[str, Report]) -> None:
    check_against(shown[1])


@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(1, 10),
            st.sampled_from(["a", "b", "<i>", "\u202e"]),
            st.sampled_from([7.0, 20.0]),
            st.sampled_from([0, 1, 60 * 24, 60 * 24 * 40]),
        ),
        max_size=6,
    ),
    closed=st.booleans(),
)
@settings(max_examples=6)
def test_pages_and_sums_of_random_ledgers(
    tmp_path_factory: Any, runs: list[tuple[int, int, str, float, int]], closed: bool
) -> None:
    path = tmp_path_factory.mktemp("random") / "ledger.db"
    paid: dict[int, Fraction] = dict.fromkeys(range(10), Fraction(0))
    with clock() as on:
        book = CentralAccountant(ZCDP(1), users=range(10), ledger=Ledger.create(path))
        for start, length, label, scale, minutes in runs:
            on(minutes)
            users = range(start, min(start + length, 10))
            release(book, users, label, scale)
            for user in users:
                paid[user] += 2 / Fraction(scale) ** 2  # sensitivity 2: Δ²/(2σ²)
        if closed:
            book.close()
        else:
            book.ledger.close()
    told = report(path)
    check_against(told)
    levels = [line.so_far for line in told.by_time]
    assert levels == sorted(level or 0.0 for level in levels), "it never falls without early ends"
    if runs:
        assert levels[-1] == told.total[0].most
        assert levels[-1] == pytest.approx(float(max(paid.values())), rel=1e-12)


def test_the_end_of_each_period_has_the_largest_sum_of_its_time(tmp_path: Path) -> None:
    with clock() as on:
        book = CentralAccountant(ZCDP(1), users=range(3), ledger=Ledger.create(tmp_path / "l.db"))
        for user, scale in ((0, 10.0), (1, 8.0), (0, 10.0), (2, 20.0)):
            release(book, range(user, user + 1), "sum", scale)
            on(60 * 24)
        book.close()
    told = report(tmp_path / "l.db")
    cost = {scale: 2 / scale**2 for scale in (8.0, 10.0)}
    expected = [cost[10.0], cost[8.0], 2 * cost[10.0], 2 * cost[10.0]]
    assert [line.so_far for line in told.by_time] == pytest.approx(expected, rel=1e-12)


def test_what_several_accountants_promise_together_is_read_together(
    tmp_path_factory: Any,
) -> None:
    path = tmp_path_factory.mktemp("ledgers") / "several.db"
    KINDS["several"](path)
    told = report(path)
    assert len(told.sum_readings) == len(told.sums) == 1
    together = told.sum_readings[0]
    assert together.guess > max(one.guess for one in told.readings)
    assert together.guess < sum(one.guess - 0.5 for one in told.readings) + 0.5


# What is said first -------------------------------------------------------------------------------

STANDINGS = {
    "tampered": "problems",
    "unknown": "problems",
    "simulated": "simulation",
    "attested": "claimed",
    "infinite": "claimed",
}


def test_a_page_claims_no_more_than_its_ledger_earns(shown: tuple[str, Report]) -> None:
    kind, told = shown
    page = page_html(told)
    assert standing(told) == STANDINGS.get(kind, "verified")
    assert f'<div class="verdict {standing(told)}">' in page
    certified = kind not in ("tampered", "unknown", "simulated", "infinite")
    assert ('<p class="figure">' in page) == certified
    assert ("polyline" in page and 'id="trade-off"' in page) == certified
    assert ("Not confirmed" in page) == (kind in ("tampered", "unknown"))
    assert ("this noise protects nobody" in page) == (kind == "simulated")
    warnings = [name for name in ("problems", "weaknesses") if f'<section id="{name}"' in page]
    assert warnings == ["problems"] * bool(told.problems) + ["weaknesses"] * bool(told.weaknesses)
    places = [page.index(f'<section id="{name}"') for name in (*warnings, "numbers", "record")]
    assert places == sorted(places)
    if told.problems:
        assert places[0] < page.index('<section id="meaning"')
    assert ("also what has not been spent yet" in page) == certified, "85% of the cap, not so far"
    assert ">none<" not in page, "a number that is not stated is no protection that is missing"
    relation = told.guarantees[0].relation
    assert relation or "any other in its place" in page or "a blank one in its place" in page
    buys = sum(len(balance.buys) for balance in told.balances)
    assert ("would still buy" in page) == bool(buys)


# No way in ----------------------------------------------------------------------------------------


def with_text(told: Report, text: str) -> Report:
    """The report, as if everything that a ledger names were called so."""
    attested = Attestation(
        accountant=1,
        by=text,
        mechanism=text,
        label=text,
        users=(0, 9),
        adjacency=told.guarantees[0].adjacency,
        loss={"kind": text, text: text},
        most_messages=1,
        count=3,
    )
    changed: dict[str, Any] = {
        "ledger": text,
        "problems": [text],
        "consequences": [text],
        "weaknesses": [text],
        "remarks": [text],
        "trusted_code": [text],
        "learners": [text],
        "features": [text],
        "attestations": [attested],
        "noise": text,
        "head": text,
        "verdict": text,
        "by_label": [one.model_copy(update={"label": text}) for one in told.by_label],
        "by_mechanism": [one.model_copy(update={"mechanism": text}) for one in told.by_mechanism],
        "open_tokens": [
            one.model_copy(update={"label": text, "token": text, "mechanism": text})
            for one in told.open_tokens
        ],
        "balances": [
            one.model_copy(update={"id": text, "software": text, "population": text})
            for one in told.balances
        ],
        "readings": [one.model_copy(update={"sentence": text}) for one in told.readings],
        "asked": {"label": text},
    }
    return told.model_copy(update=changed)


MARKUP = st.sampled_from(
    ["<script>alert(1)</script>", "</style>", "</title>", '"', "'", "<!--", "-->", "]]>", "&lt;"]
)
HIDDEN = st.sampled_from(["\x00", "\x1b[2J", "\n", "\u202e", "\u2066", "\ud800", "\u200b", "\x85"])
TEXT = st.lists(st.one_of(MARKUP, HIDDEN, st.text(max_size=5)), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def plain_shape(of_weeks: Report) -> list[tuple[str, tuple[str, ...]]]:
    return Seen(page_html(with_text(of_weeks, "plain"))).shape


@given(parts=TEXT)
@settings(max_examples=30)
def test_text_of_a_ledger_is_text(
    of_weeks: Report, plain_shape: list[tuple[str, tuple[str, ...]]], parts: list[str]
) -> None:
    text = "x" + "".join(parts)
    page = page_html(with_text(of_weeks, text))
    seen = Seen(page)
    assert seen.shape == plain_shape
    assert all(character == "\n" or character.isprintable() for character in page)
    assert seen.tables["By label"].rows[0][0] == visible(text, 200)
    page.encode()


def test_the_policy_lets_in_the_styles_of_the_page_and_nothing_else(of_weeks: Report) -> None:
    page = page_html(of_weeks)
    seen = Seen(page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = seen.tags[[tag for tag, _ in seen.tags].index("meta") + 1][1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert not re.search(r"url\(|@import|expression|unsafe", page)
    assert {"script", "iframe", "img", "link", "object"}.isdisjoint(tag for tag, _ in seen.tags)
    for _, found in seen.tags:
        assert not {name for name in found if name.startswith("on") or name in ("style", "src")}
        assert found.get("href", "#").startswith("#")


def test_a_page_is_well_formed(shown: tuple[str, Report]) -> None:
    page = page_html(shown[1])
    seen = Seen(page)
    assert page.startswith("<!doctype html>\n")
    ids = [found["id"] for _, found in seen.tags if "id" in found]
    assert len(ids) == len({*ids})
    for tag, found in seen.tags:
        assert {*found.get("aria-labelledby", "").split()} <= {*ids}
        assert found.get("href", "#main")[1:] in ids
        if tag == "html":
            assert found["lang"] == "en"
        if tag == "th":
            assert found["scope"] in ("col", "row")
        if tag == "svg":
            assert found.get("role") == "img" or found["aria-hidden"] == "true"
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


# How much ----------------------------------------------------------------------------------------


def test_a_page_stays_small_and_counts_what_it_leaves_out(of_weeks: Report) -> None:
    text = "\u202e<&\U0001f600" * 300
    many: dict[str, Any] = {
        "problems": [f"{k}{text}" for k in range(2_000)],
        "remarks": [text] * 1000,
        "trusted_code": [text] * 1000,
        "by_label": [
            of_weeks.by_label[0].model_copy(update={"label": f"{text}{k}"}) for k in range(2_000)
        ],
        "open_tokens": [of_weeks.open_tokens[0].model_copy(update={"label": text})] * 1000,
        "guarantees": [
            of_weeks.guarantees[0].model_copy(update={"accountants": (k,)}) for k in range(1, 400)
        ],
        "spent": [
            of_weeks.spent[0].model_copy(update={"accountants": (k,)}) for k in range(1, 400)
        ],
    }
    page = page_html(of_weeks.model_copy(update=many))
    assert 100_000 < len(page.encode()) <= MOST_BYTES
    more = [int(n) for n in re.findall(r'and <data value="(\d+)">[\d,]+</data> more', page)]
    shown = page[page.index('id="problems"') : page.index('id="meaning"')].count("<li><bdi>")
    assert shown >= 20
    assert 2_000 - shown in more, "problems"
    accounts = len(re.findall("<h3>Accountant", page[: page.index('id="numbers"')]))
    assert 399 - accounts in more, "accountants"


# The file -----------------------------------------------------------------------------------------


def test_no_other_file_is_written_over(of_weeks: Report, tmp_path: Path) -> None:
    ledger = tmp_path / "weeks.db"
    weeks(ledger)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(kept) >= 2, "a head stands beside it"
    (tmp_path / "link.html").symlink_to(ledger)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    others = [tmp_path / name for name in ("link.html", "empty", "pipe")]
    for path in [*kept, *others, tmp_path]:
        with pytest.raises(DataError, match="no page of an audit"):
            write_page(of_weeks, path)
    assert {path: path.read_bytes() for path in kept} == kept
    found = CliRunner().invoke(app, ["audit", str(ledger), "--html", str(ledger)])
    assert found.exit_code == 2
    assert "it stays as it is" in found.output
    found = CliRunner().invoke(app, ["audit", str(ledger), "--html", str(tmp_path)])
    assert found.exit_code == 2


def test_a_page_is_written_whole_or_not_at_all(
    of_weeks: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    write_page(of_weeks, path)
    first = path.read_text("utf-8")
    assert first == page_html(of_weeks)
    changed = of_weeks.model_copy(update={"verdict": "another"})
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise OSError("no room")

        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="no room"):
            write_page(changed, path)
    assert path.read_text("utf-8") == first
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    write_page(changed, path)
    assert "another" in path.read_text("utf-8")


@pytest.mark.parametrize(("kind", "code"), [("closed", 0), ("tampered", 1), ("simulated", 3)])
def test_the_command_writes_the_page_and_keeps_its_exit_code(
    kind: str, code: int, tmp_path: Path
) -> None:
    ledger, page = tmp_path / "ledger.db", tmp_path / "page.html"
    KINDS[kind](ledger)
    found = CliRunner().invoke(app, ["audit", str(ledger), "--html", str(page)])
    assert found.exit_code == code, found.output
    assert page.read_text("utf-8") == page_html(report(ledger))


def test_a_name_that_looks_like_an_option_or_a_command_is_quoted(of_weeks: Report) -> None:
    for name, quoted in (("-x.db", "./-x.db"), ("a; rm b", "'a; rm b'")):
        page = page_html(of_weeks.model_copy(update={"ledger": name, "asked": {"user": 7}}))
        commands = [
            data for tags, data in Seen(page).text if tags[-2:] == ("code", "bdi") and " " in data
        ]
        assert f"privlearn audit {quoted} --user 7 --json" in commands


def test_numbers_are_never_understated() -> None:
    for value in (1e-300, 1e-7, 0.1 + 0.2, 1 / 3, 0.99999951, 2.0, 123456.7, 1e12, math.pi * 1e20):
        up, down = rounded(value), rounded(value, down=True)
        read = [
            float(Fraction(text.replace(",", "")))
            if "×" not in text
            else float(text.split(" × ")[0])
            * 10.0
            ** int(text.split("10")[-1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
            for text in (down, up)
        ]
        assert read[0] <= value * (1 + 2e-12)
        assert read[1] >= value * (1 - 2e-12)
        assert read[1] - read[0] <= 2e-5 * value
    assert rounded(math.inf) == "∞"
