"""`assert_budget` counts every accountant that a run opens, wherever its ledger is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets_found import budget_of

from privlearn import ZCDP, Adjacency, Ball, Ledger, NoiseSource, Rows
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.checking import assert_budget
from privlearn.checking.budgets import watch_accountants
from privlearn.errors import CheckError, PrivacyViolation
from privlearn.losses.budgets import ApproxDP, GaussianDP
from privlearn.mechanisms import NoisyReport, NoisySum

USERS = range(10)
SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5"))
REPORT = NoisyReport.calibrated(Ball(1.0, 2), GaussianDP.from_mu_squared("1"))


def release(accountant: Any) -> None:
    token = accountant.issue(SUM.loss(), users=USERS, label="sum")
    SUM.release(Rows.seal(np.ones((len(USERS), 2)), users=USERS), token)


def simulated(kind: Any = CentralAccountant, cap: str = "0.5", **more: Any) -> Any:
    return kind(ZCDP(cap), users=USERS, noise=NoiseSource.simulation(1), **more)


def on_a_ledger_of_its_own(accountant: Any) -> None:
    release(accountant)
    release(simulated())


def on_the_same_ledger(accountant: Any) -> None:
    release(accountant)
    release(simulated(ledger=accountant.ledger, shared=True))


def delegated_by_another(accountant: Any) -> None:
    release(accountant)
    with simulated().delegate(ZCDP("0.5"), users=USERS, label="part") as part:
        release(part)


def local(accountant: Any) -> None:
    release(accountant)
    device = simulated(LocalAccountant)
    token = device.issue(REPORT.loss(), users=range(1), label="report")
    REPORT.release(Rows.seal(np.ones((1, 2)), users=range(1)), token)


def reserved_by_a_joint_one(accountant: Any) -> None:
    release(accountant)
    simulated(JointAccountant).issue(ZCDP("0.5"), users=USERS, label="kept")


def in_a_thread(accountant: Any) -> None:
    release(accountant)
    other = threading.Thread(target=lambda: release(simulated()))
    other.start()
    other.join()


def only_another(accountant: Any) -> None:
    first, second = simulated(), simulated()
    release(first)
    release(second)


@pytest.mark.parametrize(
    "run",
    [
        on_a_ledger_of_its_own,
        on_the_same_ledger,
        delegated_by_another,
        local,
        reserved_by_a_joint_one,
        in_a_thread,
        only_another,
    ],
)
def test_a_second_accountant_counts(run: Callable[[Any], None]) -> None:
    """Each of the two keeps within 0.5, and one person may be in both.

    What the run takes of its own accountant counts, and of another one its cap.
    """
    assert budget_of(assert_budget(run, at_most=ZCDP(1), users=USERS)).ratio == pytest.approx(1)
    with pytest.raises(PrivacyViolation, match="too much") as caught:
        assert_budget(run, at_most=ZCDP("0.9"), users=USERS)
    assert "accountants" in str(caught.value)


def test_a_resumed_accountant_counts_with_what_it_spent_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.create(path)
    release(simulated(ledger=ledger, cap="1"))
    del ledger

    def resumes(accountant: Any) -> None:
        noise = NoiseSource.simulation(2)
        release(CentralAccountant.resume(path, noise=noise))

    with pytest.raises(PrivacyViolation, match=r"ZCDP\('1'\) of ZCDP\('0.4'\)"):
        assert_budget(resumes, at_most=ZCDP("0.4"), users=USERS)


def test_an_accountant_that_was_there_before_is_refused() -> None:
    """It may have spent for others; counting nothing would be a pass in silence."""
    older = simulated()
    with pytest.raises(CheckError, match=f"made before it, {older.id}"):
        assert_budget(lambda accountant: release(older), at_most=ZCDP(9), users=USERS)


def test_other_neighbour_relations_count_for_replace_one_or_are_refused() -> None:
    """0.5, and four times 0.5 for two steps; an add-remove loss that may fail has no such price."""

    def mixed(accountant: Any) -> None:
        release(accountant)
        simulated(adjacency=Adjacency.ZERO_OUT)

    assert budget_of(assert_budget(mixed, at_most=ZCDP("2.5"), users=USERS)).ratio == 1
    with pytest.raises(PrivacyViolation, match="too much"):
        assert_budget(mixed, at_most=ZCDP("2.4"), users=USERS)

    def unpriced(accountant: Any) -> None:
        release(accountant)
        simulated(adjacency=Adjacency.ADD_REMOVE, failure="1e-9")

    with pytest.raises(CheckError, match="accountant 2 is for add-remove and others"):
        assert_budget(unpriced, at_most=ApproxDP(9, "1e-5"), users=USERS)


def test_watches_are_told_apart_and_end() -> None:
    with watch_accountants() as outer:
        first = simulated()
        with watch_accountants() as inner:
            second = simulated()
        third = simulated()
    simulated()
    assert list(outer.opened) == [first.id, second.id, third.id]
    assert list(inner.opened) == [second.id]
    with pytest.raises(RuntimeError), watch_accountants() as ended:
        raise RuntimeError
    simulated()
    assert not ended.opened
