"""What an account knows of the streams and values of a process that died."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reaching import far_ahead
from rich.console import Console

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.replay import Replay
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError, InsufficientBudgetError, LedgerError
from privlearn.learners import DPTOFW
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry, PublishEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting.certificates import certificate_markdown, print_certificate
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

N, SEGMENT = 1000, 256
SUMS = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("1/2"), horizon=N)


@pytest.fixture(autouse=True)
def _whole_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    far_ahead(monkeypatch)


def ones(users: range) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def simulation() -> NoiseSource:
    return NoiseSource.simulation(0)


def begun(path: Path, cap: str = "1/2") -> Any:
    return CentralAccountant(
        ZCDP(cap), users=range(N), ledger=Ledger.create(path), noise=simulation()
    )


def died(account: Any, path: Path) -> Any:
    """The account as another process takes it up."""
    account.ledger._disk._end()
    return CentralAccountant.resume(path, noise=simulation())


def test_budget_of_users_who_were_in_no_stream_is_spent_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    account = begun(path)
    stream = SUMS.open(account.issue(SUMS.loss(), users=range(N), label="sums"))
    stream.append(ones(range(300)))  # the first word was for 256 users at least
    account = died(account, path)
    spent = [account.spent(user).rho for user in range(N)]
    assert [spent.index(0), spent.count(0)] == [300, N - 300]
    assert len(account.held("sums", range(299, N))) == 1
    assert account.held("sums", range(300, N)) == []
    with pytest.raises(InsufficientBudgetError):
        account.issue(SUMS.loss(), users=range(299, N), label="sums")
    further = SUMS.open(account.issue(SUMS.loss(), users=range(300, N), label="sums"))
    further.append(ones(range(300, 310)))
    further.append(ones(range(310, 320)))
    further.close()
    assert max(account.spent(user).rho for user in range(N)) <= account.budget.rho
    assert account.spent(300 + SEGMENT - 1).rho > 0 == account.spent(300 + SEGMENT).rho
    account.close()
    found = audit(path)
    assert (found.problems, found.lost, found.ended_early) == ([], 1, 2)
    assert found.freed == N - 300 + N - 300 - SEGMENT
    assert [share.spends for share in found.mechanisms] == [2]
    assert found.mechanisms[0].share == 1
    page = StringIO()
    print_certificate(found, Console(file=page, width=200), full=True)
    for text in (page.getvalue(), certificate_markdown(found)):
        assert (
            "2 streams, charged as far as they came; 1,144 charges of later users taken off" in text
        )
        assert "2 streams ended early: charged to users whose rows it may have taken" in text


def test_what_a_stream_of_a_plan_did_not_take_is_a_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    account = begun(path)
    account.commit([Plan("sums", SUMS.loss(), range(N))])
    stream = SUMS.open(account.issue(SUMS.loss(), users=range(N), label="sums"))
    stream.append(ones(range(10)))
    account = died(account, path)
    assert account.rest("sums", range(N)) == range(SEGMENT, N)
    for first in (0, 10, SEGMENT - 1):  # below the reach no index is given again
        with pytest.raises(BudgetError, match="no longer"):
            account.issue(SUMS.loss(), users=range(first, N), label="sums")
    account.issue(SUMS.loss(), users=range(SEGMENT, N), label="sums")
    assert account.rest("sums", range(N)) is None


def test_a_learner_goes_on_behind_every_row_that_was_in_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    account, reached = begun(path), 0
    learner = DPTOFW(dim=2, method="plain").start(account)
    rows = np.random.default_rng(0).normal(size=(N, 2))
    for _ in range(3):
        stop = min(learner.clock_ + 70, N)
        learner.partial_fit(rows[learner.clock_ : stop], rows[learner.clock_ : stop, 0])
        account = died(account, path)
        taken = [e.stop for e in account.ledger.entries if e.entry == "reach"]
        learner = DPTOFW.resume(account)
        assert learner.clock_ >= max(taken) > reached
        reached = max(taken)
    account.close()
    found = audit(path)
    assert (found.problems, found.learners) == ([], ["DPTOFW"])
    assert 0 < (found.spent[0].rho or 0) <= (found.guarantees[0].rho or 0)


def entry(kind: type[Any], token: str, **fields: Any) -> Any:
    return kind.model_construct(token=token, **fields)


def replay(*released: tuple[str, tuple[int, int], int]) -> Replay:
    """Of tokens with a label, users and values."""
    found = Replay(Ledger.memory())
    for number, (label, users, values) in enumerate(released):
        name = str(number)
        found.add(entry(IssueEntry, name, label=label, users=users))
        found.add(entry(SpendEntry, name, interactive=True))
        for value in range(values):
            found.add(entry(PublishEntry, name, digest=str(value), upto=users[0] + 1 + value))
        found.add(entry(RetireEntry, name, outcome="lost", value=None))
    found.begin()
    return found


def test_tokens_are_taken_in_the_order_in_which_they_were_issued() -> None:
    past = replay(("a", (0, 9), 2), ("a", (0, 9), 0), ("a", (0, 9), 1), ("b", (0, 9), 1))
    users = range(9)
    assert [past.left(label, users) for label in "abc"] == [2, 1, 0]
    assert [past.take("a", users).issue.token for _ in range(2)] == ["0", "2"]
    assert past.left("a", users) == 0
    with pytest.raises(LedgerError, match="no such token released anything"):
        past.take("a", users)
    assert past.points() == [0, 1, 2]


def test_of_a_stream_that_went_on_the_next_part_is_told() -> None:
    past = replay(("a", (0, 9), 2), ("a", (3, 9), 0), ("a", (5, 9), 1), ("a", (5, 8), 1))
    whole = range(9)
    assert past.rest("a", whole) == range(9)
    past.take("a", range(9))
    assert past.rest("a", whole) == range(5, 9)
    assert past.left("a", whole) == 0
    past.take("a", range(5, 9))
    assert past.rest("a", whole) is None
    assert past.rest("a", range(8)) == range(5, 8)


def test_what_was_released_is_run_over_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    account = begun(path)
    DPTOFW(dim=2, method="plain").start(account)
    account = died(account, path)
    DPTOFW.resume(account)
    with pytest.raises(LedgerError, match="once"), account.replaying():
        pass


def test_a_ledger_is_read_once_when_a_learner_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    account = begun(path)
    DPTOFW(dim=2, method="plain").start(account)
    account = died(account, path)
    read: list[Ledger] = []
    entries: Callable[[Ledger], Any] = Ledger.entries.fget  # type: ignore[attr-defined]

    def counted(ledger: Ledger) -> Any:
        read.append(ledger)
        return entries(ledger)

    monkeypatch.setattr(Ledger, "entries", property(counted))
    DPTOFW.resume(account)
    assert read == []


def test_what_others_do_while_a_learner_runs_again_is_written(tmp_path: Path) -> None:
    """Reaches and values of tokens that are no past ones: unwritten, they would cost nothing."""
    path = tmp_path / "ledger.db"
    account = died(begun(path, "2"), path)
    spend = Spend("sum", Ball(1.0, 2), GaussianNoise(2.0), interactive=True)
    price = spend.loss(account.adjacency)
    receipt = account.issue(price, users=range(N), label="one").spend(spend)
    waiting = account.issue(price, users=range(N), label="two")
    unused = account.issue(price, users=range(N), label="three")
    with account.replaying():
        with receipt.round():
            noisy = receipt.open(ones(range(N))).sum(axis=0) + receipt.draw((2,))
            receipt.release(noisy)
        with waiting.spend(spend) as other, other.round():
            other.open(ones(range(10)))
            other.publish(other.draw((2,)))
        unused.retire()
    assert account.held("one", range(N)) == [range(N)]
    assert [len(account.released(label)) for label in ("one", "two")] == [1, 1]
    account = died(account, path)
    charges = [account.spent(user).rho / account.budget.price(price).rho for user in (9, N - 1)]
    assert charges == [2, 1]
