"""The multinomial logit: formulas against enumeration and finite differences, and two bounds.

The bounds (gradient norm below 2, Hessian trace at most 1 for items in the unit ball) carry the
sensitivities of the learner, so they are searched for violations.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.mechanisms.choice_model import (
    NO_ITEM,
    Answer,
    clip_items,
    fit_mle,
    gradients,
    hessian_factors,
    log_likelihoods,
    probabilities,
    utilities,
)
from privlearn.rows.domains import Array, PSDTrace
from privlearn.values.adjacency import Adjacency


def random_answers(seed: int, *, n: int = 6, k: int = 4, d: int = 3, outside: bool) -> Answer:
    """Users with items in the unit ball, some places unused, some without a purchase."""
    rng = np.random.default_rng(seed)
    used = rng.integers(1, k + 1, size=n)
    offered = (np.arange(k) < used[:, None]).astype(float)
    features = clip_items(rng.normal(size=(n, k, d))) * offered[..., None]
    choice = rng.integers(0, used)
    if outside:
        choice = np.where(rng.random(n) < 0.4, NO_ITEM, choice)
    return Answer(features, offered, choice)


@pytest.mark.parametrize("outside", [True, False])
def test_probabilities_are_those_of_the_enumerated_alternatives(outside: bool) -> None:
    answer = random_answers(0, n=20, outside=outside)
    theta = np.random.default_rng(1).normal(size=3)
    found = probabilities(answer, theta, outside=outside)
    for i in range(20):
        weights = [
            math.exp(answer.features[i, j] @ theta) if answer.offered[i, j] else 0.0
            for j in range(4)
        ]
        total = sum(weights) + (1.0 if outside else 0.0)
        assert found[i] == pytest.approx(np.array(weights) / total, rel=1e-12)
    if not outside:
        assert found.sum(axis=1) == pytest.approx(np.ones(20), rel=1e-12)


@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("outside", [True, False])
def test_probabilities_stay_finite_for_huge_parameters(size: float, outside: bool) -> None:
    answer = random_answers(2, n=30, outside=outside)
    theta = size * np.ones(3)
    p = probabilities(answer, theta, outside=outside)
    assert np.isfinite(p).all()
    assert ((p >= 0) & (p <= 1)).all()
    assert (p.sum(axis=1) <= 1 + 1e-12).all()
    assert np.isfinite(hessian_factors(answer, theta, outside=outside)).all()


@given(seed=st.integers(0, 10_000), outside=st.booleans())
def test_gradients_are_the_finite_differences_of_the_log_likelihood(
    seed: int, outside: bool
) -> None:
    answer = random_answers(seed, outside=outside)
    theta = np.random.default_rng(seed + 1).normal(size=3)
    found = gradients(answer, theta, outside=outside)
    step = 1e-6
    for j, shift in enumerate(step * np.eye(3)):
        up, down = (log_likelihoods(answer, theta + s, outside=outside) for s in (shift, -shift))
        assert found[:, j] == pytest.approx(-(up - down) / (2 * step), abs=1e-8)


@given(seed=st.integers(0, 10_000), outside=st.booleans())
def test_hessian_factors_square_to_the_finite_differences_of_the_gradient(
    seed: int, outside: bool
) -> None:
    answer = random_answers(seed, outside=outside)
    theta = np.random.default_rng(seed + 1).normal(size=3)
    factors = hessian_factors(answer, theta, outside=outside)
    assert factors.shape == (6, 5 if outside else 4, 3)
    found = np.matmul(factors.transpose(0, 2, 1), factors)
    step = 1e-6
    for j, shift in enumerate(step * np.eye(3)):
        up, down = (gradients(answer, theta + s, outside=outside) for s in (shift, -shift))
        assert found[:, :, j] == pytest.approx((up - down) / (2 * step), abs=1e-8)


@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 6),
    d=st.integers(1, 4),
    size=st.sampled_from([0.0, 1.0, 10.0, 1e3]),
    outside=st.booleans(),
)
def test_no_answer_in_the_unit_ball_beats_the_bounds(
    seed: int, k: int, d: int, size: float, outside: bool
) -> None:
    rng = np.random.default_rng(seed)
    answer = random_answers(seed, n=40, k=k, d=d, outside=outside)
    # Half of the users sit on the sphere, where the bounds are tight.
    norms = np.linalg.norm(answer.features, axis=2, keepdims=True)
    on_sphere = (np.arange(40)[:, None, None] < 20) & (norms > 0)
    features = np.where(on_sphere, answer.features / np.where(norms > 0, norms, 1), answer.features)
    answer = answer._replace(features=features)
    theta = size * rng.normal(size=d)
    assert (np.linalg.norm(gradients(answer, theta, outside=outside), axis=1) <= 2 + 1e-12).all()
    factors = hessian_factors(answer, theta, outside=outside)
    assert ((factors**2).sum(axis=(1, 2)) <= 1 + 1e-12).all()


def test_opposite_items_attain_the_trace_bound_and_approach_the_gradient_bound() -> None:
    e = np.eye(2)[0]
    pair = Answer(np.array([[e, -e]]), np.ones((1, 2)), np.array([1]))
    factors = hessian_factors(pair, np.zeros(2), outside=False)
    assert (factors**2).sum() == pytest.approx(1.0, rel=1e-12)
    norm = float(np.linalg.norm(gradients(pair, 10 * e, outside=False)))
    assert 1.99999 < norm < 2
    # With an outside option, many such pairs leave it little probability.
    pairs = np.array([[e, -e]])
    many = Answer(np.tile(pairs, (1, 500, 1)), np.ones((1, 1000)), np.array([NO_ITEM]))
    trace = float((hessian_factors(many, np.zeros(2), outside=True) ** 2).sum())
    assert 0.998 < trace < 1


@pytest.mark.parametrize("outside", [True, False])
def test_an_adversary_climbing_the_trace_stops_at_one(outside: bool) -> None:
    rng = np.random.default_rng(3)
    best = 0.0
    for _ in range(20):
        features, theta = clip_items(rng.normal(size=(1, 4, 2))), rng.normal(size=2)
        trace = 0.0
        for _ in range(150):
            moved = clip_items(features + 0.2 * rng.normal(size=features.shape))
            turned = theta + 0.2 * rng.normal(size=2)
            answer = Answer(moved, np.ones((1, 4)), np.array([0]))
            trial = float((hessian_factors(answer, turned, outside=outside) ** 2).sum())
            if trial > trace:
                features, theta, trace = moved, turned, trial
        best = max(best, trace)
    assert 0.8 < best <= 1 + 1e-12


def test_the_domain_does_not_clip_honest_hessians() -> None:
    answer = random_answers(4, n=50, outside=True)
    theta = np.array([0.5, -1.0, 2.0])
    factors = hessian_factors(answer, theta, outside=True)
    domain = PSDTrace(1.0, 3)
    honest = np.matmul(factors.transpose(0, 2, 1), factors)
    assert domain.decode(domain.clip(factors)) == pytest.approx(honest, abs=1e-11)
    assert domain.sensitivity(Adjacency.REPLACE_ONE) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("outside", [True, False])
def test_null_rows_are_nan_and_touch_nobody_else(outside: bool) -> None:
    answer = random_answers(5, outside=outside)
    holed = answer._replace(features=answer.features.copy())
    holed.features[2] = np.nan
    theta = np.array([0.3, 0.1, -0.2])
    keep = np.arange(6) != 2
    for function in (gradients, hessian_factors):
        whole = function(answer, theta, outside=outside)
        found = function(holed, theta, outside=outside)
        assert np.array_equal(found[keep], whole[keep])
        assert np.isnan(found[2]).any()


@pytest.mark.parametrize("ridge", [0.0, 2.0])
@pytest.mark.parametrize("outside", [True, False])
def test_at_the_maximum_likelihood_the_gradient_vanishes(outside: bool, ridge: float) -> None:
    rng = np.random.default_rng(6)
    features = clip_items(rng.normal(size=(400, 4, 3)))
    theta = np.array([1.0, -0.5, 0.2])
    gumbel = -np.log(-np.log(rng.random((400, 5))))
    scores = np.concatenate([utilities(features, theta), np.zeros((400, 1))], axis=1) + gumbel
    places = (scores if outside else scores[:, :4]).argmax(axis=1)
    choice = np.where(places == 4, NO_ITEM, places)
    answer = Answer(features, np.ones((400, 4)), choice)
    fit = fit_mle(answer, outside=outside, prior_precision=ridge)
    score = gradients(answer, fit, outside=outside).sum(axis=0) + ridge * fit
    assert np.abs(score).max() < 1e-9
    assert np.abs(fit - theta).max() < 0.5
    again = fit_mle(answer, outside=outside, prior_precision=ridge, start=fit + 1)
    assert again == pytest.approx(fit, abs=1e-9)


def test_a_separated_sample_has_no_maximum_and_a_ridge_gives_it_one() -> None:
    features = np.array([[[1.0], [-1.0]]] * 5)
    answer = Answer(features, np.ones((5, 2)), np.zeros(5, dtype=np.int64))
    assert np.isfinite(fit_mle(answer, outside=False, prior_precision=1.0)).all()
    unbounded = float(np.abs(fit_mle(answer, outside=False, tolerance=1e-10)).max())
    assert unbounded > 5  # stops where the likelihood is flat to the stated tolerance


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-300, 1e-3, 1.0, 10.0, 1e150, 1e300]),
    scale=st.sampled_from([1e-3, 1.0, 2.0, 1e6]),
)
def test_clipped_items_lie_in_the_unit_ball_and_keep_their_direction(
    seed: int, size: float, scale: float
) -> None:
    items = size * np.random.default_rng(seed).normal(size=(3, 4, 3))
    clipped = clip_items(items, scale)
    norms = np.linalg.norm(clipped, axis=-1)
    assert not (norms > 1 + 1e-12).any()
    with np.errstate(over="ignore"):
        inside = np.linalg.norm(items / scale, axis=-1) < 1
    assert np.array_equal(clipped[inside], (items / scale)[inside]), "small items are not moved"
    if 1e-100 < size < 1e100:
        cross = clipped * np.linalg.norm(items, axis=-1, keepdims=True)
        assert cross == pytest.approx(items * norms[..., None], rel=1e-9)


def test_infinite_and_missing_numbers_spoil_their_own_item_without_a_warning() -> None:
    items = np.ones((5, 2))
    items[1, 0], items[2, 1], items[3, 0] = np.inf, np.nan, 1e308
    clipped = clip_items(items, 0.5)
    assert clipped[[0, 4]] == pytest.approx(np.full((2, 2), math.sqrt(0.5)))
    for spoilt in clipped[1:4]:
        assert np.isnan(spoilt).any() or np.linalg.norm(spoilt) <= 1


def test_log_likelihoods_are_the_logs_of_the_chosen_probabilities() -> None:
    answer = random_answers(7, n=30, outside=True)
    theta = np.array([0.4, -0.3, 1.0])
    p = probabilities(answer, theta, outside=True)
    full = np.concatenate([p, 1 - p.sum(axis=1, keepdims=True)], axis=1)
    place = np.where(answer.choice == NO_ITEM, 4, answer.choice)
    found: Array = log_likelihoods(answer, theta, outside=True)
    assert found == pytest.approx(np.log(full[np.arange(30), place]), rel=1e-12)
