"""Tilts of any size: minimisers over balls, certified with mpmath's gradient of the real tilt."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from privlearn.errors import SolverError
from privlearn.mechanisms import ObjectivePerturbation
from privlearn.mechanisms.far_tilts import Reach, minimise_far
from privlearn.mechanisms.linear_models import LinearObjective
from privlearn.mechanisms.multinomial import MultinomialLogit
from privlearn.mechanisms.objective_perturbation import _double
from privlearn.mechanisms.objectives import Objective
from privlearn.mechanisms.regions import EuclideanBall, Region, WholeSpace, box
from privlearn.mechanisms.scalar_objectives import HuberObjective, PoissonObjective
from privlearn.mechanisms.solver import TILT_BITS, Problem, attainable, minimise
from privlearn.rows.domains import Array

SIZES = [1e-3, 1.0, 8.0, 20.0, 41.0, 1e4, 1e7, 1e12, 1e16, 1e25, 1e150, 1e300, 10**400]
OBJECTIVES: list[Objective[Any]] = [
    LinearObjective.logistic(3),
    LinearObjective(PoissonObjective(5.0), 3),
    LinearObjective(HuberObjective(), 3),
    MultinomialLogit(3, 3),
]
REGIONS: list[Region | None] = [None, EuclideanBall(3, 1.0), EuclideanBall(3, 0.01)]
N, STD = 30, 3.0


def known_tilt(size: float | int, seed: int = 0) -> list[int]:
    """2^58·Z for a vector Z about ``size`` long."""
    direction = np.random.default_rng(seed).standard_normal(3).tolist()
    return [math.floor(Fraction(v) * Fraction(size) * 2**TILT_BITS) for v in direction]


def problem(objective: Objective[Any], known: list[int], ridge: float) -> Problem:
    records = objective.examples(np.random.default_rng(1), N)
    return Problem(objective, records, ridge, np.array([_double(m) for m in known]) * STD)


def logistic_gradient(records: Array, theta: list[Any]) -> list[Any]:
    """Of Σℓ, in mpmath."""
    total = [mpf(0)] * 3
    for row in records.tolist():
        x, y = [mpf(v) for v in row[:3]], mpf(row[3])
        score = mpmath.fdot(x, theta)
        slope = 1 / (1 + mpmath.exp(-score)) - y
        total = [t + slope * v for t, v in zip(total, x, strict=True)]
    return total


def certified(records: Array, reach: Reach, known: list[int], ridge: float, theta: Array) -> Any:
    """A bound on the distance to the minimiser for the real tilt, by the certificate."""
    with mpmath.workdps(600):
        radius, at = mpf(reach.ball.radius), [mpf(v) for v in theta.tolist()]
        length = mpmath.norm(at)
        edge = length >= radius * (1 - mpf(2) ** -40)
        point = [v * radius / length for v in at] if edge else at
        force = logistic_gradient(records, point)
        tilt = [mpf(2 * m + 1) / 2 ** (TILT_BITS + 1) * STD for m in known]
        force = [f + ridge * v + b for f, v, b in zip(force, point, tilt, strict=True)]
        pull = max(-mpmath.fdot(force, point) / radius**2, mpf(0)) if edge else mpf(0)
        rest = mpmath.norm([f + pull * v for f, v in zip(force, point, strict=True)])
        moved = mpmath.norm([a - v for a, v in zip(at, point, strict=True)])
        return moved + rest / (ridge + pull / 2)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("ridge", [0.01, 5.0])
def test_every_tilt_ends_within_the_stated_distance(region: Region | None, ridge: float) -> None:
    objective = LinearObjective.logistic(3)
    reach = Reach.of(objective, region, rows=N, ridge=ridge, tilt_std=STD)
    assert reach is not None
    inside = 0
    for size in SIZES:
        known = known_tilt(size)
        made = problem(objective, known, ridge)
        theta = minimise_far(made, reach, known, STD)
        assert certified(made.records, reach, known, ridge, theta) <= reach.distance
        length = float(np.linalg.norm(theta))
        assert length <= reach.ball.radius * (1 + 1e-14)
        inside += length < reach.ball.radius * 0.999
    assert (inside > 0) == (reach.ball.radius > 0.01)


@pytest.mark.parametrize("size", [12.0, 1e4, 1e7])
def test_tilts_that_are_cut_or_rounded_are_not_within_it(size: float) -> None:
    """What must not be done: cut at 9 standard deviations, or take 20 bits of a tilt."""
    objective, ball, ridge = LinearObjective.logistic(3), EuclideanBall(3, 50.0), 5.0
    reach = Reach.of(objective, ball, rows=N, ridge=ridge, tilt_std=STD)
    assert reach is not None
    known = known_tilt(size, seed=3)
    most = 9 << TILT_BITS
    for wrong in (
        [max(min(m, most), -most) for m in known],
        [m >> 48 << 48 for m in known]
        if size < 100
        else [m * 3 // 4 if m > 0 else m for m in known],
    ):
        made = problem(objective, wrong, ridge)
        theta = minimise_far(made, reach, wrong, STD)
        assert certified(made.records, reach, known, ridge, theta) > 2 * reach.distance


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("region", REGIONS)
def test_both_ways_agree_where_both_are_certified(
    objective: Objective[Any], region: Region | None
) -> None:
    given: dict[str, Any] = {"rows": N, "ridge": 2.0, "tilt_std": STD}
    reach, where = Reach.of(objective, region, **given), region or WholeSpace(3)
    assert reach is not None
    usual = attainable(objective, where, **given)
    for size in (0.1, 3.0):
        known = known_tilt(size)
        made = problem(objective, known, 2.0)
        far = minimise_far(made, reach, known, STD)
        near = minimise(made, where, usual)
        assert np.linalg.norm(far - near) <= usual + reach.distance
    for size in SIZES[3:]:
        known = known_tilt(size)
        minimise_far(problem(objective, known, 2.0), reach, known, STD)  # ends


def fit(region: Region | None) -> ObjectivePerturbation[Any]:
    return ObjectivePerturbation(LinearObjective.logistic(3), 5.0, STD, 1e-6, N, region)


def test_the_mechanism_has_an_answer_to_every_tilt() -> None:
    objective = LinearObjective.logistic(3)
    records = objective.examples(np.random.default_rng(1), N)
    for region in REGIONS:
        mechanism = fit(region)
        reach = mechanism._reach
        assert reach is not None
        assert mechanism.spend().exact
        for size in SIZES:
            known = known_tilt(size)
            theta = mechanism._minimiser(records, known)
            found = certified(records, reach, known, 5.0, theta)
            assert found <= mechanism.solver_error


def test_on_polyhedra_nothing_is_claimed_beyond_forty_standard_deviations() -> None:
    mechanism = fit(box(3, -1, 1))
    assert mechanism._reach is None
    assert not mechanism.spend().exact
    records = LinearObjective.logistic(3).examples(np.random.default_rng(1), N)
    assert mechanism._minimiser(records, [39 << TILT_BITS, 0, 0])[0] == pytest.approx(-1)
    for far in (40, -41):
        with pytest.raises(SolverError, match=r"beyond 40 .*Polyhedron.*not covered"):
            mechanism._minimiser(records, [0, far << TILT_BITS, 0])


@pytest.mark.parametrize("blur_std", [1e-9, 0.3, 1e-250])
def test_the_blur_is_added_in_integers_of_any_size(blur_std: float) -> None:
    mechanism = ObjectivePerturbation(LinearObjective.logistic(3), 5.0, STD, blur_std, N)
    step = Fraction(blur_std) / 2**40
    theta, noise = np.array([1e12, -0.1, 0.0]), [2**70 + 1, -5, 7]
    found = mechanism._blurred_on_grid(theta, noise)
    for at, n, value in zip(theta.tolist(), noise, found.tolist(), strict=True):
        exact = step * (math.floor(Fraction(at) / step) + n)
        assert value == pytest.approx(float(exact), rel=1e-15)
    # two θ in one cell of the grid leave as one
    inside = float(step * 5 + step / 3)
    nearby = mechanism._blurred_on_grid(np.array([inside, inside * 1.001, 0.0]), [3, 3, 3])
    assert nearby[0] == nearby[1] == 8 * float(step)


def test_the_grid_of_the_blur_is_paid_for() -> None:
    mechanism = fit(None)
    wide = ObjectivePerturbation(LinearObjective.logistic(3), 5.0, STD, 1e6, N)
    assert wide.solver_error - mechanism._certified == pytest.approx(1e6 * 2**-40 * math.sqrt(3))
    assert mechanism.solver_error > mechanism._certified
