"""Reruns the numerical study of Cho and Sun (2025): published noise beside proved noise.

Every run is charged, and certified, at what its noise really costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from privlearn.values.validate import count
from privlearn_studies.data.expedia import SIDE_INFORMATION, ExpediaSearches, load_expedia
from privlearn_studies.papers.cho_sun import experiments, tables
from privlearn_studies.papers.cho_sun.experiments import ChoSunResult, Design
from privlearn_studies.papers.cho_sun.figures import draw
from privlearn_studies.papers.cho_sun.findings import ChoSunRuns, Finding, findings
from privlearn_studies.papers.provenance import source_digest
from privlearn_studies.papers.study import Progress, Reproduction, Study, command, file_size


@final
@dataclass(frozen=True, slots=True)
class ChoSunRequest:
    """What was asked for; None stands for the figure's own default."""

    figure: str
    replicates: int | None = None
    horizon: int | None = None
    jobs: int = 2
    seed: int = 11001
    out: Path = Path("reproduction")
    data: Path | None = None
    declare_public: bool = False


def reproduce_cho_sun(request: ChoSunRequest, progress: Progress) -> Reproduction[Finding]:
    """Runs what is missing of a figure and writes its files.

    Raises:
        ValueError: a setting is out of range.
        DataError: the folder cannot be written or holds runs of other settings; the data cannot be
            read.
    """
    figure, replicates, horizon = _checked(request)
    searches = _searches(request, progress) if figure == "expedia" else None
    design = experiments.design(figure, horizon, request.seed, searches)
    study = Study(
        figure,
        request.out,
        tables.settings(design) | {"code": source_digest(experiments)},
        design.cells,
        ChoSunResult,
        partial(experiments.play, design, searches),
        partial(_seeds, design),
    )
    runs = ChoSunRuns(study.run(range(replicates), request.jobs, progress))
    found = findings(figure, runs)
    again = command(
        *("cho-sun", figure, "--replicates", replicates, "--horizon", horizon),
        *("--seed", request.seed),
        data=request.data,
    )
    files = study.write(
        tables.numbers(design, replicates, runs, found),
        tables.report(again, design, replicates, runs, found),
        partial(draw, design=design, runs=runs),
    )
    return Reproduction(files, found)


def _seeds(design: Design, replicate: int) -> dict[str, Any]:
    market = [design.seed, replicate]
    seeds = {"market": market, "noise": design.noise_seed(replicate), "coins": replicate}
    return {"replicate": replicate, "seeds": seeds}


def _checked(request: ChoSunRequest) -> tuple[str, int, int]:
    figure = request.figure
    if figure not in experiments.FIGURES:
        raise ValueError(f"figure = {figure!r}: must be one of {', '.join(experiments.FIGURES)}")
    real = figure == "expedia"
    replicates = request.replicates
    if replicates is None:
        replicates = experiments.EXPEDIA_REPLICATES if real else experiments.REPLICATES
    horizon = request.horizon
    if horizon is None:
        horizon = experiments.EXPEDIA_HORIZON if real else experiments.HORIZON
    count(replicates=replicates)
    count(jobs=request.jobs)
    count(seed=request.seed, at_least=0)
    first = experiments.EXPEDIA_INITIAL_ROUNDS if real else experiments.INITIAL_ROUNDS
    if count(horizon=horizon) <= first:
        raise ValueError(
            f"horizon = {horizon}: must be above T0 = {first}, the random rounds of {figure}"
        )
    if real and request.data is None:
        raise ValueError("data: expedia needs your own copy of the file, --data train.csv")
    if real and not request.declare_public:
        listed = "; ".join(text.removeprefix("Expedia searches: ") for text in SIDE_INFORMATION)
        raise ValueError(
            "declare_public: add --declare-public if these statistics of the people who searched, "
            f"which are used without noise, may be public: {listed}"
        )
    if not real and request.data is not None:
        raise ValueError(f"data = {request.data}: only expedia reads a file, {figure} simulates")
    return figure, replicates, horizon


def _searches(request: ChoSunRequest, progress: Progress) -> ExpediaSearches:
    assert request.data is not None
    advance = progress("reading the searches", 2 * file_size(request.data), 0, " bytes")
    return load_expedia(request.data, declare_public=request.declare_public, progress=advance)
