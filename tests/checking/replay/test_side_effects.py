"""What a learner does beside what it returns, rarely or late, is found; what is public passes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets_found import budget_of

from privlearn.checking import assert_budget, check_learner
from privlearn.checking.replay.check import assert_noninterference
from privlearn.checking.replay.populations import Person, replaced
from privlearn.checking.replay.protocols import pulled
from privlearn.errors import CheckError, InsufficientBudgetError, InterferenceError
from privlearn.learners import PrivateArms
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

HERE = Path(tempfile.gettempdir()) / "written_beside.csv"
ALONE = logging.getLogger("a logger by itself")
ALONE.propagate = False
ALONE.setLevel(logging.DEBUG)
SEEN: dict[str, int] = {}
_LOCAL = threading.local()
ARMS = pulled(contexts=False)


_Arms: Any = PrivateArms  # which is final


@dataclass(eq=False, repr=False)
class Counting(_Arms):  # type: ignore[misc]  # of any type
    """Honest; counts rewards, which it tells to nobody."""

    def _prepare(self, accountant: Any) -> None:
        super()._prepare(accountant)
        self._n, self._sum = 0, 0.0

    def _heard(self, answer: Any) -> float:
        self._n += 1
        self._sum += answer if isinstance(answer, float) else 0.0
        self.beside(answer)
        heard: float = super()._heard(answer)
        return heard

    def beside(self, answer: Any) -> None:
        pass


class WritesAFile(Counting):
    def beside(self, answer: Any) -> None:
        if self._n == 9:
            HERE.write_text(str(self._sum))


class AppendsToAFile(Counting):
    def beside(self, answer: Any) -> None:
        with HERE.open("a") as file:
            file.write("one more\n" * (answer == 1.0))


class SetsAVariable(Counting):
    def beside(self, answer: Any) -> None:
        os.environ["REWARDS"] = str(self._sum)


class LogsByItself(Counting):
    def beside(self, answer: Any) -> None:
        ALONE.debug("a reward", extra={"reward": answer})


class KeepsInAModule(Counting):
    def beside(self, answer: Any) -> None:
        SEEN[repr(answer)] = SEEN.get(repr(answer), 0) + 1


class KeepsInItsClass(Counting):
    total = 0.0

    def beside(self, answer: Any) -> None:
        type(self).total += answer == 1.0


class KeepsInAThread(Counting):
    def beside(self, answer: Any) -> None:
        if self._n == 3:  # the user who differs
            _LOCAL.other = int(answer == 1.0)

    def _arms_of(self, turn: Any) -> Any:
        return (super()._arms_of(turn) + getattr(_LOCAL, "other", 0)) % 2


class NoiseOfItsOwn(Counting):
    mean_ = 0.0

    def beside(self, answer: Any) -> None:
        self.mean_ = self._sum / self._n + np.random.default_rng().laplace()


SIDES = {
    WritesAFile: "written_beside",
    AppendsToAFile: "written_beside",
    SetsAVariable: "os.putenv",
    LogsByItself: "a logger by itself",
    KeepsInAModule: "test_side_effects.SEEN",
    KeepsInItsClass: "total",
    KeepsInAThread: "received|shown_|changed with user 2",
    NoiseOfItsOwn: "mean_",
}


def pair(answer: int = 0) -> tuple[list[Person], list[Person]]:
    data = [Person(np.zeros((2, 1)), lambda items: 0) for _ in range(12)]
    return data, replaced(data, 2, Person(np.zeros((2, 1)), lambda items: answer))


def replay(kind: Any, answer: int = 1) -> Any:
    def started(accountant: Any) -> Any:
        return kind(2, first_phase=2).start(accountant)

    return assert_noninterference(started, *pair(answer), protocol=ARMS, budget=PureDP(1))


@pytest.mark.parametrize("kind", SIDES, ids=lambda kind: kind.__name__)
def test_what_is_done_beside_is_compared_and_undone(kind: Any) -> None:
    variables, chance = dict(os.environ), random.getstate()
    with pytest.raises(InterferenceError, match=SIDES[kind]):
        replay(kind)
    assert dict(os.environ) == variables
    assert random.getstate() == chance
    assert (SEEN, KeepsInItsClass.total, HERE.exists()) == ({}, 0.0, False)


class TellsThePublic(Counting):
    """Writes, logs and keeps what everybody may know, with chance that is nobody's."""

    rounds = 0

    def _learned(self, *released: Any) -> None:
        super()._learned(*released)
        ALONE.info("learned %r by %r", released, np.random.default_rng().permutation(9))
        print(random.randrange(99), np.random.randint(99))
        type(self).rounds += 1
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(repr(released))
        with HERE.open("a") as file:
            file.write(repr(released))


def test_what_is_public_may_be_done_beside() -> None:
    assert replay(TellsThePublic).moved


# Late, rare, and in errors ------------------------------------------------------------------------


class LateInItsText(Counting):
    def __repr__(self) -> str:
        late = getattr(self, "_n", 0) > 500
        return f"some arms {self._sum if late else ''}"


class OnOnePlace(Counting):
    def beside(self, answer: Any) -> None:
        if self._n == 700 and answer != 0.0:
            self.was_it_ = True


class ErrorsTellOfOthers(Counting):
    """To whoever sends text; the row counts as null, as with the honest learner."""

    def observe(self, reward: Any, /) -> None:
        super().observe(reward)
        if isinstance(reward, str):
            raise TypeError(f"reward = {reward!r}: {self._sum} so far")


class HasASummary(Counting):
    def summary(self) -> float:
        """For whom?"""
        return self._sum


LATE = {LateInItsText: r"repr\(\)", OnOnePlace: "was_it_", ErrorsTellOfOthers: "so far"}


@pytest.mark.parametrize("kind", LATE, ids=lambda kind: kind.__name__)
def test_what_shows_late_rarely_or_in_errors_is_found(kind: Any) -> None:
    with pytest.raises(InterferenceError, match=LATE[kind]) as caught:
        check_learner(kind(2, first_phase=2), protocol=ARMS, pairs=10, budget=PureDP(1))
    report: Any = caught.value.evidence
    assert report.verdict == "violated"


UNUSUAL: dict[str, Callable[[float], bool]] = {
    "below the range": lambda reward: reward < -2,
    "above it": lambda reward: 2 < reward < 3,
    "whole numbers": lambda reward: reward not in (0.0, 1.0) and reward.is_integer(),
    "one whole number": lambda reward: reward == 3.0,
    "a negative one": lambda reward: reward == -3.0,
    "inside of the range": lambda reward: math.sin(7 * reward) > 0.98,
    "rounded": lambda reward: round(reward, 2) == 0.37,
}


@pytest.mark.parametrize("which", UNUSUAL)
def test_rewards_outside_of_the_usual_ones_or_between_them_are_tried(which: str) -> None:
    unusual = UNUSUAL[which]

    class Remembers(Counting):
        """The last user's reward was unusual."""

        unusual_ = False

        def beside(self, answer: Any) -> None:
            self.unusual_ = isinstance(answer, float) and unusual(answer)

    with pytest.raises(InterferenceError, match="unusual_"):
        check_learner(Remembers(2, first_phase=2), protocol=ARMS, budget=PureDP(1))


def test_a_method_that_tells_is_named_and_not_accused() -> None:
    learner = HasASummary(2, first_phase=2)
    report = check_learner(learner, protocol=ARMS, pairs=4, budget=PureDP(1))
    assert [finding.check for finding in report.inconclusive] == ["methods"]
    assert "summary()" in report["methods"].detail


def test_errors_to_most_users_are_no_pass() -> None:
    class Refuses(Counting):
        def observe(self, reward: Any, /) -> None:
            super().observe(reward)
            raise TypeError("reward: not today")

    with pytest.raises(CheckError, match=r"for 12 of 12 users: .*not today"):
        replay(Refuses)


# Budgets ------------------------------------------------------------------------------------------


def test_chance_of_its_own_and_processes_are_said_of_a_run() -> None:
    there = np.random.default_rng(0)

    def nightly(accountant: Any) -> None:
        accountant.issue(ZCDP(1), users=range(3), label="x")

    def noisy(accountant: Any) -> None:
        nightly(accountant)
        there.normal()

    def makes_some(accountant: Any) -> None:
        nightly(accountant)
        np.random.default_rng(3).normal()

    def shells(accountant: Any) -> None:
        nightly(accountant)
        os.system("true")

    def secretive(accountant: Any) -> None:
        nightly(accountant)
        secrets.token_bytes(3)

    assert assert_budget(nightly, at_most=ZCDP(2)).verdict == "holds"
    for run, what in (
        (noisy, "generator"),
        (makes_some, "default_rng"),
        (shells, "os.system"),
        (secretive, "os.urandom"),
    ):
        report = assert_budget(run, at_most=ZCDP(2))
        assert budget_of(report).ratio == pytest.approx(0.5)
        (beside,) = report.inconclusive
        assert what in beside.missing


def test_a_refusal_that_is_swallowed_is_said() -> None:
    def goes_on(accountant: Any) -> None:
        accountant.issue(ZCDP(1), users=range(3), label="x")
        with contextlib.suppress(InsufficientBudgetError):
            accountant.issue(ZCDP(9), users=range(3), label="y")

    report = assert_budget(goes_on, at_most=ZCDP(2))
    assert "1 requests were refused, and it went on" in report["refused"].detail


@pytest.mark.parametrize("end", [lambda: sys.exit(0), lambda: os._exit(0), lambda: os.fork()])
def test_what_would_end_the_process_is_no_pass(end: Any) -> None:
    def ends(accountant: Any) -> None:
        accountant.issue(ZCDP(1), users=range(3), label="x")
        end()

    with pytest.raises(CheckError, match=r"ends the process|makes a copy"):
        assert_budget(ends, at_most=ZCDP(2))
    with pytest.raises(CheckError, match=r"SystemExit|does not do the same"):
        check_learner(lambda accountant: end(), pairs=1)


def test_what_hangs_ends_in_time() -> None:
    with pytest.raises(CheckError, match="did not end within"):
        assert_budget(lambda accountant: time.sleep(9), at_most=ZCDP(2), seconds=0.1)

    class Slow(Counting):
        def beside(self, answer: Any) -> None:
            time.sleep(0.2)

    with pytest.raises(CheckError, match="seconds of check_learner are over"):
        check_learner(Slow(2, first_phase=2), protocol=ARMS, seconds=0.3, budget=PureDP(1))


class GivesUp(Counting):
    """After three bad answers, of whomever."""

    _bad = 0

    def beside(self, answer: Any) -> None:
        self._bad += not isinstance(answer, float)
        if self._bad >= 3:
            raise RuntimeError("too many bad answers")


def test_rows_that_are_coupled_and_errors_for_all_are_violations() -> None:
    def centred(accountant: Any, rows: Any) -> None:
        total = NoisySum.calibrated(Ball(1.0, 4), ZCDP("0.5"))
        token = accountant.issue(total.loss(), users=rows.users, label="sum")
        total.release(rows.map_rows(lambda block: block - block.mean(axis=0)), token)

    with pytest.raises(InterferenceError, match="rows depend on each other: RowLocality"):
        check_learner(centred, rows=np.eye(4))
    with pytest.raises(InterferenceError, match="too many bad answers"):
        check_learner(GivesUp(2, first_phase=2), protocol=ARMS, budget=PureDP(1))
