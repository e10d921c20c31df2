"""Broken arithmetic: what is private for real numbers and is not for those of a computer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator

from faults.cases import Fault, RandomFunction, sampling_case
from privlearn.losses import Loss, MinimizerLoss
from privlearn.losses.budgets import PureDP
from privlearn.rows.domains import Array

CASACUBERTA = (
    "Casacuberta, Shoemate, Vadhan & Wagaman 2022, Widespread underestimation of sensitivity in "
    "differentially private libraries and how to fix it"
)

# Sensitivity in floating point ----------------------------------------------------------------


def half_precision_sum(data: Array, rng: Generator) -> float:
    """A sum of records in [−2, 2] that is added up in half precision."""
    return float(np.cumsum(data.astype(np.float16), dtype=np.float16)[-1] + rng.laplace(scale=4.0))


def double_precision_sum(data: Array, rng: Generator) -> float:
    """The same, added up with digits to spare."""
    return float(data.sum() + rng.laplace(scale=4.0))


def wrapping_count(data: Array, rng: Generator) -> float:
    """A count kept in eight bits."""
    return float(data.sum(dtype=np.int8) + rng.laplace())


def wide_count(data: Array, rng: Generator) -> float:
    """A count kept in sixty-four."""
    return float(data.sum(dtype=np.int64) + rng.laplace())


def _at_the_edge(last: float) -> Array:
    """Sums to 2048 or 2050, where half precision turns from steps of 1 to steps of 2.

    From 2048, 0.75 can be taken away again and again and counts as 1; from 2050 it is lost.
    """
    return np.array([2.0] * 1024 + [last] + [-0.75] * 200)


# Noise in floating point ----------------------------------------------------------------------


def floating_point_laplace(data: float, rng: Generator) -> float:
    """The textbook: a double plus a double made from a logarithm."""
    return data + float(rng.laplace())


GRID = 2.0**-10


def laplace_on_a_grid(data: float, rng: Generator) -> float:
    """Both on a grid of 2⁻¹⁰: the difference of two geometric variables."""
    rate = -math.expm1(-GRID)
    steps = int(rng.geometric(rate)) - int(rng.geometric(rate))
    return (round(data / GRID) + steps) * GRID


# Arg-min of a tilted objective ----------------------------------------------------------------

RIDGE, TILT = 4.0, 6.0
_RECORDS = ((0.8, 1.0), (-0.3, 1.0), (0.5, -1.0), (0.9, -1.0))


def _slope(data: Any, theta: float) -> tuple[float, float]:
    """First and second derivative of a logistic loss with ridge, without the tilt."""
    first, second = RIDGE * theta, RIDGE
    for x, y in data:
        p = 1 / (1 + math.exp(y * x * theta))
        first -= y * x * p
        second += x * x * p * (1 - p)
    return first, second


def tilted_minimum(tilt: Callable[[Generator], float]) -> RandomFunction:
    """The exact minimiser of a logistic loss in one dimension, randomly tilted."""

    def release(data: Any, rng: Generator) -> float:
        b, theta = tilt(rng), 0.0
        for _ in range(8):
            first, second = _slope(data, theta)
            theta -= (first + b) / second
        return theta

    return release


def real_tilt(rng: Generator) -> float:
    """Gaussian noise."""
    return float(rng.normal(scale=TILT))


def tilt_on_grid(step: float) -> Callable[[Generator], float]:
    """Gaussian noise rounded to multiples of ``step``."""
    return lambda rng: step * round(real_tilt(rng) / step)


def _price() -> Loss:
    """Of the ideal minimiser: |∇ℓ − ∇ℓ′| <= 2 and ∇²ℓ <= 1/4 for |x| <= 1."""
    return MinimizerLoss(
        difference=2.0, trace=0.25, rank=1, directions=1, ridge=RIDGE, noise_std=TILT
    )


# Clipping -------------------------------------------------------------------------------------

RADIUS = 10.0


def radial_l1(gradient: Array) -> Array:
    """Scaled into the ℓ1 ball."""
    return np.asarray(gradient * min(1.0, RADIUS / np.abs(gradient).sum()))


def radial_linf(gradient: Array) -> Array:
    """Scaled into the cube."""
    return np.asarray(gradient * min(1.0, RADIUS / np.abs(gradient).max()))


def clamped(gradient: Array) -> Array:
    """Each coordinate by itself: 1-Lipschitz in every norm of this kind."""
    return np.clip(gradient, -RADIUS, RADIUS)


def with_l1_noise(clip: Callable[[Array], Array], epsilon: float) -> RandomFunction:
    """A clipped gradient with noise for an ℓ1 distance of 1."""
    return lambda data, rng: clip(data) + rng.laplace(scale=1 / epsilon, size=2)


def with_linf_noise(clip: Callable[[Array], Array], epsilon: float) -> RandomFunction:
    """A clipped gradient with noise of density exp(−ε‖z‖∞), for an ℓ∞ distance of 1."""
    return lambda data, rng: (
        clip(data) + rng.gamma(3.0, 1 / epsilon) * rng.uniform(-1.0, 1.0, size=2)
    )


_CLIPPING = (
    "projection onto a ball is scaling in ℓ2 only; Han et al., private online Frank-Wolfe, bound "
    "differences of gradients in ℓq"
)
_SOLVER = (
    "Chaudhuri, Monteleoni & Sarwate 2011 need real numbers: the tilt is −∇J at the minimiser, "
    "which lies on the grid for the true data only"
)
_COARSE = TILT / 4
_HERE, _THERE = (*_RECORDS, (1.0, 1.0)), (*_RECORDS, (0.37, -1.0))

FAULTS = (
    Fault(
        "a sum rounded at every step",
        "In half precision one record decides whether hundreds of others are rounded away.",
        f"{CASACUBERTA}, repeated rounding",
        sampling_case(half_precision_sum, PureDP(1), (_at_the_edge(0.0), _at_the_edge(2.0))),
        sampling_case(double_precision_sum, PureDP(1), (_at_the_edge(0.0), _at_the_edge(2.0))),
    ),
    Fault(
        "a sum that wraps around",
        "In eight bits 127 + 1 is −128, before any noise is added.",
        f"{CASACUBERTA}, overflow",
        sampling_case(wrapping_count, PureDP(1), (np.ones(127, int), np.ones(128, int))),
        sampling_case(wide_count, PureDP(1), (np.ones(127, int), np.ones(128, int))),
    ),
    Fault(
        "floating-point Laplace",
        "Which doubles can come out depends on the value that the noise is added to.",
        "Mironov 2012, On significance of the least significant bits for differential privacy",
        sampling_case(floating_point_laplace, PureDP(1), (0.0, 1.0), bits=True),
        sampling_case(laplace_on_a_grid, PureDP(1), (0.0, 1.0), bits=True),
    ),
    Fault(
        "arg-min of a tilt on a coarse grid",
        "With finitely many tilts there are finitely many minimisers, other ones for other data.",
        _SOLVER,
        sampling_case(tilted_minimum(tilt_on_grid(_COARSE)), _price(), (_HERE, _THERE)),
        sampling_case(
            tilted_minimum(lambda rng: float(rng.normal(scale=TILT))), _price(), (_HERE, _THERE)
        ),
    ),
    Fault(
        "radial ℓ1 clipping taken as 1-Lipschitz",
        "Scaling into the ℓ1 ball nearly doubles small ℓ1 distances.",
        _CLIPPING,
        sampling_case(
            with_l1_noise(radial_l1, 1.5), PureDP("1.5"), (np.array([10.0, 0]), np.array([10.0, 1]))
        ),
        sampling_case(
            with_l1_noise(clamped, 1.5), PureDP("1.5"), (np.array([10.0, 0]), np.array([10.0, 1]))
        ),
    ),
    Fault(
        "radial ℓ∞ clipping taken as 1-Lipschitz",
        "Scaling into the cube nearly doubles small ℓ∞ distances.",
        _CLIPPING,
        sampling_case(
            with_linf_noise(radial_linf, 2), PureDP(2), (np.array([10.0, 10]), np.array([11.0, 9]))
        ),
        sampling_case(
            with_linf_noise(clamped, 2), PureDP(2), (np.array([10.0, 10]), np.array([11.0, 9]))
        ),
    ),
)
