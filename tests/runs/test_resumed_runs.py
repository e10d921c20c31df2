"""Runs that are killed go on with --resume, in the same folder and with the same settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT

_KILLED = """
import os, sys
from privlearn.ledger import Ledger
append, left = Ledger.append, [int(sys.argv[1])]
def dying(*args, **kwargs):
    done = append(*args, **kwargs)
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    return done
Ledger.append = dying
from privlearn.cli.main import app
app(sys.argv[2:])
"""


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in ("run", *words)])
    return result.exit_code, " ".join(result.output.split())


def killed(entries: int, *words: object) -> None:
    told = [sys.executable, "-c", _KILLED, str(entries), "run", *map(str, words)]
    done = subprocess.run(told, check=False, capture_output=True, env={**os.environ})
    assert done.returncode == 9, done.stderr.decode()


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Settings of a run on a small file of logged choices."""
    path = tmp_path_factory.mktemp("data") / "choices.csv"
    lines = ["user,chosen,price,size,who"]
    for user in range(120):
        for item in range(3):
            chosen = int(item == user % 3)
            lines.append(f"{user},{chosen},{item / 3},{(user % 7) / 7},p{user % 50}")
    path.write_text("\n".join(lines))
    return ["mnl", "--data", path, "--items", 3, "--horizon", 120, "--simulate-noise", 3]


@pytest.mark.parametrize("entries", [1, 2, 8])
def test_a_run_on_a_file_goes_on(entries: int, choices: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed(entries, *choices, "--out", out)
    code, told = run(*choices, "--out", out)
    assert code == BAD_INPUT
    assert "--resume goes on with a run that was cut off" in told
    code, told = run(*choices, "--horizon", 119, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "horizon = 119: the run in" in told
    assert "was begun with 120" in told
    code, told = run(*choices, "--out", out, "--resume")
    assert code == 0, told
    assert "the run was cut off and goes on with user" in told
    found = audit(out / "public" / "ledger.db")
    assert (found.problems, found.lost > 0) == ([], entries == 8)
    assert (f"spends lost with it: {found.lost}, which stay charged" in told) is (entries == 8)
    model = json.loads((out / "public" / "model.json").read_text())
    assert model["state"]["clock"] == 120
    code, told = run(*choices, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "is closed: the run has learned from everybody" in told


def test_simulated_people_go_on_with_their_registry(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["mnl", "--task", "returning", "--horizon", 600, "--simulate-noise", 3, "--out", out]
    killed(9, *words)
    code, told = run(*words, "--resume")
    assert code == 0, told
    assert audit(out / "public" / "ledger.db").problems == []
    assert "total regret" in told


def test_a_registry_in_memory_ends_with_its_run(choices: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*choices, "--people", "who", "--most", 1, "--pooled", "--out", out]
    killed(8, *words)
    code, told = run(*words, "--resume")
    assert code == BAD_INPUT
    assert "who came was kept in memory" in told


def test_a_folder_of_no_run_is_not_gone_on_with(choices: list[object], tmp_path: Path) -> None:
    (tmp_path / "something").write_text("else")
    code, told = run(*choices, "--out", tmp_path, "--resume")
    assert code == BAD_INPUT
    assert "it is no run to go on with" in told
