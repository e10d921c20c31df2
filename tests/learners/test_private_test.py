"""`PrivateTest`: pairs and groups, what is counted, what is decided, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_users import joint, resumed
from resuming import die

from privlearn.errors import ProvenanceError
from privlearn.learners import PrivateTest
from privlearn.learners.e_process import BlockNoise, EProcess, Pairs, tilts
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.people import People
from privlearn.values.participation import Participation


def begun(
    test: PrivateTest, users: int = 3_000, budget: Currency | None = None, **options: Any
) -> PrivateTest:
    return test.start(joint(users, budget, 5, **options))


def earning(*means: float, seed: int = 0) -> Any:
    """The users' side: rewards of 1 with these probabilities, by arm."""
    rng = np.random.default_rng(seed)
    return lambda arms: (rng.random(len(arms)) < np.array(means)[arms]).astype(float)


def test_blocks_hold_whole_groups_in_which_each_arm_comes_once() -> None:
    for n_arms in (2, 3):
        test = begun(PrivateTest(n_arms, random_state=1), 1_000)
        shown: list[int] = []

        def respond(arms: Any, to: list[int] = shown) -> Any:
            to.extend(arms)
            return np.zeros(len(arms))

        test.play(1_000, respond)
        state, at = test.public_state(), 0
        for groups in state["pairs"]:
            block = np.array(shown[at : at + groups * n_arms]).reshape(-1, n_arms)
            assert (np.sort(block, axis=1) == np.arange(n_arms)).all()
            assert len({tuple(group) for group in block}) == math.factorial(n_arms)
            at += groups * n_arms
        assert 1_000 - at < n_arms
        entered = np.abs(test._signs(range(900, 911))).sum(axis=1)  # who is left is in no sum
        assert entered.tolist() == [1] * (11 // n_arms * n_arms) + [0] * (11 % n_arms)


def test_coins_are_fair_and_new_in_every_block() -> None:
    test = begun(PrivateTest(3, random_state=1))
    blocks = [test._arms_in(range(first, first + 30_000)).reshape(-1, 3) for first in (0, 30_000)]
    for groups in blocks:
        orders, expected = np.unique(groups, axis=0, return_counts=True)[1], 10_000 / 6
        assert (
            (orders - expected) ** 2
        ).sum() / expected < 25  # of chi-square with 5, once in 7000
    assert abs((blocks[0] == blocks[1]).mean() - 1 / 3) < 0.02


def test_the_e_process_is_that_of_what_was_released() -> None:
    cases = (
        (2, PureDP("0.5"), LaplaceNoise(2.0)),
        (3, ZCDP("0.02"), GaussianNoise(5.0)),
    )
    for n_arms, budget, law in cases:
        test = begun(
            PrivateTest(n_arms, rate_at_most=0.3, alpha=0.1, random_state=1), 4_000, budget
        )
        test.play(4_000, earning(*[0.2] * n_arms))
        releases = [np.array(item["value"]) for item in test.billboard_.history()]
        pairs, noise = Pairs(0.3), BlockNoise(law, 1 if n_arms == 2 else 2, 0.0)
        process = EProcess(pairs, noise, tilts(pairs, 4_000 // n_arms, 0.1), (n_arms - 1,))
        for released, groups in zip(releases, test.public_state()["pairs"], strict=True):
            process.add(released if n_arms == 2 else released[1:] - released[0], groups)
        expected = np.exp(process.log_sides.max(axis=-1)) / (2 * n_arms - 2)
        assert np.atleast_1d(test.e_value_) == pytest.approx(expected, rel=1e-5)
        grid = test._mechanism.spend().grid
        assert grid is not None
        assert test._process.noise.grid == grid.step  # which rounding is paid for by
        assert (np.atleast_1d(test.p_value_) <= 1 / expected * (1 + 1e-5)).all()


def test_it_decides_in_either_direction_and_for_several_arms() -> None:
    for means, wins, loses in (
        ((0.4, 0.6), (1,), ()),
        ((0.6, 0.4), (), (1,)),
        ((0.5, 0.8, 0.5, 0.2), (1,), (3,)),
    ):
        test = begun(PrivateTest(len(means), random_state=1), 4_000)
        assert test.decision_ is None
        assert np.all(test.p_value_ == 1)
        test.play(4_000, earning(*means))
        decision = test.decision_
        assert decision is not None
        assert decision[:2] == (wins, loses)
        assert "whether a user gives a reward at all does not depend on the arm" in str(decision)
        low, high = np.atleast_2d(test.interval()).T
        shift = np.array(means[1:]) - means[0]
        assert ((low <= shift) & (shift <= high)).all()
        assert (high - low < 0.25).all()
        assert ((low > 0) == np.isin(np.arange(1, len(means)), wins)).all()
        assert ((high < 0) == np.isin(np.arange(1, len(means)), loses)).all()
        narrow, wide = test.interval(0.5), test.interval(0.999)
        assert (np.diff(narrow) < np.diff(wide)).all()
    assert begun(PrivateTest()).interval().tolist() == [-1.0, 1.0]
    assert begun(PrivateTest(alpha=1e-30)).interval().tolist() == [-1.0, 1.0]
    assert begun(PrivateTest(3, reward_range=(-1, 2))).interval().tolist() == [[-3.0, 3.0]] * 2


def test_at_every_look_p_values_fall_and_intervals_say_what_is_decided() -> None:
    for n_arms, side in ((2, 1), (2, -1), (3, 1)):
        test, least = begun(PrivateTest(n_arms, random_state=1), 9_000), np.ones(n_arms - 1)
        looks = []
        for total in (*[5.0] * 40, *[-5.0] * 10):
            sums = np.array([side * total]) if n_arms == 2 else np.array([0.0, total, -1.0])
            test._learned(range(50 * n_arms), sums)
            chances = np.atleast_1d(test.p_value_)
            assert (chances <= least).all()
            least = chances
            low, high = np.atleast_2d(test.interval())[0]
            looks.append(bool(low > 0 if side > 0 else high < 0))
            assert looks[-1] is (test.decision_ is not None)
        assert 5 < sum(looks) < 45
        assert np.min(least) <= 0.05


def test_what_was_decided_stays() -> None:
    test = begun(PrivateTest())
    for total in (40.0, *[-50.0] * 9):
        test._learned(range(100), np.array([total]))
        assert test.decision_ is not None
        assert test.decision_[:2] == ((1,), ())
    assert test.interval()[1] < 0 or np.isnan(test.interval()).all()


def test_a_resumed_test_has_the_same_coins_and_the_same_evidence(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    accountant = joint(2_000, seed=5, path=path)
    test = PrivateTest(3).start(accountant)
    test.play(1_000, earning(0.2, 0.5, 0.2))
    before = test.public_state()
    die(accountant)
    again = PrivateTest.resume(resumed(path, 6))
    assert again.public_state() | {"clock": 0} == before | {"clock": 0}
    assert again.clock_ == before["phase"][0]
    again.play(2_000 - again.clock_, earning(0.2, 0.5, 0.2))
    assert again.decision_ is not None
    assert again.decision_.wins == (1,)
    assert len(again.public_state()["pairs"]) > len(before["pairs"])


def test_coins_come_from_the_operating_system_unless_a_seed_is_given() -> None:
    seeds = [begun(PrivateTest())._coin for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert min(seeds) > 2**64
    for seed in range(5):  # users simulated with the seed of the coins earn independently of them
        test = begun(PrivateTest(random_state=seed))
        assert test._coin == seed
        test.play(100, earning(0.5, 0.5, seed=seed))
        assert test.p_value_ == 1 or test.e_value_ < 10


@pytest.mark.parametrize(
    ("given", "users", "words"),
    [
        ({"n_arms": 1}, 3_000, "n_arms = 1"),
        ({"alpha": 1.0}, 3_000, "alpha = 1.0"),
        ({"alpha": 1e-200}, 3_000, "alpha = 1e-200: must be at least"),
        ({"rate_at_most": 1e-310}, 3_000, "first block has"),
        ({"rate_at_most": 0.6}, 3_000, "rate_at_most = 0.6.*at most 0.5"),
        ({"rate_at_most": 0.0}, 3_000, "rate_at_most = 0.0"),
        ({"rate_at_most": 0.1, "assume": "coin"}, 3_000, "rate_at_most = 0.1.*coin"),
        ({"assume": ["iid"]}, 3_000, r"assume = \['iid'\]"),
        ({"random_state": -1}, 3_000, "random_state = -1"),
        ({"reward_range": (1, 0)}, 3_000, "reward_range"),
        ({}, 99, "first block has 100 users.*99"),
        ({"n_arms": 4, "rate_at_most": 0.01}, 1_000, "first block has 1620 users.*1000"),
    ],
)
def test_public_mistakes_are_named_before_anything_is_spent(
    given: dict[str, Any], users: int, words: str
) -> None:
    accountant = joint(users)
    with pytest.raises(ValueError, match=words):
        PrivateTest(**given).start(accountant)
    assert not accountant.begun


def test_persons_who_return_need_the_coin_and_pay_for_their_visits() -> None:
    rule = Participation(3, apart=100)
    with pytest.raises(ProvenanceError, match="assume = 'iid'"):
        begun(PrivateTest(), people=People.memory(rule))
    test = begun(PrivateTest(assume="coin", random_state=1), people=People.memory(rule))
    test.play(1_500, earning(0.2, 0.9), people=[str(user % 500) for user in range(1_500)])
    noise = test._process.noise.law  # three times that of one visit
    assert isinstance(noise, LaplaceNoise)
    assert noise.scale == pytest.approx(3, rel=1e-9)
    assert test.decision_ is not None
    assert "coins are fair" in str(test.decision_)
    with pytest.raises(ValueError, match="assume='coin'"):
        test.interval()
