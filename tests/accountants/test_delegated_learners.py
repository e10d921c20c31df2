"""Several fits under one accountant: each is a learner that is started with a part of the cap."""

from __future__ import annotations

import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import Bunch

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.protocols import Plan
from privlearn.errors import BudgetError, InsufficientBudgetError, TokenCopyError, UsersError
from privlearn.learners import DPTOFW, NoisySGD
from privlearn.ledger import Ledger
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP
from privlearn.losses.conversion import gaussian_delta
from privlearn.noise import NoiseSource

N = 40
USERS = range(N)
VERIFIER = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
X = np.full((N, 2), 0.25)
Y = np.ones(N)


def central(cap: Any, **given: Any) -> CentralAccountant[Any]:
    given.setdefault("noise", NoiseSource.simulation(3))
    return CentralAccountant(cap, users=USERS, **given)


def test_two_fits_spend_their_parts_of_one_cap_and_the_ledger_verifies(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = central(ZCDP(1), ledger=Ledger.create(path))
    fits = [NoisySGD(2, passes=3), DPTOFW(2)]
    for learner, budget in zip(fits, book.budget.split(2), strict=True):
        with book.delegate(budget, users=USERS, label="fit") as part:
            learner.start(part).partial_fit(X, Y)
            assert budget.covers(part.spent())
            assert part.spent().rho > budget.rho * Fraction(9, 10)
    assert ZCDP(1).covers(book.spent())
    book.close()
    report = audit(path)
    assert report.problems == []
    assert report.closed
    checked = subprocess.run([sys.executable, VERIFIER, path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_plan_of_a_part_must_fit_in_it_and_is_all_that_it_pays_for() -> None:
    book = central(GaussianDP(1))
    part = book.delegate(GaussianDP.from_mu_squared("1/2"), users=range(20), label="fit")
    quarter = GaussianLoss("1/4")
    with pytest.raises(InsufficientBudgetError):
        part.commit([Plan("step", quarter, range(20), 3)])
    with pytest.raises(UsersError):
        part.commit([Plan("step", quarter, range(21), 1)])
    with pytest.raises(ValueError, match="must have an item"):
        part.commit([])
    part.commit([Plan("step", quarter, range(20), 2)])
    assert (part.left("step", range(20)), part.left("other", range(20))) == (2, 0)
    with pytest.raises(BudgetError, match=r"not .* in the committed plan"):
        part.issue(quarter, users=range(20), label="other")
    with pytest.raises(BudgetError, match=r"not .* in the committed plan"):
        part.issue(GaussianLoss("1/3"), users=range(20), label="step")
    with pytest.raises(BudgetError, match="issue tokens for its losses"):
        part.issue(GaussianDP(1), users=range(20), label="step")
    first = part.issue(quarter, users=range(20), label="step")
    part.issue(quarter, users=range(20), label="step")
    assert part.left("step", range(20)) == 0
    with pytest.raises(BudgetError, match="no longer"):
        part.issue(quarter, users=range(20), label="step")
    first.retire()  # unspent
    assert part.left("step", range(20)) == 1
    with pytest.raises(BudgetError, match="its only one"):
        part.commit([Plan("step", quarter, range(20), 1)])
    with pytest.raises(BudgetError, match="its only one"):
        NoisySGD(2, passes=3).start(part)
    part.close()
    assert book.certificate().problems == []


def test_a_cap_is_split_exactly_and_a_promise_in_its_gaussian_form() -> None:
    wholes: list[Currency] = [ZCDP("0.1"), PureDP(1), GaussianDP("0.3")]
    for whole in wholes:
        together = whole.zero()
        for part in whole.split(7):
            together = together + part
        assert together == whole
    promise = ApproxDP(1, "1e-5")
    mass = sum(part.mu_squared for part in promise.split(3))
    assert gaussian_delta(float(mass), 1.0).value <= 1e-5
    assert gaussian_delta(float(mass) * 1.0001, 1.0).value > 1e-5
    for bad in (0, -1, 2.0, True):
        with pytest.raises((ValueError, TypeError), match="parts"):
            promise.split(bad)  # type: ignore[arg-type]


def test_clones_of_an_estimator_share_what_pays_and_other_processes_are_told_the_remedy(
    tmp_path: Path,
) -> None:
    book = central(GaussianDP(1), ledger=Ledger.create(tmp_path / "ledger.db"))
    with book.delegate(GaussianDP("1/2"), users=USERS, label="part") as part:
        for paying in (book, part, book.ledger):
            assert clone(paying, safe=False) is paying
            with pytest.raises(TokenCopyError, match="n_jobs=1"):
                pickle.dumps(Bunch(paying=paying))
