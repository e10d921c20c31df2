"""Leases under a rule of participation: what k runs cost a person, and of which slots they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from participation_oracle import Visits
from person_ledgers import a_lease_ahead, changed, leased_runs

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.prices import Prices
from privlearn.contract.billboard import Billboard
from privlearn.contract.leases import Lease
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    LeaseError,
    LossExceedsTokenError,
    PeopleError,
    ProvenanceError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import LinearObjective, NoisyReport, NoisySum, ObjectivePerturbation
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

USERS = range(8)
STD, RUNS = 20.0, 5
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(STD), Adjacency.ZERO_OUT)
"""ρ = 1/800."""
LAPLACE: NoisySum[Any] = NoisySum(Ball(1.0, 2, "l1"), LaplaceNoise(STD), Adjacency.ZERO_OUT)
RULES = [Participation(1), Participation(3, apart=3), Participation(4, per_batch=2)]
STARTS = (0, 4)
IDS = ["maria", "kim"] * 4


def account(
    rule: Participation, cap: Any = None, kind: Any = CentralAccountant, **more: Any
) -> Any:
    named = {"noise": NoiseSource.simulation(1), "people": People.memory(rule), **more}
    book = kind(cap or ZCDP(10), users=USERS, **named)
    if rule.batched:
        book.divide(STARTS)
    return book


def admitted(book: Any, ids: Any = IDS, value: float = 0.25) -> Rows[Any]:
    rows = Rows.seal(np.full((len(ids), 2), value), users=range(len(ids)))
    found: Rows[Any] = book.people.admit(rows, ids)
    return found


def leased(book: Any, runs: int = RUNS, mechanism: Any = SUM, users: range = USERS) -> Lease[Any]:
    found: Lease[Any] = book.lease(mechanism, runs=runs, users=users, label="sums")
    return found


def most_rows(rule: Participation) -> int:
    """Of one person, over all patterns of visits, by the rule as it is written down."""
    patterns = (np.arange(2 ** len(USERS))[:, None] >> np.arange(len(USERS))) & 1
    counts = []
    for pattern in patterns:
        oracle = Visits(rule, STARTS)
        counts.append(
            sum(oracle.learns("maria", slot) for slot in np.flatnonzero(pattern).tolist())
        )
    return max(counts)


# What it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_k_runs_cost_a_person_k_times_all_visits(rule: Participation) -> None:
    m = most_rows(rule)
    for cap, mechanism, expected in (
        (ZCDP(10), SUM, ZCDP(f"{RUNS * m * m}/800")),
        (PureDP(20), LAPLACE, PureDP(f"{RUNS * m}/20")),
        (GaussianDP(9), SUM, None),
    ):
        book, single = account(rule, cap), account(rule, cap)
        rows, others = admitted(book), admitted(single)
        with leased(book, mechanism=mechanism) as lease:
            assert lease.release(rows).value.shape == (2,)
        for _ in range(RUNS):
            token = single.issue(mechanism.loss(), users=USERS, label="sums")
            mechanism.release(others, token)
        of_person = book.of_person(mechanism.loss() * RUNS, USERS)
        assert book.spent() == single.spent() == cap.price(of_person)
        assert expected is None or book.spent() == expected
        found, wanted = book.certificate(), single.certificate()
        assert found.problems == []
        assert found.spent[0].epsilon == wanted.spent[0].epsilon


def test_an_objective_is_priced_for_all_rows_of_a_person_in_each_run() -> None:
    rule = Participation(3, apart=3)
    fit = ObjectivePerturbation(
        LinearObjective.logistic(2), 5.0, 4.0, 1e-3, 20, adjacency=Adjacency.ZERO_OUT
    )
    book = account(rule, ZCDP("1e9"))
    rows = book.people.admit(Rows.seal((np.ones((8, 2)), np.ones(8)), users=USERS), IDS)
    with leased(book, 3, fit) as lease:
        thetas = [lease.release(rows).value for _ in range(3)]
    assert not np.array_equal(thetas[0], thetas[1])
    visits = fit.loss().for_visits(3, 3)
    assert book.spent() == book.budget.price(visits) * 3
    assert book.certificate().problems == []


def test_a_planned_lease_of_persons() -> None:
    rule = Participation(3, apart=3)
    book = account(rule, ZCDP("45/800"))
    book.commit([Plan("sums", SUM.loss() * RUNS, USERS)])
    rows = admitted(book)
    with leased(book) as lease:
        for _ in range(RUNS):
            lease.release(rows)
    assert book.spent() == ZCDP("45/800")
    assert book.certificate().problems == []


def shifts(rule: Participation) -> tuple[float, Any]:
    """Squared moves over twice the variance, of all runs, if all of a person's rows go; draws.

    The noise of both worlds is the same.
    """
    drawn = []
    for value in (1.0, 0.0):
        book = account(rule)
        rows = Rows.seal(np.tile([value, 0.0], (len(USERS), 1)), users=USERS)
        rows = book.people.admit(rows, ["maria"] * len(USERS))
        with leased(book, 400) as lease:
            drawn.append(np.array([lease.release(rows).value for _ in range(400)]))
    moved = float(np.sum((drawn[0] - drawn[1])[:RUNS] ** 2) / (2 * STD**2))
    return moved, drawn[1]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_all_runs_tell_of_a_person_is_charged(
    rule: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charged() -> float:
        book = account(rule)
        rows = admitted(book)
        with leased(book) as lease:
            lease.release(rows)
        return float(book.spent().rho)

    divergence, draws = shifts(rule)
    assert divergence == pytest.approx(RUNS * most_rows(rule) ** 2 / 800)
    assert charged() >= divergence * (1 - 1e-9)
    # an account that forgets that a person has several rows
    with monkeypatch.context() as patch:
        patch.setattr(Prices, "loss_of_person", lambda self, loss, users: loss)
        assert (charged() < divergence * (1 - 1e-9)) is (most_rows(rule) > 1)
    # each run has noise of its own, of the stated size
    assert abs(draws.std() / STD - 1) < 4 / np.sqrt(2 * draws.size)
    lagged = np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]
    assert abs(lagged) < 4 / np.sqrt(len(draws))


def test_a_token_for_the_runs_of_one_row_is_refused() -> None:
    book = account(Participation(3, apart=3))
    rows = admitted(book)
    token = book.issue(ZCDP(f"{RUNS}/800"), users=USERS, label="sums")
    with pytest.raises(LossExceedsTokenError, match=r"costs ZCDP\('0\.05625'\), .* holds"):
        Lease(token, SUM, RUNS)
    enough = book.issue(ZCDP(f"{9 * RUNS}/800"), users=USERS, label="sums")
    with Lease(enough, SUM, RUNS) as lease:
        lease.release(rows)
    assert book.certificate().problems == []


# Of which rows --------------------------------------------------------------------------------


def test_slots_that_are_not_over_are_refused_before_anything_is_issued() -> None:
    book = account(Participation(3, apart=3))
    rows = admitted(book, IDS[:5])
    with pytest.raises(
        LeaseError, match=r"is at slot 5.*lease slots before 5.*people\.skip_to\(8\)"
    ):
        leased(book)
    token = book.issue(SUM.loss() * RUNS, users=USERS, label="sums")
    with pytest.raises(LeaseError, match="slots that are over"):
        Lease(token, SUM, RUNS)
    token.retire()
    assert [entry.entry for entry in book.ledger.entries] == ["open", "issue", "retire"]
    with leased(book, users=range(5)) as lease:
        lease.release(rows)
    book.people.skip_to(8)
    with leased(book) as lease:
        lease.release(rows)
    assert book.certificate().problems == []


def test_rows_that_no_registry_admitted_are_opened_by_no_run() -> None:
    book, other = account(Participation(3)), account(Participation(3))
    rows, theirs = admitted(book), admitted(other)
    with leased(book) as lease:
        plain = Rows.seal(np.ones((8, 2)), users=USERS)
        for wrong in (plain, theirs):
            with pytest.raises(ProvenanceError, match="admitted by the accountant's registry"):
                lease.release(wrong)
        assert lease.left == RUNS
        lease.release(rows)


def test_who_is_forgotten_between_two_runs_is_null_in_the_second() -> None:
    calm = NoisySum(Ball(2.0, 2), GaussianNoise(1e-3), Adjacency.ZERO_OUT)
    book = account(Participation(3), ZCDP("1e9"))
    rows = admitted(book, value=1.0)
    with leased(book, mechanism=calm) as lease:
        before = lease.release(rows).value
        book.people.forget("maria")
        after = lease.release(rows).value
    assert before == pytest.approx([6.0, 6.0], abs=0.1)
    assert after == pytest.approx([3.0, 3.0], abs=0.1)


def test_on_a_timetable_all_slots_are_opened_at_once_and_are_over() -> None:
    book = account(Participation(2, clock="timetable"))
    people = book.people
    visits = Rows.seal(np.ones((5, 2)), users=USERS, slots=[0, 0, 3, 3, 7])
    rows = people.admit(visits, ["maria", "kim", "maria", "kim", "zoe"])
    with pytest.raises(LeaseError, match="is at slot 0"):  # the last slot goes on
        leased(book)
    people.skip_to(8)
    with leased(book) as lease:
        lease.release(rows)
        with pytest.raises(UsersError, match="all slots"):
            lease.release(rows.slice(range(4)))
        assert lease.left == RUNS - 1
    assert book.spent() == ZCDP(f"{4 * RUNS}/800")
    assert book.certificate().problems == []


def test_served_rows_and_reports_of_persons_are_leased() -> None:
    joint = account(Participation(2), kind=JointAccountant)
    board = Billboard(joint, USERS)
    sealed = Rows.seal(np.ones((8, 2)), users=USERS)
    served = board.serve(sealed, lambda own: own, people=IDS).deliver(lambda own, _: own)
    with leased(joint) as lease:
        board.post("sums", lease.release(served))
    assert joint.spent() == ZCDP(f"{4 * RUNS}/800")
    report = NoisyReport(Ball(1.0, 2), GaussianNoise(STD), Adjacency.ZERO_OUT)
    local = account(Participation(2), kind=LocalAccountant)
    rows = admitted(local)
    with leased(local, mechanism=report) as lease:
        assert lease.release(rows).value.shape == (8, 2)
    assert local.spent() == ZCDP(f"{2 * RUNS}/800"), "each message has noise of its own"
    for book in (joint, local):
        assert certify(book.ledger.records).problems == []


# What the ledger tells of the registry --------------------------------------------------------


def test_an_older_registry_is_found_by_the_spend_of_a_lease(tmp_path: Path) -> None:
    rule, where = Participation(3), tmp_path / "people.db"
    people = People.create(where, rule)
    ledger = Ledger.create(tmp_path / "l.db")
    book = account(rule, people=people, ledger=ledger)
    rows = admitted(book, IDS[:4])
    people.close()
    shutil.copy(where, tmp_path / "older.db")
    people = People.open(where, rule)
    ledger.close()
    book = CentralAccountant.resume(
        tmp_path / "l.db", people=people, noise=NoiseSource.simulation(2)
    )
    rows = people.admit(Rows.seal(np.ones((4, 2)), users=range(4, 8)), IDS[4:])
    lease = leased(book)
    lease.release(rows)
    people.close()
    book.ledger.close()  # the process ends
    older = People.open(tmp_path / "older.db", rule, moved=True)
    with pytest.raises(PeopleError, match="older"):
        CentralAccountant.resume(tmp_path / "l.db", people=older, noise=NoiseSource.simulation(2))
    older.close()
    again: Any = CentralAccountant.resume(
        tmp_path / "l.db", people=People.open(where, rule), noise=NoiseSource.simulation(2)
    )
    assert again.spent() == ZCDP(f"{9 * RUNS}/800")
    again.close()
    certificate = audit(tmp_path / "l.db")
    assert (certificate.problems, certificate.lost) == ([], 1)


def test_an_audit_names_a_lease_of_slots_that_were_not_over_and_of_more_runs() -> None:
    assert certify(leased_runs()).problems == []
    problems = certify(changed(leased_runs(), a_lease_ahead)).problems
    assert any("a lease of slots up to 5" in each and "at slot 3" in each for each in problems)

    def one_more(bodies: list[dict[str, Any]], _: object) -> None:
        bodies[2]["parameters"]["lease"]["runs"] += 1

    def of_one_row(bodies: list[dict[str, Any]], _: object) -> None:
        bodies[1]["budget"]["rho"] = "5/32"

    for change, named in ((one_more, "more than the stated"), (of_one_row, "costs")):
        (problem,) = certify(changed(leased_runs(), change)).problems
        assert named in problem
