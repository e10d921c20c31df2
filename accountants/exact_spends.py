"""What a spend says of its exact noise, derived again from its domain and noise."""

from __future__ import annotations

import re
from typing import Any, Final

from privlearn.errors import BudgetError
from privlearn.ledger.entries import SpendEntry
from privlearn.noise import noise_from_dict
from privlearn.noise.exact.tables import SAMPLER, SHA256
from privlearn.rows.domains import domain_from_dict, has_integers, largest_number
from privlearn.values.grid import Grid
from privlearn.values.json_forms import OBJECT, TEXT, check_form

_FORMER_TABLES: dict[str, str] = {}
"""Those of versions that were released, as of this one; none is ever removed."""
KNOWN_TABLES: Final = {**_FORMER_TABLES, SHA256: SAMPLER}
"""SHA-256 of tables, and the sampler that reads them."""

_FORM = {"sampler": TEXT, "tables": TEXT}
_ON_GRID = {"grid": OBJECT, "bound": OBJECT}
_WHOLE = re.compile(r"0|[1-9][0-9]{0,18}")


def check_exact(entry: SpendEntry) -> None:
    """Looks at what a spend says of its exact noise, if anything.

    Where domain or noise are not of this package, their integers are their code's word; that a
    bound is stated, and leaves room, is looked at all the same.

    Raises:
        BudgetError: other names or types; tables that no version had; a grid whose scale is not
            that of the noise, or that is finer than any on which contributions fit; a bound other
            than that of the domain.
    """
    if entry.exact is None:
        return
    try:
        _check(entry, entry.exact)
    except KeyError as missing:
        raise BudgetError(f"{entry.mechanism}: exact: lacks {missing}") from None
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BudgetError(f"{entry.mechanism}: exact: {error}") from None


def _check(entry: SpendEntry, said: dict[str, Any]) -> None:
    check_form("exact noise", said, _FORM, _ON_GRID)
    if KNOWN_TABLES.get(said["tables"]) != said["sampler"]:
        raise ValueError(
            f"sampler {said['sampler']!r:.80} with tables {said['tables']!r:.80}: no released "
            "version had them"
        )
    if "grid" not in said and "bound" not in said:
        if entry.arithmetic == "sum":
            raise ValueError("a sum needs a grid")
        return
    grid, noise = Grid.from_dict(said["grid"]), noise_from_dict(entry.noise)
    _check_largest(said["bound"])
    if noise is None:
        return
    unit = getattr(noise, "unit", None)
    if unit != grid.scale:
        raise ValueError(f"grid of scale {grid.scale!r}: that of the noise is {unit!r}")
    _check_bound(entry, said, grid)


def _check_largest(bound: dict[str, Any]) -> None:
    """Whatever the domain: sums and noise that are added to larger integers may wrap."""
    largest = bound["largest"]
    if not isinstance(largest, str) or not _WHOLE.fullmatch(largest) or int(largest) >= 2**61:
        raise ValueError(f"bound: largest = {largest!r:.80}: must be a whole number below 2^61")


def _check_bound(entry: SpendEntry, said: dict[str, Any], grid: Grid) -> None:
    domain = domain_from_dict(entry.domain)
    if domain is None:
        return
    if not has_integers(domain):
        raise ValueError(f"domain {entry.domain}: has no integers")
    finest = Grid.fitting(grid.scale, largest_number(domain))
    if grid.bits > finest.bits:
        raise ValueError(f"a grid of {grid.bits} bits: contributions fit on {finest.bits} at most")
    bound = {name: str(number) for name, number in domain.integer_bound(grid).items()}
    if said["bound"] != bound:
        raise ValueError(f"bound {said['bound']!r:.200}: that of the domain is {bound}")
