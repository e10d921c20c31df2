"""Every block of every page of the documentation runs as shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pages import blocks_of, commands_of, is_runnable, run_page

ROOT = Path(__file__).parents[2]
ELSEWHERE = {  # pages that tests of their own run, with more to say about them
    "docs/checking.md": "tests/checking/test_asserts.py",
    "docs/how-to/postgresql.md": "tests/ledger/test_postgres_servers.py",
    "docs/how-to/several-teams.md": "tests/ledger/test_postgres_teams.py",
    "docs/operations.md": "tests/survival/test_operations.py",
}
EXPENSIVE = {  # whole runs and many checks: `.ci/run` has them
    "README.md",
    "docs/gallery.md",
    "docs/how-to/command-line.md",
    "docs/how-to/run-a-service.md",
    "docs/how-to/write-a-learner.md",
    "docs/how-to/write-a-mechanism.md",
    "docs/index.md",
    "docs/start.md",
}
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if any(is_runnable(block) for block in blocks_of(path.read_text("utf-8")))
]

TABLE = """
```python
import numpy as np, pandas as pd
from privlearn import ApproxDP
from privlearn.estimators import PrivateLinearRegression, PrivateLogisticRegression
from privlearn.tables import Category, Number, Schema

rng, n = np.random.default_rng(0), 3000
frame = pd.DataFrame({"age": rng.integers(18, 45, n), "ward": "surgery"})
frame["cost"] = np.where(rng.uniform(size=n) < 0.1, np.nan, rng.uniform(0, 2000, n))
frame.to_csv("visits.csv", index=False)
frame = pd.DataFrame({"age": frame.age, "education": frame.age / 2, "job": "nurse"})
frame["affair"] = rng.choice(["no", "yes"], n)
frame.to_csv("affairs.csv", index=False)
frame.drop(columns="affair").to_csv("new.csv", index=False)
X, y = frame[["age", "education"]].to_numpy(), frame["affair"]
kinds = {"age": Number(17, 45), "education": Number(9, 20, optional=True)}
schema = Schema(kinds | {"affair": Category(["no", "yes"])}, target="affair")
schema.save("affairs.toml")
visits = pd.DataFrame(rng.uniform(0, 50, (n, 3)), columns=["dose", "week", "pressure"])
visits["patient"] = rng.integers(0, 400, n)
```
"""
"""What pages about somebody's table take for granted."""
ABOUT_TABLES = {
    f"docs/how-to/{name}.md"
    for name in (
        "choose-hyper-parameters",
        "describe-a-table",
        "fit-a-model",
        "missing-values",
        "one-person-many-rows",
    )
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.expensive) if name in EXPENSIVE else name
        for name in sorted(set(PAGES) - set(ELSEWHERE))
    ],
)
def test_all_blocks_run_as_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / name).read_text("utf-8")
    if name in ABOUT_TABLES:
        text = TABLE + text.replace(" > visits.toml", "")
    assert run_page(text, name, tmp_path, monkeypatch)


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text("utf-8")
        assert page in PAGES


PAGE = """
```python title="mine.py"
x = 1
print("spent", x, "of 5, as", "planned")
```
  ```python
  import mine
  assert mine.x == x == 1, "unequal"
  ```
```console
pip install privlearn && privlearn --version   # a comment
$ privlearn audit \\
    nothing.db   # exits with 4
python mine.py
```
```text
spent 7 of ...
```
```text title="elsewhere"
privlearn nonsense
```
```text
$ privlearn nonsense
```
"""


@pytest.mark.parametrize(
    ("was", "becomes", "complaint"),
    [
        ("== x == 1", "== x + 1", "unequal"),
        ("exits with 4", "exits with 0", "nothing.db ended with 4"),
        ("exits with 4", "", "nothing.db ended with 4"),
        ("privlearn --version", "privlearn --verse", "verse ended with 2"),
        ("python mine.py", "curl example.org", "not known how to run"),
        ("python mine.py", "python yours.py", "yours.py"),
        ("spent 7", "paid 7", "shows what is not printed: ['paid # of']"),
        ("spent 7 of", "spent 7 off", "shows what is not printed"),
        ("spent 7 of", "spent zCDP(7) of", "shows what is not printed: ['spent zCDP(#) of']"),
        (' title="elsewhere"', "", "shows what is not printed: ['privlearn nonsense']"),
        ("$ privlearn nonsense", "privlearn nonsense", "shows what is not printed"),
    ],
)
def test_a_block_that_does_something_else_is_found(
    was: str, becomes: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_page(PAGE, "page", tmp_path, monkeypatch) == 3
    wrong = PAGE.replace(was, becomes)
    assert wrong != PAGE
    with pytest.raises((AssertionError, OSError), match=re.escape(complaint)):
        run_page(wrong, "page", tmp_path, monkeypatch)


def test_a_module_that_another_test_left_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))
    assert run_page(PAGE, "page", tmp_path, monkeypatch) == 3


def test_comments_continued_lines_and_chains_are_read() -> None:
    found = list(commands_of("a --b \\\n   c && d 'e # f'   # exits with 3\n\n# nothing\n$ g # h"))
    assert found == [(["a", "--b", "c"], 0), (["d", "e # f"], 3), (["g"], 0)]
