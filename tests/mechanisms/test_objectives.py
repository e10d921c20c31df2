"""The shipped objectives: other formulas, derivatives, bounds that are attained, rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import MPContext
from scipy import special

from privlearn.checking import check_row_local
from privlearn.mechanisms import LinearObjective, MultinomialLogit
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.envelope import LipschitzEnvelope
from privlearn.mechanisms.linear_models import Labelled
from privlearn.mechanisms.multinomial import Choices
from privlearn.mechanisms.objectives import Objective, check_objective
from privlearn.mechanisms.scalar_objectives import (
    HuberObjective,
    LogisticObjective,
    PoissonObjective,
)
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency

mp: Any = MPContext()
mp.dps = 50
mpf = mp.mpf

LINEAR: list[Any] = [
    LinearObjective.logistic(3),
    LinearObjective.logistic(2, radius=7.0),
    LinearObjective.poisson(3, max_rate=4.0),
    LinearObjective.poisson(1, max_rate=0.3, radius=2.0),
    LinearObjective.huber(3),
    LinearObjective.huber(2, threshold=0.5, radius=3.0, label_bound=4.0),
]
CHOICE = [
    MultinomialLogit(4, 3),
    MultinomialLogit(2, 5),
    MultinomialLogit(3, 2, outside=False),
    MultinomialLogit(1, 2),
]
SHIPPED: list[Objective[Any]] = [*LINEAR, *CHOICE]


def name_of(objective: Objective[Any]) -> str:
    return "-".join(str(value) for value in objective.to_dict().values())


def point(length: float, dim: int, seed: int = 0) -> Array:
    theta = np.random.default_rng(seed).standard_normal(dim)
    return np.asarray(theta * length / np.linalg.norm(theta))


def records_of(objective: Objective[Any], n: int, seed: int = 0) -> Array:
    return objective.examples(np.random.default_rng(seed), n)


def answer(features: Any, choice: int) -> Answer:
    """One user who was offered everything."""
    array = np.asarray(features, dtype=float)[None]
    return Answer(array, np.ones(array.shape[:2]), np.array([choice]))


# Values, in other words.


def parts(objective: MultinomialLogit, record: Array) -> tuple[Array, Array, Array]:
    k, d = objective.max_items, objective.dim
    return record[: k * d].reshape(k, d), record[k * d : k * (d + 1)], record[k * (d + 1) :]


@pytest.mark.parametrize("objective", CHOICE, ids=name_of)
@pytest.mark.parametrize("length", [0.0, 1.0, 500.0])
def test_choices_cost_minus_the_log_of_their_probability(
    objective: MultinomialLogit, length: float
) -> None:
    records, theta = records_of(objective, 50), point(length, objective.dim)
    values = objective.values(records, theta)
    for record, value in zip(records, values, strict=True):
        x, offered, chosen = parts(objective, record)
        scores = [*(x @ theta)[offered > 0], *([0.0] if objective.outside else [])]
        expected = special.logsumexp(scores) - (x @ theta) @ chosen if scores else 0.0
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12 * (1 + length))


def linear_value(objective: Any, u: Any, y: Any) -> Any:
    """In 50 digits."""
    objective = objective.scalar
    match objective:
        case LogisticObjective():
            return mp.log(1 + mp.exp(u)) - y * u
        case PoissonObjective():
            most = mpf(objective.max_rate)
            top = mp.log(most)
            return (mp.exp(u) if u <= top else most + most * (u - top)) - y * u
        case HuberObjective():
            c, size = mpf(objective.threshold), abs(y - u)
            return size**2 / 2 if size <= c else c * size - c**2 / 2
    raise TypeError


@pytest.mark.parametrize("objective", LINEAR, ids=name_of)
@pytest.mark.parametrize("length", [0.0, 1.0, 30.0])
def test_linear_models_cost_what_the_textbook_says(objective: Any, length: float) -> None:
    records, theta = records_of(objective, 50), point(length, objective.dim)
    values = objective.values(records, theta)
    for record, value in zip(records, values, strict=True):
        u = mp.fdot([mpf(float(x)) for x in record[:-1]], [mpf(float(t)) for t in theta])
        expected = float(linear_value(objective, u, mpf(float(record[-1]))))
        assert value == pytest.approx(expected, rel=1e-11, abs=1e-11 * (1 + length))


# Derivatives.


@pytest.mark.parametrize("objective", SHIPPED, ids=name_of)
@pytest.mark.parametrize("length", [0.01, 1.0, 20.0])
def test_gradients_and_hessians_are_derivatives(objective: Objective[Any], length: float) -> None:
    records, theta = records_of(objective, 60), point(length, objective.dim)
    gradients, hessians = objective.gradients(records, theta), objective.hessians(records, theta)
    for h in 1e-5 * np.eye(objective.dim):
        rise = objective.values(records, theta + h) - objective.values(records, theta - h)
        np.testing.assert_allclose(rise, 2 * gradients @ h, atol=1e-9 * objective.trace + 1e-12)
        ahead = objective.gradients(records, theta + h) - gradients
        behind = gradients - objective.gradients(records, theta - h)
        smooth = np.abs(ahead - behind).max(axis=1) < 1e-7  # away from kinks
        assert smooth.mean() > 0.8
        np.testing.assert_allclose(
            (hessians @ h)[smooth], (ahead + behind)[smooth] / 2, atol=1e-9 * objective.trace
        )
    total = objective.hessian_sum(records, theta)
    np.testing.assert_allclose(total, hessians.sum(axis=0), atol=1e-9 * objective.trace)


@pytest.mark.parametrize("objective", SHIPPED, ids=name_of)
def test_one_point_for_each_record(objective: Objective[Any]) -> None:
    records = records_of(objective, 20)
    points = np.array([point(2.0, objective.dim, seed) for seed in range(20)])
    for method in (objective.values, objective.gradients, objective.hessians):
        each = [method(records[i : i + 1], points[i])[0] for i in range(20)]
        np.testing.assert_allclose(method(records, points), each, atol=1e-12)


# Bounds.


@pytest.mark.parametrize("objective", SHIPPED, ids=name_of)
def test_the_stated_bounds_hold(objective: Objective[Any]) -> None:
    check_objective(objective)
    null = objective.domain.null()[None]
    for length in (0.0, 1e4):
        assert not np.any(objective.gradients(null, point(length, objective.dim)))
        assert not np.any(objective.hessians(null, point(length, objective.dim)))


@given(
    st.sampled_from(SHIPPED),
    st.integers(0, 10**6),
    st.sampled_from([0.1, 3.0, 100.0]),
    st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_gradients_are_cocoercive(
    objective: Objective[Any], seed: int, length: float, step: float
) -> None:
    """Which is to say: the gradients of a convex function, T-Lipschitz."""
    records = records_of(objective, 20, seed)
    theta = point(length, objective.dim, seed)
    other = theta + point(step, objective.dim, seed + 1)
    change = objective.gradients(records, other) - objective.gradients(records, theta)
    squares = (change**2).sum(axis=1) / objective.trace
    scale = objective.gradient_bound * (length + step)
    assert np.all(change @ (other - theta) >= squares - 1e-12 * scale)


def test_the_bounds_of_choices_are_approached() -> None:
    pair = MultinomialLogit(2, 2)
    clip = pair.domain.clip
    far = np.array([1e6, 0.0])
    bought = clip(answer([[-1, 0], [1, 0]], 0))
    assert np.linalg.norm(pair.gradients(bought, far)) == pytest.approx(pair.gradient_bound)
    small, c = 1e-3, 1e5
    one = clip(answer([[small, math.sqrt(1 - small**2)], [-small, -math.sqrt(1 - small**2)]], 1))
    two = clip(answer([[small, -math.sqrt(1 - small**2)], [-small, math.sqrt(1 - small**2)]], 1))
    gap = pair.gradients(one, np.array([c, 0])) - pair.gradients(two, np.array([c, 0]))
    assert np.linalg.norm(gap) == pytest.approx(pair.difference, rel=1e-5)
    even = clip(answer([[small, 1], [small, -1]], 0))
    trace = np.trace(pair.hessians(even, np.array([c, 0]))[0])
    assert 1 - 1e-5 < trace <= pair.trace
    for items, dim, outside in ((2, 5, True), (5, 2, True), (3, 5, False), (1, 3, True)):
        objective = MultinomialLogit(items, dim, outside)
        features = np.random.default_rng(0).standard_normal((items, dim))
        hessian = objective.hessians(objective.domain.clip(answer(features, 0)), np.zeros(dim))[0]
        assert np.linalg.matrix_rank(hessian) == objective.rank == min(dim, items - (not outside))


def test_the_bounds_of_a_single_item_are_approached() -> None:
    single = MultinomialLogit(1, 2)
    yes, no = (single.domain.clip(answer([[1, 0]], choice)) for choice in (0, NO_ITEM))
    other = single.domain.clip(answer([[-1, 0]], 0))
    far = np.array([50.0, 0.0])
    assert np.linalg.norm(single.gradients(no, far)) == pytest.approx(single.gradient_bound)
    gap = np.linalg.norm(single.gradients(yes, -far) - single.gradients(other, far))
    assert gap == pytest.approx(single.difference)
    assert np.trace(single.hessians(yes, 0 * far)[0]) == pytest.approx(single.trace)


@pytest.mark.parametrize("objective", LINEAR, ids=name_of)
def test_the_bounds_of_linear_models_are_approached(objective: Any) -> None:
    domain = objective.domain
    x = np.zeros((2, objective.dim))
    x[0, 0], x[1, 0] = domain.radius, -domain.radius
    far = 1e3 * np.eye(objective.dim)[0]
    records = domain.clip((x, np.array([domain.low, domain.low])))
    gradients = objective.gradients(records, far)
    assert np.linalg.norm(gradients[0]) == pytest.approx(objective.gradient_bound)
    if objective.dim > 1:  # two nearly opposite vectors, nearly orthogonal to θ
        x[:, 0], x[0, 1] = 1e-4 * domain.radius, domain.radius
        x[1, 1] = -domain.radius
        gap = objective.gradients(domain.clip((x, np.full(2, domain.low))), 1e5 * far)
        assert np.linalg.norm(gap[0] - gap[1]) == pytest.approx(objective.difference)
        x = np.eye(objective.dim)[[0, 0]] * domain.radius
    poisson = isinstance(objective.scalar, PoissonObjective)
    score = math.log(objective.scalar.max_rate) if poisson else 0.0
    level = max(0.0, domain.low)
    steep = domain.clip((x, np.array([level, level])))
    at = (score - 1e-9) / domain.radius * far / 1e3
    assert np.trace(objective.hessians(steep, at)[0]) == pytest.approx(objective.trace, rel=1e-6)
    assert objective.rank == objective.span == 1


@pytest.mark.parametrize("objective", SHIPPED, ids=name_of)
def test_no_loss_falls_by_more_than_its_depth(objective: Objective[Any]) -> None:
    records, deepest = records_of(objective, 200), 0.0
    start = objective.values(records, np.zeros(objective.dim))
    for seed in range(30):
        theta = point(10.0 ** (seed % 4 - 1), objective.dim, seed)
        deepest = max(deepest, float((start - objective.values(records, theta)).max()))
    assert 0.3 * objective.depth < deepest <= objective.depth * (1 + 1e-12)


def test_the_dimension_of_a_difference() -> None:
    assert MultinomialLogit(3, 10).directions(Adjacency.REPLACE_ONE) == 6
    assert MultinomialLogit(3, 4).directions(Adjacency.REPLACE_ONE) == 4
    assert MultinomialLogit(3, 10).directions(Adjacency.ZERO_OUT) == 3
    assert LinearObjective.logistic(10).directions(Adjacency.REPLACE_ONE) == 2
    assert LinearObjective.logistic(10).spread(Adjacency.ADD_REMOVE) == 1.0
    assert LinearObjective.logistic(10).spread(Adjacency.REPLACE_ONE) == 2.0


# Rounding.


def exact_gradient(objective: Any, record: Array, theta: Array) -> Any:
    at = [mpf(float(t)) for t in theta]
    if isinstance(objective, MultinomialLogit):
        x, offered, chosen = parts(objective, record)
        items = [[mpf(float(a)) for a in row] for row in x]
        places = [j for j in range(len(items)) if offered[j]]
        scores = {j: mp.fdot(items[j], at) for j in places}
        top = max([*scores.values(), mpf(0)])
        total = mp.fsum(mp.exp(u - top) for u in scores.values())
        total += mp.exp(-top) if objective.outside else 0
        weights = {j: mp.exp(scores[j] - top) / total - mpf(float(chosen[j])) for j in places}
        return [mp.fsum(w * items[j][i] for j, w in weights.items()) for i in range(len(theta))]
    vector, y = [mpf(float(a)) for a in record[:-1]], mpf(float(record[-1]))
    u = mp.fdot(vector, at)
    scalar = objective.scalar
    match scalar:
        case LogisticObjective():
            slope = 1 / (1 + mp.exp(-u)) - y
        case PoissonObjective():
            slope = min(mp.exp(u), mpf(scalar.max_rate)) - y
        case _:
            slope = max(min(u - y, mpf(scalar.threshold)), -mpf(scalar.threshold))
    return [slope * a for a in vector]


@pytest.mark.parametrize("objective", SHIPPED, ids=name_of)
@pytest.mark.parametrize("radius", [0.0, 1.0, 100.0, 1e4])
def test_rounding_bounds_the_float_error(objective: Objective[Any], radius: float) -> None:
    """Also where scores of length 1e4 cancel: there a digit of a score is a digit of a share."""
    records, worst = records_of(objective, 40, seed=7), 0.0
    for seed in range(2):
        theta = point(radius * (1 - 1e-12), objective.dim, seed)
        if isinstance(objective, MultinomialLogit):
            # all items nearly orthogonal to θ, so that no share is 0 or 1
            k, d = objective.max_items, objective.dim
            items = records[:20, : k * d].reshape(20, k, d)
            along = theta / max(radius, 1e-9)
            items -= (items @ along)[..., None] * along * (1 - 1 / (1 + radius))
        found = objective.gradients(records, theta)
        for record, gradient in zip(records, found, strict=True):
            exactly = exact_gradient(objective, record, theta)
            errors = [mpf(float(g)) - e for g, e in zip(gradient, exactly, strict=True)]
            worst = max(worst, float(mp.norm(errors)))
    assert worst <= objective.rounding(radius)
    assert objective.rounding(radius) <= 1e-13 * objective.gradient_bound * (1 + radius) * 20


# Domains.


def test_bad_choices_become_null() -> None:
    domain = Choices(2, 2)
    features = np.tile([[0.5, 0.0], [0.0, 0.5]], (6, 1, 1))
    offered, choice = np.ones((6, 2)), np.array([0, 1, NO_ITEM, 1, 2, 0])
    features[1, 0, 0] = np.nan
    offered[3, 1] = 0  # chosen and not on offer
    features[5, 1] = np.inf
    records = domain.clip(Answer(features, offered, choice))
    null = [not np.any(record) for record in records]
    assert null == [False, True, False, True, True, True]
    assert np.array_equal(domain.null(), records[1])
    assert Choices(2, 2, outside=False).clip(Answer(features, offered, choice))[2].any() == 0


def test_places_that_are_not_offered_leave_no_trace() -> None:
    features = np.array([[[0.3, 0.4], [5.0, 5.0]]])
    record = Choices(2, 2).clip(Answer(features, np.array([[1.0, 0.0]]), np.array([0])))[0]
    assert record == pytest.approx([0.3, 0.4, 0, 0, 1, 0, 1, 0])


def test_long_items_and_vectors_are_scaled_into_the_ball() -> None:
    record = Choices(2, 2).clip(answer([[3.0, 4.0], [1e308, -1e308]], 1))[0]
    assert record[:2] == pytest.approx([0.6, 0.8])
    norms = np.linalg.norm(record[:4].reshape(2, 2), axis=1)
    assert norms.max() <= 1
    rows = Labelled(2, 2.0, -1.0, 3.0).clip(
        (np.array([[3.0, 4.0], [0.3, 0.4], [1e308, 1e308]]), np.array([9.0, -9.0, 2.0]))
    )
    assert rows[0] == pytest.approx([1.2, 1.6, 3.0])
    assert rows[1] == pytest.approx([0.3, 0.4, -1.0])
    assert np.linalg.norm(rows[:, :2], axis=1).max() <= 2.0


def test_bad_labels_become_null() -> None:
    for low, high, label in ((-1.0, 1.0, 0.0), (2.0, 3.0, 2.0), (-3.0, -2.0, -2.0)):
        domain = Labelled(2, 1.0, low, high)
        x = np.array([[np.nan, 0.0], [0.5, 0.0], [np.inf, 1.0]])
        rows = domain.clip((x, np.array([high, np.nan, high])))
        assert np.array_equal(rows, np.tile([0.0, 0.0, label], (3, 1)))
        assert np.array_equal(rows[0], domain.null())


def test_blocks_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of shape \(3, 2\) where \(2, 2\) is required"):
        Choices(2, 2).clip(answer(np.zeros((3, 2)), 0))
    with pytest.raises(ValueError, match=r"rows of shape \(1,\) where \(\) is required"):
        Labelled(2, 1.0, 0.0, 1.0).clip((np.zeros((3, 2)), np.zeros((3, 1))))
    with pytest.raises(ValueError, match="low must be below high"):
        Labelled(2, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="nothing to choose"):
        MultinomialLogit(1, 2, outside=False)


def test_clipping_acts_on_each_row_by_itself() -> None:
    rng = np.random.default_rng(0)
    features, choice = rng.standard_normal((6, 3, 2)) * 2, np.array([0, 1, 2, NO_ITEM, 0, 1])
    features[4, 0, 0] = np.nan
    block = Answer(features, np.ones((6, 3)), choice)
    check_row_local(Choices(3, 2).clip, block, answer(1e9 * np.ones((3, 2)), 2))
    pairs = (rng.standard_normal((6, 2)) * 2, rng.standard_normal(6))
    check_row_local(Labelled(2, 1.0, 0.0, 1.0).clip, pairs, (np.full((1, 2), np.nan), np.ones(1)))


@given(st.integers(0, 10**6), st.sampled_from(Adjacency), st.sampled_from(["l1", "l2", "linf"]))
def test_sums_of_records_change_by_at_most_the_sensitivity(
    seed: int, adjacency: Adjacency, norm: Any
) -> None:
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    for objective in (
        MultinomialLogit(2, 2),
        MultinomialLogit(1, 3),
        LinearObjective.huber(2, label_bound=3.0),
    ):
        domain: Domain[Any] = objective.domain
        one, two = records_of(objective, 200, seed)[[0, -1]]
        change = {
            Adjacency.REPLACE_ONE: one - two,
            Adjacency.ZERO_OUT: one - domain.null(),
            Adjacency.ADD_REMOVE: one,
        }[adjacency]
        assert np.linalg.norm(change, ord=order) <= domain.sensitivity(adjacency, norm)


# Third parties.


@dataclass(frozen=True)
class Squares(Objective[Any]):
    """The part of a third party: ½(x·θ − y)² up to |x·θ − y| = 1, linear beyond, written anew."""

    gradient_bound_: float = 1.0
    difference_: float = 2.0
    trace_: float = 1.0
    rank_: int = 1
    depth_: float = 0.5
    dim: int = field(default=2, init=False)

    @property
    def domain(self) -> Labelled:
        return Labelled(2, 1.0, -1.0, 1.0)

    @property
    def gradient_bound(self) -> float:
        return self.gradient_bound_

    @property
    def difference(self) -> float:
        return self.difference_

    @property
    def trace(self) -> float:
        return self.trace_

    @property
    def rank(self) -> int:
        return self.rank_

    @property
    def depth(self) -> float:
        return self.depth_

    def values(self, records: Array, theta: Array) -> Array:
        size = np.abs((records[:, :-1] * theta).sum(axis=1) - records[:, -1])
        return np.asarray(np.where(size <= 1, size**2 / 2, size - 0.5))

    def gradients(self, records: Array, theta: Array) -> Array:
        x = records[:, :-1]
        slope = np.clip((x * theta).sum(axis=1) - records[:, -1], -1, 1)
        return np.asarray(slope[:, None] * x)

    def hessians(self, records: Array, theta: Array) -> Array:
        x = records[:, :-1]
        inside = np.abs((x * theta).sum(axis=1) - records[:, -1]) <= 1
        return np.asarray(inside[:, None, None] * x[:, :, None] * x[:, None, :])

    def rounding(self, radius: float) -> float:
        return 1e-15 * (1 + radius)

    def examples(self, rng: np.random.Generator, n: int) -> Array:
        return self.domain.clip((rng.standard_normal((n, 2)), rng.uniform(-1, 1, n)))

    def to_dict(self) -> dict[str, Any]:
        return {"objective": "squares"}


class Concave(Squares):
    def hessians(self, records: Array, theta: Array) -> Array:
        return -super().hessians(records, theta)


class Skewed(Squares):
    def hessians(self, records: Array, theta: Array) -> Array:
        return np.asarray(super().hessians(records, theta) + np.array([[0, 0.1], [0, 0]]))


class Elsewhere(Squares):
    def gradients(self, records: Array, theta: Array) -> Array:
        return 0.9 * super().gradients(records, theta)


class RestlessNull(Squares):
    """A penalty that belongs to the objective, not to each record."""

    def values(self, records: Array, theta: Array) -> Array:
        return np.asarray(super().values(records, theta) + 0.1 * theta[..., 0])

    def gradients(self, records: Array, theta: Array) -> Array:
        return np.asarray(super().gradients(records, theta) + np.array([0.1, 0.0]))


class FewExamples(Squares):
    def examples(self, rng: np.random.Generator, n: int) -> Array:
        return super().examples(rng, 3)


class NotANumber(Squares):
    def gradients(self, records: Array, theta: Array) -> Array:
        return np.asarray(super().gradients(records, theta) * np.nan)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Squares(gradient_bound_=0.9), "gradient_bound = 0.9 is stated"),
        (Squares(difference_=1.8), "difference = 1.8 is stated"),
        (Squares(trace_=0.9), "trace = 0.9 is stated"),
        (Squares(rank_=0), "rank = 0 is stated"),
        (Squares(depth_=0.4), "depth = 0.4 is stated"),
        (Concave(), "not convex"),
        (Skewed(rank_=2), "not symmetric"),
        (Elsewhere(), "not the derivative of its value"),
        (RestlessNull(gradient_bound_=1.1, depth_=math.inf), "the null record"),
        (FewExamples(), "examples of shape"),
        (NotANumber(), "gradient_bound"),
    ],
    ids=str,
)
def test_broken_promises_are_found(broken: Squares, message: str) -> None:
    with pytest.raises(ValueError, match=f"{type(broken).__name__}: .*{message}"):
        check_objective(broken)


def test_an_honest_third_party_passes_and_has_an_envelope() -> None:
    honest = Squares()
    check_objective(honest)
    envelope = LipschitzEnvelope(honest, 0.5)
    check_objective(envelope)
    records, theta = records_of(honest, 50), point(2.0, 2)
    plain = honest.gradients(records, theta)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    clipped = plain * np.minimum(1.0, 0.5 / np.maximum(norms, 1e-300))
    assert np.abs(envelope.gradients(records, theta) - clipped).max() < 0.01
    assert honest.directions(Adjacency.REPLACE_ONE) == 2
