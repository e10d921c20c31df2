"""How findings are shown: a text table, and points with intervals."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _MOST_HEIGHT = 0.28, 40.0


def _number(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float | int) else str(value)


def text_table(rows: Sequence[dict[str, Any]], guarantee: str, level: float) -> str:
    """The rows as a table of text, with the guarantee below."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grouped = any(row["group"] is not None for row in rows)
    table = Table(box=box.SIMPLE, pad_edge=False, caption=guarantee, caption_justify="left")
    table.add_column("column")
    if grouped:
        table.add_column("group")
    table.add_column("statistic")
    table.add_column("value", justify="right")
    table.add_column(f"{level:.0%} interval", justify="right")
    before: tuple[Any, Any] | None = None
    for row in rows:
        at = (row["column"], row["group"])
        names = [str(row["column"])] + [str(row["group"])] * grouped
        shown = names if at != before else [""] * len(names)
        known = row["low"] is not None
        interval = f"{_number(row['low'])} … {_number(row['high'])}" if known else ""
        table.add_row(*shown, row["statistic"], _number(row["value"]), interval)
        before = at
    out = io.StringIO()
    Console(file=out, width=110, highlight=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


@final
@dataclass(eq=False)
class IntervalDisplay:
    """Values with their intervals, one panel for each column; made of what was paid for.

    After `draw`, ``figure_`` is a matplotlib figure.
    """

    rows: Sequence[dict[str, Any]]
    guarantee: str
    level: float
    figure_: Figure | None = None

    def draw(self) -> Self:
        """Draws it.

        Raises:
            ImportError: matplotlib is not there.
        """
        from privlearn.reporting.figures import COLORS, new_figure, tidy

        columns = list(dict.fromkeys(row["column"] for row in self.rows))
        sizes = [sum(row["column"] == name for row in self.rows) for name in columns]
        height = min(_HEIGHT * sum(sizes) + 0.6 * len(columns) + 0.6, _MOST_HEIGHT)
        figure = new_figure(8, height)
        axes = figure.subplots(
            len(columns), 1, squeeze=False, gridspec_kw={"height_ratios": sizes}
        )[:, 0]
        for name, panel in zip(columns, axes, strict=True):
            own = [row for row in self.rows if row["column"] == name]
            groups = list(dict.fromkeys(row["group"] for row in own))
            for place, row in enumerate(own):
                color = COLORS[groups.index(row["group"]) % len(COLORS)]
                panel.plot([row["low"], row["high"]], [place, place], color=color, linewidth=2)
                panel.plot([row["value"]], [place], "o", color=color, markersize=4)
            labels = [
                row["statistic"] + ("" if row["group"] is None else f" ({row['group']})")
                for row in own
            ]
            panel.set_yticks(range(len(own)), labels, fontsize=8)
            panel.set_title(str(name), fontsize=10, loc="left")
            panel.invert_yaxis()
            tidy(panel)
        figure.supxlabel(
            f"{self.level:.0%} intervals of the noise; {self.guarantee}",
            fontsize=8,
            color="#333333",
        )
        self.figure_ = figure
        return self

    def save(self, path: Any) -> None:
        """Writes the picture; the ending says the form.

        Raises:
            DataError: the ending is not a form that can be drawn.
        """
        from privlearn.reporting.figures import save

        assert self.figure_ is not None
        save(self.figure_, path)

    def _repr_png_(self) -> bytes:
        assert self.figure_ is not None
        out = io.BytesIO()
        self.figure_.savefig(out, format="png", dpi=110)
        return out.getvalue()
