"""What the benchmarks share: replicates in parallel, summaries, tables and result files.

Every benchmark prints its tables and writes them to ``benchmarks/results/NAME.md``, and the numbers
behind them to ``NAME.json``, with a line for every entry of the entries of a record.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from joblib import Parallel, delayed

from privlearn_studies.papers.study import compact_json

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


class Summary(NamedTuple):
    """Mean of replicates with its standard error."""

    mean: float
    se: float
    n: int

    def __str__(self) -> str:
        digits = 2 if abs(self.mean) < 20 else 1
        return f"{self.mean:.{digits}f} ± {self.se:.{digits}f}"


def summary(values: Iterable[float]) -> Summary:
    """Mean and standard error; of paired differences if differences are given."""
    sample = np.array(list(values))
    spread = float(sample.std(ddof=1)) if len(sample) > 1 else float("nan")
    return Summary(float(sample.mean()), spread / float(np.sqrt(len(sample))), len(sample))


@dataclass
class Table:
    """A table with a title; cells are texts."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Aligned columns."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        shown = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([self.title, *shown])

    def markdown(self) -> str:
        """A Markdown table."""
        rule = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = ["| " + " | ".join(line) + " |" for line in (self.header, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def parser(doc: str | None, *, replicates: int | None = None) -> argparse.ArgumentParser:
    """Arguments common to the benchmarks."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if replicates is not None:
        made.add_argument("--replicates", type=int, default=replicates)
    made.add_argument("--jobs", type=int, default=2, help="processes")
    return made


def in_parallel(function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], jobs: int) -> list[T]:
    """``function(*task)`` for every task, in order."""
    return list(Parallel(n_jobs=jobs)(delayed(function)(*task) for task in tasks))


def machine() -> str:
    """The machine in words."""
    from importlib.metadata import version

    return (
        f"{os.cpu_count()}-core shared {platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, scipy {version('scipy')}, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )


def write(name: str, tables: Sequence[Table], numbers: dict[str, Any], notes: str = "") -> None:
    """Prints the tables and writes ``name``.md and ``name``.json."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    print("\n\n".join(table.text() for table in tables))
    RESULTS.mkdir(exist_ok=True)
    head = f"`{command}`\n\n{machine()}."
    parts = [head, *([notes] if notes else []), *(table.markdown() for table in tables)]
    (RESULTS / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    record = {"command": command, "machine": machine(), **numbers}
    (RESULTS / f"{name}.json").write_text(compact_json(record, allow_nan=True), encoding="utf-8")
