"""Drafts of schemas, from names and types only, and schemas as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privlearn.tables.readers import names_and_forms

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
_KEYS: dict[str, dict[str, Any]] = {
    "numbers": {"kind": "number", "low": "?", "high": "?"},
    "booleans": {"kind": "boolean"},
    "text": {"kind": "category", "values": ["?"]},
    "dates": {"kind": "date", "low": "?", "high": "?"},
}


def draft_of(source: Any) -> str:
    """TOML of a schema with ``?`` for what a person must fill in."""
    lines = [_HEAD]
    told, seen = names_and_forms(source), set[str]()
    for name, form in told:
        if not name.strip() or name in seen:
            lines.append(f"# column {name!r} has no name of its own, and is not read\n")
            continue
        seen.add(name)
        lines.append(_table(name, _KEYS.get(form, {"kind": "?"})))
    return "\n".join(lines)


def toml_of(told: Mapping[str, Any]) -> str:
    """A schema's `to_dict` as TOML."""
    head = [f"{name} = {_value(value)}\n" for name, value in told.items() if name != "columns"]
    tables = [_table(name, about) for name, about in told["columns"].items()]
    return "\n".join(["".join(head), *tables] if head else tables)


def _table(name: str, about: Mapping[str, Any]) -> str:
    keys = "".join(f"{key} = {_value(value)}\n" for key, value in about.items())
    return f"[columns.{_value(name)}]\n{keys}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
