"""The command line as a newcomer, an auditor and a forger would use it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli import main as cli_main
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, PROBLEMS, SIMULATION, UNREADABLE
from privlearn.errors import DataError
from privlearn.estimators.situations import Situations
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.runs.choice_logs import logged
from privlearn.runs.configs import ChoiceConfig
from privlearn.tables.lines import LONGEST_LINE

runner = CliRunner()


def run(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with secure noise."""
    out = tmp_path_factory.mktemp("runs") / "market"
    result = run("run", "mnl", "--task", "market", "--horizon", "600", "--out", out)
    assert result.exit_code == 0, result.output
    return out


def commands(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "list_commands"):
        yield names
        return
    context: Any = command.context_class(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), *names, name)


@pytest.mark.parametrize("names", list(commands(get_command(app))), ids=" ".join)
def test_help_states_exit_codes_and_loses_no_word(names: tuple[str, ...]) -> None:
    shown = run(*names, "--help").output
    assert "Exit codes: 0" in shown
    assert "++" not in shown, "what stands in angle brackets is not shown"


def test_a_run_leaves_a_public_and_a_private_folder(market: Path) -> None:
    public = {path.name for path in (market / "public").iterdir()}
    private = {path.name for path in (market / "private").iterdir()}
    assert public == {
        "billboard.json",
        "certificate.json",
        "certificate.md",
        "ledger.db",
        "ledger.db.head",
        "ledger.jsonl",
        "model.json",
    }
    assert private == {"choices.csv", "counts.json", "regret.csv", "regret.png", "settings.json"}
    assert (market / "private").stat().st_mode & 0o077 == 0


def test_people_who_come_back_have_one_guarantee_each(tmp_path: Path) -> None:
    out = tmp_path / "returning"
    result = run("run", "mnl", "--task", "returning", "--horizon", "600", "--out", out)
    assert result.exit_code == 0, result.output
    assert "per visit" in result.output
    told = json.loads((out / "public" / "certificate.json").read_text())
    assert told["guarantees"][0]["rule"] is not None
    assert told["problems"] == []
    registry = out / "private" / "people.db"
    assert registry.stat().st_mode & 0o077 == 0
    shown = run("people", "show", registry)
    assert "next slot: 600" in shown.output
    odd = run("run", "mnl", "--task", "returning", "--horizon", "601", "--out", tmp_path / "odd")
    assert odd.exit_code == BAD_INPUT
    assert "horizon = 601" in odd.output
    assert not (tmp_path / "odd").exists()


def test_an_audit_for_a_user_of_no_account_is_wrong_use(
    market: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, codes = market / "public" / "ledger.db", []
    for user in ("599", "600"):
        monkeypatch.setattr(sys, "argv", ["privlearn", "audit", str(ledger), "--user", user])
        with pytest.raises(SystemExit) as stopped:
            cli_main.main()
        codes.append(stopped.value.code)
    assert codes == [0, 2]
    assert "user = 600: no accountant has this user; they have range(0, 600)" in (
        capsys.readouterr().err
    )


def test_the_audit_of_a_run_succeeds_and_says_so_in_json(market: Path) -> None:
    result = run("audit", market / "public" / "ledger.db", "--delta", "1e-8", "--json")
    assert result.exit_code == 0
    told = json.loads(result.output)
    assert told["problems"] == []
    assert told["simulation"] is False
    (guarantee,) = told["guarantees"]
    assert guarantee.keys() == {
        "trust", "adjacency", "rho", "mu", "epsilon", "delta", "error_bound", "rests_on",
        "accountants", "users", "who", "attested", "method", "failure", "user", "rounds", "running",
        "unknown",
    }  # fmt: skip
    assert guarantee["trust"] == "joint"
    assert guarantee["delta"] == 1e-8
    assert guarantee["rho"] == pytest.approx(1, abs=1e-9)
    assert told["spends"] == 1
    assert told["entries"] > 10, "one stream, a value after each batch"
    assert sum(share["share"] for share in told["mechanisms"]) == pytest.approx(1)


def test_the_export_verifies_like_the_ledger(market: Path) -> None:
    files = [market / "public" / name for name in ("ledger.db", "ledger.jsonl")]
    first, second = (run("audit", file, "--json") for file in files)
    assert first.exit_code == second.exit_code == 0
    of_ledger, of_export = json.loads(first.output), json.loads(second.output)
    assert of_ledger.pop("head_beside") is True, "beside an export there is none"
    compared = of_ledger.pop("compared"), of_export.pop("compared")
    assert compared == ("compared with its head file", "compared with none")
    assert (of_ledger.pop("ledger"), of_export.pop("ledger")) == ("ledger.db", "ledger.jsonl")
    assert of_ledger == of_export


def test_a_changed_entry_is_named(market: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged.db"
    forged.write_bytes((market / "public" / "ledger.db").read_bytes())
    with closing(sqlite3.connect(forged)) as connection, connection:
        (stored,) = connection.execute("SELECT entry FROM entries WHERE seq = 4").fetchone()
        changed = json.loads(stored)
        changed["body"]["noise"]["std"] = 100.0
        connection.execute("UPDATE entries SET entry = ? WHERE seq = 4", (json.dumps(changed),))
    connection.close()
    result = run("audit", forged)
    assert result.exit_code == PROBLEMS
    assert "entry 4: its hash does not fit; it was changed" in " ".join(result.output.split())


def test_a_head_kept_elsewhere_detects_a_cut(market: Path, tmp_path: Path) -> None:
    whole = market / "public" / "ledger.jsonl"
    head = audit(whole).head
    assert run("audit", whole, "--head", head).exit_code == 0
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(whole.read_text().splitlines(keepends=True)[:-4]))
    shorter = audit(cut)
    assert shorter.holds
    assert not shorter.closed
    assert shorter.guarantees[0].epsilon == audit(whole).guarantees[0].epsilon
    result = run("audit", cut, "--head", head)
    assert result.exit_code == PROBLEMS
    assert "cut or rewritten" in result.output


def test_simulated_noise_is_never_certified(tmp_path: Path) -> None:
    assert run("run", "mnl", "--simulate-noise", "5", "--out", tmp_path / "run").exit_code == 0
    result = run("audit", tmp_path / "run" / "public" / "ledger.db")
    assert result.exit_code == SIMULATION
    assert "protects nobody" in result.output


@pytest.mark.parametrize("content", [None, b"", b"not a ledger", b"{}\n", b"SQLite format 3\x00"])
def test_an_unreadable_file_is_its_own_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.db"
    if content is not None:
        path.write_bytes(content)
    result = run("audit", path)
    assert result.exit_code == UNREADABLE
    assert str(path) in result.output


def test_a_run_never_overwrites(market: Path) -> None:
    result = run("run", "mnl", "--out", market)
    assert result.exit_code == BAD_INPUT
    assert "not empty" in result.output


def test_an_output_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("run", "mnl", "--out", tmp_path / "file" / "run")
    assert result.exit_code == BAD_INPUT
    assert "cannot be written" in result.output


@pytest.mark.parametrize("budget", ["", "rho", "rho=", "rho=nan", "rho=-1", "epsilon=1", "x=1"])
def test_a_bad_budget_is_refused_before_anything_is_written(tmp_path: Path, budget: str) -> None:
    result = run("run", "mnl", "--budget", budget, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


def _long_form(path: Path, users: int, *, spoil: int | None = None) -> Path:
    rng = np.random.default_rng(0)
    lines = ["user,chosen,price,range"]
    for user in range(users):
        features = rng.uniform(-1, 1, size=(3, 2))
        utility = features @ np.array([-3.0, 2.0]) + rng.gumbel(size=3)
        for item in range(3):
            price = "soon" if user == spoil and item == 1 else f"{features[item, 0]:.4f}"
            chosen = int(item == utility.argmax())
            lines.append(f"u{user},{chosen},{price},{features[item, 1]:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_in_long_form_is_learned_from(tmp_path: Path) -> None:
    data = _long_form(tmp_path / "choices.csv", 400)
    config = tmp_path / "run.toml"
    config.write_text(
        f'data = "{data}"\nitems = 3\nhorizon = 400\nbudget = "rho=0.5"\nscale = 1.5\n'
    )
    out = tmp_path / "run"
    # Flags win over the file.
    result = run("run", "mnl", "--config", config, "--budget", "epsilon=8,delta=1e-5", "--out", out)
    assert result.exit_code == 0, result.output
    certificate = audit(out / "public" / "ledger.db")
    (guarantee,) = certificate.guarantees
    assert guarantee.delta == 1e-5
    assert guarantee.epsilon == pytest.approx(8, abs=1e-6)
    assert guarantee.epsilon <= 8
    assert guarantee.trust.value == "central"


def test_a_bad_record_changes_nothing_public_but_the_noise(tmp_path: Path) -> None:
    outputs = []
    for name, spoil in (("good", None), ("bad", 7)):
        data = _long_form(tmp_path / f"{name}.csv", 60, spoil=spoil)
        counts = ["--items", "3", "--horizon", "60", "--simulate-noise", "1"]
        result = run("run", "mnl", "--data", data, *counts, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        outputs.append(audit(tmp_path / name / "public" / "ledger.db"))
    good, bad = (found.model_copy(update={"head": "", "root": ""}) for found in outputs)
    assert good == bad
    assert not (tmp_path / "good" / "private" / "messages.txt").exists()
    assert "user 7:" in (tmp_path / "bad" / "private" / "messages.txt").read_text()
    for path in (tmp_path / "bad" / "public").iterdir():
        assert b"soon" not in path.read_bytes()


def test_missing_columns_are_named(tmp_path: Path) -> None:
    data = tmp_path / "choices.csv"
    data.write_text("user,price\n1,2\n")
    result = run(
        "run", "mnl", "--data", data, "--items", "1", "--horizon", "1", "--out", tmp_path / "r"
    )
    assert result.exit_code == BAD_INPUT
    assert "lacks chosen" in result.output


def test_own_data_need_public_counts(tmp_path: Path) -> None:
    result = run("run", "mnl", "--data", "choices.csv", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "public counts" in result.output


# The CSV format: lines belong to users only by their place --------------------------------

USERS, ITEMS = 6, 3


def _config(path: Path) -> ChoiceConfig:
    return ChoiceConfig(data=str(path), items=ITEMS, horizon=USERS)


def _records(path: Path) -> Situations:
    return logged(_config(path)).gather([range(USERS)])


@pytest.mark.parametrize(
    "line",
    [
        b"typo,0,0.5,0.5",
        b",0,0.5,0.5",
        b'"u2,0,0.5,0.5',
        b'u2,0,0.5,"0.5',
        b"",
        b"   ",
        b"u2,0,0.5",
        b"u2,0,0.5,0.5,0.5",
        b"u2,0,0.5,\r0.5\r",
        b"u2,0,HIV+,0.5",
        b"u2,0,nan,0.5",
        b"u2,0,1e999,0.5",
        b"u2,,0.5,0.5",
        b"u2,2,0.5,0.5",
        b"u2,yes,0.5,0.5",
        b"u2,0,\xff\xfe,0.5",
        b"u2,0,\x00,0.5",
        b"u2,0," + b"9" * 200_000 + b",0.5",
        b"u2,0,0.5," + b"0" * (LONGEST_LINE + 5),
        b"u2,0,0.5,0." + b"0" * (2 * LONGEST_LINE - 11),
        b'"' * 100,
    ],
    ids=range(21),
)
def test_one_bad_line_of_a_file_costs_its_user_alone(line: bytes, tmp_path: Path) -> None:
    path = _long_form(tmp_path / "choices.csv", USERS)
    good = _records(path)
    lines = path.read_bytes().split(b"\n")
    place = next(k for k in range(7, 10) if lines[k].startswith(b"u2,0,"))
    lines[place] = line
    path.write_bytes(b"\n".join(lines))
    bad = _records(path)
    others = np.arange(USERS) != 2
    assert np.isfinite(good.features).all()
    assert np.array_equal(good.features[others], bad.features[others])
    assert np.array_equal(good.choices[others], bad.choices[others])
    assert np.isnan(bad.features[2]).all()
    assert bad.choices[2] == NO_ITEM
    ((user, message),) = bad.messages
    assert user == 2
    assert len(message) < 300


def test_users_of_a_file_who_are_missing_are_null_and_others_are_not_read(tmp_path: Path) -> None:
    path = _long_form(tmp_path / "choices.csv", USERS)
    whole = _records(path)
    text = path.read_bytes()
    path.write_bytes(text + b'"\xff,stray\n\n')
    longer = _records(path)
    assert np.array_equal(longer.features, whole.features)
    assert longer.messages == []
    path.write_bytes(b"\n".join(text.split(b"\n")[: 1 + 4 * ITEMS + 1]))
    shorter = _records(path)
    assert np.array_equal(shorter.features[:4], whole.features[:4])
    assert np.isnan(shorter.features[4:]).all()
    assert len(shorter.features) == 5
    assert logged(_config(path)).absent == 1
    assert [user for user, _ in shorter.messages] == [4]
    assert "1 lines instead of 3" in shorter.messages[0][1]


def test_equal_ids_of_neighbours_join_nobody(tmp_path: Path) -> None:
    """People may come twice: each group of lines is a user of its own."""
    path = _long_form(tmp_path / "choices.csv", USERS)
    whole = _records(path)
    path.write_text(path.read_text().replace("u1,", "u0,"))
    assert np.array_equal(_records(path).features, whole.features)


def test_spreadsheets_marks_quotes_and_line_ends_are_understood(tmp_path: Path) -> None:
    path = _long_form(tmp_path / "choices.csv", USERS)
    plain = _records(path)
    rows = [",".join(f'"{cell}"' for cell in row.split(",")) for row in path.read_text().split()]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    quoted = _records(path)
    assert logged(_config(path)).names == ("price", "range")
    assert np.array_equal(quoted.features, plain.features)
    assert np.array_equal(quoted.choices, plain.choices)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks user, chosen"),
        (b"user,chosen\n", "lacks features"),
        (b"Alice,1,HIV+\nAlice,0,0.5\n", "lacks user, chosen"),
        (b"user,chosen,price,price\n", "each column once"),
        (b"user,chosen,price\rAlice,1,0.5\r", "lines do not end in newlines"),
        (b"user,chosen,\xff\n", "not UTF-8"),
        (b"user,chosen," + b"x" * LONGEST_LINE + b"\n", "the first line"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_header_is_an_error_that_quotes_no_cell(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "choices.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        _records(path)
    assert "Alice" not in str(caught.value)
    assert "HIV" not in str(caught.value)


def test_situations_of_a_file_have_different_numbers_of_lines_anywhere(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for visit in range(300):
        x = rng.uniform(-1, 1, size=(rng.integers(2, 5), 2))
        best = (x @ np.array([-3.0, 2.0]) + rng.gumbel(size=len(x))).argmax()
        lines += [f"v{visit},{int(i == best)},{a:.3f},{b:.3f}" for i, (a, b) in enumerate(x)]
    lines[7] = f"{lines[7].rpartition(',')[0]},soon"
    lines.append('"broken')
    path, out = tmp_path / "choices.csv", tmp_path / "run"
    order = rng.permutation(len(lines))
    path.write_text("\n".join(["visit,chosen,price,range", *(lines[k] for k in order)]) + "\n")
    wanted: tuple[str | Path, ...] = (
        "--data",
        path,
        "--situation",
        "visit",
        "--items",
        "4",
        "--horizon",
        "330",
    )
    looked = run("run", "mnl", *wanted, "--out", out, "--look")
    assert "2 features (price, range)" in looked.output
    told = (out / "private" / "look.txt").read_text("utf-8")
    assert "records: 299 of 330 would count" in told
    result = run("run", "mnl", *wanted, "--budget", "rho=100", "--out", out)
    assert result.exit_code == 0, result.output
    assert "times: no situation has this place" in result.output
    assert "and 1 lines that name no situation" in result.output
    model = json.loads((out / "public" / "model.json").read_text())
    assert model["coef"][0] < -1.5
    assert model["coef"][1] > 1
    certificate = (out / "public" / "certificate.md").read_text("utf-8")
    assert "one record is one choice situation" in certificate
    who = ("--people", "visit", "--most", "1", "--out", tmp_path / "no")
    refused = run("run", "mnl", *wanted, *who)
    assert "each situation is then one record" in " ".join(refused.output.split())
    missing = run("run", "mnl", *wanted, "--situation", "trip", "--out", tmp_path / "no")
    assert "lacks trip" in missing.output


def test_nothing_of_a_strange_line_is_printed_or_published(tmp_path: Path) -> None:
    path = _long_form(tmp_path / "choices.csv", 60)
    lines = path.read_bytes().split(b"\n")
    lines[22] = b'"\xe9tranger,HIV+'
    path.write_bytes(b"\n".join(lines))
    out = tmp_path / "run"
    counts = ["--items", "3", "--horizon", "60"]
    result = run("run", "mnl", "--data", path, *counts, "--out", out)
    assert result.exit_code == 0, result.output
    assert "tranger" not in result.output
    for file in (out / "public").iterdir():
        assert b"tranger" not in file.read_bytes()
    told = (out / "private" / "messages.txt").read_text("utf-8").splitlines()
    assert [line.split(":")[0] for line in told] == ["user 7"], "one message each"


def test_what_the_defaults_were_tuned_on_is_declared(market: Path, tmp_path: Path) -> None:
    out = tmp_path / "logged"
    assert run("run", "mnl", "--out", out).exit_code == 0
    for folder, text in (
        (out, "tuned in part on this survey's choices and on simulations of car_market"),
        (market, "car_market with seeds 0 to 5"),
    ):
        certificate = (folder / "public" / "certificate.md").read_text("utf-8")
        assert text in certificate
        assert "docs/benchmarks.md" in certificate


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("run", "mnl", "--budget", "rho=0", "--out", out).exit_code == 2
    counts = ["--items", "2", "--horizon", "3"]
    missing = run("run", "mnl", "--data", tmp_path / "none.csv", *counts, "--out", out)
    assert missing.exit_code == BAD_INPUT
    assert not out.exists()
