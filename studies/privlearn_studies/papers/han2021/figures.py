"""The plots of Han et al. (2021): one panel for every (setting, ε)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from privlearn_studies.papers.han2021 import experiments
from privlearn_studies.papers.han2021.experiments import Han2021Result
from privlearn_studies.papers.han2021.tables import Han2021Runs, panels
from privlearn_studies.papers.plots import DASHED, DOTTED, mean_and_band, thousands
from privlearn_studies.papers.tables import mean_sd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: Final[dict[str, dict[str, Any]]] = {
    experiments.SGD: {"color": "#0b3558", "linewidth": 2.4},
    experiments.OLS: {"color": "#2f86c4", "linewidth": 2.4},
    experiments.SGD_RUN: {"color": "#c0392b"},
    experiments.OLS_RUN: {"color": "#e8927c"},
    experiments.OLS_PRINTED: {"color": "#e8927c", "linestyle": DASHED},
    experiments.UCB_TIGHT: {"color": "#1e8449"},
    experiments.UCB_PUBLISHED: {"color": "#1e8449", "linestyle": DASHED},
    experiments.GLOC_TIGHT: {"color": "#8e5bb5"},
    experiments.GLOC_PUBLISHED: {"color": "#8e5bb5", "linestyle": DASHED},
    experiments.FREE_OLS: {"color": "#333333", "linestyle": DOTTED},
    experiments.FREE_UCB: {"color": "#8a6d1b", "linestyle": DOTTED},
    experiments.FREE_SGD: {"color": "#999999", "linestyle": DOTTED},
    experiments.RANDOM: {"color": "#8a8a8a", "linestyle": (0, (6, 2))},
}


def draw(figure: Figure, *, runs: Han2021Runs) -> None:
    """Draws the panels: a row for every setting, a column for every ε."""
    found = panels(runs)
    settings = list(dict.fromkeys(setting for setting, _ in found))
    epsilons = list(dict.fromkeys(epsilon for _, epsilon in found))
    figure.set_size_inches(4.1 * len(epsilons) + 2.6, 3.5 * len(settings) + 0.4)
    grid = figure.subplots(len(settings), len(epsilons), squeeze=False)
    for row, setting in zip(grid, settings, strict=True):
        for axes, epsilon in zip(row, epsilons, strict=True):
            _panel(axes, found[setting, epsilon], next(iter(runs)).horizon)
            axes.set_title(f"{experiments.SETTINGS[setting].text}, ε = {epsilon:g}")
            thousands(axes.xaxis)
            thousands(axes.yaxis)
        row[0].set_ylabel("cumulative regret (log)")
    for axes in grid[-1]:
        axes.set_xlabel("users served")
    handles, labels = grid[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")


def _panel(axes: Axes, players: dict[str, list[Han2021Result]], horizon: int) -> None:
    """Mean ± half a standard deviation, as in the paper."""
    users = np.linspace(0, horizon, experiments.POINTS + 1)[1:]
    for player, results in players.items():
        curves = np.maximum([result.curve for result in results], 0.5)
        half = 0.5 if player in experiments.PRIVATE else 0.0
        look: dict[str, Any] = {"linewidth": 1.5, "label": player} | LOOKS[player]
        mean_and_band(axes, users, curves, half=half, part=1 / 3, **look)
    axes.set_yscale("log")
    axes.set_xlim(0, horizon)
    lowest = min(mean_sd(results).mean for results in players.values())
    axes.set_ylim(bottom=max(lowest / 3, 0.5))
