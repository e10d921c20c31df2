"""DPMNL as a whole: its plan and charges, one path in two forms, learning.

Non-interference is tested for every learner in tests/checking/replay/test_learners.py.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from choosing_users import DIM, HORIZON, N_ITEMS, SHOWN, Crowd, choose, one_by_one, users
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import Person
from privlearn.contract.protocols import Accountant
from privlearn.errors import (
    BudgetError,
    CheckError,
    CurrencyError,
    HorizonError,
    InsufficientBudgetError,
    InterferenceError,
    ProvenanceError,
    UsersError,
)
from privlearn.learners import DPMNL
from privlearn.learners.serving import Arrival
from privlearn.ledger.entries import FunctionsEntry, IssueEntry, PlanEntry, RetireEntry, SpendEntry
from privlearn.losses import Loss, compose, loss_from_dict
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import ObjectivePerturbation, PrefixSumStream
from privlearn.mechanisms.choice_model import Items
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs.references import RandomAssortments
from privlearn.runs.simulated_choices import gaussian_market
from privlearn.values.adjacency import Adjacency

TRIGGERS = ["public", "determinant"]
by_trigger = pytest.mark.parametrize("trigger", TRIGGERS)


def unstarted(**changes: Any) -> DPMNL:
    params: dict[str, Any] = {
        "n_items": N_ITEMS,
        "dim": DIM,
        "max_items": SHOWN,
        "initial_rounds": 8,
        "max_updates": 5,
        "random_state": 3,
        **changes,
    }
    return DPMNL(**params)


def joint(
    horizon: int = HORIZON, budget: Currency | ApproxDP | None = None, seed: int = 0, **more: Any
) -> JointAccountant[Any]:
    cap: Any = ZCDP(1) if budget is None else budget
    return JointAccountant(cap, users=range(horizon), noise=NoiseSource.simulation(seed), **more)


RICH = ZCDP(10_000)
"""So much budget that V follows the data and the determinant trigger fires often."""


def rich(trigger: str = "determinant", seed: int = 0, **changes: Any) -> DPMNL:
    learner = unstarted(trigger=trigger, gram_share=0.5, exploration=1.0, **changes)
    return learner.start(joint(budget=RICH, seed=seed))


def serve_all(learner: DPMNL, features: Array, uniforms: Array, single: bool) -> None:
    if single:
        one_by_one(learner, features, uniforms)
    else:
        learner.play(features, Crowd().respond, None, uniforms)


def played(learner: DPMNL, seed: int = 0) -> DPMNL:
    features, _, uniforms = users(seed)
    learner.play(features, Crowd().respond, None, uniforms)
    return learner


def accountant_of(learner: DPMNL) -> JointAccountant[Any]:
    accountant = learner._accountant
    assert isinstance(accountant, JointAccountant)
    return accountant


def bodies(learner: DPMNL) -> list[str]:
    """The ledger without the accountant's random name, and without the name of who answers."""
    accountant = accountant_of(learner)
    return [
        json.dumps(entry.body(), sort_keys=True).replace(accountant.id, "accountant")
        for entry in accountant.ledger.entries
        if not isinstance(entry, FunctionsEntry)
    ]


def spends_of(learner: DPMNL, mechanism: str) -> list[SpendEntry]:
    return [
        entry
        for entry in accountant_of(learner).ledger.entries
        if isinstance(entry, SpendEntry) and entry.mechanism == mechanism
    ]


# Planted defects --------------------------------------------------------------------------

Plant = Callable[[Any], None]
CONSEQUENCES = "public state depends|received|rows of users"
"""Of a leak into public numbers: they differ, or what users are shown, or the rows of these."""


def raw_gram(seen: list[Array]) -> Array:
    rows = np.concatenate(seen)
    return np.asarray(rows.T @ rows)


def plants() -> dict[str, tuple[Plant, str]]:
    """Each takes a learner before its start, with the raw rows in ``learner._seen``."""

    def gram_without_noise(learner: Any) -> None:
        def exact(noisy: Array) -> Array:
            eye = 2 * learner._noise.shift * np.eye(learner.dim)
            return np.asarray(eye + raw_gram(learner._seen))

        learner._shifted = exact

    def fits_by_the_exact_determinant(learner: Any) -> None:
        volumes = [0.0]

        def due() -> bool:
            volume = float(np.linalg.slogdet(raw_gram(learner._seen) + np.eye(learner.dim))[1])
            late = volume > volumes[0] + math.log(2) and learner.updates_ < learner.max_updates
            if late:
                volumes[0] = volume
            return learner.updates_ == 0 or late

        learner._fit_is_due = due

    def policy_looks_at_the_last_user(learner: Any) -> None:
        honest = learner._policy

        def policy(visit: Any) -> Items:
            items = honest(visit)
            last = learner._seen[-2] if len(learner._seen) > 1 else np.ones(1)
            return np.asarray((items + int(9 * np.abs(last).sum())) % learner.n_items)

        learner._policy = policy

    return {
        "gram": (gram_without_noise, CONSEQUENCES),
        "exact determinant": (fits_by_the_exact_determinant, "event|happens only here"),
        "policy": (policy_looks_at_the_last_user, "received|rows of users"),
    }


def planted(plant: Plant, **changes: Any) -> Callable[[Accountant[Any]], Any]:
    """A factory of learners with one fault, which see all raw rows."""

    def factory(accountant: Accountant[Any]) -> Any:
        learner: Any = unstarted(gram_share=0.5, exploration=1.0, **changes)
        learner._seen, learner._bought = [], 0
        select, observe = learner.select, learner.observe

        def spying_select(features: Array, /) -> Any:
            learner._seen.append(np.array(features))
            return select(features)

        def spying_observe(choice: int | None, /) -> None:
            learner._bought += choice is not None
            observe(choice)

        learner.select, learner.observe = spying_select, spying_observe
        plant(learner)
        return learner.start(accountant)

    return factory


def tame_pair(at: int) -> tuple[list[Person], list[Person]]:
    """Nobody buys and features are small; the changed user has large ones and buys."""
    rng = np.random.default_rng(5)
    data = [
        Person(0.05 * rng.normal(size=(N_ITEMS, DIM)), lambda items: None) for _ in range(HORIZON)
    ]
    other = Person(
        -3 + 3 * rng.normal(size=(N_ITEMS, DIM)),
        lambda items: int(items[0]) if len(items) else None,
    )
    return data, [other if i == at else person for i, person in enumerate(data)]


@pytest.mark.parametrize("name", plants())
def test_planted_leaks_are_caught(name: str) -> None:
    plant, message = plants()[name]
    data, neighbour = tame_pair(3)
    with pytest.raises(InterferenceError, match=message):
        assert_noninterference(planted(plant), data, neighbour, budget=RICH)


def test_without_a_leak_the_same_pair_passes() -> None:
    data, neighbour = tame_pair(3)
    assert_noninterference(planted(lambda learner: None), data, neighbour, budget=RICH)


def charged_to_the_users_so_far(learner: Any) -> None:
    """A late fit whose time the data decided, charged as if the time had been public."""

    def fit() -> None:
        rows = type(learner._answers[0]).concat(learner._answers)
        label = "fit" if learner.updates_ == 0 else "later fit"
        loss = learner._noise.fit.loss()
        token = learner._accountant.issue(loss, users=rows.users, label=label)
        learner.theta_ = learner._board.post("theta", learner._noise.fit.release(rows, token))
        learner._answers, learner._volume = [rows], -math.inf
        learner.updates_ += 1

    learner._fit = fit


def more_fits_than_promised(learner: Any) -> None:
    learner._fit_is_due = lambda: True


def fits_of_users_to_come(learner: Any) -> None:
    """The first fit is put off to a later public time than the plan's."""
    learner._fit_is_due = lambda: learner._block > 0 and learner.updates_ == 0


@pytest.mark.parametrize(
    ("plant", "trigger", "message"),
    [
        (charged_to_the_users_so_far, "determinant", "no planned|not in the committed plan|plan"),
        (more_fits_than_promised, "determinant", "plan"),
        (more_fits_than_promised, "public", "plan"),
        (fits_of_users_to_come, "determinant", "plan"),
        (fits_of_users_to_come, "public", "plan"),
    ],
)
def test_the_plan_refuses_what_non_interference_cannot_see(
    plant: Plant, trigger: str, message: str
) -> None:
    """These faults act alike on neighbours; the committed plan is what stops them."""
    data, neighbour = tame_pair(0)
    factory = planted(plant, trigger=trigger)
    with pytest.raises(CheckError, match="fails on both data sets"):
        assert_noninterference(factory, data, neighbour, budget=RICH)
    learner = factory(joint(budget=RICH))
    features, _, _ = users()
    with pytest.raises(BudgetError, match=message):
        one_by_one(learner, features, np.zeros((HORIZON, 1)))
    with pytest.raises(RuntimeError, match="failed half-way"):
        learner.select(features[0])
    assert accountant_of(learner).certificate().problems == []


# Plan and charges -------------------------------------------------------------------------


def price(loss: Loss) -> Fraction:
    rho = loss.zcdp()
    assert rho is not None
    return rho


def test_under_public_times_everybody_is_charged_for_their_own_fits() -> None:
    learner = played(unstarted().start(joint()))
    accountant, times = accountant_of(learner), learner._fit_times(HORIZON)
    assert times == [round(8 * (HORIZON / 8) ** (k / 5)) for k in range(5)]
    gram, fit = price(learner._noise.gram.loss()), price(learner._noise.fit.loss())
    for user in range(HORIZON):
        fits = sum(time > user for time in times)
        assert accountant.spent(user) == ZCDP(fits * fit + gram)
    assert learner.updates_ == len(times)
    opened = [(entry.label, entry.users) for entry in issued(learner)]
    assert opened == [("gram", (0, HORIZON)), *(("fit", (0, time)) for time in times)]


def issued(learner: DPMNL) -> list[IssueEntry]:
    entries = accountant_of(learner).ledger.entries
    return [entry for entry in entries if isinstance(entry, IssueEntry)]


@pytest.mark.parametrize("max_updates", [1, 2, 5])
def test_under_the_determinant_everybody_is_charged_for_all_late_fits(max_updates: int) -> None:
    learner = played(rich(max_updates=max_updates))
    accountant = accountant_of(learner)
    gram, fit = price(learner._noise.gram.loss()), price(learner._noise.fit.loss())
    for user in range(HORIZON):
        fits = learner.updates_ if user < 8 else learner.updates_ - 1
        assert accountant.spent(user) == ZCDP(fits * fit + gram), "what was issued so far"
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    found = [(item.label, range(*item.users), item.count) for item in plan.items]
    later = [("later fit", range(HORIZON), max_updates - 1)] if max_updates > 1 else []
    assert found == [("gram", range(HORIZON), 1), ("fit", range(8), 1), *later]
    certificate = accountant.certificate()
    assert certificate.guarantees[0].rho == pytest.approx(float(max_updates * fit + gram))


def plan_total(accountant: JointAccountant[Any], user: int) -> Fraction:
    """Independent sum of the prices of the plan's items that name a user."""
    (plan,) = (entry for entry in accountant.ledger.entries if isinstance(entry, PlanEntry))
    return sum(
        (
            item.count * price(loss_from_dict(item.loss))
            for item in plan.items
            if item.users[0] <= user < item.users[1]
        ),
        Fraction(0),
    )


@by_trigger
@pytest.mark.parametrize("rho", ["0.01", "1", "30"])
@pytest.mark.parametrize("share", thinned([0.1, 0.02, 0.7], 3))
def test_the_cap_is_used_up_and_never_exceeded(trigger: str, rho: str, share: float) -> None:
    learner = unstarted(trigger=trigger, gram_share=share)
    played(learner.start(joint(budget=ZCDP(rho))))
    accountant = accountant_of(learner)
    totals = [plan_total(accountant, user) for user in range(HORIZON)]
    cap = ZCDP(rho).rho
    assert max(totals) == totals[0]
    assert Fraction("0.999") * cap <= totals[0] <= cap
    stated = accountant.certificate().guarantees[0].rho
    assert stated == pytest.approx(float(totals[0]), rel=1e-12)
    assert stated is not None
    assert Fraction(stated) >= totals[0]
    assert ZCDP(rho).covers(accountant.spent())
    loss = learner.worst_loss(HORIZON, ZCDP(rho))
    assert price(loss) == totals[0]
    everything = [(learner._noise.gram.loss(), 1), (learner._noise.fit.loss(), 5)]
    assert loss == compose(everything)
    assert price(learner._noise.gram.loss()) == pytest.approx(share * float(cap), rel=1e-6)


def test_tokens_that_det_v_never_asked_for_stay_in_the_guarantee() -> None:
    learner = played(unstarted(trigger="determinant").start(joint(budget=ZCDP("0.01"))))
    accountant = accountant_of(learner)
    assert learner.updates_ < learner.max_updates, "the noise hides the growth of V"
    guarantee, spent = accountant.epsilon(1e-6), accountant.epsilon(1e-6, of="spent")
    assert spent < guarantee
    full = played(unstarted(trigger="determinant").start(joint(budget=ZCDP("0.01"), seed=1)))
    assert accountant_of(full).epsilon(1e-6) == guarantee, "a function of the plan alone"
    accountant.close()
    assert accountant.certificate().problems == []
    assert accountant.certificate().guarantees[0].rho == pytest.approx(0.01, rel=1e-3)
    outcomes = [e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert outcomes == ["released"] * (learner.updates_ + 1)


def test_an_accountant_that_begins_later_serves_the_same() -> None:
    accountant = JointAccountant(ZCDP(1), users=range(100, 160), noise=NoiseSource.simulation(0))
    moved = played(unstarted().start(accountant))
    here = played(unstarted().start(joint()))
    assert moved.clock_ == 160
    assert np.array_equal(moved.theta_, here.theta_)
    assert np.array_equal(moved.gram_, here.gram_)
    assert [entry.users for entry in issued(moved)][1] == (100, 108)


# Published and corrected calibrations -----------------------------------------------------


def paper(nominal: Any, *, corrected: bool = False, **changes: Any) -> DPMNL:
    calibration = "corrected" if corrected else "published"
    return unstarted(calibration=calibration, nominal=nominal, **changes)


def test_published_noise_needs_a_cap_of_its_truth() -> None:
    """K = 6 of 6 items, 90% for the Gram sums: the truth is above the nominal budget."""
    changes: dict[str, Any] = {"max_items": 6, "gram_share": 0.9}
    learner = paper(ZCDP(1), **changes)
    truth = price(learner.worst_loss(HORIZON))
    assert truth > 4
    refused = joint()
    with pytest.raises(InsufficientBudgetError, match="budget exceeded"):
        learner.start(refused)
    assert len(refused.ledger.entries) == 1
    nearly = joint(budget=ZCDP(truth - Fraction(1, 10**9)))
    with pytest.raises(InsufficientBudgetError, match="budget exceeded"):
        learner.start(nearly)
    played(learner.start(joint(budget=ZCDP(truth))))  # the refusals left the learner as it was
    certificate = accountant_of(learner).certificate()
    assert certificate.guarantees[0].rho == pytest.approx(float(truth), rel=1e-12)
    spends = [*spends_of(learner, "prefix-sum"), *spends_of(learner, "objective-perturbation")]
    assert {spend.calibration.value for spend in spends} == {"published"}
    assert spends[0].domain["layout"] == "triangle"


def test_one_item_has_no_published_noise_and_a_proved_one() -> None:
    for nominal in (ZCDP(1), ApproxDP(1, "1e-6")):
        with pytest.raises(ValueError, match=r"max_items = 1: the published rank .* is 0"):
            paper(nominal, max_items=1).start(joint())
    played(unstarted(max_items=1).start(joint()))
    fixed = paper(ApproxDP(1, "1e-6"), corrected=True, max_items=1)
    played(fixed.start(joint(budget=ZCDP(price(fixed.worst_loss(HORIZON))))))


# Currencies and adjacencies ---------------------------------------------------------------


@by_trigger
@pytest.mark.parametrize(("epsilon", "delta"), [("0.5", "1e-6"), (2, "1e-6"), (8, "1e-4")])
def test_an_epsilon_delta_budget_is_kept_and_one_order_buys_more(
    trigger: str, epsilon: Any, delta: str
) -> None:
    noises = {}
    for currency in (ZCDP, Renyi):
        accountant = joint(budget=ApproxDP(epsilon, delta), currency=currency)
        learner = played(unstarted(trigger=trigger).start(accountant))
        certificate = accountant.certificate()
        assert certificate.problems == []
        (guarantee,) = certificate.guarantees
        assert guarantee.delta == float(delta)
        assert guarantee.epsilon <= float(epsilon)
        assert guarantee.epsilon <= accountant.epsilon(float(delta)) * (1 + 1e-12)
        # zCDP pays for all orders of a curve that is not a line; one order wastes nothing
        floor = 0.6 if currency is ZCDP else 0.999
        assert guarantee.epsilon >= floor * float(epsilon)
        noises[currency] = learner._noise.fit
    assert noises[Renyi].noise_std < noises[ZCDP].noise_std
    assert noises[Renyi].ridge < noises[ZCDP].ridge


@pytest.mark.parametrize(
    "budget", [GaussianDP(1), PureDP(1), ApproxDP(1, "1e-6")], ids=lambda b: type(b).__name__
)
def test_currencies_that_cannot_price_fits_are_refused(budget: Any) -> None:
    more: dict[str, Any] = {"currency": GaussianDP} if isinstance(budget, ApproxDP) else {}
    accountant = joint(budget=budget, **more)
    for learner in (unstarted(), paper(ZCDP(1))):
        with pytest.raises(
            CurrencyError, match=r"use ZCDP or Renyi|use a ZCDP|not pure-DP|in PureDP"
        ):
            learner.start(accountant)
        assert len(accountant.ledger.entries) == 1
        learner.start(joint(budget=ZCDP(1)))


def test_zero_out_costs_half_the_distance_and_says_so() -> None:
    accountant = joint(adjacency=Adjacency.ZERO_OUT)
    learner = played(unstarted().start(accountant))
    same = unstarted().start(joint())
    ratio = learner._noise.gram.noise_std / same._noise.gram.noise_std
    assert ratio == pytest.approx(1 / math.sqrt(2), rel=1e-9)
    assert learner._noise.fit.noise_std < 0.7 * same._noise.fit.noise_std
    guarantee = accountant.certificate().guarantees[0]
    assert guarantee.adjacency is Adjacency.ZERO_OUT
    assert guarantee.rho == pytest.approx(1, rel=1e-3)
    cap = unstarted(calibration="published", nominal=ZCDP(1)).worst_loss(
        HORIZON, adjacency=Adjacency.ZERO_OUT
    )
    again = joint(budget=ZCDP(price(cap)), adjacency=Adjacency.ZERO_OUT)
    played(paper(ZCDP(1)).start(again))
    assert price(cap) < price(paper(ZCDP(1)).worst_loss(HORIZON))


# One path in two forms --------------------------------------------------------------------


@by_trigger
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_the_block_path_is_the_one_user_path(
    trigger: str, general: bool, exploration: float
) -> None:
    features, revenues, uniforms = users()
    earned = revenues - 0.2 if general else None
    made = [
        unstarted(trigger=trigger, gram_share=0.5, exploration=exploration).start(
            joint(budget=RICH)
        )
        for _ in range(2)
    ]
    slow, fast = made
    crowd = Crowd()
    fast.play(features, crowd.respond, earned, uniforms)
    assert one_by_one(slow, features, uniforms, earned) == crowd.shown
    assert np.array_equal(slow.theta_, fast.theta_)
    assert np.array_equal(slow.gram_, fast.gram_)
    assert bodies(slow) == bodies(fast), "digests of every release included"
    assert slow.public_state() == fast.public_state()
    assert slow.updates_ == fast.updates_ > 1


@cache
def at_once(trigger: str) -> tuple[list[list[int]], dict[str, Any], list[str]]:
    """What users see, the public state and the ledger of a run that is one call."""
    features, revenues, uniforms = users(1)
    whole, crowd = rich(trigger), Crowd()
    whole.play(features, crowd.respond, revenues, uniforms)
    return crowd.shown, whole.public_state(), bodies(whole)


@by_trigger
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, HORIZON - 1), max_size=6), singles=st.booleans())
def test_any_split_of_the_users_over_calls_gives_the_same_result(
    trigger: str, cuts: list[int], singles: bool
) -> None:
    features, revenues, uniforms = users(1)
    parts, parts_crowd = rich(trigger), Crowd()
    shown: list[list[int]] = []
    for number, (a, b) in enumerate(pairwise([0, *sorted(cuts), HORIZON])):
        if singles and number % 2:
            shown += one_by_one(parts, features[a:b], uniforms[a:b], revenues[a:b])
        else:
            parts_crowd.shown.clear()
            parts.play(features[a:b], parts_crowd.respond, revenues[a:b], uniforms[a:b])
            shown += parts_crowd.shown
    assert (shown, parts.public_state(), bodies(parts)) == at_once(trigger)


@by_trigger
def test_seeds_decide_everything_and_each_its_own_part(trigger: str) -> None:
    features, _, uniforms = users(2)
    made = []
    for noise, coins in ((0, 3), (0, 3), (1, 3), (0, 4)):
        learner, crowd = rich(trigger, noise, random_state=coins), Crowd()
        learner.play(features, crowd.respond, None, uniforms)
        made.append((learner.theta_.tolist(), crowd.shown))
    assert made[0] == made[1]
    assert made[0][0] != made[2][0]
    assert made[0][1][:8] == made[2][1][:8], "the random phase knows no noise"
    assert made[0][1][:8] != made[3][1][:8]


def test_bad_rows_in_a_block_are_the_bad_rows_of_single_users() -> None:
    features, revenues, uniforms = users(3)
    for user, place in ((4, (1, 0)), (20, (0, 1))):
        features[user][place] = np.nan
    revenues[33, 2] = np.inf
    slow, fast, crowd = rich(), rich(), Crowd()
    fast.play(features, crowd.respond, revenues, uniforms)
    assert one_by_one(slow, features, uniforms, revenues) == crowd.shown
    assert slow.public_state() == fast.public_state()
    assert slow.private_messages_ == fast.private_messages_
    assert [user for user, _ in slow.private_messages_] == [4, 20, 33]
    assert crowd.shown[20] == crowd.shown[33] == list(range(SHOWN)), "the first K items"


def test_users_see_at_most_k_items_ascending_and_random_ones_at_first() -> None:
    features, revenues, uniforms = users(4)
    crowd = Crowd()
    rich("public").play(features, crowd.respond, revenues - 0.5, uniforms)
    assert all(items == sorted(set(items)) for items in crowd.shown)
    assert all(len(items) == SHOWN for items in crowd.shown[:8])
    assert any(len(items) < SHOWN for items in crowd.shown[8:]), "items that lose money"
    shown = [tuple(items) for items in played_random(600)]
    counts = {items: shown.count(items) for items in set(shown)}
    assert len(counts) == math.comb(N_ITEMS, SHOWN)
    assert max(abs(n - 30) for n in counts.values()) < 5 * math.sqrt(30)


@by_trigger
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_what_users_see_is_the_best_set_under_optimistic_utilities(
    trigger: str, general: bool, scale: float
) -> None:
    """Brute force over all sets of at most K items, only from the public numbers."""
    features, revenues, uniforms = users(8)
    learner = rich(trigger, feature_scale=scale)
    for i, x in enumerate(features):
        state = learner.public_state()
        earned = revenues[i] - 0.3 if general else np.ones(N_ITEMS)
        shown = learner.select(x, earned)
        learner.observe(choose(x, shown, float(uniforms[i, 0])))
        if i < 8:
            continue
        inside = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), scale)
        inverse = np.linalg.inv(np.array(state["gram"]))
        spread = np.sqrt(np.einsum("id,de,ie->i", inside, inverse, inside))
        last = max(end for end in learner._block_ends(HORIZON) if end <= i)
        assert state["width"] == learner._noise.width(last, learner._shift)
        z = inside @ np.array(state["theta"]) + 1.0 * state["width"] * spread

        def revenue(items: Any, z: Array = z, earned: Array = earned) -> float:
            weights = np.exp(z[list(items)])
            return float(weights @ earned[list(items)] / (1 + weights.sum()))

        every = [s for k in range(SHOWN + 1) for s in combinations(range(N_ITEMS), k)]
        assert revenue(shown) == pytest.approx(max(map(revenue, every)), rel=1e-9)


def played_random(horizon: int) -> list[list[int]]:
    learner = unstarted(initial_rounds=horizon, max_updates=1).start(joint(horizon))
    features, _, uniforms = users(5, horizon)
    crowd = Crowd()
    learner.play(features, crowd.respond, None, uniforms)
    return crowd.shown


# Wrong use --------------------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_items": N_ITEMS + 1}, "max_items = 7: must be at most 6"),
        ({"max_items": 0}, "max_items = 0"),
        ({"n_items": 0}, "n_items = 0"),
        ({"dim": 0}, "dim = 0"),
        ({"initial_rounds": 0}, "initial_rounds = 0"),
        ({"initial_rounds": HORIZON + 1}, "initial_rounds = 61: must lie in 1..60"),
        ({"max_updates": 0}, "max_updates = 0"),
        ({"max_updates": 2.5}, "max_updates = 2.5"),
        ({"trigger": "doubling"}, "trigger = 'doubling': must be 'public' or 'determinant'"),
        ({"gram_share": 0.0}, r"gram_share = 0.0: must lie in \(0, 1\)"),
        ({"gram_share": 1}, r"gram_share = 1: must lie in \(0, 1\)"),
        ({"gram_share": NAN}, "gram_share = nan"),
        ({"exploration": -1e-9}, "exploration = -1e-09: must be >= 0"),
        ({"exploration": NAN}, "exploration = nan"),
        ({"kappa": NAN}, "kappa = nan"),
        ({"kappa": 0.0}, "kappa = 0.0"),
        ({"theta_norm": 0.0}, "theta_norm = 0.0"),
        ({"feature_scale": 0.0}, "feature_scale = 0.0"),
        ({"random_state": -1}, "random_state = -1"),
        ({"calibration": "best"}, "calibration = 'best': must be one of"),
        ({"calibration": "published"}, "nominal = None: must be ZCDP or ApproxDP"),
        ({"calibration": "corrected"}, "nominal = None: must be ApproxDP for"),
        ({"calibration": "corrected", "nominal": ZCDP(1)}, "must be ApproxDP for"),
        ({"calibration": "published", "nominal": GaussianDP(1)}, "must be ZCDP or ApproxDP"),
        ({"calibration": "published", "nominal": 1.0}, "nominal = 1.0: must be"),
        ({"calibration": "published", "nominal": ZCDP(0)}, "must be above zero"),
        ({"calibration": "published", "nominal": ApproxDP(0, "1e-6")}, "must be above zero"),
        ({"nominal": ZCDP(1)}, "nominal = .* for calibration 'proved'"),
        ({"max_items": 1, "outside_option": False}, "without an outside option"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_committed(
    changes: dict[str, Any], message: str
) -> None:
    accountant = joint()
    learner = unstarted().set_params(**changes)
    with pytest.raises((ValueError, TypeError), match=message):
        learner.start(accountant)
    assert len(accountant.ledger.entries) == 1, "the ledger holds its opening only"
    with pytest.raises((ValueError, TypeError), match=message):
        learner.worst_loss(HORIZON, ZCDP(1))
    learner.set_params(**{name: unstarted().get_params()[name] for name in changes})
    learner.start(accountant)  # corrected, the same learner and accountant go on


def test_the_proved_price_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="budget = None: a proved calibration"):
        unstarted().worst_loss(HORIZON)
    promise: Any = ApproxDP(1, "1e-6")
    with pytest.raises(TypeError, match=r"must be a currency, such as accountant.budget"):
        unstarted().worst_loss(HORIZON, promise)
    with pytest.raises(ValueError, match="horizon = 0"):
        unstarted().worst_loss(0, ZCDP(1))


@by_trigger
@pytest.mark.parametrize(("horizon", "part"), thinned(product([1, 2, 3, 5], [0.0, 0.5, 1.0])))
def test_the_smallest_horizons_work(trigger: str, horizon: int, part: float) -> None:
    first = max(1, round(part * horizon))
    for changes in (
        {},
        {"max_items": 1},
        {"calibration": "published", "nominal": ZCDP(1)},
        {"calibration": "corrected", "nominal": ApproxDP(1, "1e-6"), "max_items": 1},
    ):
        learner = unstarted(trigger=trigger, initial_rounds=first, **changes)
        published = learner.nominal is not None
        cap = ZCDP(price(learner.worst_loss(horizon))) if published else ZCDP(1)
        learner.start(joint(horizon, cap))
        features, _, uniforms = users(0, horizon)
        one_by_one(learner, features, uniforms)
        accountant_of(learner).close()
        certificate = accountant_of(learner).certificate()
        assert certificate.problems == []
        assert certificate.guarantees[0].rho == pytest.approx(float(cap.rho), rel=1e-3) or (
            trigger == "determinant" and first == horizon
        ), "without late users the later fits cannot happen"
        assert learner.updates_ >= 1


def test_a_learner_is_started_once_and_its_parameters_stay() -> None:
    learner = unstarted()
    for early in (
        lambda: learner.select(np.ones((N_ITEMS, DIM))),
        lambda: learner.play(np.ones((1, N_ITEMS, DIM)), Crowd().respond),
    ):
        with pytest.raises(RuntimeError, match=r"call start\(accountant\) first"):
            early()
    learner.start(joint())
    with pytest.raises(RuntimeError, match="make a new one"):
        learner.start(joint())
    with pytest.raises(RuntimeError, match="its parameters are public history"):
        learner.set_params(kappa=2.0)
    with pytest.raises(ValueError, match="colour: not a parameter"):
        unstarted().set_params(colour="red")
    with pytest.raises(BudgetError, match="a plan is committed once"):
        unstarted().start(accountant_of(learner))


def test_select_and_observe_take_turns() -> None:
    learner, x = unstarted().start(joint()), np.ones((N_ITEMS, DIM))
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


@by_trigger
def test_nobody_beyond_the_horizon_is_served(trigger: str) -> None:
    features, _, uniforms = users()
    learner, crowd = rich(trigger), Crowd()
    with pytest.raises(HorizonError, match=r"61 users after 0: the horizon is range\(0, 60\)"):
        learner.play(np.concatenate([features, features[:1]]), crowd.respond)
    assert (learner.clock_, crowd.shown) == (0, [])
    learner.play(features, crowd.respond, None, uniforms)
    entries = bodies(learner)
    for late in (
        lambda: learner.select(features[0]),
        lambda: learner.play(features[:1], crowd.respond),
    ):
        with pytest.raises(HorizonError, match="were served"):
            late()
    assert bodies(learner) == entries
    assert '"released"' in entries[-1], "the Gram stream is closed"


def test_a_central_accountant_serves_nobody() -> None:
    accountant: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(1), users=range(HORIZON), noise=NoiseSource.simulation(0)
    )
    learner = unstarted().start(accountant)
    with pytest.raises(ProvenanceError, match="needs a JointAccountant"):
        learner.select(np.ones((N_ITEMS, DIM)))


@by_trigger
@pytest.mark.parametrize("at", [0, 7, 30, HORIZON - 1])
def test_an_interrupt_while_a_user_answers_ends_the_run(trigger: str, at: int) -> None:
    features, _, uniforms = users(6)
    learner, crowd = rich(trigger), Crowd()

    def respond(own: Arrival, shown: Items) -> Items:
        if (own.private == uniforms[at]).any():
            signal.raise_signal(signal.SIGINT)
        return crowd.respond(own, shown)

    with pytest.raises(KeyboardInterrupt):
        learner.play(features, respond, None, uniforms)
    assert_stopped(learner, features[0])


@by_trigger
@pytest.mark.parametrize("cls", [ObjectivePerturbation, PrefixSumStream])
@pytest.mark.parametrize("single", [False, True])
def test_an_interrupt_inside_a_release_ends_the_run(
    trigger: str, cls: Any, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, _, uniforms = users(6)
    learner = rich(trigger)
    name = "release" if cls is ObjectivePerturbation else "advance"
    honest, calls = getattr(cls, name), []

    def interrupted(self: Any, *arguments: Any) -> Any:
        value = honest(self, *arguments)
        calls.append(value)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return value

    with monkeypatch.context() as patch:
        patch.setattr(cls, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            serve_all(learner, features, uniforms, single)
    assert learner.clock_ < HORIZON
    assert_stopped(learner, features[0])


@pytest.mark.parametrize("name", ["_policy", "_take", "_tell", "_deliver"])
@pytest.mark.parametrize(("at", "single"), [(3, False), (8, True), (20, False)])
def test_an_interrupt_anywhere_in_a_round_ends_the_run(
    name: str, at: int, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the place of one user may be lost without a word."""
    features, _, uniforms = users(6)
    learner = rich("public")
    honest = getattr(learner, name)

    def interrupted(*arguments: Any) -> Any:
        if learner.clock_ >= at:
            signal.raise_signal(signal.SIGINT)
        return honest(*arguments)

    monkeypatch.setattr(learner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        serve_all(learner, features, uniforms, single)
    monkeypatch.undo()
    assert_stopped(learner, features[0])


def assert_stopped(learner: DPMNL, x: Array) -> None:
    entries = bodies(learner)
    for later in (
        lambda: learner.select(x),
        lambda: learner.play(x[None], Crowd().respond),
    ):
        with pytest.raises(RuntimeError, match="failed half-way") as caught:
            later()
        assert "resume its ledger" in str(caught.value), "what can be done about it"
    assert bodies(learner) == entries
    accountant = accountant_of(learner)
    accountant.close()
    certificate = accountant.certificate()
    assert certificate.problems == []
    assert certificate.guarantees[0].rho == pytest.approx(float(RICH.rho), rel=1e-3)


def test_bad_answers_are_told_in_private_and_count_as_no_record() -> None:
    features, _, uniforms = users(7)
    learner, reference = rich("public"), rich("public")
    bad: list[Any] = [N_ITEMS, -5, 0.5, "three", 10**30, [1, 2], math.nan]
    for i, (x, u) in enumerate(zip(features, uniforms, strict=True)):
        items = learner.select(x)
        reference.select(np.full((N_ITEMS, DIM), np.nan) if i < len(bad) else x)
        answer = choose(x, items, float(u[0]))
        learner.observe(bad[i] if i < len(bad) else answer)
        reference.observe(answer)
    assert learner.public_state() == reference.public_state()
    assert [user for user, _ in learner.private_messages_] == list(range(len(bad)))
    assert all("does not count" in text for _, text in learner.private_messages_)
    assert "does not count" not in json.dumps(learner.public_state())


def test_the_public_state_is_json_and_rebuilds_the_parameters() -> None:
    for learner in (
        played(unstarted().start(joint())),
        played(paper(ZCDP(1)).start(joint())),
        played(paper(ApproxDP(1, "1e-6"), corrected=True).start(joint())),
    ):
        state = json.loads(json.dumps(learner.public_state()))
        assert state["clock"] == HORIZON
        assert state["updates"] == learner.updates_
        assert set(state["params"]) == set(learner.get_params())


# Learning ---------------------------------------------------------------------------------

MARKET, T = 13_001, 3_000


def assert_learned(trigger: Any) -> None:
    """`benchmarks/mnl_regret.py` and `dpmnl_regret.py` measure the rest."""
    crowd = gaussian_market(MARKET, 0, horizon=T)
    learner = DPMNL(n_items=100, dim=5, max_items=10, trigger=trigger).start(joint(T))
    regrets = crowd.serve(learner)
    random = crowd.serve(RandomAssortments(max_items=10))
    assert regrets.sum() < random.sum() / 4
    assert regrets[-T // 10 :].mean() < random.mean() / 30
    assert regrets[-T // 10 :].mean() < regrets[: T // 10].mean() / 10
    assert np.linalg.norm(learner.theta_ - crowd.theta) < 0.5 * np.linalg.norm(crowd.theta)


@by_trigger
def test_the_learner_finds_the_preferences(trigger: str) -> None:
    assert_learned(trigger)


def test_a_fit_that_is_always_zero_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DPMNL._fit

    def zero(self: Any) -> None:
        honest(self)
        self.theta_ = np.zeros(5)

    monkeypatch.setattr(DPMNL, "_fit", zero)
    with pytest.raises(AssertionError):
        assert_learned("public")
