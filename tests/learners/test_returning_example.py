"""The example of customers who come back, as its reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "returning_people.py"


def test_the_shop_of_returning_customers_keeps_its_promise() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    promised, regret = run.stdout.splitlines()
    assert promised.startswith("every person is promised rho = 1.0, epsilon = 7.28")
    # showing five of thirty items at random costs about 152
    assert float(regret.split()[1]) < 40
