"""Fits the curves of a banded BLT: the least largest, or mean, error of prefix sums.

With h = 1/c (as power series), m_j**2 = sum_u (l_(j+u) c_u)**2 and W = A C^-1 z,

    var W_t = sum_(s<=t) (r_ts / l_s)**2,    r_ts = sum_(j=s)^t (m_j / p_j) h_(j-s),

by Fourier transforms, as is its gradient.  Column j of C has norm p_j, p does not rise, and columns
a band apart have no row in common: a person with k visits at least a band apart moves C X by the
root of S**2 = p_1**2 + p_(1+b)**2 + ... (k terms) at most.  With p = 1 that is sqrt(k), and a fit
depends on n and the band only.  Where all visits count, as in the mean error, early columns are
better longer than late ones: more sums have their noise.

Long horizons are fitted on fewer rows.  Take blocks of q = n/N rows as one: f_u and the
coefficients of 1/f are scale-free, so all sums over lags of a block and more stay what they are,
but sums of squares over the lags below gain sum_(n/q<=u<n) f_u**2 = log(q) / pi, both in m_j**2 and
in var W_t, at l, m and p that hardly change within a block:

    m_j**2 += l_j**2 log(q) / pi,      var W_t += (m_t / (p_t l_t))**2 log(q) / pi.

The curves found so are tried on the full number of rows (tests, and the errors in the table).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_shapes import (
    COLUMNS,
    LAGS,
    ROWS,
    Array,
    Errors,
    Objective,
    Shape,
    half_powers,
    lag_basis,
    row_basis,
)
from privlearn.mechanisms.row_scales import LEAST_SCALE

Times = NDArray[np.int64]
Reduction = Callable[[Array], "tuple[float, Array]"]
"""Variances -> a number and its derivative by each of them."""
MOST_RATIO = 64
"""Of n to the band, beyond which rows are not scaled: l would range over more than 2**20."""
_MOST_ROWS = 1024
_LEAST_BAND = 16
_TIMES = 192
_CELLS = 1 << 18
"""Rows of r times entries that are in memory at once."""
_POWERS = (16.0, 64.0, 256.0)
_STEPS = 200
_PULL, _PULL_BY_ROWS = 1e-4, 2e-2
"""What moving a knot by 1 counts, beside the log of the variance: more where rows are few."""


@final
@dataclass(frozen=True, slots=True)
class Model:
    """The factorisation of one size, whose blocks of rows may stand for more.

    Args:
        rows: N.
        band: entries below the diagonal of T, and the diagonal.
        unseen: log(q) / pi, see above; 0 for the factorisation itself.
    """

    rows: int
    band: int
    unseen: float = 0.0

    @classmethod
    def of(cls, horizon: int, band: int) -> Model:
        """What is fitted for a horizon and a band, with about 1024 rows."""
        modelled = min(horizon, 2 * MOST_RATIO * band)
        if modelled <= _MOST_ROWS:
            return cls(modelled, band)
        fewer = max(_LEAST_BAND, round(_MOST_ROWS * band / modelled))
        rows = round(fewer * modelled / band)
        return cls(rows, fewer, math.log(modelled / rows) / math.pi)


def variances(
    c: Array, scales: Array, times: Times, unseen: float = 0.0, norms: Array | None = None
) -> Array:
    """var W_t at ``times``, where columns of C have these ``norms``; 1 by default."""
    forward = _Forward(c, scales, unseen, norms)
    return np.concatenate([forward.variances(part) for part in forward.parts(times)])


def errors(
    c: Array, scales: Array, times: Times | None = None, norms: Array | None = None
) -> Errors:
    """Over all times, or over increasing ``times`` that end with the last, as a trapezoidal mean.

    Between the times, the largest error can be larger.
    """
    rows = len(scales)
    times = np.arange(1, rows + 1) if times is None else times
    found = variances(c, scales, times, norms=norms)
    return Errors(math.sqrt(found.max()), math.sqrt(_shares(times) @ found))


def some_times(rows: int, size: int) -> Times:
    """About ``size`` times up to ``rows``: evenly, and geometrically towards both ends; or all."""
    if rows <= size:
        return np.arange(1, rows + 1)
    end = np.geomspace(1, rows / 4, size // 8)
    every = np.concatenate([np.linspace(1, rows, size - 2 * (size // 8)), end, rows + 1 - end])
    return np.unique(every.round().astype(np.int64))


def fit_shape(
    horizon: int, band: int, objective: Objective, start: Shape, visits: int = 1
) -> Shape:
    """The curves with the least error that L-BFGS finds from ``start``; seconds, deterministic.

    The largest error is fitted as p-norms of the variances, for growing p.  What the error hardly
    depends on stays where it was: exp(a t) in l, with exp(-a u) in c, is one such direction.  With
    more than 64 bands, l is constant.  For the mean error of several visits, the steps of log p
    from knot to knot are fitted too, none of them upwards.
    """
    from scipy.optimize import minimize

    model = Model.of(horizon, band)
    times = some_times(model.rows, _TIMES)
    lags, rows = lag_basis(model.band), row_basis(model.rows)
    plain = half_powers(model.band)[1:]
    stages: list[Reduction] = [power_mean(p) for p in _POWERS]
    falling = objective == "mean" and visits > 1
    if objective == "mean":
        stages = [mean(_shares(times))]
    pull = _PULL + _PULL_BY_ROWS / model.rows
    scaled = horizon <= MOST_RATIO * band
    fit, modelled = -(-horizon // band), -(-model.rows // model.band)
    counted = max(1, math.ceil(min(visits, fit) * modelled / fit))
    starts = slice(0, counted * model.band, model.band)
    of_rows, of_columns = slice(LAGS, LAGS + ROWS), slice(LAGS + ROWS, None)
    fallen = -np.diff(start.columns) * falling
    origin = np.concatenate([np.array(start.lags) - 1.0, scaled * np.array(start.rows), fallen])
    bounds = [(None, None)] * (LAGS + ROWS) + [(0.0, None)] * (COLUMNS - 1) if falling else None
    x = origin
    for reduction in stages:

        def of(x: Array, reduction: Reduction = reduction) -> tuple[float, Array]:
            c = np.concatenate([[1.0], plain * (1.0 + x[:LAGS] @ lags)])
            knots, tops = np.exp(x[of_rows]), np.exp(_summed(x[of_columns]))
            norms = tops @ rows
            value, by_c, by_scale, by_norm = gradient(
                c, knots @ rows, times, reduction, model.unseen, norms
            )
            square = float(norms[starts] @ norms[starts])
            by_norm[starts] += 2.0 * norms[starts] / square
            by_tops = tops * (rows @ by_norm)
            by_knots = scaled * knots * (rows @ by_scale)
            by_fall = -falling * np.cumsum(by_tops[::-1])[::-1][1:]
            by_x = np.concatenate([lags @ (by_c[1:] * plain), by_knots, by_fall])
            moved = x - origin
            value += math.log(square / counted) + pull * float(moved @ moved)
            return value, by_x + 2.0 * pull * moved

        options: Any = {"maxiter": _STEPS, "maxcor": 20, "ftol": 1e-10}
        with np.errstate(all="ignore"):
            found: Any = minimize(
                of, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
        x = found.x
    scales = np.maximum(x[of_rows] - x[of_rows].max(), math.log(LEAST_SCALE))
    return Shape(
        tuple(map(float, 1.0 + x[:LAGS])),
        tuple(map(float, scales)),
        tuple(map(float, np.maximum(_summed(x[of_columns]), math.log(LEAST_SCALE)))),
    )


def _summed(falls: Array) -> Array:
    return np.concatenate([[0.0], -np.cumsum(falls)])


def power_mean(p: float) -> Reduction:
    """Log of the p-mean of variances, which tends to the log of the largest."""

    def reduce(values: Array) -> tuple[float, Array]:
        top = values.max()
        powers = (values / top) ** p
        return math.log(top) + math.log(powers.mean()) / p, powers / (powers.sum() * values)

    return reduce


def mean(shares: Array) -> Reduction:
    """Log of a weighted mean of variances."""

    def reduce(values: Array) -> tuple[float, Array]:
        total = float(shares @ values)
        return math.log(total), shares / total

    return reduce


def gradient(
    c: Array,
    scales: Array,
    times: Times,
    reduction: Reduction,
    unseen: float = 0.0,
    norms: Array | None = None,
) -> tuple[float, Array, Array, Array]:
    """Reduction of the variances, and its derivatives by c, by l and by p."""
    forward = _Forward(c, scales, unseen, norms)
    parts = [forward.running(part) for part in forward.parts(times)]
    found = np.concatenate([forward.of_running(r, t) for r, t in parts])
    value, by_variance = reduction(found)
    if not math.isfinite(value):  # a long step of a line search
        return 1e3, np.zeros_like(c), np.zeros_like(scales), np.zeros_like(scales)
    return value, *forward.backward(parts, by_variance)


class _Forward:
    """One evaluation, with the transforms that its gradient shares."""

    def __init__(self, c: Array, scales: Array, unseen: float, norms: Array | None) -> None:
        from scipy.fft import next_fast_len

        self.c, self.scales, self.unseen = c, scales, unseen
        self.rows = len(scales)
        self.norms = np.ones(self.rows) if norms is None else norms
        self.size = next_fast_len(2 * self.rows - 1, real=True)
        squares = correlated(scales**2, c**2, self.rows) + unseen * scales**2
        self.m = np.sqrt(squares) / self.norms  # m_j / p_j
        self.h = reciprocal(np.pad(c, (0, self.rows - len(c))))
        self.h_hat = self.transform(self.h)

    def transform(self, x: Array) -> NDArray[np.complex128]:
        from scipy.fft import rfft

        return np.asarray(rfft(x, self.size))

    def back(self, x: NDArray[np.complex128]) -> Array:
        from scipy.fft import irfft

        return np.asarray(irfft(x, self.size)[..., : self.rows])

    def parts(self, times: Times) -> list[Times]:
        each = max(1, _CELLS // self.rows)
        return [times[i : i + each] for i in range(0, len(times), each)]

    def running(self, times: Times) -> tuple[Array, Times]:
        """r_ts at ``times``: (times, rows), 0 for s > t."""
        r = self.back(self.transform(self.masked(times)) * self.h_hat.conj())
        r[self.after(times)] = 0.0
        return r, times

    def after(self, times: Times) -> NDArray[np.bool_]:
        return np.arange(self.rows) >= times[:, None]

    def masked(self, times: Times) -> Array:
        """m / p up to each time: (times, rows)."""
        return np.where(self.after(times), 0.0, self.m)

    def of_running(self, r: Array, times: Times) -> Array:
        now = times - 1
        near = self.unseen * (self.m[now] / self.scales[now]) ** 2
        return np.asarray((r * r) @ (1.0 / self.scales**2) + near)

    def variances(self, times: Times) -> Array:
        return self.of_running(*self.running(times))

    def backward(
        self, parts: list[tuple[Array, Times]], by_variance: Array
    ) -> tuple[Array, Array, Array]:
        l, m, h, band = self.scales, self.m, self.h, len(self.c)  # noqa: E741
        by_m, by_l = np.zeros(self.rows), np.zeros(self.rows)
        by_h_hat = np.zeros(len(self.h_hat), dtype=complex)
        start = 0
        for r, times in parts:
            weight = 2.0 * by_variance[start : start + len(times), None]
            start += len(times)
            by_r = weight * r / l**2
            by_l -= (by_r * r).sum(0) / l
            by_r_hat = self.transform(by_r)
            pulled = self.back(by_r_hat * self.h_hat)
            pulled[self.after(times)] = 0.0
            by_m += pulled.sum(0)
            by_h_hat += (self.transform(self.masked(times)) * by_r_hat.conj()).sum(0)
            now = times - 1
            near = self.unseen * weight[:, 0] * m[now] / l[now] ** 2
            by_m[now] += near
            by_l[now] -= near * m[now] / l[now]
        by_c = -correlated(self.back(by_h_hat), multiplied(h, h, self.rows), band)
        by_square = by_m / (2.0 * m * self.norms**2)
        by_c += 2.0 * self.c * correlated(l**2, by_square, band)
        by_l += 2.0 * l * (multiplied(by_square, self.c**2, self.rows) + self.unseen * by_square)
        return by_c, by_l, -by_m * m / self.norms


def multiplied(a: Array, b: Array, size: int) -> Array:
    """First ``size`` coefficients of the product of two power series."""
    from scipy.signal import fftconvolve

    return np.asarray(fftconvolve(a, b)[:size])


def correlated(a: Array, b: Array, size: int) -> Array:
    """sum_u a_(j+u) b_u for j = 0, ..., size - 1."""
    from scipy.signal import fftconvolve

    return np.asarray(fftconvolve(a, b[::-1])[len(b) - 1 :][:size])


def reciprocal(c: Array) -> Array:
    """As many coefficients of 1/c as c has, by Newton's iteration."""
    h = np.array([1.0 / c[0]])
    while len(h) < len(c):
        size = min(2 * len(h), len(c))
        rest = -multiplied(c[:size], h, size)
        rest[0] += 2.0
        h = multiplied(h, rest, size)
    return h


def _shares(times: Times) -> Array:
    """Weights of a trapezoidal mean over 1, ..., times[-1]: all rows count the same where all are
    given."""
    edges = np.concatenate([[0.5], (times[1:] + times[:-1]) / 2.0, [times[-1] + 0.5]])
    return np.asarray(np.diff(edges) / times[-1])
