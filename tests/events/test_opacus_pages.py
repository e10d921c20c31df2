"""The pages on Opacus: their code runs, where Opacus is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    if page.endswith(".md"):
        return re.findall(r"```py(?:thon)?\n(.*?)```", text, re.DOTALL)
    return ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["how-to/opacus.md", "tutorials/opacus.ipynb"])
def test_the_code_of_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opacus")
    import matplotlib

    matplotlib.use("Agg")
    found = blocks(page)
    assert len(found) >= 3
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in found:
        exec(compile(block, page, "exec"), namespace)


def test_the_outputs_of_the_tutorial_are_of_a_run_from_top_to_bottom() -> None:
    cells = json.loads((DOCS / "tutorials/opacus.ipynb").read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    text = json.dumps([cell["outputs"] for cell in code])
    assert "problems: []" in text
    assert not re.search(r"site-packages|Traceback", text)
