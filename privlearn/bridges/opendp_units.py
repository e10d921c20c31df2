"""Whether ``d_in`` of an OpenDP measurement is for the neighbours of an account.

With k rows of a person, neighbours differ by

======================================= ========== ===========
input metric                            add-remove replace-one
======================================= ========== ===========
SymmetricDistance, InsertDeleteDistance k          2k
ChangeOneDistance, HammingDistance      infinite   k
SymmetricIdDistance (of identifiers)    1          2
ChangeOneIdDistance                     infinite   1
FrameDistance (bounds by group)         as inside  refused
======================================= ========== ===========

Metrics of numbers, such as AbsoluteDistance, say nothing of a person: they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privlearn.bridges.meters import Meters
from privlearn.errors import AdjacencyError
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count

_ROWS = ("SymmetricDistance", "InsertDeleteDistance")
_CHANGED_ROWS = ("ChangeOneDistance", "HammingDistance")
_PEOPLE = ("SymmetricIdDistance",)
_CHANGED_PEOPLE = ("ChangeOneIdDistance",)
OF_PEOPLE = (*_PEOPLE, *_CHANGED_PEOPLE)
"""Metrics that count identifiers, each with any number of rows."""


def check_units(metric: Any, d_in: Any, rows_each: int, accountant: Meters) -> str:
    """The metric's name; refuses a distance that is not that of neighbours.

    Raises:
        AdjacencyError: it is that of others, or the metric has none of the account's.
        TypeError, ValueError: no distance.
    """
    name, relation = str(metric.type), accountant.adjacency
    if name.startswith("FrameDistance"):
        _check_bounds(str(metric.inner_metric.type), d_in, rows_each, relation)
        return name
    wanted = _distance(name, rows_each, relation)
    if count(d_in=d_in) != wanted:
        raise AdjacencyError(
            f"opendp: d_in = {d_in} in {name}: neighbours under {relation.value}, of a person with "
            f"rows_each = {rows_each}, differ by {wanted}: say d_in={wanted}, or how many rows a "
            "person has; nothing was spent"
        )
    return name


def distance_text(d_in: Any) -> Any:
    """JSON of a distance."""
    return [str(bound) for bound in d_in] if isinstance(d_in, Sequence) else int(d_in)


def _distance(name: str, rows_each: int, relation: Adjacency) -> int:
    if name in OF_PEOPLE and rows_each != 1:
        raise ValueError(
            f"rows_each = {rows_each}: {name} counts identifiers, whatever their rows: leave it out"
        )
    match relation:
        case Adjacency.ADD_REMOVE if name in (*_ROWS, *_PEOPLE):
            return rows_each
        case Adjacency.REPLACE_ONE if name in (*_ROWS, *_PEOPLE):
            return 2 * rows_each
        case Adjacency.REPLACE_ONE if name in (*_CHANGED_ROWS, *_CHANGED_PEOPLE):
            return rows_each
    if name in (*_CHANGED_ROWS, *_CHANGED_PEOPLE):
        raise AdjacencyError(
            f"opendp: {name} is for data sets of one size, and says nothing of neighbours under "
            f"{relation.value}: open the account with adjacency=Adjacency.REPLACE_ONE; nothing was "
            "spent"
        )
    if name in (*_ROWS, *_PEOPLE):
        raise AdjacencyError(
            f"opendp: in {name} a record that becomes the null record is a row that is replaced: "
            "open the account with adjacency=Adjacency.REPLACE_ONE; nothing was spent"
        )
    raise AdjacencyError(
        f"opendp: {name} is no distance between data sets of records, so that no d_in is known to "
        "be one person's: meter the whole chain from the records, transformation >> measurement; "
        "nothing was spent"
    )


def _check_bounds(inner: str, d_in: Any, rows_each: int, relation: Adjacency) -> None:
    if relation is not Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            f"opendp: bounds by group (FrameDistance) are those of rows that join or leave, not of "
            f"{relation.value}: state one number in {inner}, or open the account with "
            "adjacency=Adjacency.ADD_REMOVE; nothing was spent"
        )
    wanted = _distance(inner, rows_each, relation)
    if not isinstance(d_in, Sequence) or isinstance(d_in, str):
        raise TypeError(f"d_in = {d_in!r}: must be a list of Bound, as the metric is FrameDistance")
    whole = [bound.per_group for bound in d_in if not len(bound.by)]
    if whole != [wanted]:
        raise AdjacencyError(
            f"opendp: d_in = {d_in}: one of the bounds must be that of all rows together, "
            f"Bound(by=[], per_group={wanted}), for a person with rows_each = {rows_each}; nothing "
            "was spent"
        )
