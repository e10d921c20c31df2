"""``privlearn fit`` and ``privlearn predict``: a model from a file, an answer for every line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from privlearn.accountants import audit
from privlearn.cli.main import app

N = 300
SCHEMA = """target = "affair"
[columns.age]
kind = "number"
low = 17
high = 45
[columns.job]
kind = "category"
values = ["clerk", "nurse"]
optional = true
[columns.affair]
kind = "category"
values = ["no", "yes"]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = [f"{age:.1f},clerk,{'yes' if age > 30 else 'no'}" for age in rng.uniform(17, 45, N)]
    lines[3] = '"open,clerk,no'
    (tmp_path / "fair.csv").write_text("\n".join(["age,job,affair", *lines]) + "\n")
    (tmp_path / "fair.toml").write_text(SCHEMA)
    return tmp_path


def _call(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, found.output


def _fit(files: Path, kind: str, *more: object) -> tuple[int, str]:
    data, schema = files / "fair.csv", files / "fair.toml"
    return _call("fit", kind, data, "--schema", schema, "--out", files / "run", *more)


def test_a_fit_leaves_two_folders_and_its_model_answers_every_line(files: Path) -> None:
    code, said = _fit(files, "logistic", "--budget", "9,1e-5", "--held-out", 0.2)
    assert code == 0, said
    public, private = files / "run/public", files / "run/private"
    assert audit(public / "ledger.db").holds
    assert audit(public / "ledger.jsonl").epsilon == pytest.approx(9)
    assert {path.name for path in public.iterdir()} == {
        *("ledger.db", "ledger.db.head", "ledger.jsonl", "certificate.json", "certificate.md"),
        *("model.json", "coefficients.png", "guarantee.png"),
    }
    assert {path.name for path in private.iterdir()} >= {"score.json", "fit.png", "counts.json"}
    assert "broken" not in "".join(p.read_text("utf-8", "ignore") for p in public.iterdir())
    score = json.loads((private / "score.json").read_text())
    assert score["rows"] in (N // 5, N // 5 - 1), "the broken line is on either side"
    assert score["score"] > 0.8

    (files / "new.csv").write_text('job,age\nclerk,44\n"open,clerk\n\nclerk,18\n')
    answers = files / "answers.csv"
    code, said = _call("predict", public / "model.json", files / "new.csv", "--out", answers)
    assert (code, said.count("answered as if it were missing")) == (0, 2)
    rows = list(csv.reader(answers.read_text().splitlines()))
    assert rows[0] == ["affair", "probability of no", "probability of yes"]
    assert [row[0] for row in rows[1:]] == ["yes", rows[2][0], rows[2][0], "no"]
    assert rows[2] == rows[3]
    code, said = _call("predict", public / "model.json", files / "new.csv", "--out", answers)
    assert (code, "never overwrite" in said) == (2, True)


def test_what_is_wrong_is_said_and_leaves_no_folder(files: Path) -> None:
    for kind, budget, said in (
        ("linear", "1,1e-5", "a linear regression predicts a Number"),
        ("logistic", "1", "budget = '1': must be"),
        ("logistic", "1,2", "delta"),
    ):
        code, told = _fit(files, kind, "--budget", budget)
        assert (code, said in told) == (2, True), told
        assert not (files / "run").exists()


def test_held_out_rows_that_cannot_be_used_do_not_show_in_the_exit_code(files: Path) -> None:
    path = files / "fair.csv"
    path.write_text(path.read_text().replace(",yes\n", ",?\n").replace(",no\n", ",?\n"))
    code, said = _fit(files, "logistic", "--budget", "1,1e-5", "--held-out", 0.2)
    assert (code, "too few for a score" in said) == (0, True), said
    score = json.loads((files / "run/private/score.json").read_text())
    assert score == {"rows": 0, "score": None}
