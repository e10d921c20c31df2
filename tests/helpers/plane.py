"""The laws of fits of two numbers, and how far two of them are apart, to three digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms import ObjectivePerturbation

Array = NDArray[np.float64]
_DEPTH = 35.0  # Nats below the peak of an integrand that are left out
_COARSE, _FINE = 51, 201


def minimiser(mechanism: ObjectivePerturbation[Any], records: Array) -> Callable[[Array], Array]:
    """Log density of θ = argmin J + bᵀθ at points (n, 2): that of b at −∇J(θ), times det ∇²J(θ)."""
    objective, std, ridge = mechanism.objective, mechanism.noise_std, mechanism.ridge

    def log_density(theta: Array) -> Array:
        slope, bend = ridge * theta, np.tile(ridge * np.eye(2), (len(theta), 1, 1))
        for record in records:
            many = np.broadcast_to(record, (len(theta), len(record)))
            slope = slope + objective.gradients(many, theta)
            bend = bend + objective.hessians(many, theta)
        determinant = bend[:, 0, 0] * bend[:, 1, 1] - bend[:, 0, 1] * bend[:, 1, 0]
        return np.asarray(np.log(determinant) - (slope**2).sum(axis=1) / (2 * std**2))

    return log_density


def renyi(
    p: Callable[[Array], Array], q: Callable[[Array], Array], order: float, reach: float
) -> float:
    """D_order(p‖q) of log densities that need not be normalised, within ``reach`` of 0."""
    return (
        _log_mass(lambda x: order * p(x) - (order - 1) * q(x), reach)
        - order * _log_mass(p, reach)
        + (order - 1) * _log_mass(q, reach)
    ) / (order - 1)


def _log_mass(log: Callable[[Array], Array], reach: float) -> float:
    low, high = np.full(2, -reach), np.full(2, reach)
    for n in [*[_COARSE] * 6, _FINE]:
        steps = (high - low) / n
        axes = [low[i] + steps[i] * (np.arange(n) + 0.5) for i in range(2)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        values = log(points)
        near = points[values > values.max() - _DEPTH]
        low, high = near.min(axis=0) - steps, near.max(axis=0) + steps
    top = float(values.max())
    return top + math.log(np.exp(values - top).sum() * steps.prod())
