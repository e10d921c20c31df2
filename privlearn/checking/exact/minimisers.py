r"""The law of a tilted minimiser in one or two dimensions, exactly.

θ minimises J(θ) + bᵀθ, so that b = −∇J(θ); J is strongly convex, θ ↦ ∇J(θ) one to one, and the
density of θ is that of b ~ N(0, σ²I) at −∇J(θ) times det ∇²J(θ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privlearn.checking.exact.distributions import DistributionPair, rough_renyi
from privlearn.checking.exact.probe import run
from privlearn.checking.neighbours import worst_pairs
from privlearn.checking.scripted_noise import Script
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density
from privlearn.mechanisms import Objective, ObjectivePerturbation
from privlearn.rows.domains import Array
from privlearn.values.records import length

_TRIED, _TRIED_AT = 6, (2.0, 16.0)
"""Pairs of records, and orders at which they are compared before the worst are looked at."""


def minimiser_density(
    objective: Objective[Any], records: Array, ridge: float, noise_std: float
) -> Density:
    """The law of the exact minimiser over ``records``, flat as the domain clips them (n, size).

    Raises:
        CheckError: more than two dimensions.
    """
    d = objective.dim
    if d > 2:
        raise CheckError(f"a minimiser in {d} dimensions: exact laws are for one or two")
    constant = d * math.log(noise_std * math.sqrt(2 * math.pi))

    different, times = np.unique(records, axis=0, return_counts=True)

    def slopes(theta: Array) -> tuple[Array, Array]:
        gradient = ridge * theta
        hessian = np.broadcast_to(ridge * np.eye(d), (len(theta), d, d)).copy()
        for record, n in zip(different, times, strict=True):
            many = np.broadcast_to(record, (len(theta), len(record)))
            gradient = gradient + n * objective.gradients(many, theta)
            hessian += n * objective.hessians(many, theta)
        return gradient, hessian

    def log_density(theta: Array) -> Array:
        gradient, hessian = slopes(theta)
        if d == 1:
            determinant = hessian[:, 0, 0]
        else:
            determinant = hessian[:, 0, 0] * hessian[:, 1, 1] - hessian[:, 0, 1] * hessian[:, 1, 0]
        squares = (gradient**2).sum(axis=1)
        return np.asarray(np.log(determinant) - squares / (2 * noise_std**2) - constant)

    centre = np.zeros((1, d))
    for _ in range(20):  # Newton's steps, none of them longer than what a few σ can move θ
        gradient, hessian = slopes(centre)
        move = np.linalg.solve(hessian[0], gradient[0])
        far = float(np.linalg.norm(move)) * ridge / (5 * noise_std)
        centre = centre - move / max(far, 1.0)
        if far < 1e-3:
            break
    steepest = float(np.linalg.eigvalsh(slopes(centre)[1][0])[-1])
    axes, jumps = _jumps(objective, records, noise_std / ridge)
    return Density(
        log_density, tuple(map(float, centre[0])), noise_std / steepest, axes=axes, jumps=jumps
    )


def minimiser_pairs(
    mechanism: ObjectivePerturbation[Any], neighbours: Sequence[tuple[Any, Any]] | None = None
) -> list[DistributionPair]:
    """Laws of the minimiser on the worst neighbours that are found, by themselves and among others.

    The blur that pays for the solver is left out: it only adds noise.

    Raises:
        CheckError: a region, more than two dimensions, or a domain whose records are not known.
    """
    objective, domain = mechanism.objective, mechanism.objective.domain
    if mechanism.region is not None:
        raise CheckError("a minimiser on a region has no density: check it by sampling (black_box)")
    if objective.dim > 2:
        raise CheckError(f"dim = {objective.dim}: exact laws are for one or two dimensions")
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
        made.append(
            DistributionPair(*_same_axes(p, q), f"pair {k} ({len(a)} and {len(b)} records)")
        )
    if neighbours is not None:
        return made
    tried_at = _TRIED_AT[: 3 - objective.dim]  # in the plane every pair takes its time
    worst = [max(range(len(made)), key=lambda k: _both(made[k], order)) for order in tried_at]
    return [made[k] for k in dict.fromkeys(worst)]


def check_release(mechanism: ObjectivePerturbation[Any]) -> None:
    """Runs the real code on a tilt written down in advance, and puts its answer into b = −∇J.

    Raises:
        CheckError: what is released is not the minimiser that the law above is about.
    """
    objective = mechanism.objective
    pairs = worst_pairs(objective)[:1]
    tilt = np.linspace(-1.0, 1.5, objective.dim + 1)[1:]
    for block in pairs[0] if pairs else ():
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
    assert isinstance(pair.p, Density)
    assert isinstance(pair.q, Density)
    return max(rough_renyi(pair.p, pair.q, order), rough_renyi(pair.q, pair.p, order))


def _same_axes(p: Density, q: Density) -> tuple[Density, Density]:
    if len(p.centre) == 1 or not (p.jumps or q.jumps):
        return p, q
    result = [
        (row, places)
        for law in (p, q)
        if law.axes is not None
        for row, places in zip(np.linalg.inv(law.axes), law.jumps, strict=True)
        if places
    ]
    axes, jumps = _merge_axes(result)
    return replace(p, axes=axes, jumps=jumps), replace(q, axes=axes, jumps=jumps)


def _merge_axes(
    result: Sequence[tuple[Array, tuple[float, ...]]],
) -> tuple[Array, tuple[tuple[float, ...], ...]]:
    """Coordinates u_i = row_i·θ in which all jumps are at fixed values of one of the two."""
    rows: list[Array] = []
    places: list[set[float]] = []
    for row, jumps in result:
        for k, known in enumerate(rows):
            if abs(known[0] * row[1] - known[1] * row[0]) < 1e-9 * np.linalg.norm(row):
                places[k] |= {t * float(known @ row) / float(row @ row) for t in jumps}
                break
        else:
            unit = row / np.linalg.norm(row)
            rows.append(unit)
            places.append({t / float(np.linalg.norm(row)) for t in jumps})
    if len(rows) > 2:
        raise CheckError("the density jumps along more than two directions: use smaller data sets")
    if len(rows) == 1:
        rows.append(np.array([-rows[0][1], rows[0][0]]))
        places.append(set())
    return np.linalg.inv(np.array(rows)), tuple(tuple(sorted(p)) for p in places)


def _jumps(
    objective: Objective[Any], records: Array, reach: float
) -> tuple[Array | None, tuple[tuple[float, ...], ...]]:
    """Where a Hessian jumps: points on the line; in the plane, lines u_i = const, θ = axes·u.

    In the plane they are found where every record sees θ along one direction only.
    """
    d = objective.dim
    if d > 1 and (objective.span != 1 or objective.rank != 1):
        return None, ()
    result: list[tuple[Array, tuple[float, ...]]] = []
    probe = np.array([[0.3, -0.2]])[:, :d] * min(reach, 1.0)
    for record in records:
        row = objective.gradients(record[None], probe)[0]
        if not row.any():
            continue
        unit = row / np.linalg.norm(row)
        places = _bends(objective, record, unit, reach)
        if places:
            result.append((unit, places))
    if d == 1:
        return None, (tuple(float(u[0]) * t for u, places in result for t in places),)
    return _merge_axes(result) if result else (None, ())


def _bends(
    objective: Objective[Any], record: Array, unit: Array, reach: float
) -> tuple[float, ...]:
    def bend(t: Array) -> Array:
        many = np.broadcast_to(record, (len(t), len(record)))
        hessians = objective.hessians(many, t[:, None] * unit)
        return np.asarray(np.trace(hessians, axis1=1, axis2=2))

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
    return tuple(map(float, low[np.abs(right - left) > 0.001 * objective.trace]))
