"""Oracles against cvxpy, projections by their optimality conditions, diameters by their pairs."""

from __future__ import annotations

import math
from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.mechanisms.constraint_sets import (
    ConstraintSet,
    LpBall,
    Polytope,
    Simplex,
    checked_member,
    dual_exponent,
    norms,
)
from privlearn.rows.domains import Array

cp: Any = cvxpy
DIM = 4
CORNERS = np.random.default_rng(5).normal(size=(7, DIM)) + 0.3
EXPONENTS = (1.0, 1.25, 1.5, 2.0, 4.0, math.inf)
BALLS = [LpBall(DIM, p, 1.5) for p in EXPONENTS]
SETS: list[ConstraintSet] = [*BALLS, Simplex(DIM, 0.7), Polytope(CORNERS)]
vectors = st.lists(st.floats(-5, 5), min_size=DIM, max_size=DIM).map(np.array)


def described(inside: ConstraintSet) -> tuple[Any, list[Any]]:
    """The set in the solver's words."""
    theta = cp.Variable(DIM)
    if isinstance(inside, LpBall):
        return theta, [cp.norm(theta, "inf" if inside.p == math.inf else inside.p) <= inside.radius]
    if isinstance(inside, Simplex):
        return theta, [theta >= 0, cp.sum(theta) == inside.radius]
    assert isinstance(inside, Polytope)
    weights = cp.Variable(len(inside.vertices))
    return theta, [theta == inside.vertices.T @ weights, weights >= 0, cp.sum(weights) == 1]


@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_the_linear_oracle_is_as_good_as_a_solver(inside: ConstraintSet) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        g = rng.normal(size=DIM)
        theta, constraints = described(inside)
        best = cp.Problem(cp.Minimize(g @ theta), constraints).solve(solver="CLARABEL")
        vertex = inside.minimize(g)
        assert inside.contains(vertex)
        assert g @ vertex == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_the_projection_is_as_good_as_a_solver(inside: ConstraintSet) -> None:
    far = np.array([2.0, -1.0, 0.5, 3.0])
    theta, constraints = described(inside)
    cp.Problem(cp.Minimize(cp.sum_squares(theta - far)), constraints).solve(solver="CLARABEL")
    assert inside.project(far) == pytest.approx(theta.value, abs=2e-4)


@settings(max_examples=60, deadline=None)
@given(theta=vectors, which=st.integers(0, len(SETS) - 1))
def test_projections_satisfy_their_variational_inequality(theta: Array, which: int) -> None:
    inside = SETS[which]
    near = inside.project(theta)
    assert inside.contains(near)
    away = theta - near  # ⟨away, m − near⟩ <= 0 for all members m
    slack = 1e-5 if isinstance(inside, Polytope) else 1e-9
    assert away @ (inside.minimize(-away) - near) <= slack * (1 + np.abs(theta).max()) ** 2


@settings(max_examples=60, deadline=None)
@given(theta=vectors, which=st.integers(0, len(SETS) - 1))
def test_pulling_gives_members_and_leaves_members_alone(theta: Array, which: int) -> None:
    inside = SETS[which]
    near = inside.pull(theta)
    assert inside.contains(near)
    again = inside.pull(near)
    assert again == pytest.approx(near, abs=1e-6)
    if isinstance(inside, LpBall):
        assert inside.contains(near, 0.0)
        assert np.array_equal(again, near)


@given(g=vectors.filter(lambda g: np.abs(g).max() > 1e-3), which=st.integers(0, len(BALLS) - 1))
def test_the_oracle_of_a_ball_attains_hölders_bound(g: Array, which: int) -> None:
    ball = BALLS[which]
    bound = -ball.radius * float(norms(g, dual_exponent(ball.p)))
    assert g @ ball.minimize(g) == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_blocks_of_directions_are_rows_of_directions(inside: ConstraintSet) -> None:
    block = np.random.default_rng(1).normal(size=(5, DIM))
    one_by_one = np.stack([inside.minimize(g) for g in block])
    assert np.array_equal(inside.minimize(block), one_by_one)


@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_a_zero_direction_still_gives_a_member_on_the_border(inside: ConstraintSet) -> None:
    vertex = inside.minimize(np.zeros(DIM))
    assert inside.contains(vertex)
    if isinstance(inside, LpBall):
        assert norms(vertex, inside.p) == pytest.approx(inside.radius)


def test_ties_go_to_the_lowest_index() -> None:
    tied = np.array([1.0, 2.0, 2.0, -2.0])
    assert np.flatnonzero(LpBall(DIM, 1, 1.0).minimize(tied)).tolist() == [1]
    assert np.flatnonzero(Simplex(DIM).minimize(np.array([1.0, 0.0, 0.0, 2.0]))).tolist() == [1]
    square = Polytope([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert square.minimize(np.array([1.0, 1.0])).tolist() == [-1.0, 0.0]
    assert square.minimize(np.zeros(2)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("s", [1.0, 1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_the_diameter_is_attained_and_never_exceeded(inside: ConstraintSet, s: float) -> None:
    rng = np.random.default_rng(2)
    extreme = inside.minimize(rng.normal(size=(200, DIM)))
    if isinstance(inside, LpBall):
        axis, flat = np.eye(DIM)[0], np.ones(DIM)
        pairs = [inside.radius * v / norms(v, inside.p) for v in (axis, flat)]
        extreme = np.concatenate([extreme, pairs, np.negative(pairs)])
    apart = max(float(norms(extreme - point, s).max()) for point in extreme)
    assert apart <= inside.diameter(s) * (1 + 1e-12)
    assert apart == pytest.approx(inside.diameter(s))


def test_norms_neither_overflow_nor_vanish() -> None:
    assert norms(np.array([3e200, 4e200]), 2) == pytest.approx(5e200)
    assert norms(np.array([3e-200, 4e-200]), 2) == pytest.approx(5e-200)
    assert norms(np.zeros(3), 1.5) == 0


def test_points_that_are_no_corners_change_nothing() -> None:
    triangle = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    crowded = Polytope([*triangle, [0.2, 0.2], [0.0, 0.0]])
    far = np.array([2.0, 1.0])
    assert crowded.project(far) == pytest.approx(Polytope(triangle).project(far), abs=1e-6)
    assert crowded.diameter(2) == Polytope(triangle).diameter(2)


@pytest.mark.parametrize("p", [0.5, 0.0, -1.0, math.nan])
def test_exponents_below_one_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"p = .*must be in \[1, inf\]"):
        LpBall(DIM, p, 1.0)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan, 1e200])
def test_radii_must_be_positive_and_finite(radius: float) -> None:
    with pytest.raises(ValueError, match="radius"):
        LpBall(DIM, 2, radius)
    with pytest.raises(ValueError, match="radius"):
        Simplex(DIM, radius)


@pytest.mark.parametrize(
    "corners",
    [[[math.inf, 0.0]], [[0.0, math.nan]], [], [1.0, 2.0], [[]], [["a"]], [[1e200, 0.0]]],
)
def test_unbounded_and_shapeless_polytopes_are_refused(corners: Any) -> None:
    with pytest.raises(ValueError, match="corners"):
        Polytope(corners)


@pytest.mark.parametrize("theta", [[3.0, 0.0, 0.0, 0.0], [0.0], [math.nan] * DIM])
def test_members_are_checked(theta: list[float]) -> None:
    with pytest.raises(ValueError, match="theta"):
        checked_member(theta, LpBall(DIM, 1.5, 1.0))
    assert checked_member([0.0] * DIM, LpBall(DIM, 1.5, 1.0)).tolist() == [0.0] * DIM


@pytest.mark.parametrize("inside", SETS, ids=repr)
def test_sets_are_values_with_a_json_form(inside: ConstraintSet) -> None:
    import json

    assert isinstance(inside, ConstraintSet)
    assert hash(inside) == hash(inside)
    assert json.loads(json.dumps(inside.to_dict()))["kind"] == inside.to_dict()["kind"]
