"""Renyi curves of steps, vectorised over many steps.

The same formulas as the losses' own curves, but for many losses at a time: a plan may hold
thousands of different ones, and each is looked at some hundred orders.  Used for frames of grids,
and for bounds of compositions with parts of which no more than a curve is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privlearn.losses.conversion import renyi_delta, renyi_epsilon
from privlearn.losses.steps import (
    Array,
    BoundedRangeStep,
    CurveStep,
    GaussianStep,
    LaplaceStep,
    PairStep,
    PureStep,
    Step,
    StepPlan,
)


class StepCurve:
    """The Renyi curve of a plan: an upper bound on the divergence of every order.

    The upper bounds order*rho are used near order 1, where the moments cancel.
    """

    def __init__(self, plan: StepPlan):
        parts: dict[type[Step], list[tuple[float, int]]] = {}
        self._rest: list[tuple[PairStep | CurveStep, int]] = []
        for step, count in plan:
            if isinstance(step, GaussianStep):
                parts.setdefault(GaussianStep, []).append((step.mu_squared, count))
            elif isinstance(step, CurveStep | PairStep) and step.largest() == math.inf:
                self._rest.append((step, count))
            else:
                kind = type(step) if type(step) in _FORMULAS else PureStep
                parts.setdefault(kind, []).append((step.largest(), count))
        self._parts = {kind: np.array(values) for kind, values in parts.items()}
        self.sampled = any(isinstance(step, PairStep) for step, _ in self._rest)

    def __call__(self, order: float) -> float:
        total = 0.0
        for kind, values in self._parts.items():
            total += float((_FORMULAS[kind](order, values[:, 0]) * values[:, 1]).sum())
        for step, count in self._rest:
            total += step.renyi(order) * count
        return total * (1 + 1e-12)

    @property
    def orders(self) -> list[float] | None:
        """The orders to look at; None for all."""
        if self.sampled:
            return [float(a) for a in (*range(2, 33), 40, 48, 64, 96, 128, 192, 256)]
        return None

    def epsilon(self, delta: float) -> float:
        return renyi_epsilon(self, delta, orders=self.orders).value

    def delta(self, epsilon: float) -> float:
        return renyi_delta(self, epsilon, orders=self.orders).value


def _renyi_laplace(order: float, eps: Array) -> Array:
    rho = np.where(eps > 1e-3, eps + np.expm1(-eps), eps * eps / 2)
    weight = order / (2 * order - 1)
    # log of weight e^((a-1)eps) + (1 - weight) e^(-a eps)
    moment = (order - 1) * eps + np.log(weight + (1 - weight) * np.exp(-(2 * order - 1) * eps))
    moment += 1e-14 * (1 + (order - 1) * eps)
    return np.minimum(np.minimum(eps, order * rho * (1 + 1e-9)), moment / (order - 1))


def _renyi_ranged(order: float, eps: Array) -> Array:
    # log of eps/(e^eps - 1); its rho cancels where eps is small
    log_ratio = np.log(eps / np.expm1(eps))
    rho = np.where(eps > 1e-3, np.expm1(log_ratio) - log_ratio, eps * eps / 8)
    log_a = np.log(np.expm1(-order * eps) / np.expm1(-eps))
    log_b = -eps + np.log(np.expm1(-(order - 1) * eps) / np.expm1(-eps))
    t = np.clip(log_a + math.log(order - 1) - log_b - math.log(order), 0.0, eps)
    moment = log_a + (order - 1) * t + np.log1p(-np.exp(log_b + t - log_a))
    moment += 1e-14 * (1 + order * (1 + eps))
    return np.minimum(np.minimum(eps, order * rho * (1 + 1e-9)), moment / (order - 1))


_FORMULAS: dict[type[Step], Callable[[float, Array], Array]] = {
    GaussianStep: lambda order, mass: order * mass / 2,
    PureStep: lambda order, eps: np.minimum(eps, order * eps * np.tanh(eps / 2)),
    LaplaceStep: _renyi_laplace,
    BoundedRangeStep: _renyi_ranged,
}
