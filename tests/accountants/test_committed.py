"""Mechanisms that are committed by keyword: what stands in the ledger, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.contract.protocols import Plan
from privlearn.errors import BudgetError, InsufficientBudgetError, UsersError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(20)
TOTAL = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.6"))
RUNNING = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.4"), horizon=20)


def rows(users: range = USERS) -> Rows[np.ndarray]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def accountant(seed: int = 1, book: Ledger | None = None) -> CentralAccountant[ZCDP]:
    return CentralAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(seed), ledger=book or Ledger.memory()
    )


def test_the_short_form_writes_and_releases_what_the_long_one_does() -> None:
    short, long = accountant(), accountant()
    short.commit(total=TOTAL, running=RUNNING)
    long.commit([Plan("total", TOTAL.loss(), USERS), Plan("running", RUNNING.loss(), USERS)])
    values = []
    values.append(short.release("total", rows()).value)
    with short.open("running") as sums:
        values.append(sums.append(rows()).value)
    token = long.issue(TOTAL.loss(), users=USERS, label="total")
    assert np.array_equal(values[0], TOTAL.release(rows(), token).value)
    with RUNNING.open(long.issue(RUNNING.loss(), users=USERS, label="running")) as sums:
        assert np.array_equal(values[1], sums.append(rows()).value)
    bodies = [
        [{**r.body, "accountant": "", "token": ""} for r in each.ledger.records]
        for each in (short, long)
    ]
    assert bodies[0] == bodies[1]
    assert certify(short.ledger.records).problems == []
    assert short.certificate().guarantees[0].rho == 1.0


def test_each_runs_once_and_only_as_what_it_is() -> None:
    books = accountant()
    books.commit(total=TOTAL, running=RUNNING)
    with pytest.raises(BudgetError, match=r"'mean': no mechanism was committed .* 'total'"):
        books.release("mean", rows())
    with pytest.raises(BudgetError, match=r"'running' is a stream: accountant\.open"):
        books.release("running", rows())
    with pytest.raises(BudgetError, match=r"'total' is no stream: accountant\.release"):
        books.open("total")
    books.release("total", rows())
    with pytest.raises(BudgetError):
        books.release("total", rows())


def test_what_fails_before_the_spend_is_free_again() -> None:
    books = accountant()
    books.commit(total=TOTAL)
    with pytest.raises(UsersError):
        books.release("total", rows(range(15, 25)))
    assert [r.body["entry"] for r in books.ledger.records[-2:]] == ["issue", "retire"]
    assert books.ledger.records[-1].body["outcome"] == "unused"
    books.release("total", rows())


def test_what_is_no_mechanism_or_does_not_fit_commits_nothing() -> None:
    books = accountant()
    with pytest.raises(TypeError, match="total = 3: must be a mechanism"):
        books.commit(total=3)  # type: ignore[arg-type]
    large = NoisySum.calibrated(Ball(1.0, 2), ZCDP(2))
    with pytest.raises(InsufficientBudgetError):
        books.commit(total=large)
    with pytest.raises(BudgetError, match="there are none"):
        books.release("total", rows())
    assert len(books.ledger.records) == 1


def test_a_program_that_resumes_commits_again_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = accountant(book=Ledger.create(path))
    first.commit(total=TOTAL, running=RUNNING)
    first.release("total", rows())
    first.ledger.close()
    source = NoiseSource.simulation(2)
    second: CentralAccountant[ZCDP] = CentralAccountant.resume(path, noise=source)
    before = second.ledger.head
    with pytest.raises(BudgetError):
        second.commit(total=TOTAL)  # another plan
    second.commit(total=TOTAL, running=RUNNING)
    assert second.ledger.head == before
    with pytest.raises(BudgetError):
        second.release("total", rows())
    with second.open("running") as sums:
        sums.append(rows())
    second.close()
    found = audit(path)
    assert found.problems == []
    assert found.spends == 2


def test_an_interrupt_just_after_the_spend_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    books = accountant()
    books.commit(total=TOTAL)
    record = books.issuer.record_spend

    def interrupted(*spend: Any) -> None:
        record(*spend)
        raise KeyboardInterrupt

    monkeypatch.setattr(books.issuer, "record_spend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        books.release("total", rows())
    books.close()
    assert [r.body.get("outcome") for r in books.ledger.records][-2:] == ["lost", None]
    assert books.spent() == ZCDP("0.6")
