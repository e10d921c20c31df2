"""What a banded BLT looks like, without its scale: curves that change slowly with n and n/b.

C = diag(l) T diag(p/m), T banded Toeplitz with c_0 = 1 and c_u = g(u/b) f_u for 1 <= u < b, where
f_u are the coefficients of (1 - x)**-1/2, l_t = l(t/n) and p_j = p(j/n) <= 1, the norm of column j.
The curves are linear between knots: g in the root of u/b, from g(0) = 1; l and p in t/n, with knots
closer at both ends.  Any curves, of which p does not rise, make a valid factorisation: how good it
is, is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Objective = Literal["max", "mean"]
Curves = Literal["max", "mean", "visits"]
"""What curves are for: the least largest error with unit columns, the least rms error with unit
columns, and that of a person whose visits, a band apart, fill the horizon."""
LAGS = 6
"""Knots of g, at u/b = (i / LAGS)**2 for i = 1, ..., LAGS."""
ROWS = 13
"""Knots of l, see `row_knots`."""
COLUMNS = 13
"""Knots of p, as of l."""
BUFFERS = 8
"""Exponentials that stand for the curve g."""


class Errors(NamedTuple):
    """Of prefix sums, where column 1 of C is a unit vector: the largest standard deviation, and the
    rms."""

    largest: float
    rms: float


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """The curves of one factorisation.

    Args:
        lags: g at its knots, ``LAGS`` numbers.
        rows: log l at its knots, ``ROWS`` numbers, the largest 0, as their mean does not matter.
        columns: log p at its knots, ``COLUMNS`` numbers from 0 that do not rise.
    """

    lags: tuple[float, ...]
    rows: tuple[float, ...]
    columns: tuple[float, ...] = (0.0,) * COLUMNS

    def coefficients(self, band: int) -> Array:
        found = half_powers(band)
        found[1:] *= 1.0 + (np.array(self.lags) - 1.0) @ lag_basis(band)
        return found

    def scales(self, horizon: int) -> Array:
        return np.asarray(np.exp(self.rows) @ row_basis(horizon))

    def norms(self, horizon: int) -> Array:
        return np.asarray(np.exp(self.columns) @ row_basis(horizon))


FLAT = Shape((1.0,) * LAGS, (0.0,) * ROWS)


def half_powers(size: int) -> Array:
    """Coefficients of (1 - x)**-1/2."""
    i = np.arange(1.0, size)
    return np.concatenate([[1.0], np.cumprod((2 * i - 1) / (2 * i))])[:size]


def row_knots() -> Array:
    """Knots in [0, 1], closer at both ends: those of `row_scales.knot_times`."""
    u = np.linspace(0.0, 1.0, ROWS)
    return u * u * (3.0 - 2.0 * u)


def lag_basis(band: int) -> Array:
    """Share of each knot in g at the lags 1, ..., band - 1: (LAGS, band - 1)."""
    at = np.sqrt(np.arange(1, band) / band)
    return _hats(at, np.linspace(0.0, 1.0, LAGS + 1))[1:]


def row_basis(horizon: int) -> Array:
    """Share of each knot in l and p at the rows 1, ..., horizon: (ROWS, horizon)."""
    return _hats(np.linspace(0.0, 1.0, horizon), row_knots())


def exponentials(shape: Shape, band: int) -> tuple[Array, Array]:
    """Weights and decays, c_u near sum weights * (1 - decays)**(u - 1) for 1 <= u < band.

    The rates are a geometric sequence from 1 to 0.3/band and the weights least squares, over lags
    that thin out geometrically.  At most ``band - 1`` of each, and at least one.
    """
    if band == 1:
        return np.zeros(1), np.full(1, 0.5)
    lags = _thinned(band)
    wanted = _at(shape, lags, band)
    rates = np.geomspace(1.0, 0.3 / band, min(BUFFERS, band - 1))
    width = np.sqrt(np.gradient(lags)) if len(lags) > 1 else np.ones(1)
    powers = np.exp(-np.multiply.outer(lags - 1.0, rates)) * width[:, None]
    weights = np.linalg.lstsq(powers, wanted * width, rcond=1e-9)[0]
    return np.asarray(weights), -np.expm1(-rates)


def _at(shape: Shape, lags: Array, band: int) -> Array:
    """c at some lags: f_u = Gamma(u + 1/2) / (Gamma(u + 1) sqrt(pi))."""
    g = np.interp(np.sqrt(lags / band), np.linspace(0.0, 1.0, LAGS + 1), (1.0, *shape.lags))
    logs = [math.lgamma(u + 0.5) - math.lgamma(u + 1.0) for u in lags.tolist()]
    return np.asarray(g * np.exp(logs) / math.sqrt(math.pi))


def _hats(at: Array, knots: Array) -> Array:
    return np.array([np.interp(at, knots, row) for row in np.eye(len(knots))])


def _thinned(band: int) -> Array:
    """Lags from 1 to band - 1, all or about 300 of them."""
    if band <= 300:
        return np.arange(1.0, band)
    many = [np.arange(1, 41), np.geomspace(1, band - 1, 200), np.linspace(1, band - 1, 100)]
    return np.unique(np.concatenate(many).round())
