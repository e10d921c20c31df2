"""What `privlearn check` prints: a table, what stayed open and why, and the same as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from privlearn.checking.exact.check import ExactResult
from privlearn.checking.reports import BAD, CheckReport, Evidence, Finding

if TYPE_CHECKING:
    from rich.console import Console

TIMES = "times the claimed curve"
COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("subject", "left"),
    ("check", "left"),
    ("verdict", "left"),
    ("claimed", "right"),
    ("exact", "right"),
    ("at least", "right"),
    ("conf.", "right"),
    ("samples", "right"),
    ("s", "right"),
)


def print_reports(reports: Sequence[CheckReport], console: Console, *, seed: int) -> None:
    """A table of what was claimed, computed and bounded; then what went wrong or stayed open."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, align in COLUMNS:
        table.add_column(name, justify=align, no_wrap=name != "subject")
    for report in reports:
        for finding in report:
            style = "bold red" if finding.verdict in BAD else None
            table.add_row(report.subject, *_cells(finding), style=style)
    console.print(table)

    def say(line: str, style: str | None = None) -> None:
        console.print(line, style=style, markup=False, highlight=False)

    for report in reports:
        for finding in (*report.violated, *report.undone):
            say(f"\n{report.subject}, {finding.check}: {finding.verdict.upper()}", "bold")
            say(f"  {finding.detail}")
    open_ones = [(report, finding) for report in reports for finding in report.inconclusive]
    if open_ones:
        say(
            "\nINCONCLUSIVE: nothing was refuted, and a fault might not have been seen",
            "bold yellow",
        )
    for report, finding in open_ones:
        say(f"  {report.subject}, {finding.check}: {finding.verdict.upper()}; {finding.missing}")
    nothing = [report.subject for report in reports if any(map(_saw_nothing, report))]
    if nothing:
        say(f"\nSamples saw nothing (a bound of 0) of: {', '.join(nothing)}", "yellow")
    bad = sum(finding.verdict in BAD for report in reports for finding in report)
    verdict = f"{bad} findings need a look" if bad else "nothing refuted"
    if open_ones:
        verdict += f", {len(open_ones)} INCONCLUSIVE"
    seconds = sum(finding.seconds for report in reports for finding in report)
    say(
        f"\n{verdict}; seed {seed}, {seconds:.0f} s. Samples refute and never prove: a lower bound "
        "below the claim is all they say."
    )


def _saw_nothing(finding: Finding) -> bool:
    found = finding.evidence
    return isinstance(found, Evidence) and found.bound == 0 < found.claimed


def _cells(finding: Finding) -> list[str]:
    shown = numbers(finding)

    def number(name: str) -> str:
        value = shown.get(name)
        return "" if value is None else f"{value:.4g}"

    return [
        finding.check,
        finding.verdict,
        f"{shown.get('unit', '').replace(TIMES, '×')} {number('claimed')}".strip(),
        number("exact"),
        number("bound"),
        number("confidence"),
        str(shown.get("samples", "")),
        f"{finding.seconds:.1f}",
    ]


def numbers(finding: Finding) -> dict[str, Any]:
    """What was claimed, computed or bounded, by name; an infinite number is None."""
    found = finding.evidence
    if isinstance(found, Evidence):
        return {
            "unit": found.unit,
            "claimed": _finite(found.claimed),
            "bound": _finite(found.bound),
            "confidence": found.confidence,
            "samples": found.samples,
        }
    if isinstance(found, ExactResult):
        word = "exact" if found.whole else "bound"
        worst = found.worst
        return {
            "unit": worst.measure,
            "claimed": _finite(worst.claimed),
            word: _finite(worst.exact),
        }
    return {}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def as_json(reports: Sequence[CheckReport], *, seed: int) -> str:
    """One entry for each finding, with its numbers and what was tried."""
    findings = [
        {
            "subject": report.subject,
            "check": finding.check,
            "verdict": finding.verdict,
            **numbers(finding),
            "coverage": [
                {"axis": axis.name, "tried": axis.tried, "enough": axis.enough}
                for axis in finding.coverage.axes
            ],
            "detail": finding.detail,
            "seconds": round(finding.seconds, 3),
        }
        for report in reports
        for finding in report
    ]
    return json.dumps({"seed": seed, "findings": findings}, indent=2, ensure_ascii=False)
