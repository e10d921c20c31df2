"""LDP-SGD: what it learns, what a message holds, what one message can do, the public schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.links import mean_of
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig
from privlearn.rows.domains import Array
from privlearn_studies.simulated import local_bandit as local
from privlearn_studies.simulated.local_bandit import LocalMarket

BOUNDS: dict[str, tuple[float, float]] = {
    "linear": (-1.0, 1.0),
    "logistic": (0.0, 1.0),
    "poisson": (0.0, 6.0),
}
LINKS = list(BOUNDS)


def learner(link: Any = "linear", **fields: Any) -> LDPSGD:
    low, high = BOUNDS[link]
    size: dict[str, Any] = {"dim": 3, "n_arms": 4, "horizon": 1_000, "shared": True, "epsilon": 1.0}
    return LDPSGD(**size | {"reward_low": low, "reward_high": high, "link": link} | fields)


def regret(method: Any, market: LocalMarket, seed: int) -> float:
    return float(local.serve(method, market, noise_seed=seed + local.NOISE_SEEDS).regrets.sum())


def mean_regret(seeds: range, epsilon: float, **market: Any) -> float:
    link = market.get("link", "linear")
    return float(
        np.mean(
            [
                regret(LDPSGD(**users.public, epsilon=epsilon, link=link), users, seed)
                for seed in seeds
                for users in [local.shared_market(seed, **market)]
            ]
        )
    )


def at_random(market: LocalMarket) -> float:
    return float((market.means.max(axis=1) - market.means.mean(axis=1)).sum())


# What it learns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "most", "market"),
    [  # at random: 1440, 650, 2400; `benchmarks/ldp.py` measures many more
        (1.0, 480, {"dim": 10}),
        (2.0, 150, {"dim": 2, "link": "logistic"}),
        (2.0, 500, {"dim": 2, "link": "poisson"}),
    ],
    ids=str,
)
def test_regret_is_low(epsilon: float, most: float, market: dict[str, Any]) -> None:
    market |= {"horizon": 3_000}
    random = at_random(local.shared_market(200, **market))
    assert mean_regret(range(200, 203), epsilon, **market) < most < 0.4 * random


def test_steps_per_message_learn_as_batches_do() -> None:
    market = local.shared_market(201, horizon=1_000, dim=2)
    each, batched = (LDPSGD(**market.public, epsilon=3.0, singly=s) for s in (True, False))
    assert each.per_message
    assert not batched.per_message
    assert max(regret(each, market, 201), regret(batched, market, 201)) < 30  # at random: 930


@pytest.mark.parametrize(("dim", "n_arms"), [(1, 2), (2, 1)])
def test_the_smallest_problems(dim: int, n_arms: int) -> None:
    method = learner(dim=dim, n_arms=n_arms, horizon=400, epsilon=3.0)
    rng = np.random.default_rng(0)
    contexts = rng.uniform(-1, 1, size=(400, n_arms, dim)) / dim
    means = contexts @ np.full(dim, -0.8)
    market = LocalMarket(contexts, means, means, 1.0, -1.0, 1.0)
    assert regret(method, market, 0) <= 0.25 * at_random(market)


def test_one_theta_per_arm() -> None:
    market = local.arm_market(200, horizon=3_000, dim=3, n_arms=3)
    method = LDPSGD(**market.public, epsilon=4.0)
    assert regret(method, market, 200) < 0.2 * at_random(market)


# A message --------------------------------------------------------------------------------------


def block(n: int, dim: int, seed: int = 0) -> tuple[Arrays, Array, Any]:
    rng = np.random.default_rng(seed)
    theta, contexts = rng.normal(size=(1, dim)), rng.normal(size=(n, dim))
    contexts /= np.maximum(1, np.linalg.norm(contexts, axis=1, keepdims=True))
    model = {"theta": theta / (1.3 * np.linalg.norm(theta))}
    return model, contexts, np.zeros(n, dtype=np.int64)


@pytest.mark.parametrize("link", LINKS)
def test_messages_have_length_at_most_one_and_rows_of_their_own(link: str) -> None:
    method, (model, contexts, arms) = learner(link, dim=4), block(300, 4)
    rewards = np.random.default_rng(1).uniform(*BOUNDS[link], size=300)
    contexts[7] = 0.0
    record = method.record(model, 0, contexts, arms, rewards)
    lengths = np.linalg.norm(record, axis=1)
    assert lengths.max() <= 1 + 1e-12
    assert np.count_nonzero(lengths == 0) == 1
    parts = [
        method.record(model, 0, contexts[i], arms[i], rewards[i])
        for i in np.split(np.arange(300), [1, 120])
    ]
    np.testing.assert_array_equal(record, np.concatenate(parts))
    if link == "linear":
        assert np.mean(lengths > 1 - 1e-12) > 0.8


def test_before_any_message_directions_are_the_contexts() -> None:
    method, (_, contexts, arms) = learner(), block(50, 3)
    record = method.record(method.model(method.start()), 0, contexts, arms, np.ones(50))
    np.testing.assert_allclose(
        record, contexts / np.linalg.norm(contexts, axis=1, keepdims=True), rtol=1e-12
    )


def test_directions_lose_most_of_their_part_along_theta() -> None:
    method, (model, contexts, arms) = learner(), block(50, 3)
    theta = model["theta"][0] / np.linalg.norm(model["theta"])
    record = method.record(model, 0, contexts, arms, np.ones(50))
    across = contexts - np.outer(contexts @ theta, theta)
    expected = (contexts @ theta) / np.linalg.norm(across, axis=1)
    found = (record @ theta) / np.linalg.norm(record - np.outer(record @ theta, theta), axis=1)
    np.testing.assert_allclose(found, 0.35 * expected, rtol=1e-9)


def test_logistic_messages_have_mean_zero_at_the_true_theta() -> None:
    method, (model, contexts, arms) = learner("logistic"), block(50, 3)
    bought = method.record(model, 0, contexts, arms, np.ones(50))
    left = method.record(model, 0, contexts, arms, np.zeros(50))
    chance = mean_of("logistic", contexts @ model["theta"][0])[:, None]
    np.testing.assert_allclose(chance * bought + (1 - chance) * left, 0.0, atol=1e-12)
    assert np.abs(bought - left).sum(axis=1).min() > 0.5


@pytest.mark.parametrize("link", ["linear", "logistic"])
def test_mean_messages_point_to_the_true_theta(link: str) -> None:
    """In the metric of A, the map that shortens: rows of any contexts, without symmetry."""
    method, (model, contexts, arms) = learner(link), block(200, 3)
    contexts = contexts * [1.0, 0.3, 0.1] + [0.0, 0.2, 0.0]
    contexts /= max(1.0, np.linalg.norm(contexts, axis=1).max())
    theta, truth = model["theta"][0], np.array([0.1, -0.7, 0.6])
    if link == "linear":
        mean = method.record(model, 0, contexts, arms, contexts @ truth)
    else:
        chance = mean_of("logistic", contexts @ truth)[:, None]
        ends = [method.record(model, 0, contexts, arms, np.full(200, r)) for r in (1.0, 0.0)]
        mean = chance * ends[0] + (1 - chance) * ends[1]
    unit = theta / np.linalg.norm(theta)
    shortened = np.eye(3) - 0.65 * np.outer(unit, unit)
    assert (mean @ np.linalg.solve(shortened, truth - theta)).min() > -1e-12


def test_choices_are_greedy() -> None:
    method, (model, contexts, _) = learner(), block(40, 3)
    found = method.scores(method.model(model), contexts.reshape(10, 4, 3))
    np.testing.assert_allclose(found.ravel(), contexts @ model["theta"][0])


def test_a_bonus_counts_what_lies_across_theta() -> None:
    contexts, theta = np.array([[[0.9, 0.1], [0.5, -0.6], [0.1, 0.2]]]), np.array([[0.5, 0.0]])
    method = learner("logistic", dim=2)
    found = [method.scores({"theta": theta, "bonus": np.array([b])}, contexts) for b in (0.0, 0.8)]
    np.testing.assert_allclose(found[0], [[0.45, 0.25, 0.05]])
    np.testing.assert_allclose(found[1], [[0.45 + 0.04, 0.25 + 0.24, 0.05 + 0.08]])
    nothing = method.scores({"theta": 0 * theta, "bonus": np.array([0.8])}, contexts)
    np.testing.assert_array_equal(nothing, np.zeros((1, 3)))


@pytest.mark.parametrize("singly", [True, False])
def test_logistic_users_explore_at_first_and_steps_are_smaller_afterwards(singly: bool) -> None:
    method = learner("logistic", dim=2, n_arms=10, horizon=5_000, singly=singly)
    starts, state, bonuses = method.batches(), method.start(), []
    for batch in range(len(starts) - 1):
        bonuses.append(float(method.model(state)["bonus"][0]))
        state = method.step(state, batch, np.zeros((1, 2)), np.zeros(1, dtype=np.int64))
    last = sum(bonus > 0 for bonus in bonuses)
    np.testing.assert_allclose(bonuses[:last], 0.8)
    assert 0.2 * 5_000 < starts[last] < 0.4 * 5_000
    assert method.rate(last) == pytest.approx(0.4 * method.rate(last - 1), rel=0.05)


@pytest.mark.parametrize(
    ("link", "fields"),
    [
        ("linear", {"dim": 2}),
        ("poisson", {"dim": 2}),
        ("logistic", {"dim": 1}),
        ("logistic", {"dim": 5}),
        ("logistic", {"dim": 2, "n_arms": 2}),
    ],
)
def test_others_never_explore(link: str, fields: dict[str, Any]) -> None:
    assert list(learner(link, **{"n_arms": 10} | fields).start()) == ["theta"]


# The server -------------------------------------------------------------------------------------


@given(
    shared=st.booleans(),
    link=st.sampled_from(LINKS),
    signs=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=12, max_size=12),
    batch=st.integers(0, 20),
)
def test_theta_stays_in_its_ball_whatever_comes(
    shared: bool, link: str, signs: list[float], batch: int
) -> None:
    method = learner(link, shared=shared, horizon=5_000, theta_bound=0.7, epsilon=0.3)
    state = method.start()
    for first, end in pairwise(method.batches()[batch : batch + 3]):
        sums = np.reshape(signs, (4, 3))[: method.parts] * method.report().limit * (end - first)
        state = method.step(state, batch, sums, np.full(method.parts, end - first))
        for theta in method.model(state).values():
            assert np.linalg.norm(theta, axis=1).max() <= 0.7 + 1e-12


@given(shared=st.booleans(), batch=st.integers(0, 60), seed=st.integers(0, 99))
def test_one_message_moves_theta_by_at_most_a_step(shared: bool, batch: int, seed: int) -> None:
    method = learner(shared=shared, horizon=5_000, theta_bound=2.0)
    rng = np.random.default_rng(seed)
    state = {name: rng.normal(size=value.shape) for name, value in method.start().items()}
    sums, counts = 9 * rng.normal(size=(method.parts, 3)), np.full(method.parts, 9)
    report = rng.normal(size=3)
    more = sums.copy()
    more[0] += report / np.linalg.norm(report) * method.report().scale
    with_it, without = (method.step(state, batch, s, counts)["theta"] for s in (more, sums))
    moved = np.linalg.norm(with_it - without)
    assert moved <= method.rate(batch) * method.report().scale * (1 + 1e-9)
    np.testing.assert_array_equal(with_it[1:], without[1:])


def test_a_batch_without_messages_changes_nothing() -> None:
    method, state = learner(), {"theta": np.array([[0.1, 0.2, 0.3]])}
    found = method.step(state, 5, np.zeros((1, 3)), np.zeros(1, dtype=np.int64))
    np.testing.assert_array_equal(found["theta"], state["theta"])


# The public schedule ----------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("dim", "epsilon"), [(1, 0.01), (2, 5.0), (20, 1.0), (100, 20.0)])
def test_batches_grow_slowly_and_steps_fall(
    link: str, shared: bool, dim: int, epsilon: float
) -> None:
    method = learner(link, dim=dim, epsilon=epsilon, shared=shared, horizon=20_000)
    starts = np.array(method.batches())
    sizes = np.diff(starts)
    assert (starts[0], starts[-1]) == (0, 20_000)
    assert sizes.min() >= 1
    assert (sizes <= 1 + 0.02 * np.maximum(starts[:-1], 0.15 * 20_000)).all()
    rates = np.array([method.rate(batch) for batch in range(len(sizes))])
    assert np.isfinite(rates).all()
    assert rates.min() > 0
    assert (np.diff(rates) <= 0).all()


def test_nothing_but_public_sizes_enters_the_schedule() -> None:
    """What is published rebuilds all of it: no constant of the users' laws is asked for."""
    method = learner("logistic", theta_bound=1.5, horizon=700)
    config = LocalBanditConfig(name="n", method=method)
    other = LocalBanditConfig.model_validate_json(config.model_dump_json()).method
    assert isinstance(other, LDPSGD)
    assert other.batches() == method.batches()
    assert [other.rate(b) for b in range(9)] == [method.rate(b) for b in range(9)]


def test_units_do_not_matter() -> None:
    """Contexts ten times as long, and θ a tenth: the same messages, and the same choices."""
    (model, contexts, arms), scale = block(40, 3), 10.0
    one, other = learner(), learner(context_bound=scale, theta_bound=1 / scale)
    rewards = np.linspace(-0.9, 0.9, 40)
    large = {"theta": model["theta"] / scale}
    np.testing.assert_allclose(
        one.record(model, 0, contexts, arms, rewards),
        other.record(large, 0, contexts * scale, arms, rewards),
        rtol=1e-9,
    )
    sums, counts = np.full((1, 3), 3.0), np.array([7])
    np.testing.assert_allclose(
        one.step(model, 2, sums, counts)["theta"],
        other.step(large, 2, sums, counts)["theta"] * scale,
    )


def test_warm_up_ends_with_a_batch_and_then_parts_weigh_less() -> None:
    method = learner(shared=False, horizon=20_000)
    warm = method.warm_up()
    assert 4 * 4 <= warm <= 4_000
    last = list(method.batches()).index(warm)
    assert method.rate(last) == pytest.approx(method.rate(last - 1) / 4, rel=0.02)
    assert learner().warm_up() == 0


def test_arms_far_behind_after_the_warm_up_are_eliminated() -> None:
    method = learner(shared=False, n_arms=3, dim=2)
    early = np.array([[0.9, 0.0], [-0.9, 0.0], [0.0, 0.9]])
    model = {"theta": early[::-1], "early": early}
    scores = method.scores(model, np.array([[1.0, 0.0], [0.5, 0.0]]))
    np.testing.assert_array_equal(scores, [[0.0, -np.inf, 0.9], [0.0, -0.45, 0.45]])


def test_what_was_known_after_the_warm_up_is_kept() -> None:
    method = learner(shared=False, horizon=2_000)
    last = list(method.batches()).index(method.warm_up()) - 1
    sums, counts = np.ones((4, 3)), np.full(4, 9)
    warm = method.step(method.start(), last, sums, counts)
    np.testing.assert_array_equal(warm["early"], warm["theta"])
    later = method.step(warm, last + 1, -sums, counts)
    np.testing.assert_array_equal(later["early"], warm["early"])
    assert (later["theta"] < warm["theta"]).all()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"link": "logistic", "reward_low": -1.0}, "logistic: in "),
        ({"link": "poisson", "reward_low": -1.0}, "poisson: must be >= 0"),
        ({"shared": False, "singly": True}, "singly"),
        ({"theta_bound": 0.0}, "theta_bound"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"link": "probit", "reward_low": 0.0}, "link"),
    ],
)
def test_impossible_configurations(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        LDPSGD(**{"dim": 3, "n_arms": 4, "horizon": 1_000, "shared": True, "epsilon": 1.0} | fields)
