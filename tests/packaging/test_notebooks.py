"""Tutorials: how they stand in the repository, and that they run.

They take about a minute, and packages that the suite does without: what executes them is marked
expensive, and `.ci/run` has it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
_OF_A_MACHINE = re.compile(r"/(?:work|tmp|home|root|opt|Users)/|site-packages|\x1b\[|[A-Z]:\\Users")


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def text_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def said(output: dict[str, Any]) -> str:
    """The text of an output, pictures apart."""
    data = output.get("data", {})
    parts = [output.get("text", []), data.get("text/plain", []), data.get("text/html", [])]
    return "\n".join("".join(part) for part in parts)


def faults(cells: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with a tutorial as it stands, before anybody runs it."""
    if not 15 <= len(cells) <= 30:
        yield f"{len(cells)} cells"
    first, last = text_of(cells[0]), text_of(cells[-1])
    if not (first.startswith("# ") and "you will have" in first and "It takes" in first):
        yield "the first cell does not say what one will have, and how long it takes"
    if "**Read next**" not in last:
        yield "the last cell does not say what to read next"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "was not executed from top to bottom"
    if not any(cell["outputs"] for cell in code):
        yield "has no outputs"
    for cell in code:
        for output in cell["outputs"]:
            if output["output_type"] == "error" or output.get("name") == "stderr":
                yield f"an error: {output}"
            if found := _OF_A_MACHINE.search(said(output)):
                yield f"of one machine: {found[0]!r}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_whole_and_was_executed(path: Path) -> None:
    assert list(faults(cells_of(path))) == []


def test_faults_of_tutorials_are_seen() -> None:
    assert len(NOTEBOOKS) >= 6
    good = json.dumps(cells_of(NOTEBOOKS[0]))

    def broken(change: Any) -> list[str]:
        cells = json.loads(good)
        change(cells, [cell for cell in cells if cell["cell_type"] == "code"])
        return list(faults(cells))

    path = {"output_type": "stream", "name": "stdout", "text": ["see /home/me/notes"]}
    assert broken(lambda cells, code: cells.extend(cells)) != []
    assert broken(lambda cells, code: cells.pop(0)) != []
    assert broken(lambda cells, code: cells.pop()) != []
    assert broken(lambda cells, code: code[2].update(execution_count=None)) != []
    assert broken(lambda cells, code: code[0]["outputs"].append(path)) != []
    assert broken(lambda cells, code: code[0]["outputs"].append(path | {"name": "stderr"})) != []
    assert broken(lambda cells, code: code[0]["outputs"].append(path | {"text": ["\x1b[1m"]})) != []
    assert broken(lambda cells, code: [cell.update(outputs=[]) for cell in code]) != []
    assert broken(lambda cells, code: None) == []


def _documents() -> Any:
    """The test of documents, which knows how to follow links."""
    spec = importlib.util.spec_from_file_location(
        "documents", Path(__file__).with_name("test_documents.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_tutorials_lead_somewhere() -> None:
    broken_links = _documents().broken_links
    texts = {
        path: "\n".join(text_of(c) for c in cells_of(path) if c["cell_type"] == "markdown")
        for path in NOTEBOOKS
    }
    assert {path.name: b for path, text in texts.items() if (b := broken_links(path, text))} == {}
    assert broken_links(NOTEBOOKS[0], "[a](../nothing.md) [b](../local.md)") == ["../nothing.md"]


def run(*notebooks: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TUTORIALS / "run.py"), *map(str, notebooks)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.expensive
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path) -> None:
    done = run(path)
    assert done.returncode == 0, done.stderr


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from privlearn import Unicorn", "ImportError"),
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings\nwarnings.warn('look out')", "on standard error"),
    ],
)
def test_a_tutorial_that_does_not_run_is_caught(source: str, why: str, tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOKS[0].read_text("utf-8"))
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    notebook["cells"] = [cell | {"source": source, "outputs": []}]
    broken = tmp_path / "broken.ipynb"
    broken.write_text(json.dumps(notebook), "utf-8")
    done = run(broken)
    assert done.returncode == 1
    assert why in done.stderr
    assert "broken.ipynb" in done.stderr
