"""What is written of a figure beside its plot: the numbers, and a report in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn.losses.budgets import ApproxDP
from privlearn_studies.papers.cho_sun import experiments
from privlearn_studies.papers.cho_sun.experiments import LABELS, ChoSunCell, ChoSunResult, Design
from privlearn_studies.papers.cho_sun.findings import (
    CLEAR,
    SETTINGS,
    SWEPT,
    ChoSunRuns,
    Finding,
    summary,
)
from privlearn_studies.papers.provenance import versions
from privlearn_studies.papers.tables import made_with, markdown_table

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 1
"""Version of the files."""


def settings(design: Design) -> dict[str, Any]:
    """Everything that results depend on, replicates and their order apart."""
    return {
        "format": FORMAT,
        **{name: value for name, value in asdict(design).items() if name != "cells"},
        "cells": [cell.key for cell in design.cells],
        "proved fits": experiments.PROVED_FITS,
        "points": experiments.POINTS,
        **versions(),
    }


def _rounded(values: Any) -> Any:
    """Six significant digits, for files that people read."""
    return [float(f"{value:.6g}") for value in np.asarray(values).tolist()]


def numbers(
    design: Design, replicates: int, runs: ChoSunRuns, found: Sequence[Finding]
) -> dict[str, Any]:
    """All results of a figure, in JSON types."""
    cells = []
    for cell in design.cells:
        first, curve, regret = runs.results[cell][0], runs.curve(cell), runs.regret(cell)
        nominal = cell.nominal(design.horizon)
        fits = [result.fits for result in runs.results[cell]]
        total = summary(regret)
        cells.append(
            {
                **cell.to_dict(),
                "nominal": None if nominal is None else nominal.to_dict(),
                "certified": None
                if first.rho is None
                else {
                    "rho": first.rho,
                    "epsilon": first.epsilon,
                    "delta": experiments.delta_at(design.horizon),
                },
                "regret": {"mean": total.mean, "se": _number(total.se)},
                "fits": None if fits[0] is None else fits,
                "regret by replicate": _rounded(regret),
                "mean curve": _rounded(curve.mean(axis=0)),
            }
        )
    return {
        "settings": settings(design),
        "replicates": replicates,
        "cells": cells,
        "findings": [
            {
                "source": finding.source,
                "claim": finding.claim,
                "learner": finding.learner,
                "verdict": finding.verdict,
                "comparisons": [
                    {
                        "text": c.text,
                        "difference": c.difference.mean,
                        "se": _number(c.difference.se),
                        "outcome": c.outcome,
                    }
                    for c in finding.comparisons
                ],
            }
            for finding in found
        ],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def report(
    command: str, design: Design, replicates: int, runs: ChoSunRuns, found: Sequence[Finding]
) -> str:
    """The report of a figure in Markdown."""
    delta = experiments.delta_at(design.horizon)
    parts = [
        f"# Cho and Sun (2025), {TITLES[design.figure]}",
        f"`{command}`",
        f"{made_with()}. Replicate r draws its users from seed "
        f"[{design.seed}, r], its noise from {design.noise_seed(0)} + r and the public coins from "
        "r, the same for all learners. Means ± one standard error, "
        f"{replicates} {'replicate' if replicates == 1 else 'replicates'}.",
        _setup(design),
        f"![{TITLES[design.figure]}]({design.figure}.png)",
        "## Findings",
        f"A comparison is *for* the finding if its paired difference is more than {CLEAR:g} "
        "standard errors below zero, *against* it if more than that above; nothing is corrected "
        "for their number. Findings marked *ours* are not in the paper.",
        *findings_tables(found),
        f"## Total regret after {design.horizon:,} users",
        markdown_table(*_regret_table(design, runs)),
        "## Guarantees",
        "All joint, replace-one. *Certified* is what the accountant finds for the noise that was "
        f"used, for the most charged user; ε is at δ = {delta:g}. A claim that is not covered is "
        "false: the excess is that of the Gram matrix, whose price is attained "
        "(docs/errata/gram.md).",
        markdown_table(*_guarantee_table(design, runs)),
    ]
    return "\n\n".join(parts) + "\n"


TITLES = {
    "fig4": "Figure 4: ρ and its allocation",
    "fig5": "Figure 5: dimension",
    "fig6": "Figure 6: assortment size",
    "fig7": "Figure 7: DPMNL and its (ε, δ) benchmark",
    "expedia": "Figure 8: Expedia",
}


def _setup(design: Design) -> str:
    users = (
        "users drawn from the searches of the given file"
        if design.data
        else "items x ~ N(0, I) clipped to the unit ball, θ* ~ U[0, 1]^d"
    )
    return (
        f"N = {design.n_items}, T = {design.horizon:,}, {users}, uniform revenue, "
        f"c = {design.exploration:g}. *Published* has the noise of Algorithms 2 and 3 as printed, "
        f"T0 = {design.initial_rounds:,} and D_MLE = ⌈d·log(KT)⌉; Algorithm 1 is repaired "
        "(docs/errata/dpmnl.md) and fits when det V has doubled since the last fit. The benchmark "
        "(S.3) likewise. *Proved* has the least noise that is proved to cost the budget, T0 = "
        f"{min(100, design.horizon // 8)} and {experiments.PROVED_FITS} fits at public times. "
        "*One-pass* is `OnePassNewtonMNL` with its defaults; *non-private* is the greedy ridge "
        "MLE; it, one-pass and random items do not depend on what is shared out among fits."
    )


def findings_tables(found: Sequence[Finding]) -> Iterator[str]:
    """Findings as Markdown: one table for the paper's, one for ours."""
    for source, title in (("paper", "Findings of the paper"), ("ours", "Further findings (ours)")):
        rows = [
            [
                finding.claim,
                LABELS[finding.learner],
                f"**{finding.verdict}**",
                " / ".join(str(finding.count(o)) for o in ("for", "unclear", "against")),
                *_extremes(finding),
            ]
            for finding in found
            if finding.source == source
        ]
        header = ["finding", "learner", "verdict", "for / unclear / against"]
        if rows:
            yield f"### {title}"
            yield markdown_table([*header, "lowest difference", "highest difference"], rows)


def print_findings(found: Sequence[Finding], console: Console) -> None:
    """Prints the verdicts."""
    from rich.table import Table

    table = Table("finding", "learner", "verdict", box=None)
    for finding in found:
        mark = "" if finding.source == "paper" else " (ours)"
        table.add_row(finding.claim + mark, LABELS[finding.learner], finding.verdict)
    console.print(table)


def _extremes(finding: Finding) -> list[str]:
    ordered = sorted(finding.comparisons, key=lambda c: c.difference.mean)
    ends = ordered if len(ordered) == 1 else [ordered[0], ordered[-1]]
    shown = [f"{c.difference.mean:+.3g} ± {c.difference.se:.2g} ({c.text})" for c in ends]
    return [*shown, ""][:2]


def _regret_table(design: Design, runs: ChoSunRuns) -> tuple[list[str], list[list[str]]]:
    """One column per value of what is varied; cells that do not depend on it stand in all."""
    sweep = SWEPT.get(design.figure, "rho")
    values = dict.fromkeys(getattr(c, sweep) for c in design.cells)
    columns = sorted((v for v in values if v is not None), key=float)
    rows: dict[tuple[str, str], dict[Any, str]] = {}
    for cell in sorted(design.cells, key=lambda c: list(LABELS).index(c.learner)):
        row = rows.setdefault((LABELS[cell.learner], _setting(design, cell, sweep)), {})
        own = getattr(cell, sweep)
        row |= dict.fromkeys(columns if own is None else [own], str(summary(runs.regret(cell))))
    header = ["learner", "setting", *(SETTINGS[sweep].format(value) for value in columns)]
    return header, [[*names, *(row.get(v, "") for v in columns)] for names, row in rows.items()]


def _setting(design: Design, cell: ChoSunCell, omit: str = "") -> str:
    """What tells a cell from others of its learner in this figure."""
    varied = [
        name for name in SETTINGS if len({getattr(other, name) for other in design.cells}) > 1
    ]
    named = [
        SETTINGS[name].format(getattr(cell, name))
        for name in SETTINGS
        if name in varied and name != omit and getattr(cell, name) is not None
    ]
    return ", ".join(named)


def _guarantee_table(design: Design, runs: ChoSunRuns) -> tuple[list[str], list[list[str]]]:
    rows = []
    private = [cell for cell in design.cells if cell.rho is not None]
    for cell in sorted(private, key=lambda c: list(LABELS).index(c.learner)):
        result = runs.results[cell][0]
        fits = [float(r.fits) for r in runs.results[cell] if r.fits is not None]
        rows.append(
            [
                LABELS[cell.learner],
                _setting(design, cell),
                *_claim(design, cell, result),
                f"{np.mean(fits):.1f} of {cell.fits(design.horizon)}" if fits else "",
                str(summary(runs.regret(cell))),
            ]
        )
    header = ["learner", "setting", "claimed", "certified ρ", "certified ε", "claim covered"]
    return [*header, "fits made", "total regret"], rows


def _claim(design: Design, cell: ChoSunCell, result: ChoSunResult) -> list[str]:
    """The nominal guarantee, the certified one, and whether the latter covers the former."""
    nominal = cell.nominal(design.horizon)
    assert nominal is not None
    assert result.rho is not None
    assert result.epsilon is not None
    if isinstance(nominal, ApproxDP):
        claimed, true = float(nominal.epsilon), result.epsilon
        text = f"ε = {claimed:.4g}"
    else:
        claimed, true = float(nominal.rho), result.rho
        text = f"ρ = {claimed:g}"
    ratio = true / claimed
    covered = f"**no**, {ratio:.3g} times" if ratio > 1 + 1e-9 else f"yes, {ratio:.2g} of it"
    return [text, f"{result.rho:.4g}", f"{result.epsilon:.4g}", covered]
