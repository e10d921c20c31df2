"""Queries of polars frames for which maps of OpenDP 0.16.0 are known to say too little.

The issues are open upstream: counts of columns behind an invariant (2938, 2939, 2940), a group's
``max_length`` below the rows that a person has in it (2945), columns that are defined anew after
what bounds a person (2949), and expressions (`EXPRESSIONS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from privlearn.bridges.opendp_faults import Made
from privlearn.bridges.opendp_units import OF_PEOPLE
from privlearn.errors import BudgetError

_MARGIN = re.compile(r"\{(.*?)\}")
_COLUMN = re.compile(r'col\("([^"\\]*)"\)')
_TRUNCATES = ".over("
_KEEPS = re.compile(r"< \((\d+)\)")
_PLANNED = "make_private_lazyframe"
_TRANSPARENT = frozenset(
    {
        _PLANNED,
        "make_approximate",
        "make_basic_composition",
        "make_chain_pm",
        "make_composition",
        "make_fix_delta",
        "make_fixed_approxDP_to_approxDP",
        "make_pureDP_to_zCDP",
        "make_zCDP_to_approxDP",
    }
)
"""What a measurement of frames may be made of, so that all its plans are seen."""
_UNSPENT = "; nothing was spent"


EXPRESSIONS = {
    "to_physical": "2944: codes of categories depend on the rows before",
    "NaN": "2936: a NaN that is put in makes a sum 0",
    "fill_null([col(": "2936: the other column may hold a NaN, which makes a sum 0",
    ".dt.": "2942: a time out of range ends the process",
    "null_count": "2938: casts, cuts and remainders make nulls that are counted without noise",
}
"""What a plan may not hold, as polars writes it, and the issue."""


def is_of_frames(measurement: Any) -> bool:
    """Whether a measurement, or the compositor of a context, takes frames."""
    return str(measurement.input_domain.type) == "LazyFrameDomain"


def check_frames(measurement: Any, d_in: Any, made: Made | None) -> None:
    """Refuses a measurement, or the compositor of a context, of frames with a known fault.

    Args:
        measurement: whose input is a frame.
        d_in: between neighbours.
        made: the constructors of a measurement, with what they were given; None of a context,
            whose queries are looked at one by one.

    Raises:
        BudgetError: it has one, or it cannot be seen whether it has.
    """
    margins = list(_margins(measurement.input_domain))
    for by, margin in margins:
        if margin.invariant is not None:
            raise BudgetError(
                f"opendp: the margin of {by or 'all rows'} says invariant={margin.invariant!r}: "
                "its map is for neighbours with the same keys or lengths, which are not the "
                "account's, and counts behind it come without noise (opendp issues 2938, 2939, "
                "2940): leave it out, and give public keys by with_keys" + _UNSPENT
            )
    metric, most = measurement.input_metric, _most_rows(d_in)
    if made is not None:
        plans = [plan.explain(optimized=False) for plan in _plans(made)]
        of_people = str(getattr(metric, "inner_metric", metric).type) in OF_PEOPLE
        grouped = isinstance(d_in, Sequence) and any(len(bound.by) for bound in d_in)
        kept = [number for plan in plans for number in _kept(plan, of_people, grouped)]
        most = max(kept, default=0) if of_people else most
    for by, margin in margins:
        if by and margin.max_length is not None and margin.max_length < most:
            raise BudgetError(
                f"opendp: the margin of {by} says max_length={margin.max_length}, below the "
                f"{most} rows that one person may have in a group: its map takes it for the most "
                f"that may change, which is twice as much (opendp issue 2945): leave it out, or "
                f"say at least {most}" + _UNSPENT
            )


def _margins(domain: Any) -> Iterator[tuple[list[str], Any]]:
    """All margins that were stated, each with its columns, as the library itself holds them."""
    written = repr(domain)
    for inside in _MARGIN.findall(written.rpartition("margins=[")[2]):
        by = _COLUMN.findall(inside)
        if ", ".join(f'col("{name}")' for name in by) != inside:
            raise BudgetError(
                f"opendp: a margin by {inside}: only margins by plain columns are looked at, and "
                "others may be known to be priced too low: name columns" + _UNSPENT
            )
        yield by, domain.get_margin(by)


def _most_rows(d_in: Any) -> int:
    """Of one person in a group."""
    if isinstance(d_in, Sequence):
        return max(int(bound.per_group) for bound in d_in if bound.per_group is not None)
    return int(d_in)


def _plans(made: Made) -> Iterator[Any]:
    """The plans that a measurement computes.

    Raises:
        BudgetError: one of them cannot be seen.
    """
    unseen = sorted({name for name, _ in made} - _TRANSPARENT)
    if unseen or not made:
        raise BudgetError(
            f"opendp: the plan of {unseen[0] if unseen else 'the measurement'} is not to be seen, "
            "and plans may hold what is priced too low (such as opendp issue 2949): meter each "
            "query, as meter_context does, with one plan" + _UNSPENT
        )
    return (given["lazyframe"] for name, given in made if name == _PLANNED)


def _kept(explained: str, of_people: bool, grouped: bool) -> list[int]:
    """How many rows, or groups, truncations leave a person; a plan's last step is written first.

    Raises:
        BudgetError: a plan that defines columns after its bounds hold, or is known to be wrong.
    """
    for text, issue in EXPRESSIONS.items():
        if text in explained:
            raise BudgetError(
                f"opendp: a plan with {text!r} is known to be wrong (opendp issue {issue}): "
                "prepare that column before the data are handed over" + _UNSPENT
            )
    lines = [line.strip() for line in explained.splitlines()]
    found = [i for i, line in enumerate(lines) if line.startswith("FILTER") and _TRUNCATES in line]
    sources = [i for i, line in enumerate(lines) if line.startswith("DF ")]
    kept = [_KEEPS.findall(lines[i]) for i in found]
    if not all(kept) or not sources:
        raise BudgetError("opendp: a plan is not understood" + _UNSPENT)
    for start in sources if grouped else found[:1] if of_people else []:
        _check_after(lines[:start])
    return [int(number) for numbers in kept for number in numbers]


def _check_after(lines: Sequence[str]) -> None:
    """From a line of a plan upwards to where it aggregates, rows are only left out."""
    for line in reversed(lines):
        if line.startswith(("FROM", "FILTER")):
            continue
        if (
            line.startswith(_ENDS)
            or "] BY [" in line
            or (line.startswith("SELECT") and "opendp" in line)
        ):
            return
        raise BudgetError(
            f"opendp: after a person is bounded the plan goes on with {line[:80]!r}: columns that "
            "are defined anew may undo the bounds, and the map does not see that (opendp issue "
            "2949): define them before the truncation, or before the data are handed over"
            + _UNSPENT
        )


_ENDS = ("LEFT PLAN", "RIGHT PLAN")
"""A frame of keys, which is joined to what was aggregated."""
