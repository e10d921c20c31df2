"""Meters: code of others is paid for before it runs, and the ledger says no more than its price."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import die

from privlearn.accountants import (
    CentralAccountant,
    JointAccountant,
    LocalAccountant,
    TrustedCode,
    audit,
)
from privlearn.accountants.audit import certify
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CurrencyError,
    InsufficientBudgetError,
    LeaseError,
    LedgerClosedError,
    TokenCopyError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.ledger.values import digest_of
from privlearn.losses import GaussianLoss, LaplaceLoss, PureLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting.certificates import certificate_markdown
from privlearn.reporting.page import page_html
from privlearn.reporting.report import report
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(6)
CODE = TrustedCode("opendp", "0.14.1", {"d_in": 1, "measure": "MaxDivergence"})


def in_file(path: Path, cap: Any = None, **others: Any) -> CentralAccountant[Any]:
    return CentralAccountant(cap or PureDP(2), users=USERS, ledger=path, **others)


def in_memory(cap: Any = None, **others: Any) -> CentralAccountant[Any]:
    return CentralAccountant(
        cap or PureDP(2), users=USERS, noise=NoiseSource.simulation(1), **others
    )


def spends(accountant: Any) -> list[SpendEntry]:
    return [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]


def ends(accountant: Any) -> list[RetireEntry]:
    return [e for e in accountant.ledger.entries if isinstance(e, RetireEntry)]


def standalone() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# One block ----------------------------------------------------------------------------------------


def test_the_spend_is_on_disk_before_the_block_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with in_file(path) as accountant:
        with accountant.meter(PureDP("0.5"), label="mean", code=CODE) as spend:
            beside = audit(path, delta=0)  # as another process would find it now
            assert beside.spends == 1
            assert not beside.problems
            assert beside.spent[0].epsilon == pytest.approx(0.5)
            assert spend.release(3.5) == 3.5
        assert accountant.spent() == PureDP("0.5")
        (value,) = accountant.released("mean")
        assert value.value == 3.5
        assert value.users == USERS
        assert value.paid_by == spend.token_id
    found = audit(path)
    assert found.holds
    assert found.lost == 0
    told = [word for word in found.trusted_code if "opendp" in word]
    assert told == [
        'metered code, package opendp, version 0.14.1, {"d_in":1,"measure":"MaxDivergence"}: '
        "that its output has the loss it was priced by is its own word"
    ]
    assert "of metered code its own" in found.noise
    assert any("is not of this package" in each for each in found.guarantees[0].assumptions)
    assert standalone().verify(path)["problems"] == []


def test_an_overspend_is_refused_before_the_block_runs() -> None:
    accountant = in_memory()
    meter = accountant.meter(PureDP("2.5"), label="much")
    ran = []
    with pytest.raises(InsufficientBudgetError), meter:
        ran.append(1)
    assert not ran
    assert accountant.spent() == PureDP(0)
    with accountant.meter(PureDP(2), label="all") as spend:  # nothing is reserved either
        spend.release(0)


class SecretError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (SecretError("patient 7"), "uncovered"),
        (SystemExit(7), "uncovered"),
        (KeyboardInterrupt("patient 7"), "lost"),
    ],
)
def test_an_exception_leaves_it_charged_and_tells_nothing(
    tmp_path: Path, raised: BaseException, outcome: str
) -> None:
    path = tmp_path / "ledger.db"
    accountant = in_file(path)

    @accountant.meter(PureDP("0.5"), label="mean")
    def fails() -> float:
        raise raised

    with pytest.raises(type(raised)):
        fails()
    assert accountant.spent() == PureDP("0.5")
    (end,) = ends(accountant)
    assert end.outcome == outcome
    assert end.digest is None
    assert end.value is None
    accountant.close()
    kept = path.read_bytes()
    for secret in (
        b"patient 7",
        b"Secret",
        b"SystemExit",
        b"Interrupt",
        digest_of(np.array(41.75)),
    ):
        assert (secret if isinstance(secret, bytes) else secret.encode()) not in kept
    assert bool(audit(path).problems) is (outcome == "uncovered")


def test_a_block_that_hands_nothing_over_is_an_error() -> None:
    accountant = in_memory()
    with (
        pytest.raises(TokenError, match="without spend"),
        accountant.meter(PureDP("0.5"), label="mean"),
    ):
        pass
    assert ends(accountant)[0].outcome == "uncovered"
    with accountant.meter(PureDP("0.5"), label="mean") as spend:
        with pytest.raises(TokenError, match="has not done its work"):
            spend.release(x for x in [1])
        spend.release(1)
        with pytest.raises(TokenSpentError, match="one release"):
            spend.release(2)


class Model:
    """A fitted model, which may hold more than what is released."""

    def __init__(self) -> None:
        self.training = np.arange(3.0)


@pytest.mark.parametrize(
    ("value", "stands"),
    [
        (3, np.array(3)),
        (np.float32(2.5), np.array(np.float32(2.5))),
        ("b", np.array("b")),
        ([1.5, 2.5], np.array([1.5, 2.5])),
        (np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2)),
        (Model(), None),
        ([1.5, Model()], None),
        (2**80, None),
        (None, None),
        ({"a": 1}, None),
        (np.ma.masked_array([1.0, 99.0], mask=[False, True]), None),  # holds what it hides
    ],
)
def test_only_what_is_numbers_or_text_and_nothing_else_is_recorded(
    tmp_path: Path, value: object, stands: Any
) -> None:
    with in_file(tmp_path / "ledger.db") as accountant:
        with accountant.meter(PureDP("0.5"), label="value") as spend:
            assert spend.release(value) is value
        (end,) = ends(accountant)
        assert end.outcome == "released"
        if stands is None:
            assert end.digest is None
            assert end.value is None
        else:
            assert end.value is not None
            assert end.value["digest"] == digest_of(stands)
            np.testing.assert_array_equal(accountant.released("value")[0].value, stands)
        with accountant.meter(PureDP("0.5"), label="not kept") as spend:
            spend.release(value, keep=False)
        assert ends(accountant)[1].value is None


# Every call ---------------------------------------------------------------------------------------


def test_every_call_of_a_decorated_function_pays() -> None:
    accountant = in_memory()
    ran = []

    @accountant.meter(PureDP("0.75"), label="sum", users=range(3), code=CODE)
    def noisy(values: list[float], *, shift: float = 0.0) -> float:
        """Adds up."""
        ran.append(shift)
        return sum(values) + shift

    assert noisy.__doc__ == "Adds up."
    assert noisy([1.0, 2.0]) == 3.0
    assert noisy([1.0], shift=1.0) == 2.0
    with pytest.raises(InsufficientBudgetError):
        noisy([1.0], shift=2.0)
    assert ran == [0.0, 1.0]
    assert accountant.spent(0) == PureDP("1.5")
    assert accountant.spent(4) == PureDP(0)
    assert [e.parameters["metered"]["package"] for e in spends(accountant)] == ["opendp"] * 2


def test_what_returns_before_its_work_is_done_is_not_metered() -> None:
    meter = in_memory().meter(PureDP(1), label="late")

    def generator() -> Any:
        yield 1

    async def coroutine() -> int:
        return 1

    for late in (generator, coroutine):
        with pytest.raises(TypeError, match="before its work is done"):
            meter(late)


@pytest.mark.parametrize(
    ("cap", "price", "spent"),
    [
        (PureDP(1), LaplaceLoss("0.5"), PureDP("0.5")),
        (ZCDP(1), ZCDP("0.25"), ZCDP("0.25")),
        (ZCDP(1), GaussianLoss("0.5"), ZCDP("0.25")),
        (GaussianDP(1), GaussianDP("0.5"), GaussianDP("0.5")),
        (Renyi({2: 1}), Renyi({2: "0.25"}), Renyi({2: "0.25"})),
        (ApproxDP(1, "1e-5"), ZCDP("0.001"), ZCDP("0.001")),
    ],
)
def test_a_price_is_a_loss_or_a_budget(cap: Any, price: Any, spent: Any) -> None:
    accountant = in_memory(cap)
    with accountant.meter(price, label="x") as spend:
        spend.release(0)
    assert accountant.spent() == spent


def test_a_price_that_may_fail_takes_from_what_is_set_aside() -> None:
    accountant = in_memory(PureDP(1), failure="1e-5")
    with accountant.meter(ApproxDP("0.5", "1e-6"), label="x") as spend:
        spend.release(0)
    assert accountant.spent() == PureDP("0.5")
    assert float(accountant.failure()) == 1e-6


def test_bad_prices_and_codes_are_refused_by_name() -> None:
    accountant = in_memory()
    with pytest.raises(AdjacencyError, match="add-remove"):
        accountant.meter(PureLoss(1, adjacency=Adjacency.ADD_REMOVE), label="x")
    with pytest.raises(TypeError, match="price = 0"):
        accountant.meter(0.5, label="x")  # type: ignore[arg-type]
    for price in (PureDP(0), ZCDP(0)):
        with pytest.raises(ValueError, match="must"):
            accountant.meter(price, label="x")
    with pytest.raises(CurrencyError), accountant.meter(ZCDP(1), label="x"):
        pass
    with pytest.raises(UsersError), accountant.meter(PureDP(1), label="x", users=range(9)):
        pass
    with pytest.raises(ValueError, match="JSON"):
        TrustedCode("x", "1", {"epsilon": float("nan")})
    with pytest.raises(ValueError, match="4096"):
        TrustedCode("x", "1", {"bounds": "9" * 5000})
    with pytest.raises(ValueError, match="version"):
        TrustedCode("x", "")
    assert accountant.spent() == PureDP(0)
    stated = {"bounds": [0, 1]}
    code = TrustedCode("x", "1", stated)
    stated["bounds"].append(2)
    assert code.parameters == {"bounds": [0, 1]}


# Single use, threads, forks, restarts -------------------------------------------------------------


def test_a_meter_is_used_once_and_not_copied() -> None:
    accountant = in_memory()
    meter = accountant.meter(PureDP("0.5"), label="x")
    with meter as spend:
        with pytest.raises(TokenSpentError), meter:
            pass
        spend.release(0)
    with pytest.raises(TokenSpentError), meter:
        pass
    with pytest.raises(TokenSpentError):
        spend.release(1)
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TokenCopyError):
            copying(meter)
    assert len(spends(accountant)) == 1


def test_threads_together_spend_no_more_than_the_cap() -> None:
    accountant = in_memory(PureDP(1))
    ran: list[int] = []

    @accountant.meter(PureDP("0.1"), label="x")
    def call(number: int) -> int:
        ran.append(number)
        return number

    def calls() -> None:
        for number in range(5):
            try:
                call(number)
            except InsufficientBudgetError:
                return

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 10
    assert accountant.spent() == PureDP(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_pays_nor_ends_a_block(tmp_path: Path) -> None:
    accountant = in_file(tmp_path / "ledger.db")
    meter = accountant.meter(PureDP("0.5"), label="other")
    told = tmp_path / "told"
    with accountant.meter(PureDP("0.5"), label="x") as spend:
        child = os.fork()
        if child == 0:
            found = []
            for act in (
                lambda: meter.__enter__(),
                lambda: spend.release(1),
                lambda: spend._end(None),
                lambda: spend._end(ValueError()),
            ):
                try:
                    act()
                    found.append("none")
                except BaseException as error:
                    found.append(type(error).__name__)
            told.write_text(json.dumps(found))
            os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(told.read_text()) == ["TokenCopyError"] * 4
        spend.release(2)
    assert [e.outcome for e in ends(accountant)] == ["released"]
    accountant.close()
    assert audit(tmp_path / "ledger.db").holds


def test_a_block_that_a_process_died_in_stays_charged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    accountant = in_file(path)
    block = accountant.meter(PureDP("0.5"), label="x")
    block.__enter__().release(1.0)
    die(accountant)
    again: CentralAccountant[PureDP] = CentralAccountant.resume(path)
    assert again.spent() == PureDP("0.5")
    assert ends(again)[0].outcome == "lost"
    with again.meter(PureDP("0.5"), label="x") as spend:
        spend.release(2.0)
    assert [value.value for value in again.released("x")] == [2.0]
    again.close()
    assert audit(path).lost == 1


def test_a_block_whose_account_is_closed_releases_nothing() -> None:
    accountant = in_memory()

    @accountant.meter(PureDP("0.5"), label="x")
    def closes() -> int:
        accountant.close()
        return 1

    with pytest.raises(TokenSpentError, match="ended lost"):
        closes()
    with pytest.raises(LedgerClosedError), accountant.meter(PureDP("0.5"), label="x"):
        pass


# Plans, parts, leases, other accounts -------------------------------------------------------------


def test_under_a_plan_it_is_an_item_of_it() -> None:
    accountant = in_memory()
    accountant.commit([Plan("query", LaplaceLoss("0.5"), USERS, 2)])
    for _ in range(2):
        with accountant.meter(LaplaceLoss("0.5"), label="query") as spend:
            spend.release(0)
    with pytest.raises(BudgetError), accountant.meter(LaplaceLoss("0.5"), label="query"):
        pass
    with pytest.raises(BudgetError), accountant.meter(LaplaceLoss("0.5"), label="another"):
        pass


def test_a_delegated_part_pays_from_its_own_cap() -> None:
    accountant = in_memory()
    with accountant.delegate(PureDP(1), users=range(3), label="team") as part:
        with part.meter(PureDP("0.75"), label="x") as spend:
            spend.release(0)
        assert spends(accountant)[0].users == (0, 3)
        with pytest.raises(InsufficientBudgetError), part.meter(PureDP("0.75"), label="x"):
            pass
        with pytest.raises(LeaseError):
            part.meter(PureDP("0.1"), label="x", runs=2)
    assert accountant.spent(0) == PureDP("0.75")


def test_a_cap_inside_the_account_holds_for_its_blocks() -> None:
    accountant = in_memory()
    team = accountant.nested(PureDP(1), label="team")
    with team.meter(PureDP("0.75"), label="x") as spend:
        spend.release(0)
    with pytest.raises(InsufficientBudgetError), team.meter(PureDP("0.75"), label="x"):
        pass
    assert team.spent() == accountant.spent() == PureDP("0.75")


def test_runs_are_paid_for_at_once_and_shared_by_threads() -> None:
    accountant = in_memory()
    meter = accountant.meter(PureDP("0.01"), label="often", code=CODE, runs=100)
    assert not spends(accountant)
    ran: list[int] = []
    call = meter(ran.append)

    def calls() -> None:
        for number in range(40):
            try:
                call(number)
            except LeaseError:
                return

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 100
    assert accountant.spent() == PureDP(1)
    (spend,) = spends(accountant)
    assert spend.parameters == {"metered": CODE.to_dict(), "lease": {"runs": 100}}
    with pytest.raises(LeaseError), meter:
        pass
    meter.close()
    assert ends(accountant)[0].outcome == "released"
    again = accountant.meter(PureDP("0.01"), label="often", runs=10)
    with again as block:
        block.release(1)
    with pytest.raises(ZeroDivisionError), again:
        raise ZeroDivisionError
    with pytest.raises(LeaseError, match="uncovered"), again:
        pass
    assert certify(accountant.ledger.iterate()).problems


def test_joint_and_local_accounts_meter_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with (
        JointAccountant(ZCDP(1), users=USERS, ledger=path) as joint,
        joint.meter(ZCDP("0.1"), label="x") as spend,
    ):
        spend.release(0)
    assert any(
        "own billboard served is its own word" in a for a in audit(path).guarantees[0].assumptions
    )
    local = LocalAccountant(PureDP(1), users=range(1), noise=NoiseSource.simulation(1))
    with local.meter(PureDP("0.5"), label="x") as spend:
        spend.release(0)
    several = LocalAccountant(PureDP(1), users=range(2), noise=NoiseSource.simulation(1))
    with pytest.raises(UsersError), several.meter(PureDP("0.5"), label="x"):
        pass
    assert several.spent() == PureDP(0)


# What verifiers say -------------------------------------------------------------------------------


FORMS: list[dict[str, Any]] = [
    {"parameters": {"metered": 1}},
    {"parameters": {"metered": {"package": "opendp"}}},
    {"parameters": {"metered": {**CODE.to_dict(), "more": 1}}},
    {"parameters": {"metered": {**CODE.to_dict(), "version": 1}}},
    {"parameters": {}},
    {"domain": {"kind": "another"}},
    {"noise": {"family": "another"}},
    {"derived": True},
    {"arithmetic": "each"},
    {"interactive": True},
    {"gain": 2.0},
]


@pytest.mark.parametrize("change", FORMS)
def test_both_verifiers_find_a_metered_spend_of_another_form(change: dict[str, Any]) -> None:
    accountant = in_memory()
    with accountant.meter(PureDP("0.5"), label="x", code=CODE) as spend:
        spend.release(0)
    accountant.close()
    bodies = [entry.body() for entry in accountant.ledger.entries]
    module = standalone()
    one_file = module.Account(bodies[0] | {"told": None})

    def looked_at() -> None:
        own = bodies[2]["domain"]["kind"], bodies[2]["noise"]["family"]
        one_file.metered(bodies[2] | {"drawn": None}, own)

    assert certify(chained(bodies)).problems == []
    looked_at()
    bodies[2] |= change
    assert certify(chained(bodies)).problems != []
    with pytest.raises(module.WRONG):
        looked_at()


def test_a_mechanism_cannot_pass_for_metered_code() -> None:
    accountant = in_memory(ZCDP(1))
    token = accountant.issue(ZCDP("0.5"), users=USERS, label="x")
    made = Spend("sum", Ball(1.0, 2), GaussianNoise(10.0), parameters={"metered": {}})
    with pytest.raises(BudgetError, match="only that of a meter"):
        token.spend(made)


def test_a_certificate_lists_so_many_codes_and_counts_the_others() -> None:
    accountant = in_memory(ZCDP(1))
    for number in range(105):
        code = TrustedCode("x", "1", {"number": number})
        with accountant.meter(ZCDP("0.001"), label="x", code=code) as spend:
            spend.release(0)
    words = certify(accountant.ledger.iterate()).trusted_code
    assert sum("package x" in word for word in words) == 100
    assert "metered code with other parameters, of 5 spends" in words


def test_the_page_and_the_report_name_the_code(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with (
        in_file(path) as accountant,
        accountant.meter(PureDP("0.5"), label="<mean>", code=CODE) as spend,
    ):
        spend.release(0)
    told = report(path)
    for text in (page_html(told), certificate_markdown(told)):
        assert "opendp" in text
        assert "0.14.1" in text
