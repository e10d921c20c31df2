"""The plots of the study, in the paper's layout with a row of totals below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from privlearn_studies.papers.cho_sun.experiments import (
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
    ChoSunCell,
    Design,
)
from privlearn_studies.papers.cho_sun.findings import SETTINGS, SWEPT, ChoSunRuns, summary
from privlearn_studies.papers.plots import (
    DASHED,
    DOTTED,
    LONG_DASHED,
    mean_and_band,
    plain_log,
    thousands,
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

DASHES: Final[dict[str, Any]] = {NON_PRIVATE: DOTTED, RANDOM: LONG_DASHED}

RAMP: Final = ("#472d7b", "#3b6f9e", "#21918c", "#5ec962", "#e0b40a")
"""Colours of up to five ordered values."""

AXIS: Final = {"mle": "% of the budget to the MLE", "dim": "d", "max_items": "K"}


def draw(figure: Figure, *, design: Design, runs: ChoSunRuns) -> None:
    """Draws a figure of the paper."""
    if design.figure in SWEPT:
        _grid(figure, design, runs)
    else:
        _against_benchmark(figure, design, runs)


# Panels ----------------------------------------------------------------------------------------


def _curve(axes: Axes, design: Design, runs: ChoSunRuns, cell: ChoSunCell, **look: Any) -> None:
    """Mean cumulative regret with its band."""
    curves = runs.curve(cell)
    users = np.linspace(0, design.horizon, POINTS + 1)
    half = BAND / np.sqrt(len(curves))
    mean_and_band(axes, users, curves, half=half, alpha=0.15, lowest=1e-9, **look)


def _reference(
    axes: Axes, design: Design, runs: ChoSunRuns, learner: str, cell: ChoSunCell
) -> None:
    style = DASHES.get(learner, DASHED)
    look = {"color": COLORS[learner], "linestyle": style, "label": LABELS[learner]}
    _curve(axes, design, runs, cell, linewidth=1.4, **look)


def _totals(
    axes: Axes, runs: ChoSunRuns, learner: str, places: Sequence[float], cells: list[ChoSunCell]
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


def _log(axes: Axes) -> None:
    axes.set_yscale("log")
    plain_log(axes.yaxis)


def _users(axes: Axes, horizon: int) -> None:
    axes.set_xlim(0, horizon)
    axes.set_xticks(np.linspace(0, horizon, 5))
    thousands(axes.xaxis)
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


def _grid(figure: Figure, design: Design, runs: ChoSunRuns) -> None:
    """Three rows: published, proved, totals on a log axis; one column per ρ or share."""
    sweep = SWEPT[design.figure]
    panel = "mle" if sweep == "dim" else "rho"
    panels = [
        {panel: value} for value in dict.fromkeys(getattr(c, panel) for c in runs.cells(PUBLISHED))
    ]
    figure.set_size_inches(3.1 * len(panels) + 2.6, 8.6)
    rows = figure.subplots(3, len(panels), sharey="row", squeeze=False)
    values = sorted({getattr(cell, sweep) for cell in runs.cells(PUBLISHED)})
    ramp = dict(zip(values, RAMP, strict=False))
    for column, wanted in enumerate(panels):
        panel_name = SETTINGS[panel].format(wanted[panel])
        for row, learner in zip(rows, (PUBLISHED, PROVED), strict=False):
            axes = row[column]
            for value in values:
                cell = runs.cell(learner, **wanted, **{sweep: value})
                look = {"color": ramp[value], "label": SETTINGS[sweep].format(value)}
                _curve(axes, design, runs, cell, linewidth=1.8, **look)
            if sweep == "mle":
                _references(axes, design, runs, learner, wanted)
            _users(axes, design.horizon)
            axes.set_title(f"{LABELS[learner]}, {panel_name}")
        axes = rows[2][column]
        for learner in (RANDOM, PUBLISHED, PROVED, ONE_PASS, NON_PRIVATE):
            cells = _row(runs, learner, wanted, sweep, values)
            _totals(axes, runs, learner, values, cells)
        _log(axes)
        axes.set_title(f"totals, {panel_name}")
        axes.set_xticks(values)
        axes.set_xlabel(AXIS[sweep])
        rows[1][column].set_xlabel("users served")
    for row, name in zip(rows, ("cumulative regret",) * 2 + ("total regret (log)",), strict=True):
        row[0].set_ylabel(name)
    top = max(float(runs.curve(cell).mean(axis=0)[-1]) for cell in runs.cells(PROVED))
    rows[0][0].set_ylim(bottom=0)
    rows[1][0].set_ylim(0, 1.15 * top)
    for row, title in zip(rows, ("published noise", "proved noise", "totals"), strict=True):
        _legend(figure, row, title)


def _row(
    runs: ChoSunRuns, learner: str, wanted: dict[str, Any], sweep: str, values: Sequence[Any]
) -> list[ChoSunCell]:
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


def _references(
    axes: Axes, design: Design, runs: ChoSunRuns, learner: str, wanted: dict[str, Any]
) -> None:
    """References in a panel of curves, where one line stands for all that is varied."""
    _reference(axes, design, runs, ONE_PASS, runs.cell(ONE_PASS, **wanted))
    _reference(axes, design, runs, NON_PRIVATE, runs.cell(NON_PRIVATE))
    if learner == PUBLISHED:
        _reference(axes, design, runs, RANDOM, runs.cell(RANDOM))


def _against_benchmark(figure: Figure, design: Design, runs: ChoSunRuns) -> None:
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
        _log(above)
        _log(below)
        _users(above, design.horizon)
        above.set(title=f"ρ = {rho}", xlabel="users served")
        below.set_xscale("log")
        below.set(xlabel=f"certified ε at δ = {1 / design.horizon**2:g}", title=f"ρ = {rho}")
        certified = [runs.results[c][0].epsilon or 1 for c in runs.results if c.rho == rho]
        below.set_xlim(min(certified) / 1.6, max(certified) * 1.6)
        plain_log(below.xaxis)
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
