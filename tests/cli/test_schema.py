"""`privlearn schema` drafts what `privlearn run --schema` reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.runs import tables as table_runs

ROWS = 300


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_a_file_to_a_draft_to_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_runs, "plot_running_averages", lambda *_, **__: None)
    rng = np.random.default_rng(3)
    lines = [";age;job;2000;y"]
    lines += [f"{i};{rng.uniform(20, 60):.1f};;1;{'yes' if i % 3 else 'no'}" for i in range(ROWS)]
    data = tmp_path / "t.csv.gz"
    data.write_bytes(gzip.compress("\n".join(lines).replace(".", ",").encode()))
    draft = call("schema", data)
    assert draft.exit_code == 0, draft.output
    assert 'separator = ";"' in draft.output
    assert "# column '' has no name of its own" in draft.output
    assert call("schema", tmp_path / "none.csv").exit_code == BAD_INPUT
    path, out = tmp_path / "s.toml", tmp_path / "run"
    path.write_text(draft.output, "utf-8")
    common = ("run", "tofw", "--data", data, "--schema", path, "--horizon", 250)
    refused = call(*common, "--out", out)
    assert refused.exit_code == BAD_INPUT
    assert "columns.age.kind, columns.job.kind, columns.2000.kind" in refused.output
    path.write_text(
        'target = "y"\nseparator = ";"\ndecimal = ","\n[columns]\n'
        'age = { kind = "number", low = 20, high = 60 }\n'
        'job = { kind = "category", values = ["clerk", "farmer"], optional = true }\n'
        'y = { kind = "category", values = ["no", "yes"] }\n'
    )
    assert call(*common, "--out", out, "--look").exit_code == 0
    looked = (out / "private" / "look.txt").read_text("utf-8")
    assert "records: 250 of 250 would count" in looked
    assert "job  0 of 250 there" in looked
    result = call(*common, "--held-out", 50, "--simulate-noise", 1, "--out", out)
    assert result.exit_code == 0, result.output
    told = json.loads((out / "public" / "model.json").read_text("utf-8"))
    assert told["table"]["inputs"] == ["age", "job=farmer", "job missing"]
    assert json.loads((out / "public" / "split.json").read_text("utf-8"))["held_out"] == 50
    assert "looked at the records" in audit(out / "public" / "ledger.db").model_dump_json()
