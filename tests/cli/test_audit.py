"""What an auditor asks next: who, when, how much, what changed; and a ledger being written."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import privlearn.cli.following as following
from privlearn.accountants import CentralAccountant
from privlearn.cli import main as cli_main
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, OTHER_LEDGER, PROBLEMS, UNKNOWN_FEATURE, UNREADABLE
from privlearn.errors import LedgerUnreadableError
from privlearn.ledger import Ledger, Record, iterate_records, write_export
from privlearn.ledger.chain import chained
from privlearn.ledger.reader import iterate_pages
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.reporting.certificates import guarantee_line
from privlearn.reporting.report import report
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))  # rho = 0.005
RECORD = {"url_slug": "ours", "status": "Draft"}
DAY = 24 * 3600
NOVEMBER = datetime.fromisoformat("2026-11-01T00:00Z").timestamp()
runner = CliRunner()


def run(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def squeezed(result: Result) -> str:
    return " ".join(result.output.split())


def sum_of(accountant: CentralAccountant[Any], users: range, label: str) -> None:
    token = accountant.issue(SUM.loss(), users=users, label=label)
    SUM.release(Rows.seal(np.ones((len(users), 2)), users=users), token)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock to so many days after the first of November 2026."""
    import privlearn.ledger.chain as chain
    import privlearn.ledger.store as store

    clock = [NOVEMBER]
    for module in (chain, store):
        if hasattr(module, "time"):
            monkeypatch.setattr(module.time, "time", lambda: clock[0])

    def set_clock(days: float) -> None:
        clock[0] = NOVEMBER + days * DAY

    return set_clock


@pytest.fixture
def weeks(tmp_path: Path, at: Callable[[float], None]) -> Path:
    """Five weeks, each on users of its own, and a token that nobody spent."""
    path = tmp_path / "weeks.db"
    book = Ledger.create(path)
    accountant = CentralAccountant(ZCDP("0.05"), users=range(50), ledger=book)
    for week in range(5):
        at(7 * week)
        for _ in range(2):
            sum_of(accountant, range(10 * week, 10 * week + 10), f"week {week + 1}")
    accountant.issue(ZCDP("0.02"), users=range(50), label="spare")
    book.close()
    return path


def test_each_week_is_the_same_part_of_the_cap(weeks: Path) -> None:
    told = squeezed(run("audit", weeks, "--full"))
    for week in range(1, 6):
        assert f"gaussian-sum week {week} 2 0.01 20.0%" in told
    assert "all 10 0.01 20.0%" in told
    assert "cap ρ = 0.05 spent 0.01 (user 0, as everybody) reserved 0.02" in told
    assert (
        "remaining 0.02 it buys 4 more runs for all users, of gaussian-sum as under 'week 5'"
        in told
    )
    assert "spare 0..49 2026-11-29T00:00Z 0.02" in told, "issued and not spent"


def test_no_line_understates(weeks: Path) -> None:
    numbers = {"epsilon": 1.00001, "rho": 1 / 3, "mu": 2**0.5, "delta": 1.0000001e-6}
    line = guarantee_line(report(weeks).guarantees[0].model_copy(update=numbers))
    assert "(ε = 1.0001, δ = 1.00001e-06), ρ = 0.333334 zCDP, μ = 1.4143 GDP" in line


@pytest.mark.parametrize("option", ["--html", "--evaluation", "--registry"])
def test_what_is_written_replaces_nothing_of_another_kind(
    option: str, weeks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "about.toml").write_text("", "utf-8")
    monkeypatch.setattr(
        "privlearn.reporting.deployment_record.deployment_record", lambda *_: RECORD
    )
    ledger = weeks.read_bytes()
    refused = run("audit", weeks, option, weeks)
    assert refused.exit_code == BAD_INPUT
    assert "it stays as it is" in squeezed(refused)
    assert weeks.read_bytes() == ledger
    for _ in range(2):  # an earlier one of its kind is replaced
        assert run("audit", weeks, option, tmp_path / "out").exit_code == 0
    assert not list(tmp_path.glob("*.new-*"))


def test_answers_that_are_not_there_are_missed(weeks: Path, tmp_path: Path) -> None:
    said, about = tmp_path / "said.md", tmp_path / "abuot.toml"
    refused = run("audit", weeks, "--evaluation", said, "--about", about)
    assert refused.exit_code == BAD_INPUT
    assert "abuot.toml: no such file" in squeezed(refused)
    assert not said.exists()


def test_options_without_an_effect_are_refused(weeks: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    for option in (
        ["--html", beside],
        ["--registry", beside],
        ["--evaluation", beside],
        ["--plot", beside],
        ["--head", "0" * 64],
        ["--rounds", "2"],
        ["--by", "time"],
        ["--full"],
        ["--follow"],
        ["--user", "0"],
    ):
        refused = run("audit", "diff", weeks, weeks, *option)
        assert refused.exit_code == BAD_INPUT, option
        assert f"it takes no {option[0]}" in refused.output
    for option in (["--user", "0"], ["--plot", beside], ["--json"], ["--since", "2026-11-01"]):
        assert f"it takes no {option[0]}" in run("audit", "--follow", weeks, *option).output
    assert not beside.exists()


def test_a_spend_beyond_all_measure_is_told(weeks: Path, tmp_path: Path) -> None:
    bodies = [dict(record.body) for record in iterate_records(weeks)]
    bodies[0]["cap"] = {**bodies[0]["cap"], "rho": "1e-40"}
    write_export(tmp_path / "l.jsonl", chained(bodies))
    shown = run("audit", tmp_path / "l.jsonl", "--full", "--html", tmp_path / "l.html")
    assert shown.exit_code == PROBLEMS, shown.exception
    assert "all 10 0.01 1e+40%" in squeezed(shown)
    assert "1e+40%" in (tmp_path / "l.html").read_text("utf-8")


def test_questions_about_one_user_a_time_and_a_label(weeks: Path) -> None:
    told = squeezed(run("audit", weeks, "--user", "17"))
    assert "2026-11-08T00:00Z gaussian-sum week 2 10..19 0.005" in told
    assert "week 1" not in told.replace("'week 1'", "")
    assert "2 spends; guarantee and budget are those of user 17" in told
    for since, spends in (("2026-11-15", 6), ("2026-11-15T00:01Z", 4), ("2027-01-01", 0)):
        told = squeezed(run("audit", weeks, "--since", since))
        assert f"; {spends} spends; guarantee and budget are those of the whole ledger" in told
        assert "spent 0.01 (user 0" in told, "the balance is of all spends"
    told = squeezed(run("audit", weeks, "--label", "week 3", "--user", "17"))
    assert "; 0 spends;" in told
    for by, line in (
        ("time", "2026-11-22T00:00Z 2 0.01 20.0%"),
        ("label", "week 4 2 0.01 20.0%"),
        ("mechanism", "gaussian-sum 10 0.01 20.0%"),
        ("user-range", "10..11 2 0.01 20.0%"),
    ):
        assert line in squeezed(run("audit", weeks, "--by", by)), by
    found = json.loads(run("audit", weeks, "--json", "--since", "2026-11-29").output)
    assert found["asked"] == {"since": "2026-11-29T00:00Z"}
    assert [one["entry"] for one in found["listed"]] == [26, 29]
    for bad in ("yesterday", "2026-13-01", "2026-11-01 10:00", "1969-01-01"):
        refused = run("audit", weeks, "--since", bad)
        assert isinstance(refused.exception, ValueError), bad
        assert "2026-11-01T10:00Z" in str(refused.exception)


def test_the_plot_has_time_on_its_axis(weeks: Path, tmp_path: Path) -> None:
    assert run("audit", weeks, "--plot", tmp_path / "a.svg").exit_code == 0
    drawn = (tmp_path / "a.svg").read_text("utf-8")
    assert "UTC, as the ledger declares" in drawn
    assert "spends that touch this user" not in drawn
    format_1 = Path(__file__).parents[1] / "ledger" / "format1" / "tofw-central.db"
    run("audit", format_1, "--plot", tmp_path / "b.svg")
    assert "spends that touch this user" in (tmp_path / "b.svg").read_text("utf-8")
    refused = run("audit", format_1, "--since", "2026-11-01")
    assert "tells when it was written" in str(refused.exception)


def altered(path: Path, to: Path, sql: str) -> Path:
    shutil.copy(path, to)
    with closing(sqlite3.connect(to)) as connection, connection:
        connection.execute(sql)
    return to


@pytest.mark.parametrize("position", [2, 14])
def test_one_fault_is_one_problem(position: int, weeks: Path, tmp_path: Path) -> None:
    cut = f"DELETE FROM entries WHERE seq = {position}"
    change = f'SET entry = replace(entry, \'"nonce":"\', \'"nonce":"0\') WHERE seq = {position}'
    deleted = altered(weeks, tmp_path / "deleted.db", cut)
    changed = altered(weeks, tmp_path / "changed.db", f"UPDATE entries {change}")
    export = tmp_path / "export.jsonl"
    write_export(export, list(iterate_records(weeks)))
    lines = export.read_bytes().splitlines(keepends=True)
    export.write_bytes(b"".join(lines[: position + 1] + lines[position + 2 :]))
    for forged in (deleted, export, changed):
        shown = run("audit", forged)
        assert shown.exit_code == PROBLEMS
        found = report(forged)
        assert len(found.problems) == 1, found.problems
        assert shown.output.startswith("NOT VERIFIED: 1 problem\n"), shown.output
        assert "Rely on no number of it" in squeezed(shown)
        assert found.readings[0].sentence.startswith("Nothing is certified: the audit found 1 prob")
        assert found.curves == []
        told = " ".join(found.consequences)
        if told:
            assert f"{len(found.consequences)} further problem" in shown.output
            assert " ".join(found.consequences[-1].split()) not in squeezed(shown)
            full = squeezed(run("audit", forged, "--full"))
            assert all(" ".join(text.split()) in full for text in found.consequences)


def test_a_ledger_is_compared_with_what_it_was(tmp_path: Path, at: Callable[[float], None]) -> None:
    path, old = tmp_path / "ledger.db", tmp_path / "old.jsonl"
    book = Ledger.create(path)
    accountant = CentralAccountant(ZCDP(1), users=range(10), ledger=book)
    sum_of(accountant, range(10), "first")
    write_export(old, list(book.records))
    at(3)
    sum_of(accountant, range(10), "second")
    sum_of(accountant, range(5), "third")
    accountant.close()
    book.close()
    shown = run("audit", "diff", old, path)
    assert shown.exit_code == 0
    told = squeezed(shown)
    assert told.startswith("CONTINUATION: all entries of the old ledger stand in the new one")
    assert "before ρ: spent 0.005, reserved 0, remaining 0.995 of 1" in told
    assert "now ρ: spent 0.015, reserved 0, remaining 0.985 of 1" in told
    assert "gaussian-sum second 1 0..9 0.005 0.5%" in told
    assert "gaussian-sum third 1 0..4 0.005 0.5%" in told
    assert "first" not in told.split("ρ: spent 0.015")[1]
    found = json.loads(run("audit", "diff", old, path, "--json").output)
    assert (found["continues"], found["part_at"], found["exit_code"]) == (True, None, 0)
    assert [one["label"] for one in found["listed"]] == ["second", "third"]
    same = json.loads(run("audit", "diff", path, path, "--json").output)
    assert same["total"] == []

    swapped = run("audit", "diff", path, old)
    assert swapped.exit_code == OTHER_LEDGER
    assert "ends after entry 3, and the old one goes on" in squeezed(swapped)
    forged = altered(path, tmp_path / "f.db", "UPDATE entries SET hash = hash || '' WHERE seq = 2")
    with closing(sqlite3.connect(forged)) as connection, connection:
        connection.execute(
            'UPDATE entries SET entry = replace(entry, \'"nonce":"\', \'"nonce":"0\') WHERE seq = 2'
        )
    parted = run("audit", "diff", old, forged, "--json")
    assert parted.exit_code == OTHER_LEDGER
    assert (json.loads(parted.output)["part_at"], json.loads(parted.output)["total"]) == (2, [])
    for wrong in (["diff"], ["diff", old], ["diff", old, path, path], [old, path]):
        assert run("audit", *wrong).exit_code == BAD_INPUT, wrong
    assert run("audit", "diff", old, tmp_path / "none.db").exit_code == UNREADABLE


def test_what_two_ledgers_differ_in_is_named(weeks: Path, tmp_path: Path) -> None:
    edited = altered(
        weeks, tmp_path / "e.db", "UPDATE entries SET entry = replace(entry, 'week 2', 'week 9')"
    )
    told = squeezed(run("audit", "diff", weeks, edited))
    assert "'issue': label is 'week 2' in the old one and 'week 9' in the new one" in told
    later = "UPDATE entries SET entry = replace(entry, '11-01T', '11-02T') WHERE seq = 2"
    told = squeezed(run("audit", "diff", weeks, altered(weeks, tmp_path / "l.db", later)))
    assert "'spend': its content is the same in both, and its hash, its time" in told


def test_what_remains_is_offered_to_whom_it_belongs_and_never_on_a_broken_record(
    weeks: Path, tmp_path: Path
) -> None:
    resumed: CentralAccountant[Any] = CentralAccountant.resume(
        weeks
    )  # which takes the spare token back
    sum_of(resumed, range(10), "week 6")
    resumed.ledger.close()
    assert "7 more runs for all users" in squeezed(run("audit", weeks, "--full"))
    assert "7 more runs for user 3," in squeezed(run("audit", weeks, "--user", "3"))
    assert "8 more runs for user 17," in squeezed(run("audit", weeks, "--user", "17"))
    broken = altered(weeks, tmp_path / "b.db", "DELETE FROM entries WHERE seq = 5")
    assert "it buys" not in run("audit", broken, "--full").output
    assert report(broken).balances[0].buys == []


def test_the_sentence_stands_with_the_guarantee_and_also_with_a_sum(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    book = Ledger.create(path)
    for shared in (False, True):
        CentralAccountant(ZCDP(1), users=range(4), ledger=book, population="members", shared=shared)
    book.close()
    told = squeezed(run("audit", path, "--full"))
    assert told.count("in plain words Whoever sees all that was released") == 3
    assert told.index("in plain words") < told.index("spent, ex post")
    assert "in plain words" in told[told.index("sum, for each index") :]


def test_a_token_of_others_is_not_told_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    book = Ledger.create(path)
    accountant = CentralAccountant(ZCDP("0.05"), users=range(50), ledger=book)
    for users in (range(10, 20), range(20, 50)):
        accountant.issue(ZCDP("0.01"), users=users, label=f"of {users.start}")
    book.close()
    told = report(path, user=17)
    assert [token.label for token in told.open_tokens] == ["of 10"]
    assert (told.unspent_tokens, told.balances[0].reserved) == (1, 0.01)
    assert report(path, user=3).open_tokens == []
    assert report(path).unspent_tokens == 2


def test_a_head_that_is_missing_twice_is_one_problem(weeks: Path) -> None:
    head = report(weeks).head
    with closing(sqlite3.connect(weeks)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE seq > 5")
    assert len(report(weeks).problems) == 1, "of the file beside it"
    assert len(report(weeks, head=head).problems) == 1
    assert len(report(weeks, head="f" * 64).problems) == 2, "two heads that are missing"


def test_where_a_page_cannot_be_written_is_said_before_the_audit(
    weeks: Path, tmp_path: Path
) -> None:
    for option in ("--html", "--plot", "--registry", "--evaluation"):
        refused = run("audit", weeks, option, tmp_path / "none" / "a.html")
        assert refused.exit_code == BAD_INPUT
        assert refused.output.endswith(f"there is no folder {tmp_path / 'none'}\n")
        assert "VERIFIED" not in refused.output
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    refused = run("audit", weeks, "--html", other)
    assert refused.exit_code == BAD_INPUT
    assert "VERIFIED" not in refused.output
    page = tmp_path / "a.html"
    told = run("audit", weeks, "--html", page).output
    assert "".join(told.rsplit("files", 1)[1].split()) == str(page)
    assert json.loads(run("audit", weeks, "--html", page, "--json").output)


def test_what_is_no_ledger_is_named_for_what_it_is(weeks: Path, tmp_path: Path) -> None:
    for wrong, why in (
        (tmp_path, "is a folder: name the ledger file in it"),
        (f"{weeks}.head", "keeps the head of a ledger: name the ledger, weeks.db"),
        (tmp_path / "none.db", "no such file"),
    ):
        refused = run("audit", wrong)
        assert refused.exit_code == UNREADABLE
        assert refused.output.endswith(f"{why}\n"), refused.output
    shutil.copy(weeks, tmp_path / "own.head")
    assert run("audit", tmp_path / "own.head").exit_code == 0, "a ledger of that name"


def test_a_file_is_as_wide_as_columns_says(weeks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, most in (("80", 80), ("", 110), ("wide", 110)):
        monkeypatch.setenv("COLUMNS", columns)
        lines = run("audit", weeks).output.splitlines()
        assert most - 25 < max(map(len, lines)) <= most


def test_a_ledger_that_is_named_diff_is_audited(
    weeks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(weeks, tmp_path / "diff")
    monkeypatch.chdir(tmp_path)
    assert run("audit", "./diff").exit_code == 0
    refused = run("audit", "diff")
    assert refused.exit_code == BAD_INPUT
    assert "./diff" in refused.output


WRITER = """
import sys, time
import numpy as np
from pathlib import Path
from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import ZCDP
from privlearn.rows.domains import Ball
from privlearn.ledger import Ledger
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows

book = Ledger.create(sys.argv[1])
accountant = CentralAccountant(ZCDP(1), users=range(4), ledger=book)
mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    token = accountant.issue(mechanism.loss(), users=range(4), label=f"run {number}")
    mechanism.release(Rows.seal(np.ones((4, 2)), users=range(4)), token)
    time.sleep(0.02)
accountant.close()
book.close()
"""


def test_a_ledger_is_followed_while_another_process_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("go\n")
        writer.stdin.flush()
        shown = run("audit", "--follow", path, "--full")
        assert writer.wait(20) == 0
    assert shown.exit_code == 0, shown.output
    seen = [number for number in range(40) if f"under 'run {number}', users 0..3" in shown.output]
    assert len(seen) > 20, "those before the first look are counted only"
    assert seen == list(range(40 - len(seen), 40))
    assert "\nVERIFIED from the ledger alone (closed)\n" in shown.output
    assert "40 spends" in shown.output


def followed(path: Path, steps: Iterator[None]) -> int:
    """Follows a ledger, and does a step whenever it would wait; then it is interrupted."""

    def wait(_: float) -> None:
        try:
            next(steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    return following.follow_ledger(path, wait=wait)


def test_following_reads_every_entry_once_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, read = tmp_path / "ledger.db", list[int]()
    book = Ledger.create(path)
    accountant = CentralAccountant(ZCDP(1), users=range(4), ledger=book)

    def counted(*arguments: Any, **named: Any) -> Iterator[list[Record]]:
        for page in iterate_pages(*arguments, **named):
            read.extend(record.seq for record in page)
            yield page

    monkeypatch.setattr(following, "iterate_pages", counted)

    def writes() -> Iterator[None]:
        for number in range(5):
            sum_of(accountant, range(4), f"step {number}")
            yield

    assert followed(path, writes()) == 0
    shown = capsys.readouterr().out
    assert "stopped; this is the state so far" in shown
    assert all(f"under 'step {number}'" in shown for number in range(5))
    assert "ρ = 0.005; charged to one user at most 0.025 of 1" in " ".join(shown.split())
    assert len(read) <= 1 + 5 * 4, "each entry, and the last one that was known again"
    book.close()


def test_following_a_file_that_is_replaced_or_wrong(tmp_path: Path, weeks: Path) -> None:
    other = tmp_path / "other.db"
    book = Ledger.create(other)
    CentralAccountant(ZCDP(1), users=range(4), ledger=book)
    book.close()
    monkey = iter([lambda: shutil.copy(other, weeks)])

    def replaces() -> Iterator[None]:
        next(monkey)()
        for _ in range(200):
            yield

    with pytest.raises(LedgerUnreadableError, match="not there any more"):
        followed(weeks, replaces())
    export = tmp_path / "a.jsonl"
    write_export(export, [])
    assert run("audit", "--follow", export).exit_code == BAD_INPUT
    assert run("audit", "--follow", weeks, "--json").exit_code == BAD_INPUT
    assert run("audit", "--follow", tmp_path / "none.db").exit_code == UNREADABLE


def test_each_bad_ledger_has_its_exit_code(
    weeks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torn, foreign, newer = (tmp_path / f"{name}.db" for name in ("torn", "foreign", "newer"))
    torn.write_bytes(weeks.read_bytes()[:5000])
    foreign.write_bytes(b"PK\x03\x04 no ledger")
    altered(weeks, newer, "PRAGMA user_version = 3")
    hostile = altered(weeks, tmp_path / "hostile.db", "CREATE TABLE more (x)")
    unknown = tmp_path / "unknown.jsonl"
    body: dict[str, Any] = {"entry": "open", "features": {"future/1": "critical"}}
    write_export(unknown, chained([body]))
    for path, code in (
        (torn, UNREADABLE),
        (foreign, UNREADABLE),
        (newer, UNREADABLE),
        (hostile, UNREADABLE),
        (tmp_path / "none.db", UNREADABLE),
        (unknown, UNKNOWN_FEATURE),
    ):
        for command in (["audit"], ["audit", "--json"], ["audit", "--follow"])[
            : 2 + (path != unknown)
        ]:
            shown = run(*command, path)
            assert shown.exit_code == code, (command, path)
            assert str(path) in shown.output
        assert run("audit", "diff", weeks, path).exit_code == code
    for wrong in (["--since", "never"], ["--user", "50"], ["--delta", "2"], ["--head", "x"]):
        monkeypatch.setattr(sys, "argv", ["privlearn", "audit", str(weeks), *wrong])
        with pytest.raises(SystemExit) as stopped:
            cli_main.main()
        assert stopped.value.code == BAD_INPUT, wrong
        assert wrong[0].strip("-") in capsys.readouterr().err
