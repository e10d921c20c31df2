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
