"""`.ci/run` ends at the first of its steps that fails, with a code that says so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
STEPS = (
    "pip",
    "pytest",
    "ruff",
    "mypy",
    "lint-imports",
    "mkdocs",
    "git",
    "pyproject-build",
    "diff",
    "twine",
    "privlearn",
)
INSTALLED = ("chromium", "initdb", "pgbouncer")  # or a test run by root would install them
STEP = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CI_LOG"
[ "$(wc -l <"$CI_LOG")" != "$CI_FAILS_AT" ]
"""
VENV = """#!/bin/sh
mkdir -p "$3/bin" && echo 'export PATH="{bin}:$PATH"' >"$3/bin/activate"
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script for bash")


def steps_of_a_run(folder: Path, fails_at: int = 0) -> tuple[int, list[str]]:
    """Exit code and steps of a run of which every step is replaced by one that says its name."""
    folder.mkdir(exist_ok=True)
    for name in STEPS + INSTALLED:
        (folder / name).write_text(STEP)
        (folder / name).chmod(0o755)
    (folder / "python").write_text(VENV.format(bin=folder))
    (folder / "python").chmod(0o755)
    log = folder / "log"
    log.write_text("")
    environment = os.environ | {
        "CI_LOG": str(log),
        "CI_FAILS_AT": str(fails_at),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "TMPDIR": str(folder),
    }
    code = subprocess.run([SCRIPT], env=environment, capture_output=True).returncode
    return code, log.read_text().splitlines()


def test_every_step_that_fails_ends_the_run(tmp_path: Path) -> None:
    code, steps = steps_of_a_run(tmp_path / "bin")
    assert code == 0
    assert {step.split()[0] for step in steps} == {*STEPS}
    assert "mkdocs build --strict" in steps, "with --quiet no warning is counted"
    for number, step in enumerate(steps, 1):
        if "--dry-run" in step:  # a question
            continue
        code, so_far = steps_of_a_run(tmp_path / "bin", number)
        assert code != 0, step
        assert len(so_far) == number, f"what comes after {step}"
