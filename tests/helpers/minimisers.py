r"""The law of a tilted minimiser in one dimension, exactly, and what a claim says of it.

θ minimises J(θ) + bθ, so that b = −J′(θ); J is strongly convex, θ ↦ J′(θ) one to one, and the
density of θ is that of b ~ N(0, σ²) at −J′(θ) times J″(θ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from privlearn.checking.exact.check import ORDERS, ExactResult, compare
from privlearn.checking.exact.distributions import DistributionPair, renyi
from privlearn.checking.exact.probe import run
from privlearn.checking.exact.search import LARGEST
from privlearn.checking.mined import mined
from privlearn.checking.neighbours import record_pool, worst_pairs
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script
from privlearn.errors import CheckError
from privlearn.losses import MinimizerLoss, leaves_of
from privlearn.losses.output_laws import Density
from privlearn.mechanisms import Objective, ObjectivePerturbation
from privlearn.rows.domains import Array
from privlearn.values.records import length, record_at

_MENTIONED = 6  # Numbers that code mentions about which records are made
_FARTHEST = 8.0  # Scales of a tilt; of farther ones the minimiser is that over a ball
_TRIED, _TRIED_AT = 6, (2.0, 16.0)
"""Pairs of records, and orders at which they are compared before the worst are looked at."""


def minimiser_density(
    objective: Objective[Any], records: Array, ridge: float, noise_std: float
) -> Density:
    """The law of the exact minimiser over ``records``, flat as the domain clips them (n, size).
    Raises CheckError: more than one dimension."""
    if objective.dim > 1:
        raise CheckError(f"a minimiser in {objective.dim} dimensions: exact laws are for one")
    constant = math.log(noise_std * math.sqrt(2 * math.pi))
    different, times = np.unique(records, axis=0, return_counts=True)

    def slopes(theta: Array) -> tuple[Array, Array]:
        """Of J, and their derivatives."""
        slope, steep = ridge * theta[:, 0], np.full(len(theta), ridge)
        for record, n in zip(different, times, strict=True):
            many = np.broadcast_to(record, (len(theta), len(record)))
            slope = slope + n * objective.gradients(many, theta)[:, 0]
            steep += n * objective.hessians(many, theta)[:, 0, 0]
        return slope, steep

    def log_density(theta: Array) -> Array:
        slope, steep = slopes(theta)
        return np.asarray(np.log(steep) - slope**2 / (2 * noise_std**2) - constant)

    centre = 0.0
    for _ in range(20):  # Newton's steps, none of them longer than what a few σ can move θ
        slope, steep = (float(part[0]) for part in slopes(np.array([[centre]])))
        far = abs(slope / steep) * ridge / (5 * noise_std)
        centre -= slope / steep / max(far, 1.0)
        if far < 1e-3:
            break
    scale = noise_std / float(slopes(np.array([[centre]]))[1][0])
    bends = [_bends(objective, record, noise_std / ridge) for record in records]
    return Density(log_density, (centre,), scale, jumps=(tuple(x for part in bends for x in part),))


def minimiser_pairs(
    mechanism: ObjectivePerturbation[Any], neighbours: Sequence[tuple[Any, Any]] | None = None
) -> list[DistributionPair]:
    """Laws of the minimiser on the worst neighbours that are found, by themselves and among others.

    The blur that pays for the solver is left out: it only adds noise. Raises CheckError: a
    region, more than one dimension, or a domain whose records are not known."""
    objective, domain = mechanism.objective, mechanism.objective.domain
    if mechanism.region is not None:
        raise CheckError("a minimiser on a region has no density: check it by sampling")
    if objective.dim > 1:
        raise CheckError(f"dim = {objective.dim}: exact laws are for one dimension")
    if neighbours is None:
        pairs = worst_pairs(objective, adjacency=mechanism.adjacency)[:_TRIED]
        sets = [(_flat(objective, a), _flat(objective, b)) for a, b in pairs]
        if mechanism.max_rows >= 3:  # among copies of themselves, so that no direction is new
            sets += [(np.concatenate([a, a, b]), np.concatenate([b, a, b])) for a, b in sets[:2]]
    else:
        sets = [(domain.clip(a), domain.clip(b)) for a, b in neighbours]
    made: list[DistributionPair] = []
    for k, (a, b) in enumerate(sets):
        p, q = (
            minimiser_density(objective, z, mechanism.ridge, mechanism.noise_std) for z in (a, b)
        )
        made.append(DistributionPair(p, q, f"pair {k} ({len(a)} and {len(b)} records)"))
    if neighbours is not None:
        return made
    worst = [max(range(len(made)), key=lambda k: _both(made[k], order)) for order in _TRIED_AT]
    return [made[k] for k in dict.fromkeys(worst)]


def compared(
    mechanism: ObjectivePerturbation[Any], claim: Any = None, orders: Sequence[float] = ORDERS
) -> ExactResult:
    """Its own loss, or a claim, beside the exact numbers of the worst pairs."""
    if claim is None:
        exactly = [x for x, _ in leaves_of(mechanism.loss()) if isinstance(x, MinimizerLoss)]
        claim = exactly[0]
    check_release(mechanism)
    return compare(claim, minimiser_pairs(mechanism), orders=orders)


def check_release(mechanism: ObjectivePerturbation[Any]) -> Coverage:
    """Runs the real code on tilts written down in advance, and puts its answers into b = −∇J.
    Raises CheckError: what is released is not the minimiser that the law above is about."""
    objective, rng = mechanism.objective, np.random.default_rng(0)
    numbers = mined(mechanism, objective, most=_MENTIONED)
    try:
        pool = record_pool(objective.domain, numbers.values(), within=False)[0]
    except CheckError:  # of a domain that did not come with this package
        return Coverage((Axis("values", "none: its records are not known", False),))
    sizes = [
        n for n in sorted({1, 2, 3, LARGEST, *numbers.sizes(LARGEST)}) if n <= mechanism.max_rows
    ]
    tilts = [np.linspace(-1.0, 1.5, objective.dim + 1)[1:]]
    tilts += [far * rng.choice([-1.0, 1.0], objective.dim) for far in (3.0, 5.0, _FARTHEST)]
    sets = [np.array([k]) for k in range(length(pool))]
    sets += [rng.integers(length(pool), size=n) for n in sizes]
    for k, chosen in enumerate(sets):
        _check_minimiser(mechanism, record_at(pool, chosen), tilts[k % len(tilts)])
    return Coverage(
        (
            Axis("values", f"{length(pool)} records about {len(numbers.numbers)} numbers in code"),
            Axis("sizes", f"{sizes[0]} to {sizes[-1]:,} rows"),
            Axis("noise", f"tilts of −{_FARTHEST:g} to {_FARTHEST:g} scales"),
        )
    )


def _check_minimiser(mechanism: ObjectivePerturbation[Any], block: Any, tilt: Array) -> None:
    objective = mechanism.objective
    theta = run(mechanism, mechanism.loss(), block, Script(tilt))
    records = objective.domain.clip(block)
    gradient = objective.gradients(records, theta).sum(axis=0) + mechanism.ridge * theta
    error = float(np.linalg.norm(gradient + mechanism.noise_std * tilt))
    steep = mechanism.ridge + len(records) * objective.trace
    if not error <= 2 * steep * mechanism.solver_error + 1e-9 * mechanism.noise_std:
        raise CheckError(
            f"the released θ leaves a gradient of {error:.3g}: it is not the minimiser of the "
            "objective with the tilt that was drawn"
        )


def _flat(objective: Objective[Any], block: Any) -> Array:
    n = length(block)
    return objective.domain.clip(block) if n else np.zeros((0, objective.domain.size))


def _both(pair: DistributionPair, order: float) -> float:
    return max(renyi(pair.p, pair.q, order).value, renyi(pair.q, pair.p, order).value)


def _bends(objective: Objective[Any], record: Array, reach: float) -> Array:
    """Where the second derivative of one record's loss jumps."""

    def bend(t: Array) -> Array:
        many = np.broadcast_to(record, (len(t), len(record)))
        return np.asarray(objective.hessians(many, t[:, None])[:, 0, 0])

    near = math.asinh(100 * max(reach, 1.0) / 0.02)
    ticks = 0.02 * np.sinh(np.linspace(-near, near, 4_001))  # finest where most things happen
    values = bend(ticks)
    jump = np.abs(np.diff(values)) > 0.01 * objective.trace
    low, high, left, right = ticks[:-1][jump], ticks[1:][jump], values[:-1][jump], values[1:][jump]
    for _ in range(52 if jump.any() else 0):
        middle = (low + high) / 2
        value = bend(middle)
        first = np.abs(value - left) > np.abs(right - value)
        low, left = np.where(first, low, middle), np.where(first, left, value)
        high, right = np.where(first, middle, high), np.where(first, value, right)
    return np.asarray(low[np.abs(right - left) > 0.001 * objective.trace])
