"""The learner as a whole: one path in two forms, its budget, bad rows, restarts and learning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choosing_users import DIM, HORIZON, N_ITEMS, SHOWN, Crowd, bodies, choose, one_by_one, users
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.audit import audit
from privlearn.errors import (
    BudgetError,
    CurrencyError,
    HorizonError,
    LedgerClosedError,
    ProvenanceError,
    UsersError,
)
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.pooled_newton import NewtonBall, contributions
from privlearn.learners.serving import Arrival
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry, PlanEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz
from privlearn.mechanisms.choice_model import (
    NO_ITEM,
    Answer,
    Items,
    clip_items,
)
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array, Ball, Box
from privlearn.runs.references import NonPrivateMNL, RandomAssortments
from privlearn.runs.simulated_choices import gaussian_market
from privlearn.values.adjacency import Adjacency


def joint(
    horizon: int = HORIZON, *, rho: str = "1", seed: int = 0, ledger: Ledger | None = None
) -> JointAccountant[ZCDP]:
    return JointAccountant(
        ZCDP(rho), users=range(horizon), ledger=ledger, noise=NoiseSource.simulation(seed)
    )


def central(horizon: int = HORIZON, seed: int = 0) -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(1), users=range(horizon), noise=NoiseSource.simulation(seed))


def unstarted(**changes: Any) -> OnePassNewtonMNL:
    params: dict[str, Any] = {"first_batch": 8, "growth": 1.5, "random_state": 3, **changes}
    return OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, max_items=SHOWN, **params)


def fresh(**changes: Any) -> OnePassNewtonMNL:
    return unstarted(**changes).start(joint())


# One path in two forms ------------------------------------------------------------------


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("exploration", [0.0, 3.0])
def test_the_block_path_is_the_one_user_path(general: bool, exploration: float) -> None:
    features, revenues, uniforms = users()
    earned = revenues if general else None
    slow, fast = fresh(exploration=exploration), fresh(exploration=exploration)
    crowd = Crowd()
    fast.play(features, crowd.respond, earned, uniforms)
    assert one_by_one(slow, features, uniforms, earned) == crowd.shown
    assert np.array_equal(slow.theta_, fast.theta_)
    assert np.array_equal(slow.precision_, fast.precision_)
    assert bodies(slow) == bodies(fast), "digests of every release included"
    assert slow.public_state() == fast.public_state()


@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, HORIZON - 1), max_size=6))
def test_any_split_of_the_users_over_calls_gives_the_same_result(cuts: list[int]) -> None:
    features, revenues, uniforms = users(1)
    whole, parts = fresh(), fresh()
    whole_crowd, parts_crowd = Crowd(), Crowd()
    whole.play(features, whole_crowd.respond, revenues, uniforms)
    edges = [0, *sorted(cuts), HORIZON]
    for a, b in pairwise(edges):
        parts.play(features[a:b], parts_crowd.respond, revenues[a:b], uniforms[a:b])
    assert whole_crowd.shown == parts_crowd.shown
    assert whole.public_state() == parts.public_state()
    assert bodies(whole) == bodies(parts)


def test_blocks_and_single_users_can_be_mixed() -> None:
    features, _, uniforms = users(2)
    mixed, whole = fresh(), fresh()
    crowd, reference = Crowd(), Crowd()
    whole.play(features, reference.respond, None, uniforms)
    mixed.play(features[:5], crowd.respond, None, uniforms[:5])
    shown = crowd.shown + one_by_one(mixed, features[5:30], uniforms[5:30])
    crowd.shown.clear()
    mixed.play(features[30:], crowd.respond, None, uniforms[30:])
    assert shown + crowd.shown == reference.shown
    assert mixed.public_state() == whole.public_state()


def test_bad_rows_in_a_block_are_the_bad_rows_of_single_users() -> None:
    features, revenues, uniforms = users(3)
    features[4, 1, 0], features[20, 0, 1], revenues[33, 2] = np.nan, np.inf, np.nan
    slow, fast, crowd = fresh(), fresh(), Crowd()
    fast.play(features, crowd.respond, revenues, uniforms)
    # The crowd cannot compute a choice from NaN; what it answers is void anyway.
    assert one_by_one(slow, features, uniforms, revenues) == crowd.shown
    assert slow.public_state() == fast.public_state()
    assert slow.private_messages_ == fast.private_messages_
    assert [user for user, _ in slow.private_messages_] == [4, 20, 33]


def test_nobodys_revenues_change_what_another_user_of_the_block_is_shown() -> None:
    """Items that differ by less than e^z can tell must not be reordered by a neighbour's prices."""
    features = np.zeros((2, N_ITEMS, DIM))
    features[:, :, 0] = 1e-17 * np.array([1.0, 5.0, 3.0, 6.0, 2.0, 4.0])
    everybody_alike, one_unlike = np.ones((2, N_ITEMS)), np.ones((2, N_ITEMS))
    one_unlike[1, 0] = 2.0
    shown = []
    for revenues in (everybody_alike, one_unlike):
        learner, crowd = fresh(first_batch=1, exploration=0.0), Crowd()
        # A first user who buys item 0 moves the belief off zero.
        first = np.zeros((1, N_ITEMS, DIM))
        first[:, :, 0] = 1.0
        learner.play(first, lambda own, shown: shown[:, 0], np.ones((1, N_ITEMS)))
        assert learner.theta_[0] != 0
        learner.play(features, crowd.respond, revenues, np.full((2, 1), 0.5))
        shown.append(crowd.shown[0])
    assert shown[0] == shown[1]


def test_a_user_is_shown_at_most_k_items_in_ascending_order() -> None:
    features, revenues, uniforms = users(4)
    crowd = Crowd()
    fresh().play(features, crowd.respond, revenues - 0.5, uniforms)
    assert all(len(items) <= SHOWN for items in crowd.shown)
    assert all(items == sorted(set(items)) for items in crowd.shown), "in the first batch as well"
    assert any(len(items) < SHOWN for items in crowd.shown), "loss-making items are left out"


def test_while_nothing_is_known_the_coins_show_every_item() -> None:
    learner = fresh(first_batch=30)
    shown = [learner_step(learner, np.ones((N_ITEMS, DIM))) for _ in range(30)]
    assert set().union(*map(set, shown)) == set(range(N_ITEMS))


def learner_step(learner: OnePassNewtonMNL, features: Any, choice: Any = None) -> list[int]:
    items: list[int] = learner.select(features).tolist()
    learner.observe(choice)
    return items


# Learning -------------------------------------------------------------------------------


def regret_and_error(rho: str, replicate: int) -> tuple[float, float, float]:
    market = gaussian_market(7, replicate, horizon=3_000)
    learner = OnePassNewtonMNL(n_items=100, dim=5, max_items=10)
    learner.start(joint(3_000, rho=rho, seed=replicate))
    regrets = market.serve(learner)
    error = float(np.linalg.norm(learner.theta_ - market.theta))
    return float(regrets.sum()), error, float(np.linalg.norm(market.theta))


def test_the_learner_gets_good_and_better_with_more_budget() -> None:
    random = gaussian_market(7, 0, horizon=3_000).serve(RandomAssortments(max_items=10)).sum()
    rich, poor = (
        np.array([regret_and_error(rho, replicate) for replicate in range(4)])
        for rho in ("1", "0.01")
    )
    assert (rich[:, 0] < random / 10).all()
    assert poor[:, 0].mean() > 1.2 * rich[:, 0].mean()
    assert poor[:, 0].mean() < random / 2
    assert rich[:, 1].mean() < 0.6 * rich[:, 2].mean(), "nearer to the truth than the prior mean"
    assert rich[:, 1].mean() < poor[:, 1].mean()


def test_the_non_private_reference_is_better_still() -> None:
    market = gaussian_market(8, horizon=2_000)
    best = market.serve(NonPrivateMNL(horizon=2_000, dim=5, max_items=10)).sum()
    private = OnePassNewtonMNL(n_items=100, dim=5, max_items=10).start(joint(2_000, rho="0.1"))
    assert 0 < best < market.serve(private).sum()


def test_general_revenues_are_learned_as_well() -> None:
    market = gaussian_market(9, horizon=2_000, general_revenue=True)
    learner = OnePassNewtonMNL(n_items=100, dim=5, max_items=10).start(joint(2_000))
    random = market.serve(RandomAssortments(max_items=10)).sum()
    assert market.serve(learner).sum() < random / 50


def test_no_purchase_is_an_answer_that_is_learned_from() -> None:
    """If nobody ever buys item A's kind, its utility falls; silence would leave it at zero."""
    features = np.tile(np.array([1.0, 0.0]), (N_ITEMS, 1))
    nothing, first = fresh(), fresh()
    for _ in range(HORIZON):
        learner_step(nothing, features, None)
        first.observe(int(first.select(features)[0]))
    assert nothing.theta_[0] < -0.3
    assert first.theta_[0] > 0.3
    void = fresh()
    for _ in range(HORIZON):
        learner_step(void, features, 99)
    assert nothing.theta_[0] < void.theta_[0] < first.theta_[0]


def test_without_an_outside_option_no_purchase_is_no_answer() -> None:
    features, _, _ = users(5)
    for choice in (None, NO_ITEM, 99):
        learner, reference = fresh(outside_option=False), fresh(outside_option=False)
        for x in features:
            learner_step(learner, x, choice)
            learner_step(reference, np.full((N_ITEMS, DIM), np.nan), 0)
        assert np.array_equal(learner.theta_, reference.theta_), "all records are null"


# Bad input ------------------------------------------------------------------------------

BAD_FEATURES: list[Any] = [
    np.full((N_ITEMS, DIM), np.nan),
    np.where(np.arange(N_ITEMS * DIM).reshape(N_ITEMS, DIM) == 5, np.inf, 0.5),
    np.full((N_ITEMS, DIM), -np.inf),
    np.zeros((N_ITEMS + 1, DIM)),
    np.zeros((N_ITEMS, DIM - 1)),
    np.zeros(N_ITEMS * DIM),
    np.zeros((1, N_ITEMS, DIM)),
    "secret",
    None,
    [[1.0], [1.0, 2.0]],
    [[10**400, 1]] * N_ITEMS,
    {"age": 3.0},
    {},
]


@pytest.mark.parametrize("number", thinned(range(len(BAD_FEATURES)), 3))
def test_a_bad_context_is_null_alone_and_the_clock_goes_on(number: int) -> None:
    """Each at two places: the first and last user, and both sides of the ends of batches."""
    places = [0, 7, 8, 31, HORIZON - 1]
    for shift in (0, 2):
        refused_alone(BAD_FEATURES[number], places[(number + shift) % len(places)])


def refused_alone(bad: Any, position: int) -> None:
    features, _, uniforms = users(6)
    learner, reference = fresh(), fresh()
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        if i == position:
            assert learner.select(bad).tolist() == list(range(SHOWN)), "the default items"
            learner.observe(0)
            reference.select(np.full((N_ITEMS, DIM), np.nan))
            reference.observe(None)
            continue
        items = learner.select(x)
        assert items.tolist() == reference.select(x).tolist()
        choice = choose(x, items, float(u[0]))
        learner.observe(choice)
        reference.observe(choice)
    assert learner.clock_ == HORIZON
    assert np.array_equal(learner.theta_, reference.theta_)
    assert bodies(learner) == bodies(reference)
    assert learner.public_state() == reference.public_state()
    ((user, message),) = learner.private_messages_
    assert user == position
    assert "your record does not count" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "bad", [np.ones(N_ITEMS - 1), np.full(N_ITEMS, np.nan), "secret", [10**400] * N_ITEMS]
)
def test_bad_revenues_make_a_null_record(bad: Any) -> None:
    learner = fresh()
    assert learner.select(np.ones((N_ITEMS, DIM)), bad).tolist() == list(range(SHOWN))
    learner.observe(0)
    assert (learner.clock_, len(learner.private_messages_)) == (1, 1)


def test_the_null_record_adds_nothing_to_any_sum() -> None:
    """Without noise: the released sums are those of the others, to the last bit of a zero."""
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, max_items=SHOWN, first_batch=4)
    learner.start(JointAccountant(ZCDP(10**12), users=range(4), noise=NoiseSource.simulation(0)))
    for bad in BAD_FEATURES[:4]:
        learner_step(learner, bad, 0)
    assert np.abs(learner.billboard_["sums/0"]).max() < 1e-4


@pytest.mark.parametrize(
    "choice", [99, -7, N_ITEMS, 0.5, 2.7, math.nan, math.inf, "car", [0, 1], object(), 10**30]
)
def test_an_unknown_choice_makes_a_null_record(choice: Any) -> None:
    features, _, uniforms = users(7)
    learner, reference = fresh(), fresh()
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        items = learner.select(x)
        assert items.tolist() == reference.select(x).tolist()
        answer = choose(x, items, float(u[0]))
        learner.observe(choice if i == 10 else answer)
        reference.observe(12345 if i == 10 else answer)
    assert learner.clock_ == HORIZON
    assert learner.public_state() == reference.public_state()
    assert bodies(learner) == bodies(reference)


def test_an_item_that_was_not_on_offer_cannot_be_chosen() -> None:
    features, _, uniforms = users(8)
    learner, reference = fresh(), fresh()
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        items = learner.select(x)
        reference.select(x)
        answer = choose(x, items, float(u[0]))
        hidden = next(j for j in range(N_ITEMS) if j not in items)
        learner.observe(hidden if i == 20 else answer)
        reference.observe(12345 if i == 20 else answer)
    assert learner.public_state() == reference.public_state()


def test_numbers_of_any_size_give_no_warning_and_no_error() -> None:
    """Warnings are errors in this suite; a log line about one user's numbers would be a leak."""
    rng = np.random.default_rng(0)
    learner = fresh(feature_scale=1e-3)
    for i in range(HORIZON):
        size = (1e308, 1e-320, 1e160, 1.0)[i % 4]
        features = size * rng.uniform(-1, 1, size=(N_ITEMS, DIM))
        revenues = size * rng.uniform(-1, 1, size=N_ITEMS)
        items = learner.select(features, revenues)
        assert len(items) <= SHOWN
        learner.observe(int(items[0]) if len(items) else None)
    assert np.isfinite(learner.theta_).all()


def test_environments_that_fail_on_some_users_make_these_null() -> None:
    features, _, uniforms = users(9)
    crowd = Crowd()

    def fails(own: Arrival, shown: Items) -> Items:
        if (own.private == uniforms[13]).any():
            raise RuntimeError("the secret")
        return Crowd().respond(own, shown)

    learner, reference = fresh(), fresh()
    learner.play(features, fails, None, uniforms)
    lost = features.copy()
    reference.play(lost[:13], crowd.respond, None, uniforms[:13])
    reference.select(lost[13])
    reference.observe(12345)
    reference.play(lost[14:], crowd.respond, None, uniforms[14:])
    assert learner.public_state() == reference.public_state()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_items": N_ITEMS + 1}, "max_items = 7: must be at most 6"),
        ({"max_items": 0}, "max_items = 0"),
        ({"max_items": -1}, "max_items = -1"),
        ({"n_items": 0}, "n_items = 0"),
        ({"dim": 0}, "dim = 0"),
        ({"growth": 1.0}, "growth = 1.0: must be > 1"),
        ({"growth": math.nan}, "growth = nan: must be finite"),
        ({"gradient_clip": 0.0}, "gradient_clip = 0.0: must be > 0"),
        ({"hessian_weight": 0.0}, "hessian_weight = 0.0"),
        ({"longest_batch": 7}, "longest_batch = 7: must be at least 8"),
        ({"prior_precision": -1.0}, "prior_precision = -1.0"),
        ({"exploration": -0.1}, "exploration = -0.1"),
        ({"feature_scale": 0.0}, "feature_scale = 0.0"),
        ({"first_batch": 0}, "first_batch = 0"),
        ({"first_batch": HORIZON + 1}, "first_batch = 61: must lie in 1..60"),
        ({"random_state": -1}, "random_state = -1"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_committed(
    changes: dict[str, Any], message: str
) -> None:
    accountant = joint()
    learner = unstarted().set_params(**changes)
    with pytest.raises(ValueError, match=message):
        learner.start(accountant)
    assert len(accountant.ledger.entries) == 1, "the ledger holds its opening only"
    learner.set_params(**{name: unstarted().get_params()[name] for name in changes})
    learner.start(accountant)  # corrected, the same learner and accountant go on


@pytest.mark.parametrize("rho", ["0", 0, -1, "-0.1"])
def test_a_budget_must_be_above_zero(rho: Any) -> None:
    with pytest.raises(ValueError, match=r"budget|rho"):
        joint(rho=rho)


def test_a_budget_that_no_gaussian_fits_is_refused() -> None:
    accountant = JointAccountant(PureDP(1), users=range(20), noise=NoiseSource.simulation(0))
    with pytest.raises(CurrencyError, match="no finite price"):
        unstarted().start(accountant)
    assert len(accountant.ledger.entries) == 1


def test_nobody_beyond_the_horizon_is_served() -> None:
    features, _, uniforms = users()
    learner, crowd = fresh(), Crowd()
    with pytest.raises(HorizonError, match=r"61 users after 0: the horizon is range\(0, 60\)"):
        learner.play(np.concatenate([features, features[:1]]), crowd.respond)
    assert (learner.clock_, crowd.shown) == (0, []), "nobody was served by mistake"
    learner.play(features, crowd.respond, None, uniforms)
    entries = bodies(learner)
    for late in (
        lambda: learner.select(features[0]),
        lambda: learner.play(features[:1], crowd.respond),
    ):
        with pytest.raises(HorizonError, match="were served"):
            late()
    assert bodies(learner) == entries


def test_select_and_observe_take_turns() -> None:
    learner, x = fresh(), np.ones((N_ITEMS, DIM))
    with pytest.raises(UsersError, match="call select first"):
        learner.observe(None)
    learner.select(x)
    for early in (lambda: learner.select(x), lambda: learner.play(x[None], Crowd().respond)):
        with pytest.raises(UsersError, match="user 0 was shown items but has not answered"):
            early()
    learner.observe(None)
    with pytest.raises(UsersError, match="call select first"):
        learner.observe(None)
    assert learner.clock_ == 1


def test_a_learner_without_an_accountant_serves_nobody() -> None:
    learner = unstarted()
    for early in (
        lambda: learner.select(np.ones((N_ITEMS, DIM))),
        lambda: learner.play(np.ones((1, N_ITEMS, DIM)), Crowd().respond),
        lambda: learner.partial_fit(np.ones((1, N_ITEMS, DIM)), np.zeros(1, dtype=np.int64)),
    ):
        with pytest.raises(RuntimeError, match=r"call start\(accountant\) first"):
            early()


def test_wrong_shapes_of_a_whole_block_are_refused_before_anybody_is_served() -> None:
    learner, crowd = fresh(), Crowd()
    good = np.ones((4, N_ITEMS, DIM))
    calls: list[Callable[[], None]] = [
        lambda: learner.play(good[:, :5], crowd.respond),
        lambda: learner.play(good[0], crowd.respond),
        lambda: learner.play(good, crowd.respond, np.ones((4, 5))),
        lambda: learner.play(good, crowd.respond, None, np.ones((3, 1))),
        lambda: learner.play(good, crowd.respond, None, np.ones((5, 1))),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be|must have"):
            call()
    assert (learner.clock_, crowd.shown) == (0, [])


BAD_ROWS: list[Any] = [
    [["HIV+"] * DIM] * N_ITEMS,
    [[None] * DIM] * N_ITEMS,
    [[0.5] * DIM] * (N_ITEMS - 1),
    [[0.5] * DIM] * (N_ITEMS - 1) + [[0.5]],
    [[1j] * DIM] * N_ITEMS,
    [[10**400] * DIM] * N_ITEMS,
    [[np.ones(1)] * DIM] * N_ITEMS,
    [[np.longdouble("1e4000")] * DIM] * N_ITEMS,
    np.zeros((N_ITEMS, DIM + 1)),
    "HIV+",
    None,
    {},
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=range(len(BAD_ROWS)))
@pytest.mark.parametrize("form", thinned(["list", "objects", "cells"], 3))
def test_a_row_of_a_block_that_is_no_numbers_is_null_alone(
    bad: Any, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    features, revenues, uniforms = users(20)
    spoilt = features.copy()
    spoilt[11] = np.nan
    block: Any = [*features[:11].tolist(), bad, *features[12:]]
    if form == "objects":
        rows, block = block, np.empty(HORIZON, dtype=object)
        for i, row in enumerate(rows):
            block[i] = row
    elif form == "cells":
        block = features.astype(object)
        block[11, 2, 1] = bad if isinstance(bad, str | dict) else "HIV+"
    served, reference, crowd, others = fresh(), fresh(), Crowd(), Crowd()
    served.play(block, crowd.respond, revenues, uniforms)
    reference.play(spoilt, others.respond, revenues, uniforms)
    logged = unstarted().start(central()).partial_fit(block, np.zeros(HORIZON, dtype=np.int64))
    wanted = unstarted().start(central()).partial_fit(spoilt, np.zeros(HORIZON, dtype=np.int64))
    assert crowd.shown == others.shown
    for learner, like in ((served, reference), (logged, wanted)):
        assert learner.clock_ == HORIZON
        assert learner.public_state() == like.public_state()
        assert learner.private_messages_ == like.private_messages_
        ((user, message),) = learner.private_messages_
        assert user == 11
        assert "HIV" not in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("bad", [["HIV+"] * N_ITEMS, [1.0], [[1.0]] * N_ITEMS, None, 10**400])
def test_revenues_of_a_block_that_are_no_numbers_are_null_alone(bad: Any) -> None:
    features, revenues, uniforms = users(21)
    spoilt = revenues.copy()
    spoilt[30] = np.nan
    block: Any = [*revenues[:30].tolist(), bad, *revenues[31:]]
    learner, reference, crowd, others = fresh(), fresh(), Crowd(), Crowd()
    learner.play(features, crowd.respond, block, uniforms)
    reference.play(features, others.respond, spoilt, uniforms)
    assert crowd.shown == others.shown
    assert learner.public_state() == reference.public_state()
    assert [user for user, _ in learner.private_messages_] == [30]


def test_what_is_no_block_at_all_is_refused_without_a_look_inside() -> None:
    class Odd:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise ValueError("HIV+")

    learner, crowd = fresh(), Crowd()
    good = np.ones((4, N_ITEMS, DIM))
    blocks: list[Any] = ["HIV+", 3, None, {"HIV+": 1}, Odd()]
    for bad in blocks:
        with pytest.raises(
            TypeError, match=r"features is a .*(must be an|gives no) array"
        ) as caught:
            learner.play(bad, crowd.respond)
        assert "HIV" not in str(caught.value)
    mixed: Any = [[0.5], ["HIV+", 1.0], [], [1.0]]
    for private in (mixed, np.array([1, "a", None, 2], dtype=object)):
        with pytest.raises(TypeError, match="private: must be a plain array"):
            learner.play(good, crowd.respond, None, private)
    with pytest.raises(ValueError, match="revenues of 3 rows: must have 4"):
        learner.play(good, crowd.respond, [[1.0] * N_ITEMS] * 3)
    assert (learner.clock_, crowd.shown) == (0, [])


def test_an_answer_that_was_not_on_offer_is_told_in_private() -> None:
    features, _, uniforms = users(22)
    features[3, 0, 0] = np.nan

    def respond(own: Arrival, shown: Items) -> Any:
        answers: list[Any] = Crowd().respond(own, shown).tolist()
        for i, (u,) in enumerate(own.private):
            if u == uniforms[3]:
                answers[i] = "void anyway"
            if u == uniforms[14]:
                answers[i] = next(j for j in range(N_ITEMS) if j not in shown[i])
            if u == uniforms[25]:
                answers[i] = "HIV+"
            if u == uniforms[40]:
                raise RuntimeError("HIV+")
        return answers

    fast, slow = fresh(), fresh()
    fast.play(features, respond, None, uniforms)
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        items = slow.select(x)
        wrong = {14: next(j for j in range(N_ITEMS) if j not in items), 25: "HIV+", 40: 0.5}
        answer: Any = wrong.get(i, None if i == 3 else choose(x, items, float(u[0])))
        slow.observe(answer)
    assert fast.public_state() == slow.public_state(), "one user's text voids nobody else's answer"
    assert fast.private_messages_ == slow.private_messages_
    assert [user for user, _ in fast.private_messages_] == [3, 14, 25, 40]
    assert "finite numbers" in fast.private_messages_[0][1]
    assert "must be an item that was on offer or nothing" in fast.private_messages_[1][1]
    assert "HIV" not in str(fast.private_messages_)
    assert "on offer" not in json.dumps(fast.public_state())


# Logged choices -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [77, -7, 0.5, math.nan, math.inf, "HIV+", "0", None, [0], [0, 1], 10**400, 1j, {},
     np.uint64(2**64 - 1), np.ones(1)],
    ids=range(15),
)  # fmt: skip
@pytest.mark.parametrize("form", ["list", "objects"])
def test_a_logged_choice_that_names_no_item_is_null_alone(bad: Any, form: str) -> None:
    choices = np.arange(HORIZON) % (N_ITEMS + 1) - 1
    block: Any = choices.tolist() if form == "list" else choices.astype(object)
    block[30] = bad
    assert_null_alone(choices, block)


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float32, np.longdouble])
def test_a_number_that_is_no_item_is_null_alone_in_every_type(kind: Any) -> None:
    choices = np.arange(HORIZON) % N_ITEMS
    block = choices.astype(kind)
    block[30] = np.iinfo(kind).max if kind in (np.int8, np.uint64) else np.finfo(kind).max
    assert_null_alone(choices, block)


def assert_null_alone(choices: Items, block: Any) -> None:
    features, _, _ = users(23)
    reference = features.copy()
    reference[30] = np.nan
    a = unstarted().start(central()).partial_fit(features, block)
    b = unstarted().start(central()).partial_fit(reference, choices)
    assert a.public_state() == b.public_state()
    assert a.clock_ == HORIZON
    ((user, message),) = a.private_messages_
    assert user == 30
    assert "on offer" in message
    assert [user for user, _ in b.private_messages_] == [30]
    assert "finite numbers" in b.private_messages_[0][1]


def test_logged_silence_is_told_where_it_is_no_answer() -> None:
    features, _, _ = users(24)
    choices = np.zeros(HORIZON, dtype=np.int64)
    choices[[4, 9]] = NO_ITEM
    silent = unstarted(outside_option=False).start(central()).partial_fit(features, choices)
    assert [user for user, _ in silent.private_messages_] == [4, 9]
    assert unstarted().start(central()).partial_fit(features, choices).private_messages_ == []


def test_logged_choices_are_refused_under_a_joint_guarantee_before_anything_is_spent() -> None:
    learner = fresh()
    with pytest.raises(ProvenanceError, match="use a CentralAccountant"):
        learner.partial_fit(users()[0], np.zeros(HORIZON, dtype=np.int64))
    assert learner.clock_ == 0
    assert not any(isinstance(e, IssueEntry | SpendEntry) for e in ledger_of(learner).entries)


def ledger_of(learner: OnePassNewtonMNL) -> Ledger:
    accountant: Any = learner._accountant
    ledger: Ledger = accountant.ledger
    return ledger


def test_logged_choices_are_learned_in_any_split() -> None:
    features, _, uniforms = users(10)
    everything = np.arange(N_ITEMS)
    answers = [choose(x, everything, float(u[0])) for x, u in zip(features, uniforms, strict=True)]
    choices = np.array([NO_ITEM if answer is None else answer for answer in answers])
    whole = unstarted().start(central()).partial_fit(features, choices)
    parts = unstarted().start(central())
    for a, b in ((0, 3), (3, 8), (8, 9), (9, 60)):
        parts.partial_fit(features[a:b], choices[a:b])
    assert whole.public_state() == parts.public_state()


def test_a_bad_logged_row_is_null_alone() -> None:
    features, _, _ = users(11)
    choices = np.zeros(HORIZON, dtype=np.int64)
    spoilt, unknown = features.copy(), choices.copy()
    spoilt[30, 2, 1], unknown[30] = np.nan, 77
    a = unstarted().start(central()).partial_fit(spoilt, choices)
    b = unstarted().start(central()).partial_fit(features, unknown)
    assert a.public_state() == b.public_state()
    with pytest.raises(ValueError, match=r"choices of shape \(59,\): must be \(60,\)"):
        unstarted().start(central()).partial_fit(features, choices[1:])
    fractional = choices.astype(float)
    fractional[30] = 0.5
    c = unstarted().start(central()).partial_fit(features, fractional)
    assert c.public_state() == a.public_state()


def test_items_that_a_logged_user_did_not_see_are_not_read() -> None:
    features, _, _ = users(12)
    seen = np.random.default_rng(1).random((HORIZON, N_ITEMS)) < 0.7
    seen[:, 0] = True
    choices = np.where(seen[:, 1], 1, 0)
    spoilt = np.where(seen[..., None], features, np.nan)
    a = unstarted().start(central()).partial_fit(spoilt, choices, offered=seen)
    assert a.private_messages_ == []
    few, wide = unstarted().start(central()), unstarted().start(central())
    wide.partial_fit(features, choices, offered=np.ones_like(seen))
    assert few.partial_fit(features, choices).public_state() == wide.public_state()
    assert wide.public_state() != a.public_state()
    seen[30, choices[30]] = False
    null = unstarted().start(central()).partial_fit(spoilt, choices, offered=seen)
    assert [user for user, _ in null.private_messages_] == [30]
    with pytest.raises(TypeError, match="offered: float64"):
        unstarted().start(central()).partial_fit(features, choices, offered=seen.astype(float))


# Parameters as scikit-learn expects them ------------------------------------------------


def test_parameters_go_in_and_out_unchanged() -> None:
    learner = unstarted(exploration=0.5, feature_scale=2.0)
    params = learner.get_params()
    assert params["n_items"] == N_ITEMS
    assert params["exploration"] == 0.5
    clone = type(learner)(**params)
    assert clone.get_params(deep=True) == params
    assert learner.set_params(growth=2.0, max_items=1) is learner
    assert (learner.growth, learner.get_params()["max_items"]) == (2.0, 1)
    assert clone.growth == 1.5, "a clone shares nothing"
    with pytest.raises(ValueError, match="temperature: not a parameter; known: n_items, dim"):
        learner.set_params(temperature=1)


def test_after_the_start_parameters_are_history() -> None:
    learner = fresh()
    with pytest.raises(RuntimeError, match="the learner has started"):
        learner.set_params(growth=2.0)
    with pytest.raises(RuntimeError, match="the learner has started"):
        learner.start(joint())
    assert learner.get_params()["growth"] == 1.5


def test_a_clone_under_equal_noise_is_the_same_learner() -> None:
    features, _, uniforms = users(12)
    learner = fresh()
    clone = type(learner)(**learner.get_params()).start(joint())
    assert one_by_one(learner, features, uniforms) == one_by_one(clone, features, uniforms)
    assert learner.public_state() == clone.public_state()


# The budget -----------------------------------------------------------------------------


@pytest.mark.parametrize("rho", ["0.1", "1", "0.37"])
@pytest.mark.parametrize("weight", [1.0, 0.123456789])
def test_the_guarantee_is_the_cap_and_its_epsilon_the_exact_gaussian_value(
    rho: str, weight: float
) -> None:
    accountant = joint(rho=rho)
    learner = unstarted(hessian_weight=weight).start(accountant)
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    accountant.close()
    certificate = accountant.certificate(1e-6)
    assert certificate.problems == []
    for (statement,) in (certificate.guarantees, certificate.spent):
        assert statement.rho == pytest.approx(float(rho), rel=1e-9)
        assert statement.rho is not None
        assert statement.rho <= math.nextafter(float(rho), 2), "the cap itself, rounded up"
        assert statement.mu == pytest.approx(math.sqrt(2 * float(rho)), rel=1e-9)
        assert statement.epsilon == pytest.approx(
            exact_gaussian_epsilon(math.sqrt(2 * float(rho)), 1e-6), rel=1e-6
        )
    assert accountant.budget.covers(accountant.spent())
    assert accountant.remaining().rho < 1e-9


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def exact_gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 5: the δ of N(0, 1) against N(mu, 1)."""
    upper = normal_cdf(mu / 2 - epsilon / mu)
    return upper - math.exp(epsilon) * normal_cdf(-mu / 2 - epsilon / mu)


def exact_gaussian_epsilon(mu: float, delta: float) -> float:
    low, high = 0.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_gaussian_delta(mu, middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    "budget", [ZCDP("0.5"), GaussianDP("0.8"), ApproxDP("1", "1e-6")], ids=["rho", "mu", "eps"]
)
def test_any_gaussian_budget_is_filled_and_never_exceeded(budget: Any) -> None:
    accountant: JointAccountant[Any] = JointAccountant(
        budget, users=range(HORIZON), noise=NoiseSource.simulation(0)
    )
    learner = unstarted().start(accountant)
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    cap = accountant.budget
    for user in range(HORIZON):
        assert cap.covers(accountant.spent(user))
    filled = float(accountant.spent().gaussian_mass() / cap.gaussian_mass())
    assert filled == pytest.approx(1, rel=1e-9)
    if isinstance(budget, ApproxDP):
        assert accountant.epsilon(1e-6) <= 1 + 1e-9


def test_every_user_is_charged_the_cap_by_one_stream() -> None:
    """Under replace-one, only from the ledger: a vector of the unit ball in one batch of it."""
    learner = fresh()
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    accountant: Any = learner._accountant
    (spend,) = (entry for entry in accountant.ledger.entries if isinstance(entry, SpendEntry))
    assert spend.users == (0, HORIZON)
    assert spend.domain == Ball(1.0, DIM + DIM * (DIM + 1) // 2).to_dict()
    columns = BufferedToeplitz.early(len(learner.batches_)).column_norm()
    mass = (2 * columns / spend.noise["std"]) ** 2
    assert mass / 2 == pytest.approx(1.0, rel=1e-9)
    assert mass / 2 <= 1.0 + 1e-15


def test_the_plan_is_exhaustive() -> None:
    accountant = joint()
    learner = unstarted().start(accountant)
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    assert len(plan.items) == 1
    loss = learner._sums.plan()[0].loss
    with pytest.raises(BudgetError, match=r"not \(or no longer\) in the committed plan"):
        accountant.issue(loss, users=range(HORIZON), label="more")
    with pytest.raises(BudgetError, match="issue tokens for its losses"):
        accountant.issue(ZCDP("0.001"), users=range(HORIZON), label="more")
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    with pytest.raises(BudgetError, match="no longer"):
        accountant.issue(loss, users=range(HORIZON), label="sums")


def test_the_schedule_starts_where_the_accountant_does() -> None:
    accountant = JointAccountant(ZCDP(1), users=range(100, 160), noise=NoiseSource.simulation(0))
    learner = unstarted().start(accountant)
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    assert learner.clock_ == 160
    spends = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
    assert spends[0].users == (100, 160)
    assert learner.batches_[0] == range(100, 108)
    shifted = fresh()
    shifted.play(features, Crowd().respond, None, uniforms)
    assert np.array_equal(shifted.theta_, learner.theta_), "only the names of users moved"


def test_an_accountant_or_ledger_that_has_begun_is_refused() -> None:
    accountant = joint()
    unstarted().start(accountant)
    second = unstarted()
    with pytest.raises(BudgetError, match="a plan is committed once"):
        second.start(accountant)
    with pytest.raises(RuntimeError, match="call start"):
        second.select(np.ones((N_ITEMS, DIM)))
    spent = joint()
    spent.issue(ZCDP("0.1"), users=range(5), label="something else")
    with pytest.raises(BudgetError, match="before the first token"):
        second.start(spent)
    second.start(joint())  # a refusal leaves the learner as it was


def test_another_adjacency_is_priced_as_such() -> None:
    accountant = JointAccountant(
        ZCDP(1),
        users=range(HORIZON),
        noise=NoiseSource.simulation(0),
        adjacency=Adjacency.ZERO_OUT,
    )
    learner = unstarted().start(accountant)
    features, _, uniforms = users()
    learner.play(features, Crowd().respond, None, uniforms)
    assert learner._sums.std == pytest.approx(fresh()._sums.std / 2)
    assert accountant.certificate().guarantees[0].adjacency is Adjacency.ZERO_OUT


def test_groups_chosen_by_data_would_be_under_priced_by_the_maximum_rule() -> None:
    """Replacing one user takes that user out of one data-chosen group and puts it into another.

    Two groups, left and right, are released as sums over [0, 1] with N(0, 1), so that each release
    alone is exactly 1-GDP, and the maximum rule would promise μ = 1 for both.  The record "left, 1"
    is replaced by "right, 1": one sum falls by 1 and the other rises by 1, the joint shift is √2,
    and the pair of releases is √2-GDP and no better.  Public ranges cannot do that: whoever has an
    index stays in its range.
    """
    count = NoisySum.calibrated(Box(0.0, 1.0, 1), ZCDP("0.5"))
    assert count.error_std() == pytest.approx(1.0)

    def group_sums(values: Array, is_left: Array) -> Array:
        """What the two releases would add noise to."""
        clipped = count.domain.clip(values[:, None])[:, 0]
        return np.array([clipped[is_left > 0].sum(), clipped[is_left == 0].sum()])

    values, is_left = np.array([1.0, 0.2, 0.7, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    moved = is_left.copy()
    moved[0] = 0.0
    shift = group_sums(values, moved) - group_sums(values, is_left)
    assert shift == pytest.approx(np.array([-1.0, 1.0]))
    mu = float(np.linalg.norm(shift)) / count.error_std()
    assert mu == pytest.approx(math.sqrt(2))

    promised, true = (exact_gaussian_epsilon(m, 1e-6) for m in (1.0, mu))
    assert promised == pytest.approx(4.8865, abs=2e-3)
    assert true == pytest.approx(7.20, abs=0.1)
    broken = exact_gaussian_delta(mu, promised)
    assert broken > 100e-6, "at the promised ε the true δ is more than a hundred times 1e-6"
    assert count.loss().zcdp() == pytest.approx(0.5)
    assert mu**2 / 2 == pytest.approx(2 * 0.5), "the sum of both prices, not their maximum"

    # The accountant's rule gives both answers: public halves cost their maximum ...
    halves = joint(4)
    for half in (range(2), range(2, 4)):
        halves.issue(ZCDP(1), users=half, label="fixed halves")
    assert halves.spent() == ZCDP(1)
    # ... and a data-chosen group can only be stated as everybody it may contain.
    groups = joint(4)
    groups.issue(ZCDP("0.6"), users=range(4), label="those who said left")
    with pytest.raises(BudgetError, match="budget exceeded"):
        groups.issue(ZCDP("0.6"), users=range(4), label="those who said right")


def test_a_public_batch_is_moved_once_and_by_at_most_its_diameter() -> None:
    """The other half of the rule: in the learner's batches one user moves one sum."""
    rng, ball = np.random.default_rng(0), NewtonBall(DIM, 0.8, 1.0)
    theta, place = rng.normal(size=DIM), 17
    batches = [range(8), range(8, 22), range(22, HORIZON)]
    features = clip_items(rng.normal(size=(HORIZON, SHOWN, DIM)))
    before = Answer(features, np.ones((HORIZON, SHOWN)), rng.integers(0, SHOWN, HORIZON))
    for _ in range(50):
        after = Answer(before.features.copy(), before.offered, before.choice.copy())
        after.features[place] = clip_items(3 * rng.normal(size=(SHOWN, DIM)))
        after.choice[place] = rng.integers(NO_ITEM, SHOWN)
        for batch in batches:
            old, new = (
                ball.domain.clip(ball.vectors(contributions(a, theta, outside=True)))[
                    batch.start : batch.stop
                ].sum(0)
                for a in (before, after)
            )
            shift = float(np.linalg.norm(new - old))
            assert shift <= ball.domain.sensitivity(Adjacency.REPLACE_ONE)
            assert (shift > 1e-9) is (place in batch)


# Restarts -------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 8, 13, 30])
def test_after_a_restart_it_goes_on_with_what_was_released(at: int, tmp_path: Path) -> None:
    """The users of the open batch come again; a second stream has noise of its own."""
    features, _, uniforms = users(13)
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path) as ledger:
        learner = unstarted().start(joint(ledger=ledger))
        before = one_by_one(learner, features[:at], uniforms[:at])
        batch = learner._batch
        begun = learner.batches_[batch].start
    accountant: JointAccountant[ZCDP] = JointAccountant.resume(
        path, noise=NoiseSource.simulation(0)
    )
    resumed = OnePassNewtonMNL.resume(accountant)
    first = resumed.clock_
    assert begun <= first <= begun + max(begun // 8, 1), "later ones may have been taken"
    assert resumed.get_params() == learner.get_params()
    assert np.array_equal(resumed.theta_, learner.theta_)
    after = one_by_one(resumed, features[first:], uniforms[first:])
    assert before[first:] == after[: max(at - first, 0)]
    found = resumed.public_state()["evidence"]["batches"]
    assert found[:batch] == learner.public_state()["evidence"]["batches"]
    assert len(found) == len(resumed.batches_), "every batch is learned from"
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []
    assert certificate.lost == (batch > 0), "the first stream, charged whatever it released"
    assert certificate.spends == (1 if batch == 0 else 2)
    assert certificate.guarantees[0].rho == pytest.approx(1)


def test_a_finished_learner_is_resumed_as_finished(tmp_path: Path) -> None:
    features, _, uniforms = users(18)
    with Ledger.create(tmp_path / "ledger") as ledger:
        learner = unstarted().start(joint(ledger=ledger))
        learner.play(features, Crowd().respond, None, uniforms)
    noise = NoiseSource.simulation(0)
    again: JointAccountant[ZCDP] = JointAccountant.resume(tmp_path / "ledger", noise=noise)
    resumed = OnePassNewtonMNL.resume(again)
    assert resumed.public_state() == learner.public_state()
    with pytest.raises(HorizonError, match="were served"):
        resumed.select(features[0])


def test_the_public_state_holds_public_values_only() -> None:
    features, revenues, uniforms = users(16)
    learner = fresh()
    learner.play(features[:20], Crowd().respond, revenues[:20], uniforms[:20])
    learner.select(np.full((N_ITEMS, DIM), np.nan))
    state = json.loads(json.dumps(learner.public_state()))
    assert sorted(state) == ["batch", "clock", "coins", "evidence"]
    assert "does not count" not in json.dumps(state)


def test_a_learner_needs_only_the_public_side_of_a_plan() -> None:
    """The committed plan equals what the mechanisms say of themselves."""
    accountant = joint()
    learner = unstarted().start(accountant)
    expected = learner._sums.plan()
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    found = [(item.label, range(*item.users), item.loss, item.count) for item in plan.items]
    assert found == [(p.label, p.users, p.loss.to_dict(), 1) for p in expected]


def test_a_central_accountant_takes_logged_rows_only() -> None:
    features, _, _ = users(18)
    learner = unstarted().start(central())
    with pytest.raises(ProvenanceError, match="needs a JointAccountant"):
        learner.select(features[0])
    with pytest.raises(ProvenanceError, match="needs a JointAccountant"):
        learner.play(features, lambda own, shown: shown[:, 0])
    assert learner.clock_ == 0


def test_after_a_failed_release_the_learner_refuses_to_go_on() -> None:
    features, _, uniforms = users(19)
    learner = fresh()
    end = learner._batches[0].stop
    one_by_one(learner, features[: end - 1], uniforms[: end - 1])
    accountant: Any = learner._accountant
    accountant.ledger.close()
    items = learner.select(features[end - 1])
    with pytest.raises(LedgerClosedError):
        learner.observe(int(items[0]))
    with pytest.raises(RuntimeError, match="failed half-way"):
        learner.select(features[end])
