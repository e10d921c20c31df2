"""Shipped parameters of banded BLTs for a horizon and a band, and how good they are.

``banded_table.json``, made by benchmarks/fit_banded.py, holds by `Curves` and log2(n): the numbers
of a `Shape` (lags, rows and, where columns differ in norm, columns) at log2(n/band) = 0, 1/2, 1,
..., and the logs of the largest and the rms error at 0, 1, ...; norms of columns that fall are
fitted to as many visits as there are bands, n/band rounded up.  In between, both are interpolated,
linearly in these two; outside, the curves are those of the nearest entry, and errors are
extrapolated.  Only the error depends on the table, and `BandedBLT` computes it; the interpolated
errors are for choosing among factorisations, in microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from privlearn.mechanisms.banded_shapes import (
    LAGS,
    ROWS,
    Array,
    Curves,
    Errors,
    Objective,
    Shape,
    exponentials,
)
from privlearn.mechanisms.banded_toeplitz import MOST_LAGS
from privlearn.mechanisms.participation_norms import falling_norm
from privlearn.mechanisms.row_scales import LEAST_SCALE
from privlearn.values.participation import Participation

Entries = Mapping[int, tuple[tuple[float, ...], ...]]


@cache
def banded_table(numbers: Literal["shapes", "errors"], curves: Curves) -> Entries:
    """Entries of the shipped table by log2(horizon), each in the order of log2(horizon / band)."""
    file = Path(__file__).with_name("banded_table.json")
    found = json.loads(file.read_text(encoding="utf-8"))[numbers][curves]
    return {int(log): tuple(map(tuple, entries)) for log, entries in found.items()}


class BandedParameters(NamedTuple):
    """Arguments of `BandedBLT`, but for the horizon."""

    band: int
    weights: tuple[float, ...]
    decay: tuple[float, ...]
    row_scales: tuple[float, ...]
    column_scales: tuple[float, ...]


def band_for(horizon: int, participation: Participation | None) -> int:
    """The widest band whose columns at two visits of a person have no row in common.

    Raises:
        ValueError: a rule that counts in batches.
    """
    if participation is not None and participation.batched:
        raise ValueError(f"participation = {participation}: a stream has no batches")
    if participation is None or participation.visits(horizon) == 1:
        return min(horizon, MOST_LAGS)
    return min(participation.apart, MOST_LAGS)


def fitted_parameters(horizon: int, band: int, curves: Curves) -> BandedParameters:
    """From the table."""
    return parameters_of(fitted_shape(horizon, band, curves), band)


def best_curves(horizon: int, band: int, objective: Objective, visits: int) -> Curves:
    """Those of the table with the least error of a person with so many visits, a band apart."""
    if objective == "max" or visits == 1:
        return objective
    alike = fitted_errors(horizon, band, "mean").rms * math.sqrt(visits)
    norm = falling_norm(horizon, band, fitted_columns(horizon, band, "visits"), visits, band)
    return "visits" if fitted_errors(horizon, band, "visits").rms * norm < alike else "mean"


def parameters_of(shape: Shape, band: int) -> BandedParameters:
    """Of these curves."""
    weights, decay = exponentials(shape, band)
    rows = tuple(min(1.0, max(LEAST_SCALE, math.exp(y))) for y in shape.rows)
    return BandedParameters(band, _floats(weights), _floats(decay), rows, _scales(shape))


def _scales(shape: Shape) -> tuple[float, ...]:
    """p at its knots; the class has one of 1 where columns are alike."""
    found = tuple(max(LEAST_SCALE, y) for y in accumulate(map(math.exp, shape.columns), min))
    return found if found[-1] < 1 else (1.0,)


def fitted_columns(horizon: int, band: int, curves: Curves) -> tuple[float, ...]:
    """The ``column_scales`` of `fitted_parameters`."""
    return _scales(fitted_shape(horizon, band, curves))


def fitted_shape(horizon: int, band: int, curves: Curves) -> Shape:
    """Curves between those of the table; with more than 128 bands, those of 128 bands."""
    return shape_of(
        _floats(_between(banded_table("shapes", curves), min(horizon, 128 * band), band, 2))
    )


def shape_of(numbers: tuple[float, ...]) -> Shape:
    """Of an entry of the table: columns are listed where they differ in norm."""
    lags, rows, columns = numbers[:LAGS], numbers[LAGS : LAGS + ROWS], numbers[LAGS + ROWS :]
    return Shape(lags, rows, columns) if columns else Shape(lags, rows)


def fitted_errors(horizon: int, band: int, curves: Curves) -> Errors:
    """Errors of `fitted_parameters`, for one visit, from the table; within 1% where columns have
    norm 1, else 5% (`tests`)."""
    logs = _between(banded_table("errors", curves), horizon, band, 1, beyond=True)
    return Errors(*map(float, np.exp(logs)))


def _between(
    table: Entries, horizon: int, band: int, by_octave: int, beyond: bool = False
) -> Array:
    """Linear in log2(horizon) between rows of the table, and in log2(n/band) within them.

    There, ``by_octave`` entries are an octave.
    """
    lower, upper, share = _neighbours(tuple(table), math.log2(horizon), beyond)
    ratio = by_octave * math.log2(horizon / band)
    below, above = _along(table[lower], ratio, beyond), _along(table[upper], ratio, beyond)
    return (1 - share) * below + share * above


def _along(entries: tuple[tuple[float, ...], ...], at: float, beyond: bool) -> Array:
    lower, upper, share = _neighbours(tuple(range(len(entries))), at, beyond)
    return (1 - share) * np.array(entries[lower]) + share * np.array(entries[upper])


def _neighbours(points: tuple[int, ...], at: float, beyond: bool) -> tuple[int, int, float]:
    """The two of increasing ``points`` around, or nearest, ``at``; the share of the upper one."""
    upper = next((i for i, point in enumerate(points) if i and point >= at), len(points) - 1)
    lower = max(upper - 1, 0)
    share = (at - points[lower]) / (points[upper] - points[lower] or 1)
    return points[lower], points[upper], share if beyond else min(max(share, 0.0), 1.0)


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(map(float, values))
