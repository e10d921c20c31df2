"""Reruns Table 5.1 and Figure 5.1 of Han et al. (2022), beside what holds at a true guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from privlearn.values.validate import count
from privlearn_studies.papers.han2022 import experiments, tables
from privlearn_studies.papers.han2022.experiments import Han2022Cell, Han2022Result
from privlearn_studies.papers.han2022.figures import draw
from privlearn_studies.papers.provenance import source_digest, versions
from privlearn_studies.papers.study import Progress, Reproduction, Study, command
from privlearn_studies.papers.tables import cell_numbers, opening

FORMAT = 1
SEEDS, FIRST_SEED = 20, 7300


@final
@dataclass(frozen=True, slots=True)
class Han2022Request:
    """What was asked for; None stands for the paper's own."""

    target: str
    seeds: int = SEEDS
    horizons: tuple[int, ...] | None = None
    jobs: int = 2
    first_seed: int = FIRST_SEED
    out: Path = Path("reproduction")


def reproduce_han2022(request: Han2022Request, progress: Progress) -> Reproduction[str]:
    """Runs what is missing and writes the files.

    Raises:
        ValueError: a setting is out of range.
        DataError: the folder cannot be written or holds runs of other settings.
    """
    horizons = _checked(request)
    target, seeds = request.target, request.seeds
    settings = {
        "format": FORMAT,
        "target": target,
        "horizons": list(horizons),
        "first seed": request.first_seed,
        "code": source_digest(experiments),
        **versions(),
    }
    cells = experiments.cells(target, horizons)
    play = partial(experiments.play, target)
    study = Study(target, request.out, settings, cells, Han2022Result, play)
    first = request.first_seed
    runs = study.run(range(first, first + seeds), request.jobs, progress)
    again = command(
        *(target, "--seeds", seeds, "--first-seed", first),
        *("--horizons", ",".join(map(str, horizons))),
    )
    if target == experiments.TABLE:
        title, summary, parts = "Table 5.1", tables.table_summary(runs), tables.table_parts(runs)
    else:
        title, summary, parts = "Figure 5.1", tables.figure_summary(runs), tables.figure_parts(runs)
    plot = f"![{target}]({target}.png)"
    head = opening(f"Han et al. (2022), {title}", again, first, seeds, plot, summary)
    files = study.write(
        {"command": again, "cells": [_numbers(cell, results) for cell, results in runs.items()]},
        "\n\n".join([*head, *parts]) + "\n",
        partial(draw, target=target, runs=runs),
    )
    return Reproduction(files, summary)


def _numbers(cell: Han2022Cell, results: list[Han2022Result]) -> dict[str, Any]:
    risks = [result.risk for result in results if result.risk is not None]
    risk = float(np.mean(risks)) if risks else None
    return cell_numbers(cell, results, risk=risk, epsilon=results[0].epsilon)


def _checked(request: Han2022Request) -> tuple[int, ...]:
    if request.target not in experiments.TARGETS:
        raise ValueError(
            f"target = {request.target!r}: must be one of {', '.join(experiments.TARGETS)}"
        )
    count(seeds=request.seeds)
    count(jobs=request.jobs)
    count(first_seed=request.first_seed, at_least=0)
    if request.horizons is None:
        return experiments.DEFAULT_HORIZONS[request.target]
    if not request.horizons or len(set(request.horizons)) < len(request.horizons):
        raise ValueError(f"horizons = {request.horizons}: must be different numbers")
    if request.target == experiments.FIGURE and len(request.horizons) > 1:
        raise ValueError(f"horizons = {request.horizons}: {experiments.FIGURE} has a single one")
    for horizon in request.horizons:
        if count(horizon=horizon) < 100:
            raise ValueError(f"horizon = {horizon}: must be at least 100")
    return tuple(request.horizons)
