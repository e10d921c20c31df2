r"""Published calibrations, claimed against true: every number is computed when asked for.

Three papers are covered:

- *Cho & Sun*: Y. H. Cho, W. W. Sun, "Privacy-Preserving Dynamic Assortment Selection";
- *Han et al. 2021*: Y. Han, Z. Liang, Y. Wang, J. Zhang, "Generalized Linear Bandits with Local
  Differential Privacy";
- *Han et al. 2022*: Y. Han, Z. Liang, Z. Liang, Y. Wang, Y. Yao, J. Zhang, "On Private Online
  Convex Optimization: Optimal Algorithms in ℓp-Geometry and High Dimensional Contextual Bandits".

Inputs are the constants as printed and the setting of a row; the truth comes from this library's
losses and conversions, from exact formulas, or from a small deterministic search or integration.
The proofs are in ``docs/errata/``, one page for each group of rows; rows are in the module
``errata`` of their paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn_studies.papers.cho_sun.errata import CHO_SUN
from privlearn_studies.papers.errata_table import Erratum
from privlearn_studies.papers.han2021.errata import HAN_2021
from privlearn_studies.papers.han2022.errata import HAN_2022

if TYPE_CHECKING:
    from rich.console import Console


def errata() -> list[Erratum]:
    """All rows, grouped by page; deterministic."""
    return [row for page in (*CHO_SUN, *HAN_2021, *HAN_2022) for row in page()]


def print_errata(rows: list[Erratum], console: Console) -> None:
    """Prints the rows as a table of at most 110 columns."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), collapse_padding=True)
    table.add_column("published calibration; unit; setting", width=55)
    for name, width in (("claimed", 9), ("true", 10), ("ratio", 9)):
        table.add_column(name, justify="right", width=width, no_wrap=True)
    table.add_column("verdict", width=20)
    colours = {"CORRECT": "green", "WRONG": "red", "REPAIRABLE": "yellow", "AMBIGUOUS": "yellow"}
    for row in rows:
        sign = {"=": "", "<=": "≤ ", ">=": "≥ "}[row.relation]
        word, _, rest = row.verdict.partition(":")
        table.add_row(
            f"[bold]{row.id}[/bold]  {escape(row.source)}\n"
            f"[dim]{escape(row.unit)}; {escape(row.setting)}[/dim]",
            f"{row.claimed:.4g}",
            f"{sign}{row.true:.3g}",
            f"{sign}{row.ratio:.3g}",
            f"[{colours[word]}]{word}[/]:{escape(rest)}",
        )
    console.print(table, highlight=False)
    console.print(
        "\nratio = true / claimed.  Where privacy is measured (ρ, ε, δ, sensitivity), ratio > 1: "
        "privacy is worse\n"
        "than claimed; ratio < 1: there is more noise than the claim needs.  ≤ is "
        "a proved bound, ≥ an instance.\nThe proofs, row by row: docs/errata/ in the source "
        "repository.  All fields: privlearn errata --json",
        highlight=False,
    )
