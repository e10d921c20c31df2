"""The laws of sums that are made apart: they tell nothing, add up, and are released for a token."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from privlearn.checking.laws.harness import Case
from privlearn.checking.laws.report import Broken, LawFinding, NotApplicable
from privlearn.errors import UsersError
from privlearn.rows import PartialSum, Rows, merge

_KEY = bytes(range(32))
_LOOKS: dict[str, Callable[[Any], Any]] = {
    "np.asarray": np.asarray,
    "list": list,
    "float": float,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle.dumps": pickle.dumps,
    "hash": hash,
    "==": lambda partial: partial == partial,
    "+": lambda partial: partial + partial,
    "[0]": lambda partial: partial[0],
    "memoryview": memoryview,
    "vars": vars,
    "str.format": "{:>9}".format,
}


def check_partials_tell_nothing(case: Case) -> LawFinding:
    """A partial sum is sealed like rows, and what is seen of it is the same for all data."""
    if not hasattr(case.mechanism, "partial"):
        raise NotApplicable("its sums are not made apart: it has no partial(rows)")
    seen = [_seen_of(_partial(case, rows)) for rows in case.neighbouring(4)]
    for other in seen[1:]:
        for name, text in seen[0].items():
            if other[name] != text:
                at = max(_alike(text, other[name]) - 20, 0)
                raise Broken(
                    f"{name} of a partial sum depends on the data: ...{text[at : at + 40]!r}, then "
                    f"...{other[name][at : at + 40]!r}"
                )
    return f"{len(_LOOKS)} ways to look, {len(seen)} data sets"


def check_partials_add_up(case: Case) -> LawFinding:
    """Merged in any order they are released as all rows at once, once, and for a token only."""
    if not hasattr(case.mechanism, "release_partial"):
        raise NotApplicable("it has no release_partial(total, token)")
    rows = case.rows
    whole, n = case.run(rows).value, len(case.users)
    cuts = sorted({0, n // 3, (n + 1) // 2, n})
    users = [range(a, b) for a, b in pairwise(cuts)]
    parts = [_partial(case, rows.slice(part)) for part in users]
    for order in (parts, parts[::-1], [*parts[1:], parts[0]]):
        total = merge(*order)
        if _released(case, total).tobytes() != whole.tobytes():
            raise Broken("merged partial sums are not released as all rows at once are")
    _check_paid(case, merge(*parts))
    try:
        merge(parts[0], parts[0])
    except UsersError:
        return f"{len(parts)} parts in 3 orders"
    raise Broken("a row may count twice: a partial sum can be merged with itself")


def _partial(case: Case, rows: Rows[Any]) -> PartialSum:
    try:
        found = case.mechanism.partial(rows)
    except ValueError as error:  # in doubles, say
        raise NotApplicable(str(error)) from None
    for name, look in _LOOKS.items():
        try:
            look(found)
        except Exception:
            continue
        raise Broken(f"{name} shows a partial sum, {type(found).__name__}: it must be sealed")
    if type(found) is not PartialSum:
        raise Broken(
            f"partial(rows) is a {type(found).__name__}: must be a PartialSum, which only a "
            "receipt opens (privlearn.contract.partial_sums.partial_sum)"
        )
    return found


def _seen_of(partial: PartialSum) -> dict[str, str]:
    seen = {"repr": repr(partial), "str": str(partial)}
    for name in dir(partial):
        value = None if name.startswith("_") else getattr(partial, name)
        if value is not None and not callable(value):
            seen[f"attribute {name}"] = repr(value)
    one, other = partial.to_bytes(_KEY), partial.to_bytes(_KEY)
    if one == other:
        raise Broken("to_bytes(key) gives the same bytes twice: equal sums could be told")
    seen["the length of to_bytes(key)"] = str(len(one))
    return seen


def _alike(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _released(case: Case, total: PartialSum) -> Any:
    book, observer = case.account(case.users)
    token = book.issue(case.loss, users=case.users, label="law")
    released = case.mechanism.release_partial(total, token)
    if observer.said[:1] != ["spend"]:
        raise Broken("release_partial lets a value out without spending its token")
    return np.asarray(getattr(released, "value", released))


def _check_paid(case: Case, total: PartialSum) -> None:
    book, _ = case.account(case.users)
    token = book.issue(case.loss, users=case.users, label="law")
    case.mechanism.release_partial(total, token)
    for what, paid in (("a token that was spent", token), ("None for a token", None)):
        try:
            case.mechanism.release_partial(total, paid)
        except Exception:
            continue
        raise Broken(f"release_partial lets a value out for {what}")
