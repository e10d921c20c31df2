"""The table that `privlearn check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from privlearn.checking.suite import CheckFinding, CheckReport


def print_report(report: CheckReport, console: Console) -> None:
    """A table of what was claimed, computed and bounded, and below it whatever went wrong."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, align in CHECK_COLUMNS:
        table.add_column(name, justify=align, no_wrap=name != "subject")
    for finding in report.findings:
        style = "bold red" if finding.bad else None
        table.add_row(*_check_cells(finding), style=style)
    console.print(table)
    for finding in report.findings:
        if finding.bad:
            console.print(f"\n{finding.subject}, {finding.check}: {finding.result}", style="bold")
            console.print(f"  {finding.detail}", markup=False, highlight=False)
    for name in report.powerless:
        console.print(f"\nNO POWER: {name}", style="bold yellow")
        console.print(
            "  That nothing was refuted says nothing: no check of it would have found a fault of "
            "factor 2.",
            highlight=False,
        )
        for finding in report.findings:
            if finding.subject == name and finding.planted:
                console.print(
                    f"  {finding.check}: {finding.planted}", markup=False, highlight=False
                )
        console.print(
            "  Try neighbours that are further apart, or more --samples.",
            markup=False,
            highlight=False,
        )
    bad = sum(finding.bad for finding in report.findings)
    verdict = f"{bad} of {len(report.findings)} findings need a look" if bad else "nothing refuted"
    if report.powerless:
        verdict += f", but {len(report.powerless)} checked WITHOUT POWER"
    console.print(
        f"\n{verdict}; seed {report.seed}, {report.seconds:.0f} s. Samples refute and never prove: "
        "a lower bound below the claim is all they say.",
        highlight=False,
    )


TIMES = "times the claimed curve"

CHECK_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("subject", "left"),
    ("check", "left"),
    ("result", "left"),
    ("claimed", "right"),
    ("exact", "right"),
    ("at least", "right"),
    ("conf.", "right"),
    ("samples", "right"),
    ("power", "right"),
    ("s", "right"),
)


def _check_cells(finding: CheckFinding) -> list[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    return [
        finding.subject,
        finding.check,
        finding.result,
        f"{finding.unit.replace(TIMES, '×')} {number(finding.claimed)}".strip(),
        number(finding.exact),
        number(finding.bound),
        number(finding.confidence),
        "" if finding.samples is None else str(finding.samples),
        number(finding.power),
        f"{finding.seconds:.1f}",
    ]
