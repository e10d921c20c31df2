"""Files and options that cannot be used: refused by their form, or counted where only rows tell."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from privlearn import ZCDP
from privlearn.accountants import CentralAccountant, audit
from privlearn.cli import interruption
from privlearn.cli import run as commands
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, INTERRUPTED
from privlearn.errors import DataError
from privlearn.learners import DPTOFW
from privlearn.ledger import Ledger
from privlearn.losses.budget_texts import parse_budget, parse_local_budget
from privlearn.mechanisms import NoisySum
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.runs import tables as table_runs
from privlearn.runs.configs import TableConfig
from privlearn.runs.null_records import NullRecords
from privlearn.runs.records import Records, records_of
from privlearn.tables.lines import cells_of, header_of
from privlearn_studies import local_runs as local_runs

runner = CliRunner()

USERS = 60
DECLARED = ("--target", "y", "--feature-bound", "1", "--label-bound", "3", "--horizon", str(USERS))


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of this, and take most of a small run's time."""
    monkeypatch.setattr(table_runs, "plot_running_averages", lambda *_, **__: None)


def run(*arguments: str | Path | int) -> Result:
    return runner.invoke(app, ["run", *map(str, arguments)])


def rows(seed: int = 0) -> list[str]:
    """Lines of a table with two features and a label."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(USERS, 2))
    return [f"{a:.3f},{b:.3f},{a - b:.3f}" for a, b in x]


def table(path: Path, header: str = "a,b,y", lines: list[str] | None = None) -> Path:
    path.write_text("\n".join([header, *(rows() if lines is None else lines)]) + "\n")
    return path


def records(path: Path, **changed: Any) -> Records:
    declared: dict[str, Any] = {"feature_bound": 1.0, "label_bound": 3.0, "horizon": USERS}
    config = TableConfig(learner="tofw", data=str(path), target="y", **(declared | changed))
    return records_of(config)[0]


def all_usable(path: Path, **changed: Any) -> bool:
    return bool(records(path, **changed).usable.all())


def operators_half(result: Result) -> list[str]:
    """What stands between the operator's heading and the certificate."""
    lines = result.output.splitlines()
    start = lines.index("for the operator only:") + 1
    return [line.strip() for line in lines[start : lines.index("", start)]]


def public(out: Path) -> dict[str, str]:
    """The public files of a run with simulated noise, without its random names and hashes."""
    told = audit(out / "public" / "ledger.db")
    lines = (out / "public" / "ledger.jsonl").read_text("utf-8").splitlines()
    account = json.loads(lines[1])["entry"]["body"]["accountant"]
    found = {}
    for path in sorted((out / "public").iterdir()):
        if path.suffix in (".json", ".md"):
            text = path.read_text("utf-8")
            for name in (told.head, told.root, account):
                text = text.replace(name, "NAME")
            found[path.name] = text
    return found


# The form of a file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a;b;y", "semicolons"),
        ("a\tb\ty", "tabs"),
        ("a|b|y", "bars"),
        ('a,"b;1";y', "semicolons"),
        ('a,"b,y', "broken quotes"),
        ('a,"b" x,y', "broken quotes"),
        ("a,a,y", "each column once|'a' stands there 2 times"),
        ("a,,y", "must name every column"),
    ],
)
@pytest.mark.parametrize("learner", ["tofw", "mnl"])
def test_a_header_that_cannot_be_read_is_refused(
    learner: str, header: str, message: str, tmp_path: Path
) -> None:
    wanted: tuple[str, ...] = DECLARED
    if learner == "mnl":
        header = header.replace("y", "user")
        wanted = ("--items", "2", "--horizon", "30")
        message = message.replace("must name every column", "lacks chosen")
    data = table(tmp_path / "t.csv", header)
    result = run(learner, "--data", data, *wanted, "--out", tmp_path / "run")
    error = result.output + str(result.exception)
    assert result.exit_code != 0
    assert re.search(message, error)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("learner", ["tofw", "pofw", "hdb", "mnl"])
def test_a_file_without_rows_is_refused(learner: str, tmp_path: Path) -> None:
    wanted: tuple[str, ...]
    data, wanted = table(tmp_path / "t.csv", "a,b,y", []), DECLARED
    if learner == "mnl":
        data, wanted = table(data, "user,chosen,a", []), ("--items", "2", "--horizon", "30")
    if learner == "hdb":
        wanted = ("--target", "y", "--feature-bound", "1", "--classes", "0,1", "--horizon", "9")
    result = run(learner, "--data", data, *wanted, "--out", tmp_path / "run")
    assert "there is no row" in result.output + str(result.exception)
    assert result.exit_code != 0
    assert not (tmp_path / "run").exists()


def test_quotes_protect_commas_in_names_cells_and_options(tmp_path: Path) -> None:
    lines = [line.replace(",", ',"see a, b",', 1) for line in rows()]
    lines[5] = lines[5].replace('"', "")
    data = table(tmp_path / "t.csv", 'a,"Remark, free","Income, EUR","y"', lines)
    result = run(
        "tofw", "--data", data, "--columns", 'a,"Income, EUR"', "--bounds", '"Income, EUR"=-1:1',
        *DECLARED, "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = operators_half(result)
    assert told[0] == "records: 59 of 60 counted, 1 was null (private/messages.txt)"
    assert told[1] == "once: 5 cells, where the header has 4"
    counts = json.loads((tmp_path / "run" / "private" / "counts.json").read_text("utf-8"))
    reasons = {"5 cells, where the header has 4": 1}
    assert counts == {"records": 60, "null": 1, "reasons": reasons}
    model = json.loads((tmp_path / "run" / "public" / "model.json").read_text("utf-8"))
    assert model["table"]["inputs"] == ["a", "Income, EUR"]


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("1,2,3", ["1", "2", "3"]),
        (' 1 ,"2,5", 3\r\n', ["1", "2,5", "3"]),
        ('1, "say ""no""",3', ["1", 'say "no"', "3"]),
        ("", [""]),
        (",", ["", ""]),
        ('"a', None),
        ('"a"b,c', None),
        ("a\rb,c", None),
    ],
)
def test_cells_of_a_line(line: str, cells: list[str] | None) -> None:
    if cells is None:
        with pytest.raises(ValueError, match="quotes or line ends are broken"):
            cells_of(line.encode())
    else:
        assert cells_of(line.encode()) == cells


def test_an_open_quote_swallows_no_other_line(tmp_path: Path) -> None:
    lines = rows()
    lines[3] = '"' + lines[3]
    lines[4] = lines[4] + ',"'
    data = table(tmp_path / "t.csv", lines=lines)
    result = run("tofw", "--data", data, *DECLARED, "--out", tmp_path / "run")
    told = (tmp_path / "run" / "private" / "messages.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in told] == ["user 3", "user 4"]
    assert "records: 58 of 60 counted, 2 were null (private/messages.txt)" in operators_half(result)


def test_a_header_says_nothing_of_a_cell() -> None:
    for line in (b'"Alice,1', b"Alice;HIV+", b"\xffAlice"):
        with pytest.raises(DataError) as caught:
            header_of(line, "t.csv")
        assert "Alice" not in str(caught.value)


KINDS = {
    "categories": (pyarrow.array(["u", "v"] * 30).dictionary_encode(), "dictionary<values=string"),
    "text": (pyarrow.array(["1.0"] * USERS), "string"),
    "nested": (pyarrow.array([[1.0]] * USERS), "list<"),
    "time": (pyarrow.array(range(USERS), pyarrow.timestamp("ms")), "timestamp[ms]"),
    "bytes": (pyarrow.array([b"1"] * USERS), "binary"),
    "nothing": (pyarrow.nulls(USERS), "null"),
}
NUMBERS = np.linspace(-1, 1, USERS)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_schema_that_are_no_numbers_are_refused_by_name(
    kind: str, tmp_path: Path
) -> None:
    column, shown = KINDS[kind]
    path, out = tmp_path / "t.parquet", tmp_path / "run"
    parquet.write_table(pyarrow.table({"a": NUMBERS, "b": column, "y": NUMBERS}), path)
    result = run("tofw", "--data", path, *DECLARED, "--out", out)
    assert result.exit_code == BAD_INPUT
    assert f"column 'b' has type {shown}" in result.output
    assert "takes numbers or booleans" in result.output
    parquet.write_table(pyarrow.table({"a": NUMBERS, "b": NUMBERS, "y": column}), path)
    result = run("tofw", "--data", path, *DECLARED, "--out", out)
    assert f"column 'y' has type {shown}" in result.output
    assert not out.exists()


def test_a_column_that_is_left_out_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    odd = {name: column for name, (column, _) in KINDS.items()}
    parquet.write_table(pyarrow.table({"a": NUMBERS, **odd, "y": NUMBERS}), path)
    assert all_usable(path, columns=("a",))


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([True, False] * 30),
        pyarrow.array([0, 1] * 30, pyarrow.uint8()),
        pyarrow.array([Decimal("0.5"), Decimal("-0.25")] * 30, pyarrow.decimal128(4, 2)),
    ],
    ids=["booleans", "integers", "decimals"],
)
def test_numbers_of_every_kind_are_taken(column: pyarrow.Array, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"a": column, "y": NUMBERS}), path)
    assert all_usable(path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pyarrow.array([1, 2] * 30), "type int64, and none of its declared values"),
        (
            pyarrow.array([1.0, 2.0] * 30).dictionary_encode(),
            "type double, and none of its declared values",
        ),
    ],
)
def test_classes_that_no_cell_of_a_typed_column_can_be_are_refused(
    labels: pyarrow.Array, message: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "t.parquet", tmp_path / "run"
    parquet.write_table(pyarrow.table({"a": NUMBERS, "y": labels}), path)
    wanted = ("--target", "y", "--feature-bound", "1", "--horizon", USERS, "--out", out)
    result = run("tofw", "--data", path, *wanted, "--classes", "no,yes")
    assert result.exit_code == BAD_INPUT
    assert message in " ".join(result.output.split())
    assert not out.exists()
    assert all_usable(path, classes=("1", "2"), label_bound=None)


def test_a_look_spends_nothing_and_tells_only_the_private_half(tmp_path: Path) -> None:
    lines = rows()
    lines[3], lines[4] = "n/a,0,0", "0,0,9"
    data, out = table(tmp_path / "t.csv", lines=lines), tmp_path / "run"
    wanted = ("--data", data, *DECLARED, "--out", out)
    result = run("tofw", *wanted, "--look")
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.rglob("*")] == ["private", "look.txt"]
    told = (out / "private" / "look.txt").read_text("utf-8")
    assert "NOT PROTECTED" in told
    assert "records: 58 of 60 would count\n" in told
    assert "  1: column 'a': missing, or no number" in told
    assert f"  1: {BEYOND}" in told
    assert "-1 to 1 declared; 0 of 58 beyond" in told
    clean = run("tofw", "--data", table(data), *DECLARED, "--out", tmp_path / "two", "--look")
    assert clean.output.replace("two", "run") == result.output
    assert run("tofw", *wanted).exit_code == 0, "a run may follow in the same folder"
    assert (out / "public" / "ledger.db").exists()
    choices = table(tmp_path / "c.csv", "user,chosen,x", ["a,1,.5", "a,0,.2", "b,0,.5", "b,0,.2"])
    run("mnl", "--data", choices, "--items", 2, "--horizon", 3, "--out", tmp_path / "m", "--look")
    told = (tmp_path / "m" / "private" / "look.txt").read_text("utf-8")
    assert "records: 1 of 3 would count" in told
    assert "  1: the file has no rows for them" in told
    simulated = run("mnl", "--task", "returning", "--out", tmp_path / "s", "--look")
    assert "its people are simulated" in simulated.output
    assert not (tmp_path / "s").exists()


def test_classes_may_be_categories_and_a_parquet_file_needs_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    labels = pyarrow.array(["no", "yes"] * 30).dictionary_encode()
    whole = pyarrow.table({"a": NUMBERS, "y": labels})
    parquet.write_table(whole, path)
    wanted = ("--target", "y", "--feature-bound", "1", "--classes", "no,yes", "--horizon", USERS)
    result = run("tofw", "--data", path, *wanted, "--out", tmp_path / "run")
    assert operators_half(result)[0] == "records: all 60 counted"
    parquet.write_table(whole.slice(0, 0), path)
    result = run("tofw", "--data", path, *wanted, "--out", tmp_path / "none")
    assert "there is no row" in result.output
    assert not (tmp_path / "none").exists()


# What only rows tell ------------------------------------------------------------------------------


BEYOND = "column 'y': missing, no number, or out of its declared range"
REASONS: list[tuple[Callable[[str, str, str], str], str]] = [
    (lambda a, b, y: f"city,{b},{y}", "column 'a': missing, or no number"),
    (
        lambda a, b, y: f'"1,000",{b},{y}',
        "column 'a': missing, or no number",
    ),
    (lambda a, b, y: f"1,000,{b},{y}", "4 cells, where the header has 3"),
    (lambda a, b, y: f"{a};{b};{y}", "1 cell, where the header has 3"),
    (lambda a, b, y: f"{a},,{y}", "column 'b': missing, or no number"),
    (lambda a, b, y: f"{a},{b},50", BEYOND),
    (
        lambda a, b, y: f"{a},{b},none",
        BEYOND,
    ),
]


@pytest.mark.parametrize("number", range(len(REASONS)))
def test_why_no_record_counts_is_told_the_operator(number: int, tmp_path: Path) -> None:
    change, reason = REASONS[number]
    data = table(tmp_path / "t.csv", lines=[change(*line.split(",")) for line in rows()])
    told = NullRecords.of(USERS, records(data).messages).lines()
    assert told[0].startswith("WARNING: NO RECORD COUNTED")
    assert told[1] == "records: 0 of 60 counted, 60 were null (private/messages.txt)"
    assert told[2] == f"  60 times: {reason}"


def test_that_no_record_counts_changes_nothing_public(tmp_path: Path) -> None:
    found = []
    for name, change in (("blank", lambda *_: ""), ("text", REASONS[0][0])):
        data = table(tmp_path / f"{name}.csv", lines=[change(*line.split(",")) for line in rows()])
        out = tmp_path / name
        result = run("tofw", "--data", data, *DECLARED, "--simulate-noise", "1", "--out", out)
        assert result.exit_code == 0, result.output
        told = operators_half(result)
        assert told[0].startswith("WARNING: NO RECORD COUNTED")
        found.append((public(out), result.output.splitlines()[0]))
    assert "60 times: column 'a': missing, or no number" in told
    assert found[0] == found[1]


def test_the_wrong_number_of_items_is_told_the_operator(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"u{u},{int(i == 0)},{rng.uniform():.3f}" for u in range(30) for i in range(4)]
    data = table(tmp_path / "t.csv", "user,chosen,price", lines)
    wanted = ("--items", "5", "--horizon", "24", "--out", tmp_path / "run")
    result = run("mnl", "--data", data, *wanted)
    assert result.exit_code == 0
    told = operators_half(result)
    assert told[0].startswith("WARNING: NO RECORD COUNTED")
    assert "24 times: different users in the 5 lines that --items gives to each user" in told
    assert "u3" not in (tmp_path / "run" / "private" / "messages.txt").read_text()


def test_few_null_records_are_no_warning_and_many_reasons_are_cut() -> None:
    few = NullRecords.of(100, [(3, "b"), (2, "a")], [(3, "later, and not told")])
    assert few.reasons == {2: "a", 3: "b"}
    assert few.lines()[0] == "records: 98 of 100 counted, 2 were null (private/messages.txt)"
    assert len(few.lines()) == 3
    half = NullRecords.of(10, [(k, f"reason {k}") for k in range(5)])
    assert half.lines()[0].startswith("WARNING: MOST RECORDS WERE NULL")
    assert half.lines()[-1] == "  and 2 other reasons"
    assert NullRecords.of(10).lines() == ["records: all 10 counted"]


# Horizons -----------------------------------------------------------------------------------------


def test_a_long_horizon_is_cheap_and_absent_users_are_one_line(tmp_path: Path) -> None:
    data, out = table(tmp_path / "t.csv"), tmp_path / "run"
    wanted = ("--target", "y", "--feature-bound", "1", "--label-bound", "3")
    result = run("tofw", "--data", data, *wanted, "--horizon", 1_000_000, "--out", out)
    assert result.exit_code == 0, result.output
    told = operators_half(result)
    assert told[0].startswith("WARNING: MOST RECORDS WERE NULL")
    assert told[2] == "999,940 times: the file ends before user 60, and the horizon is 1,000,000"
    messages = (out / "private" / "messages.txt").read_text()
    assert messages == "users 60 to 999999: the file has no rows for them\n"
    assert audit(out / "public" / "ledger.db").holds


@pytest.mark.parametrize("learner", ["tofw", "hdb", "mnl"])
def test_absent_users_and_blank_lines_give_the_same_public_files(
    learner: str, tmp_path: Path
) -> None:
    found = []
    for name, extra in (("absent", []), ("blank", [""] * 40)):
        out = tmp_path / name
        if learner == "mnl":
            lines = [f"u{k // 2},{k % 2},{k % 7}" for k in range(2 * USERS)] + extra
            data = table(tmp_path / f"{name}.csv", "user,chosen,price", lines)
            wanted: tuple[str, ...] = ("--items", "2", "--horizon", str(USERS + 20))
        else:
            data = table(tmp_path / f"{name}.csv", lines=rows() + extra)
            wanted = (*DECLARED[:4], "--horizon", str(USERS + 20))
            wanted += ("--classes", "0,1") if learner == "hdb" else ("--label-bound", "3")
        result = run(learner, "--data", data, *wanted, "--simulate-noise", "3", "--out", out)
        assert result.exit_code == 0, result.output
        found.append(public(out))
    assert found[0].keys() == found[1].keys()
    assert found[0] == found[1]


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--feature-bound", "nan", "feature_bound = nan: must be a number between 1e-100 and"),
        ("--feature-bound", "inf", "feature_bound = inf: must be a number between 1e-100 and"),
        ("--feature-bound", "-1", "feature_bound = -1.0: must be a number between 1e-100 and"),
        ("--label-bound", "nan", "label_bound = nan: must be a number between 1e-100 and"),
        ("--label-bound", "1e-320", "must be a number between 1e-100 and 1e+100"),
        ("--label-centre", "nan", "label_centre = nan: must be a number between -1e+100 and"),
        ("--row-bound", "nan", "row_bound = nan: must be a number between 1e-100 and"),
        ("--radius", "inf", "radius = inf: must be a number between 1e-100 and"),
        ("--p", "nan", "p = nan: must be a number above 1, or inf"),
        ("--bounds", "age=5:1", "age = 5:1: must be finite, low < high"),
        ("--bounds", "age=nan:1", "age = nan:1: must be finite, low < high"),
        ("--bounds", "age=-1e200:1", "within ±1e+100"),
        ("--scale", "nan", "scale = 'nan': refused"),
        ("--horizon", "99999999999999", "must be a number of users, 1 to 100,000,000"),
        ("--horizon", "0", "horizon = 0: must be a number of users, 1 to 100,000,000"),
        ("--held-out", "99999999999999", "must be a number of rows, 0 to 100,000,000"),
        ("--budget", "delta=1e-6,delta=1e-5", "delta stands twice"),
        ("--budget", "rho=1,rho=2", "rho stands twice"),
        ("--budget", "epsilon=1,delta=1e-6,delta=1e-5", "delta stands twice"),
        ("--budget", "rho=1e-300", "rho = 1e-300 must lie between 1e-06 and 1e+09"),
        ("--budget", "rho=1e300", "rho = 1e300 must lie between 1e-06 and 1e+09"),
        ("--budget", "rho=1e999999999", "must lie between 1e-06 and 1e+09"),
        ("--budget", "rho=1e-999999999", "must lie between 1e-06 and 1e+09"),
        ("--budget", "rho=nan", "rho = nan must be a finite number"),
        ("--budget", "rho=1/0", "rho = 1/0 must be a finite number"),
        ("--budget", "mu=1e-200", "mu = 1e-200 must lie between 1e-06 and 10000"),
        ("--budget", "mu=1e9", "mu = 1e9 must lie between 1e-06 and 10000"),
        ("--budget", "epsilon=0,delta=1e-5", "epsilon = 0 must lie between 1e-06 and 1e+09"),
        ("--budget", "epsilon=1,delta=1", "delta = 1 must be at least 1e-100 and below 1"),
        ("--budget", "epsilon=1,delta=0", "delta = 0 must be at least 1e-100 and below 1"),
        ("--budget", "epsilon=1,delta=1e-400", "delta = 1e-400 must be at least 1e-100"),
    ],
)
def test_absurd_numbers_are_one_short_line_with_the_range(
    option: str, value: str, accepted: str, tmp_path: Path
) -> None:
    result = run("tofw", "--data", "diabetes", option, value, "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT
    assert accepted in result.output
    assert len(result.output) < 320
    assert result.output.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mnl", "--scale", "nan"), "scale = nan: must be a number between"),
        (("mnl", "--items", "0"), "items = 0: must be a number of items, 1 to 100,000"),
        (("mnl", "--horizon", "99999999999999"), "1 to 100,000,000"),
        (("mnl", "--budget", "delta=1e-6,delta=1e-5"), "delta stands twice"),
        (("mnl", "--task", "market", "--horizon", "100000000"), "1,000,000 simulated people"),
        (("ldp-sgd", "--epsilon", "1", "--horizon", "100000000"), "simulated people, 1 to"),
        (("ldp-ols", "--budget", "epsilon=1,delta=1e-6,delta=1e-5"), "delta stands twice"),
        (("ldp-sgd", "--epsilon", "1e-300"), "must lie between 1e-06 and 100"),
        (("ldp-sgd", "--epsilon", "1", "--monthly-rate", "nan"), "must be a number between"),
    ],
)
def test_other_commands_have_ranges_too(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT
    assert message in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text", ["rho=1e-6", "rho=1e9", "mu=1e4", "rho=1/3", "epsilon=.5,delta=.5"]
)
def test_budgets_within_the_ranges_are_exact(text: str) -> None:
    assert all(amount > 0 for amount in parse_budget(text).amounts)
    assert str(parse_budget("rho=1/3").amounts[0]) == "1/3"
    assert str(parse_local_budget("epsilon=100").amounts[0]) == "100"


# Stopping -----------------------------------------------------------------------------------------

COMMAND = "from privlearn.cli.main import main; main()"


def entries(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger, ledger:
            return int(ledger.execute("SELECT count(*) FROM entries").fetchone()[0])
    except sqlite3.Error:  # not there yet
        return 0


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_run_that_is_stopped_says_what_was_spent(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ledger = out / "public" / "ledger.db"
    arguments = ["run", "mnl", "--task", "market", "--horizon", "300000", "--out", str(out)]
    # Whoever was started in the background ignores SIGINT, and so do all that it starts.
    heard = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND}"
    with subprocess.Popen(
        [sys.executable, "-c", heard, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until = time.monotonic() + 60
            while entries(ledger) < 8 and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in said
    found = audit(ledger)
    assert found.problems == []
    assert not found.closed
    assert found.spends == 1
    (spends,) = re.findall(r"stopped; spent so far, in (\d+) spends", said)
    assert int(spends) == found.spends
    assert f"ρ = {found.spent[0].rho:.6g}" in said
    assert "left to the most charged user, of the plan or cap: ρ = 0 of 1" in said
    assert f"look at it: privlearn audit {ledger}" in said


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_termination_is_as_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, out = DPTOFW.partial_fit, tmp_path / "run"

    def terminated(self: DPTOFW, x: Any, y: Any, **more: Any) -> DPTOFW:
        learner = learn(self, x, y, **more)
        if self.clock_ == USERS:
            signal.raise_signal(signal.SIGTERM)
        return learner

    monkeypatch.setattr(DPTOFW, "partial_fit", terminated)
    result = run("tofw", "--data", table(tmp_path / "t.csv"), *DECLARED, "--out", out)
    assert result.exit_code == INTERRUPTED
    ledger = out / "public" / "ledger.db"
    found = audit(ledger)
    assert not found.closed
    assert f"stopped; spent so far, in {found.spends} spends" in result.output
    assert f"privlearn audit {ledger}" in result.output


def test_a_run_that_is_stopped_early_has_spent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(table_runs, "_rehearse", stop)
    result = run("tofw", "--data", "diabetes", "--out", out)
    assert result.exit_code == INTERRUPTED
    assert "nothing was spent" in result.output
    monkeypatch.undo()
    monkeypatch.setattr(DPTOFW, "partial_fit", stop)
    result = run("tofw", "--data", "diabetes", "--out", out)
    assert result.exit_code == INTERRUPTED
    assert f"by the ledger {out / 'public' / 'ledger.db'} nothing was spent" in result.output
    assert run("tofw", "--data", "diabetes", "--out", out).exit_code == BAD_INPUT
    monkeypatch.setattr(table_runs, "_rehearse", stop)
    result = run("tofw", "--data", "diabetes", "--out", out)
    assert "stopped before a ledger was begun" in result.output, "the other run's is not told"


@pytest.mark.parametrize("learner", ["mnl", "tofw", "ldp-sgd"])
def test_a_run_that_is_stopped_while_it_reads_its_settings_says_so(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_validated", stop)
    result = run(learner, "--out", tmp_path / "run")
    assert result.exit_code == INTERRUPTED
    assert "stopped before a ledger was begun: nothing was spent" in result.output


def test_a_stopped_run_of_devices_does_not_say_that_what_they_attest_was_not_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_runs, "meet", stop)
    out = tmp_path / "run"
    result = run("ldp-sgd", "--epsilon", 1, "--horizon", 50, "--out", out)
    assert result.exit_code == INTERRUPTED
    attested, own = out / "public" / "ledger.db", out / "private" / "devices.db"
    assert f"{attested} attests what devices were to send in the whole run" in result.output
    assert f"by the ledger {own} nothing was spent" in result.output


def test_what_is_left_is_told_by_the_most_charged_user(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    path = tmp_path / "public" / "ledger.db"
    with CentralAccountant(ZCDP("1"), users=range(4), ledger=Ledger.create(path)) as account:
        quarter = NoisySum.calibrated(Ball(1.0, 1), ZCDP("0.25"))
        token = account.issue(quarter.loss(), users=range(4), label="sum")
        quarter.release(Rows.seal(np.zeros((4, 1)), users=range(4)), token)
        told = interruption.spent_lines(tmp_path, {})
    assert "left to the most charged user, of the plan or cap: ρ = 0.75 of 1" in told[1]
    assert "ρ = 0.25 zCDP" in told[0]


def test_too_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(table_runs, "split", full)
    result = run("tofw", "--data", "diabetes", "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT
    assert result.output.startswith("error: not enough memory")
    assert "nothing was spent" in result.output


def test_runs_in_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with interruption.termination_interrupts(), interruption.undisturbed():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
    with interruption.termination_interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before
        with interruption.undisturbed():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is before
