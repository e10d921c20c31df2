"""What must not type-check does not, each snippet for its stated reason."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SNIPPETS = sorted((HERE / "must_fail").glob("*.py"))
ERROR = re.compile(r"^(?P<path>[^:]+\.py):\d+(:\d+)?: error: (?P<message>.*)$")


@pytest.fixture(scope="session")
def errors() -> Mapping[str, list[str]]:
    """One run of mypy over everything, with its usual cache: messages by file name."""
    files = [str(path.relative_to(ROOT)) for path in [*SNIPPETS, HERE / "must_pass.py"]]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *files],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        match = ERROR.match(line)
        if match:
            found.setdefault(Path(match["path"]).name, []).append(match["message"])
    assert found, done.stdout + done.stderr
    return found


def test_the_corpus_is_large() -> None:
    assert len(SNIPPETS) >= 25


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_a_snippet_that_must_fail_does(snippet: Path, errors: Mapping[str, list[str]]) -> None:
    first = snippet.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# expect: ")
    expected = re.compile(first.removeprefix("# expect: "))
    messages = errors.get(snippet.name, [])
    assert any(expected.search(message) for message in messages), messages
    assert len(messages) == 1


def test_what_must_pass_does(errors: Mapping[str, list[str]]) -> None:
    assert errors.get("must_pass.py", []) == []
    assert not set(errors) - {path.name for path in SNIPPETS}  # the package itself checks
