"""Lipschitz envelopes against brute force, 60 digits, closed forms and clipped gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import cvxpy
import numpy as np
import pytest
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import integrate, optimize

from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LinearObjective, MultinomialLogit, ObjectivePerturbation
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.envelope import LipschitzEnvelope
from privlearn.mechanisms.objectives import Objective, check_objective
from privlearn.mechanisms.regions import EuclideanBall
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain

cp: Any = cvxpy
MARGIN = 0.01
INNER: list[Objective[Any]] = [
    MultinomialLogit(4, 3),
    MultinomialLogit(3, 4, outside=False),
    MultinomialLogit(1, 2),
    LinearObjective.logistic(3, radius=2.0),
    LinearObjective.poisson(2, max_rate=5.0),
    LinearObjective.huber(3, threshold=2.0),
]
ENVELOPES: list[LipschitzEnvelope[Any]] = [
    LipschitzEnvelope(inner, share * inner.gradient_bound, margin)
    for inner in INNER
    for share, margin in ((0.1, MARGIN), (0.45, 0.2), (0.8, MARGIN))
]


def name_of(objective: Objective[Any]) -> str:
    return "-".join(str(value) for value in objective.to_dict().values())


def point(length: float, dim: int, seed: int = 0) -> Array:
    theta = np.random.default_rng(seed).standard_normal(dim)
    return np.asarray(theta * length / np.linalg.norm(theta))


def records_of(objective: Objective[Any], n: int, seed: int = 0) -> Array:
    return objective.examples(np.random.default_rng(seed), n)


def extremes(objective: MultinomialLogit, n: int, seed: int = 0) -> Array:
    """Choices of many kinds: duplicates, collinear and nearly equal items, all on the boundary."""
    rng = np.random.default_rng(seed)
    k, d = objective.max_items, objective.dim
    items, kind = rng.standard_normal((n, k, d)), np.arange(n) % 5
    first = items[:, :1]
    stretch = rng.choice([-1.0, 1.0, 0.5, 1e-3], size=(n, k, 1))
    axes = np.eye(d)[rng.integers(d, size=(n, k))] * rng.choice([-1.0, 1.0], size=(n, k, 1))
    for which, other in enumerate((first, first * stretch, axes, first + 1e-6 * items)):
        items = np.where((kind == which)[:, None, None], other, items)
    choice = rng.integers(-1 if objective.outside else 0, k, size=n)
    return objective.domain.clip(Answer(items * 100, np.ones((n, k)), choice))


def slope_of(weight: float, envelope: LipschitzEnvelope[Any]) -> float:
    return envelope.clip * (1 - envelope.margin / (1 + envelope.trace * weight))


def kernel(distance: float, envelope: LipschitzEnvelope[Any]) -> float:
    """h by its definition: the integral of the slope S(μ) over the distances t = μS(μ)."""

    def slope(t: float) -> float:
        high = 1 + 2 * t / slope_of(0.0, envelope)
        weight = optimize.brentq(lambda w: w * slope_of(w, envelope) - t, 0.0, high)
        return slope_of(float(weight), envelope)

    return float(integrate.quad(slope, 0.0, distance, epsabs=1e-12)[0])


# The value.


@dataclass(frozen=True)
class Total:
    """What is minimised over v."""

    envelope: LipschitzEnvelope[Any]
    record: Array
    theta: Array

    def __call__(self, v: Array) -> float:
        (value,) = self.envelope.objective.values(self.record[None], v)
        (cost,) = self.envelope._kernel(np.array([np.linalg.norm(self.theta - v)]))
        return float(value + cost)


@pytest.mark.parametrize("envelope", [e for e in ENVELOPES[:6] if e.clip < 1.5], ids=name_of)
def test_the_value_is_the_smallest_over_v(envelope: LipschitzEnvelope[Any]) -> None:
    theta = point(3.0, envelope.dim)
    records = records_of(envelope, 12, seed=1)
    values = envelope.values(records, theta)
    clipped = 0
    for record, value in zip(records, values, strict=True):
        total = Total(envelope, record, theta)
        starts = [theta, theta - 0.5 * envelope.gradients(record[None], theta)[0]]
        found = min(
            float(optimize.minimize(total, x, method="Nelder-Mead", options={"xatol": 1e-7}).fun)
            for x in starts[: 1 + int(value < total(theta) - 1e-9)]
        )
        assert value <= found + 1e-10
        assert value >= found - 1e-6
        clipped += value < total(theta) - 1e-6
    assert clipped >= 3


def test_without_a_margin_it_is_the_solution_of_a_cone_program() -> None:
    objective = MultinomialLogit(2, 2)
    for clip in (0.3, 1.0):
        envelope = LipschitzEnvelope(objective, clip, 0.0)
        for seed in range(4):
            (record,) = records_of(objective, 1, seed)
            theta = point(2.5, 2, seed)
            x, offered, chosen = record[:4].reshape(2, 2), record[4:6], record[6:]
            v = cp.Variable(2)
            scores = cp.hstack([0, *(x[j] @ v for j in range(2) if offered[j])])
            loss = cp.log_sum_exp(scores) - (chosen @ x) @ v + clip * cp.norm(v - theta)
            expected = cp.Problem(cp.Minimize(loss)).solve()
            assert envelope.values(record[None], theta)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("margin", [0.0, MARGIN, 0.5])
def test_the_kernel_is_the_integral_of_its_slope(margin: float) -> None:
    envelope = LipschitzEnvelope(MultinomialLogit(2, 2), 0.7, margin)
    for distance in (0.0, 1e-9, 0.1, 0.7, 3.0, 50.0):
        (found,) = envelope._kernel(np.array([distance]))
        assert found == pytest.approx(kernel(distance, envelope), rel=1e-9, abs=1e-18)


# The derivatives.


@pytest.mark.parametrize("envelope", thinned(ENVELOPES), ids=name_of)
def test_gradients_and_hessians_are_derivatives(envelope: LipschitzEnvelope[Any]) -> None:
    records = records_of(envelope, 40, seed=2)
    for length in (0.01, 1.0, 6.0):
        theta = point(length, envelope.dim)
        gradients = envelope.gradients(records, theta)
        hessians = envelope.hessians(records, theta)
        step = point(1e-5, envelope.dim, seed=9)
        rise = envelope.values(records, theta + step) - envelope.values(records, theta - step)
        np.testing.assert_allclose(rise / 2e-5, gradients @ step / 1e-5, atol=2e-5)
        ahead = (envelope.gradients(records, theta + step) - gradients) / 1e-5
        behind = (gradients - envelope.gradients(records, theta - step)) / 1e-5
        smooth = np.abs(ahead - behind).max(axis=1) < 1e-3
        assert smooth.mean() > 0.9
        change = (hessians @ step / 1e-5)[smooth]
        np.testing.assert_allclose(change, (ahead + behind)[smooth] / 2, atol=2e-3)
        total = envelope.hessian_sum(records, theta)
        np.testing.assert_allclose(total, hessians.sum(axis=0), atol=1e-10)


@pytest.mark.parametrize("envelope", thinned(ENVELOPES), ids=name_of)
def test_its_bounds_are_those_it_states(envelope: LipschitzEnvelope[Any]) -> None:
    check_objective(envelope)
    inner = envelope.objective
    assert envelope.gradient_bound == envelope.clip < inner.gradient_bound
    assert envelope.difference == 2 * envelope.clip
    assert (envelope.trace, envelope.rank, envelope.span) == (inner.trace, inner.rank, inner.span)
    assert envelope.domain == inner.domain
    records = records_of(envelope, 200, seed=3)
    longest = 0.0
    for length in (0.0, 1.0, 1e3):
        theta = point(length, envelope.dim)
        norms = np.linalg.norm(envelope.gradients(records, theta), axis=1)
        assert norms.max() <= envelope.clip * (1 + 1e-15 * envelope.dim)
        longest = max(longest, float(norms.max()))
        assert not np.any(envelope.gradients(inner.domain.null()[None], theta))
        assert not np.any(envelope.hessians(inner.domain.null()[None], theta))
    assert longest > 0.999 * envelope.clip * (1 - envelope.margin)


@settings(max_examples=25)
@given(
    st.sampled_from(ENVELOPES),
    st.integers(0, 10**6),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.sampled_from([1e-3, 1.0, 10.0]),
)
def test_gradients_are_cocoercive(
    envelope: LipschitzEnvelope[Any], seed: int, length: float, step: float
) -> None:
    """Which is to say: the gradients of a convex function, T-Lipschitz."""
    records = records_of(envelope, 30, seed)
    theta = point(length, envelope.dim, seed)
    other = theta + point(step, envelope.dim, seed + 1)
    change = envelope.gradients(records, other) - envelope.gradients(records, theta)
    squares = (change**2).sum(axis=1)
    assert np.all(change @ (other - theta) >= squares / envelope.trace - 1e-9)


def test_a_point_for_each_record_is_like_one_point_for_all() -> None:
    for envelope in ENVELOPES[::5]:
        records = records_of(envelope, 30, seed=4)
        points = np.array([point(10.0 ** (i % 4 - 1), envelope.dim, i) for i in range(30)])
        for method in (envelope.values, envelope.gradients, envelope.hessians):
            each = [method(records[i : i + 1], points[i])[0] for i in range(30)]
            np.testing.assert_allclose(method(records, points), each, rtol=1e-8, atol=1e-8)


# The accuracy.


class Exact:
    """The multinomial logit in 60 digits."""

    def __init__(self, objective: MultinomialLogit, record: Array) -> None:
        k, d = objective.max_items, objective.dim
        features = record[: k * d].reshape(k, d)
        offered, self.chosen = record[k * d : k * (d + 1)], record[k * (d + 1) :]
        self.places = [j for j in range(k) if offered[j]]
        self.items = [mp.matrix([mpf(float(x)) for x in row]) for row in features]
        self.outside, self.dim = objective.outside, d

    def derivatives(self, v: Any) -> tuple[Any, Any]:
        scores = [mp.fdot(self.items[j], v) for j in self.places]
        top = max([*scores, mpf(0)])
        weights = [mp.exp(u - top) for u in scores]
        total = mp.fsum(weights) + (mp.exp(-top) if self.outside else 0)
        mean, second = mp.zeros(self.dim, 1), mp.zeros(self.dim)
        gradient = mp.zeros(self.dim, 1)
        for j, weight in zip(self.places, weights, strict=True):
            x = self.items[j]
            mean += weight / total * x
            second += weight / total * x * x.T
            gradient -= mpf(float(self.chosen[j])) * x
        return gradient + mean, second - mean * mean.T


def exact_gradient(envelope: LipschitzEnvelope[Any], record: Array, theta: Array) -> Any:
    """Newton's method in 60 digits for v + μ∇ℓ(v) = θ, ‖∇ℓ(v)‖ = S(μ), which has one solution."""
    mp.dps = 60
    inner, d = envelope.objective, envelope.dim
    assert isinstance(inner, MultinomialLogit)
    loss = Exact(inner, record)
    clip, margin = mpf(envelope.clip), mpf(envelope.margin)
    target = mp.matrix([mpf(float(t)) for t in theta])
    gradient, _ = loss.derivatives(target)
    if mp.norm(gradient) <= clip * (1 - margin):
        return gradient
    start = envelope._solve(record[None], theta[None])
    v, weight = mp.matrix([mpf(float(t)) for t in start.points[0]]), mpf(float(start.weights[0]))
    for _ in range(100):
        gradient, hessian = loss.derivatives(v)
        norm, lift = mp.norm(gradient), 1 + mpf(envelope.trace) * weight
        system, error = mp.zeros(d + 1), mp.zeros(d + 1, 1)
        system[:d, :d] = mp.eye(d) + weight * hessian
        slope = hessian * gradient / norm
        for i in range(d):
            system[i, d], system[d, i] = gradient[i], slope[i]
            error[i] = v[i] + weight * gradient[i] - target[i]
        system[d, d] = -clip * margin * mpf(envelope.trace) / lift**2
        error[d] = norm - clip * (1 - margin / lift)
        if mp.norm(error) < mpf(10) ** -35:
            assert weight >= 0
            return gradient
        move = mp.lu_solve(system, error)
        v, weight = v - move[:d], max(weight - move[d], mpf(0))
    raise AssertionError("no reference solution")


LENGTHS, SHAPES = [0.0, 1e-8, 1.0, 30.0, 1e3, 1e5], [(1, 2), (2, 2), (4, 3), (3, 1)]


@pytest.mark.parametrize(("length", "shape"), thinned(product(LENGTHS, SHAPES), 3))
def test_every_record_reaches_the_stated_accuracy(length: float, shape: tuple[int, int]) -> None:
    items, dim = shape
    objective = MultinomialLogit(items, dim)
    records, worst = extremes(objective, 100, seed=items), 0.0
    for clip, margin in ((0.1, 0.01), (0.9, 0.3), (1.0, MARGIN), (1.0, 0.0), (1.6, MARGIN)):
        envelope = LipschitzEnvelope(objective, clip, margin)
        theta = point(length, dim, seed=items)
        found = envelope.gradients(records, theta)  # no SolverError
        for i in (0, 1, 2, 3, 4):
            exactly = exact_gradient(envelope, records[i], theta)
            error = mp.norm(mp.matrix([mpf(float(x)) for x in found[i]]) - exactly)
            worst = max(worst, float(error) / envelope.rounding(length))
    assert worst <= 1


def test_a_margin_buys_digits() -> None:
    objective = MultinomialLogit(6, 21)
    proper, soft = LipschitzEnvelope(objective, 1.0, 0.0), LipschitzEnvelope(objective, 1.0, MARGIN)
    assert soft.rounding(10.0) < 1e-9
    assert proper.rounding(10.0) > 1e-7
    assert LipschitzEnvelope(objective, 2.5).rounding(10.0) == objective.rounding(10.0)


@dataclass(frozen=True)
class Delegate(Objective[Any]):
    """Another objective, hidden from anything that knows it, with gradients off by ``error``."""

    inner: Objective[Any]
    error: float = 0.0
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", self.inner.dim)

    @property
    def domain(self) -> Domain[Any]:
        return self.inner.domain

    @property
    def gradient_bound(self) -> float:
        return self.inner.gradient_bound

    @property
    def trace(self) -> float:
        return self.inner.trace

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def depth(self) -> float:
        return self.inner.depth

    def values(self, records: Array, theta: Array) -> Array:
        return self.inner.values(records, theta)

    def gradients(self, records: Array, theta: Array) -> Array:
        exactly = self.inner.gradients(records, theta)
        norms = np.linalg.norm(exactly, axis=1, keepdims=True)
        return exactly - self.error * exactly / np.where(norms > 0, norms, 1.0)

    def hessians(self, records: Array, theta: Array) -> Array:
        return self.inner.hessians(records, theta)

    def rounding(self, radius: float) -> float:
        return self.inner.rounding(radius) + self.error

    def examples(self, rng: np.random.Generator, n: int) -> Array:
        return self.inner.examples(rng, n)

    def to_dict(self) -> dict[str, Any]:
        return {"objective": "delegate"}


@pytest.mark.parametrize("error", [1e-10, 1e-8, 1e-6])
def test_wrong_digits_of_the_loss_move_the_gradient_as_much_as_proved(error: float) -> None:
    """And without a margin by the square root of the error, so that the margin has a reason.

    The chosen item is nearly as long as the clip, and two others pull orthogonally to it.
    """
    objective, theta = MultinomialLogit(3, 2), np.array([-60.0, 2 * math.sqrt(2 * error)])
    features = np.array([[[1 - error, 0.0], [0.0, 1.0], [0.0, -1.0]]])
    record = objective.domain.clip(Answer(features, np.ones((1, 3)), np.array([0])))
    moved = {}
    for margin in (0.0, MARGIN):
        exactly = LipschitzEnvelope(objective, 1.0, margin).gradients(record, theta)
        wrong = LipschitzEnvelope(Delegate(objective, error), 1.0, margin)
        moved[margin] = float(np.linalg.norm(wrong.gradients(record, theta) - exactly))
        assert moved[margin] <= wrong.rounding(60.1)
    assert moved[MARGIN] < 30 * error
    assert moved[0.0] > 0.3 * math.sqrt(error)


# Closed forms.


@pytest.mark.parametrize("inner", INNER[3:], ids=name_of)
def test_linear_scores_have_their_derivative_clipped(inner: Objective[Any]) -> None:
    """And the general search, which does not know that they are linear, finds the same."""
    records = records_of(inner, 60, seed=5)
    for share in (0.05, 0.6):
        clip = share * inner.gradient_bound
        closed = LipschitzEnvelope(inner, clip)
        general = LipschitzEnvelope(Delegate(inner), clip, 0.0)
        for length in (0.1, 2.0, 40.0):
            theta = point(length, inner.dim)
            plain = inner.gradients(records, theta)
            norms = np.linalg.norm(plain, axis=1, keepdims=True)
            clipped = plain * np.minimum(1.0, clip / np.maximum(norms, 1e-300))
            np.testing.assert_allclose(closed.gradients(records, theta), clipped, atol=1e-13)
            np.testing.assert_allclose(general.gradients(records, theta), clipped, atol=1e-9)
            values = closed.values(records, theta)
            np.testing.assert_allclose(general.values(records, theta), values, atol=1e-8)
            assert np.all(values <= inner.values(records, theta) + 1e-12)


def test_a_large_clip_changes_nothing() -> None:
    for inner in INNER:
        envelope = LipschitzEnvelope(inner, 1.02 * inner.gradient_bound)
        records, theta = records_of(inner, 20), point(5.0, inner.dim)
        assert envelope.gradient_bound == inner.gradient_bound
        assert envelope.difference == inner.difference
        np.testing.assert_array_equal(
            envelope.gradients(records, theta), inner.gradients(records, theta)
        )
        np.testing.assert_array_equal(envelope.values(records, theta), inner.values(records, theta))


def test_an_envelope_of_an_envelope() -> None:
    inner = MultinomialLogit(3, 2)
    twice = LipschitzEnvelope(LipschitzEnvelope(inner, 1.2), 0.6)
    once = LipschitzEnvelope(inner, 0.6, 0.0)
    records, theta = records_of(inner, 12), point(2.0, 2)
    found, expected = twice.gradients(records, theta), once.gradients(records, theta)
    assert np.abs(found - expected).max() < 5 * MARGIN


# In objective perturbation.


def test_a_private_fit_with_half_of_the_noise() -> None:
    plain, n = MultinomialLogit(3, 2), 300
    envelope = LipschitzEnvelope(plain, 1.0)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, 3, 2))
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    truth = np.array([1.0, -0.5])
    scores = np.concatenate([features @ truth, np.zeros((n, 1))], axis=1) + rng.gumbel(size=(n, 4))
    choice = np.where(scores.argmax(axis=1) == 3, NO_ITEM, scores.argmax(axis=1))
    rows = Answer(features, np.ones((n, 3)), choice)
    region = EuclideanBall(2, 5.0)
    fits = {}
    for objective in (plain, envelope):
        fit = ObjectivePerturbation.calibrated(objective, ZCDP("1"), max_rows=n, region=region)
        book = CentralAccountant(ZCDP("1"), users=range(n), noise=NoiseSource.simulation(1))
        token = book.issue(fit.loss(), users=range(n), label="fit")
        released = fit.release(Rows.seal(rows, users=range(n)), token)
        assert released.value == pytest.approx(truth, abs=0.6)
        assert book.spent().covers(ZCDP("0.99"))
        fits[objective] = fit
    assert 0.4 < fits[envelope].noise_std / fits[plain].noise_std < 0.6
    assert fits[envelope].ridge < fits[plain].ridge
    assert fits[envelope].blur_std < 0.1 * fits[envelope].noise_std / n
    parameters = fits[envelope].spend().parameters
    assert parameters["objective"] == "lipschitz-envelope of multinomial-logit"
    assert (parameters["clip"], parameters["margin"]) == (1.0, MARGIN)


def jacobian(objective: Objective[Any], record: Array, theta: Array) -> Array:
    steps = 1e-5 * np.eye(objective.dim)
    ends = [
        objective.gradients(record[None], theta + sign * h)[0] for h in steps for sign in (1, -1)
    ]
    return np.array([(up - down) / 2e-5 for up, down in zip(ends[::2], ends[1::2], strict=True)])


@dataclass(frozen=True)
class ClippedGradients(Delegate):
    """What is usually called gradient clipping."""

    def gradients(self, records: Array, theta: Array) -> Array:
        plain = self.inner.gradients(records, theta)
        norms = np.linalg.norm(plain, axis=1, keepdims=True)
        return np.asarray(plain / np.maximum(norms, 1.0))


def test_clipped_gradients_are_no_gradients_and_envelopes_are() -> None:
    inner = MultinomialLogit(3, 2)
    broken, envelope = ClippedGradients(inner), LipschitzEnvelope(inner, 1.0)
    with pytest.raises(ValueError, match="not the derivative of its value"):
        check_objective(broken)
    records, theta = records_of(inner, 60, seed=1), point(2.0, 2)
    skew = {}
    for objective in (broken, envelope):
        each = [jacobian(objective, record, theta) for record in records]
        skew[objective] = max(abs(float(j[0, 1] - j[1, 0])) for j in each)
    assert skew[broken] > 0.05
    assert skew[envelope] < 1e-5


@dataclass(frozen=True)
class WithoutKernel(Delegate):
    """The Hessian at v instead of the parallel sum."""

    def hessians(self, records: Array, theta: Array) -> Array:
        assert isinstance(self.inner, LipschitzEnvelope)
        points = self.inner._solve(records, self.inner._each(records, theta)).points
        return np.asarray(self.inner.objective.hessians(records, points))


def test_a_hessian_without_the_kernel_would_be_seen() -> None:
    envelope = LipschitzEnvelope(MultinomialLogit(3, 2), 1.0)
    records, theta = records_of(envelope, 60, seed=1), point(2.0, 2)
    wrong = WithoutKernel(envelope).hessians(records, theta)
    exactly = np.array([jacobian(envelope, record, theta) for record in records])
    assert np.median(np.abs(envelope.hessians(records, theta) - exactly).max(axis=(1, 2))) < 1e-6
    assert np.abs(wrong - exactly).max() > 0.05


# What it refuses.


@dataclass(frozen=True)
class Deep(Delegate):
    @property
    def depth(self) -> float:
        return math.inf


def test_what_cannot_be_is_refused() -> None:
    inner = MultinomialLogit(3, 2)
    for clip in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"clip = .*must be"):
            LipschitzEnvelope(inner, clip)
    for margin in (-0.1, 0.6, math.nan):
        with pytest.raises(ValueError, match=r"margin = .*must lie in \[0, 1/2\]"):
            LipschitzEnvelope(inner, 1.0, margin)
    with pytest.raises(ValueError, match="Deep is not known to be bounded below"):
        LipschitzEnvelope(Deep(inner), 1.0)


def test_no_records_at_all() -> None:
    for envelope in ENVELOPES[::4]:
        none, theta = records_of(envelope, 4)[:0], point(1.0, envelope.dim)
        assert envelope.values(none, theta).shape == (0,)
        assert envelope.gradients(none, theta).shape == (0, envelope.dim)
        assert envelope.hessians(none, theta).shape == (0, envelope.dim, envelope.dim)
        assert not np.any(envelope.hessian_sum(none, theta))
