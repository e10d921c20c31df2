"""What `privlearn check` prints: a table, what stayed open and why, and the same as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privlearn.checking.exact.check import ExactResult
from privlearn.checking.reports import BAD, CheckReport, Evidence, Finding

if TYPE_CHECKING:
    from rich.console import Console

TIMES = "times the claimed curve"
COLUMNS = "subject", "check", "verdict", "claimed", "exact", "at least", "conf.", "samples", "s"


def print_reports(reports: Sequence[CheckReport], console: Console, *, seed: int) -> None:
    """A table of what was claimed, computed and bounded; then what went wrong or stayed open."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if place > 2 else "left", no_wrap=place > 0)
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
        told = "nothing was refuted, and a fault might not have been seen"
        say(f"\nINCONCLUSIVE: {told}", "bold yellow")
    for report, finding in open_ones:
        say(f"  {report.subject}, {finding.check}: {finding.verdict.upper()}; {finding.missing}")
    shown = [(report.subject, finding.evidence) for report in reports for finding in report]
    nothing = [x for x, e in shown if isinstance(e, Evidence) and e.bound == 0 < e.claimed]
    if nothing:
        say(f"\nSamples saw nothing (a bound of 0) of: {', '.join(nothing)}", "yellow")
    bad = sum(finding.verdict in BAD for report in reports for finding in report)
    verdict = f"{bad} findings need a look" if bad else "nothing refuted"
    if open_ones:
        verdict += f", {len(open_ones)} INCONCLUSIVE"
    seconds = sum(finding.seconds for report in reports for finding in report)
    say(f"\n{verdict}; seed {seed}, {seconds:.0f} s. Samples refute and never prove.")


def _cells(finding: Finding) -> list[str]:
    shown = numbers(finding)

    def number(name: str) -> str:
        value = shown.get(name)
        return "" if value is None else f"{value:.4g}"

    claimed = f"{shown.get('unit', '').replace(TIMES, '×')} {number('claimed')}".strip()
    cells = [finding.check, finding.verdict, claimed, *map(number, ("exact", "bound"))]
    return [*cells, number("confidence"), str(shown.get("samples", "")), f"{finding.seconds:.1f}"]


def numbers(finding: Finding) -> dict[str, Any]:
    """What was claimed, computed or bounded, by name; an infinite number is None."""
    found, shown = finding.evidence, dict[str, Any]()
    if isinstance(found, Evidence):
        shown = {"unit": found.unit, "claimed": found.claimed, "bound": found.bound}
        shown |= {"confidence": found.confidence, "samples": found.samples}
    if isinstance(found, ExactResult):
        worst, word = found.worst, "exact" if found.whole else "bound"
        shown = {"unit": worst.measure, "claimed": worst.claimed, word: worst.exact}
    return {k: None if x in (math.inf, -math.inf) else x for k, x in shown.items()}


def as_json(reports: Sequence[CheckReport], *, seed: int) -> str:
    """One entry for each finding, with its numbers and what was tried."""
    findings = [
        {
            "subject": report.subject,
            "check": finding.check,
            "verdict": finding.verdict,
            **numbers(finding),
            "coverage": [
                {"axis": x.name, "tried": x.tried, "enough": x.enough}
                for x in finding.coverage.axes
            ],
            "detail": finding.detail,
            "seconds": round(finding.seconds, 3),
        }
        for report in reports
        for finding in report
    ]
    return json.dumps({"seed": seed, "findings": findings}, indent=2, ensure_ascii=False)
