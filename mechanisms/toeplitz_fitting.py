"""Fits buffered Toeplitz factorisations (BLT) to the visits of a person.

Where a person has few visits that are close to each other, most * apart much below the horizon,
columns may reach far beyond the next visit, and a BLT without a band is better than a banded one.
Its sensitivity is that of visits at 0, apart, 2 apart, ... (`participation_norms`), and in closed
form: with kappa visits, v = sum_i column(i apart) is a sum of exponentials between two visits,

    v_(s apart + r) = sum_m w_m g_sm theta_m**(r - 1),   g_sm = sum_(e<=s) theta_m**(e apart),

for r >= 1, and 1 + sum_m w_m (g_sm - 1) / theta_m for r = 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_shapes import Objective
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz, fitted_decays
from privlearn.values.participation import Participation

Array = NDArray[np.float64]
MOST_VISITS = 2**14
"""That a fit takes: its time and memory grow with them."""
_GRADIENT = 1e-3
"""Of the log of the error by a logit, where the search ends: 0.2% above the minimum, at most."""
_STEP = 1e-5


def fit_toeplitz(
    horizon: int, participation: Participation, objective: Objective = "max"
) -> BufferedToeplitz:
    """Five buffers with the least error of a person that BFGS finds, from the one-visit table.

    Some 20 ms, deterministic; the search computes in doubles, with gradients by differences.

    Raises:
        ValueError: a rule that counts in batches, or with more than 2**14 visits; a horizon out of
            range.
    """
    from scipy.optimize import minimize

    if participation.batched:
        raise ValueError(f"participation = {participation}: a stream has no batches")
    visits = participation.visits(horizon)
    if visits > MOST_VISITS:
        raise ValueError(f"participation = {participation}: more than {MOST_VISITS} visits")
    start = encoded(*map(np.array, fitted_decays(horizon)))
    steps = _STEP * np.vstack([np.zeros(len(start)), np.eye(len(start)), -np.eye(len(start))])

    def error(x: Array) -> tuple[float, Array]:
        decay, output_decay = decoded(x + steps)
        square = norm_square(decay, output_decay, horizon, visits, participation.apart)
        logs = 0.5 * np.log(square * variance(decay, output_decay, horizon, objective))
        if not np.isfinite(logs).all():  # a long step of a line search
            return 1e3, np.zeros_like(x)
        ahead, behind = np.split(logs[1:], 2)
        return float(logs[0]), (ahead - behind) / (2 * _STEP)

    with np.errstate(all="ignore"):
        found: Any = minimize(error, start, method="BFGS", jac=True, options={"gtol": _GRADIENT})
    decay, output_decay = decoded(found.x)
    return BufferedToeplitz(horizon, tuple(decay.tolist()), tuple(output_decay.tolist()))


# Decays are arrays whose last axis is that of the buffers ------------------------------------


def decoded(logits: Array) -> tuple[Array, Array]:
    """Logits of the ratios of neighbours in 1 > output_decay[0] > decay[0] > ... -> the decays."""
    ratios = 1.0 / (1.0 + np.exp(-np.clip(logits, -18.0, 18.0)))
    chain = np.asarray(np.cumprod(ratios, axis=-1), dtype=np.float64)
    return chain[..., 1::2], chain[..., ::2]


def encoded(decay: Array, output_decay: Array) -> Array:
    """Inverse of `decoded`, for one pair of decays."""
    chain = np.ravel(np.column_stack([output_decay, decay]))
    ratio = chain / np.concatenate([[1.0], chain[:-1]])
    return np.asarray(np.log(ratio / (1.0 - ratio)))


def norm_square(decay: Array, output_decay: Array, horizon: int, visits: int, apart: int) -> Array:
    """S**2 for ``visits`` visits, in doubles."""
    weights, log = residues(decay, output_decay)[..., None, :], np.log1p(-decay)[..., None, :]
    s = np.arange(visits)[:, None]
    period = -np.expm1(apart * log)
    more = np.exp((apart - 1) * log) * -np.expm1(s * apart * log) / period  # (g - 1) / theta
    held = weights * (1.0 + more * np.exp(log))
    rates, before, last = log[..., 0, :], held[..., :-1, :], held[..., -1, :]
    pairs = np.swapaxes(before, -1, -2) @ before * powers_sum(rates, apart - 1)
    left = horizon - (visits - 1) * apart
    pairs += last[..., :, None] * last[..., None, :] * powers_sum(rates, left - 1)
    first = 1.0 + (weights * more).sum(axis=-1)
    return np.asarray((first**2).sum(axis=-1) + pairs.sum(axis=(-1, -2)))


def powers_sum(log: Array, size: int) -> Array:
    """sum_(r<size) (theta_i theta_j)**r, by pairs."""
    pairs = log[..., :, None] + log[..., None, :]
    return np.asarray(np.expm1(size * pairs) / np.expm1(pairs))


def variance(decay: Array, output_decay: Array, horizon: int, objective: Objective) -> Array:
    """Of the last prefix sum, which is the largest, or the mean of all, in doubles."""
    steady = np.prod(decay / output_decay, axis=-1, keepdims=True)
    beta = np.concatenate([steady, residues(output_decay, decay) / output_decay], axis=-1)
    log = np.concatenate([np.zeros_like(steady), np.log1p(-output_decay)], axis=-1)
    pairs = log[..., :, None] + log[..., None, :]
    gap = -np.expm1(pairs)
    gap[..., 0, 0] = 1.0
    powers = -np.expm1(horizon * pairs) / gap  # sums of the powers 0, ..., horizon - 1
    if objective == "max":
        powers[..., 0, 0] = horizon
    else:
        powers = (1.0 - np.exp(pairs) * powers / horizon) / gap
        powers[..., 0, 0] = (horizon + 1) / 2
    return np.asarray((beta[..., :, None] * powers * beta[..., None, :]).sum(axis=(-1, -2)))


def residues(poles: Array, others: Array) -> Array:
    """|prod_j (others_j - poles_i) / prod_{j != i} (poles_j - poles_i)| for each i."""
    above = np.prod(np.abs(poles[..., :, None] - others[..., None, :]), axis=-1)
    gaps = np.abs(poles[..., :, None] - poles[..., None, :]) + np.eye(poles.shape[-1])
    return np.asarray(above / np.prod(gaps, axis=-1))
