"""Coefficients with intervals that the noise leaves at least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from typing import Any, Final, NamedTuple, Self, final

import numpy as np
from scipy.special import ndtri

from privlearn.estimators.models import LinearModel
from privlearn.values.validate import within

_LEVEL: Final = 0.95
_INTERCEPT: Final = "(intercept)"


class Coefficient(NamedTuple):
    """One row of a `CoefficientTable`; ``low`` and ``high`` are NaN where no noise is known."""

    name: str
    label: str
    """Of the class, of more than two; else empty."""
    value: float
    low: float
    high: float


@final
class CoefficientTable(Sequence[Coefficient]):
    """Coefficients of a fit, in the scale of its encoding, the intercept last of each class.

    ``low`` and ``high`` are what the noise of the learner's steps leaves open: a least interval.
    The noise of the coordinates that the steps are taken in is not in it, nor bias, nor sampling of
    rows.  Measured over repeated fits the spread is 1.2 to 1.6 times as wide for linear fits of
    columns that fill their bounds, 2 to 6 times for logistic ones, and tens of times for a column
    that hardly varies, whose coefficient says nothing.

    Args:
        rows: of one level.
        level: probability of each interval.
    """

    def __init__(self, rows: Sequence[Coefficient], level: float = _LEVEL) -> None:
        self._rows, self.level = tuple(rows), level

    @classmethod
    def of(cls, model: LinearModel, level: float = _LEVEL) -> Self:
        """The table of a model.

        Raises:
            ValueError: level outside (0, 1).
        """
        reach = float(ndtri((1 + within("(0, 1)", level=level)) / 2))
        labels = model.encoding.schema.classes or ()
        several = model.loss == "softmax"
        rows = []
        for k, (coef, intercept) in enumerate(zip(model.coef, model.intercept, strict=True)):
            label = str(labels[k]) if several else ""
            std = np.full(len(coef), math.nan) if model.noise_std is None else model.noise_std[k]
            for name, value, half in zip(model.encoding.names, coef, reach * std, strict=True):
                rows.append(Coefficient(name, label, float(value), value - half, value + half))
            rows.append(Coefficient(_INTERCEPT, label, float(intercept), math.nan, math.nan))
        return cls(rows, level)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    def __iter__(self) -> Iterator[Coefficient]:
        return iter(self._rows)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each coefficient.

        Raises:
            ImportError: pandas is not installed.
        """
        return import_module("pandas").DataFrame(list(self._rows))

    def _texts(self) -> list[list[str]]:
        lines = [["coefficient", "class", "value", f"{self.level:.0%}, noise of the steps only"]]
        for name, label, value, low, high in self._rows:
            told = "" if math.isnan(low) else f"[{low:.3g}, {high:.3g}]"
            lines.append([name, label, f"{value:.4g}", told])
        if not any(row.label for row in self._rows):
            lines = [[line[0], *line[2:]] for line in lines]
        return lines

    def __repr__(self) -> str:
        lines = self._texts()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        head, *rows = self._texts()
        told = "".join(f"<th>{escape(text)}</th>" for text in head)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in line)}</tr>" for line in rows
        )
        return f"<table><tr>{told}</tr>{body}</table>"
