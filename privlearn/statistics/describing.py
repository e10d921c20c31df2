"""The public calls: a whole description, or one statistic; all are paid for from one budget.

All take these keywords besides what their own docstrings name:

``budget``
    `ApproxDP`, which is kept by the way whose errors are least (Laplace noise at ε alone, or
    Gaussian noise), or a currency: `PureDP`, `ZCDP`, `GaussianDP`.
``schema`` or ``bounds``
    what the columns are; ``bounds=(low, high)`` is enough for one column of numbers, and ``data``
    may then be the column itself.
``by``
    a column of public groups (`Category` or `Boolean`).
``ledger``
    a path, ``"auto"`` for a dated one, or None to keep it in memory.
``accountant``
    whose budget is used instead of an account of its own; ``budget`` is then a part of its own, or
    None for all that is left.
``simulate_noise``
    a seed; certifies nothing.

Rows beyond what the schema takes are not read as zero: a missing cell is counted, and enters no
mean.  One row is one person, and the neighbour relation replaces one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from privlearn.mechanisms.quantiles import checked_probabilities
from privlearn.statistics.accounts import Terms, answers
from privlearn.statistics.choices import FirstAboveQuery, TopQuery
from privlearn.statistics.columns import Groups, cell_column, groups_by, number_column
from privlearn.statistics.covariances import CovarianceQuery
from privlearn.statistics.quantile_queries import QuantilesQuery
from privlearn.statistics.queries import HistogramQuery, MomentsQuery, Query, TotalQuery
from privlearn.statistics.results import Several, Summary, grouped
from privlearn.tables import Boolean, Category, Ignored, Number, Schema, Table, read

_QUARTILES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
_ONE_COLUMN = "value"
_BY_GROUP = ("count", "mean", "sd")  # How many rows a group has is not public


def describe(
    data: Any,
    schema: Schema,
    budget: Any = None,
    *,
    by: str | None = None,
    ledger: Any = None,
    accountant: Any = None,
    simulate_noise: int | None = None,
) -> Several:
    """Count, missing cells, mean, sd and quartiles of numbers; counts of categories.

    Every column has an equal part of the budget, and of numbers half of it goes to the moments.

    Args:
        data: a frame, an array, a mapping of columns, a path or a `privlearn.tables.Table`.
        schema: what its columns are.
        budget, by, ledger, accountant, simulate_noise: see the module's docstring.

    Returns:
        A mapping from columns to a `Summary`, or with ``by`` to `Several` of them by group.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: something public is wrong; it is
            said before anything is spent.
    """
    terms = Terms(budget, ledger, accountant, simulate_noise, "describe")
    terms.check(schema)
    groups = groups_by(schema, by)
    names = [
        name
        for name, kind in schema.columns.items()
        if not isinstance(kind, Ignored) and name != schema.person
    ]
    if not names:
        raise ValueError("schema: it declares no column to describe")
    table = _table(data, schema)
    queries: list[Query] = []
    for name in names:
        own = Groups() if name == by else groups
        if isinstance(schema.columns[name], Boolean | Category):
            queries.append(HistogramQuery(cell_column(schema, name), own))
            continue
        column = number_column(schema, name, what="describe")
        wanted = ("count", "missing", "mean", "sd") if own.column is None else _BY_GROUP
        queries.append(MomentsQuery(column, own, 1.0, wanted))
        queries.append(QuantilesQuery(column, own, _QUARTILES, len(table)))
    found = answers(queries, table, terms)
    parts: dict[str, Sequence[Summary]] = {}
    for summaries in found.summaries:
        name = summaries[0].column
        before = parts.get(name)
        parts[name] = summaries if before is None else list(map(Summary.joined, before, summaries))
    told = (found.guarantee, found.certificate)
    return Several({name: grouped(each, *told) for name, each in parts.items()}, *told)


def count(data: Any, column: str | int | None = None, budget: Any = None, **keywords: Any) -> Any:
    """How many cells of a column are present.

    Args:
        data, column: the table and the name of a column, or a column of numbers itself.
        budget, keywords: see the module's docstring.

    Returns:
        A `Summary` with ``count``, or `Several` by group.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    ask = _Call("count", data, column, budget, keywords)
    kind = ask.schema.columns.get(ask.column)
    if isinstance(kind, Category):
        return ask.single(TotalQuery(cell_column(ask.schema, ask.column), ask.groups, "count"))
    return ask.single(TotalQuery(ask.numbers("count"), ask.groups, "count"))


def sum(data: Any, column: str | int | None = None, budget: Any = None, **keywords: Any) -> Any:
    """The sum of the present cells; arguments and errors as of `count`."""
    ask = _Call("sum", data, column, budget, keywords)
    return ask.single(TotalQuery(ask.numbers("sum"), ask.groups, "sum"))


def mean(data: Any, column: str | int | None = None, budget: Any = None, **keywords: Any) -> Any:
    """The mean of the present cells, and their count; arguments and errors as of `count`."""
    ask = _Call("mean", data, column, budget, keywords)
    return ask.single(MomentsQuery(ask.numbers("mean"), ask.groups, 0.0, ("mean", "count")))


def variance(
    data: Any, column: str | int | None = None, budget: Any = None, **keywords: Any
) -> Any:
    """Variance, sd, mean and count of the present cells; arguments and errors as of `count`."""
    ask = _Call("variance", data, column, budget, keywords)
    wanted = ("variance", "sd", "mean", "count")
    return ask.single(MomentsQuery(ask.numbers("variance"), ask.groups, 1.4, wanted))


def histogram(
    data: Any,
    column: str | int | None = None,
    budget: Any = None,
    *,
    bins: int | Sequence[float] | None = None,
    **keywords: Any,
) -> Any:
    """Counts of categories, or of numbers between declared edges, and of missing cells.

    Args:
        data, column, budget, keywords: as of `count`.
        bins: of numbers, how many of equal width between the bounds (default 10), or their edges.

    Returns:
        A `Summary` whose ``histogram`` has them by label, or `Several` by group.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    ask = _Call("histogram", data, column, budget, keywords)
    cells = cell_column(ask.schema, ask.column, bins)
    return ask.single(HistogramQuery(cells, ask.groups))


def quantiles(
    data: Any,
    column: str | int | None = None,
    probabilities: Sequence[float] = (0.25, 0.5, 0.75),
    budget: Any = None,
    *,
    intervals: bool = True,
    **keywords: Any,
) -> Any:
    """Several quantiles of the present cells by one mechanism.

    Args:
        data, column, budget, keywords: as of `count`.
        probabilities: ascending within (0, 1), with at most three decimals.
        intervals: whether a fifth of the budget is spent on counts around the quantiles; without,
            the interval of each is all that is declared, and its error up to a fifth less.

    Returns:
        A `Summary` whose ``quantiles`` has them by probability, or `Several` by group.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    asked = checked_probabilities(probabilities)
    ask = _Call("quantiles", data, column, budget, keywords)
    return ask.single(
        QuantilesQuery(ask.numbers("quantiles"), ask.groups, asked, len(ask.table), intervals)
    )


def quantile(
    data: Any,
    column: str | int | None = None,
    probability: float = 0.5,
    budget: Any = None,
    **keywords: Any,
) -> Any:
    """One quantile, by default the median; see `quantiles`."""
    return quantiles(data, column, (probability,), budget, **keywords)


def covariance(
    data: Any, columns: Sequence[str] | None = None, budget: Any = None, **keywords: Any
) -> Any:
    """Covariances of two or more columns, over the rows of which all are present.

    Args:
        data, budget, keywords: as of `count`; with ``bounds=`` one pair for all columns.
        columns: names.

    Returns:
        A `Matrix`, or `Several` by group.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    return _second_moments("covariance", data, columns, budget, keywords)


def correlation(
    data: Any, columns: Sequence[str] | None = None, budget: Any = None, **keywords: Any
) -> Any:
    """Correlations; arguments, result and errors as of `covariance`."""
    return _second_moments("correlation", data, columns, budget, keywords)


def _second_moments(
    name: str, data: Any, columns: Any, budget: Any, keywords: Mapping[str, Any]
) -> Any:
    asked = list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else []
    if len(asked) < 2 or len(set(map(str, asked))) < len(asked):
        raise ValueError(f"columns = {columns!r}: must be two or more different names")
    given, bounds = dict(keywords), keywords.get("bounds")
    if bounds is not None and given.get("schema") is None:
        given["bounds"] = None
        given["schema"] = Schema({each: _number_of(bounds) for each in asked})
    ask = _Call(name, data, asked[0], budget, given)
    numbers = tuple(number_column(ask.schema, each, what=name) for each in asked)
    return ask.single(CovarianceQuery(numbers, ask.groups, name == "correlation"))


def top_k(
    data: Any,
    column: str | int | None = None,
    k: int = 1,
    budget: Any = None,
    *,
    bins: int | Sequence[float] | None = None,
    **keywords: Any,
) -> Any:
    """The k categories, or bins, with the largest counts, the largest first; no counts.

    Args:
        data, column, budget, keywords: as of `count`; no ``by``.
        k: below the number of categories.
        bins: as of `histogram`.

    Returns:
        A `Choice`.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    ask = _Call("top_k", data, column, budget, keywords, groups=False)
    return ask.single(TopQuery(cell_column(ask.schema, ask.column, bins), k))


def above_threshold(
    data: Any,
    column: str | int | None = None,
    threshold: float = 0.0,
    budget: Any = None,
    *,
    bins: int | Sequence[float] | None = None,
    **keywords: Any,
) -> Any:
    """The first category, or bin, in declared order whose count is above a threshold.

    However many there are, it costs the same (sparse vector technique, `AboveThreshold`).

    Args:
        data, column, budget, keywords: as of `count`; no ``by``, and no `GaussianDP`.
        threshold: of the counts.
        bins: as of `histogram`.

    Returns:
        A `Choice` of one, or of none.

    Raises:
        ValueError, TypeError, DataError, BudgetError, LedgerError: as `describe`.
    """
    ask = _Call("above_threshold", data, column, budget, keywords, groups=False)
    cells = cell_column(ask.schema, ask.column, bins)
    return ask.single(FirstAboveQuery(cells, threshold))


class _Call:
    """The arguments that single calls share, checked before anything is spent."""

    def __init__(
        self,
        name: str,
        data: Any,
        column: Any,
        budget: Any,
        keywords: Mapping[str, Any],
        *,
        groups: bool = True,
    ) -> None:
        given = dict(keywords)
        schema, bounds = given.pop("schema", None), given.pop("bounds", None)
        by = given.pop("by", None) if groups else None
        places = {key: given.pop(key, None) for key in ("ledger", "accountant", "simulate_noise")}
        if given:
            raise TypeError(
                f"{name}: no keyword {', '.join(given)}; there are budget (such as "
                "ApproxDP(1, 1e-6)), schema, bounds, by, ledger, accountant and simulate_noise"
            )
        self.schema, self.column, data = _declared(data, column, schema, bounds)
        self._terms = Terms(budget, **places, name=name)
        self._terms.check(self.schema)
        self.groups = groups_by(self.schema, by)
        self._what = name
        self._data = data
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        if self._table is None:
            self._table = _table(self._data, self.schema)
        return self._table

    def numbers(self, what: str) -> Any:
        return number_column(self.schema, self.column, what=what)

    def single(self, query: Query) -> Any:
        """What one query found."""
        found = answers([query], self.table, self._terms)
        return grouped(found.summaries[0], found.guarantee, found.certificate)


def _declared(data: Any, column: Any, schema: Any, bounds: Any) -> tuple[Schema, str, Any]:
    """The schema, the name of the column, and the data as a table."""
    if isinstance(column, int):  # as frames may name columns
        column = str(column)
    if (schema is None) == (bounds is None):
        raise ValueError(
            "schema or bounds: state one of them, such as bounds=(0, 120), from what is known of "
            "the column and never from these rows"
        )
    if schema is not None:
        if not isinstance(schema, Schema):
            raise TypeError(f"schema = {schema!r:.80}: must be a privlearn.tables.Schema")
        if not isinstance(column, str):
            raise ValueError(f"column = {column!r}: name a column of the schema")
        return schema, column, data
    kind = _number_of(bounds)
    if column is None:
        # of a list no element decides the form or type of others
        values = data if isinstance(data, list | tuple) else np.asarray(data)
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise ValueError(
                f"data of shape {values.shape}: must be one column (n,), or name one with column="
            )
        return Schema({_ONE_COLUMN: kind}), _ONE_COLUMN, {_ONE_COLUMN: values}
    return Schema({column: kind}), column, data


def _number_of(bounds: Any) -> Number:
    try:
        low, high = bounds
        return Number(low, high, optional=True)
    except (TypeError, ValueError):
        raise ValueError(f"bounds = {bounds!r}: must be two numbers, low below high") from None


def _table(data: Any, schema: Schema) -> Table:
    if not isinstance(data, Table):
        return read(data, schema)
    if data.schema != schema:
        raise ValueError("schema: is not the one that the table was read with, table.schema")
    if data.people is not None:
        raise ValueError(
            "people: statistics take one row for one person, and the table says whose each row is; "
            "make one row of each person's, or read it without people="
        )
    return data
