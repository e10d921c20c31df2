"""Rows that were read by a schema, and public splits of them."""

from __future__ import annotations

import hmac
import numbers
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array
from privlearn.rows.tabular import block_from
from privlearn.tables.schema import Category, Date, Ignored, Kind, Number, Schema

_HIDDEN_KEY = 16


class Table:
    """Records in order of arrival: their number is public, and nothing else is.

    Args:
        schema: what the columns are.
        columns: the cells by name, shape (m,) each, in their own units; NaN is missing or unusable.
        length: records that came, m.
        people: whose each row is, None for nobody's; None where each row is a person.
        broken: what is wrong with single rows as a whole, by row.
        absent: records that did not come, and stand after the others.
    """

    def __init__(
        self,
        schema: Schema,
        columns: Mapping[str, Array],
        length: int,
        *,
        people: tuple[str | None, ...] | None = None,
        broken: Mapping[int, str] | None = None,
        absent: int = 0,
    ) -> None:
        self.schema = schema
        self._columns, self._came = dict(columns), length
        self._people, self._broken, self._absent = people, dict(broken or {}), absent

    def __len__(self) -> int:
        return self._came + self._absent

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows, {len(self._columns)} columns>"

    def column(self, name: str) -> Array:
        """Cells of a column, shape (n,); private.

        Numbers in their own units, the place of a category, 0 and 1 of a boolean, days since
        ``low`` of a date.  NaN is missing or unusable.
        """
        cells = self._columns[name]
        if not self._absent:
            return cells
        return np.concatenate([cells, np.full(self._absent, np.nan)])

    @property
    def people(self) -> tuple[str | None, ...] | None:
        """Whose each row is; private."""
        return None if self._people is None else (*self._people, *[None] * self._absent)

    @property
    def absent(self) -> int:
        """How many of the last rows stand for records that did not come; private."""
        return self._absent

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows are records: no broken line, nobody's row, or absent one; private, (n,)."""
        found = np.zeros(len(self), dtype=np.bool_)
        found[: self._came] = True
        found[list(self._broken)] = False
        if self._people is not None:
            found[: self._came] &= [person is not None for person in self._people]
        return found

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which records no missing policy and no target makes null; private, shape (n,)."""
        found = self.present
        for name in self._columns:
            found[: self._came] &= ~self._lacks(name)
        return found

    @property
    def messages(self) -> list[tuple[int, str]]:
        """(row, what makes it null), for the operator only; absent rows have none."""
        found = dict(self._broken)
        for name in self._columns:
            reason = _reason(name, self.schema)
            found = dict.fromkeys(np.flatnonzero(self._lacks(name)).tolist(), reason) | found
        for row, person in enumerate(self._people or ()):
            if person is None:
                found.setdefault(row, "no id says who came")
        return sorted(found.items())

    def take(self, indices: Any) -> Table:
        """Some rows, by public indices or a slice; people and messages go with them.

        Raises:
            ValueError: they do not ascend.  Whether rows came is private, and others might then
                stand before those that did; a row that stands there twice is two persons.
        """
        kept = np.arange(len(self))[indices]
        if (np.diff(kept) <= 0).any():
            raise ValueError("indices: must ascend")
        came = kept[kept < self._came]
        new = {int(old): place for place, old in enumerate(came)}
        return Table(
            self.schema,
            {name: cells[came] for name, cells in self._columns.items()},
            len(came),
            people=None if self._people is None else tuple(self._people[i] for i in came),
            broken={new[row]: text for row, text in self._broken.items() if row in new},
            absent=len(kept) - len(came),
        )

    def _only(self, kept: NDArray[np.bool_]) -> Table:
        """All rows, with null ones in place of those that are not ``kept``."""
        mine = kept[: self._came]
        whose = self._people or (None,) * self._came
        others = dict.fromkeys(np.flatnonzero(~mine).tolist(), "on the other side of the split")
        return Table(
            self.schema,
            {name: np.where(mine, cells, np.nan) for name, cells in self._columns.items()},
            self._came,
            people=tuple(who if own else None for who, own in zip(whose, mine, strict=True)),
            broken=self._broken | others,
            absent=self._absent,
        )

    def padded(self, rows: int) -> Table:
        """The first ``rows`` rows; where there are fewer, the others are absent."""
        kept = self if len(self) <= rows else self.take(slice(0, rows))
        return Table(
            self.schema,
            kept._columns,
            kept._came,
            people=kept._people,
            broken=kept._broken,
            absent=rows - kept._came,
        )

    def _lacks(self, name: str) -> NDArray[np.bool_]:
        kind, cells = self.schema.columns[name], self._columns[name]
        if name == self.schema.target:
            return ~within(kind, cells)
        return np.zeros(len(cells), dtype=np.bool_) if indicated(kind) else np.isnan(cells)


def _reason(name: str, schema: Schema) -> str:
    kind = schema.columns[name]
    if isinstance(kind, Number) and name == schema.target:
        return f"column {name!r}: missing, no number, or out of its declared range"
    nouns = {Number: "no number", Category: "none of its values", Date: "no date"}
    return f"column {name!r}: missing, or {nouns.get(type(kind), 'not true or false')}"


def joined(schema: Schema, parts: Iterable[Table]) -> Table:
    """One table of several, in their order, and of none an empty one."""
    tables = list(parts)
    if len(tables) == 1:
        return tables[0]
    broken: dict[int, str] = {}
    people: list[str | None] = []
    length = 0
    for part in tables:
        broken |= {length + row: text for row, text in part._broken.items()}
        people += part._people or ()
        length += len(part)
    names = tables[0]._columns if tables else {}
    columns = {name: np.concatenate([part._columns[name] for part in tables]) for name in names}
    whose = tuple(people) if tables and tables[0]._people is not None else None
    return Table(schema, columns, length, people=whose, broken=broken)


def indicated(kind: Kind) -> bool:
    """Whether a missing cell of the column is told by an input, and not by a null row."""
    return not isinstance(kind, Ignored) and kind.optional and kind.missing == "indicate"


def within(kind: Kind, cells: Array) -> NDArray[np.bool_]:
    """Which cells of a target can be used: those beyond its bounds cannot."""
    if isinstance(kind, Number):
        with np.errstate(all="ignore"):
            return np.asarray((cells >= kind.low) & (cells <= kind.high))
    return np.isfinite(cells)


def span(kind: Number | Date) -> tuple[float, float]:
    """Bounds in the units of `Table.column`."""
    if isinstance(kind, Date):
        return 0.0, float(kind.days)
    return kind.low, kind.high


def public_split(
    source: Any, held_out: float | int = 0.2, *, seed: int | None = None
) -> tuple[Any, Any]:
    """Rows to learn from and rows held out, drawn at random before the data are seen.

    Never by position, as files are often sorted, and never by value.  Of a `Table` with people
    nobody is on both sides: a person's side is drawn by the id alone, both parts have as many rows
    as the table, and the rows of the other side are null in each.  So neither length tells of ids.

    Args:
        source: a number of rows, a frame, an array or a `Table`.
        held_out: a share of the rows (or people), or a number of rows.
        seed: public; to draw the same split again.  Default: from the operating system.

    Returns:
        Two parts of ``source``, or, for a number, two sorted arrays of indices.

    Raises:
        ValueError: held_out is no share and no number of rows.
        TypeError: source is a path.
    """
    if isinstance(source, str | os.PathLike):
        raise TypeError("source is a path: split what was read from it, or a number of rows")
    count = isinstance(source, numbers.Integral)
    n = int(source) if count else len(source)
    share = isinstance(held_out, float) and 0 <= held_out < 1
    people = source.people if isinstance(source, Table) else None
    if people is not None and not share:
        raise ValueError(f"held_out = {held_out!r}: of people it must be a share in [0, 1)")
    if not share and not (isinstance(held_out, numbers.Integral) and 0 <= held_out < max(n, 1)):
        raise ValueError(
            f"held_out = {held_out!r}: must be a share in [0, 1) or a number below the {n} rows"
        )
    seed = secrets.randbits(128) if seed is None else seed
    if people is not None:
        apart = _of_held_out_people(people, float(held_out), seed)
        return source._only(~apart), source._only(apart)
    held_rows = round(held_out * n) if share else int(held_out)
    apart = np.zeros(n, dtype=np.bool_)
    apart[np.random.default_rng(seed).permutation(n)[:held_rows]] = True
    learn, held = np.flatnonzero(~apart), np.flatnonzero(apart)
    if count:
        return learn, held
    return _rows_of(source, learn), _rows_of(source, held)


def _of_held_out_people(people: Sequence[str | None], share: float, seed: int) -> NDArray[np.bool_]:
    key, most = str(seed).encode(), share * 256.0**_HIDDEN_KEY

    def apart(person: str | None) -> bool:
        found = hmac.digest(key, b"" if person is None else person.encode(), "sha256")
        return int.from_bytes(found[:_HIDDEN_KEY], "big") < most

    return np.array([apart(person) for person in people], dtype=np.bool_)


def _rows_of(source: Any, rows: NDArray[np.intp]) -> Any:
    if isinstance(source, Table):
        return source.take(rows)
    if isinstance(source, np.ndarray):
        return source[rows]
    import narwhals

    frame = narwhals.from_native(source, eager_only=True, pass_through=True)
    if isinstance(frame, narwhals.DataFrame):
        return frame[rows.tolist()].to_native()
    return block_from("source", source)[rows]
