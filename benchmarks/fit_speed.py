"""CPU seconds and memory of fits: a small one with its ledger on the disk, and 10⁶ rows of Parquet.

    OMP_NUM_THREADS=1 python benchmarks/fit_speed.py [--tries 3]

Every measurement is a process of its own, which reports the CPU seconds of the task after its
imports, those of the whole process, and its peak memory; the least of the tries counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROWS, COLUMNS = 1_000_000, 20
SMALL = 5_000
LEVELS = ["north", "south", "east", "west", "abroad"]


def make_table(path: Path) -> None:
    """17 numbers, a boolean, two categories and a target, of a seed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(31)
    columns: dict[str, Any] = {f"x{i}": rng.uniform(0, 100, ROWS) for i in range(COLUMNS - 3)}
    columns["yes"] = rng.random(ROWS) < 0.3
    for name in ("where", "whence"):
        columns[name] = pa.array(np.array(LEVELS)[rng.integers(0, len(LEVELS), ROWS)])
    columns["y"] = 0.3 * columns["x0"] + 0.2 * columns["x1"] + rng.uniform(0, 50, ROWS)
    pq.write_table(pa.table(columns), path)


def schema() -> Any:
    """What is declared of it."""
    from privlearn.tables import Boolean, Category, Number, Schema

    columns: dict[str, Any] = {f"x{i}": Number(0, 100) for i in range(COLUMNS - 3)}
    columns |= {"yes": Boolean(), "where": Category(LEVELS), "whence": Category(LEVELS)}
    return Schema(columns | {"y": Number(0, 100)}, target="y")


def read_and_encode(folder: Path) -> Callable[[], Any]:
    """Inputs and targets of the file."""
    from privlearn.tables import Encoding, read

    def work() -> None:
        declared = schema()
        table, encoding = read(folder / "table.parquet", declared), Encoding(declared)
        assert len(encoding.inputs(table)) == len(encoding.targets(table)) == ROWS

    return work


def fit_file(folder: Path) -> Callable[[], Any]:
    """The file through ``fit``, with the ledger on the disk."""
    from privlearn import ApproxDP
    from privlearn.estimators import PrivateLinearRegression

    path = folder / f"large-{time.time_ns()}.db"
    model = PrivateLinearRegression(ApproxDP(1, "1e-6"), schema=schema(), ledger=str(path))
    return lambda: model.fit(folder / "table.parquet")


def fit_arrays(folder: Path) -> Callable[[], Any]:
    """5,000 rows of 20 columns, with the ledger on the disk."""
    from privlearn import ApproxDP
    from privlearn.estimators import PrivateLinearRegression

    rng = np.random.default_rng(31)
    x = rng.uniform(-1, 1, (SMALL, COLUMNS))
    y = np.clip(x[:, 0] / 2 + rng.normal(size=SMALL) / 4, -1, 1)
    path = folder / f"small-{time.time_ns()}.db"
    model = PrivateLinearRegression(
        ApproxDP(1, "1e-5"), bounds=(-1, 1), target_bounds=(-1, 1), ledger=str(path)
    )
    return lambda: model.fit(x, y)


def nothing(folder: Path) -> Callable[[], Any]:
    """``import privlearn``."""

    def work() -> None:
        import privlearn  # noqa: F401

    return work


TASKS = {task.__name__: task for task in (nothing, fit_arrays, read_and_encode, fit_file)}
TARGETS = {
    "fit_arrays": ("fit, n = 5,000, d = 20, ledger on disk", 0.5, None),
    "read_and_encode": ("10⁶ × 20 of Parquet, read and encoded", 2.0, 400),
    "fit_file": ("10⁶ × 20 of Parquet, through fit", 10.0, None),
    "nothing": ("import privlearn", None, None),
}


def child(name: str, folder: Path) -> None:
    """Does one task and prints its costs."""
    work = TASKS[name](folder)
    begun = time.process_time()
    work()
    task = time.process_time() - begun
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # ru_maxrss has the parent's
    peak = float(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(json.dumps([task, time.process_time(), peak]))


def measured(name: str, folder: Path, tries: int) -> list[float]:
    """The least CPU seconds of the task, of the process, and megabytes."""
    command = [sys.executable, __file__, name, str(folder)]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(tries)
    ]
    return [min(values) for values in zip(*found, strict=True)]


def main() -> None:
    """Measures all and writes the table; with two arguments, does one task in a folder."""
    if len(sys.argv) == 3 and sys.argv[1] in TASKS:
        child(sys.argv[1], Path(sys.argv[2]))
        return
    from reporting import Table, parser, write  # not in the processes that are measured

    options = parser(__doc__)
    options.add_argument("--tries", type=int, default=3)
    chosen = options.parse_args()
    rows, numbers = [], {}
    with TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        make_table(folder / "table.parquet")
        for task, (what, seconds, megabytes) in TARGETS.items():
            cpu, whole, peak = numbers[task] = measured(task, folder, chosen.tries)
            aims = [] if seconds is None else [f"≤ {seconds:g} s"]
            aims += [] if megabytes is None else [f"≤ {megabytes} MB"]
            met = (seconds is None or cpu <= seconds) and (megabytes is None or peak <= megabytes)
            verdict = ("met" if met else "**NOT met**") if aims else ""
            rows.append(
                [what, ", ".join(aims), f"{cpu:.2f}", f"{whole:.2f}", f"{peak:.0f}", verdict]
            )
    header = ["what", "target", "CPU s of the task", "of the process", "peak MB", ""]
    write("fit_speed", [Table("Cost of fits", header, rows)], {"measured": numbers})


if __name__ == "__main__":
    main()
