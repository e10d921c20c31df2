"""How findings are shown: a text table, and points with intervals."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _MOST_HEIGHT = 0.28, 40.0
_MOST_DECIMALS = 6


def _number(value: Any, width: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """A number with so many digits that two of the interval's width are shown."""
    if not isinstance(value, float | int) or isinstance(value, bool):
        return str(value)
    decimals = 1 - math.floor(math.log10(width)) if 0 < width < math.inf else _MOST_DECIMALS + 1
    if decimals > _MOST_DECIMALS or not math.isfinite(value):
        return f"{value:,.4g}"
    places = Decimal(1).scaleb(-max(decimals, 0))
    return f"{Decimal(repr(float(value))).quantize(places, rounding):,f}"


def value_text(value: Any, low: float, high: float) -> str:
    """A value and its 95% interval."""
    width = high - low
    return f"{_number(value, width)}, 95% interval {_interval(low, high, width)}"


def _interval(low: Any, high: Any, width: float) -> str:
    """Its ends, rounded away from each other."""
    return f"{_number(low, width, ROUND_FLOOR)} … {_number(high, width, ROUND_CEILING)}"


def text_table(rows: Sequence[dict[str, Any]], guarantee: str, level: float) -> str:
    """The rows as a table of text, with the guarantee below."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grouped = any(row["group"] is not None for row in rows)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("column")
    if grouped:
        table.add_column("group")
    table.add_column("statistic")
    table.add_column("value", justify="right")
    table.add_column(f"{level:.0%} interval", justify="right")
    before: tuple[Any, Any] | None = None
    for row in rows:
        at = (row["column"], row["group"])
        named = f"{row['column']} ({row['unit']})" if row.get("unit") else str(row["column"])
        names = [named] + ["all" if row["group"] is None else str(row["group"])] * grouped
        shown = names if at != before else [""] * len(names)
        known = row["low"] is not None
        low, value, high = row["low"], row["value"], row["high"]
        width = high - low if known else 0.0
        interval = _interval(low, high, width) if known else ""
        table.add_row(*shown, row["statistic"], _number(value, width), interval)
        before = at
    out = io.StringIO()
    # Text, wherever it is made: rich would show it at once in a notebook, or color it.
    Console(
        file=out,
        width=110,
        highlight=False,
        markup=False,
        force_terminal=False,
        force_jupyter=False,
        color_system=None,
    ).print(table)
    lines = "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
    return f"{lines}\n\n{guarantee}"


def _panel_of(row: dict[str, Any]) -> str:
    """Counts and values of one column have scales of their own."""
    counts = row["statistic"].startswith(("count", "missing"))
    return f"{row['column']}, records" if counts else str(row["column"])


@final
@dataclass(eq=False)
class IntervalDisplay:
    """Values with their intervals, by column, counts apart; made of what was paid for.

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

        panels = list(dict.fromkeys(map(_panel_of, self.rows)))
        sizes = [sum(_panel_of(row) == title for row in self.rows) for title in panels]
        height = min(_HEIGHT * sum(sizes) + 0.6 * len(panels) + 0.6, _MOST_HEIGHT)
        figure = new_figure(8, height)
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for title, panel in zip(panels, axes, strict=True):
            own = [row for row in self.rows if _panel_of(row) == title]
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
            panel.set_title(title, fontsize=10, loc="left")
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
