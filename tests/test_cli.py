"""The command line as a newcomer, an auditor and a forger would use it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli import PROBLEMS, SIMULATION, UNREADABLE, app
from privlearn.errors import DataError, PrivlearnError

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


def test_a_run_leaves_a_public_and_a_private_folder(market: Path) -> None:
    public = {path.name for path in (market / "public").iterdir()}
    private = {path.name for path in (market / "private").iterdir()}
    assert public == {
        "billboard.json",
        "certificate.json",
        "certificate.md",
        "learner.json",
        "ledger.db",
        "ledger.jsonl",
    }
    assert private == {"choices.csv", "regret.csv", "regret.png"}
    assert (market / "private").stat().st_mode & 0o077 == 0


def test_the_audit_of_a_run_succeeds_and_says_so_in_json(market: Path) -> None:
    result = run("audit", market / "public" / "ledger.db", "--delta", "1e-8", "--json")
    assert result.exit_code == 0
    told = json.loads(result.output)
    assert told["problems"] == []
    assert told["simulation"] is False
    (guarantee,) = told["guarantees"]
    assert guarantee.keys() == {
        "trust", "adjacency", "rho", "mu", "epsilon", "delta", "error_bound", "assumptions",
    }  # fmt: skip
    assert guarantee["trust"] == "joint"
    assert guarantee["delta"] == 1e-8
    assert guarantee["rho"] == pytest.approx(1, abs=1e-9)
    assert told["entries"] == 3 + 3 * told["spends"]
    assert sum(share["share"] for share in told["mechanisms"]) == pytest.approx(1)


def test_the_export_verifies_like_the_ledger(market: Path) -> None:
    files = [market / "public" / name for name in ("ledger.db", "ledger.jsonl")]
    first, second = (run("audit", file, "--json") for file in files)
    assert first.exit_code == second.exit_code == 0
    assert json.loads(first.output) == json.loads(second.output)


def test_a_changed_field_is_named(market: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged.db"
    forged.write_bytes((market / "public" / "ledger.db").read_bytes())
    with sqlite3.connect(forged) as connection:
        (body,) = connection.execute("SELECT body FROM entries WHERE seq = 3").fetchone()
        changed = json.loads(body)
        changed["noise"]["std"] = 100.0
        connection.execute("UPDATE entries SET body = ? WHERE seq = 3", (json.dumps(changed),))
    connection.close()
    result = run("audit", forged)
    assert result.exit_code == PROBLEMS
    assert "entry 3: field 'noise' was changed" in " ".join(result.output.split())


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
    assert isinstance(result.exception, DataError)
    assert "not empty" in str(result.exception)


def test_an_output_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("run", "mnl", "--out", tmp_path / "file" / "run")
    assert isinstance(result.exception, DataError)
    assert "cannot be written" in str(result.exception)


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
    assert outputs[0].model_copy(update={"head": ""}) == outputs[1].model_copy(update={"head": ""})
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
    assert isinstance(result.exception, PrivlearnError)
    assert "lacks chosen" in str(result.exception)


def test_own_data_need_public_counts(tmp_path: Path) -> None:
    result = run("run", "mnl", "--data", "choices.csv", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "public counts" in result.output
