"""Sets to choose from: scores are those of the points, and no two points are further apart."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privlearn.mechanisms import CrossPolytope, ExplicitVertices, SimplexVertices
from privlearn.mechanisms.vertices import Vertices
from privlearn.rows.domains import Norm, exponent_of

NORMS: tuple[Norm, ...] = ("l1", "l2", "linf", 1.5, 3.0)
ENTRIES = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


@st.composite
def vertex_sets(draw: st.DrawFn) -> Vertices:
    dim, radius = draw(st.integers(1, 5)), draw(st.floats(0.1, 10))
    kind = draw(st.sampled_from(["cross", "simplex", "explicit"]))
    if kind == "cross":
        return CrossPolytope(dim, radius)
    if kind == "simplex":
        return SimplexVertices(dim + 1, radius)
    rows = st.lists(ENTRIES, min_size=dim, max_size=dim)
    points = np.array(draw(st.lists(rows, min_size=2, max_size=7)))
    points[0, 0] += 1 if (points == points[0]).all() else 0
    return ExplicitVertices(points)


def all_points(vertices: Vertices) -> NDArray[np.float64]:
    return vertices.points(np.arange(vertices.count))


@given(vertex_sets(), st.integers(0, 2**32))
def test_scores_are_the_products_with_the_points(vertices: Vertices, seed: int) -> None:
    g = np.random.default_rng(seed).standard_normal((3, vertices.dim))
    points = all_points(vertices)
    assert points.shape == (vertices.count, vertices.dim)
    np.testing.assert_allclose(vertices.scores(g), g @ points.T, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(vertices.scores(g[0]), vertices.scores(g)[0], rtol=1e-12, atol=1e-9)
    picks = np.array([[0, 1], [1, 0]])
    np.testing.assert_array_equal(vertices.points(picks), points[picks])


@given(vertex_sets(), st.sampled_from(NORMS))
def test_the_diameter_is_the_largest_distance(vertices: Vertices, norm: Norm) -> None:
    p = exponent_of(norm)
    points = all_points(vertices)
    apart = np.abs(points[:, None] - points[None])
    far = apart.max() if p == math.inf else ((apart**p).sum(axis=-1) ** (1 / p)).max()
    assert far <= vertices.diameter(norm) <= far * (1 + 1e-9)


def test_many_explicit_points_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).standard_normal((60, 3))
    whole = ExplicitVertices(points).diameter("l1")
    monkeypatch.setattr("privlearn.mechanisms.vertices._PAIRS_AT_ONCE", 1)
    assert ExplicitVertices(points).diameter("l1") == whole


@pytest.mark.parametrize("make", [CrossPolytope, SimplexVertices])
def test_structured_sets_take_linear_memory(make: Any) -> None:
    dim = 50_000
    vertices, g = make(dim), np.ones(dim)
    tracemalloc.start()
    vertices.points(vertices.scores(g).argmax(keepdims=True))
    vertices.diameter("l1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * dim, "a dim × dim matrix would take 400,000 times dim bytes"


def test_order_and_ends_of_the_cross_polytope() -> None:
    expected = [[2, 0], [0, 2], [-2, 0], [0, -2]]
    np.testing.assert_array_equal(all_points(CrossPolytope(2, 2.0)), expected)
    np.testing.assert_array_equal(all_points(SimplexVertices(2, 2.0)), [[2, 0], [0, 2]])


def test_explicit_points_are_copied_fixed_and_compared_by_value() -> None:
    points = np.array([[1.0, -0.0], [0.0, 1.0]])
    first, second = ExplicitVertices(points), ExplicitVertices(np.abs(points))
    points[0] = 9.0
    assert first == second
    assert hash(first) == hash(second)
    assert first.to_dict() == second.to_dict()
    assert first != ExplicitVertices(points)
    assert first != CrossPolytope(1)
    with pytest.raises(AttributeError, match="vertices are fixed"):
        first.dim = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        first._points[0, 0] = 1.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros(3), r"must be \(count >= 2, dim >= 1\)"),
        (np.zeros((1, 3)), r"must be \(count >= 2, dim >= 1\)"),
        (np.array([[np.inf], [0.0]]), "unbounded"),
        (np.array([[np.nan], [0.0]]), "must be finite"),
        (np.array([[1e200], [0.0]]), "at most 1e100"),
        (np.ones((4, 2)), "nothing to choose"),
    ],
)
def test_sets_that_offer_no_choice_are_refused(points: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExplicitVertices(points)


def test_bad_numbers_are_refused() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="radius"):
            CrossPolytope(2, bad)
    with pytest.raises(ValueError, match="dim = 1"):
        SimplexVertices(1)
    for wrong in (np.array([4]), np.array([-1]), np.array([0.5])):
        with pytest.raises(ValueError, match=r"must be integers in 0\.\.3"):
            CrossPolytope(2).points(wrong)


def test_distances_of_points_far_from_zero_are_not_rounded_away() -> None:
    """By the size of the points their differences would lose digits, and powers of them vanish."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = 1 + 1e-6 * rng.normal(size=(4, 3))
        exact = [[Fraction(x) for x in point] for point in points.tolist()]
        longest = max(
            sum(abs(x - y) for x, y in zip(one, two, strict=True)) for one in exact for two in exact
        )
        assert Fraction(ExplicitVertices(points).diameter("l1")) >= longest
    away = 6e-4  # to the power of 101 below the least double
    points = np.ones((2, 1000))
    points[0] += away
    assert ExplicitVertices(points).diameter(101.0) == pytest.approx(away * 1000 ** (1 / 101))
