"""Runs on files in which persons have several rows, and commands about their registry."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.people import People
from privlearn.runs import tables as table_runs
from privlearn.tables import Number, Schema, read
from privlearn.values.participation import Participation

runner = CliRunner()
ROWS = 60
DECLARED = (
    *("--target", "y", "--feature-bound", "1", "--label-bound", "3", "--horizon", ROWS),
    *("--simulate-noise", "1"),
)
PERSONS = ("--people", "who", "--most", "2", "--pooled")
NAMES = ["maria", "Zoë", "007", "x y"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_runs, "plot_running_averages", lambda *_, **__: None)


def call(*arguments: object, input: str | None = None) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments], input=input)


def lines(names: list[str] = NAMES) -> list[str]:
    """A table of rows that the persons take turns in, and a few nobody's."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(ROWS, 2))
    whose = [names[i] for i in rng.integers(0, len(names), ROWS)]
    return [f"{a:.3f},{n},{b:.3f},{a - b:.3f}" for (a, b), n in zip(x, whose, strict=True)]


def table(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["a,who,b,y", *rows]) + "\n", encoding="utf-8")
    return path


def public(out: Path, registry: str = "") -> dict[str, str]:
    """The public files of a run without its random names and hashes."""
    told = audit(out / "public" / "ledger.db")
    first = json.loads((out / "public" / "ledger.jsonl").read_text("utf-8").splitlines()[1])
    opened = first["entry"]["body"]
    names = [told.head, told.root, opened["accountant"], registry]
    names += _registries(first["entry"]["ext"])
    found = {}
    for path in sorted((out / "public").iterdir()):
        if path.suffix in (".json", ".md"):
            text = path.read_text("utf-8")
            for name in filter(None, names):
                text = text.replace(name, "NAME")
            found[path.name] = text
    return found


def _registries(opened: object) -> list[str]:
    if isinstance(opened, dict):
        own = [str(opened["registry"])] if "registry" in opened else []
        return own + [name for value in opened.values() for name in _registries(value)]
    return []


def test_a_run_is_for_persons_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call(
        "run",
        "tofw",
        "--data",
        table(tmp_path / "t.csv", lines()),
        *DECLARED,
        *PERSONS,
        "--out",
        out,
    )
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "for each person (a text in column 'who') with all rows; learned from are" in told
    assert "not covered" in told
    found = audit(out / "public" / "ledger.db")
    assert not found.problems
    (guarantee,) = found.guarantees
    assert guarantee.rho is not None
    assert 0.97 < guarantee.rho <= 1
    model = json.loads((out / "public" / "model.json").read_text("utf-8"))
    assert model["table"]["inputs"] == ["a", "b"]
    for text in public(out).values():
        assert not any(name in text for name in ("maria", "Zoë", "x y"))


def test_ids_are_only_compared(tmp_path: Path) -> None:
    found = []
    for number, names in enumerate((NAMES, ["a", "b", "c", "d"], ["A", "a", "á", "a2"])):
        out = tmp_path / f"run{number}"
        data = table(tmp_path / "t.csv", lines(names))
        assert call("run", "pofw", "--data", data, *DECLARED, *PERSONS, "--out", out).exit_code == 0
        found.append(public(out))
    assert found[0] == found[1] == found[2]


def test_rows_too_many_change_nothing_that_is_public(tmp_path: Path) -> None:
    found, rows = [], lines(["maria"])
    for number in range(2):
        out = tmp_path / f"run{number}"
        data = table(tmp_path / "t.csv", rows)
        options = (*DECLARED, "--people", "who", "--most", "2")
        assert call("run", "tofw", "--data", data, *options, "--out", out).exit_code == 0
        found.append(public(out))
        rows = [*rows[:2], *("0,maria,1,-3" for _ in rows[2:])]
    assert found[0] == found[1]


def test_rows_without_an_id_are_null_and_nobodys(tmp_path: Path) -> None:
    rows = [line.replace(",maria,", ",,") for line in lines()]
    nobodys = sum(",," in line for line in rows)
    out = tmp_path / "run"
    data = table(tmp_path / "t.csv", rows)
    result = call("run", "tofw", "--data", data, *DECLARED, *PERSONS, "--out", out)
    assert result.exit_code == 0
    assert f"{nobodys} times: no id says who came" in " ".join(result.output.split())


def test_text_that_is_none_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"who,x,y\n\xff,1,1\n\xfe,1,1\n \xff ,1,1\nbroken,1\n,1,1\n")
    found = read(path, Schema({"x": Number(0, 1), "y": Number(0, 1)}, target="y", person="who"))
    assert found.people is not None
    first, second, third, *others = found.people
    assert first == third != second
    assert others == [None, None]


def test_parquet_files_have_ids_of_text_or_integers(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    x = np.linspace(-1, 1, ROWS)

    def ran(who: object, name: str) -> Result:
        columns = {"a": x, "who": who, "b": -x, "y": x}
        parquet.write_table(pyarrow.table(columns), path)
        out = tmp_path / name
        return call("run", "tofw", "--data", path, *DECLARED, *PERSONS, "--out", out)

    numbers = [i % 5 for i in range(ROWS)]
    assert ran(numbers, "whole").exit_code == 0
    assert ran([str(i) for i in numbers], "text").exit_code == 0
    assert public(tmp_path / "whole") == public(tmp_path / "text")
    refused = ran(x, "real")
    assert refused.exit_code == BAD_INPUT
    assert "takes text or integers" in refused.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--people", "nobody", "--most", "1"), "people = 'nobody': no column of"),
        (("--most", "2"), "most: needs people, the column"),
        (("--pooled",), "pooled: needs people, the column"),
        (("--registry", "r.db"), "registry: needs people, the column"),
        (("--people", "who"), "most: must be given with people: how many rows of one person"),
        (("--people", "who", "--most", "0"), "most = 0: "),
        (("--people", "y", "--most", "1"), "people: 'y' is the target"),
        (
            ("--people", "who", "--most", "1", "--columns", "a,who"),
            "is the people column, and no feature",
        ),
        ((*PERSONS, "--apart", "3"), "a pooled rule counts batches"),
        ((*PERSONS, "--registry", "nowhere/r.db"), "registry = 'nowhere/r.db': there is no such"),
        ((*PERSONS, "--method", "plain"), "method = 'plain' releases after every row"),
    ],
)
def test_mistakes_are_answered_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    out = tmp_path / "run"
    data = table(tmp_path / "t.csv", lines())
    result = call("run", "tofw", "--data", data, *DECLARED, *options, "--out", out)
    assert result.exit_code == BAD_INPUT
    assert words in " ".join(result.output.split())
    assert not out.exists()


def test_shipped_rows_are_persons(tmp_path: Path) -> None:
    result = call(
        "run",
        "tofw",
        "--data",
        "diabetes",
        *("--people", "age", "--most", "1"),
        "--out",
        tmp_path / "run",
    )
    assert result.exit_code == BAD_INPUT
    assert "each shipped row is a person" in result.output


def test_a_bandit_of_single_rows_says_what_to_do_instead_of_pooling(tmp_path: Path) -> None:
    arms = ("--target", "y", "--classes", "0,1", "--horizon", ROWS)
    data = table(tmp_path / "t.csv", lines())
    result = call("run", "hdb", "--data", data, *arms, *PERSONS, "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT
    assert "take per_batch = 1, or sparse" in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()


def test_the_operator_is_not_told_that_rows_beyond_the_rule_counted(tmp_path: Path) -> None:
    data = table(tmp_path / "t.csv", lines())
    for options, told in (((), "all 60 counted"), (("--people", "who", "--most", "1"), "usable")):
        out = tmp_path / told
        columns = ("--columns", "a,b")
        result = call("run", "tofw", "--data", data, *DECLARED, *columns, *options, "--out", out)
        assert result.exit_code == 0, result.output
        assert f"records: {told}" in result.output.replace("all 60 usable", "usable")


# Choices ------------------------------------------------------------------------------------------


def choices(rows: int, people: list[tuple[str, str]]) -> str:
    """Two items a user; both lines of each say whose they are."""
    rng = np.random.default_rng(1)
    told = ["user,card,chosen,price,size"]
    for user in range(rows):
        chosen = int(rng.integers(0, 2))
        for item, card in enumerate(people[user]):
            x, y = rng.uniform(-0.7, 0.7, size=2)
            told.append(f"{user},{card},{int(item == chosen)},{x:.3f},{y:.3f}")
    return "\n".join(told) + "\n"


def test_choices_of_persons(tmp_path: Path) -> None:
    path, out = tmp_path / "c.csv", tmp_path / "run"
    cards = [(str(i % 7), str(i % 7)) for i in range(40)]
    cards[3], cards[4] = ("a", "b"), ("", "")
    path.write_text(choices(40, cards))
    options = ("--items", 2, "--horizon", 41, "--simulate-noise", 1)
    result = call(
        "run",
        "mnl",
        "--data",
        path,
        *options,
        "--people",
        "card",
        "--most",
        1,
        "--pooled",
        "--out",
        out,
    )
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "once: different persons in the lines of one user" in told
    assert "once: no id says who came" in told
    assert not audit(out / "public" / "ledger.db").problems
    refused = call(
        "run",
        "mnl",
        "--data",
        path,
        *options,
        "--people",
        "name",
        "--most",
        1,
        "--out",
        tmp_path / "no",
    )
    assert refused.exit_code == BAD_INPUT
    assert "people = 'name': no column" in refused.output
    cars = call("run", "mnl", "--people", "user", "--most", 1, "--out", tmp_path / "no")
    assert cars.exit_code == BAD_INPUT
    assert "each row of the cars is a person" in cars.output


# The registry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["public", "public/deeper", "x/../public"])
def test_a_registry_is_not_put_into_the_public_folder(tmp_path: Path, place: str) -> None:
    """It holds the key of the hashes, and who came."""
    out, data = tmp_path / "out", table(tmp_path / "t.csv", lines())
    options = (*DECLARED, *PERSONS, "--registry", out / place / "people.db")
    refused = call("run", "tofw", "--data", data, *options, "--out", out)
    assert refused.exit_code == BAD_INPUT
    assert "it is secret" in refused.output
    assert not out.exists()


def test_the_clock_of_a_timetable_is_not_shown_as_public(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with People.create(path, Participation(1, clock="timetable")) as people:
        people.bind("account", range(10))
        people.admit_visits(["maria"], range(4), [3])
    shown = call("people", "show", path)
    assert "next slot (not public" in shown.output


def test_a_registry_in_a_file_is_of_one_run(tmp_path: Path) -> None:
    registry, data = tmp_path / "people.db", table(tmp_path / "t.csv", lines())
    options = (*DECLARED, *PERSONS, "--registry", registry)
    assert call("run", "tofw", "--data", data, *options, "--out", tmp_path / "a").exit_code == 0
    again = call("run", "tofw", "--data", data, *options, "--out", tmp_path / "b")
    assert again.exit_code == BAD_INPUT
    assert "a new run needs a new one" in again.output
    assert not (tmp_path / "b").exists()
    shown = call("people", "show", registry)
    assert shown.exit_code == 0
    account = audit(tmp_path / "a" / "public" / "ledger.db")
    assert not account.problems
    assert f"next slot: {ROWS}" in shown.output
    assert "rule: Participation(most=2, pooled=True)" in shown.output
    assert not any(name in shown.output for name in NAMES)
    forgotten = call("people", "forget", registry, input="maria\nx y\n")
    assert forgotten.exit_code == 0
    assert forgotten.output.startswith("2 persons: no further visit is learned")
    assert not any(name in forgotten.output for name in NAMES)


def test_nobody_forgotten_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with People.create(path, Participation(5)) as people:
        people.bind("account", range(10))
        assert people.admit_visits(["maria", "zoe"], range(2)).learned.all()
    assert call("people", "forget", path, "--id", "maria").exit_code == 0
    with People.open(path) as people:
        assert people.admit_visits(["maria", "zoe"], range(2, 4)).learned.tolist() == [False, True]


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        ((), "", "there is none"),
        ((), "secret\n\n", "an empty line"),
        (("--id", ""), None, "there is none"),
        (("--id", "secret", "--integer"), None, "must be a whole number"),
        (("--id", "5", "--integer"), None, "ids: int beside str"),
    ],
)
def test_requests_that_cannot_be_met(
    tmp_path: Path, arguments: tuple[str, ...], given: str | None, words: str
) -> None:
    path = tmp_path / "people.db"
    with People.create(path, Participation(5)) as people:
        people.bind("account", range(10))
        people.admit_visits(["secret"], range(1))
    result = call("people", "forget", path, *arguments, input=given)
    assert result.exit_code == BAD_INPUT
    assert words in result.output
    assert "secret" not in result.output
    with People.open(path) as people:
        assert people.admit_visits(["secret"], range(1, 2)).learned.all()


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    for command in (("show",), ("forget", "--id", "secret")):
        result = call("people", command[0], tmp_path / "none.db", *command[1:])
        assert result.exit_code == BAD_INPUT
        assert result.output.startswith("error: ")
        assert "secret" not in result.output
        assert not (tmp_path / "none.db").exists()
