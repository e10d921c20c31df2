"""``privlearn describe``: statistics of a file, in two folders."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from privlearn.accountants import audit
from privlearn.cli.main import app

SCHEMA = """[columns.age]
kind = "number"
low = 0
high = 100
optional = true
[columns.job]
kind = "category"
values = ["a", "b"]
"""


def test_a_description_leaves_two_folders_and_nothing_where_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEMA)
    lines = [f"{i % 100},{'ab'[i % 2]}" for i in range(200)]
    (tmp_path / "d.csv").write_text("\n".join(["age,job", *lines, '"open,a']) + "\n")
    call = ["describe", str(tmp_path / "d.csv"), "--schema", str(tmp_path / "s.toml")]
    call += ["--budget", "2,1e-6", "--out", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, [*call, "--by", "age"])
    assert refused.exit_code == 2
    assert "by = 'age' is a Number" in refused.output
    assert not (tmp_path / "run").exists()
    found = CliRunner().invoke(app, [*call, "--by", "job"])
    assert found.exit_code == 0, found.output
    public = tmp_path / "run/public"
    assert audit(public / "ledger.db", delta=1e-6).epsilon <= 2
    assert {path.name for path in public.iterdir()} == {
        *("ledger.db", "ledger.db.head", "ledger.jsonl", "certificate.json", "certificate.md"),
        *("statistics.json", "statistics.csv", "statistics.png"),
    }
    rows = json.loads((public / "statistics.json").read_text())["rows"]
    assert {row["group"] for row in rows if row["column"] == "age"} == {"a", "b"}
    assert "open" not in (public / "statistics.csv").read_text()
    assert (tmp_path / "run/private/counts.json").exists()
