"""Leases: what many runs at once cost, who may use them, and what the ledger tells of them."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, dying_at, resumed
from rich.console import Console
from shared_ledgers import MemoryStore, Place

import privlearn.contract.leases
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.cli.following import _told
from privlearn.contract.billboard import Billboard
from privlearn.contract.leases import Lease
from privlearn.contract.protocols import Plan
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    LeaseError,
    LedgerClosedError,
    LossExceedsTokenError,
    ProvenanceError,
    TokenCopyError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import IssueEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    LinearObjective,
    NoisyReport,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
)
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.reporting.certificates import certificate_markdown, print_certificate
from privlearn.reporting.page import page_html
from privlearn.reporting.report import report
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(6)
SUM = NoisySum(Ball(1.0, 2, "l2"), GaussianNoise(20.0))
"""ρ = 1/200."""
CAP = ZCDP(1)
LAPLACE: NoisySum[Any] = NoisySum(Ball(1.0, 2, "l1"), LaplaceNoise(20.0))


def rows(value: float = 0.25, users: range = USERS) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 2), value), users=users)


def central(cap: Any = CAP, seed: int = 1, **more: Any) -> CentralAccountant[Any]:
    return CentralAccountant(cap, users=USERS, noise=NoiseSource.simulation(seed), **more)


def leased(accountant: Any, runs: int, mechanism: Any = SUM, **more: Any) -> Lease[Any]:
    named = {"users": USERS, "label": "sums", **more}
    found: Lease[Any] = accountant.lease(mechanism, runs=runs, **named)
    return found


def kinds(accountant: Any) -> list[str]:
    return [entry.entry for entry in accountant.ledger.entries]


def test_one_spend_pays_for_k_runs_and_the_next_is_refused() -> None:
    accountant = central()
    with leased(accountant, 5) as lease:
        values = []
        for left in range(5, 0, -1):
            assert lease.left == left
            values.append(lease.release(rows()))
        before = len(accountant.ledger.entries)
        with pytest.raises(LeaseError, match="all of its 5 runs were used"):
            lease.release(rows())
        assert len(accountant.ledger.entries) == before
    assert kinds(accountant) == ["open", "issue", "spend", "retire"]
    (spend,) = (e for e in accountant.ledger.entries if isinstance(e, SpendEntry))
    assert spend.parameters == {"lease": {"runs": 5}}
    assert {value.paid_by for value in values} == {lease.id}
    assert len({value.value.tobytes() for value in values}) == 5, "each has noise of its own"
    assert accountant.spent() == ZCDP("5/200")
    assert certify(accountant.ledger.records).problems == []


@pytest.mark.parametrize(
    ("cap", "mechanism"),
    [(ZCDP(1), SUM), (GaussianDP(2), SUM), (PureDP(2), LAPLACE), (ZCDP(1), LAPLACE)],
)
def test_a_lease_costs_what_its_runs_cost(cap: Any, mechanism: NoisySum[Any]) -> None:
    together, single = central(cap), central(cap)
    with leased(together, 7, mechanism) as lease:
        lease.release(rows())
    for _ in range(7):
        token = single.issue(mechanism.loss(), users=USERS, label="sums")
        mechanism.release(rows(), token)
    assert together.spent() == single.spent()
    found, expected = together.certificate(), single.certificate()
    assert found.problems == []
    assert found.spent[0].epsilon == expected.spent[0].epsilon
    assert not found.trusted_code


def test_a_planned_lease_is_composed_as_its_runs_are() -> None:
    together, single = central(PureDP(2)), central(PureDP(2))
    together.commit([Plan("sums", LAPLACE.loss() * 9, USERS)])
    single.commit([Plan("sums", LAPLACE.loss(), USERS, count=9)])
    assert together.epsilon(0.01) == single.epsilon(0.01) < 0.8 < 9 * 0.1
    with pytest.raises(BudgetError, match="not \\(or no longer\\) in the committed plan"):
        leased(together, 10, LAPLACE)
    with leased(together, 9, LAPLACE) as lease:
        lease.release(rows())
    assert together.certificate().problems == []


def test_the_noise_of_runs_is_that_of_single_releases() -> None:
    accountant = central(ZCDP(100))
    with leased(accountant, 2000) as lease:
        drawn = np.array([lease.release(rows(0)).value for _ in range(2000)])
    assert abs(drawn.mean()) < 4 * 20 / np.sqrt(4000)
    assert abs(drawn.std() / 20 - 1) < 4 / np.sqrt(8000)
    lagged = np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]
    assert abs(lagged) < 4 / np.sqrt(2000)


def test_threads_get_each_run_once_and_no_more_than_there_are() -> None:
    accountant = central(ZCDP(10))
    lease, together = leased(accountant, 200), threading.Barrier(6)
    values: list[bytes] = []
    refused: list[LeaseError] = []

    def use() -> None:
        together.wait()
        for _ in range(50):
            try:
                values.append(lease.release(rows()).value.tobytes())
            except LeaseError as error:
                refused.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(values), len(set(values)), len(refused)) == (200, 200, 100)
    assert kinds(accountant).count("spend") == 1
    lease.close()
    assert certify(accountant.ledger.records).problems == []


def test_what_was_not_used_stays_charged_and_how_much_is_not_told(tmp_path: Path) -> None:
    ends = []
    for used in (1, 4):
        accountant = begun(tmp_path / f"{used}.db", ZCDP(1), len(USERS))
        with leased(accountant, 5) as lease:
            for _ in range(used):
                lease.release(rows())
        assert accountant.spent() == ZCDP("5/200")
        (end,) = (e for e in accountant.ledger.entries if isinstance(e, RetireEntry))
        ends.append({**end.body(), "accountant": "", "token": ""})
        assert len(kinds(accountant)) == 4
        accountant.close()
        assert audit(tmp_path / f"{used}.db").problems == []
    assert ends[0] == ends[1]


def test_a_lease_of_which_no_run_was_used_is_free_again() -> None:
    accountant = central()
    with leased(accountant, 5) as lease:
        assert accountant.spent() == ZCDP("5/200")
        with pytest.raises(UsersError):
            lease.release(rows(users=range(20)))
        assert lease.left == 5
    assert accountant.spent() == ZCDP(0)
    assert kinds(accountant) == ["open", "issue", "retire"]
    with pytest.raises(LeaseError, match="it was closed"):
        lease.release(rows())


@pytest.mark.parametrize("entry", range(1, 4))
@pytest.mark.parametrize("written", [False, True])
def test_a_process_that_dies_leaves_all_runs_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int, written: bool
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    values: list[Any] = []
    with dying_at(monkeypatch, entry, written=written), leased(accountant, 5) as lease:
        values += [lease.release(rows()) for _ in range(3)]
    die(accountant)
    accountant = resumed(tmp_path / "l.db")
    spent = (entry, written) >= (2, True)
    assert accountant.spent() == ZCDP("5/200" if spent else 0)
    assert not values or spent, "nothing left that was not paid"
    accountant.close()
    certificate = audit(tmp_path / "l.db")
    assert certificate.problems == []
    assert certificate.lost == (spent and (entry, written) < (3, True))


def test_no_run_is_used_before_the_spend_is_durable(tmp_path: Path) -> None:
    heads = []

    def keep(head: str) -> None:
        heads.append(head)
        if len(heads) == 2:  # that of the spend
            raise OSError("no room")

    accountant = central(ledger=Ledger.create(tmp_path / "l.db", keep_head=keep))
    lease = leased(accountant, 5)
    with pytest.raises(Exception, match="could not be kept"):
        lease.release(rows())
    with pytest.raises(Exception, match="was spent before"):
        lease.release(rows())
    assert accountant.spent() == ZCDP("5/200")
    lease.close()
    assert accountant.spent() == ZCDP("5/200")
    accountant.close()
    certificate = audit(tmp_path / "l.db")
    assert (certificate.problems, certificate.lost) == ([], 1)


def test_the_first_error_is_the_one_that_is_seen(tmp_path: Path) -> None:
    accountant = central(ledger=Ledger.create(tmp_path / "l.db"))
    lease, other = leased(accountant, 5), leased(accountant, 5)
    for each in (lease, other):
        each.release(rows())
    accountant.ledger.close()
    with pytest.raises(ZeroDivisionError), lease:
        raise ZeroDivisionError
    with pytest.raises(LedgerClosedError):
        other.close()


def test_a_lease_is_not_copied_or_pickled() -> None:
    lease = leased(central(), 5)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TokenCopyError, match="used twice"):
            act(lease)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_uses_no_run() -> None:
    lease = leased(central(), 5)
    lease.release(rows())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lease.release(rows())
            name = "none"
        except BaseException as error:
            name = type(error).__name__
        os.write(write, name.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "TokenCopyError"
    assert lease.left == 4


def test_a_lease_ends_with_its_accountant() -> None:
    accountant = central()
    lease = leased(accountant, 5)
    lease.release(rows())
    accountant.close()
    assert lease.left == 0
    with pytest.raises(LeaseError, match=r"its token ended lost; its runs .* stay charged"):
        lease.release(rows())
    lease.close()
    certificate = certify(accountant.ledger.records)
    assert (certificate.problems, certificate.lost) == ([], 1)


def test_a_lease_ends_when_another_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privlearn.contract.leases, "_LOOK_AFTER", 0.0)
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    lease = leased(accountant, 5)
    lease.release(rows())
    other = resumed(tmp_path / "l.db")
    for _ in range(2):
        with pytest.raises(LeaseError, match=r"cannot be written to any more|was closed"):
            lease.release(rows())
    assert other.spent() == ZCDP("5/200")
    other.close()
    assert audit(tmp_path / "l.db").problems == []


class Failing:
    """Opens rows, and then fails when it is told to."""

    def __init__(self) -> None:
        self.spend = Spend("failing", Ball(1.0, 2, "l2"), GaussianNoise(20.0))
        self.fails = False

    def loss(self) -> Any:
        return self.spend.loss(Adjacency.REPLACE_ONE)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        with token.spend(self.spend) as receipt:
            values = receipt.open(rows)
            if self.fails:
                raise ArithmeticError("as the rows wanted it")
            return receipt.release(values.sum(axis=0) + receipt.draw((2,)))


def test_a_run_that_fails_after_it_opened_rows_ends_the_lease_uncovered() -> None:
    accountant, mechanism = central(), Failing()
    lease = leased(accountant, 5, mechanism)
    lease.release(rows())
    mechanism.fails = True
    with pytest.raises(ArithmeticError):
        lease.release(rows())
    mechanism.fails = False
    with pytest.raises(LeaseError, match="ended uncovered"):
        lease.release(rows())
    certificate = accountant.certificate()
    assert any("depend on" in problem for problem in certificate.problems), certificate.problems
    assert accountant.spent() == ZCDP("5/200")


def test_a_lease_is_for_one_mechanism_with_the_same_parameters() -> None:
    mechanism = Failing()
    lease = leased(central(), 5, mechanism)
    lease.release(rows())
    mechanism.spend = Spend("failing", Ball(1.0, 2, "l2"), GaussianNoise(40.0))
    with pytest.raises(LeaseError, match="as it was spent first"):
        lease.release(rows())
    assert lease.left == 4
    mechanism.spend = Spend("failing", Ball(1.0, 2, "l2"), GaussianNoise(10.0))
    with pytest.raises(LossExceedsTokenError):
        lease.release(rows())


def test_a_first_run_that_costs_more_than_was_leased_is_refused() -> None:
    accountant, mechanism = central(), Failing()
    lease = leased(accountant, 5, mechanism)
    mechanism.spend = Spend("failing", Ball(1.0, 2, "l2"), GaussianNoise(10.0))
    with pytest.raises(LossExceedsTokenError):
        lease.release(rows())
    assert kinds(accountant) == ["open", "issue"]


def test_reports_of_devices_and_served_rows_are_leased_and_logged_ones_are_not() -> None:
    report_ = NoisyReport(Ball(1.0, 2), GaussianNoise(20.0))
    local = LocalAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))
    with leased(local, 5, report_) as lease:
        assert lease.release(rows()).value.shape == (6, 2)
        assert lease.release(rows(users=range(2, 3))).value.shape == (1, 2)
    joint = JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))
    board = Billboard(joint, USERS)
    served = board.serve(rows(), lambda own: own).deliver(lambda own, _: own)
    with leased(joint, 5) as lease:
        board.post("sums", lease.release(served))
        with pytest.raises(ProvenanceError):
            lease.release(rows())
        assert lease.left == 4
    for each in (local, joint):
        assert each.spent() == ZCDP("5/200")
        assert certify(each.ledger.records).problems == []


def test_an_objective_is_perturbed_under_a_lease() -> None:
    fit = ObjectivePerturbation(LinearObjective.logistic(2), 5.0, 4.0, 1e-3, 20)
    accountant = central(ZCDP("1e9"))
    data = Rows.seal((np.ones((6, 2)), np.ones(6)), users=USERS)
    with leased(accountant, 3, fit) as lease:
        thetas = [lease.release(data).value for _ in range(3)]
    assert not np.array_equal(thetas[0], thetas[1])
    assert certify(accountant.ledger.records).problems == []


def test_user_code_that_rows_pass_through_is_named_once() -> None:
    accountant = central()
    mapped = rows().map(lambda row: row / 2)
    with leased(accountant, 5) as lease:
        for _ in range(3):
            lease.release(mapped)
    assert kinds(accountant).count("functions") == 1


def test_where_there_are_no_leases_that_is_said_before_anything_is_issued() -> None:
    stream = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.4"), horizon=6)
    with pytest.raises(LeaseError, match="a stream pays once"):
        leased(central(), 5, stream)
    with pytest.raises(ValueError, match="runs = 0"):
        leased(central(), 0)
    with pytest.raises(InsufficientBudgetError):
        leased(central(), 201)


def test_a_learners_account_has_no_leases(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), 6)
    accountant.record_learner("mine", {}, {})
    with pytest.raises(LeaseError, match="a learner's"):
        leased(accountant, 5)


def bodies_of_a_lease(mechanism: NoisySum[Any] = SUM) -> list[dict[str, Any]]:
    accountant = central()
    with leased(accountant, 5, mechanism) as lease:
        lease.release(rows())
    return [json.loads(json.dumps(record.body)) for record in accountant.ledger.records]


@pytest.mark.parametrize("mechanism", [SUM, LAPLACE])
def test_an_audit_finds_a_lease_of_more_runs_than_were_paid(mechanism: NoisySum[Any]) -> None:
    bodies = bodies_of_a_lease(mechanism)
    assert certify(chained(bodies)).problems == []
    bodies[2]["parameters"]["lease"]["runs"] = 6
    (problem,) = certify(chained(bodies)).problems
    assert "more than the stated" in problem


@pytest.mark.parametrize(
    "form", [{"runs": 0}, {"runs": 5.0}, {"runs": True}, {}, 5, {"runs": 5, "more": 1}, "5"]
)
def test_an_audit_names_a_lease_of_another_form(form: object) -> None:
    bodies = bodies_of_a_lease()
    bodies[2]["parameters"]["lease"] = form
    problems = certify(chained(bodies)).problems
    assert any("must be an object with a number of runs" in problem for problem in problems)


def test_the_independent_verifier_says_that_it_leaves_leases_aside(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    with leased(accountant, 5) as lease:
        lease.release(rows())
    accountant.close()
    file = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", file)
    assert spec is not None
    assert spec.loader is not None
    verifier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verifier)
    found = verifier.verify(tmp_path / "l.db")
    assert found["problems"] == []
    assert "that leases pay for all of their runs, and sums with them" in found["unchecked"]


def test_audits_show_a_lease_as_one(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    for _ in range(2):
        with leased(accountant, 40, label="<b>scores") as lease:
            lease.release(rows())
    with leased(accountant, 5) as lease:
        lease.release(rows())
    spend = next(e for e in accountant.ledger.entries if isinstance(e, SpendEntry))
    assert "lease of 40 runs: gaussian-sum" in _told(spend, accountant._state)
    accountant.close()
    found = report(tmp_path / "l.db")
    shown = io.StringIO()
    print_certificate(found, Console(file=shown, width=200), full=True)
    text = certificate_markdown(found)
    for where in (shown.getvalue(), text):
        assert "2 leases of 80 runs: gaussian-sum" in where
        assert "lease of 5 runs: gaussian-sum" in where
    told = json.loads(found.model_dump_json())["leases"]
    assert [(one["label"], one["leases"], one["runs"]) for one in told] == [
        ("<b>scores", 2, 80),
        ("sums", 1, 5),
    ]
    page = page_html(found)
    assert "2 leases of 80 runs: gaussian-sum under" in page
    assert "<b>scores" not in page
    assert "leases" not in json.loads(audit_of_no_lease(tmp_path).model_dump_json())


def audit_of_no_lease(folder: Path) -> Any:
    accountant = begun(folder / "none.db", ZCDP(1), len(USERS))
    SUM.release(rows(), accountant.issue(SUM.loss(), users=USERS, label="sum"))
    accountant.close()
    return audit(folder / "none.db")


def test_a_lease_of_a_token_that_holds_less_is_refused() -> None:
    accountant = central()
    token = accountant.issue(SUM.loss() * 4, users=USERS, label="sums")
    with pytest.raises(LossExceedsTokenError):
        Lease(token, SUM, 5)
    with Lease(token, SUM, 4) as lease:
        lease.release(rows())
    assert next(e for e in accountant.ledger.entries if isinstance(e, IssueEntry)).label == "sums"
    assert certify(accountant.ledger.records).problems == []


def test_a_mechanism_cannot_say_of_itself_that_it_is_a_lease() -> None:
    accountant, mechanism = central(), Failing()
    mechanism.spend = Spend(
        "failing", Ball(1.0, 2, "l2"), GaussianNoise(20.0), parameters={"lease": {"runs": 9}}
    )
    token = accountant.issue(mechanism.loss(), users=USERS, label="sums")
    with pytest.raises(BudgetError, match="only that of a lease"):
        mechanism.release(rows(), token)
    assert kinds(accountant) == ["open", "issue"]


def test_a_lease_ends_with_the_epoch_of_a_shared_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privlearn.contract.leases, "_LOOK_AFTER", 0.0)
    place = Place()
    accountant = central(ledger=Ledger.over(place.open()))
    other = CentralAccountant[Any].join(
        Ledger.over(MemoryStore(place)), noise=NoiseSource.simulation(2)
    )
    with leased(accountant, 5) as lease, leased(other, 5) as theirs:
        for each in (lease, theirs):
            each.release(rows())
            each.release(rows())
    assert other.spent() == accountant.spent() == ZCDP("10/200")
    lease = leased(accountant, 5)
    lease.release(rows())
    place.open()
    with pytest.raises(LeaseError, match="opened anew"):
        lease.release(rows())


def test_leased_runs_neither_write_nor_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    called: list[str] = []
    lease = leased(accountant, 50)
    lease.release(rows())
    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync", "write", "pwrite"):
            patch.setattr(os, name, lambda *_, n=name, **__: called.append(n))
        patch.setattr(Ledger, "append", lambda *_, **__: called.append("append"))
        for _ in range(49):
            lease.release(rows())
    assert called == []
    lease.close()
