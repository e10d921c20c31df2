"""Private experts: what they follow, null losses, policies that misbehave, kills, prices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_users import joint, resumed
from resuming import die

from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.errors import LedgerError, ProvenanceError, RowLocalityError
from privlearn.learners import PrivateExperts
from privlearn.learners.expert_blocks import block_ends, fading
from privlearn.losses.budgets import ZCDP, ApproxDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation as Rule

MEANS = np.array([0.6, 0.3, 0.5])


def table(users: int, means: Array = MEANS, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).random((users, len(means))) < means).astype(float)


def played(learner: PrivateExperts, losses: Array, stop: int, **more: Any) -> list[int]:
    """The experts that were followed, up to user ``stop``."""
    followed: list[int] = []
    first = learner.clock_

    def respond(experts: Any) -> Array:
        at = first + len(followed)
        followed.extend(experts.tolist())
        return losses[at : at + len(experts)]

    learner.play(stop - first, respond, **more)
    return followed


# What it follows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [PureDP(1), ApproxDP(1, "1e-6")], ids=repr)
def test_it_follows_the_best_expert_and_one_that_becomes_the_best(budget: Any) -> None:
    late = []
    for seed in range(4):
        losses = np.concatenate([table(2000, seed=seed), table(2000, MEANS**2, seed)])
        losses[2000:, 2] = 0.0
        learner = PrivateExperts(3).start(joint(4000, budget, seed))
        followed = np.array(played(learner, losses, 4000))
        assert followed[:6].tolist() == [0, 1, 2, 0, 1, 2]
        assert (followed[1000:2000] == 1).mean() > 0.8
        late.append((followed[3000:] == 2).mean())
        assert learner.expert_ == 2
        assert learner.redraws_ == len(learner.batches_) - 1 == len(learner.billboard_.history())
    assert np.mean(late) > (0.9 if budget == PureDP(1) else 0.6)


def test_what_is_added_up_is_the_losses_by_their_weights() -> None:
    """With hardly any noise the expert drawn is that of the least weighted loss."""
    losses = np.random.default_rng(1).uniform(-2, 4, (900, 5))
    learner = PrivateExperts(5, loss_range=(-2, 4), first_block=20).start(joint(900, ZCDP(10**5)))
    followed = played(learner, losses, 900)
    ends = [block.stop for block in learner.batches_]
    weights, _ = fading(np.diff([0, *ends]).tolist(), pure=False)
    total = np.zeros(5)
    for block, after, weight in zip(learner.batches_, learner.batches_[1:], weights, strict=False):
        total += weight * losses[block.start : block.stop].sum(axis=0)
        assert set(followed[after.start : after.stop]) == {int(total.argmin())}


def test_blocks_grow_up_to_a_twentieth() -> None:
    ends = block_ends(10_000, 50, 2.0)
    assert ends[:6] == [50, 100, 200, 400, 800, 1300]
    assert np.diff(ends).max() == 500
    assert ends[-1] == 10_000
    assert block_ends(120, 50, 1.5) == [50, 75, 112, 120]


@pytest.mark.parametrize("pure", [True, False])
def test_weights_make_all_blocks_cost_about_the_same(pure: bool) -> None:
    """So no noise could be less for one without being more for another."""
    weights, growth = map(
        np.array, fading(np.diff([0, *block_ends(5000, 50, 2.0)]).tolist(), pure=pure)
    )
    shares = np.triu(weights[:, None] / growth)
    costs = shares.sum(axis=1) if pure else (shares**2).sum(axis=1)
    assert costs.min() > 0.9 * costs.max()
    assert (np.diff(weights) > 0).all()
    assert (np.diff(growth) > 0).all()


# Bounds -------------------------------------------------------------------------------------------


def test_one_user_moves_no_difference_of_scores_by_more_than_is_priced() -> None:
    """Whatever the losses are, as gains lie within ±½; a broken twin clips nothing."""
    learner = PrivateExperts(3, loss_range=(-1.0, 3.0)).start(joint(100))
    extreme = np.array([[-1.0, 3.0, 1.0], [3.0, -1.0, -1.0], [9.0, 0.0, 0.0], [np.nan] * 3])
    rows = learner._scaled(np.arange(4), extreme)
    gains = np.nan_to_num(learner._gains(rows), nan=0.0)
    assert np.abs(gains).max() == 0.5
    moves = gains[:, None] - gains[None]
    assert np.ptp(moves, axis=2).max() == 2.0, "and so much is priced"
    assert learner._mechanism.clip == 0.5
    unclipped = 0.5 - (extreme[:3] + 1) / 4
    assert np.ptp(unclipped[:, None] - unclipped[None], axis=2).max() > 2.0


# Policies over contexts ---------------------------------------------------------------------------


def never(contexts: Array) -> Any:
    return np.zeros(len(contexts), dtype=int)


def by_sign(contexts: Array) -> Any:
    return (contexts[:, 0] > 0).astype(int)


def odd(contexts: Array) -> Any:
    """Fails on some contexts, and names no action for others."""
    if (contexts[:, 1] > 2).any():
        raise RuntimeError("no")
    return np.where(contexts[:, 1] < -2, 7, 1)


def mixes(contexts: Array) -> Any:
    return (contexts[:, 0] > contexts[:, 0].mean()).astype(int)


def users(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Contexts, and losses of two actions: action 1 is right where the first number is > 0."""
    contexts = np.random.default_rng(seed).normal(size=(n, 2))
    right = (contexts[:, 0] > 0).astype(int)
    return contexts, np.stack([right, 1 - right], axis=1).astype(float)


def contextual(policies: Any, n: int = 240, **more: Any) -> PrivateExperts:
    learner = PrivateExperts(3, policies=policies, n_actions=2, dim=2, first_block=12, **more)
    return learner.start(joint(n, PureDP(3)))


def respond_to(losses: Array, shown: list[int]) -> Any:
    def respond(visitor: Any, actions: Any) -> Array:
        shown.extend(actions.tolist())
        return np.asarray(losses[visitor.private[:, 0].astype(int)])

    return respond


def test_the_policy_of_the_least_losses_serves_everybody() -> None:
    contexts, losses = users(240)
    numbers, shown = np.arange(240.0)[:, None], list[int]()
    block = contextual([never, by_sign, odd])
    block.play(contexts, respond_to(losses, shown), numbers)
    assert block.expert_ == 1
    last = block.batches_[-1].start
    assert shown[last:] == by_sign(contexts[last:]).tolist()
    accountant: Any = block._accountant
    entries = accountant.ledger.entries
    named = [name for e in entries if e.entry == "functions" for name in e.names]
    for role in ("serve", "map_rows"):  # trusted code stands in the ledger, and is checked
        assert any(name.startswith(role) and "odd" in name for name in named), named


def test_a_policy_that_misbehaves_costs_one_user_and_nobody_else_notices() -> None:
    contexts, losses = users(240)
    contexts[:, 1] = 0.0
    bad = contexts.copy()
    bad[3::50, 1], bad[4::50, 1], bad[5::50] = 9.0, -9.0, np.nan
    nulls = losses.copy()
    for first in (3, 4, 5):
        nulls[first::50] = np.nan
    numbers, shown, others = np.arange(240.0)[:, None], list[int](), list[int]()
    block, null = contextual([never, by_sign, odd]), contextual([never, by_sign, odd])
    block.play(bad, respond_to(losses, shown), numbers)
    null.play(contexts, respond_to(nulls, others), numbers)
    assert block.public_state() == null.public_state()
    single = contextual([never, by_sign, odd])
    for user in range(240):
        action = single.select(bad[user])
        if user % 50 not in (3, 4, 5):
            assert action == others[user]
        elif user % 50 == 5:
            assert action == user % 2, "in turn, where there is no context"
        single.observe(losses[user])
    assert single.public_state() == block.public_state()


def test_a_policy_that_writes_to_contexts_changes_them_for_no_other() -> None:
    def writes(contexts: Array) -> Any:
        contexts[:] = -1.0
        return never(contexts)

    contexts, losses = users(240)
    shown: list[list[int]] = []
    for first in (never, writes):
        shown.append([])
        learner = contextual([first, by_sign, never])
        learner.play(contexts, respond_to(losses, shown[-1]), np.arange(240.0)[:, None])
        assert learner.expert_ == 1
    assert shown[0] == shown[1]


def test_policies_that_look_at_other_rows_are_found_out() -> None:
    contexts, losses = users(240)
    learner = contextual([never, mixes, by_sign])
    with pytest.raises(RowLocalityError, match="mixes"):
        learner.play(contexts, respond_to(losses, []), np.arange(240.0)[:, None])


# Kills --------------------------------------------------------------------------------------------


def test_after_a_kill_the_expert_stays_until_enough_is_known_again(tmp_path: Path) -> None:
    path, losses = tmp_path / "ledger", table(4000)
    accountant = joint(4000, ZCDP(1), path=path)
    learner = PrivateExperts(3).start(accountant)
    followed = played(learner, losses, 1950)
    assert followed[-1] == 1
    die(accountant)
    accountant = resumed(path)
    learner = PrivateExperts.resume(accountant)
    assert learner.expert_ == 1
    drawn = learner.redraws_
    worse = 1 - losses  # what was drawn of few users alone would be another
    followed = played(learner, worse, 4000)
    assert learner.redraws_ > drawn + 3
    ends = [block.stop for block in learner.batches_ if block.stop > 1950]
    first = learner._picks.first
    assert first < 2300
    at = 1950 + followed.index(next(f for f in followed if f != 1))
    assert at >= ends[1], "not by the first draw of new sums"
    assert set(followed[-200:]) == {0}
    die(accountant)
    accountant = resumed(path, 2)
    with pytest.raises(LedgerError, match="n_experts = 4: the learner was begun with 3"):
        PrivateExperts(4).start(accountant)


@pytest.mark.parametrize("kind", [CentralAccountant, JointAccountant])
def test_users_who_never_came_are_passed_by_under_both_guarantees(kind: Any) -> None:
    """Also under a central one, which experts without contexts may be served under."""
    states = []
    for gone in (True, False):
        book = kind(PureDP(1), users=range(60), noise=NoiseSource.simulation(0))
        learner = PrivateExperts(3, first_block=10).start(book)
        for stop in (15, 20, 60):
            if gone and stop == 20:
                learner.skip(5)
            while learner.clock_ < stop:
                learner.select()
                learner.observe(None if stop == 20 else [1, 0, 1])
        states.append(learner.public_state())
    assert states[0] == states[1]


def test_policies_are_handed_in_again(tmp_path: Path) -> None:
    contexts, losses = users(240)
    path, numbers = tmp_path / "ledger", np.arange(240.0)[:, None]
    accountant = joint(240, PureDP(3), path=path)
    policies = [never, by_sign, odd]
    made = PrivateExperts(3, policies=policies, n_actions=2, dim=2, first_block=12)
    learner = made.start(accountant)
    learner.play(contexts[:100], respond_to(losses, []), numbers[:100])
    state = learner.public_state()
    die(accountant)
    accountant = resumed(path)
    with pytest.raises(TypeError, match="must be given policies"):
        PrivateExperts.resume(accountant)
    learner = PrivateExperts.resume(accountant, policies=policies)
    assert learner.public_state()["expert"] == state["expert"]
    learner.play(contexts[learner.clock_ :], respond_to(losses, []), numbers[learner.clock_ :])
    accountant.close()
    assert audit(path).problems == []


# Persons, prices and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"n_experts": 1}, ValueError, "n_experts = 1: must be an integer >= 2"),
        ({"growth": 1.0}, ValueError, "growth = 1.0: must be > 1"),
        ({"growth": 1.001, "first_block": 1}, ValueError, "growth = 1.001: makes 1751 blocks"),
        ({"first_block": 0}, ValueError, "first_block = 0: must be"),
        ({"first_block": 100}, ValueError, "first_block = 100: all 100 users"),
        ({"loss_range": (1, 0)}, ValueError, r"loss_range = \(1, 0\): must be two numbers"),
        ({"n_actions": 2}, ValueError, "n_actions = 2: is for policies"),
        ({"policies": [never] * 3, "dim": 2}, ValueError, "n_actions = None: is for policies"),
        ({"policies": [never], "n_actions": 2, "dim": 2}, ValueError, "1 functions for n_exp"),
        (
            {"policies": [1, 2, 3], "n_actions": 2, "dim": 2},
            TypeError,
            "must be a list of functions",
        ),
    ],
)
def test_public_mistakes_are_errors_before_anything_is_spent(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    accountant = joint(2000 if "growth" in wrong else 100)
    with pytest.raises(error, match=message):
        PrivateExperts(**{"n_experts": 3, **wrong}).start(accountant)
    assert not accountant.begun


def test_what_is_refused() -> None:
    timed = joint(100, people=People.memory(Rule(3, clock="timetable")))
    with pytest.raises(ProvenanceError, match="takes one row for each slot"):
        PrivateExperts(3).start(timed)
    central: Any = CentralAccountant(PureDP(1), users=range(240), noise=NoiseSource.simulation(0))
    learner = PrivateExperts(3, policies=[never] * 3, n_actions=2, dim=2).start(central)
    with pytest.raises(ProvenanceError, match="JointAccountant"):
        learner.select([0.0, 0.0])
    with pytest.raises(TypeError, match="context: is for policies"):
        PrivateExperts(3).start(joint(100)).select([0.0])
