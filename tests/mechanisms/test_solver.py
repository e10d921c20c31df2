"""The solver: its certificate is honest, it ends for every data set, and its error is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import cvxpy
import numpy as np
import pytest
from grids import thinned
from mpmath import MPContext
from scipy.special import ndtr

from privlearn.accountants import CentralAccountant
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError, SolverError
from privlearn.losses import MinimizerLoss, gaussian_loss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    LinearObjective,
    MultinomialLogit,
    ObjectivePerturbation,
    objective_perturbation,
    solver,
)
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.linear_models import Labelled
from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.mechanisms.regions import (
    EuclideanBall,
    Polyhedron,
    Region,
    RegionStep,
    WholeSpace,
    box,
    simplex,
)
from privlearn.mechanisms.scalar_objectives import (
    HuberObjective,
    LogisticObjective,
    PoissonObjective,
)
from privlearn.mechanisms.solver import Problem, attainable, longest, minimise
from privlearn.noise import GaussianNoise, LaplaceNoise, Noise, NoiseSource
from privlearn.noise.exact.pool import Pool
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

cp: Any = cvxpy
mp: Any = MPContext()
mp.dps = 32
mpf = mp.mpf

cube = cache(lambda dim: box(dim, -1, 1))
standard_simplex = cache(lambda dim: simplex(dim))
"""Making them takes linear programs, and every step of an oracle asks for them."""

KINDS = ("random", "same", "separated", "contradicting", "collinear", "boundary", "null")


def records(objective: Objective[Any], kind: str, n: int, seed: int = 0) -> Array:
    """Clipped records of one adversary's choice."""
    rng, d = np.random.default_rng(seed), objective.dim
    if isinstance(objective, MultinomialLogit):
        k = objective.max_items
        x, offered = rng.standard_normal((n, k, d)), np.ones((n, k))
        choice = rng.integers(NO_ITEM if objective.outside else 0, k, n)
        if kind in ("same", "contradicting"):
            x[:] = x[0]
            choice = np.zeros(n, dtype=int) if kind == "same" else np.arange(n) % k
        elif kind == "separated":
            choice = np.argmax(x[..., 0], axis=1)
        elif kind == "collinear":
            x = x[..., :1] * np.ones(d)
        elif kind == "boundary":
            x = np.sign(x) * np.eye(d)[rng.integers(d, size=(n, k))]
        elif kind == "null":
            offered[:] = 0
        return objective.domain.clip(Answer(x, offered, choice))
    domain = objective.domain
    assert isinstance(domain, Labelled)
    x, y = rng.standard_normal((n, d)), rng.uniform(domain.low, domain.high, n)
    ends = np.array([domain.low, domain.high])
    if kind in ("same", "contradicting"):
        x[:] = x[0]
        y = ends[np.arange(n) % 2 if kind == "contradicting" else np.ones(n, dtype=int)]
    elif kind == "separated":
        y = ends[(x[:, 0] > 0).astype(int)]
    elif kind == "collinear":
        x = x[:, :1] * np.ones(d)
    elif kind == "boundary":
        x, y = 1e3 * x, ends[rng.integers(2, size=n)]
    elif kind == "null":
        x[:] = np.nan
    return domain.clip((x, y))


def problem_and_distance(
    objective: Objective[Any],
    region: Region,
    data: Array,
    *,
    ridge: float,
    std: float,
    seed: int = 0,
    tilt: Array | None = None,
) -> tuple[Problem, float]:
    if tilt is None:
        tilt = np.random.default_rng(seed).standard_normal(objective.dim) * std
    distance = attainable(objective, region, rows=len(data), ridge=ridge, tilt_std=std)
    return Problem(objective, data, ridge, tilt), distance


# --- thirty digits --------------------------------------------------------------------------------


def precise_gradient(objective: Objective[Any], record: Array, theta: Sequence[Any]) -> list[Any]:
    """∇ℓ of one record, from the definition of the loss."""
    d = objective.dim
    if isinstance(objective, MultinomialLogit):
        k = objective.max_items
        items = [[mpf(v) for v in record[i * d : (i + 1) * d]] for i in range(k)]
        offered = [i for i in range(k) if record[k * d + i] > 0]
        weights = {i: mp.exp(mp.fdot(items[i], theta)) for i in offered}
        total = mp.fsum(weights.values()) + (1 if objective.outside else 0)
        chosen = [mpf(v) for v in record[k * (d + 1) :]]
        return [
            mp.fsum((weights[i] / total - chosen[i]) * items[i][j] for i in offered)
            for j in range(d)
        ]
    x, y = [mpf(v) for v in record[:-1]], mpf(record[-1])
    u = mp.fdot(x, theta)
    assert isinstance(objective, LinearObjective)
    scalar = objective.scalar
    if isinstance(scalar, LogisticObjective):
        slope = 1 / (1 + mp.exp(-u)) - y
    elif isinstance(scalar, PoissonObjective):
        slope = min(mp.exp(u), mpf(scalar.max_rate)) - y
    else:
        assert isinstance(scalar, HuberObjective)
        bound = mpf(scalar.threshold)
        slope = max(-bound, min(bound, u - y))
    return [slope * v for v in x]


def precise_total(problem: Problem, theta: Sequence[Any]) -> list[Any]:
    parts = [precise_gradient(problem.objective, row, theta) for row in problem.records]
    ridge, tilt = mpf(problem.ridge), [mpf(b) for b in problem.tilt]
    return [
        mp.fsum(part[j] for part in parts) + ridge * theta[j] + tilt[j]
        for j in range(problem.objective.dim)
    ]


def precise_projection(region: Region, point: list[Any]) -> list[Any]:
    """Onto the unit ball, the cube [−1, 1]^d, or the simplex of sum 1."""
    if isinstance(region, EuclideanBall):
        norm = mp.sqrt(mp.fsum(v * v for v in point))
        return [v * region.radius / norm for v in point] if norm > region.radius else point
    if region == cube(region.dim):
        return [max(mpf(-1), min(mpf(1), v)) for v in point]
    if region == standard_simplex(region.dim):
        order = sorted(point, reverse=True)
        shifts = [(mp.fsum(order[: k + 1]) - 1) / (k + 1) for k in range(len(order))]
        shift = next(
            s for k, s in reversed(list(enumerate(shifts))) if order[k] > s
        )  # the largest k whose entry stays positive
        return [max(v - shift, mpf(0)) for v in point]
    assert isinstance(region, WholeSpace)
    return point


def precise_minimiser(problem: Problem, region: Region) -> list[Any]:
    """Projected gradients until nothing moves in twenty digits; for small condition numbers.

    They contract from wherever they start.  Over R^d, Newton's steps with the float Hessian, so
    for every condition number.
    """
    small = mpf(10) ** -20
    start = attainable(
        problem.objective, region, rows=len(problem.records), ridge=problem.ridge, tilt_std=1e3
    )
    theta = [mpf(v) for v in minimise(problem, region, start)]
    steepest = mpf(problem.ridge) + len(problem.records) * mpf(problem.objective.trace)
    for _ in range(400):
        gradient = precise_total(problem, theta)
        if isinstance(region, WholeSpace):
            hessian = problem.hessian(np.array([float(v) for v in theta]))
            inverse = [[mpf(v) for v in row] for row in np.linalg.inv(hessian)]
            ahead = [a - mp.fdot(row, gradient) for a, row in zip(theta, inverse, strict=True)]
        else:
            ahead = [a - g / steepest for a, g in zip(theta, gradient, strict=True)]
        before, theta = theta, precise_projection(region, ahead)
        if max(abs(a - b) for a, b in zip(theta, before, strict=True)) < small:
            return theta
    raise AssertionError("the oracle did not converge")


def away(point: Array, exact: Sequence[Any]) -> float:
    pairs = zip(point, exact, strict=True)
    return float(mp.sqrt(mp.fsum((mpf(float(a)) - b) ** 2 for a, b in pairs)))


# --- other solvers as oracles ---------------------------------------------------------------------


def cvxpy_minimiser(problem: Problem, region: Region) -> Array:
    objective, data = problem.objective, problem.records
    theta = cp.Variable(objective.dim)
    if isinstance(objective, MultinomialLogit):
        k, d = objective.max_items, objective.dim
        losses = []
        for row in data:
            utilities = row[: k * d].reshape(k, d) @ theta
            everything = cp.hstack([utilities, np.zeros(1)]) if objective.outside else utilities
            losses.append(cp.log_sum_exp(everything) - row[k * (d + 1) :] @ utilities)
        total = cp.sum(cp.hstack(losses))
    else:
        assert isinstance(objective, LinearObjective)
        scalar = objective.scalar
        u, y = data[:, :-1] @ theta, data[:, -1]
        if isinstance(scalar, LogisticObjective):
            total = cp.sum(cp.logistic(u)) - y @ u
        elif isinstance(scalar, HuberObjective):
            total = cp.sum(cp.huber(y - u, scalar.threshold)) / 2
        else:
            assert isinstance(scalar, PoissonObjective)
            beyond = cp.Variable(len(data), nonneg=True)  # φ is the least of e^(u−t) + t·max_rate
            total = cp.sum(cp.exp(u - beyond) + scalar.max_rate * beyond) - y @ u
    whole = total + problem.ridge / 2 * cp.sum_squares(theta) + problem.tilt @ theta
    limits: list[Any] = []
    if isinstance(region, EuclideanBall):
        limits = [cp.norm(theta) <= region.radius]
    elif isinstance(region, Polyhedron):
        limits = [region.rows @ theta <= region.limits]
    cp.Problem(cp.Minimize(whole), limits).solve(solver=cp.CLARABEL)
    return np.asarray(theta.value)


def polyhedron(dim: int) -> Polyhedron:
    rng = np.random.default_rng(8)
    sides = box(dim, -2, 2)
    rows = np.vstack([rng.standard_normal((20, dim)), sides.rows])
    return Polyhedron(rows, np.append(rng.uniform(0.1, 1, 20), sides.limits))


def needle(dim: int, angle: float) -> Polyhedron:
    """A wedge in the first two coordinates, times a cube."""
    sine, cosine, rest = math.sin(angle), math.cos(angle), box(dim - 2, -1, 1)
    corner = np.array([[sine, cosine], [sine, -cosine], [-1.0, 0.0]])
    rows = np.block(
        [
            [corner, np.zeros((3, dim - 2))],
            [np.zeros((len(rest.rows), 2)), rest.rows],
        ]
    )
    return Polyhedron(rows, np.concatenate([[sine, sine, 1.0], rest.limits]))


REGIONS: dict[str, Callable[[int], Region]] = {
    "whole space": WholeSpace,
    "ball": lambda dim: EuclideanBall(dim, 1.0),
    "cube": lambda dim: box(dim, -1, 1),
    "simplex": simplex,
    "polyhedron": polyhedron,
}
ODD: dict[str, Callable[[int], Region]] = {
    "tiny ball": lambda dim: EuclideanBall(dim, 1e-3),
    "cube off the origin": lambda dim: box(dim, 10, 11),
    "tiny cube": lambda dim: box(dim, 0, 1e-9),
    "wedge": lambda dim: needle(dim, 1e-3),
    "needle": lambda dim: needle(dim, 2e-4),
}
OBJECTIVES: dict[str, Objective[Any]] = {
    "logit": MultinomialLogit(4, 3),
    "logit without outside": MultinomialLogit(3, 3, outside=False),
    "binary logit": MultinomialLogit(1, 3),
    "logistic": LinearObjective.logistic(3),
    "poisson": LinearObjective.poisson(3, 5.0),
    "huber": LinearObjective.huber(3, 0.3, label_bound=3.0),
}


FITTED = ["logit", "logistic", "poisson", "huber"]
PLACES = ["whole space", "ball", "cube", "simplex"]


@pytest.mark.parametrize(("where", "what"), thinned(product(REGIONS, FITTED), 3))
def test_a_general_convex_solver_agrees(what: str, where: str) -> None:
    objective = OBJECTIVES[what]
    region = REGIONS[where](objective.dim)
    for kind, ridge in (("random", 2.0), ("separated", 0.5)):
        data = records(objective, kind, 15)
        problem, distance = problem_and_distance(objective, region, data, ridge=ridge, std=3.0)
        found = minimise(problem, region, distance)
        oracle = cvxpy_minimiser(problem, region)
        assert np.linalg.norm(found - oracle) <= distance + 3e-4
        assert problem.value(found) <= problem.value(region.project(oracle)) + 1e-9


# --- the certificate is honest --------------------------------------------------------------------


HONEST: dict[str, Objective[Any]] = {
    "logit": MultinomialLogit(3, 2),
    "logit without outside": MultinomialLogit(3, 2, outside=False),
    "logistic": LinearObjective.logistic(2),
    "poisson": LinearObjective.poisson(2, 3.0),
    "huber": LinearObjective.huber(2, 0.3, label_bound=3.0),
}


Fit = Callable[[Problem, Region, float], Array]


def without_newton(problem: Problem, region: Region, distance: float) -> Array:
    return minimise(problem, region, distance, newton_steps=0)


def is_within(fit: Fit, problem: Problem, region: Region, *distances: float) -> bool:
    """The checker: whether a solver keeps the distances it certifies, seen with thirty digits."""
    exact = precise_minimiser(problem, region)
    return all(away(fit(problem, region, e), exact) <= e for e in distances)


@pytest.mark.parametrize(("where", "what"), thinned(product(PLACES, HONEST), 3))
def test_the_certified_distance_is_kept(what: str, where: str) -> None:
    objective = HONEST[what]
    region = REGIONS[where](2)
    for kind, std in (("random", 0.5), ("separated", 3.0)):
        data = records(objective, kind, 4)
        problem, distance = problem_and_distance(
            objective, region, data, ridge=3 * objective.trace, std=std
        )
        assert distance < 1e-4
        fit = minimise if std > 1 else without_newton
        assert is_within(fit, problem, region, distance, 1e-3)


@pytest.mark.parametrize("what", list(HONEST))
@pytest.mark.parametrize("ridge", [1e-3, 0.05, 1e6])
def test_the_certified_distance_is_kept_for_ridges_of_all_sizes(what: str, ridge: float) -> None:
    objective, region = HONEST[what], WholeSpace(2)
    for kind in ("random", "separated", "contradicting"):
        data = records(objective, kind, 4)
        problem, distance = problem_and_distance(objective, region, data, ridge=ridge, std=1.0)
        assert is_within(minimise, problem, region, distance)


@pytest.mark.parametrize("where", ["ball", "cube"])
def test_a_certificate_holds_for_points_far_from_the_minimiser(where: str) -> None:
    """Any point, with any vector as its normal up to a gap; the gap must count."""
    objective, region = HONEST["logistic"], REGIONS[where](2)
    rng = np.random.default_rng(12)
    problem, distance = problem_and_distance(
        objective, region, records(objective, "random", 6), ridge=2.0, std=4.0
    )
    exact = minimise(problem, region, distance)
    tightest = math.inf
    for share in (0.0, 0.5, 1.0):
        for _ in range(30):
            z = region.project(rng.standard_normal(2))
            normal = -share * problem.gradient(z)
            reach = np.linalg.norm(normal) if where == "ball" else np.abs(normal).sum()
            step = RegionStep(z, normal, float(reach - normal @ z))
            certified = solver._distance(problem, region, step)
            true = float(np.linalg.norm(z - exact))
            assert true <= certified + distance
            tightest = min(tightest, certified / max(true, 1e-3))
            if share == 1:
                assert math.sqrt(step.gap / 2.0) <= certified
    assert tightest < 2


def test_a_certificate_allows_for_points_beyond_a_sharp_corner() -> None:
    """A rounding error across the faces of a needle moves its tip thousands of times farther."""
    region, tip = needle(3, 2e-4), np.array([1.0, 0.0, 0.0])
    beyond = tip + np.array([2.5e-12, 0.0, 0.0])
    assert (region.rows @ beyond - region.limits).max() <= 8 * UNIT * region.dim
    # J pulls along the first axis, weakly, so that its minimiser over the needle is the tip
    ridge = 1.0
    problem = Problem(
        LinearObjective.logistic(3), np.zeros((1, 4)), ridge, -(1 + 1e-7) * ridge * tip
    )
    normal = -problem.gradient(beyond)
    certified = solver._distance(problem, region, RegionStep(beyond, normal, 0.0))
    assert np.linalg.norm(beyond - tip) <= certified
    assert solver._edge(region, 1.0) > 1e3 * solver._edge(box(3, -1, 1), 1.0)


def sloppy(problem: Problem, region: Region, distance: float) -> Array:
    """A planted defect: a hundred times farther away than certified, whither the data say."""
    theta = minimise(problem, region, distance)
    whither = problem.records.sum(axis=0)[: len(theta)]
    return np.asarray(theta + 100 * distance * whither / np.linalg.norm(whither))


@pytest.mark.parametrize("what", list(HONEST))
def test_a_sloppy_solver_is_caught(what: str) -> None:
    objective, region = HONEST[what], WholeSpace(2)
    data = records(objective, "random", 4)
    problem, distance = problem_and_distance(
        objective, region, data, ridge=3 * objective.trace, std=2.0
    )
    assert is_within(minimise, problem, region, distance)
    assert not is_within(sloppy, problem, region, distance)


# --- it ends for every data set -------------------------------------------------------------------


@pytest.mark.parametrize(("what", "where"), thinned(product(OBJECTIVES, [*REGIONS, *ODD]), 3))
def test_every_data_set_reaches_what_is_attainable(what: str, where: str) -> None:
    objective = OBJECTIVES[what]
    region = {**REGIONS, **ODD}[where](objective.dim)
    huge = np.array([8.6, -8.6, 8.6])
    for kind, n in product(KINDS, (1, 40)):
        data = records(objective, kind, n)
        for ridge, std in ((0.05, 0.1), (0.05, 30.0), (5.0, 3.0), (1e3, 30.0), (1e6, 0.1)):
            for tilt in (None, huge * std)[n % 2 :]:
                problem, distance = problem_and_distance(
                    objective, region, data, ridge=ridge, std=std, tilt=tilt
                )
                theta = minimise(problem, region, distance)
                assert np.isfinite(theta).all()
                assert (
                    np.linalg.norm(theta)
                    <= longest(objective, region, rows=n, ridge=ridge, tilt_std=std)
                    + 2 * distance * (where == "whole space")
                    + 1e-9 * region.grip
                )


@pytest.mark.parametrize(("where", "kind"), thinned(product(PLACES, ["random", "same"]), 3))
def test_large_data_reach_it_too(kind: str, where: str) -> None:
    objective = MultinomialLogit(5, 4)
    data = records(objective, kind, 20_000)
    region = REGIONS[where](4)
    for ridge in (0.05, 50.0):
        problem, distance = problem_and_distance(objective, region, data, ridge=ridge, std=10.0)
        minimise(problem, region, distance)
        assert distance < 0.1


@pytest.mark.parametrize(("where", "what"), thinned(product([*REGIONS, "wedge"], FITTED), 3))
def test_accelerated_gradients_alone_reach_it_within_their_budget(what: str, where: str) -> None:
    objective = OBJECTIVES[what]
    region = {**REGIONS, **ODD}[where](objective.dim)
    for kind, ridge, std in product(KINDS, (1.0, 100.0), (0.1, 30.0)):
        data = records(objective, kind, 30)
        problem, distance = problem_and_distance(objective, region, data, ridge=ridge, std=std)
        slow = minimise(problem, region, distance, newton_steps=0)
        fast = minimise(problem, region, distance)
        assert np.linalg.norm(slow - fast) <= 2 * distance


def test_their_budget_of_steps_is_finite_and_its_end_is_an_error() -> None:
    """Without the data in the message."""
    objective, region = OBJECTIVES["logistic"], WholeSpace(3)
    problem, _ = problem_and_distance(
        objective, region, records(objective, "random", 9), ridge=1.0, std=1.0
    )
    with pytest.raises(SolverError) as caught:
        minimise(problem, region, 1e-300)
    assert str(caught.value) == "no certified minimiser: the outcome of this release is not covered"


def test_a_ridge_that_certifies_nothing_is_refused_beforehand() -> None:
    objective = OBJECTIVES["logit"]
    for region in (WholeSpace(3), box(3, -1, 1)):
        with pytest.raises(ValueError, match=r"ridge = 1e-09: too small to certify .* = 1000000"):
            attainable(objective, region, rows=10**6, ridge=1e-9, tilt_std=1.0)


def test_what_is_attainable_grows_with_rows_and_noise_and_falls_with_the_ridge() -> None:
    for where, make in REGIONS.items():
        region = make(3)

        def at(rows: int, ridge: float, std: float, region: Region = region) -> float:
            return attainable(OBJECTIVES["logit"], region, rows=rows, ridge=ridge, tilt_std=std)

        assert at(10, 1.0, 1.0) < at(1000, 1.0, 1.0), where
        assert at(10, 1.0, 1.0) < at(10, 1.0, 100.0), where
        assert at(10, 1.0, 1.0) > at(10, 30.0, 1.0), where


# --- the float error is bounded -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "length"), thinned(product(OBJECTIVES, [0.0, 1.0, 30.0, 1e3, 1e6]))
)
def test_the_rounding_of_one_gradient_is_bounded(what: str, length: float) -> None:
    objective = OBJECTIVES[what]
    rng = np.random.default_rng(9)
    worst = 0.0
    for kind in ("random", "boundary", "collinear"):
        theta = rng.standard_normal(3)
        theta *= length / np.linalg.norm(theta)
        data = records(objective, kind, 12, seed=int(length) % 101)
        for row, computed in zip(data, objective.gradients(data, theta), strict=True):
            exact = precise_gradient(objective, row, [mpf(v) for v in theta])
            worst = max(worst, away(computed, exact))
    assert worst <= objective.rounding(length)


@pytest.mark.parametrize("what", list(OBJECTIVES))
def test_the_rounding_of_the_whole_gradient_is_half_of_what_is_attainable(what: str) -> None:
    objective, region = OBJECTIVES[what], WholeSpace(3)
    for ridge, std in ((0.05, 1.0), (10.0, 100.0), (1e6, 1.0)):
        data = records(objective, "random", 20)
        problem, distance = problem_and_distance(objective, region, data, ridge=ridge, std=std)
        reach = longest(objective, region, rows=20, ridge=ridge, tilt_std=std)
        for length in (0.0, 0.1, 1.0, 2.0):
            theta = np.array([1.0, -2.0, 2.0]) / 3 * length * reach
            error = away(problem.gradient(theta), precise_total(problem, [mpf(v) for v in theta]))
            assert error <= distance / 2 * ridge


@pytest.mark.parametrize("what", ["logistic", "logit", "poisson"])
def test_rounding_of_scores_is_part_of_it(what: str) -> None:
    """Two hundred equal records whose scores cancel at a long θ: all of their errors agree."""
    objective, region, ridge, n = OBJECTIVES[what], WholeSpace(3), 0.002, 200
    reach = longest(objective, region, rows=n, ridge=ridge, tilt_std=0.1)
    theta = np.array([1.0, math.pi, -math.e])
    theta *= 2 * reach / np.linalg.norm(theta)
    worst = 0.0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(3)
        x -= theta * (theta @ x) / (theta @ theta)
        if isinstance(objective, MultinomialLogit):
            answer = Answer(np.zeros((n, 4, 3)) + x, np.ones((n, 4)), np.zeros(n, dtype=int))
            data = objective.domain.clip(answer)
        else:
            data = objective.domain.clip((np.tile(x, (n, 1)), np.zeros(n)))
        distance = attainable(objective, region, rows=n, ridge=ridge, tilt_std=0.1)
        exact = precise_gradient(objective, data[0], [mpf(v) for v in theta])
        summed = objective.gradients(data, theta).sum(axis=0)
        error = away(summed, [n * v for v in exact])
        assert error <= distance / 2 * ridge
        worst = max(worst, error)
    others = UNIT * (solver._SUM * n * objective.gradient_bound + 8 * ridge * reach)
    assert worst > others, "without the rounding of scores the bound would be too small"


def test_sums_over_many_records_are_pairwise() -> None:
    """Half a million equal records; adding them up one by one would break the bound."""
    objective, n = LinearObjective.logistic(1), 500_000
    data = np.tile(records(objective, "random", 1, seed=3), (n, 1))
    theta = np.array([0.3])
    each = objective.gradients(data, theta)[:, 0]
    exact = math.fsum(each)
    allowed = solver._SUM * UNIT * float(np.abs(each).sum())
    problem = Problem(objective, data, 1e-300, np.zeros(1))
    assert abs(problem.gradient(theta)[0] - exact) <= allowed
    assert abs(np.cumsum(each)[-1] - exact) > allowed


def test_the_longest_minimiser_when_the_region_leaves_out_the_origin() -> None:
    """A bound that forgot the region's distance from 0 would be a million times too small."""
    objective, region = OBJECTIVES["logistic"], simplex(3)
    bound = longest(objective, region, rows=5, ridge=1e6, tilt_std=0.1)
    problem, distance = problem_and_distance(
        objective, region, records(objective, "random", 5), ridge=1e6, std=0.1
    )
    theta = minimise(problem, region, distance)
    assert np.linalg.norm(theta) <= bound <= 1
    assert longest(objective, WholeSpace(3), rows=5, ridge=1e6, tilt_std=0.1) < 1e-4
    assert theta == pytest.approx(np.full(3, 1 / 3), abs=1e-4)


# --- an error that is not paid for ----------------------------------------------------------------


def test_the_honest_price_of_a_sloppy_solver_is_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, objective = ZCDP("0.5"), LinearObjective.logistic(2)
    good = ObjectivePerturbation.with_ridge(objective, 10.0, budget, max_rows=4)
    with monkeypatch.context() as patch:
        honest = objective_perturbation._solver_error
        patch.setattr(objective_perturbation, "_solver_error", lambda *a: 100 * honest(*a))
        bad = ObjectivePerturbation.with_ridge(objective, 10.0, budget, max_rows=4)
        assert not budget.covers(budget.price(good.loss())), "the same blur, a hundredfold error"
        assert budget.price(good.loss()).rho > 5
    assert budget.covers(budget.price(good.loss()))
    assert bad.blur_std == pytest.approx(100 * good.blur_std)
    assert bad.noise_std == good.noise_std


RIDGE, STD, ERROR = 5.0, 5.0, 0.05
COMMON = [[0.9, 1.0], [-0.7, 0.0], [0.4, 1.0]]
FIRST, SECOND = np.array([[1.0, 1.0], *COMMON]), np.array([[0.2, 0.0], *COMMON])


def width(data: Array) -> float:
    """A solver that bisects a bracket made from the data stops on a grid made from the data."""
    return 2 * ERROR * (6 + float(np.abs(data[:, 0]).sum()) / 5) / 7


def smooth_gradient(data: Array, theta: Array) -> Array:
    """∇J without its tilt, of many θ in R."""
    parts = [LinearObjective.logistic(1).gradients(data, np.array([t])).sum() for t in theta]
    return np.array(parts) + RIDGE * theta


def grid_law(data: Array) -> tuple[Array, Array]:
    """Exactly: the middles of the cells in which the bisection ends, and their probabilities."""
    cell = width(data)
    edges = np.asarray(cell * np.arange(-math.ceil(9 / cell), math.ceil(9 / cell) + 1.0))
    # θ* <= t exactly where −b <= ∇J(t)
    masses = np.diff(ndtr(smooth_gradient(data, edges) / STD))
    return (edges[1:] + edges[:-1]) / 2, masses / masses.sum()


def test_an_early_bisection_leaks_everything_without_blur() -> None:
    """Its error stays below 1/20, and still 200 of 200 releases tell the data set."""
    assert max(width(FIRST), width(SECOND)) <= 2.0 * ERROR * (1 + 1e-9)
    rng = np.random.default_rng(10)
    right = 0
    for trial in range(200):
        data = (FIRST, SECOND)[trial % 2]
        problem = Problem(LinearObjective.logistic(1), data, RIDGE, rng.standard_normal(1) * STD)
        exact = float(minimise(problem, WholeSpace(1), 1e-9)[0])
        released = (math.floor(exact / width(data)) + 0.5) * width(data)
        assert abs(released - exact) <= ERROR
        off = [abs((released / width(d)) % 1 - 0.5) for d in (FIRST, SECOND)]
        right += int(np.argmin(off)) == trial % 2
    assert right == 200


@pytest.mark.parametrize("order", [1.5, 3.0, 8.0])
def test_blur_at_its_price_covers_the_bisection_and_blur_for_less_does_not(order: float) -> None:
    """Rényi divergences of the blurred grids, by integration."""
    exact = MinimizerLoss(
        difference=2.0, trace=0.25, rank=1, directions=1, ridge=RIDGE, noise_std=STD
    )

    def divergence(blur: float) -> float:
        x = np.arange(-7, 7, blur / 5)
        logs = []
        for data in (FIRST, SECOND):
            middles, masses = grid_law(data)
            near = (x[:, None] - middles) / blur
            density = np.exp(-(near**2) / 2) @ masses
            logs.append(np.log(np.maximum(density, 1e-290)) - math.log(blur * math.sqrt(2 * np.pi)))
        ratios = order * logs[0] + (1 - order) * logs[1]
        return math.log(float(np.exp(ratios).sum()) * blur / 5) / (order - 1)

    def price(blur: float, error: float) -> float:
        paid = gaussian_loss(2 * error, blur, Adjacency.REPLACE_ONE)
        return (exact + paid).renyi(order)

    blur = 2 * ERROR  # mass 1 for the error as it is
    assert divergence(blur) <= price(blur, ERROR)
    thin = 2 * ERROR / 10  # mass 1 for a tenth of the error
    assert divergence(thin) > price(thin, ERROR / 10)
    assert divergence(thin) <= price(thin, ERROR)


# --- noise on a grid ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["logistic", "logit"])
def test_a_minimiser_of_noise_on_a_grid_tells_the_data_set(what: str) -> None:
    """−∇J(θ) lies on the grid for the true data and next to it for the other data."""
    objective: Objective[Any] = (
        LinearObjective.logistic(1) if what == "logistic" else MultinomialLogit(3, 1)
    )
    grid, ridge, std = 2.0**-12, 5.0, 5.0
    both = [records(objective, "random", 6, seed=1) for _ in range(2)]
    both[1][0] = records(objective, "separated", 1, seed=5)[0]

    def right(rounded: bool) -> int:
        rng = np.random.default_rng(11)
        count = 0
        for trial in range(200):
            tilt = rng.standard_normal(1) * std
            if rounded:
                tilt = np.round(tilt / grid) * grid
            problem = Problem(objective, both[trial % 2], ridge, tilt)
            theta = minimise(problem, WholeSpace(1), 1e-11)
            steps = [-Problem(objective, d, ridge, np.zeros(1)).gradient(theta) for d in both]
            off = [abs(float((s / grid - np.round(s / grid))[0])) for s in steps]
            count += int(np.argmin(off)) == trial % 2
        return count

    assert right(rounded=True) == 200
    assert 70 <= right(rounded=False) <= 130, "with continuous noise this attack is a coin"


def test_no_minimiser_leaves_without_blur_or_with_other_noise() -> None:
    objective = LinearObjective.logistic(1)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="blur_std = "):
            ObjectivePerturbation(objective, 1.0, 1.0, wrong, 5)
    mechanism = ObjectivePerturbation(objective, 1.0, 1.0, 0.1, 5)
    (tilt,) = [p for p, _ in mechanism.loss().parts if isinstance(p, MinimizerLoss)]  # type: ignore[attr-defined]
    assert tilt.noise_std == mechanism.noise_std

    class Gridded:
        """What a third party might try: a grid under the name of a Gaussian."""

        norm = "l2"

        def loss(self, sensitivity: float, adjacency: Adjacency) -> Any:
            return gaussian_loss(sensitivity, 1.0, adjacency)

        def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
            return np.round(GaussianNoise(1.0).draw(pool, shape))

        def to_dict(self) -> dict[str, Any]:
            return {"family": "gridded", "std": 1.0}

    others: list[Any] = [GaussianNoise(0.5), GaussianNoise(2.0), LaplaceNoise(1.0), Gridded()]
    for noise in others:
        accountant = CentralAccountant(ZCDP(100), users=range(3), noise=NoiseSource.simulation(0))
        token = accountant.issue(mechanism.loss(), users=range(3), label="fit")
        stated: Noise = noise
        spend = Spend("own-fit", objective.domain, stated, own_loss=mechanism.loss())
        with pytest.raises(BudgetError, match="the loss is for a tilt of"):
            token.spend(spend)
        assert len(accountant.ledger.entries) == 2
