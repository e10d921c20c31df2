"""Whoever wrote a ledger does not decide how long its audit takes, and cannot make it lie."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from privlearn.accountants import epsilon_delta
from privlearn.accountants.audit import certify
from privlearn.accountants.epsilon_delta import Work, largest_epsilon
from privlearn.accountants.prices import MOST_ORDERS, CurveWork
from privlearn.errors import BudgetError
from privlearn.ledger import write_export
from privlearn.ledger.chain import chained
from privlearn.losses import LaplaceLoss, Loss, RandomizedResponse, SubsampledGaussian, compose
from privlearn.reporting import figures as pictures
from privlearn.values.adjacency import Adjacency

OPEN: dict[str, Any] = {
    "entry": "open",
    "software": "privlearn",
    "trust": "central",
    "adjacency": "replace-one",
    "users": [0, 10],
    "cap": {"kind": "zcdp", "rho": "1000"},
    "promise": None,
    "noise": "secure",
    "simulated": False,
    "side_information": [],
    "durable": True,
}


def plan(name: str, losses: list[Loss]) -> dict[str, Any]:
    """A plan of one run of each loss for everybody."""
    items = [{"label": "", "users": [0, 10], "loss": loss.to_dict()} for loss in losses]
    return {"entry": "plan", "accountant": name, "items": items}


def test_tight_compositions_end_with_the_work_and_leave_bounds_that_hold() -> None:
    work, epsilons = Work(), [f"0.{n}" for n in range(100, 200)]
    totals = [compose([(LaplaceLoss(epsilon), 100)]) for epsilon in epsilons]
    answers = [largest_epsilon([total], 1e-6, work=work) for total in totals]
    tight = [answer.method == "dominating pairs" for answer in answers]
    assert 10 < sum(tight) < 60
    assert tight == sorted(tight, reverse=True)
    first = tight.index(False)
    exact = largest_epsilon([totals[first]], 1e-6)
    assert exact.method == "dominating pairs"
    assert exact.value < answers[first].value < 1.5 * exact.value
    assert largest_epsilon([totals[0]], 1e-6, work=work) == answers[0]  # known: no further work


def test_sampled_losses_take_more_of_the_work() -> None:
    work = Work()
    sampled = [
        SubsampledGaussian(f"{n}", "0.01", adjacency=Adjacency.ADD_REMOVE) for n in range(2, 12)
    ]
    assert 1 < sum(map(work.allows, sampled)) < 6
    assert work.allows(LaplaceLoss("0.1"))


def test_many_accountants_share_the_work_of_one_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epsilon_delta, "_MOST_WORK", 300)
    bodies = []
    for n in range(6):
        losses: list[Loss] = [LaplaceLoss(f"0.1{n}")] * 50
        bodies += [OPEN | {"accountant": f"{n}"}, plan(f"{n}", losses)]
    found = certify(chained(bodies))
    methods = [guarantee.method for guarantee in found.guarantees]
    assert found.problems == []
    assert methods.count("dominating pairs") == 2
    assert methods.count("renyi") == 4


def test_the_orders_of_a_curve_times_its_losses_are_limited() -> None:
    many = {"kind": "renyi", "curve": [[f"{n}", "9"] for n in range(2, 302)]}
    found = certify(chained([OPEN | {"accountant": "a", "cap": many}]))
    assert any("cap at 300 orders: at most 256" in problem for problem in found.problems)
    cap = {"kind": "renyi", "curve": many["curve"][:250]}
    losses: list[Loss] = [LaplaceLoss(f"1e-5{n}") for n in range(4)]
    opened = OPEN | {"accountant": "a", "cap": cap}
    assert certify(chained([opened, plan("a", losses)])).problems == []
    work = CurveWork(left=1000)
    for _ in range(4):
        work.take(250)
    with pytest.raises(BudgetError, match="a loss to be priced with 250 values"):
        work.take(250)
    work.left += MOST_ORDERS  # an entry was recorded
    work.take(250)


def test_the_accountants_of_a_ledger_share_the_prices_of_one_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cap = {"kind": "renyi", "curve": [[f"{n}", "9"] for n in range(2, 252)]}
    module = sys.modules["privlearn.accountants.audited_accounts"]
    monkeypatch.setattr(module, "CurveWork", lambda: CurveWork(left=750))
    bodies = []
    for name in ("a", "b"):
        losses: list[Loss] = [LaplaceLoss(f"0.00{n}") for n in range(1, 4)]
        bodies += [OPEN | {"accountant": name, "cap": cap}, plan(name, losses)]
    assert certify(chained(bodies[:2])).problems == []
    (problem,) = certify(chained(bodies)).problems
    assert "entry 3: a loss to be priced with 250 values" in problem


def test_randomized_responses_of_many_kinds_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["privlearn.accountants.audited_accounts"]
    monkeypatch.setattr(module, "CurveWork", lambda: CurveWork(left=3 * 600))
    losses: list[Loss] = [RandomizedResponse(f"0.00{n}", 20) for n in range(1, 4)]
    opened = OPEN | {"accountant": "a"}
    assert certify(chained([opened, plan("a", losses * 2)])).problems == []
    found = certify(chained([opened, plan("a", [*losses, RandomizedResponse("0.004", 20)])]))
    assert any("entry 1: a loss to be priced" in problem for problem in found.problems)
    two: list[Loss] = [RandomizedResponse(f"0.00{n}") for n in range(1, 9)]  # takes no search
    assert certify(chained([opened, plan("a", two)])).problems == []


@pytest.mark.parametrize("head", ["abc", "A" * 64, "0" * 65, ""])
def test_a_head_that_is_none_does_not_accuse_the_ledger(head: str) -> None:
    with pytest.raises(ValueError, match="must be 64 hexadecimal digits"):
        certify(chained([OPEN | {"accountant": "a"}]), head=head)


def test_rounds_without_a_finite_epsilon_are_no_problem_of_the_record() -> None:
    promise = {"kind": "approx", "epsilon": "1", "delta": "1e-6"}
    opened = OPEN | {
        "accountant": "a",
        "cap": {"kind": "zcdp", "rho": "0.01"},
        "promise": promise,
        "failure": "1e-9",
    }
    found = certify(chained([opened]), rounds=5000)
    assert found.guarantees[0].epsilon == math.inf
    assert found.problems == []
    broken = certify(chained([opened | {"promise": None, "failure": "0.1"}]), delta=1e-3)
    assert broken.guarantees[0].epsilon == math.inf


def test_of_very_many_accountants_the_first_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "_MOST_PANELS", 1)
    figures: list[Any] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    write_export(tmp_path / "l.jsonl", chained([OPEN | {"accountant": f"{n}"} for n in range(3)]))
    found = pictures.plot_spending(tmp_path / "l.png", tmp_path / "l.jsonl")
    assert len(found) == 3
    assert len(figures[0].axes) == 1
    assert figures[0].get_suptitle() == "the first 1 of 3 accountants"
