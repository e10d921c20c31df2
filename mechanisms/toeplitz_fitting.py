"""Fits buffered Toeplitz factorisations (BLT) to the visits of a person.

Where a person has few visits that are close to each other, most * apart much below the horizon,
columns may reach far beyond the next visit, and a BLT without a band is better than a banded one.
Its sensitivity is that of visits at 0, apart, 2 apart, ... (`participation_norms`), and in closed
form: with kappa visits, v = sum_i column(i apart) is a sum of exponentials between two visits,

    v_(s apart + r) = sum_m w_m g_sm theta_m**(r - 1),   g_sm = sum_(e<=s) theta_m**(e apart),

for r >= 1, and 1 + sum_m w_m (g_sm - 1) / theta_m for r = 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz, fitted_decays
from privlearn.participation import Participation

Array = NDArray[np.float64]
_GRADIENT = 1e-3
"""Of the log of the error by a logit, where the search ends: 0.2% above the minimum, at most."""


def fit_toeplitz(
    horizon: int, participation: Participation, objective: Objective = "max"
) -> BufferedToeplitz:
    """Five buffers with the least error of a person that BFGS finds, from the one-visit table.

    Some 50 ms, deterministic; the search computes in doubles, with gradients by differences.

    Raises:
        ValueError: a rule that counts in batches; a horizon out of range.
    """
    from scipy.optimize import minimize

    if participation.batched:
        raise ValueError(f"participation = {participation}: a stream has no batches")
    visits = participation.visits(horizon)

    def error(x: Array) -> float:
        decay, output_decay = decoded(x)
        square = norm_square(decay, output_decay, horizon, visits, participation.apart)
        found = variance(decay, output_decay, horizon, objective)
        return 0.5 * math.log(square * found) if square * found > 0 else 1e3

    start = encoded(*map(np.array, fitted_decays(horizon)))
    found: Any = minimize(error, start, method="BFGS", options={"gtol": _GRADIENT})
    decay, output_decay = decoded(found.x)
    return BufferedToeplitz(horizon, tuple(map(float, decay)), tuple(map(float, output_decay)))


def decoded(logits: Array) -> tuple[Array, Array]:
    """Logits of the ratios of neighbours in 1 > output_decay[0] > decay[0] > ... -> the decays."""
    chain = np.cumprod(1.0 / (1.0 + np.exp(-np.clip(logits, -18.0, 18.0))))
    return chain[1::2], chain[::2]


def encoded(decay: Array, output_decay: Array) -> Array:
    """Inverse of `decoded`."""
    chain = np.ravel(np.column_stack([output_decay, decay]))
    ratio = chain / np.concatenate([[1.0], chain[:-1]])
    return np.asarray(np.log(ratio / (1.0 - ratio)))


def norm_square(decay: Array, output_decay: Array, horizon: int, visits: int, apart: int) -> float:
    """S**2 for ``visits`` visits, in doubles."""
    weights, log = residues(decay, output_decay), np.log1p(-decay)
    s = np.arange(visits)[:, None]
    period = -np.expm1(apart * log)
    more = np.exp((apart - 1) * log) * -np.expm1(s * apart * log) / period  # (g - 1) / theta
    held = weights * (1.0 + more * np.exp(log))
    within = held[:-1].T @ held[:-1] * powers_sum(log, apart - 1)
    last = np.outer(held[-1], held[-1]) * powers_sum(log, horizon - (visits - 1) * apart - 1)
    return float(((1.0 + more @ weights) ** 2).sum() + within.sum() + last.sum())


def powers_sum(log: Array, size: int) -> Array:
    """sum_(r<size) (theta_i theta_j)**r, by pairs."""
    pairs = np.add.outer(log, log)
    return np.asarray(np.expm1(size * pairs) / np.expm1(pairs))


def variance(decay: Array, output_decay: Array, horizon: int, objective: Objective) -> float:
    """Of the last prefix sum, which is the largest, or the mean of all, in doubles."""
    beta = np.concatenate([[np.prod(decay / output_decay)], residues(output_decay, decay)])
    beta[1:] /= output_decay
    log = np.concatenate([[0.0], np.log1p(-output_decay)])
    pairs = np.add.outer(log, log)
    gap = -np.expm1(pairs)
    gap[0, 0] = 1.0
    powers = -np.expm1(horizon * pairs) / gap  # of 0, 1, ..., horizon - 1
    if objective == "max":
        powers[0, 0] = horizon
        return float(beta @ powers @ beta)
    powers = (1.0 - np.exp(pairs) * powers / horizon) / gap
    powers[0, 0] = (horizon + 1) / 2
    return float(beta @ powers @ beta)


def residues(poles: Array, others: Array) -> Array:
    """|prod_j (others_j - poles_i) / prod_{j != i} (poles_j - poles_i)| for each i."""
    above = np.prod(np.abs(np.subtract.outer(poles, others)), axis=1)
    gaps = np.abs(np.subtract.outer(poles, poles)) + np.eye(len(poles))
    return np.asarray(above / np.prod(gaps, axis=1))
