"""The plots of Table 5.1 and Figure 5.1 of Han et al. (2022)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn_studies.papers.han2022 import competitors, experiments
from privlearn_studies.papers.han2022.experiments import Han2022Cell
from privlearn_studies.papers.han2022.tables import Han2022Runs, on_a_vertex, settings_of
from privlearn_studies.papers.plots import DOTTED, LONG_DASHED, mean_and_band, thousands
from privlearn_studies.papers.tables import mean_sd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[str, dict[str, Any]] = {
    competitors.PRINTED: {"color": "#c0392b", "marker": "o"},
    competitors.TRUE_NOISE: {"color": "#e8927c", "marker": "o"},
    competitors.PLAIN: {"color": "#62a5d9", "marker": "s"},
    competitors.BUFFERED: {"color": "#0b3558", "marker": "s"},
    competitors.SFW: {"color": "#e08e0b", "marker": "^"},
    competitors.SFW_GENERALIZED: {"color": "#f3c677", "marker": "^"},
    competitors.MIRROR: {"color": "#7d3c98", "marker": "v"},
    competitors.SGD: {"color": "#1e8449", "marker": "P"},
    competitors.NO_NOISE: {"color": "#333333", "linestyle": DOTTED},
    experiments.HDB: {"color": "#1b6ca8"},
    experiments.HDB_CHOICES: {"color": "#62a5d9"},
    experiments.UCB: {"color": "#c0392b"},
    experiments.LEAST_SQUARES: {"color": "#e08e0b"},
    experiments.LASSO: {"color": "#333333", "linestyle": DOTTED},
    experiments.RANDOM: {"color": "#8a8a8a", "linestyle": LONG_DASHED},
}


_NEAR = (experiments.HDB, experiments.HDB_CHOICES, experiments.LEAST_SQUARES)
"""Learners that the closer panel is scaled for."""


def draw(figure: Figure, *, target: str, runs: Han2022Runs) -> None:
    """Draws the table or the figure."""
    if target == experiments.TABLE:
        _table_panels(figure, runs)
    else:
        _curves(figure, runs)


def _table_panels(figure: Figure, runs: Han2022Runs) -> None:
    settings = settings_of(runs)
    dims = sorted({dim for _, _, dim in settings})
    figure.set_size_inches(3.3 * len(dims) + 2.4, 7.2)
    panels = figure.subplots(2, len(dims), sharey=True, sharex=True, squeeze=False)
    for row, p in zip(panels, experiments.EXPONENTS, strict=True):
        for axes, dim in zip(row, dims, strict=True):
            _panel(axes, runs, p, dim)
        row[0].set_ylabel("SubOpt (log)")
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    for axes in panels[-1]:
        axes.set_xlabel("T")
    panels[0][0].set_ylim(1e-5, 5)


def _panel(axes: Axes, runs: Han2022Runs, p: float, dim: int) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    horizons = sorted({cell.horizon for cell in runs if cell.dim == dim})
    for player in experiments.BY_EXPONENT[p]:
        pairs = [mean_sd(runs[Han2022Cell(player, p, h, dim)]) for h in horizons]
        means, sds = (np.array(column) for column in zip(*pairs, strict=True))
        look = {"markersize": 4, "linewidth": 1.5} | LOOKS[player]
        axes.plot(horizons, np.maximum(means, 1e-6), label=player, **look)
        if not np.isnan(sds).any():
            low = np.maximum(means - sds, np.maximum(means, 1e-6) / 3)
            axes.fill_between(horizons, low, means + sds, color=look["color"], alpha=0.1, lw=0)
    for name, quoted, marker in (
        ("paper, OFW", experiments.PAPER_OFW, "x"),
        ("paper, rival", experiments.PAPER_RIVAL, "+"),
    ):
        known = [(h, quoted[p, h, dim].mean) for h in horizons if (p, h, dim) in quoted]
        if known:
            axes.plot(*zip(*known, strict=True), marker, color="#666666", ms=6, label=name)
    axes.axhline(1.0, color="#8a8a8a", linestyle=LONG_DASHED, linewidth=1.2, label="answer 0")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(horizons))
    axes.xaxis.set_minor_locator(NullLocator())
    thousands(axes.xaxis)
    axes.yaxis.set_minor_formatter(NullFormatter())
    vertex = ", θ* on a vertex" if on_a_vertex((p, 0, dim)) else ""
    axes.set_title(f"p = {'∞' if p == math.inf else f'{p:g}'}, d = {dim}{vertex}")


def _curves(figure: Figure, runs: Han2022Runs) -> None:
    figure.set_size_inches(10.5, 4.4)
    panels = figure.subplots(1, 2)
    for cell, results in runs.items():
        curves = np.array([[0.0, *result.curve] for result in results])
        users = np.linspace(0, cell.horizon, experiments.POINTS + 1)
        look: dict[str, Any] = {"linewidth": 1.7, "label": cell.player} | LOOKS[cell.player]
        for axes in panels:
            mean_and_band(axes, users, curves, half=1.0, **look)
    top = max(mean_sd(results)[0] for cell, results in runs.items() if cell.player in _NEAR)
    panels[0].set(title="all", ylabel="cumulative regret", ylim=(0, None))
    panels[1].set(title="closer", ylim=(0, 1.3 * top))
    for axes in panels:
        axes.set_xlabel("users served")
        axes.set_xlim(0, next(iter(runs)).horizon)
        thousands(axes.xaxis)
    panels[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
