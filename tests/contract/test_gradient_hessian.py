"""Gradients and Hessians: how far two contributions can be apart, in doubles and in integers."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mutation import Edit, InspectionCase, Mutant
from numpy.typing import NDArray

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BatchedPrefixSum
from privlearn.rows.domains import (
    Ball,
    Counted,
    GradientHessian,
    OneOf,
    domain_from_dict,
    fitting_grid,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.participation import Participation

Array = NDArray[np.float64]
REPLACE, ZERO_OUT = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
WEIGHTS = (0.3, 0.84, 1.0, 1.29, 1.31, 2.0)
ENDS = tuple(itertools.product((-1.0, 0.0, 1.0), (0.0, 1.0)))


def turned(angles: Array, dim: int) -> Array:
    x = np.zeros((len(angles), dim))
    x[:, 0] = np.cos(angles)
    x[:, -1] += np.sin(angles) if dim > 1 else 0.0
    return x


def line(x: Array, s: float, h: float) -> Array:
    return np.array([*x, s, h])


def naive(lines: Array, dim: int, weight: float) -> Array:
    """Gradient and weighted Hessian of lines that need no clipping, as one flat vector."""
    gradient, hessian = np.zeros(dim), np.zeros((dim, dim))
    for *x, s, h in lines:
        gradient += s * np.array(x)
        hessian += h * np.outer(x, x)
    return np.concatenate([gradient, weight * hessian.ravel()])


def extremes(dim: int, weight: float) -> Array:
    """Records of two lines: single lines at many angles, and a gradient beside a Hessian."""
    worst = math.acos(min(1 / (2 * weight**2), 1.0))
    angles = np.array([0.0, worst, math.pi / 4, math.pi / 2, *np.linspace(0, math.pi, 17)])
    xs, none = turned(angles, dim), np.zeros(dim + 2)
    single = [np.array([line(x, s, h), none]) for x in xs for s, h in ENDS]
    many = [
        np.array([line(x, s, 0), line(y, 0, 1)]) for x in xs for y in xs[:4] for s in (-1.0, 1.0)
    ]
    return np.array(single + many)


@pytest.mark.parametrize(
    "domain", [GradientHessian(3, 1.7), OneOf(GradientHessian(2), 3), Counted(Ball(2.0, 3))]
)
def test_what_was_decoded_is_encoded_again(domain: Any) -> None:
    vector = np.random.default_rng(0).normal(size=domain.size)
    np.testing.assert_allclose(domain.encode(domain.decode(vector)), vector, rtol=1e-15)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_farthest_pair_is_where_the_proof_says(dim: int, weight: float) -> None:
    """A search that knows nothing of the domain but lines with ‖x‖, |s|, h <= 1."""
    rng, single = np.random.default_rng(0), extremes(dim, weight)[: 21 * len(ENDS), 0]
    lengths = rng.choice([1.0, 0.9, 0.5], size=(300, 1))
    angles = rng.uniform(0, 2 * math.pi, 300)
    inside = np.hstack(
        [
            turned(angles, dim) * lengths,
            rng.choice([-1, 1, 0.6], size=(300, 1)),
            rng.uniform(0, 1, size=(300, 1)).round(rng.integers(0, 3)),
        ]
    )
    points = np.array([naive(row[None], dim, weight) for row in [*single, *inside]])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2).max()
    stated = GradientHessian(dim, weight).sensitivity(REPLACE)
    assert stated * (1 - 1e-9) <= apart <= stated * (1 + 1e-12)
    furthest = np.linalg.norm(points, axis=1).max()
    assert furthest == pytest.approx(GradientHessian(dim, weight).sensitivity(ZERO_OUT), rel=1e-12)


def test_for_weight_1_the_price_is_the_root_of_5_with_one_model_and_with_one_per_arm() -> None:
    pair = GradientHessian(3)
    assert pair.sensitivity(REPLACE) ** 2 == pytest.approx(5, rel=1e-15)
    assert Fraction(pair.sensitivity(REPLACE)) ** 2 >= 5
    for weight in (*WEIGHTS, 50.0):
        one = GradientHessian(3, weight)
        assert OneOf(one, 4).sensitivity(REPLACE) == one.sensitivity(REPLACE)
    assert BatchedPrefixSum.calibrated(OneOf(pair, 4), ZCDP("0.1"), sizes=(3, 5)).noise_std == (
        pytest.approx(BatchedPrefixSum.calibrated(pair, ZCDP("0.1"), sizes=(3, 5)).noise_std)
    )
    rule = Participation(most=2, per_batch=1)
    twice = BatchedPrefixSum.calibrated(pair, ZCDP("0.1"), sizes=(3, 5), participation=rule)
    assert twice.noise_std > BatchedPrefixSum.calibrated(pair, ZCDP("0.1"), sizes=(3, 5)).noise_std


def test_lines_are_clipped_by_themselves_and_keep_their_directions() -> None:
    pair = GradientHessian(2, 2.0)
    block = np.array([[[3.0, 4, -7, 9]], [[0.3, 0.4, 0.5, -1]], [[0.6, 0.8, 0.5, 0.25]]])
    first, second, third = pair.decode(pair.clip(block))
    unit = np.array([0.6, 0.8])
    np.testing.assert_allclose(first, [-unit, *np.outer(unit, unit)], rtol=1e-10)
    np.testing.assert_allclose(second, [0.25 * unit, 0 * unit, 0 * unit], atol=1e-11)
    np.testing.assert_allclose(third, [0.5 * unit, *(0.25 * np.outer(unit, unit))], rtol=1e-10)


def test_a_mean_of_lines_is_what_it_is_and_a_sum_of_them_is_scaled_as_a_whole() -> None:
    rng, pair = np.random.default_rng(0), GradientHessian(3)
    lines = np.hstack([rng.uniform(-0.5, 0.5, (6, 3)), rng.uniform(0, 1, (6, 2))])
    mean = lines * np.array([1, 1, 1, 1 / 6, 1 / 6])
    of_mean, of_sum = pair.decode(pair.clip(np.array([mean, lines])))
    np.testing.assert_allclose(of_mean.ravel(), naive(mean, 3, 1.0), rtol=1e-10, atol=1e-12)
    size = sum(max(abs(s), h * np.linalg.norm(x)) * np.linalg.norm(x) for *x, s, h in lines)
    np.testing.assert_allclose(of_sum, of_mean * 6 / size, rtol=1e-10, atol=1e-12)
    grid = fitting_grid(pair, 1.0)
    rows = grid.values(pair.integers(np.array([mean, lines]), grid))
    np.testing.assert_allclose(pair.decode(rows), np.array([of_mean, of_sum]), atol=1e-10)


ODD = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e200, 5e-324, -0.0, 0.5])


def test_a_record_with_a_number_that_is_none_is_null_and_nothing_is_said() -> None:
    pair = GradientHessian(1)
    lines = np.array(list(itertools.product(ODD, repeat=3)))
    block = np.stack([lines, lines[np.random.default_rng(0).permutation(len(lines))]], axis=1)
    grid = fitting_grid(pair, 1.0)
    with np.errstate(all="raise"):
        rows, near = pair.integers(block, grid), pair.clip(block)
    bad = ~np.isfinite(block).all(axis=(1, 2))
    assert not rows[bad].any()
    assert not near[bad].any()
    assert np.abs(rows * grid.step - near).max() < 1e-10
    largest = np.abs(block[~bad][:, 0]).min(axis=1) >= 0.5
    assert rows[~bad][largest].any(axis=1).all(), "a large number is clipped"


def too_far(weights: tuple[float, ...] = (1.0, 1.31, 2.0)) -> str | None:
    """All pairs of extreme records, in integers, on grids of dozens and of thousands of steps."""
    for weight, dim, steps in itertools.product(weights, (1, 2, 3), (33.3, 5000.0)):
        domain, grid = GradientHessian(dim, weight), Grid(2.0**30 / steps, 30)
        block = extremes(dim, weight)
        rows = np.concatenate([domain.integers(x, grid) for x in (block, 3 * block[:, :1])])
        reach = {REPLACE: rows, ZERO_OUT: domain.null_integers(grid)[None]}
        for relation, others in reach.items():
            squares = ((rows[:, None] - others[None]) ** 2).sum(axis=2)
            if int(squares.max()) > (Fraction(domain.sensitivity(relation)) * Fraction(steps)) ** 2:
                return f"{domain} on {grid}: {relation}"
    return None


def _edit(name: str, old: str, new: str) -> Edit:
    return Edit(f"privlearn.rows.domains.gradients:{name}", old, new)


AWAY = (
    _edit(
        "GradientHessian._contributions",
        "return made",
        "return np.sign(made) * np.ceil(np.abs(made))",
    ),
    _edit("GradientHessian.integers", "held & inside(steps[tile], largest, 2.0)", "held"),
)
UNPAID = _edit("_in_steps", "one - math.isqrt(domain.size) - 2", "one + 1")  # then rounded down
APART = "np.maximum((np.abs(s) * norms).sum(axis=1), (h * norms**2).sum(axis=1))"


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param(
            (_edit("_diameter", "square = 4 + w", "square = Fraction(7, 2) + w"),),
            id="the root of 4.5",
        ),
        pytest.param(
            (_edit("_diameter", "if several and 2 * w**2 >= 1:", "if False:"),),
            id="no angle between features",
        ),
        pytest.param((*AWAY, UNPAID), id="rounding unpaid"),
        pytest.param(
            (_edit("_sizes", "np.maximum(np.abs(s), h * norms)", "np.abs(s)"),),
            id="Hessians unbounded",
        ),
        pytest.param(
            (_edit("_sizes", 'np.asarray(np.einsum("ij,ij->i", sizes, norms))', APART),),
            id="gradient and Hessian of a record bounded apart",
        ),
        pytest.param(
            (
                _edit(
                    "GradientHessian._contributions",
                    "np.multiply(single, s / step, out=gradients)",
                    "np.clip(single * 2 * s, -1, 1, out=gradients); gradients /= step",
                ),
            ),
            id="numbers clipped after the product, which turns the gradient",
        ),
    ],
)
def test_broken_pairs_are_caught(edits: tuple[Edit, ...]) -> None:
    assert Mutant("broken", "A pair.", edits, InspectionCase(too_far)).check().caught


def test_rounding_in_any_direction_is_paid_for() -> None:
    """And that without the check of the integers' norm, which is there besides."""
    assert not Mutant("away", "From 0.", AWAY, InspectionCase(too_far)).check().caught


def test_no_two_integer_pairs_are_further_apart_than_the_domain_says() -> None:
    assert too_far() is None


def test_the_form_of_the_ledger_is_dim_and_weight() -> None:
    pair = GradientHessian(np.int64(3), np.float32(1.5))  # type: ignore[arg-type]
    assert pair.to_dict() == {"kind": "gradient-hessian", "dim": 3, "weight": 1.5}
    assert domain_from_dict(json.loads(json.dumps(pair.to_dict()))) == pair
    with pytest.raises(ValueError, match=r"weight = 0.*must be"):
        GradientHessian(3, 0.0)
    with pytest.raises(ValueError, match=r"rounding 9 entries takes all of them.* too large"):
        GradientHessian(3).integer_bound(Grid(2.0**28, 30))
    with pytest.raises(ValueError, match=r"more than 2.62 steps"):
        GradientHessian(3, 1e9).integer_bound(Grid(1e-8, 40))
