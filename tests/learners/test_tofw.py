"""DP-TOFW: one path in two forms, its price, its noiseless limit, and what it reaches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import pytest
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.check import assert_noninterference
from privlearn.errors import InterferenceError
from privlearn.learners import base, tofw_buffered, tofw_plain, tofw_whitened
from privlearn.learners.streaming import Example, StreamLearner, Terms, typical_length
from privlearn.learners.tofw import DPTOFW
from privlearn.learners.tofw_buffered import Buffered
from privlearn.learners.tofw_whitened import Whitened
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, Renyi
from privlearn.mechanisms import BandedBLT, PrefixSum
from privlearn.mechanisms.constraint_sets import LpBall, Polytope, Simplex, dual_exponent, norms
from privlearn.mechanisms.scalar_objectives import CustomObjective
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array, Ball, Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

METHODS: tuple[Any, ...] = ("plain", "buffered", "whitened")
DIM, HORIZON = 3, 130
every = pytest.mark.parametrize("method", METHODS)
STRATEGIES = (tofw_buffered, tofw_plain, tofw_whitened)


def huber(score: Array, label: Array) -> Array:
    return np.minimum(np.maximum(score - label, -0.5), 0.5)


HUBER = CustomObjective(huber, curvature=1.0, slope=0.5)


def central(
    horizon: int = HORIZON, seed: int = 0, budget: Any = None, **options: Any
) -> CentralAccountant[Any]:
    return CentralAccountant(
        GaussianDP(3) if budget is None else budget,
        users=range(horizon),
        noise=NoiseSource.simulation(seed),
        **options,
    )


def stream(n: int = HORIZON, seed: int = 0, dim: int = DIM) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    x /= norms(x, 3.0)[:, None]
    theta = np.linspace(0.6, -0.3, dim)
    return x, x @ theta + 0.05 * rng.normal(size=n)


def labels_for(loss: Any, y: Array) -> Array:
    return (y > 0).astype(float) if loss == "logistic" else y


# One path in two forms ------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("loss", "p"),
    thinned([("squared", math.inf), ("squared", 2.0), ("logistic", 1.5), (HUBER, 2.0)]),
)
def test_the_block_path_is_the_one_user_path(method: Any, loss: Any, p: float) -> None:
    x, y = stream()
    y = labels_for(loss, y)
    whole = DPTOFW(DIM, p=p, method=method, loss=loss).start(central()).partial_fit(x, y)
    single = DPTOFW(DIM, p=p, method=method, loss=loss).start(central())
    inside = LpBall(DIM, p, 2.0)
    for row, label in zip(x, y, strict=True):
        single.partial_fit(row, float(label))
        assert inside.contains(single.coef_), "at every time"
    assert np.array_equal(whole.coef_, single.coef_)
    assert whole.coef_.any()


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, HORIZON - 1), max_size=6), method=st.sampled_from(METHODS))
def test_any_split_of_the_users_over_calls_gives_the_same_result(
    cuts: list[int], method: Any
) -> None:
    x, y = stream()
    whole = DPTOFW(DIM, method=method).start(central()).partial_fit(x, y)
    parts, at = DPTOFW(DIM, method=method).start(central()), 0
    for stop in sorted({*cuts, HORIZON}):
        parts.partial_fit(x[at:stop], y[at:stop])
        at = stop
    assert np.array_equal(whole.coef_, parts.coef_)
    assert whole.public_state() == parts.public_state()


def test_plain_moves_at_every_time_and_buffered_at_the_ends_of_epochs() -> None:
    x, y = stream()
    changes = {}
    for method in METHODS[:2]:
        learner = DPTOFW(DIM, method=method, clip=0.05)
        learner.start(central(budget=GaussianDP(1000)))
        before, moved = learner.coef_, 0
        for row, label in zip(x, y, strict=True):
            learner.partial_fit(row, float(label))
            moved += not np.array_equal(before, learner.coef_)
            before = learner.coef_
        changes[method] = moved
    assert changes == {"plain": HORIZON, "buffered": 2}


@pytest.mark.parametrize(("p", "way"), [(2, Whitened), (1.5, Buffered), (math.inf, Buffered)])
def test_the_default_is_what_was_best_where_it_was_measured(p: float, way: type[Any]) -> None:
    learner = DPTOFW(DIM, p=p).start(central())
    assert isinstance(learner._strategy, way)
    assert learner._made["method"] == way.__name__.lower()  # for a ledger in a file
    assert learner.get_params()["method"] == "auto"
    with pytest.raises(ValueError, match="method = 'restarts': must be one of"):
        DPTOFW(DIM, method="restarts").start(central())  # type: ignore[arg-type]


# Price ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "budget", [GaussianDP("0.5"), ZCDP("0.1"), Renyi({4: "0.5", 16: 2})], ids=repr
)
def test_the_plan_spends_the_whole_budget_and_no_more(method: Any, budget: Any) -> None:
    accountant = central(budget=budget)
    x, y = stream()
    DPTOFW(DIM, method=method).start(accountant).partial_fit(x, y)
    spent = accountant.spent()
    assert budget.covers(spent)
    assert float(spent.gaussian_mass() / budget.gaussian_mass()) > 1 - 1e-9
    for user in (0, HORIZON // 2, HORIZON - 1):  # disjoint epochs: everybody pays once
        assert budget.covers(accountant.spent(user))


@every
def test_an_approximate_budget_is_kept_by_the_certificate(method: Any) -> None:
    accountant = central(budget=ApproxDP(1, "0.01"), currency=GaussianDP)
    x, y = stream()
    DPTOFW(DIM, method=method).start(accountant).partial_fit(x, y)
    assert 0.99 < accountant.epsilon(0.01) <= 1.0


@every
def test_zero_out_neighbours_need_half_the_noise(method: Any) -> None:
    stds = []
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        accountant = central(adjacency=adjacency)
        DPTOFW(DIM, method=method).start(accountant).partial_fit(*stream())
        spends = [e for e in accountant.ledger.entries if e.entry == "spend"]
        stds.append(spends[-1].model_dump()["noise"]["std"])
    assert stds[1] == pytest.approx(stds[0] / 2)


@pytest.mark.parametrize("p", [1.01, 1.25, 1.5])
@pytest.mark.parametrize("dim", [5, 20, 1000])
def test_no_generalized_gaussian_noise_would_be_smaller(p: float, dim: int) -> None:
    """Why increments are clipped in ℓ2: in ℓq they would need more noise, of whatever law."""
    q, budget, sums = dual_exponent(p), ZCDP("0.05"), BandedBLT.fitted(1000)
    ours = PrefixSum.calibrated(Ball(typical_length(dim, q), dim), budget, factorization=sums)
    theirs = PrefixSum.calibrated(Ball(1.0, dim, q), budget, factorization=sums, exponent=None)
    assert ours.error_std(1000) < theirs.error_std(1000)


@every
@pytest.mark.parametrize("loss", ["squared", "logistic", HUBER])
def test_the_sensitivity_of_an_increment_is_attained_and_never_exceeded(
    method: Any, loss: Any
) -> None:
    """Two rows that pull as hard as they can, for the first user and for later ones."""
    x, y = stream()
    learner = DPTOFW(DIM, p=1.5, method=method, loss=loss, clip=0.01)
    learner.start(central(budget=GaussianDP(100)))
    y = labels_for(loss, y)
    rng = np.random.default_rng(3)
    for done in (0, 1, 60):
        learner.partial_fit(x[learner.clock_ : done], y[learner.clock_ : done])
        strategy: Any = learner._strategy
        increments = getattr(strategy, "_increments", None) or learner._increments(
            [(1.0, learner._theta)]
        )
        ball = Ball(0.01, DIM)
        short, lowest = 0.05 * np.eye(DIM)[:1], 0.0 if loss == "logistic" else -1.0
        high, low = (ball.clip(increments((short, np.array([v])))) for v in (lowest, 1.0))
        spread = np.linalg.norm(high - low)
        assert spread == pytest.approx(ball.diameter(), rel=1e-9), f"user {done + 1}"
        many = 10.0 ** rng.uniform(-2, 3, (400, 1)) * rng.normal(size=(400, DIM))
        pulls = ball.clip(increments((many, rng.choice([0.0, 1.0], 400))))
        apart = np.linalg.norm(pulls[:, None] - pulls[None], axis=2)
        assert apart.max() <= ball.diameter()


# Replay on neighbours -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """One user."""

    x: Any
    y: Any


def logged(size: int) -> Callable[[Any, Iterable[Row]], Iterator[None]]:
    def drive(learner: StreamLearner, users: Iterable[Row]) -> Iterator[None]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            if size == 1:
                learner.partial_fit(block[0].x, block[0].y)
            else:
                learner.partial_fit([row.x for row in block], [row.y for row in block])
            yield from [None] * len(block)

    return drive


def people(n: int, seed: int) -> list[Row]:
    x, y = stream(n, seed)
    return [Row(row, float(label)) for row, label in zip(x, y, strict=True)]


ODD = (
    Row(np.array([5.0, -5.0, 1.0]), -1.0),
    Row(np.array([math.nan, 0.0, 0.0]), 1.0),
    Row([1.0], 1.0),
    Row(np.array([1e300, 1e300, 0.0]), 1e300),
    Row("nothing", None),
)


def replay(
    method: Any, at: int, other: Row, *, size: int = 1, budget: Any = None, **params: Any
) -> Any:
    users = people(40, 1)
    neighbour = [*users[:at], other, *users[at + 1 :]]
    return assert_noninterference(
        lambda accountant: DPTOFW(DIM, p=1.5, method=method, **params).start(accountant),
        users,
        neighbour,
        protocol=logged(size),
        accountant=CentralAccountant,
        budget=budget,
    )


@every
@pytest.mark.parametrize(("at", "size"), thinned([(17, 1), (0, 7), (39, 7)], 3))
def test_neighbours_change_nothing_but_what_was_paid_for(method: Any, size: int, at: int) -> None:
    found = replay(method, at, ODD[at % len(ODD)], size=size)
    assert found.moved >= 1
    assert found.runs == 3 or method == "buffered"


@pytest.mark.parametrize("other", ODD, ids=range(len(ODD)))
def test_odd_rows_change_nothing_but_what_was_paid_for(other: Row) -> None:
    assert replay("plain", 5, other, size=3, loss=HUBER).moved == 1


class Loose:
    """A broken domain: it states a ball and clips nothing."""

    def __init__(self, radius: float, size: int) -> None:
        self._ball = Ball(radius, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ball, name)

    def clip(self, block: Array) -> Array:
        return np.nan_to_num(block)

    def integers(self, block: Array, grid: Grid) -> NDArray[np.int64]:
        return (self.clip(block) / grid.step).astype(np.int64)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return self._ball.sensitivity(adjacency, norm)


@every
def test_an_increment_that_is_not_clipped_is_caught(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for strategy in STRATEGIES:
        monkeypatch.setattr(strategy, "Ball", Loose)
    monkeypatch.setattr(base, "stored", lambda value: value)  # no ledger holds it
    with pytest.raises(InterferenceError, match="paid for"):
        replay(method, 5, ODD[0])


def test_clipping_the_gradients_radially_instead_of_the_increment_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As published: each gradient is in the ball, their weighted difference need not be."""

    def increments(self: StreamLearner, terms: Terms) -> Callable[[Example], Array]:
        def broken(block: Example) -> Array:
            values, labels = self._examples(block)
            total = np.zeros_like(values)
            for weight, theta in terms:
                scores = (values * theta).sum(axis=1)
                gradients = self._loss.derivative(scores, labels)[:, None] * values
                lengths = norms(gradients, 3.0)[:, None]
                total += weight * gradients * np.minimum(1, 0.05 / np.maximum(lengths, 1e-9))
            return total

        return broken

    for strategy in STRATEGIES:
        monkeypatch.setattr(strategy, "Ball", Loose)
    monkeypatch.setattr(StreamLearner, "_increments", increments)
    monkeypatch.setattr(base, "stored", lambda value: value)  # no ledger holds it

    def tried() -> None:
        for label in np.linspace(-1, 1, 21):  # one of them is near what is predicted
            other = Row(np.array([-0.7, 0.7, 0.0]), float(label))
            replay("plain", 30, other, clip=0.05, budget=ZCDP(100))

    with pytest.raises(InterferenceError, match="paid for"):
        tried()


# The noiseless limit --------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("p", [1.5, 2.0, 4.0, math.inf])
def test_without_noise_and_clipping_it_is_online_frank_wolfe(loss: str, p: float) -> None:
    """The recursion of the paper, d_t = ∇f_t(θ_t) + (1 − 1/t)(d_{t−1} − ∇f_t(θ_{t−1})), while
    blocks hold one user, 32 users."""
    n = 32
    x, y = stream(n)
    y = labels_for(loss, y)
    learner = DPTOFW(DIM, p=p, method="plain", loss=loss, clip=10.0, feature_bound=3.0)
    # numbers may be at most 2³¹/352 times as large as the noise
    learner.start(central(n, budget=GaussianDP(10**7)))

    def gradient(theta: Array, t: int) -> Array:
        score = x[t] @ theta
        residual = expit(score) - y[t] if loss == "logistic" else score - y[t]
        return np.asarray(residual * x[t])

    q, theta, before, d = dual_exponent(p), np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for t in range(n):
        d = gradient(theta, t) + (1 - 1 / (t + 1)) * (d - gradient(before, t))
        powers = np.ones(DIM) if q == 1 else np.abs(d) ** (q - 1)
        vertex = -2.0 * np.sign(d) * powers / norms(powers, p)
        before, theta = theta, theta + min(1, 1.4 / (t + 1 + 20)) * (vertex - theta)
        learner.partial_fit(x[t], float(y[t]))
        assert learner.coef_ == pytest.approx(theta, abs=1e-4), f"user {t + 1}"


def test_without_noise_all_ways_find_the_parameter() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, DIM))
    x /= norms(x, 3.0)[:, None]
    theta = np.array([0.5, -0.3, 0.1])
    for method in METHODS:
        learner = DPTOFW(DIM, p=1.5, method=method)
        learner.start(central(4000, budget=GaussianDP(10**4))).partial_fit(x, x @ theta)
        # A small clip biases the vertices' increments, which no noise evens out here.
        slack = 0.15 if method == "plain" else 0.05
        assert learner.coef_ == pytest.approx(theta, abs=slack), method


# What it reaches ------------------------------------------------------------------------


def suboptimality(method: Any, p: float, horizon: int, dim: int, seeds: range) -> float:
    """Mean of ‖θ̂ − θ‖²/‖θ‖², which is the paper's SubOpt for features without direction."""
    q, found = dual_exponent(p), []
    theta = np.zeros(dim)
    theta[:5] = 1
    theta /= norms(theta, p)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(horizon, dim))
        x /= norms(x, q)[:, None]
        y = x @ theta + 0.05 * rng.normal(size=horizon)
        accountant = central(horizon, seed, ApproxDP(1, Fraction(1, horizon)), currency=GaussianDP)
        learner = DPTOFW(dim, p=p, method=method).start(accountant).partial_fit(x, y)
        found.append(((learner.coef_ - theta) ** 2).sum() / (theta**2).sum())
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("method", "p", "horizon", "dim", "bound"),
    [
        ("plain", 1.5, 1000, 10, 0.08),
        ("buffered", 1.5, 1000, 10, 0.004),
    ],
)
def test_targets_are_reached(method: str, p: float, horizon: int, dim: int, bound: float) -> None:
    assert suboptimality(method, p, horizon, dim, range(500, 505)) <= bound


@pytest.mark.parametrize("method", ["buffered", "whitened"])
@pytest.mark.parametrize("loss", thinned(["logistic", HUBER]))
def test_other_losses_learn_as_well(method: Any, loss: Any) -> None:
    rng = np.random.default_rng(0)
    theta = np.array([3.0, -2.0, 0.0]) if loss == "logistic" else np.array([0.6, -0.3, 0.0])
    x = rng.normal(size=(3000, DIM))
    x /= norms(x, 2.0)[:, None]
    y = x @ theta + 0.05 * rng.normal(size=len(x))
    if loss == "logistic":
        y = (rng.random(len(x)) < expit(x @ theta)).astype(float)
    learner = DPTOFW(DIM, p=2, radius=5.0, method=method, loss=loss)
    learner.start(central(3000, budget=GaussianDP(1))).partial_fit(x, y)
    assert ((learner.coef_ - theta) ** 2).sum() < 0.3 * (theta**2).sum()


# Sets, horizons, parameters -------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "inside", [Simplex(DIM, 1.0), Polytope(np.vstack([np.eye(DIM), -np.ones(DIM)]))]
)
def test_other_sets_are_never_left(method: Any, inside: Any) -> None:
    x, y = stream()
    learner = DPTOFW(DIM, method=method, theta_set=inside).start(central())
    assert inside.contains(learner.coef_)
    for row, label in zip(x[:60], y[:60], strict=True):
        learner.partial_fit(row, float(label))
        assert inside.contains(learner.coef_)


@every
def test_it_starts_where_it_is_told(method: Any) -> None:
    start = [0.1, 0.2, 0.3]
    assert DPTOFW(DIM, method=method, initial=start).start(central()).coef_.tolist() == start
    with pytest.raises(ValueError, match="outside"):
        DPTOFW(DIM, method=method, initial=[3.0, 0, 0]).start(central())


@every
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 33])
def test_few_users_are_enough_to_run(method: Any, horizon: int) -> None:
    x, y = stream(horizon)
    accountant = central(horizon)
    learner = DPTOFW(DIM, method=method).start(accountant).partial_fit(x, y)
    assert np.isfinite(learner.coef_).all()
    assert accountant.certificate(0.01)


def test_anytime_needs_no_horizon() -> None:
    accountant = central(10**9)
    learner = DPTOFW(DIM, method="plain", anytime=True).start(accountant)
    learner.partial_fit(*stream(300)).close()
    assert learner.coef_.any()
    assert accountant.ledger.entries[-1].model_dump()["outcome"] == "released"
    with pytest.raises(RuntimeError, match="was closed"):
        learner.partial_fit(*stream(1))
    with pytest.raises(ValueError, match="anytime"):
        DPTOFW(DIM, anytime=True).start(central())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 1.0}, "DPPOFW"),
        ({"p": 0.5}, "p = 0.5"),
        ({"p": math.nan}, "p = nan"),
        ({"radius": 0.0}, "radius"),
        ({"radius": -1.0}, "radius"),
        ({"dim": 0}, "dim"),
        ({"clip": 0.0}, "clip"),
        ({"theta_set": Simplex(DIM + 1)}, "theta_set"),
        ({"initial": [math.nan] * DIM}, "theta"),
    ],
)
def test_bad_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPTOFW(DIM).set_params(**changes).start(central())


def test_a_set_that_is_none_is_refused() -> None:
    broken: Any = "ball"
    with pytest.raises(TypeError, match="theta_set"):
        DPTOFW(DIM, theta_set=broken).start(central())
