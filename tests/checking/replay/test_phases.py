"""Learners in phases: planted leaks are found by what they tell, and `check_learner` finds them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from faults import Fault, phases_leaking

from privlearn.checking import check_learner
from privlearn.checking.replay.populations import null_person, replaced
from privlearn.errors import CheckError, InterferenceError
from privlearn.learners import DPHDB, DPTOFW, OnePassNewtonMNL, PrivateArms
from privlearn.learners.phases import Arms, PhaseLearner
from privlearn.losses.budgets import PureDP
from privlearn.rows.domains import Array

FOUND = {
    "ClockReadsRewards": "begin of 'rewards' .* then begin of 'rewards'",
    "EndIsNotAnnounced": "3 of its users had been served, whose rows may have chosen where it ends",
    "NullUsersDoNotCount": "begin of 'rewards' .* then begin of 'rewards'",
    "NullUsersAreSkipped": "open of 'rewards' .* then open of 'rewards'",
    "MeanOverUsableRewards": r"the public state depends on data .*: means_\n",
    "ArmFromAnUnreleasedReward": "user 7 received 0, then 1, when user 6 was replaced",
    "MissingIsTheMean": r"rows of users \[8\] changed with user 6",
    "DrawnForNothing": "user 9 received [01], then [01], when user 6 was replaced",
}


@pytest.mark.parametrize("fault", phases_leaking.FAULTS, ids=lambda fault: fault.name)
def test_a_leak_is_found_by_what_it_tells(fault: Fault) -> None:
    found = fault.broken.check()
    assert found.caught
    assert re.search(FOUND[fault.name.removeprefix("phases: ")], found.how), found.how


# check_learner ------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class InTurn(PhaseLearner):
    """Somebody's own: every phase has another arm, and lasts three users."""

    n_arms: int = 2
    reward_range: tuple[float, float] = (0.0, 1.0)
    missing: float = 0.5

    def _prepare(self, accountant: Any) -> None:
        super()._prepare(accountant)
        self._phases_seen, self.total_ = 0, 0.0

    def _arms_of(self, turn: Arms) -> Arms:
        return np.full(len(turn), self._phases_seen % self.n_arms)

    def _phase_length(self) -> int:
        return 3

    def _learned(self, users: range, total: Array) -> None:
        self._phases_seen += 1
        self.total_ += float(total[0])

    def public_state(self) -> dict[str, Any]:
        return {"total": self.total_}


class CountsUsable(InTurn):
    """Ends a phase where it was to end, and tells how many rewards could be used."""

    def _usable_answers(self, answer: Array) -> Any:
        usable = super()._usable_answers(answer)
        self.total_ += float(usable.sum())
        return usable


class LooksAtRewards(InTurn):
    """Shows the other arm after a high reward."""

    def _heard(self, answer: Any) -> float:
        self._phases_seen += isinstance(answer, float) and answer == 1.0
        return super()._heard(answer)


def test_a_learner_is_run_in_all_ways_that_its_kind_has() -> None:
    ways = ["one by one", "in blocks of 3", "with late answers", "with a restart"]
    made: list[tuple[Any, list[str], int]] = [
        (PrivateArms(2, first_phase=2, delay=1), ways, 4),
        (OnePassNewtonMNL(n_items=4, dim=2, max_items=2, first_batch=4), ways, 4),
        (DPHDB(n_arms=2, dim=3, first_epoch=4), ways, 4),
        (DPTOFW(3, method="plain"), [*ways[:2], ways[3]], 6),
    ]
    for learner, expected, pairs in made:
        report = check_learner(learner, pairs=pairs)
        long = [f"long, {way}" for way in ways[:2]]
        assert [found.check for found in report] == [*expected, *long, "operator_only"]
        assert report.passed
        assert "private_counts_" in report["operator_only"].detail
        assert all(report[way].verdict == "not refuted" for way in long)
        assert "1,000" in str(report[long[0]].coverage)
        assert any("time" in what for what in report.unseen)


@pytest.mark.parametrize(
    ("leaking", "message"),
    [
        (CountsUsable, "public state depends on data.*total_"),
        (LooksAtRewards, "shown_|received [01], then|rows of users"),
    ],
)
def test_a_leak_of_somebodys_own_learner_is_found(leaking: Any, message: str) -> None:
    assert check_learner(InTurn(), pairs=8, budget=PureDP(1)).passed
    with pytest.raises(InterferenceError, match=message):
        check_learner(leaking(), pairs=40, budget=PureDP(1))


def test_what_cannot_be_concluded_is_no_pass() -> None:
    with pytest.raises(TypeError, match="must be a learner that was not started"):
        check_learner(PrivateArms)
    nobody = [null_person(2, 1) for _ in range(8)]
    pair = nobody, replaced(nobody, 3, null_person(2, 1))
    with pytest.raises(CheckError, match="paid for moved: take more users"):
        check_learner(PrivateArms(2, first_phase=2), neighbours=pair)
