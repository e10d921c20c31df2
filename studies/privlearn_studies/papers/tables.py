"""What the reports of studies share: tables, means of runs, numbers of a cell, first lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from privlearn.rows.domains import Array
from privlearn_studies.papers.provenance import versions
from privlearn_studies.papers.study import Cell


class Run(Protocol):
    """The result of a run, scored by one number."""

    @property
    def value(self) -> float:
        """The score."""

    @property
    def curve(self) -> list[float]:
        """Cumulative regret at evenly spaced times; empty where there is none."""


class Summary(NamedTuple):
    """Mean of runs and their standard deviation, NaN for a single one."""

    mean: float
    sd: float


def summary(values: Array) -> Summary:
    """Mean and standard deviation."""
    return Summary(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan)


def scores(runs: Sequence[Run]) -> Array:
    """Scores, shape (runs,)."""
    return np.array([run.value for run in runs])


def mean_sd(runs: Sequence[Run]) -> Summary:
    """Mean and standard deviation of scores."""
    return summary(scores(runs))


def first_half(runs: Sequence[Run]) -> float:
    """Mean regret of the first half of users."""
    return float(np.mean([run.curve[len(run.curve) // 2 - 1] for run in runs]))


def cell_numbers(cell: Cell, runs: Sequence[Run], **more: Any) -> dict[str, Any]:
    """The numbers of a cell: mean, standard deviation, every score, and the mean curve."""
    mean, sd = mean_sd(runs)
    return {
        **cell.to_dict(),
        "mean": mean,
        "sd": None if math.isnan(sd) else sd,
        **more,
        "values": scores(runs).tolist(),
        "curve": np.mean([run.curve for run in runs], axis=0).tolist(),
    }


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def made_with() -> str:
    """Versions in words."""
    return "privlearn {privlearn}, Python {python}, numpy {numpy}, scipy {scipy}".format(
        **versions()
    )


def opening(
    title: str, command: str, first_seed: int, seeds: int, plot: str, summary: Sequence[str]
) -> list[str]:
    """The first parts of a report on runs whose users and noise are drawn with one seed."""
    return [
        f"# {title}",
        f"`{command}`",
        f"{made_with()}. Seeds {first_seed} to {first_seed + seeds - 1}; "
        "a seed draws users and noise, the same users for all. Means ± standard deviations.",
        plot,
        "## Summary",
        "\n".join(f"- {line}" for line in summary),
    ]
