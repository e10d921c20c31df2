"""The example that adds up rows in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "merged_sums.py"


def test_sums_of_several_processes_are_one_to_the_last_bit() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("from 4 parts: [")
    assert lines[-1] == "equal to the last bit"
