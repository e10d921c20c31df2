"""Every shipped learner, in every way of running it, on generated pairs of neighbours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grids import thinned
from learner_cases import LEARNER_CASES, LearnerCase, replay_pairs

import privlearn.learners
from privlearn.accountants import JointAccountant
from privlearn.checking import generated_pairs
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import (
    Person,
    buys_nothing,
    null_person,
    replaced,
    shopper,
)
from privlearn.checking.replay.protocols import played, serve
from privlearn.errors import InterferenceError
from privlearn.learners import DPMNL, OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP, ApproxDP, Renyi

USERS, N_ITEMS, DIM = 10, 6, 2
FEW = {"DPPOFW": 12, "PrivateArms": 8}
"""Pairs of each way of running a learner, else 5; more under calibration."""
PAIRS = 80
"""Per learner that serves items; shared by the ways of running it, at least 7 for each."""
OTHER_PAIRS = 60
"""Per learner of rows or rewards."""
DECIDING = {"PrivateArms", "HeldPolicy", "PrivateTest", "PrivateExperts"}
DECIDING |= {"OnePassNewtonGLM", "PrivateLeastSquares"}
"""A third as many pairs, and fewer where a run has more users."""
ASSORTING = {"OnePassNewtonMNL", "DPMNL"}


def dpmnl(**options: Any) -> Callable[[Any], DPMNL]:
    chosen = {"max_items": 3, "initial_rounds": 4, "max_updates": 3, **options}
    return lambda accountant: DPMNL(n_items=N_ITEMS, dim=DIM, **chosen).start(accountant)


def of_a_nominal_budget(how: str, trigger: str, nominal: Any, protocol: Any) -> LearnerCase:
    """Noise by the published formulas: only the worst loss says what it costs."""
    options = {"calibration": how, "nominal": nominal, "trigger": trigger, "exploration": 1.0}
    made = dpmnl(**options)
    loss = DPMNL(n_items=N_ITEMS, dim=DIM, max_items=3, max_updates=3, **options).worst_loss(USERS)
    return LearnerCase("DPMNL", how, made, protocol, {"budget": ZCDP(loss.zcdp() or 0)})


_LAVISH, _OBSTINATE = {"gram_share": 0.5, "exploration": 1.0}, {"outside_option": False}
DPMNL_CASES = (
    of_a_nominal_budget("published", "determinant", ZCDP(1), serve),
    of_a_nominal_budget("corrected", "public", ApproxDP(400, "0.1"), played(3)),
    *(
        LearnerCase("DPMNL", how, dpmnl(**options), protocol, {"budget": budget})
        for how, budget, protocol, options in (
            ("poor", ZCDP("0.01"), serve, {"trigger": "determinant", "exploration": 0.0}),
            ("one item", ZCDP(10_000), played(4), {"max_items": 1, "trigger": "determinant"}),
            ("six fits", Renyi({4: 3}), serve, {"max_updates": 6, "feature_scale": 2.0}),
            ("no outside option", ZCDP(100), played(2), {**_LAVISH, **_OBSTINATE}),
            ("first rounds by default", ZCDP(10_000), serve, {**_LAVISH, "initial_rounds": None}),
        )
    ),
)
"""Its own options: noise, trigger, offers and times."""


def share_of(way: LearnerCase) -> int:
    """How many pairs of its learner's a way of running it gets."""
    ways = sum(other.learner == way.learner for other in (*LEARNER_CASES, *DPMNL_CASES))
    if way.learner in DECIDING:
        return max(OTHER_PAIRS // 3 * USERS // way.users // ways, FEW.get(way.learner, 5))
    return (PAIRS if way.learner in ASSORTING else OTHER_PAIRS) // ways


def newton(accountant: Any) -> OnePassNewtonMNL:
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, max_items=3, first_batch=4)
    return learner.start(accountant)


def test_all_learners_are_there() -> None:
    names = {way.learner for way in LEARNER_CASES}
    others = {"DPTOFW", "DPPOFW", "DPHDB", "NoisySGD", "WhitenedDescent"}
    assert names == ASSORTING | others | DECIDING
    kinds = {name: getattr(privlearn.learners, name) for name in privlearn.learners.__all__}
    shipped = {
        name
        for name, kind in kinds.items()
        if hasattr(kind, "play") and not inspect.isabstract(kind)
    }
    assert shipped - {"NonPrivateMNL"} <= names


MANY = pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.calibration)])


@MANY
@pytest.mark.parametrize("way", thinned(LEARNER_CASES, 3), ids=str)
def test_shipped_learners_pass_on_generated_neighbours(way: LearnerCase, many: bool) -> None:
    share = share_of(way) if many else FEW.get(way.learner, 5)
    found = replay_pairs(way, share, seed=LEARNER_CASES.index(way))
    assert len(found) == share
    # the replaced user counted, so that something was at stake
    moved, runs = sum(each.moved > 0 for each in found), sum(each.runs for each in found)
    assert moved > (share / 3 if way.learner in ASSORTING else 0)
    if way.learner in ASSORTING:
        assert runs == 2 * share + moved
    else:  # what moved in a mechanism with arithmetic of its own is run a third time
        assert 2 * share <= runs <= 2 * share + moved


@MANY
@pytest.mark.parametrize("way", thinned(DPMNL_CASES, 3), ids=str)
def test_dpmnl_passes_with_its_own_options(way: LearnerCase, many: bool) -> None:
    share = share_of(way) if many else FEW.get(way.learner, 5)
    fits: list[DPMNL] = []

    def kept(accountant: Any) -> DPMNL:
        fits.append(way.factory(accountant))
        return fits[-1]

    found = replay_pairs(replace(way, factory=kept), share, seed=7)
    assert sum(each.moved > 0 for each in found) > share / 3
    updates = [learner.updates_ for learner in fits]
    if way.how in ("poor", "published"):  # much noise, and times by the determinant
        assert min(updates) < 3, "tokens that stay unused occur"
    else:
        assert max(updates) > 1, "items follow fits"


@pytest.mark.parametrize("trigger", ["public", "determinant"])
def test_a_response_function_that_raises_is_one_users_record(trigger: str) -> None:
    def raises(items: Any) -> Any:
        raise RuntimeError("the secret")

    rng = np.random.default_rng(3)
    data = [shopper(rng) for _ in range(USERS)]
    for at in (1, 5):
        made = dpmnl(trigger=trigger, gram_share=0.5, exploration=1.0)
        neighbour = replaced(data, at, Person(data[at].features, raises))
        assert_noninterference(made, data, neighbour, protocol=played(4), budget=ZCDP(10_000))


def test_a_leak_shows_on_generated_neighbours_in_every_way() -> None:
    class Peeking:
        """Serves as the learner does, until somebody sends what is no number."""

        def __init__(self, accountant: Any) -> None:
            self._inner, self._bad = newton(accountant), False
            self.public_state = self._inner.public_state

        def play(self, features: Any, respond: Any, revenues: Any, private: Any) -> None:
            def answers(own: Any, shown: Any) -> Any:
                return respond(own, shown[:, ::-1] if self._bad else shown)

            self._inner.play(features, answers, revenues, private)
            self._bad |= any(x is None or not np.shape(x) for x in features)

    found = []
    for data, neighbour in generated_pairs(80, 1, users=USERS):
        try:
            assert_noninterference(Peeking, data, neighbour, protocol=played(2))
        except InterferenceError as error:
            found.append(str(error))
    assert len(found) > 3
    assert all("received" in text for text in found)
    assert all("was replaced; reproduce it with seed=0" in text for text in found)


# Populations --------------------------------------------------------------------------------------


def test_pairs_differ_in_one_user_and_come_again() -> None:
    places, kinds = set(), set()
    again = generated_pairs(60, 5, users=8, positions=(2,))
    for data, neighbour in generated_pairs(60, 5, users=8, positions=(2,)):
        changed = [i for i in range(8) if data[i] is not neighbour[i]]
        assert len(data) == len(neighbour) == 8
        assert len(changed) == 1
        places.add(changed[0])
        kinds |= {person.kind for person in (*data, *neighbour)}
        other = next(again)
        assert [str(p) for p in other[0]] == [str(p) for p in data]
        assert repr(other[1][changed[0]].features) == repr(neighbour[changed[0]].features)
    assert {0, 2, 7} < places
    assert len(kinds) > 20
    assert "null record" in kinds


def test_shoppers_answer_any_offer() -> None:
    rng = np.random.default_rng(0)
    buyers = 0
    for _ in range(50):
        person = shopper(rng, 5, 2)
        choice = person.respond(np.array([1, 3]))
        assert choice in (1, 3, None)
        assert person.respond(np.array([], dtype=np.int64)) is None
        assert choice == person.respond(np.array([3, 1]))
        buyers += choice is not None
    assert 30 < buyers < 50


def test_the_null_person_counts_as_the_null_record() -> None:
    rng = np.random.default_rng(4)
    data = [shopper(rng) for _ in range(USERS)]
    nobody = null_person(N_ITEMS, DIM)
    assert nobody.respond(np.arange(3)) is None
    learners: list[OnePassNewtonMNL] = []

    def kept(accountant: Any) -> OnePassNewtonMNL:
        learners.append(newton(accountant))
        return learners[-1]

    found = assert_noninterference(kept, data, replaced(data, 2, nobody))
    assert found.replaced == 2
    told = [len(learner.private_messages_) for learner in learners]
    assert told[0] == 0
    assert set(told[1:]) == {1}


def test_populations_refuse_what_they_cannot_make() -> None:
    with pytest.raises(ValueError, match="users = 0"):
        next(generated_pairs(1, users=0))
    with pytest.raises(ValueError, match="positions"):
        next(generated_pairs(1, users=3, positions=(-1, 3, 3, 3)))
    assert isinstance(Person(None, buys_nothing), Person)


def test_accountants_may_be_asked_for() -> None:
    *_, (data, neighbour) = generated_pairs(2, 3, users=USERS)
    found = assert_noninterference(newton, data, neighbour, accountant=JointAccountant)
    assert (found.spends, found.releases) == (1, 3)
