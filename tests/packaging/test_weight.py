"""What a clone of the repository weighs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("benchmarks", "docs", "examples", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
]


def test_no_file_is_heavy() -> None:
    assert len(FILES) > 200
    heavy = {str(path) for path in FILES if path.stat().st_size > 200_000}
    assert not heavy, "pictures: a palette, see `privlearn.papers.plots.few_colours`"


def test_raw_numbers_are_compact() -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in FILES if "json" in path.name)
    assert 0 < lines <= 5_000, "see `privlearn.papers.study.compact_json`"
