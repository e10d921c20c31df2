"""What a clone of the repository weighs."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("benchmarks", "docs", "examples", "privlearn", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
]


def test_no_file_is_heavy() -> None:
    assert len(FILES) > 200
    heavy = {path.name for path in FILES if path.stat().st_size > 200_000}
    assert heavy == {"tables.bin"}, "pictures: a palette, see `papers.plots.few_colours`"
    tables = next(path for path in FILES if path.name == "tables.bin")  # of the noise sampler
    assert tables.stat().st_size < 2_000_000


def test_raw_numbers_are_compact() -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in FILES if "json" in path.name)
    assert 0 < lines <= 5_000, "see `privlearn_studies.papers.study.compact_json`"


def test_benchmarks_write_compact_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("reporting", ROOT / "benchmarks" / "reporting.py")
    assert spec is not None
    assert spec.loader is not None
    reporting = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reporting", reporting)
    spec.loader.exec_module(reporting)
    monkeypatch.setattr(reporting, "RESULTS", tmp_path)
    found: dict[str, Any] = {"a": {"values": [0.5] * 100, "se": math.nan}, "b": {"values": []}}
    reporting.write("tried", [reporting.Table("t", ["x"], [["1"]])], {"seed": 3, "found": found})
    text = (tmp_path / "tried.json").read_text("utf-8")
    assert len(text.splitlines()) == 2 + 3 + 4
    told = json.loads(text)
    assert told["seed"] == 3
    assert told["found"]["a"]["values"] == found["a"]["values"]
    assert math.isnan(told["found"]["a"]["se"])
    assert "| x |" in (tmp_path / "tried.md").read_text("utf-8")
    assert "t\nx" in capsys.readouterr().out


@pytest.fixture(scope="module")
def weighing() -> Any:
    spec = importlib.util.spec_from_file_location("weighing", ROOT / ".ci" / "weight.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("what", "allowed", "took", "refused"),
    [
        ("lines", 0.96, 300, ""),
        ("lines", 0.94, 300, "the package has"),
        ("words", 0.94, 300, "docs/ has"),
        ("seconds", 1, 319, ""),
        ("seconds", 1, 330, "the tests took 330 s"),
    ],
)
def test_what_grows_more_than_the_file_allows_ends_with_1(
    what: str,
    allowed: float,
    took: float,
    refused: str,
    weighing: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rooms = {name: n for name, n in weighing.lines().items() if name not in {"tests", "studies"}}
    share = {name: math.ceil(n * (allowed if what == "lines" else 1)) for name, n in rooms.items()}
    words = math.ceil(weighing.words() * (allowed if what == "words" else 1))
    listed = "\n".join(f"{name} = {n}" for name, n in share.items())
    (tmp_path / "weight.toml").write_text(
        f"[lines]\n{listed}\n[words]\ndocs = {words}\n[suite]\nseconds = 300\nloop = 1\n[seconds]\n"
    )
    case = f'<testcase classname="tests.rows.test_a" time="{took}"/>'
    report = tmp_path / "suite.xml"
    report.write_text(f'<testsuites><testsuite time="{took}">{case}</testsuite></testsuites>')
    monkeypatch.setattr(weighing, "ALLOWED", tmp_path / "weight.toml")
    monkeypatch.setattr(weighing, "loop", lambda: 1.0)
    monkeypatch.setattr(weighing.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["weight.py", "--suite", str(report)])
    with pytest.raises(SystemExit) as ended:
        weighing.main()
    assert ended.value.code == bool(refused)
    assert refused in capsys.readouterr().err
