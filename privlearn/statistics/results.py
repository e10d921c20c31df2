"""What was found: values with intervals, as a text table, a frame or a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

from privlearn.accountants import Certificate
from privlearn.rows.domains import Array
from privlearn.statistics.intervals import Interval
from privlearn.values.validate import within

LEVEL = 0.95


class Bounds(Protocol):
    """Gives the interval at a level, of noise alone or with that of sampling."""

    def __call__(self, level: float, sampling: bool, /) -> Interval: ...


class Row(dict[str, Any]):
    """One line of a table: column, group, statistic, value, low, high; and unit of most."""


class Found:
    """The base of what is found: all views are made of its rows."""

    guarantee: str
    certificate: Certificate | None

    def rows(self, level: float = LEVEL, *, sampling: bool = False) -> list[Row]:
        """Column, group, statistic, value, and the ends of its interval."""
        raise NotImplementedError

    def to_frame(self, level: float = LEVEL, *, sampling: bool = False) -> Any:
        """The rows as a pandas frame.

        Raises:
            ImportError: pandas is not there.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame needs pandas: pip install pandas, or use rows()") from None
        return pandas.DataFrame(self.rows(level, sampling=sampling))

    def plot(self, level: float = LEVEL, *, sampling: bool = False) -> Any:
        """A `Display` of the values with their intervals."""
        from privlearn.statistics.displays import IntervalDisplay

        return IntervalDisplay(self.rows(level, sampling=sampling), self.guarantee, level).draw()

    def __str__(self) -> str:
        from privlearn.statistics.displays import text_table

        return text_table(self.rows(), self.guarantee, LEVEL)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """A number with its intervals."""

    statistic: str
    value: Any
    bounds: Bounds

    def __repr__(self) -> str:
        from privlearn.statistics.displays import value_text

        return f"<{self.statistic}: {value_text(self.value, *self.interval())}>"

    def interval(self, level: float = LEVEL, *, sampling: bool = False) -> Interval:
        """The ends of an interval.

        Args:
            level: the probability, over the noise, with which it holds what there would be without
                noise; with ``sampling``, that of the population that the rows were drawn from.
            sampling: whether the error of drawing rows is to be included (by the normal law).
        """
        return self.bounds(level, sampling)

    def __float__(self) -> float:
        return float(self.value)


@final
@dataclass(frozen=True, repr=False)
class Summary(Found):
    """Estimates of one column, of everybody or of one group.

    ``summary["mean"]`` and ``summary.mean`` are the same.
    """

    column: str
    group: Any = None
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """By name, such as ``count``, ``mean`` and ``sd``."""
    quantiles: Mapping[float, Estimate] = field(default_factory=dict)
    """By probability."""
    histogram: Mapping[Any, Estimate] = field(default_factory=dict)
    """Counts by label; ``"missing"`` has the cells that are missing or cannot be used."""
    unit: str = ""
    """Of the column, such as EUR, or days since a date."""
    guarantee: str = ""
    certificate: Certificate | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.estimates:
            raise KeyError(f"{name!r}: there are {', '.join(map(repr, self.estimates))}")
        return self.estimates[name]

    def __getattr__(self, name: str) -> Estimate:
        estimates: Mapping[str, Estimate] = self.__dict__.get("estimates", {})
        if name not in estimates:
            raise AttributeError(f"{name}: there are {', '.join(estimates)}")
        return estimates[name]

    @property
    def _all(self) -> dict[Any, Estimate]:
        return {**self.estimates, **self.quantiles, **self.histogram}

    @property
    def value(self) -> Any:
        """The value if there is one estimate, else all by name, probability or label."""
        found = {name: one.value for name, one in self._all.items()}
        return next(iter(found.values())) if len(found) == 1 else found

    def interval(self, level: float = LEVEL, *, sampling: bool = False) -> Any:
        """As `Estimate.interval`; of several, all by name, probability or label."""
        found = {n: one.interval(level, sampling=sampling) for n, one in self._all.items()}
        return next(iter(found.values())) if len(found) == 1 else found

    def rows(self, level: float = LEVEL, *, sampling: bool = False) -> list[Row]:
        found = []
        for one in self._all.values():
            low, high = one.interval(level, sampling=sampling)
            said = {"column": self.column, "group": self.group, "statistic": one.statistic}
            told = {"value": one.value, "low": low, "high": high, "unit": self.unit}
            found.append(Row(said | told))
        return found

    def joined(self, other: Summary) -> Summary:
        """With what another one of the same column and group has."""
        return replace(
            self,
            estimates={**self.estimates, **other.estimates},
            quantiles={**self.quantiles, **other.quantiles},
            histogram={**self.histogram, **other.histogram},
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Found):
    """A number for each pair of columns, with intervals; symmetric."""

    statistic: str
    columns: tuple[str, ...]
    value: Array
    """Shape (d, d), in the units of the columns."""
    bounds: Callable[[float, bool], tuple[Array, Array]] = field(repr=False)
    group: Any = None
    guarantee: str = ""
    certificate: Certificate | None = field(default=None, repr=False)

    def interval(self, level: float = LEVEL, *, sampling: bool = False) -> tuple[Array, Array]:
        """The ends for each pair, shape (d, d) each; see `Estimate.interval`."""
        return self.bounds(level, sampling)

    def rows(self, level: float = LEVEL, *, sampling: bool = False) -> list[Row]:
        low, high = self.interval(level, sampling=sampling)
        return [
            Row(
                column=f"{one}, {other}" if i != j else one,
                group=self.group,
                statistic=self.statistic,
                value=float(self.value[i, j]),
                low=float(low[i, j]),
                high=float(high[i, j]),
            )
            for i, one in enumerate(self.columns)
            for j, other in enumerate(self.columns[: i + 1])
        ]


@final
@dataclass(frozen=True, repr=False)
class Choice(Found):
    """Cells that were chosen by their counts, which are not told.

    Args:
        column: of the cells.
        value: their labels, in order.
        scale: of the noise, in records.
        tries: how many could have been wrong.
    """

    column: str
    value: tuple[Any, ...]
    scale: float
    tries: int
    group: Any = None
    guarantee: str = ""
    certificate: Certificate | None = field(default=None, repr=False)

    def within(self, level: float = LEVEL) -> float:
        """With this probability the choice is right but for so many records in a count.

        Of the largest, no cell that was left out has so many more than one that was chosen; of the
        first above a threshold, no earlier one is so far above it, and the chosen one is not so far
        below.  Of Gumbel and exponential noise, by the union over all.
        """
        within("(0, 1)", level=level)
        return self.scale * math.log(self.tries / (1 - level))

    def rows(self, level: float = LEVEL, *, sampling: bool = False) -> list[Row]:
        said = {"column": self.column, "group": None, "low": None, "high": None}
        return [
            Row(said | {"statistic": f"choice {place}", "value": label})
            for place, label in enumerate(self.value or (None,), 1)
        ]


@final
@dataclass(frozen=True, repr=False)
class Several(Found, Mapping[Any, Any]):
    """Findings by name: of columns, or of groups."""

    parts: Mapping[Any, Found]
    guarantee: str = ""
    certificate: Certificate | None = field(default=None, repr=False)

    def __getitem__(self, name: Any) -> Any:
        if name not in self.parts:
            raise KeyError(f"{name!r}: there are {', '.join(map(repr, list(self.parts)[:30]))}")
        return self.parts[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def value(self) -> dict[Any, Any]:
        """Values by name."""
        return {name: getattr(part, "value", None) for name, part in self.parts.items()}

    def interval(self, level: float = LEVEL, *, sampling: bool = False) -> dict[Any, Any]:
        """Intervals by name."""
        return {n: p.interval(level, sampling=sampling) for n, p in self.parts.items()}  # type: ignore[attr-defined]

    def rows(self, level: float = LEVEL, *, sampling: bool = False) -> list[Row]:
        return [row for part in self.parts.values() for row in part.rows(level, sampling=sampling)]


def grouped(summaries: Sequence[Any], guarantee: str, certificate: Certificate | None) -> Any:
    """One finding as it is, several by their groups."""
    told = [replace(one, guarantee=guarantee, certificate=certificate) for one in summaries]
    if len(told) == 1:
        return told[0]
    return Several({one.group: one for one in told}, guarantee, certificate)
