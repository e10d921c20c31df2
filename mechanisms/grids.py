"""On which grid a mechanism clips and adds noise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from privlearn.noise import Noise
from privlearn.rows.domains import Domain, has_integers, largest_number
from privlearn.values.grid import Grid


def grid_of(domain: Domain[Any], noise: Noise, rows: float | Fraction = 1) -> Grid | None:
    """The finest grid for contributions from ``domain`` under ``noise``, the same for all data.

    Args:
        domain: of the contributions.
        noise: that is added to them.
        rows: see `Grid.fitting`; 1 where sums may have any size.

    Returns:
        None where the domain or the noise is somebody else's and has no integers: the mechanism
        then computes in doubles, which certificates say.

    Raises:
        ValueError: contributions are too large for the noise, or the domain has no number on it.
    """
    unit = getattr(noise, "unit", None)
    if unit is None or not has_integers(domain):
        return None
    try:
        grid = Grid.fitting(unit, largest_number(domain), rows)
    except ValueError as refused:
        raise ValueError(f"noise = {noise!r}, domain = {domain!r}: {refused}") from None
    grid = Grid(unit, min(grid.bits, getattr(noise, "finest", grid.bits)))
    domain.null_integers(grid)
    return grid
