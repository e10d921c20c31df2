"""Drafts of schemas, from names and types only, and schemas as TOML."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from privlearn.errors import DataError
from privlearn.tables.files import TableFile
from privlearn.tables.readers import names_and_forms
from privlearn.tables.schema import Schema

_HEAD = """\
# A draft from the names and types of the columns; no row was looked at.
# Fill in what stands as "?" from what is known of a column (its unit, a questionnaire, a law, other
# data), never from these rows: the smallest or largest value in the rows is somebody's value, and a
# bound that is computed from it tells of that person outside any guarantee. A bound that is too
# wide costs accuracy only, and values beyond one are moved onto it.
# kind = "number" (low, high; log = true), "category" (values; other = true), "boolean",
# "date" (low, high) or "ignored". Cells that may be missing: optional = true.
# If you have looked at private values before you wrote this, say so: looked_at_data = true
# target = "name of the column to predict"
# person = "name of the column with the person's id, if one person has several rows"
"""
_MARKS = '# decimal = "," and thousands = "." if numbers are written so'
_KEYS: dict[str, dict[str, Any]] = {
    "numbers": {"kind": "number", "low": "?", "high": "?"},
    "reals": {"kind": "number", "low": "?", "high": "?"},
    "booleans": {"kind": "boolean"},
    "text": {"kind": "category", "values": ["?"]},
    "dates": {"kind": "date", "low": "?", "high": "?"},
}


def draft_of(source: Any) -> str:
    """TOML of a schema with ``?`` for what a person must fill in."""
    lines, seen = [_HEAD], set[str]()
    if isinstance(source, str | os.PathLike):
        source, separator = _header_of(source)
        if separator != ",":
            lines.append(f"separator = {_value(separator)}\n{_MARKS}\n")
    lines.append("[columns]")
    told = source if isinstance(source, list) else names_and_forms(source)
    for name, form in told:
        if name.strip() and name not in seen:
            lines.append(_column(name, _KEYS.get(form, {"kind": "?"})))
        else:
            lines.append(f"# column {name!r} has no name of its own, and is not read")
        seen.add(name)
    return "\n".join(lines) + "\n"


def _header_of(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """An Arrow table without rows, or names without types; and the mark between names."""
    file = TableFile(path, Schema({}))
    if not file.csv:
        return file.header(), ","
    try:
        return _untyped(file), ","
    except DataError:
        for mark in ";\t|":
            names = _untyped(TableFile(path, Schema({}, separator=mark)))
            if len(names) > 1:
                return names, mark
        raise


def _untyped(file: TableFile) -> list[tuple[str, str]]:
    return [(name, "") for name in file.header().column_names]


def toml_of(told: Mapping[str, Any]) -> str:
    """A schema's `to_dict` as TOML."""
    head = [f"{name} = {_value(value)}" for name, value in told.items() if name != "columns"]
    columns = [_column(name, about) for name, about in told["columns"].items()]
    return "\n".join([*head, "", "[columns]", *columns]) + "\n"


def _column(name: str, about: Mapping[str, Any]) -> str:
    plain = re.fullmatch("[A-Za-z0-9_-]+", name)
    keys = ", ".join(f"{key} = {_value(value)}" for key, value in about.items())
    return f"{name if plain else _value(name)} = {{ {keys} }}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
