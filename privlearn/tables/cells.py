"""What a cell says: one grammar for numbers, labels and dates, whichever reader brings the cell.

A number in text has an optional sign, digits, a decimal mark, an exponent, and nothing else: no
underscores, no other digits than 0 to 9, no ``inf`` or ``nan``.  A cell that cannot be read is NaN.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np

from privlearn.rows.domains import Array

_EXPONENT: Final = r"(?:[eE][+-]?[0-9]+)?"
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_TRUTH: Final = {"true": 1.0, "false": 0.0}
_DAY: Final = 86_400.0


def number_pattern(decimal: str = ".", thousands: str | None = None) -> str:
    """The regular expression that the text of a number matches as a whole."""
    mark = re.escape(decimal)
    whole = "[0-9]+"
    if thousands is not None:
        whole = rf"(?:[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})+|[0-9]+)"
    return rf"[+-]?(?:{whole}(?:{mark}[0-9]*)?|{mark}[0-9]+){_EXPONENT}"


def number_reader(decimal: str = ".", thousands: str | None = None) -> Callable[[Any], float]:
    """A function from a cell to its number, or NaN."""
    pattern = re.compile(number_pattern(decimal, thousands))

    def number(cell: Any) -> float:
        if isinstance(cell, str):
            text = cell.strip(" \t")
            if not pattern.fullmatch(text):
                return math.nan
            if thousands is not None:
                text = text.replace(thousands, "")
            return _finite(float(text.replace(decimal, ".")))
        if isinstance(cell, bool | np.bool_ | numbers.Real | Decimal):
            return _finite(float(cell))
        return math.nan

    return number


def truth(cell: Any) -> float:
    """1 or 0 for true and false, in text of any case or as numbers; else NaN."""
    if isinstance(cell, str) and cell.strip(" \t").lower() in _TRUTH:
        return _TRUTH[cell.strip(" \t").lower()]
    value = _plain_number(cell)
    return value if value in (0.0, 1.0) else math.nan


def days_reader(low: date) -> Callable[[Any], float]:
    """A function from a date, or its ISO text, to days since ``low``, or NaN."""
    start = datetime(low.year, low.month, low.day)

    def days(cell: Any) -> float:
        if isinstance(cell, str):
            text = cell.strip(" \t")
            if not _DATE.fullmatch(text):
                return math.nan
            cell = datetime.fromisoformat(text)
        if not isinstance(cell, date):
            return math.nan
        if not isinstance(cell, datetime):
            cell = datetime(cell.year, cell.month, cell.day)
        if cell.tzinfo is not None:
            cell = cell.astimezone(UTC).replace(tzinfo=None)
        return float((cell - start).total_seconds()) / _DAY

    return days


class LabelPlaces:
    """Places of labels: cells match by their text, numbers by their value, booleans as 1 and 0.

    Raises:
        ValueError: two labels that the same cell would match.
    """

    def __init__(self, labels: Sequence[Any], *, other: bool = False) -> None:
        self._other = float(len(labels)) if other else math.nan
        self._texts: dict[str, float] = {}
        values: dict[float, float] = {}
        for place, label in enumerate(labels):
            number = _label_number(label)
            text = str(label).strip(" \t")
            key = text.lower() if text.lower() in _TRUTH else text
            if key in self._texts or (number is not None and number in values):
                raise ValueError(f"values: {label!r} stands there twice")
            self._texts[key] = float(place)
            if number is not None:
                values[number] = float(place)
        order = sorted(values)
        self._numbers = np.array(order, dtype=np.float64)
        self._places = np.array([values[number] for number in order], dtype=np.float64)

    @property
    def numeric(self) -> bool:
        """Whether a number can match any of them."""
        return bool(len(self._numbers)) or not math.isnan(self._other)

    def of_numbers(self, values: Array) -> Array:
        """Places, shape (n,); NaN for what is no label."""
        found = np.where(np.isnan(values), np.nan, self._other)
        if len(self._numbers):
            at = np.minimum(np.searchsorted(self._numbers, values), len(self._numbers) - 1)
            found = np.where(self._numbers[at] == values, self._places[at], found)
        return found

    def of_cell(self, cell: Any) -> float:
        """The place of one cell, or NaN."""
        if isinstance(cell, str):
            text = cell.strip(" \t")
            if not text:
                return math.nan
            found = self._texts.get(text)
            if found is None:
                found = self._texts.get(text.lower()) if text.lower() in _TRUTH else None
            if found is not None:
                return found
        value = truth(cell) if isinstance(cell, str) else math.nan
        value = _plain_number(cell) if math.isnan(value) else value
        if math.isnan(value):
            return self._other if isinstance(cell, str) else math.nan
        return float(self.of_numbers(np.array([value]))[0])


def person_of(cell: Any) -> str | None:
    """The text of a person's id: text and whole numbers; None for anything else."""
    if isinstance(cell, str):
        return cell.strip(" \t") or None
    if isinstance(cell, bool | np.bool_):
        return None
    if isinstance(cell, numbers.Integral):
        return str(int(cell))
    value = _plain_number(cell)
    return str(int(value)) if value.is_integer() else None


def is_number(text: str) -> bool:
    """Whether the text is that of a number."""
    return not math.isnan(_plain_number(text))


_plain_number = number_reader()


def _label_number(label: Any) -> float | None:
    if not isinstance(label, str):
        return float(label)
    value = truth(label)
    value = _plain_number(label) if math.isnan(value) else value
    return None if math.isnan(value) else value


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
