"""Reruns Figure 5.1 and the auto loans of Han et al. (2021), at true prices and beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from privlearn.values.validate import count
from privlearn_studies.data.auto_loans import CprmLoans, check_declared, load_cprm
from privlearn_studies.papers.han2021 import experiments, tables
from privlearn_studies.papers.han2021.experiments import Han2021Result
from privlearn_studies.papers.han2021.figures import draw
from privlearn_studies.papers.provenance import array_digest, source_digest, versions
from privlearn_studies.papers.study import Progress, Reproduction, Study, command, file_size
from privlearn_studies.papers.tables import cell_numbers, opening

FORMAT = 1
SEEDS, FIRST_SEED = 10, 7400
LEAST_USERS = 100


@final
@dataclass(frozen=True, slots=True)
class Han2021Request:
    """What was asked for; None stands for the target's own."""

    target: str
    seeds: int = SEEDS
    horizon: int | None = None
    jobs: int = 2
    first_seed: int = FIRST_SEED
    out: Path = Path("reproduction")
    data: Path | None = None
    declare_public: bool = False


def reproduce_han2021(request: Han2021Request, progress: Progress) -> Reproduction[str]:
    """Runs what is missing and writes the files.

    Raises:
        ValueError: a setting is out of range.
        DataError: the folder cannot be written or holds runs of other settings; the data cannot be
            read.
    """
    horizon = _checked(request)
    loans = _loans(request, progress)
    target, first, seeds = request.target, request.first_seed, request.seeds
    name = f"han2021-{target}"
    settings = {"format": FORMAT, "target": target, "horizon": horizon, "first seed": first}
    if loans is not None:
        settings["data"] = array_digest(loans.features, loans.price, loans.applied)
    settings |= {"code": source_digest(experiments), **versions()}
    cells = experiments.cells(target, horizon)
    play = partial(experiments.play, loans)
    study = Study(name, request.out, settings, cells, Han2021Result, play)
    runs = study.run(range(first, first + seeds), request.jobs, progress)
    summary = tables.summary(runs)
    again = command(
        *("han2021", target, "--seeds", seeds, "--first-seed", first, "--horizon", horizon),
        data=request.data,
    )
    title = "Figure 5.1" if target == experiments.FIGURE else "auto loans (Appendix F)"
    plot = f"![{target}]({name}.png)"
    head = opening(f"Han et al. (2021), {title}", again, first, seeds, plot, summary)
    numbers = [
        cell_numbers(
            cell, results, **{"certified epsilon": results[0].epsilon, "delta": results[0].delta}
        )
        for cell, results in runs.items()
    ]
    files = study.write(
        {"command": again, "cells": numbers},
        "\n\n".join([*head, *tables.report_parts(runs, horizon)]) + "\n",
        partial(draw, runs=runs),
    )
    return Reproduction(files, summary)


def _checked(request: Han2021Request) -> int:
    if request.target not in experiments.TARGETS:
        raise ValueError(
            f"target = {request.target!r}: must be one of {', '.join(experiments.TARGETS)}"
        )
    count(seeds=request.seeds)
    count(jobs=request.jobs)
    count(first_seed=request.first_seed, at_least=0)
    horizon = experiments.HORIZONS[request.target] if request.horizon is None else request.horizon
    if count(horizon=horizon) < LEAST_USERS:
        raise ValueError(f"horizon = {horizon}: must be at least {LEAST_USERS}")
    if request.target != experiments.LENDING:
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


def _loans(request: Han2021Request, progress: Progress) -> CprmLoans | None:
    if request.data is None:
        return None
    advance = progress("reading the loans", file_size(request.data), 0, " bytes")
    return load_cprm(request.data, declare_public=request.declare_public, progress=advance)
