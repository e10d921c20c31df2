"""Reruns Figure 5.1 and the auto loans of Han et al. (2021), at true prices and beside ours.

Users and noise are simulated; the noise therefore protects nobody.  A folder holds, per target,
``han2021-TARGET.jsonl`` (one line per finished run; the first has the settings), ``….json``,
``….md`` and ``….png``.  Finished runs are not run again, and the files do not depend on
interruptions nor on the number of processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from privlearn._validate import count
from privlearn.datasets.auto_loans import CprmLoans, check_declared, load_cprm
from privlearn.errors import DataError
from privlearn.papers.cho_sun import command as reproduce
from privlearn.papers.han2021 import study
from privlearn.papers.han2021.study import Cell, Result
from privlearn.papers.han2022 import report as han

FORMAT = 1
SEEDS, FIRST_SEED = 10, 7400
LEAST_USERS = 100


@final
@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for; None stands for the target's own."""

    target: str
    seeds: int = SEEDS
    horizon: int | None = None
    jobs: int = 2
    first_seed: int = FIRST_SEED
    out: Path = Path("reproduction")
    data: Path | None = None
    declare_public: bool = False


Runs = dict[Cell, list[Result]]


def reproduce_han2021(request: Request, progress: reproduce.Progress) -> han.Made:
    """Runs what is missing and writes the files.

    Raises:
        ValueError: a setting is out of range.  DataError: the folder cannot be written or holds
        runs of other settings; the data cannot be read.
    """
    horizon = _checked(request)
    loans = _loans(request, progress)
    seeds = range(request.first_seed, request.first_seed + request.seeds)
    cells = study.cells(request.target, horizon)
    name = f"han2021-{request.target}"
    files = reproduce._files(request.out, name)
    done = han.opened(files.runs, _settings(request, horizon, loans), _read)
    tasks = [(cell, seed) for seed in seeds for cell in cells]
    play = partial(study.play, loans)
    han.run(files.runs, name, done, tasks, request.jobs, progress, play, asdict)
    runs = {cell: [done[cell.key, seed] for seed in seeds] for cell in cells}
    summary = _summary(runs)
    reproduce._write(files.numbers, _numbers(request, horizon, runs))
    reproduce._write(files.report, _markdown(request, horizon, runs, summary))
    _draw(files.plot, runs)
    return han.Made(files, summary)


def _checked(request: Request) -> int:
    if request.target not in study.TARGETS:
        raise ValueError(f"target = {request.target!r}: must be one of {', '.join(study.TARGETS)}")
    count(seeds=request.seeds)
    count(jobs=request.jobs)
    count(first_seed=request.first_seed, at_least=0)
    horizon = study.HORIZONS[request.target] if request.horizon is None else request.horizon
    if count(horizon=horizon) < LEAST_USERS:
        raise ValueError(f"horizon = {horizon}: must be at least {LEAST_USERS}")
    if request.target != study.LENDING:
        if request.data is not None:
            raise ValueError(
                f"data = {request.data}: only lending reads a file, {request.target} simulates"
            )
    elif request.data is None:
        raise ValueError(
            "data: lending needs your own copy of the file, --data "
            "CPRM_AutoLOan_OnlineAutoLoanData.csv"
        )
    else:
        check_declared(request.declare_public)
    return horizon


def _loans(request: Request, progress: reproduce.Progress) -> CprmLoans | None:
    if request.data is None:
        return None
    try:
        size = request.data.stat().st_size
    except OSError as error:
        raise DataError(f"{request.data} cannot be read: {error.strerror}") from None
    advance = progress("reading the loans", size, 0, " bytes")
    return load_cprm(request.data, declare_public=request.declare_public, progress=advance)


def _settings(request: Request, horizon: int, loans: CprmLoans | None) -> dict[str, Any]:
    told = {"format": FORMAT, "target": request.target, "horizon": horizon}
    if loans is not None:
        read = hashlib.sha256()
        for values in (loans.features, loans.price, loans.applied):
            read.update(np.ascontiguousarray(values).tobytes())
        told["data"] = read.hexdigest()[:16]
    return told | {"first seed": request.first_seed} | han.circumstances()


def _read(record: dict[str, Any]) -> tuple[tuple[str, int], Result]:
    result = Result(*(record[name] for name in Result._fields))
    return (Cell(**record["cell"]).key, int(record["seed"])), result


def command(request: Request, horizon: int) -> str:
    """The command that makes a target again, whatever the processes and the folder."""
    parts = ["privlearn", "reproduce", "han2021", request.target, "--seeds", str(request.seeds)]
    parts += ["--first-seed", str(request.first_seed), "--horizon", str(horizon)]
    if request.data is not None:
        parts += ["--data", request.data.name, "--declare-public"]
    return shlex.join(parts)


# What is written -----------------------------------------------------------------------------


def _values(results: Sequence[Result]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([result.value for result in results])


def _told(results: Sequence[Result]) -> str:
    """Mean ± standard deviation."""
    values = _values(results)
    digits = 1 if values.mean() < 10 else 0
    sd = f" ± {values.std(ddof=1):,.{digits}f}" if len(values) > 1 else ""
    return _number(float(values.mean())) + sd


def _number(value: float) -> str:
    return f"{value:,.{1 if value < 10 else 0}f}"


def _promise(result: Result) -> str:
    if result.epsilon is None:
        return "none"
    at = f", δ = {result.delta:g}" if result.delta else ""
    return f"ε = {math.ceil(result.epsilon * 1000 - 1e-3) / 1000:.3f}{at}"


def _panels(runs: Runs) -> dict[tuple[str, float], dict[str, list[Result]]]:
    """Results by player, for every (setting, ε)."""
    found: dict[tuple[str, float], dict[str, list[Result]]] = {}
    for cell, results in runs.items():
        found.setdefault((cell.setting, cell.epsilon), {})[cell.player] = results
    return found


def _summary(runs: Runs) -> list[str]:
    lines = []
    for (setting, epsilon), players in _panels(runs).items():
        means = {player: float(_values(results).mean()) for player, results in players.items()}
        rivals = [name for name in means if name in study.PRIVATE[2:]]
        best = min(rivals, key=means.__getitem__)
        ours = [name for name in (study.SGD, study.OLS) if name in means]
        told = ", ".join(f"{name} {means[name]:,.0f}" for name in ours)
        lines.append(
            f"{study.SETTINGS[setting].text}, ε = {epsilon:g}: {told}; of the others, the best is "
            f"{best} with {means[best]:,.0f}; random {means[study.RANDOM]:,.0f}"
        )
    return lines


def _numbers(request: Request, horizon: int, runs: Runs) -> str:
    cells = [
        {
            **asdict(cell),
            "mean": float(_values(results).mean()),
            "sd": float(_values(results).std(ddof=1)) if len(results) > 1 else None,
            "certified epsilon": results[0].epsilon,
            "delta": results[0].delta,
            "values": _values(results).tolist(),
            "curve": np.mean([r.curve for r in results], axis=0).tolist(),
        }
        for cell, results in runs.items()
    ]
    made = {"command": command(request, horizon), "cells": cells}
    return json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


WHAT_IS_WHAT = (
    "*LDP-SGD* and *LDP-OLS* are this library's, each with one public rule for all panels. *As "
    "run* is the authors' public code, with its constants; *as printed* is the algorithm of the "
    "paper. *Published* has the noise of Zheng et al. (2020), *tight* the least noise of (ε, δ). "
    "ε is what the ledgers of devices and server prove, replace-one, for every user: published "
    "noise costs less than its claim. Regret is in expected reward."
)


def _markdown(request: Request, horizon: int, runs: Runs, summary: Sequence[str]) -> str:
    name = "Figure 5.1" if request.target == study.FIGURE else "auto loans (Appendix F)"
    made = han.circumstances()
    parts = [
        f"# Han et al. (2021), {name}",
        f"`{command(request, horizon)}`",
        f"privlearn {made['privlearn']}, Python {made['python']}, numpy {made['numpy']}, scipy "
        f"{made['scipy']}. Seeds {request.first_seed} to {request.first_seed + request.seeds - 1}; "
        "a seed draws users and noise, the same users for all. Means ± standard deviations.",
        f"![{request.target}](han2021-{request.target}.png)",
        "## Summary",
        "\n".join(f"- {line}" for line in summary),
        "## What is what",
        WHAT_IS_WHAT,
    ]
    for (setting, epsilon), players in _panels(runs).items():
        chosen = study.SETTINGS[setting]
        rows = []
        for player, results in players.items():
            half = float(np.mean([result.curve[study.POINTS // 2 - 1] for result in results]))
            rows.append([player, _told(results), _number(half), _promise(results[0])])
        header = ["learner", "regret", "of it in the first half", "proved"]
        parts += [
            f"## {chosen.text}: regret after {horizon:,} users at ε = {epsilon:g}, "
            f"δ = {chosen.delta:g}",
            han._grid(header, rows),
        ]
    return "\n\n".join(parts) + "\n"


# Plots ---------------------------------------------------------------------------------------

_DOTTED, _DASHED = (0, (1, 1.2)), (0, (4, 1.6))
LOOKS: Final[dict[str, dict[str, Any]]] = {
    study.SGD: {"color": "#0b3558", "linewidth": 2.4},
    study.OLS: {"color": "#2f86c4", "linewidth": 2.4},
    study.SGD_RUN: {"color": "#c0392b"},
    study.OLS_RUN: {"color": "#e8927c"},
    study.OLS_PRINTED: {"color": "#e8927c", "linestyle": _DASHED},
    study.UCB_TIGHT: {"color": "#1e8449"},
    study.UCB_PUBLISHED: {"color": "#1e8449", "linestyle": _DASHED},
    study.GLOC_TIGHT: {"color": "#8e5bb5"},
    study.GLOC_PUBLISHED: {"color": "#8e5bb5", "linestyle": _DASHED},
    study.FREE_OLS: {"color": "#333333", "linestyle": _DOTTED},
    study.FREE_UCB: {"color": "#8a6d1b", "linestyle": _DOTTED},
    study.FREE_SGD: {"color": "#999999", "linestyle": _DOTTED},
    study.RANDOM: {"color": "#8a8a8a", "linestyle": (0, (6, 2))},
}


def _draw(path: Path, runs: Runs) -> None:
    """Writes the plot as PNG; equal runs give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    panels = _panels(runs)
    settings = list(dict.fromkeys(setting for setting, _ in panels))
    epsilons = list(dict.fromkeys(epsilon for _, epsilon in panels))
    with rc_context(han.STYLE):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        figure.set_size_inches(4.1 * len(epsilons) + 2.6, 3.5 * len(settings) + 0.4)
        grid = figure.subplots(len(settings), len(epsilons), squeeze=False)
        for row, setting in zip(grid, settings, strict=True):
            for axes, epsilon in zip(row, epsilons, strict=True):
                _panel(axes, panels[setting, epsilon], next(iter(runs)).horizon)
                axes.set_title(f"{study.SETTINGS[setting].text}, ε = {epsilon:g}")
                thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")
                axes.xaxis.set_major_formatter(thousands)
                axes.yaxis.set_major_formatter(thousands)
            row[0].set_ylabel("cumulative regret (log)")
        for axes in grid[-1]:
            axes.set_xlabel("users served")
        handles, labels = grid[0][-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        beside = path.with_name(path.name + ".new")
        figure.savefig(beside, dpi=130, format="png", metadata={"Software": "privlearn"})
    os.replace(beside, path)


def _panel(axes: Any, players: dict[str, list[Result]], horizon: int) -> None:
    """Mean ± half a standard deviation, as in the paper."""
    users = np.linspace(0, horizon, study.POINTS + 1)[1:]
    for player, results in players.items():
        curves = np.maximum([result.curve for result in results], 0.5)
        mean, look = curves.mean(axis=0), {"linewidth": 1.5} | LOOKS[player]
        axes.plot(users, mean, label=player, **look)
        if len(curves) > 1 and player in study.PRIVATE:
            half = curves.std(axis=0, ddof=1) / 2
            low = np.maximum(mean - half, mean / 3)
            axes.fill_between(users, low, mean + half, color=look["color"], alpha=0.12, lw=0)
    axes.set_yscale("log")
    axes.set_xlim(0, horizon)
    axes.set_ylim(bottom=max(min(_values(results).mean() for results in players.values()) / 3, 0.5))
