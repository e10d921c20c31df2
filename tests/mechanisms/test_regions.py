"""Regions against a general convex solver, linear programs and the definitions."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import cvxpy
import numpy as np
import pytest
from grids import thinned
from scipy.optimize import linprog

from privlearn.mechanisms.objectives import UNIT
from privlearn.mechanisms.regions import (
    EuclideanBall,
    Polyhedron,
    Region,
    WholeSpace,
    box,
    simplex,
)
from privlearn.rows.domains import Array

cp: Any = cvxpy


def wedge(angle: float) -> Polyhedron:
    """A triangle with an angle of 2·angle at (1, 0)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    return Polyhedron(
        np.array([[sine, cosine], [sine, -cosine], [-1.0, 0.0]]), np.array([sine, sine, 1.0])
    )


def random_polyhedron(seed: int) -> Polyhedron:
    rng = np.random.default_rng(seed)
    sides = box(4, -2, 2)
    rows = np.vstack([rng.standard_normal((30, 4)) * 10.0 ** rng.integers(-3, 4, (30, 1))])
    offsets = np.linalg.norm(rows, axis=1) * rng.uniform(0.1, 2, 30)
    return Polyhedron(np.vstack([rows, sides.rows]), np.append(offsets, sides.limits))


def cube_thrice(dim: int) -> Polyhedron:
    """Each inequality three times, once scaled, and one that never binds."""
    rows, limits = box(dim, -1, 1).rows, box(dim, -1, 1).limits
    return Polyhedron(
        np.vstack([rows, 5 * rows, rows, np.ones((1, dim))]),
        np.concatenate([limits, 5 * limits, limits, [100.0]]),
    )


SIGNS = np.array(np.meshgrid(*[(-1.0, 1.0)] * 4)).reshape(4, -1).T
TURNS = np.linspace(0, 2 * np.pi, 24, endpoint=False)
REGIONS: dict[str, Region] = {
    "whole space": WholeSpace(3),
    "ball": EuclideanBall(4, 2.0),
    "small ball": EuclideanBall(2, 1e-3),
    "interval": box(1, -0.5, 3.0),
    "cube": box(3, -1, 1),
    "cube off the origin": box(3, 10, 11),
    "tiny cube": box(4, 0, 1e-9),
    "point": simplex(1),
    "segment": simplex(2, 3.0),
    "simplex": simplex(5),
    "wedge": wedge(1e-3),
    "needle": wedge(2e-4),
    "redundant": cube_thrice(3),
    "random": random_polyhedron(0),
    "cross-polytope": Polyhedron(SIGNS, np.ones(16)),
    "cone": Polyhedron(
        np.vstack([np.column_stack([np.cos(TURNS), np.sin(TURNS), np.ones(24)]), [[0, 0, -1.0]]]),
        np.append(np.ones(24), 0.0),
    ),
}
"""With degenerate vertices (8 facets meet in one of the cross-polytope, 24 in the apex)."""
CONDITIONS = [(1, 1), (10, 100), (1e3, 3), (1e8, 1e6), (1e8, 1)]
"""Of the Hessian, and lengths of the gradient."""
BOUNDED = [name for name in REGIONS if name != "whole space"]
THIN = {"needle", "tiny cube", "wedge"}
"""Where the solver that serves as an oracle has no digits left."""


def support(region: Region, direction: Array) -> float:
    """sup ⟨direction, x⟩ over the set, by a linear program."""
    if isinstance(region, EuclideanBall):
        return region.radius * float(np.linalg.norm(direction))
    assert isinstance(region, Polyhedron)
    size = float(np.abs(region.limits).max())
    free = [(None, None)] * region.dim
    found: Any = linprog(-direction, A_ub=region.rows, b_ub=region.limits / size, bounds=free)
    return -float(found.fun) * size


def outside(region: Region, point: Array) -> float:
    """How far a point violates some inequality."""
    if isinstance(region, WholeSpace):
        return 0.0
    if isinstance(region, EuclideanBall):
        return max(0.0, float(np.linalg.norm(point)) - region.radius)
    assert isinstance(region, Polyhedron)
    return max(0.0, float((region.rows @ point - region.limits).max()))


def rounding(region: Region, point: Array) -> float:
    """The allowance that a certificate has per unit of force (`solver._edge`, without grip)."""
    return 16 * UNIT * region.dim * (1 + float(np.linalg.norm(point)))


def constraint(region: Region, x: Any) -> list[Any]:
    if isinstance(region, EuclideanBall):
        return [cp.norm(x) <= region.radius]
    return [region.rows @ x <= region.limits] if isinstance(region, Polyhedron) else []


def quadratic(rng: np.random.Generator, d: int, condition: float, size: float) -> Any:
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    hessian = (turn * np.geomspace(1, condition, d)) @ turn.T * 10.0 ** rng.uniform(-1, 2)
    return rng.standard_normal(d) * size, (hessian + hessian.T) / 2


def members(region: Region, rng: np.random.Generator, n: int = 30) -> Array:
    """Points of the set: corners and mixtures of corners, or of the sphere."""
    directions = rng.standard_normal((n, region.dim))
    if isinstance(region, EuclideanBall):
        sphere = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        return np.asarray(sphere * region.radius * rng.choice([1.0, 0.3], (n, 1)))
    assert isinstance(region, Polyhedron)
    size = float(np.abs(region.limits).max())
    free = [(None, None)] * region.dim
    programs: list[Any] = [
        linprog(u, A_ub=region.rows, b_ub=region.limits / size, bounds=free) for u in directions
    ]
    corners = np.array([found.x * size for found in programs])
    return np.vstack([corners, rng.dirichlet(np.ones(n), n) @ corners])


@pytest.mark.parametrize(
    ("name", "condition", "size"), thinned([(n, *c) for n in BOUNDED for c in CONDITIONS], 3)
)
def test_a_step_is_feasible_stationary_and_has_the_normal_it_says(
    name: str, condition: float, size: float
) -> None:
    """Without an oracle: these conditions alone imply the distance that is certified."""
    region = REGIONS[name]
    rng = np.random.default_rng(int(condition) % 997 + int(size))
    points = members(region, rng)
    for trial in range(6):
        gradient, hessian = quadratic(rng, region.dim, condition, size)
        at = region.inner() if trial % 2 else points[trial]
        z, normal, gap = region.step(at, gradient, hessian)
        assert outside(region, z) <= rounding(region, z)
        force = gradient + hessian @ (z - at)
        pull = float(np.linalg.norm(gradient)) + float(np.linalg.norm(hessian @ at))
        # The rounding of the unconstrained minimiser, which may lie far away, enters here.
        scale = pull + float(np.linalg.norm(hessian, 2)) * (1 + float(np.linalg.norm(z)))
        weights = region.grip * float(np.linalg.norm(normal))
        assert np.linalg.norm(force + normal) <= 2e-14 * condition**0.25 * scale + UNIT * weights
        slack = rounding(region, z) * weights
        assert gap >= 0
        assert gap <= slack
        assert support(region, normal) - normal @ z <= gap + slack
        assert max((points - z) @ normal) <= gap + slack + 1e-9 * float(np.linalg.norm(normal))


@pytest.mark.parametrize("name", ["cube", "simplex", "random", "cone", "cross-polytope", "wedge"])
def test_points_and_weights_that_are_wrong_end_as_feasible_points_and_true_normals(
    name: str,
) -> None:
    """What a step falls back on when its guess of the active inequalities was bad."""
    region = REGIONS[name]
    assert isinstance(region, Polyhedron)
    rng = np.random.default_rng(5)
    rows, limits = region.rows[region._equations], region.limits[region._equations]
    for _ in range(20):
        point = rng.standard_normal(region.dim) * 3
        if len(rows):  # equations are kept by the steps themselves
            point = point + np.linalg.pinv(rows) @ (limits - rows @ point)
        z, normal, gap = region._feasible(point, rng.standard_normal(len(region.limits)))
        assert outside(region, z) <= rounding(region, z)
        slack = rounding(region, z) * region.grip * float(np.linalg.norm(normal))
        assert support(region, normal) - normal @ z <= gap + slack + 1e-9
        assert gap >= 0


@pytest.mark.parametrize("name", ["cube", "random", "simplex", "cone", "cross-polytope", "wedge"])
@pytest.mark.parametrize("wrong", ["one missing", "one too many", "both", "all missing"])
def test_a_bad_guess_of_the_active_inequalities_is_mended(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = REGIONS[name]
    assert isinstance(region, Polyhedron)
    rng = np.random.default_rng(6)
    guess = Polyhedron._facing

    def spoilt(self: Polyhedron, free: Array, hessian: Array) -> Any:
        active = guess(self, free, hessian)
        on, off = np.flatnonzero(active), np.flatnonzero(~active)
        if wrong == "all missing":
            return np.zeros(len(active), dtype=bool)
        if wrong != "one too many" and on.size:
            active[rng.choice(on)] = False
        if wrong != "one missing" and off.size:
            active[rng.choice(off)] = True
        return active

    for _ in range(10):
        gradient, hessian = quadratic(rng, region.dim, 10.0, 20.0)
        right = region.step(region.inner(), gradient, hessian)
        with monkeypatch.context() as patch:
            patch.setattr(Polyhedron, "_facing", spoilt)
            found = region.step(region.inner(), gradient, hessian)
        assert outside(region, found.point) <= rounding(region, found.point)
        # Where many facets meet, only feasibility and an honest normal are promised.
        if name in ("cube", "simplex", "wedge") or (wrong == "one missing" and name != "cone"):
            assert found.point == pytest.approx(right.point, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "condition"),
    thinned(product([n for n in REGIONS if n not in THIN], [1.0, 30.0, 1e3, 1e6]), 3),
)
def test_a_step_minimises_as_a_general_solver_does(name: str, condition: float) -> None:
    region = REGIONS[name]
    rng = np.random.default_rng(int(condition))
    for trial in range(2):
        gradient, hessian = quadratic(rng, region.dim, condition, (1.0, 50.0)[trial])
        gradient, hessian = (part / np.linalg.norm(hessian, 2) for part in (gradient, hessian))
        at = region.inner()
        x: Any = cp.Variable(region.dim)
        root = np.linalg.cholesky(hessian).T
        model = gradient @ (x - at) + cp.sum_squares(root @ (x - at)) / 2
        problem = cp.Problem(cp.Minimize(model), constraint(region, x))
        problem.solve(solver=cp.CLARABEL)
        z = region.step(at, gradient, hessian).point
        found, best = (
            float(gradient @ move + move @ hessian @ move / 2) for move in (z - at, x.value - at)
        )
        size = 1 + abs(best)
        assert found <= best + 1e-7 * size
        assert np.linalg.norm(z - x.value) <= math.sqrt(2e-7 * size * condition)
        if condition == 1:
            assert z == pytest.approx(x.value, abs=1e-4)


@pytest.mark.parametrize("name", list(REGIONS))
def test_a_projection_is_the_nearest_point(name: str) -> None:
    region = REGIONS[name]
    rng = np.random.default_rng(3)
    if isinstance(region, WholeSpace):
        far = rng.standard_normal(3) * 1e6
        assert region.project(far) is far
        return
    for x in (points := members(region, rng, 15)):
        assert region.project(x) == pytest.approx(x, abs=1e-9)
        far = x + rng.standard_normal(region.dim) * 10.0 ** rng.integers(-2, 5)
        nearest = region.project(far)
        assert outside(region, nearest) <= rounding(region, nearest)
        # ⟨far − nearest, x − nearest⟩ <= 0 for all x of the set, and only at the nearest point
        size = np.linalg.norm(far - nearest)
        slack = (size + np.linalg.norm(far)) * 1e-13 * region.grip
        assert max((points - nearest) @ (far - nearest)) <= slack + size * 1e-9 * (name in THIN)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_radius_is_a_bound_and_the_inner_point_lies_inside(name: str) -> None:
    region = REGIONS[name]
    lengths = np.linalg.norm(members(region, np.random.default_rng(4)), axis=1)
    assert lengths.max() <= region.radius
    assert outside(region, region.inner()) <= rounding(region, region.inner())
    assert region.radius <= 3 * lengths.max() + 1e-6


def test_radii_of_known_sets() -> None:
    assert box(3, -1, 1).radius == pytest.approx(math.sqrt(3), abs=1e-5)
    assert box(2, -3, 1).radius == pytest.approx(math.sqrt(18), abs=1e-5)
    assert box(2, 0, 1e-9).radius == pytest.approx(math.sqrt(2) * 1e-9, rel=1e-4)
    assert simplex(1).radius == pytest.approx(1, abs=1e-5)
    assert WholeSpace(2).radius == math.inf
    assert EuclideanBall(7, 0.25).radius == 0.25


def test_the_middle_of_a_triangle_is_inside_although_its_extreme_points_lie_on_one_side() -> None:
    """All extreme coordinates are reached on the edge from (−1, −1) to (1, 1)."""
    rows = np.array([[1.0, -1.0], [-1.0, 2.0], [-2.0, 1.0]])
    region = Polyhedron(rows, np.array([0.0, 1.0, 1.0]))
    assert (region.limits - region.rows @ region.inner()).min() > 0.1
    assert region.grip < 50


@pytest.mark.parametrize("name", ["cube", "wedge", "needle", "random", "cross-polytope", "cone"])
def test_grip_bounds_the_weights_of_every_normal(name: str) -> None:
    """At corners and elsewhere, the largest sum of weights is found by a linear program."""
    region = REGIONS[name]
    assert isinstance(region, Polyhedron)
    rng = np.random.default_rng(6)
    worst = 0.0
    directions = [*np.eye(region.dim), *rng.standard_normal((10, region.dim))]
    for direction in directions:
        unit = direction / np.linalg.norm(direction)
        reached = support(region, unit)
        found: Any = linprog(
            -np.ones(len(region.rows)),
            A_ub=region.limits[None],
            b_ub=[reached + 1e-9],
            A_eq=region.rows.T,
            b_eq=unit,
        )
        assert found.status == 0
        worst = max(worst, -float(found.fun))
    assert worst <= region.grip * (1 + 1e-4)
    assert {"wedge": 900, "needle": 4e3}.get(name, 1.0) <= worst, "a grip of 1 would be too small"


def test_grip_with_equations() -> None:
    """The simplex: every normal is a nonnegative sum of −e_i and a multiple of 1/√d."""
    region = simplex(5)
    rng = np.random.default_rng(7)
    for _ in range(50):
        support_size = int(rng.integers(1, 6))
        at = np.zeros(5)
        at[rng.permutation(5)[:support_size]] = 1 / support_size
        weights = np.where(at == 0, rng.exponential(size=5), 0.0)
        along = rng.normal() * 3
        normal = along * np.ones(5) / math.sqrt(5) - weights
        assert weights.sum() + abs(along) <= region.grip * np.linalg.norm(normal)
    assert WholeSpace(2).grip == EuclideanBall(2, 1.0).grip == 1.0


BAD: dict[str, tuple[Any, Any, str]] = {
    "empty": ([[1.0], [-1.0]], [0.0, -1.0], "the set is empty"),
    "empty by a little": ([[1.0], [-1.0]], [0.0, -1e-8], "the set is empty"),
    "empty by less": ([[1.0], [-1.0]], [0.0, -1e-11], "empty|too thin"),
    "empty, many": (np.vstack([np.eye(3), -np.eye(3)]), np.full(6, -1.0), "the set is empty"),
    "unbounded": ([[1.0, 0.0], [-1.0, 0.0]], [1.0, 1.0], "unbounded in coordinate 1"),
    "unbounded one way": ([[1.0]], [1.0], "unbounded in coordinate 0"),
    "too thin": (box(2, 0, 1).rows, [1 + 1e-10, 1.0, -1.0, 0.0], "too thin"),
    "much too thin": (box(2, 0, 1).rows, [1 + 1e-11, 1.0, -1.0, 0.0], "too thin"),
    "NaN row": ([[np.nan], [-1.0]], [1.0, 1.0], "must be finite"),
    "NaN limit": ([[1.0], [-1.0]], [np.nan, 1.0], "must be finite"),
    "infinite limit": ([[1.0], [-1.0]], [np.inf, 1.0], "must be finite"),
    "zero row": ([[1.0], [-1.0], [0.0]], [1.0, 1.0, 1.0], "row 2 is 0"),
    "long row": ([[1.0, 0.0], [1e200, 1e200]], [1.0, 1.0], "row 1 is too long"),
    "flat rows": ([1.0, -1.0], [1.0, 1.0], r"must be \(m, d\) and \(m,\)"),
    "other length": ([[1.0], [-1.0]], [1.0], r"must be \(m, d\) and \(m,\)"),
    "limits as a column": ([[1.0], [-1.0]], [[1.0], [1.0]], r"must be \(m, d\) and \(m,\)"),
    "no rows": (np.zeros((0, 2)), np.zeros(0), r"must be \(m, d\) and \(m,\)"),
    "no columns": (np.zeros((2, 0)), np.zeros(2), r"must be \(m, d\) and \(m,\)"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_no_polyhedron_is_refused(case: str) -> None:
    rows, limits, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        Polyhedron(np.array(rows), np.array(limits))


def test_other_wrong_parameters() -> None:
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="radius = "):
            EuclideanBall(2, wrong)
        with pytest.raises(ValueError, match="total = "):
            simplex(2, wrong)
    with pytest.raises(ValueError, match="low must be below high"):
        box(2, 1.0, 1.0)
    with pytest.raises(ValueError, match="low must be below high"):
        box(2, math.nan, 1.0)
    for dim in (0, -1):
        with pytest.raises(ValueError, match="dim = "):
            box(dim, 0, 1)
        with pytest.raises(ValueError, match="dim = "):
            EuclideanBall(dim, 1.0)


def test_a_polyhedron_is_a_value_that_cannot_change() -> None:
    rows, limits = np.array([[2.0], [-1.0]]), np.array([2.0, 1.0])
    region = Polyhedron(rows, limits)
    rows[:] = limits[:] = 7.0
    assert region == box(1, -1, 1)
    assert hash(region) == hash(box(1, -1, 1))
    assert region != box(1, -1, 2)
    assert region != "a box"
    assert repr(region) == "Polyhedron(2 inequalities in R^1)"
    with pytest.raises(ValueError, match="read-only"):
        region.rows[0] = 0.0
    assert region.to_dict() == {
        "region": "polyhedron",
        "rows": [[1.0], [-1.0]],
        "limits": [1.0, 1.0],
    }
    assert WholeSpace(2).to_dict() == {"region": "whole-space"}
    assert EuclideanBall(2, 3.0).to_dict() == {"region": "ball", "radius": 3.0}


def test_rows_that_are_almost_parallel_are_refused_and_repeated_ones_merged() -> None:
    cube = box(2, -1, 1)
    near = np.vstack([cube.rows, [[1.0, 1e-9]]])
    with pytest.raises(ValueError, match=r"rows 0 and 4 are parallel up to 1.0e-09"):
        Polyhedron(near, np.append(cube.limits, 1.0))
    against = np.vstack([cube.rows, [[-1.0, 1e-6]]])
    with pytest.raises(ValueError, match="parallel up to"):
        Polyhedron(against, np.append(cube.limits, 1.0))
    looser = np.append(cube.limits, 6 * cube.limits)
    assert Polyhedron(np.vstack([cube.rows, 3 * cube.rows]), looser) == cube
