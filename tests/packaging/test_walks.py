"""Reading along with one call does not lead through more files than it did."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

WALKS = Path(__file__).parents[2] / "benchmarks" / "walks.py"
MOST = {
    "select": 47,
    "observe": 19,
    "end of a batch": 116,
    "certificate": 362,
    "audit": 3836,
    "choose": 6,
    "randomize": 153,  # issue, spend and end each ask their log whether they need a turn
}


@pytest.fixture(scope="module")
def walks() -> Any:
    spec = importlib.util.spec_from_file_location("walks", WALKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_call_changes_file_no_more_often_than_it_did() -> None:
    # in a process of its own: other tests leave caches and hooks behind
    run = subprocess.run([sys.executable, WALKS], capture_output=True, text=True, check=True)
    lines = (line.split(" changes of file")[0].rsplit(None, 1) for line in run.stdout.splitlines())
    counts = {name.strip(): int(changes) for name, changes in lines}
    assert counts.keys() == MOST.keys()
    assert {name: n for name, n in counts.items() if n > MOST[name]} == {}
    assert all(counts.values())


def test_changes_are_counted_in_the_order_of_calls(walks: Any) -> None:
    from privlearn import ZCDP
    from privlearn.values.exact import exact_text

    _, one = walks.walk(lambda: exact_text(ZCDP("0.1").rho))
    files = [line.split()[-1] for line in one.functions]
    assert [file for file, _ in groupby(files)] == [
        *("values/calls.py", "losses/budgets.py", "values/exact.py"),
        *("losses/budgets.py", "values/exact.py"),
    ]
    assert one.changes == 4
