"""Sums of contributions that stay sealed until a token pays for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from privlearn.contract.spends import Spend
from privlearn.errors import ProvenanceError, RowLocalityError
from privlearn.rows import PartialSum, Rows
from privlearn.rows.clipping import clipping_of
from privlearn.rows.domains import is_shipped
from privlearn.rows.partial_sums import first_difference
from privlearn.rows.sealed import check_forms


def partial_sum(spend: Spend, rows: Rows[Any]) -> PartialSum:
    """The sealed sum of the contributions of ``rows`` to ``spend``; nothing leaves.

    Raises:
        TypeError: no rows.
        ValueError: the spend has no grid, so that sums depend on the order.
        DataError: records of a form that the domain cannot use.
        ProvenanceError: rows on a timetable that no registry admitted.
    """
    if not isinstance(rows, Rows):
        raise TypeError(f"rows: must be Rows (see Rows.seal), not {type(rows).__name__}")
    if Rows._slots_of(rows) is not None and Rows._stamp_of(rows) is None:
        raise ProvenanceError(
            "rows on a timetable are added up only if a registry of people admitted them: use "
            "people.admit(rows, ids), or serve them with people=ids"
        )
    if spend.grid is None:
        raise ValueError(f"{spend.mechanism}: adds up in doubles, which cannot be merged exactly")
    check_forms(spend.domain, rows)
    clipping = clipping_of(spend.domain, spend.grid)
    functions = tuple(dict.fromkeys((*rows.functions, *clipping.checked.names)))
    total, defect = np.zeros(clipping.size, np.int64), None
    try:
        total = clipping.sum(rows)
    except RowLocalityError as error:  # told to whoever releases it, when that is paid for
        defect = error
    board, stamp = Rows._board_of(rows), Rows._stamp_of(rows)
    return PartialSum((rows.users,), total, _terms(spend), functions, board, defect, stamp)


def _terms(spend: Spend) -> dict[str, Any]:
    return {
        "mechanism": spend.mechanism,
        "domain": spend.domain.to_dict(),
        # somebody's domain may write what one of ours would
        "shipped": is_shipped(spend.domain),
        "exact": spend.exact_form(),
    }


def check_terms(spend: Spend, total: PartialSum) -> None:
    """Raises ValueError unless ``total`` was added up for such a spend."""
    terms = _terms(spend)
    has = {name: total.terms.get(name) for name in terms}
    if has != terms:
        name, found, wanted = first_difference(has, terms)
        raise ValueError(f"total: has {name} = {found!r}, must be {wanted!r}")
    if PartialSum._size_of(total) != (spend.domain.size,):
        raise ValueError(
            f"total: is a sum of shape {PartialSum._size_of(total)}, must be {spend.domain.size}"
        )
