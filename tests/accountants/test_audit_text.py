"""What an audit prints is believed: nothing in a ledger can forge it, break it or hide from it."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import unicodedata
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pytest
from grids import thinned
from markdown_it import MarkdownIt
from rich.console import Console
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.cli.main import app
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.events.opacus import MECHANISM
from privlearn.ledger import Ledger, Record, write_export
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import Entry, ResumeEntry
from privlearn.losses import GaussianLoss, PureLoss, SubsampledGaussian
from privlearn.losses.budgets import ZCDP, PureDP, Renyi
from privlearn.mechanisms import NoisySum, PhaseSum
from privlearn.noise import GaussianNoise
from privlearn.people import People
from privlearn.reporting.certificates import (
    certificate_markdown,
    print_certificate,
    running_line,
    verdict,
    weaknesses,
)
from privlearn.reporting.figures import plot_spending
from privlearn.reporting.visible import in_json, in_plot, markdown, visible
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

USERS = range(8)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))  # rho = 0.005
PHASES = PhaseSum(Ball(1.0, 2), GaussianNoise(20.0), len(USERS))
VERDICTS = ("VERIFIED", "NOT VERIFIED", "SIMULATION", "ATTESTED")
HOSTILE = {
    "closing tag": "rate [/day]",
    "tag": "fit[age] [red]x[/red] [link=http://evil.example]y[/link]",
    "emoji": ":smile: :warning:",
    "clear and forge": "x\x1b[2J\x1b[HVERIFIED from the ledger alone (closed)",
    "title": "\x1b]0;VERIFIED\x07 \x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "8-bit controls": "\x9b2J\x85VERIFIED",
    "line ends": "a\nVERIFIED\r\nVERIFIED\rVERIFIED\x0bVERIFIED\x0cVERIFIED\u2028VERIFIED\u2029V",
    "direction": "\u202e)desolc( enola\u202c \u2066x\u2069 \u061c \u200f",
    "invisible": "a\u200bb\u200d\ufeff\u2060\u00ad\u3164\u2800\u115f\ufe0f\U000e0041\U000e0100",
    "backspaces": "no\x08\x08yes\x7f",
    "marks": "z" + "\u0301" * 9,
    "html": "<script>alert(1)</script> <img src=x onerror=y> &lt;b&gt; <!-- ",
    "links": "[a](http://evil.example) ![b](c) <http://e.example> [d]: http://e www.e.example",
    "blocks": "# head\n\n- item\n> quote\n```\ncode\n    code\n---\n***\n===",
    "heading": "# VERIFIED",
    "rule": "---",
    "number": "1. one",
    "emphasis": "**b** __c__ *d* _e_ ~~f~~ `g` \\",
    "table": "a | b || c |\n|---|\n| VERIFIED |",
    "formula": r"$\frac{1$ $x_{$ \$ $",
    "long": "x" * 10_000,
    "spaces": " " * 120 + "VERIFIED from the ledger alone (closed)",
}
ALL_AT_ONCE = " ".join(text for name, text in HOSTILE.items() if name != "long")


def records_of_every_kind() -> list[Record]:
    """A sound ledger with every kind of entry, which only a file has."""
    with TemporaryDirectory() as folder:
        return records_in(Ledger.create(Path(folder) / "ledger.db"))


def records_in(book: Ledger) -> list[Record]:
    with CentralAccountant(
        ZCDP(1),
        users=USERS,
        ledger=book,
        population="shop",
        side_information=["prices"],
        odometer="1e-6",
    ) as central:
        central.record_learner("Learner", {"dim": "two"}, {"noise": "three"})
        with central.delegate(ZCDP("0.1"), users=USERS, label="part") as part:
            part.issue(ZCDP("0.01"), users=USERS, label="spare").retire()
        team = central.nested(ZCDP("0.1"), label="team", every="7d", to="ann", until="9998-01-01")
        project = team.nested(ZCDP("0.05"), label="project")
        project.issue(ZCDP("0.01"), users=USERS, label="spare").retire()
        project.close()
        inner = team.nested(ZCDP("0.05"), label="company", every="1d")
        one = Rows.seal(np.ones((8, 2)), users=USERS)
        SUM.release(one, inner.issue(SUM.loss(), users=USERS, label="inner"))
        inner.delegate(ZCDP("0.01"), users=USERS, label="part").close()
        rows = Rows.seal(np.ones((8, 2)), users=USERS).map(lambda row: row * 1)
        SUM.release(rows, central.issue(SUM.loss(), users=USERS, label="rate [/day]"))
        stream = dataclasses.replace(SUM.spend(), arithmetic="own", interactive=True)
        token = central.issue(SUM.loss(), users=USERS, label="stream")
        with token.spend(stream) as receipt:
            with receipt.round():
                receipt.open_integers(rows.slice(range(2)))
                receipt.draw_integers((1, 2))
                receipt.publish(np.zeros(2))
            receipt.close()
        phases = PHASES.open(central.issue(PHASES.loss(), users=USERS, label="phases"))
        phases.begin(2)
        phases.close()
        planned = CentralAccountant(
            ZCDP(1), users=USERS, ledger=book, shared=True, population="shop"
        )
        planned.commit([Plan("fit[age]", GaussianLoss("0.1"), USERS)])
        claims = LocalAccountant(PureDP(2), users=USERS, ledger=book, shared=True, attested=True)
        claims.attest(
            PureLoss("0.5"),
            users=USERS,
            most_messages=2,
            count=10,
            by="app",
            mechanism="rr",
            label="rr",
            unseen=["the time"],
        )
        claims.record_sums(
            "rr",
            number=0,
            upto=1,
            heard=0,
            rejected={},
            step=1.0,
            value=np.zeros((1, 2), "<i8"),
            waits=False,
        )
        claims._log.append(ResumeEntry(accountant=claims.id))  # as who knows no head writes it
        persons = CentralAccountant(
            ZCDP(1),
            users=USERS,
            ledger=book,
            shared=True,
            people=People.memory(Participation(2, pooled=True)),
        )
        persons.divide([USERS.start])
        planned.close()
        claims.close()
        persons.close()
    return book.records


RECORDS = records_of_every_kind()
BODIES = [record.body for record in RECORDS]
EXTENSIONS = {record.seq: dict(record.ext) for record in RECORDS if record.ext}
RULES = {seq: ext for seq, ext in EXTENSIONS.items() if BODIES[seq]["entry"] == "open"}
"""Without which a critical extension has no data."""


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all texts inside a JSON value; of objects also their names, and room for one."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, list):
        for position, inside in enumerate(value):
            yield from texts(inside, (*path, position))
    elif isinstance(value, dict):
        yield (*path, None)
        for name, inside in value.items():
            yield from texts(inside, (*path, name))


def with_text(body: dict[str, Any], path: tuple[Any, ...], text: str) -> dict[str, Any]:
    changed = inside = copy.deepcopy(body)
    for step in path[:-1]:
        inside = inside[step]
    inside[text if path[-1] is None else path[-1]] = text
    return changed


def printed(certificate: Certificate, *, terminal: bool = False, full: bool = True) -> str:
    page = StringIO()
    console = Console(file=page, width=110, force_terminal=terminal, color_system="truecolor")
    print_certificate(certificate, console, full=full)
    return re.sub(r"\x1b\[[0-9;]*m", "", page.getvalue())  # colours are ours


def assert_honest_page(page: str, certificate: Certificate) -> None:
    lines = page.split("\n")
    assert lines[0] == verdict(certificate)
    assert not [line for line in lines[1:] if line.lstrip("\t").startswith(VERDICTS)]
    hidden = {c for c in set(page) - {"\n"} if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert not hidden
    assert "😄" not in page


MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PLAIN = {"text", "softbreak", "strong_open", "strong_close", "code_inline"}
BLOCKS = {"heading", "paragraph", "bullet_list", "list_item", "inline"}
BLOCKS |= {"table", "thead", "tbody", "tr", "th", "td"}


def assert_honest_document(document: str, certificate: Certificate) -> None:
    tokens = MARKDOWN.parse(document)
    assert {re.sub("_(open|close)$", "", token.type) for token in tokens} <= BLOCKS
    inline = [part for token in tokens for part in token.children or []]
    assert {part.type for part in inline} <= PLAIN
    strong = [b.content for a, b in pairwise(inline) if a.type == "strong_open"]
    assert set(strong) <= {verdict(certificate), "All accountants together.", "Guarantee."}
    assert [part.content for part in inline if part.type == "code_inline"] == [certificate.head]
    headings = [text.content for token, text in pairwise(tokens) if token.type == "heading_open"]
    assert headings[0] == "Privacy certificate"
    assert all(heading.startswith(("accountant ", "Sum, for ")) for heading in headings[1:])
    assert not {c for c in set(document) if unicodedata.category(c) in ("Cf", "Zl", "Zp")}


def test_every_kind_of_entry_and_every_field_that_holds_text_is_tried() -> None:
    for model in get_args(Entry):
        kind = model.model_fields["entry"].default
        found = [body for body in BODIES if body["entry"] == kind]
        assert found, kind
        tried = {path[0] for body in found for path in texts(body)}
        for name, field in model.model_fields.items():
            if re.search(r"\bstr\b|dict|Item", str(field.annotation)) and name not in (
                "odometer",
                "promise",  # of (ε, δ) budgets; a dict of exact numbers, like the cap
                "profile",
                "planned",
                "exact",  # data of extensions, which a body does not hold
                "participation",
                "shared",
                "admitted",
                "value",
                "heads",
            ):
                assert name in tried or any(body[name] in (None, []) for body in found), name


@pytest.mark.parametrize("kind", thinned([model.__name__ for model in get_args(Entry)], 3))
def test_no_text_of_an_entry_forges_or_breaks_what_is_printed(kind: str) -> None:
    entry = {model.__name__: model.model_fields["entry"].default for model in get_args(Entry)}[kind]
    position = next(i for i, body in enumerate(BODIES) if body["entry"] == entry)
    for path in texts(BODIES[position]):
        bodies = [*BODIES]
        bodies[position] = with_text(BODIES[position], path, ALL_AT_ONCE)
        certificate = certify(chained(bodies, RULES))
        assert_honest_page(printed(certificate, full=False), certificate)
        assert_honest_document(certificate_markdown(certificate), certificate)


def test_no_text_of_an_extension_forges_or_breaks_what_is_printed() -> None:
    tried = [(at, path) for at, ext in EXTENSIONS.items() for path in texts(ext)]
    assert {BODIES[at]["entry"] for at, _ in tried} == {"spend", "open", "retire"}
    for position, path in tried:
        changed = with_text(EXTENSIONS[position], path, ALL_AT_ONCE)
        certificate = certify(chained(BODIES, {**EXTENSIONS, position: changed}))
        assert certificate.problems
        assert_honest_page(printed(certificate, full=False), certificate)
        assert_honest_document(certificate_markdown(certificate), certificate)


def spent_under(label: str) -> list[Record]:
    bodies = copy.deepcopy(BODIES)
    for body in bodies:
        if body["entry"] == "issue":
            body["label"] = label
        if body["entry"] == "spend":
            body["mechanism"] = label
        if body["entry"] == "functions":
            body["names"] = [label]
        if body["entry"] == "open":
            body["side_information"], body["noise"] = [label], label
            if body["population"]:
                body["population"] = label
        if body["entry"] == "attest":
            body |= {"by": label, "mechanism": label, "unseen": [label]}
    return chained(bodies, RULES)


@pytest.mark.parametrize("name", thinned(HOSTILE, 3))
def test_hostile_labels_are_shown_for_what_they_are(name: str, tmp_path: Path) -> None:
    records = spent_under(HOSTILE[name])
    certificate = certify(records)
    for terminal in (False, True):
        assert_honest_page(printed(certificate, terminal=terminal), certificate)
    document = certificate_markdown(certificate)
    assert_honest_document(document, certificate)
    assert len(document) < 70_000
    told = in_json(certificate.model_dump_json())
    assert json.loads(told) == json.loads(certificate.model_dump_json())
    assert told.isprintable()
    write_export(tmp_path / "ledger.jsonl", records)
    path = str(tmp_path / "ledger.jsonl")
    done = CliRunner().invoke(app, ["audit", path, "--json"])
    assert done.exit_code == 0
    assert done.output.replace("\n", "").isprintable()
    for asked in ([], ["--label", HOSTILE[name], "--by", "label"]):
        done = CliRunner().invoke(app, ["audit", path, *asked])
        assert done.exit_code == 0
        assert_honest_page(done.output, certificate)
    done = CliRunner().invoke(app, ["audit", "diff", path, path])
    assert done.exit_code == 0
    assert len([line for line in done.output.split("\n") if line.startswith("CONTINUATION")]) == 1
    assert not [line for line in done.output.split("\n") if line.startswith(VERDICTS)]


def test_brackets_of_a_label_are_printed_and_break_nothing(tmp_path: Path) -> None:
    write_export(tmp_path / "ledger.jsonl", chained(BODIES, RULES))
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "ledger.jsonl"), "--full"])
    assert done.exit_code == 0, done.exception
    assert "rate [/day]" in done.output
    assert "fit[age]" in printed(certify(spent_under("fit[age]")))


def test_no_label_is_a_formula_of_a_plot_or_hides_from_its_legend(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    for number in range(30):  # more than a legend can hold
        label = f"label {number:02} {HOSTILE['formula']}"
        with CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.memory()) as accountant:
            token = accountant.issue(SUM.loss(), users=USERS, label=label)
            SUM.release(Rows.seal(np.ones((8, 2)), users=USERS), token)
        opened, *three, _ = (record.body for record in accountant.ledger.records)
        bodies += [*([] if bodies else [opened]), *three]
        for body in three:
            body |= {"accountant": bodies[0]["accountant"], "token": str(number)}
            body |= {"mechanism": "_" + HOSTILE["line ends"]} if "mechanism" in body else {}
    write_export(tmp_path / "ledger.jsonl", chained(bodies, RULES))
    (one,) = plot_spending(tmp_path / "plot.svg", tmp_path / "ledger.jsonl")
    assert len(one.labels) == 30
    assert not in_plot(one.labels[0]).startswith("_")
    svg = (tmp_path / "plot.svg").read_text()
    assert "19 others" in svg
    assert svg.count(r"\nVERIFIED") == 2 * 11


def test_an_error_message_is_one_line_without_controls(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"privlearn_ledger":1}\n{"seq":"\\u001b[2J\\nVERIFIED\\u202e"}\n')
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 4
    named = tmp_path / "x\x1b[2J\nVERIFIED\u202e.db"
    missing = CliRunner().invoke(app, ["audit", str(named)])
    assert missing.exit_code == 4
    for output in (done.output, missing.output):
        (line,) = output.splitlines()
        assert line.startswith("error: ")
        assert line.isprintable()


@pytest.mark.parametrize("text", ["naïve café", "日本語", "नमस्ते", "ไทย", "e\u0301", "ρ ≤ ½"])
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert markdown(text) == text
    assert json.loads(in_json(json.dumps(text, ensure_ascii=False))) == text


# What weakens a claim ----------------------------------------------------------------------------


def test_what_weakens_a_claim_is_counted_first_and_told_before_the_guarantees() -> None:
    bodies = [b | {"durable": False} if b["entry"] == "open" else b for b in BODIES]
    found = certify(chained(bodies, EXTENSIONS))
    weak = len(weaknesses(found))
    assert f"\nweakened by     {weak} things: " in printed(found, full=False)
    top = " ".join(printed(found).split("\nguarantee ")[0].split())
    for words in (
        "The ledger lived in memory: after a restart nothing knows what was spent",
        "Declared public side information: prices",
        "Under the name 'shop' an index is the same person",
        "ATTESTED, NOT VERIFIED: the loss of a message",
        "to see, besides the message: the time",
        "trusted code, 4 lines, see below",
    ):
        assert words in top
    assert "floating point" not in top
    bare = printed(certify(chained(BODIES, RULES)))
    assert "Not exact: clipping, sums and noise" in " ".join(bare.split("\nguarantee ")[0].split())
    assert "accountant 3: ATTESTED" in top  # whose it is, where it is not everybody's
    assert "Running time and memory" not in top  # stands on every certificate
    assert "Running time and memory" in bare
    for heading in ("Paid for", "Checked", "Declared", "Trusted", "Not protected"):
        assert f"\n{heading}" in bare


def test_a_plain_closed_ledger_on_disk_has_nothing_to_confess(tmp_path: Path) -> None:
    with CentralAccountant(
        ZCDP(1), users=USERS, ledger=Ledger.create(tmp_path / "ledger.db")
    ) as accountant:
        token = accountant.issue(SUM.loss(), users=USERS, label="sum")
        SUM.release(Rows.seal(np.ones((8, 2)), users=USERS), token)
    assert weaknesses(certify(Ledger.open(tmp_path / "ledger.db").records)) == []


def test_lost_spends_open_ledgers_and_odometers_are_told() -> None:
    records = chained(BODIES, RULES)
    kept = next(i for i, body in enumerate(BODIES) if body["entry"] == "spend") + 1
    cut = certify(records[:kept])
    assert cut.holds
    told = " ".join(weaknesses(cut))
    assert f"what was spent, and the odometer, counts only up to entry {kept - 1}" in told
    assert "1 spend without a recorded outcome (lost)" in told
    assert "up to the last entry" in running_line(cut.spent[0])
    assert "odometer" not in " ".join(weaknesses(certify(records)))


def add_remove(spend: Spend, loss: Any) -> Certificate:
    book = CentralAccountant(
        Renyi({4: 9}), users=range(500), ledger=Ledger.memory(), adjacency=Adjacency.ADD_REMOVE
    )
    with book.issue(loss, users=range(500), label="x").spend(spend):
        pass
    return book.certificate()


def test_who_needs_the_exact_number_of_users_is_not_said_to_need_a_bound() -> None:
    loss = SubsampledGaussian(2.0, "0.01", adjacency=Adjacency.ADD_REMOVE)
    spend = Spend(
        MECHANISM,
        Ball(1.0, 3),
        GaussianNoise(2.0),
        own_loss=loss,
        parameters={"noise_multiplier": 2.0, "sample_rate": 0.01},
    )
    (line,) = [t for t in weaknesses(add_remove(spend, loss)) if "number" in t]
    assert "opacus-dp-sgd: took the exact number of records, 500" in line
    plain = Spend("sum", Ball(1.0, 3), GaussianNoise(2.0))
    certificate = add_remove(plain, plain.loss(Adjacency.ADD_REMOVE))
    assert not [text for text in weaknesses(certificate) if "number" in text]
    (said,) = [t for t in certificate.guarantees[0].assumptions if "their number" in t]
    assert "public bound on their number. If it is the number itself" in said


# Unknown is unknown ------------------------------------------------------------------------------


def test_a_loss_of_unknown_kind_makes_what_was_spent_unknown() -> None:
    bodies = copy.deepcopy(BODIES)
    position = next(i for i, body in enumerate(bodies) if body["entry"] == "spend")
    bodies[position]["loss"]["kind"] = "magic"
    found = certify(chained(bodies, RULES))
    first = found.spent[0]
    assert (first.rho, first.mu, first.running) == (None, None, None)
    assert "'magic' is unknown" in first.unknown
    told = json.loads(found.model_dump_json())["spent"][0]
    assert told["epsilon"] is None
    assert told["rho"] is None
    assert found.guarantees[0].rho == 1  # the cap's, whatever was spent
    assert "unknown" in found.sums_spent[0].unknown
    page = printed(found)
    assert "spent, ex post  DP, replace-one: unknown (" in page
    assert "ρ = 0 zCDP" not in page.split("accountant 2")[0]
    assert type(found).model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("change", [{"entry": "wish"}, {"gain": "many"}])
def test_so_does_an_entry_that_may_be_a_spend(change: dict[str, Any]) -> None:
    bodies = copy.deepcopy(BODIES)
    next(body for body in bodies if body["entry"] == "spend").update(change)
    found = certify(chained(bodies, RULES))
    assert found.spent[0].unknown
    assert not found.spent[1].unknown
    retired = copy.deepcopy(BODIES)
    next(body for body in retired if body["entry"] == "retire")["outcome"] = "x"
    assert not certify(chained(retired, RULES)).spent[0].unknown  # nothing is spent by that


def test_a_plan_of_unknown_losses_promises_nothing_that_is_known() -> None:
    bodies = copy.deepcopy(BODIES)
    plan = next(body for body in bodies if body["entry"] == "plan")
    plan["items"].append({**plan["items"][0], "loss": {"kind": "magic"}})
    found = certify(chained(bodies, RULES))
    assert "'magic' is unknown" in found.guarantees[1].unknown
    assert found.guarantees[1].rho is None
    assert "unknown" in found.sums[0].unknown


# One fault, one problem --------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(len(BODIES)))
def test_one_deleted_entry_is_one_problem(position: int) -> None:
    records = chained(BODIES, RULES)
    found = certify(records[:position] + records[position + 1 :])
    if position == len(records) - 1:
        assert found.problems == []  # only a head that was kept elsewhere tells
        return
    (problem,) = found.problems
    assert "entries were cut or moved" in problem
    page = printed(found, full=False)
    assert page.count("were cut or moved") == 1
    if found.consequences:
        assert f"{len(found.consequences)} further problem" in page
        assert found.consequences[0] not in page
        assert json.loads(found.model_dump_json())["consequences"] == found.consequences


def test_entries_of_nobody_are_one_problem() -> None:
    found = certify(chained(BODIES[1:5]))
    (first, second) = found.problems
    assert "is not open" in first
    assert "no accountant was opened" in second
    assert len(found.consequences) == 3


def test_thousands_of_problems_are_counted() -> None:
    body = {"entry": "wish", "accountant": "x"}
    found = certify(chained([body] * 1500))
    assert len(found.problems) == 1001
    assert found.problems[-1] == "and 501 more, which are not listed"


def test_an_infinite_epsilon_is_a_statement_and_not_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    CentralAccountant(ZCDP(1), users=USERS, ledger=Ledger.create(path)).close()
    done = CliRunner().invoke(app, ["audit", str(path), "--delta", "0", "--full"])
    assert done.exit_code == 0
    assert done.output.startswith("VERIFIED")
    assert "there is no finite ε at δ = 0" in done.output
    assert "(ε = ∞, δ = 0)" in done.output


def test_a_hash_is_text_of_the_file_as_well() -> None:
    records = chained(BODIES, RULES)
    last = records[-1]
    forged = dataclasses.replace(last, hash=ALL_AT_ONCE)
    found = certify([*records[:-1], forged])
    assert_honest_page(printed(found), found)
    document = certificate_markdown(found)
    types = {token.type for token in MARKDOWN.parse(document)}
    inline = {p.type for token in MARKDOWN.parse(document) for p in token.children or []}
    assert not {"html_block", "fence", "code_block"} & types
    assert not {"html_inline", "link_open", "image"} & inline


def test_the_head_that_a_ledger_was_compared_with_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with CentralAccountant(ZCDP(1), users=range(3), ledger=Ledger.create(path)):
        pass
    beside = audit(path)
    assert beside.head_beside
    assert f"{beside.head} (compared with its head file)" in printed(beside)
    assert f"{beside.head} (the one given)" in printed(audit(path, head=beside.head))
    path.with_name("ledger.db.head").unlink()
    assert f"{beside.head} (compared with none)" in printed(audit(path))
