"""What the columns of a table are: declared by a person, never worked out from the rows.

Bounds, categories and ranges of dates are public constants.  They decide how a cell is scaled and
which cells are null, so that a bound that was computed from the rows would itself tell of them.

Examples:
    >>> schema = Schema(
    ...     {"age": Number(17, 45), "job": Category(["clerk", "farmer", "nurse"]),
    ...      "affair": Category(["no", "yes"])},
    ...     target="affair",
    ... )
    >>> schema.features, schema.classes
    (('age', 'job'), ('no', 'yes'))
"""

from __future__ import annotations

import codecs
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime
from functools import cached_property, wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, ValidationError
from pydantic.dataclasses import dataclass

from privlearn.errors import DataError
from privlearn.tables.cells import LabelPlaces

Missing: TypeAlias = Literal["indicate", "null"]
"""A missing cell of an optional column is the middle and an input that says so, or a null row."""

Label: TypeAlias = Any  # bool, int, float or str
T = TypeVar("T")
_CONFIG: Final = ConfigDict(extra="forbid")
_UNKNOWN: Final = "?"
_ARRAY_TARGET: Final = "y"
_LINE: Final = 80
_PLAIN: Final = {
    "missing": "is missing",
    "unexpected_keyword_argument": "is no argument",
    "unexpected_positional_argument": "must be given by name",
}
"""Errors of pydantic in other words, by their type."""
_MOST_DIGITS: Final = 1e15


def _declared(cls: type[T]) -> type[T]:
    """Errors of pydantic as one line that names the field."""
    made = cls.__init__

    @wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            made(self, *args, **kwargs)
        except ValidationError as error:
            names = [field.name for field in fields(cast(Any, cls))]
            raise ValueError(f"{cls.__name__}: {plain_message(error, names)}") from None

    cls.__init__ = init  # type: ignore[method-assign]  # of the same signature
    cls.__repr__ = _call  # type: ignore[method-assign]  # of the same signature
    return cls


def _call(value: Any) -> str:
    """The call that makes it, without what is a default."""
    changed = _changed(value)
    placed = [field.name for field in fields(value) if not field.kw_only]
    parts = [_plain(changed[name]) for name in placed]
    parts += [f"{name}={_plain(now)}" for name, now in changed.items() if name not in placed]
    return f"{type(value).__name__}({', '.join(parts)})"


def _plain(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_DIGITS:
        return str(int(value))
    if not isinstance(value, dict):
        return repr(value)
    text = ", ".join(f"{name!r}: {kind!r}" for name, kind in value.items())
    if len(text) < _LINE:
        return f"{{{text}}}"
    return "{\n" + "".join(f"    {name!r}: {kind!r},\n" for name, kind in value.items()) + "}"


def _plain_number(value: Any) -> Any:
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise ValueError("must be a finite number")
    return value


def _plain_labels(values: Any) -> Any:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ValueError("must be a list of labels: text, integers or booleans")
    found = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    for label in found:
        if not isinstance(label, bool | int | float | str):
            raise ValueError("a label is text, an integer or a boolean")
        if isinstance(label, float) and not math.isfinite(label):
            raise ValueError("a label is no inf and no nan")
    return found


def _day(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r}: must be a date such as 2015-01-31") from None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("must be a date, or text such as 2015-01-31")
    return value


def _kinds(columns: Any) -> Any:
    for name, kind in dict(columns).items():
        if not isinstance(kind, Number | Category | Boolean | Date | Ignored):
            raise ValueError(f"{name!r}: must be Number, Category, Boolean, Date or Ignored")
        if not isinstance(name, str):
            raise ValueError(f"{name!r}: names of columns are text, also where they look otherwise")
    return columns


_Bound: TypeAlias = Annotated[
    float, BeforeValidator(_plain_number), Field(allow_inf_nan=False, strict=False)
]
_Labels: TypeAlias = Annotated[Sequence[Any], BeforeValidator(_plain_labels)]
_Day: TypeAlias = Annotated[date | str, BeforeValidator(_day)]


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Number:
    """A column of numbers and its bounds, in its own units.

    Args:
        low, high: public bounds; values beyond them are moved onto them (a target's are null).
        log: scale by the logarithm; the bounds are then positive.
        optional: cells may be missing; without it, a row where one is missing is null.
        missing: of an optional column: "indicate" or "null".
        unit: for people who read the schema.

    Raises:
        ValueError: bounds that are no finite numbers, low not below high, log of no positives.
    """

    low: _Bound
    high: _Bound
    log: StrictBool = Field(default=False, kw_only=True)
    optional: StrictBool = Field(default=False, kw_only=True)
    missing: Missing = Field(default="indicate", kw_only=True)
    unit: str = Field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: low must be below high")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g}: a column on the log scale has positive bounds")


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Category:
    """A column of labels and all its public values, in their order.

    Args:
        values: the labels.  Cells match by their text, and numbers by their value.
        optional, missing: as for `Number`.
        other: labels that are not listed are one more category; without it they are unusable.

    Raises:
        ValueError: no labels, or two that the same cell would match.
    """

    values: _Labels
    optional: StrictBool = Field(default=False, kw_only=True)
    missing: Missing = Field(default="indicate", kw_only=True)
    other: StrictBool = Field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values: a category has at least one label")
        assert self.places  # which refuses two that are the same

    @cached_property
    def places(self) -> LabelPlaces:
        """Where each label stands."""
        return LabelPlaces(self.values, other=self.other)


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Boolean:
    """A column of yes and no: true and false, or 1 and 0; ``optional``, ``missing`` as before."""

    optional: StrictBool = Field(default=False, kw_only=True)
    missing: Missing = Field(default="indicate", kw_only=True)


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Date:
    """A column of dates and its public range; scaled in days.

    Args:
        low, high: dates, or text such as "2015-01-31".
        optional, missing: as for `Number`.

    Raises:
        ValueError: no dates, or low not before high.
    """

    low: _Day
    high: _Day
    optional: StrictBool = Field(default=False, kw_only=True)
    missing: Missing = Field(default="indicate", kw_only=True)

    def __post_init__(self) -> None:
        if self.days <= 0:
            raise ValueError(f"low = {self.low}, high = {self.high}: low must be before high")

    @property
    def start(self) -> date:
        """``low``, as a date."""
        return cast(date, self.low)  # the validator has read it

    @property
    def days(self) -> int:
        """From ``low`` to ``high``."""
        return (cast(date, self.high) - self.start).days


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Ignored:
    """A column that is there and never read."""


Kind: TypeAlias = Number | Category | Boolean | Date | Ignored
_KINDS: Final[dict[str, type[Kind]]] = {
    "number": Number,
    "category": Category,
    "boolean": Boolean,
    "date": Date,
    "ignored": Ignored,
}


@_declared
@dataclass(frozen=True, config=_CONFIG)
class Schema:
    """The columns of a table.

    Columns of a file or frame that the schema does not name are not read.

    Args:
        columns: kinds by name.
        target: the column to predict: a `Category` or `Boolean` is a classification, a `Number` a
            regression.
        person: the column that says whose row it is, which is no feature; needs no kind.
        rows_per_person: so many rows of a person count, and further ones are null.
        separator, decimal, thousands, encoding: how numbers and cells are written in CSV files.
        looked_at_data: whoever wrote the schema has seen private values; certificates say so.

    Raises:
        ValueError: a target without a kind, or of one class, marks that are none.
    """

    columns: Annotated[Mapping[str, Kind], BeforeValidator(_kinds)]
    target: str | None = Field(default=None, kw_only=True)
    person: str | None = Field(default=None, kw_only=True)
    rows_per_person: int = Field(default=1, ge=1, kw_only=True)
    separator: str = Field(default=",", kw_only=True)
    decimal: Literal[".", ","] = Field(default=".", kw_only=True)
    thousands: Literal[".", ",", " ", "'", "_"] | None = Field(default=None, kw_only=True)
    encoding: str = Field(default="utf-8", kw_only=True)
    looked_at_data: StrictBool = Field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", dict(self.columns))
        self._check_target()
        if self.person is not None and self.person == self.target:
            raise ValueError(f"person = {self.person!r} is the target")
        if self.person is None and self.rows_per_person != 1:
            raise ValueError("rows_per_person: name the column with the person's id in person")
        self._check_marks()

    def _check_target(self) -> None:
        if self.target is None:
            return
        kind = self.columns.get(self.target)
        if not isinstance(kind, Number | Category | Boolean):
            found = "has no kind in columns" if kind is None else f"is a {type(kind).__name__}"
            raise ValueError(
                f"target = {self.target!r} {found}: declare it as Number (a regression), Category "
                "or Boolean (a classification)"
            )
        if isinstance(kind, Category) and (len(kind.values) < 2 or kind.other):
            raise ValueError(
                f"target = {self.target!r}: a classification has two classes or more, all of them "
                f"listed; declared are {_shown(kind.values)}" + (" and others" * kind.other)
            )

    def _check_marks(self) -> None:
        mark = self.separator
        if len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in "\"\r\n\\.+-'":
            raise ValueError(f"separator = {mark!r}: must be one mark, such as ',', ';' or a tab")
        if self.thousands == self.decimal:
            raise ValueError(f"thousands = {self.thousands!r} is the decimal mark")
        try:
            plain = '0,"\n'.encode(codecs.lookup(self.encoding).name) == b'0,"\n'
        except (LookupError, UnicodeError):
            plain = False
        if not plain:
            raise ValueError(
                f"encoding = {self.encoding!r}: must be one that writes ASCII as it is, such as "
                "'utf-8', 'latin-1' or 'cp1252'; save the file as UTF-8"
            )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that a model sees, in order."""
        apart = (self.target, self.person)
        return tuple(
            name
            for name, kind in self.columns.items()
            if name not in apart and not isinstance(kind, Ignored)
        )

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """Labels of the target of a classification; None for a regression or without a target."""
        kind = None if self.target is None else self.columns[self.target]
        if isinstance(kind, Boolean):
            return (False, True)
        return tuple(kind.values) if isinstance(kind, Category) else None

    def without_target(self) -> Schema:
        """The same for rows to be predicted, which have neither target nor person."""
        kept = {name: self.columns[name] for name in self.features}
        return Schema(
            kept,
            separator=self.separator,
            decimal=self.decimal,
            thousands=self.thousands,
            encoding=self.encoding,
            looked_at_data=self.looked_at_data,
        )

    @staticmethod
    def of_arrays(
        dim: int,
        bounds: Any,
        *,
        names: Sequence[str] | None = None,
        target_bounds: tuple[float, float] | None = None,
        classes: Iterable[Label] | None = None,
    ) -> Schema:
        """The schema of an array of numbers.

        Args:
            dim: columns.
            bounds: one pair for all columns, an array of shape (dim, 2), or a mapping by name.
            names: of the columns; default x0, x1, ….
            target_bounds: of a regression.
            classes: labels of a classification.

        Raises:
            ValueError: bounds of another shape, or both target_bounds and classes.
        """
        columns = list(map(str, names)) if names is not None else [f"x{i}" for i in range(dim)]
        if len(columns) != dim or len(set(columns)) < dim:
            raise ValueError(f"names: must be {dim} different names, one per column")
        kinds: dict[str, Kind] = dict(zip(columns, _numbers(columns, bounds), strict=True))
        if target_bounds is not None and classes is not None:
            raise ValueError("target_bounds and classes: give one of them")
        target = None
        if target_bounds is not None or classes is not None:
            target = _ARRAY_TARGET
            while target in kinds:
                target += "_"
            low, high = target_bounds or (0.0, 1.0)
            kinds[target] = Number(low, high) if classes is None else Category(tuple(classes))
        return Schema(kinds, target=target)

    @staticmethod
    def load(path: str | Path) -> Schema:
        """The schema in a TOML or JSON file, by its ending.

        Raises:
            DataError: not a schema, or one with a ``?`` that nobody has filled in.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise DataError(f"{path} cannot be read: {reason}") from None
        try:
            found = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from None
        try:
            return Schema.from_dict(found)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Writes it as TOML or JSON, by the ending of ``path``."""
        from privlearn.tables.draft import toml_of

        path, told = Path(path), self.to_dict()
        as_json = path.suffix.lower() == ".json"
        text = json.dumps(told, indent=2, ensure_ascii=False) + "\n" if as_json else toml_of(told)
        path.write_text(text, encoding="utf-8")

    @staticmethod
    def draft(source: Any) -> str:
        """TOML with ``?`` for what a person must fill in, from names and types only.

        Args:
            source: a frame, or the path of a CSV (of which only the first line is read) or Parquet
                file.

        Raises:
            DataError: the file cannot be read.
        """
        from privlearn.tables.draft import draft_of

        return draft_of(source)

    def to_dict(self) -> dict[str, Any]:
        """JSON of what is not a default; `from_dict` reads it."""
        told = {name: value for name, value in _changed(self).items() if name != "columns"}
        kinds = {kind: name for name, kind in _KINDS.items()}
        columns = {
            name: {"kind": kinds[type(kind)], **_changed(kind)}
            for name, kind in self.columns.items()
        }
        return {**told, "columns": columns}

    @staticmethod
    def from_dict(told: Any) -> Schema:
        """The schema that `to_dict` wrote.

        Raises:
            ValueError: not a schema; the message names the column.
        """
        if not isinstance(told, Mapping) or not isinstance(told.get("columns"), Mapping):
            raise ValueError("a schema has a table [columns.NAME] for each column")
        unknown = [*_unknown(told)]
        if unknown:
            raise ValueError(
                f"{', '.join(unknown[:30])}: fill in what stands as '?', from what is known of the "
                "column and never from its rows"
            )
        columns: dict[str, Kind] = {}
        for name, about in told["columns"].items():
            given = dict(about) if isinstance(about, Mapping) else {}
            kind = given.pop("kind", None)
            if kind not in _KINDS:
                raise ValueError(f"columns.{name}.kind = {kind!r}: must be {', '.join(_KINDS)}")
            try:
                columns[name] = _KINDS[kind](**given)
            except (ValueError, TypeError) as error:
                raise ValueError(f"columns.{name}: {error}") from None
        try:
            return Schema(**{**told, "columns": columns})
        except TypeError as error:
            raise ValueError(str(error)) from None


def plain_message(error: Exception, names: Sequence[str] = ()) -> str:
    """What pydantic found, in one line; ``names`` are those of positional arguments."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = []
    for one in error.errors(include_url=False):
        loc = [names[part] if isinstance(part, int) and names else part for part in one["loc"]]
        where = ".".join(map(str, loc))
        message = _PLAIN.get(one["type"], one["msg"].removeprefix("Value error, "))
        found.append(f"{where}: {message}" if where else message)
    return "; ".join(found)


def _numbers(names: Sequence[str], bounds: Any) -> list[Number]:
    if isinstance(bounds, Mapping):
        bounds = {str(name): pair for name, pair in bounds.items()}  # frames may name by numbers
        missing = [name for name in names if name not in bounds]
        if missing:
            raise ValueError(f"bounds: none declared for {_shown(missing)}")
        return [Number(*bounds[name]) for name in names]
    try:
        pairs = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (len(names), 1))
    if pairs.shape != (len(names), 2):
        raise ValueError(
            f"bounds: must be one pair (low, high), {len(names)} pairs, or a mapping from names"
        )
    return [Number(float(low), float(high)) for low, high in pairs]


def _changed(value: Any) -> dict[str, Any]:
    found = {}
    for field in fields(value):
        given: Any = field.default
        default, now = getattr(given, "default", given), getattr(value, field.name)
        if now != default or type(now) is not type(default):
            plain = now.isoformat() if isinstance(now, date) else now
            found[field.name] = list(plain) if isinstance(plain, tuple) else plain
    return found


def _unknown(value: Any, where: str = "") -> Iterable[str]:
    if value == _UNKNOWN:
        yield where
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _unknown(part, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list) and value == [_UNKNOWN]:
        yield where


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:30])) + (", …" if len(names) > 30 else "")
