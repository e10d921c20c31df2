"""Text and tables on a terminal, none of which a ledger's text can break or forge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from privlearn.reporting.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

_MOST_ROWS = 30  # Rows of a list or table that are printed; the others are counted


@final
class Page:
    """A terminal page: whatever it prints is made visible, and is neither markup nor emoji."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        lead = len(text) - len(text.lstrip("\n"))
        self._console.print(Text("\n" * lead + visible(text[lead:])), style=style)

    def items(self, texts: Sequence[str], style: str = "", most: int = _MOST_ROWS) -> None:
        more = [f"and {len(texts) - most} more (--json)"] if len(texts) > most else []
        for text in [*texts[:most], *more]:
            self.hanging("  • ", text, style)

    def named(self, name: str, text: str, style: str = "") -> None:
        self.hanging(f"{name:16}", text, style)

    def table(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], most: int = _MOST_ROWS
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        if not rows:
            return
        table = Table(*heads, box=None, pad_edge=False)
        for row in rows[:most]:
            table.add_row(*(Text(visible(cell, 200)) for cell in row))
        self._console.print(_indented(table))
        if len(rows) > most:
            self.items([f"and {len(rows) - most} more rows (--json)"])

    def hanging(self, lead: str, text: str, style: str) -> None:
        """Text behind a lead of ours, below which nothing of it begins."""
        from rich.text import Text

        width = max(self._console.width - len(lead), 20)
        shown = Text(visible(text), style=style)
        fits = shown.cell_len <= width  # most do, and `visible` leaves no line ends
        for line in [shown] if fits else shown.wrap(self._console, width):
            line.rstrip()
            self._console.print(Text(lead) + line, soft_wrap=True)
            lead = " " * len(lead)


def _indented(table: Table) -> Padding:
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, 2), expand=False)
