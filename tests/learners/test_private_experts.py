"""Private experts: what they follow, null losses, policies that misbehave, kills, prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import die, killed_at

from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.errors import CurrencyError, LedgerError, ProvenanceError, RowLocalityError
from privlearn.learners import Offers, PrivateExperts
from privlearn.learners.expert_blocks import block_ends, fading
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation as Rule

MEANS = np.array([0.6, 0.3, 0.5])


def joint(users: int, budget: Any = None, seed: int = 0, **more: Any) -> JointAccountant[Any]:
    noise = NoiseSource.simulation(seed)
    cap = PureDP(1) if budget is None else budget
    return JointAccountant(cap, users=range(users), noise=noise, **more)


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


@pytest.mark.parametrize(
    "budget", [PureDP(1), ZCDP("0.02"), ApproxDP(1, "1e-6"), PureDP("0.01")], ids=repr
)
def test_all_draws_together_use_the_cap_up(budget: Any) -> None:
    accountant = joint(2000, budget)
    played(PrivateExperts(3).start(accountant), table(2000), 2000)
    spent = accountant.spent()
    assert accountant.budget.covers(spent)
    assert not accountant.budget.share("0.999").covers(spent)


# Null losses --------------------------------------------------------------------------------------

BAD: list[Any] = [
    None,
    math.nan,
    "losses",
    [0.5, 0.5],
    [0.5, math.nan, 0.5],
    [0.5, 1.01, 0.5],
    [0.5, -0.01, 0.5],
    [0.5, "x", 0.5],
    np.ones((3, 1)),
    np.ones(2),
    {},
]


def one_by_one(learner: PrivateExperts, stop: int, heard: Callable[[int], Any]) -> None:
    for user in range(learner.clock_, stop):
        assert learner.expert_ == learner.select()
        learner.observe(heard(user))


def test_blocks_and_single_users_learn_the_same() -> None:
    losses = table(400)
    whole, single = (PrivateExperts(3, first_block=10).start(joint(400)) for _ in range(2))
    for stop in (7, 33, 400):
        played(whole, losses, stop)
    one_by_one(single, 400, lambda user: losses[user])
    assert whole.public_state() == single.public_state()
    assert whole.billboard_.history()[0]["at"] == 10


@pytest.mark.parametrize("bad", range(len(BAD)))
def test_null_losses_count_as_the_middle_wherever_they_come(bad: int) -> None:
    losses, first = table(60), bad % 3
    made = [PrivateExperts(3, first_block=10).start(joint(60, ZCDP(100))) for _ in range(3)]
    null, middle, block = made
    one_by_one(null, 60, lambda user: BAD[bad] if user % 3 == first else losses[user])
    one_by_one(middle, 60, lambda user: [0.5] * 3 if user % 3 == first else losses[user])
    losses[first::3, bad % 2] = 7.0
    played(block, losses, 60)
    states = [learner.public_state() for learner in made]
    assert states[0] == states[1] == states[2]
    why = "the losses must be 3 numbers from 0.0 to 1.0"
    for learner in (null, block):
        assert learner.private_counts_.reasons == {why: 20}
        assert why not in repr(learner)


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


def test_users_who_never_come_and_the_operator_of_a_central_ledger() -> None:
    gone, null = (PrivateExperts(3, first_block=10).start(joint(60)) for _ in range(2))
    central: Any = CentralAccountant(PureDP(1), users=range(60), noise=NoiseSource.simulation(0))
    shown = PrivateExperts(3, first_block=10).start(central)
    gone.skip(25)
    played(null, np.full((60, 3), np.nan), 25)
    played(shown, np.full((60, 3), np.nan), 25)
    for learner in (gone, null, shown):
        played(learner, table(60), 60)
    assert gone.public_state() == null.public_state() == shown.public_state()


def test_offers_take_losses_in_any_order_or_never() -> None:
    losses, answers = table(120), table(120)
    learner, other = (PrivateExperts(3, first_block=10).start(joint(120)) for _ in range(2))
    offers: Any = Offers(learner)
    for first in range(0, 120, 5):
        made = [offers.select(None) for _ in range(5)]
        for k in (3, 1, 4, 0):  # one of five never answers
            offers.observe(made[k].id, answers[first + k])
    losses[2::5] = np.nan
    played(other, losses, 120)
    offers.close_batch()
    assert [each["value"] for each in learner.billboard_.history()] == [
        each["value"] for each in other.billboard_.history()
    ]
    assert learner.expert_ == other.expert_


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
    single = contextual([never, by_sign, odd])
    for user in range(240):
        action = single.select(contexts[user])
        assert action == shown[user]
        single.observe(losses[user])
    assert single.public_state() == block.public_state()
    together = contextual(lambda x: np.stack([never(x), by_sign(x), odd(x)], axis=1))
    together.play(contexts, respond_to(losses, []), numbers)
    assert together.public_state() == block.public_state()
    accountant: Any = single._accountant
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


def test_it_goes_on_after_every_entry(tmp_path: Path) -> None:
    """The process ends at an entry of the ledger, before or after it is written, and again."""
    path, rng = tmp_path / "ledger", np.random.default_rng(5)
    losses, n = table(900), 900
    accountant: Any = JointAccountant(
        PureDP(1), users=range(n), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )
    learner, deaths, before = None, 0, None
    for entry in [1, 2, 3, 4, 5, *rng.integers(1, 12, size=30).tolist(), 10_000]:
        with killed_at(accountant, entry, written=bool(rng.integers(2))) as left:
            made = PrivateExperts(3, first_block=20)
            learner = made.start(accountant) if learner is None else learner
            played(learner, losses, n)
        if left[0] > 0:
            break
        deaths += 1
        before = None if learner is None else learner.billboard_.history()
        accountant = JointAccountant.resume(path, noise=NoiseSource.simulation(deaths))
        learner = None if accountant.learner is None else PrivateExperts.resume(accountant)
        if learner is not None and before is not None:
            again = learner.billboard_.history()
            assert again[: len(before)] == before
        if learner is not None and learner.clock_ == n:
            break
    assert deaths > 8
    assert learner is not None
    assert learner.clock_ == n
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []


def test_after_a_kill_the_expert_stays_until_enough_is_known_again(tmp_path: Path) -> None:
    path, losses = tmp_path / "ledger", table(4000)
    accountant: Any = JointAccountant(
        ZCDP(1), users=range(4000), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )
    learner = PrivateExperts(3).start(accountant)
    followed = played(learner, losses, 1950)
    assert followed[-1] == 1
    die(accountant)
    accountant = JointAccountant.resume(path, noise=NoiseSource.simulation(1))
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
    accountant = JointAccountant.resume(path, noise=NoiseSource.simulation(2))
    with pytest.raises(LedgerError, match="n_experts = 4: the learner was begun with 3"):
        PrivateExperts(4).start(accountant)


def test_policies_are_handed_in_again(tmp_path: Path) -> None:
    contexts, losses = users(240)
    path, numbers = tmp_path / "ledger", np.arange(240.0)[:, None]
    accountant: Any = JointAccountant(
        PureDP(3), users=range(240), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )
    policies = [never, by_sign, odd]
    made = PrivateExperts(3, policies=policies, n_actions=2, dim=2, first_block=12)
    learner = made.start(accountant)
    learner.play(contexts[:100], respond_to(losses, []), numbers[:100])
    state = learner.public_state()
    die(accountant)
    accountant = JointAccountant.resume(path, noise=NoiseSource.simulation(1))
    with pytest.raises(TypeError, match="must be given policies"):
        PrivateExperts.resume(accountant)
    learner = PrivateExperts.resume(accountant, policies=policies)
    assert learner.public_state()["expert"] == state["expert"]
    learner.play(contexts[learner.clock_ :], respond_to(losses, []), numbers[learner.clock_ :])
    accountant.close()
    assert audit(path).problems == []


# Persons, prices and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [Rule(3, apart=20), Rule(2, pooled=True), Rule(3, per_batch=1), Rule(1)], ids=repr
)
def test_persons_who_return_pay_within_the_cap(rule: Rule) -> None:
    """And the noise is larger for them, unless they come once."""
    accountant = joint(400, ZCDP("0.1"), people=People.memory(rule))
    learner = PrivateExperts(3, first_block=20).start(accountant)
    ids = [f"person {user % 60}" for user in range(400)]
    played(learner, table(400), 390, people=ids[:390])
    learner.select(person=ids[390])
    learner.observe([0.0, 1.0, 1.0])
    assert accountant.budget.covers(accountant.spent())
    alone = PrivateExperts(3, first_block=20).start(joint(400, ZCDP("0.1")))._mechanism.scale
    zero_out = 0.5  # the rules' own relation, at which a record moves half as much
    scale = learner._mechanism.scale / (alone * zero_out)
    assert (
        scale == pytest.approx(1, rel=1e-5) if rule.most == 1 else 1.2 < scale <= rule.most * 1.01
    )


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
        ({"policies": [1, 2, 3], "n_actions": 2, "dim": 2}, TypeError, "must be functions"),
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
    with pytest.raises(CurrencyError, match="not dominated by a Gaussian"):
        PrivateExperts(3).start(joint(100, GaussianDP(1)))
    timed = joint(100, people=People.memory(Rule(3, clock="timetable")))
    with pytest.raises(ProvenanceError, match="takes one row for each slot"):
        PrivateExperts(3).start(timed)
    central: Any = CentralAccountant(PureDP(1), users=range(240), noise=NoiseSource.simulation(0))
    learner = PrivateExperts(3, policies=[never] * 3, n_actions=2, dim=2).start(central)
    with pytest.raises(ProvenanceError, match="JointAccountant"):
        learner.select([0.0, 0.0])
    with pytest.raises(TypeError, match="context: is for policies"):
        PrivateExperts(3).start(joint(100)).select([0.0])
