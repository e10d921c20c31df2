"""The plots of the study, in the paper's layout with a row of totals below."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from privlearn.papers.cho_sun.findings import Runs, summary
from privlearn.papers.cho_sun.study import (
    CORRECTED,
    CORRECTED_SAME,
    LABELS,
    NON_PRIVATE,
    ONE_PASS,
    POINTS,
    PRINTED,
    PRINTED_FEW,
    PROVED,
    PROVED_SAME,
    PUBLISHED,
    PUBLISHED_FEW,
    RANDOM,
    Cell,
    Design,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND: Final = 2.0
"""Half-width of the bands and error bars, in standard errors."""

COLORS: Final = {
    PUBLISHED: "#c0392b",
    PUBLISHED_FEW: "#e8927c",
    PROVED: "#1b6ca8",
    PROVED_SAME: "#62a5d9",
    PRINTED: "#e08e0b",
    PRINTED_FEW: "#f3c677",
    CORRECTED: "#7d3c98",
    CORRECTED_SAME: "#bb8fce",
    ONE_PASS: "#1e8449",
    NON_PRIVATE: "#333333",
    RANDOM: "#8a8a8a",
}

MARKERS: Final = {
    PUBLISHED: "o",
    PUBLISHED_FEW: "o",
    PROVED: "s",
    PROVED_SAME: "D",
    PRINTED: "^",
    PRINTED_FEW: "^",
    CORRECTED: "v",
    CORRECTED_SAME: "<",
    ONE_PASS: "P",
}

DASHES: Final[dict[str, Any]] = {NON_PRIVATE: (0, (1, 1.2)), RANDOM: (0, (5, 2))}

RAMP: Final = ("#472d7b", "#3b6f9e", "#21918c", "#5ec962", "#e0b40a")
"""Colours of up to five ordered values."""


def draw(path: Path, design: Design, runs: Runs) -> None:
    """Writes the figure as PNG; equal runs give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "axes.titlesize": 10,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "svg.hashsalt": "privlearn",
    }
    with rc_context(style):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        _LAYOUTS.get(design.figure, _duel)(figure, design, runs)
        beside = path.with_name(path.name + ".new")
        figure.savefig(beside, dpi=130, format="png", metadata={"Software": "privlearn"})
    os.replace(beside, path)


# Panels ----------------------------------------------------------------------------------------


def _curve(axes: Axes, design: Design, runs: Runs, cell: Cell, **look: Any) -> None:
    """Mean cumulative regret with its band."""
    curves = runs.curve(cell)
    users = np.linspace(0, design.horizon, POINTS + 1)
    mean = curves.mean(axis=0)
    axes.plot(users, mean, **look)
    if len(curves) > 1:
        half = BAND * curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
        low = np.maximum(mean - half, 1e-9)
        axes.fill_between(users, low, mean + half, color=look["color"], alpha=0.15, linewidth=0)


def _reference(axes: Axes, design: Design, runs: Runs, learner: str, cell: Cell) -> None:
    style = DASHES.get(learner, (0, (4, 1.5)))
    look = {"color": COLORS[learner], "linestyle": style, "label": LABELS[learner]}
    _curve(axes, design, runs, cell, linewidth=1.4, **look)


def _totals(
    axes: Axes, runs: Runs, learner: str, places: Sequence[float], cells: list[Cell]
) -> None:
    """Total regret with error bars against what is varied."""
    totals = [summary(runs.regret(cell)) for cell in cells]
    errors = [BAND * t.se if t.se == t.se else 0.0 for t in totals]
    means = [t.mean for t in totals]
    look: dict[str, Any] = {"color": COLORS[learner], "label": LABELS[learner]}
    if learner in MARKERS:
        look |= {"marker": MARKERS[learner], "markersize": 5, "capsize": 2}
    else:
        look |= {"linestyle": DASHES[learner]}
    axes.errorbar(places, means, yerr=errors, linewidth=1.6, elinewidth=1, **look)


def _plain_log(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _users(axes: Axes, horizon: int) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xlim(0, horizon)
    axes.set_xticks(np.linspace(0, horizon, 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def _legend(figure: Figure, panels: Iterable[Axes], title: str) -> None:
    """One legend right of a row of panels, each entry once."""
    entries: dict[str, Any] = {}
    *_, last = axes = list(panels)
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    order = list(LABELS.values())
    entries = dict(sorted(entries.items(), key=lambda e: e[0] in order and order.index(e[0]) + 1))
    last.legend(
        list(entries.values()),
        list(entries),
        title=title,
        alignment="left",
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
    )


def _grid(
    figure: Figure,
    design: Design,
    runs: Runs,
    *,
    panels: Sequence[dict[str, Any]],
    panel_name: Callable[[dict[str, Any]], str],
    sweep: str,
    sweep_name: str,
    value_name: str,
) -> None:
    """Three rows: published, proved, totals on a log axis; one column per panel."""
    figure.set_size_inches(3.1 * len(panels) + 2.6, 8.6)
    rows = figure.subplots(3, len(panels), sharey="row", squeeze=False)
    values = sorted({getattr(cell, sweep) for cell in runs.cells(PUBLISHED)})
    ramp = dict(zip(values, RAMP, strict=False))
    for column, wanted in enumerate(panels):
        fixed = {name: wanted[name] for name in ("rho",) if name in wanted}
        for row, learner in zip(rows, (PUBLISHED, PROVED), strict=False):
            axes = row[column]
            for value in values:
                cell = runs.cell(learner, **wanted, **{sweep: value})
                look = {"color": ramp[value], "label": value_name.format(value)}
                _curve(axes, design, runs, cell, linewidth=1.8, **look)
            _beside(axes, design, runs, learner, fixed, sweep)
            _users(axes, design.horizon)
            axes.set_title(f"{LABELS[learner]}, {panel_name(wanted)}")
        axes = rows[2][column]
        for learner in (RANDOM, PUBLISHED, PROVED, ONE_PASS, NON_PRIVATE):
            cells = _row(runs, learner, wanted, sweep, values)
            _totals(axes, runs, learner, values, cells)
        _plain_log(axes)
        axes.set_title(f"totals, {panel_name(wanted)}")
        axes.set_xticks(values)
        axes.set_xlabel(sweep_name)
        rows[1][column].set_xlabel("users served")
    for row, name in zip(rows, ("cumulative regret",) * 2 + ("total regret (log)",), strict=True):
        row[0].set_ylabel(name)
    top = max(float(runs.curve(cell).mean(axis=0)[-1]) for cell in runs.cells(PROVED))
    rows[0][0].set_ylim(bottom=0)
    rows[1][0].set_ylim(0, 1.15 * top)
    for row, title in zip(rows, ("published noise", "proved noise", "totals"), strict=True):
        _legend(figure, row, title)


def _row(
    runs: Runs, learner: str, wanted: dict[str, Any], sweep: str, values: Sequence[Any]
) -> list[Cell]:
    """A learner's cells along the sweep; one that does not depend on it, repeated."""
    found = runs.cells(learner)
    settings = {
        name: value
        for name, value in wanted.items()
        if any(getattr(cell, name) is not None for cell in found)
    }
    if any(getattr(cell, sweep) is None for cell in found):
        return [runs.cell(learner, **settings)] * len(values)
    return [runs.cell(learner, **settings, **{sweep: value}) for value in values]


def _beside(
    axes: Axes, design: Design, runs: Runs, learner: str, fixed: dict[str, Any], sweep: str
) -> None:
    """References in a panel of curves, where one line stands for all that is varied."""
    if sweep != "mle":
        return
    _reference(axes, design, runs, ONE_PASS, runs.cell(ONE_PASS, **fixed))
    _reference(axes, design, runs, NON_PRIVATE, runs.cell(NON_PRIVATE))
    if learner == PUBLISHED:
        _reference(axes, design, runs, RANDOM, runs.cell(RANDOM))


def _figure_4(figure: Figure, design: Design, runs: Runs) -> None:
    _grid(
        figure,
        design,
        runs,
        panels=[{"rho": rho} for rho in dict.fromkeys(c.rho for c in runs.cells(PUBLISHED))],
        panel_name=lambda wanted: f"ρ = {wanted['rho']}",
        sweep="mle",
        sweep_name="% of the budget to the MLE",
        value_name="{}% to the MLE",
    )


def _figure_5(figure: Figure, design: Design, runs: Runs) -> None:
    _grid(
        figure,
        design,
        runs,
        panels=[{"mle": mle} for mle in dict.fromkeys(c.mle for c in runs.cells(PUBLISHED))],
        panel_name=lambda wanted: f"{wanted['mle']}% to the MLE",
        sweep="dim",
        sweep_name="d",
        value_name="d = {}",
    )


def _figure_6(figure: Figure, design: Design, runs: Runs) -> None:
    _grid(
        figure,
        design,
        runs,
        panels=[{"rho": rho} for rho in dict.fromkeys(c.rho for c in runs.cells(PUBLISHED))],
        panel_name=lambda wanted: f"ρ = {wanted['rho']}",
        sweep="max_items",
        sweep_name="K",
        value_name="K = {}",
    )


def _duel(figure: Figure, design: Design, runs: Runs) -> None:
    """Curves on a log axis; below, total regret against the certified ε."""
    rhos = list(dict.fromkeys(cell.rho for cell in runs.cells(PUBLISHED)))
    figure.set_size_inches(3.5 * len(rhos) + 3.2, 6.8)
    rows = figure.subplots(2, len(rhos), sharey="row", squeeze=False)
    for column, rho in enumerate(rhos):
        above, below = rows[0][column], rows[1][column]
        for learner, label in LABELS.items():
            if learner in DASHES:
                cell = runs.cell(learner)
                _reference(above, design, runs, learner, cell)
                mean = summary(runs.regret(cell)).mean
                look: dict[str, Any] = {"color": COLORS[learner], "linestyle": DASHES[learner]}
                below.axhline(mean, linewidth=1.4, label=label, **look)
                continue
            cell = runs.cell(learner, rho=rho)
            look = {"color": COLORS[learner], "label": label}
            _curve(above, design, runs, cell, linewidth=1.8, **look)
            total, epsilon = summary(runs.regret(cell)), runs.results[cell][0].epsilon
            error = BAND * total.se if total.se == total.se else 0.0
            look |= {"marker": MARKERS[learner], "markersize": 8, "linestyle": "none"}
            below.errorbar([epsilon], [total.mean], yerr=[error], capsize=3, **look)
        _plain_log(above)
        _plain_log(below)
        _users(above, design.horizon)
        above.set(title=f"ρ = {rho}", xlabel="users served")
        below.set_xscale("log")
        below.set(xlabel=f"certified ε at δ = {1 / design.horizon**2:g}", title=f"ρ = {rho}")
        _plain_x(below, [runs.results[c][0].epsilon or 1 for c in runs.results if c.rho == rho])
    start = min(
        float(runs.curve(runs.cell(NON_PRIVATE)).mean(axis=0)[POINTS // 50]),
        *(float(runs.curve(c).mean(axis=0)[POINTS // 50]) for c in runs.cells(ONE_PASS)),
    )
    end = max(float(runs.curve(cell).mean(axis=0)[-1]) for cell in runs.results)
    rows[0][0].set_ylim(max(start, 0.1), 1.6 * end)
    rows[0][0].set_ylabel("cumulative regret (log)")
    rows[1][0].set_ylabel("total regret (log)")
    for row, title in zip(rows, ("by users served", "by certified guarantee"), strict=True):
        _legend(figure, row, title)


def _plain_x(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xlim(min(values) / 1.6, max(values) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


_LAYOUTS: Final[dict[str, Callable[[Figure, Design, Runs], None]]] = {
    "fig4": _figure_4,
    "fig5": _figure_5,
    "fig6": _figure_6,
}
