"""Baselines of convex optimisation: prices, noiseless limits, replay, and how good they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from privlearn.accountants import CentralAccountant
from privlearn.checking.exact.check import white_box
from privlearn.checking.replay.check import assert_noninterference
from privlearn.errors import (
    CurrencyError,
    HorizonError,
    InsufficientBudgetError,
    ProvenanceError,
)
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared, zcdp_epsilon
from privlearn.mechanisms import BinaryTree, PrefixSum
from privlearn.mechanisms.constraint_sets import norms
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn_studies.papers.han2022 import competitors as convex
from privlearn_studies.rivals.convex import (
    ConstantAnswer,
    LocalMD,
    NoisySFW,
    OnlineFrankWolfe,
    PublishedTOFW,
    _mirrored,
    printed_deviation,
)
from privlearn_studies.simulated import regression

DIM, HORIZON = 3, 64
Make = Callable[..., StreamLearner]
MAKERS: dict[str, Make] = {
    "sfw": NoisySFW,
    "generalized": lambda dim, **o: NoisySFW(dim, noise="generalized", **o),
    "sgd": lambda dim, **o: NoisySGD(dim, passes=4, **o),
    "mirror": lambda dim, **o: LocalMD(dim, steps=3, **o),
    "published": PublishedTOFW,
}
every = pytest.mark.parametrize("name", MAKERS)
HUGE = ZCDP(10**18)


def central(
    horizon: int = HORIZON, seed: int = 0, budget: Any = None, **options: Any
) -> CentralAccountant[Any]:
    return CentralAccountant(
        budget or ZCDP(1), users=range(horizon), noise=NoiseSource.simulation(seed), **options
    )


def stream(n: int = HORIZON, seed: int = 0, dim: int = DIM, q: float = 3.0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    x /= norms(x, q)[:, None]
    theta = np.linspace(0.6, -0.3, dim)
    return x, x @ theta + 0.05 * rng.normal(size=n)


# The tree with generalized Gaussian noise ----------------------------------------------------


def tree_of(domain: Ball, horizon: int, std: float, exponent: float = 2.0) -> PrefixSum[Array]:
    return PrefixSum(domain, BinaryTree(horizon), std, exponent=exponent)


@pytest.mark.parametrize("horizon", [1, 2, 7, 8, 9, 33])
def test_the_price_of_the_tree_counts_the_nodes_of_one_user(horizon: int) -> None:
    """From the noise itself: prefix sums are B·z, and C = B⁻¹A says who is in which node."""
    tree = tree_of(Ball(2.0, 1, 3.0), horizon, 5.0, 3.0)
    rows = iter(np.eye(horizon))
    noise = tree.factorization.stream(lambda n: np.array([next(rows) for _ in range(n)]))
    matrix = noise.next(horizon)
    sums = np.tril(np.ones((horizon, horizon)))
    nodes = np.linalg.solve(matrix, sums)
    assert np.isin(nodes.round(9), (0.0, 1.0)).all()
    most = nodes.sum(axis=0).max()
    assert most == math.floor(math.log2(horizon)) + 1
    price = ZCDP(1).price(tree.loss())
    # (p − 1)·s²/(2σ²) per node, s = 2·radius
    assert float(price.rho) == pytest.approx(most * 2 * 4.0**2 / (2 * 25), rel=1e-9)
    assert price.rho >= round(most) * 2 * 16 / 50


def test_the_tree_of_exponent_2_is_a_gaussian_mechanism_and_no_dearer_than_it_says() -> None:
    tree = tree_of(Ball(1.0, 2), 6, 3.0)
    assert white_box(tree).tight
    # ≤ 3 nodes, distance 2, σ = 3
    assert float(GaussianDP(1).price(tree.loss()).mu_squared) == pytest.approx(3 * 4 / 9)


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_running_sums_carry_the_noise_of_their_nodes(exponent: float) -> None:
    n, size = 7, 4
    rng = np.random.default_rng(1)
    values = rng.normal(size=(n, size))
    values /= norms(values, exponent)[:, None] * 1.01
    found = []
    for seed in range(700):
        tree = tree_of(Ball(1.0, size, exponent), n, 0.5, exponent)
        accountant = central(n, seed, ZCDP(1000))
        token = accountant.issue(tree.loss(), users=range(n), label="tree")
        rows = Rows.seal(values.copy(), users=range(n))
        with tree.open(token) as stream:
            found.append(stream.append(rows).value - np.cumsum(values, axis=0))
    std = np.sqrt(np.mean(np.square(found), axis=(0, 2)))
    ones = np.array([t.bit_count() for t in range(1, n + 1)])
    each = tree.error_std(1)
    assert std == pytest.approx(each * np.sqrt(ones), rel=0.06)
    assert [tree.error_std(t) for t in (1, 3, 7)] == pytest.approx(each * np.sqrt([1, 2, 3]))
    # E‖z‖_p² = d·σ²
    lengths = norms(np.array(found)[:, 0], exponent)
    assert np.mean(lengths**2) == pytest.approx(size * 0.25, rel=0.08)


def test_the_tree_is_calibrated_to_the_whole_budget() -> None:
    tree = PrefixSum.calibrated(
        Ball(5.0, 10, 3.0), ZCDP("0.05"), factorization=BinaryTree(1000), exponent=3.0
    )
    price = ZCDP(1).price(tree.loss()).rho
    assert 0.05 * (1 - 1e-9) < price <= ZCDP("0.05").rho


@pytest.mark.parametrize("dim", [5, 10, 20])
def test_the_gaussian_in_l2_has_no_more_noise_in_the_dimensions_of_the_paper(dim: int) -> None:
    def noise(exponent: float) -> float:
        return PrefixSum.calibrated(
            Ball(1.0, dim, 3.0), ZCDP("0.05"), factorization=BinaryTree(100), exponent=exponent
        ).error_std(1)

    assert noise(2.0) <= min(noise(p) for p in (2.1, 2.5, 3.0)) * (1 + 1e-9)


# Prices --------------------------------------------------------------------------------------


@every
def test_every_user_is_charged_and_nobody_more_than_the_cap(name: str) -> None:
    x, y = stream()
    with central(budget=ZCDP("0.7")) as accountant:
        learner = MAKERS[name](DIM, p=1.5).start(accountant)
        learner.partial_fit(x, y)
        for user in (0, 1, HORIZON // 2, HORIZON - 1):
            (stated,) = accountant.certificate(1e-3, user=user).guarantees
            assert stated.rho is not None
            assert stated.rho == pytest.approx(0.7, rel=1e-6)
            assert stated.rho <= 0.7 * (1 + 1e-12)
    assert learner.clock_ == HORIZON


@pytest.mark.parametrize("name", ["sfw", "sgd", "mirror"])
def test_gaussian_baselines_use_the_exact_guarantee(name: str) -> None:
    x, y = stream()
    budget = GaussianDP.from_mu_squared(gaussian_mu_squared(1.0, 0.01))
    with central(budget=budget) as accountant:
        MAKERS[name](DIM, p=1.5).start(accountant).partial_fit(x, y)
        (stated,) = accountant.certificate(0.01).guarantees
    assert 1 - 1e-6 < stated.epsilon <= 1


def test_printed_noise_is_charged_what_it_costs() -> None:
    # m = 11, κ = 2, βD + L = 5, ln(m/δ) = ln 11000
    deviation = printed_deviation(5.0, 2.0, 1000, 1.0, 1e-3)
    assert deviation == pytest.approx(11 * 5 * math.sqrt(8 * 2 * math.log(11_000)))
    assert deviation == pytest.approx(671, abs=1)
    learner = PublishedTOFW(5, p=1.5, noise="printed", delta=1e-3)
    # d = 5: ℓ2 noise of variance σ₊ in place of σ₊²; 10 nodes; ‖x‖₂ <= 5^{1/2 − 1/3}·‖x‖₃
    rho = 10 * (10 * 5 ** (1 / 2 - 1 / 3)) ** 2 / (2 * deviation)
    assert float(learner.price(1000).rho) == pytest.approx(rho, rel=1e-9)
    # as printed in its proof the claim would hold with room: ρ is σ₊ times less
    assert zcdp_epsilon(rho / deviation, 1e-3).value < 0.25 < 6 < zcdp_epsilon(rho, 1e-3).value
    # p = ∞: a Gaussian, without the slip
    straight = PublishedTOFW(5, p=math.inf, noise="printed", delta=1e-3).price(1000)
    sigma = printed_deviation(5.0, 1.0, 1000, 1.0, 1e-3)
    assert float(straight.rho) == pytest.approx(10 * 10**2 / (2 * sigma**2), rel=1e-9)


def test_printed_noise_does_not_start_under_its_claim() -> None:
    learner = PublishedTOFW(DIM, p=1.5, noise="printed", delta=1 / HORIZON)
    cost = learner.price(HORIZON)
    with pytest.raises(InsufficientBudgetError):
        learner.start(central(budget=ZCDP(cost.rho * 99 / 100)))
    x, y = stream()
    again = PublishedTOFW(DIM, p=1.5, noise="printed", delta=1 / HORIZON)
    with central(budget=cost) as accountant:
        again.start(accountant).partial_fit(x, y)
        (stated,) = accountant.certificate(1 / HORIZON).guarantees
    assert stated.rho == pytest.approx(float(cost.rho))
    assert stated.epsilon > 4


def test_generalized_noise_asks_for_zcdp() -> None:
    for make in (
        lambda: NoisySFW(10, p=1.5, noise="generalized"),
        lambda: PublishedTOFW(10, p=1.5),
    ):
        with pytest.raises(CurrencyError, match="no price in GaussianDP"):
            make().start(central(budget=GaussianDP(1)))
    assert PublishedTOFW(10, p=1.5).noise_exponent > 2
    assert PublishedTOFW(5, p=1.5).noise_exponent == PublishedTOFW(10, p=4).noise_exponent == 2
    PublishedTOFW(10, p=4).start(central(budget=GaussianDP(1)))


# Noiseless limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("p", [1.5, 2.0, math.inf])
def test_without_noise_the_published_algorithm_is_online_frank_wolfe(p: float, loss: str) -> None:
    x, y = stream(q=1.0)
    if loss == "logistic":
        y = (y > 0).astype(float)
    # numbers may be at most 2³¹/64 times as large as the noise
    budget = ZCDP(10**16)
    private = PublishedTOFW(DIM, p=p, loss=loss).start(central(budget=budget)).partial_fit(x, y)
    bare = OnlineFrankWolfe(DIM, p=p, loss=loss).partial_fit(x, y)
    assert np.abs(bare.coef_).max() > 0.05
    assert private.coef_ == pytest.approx(bare.coef_, abs=1e-5)
    assert bare.predict(x) == pytest.approx(x @ bare.coef_)


def test_online_frank_wolfe_step_by_step() -> None:
    """Two rounds by hand: d = 1, the ball [−2, 2], x = 1, y = 1."""
    learner = OnlineFrankWolfe(1, p=2.0).partial_fit([[1.0]], [1.0])
    assert learner.coef_ == pytest.approx([1.0])  # vertex 2, step 1/2
    # 3·(1 − 1) − 2·(0 − 1) = 2, added to −1: the gradient at the vertex; then −2 with step 1/3
    learner.partial_fit([[1.0]], [1.0])
    assert learner.coef_ == pytest.approx([0.0])


def test_without_noise_the_offline_method_minimises() -> None:
    x, y = stream(400)
    learner = NoisySGD(DIM, p=1.5, passes=200, step=0.5, clip=5.0, averaged=0.9)
    learner.start(central(400, budget=HUGE)).partial_fit(x, y)
    assert learner.coef_ == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0], abs=1e-3)


def test_without_noise_mirror_descent_minimises_over_its_last_phase() -> None:
    x, y = stream(400)
    learner = LocalMD(DIM, p=1.5, phases=1, steps=400, step=0.5, clip=5.0, pull=0.0, averaged=False)
    learner.start(central(400, budget=HUGE)).partial_fit(x, y)
    assert learner.coef_ == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0], abs=1e-3)


def test_without_noise_the_variance_reduced_direction_is_a_gradient() -> None:
    """With the same row for everybody, d_t is the gradient at θ_t whatever the weights are."""
    x, y = np.tile([[0.6, -0.2]], (100, 1)), np.full(100, 0.3)
    learner = NoisySFW(2, p=2.0, first_clip=5.0, clip=5.0, shrink_clip=False, weight=0.7)
    learner.start(central(100, budget=HUGE))
    seen = 0
    for i in range(100):
        before = learner.coef_
        learner.partial_fit(x[i], y[i])
        if (learner.coef_ != before).any():
            seen += 1
            gradient = x[0] * (x[0] @ before - y[0])
            assert learner._direction == pytest.approx(gradient, abs=1e-6)
    assert seen == 1 + math.isqrt(100)


@pytest.mark.parametrize("r", [1.3, 1.5, 2.0])
def test_the_mirror_map_inverts_the_gradient_of_its_potential(r: float) -> None:
    rng = np.random.default_rng(2)
    for dual in (*rng.normal(size=(5, 4)), np.array([1e-200, 0.0, 0.0, 0.0])):
        point = _mirrored(dual, r)
        if np.abs(dual).max() > 1e-100:

            def gap(u: Array, z: Array = dual) -> float:
                return float(norms(u, r) ** 2 / (2 * (r - 1)) - u @ z)

            assert gap(point) <= minimize(gap, point + 0.1).fun + 1e-6
        assert np.isfinite(point).all()
    assert (_mirrored(np.zeros(4), r) == 0).all()


# One path in two forms, bad rows --------------------------------------------------------------


@every
@pytest.mark.parametrize("size", [1, 5])
def test_blocks_and_single_rows_give_the_same_bits(name: str, size: int) -> None:
    x, y = stream()
    whole = MAKERS[name](DIM, p=1.5).start(central()).partial_fit(x, y)
    parts = MAKERS[name](DIM, p=1.5).start(central())
    for at in range(0, HORIZON, size):
        parts.partial_fit(x[at : at + size], y[at : at + size])
    assert (whole.coef_ == parts.coef_).all()
    assert (whole.coef_ != 0).any()


@every
def test_a_caller_may_reuse_its_arrays(name: str) -> None:
    x, y = stream()
    learner = MAKERS[name](DIM, p=1.5).start(central())
    row, label = np.zeros((1, DIM)), np.zeros(1)
    for i in range(HORIZON):
        row[:], label[:] = x[i], y[i]
        learner.partial_fit(row, label)
    assert (
        learner.coef_ == MAKERS[name](DIM, p=1.5).start(central()).partial_fit(x, y).coef_
    ).all()


@every
def test_labels_are_clipped_features_scaled_and_bad_rows_null(name: str) -> None:
    x, y = stream()
    x[3], y[4] = 40 * x[3], 90.0
    tame_x, tame_y = x.copy(), y.copy()
    tame_x[3], tame_y[4] = x[3] / 40, 1.0
    found = MAKERS[name](DIM, p=1.5).start(central()).partial_fit(x, y)
    tame = MAKERS[name](DIM, p=1.5).start(central()).partial_fit(tame_x, tame_y)
    assert found.coef_ == pytest.approx(tame.coef_, abs=1e-12)
    x[5], y[6] = np.nan, np.inf
    learner = MAKERS[name](DIM, p=1.5).start(central()).partial_fit(x, y)
    assert learner.clock_ == HORIZON
    assert [user for user, _ in learner.private_messages_] == [5, 6]
    assert np.isfinite(learner.coef_).all()
    with pytest.raises(HorizonError):
        learner.partial_fit(x[0], y[0])


@dataclass(frozen=True, eq=False)
class Row:
    """One user."""

    x: Any
    y: Any


def logged(size: int) -> Callable[[Any, Iterable[Row]], Iterator[None]]:
    def drive(learner: StreamLearner, users: Iterable[Row]) -> Iterator[None]:
        rest = iter(users)
        while block := list(islice(rest, size)):
            learner.partial_fit([row.x for row in block], [row.y for row in block])
            yield from [None] * len(block)

    return drive


@every
@pytest.mark.parametrize(("at", "other"), [(0, Row([9.0, -9.0, 9.0], -1.0)), (30, Row("no", None))])
def test_neighbours_change_nothing_but_what_was_paid_for(name: str, at: int, other: Row) -> None:
    x, y = stream(40, 1)
    users = [Row(row, float(label)) for row, label in zip(x, y, strict=True)]
    neighbour = [*users[:at], other, *users[at + 1 :]]
    found = assert_noninterference(
        lambda accountant: MAKERS[name](DIM, p=1.5).start(accountant),
        users,
        neighbour,
        protocol=logged(3),
        accountant=CentralAccountant,
        budget=ZCDP(1),
    )
    assert found.moved >= 1


# Parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisySFW(DIM, p=0.5), "p = 0.5"),
        (lambda: NoisySFW(DIM, radius=0.0), "radius = 0.0"),
        (lambda: NoisySFW(DIM, noise="laplace"), "noise = 'laplace'"),  # type: ignore[arg-type]
        (lambda: NoisySFW(DIM, clip=-1.0), "clip = -1.0"),
        (lambda: NoisySFW(DIM, step_delay=-1.0), "step_delay = -1.0: must be >= 0"),
        (lambda: NoisySGD(DIM, passes=0), "passes = 0"),
        (lambda: NoisySGD(DIM, averaged=1.0), "averaged = 1.0"),
        (lambda: LocalMD(DIM, phases=0), "phases = 0"),
        (lambda: LocalMD(DIM, pull=-0.1), "pull = -0.1"),
        (lambda: LocalMD(DIM, shrink=0.0), "shrink = 0.0"),
        (lambda: PublishedTOFW(DIM, delta=1.0), "delta = 1.0"),
        (lambda: PublishedTOFW(DIM, noise="none"), "noise = 'none'"),  # type: ignore[arg-type]
        (lambda: PublishedTOFW(DIM, feature_bound=0.0), "feature_bound = 0.0"),
    ],
)
def test_parameters_out_of_range_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().start(central())


@every
def test_parameters_can_be_read_and_the_public_state_is_json(name: str) -> None:
    learner = MAKERS[name](DIM, p=math.inf)
    params = learner.get_params()
    assert params["p"] == math.inf
    assert type(learner)(**params).get_params() == params
    learner.start(central())
    state = json.loads(json.dumps(learner.public_state()))
    assert state["params"]["p"] == "inf"
    assert state["learner"] == type(learner).__name__


def test_two_users_and_a_single_one() -> None:
    for name, make in MAKERS.items():
        for horizon in (1, 2):
            x, y = stream(horizon)
            learner = make(DIM, p=1.5).start(central(horizon)).partial_fit(x, y)
            assert np.isfinite(learner.coef_).all(), name


def test_a_joint_accountant_does_not_cover_logged_rows() -> None:
    from privlearn.accountants import JointAccountant

    joint = JointAccountant(ZCDP(1), users=range(4), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="CentralAccountant"):
        NoisySFW(DIM).start(joint)


# How good they are -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dim", "most"),
    [
        (convex.SFW, 5, 0.035),
        (convex.SFW, 10, 0.13),
        (convex.SFW, 20, 0.33),
        (convex.SFW_GENERALIZED, 10, 0.3),
        (convex.SGD, 10, 0.002),
        (convex.MIRROR, 10, 0.01),
    ],
)
def test_the_baselines_are_as_good_as_the_fair_ones_must_be(
    name: str, dim: int, most: float
) -> None:
    found = []
    for seed in range(104, 108):
        stream = regression.linear_stream(seed, horizon=1000, dim=dim, p=1.5)
        found.append(convex.compete(name, stream, seed).suboptimality)
    assert np.mean(found) <= most


def test_the_constant_answer_is_the_yardstick() -> None:
    stream = regression.linear_stream(1, horizon=10, dim=4, p=1.5)
    answer = ConstantAnswer(4).partial_fit(stream.features, stream.labels)
    assert stream.suboptimality(answer.coef_) == 1
    assert (answer.predict(stream.features) == 0).all()
