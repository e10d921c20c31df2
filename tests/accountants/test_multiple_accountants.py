"""Several accountants in one ledger: each guarantee by itself, and sums that name their people."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from privlearn.accountants import (
    CentralAccountant,
    JointAccountant,
    LocalAccountant,
    audit,
    multiple_accountants,
)
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.guarantee import epsilon_of
from privlearn.cli.main import app
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import AdjacencyError, BudgetError, LedgerBusyError, LedgerError, UsersError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.chain import chained
from privlearn.losses import GaussianLoss, LaplaceLoss, PureLoss
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting.certificates import certificate_markdown, print_certificate, verdict
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

USERS = range(10)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))  # rho = 0.005


def rows(users: range = USERS) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def central(book: Ledger, cap: Any = None, **more: Any) -> CentralAccountant[Any]:
    users = more.pop("users", USERS)
    return CentralAccountant(cap or ZCDP(1), users=users, ledger=book, **{"shared": True, **more})


def spend(accountant: CentralAccountant[Any], users: range | None = None) -> None:
    part = accountant.users if users is None else users
    SUM.release(rows(part), accountant.issue(SUM.loss(), users=part, label="sum"))


def three(book: Ledger, **more: Any) -> tuple[Any, Any, Any]:
    """A central, a joint and an attested local accountant that take turns."""
    everyone = {"users": USERS, "ledger": book, **more}
    first = CentralAccountant(ZCDP(1), **everyone)
    second: JointAccountant[Any] = JointAccountant(GaussianDP(1), shared=True, **everyone)
    third: LocalAccountant[Any] = LocalAccountant(PureDP(2), shared=True, attested=True, **everyone)
    board = Billboard(second, USERS)
    served = board.serve(rows(), lambda own: own).deliver(lambda own, _: own)
    for _ in range(2):
        spend(first)
        board.post("sum", SUM.release(served, second.issue(SUM.loss(), users=USERS, label="joint")))
        third.attest(
            PureLoss("0.5"),
            users=USERS,
            most_messages=1,
            count=9,
            by="app 4.2",
            mechanism="randomized-response",
        )
    return first, second, third


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "ledger.db"
    for accountant in three(Ledger.create(path)):
        accountant.close()
    return path


# One ledger ---------------------------------------------------------------------------------------


def test_a_mixed_ledger_states_each_guarantee_by_itself(mixed: Path) -> None:
    found = audit(mixed)
    assert found.problems == []
    assert found.closed
    assert [g.trust for g in found.guarantees] == [Trust.CENTRAL, Trust.JOINT, Trust.LOCAL]
    assert [g.accountants for g in found.guarantees] == [(1,), (2,), (3,)]
    assert [g.attested for g in found.guarantees] == [False, False, True]
    caps: list[Currency] = [ZCDP(1), GaussianDP(1), PureDP(2)]
    assert [g.epsilon for g in found.guarantees] == [epsilon_of(c, 1e-6).value for c in caps]
    assert [s.rho for s in found.spent[:2]] == pytest.approx([0.01, 0.01])
    assert found.sums == []  # nothing of one kind
    (remark,) = found.remarks
    assert "central replace-one, joint replace-one, local replace-one" in remark
    assert "which is the guarantee of all accountants together" in remark
    assert found.together is not None
    assert (found.together.trust, found.together.accountants) == (Trust.JOINT, (1, 2, 3))
    assert found.together.attested
    assert found.attested
    assert not found.holds
    assert [share.accountant for share in found.mechanisms] == [1, 2]
    assert [share.share for share in found.mechanisms] == [1, 1]


def test_a_mixed_export_verifies_like_the_ledger_and_goes_through_json(
    mixed: Path, tmp_path: Path
) -> None:
    Ledger.open(mixed).export(tmp_path / "export.jsonl")
    found = audit(mixed)
    again = audit(tmp_path / "export.jsonl", head=found.head)
    given = {"head_compared": True, "head_at": found.entries, "head_beside": False}
    assert again == found.model_copy(update=given)
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_reports_have_a_block_for_each_guarantee(mixed: Path) -> None:
    found = audit(mixed)
    assert verdict(found) == "VERIFIED from the ledger alone, except what clients attest (closed)"
    console = Console(file=StringIO(), width=200)
    print_certificate(found, console, full=True)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    text = certificate_markdown(found)
    for shown in (printed, text):
        places = [shown.index(f"accountant {i}, users 0..9") for i in (1, 2, 3)]
        assert places == sorted(places)
        assert shown.index("local DP, replace-one, attested, not verified") > places[2]
        assert places[1] < shown.index("| joint |" if shown is text else "joint  ") < places[2]
        assert shown.index("together") < places[0]
    assert text.count("It rests on:") == 3


def test_exit_codes_of_mixed_ledgers(mixed: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", str(mixed), "--json"])
    assert done.exit_code == 0
    assert len(json.loads(done.output)["guarantees"]) == 3
    assert CliRunner().invoke(app, ["audit", str(mixed)]).exit_code == 0
    path = tmp_path / "simulation.db"
    for accountant in three(Ledger.create(path), noise=NoiseSource.simulation(1)):
        accountant.close()
    assert CliRunner().invoke(app, ["audit", str(path)]).exit_code == 3


def test_a_problem_of_one_accountant_is_named_and_leaves_the_others_stated(mixed: Path) -> None:
    records = read_records(mixed)
    bodies = [copy.deepcopy(record.body) for record in records]
    bodies[0]["cap"]["rho"] = "0.001"
    found = certify(chained(bodies, {record.seq: record.ext for record in records}))
    assert all("budget exceeded" in problem for problem in found.problems)
    assert len(found.problems) == 2
    assert found.spent == audit(mixed).spent
    assert len(found.guarantees) == 3
    assert found.guarantees[1:] == audit(mixed).guarantees[1:]


def test_entries_moved_to_another_accountant_are_problems(mixed: Path) -> None:
    bodies = [copy.deepcopy(record.body) for record in read_records(mixed)]
    ids = [body["accountant"] for body in bodies if body["entry"] == "open"]
    for position, body in enumerate(bodies):
        if body["entry"] in ("spend", "retire", "attest"):
            for other in set(ids) - {body["accountant"]}:
                changed = copy.deepcopy(bodies)
                changed[position]["accountant"] = other
                assert certify(chained(changed)).problems


def numbers(guarantee: Guarantee) -> Guarantee:
    """Less what it rests on, of which the part on exact noise counts only what stands there."""
    return guarantee.model_copy(update={"rests_on": []})


def test_cutting_the_tail_lowers_no_guarantee_that_is_left(mixed: Path) -> None:
    records = read_records(mixed)
    numbers_of_all = [numbers(one) for one in audit(mixed).guarantees]
    for kept in range(1, len(records)):
        cut = certify(records[:kept])
        assert cut.problems == []
        assert [numbers(one) for one in cut.guarantees] == numbers_of_all[: len(cut.guarantees)]


def test_the_ledger_is_closed_with_its_last_accountant(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    first, second = central(book), central(book)
    first.close()
    assert not book.closed
    spend(second)
    assert not audit(path).closed
    second.close()
    assert book.closed
    assert audit(path).closed
    # and may be opened for a further one, with a cap of its own
    third = central(Ledger.open(path))
    spend(third)
    third.close()
    assert audit(path).problems == []
    assert len(audit(path).guarantees) == 3


# Opening and resuming -----------------------------------------------------------------------------


def test_a_second_accountant_has_to_be_asked_for() -> None:
    book = Ledger.memory()
    central(book, shared=False)
    with pytest.raises(LedgerError, match=r"use resume.* or shared=True"):
        central(book, shared=False)
    assert len(book.entries) == 1
    central(book)
    assert len({entry.accountant for entry in book.entries}) == 2


def test_an_accountant_that_wants_a_new_ledger_notices_another_at_the_last_moment() -> None:
    book = Ledger.memory()
    opened = central(Ledger.memory(), shared=False).ledger.entries[0]
    central(book)
    with pytest.raises(LedgerBusyError, match="another accountant has begun"):
        book.append(opened, after=0, first=True)


def test_simulations_and_real_noise_need_ledgers_of_their_own() -> None:
    book = Ledger.memory()
    central(book)
    with pytest.raises(BudgetError, match="need ledgers of their own"):
        central(book, noise=NoiseSource.simulation(0))
    bodies = [record.body for record in book.records]
    second = central(Ledger.memory(), noise=NoiseSource.simulation(0))
    bodies += [record.body for record in second.ledger.records]
    found = certify(chained(bodies))
    assert any("need ledgers of their own" in problem for problem in found.problems)
    assert len(found.guarantees) == 2


@pytest.mark.parametrize("population", ["", 3])
def test_a_population_has_a_name(population: Any) -> None:
    with pytest.raises(ValueError, match=r"population = .*non-empty text"):
        central(Ledger.memory(), population=population)


def test_each_is_resumed_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    first, second, third = three(book)
    spent = [each.spent() for each in (first, second, third)]
    book.close()
    again = Ledger.open(path)
    one: CentralAccountant[Any] = CentralAccountant.resume(again)
    two: JointAccountant[Any] = JointAccountant.resume(again)
    three_: LocalAccountant[Any] = LocalAccountant.resume(again)
    assert [each.spent() for each in (one, two, three_)] == spent
    assert [each.id for each in (one, two, three_)] == [first.id, second.id, third.id]
    spend(one)
    for each in (two, one, three_):
        each.close()
    assert audit(path).problems == []
    assert audit(path).closed


def test_the_one_that_is_meant_is_named_where_several_are_open() -> None:
    book = Ledger.memory()
    first, second = central(book, ZCDP(1)), central(book, ZCDP(2))
    with pytest.raises(LedgerError, match=f"2 central ones are open, {first.id}, {second.id}"):
        CentralAccountant.resume(book)
    with pytest.raises(LedgerError, match=f"holds no central accountant 'x'; it has {first.id}"):
        CentralAccountant.resume(book, accountant="x")
    with pytest.raises(LedgerError, match=f"holds no joint accountant '{first.id}'"):
        JointAccountant.resume(book, accountant=first.id)
    again: CentralAccountant[Any] = CentralAccountant.resume(book, accountant=second.id)
    assert again.budget == ZCDP(2)
    again.close()
    only: CentralAccountant[Any] = CentralAccountant.resume(book)
    assert only.budget == ZCDP(1)
    with pytest.raises(LedgerError, match="was closed"):
        CentralAccountant.resume(book, accountant=second.id)


def test_resuming_one_stops_its_predecessor_and_nobody_else() -> None:
    book = Ledger.memory()
    first, second = central(book), central(book)
    token = first.issue(SUM.loss(), users=USERS, label="sum")
    again: CentralAccountant[Any] = CentralAccountant.resume(book, accountant=first.id)
    spend(second)
    spend(again)
    with pytest.raises(LedgerBusyError, match="only the last one may write"):
        SUM.release(rows(), token)
    spend(second)
    assert certify(book.records).problems == []


def test_a_token_pays_only_for_its_own_accountant() -> None:
    book = Ledger.memory()
    first, second = central(book, ZCDP("0.005")), central(book, ZCDP("0.01"))
    spend(first)
    spend(second)
    with pytest.raises(BudgetError, match="budget exceeded"):
        spend(first)
    spend(second)
    assert certify(book.records).problems == []


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_accountants_of_one_process_write_at_the_same_time(kind: str, tmp_path: Path) -> None:
    book = Ledger.memory() if kind == "memory" else Ledger.create(tmp_path / "ledger.db")
    several_ = [central(book) for _ in range(4)]
    errors: list[BaseException] = []

    def work(accountant: CentralAccountant[Any]) -> None:
        try:
            for _ in range(20):
                spend(accountant)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in several_]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {each.spent() for each in several_} == {ZCDP("0.1")}
    found = certify(book.records)
    assert found.problems == []
    assert found.spends == 80


def test_a_second_process_stops_all_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    first, second = central(book), central(book)
    script = (
        "import sys; from privlearn.accountants import CentralAccountant as C; "
        "C.resume(sys.argv[1], accountant=sys.argv[2]).close()"
    )
    subprocess.run([sys.executable, "-c", script, str(path), first.id], check=True)
    for accountant in (first, second):
        with pytest.raises(LedgerBusyError, match="written to by another process"):
            spend(accountant)
    assert audit(path).problems == []


KILLED = """
    import os, signal, sys
    import numpy as np
    from privlearn.accountants import CentralAccountant, LocalAccountant
    from privlearn.losses.budgets import ZCDP, PureDP
    from privlearn.rows.domains import Ball
    from privlearn.ledger import Ledger
    from privlearn.mechanisms import NoisySum
    from privlearn.losses import PureLoss
    from privlearn.noise import GaussianNoise
    from privlearn.rows import Rows
    from privlearn.contract.receipts import Receipt

    book = Ledger.create(sys.argv[1])
    users = range(10)
    first = CentralAccountant(ZCDP(1), users=users, ledger=book)
    second = CentralAccountant(ZCDP(1), users=users, ledger=book, shared=True)
    third = LocalAccountant(PureDP(1), users=users, ledger=book, shared=True, attested=True)
    third.attest(PureLoss(1), users=users, most_messages=1, count=5, by="app", mechanism="rr")
    second.issue(ZCDP("0.5"), users=users, label="unused")
    print(first.id, second.id, flush=True)
    Receipt._released = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    token = first.issue(mechanism.loss(), users=users, label="sum")
    mechanism.release(Rows.seal(np.ones((10, 2)), users=users), token)
"""


def test_after_a_kill_each_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path)],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    one, two = done.stdout.split()
    assert audit(path).problems == []
    assert audit(path).lost == 1
    book = Ledger.open(path)
    second: CentralAccountant[Any] = CentralAccountant.resume(book, accountant=two)
    first: CentralAccountant[Any] = CentralAccountant.resume(book, accountant=one)
    third: LocalAccountant[Any] = LocalAccountant.resume(book)
    assert (first.spent(), second.spent(), third.spent()) == (ZCDP("0.005"), ZCDP(0), PureDP(1))
    spend(second)
    spend(first)
    for accountant in (first, second, third):
        accountant.close()
    found = audit(path)
    assert found.problems == []
    assert found.closed
    assert (found.spends, found.lost) == (3, 1)


# Sums ---------------------------------------------------------------------------------------------


PARTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 10), st.integers(1, 5)), min_size=1, max_size=4
)


@given(st.lists(PARTS, min_size=2, max_size=3), st.data())
def test_one_population_is_added_index_by_index(
    plans: list[list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    """An array over indices is the oracle; each accountant may protect a range of its own."""
    book, array = Ledger.memory(), [Fraction(0)] * 20
    for parts in plans:
        start = data.draw(st.integers(0, 10))
        accountant = central(book, GaussianDP(100), users=range(start, start + 10), population="p")
        plan = []
        for first, length, mass in parts:
            users = range(start + first, min(start + first + length, start + 10))
            plan.append(Plan("part", GaussianLoss(mass), users))
            for user in users:
                array[user] += mass
        accountant.commit(plan)
    found = certify(book.records)
    assert found.problems == []
    assert found.remarks == []
    (together,) = found.sums
    assert together.accountants == tuple(range(1, len(plans) + 1))
    assert together.mu == pytest.approx(float(max(array)) ** 0.5, rel=1e-12)
    assert together.epsilon == epsilon_of(GaussianLoss(max(array)), 1e-6).value
    assert "each index of population 'p'" in together.who


def test_one_user_of_one_population_is_told_the_sum(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = Ledger.create(path)
    for users in (range(10), range(10), range(3)):
        spend(central(book, ZCDP(1), users=users, population="p"))
    spend(central(book, ZCDP(1)))  # its user 5 may be anybody
    found = audit(path, user=5)
    assert [round(g.epsilon, 2) for g in found.guarantees] == [7.77, 7.77, 7.77]
    assert [g.accountants for g in found.guarantees] == [(1,), (2,), (4,)]
    (together,), (spent,) = found.sums, found.sums_spent
    assert round(together.epsilon, 2) == 11.69
    assert (together.rho, together.user, together.accountants) == (2, 5, (1, 2))
    assert together.who == "user 5 of population 'p', in accountants 1 and 2 together"
    assert spent.rho == pytest.approx(0.01)
    assert audit(path, user=1).sums[0].rho == 3
    assert "Accountant 3 has no user 5." in found.remarks
    assert any("not declared" in remark for remark in found.remarks)
    assert found.problems == []
    done = CliRunner().invoke(app, ["audit", str(path), "--user", "5"])
    assert "ε = 11.6886" in done.output
    known = r"range\(0, 10\), range\(0, 3\)"
    with pytest.raises(UsersError, match=rf"^user = 99: no accountant has this user; .* {known}$"):
        audit(path, user=99)


def test_the_sum_for_one_user_is_of_its_own_plans() -> None:
    book = Ledger.memory()
    for loss, users in ((GaussianLoss("0.2"), range(0, 6)), (GaussianLoss("0.4"), range(5, 10))):
        central(book, population="p").commit([Plan("x", loss, users)])
    sums_ = {user: certify(book.records, user=user).sums[0].mu for user in (0, 5, 9)}
    assert sums_ == pytest.approx({0: 0.2**0.5, 5: 0.6**0.5, 9: 0.4**0.5})
    (largest,) = certify(book.records).sums
    assert largest.mu == sums_[5]


def test_disjoint_people_of_one_population_cost_the_maximum() -> None:
    book = Ledger.memory()
    for cap, users in ((ZCDP(1), range(5)), (ZCDP(2), range(5, 10))):
        spend(central(book, cap, users=users, population="p"))
    (together,) = certify(book.records).sums
    assert together.rho == 2
    assert together.users is None
    (spent,) = certify(book.records).sums_spent
    assert spent.rho == pytest.approx(0.005)


def test_undeclared_people_may_be_the_same() -> None:
    """Taking the maximum because indices do not overlap would be below the truth."""
    book = Ledger.memory()
    for cap, users in ((ZCDP(1), range(5)), (ZCDP(2), range(5, 10))):
        spend(central(book, cap, users=users))
    found = certify(book.records)
    (together,), (spent,), (remark,) = found.sums, found.sums_spent, found.remarks
    assert together.rho == 3
    assert spent.rho == pytest.approx(0.01)
    assert together.epsilon == pytest.approx(epsilon_of(ZCDP(3), 1e-6).value, rel=1e-9)
    assert together.who == "a person with one row in each of accountants 1 and 2"
    assert "not declared" in remark
    assert together.assumptions[0] == f"This is the sum for {together.who}."
    assert "not chosen in view of" in together.assumptions[1]
    assert found.holds


def test_populations_are_added_first_and_then_for_anybody() -> None:
    book = Ledger.memory()
    central(book, ZCDP(1), users=range(5), population="p")
    central(book, ZCDP(2), users=range(5, 10), population="p")
    central(book, ZCDP(4), population="q")
    found = certify(book.records)
    assert [(s.accountants, s.rho) for s in found.sums] == [((1, 2), 2), ((1, 2, 3), 6)]


def test_other_trust_and_relations_are_added_in_the_guarantee_of_the_ledger_alone() -> None:
    """ρ is 1 + 1, and 4 for each relation that is no replacement."""
    book = Ledger.memory()
    central(book, population="p")
    JointAccountant(ZCDP(1), users=USERS, ledger=book, shared=True, population="p")
    central(book, population="p", adjacency=Adjacency.ZERO_OUT)
    central(book, population="p", adjacency=Adjacency.ADD_REMOVE)
    found = certify(book.records)
    assert found.problems == []
    assert found.sums == []
    (remark,) = found.remarks
    assert "central zero-out, central add-remove" in remark
    assert found.together is not None
    assert (found.rho, found.together.adjacency) == (10, Adjacency.REPLACE_ONE)
    assert "accountants 3 and 4 are for another neighbour relation" in str(found.together.rests_on)
    assert found.epsilon == pytest.approx(epsilon_of(ZCDP(10), 1e-6).value, rel=1e-9)


def test_add_remove_over_parts_of_one_population_is_refused() -> None:
    book = Ledger.memory()
    central(book, users=range(5), population="p", adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(AdjacencyError, match="add-remove shifts indices"):
        central(book, users=range(5, 10), population="p", adjacency=Adjacency.ADD_REMOVE)
    central(book, users=range(5), population="p", adjacency=Adjacency.ADD_REMOVE)
    (together,) = certify(book.records).sums
    assert together.rho == 2
    bodies = [copy.deepcopy(record.body) for record in book.records]
    bodies[1]["users"] = [5, 10]
    assert any("shifts indices" in problem for problem in certify(chained(bodies)).problems)


@pytest.mark.parametrize("population", [None, "p"])
def test_caps_of_different_currencies_add_up(population: str | None) -> None:
    book = Ledger.memory()
    caps: list[Currency] = [ZCDP(1), GaussianDP(1), PureDP("0.5"), Renyi({2: 1, 16: 3})]
    for cap in caps:
        central(book, cap, population=population)
    (together,) = certify(book.records).sums
    single = [guarantee.epsilon for guarantee in certify(book.records).guarantees]
    assert max(single) < together.epsilon < 2 * sum(single)
    assert together.rho is None  # a Rényi cap has none
    pure = Ledger.memory()
    for epsilon in ("0.1", "0.2"):
        central(pure, PureDP(epsilon), population=population)
    (together,) = certify(pure.records, delta=1e-100).sums
    assert together.epsilon == pytest.approx(0.3, rel=1e-12)


def test_sums_of_claims_are_claims() -> None:
    book = Ledger.memory()
    for attested in (False, True):
        LocalAccountant(
            PureDP(1), users=range(1), ledger=book, shared=True, attested=attested, population="p"
        )
    found = certify(book.records)
    (together,) = found.sums
    assert together.attested
    assert any("ATTESTED, NOT VERIFIED" in line for line in together.assumptions)


def test_sums_are_stated_at_the_largest_promised_delta_and_shown() -> None:
    book = Ledger.memory()
    central(book)
    central(book)
    found = certify(book.records, delta=1e-5)
    (together,) = found.sums
    assert together.delta == 1e-5
    console = Console(file=StringIO(), width=200)
    print_certificate(found, console, full=True)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for shown in (printed, certificate_markdown(found)):
        assert "um, for a person with one row in each of accountants 1 and 2" in shown
        assert "not declared" in shown


def test_too_many_different_totals_are_said_to_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_accountants, "_MOST_SUMS", 3)
    book = Ledger.memory()
    for mass in (1, 2):
        accountant = central(book, GaussianDP(9))
        accountant.commit(
            [Plan("a", GaussianLoss(mass), range(5)), Plan("b", GaussianLoss(5), range(5, 10))]
        )
    found = certify(book.records)
    assert found.sums == []
    assert any("was not computed" in remark for remark in found.remarks)
    assert found.problems == []
    assert found.mu == pytest.approx(162**0.5), "the sum of the caps is a bound"


# The whole ledger ---------------------------------------------------------------------------------


def worst_mass(
    accounts: list[tuple[str | None, Adjacency, dict[int, Fraction]]], user: int | None = None
) -> Fraction:
    """The largest μ² of a person, over all ways to be some index in each population."""
    relations = {relation for _, relation, _ in accounts}
    people: dict[object, list[dict[int, Fraction]]] = {}
    for number, (population, relation, masses) in enumerate(accounts):
        steps = 2 if relations != {relation} and relation is not Adjacency.REPLACE_ONE else 1
        priced = {index: mass * steps**2 for index, mass in masses.items()}
        people.setdefault(population or number, []).append(priced)
    ways = [[sum(m.get(i, Fraction(0)) for m in of) for i in range(20)] for of in people.values()]
    if user is None:
        return Fraction(sum(max(way) for way in ways))
    has = [any(user in masses for masses in of) for of in people.values()]
    most = [
        ways[k][user] + sum(max(way) for place, way in enumerate(ways) if place != k)
        for k in range(len(ways))
        if has[k]
    ]
    return Fraction(max(most))


@given(st.randoms(use_true_random=False))
def test_the_guarantee_of_a_ledger_is_what_one_person_may_lose(random: Random) -> None:
    """Against an array over indices; caps and plans, of every trust, relation and population."""
    book = Ledger.memory()
    accounts: list[tuple[str | None, Adjacency, dict[int, Fraction]]] = []
    for _ in range(random.randint(2, 4)):
        kind: Any = random.choice([CentralAccountant, JointAccountant, LocalAccountant])
        relation = random.choice([Adjacency.REPLACE_ONE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
        population = random.choice([None, "p", "q"])
        start = random.randint(0, 10)
        users, cap = range(start, start + random.randint(1, 8)), Fraction(random.randint(1, 9), 10)
        account = kind(
            GaussianDP.from_mu_squared(cap),
            users=users,
            ledger=book,
            shared=bool(accounts),
            population=population,
            adjacency=relation,
        )
        masses = dict.fromkeys(users, cap)
        if random.random() < 0.5:
            first = random.choice(users)
            account.commit(
                [
                    Plan("a", GaussianLoss(cap / 3, adjacency=relation), users),
                    Plan("b", GaussianLoss(cap / 2, adjacency=relation), range(first, users.stop)),
                ]
            )
            masses = {i: cap / 3 + (cap / 2 if i >= first else 0) for i in users}
        accounts.append((population, relation, masses))
    found = certify(book.records)
    assert found.problems == []
    assert found.mu == pytest.approx(float(worst_mass(accounts)) ** 0.5, rel=1e-12)
    assert found.epsilon == epsilon_of(GaussianLoss(worst_mass(accounts)), 1e-6).value
    user = random.choice(sorted(set().union(*(masses for _, _, masses in accounts))))
    asked = certify(book.records, user=user)
    assert asked.mu == pytest.approx(float(worst_mass(accounts, user)) ** 0.5, rel=1e-12)


def test_four_accounts_cost_what_a_numerical_composition_says() -> None:
    """Two Laplace releases, one of them zero-out, and two Gaussian ones, composed by others."""
    from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    book = Ledger.memory()
    central(book, PureDP(1)).commit([Plan("l", LaplaceLoss("0.4"), USERS)])
    joint: JointAccountant[Any] = JointAccountant(ZCDP(1), users=USERS, ledger=book, shared=True)
    joint.commit([Plan("g", GaussianLoss("0.25"), USERS)])
    zero = {"adjacency": Adjacency.ZERO_OUT}
    central(book, PureDP(1), **zero).commit([Plan("l", LaplaceLoss("0.2", **zero), USERS)])
    local: LocalAccountant[Any] = LocalAccountant(ZCDP(1), users=USERS, ledger=book, shared=True)
    local.commit([Plan("g", GaussianLoss("0.09"), USERS)])
    theirs = PLDAccountant(value_discretization_interval=1e-3)
    events: list[DpEvent] = [LaplaceDpEvent(2.5), LaplaceDpEvent(2.5)]
    for event in [*events, GaussianDpEvent(2.0), GaussianDpEvent(1 / 0.3)]:
        theirs.compose(event)
    found = certify(book.records, delta=1e-6)
    assert found.together is not None
    truth = theirs.get_epsilon(1e-6)
    assert truth * (1 - 1e-3) <= found.epsilon <= truth * 1.01
    assert max(guarantee.epsilon for guarantee in found.guarantees) < 0.7 * found.epsilon


def test_where_nothing_is_certified_there_is_no_finite_epsilon() -> None:
    """Simulated noise, a release that is not covered, and losses that nothing adds up."""
    simulated = Ledger.memory()
    central(simulated, shared=False, noise=NoiseSource.simulation(1))
    found = certify(simulated.records)
    assert math.isfinite(found.guarantees[0].epsilon)
    assert (found.epsilon, found.rho, found.mu) == (math.inf, None, None)
    assert "simulation" in found.not_certified
    uncovered = Ledger.memory()
    token = central(uncovered, shared=False).issue(SUM.loss(), users=USERS, label="sum")
    with pytest.raises(ZeroDivisionError):
        stops_with_rows_open(token)
    found = certify(uncovered.records)
    assert (found.epsilon, found.rho) == (math.inf, None)
    assert found.not_certified == "the audit found 1 problem"
    assert "not covered" in found.problems[0]
    mixed_ = Ledger.memory()
    central(mixed_, adjacency=Adjacency.ADD_REMOVE, failure="1e-9")
    central(mixed_)
    found = certify(mixed_.records)
    assert (found.problems, found.epsilon) == ([], math.inf)
    assert "accountant 1 is for add-remove and others of the ledger are not" in found.not_certified


def stops_with_rows_open(token: Any) -> None:
    with token.spend(Spend("sum", SUM.domain, SUM.noise)) as receipt:
        receipt.open(rows())
        raise ZeroDivisionError


def test_one_accountant_is_the_whole_ledger_and_what_it_delegates_is_in_its_cap() -> None:
    book = Ledger.memory()
    one = central(book, ZCDP(1), shared=False)
    part = one.delegate(ZCDP("0.5"), users=USERS, label="component")
    SUM.release(rows(), part.issue(SUM.loss(), users=USERS, label="inner"))
    found = certify(book.records, delta=1e-6)
    assert (found.together, found.composition) == (None, found.guarantees[0])
    assert (found.epsilon, found.rho, found.delta) == (epsilon_of(ZCDP(1), 1e-6).value, 1, 1e-6)
    second = JointAccountant(ZCDP(1), users=USERS, ledger=book, shared=True)
    second.delegate(ZCDP("0.5"), users=USERS, label="component")
    assert certify(book.records).rho == 2
    assert certify(book.records, rounds=2).rho == 8
