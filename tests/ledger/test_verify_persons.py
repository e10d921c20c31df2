"""The verifier of what persons pay, which shares nothing with this package but a page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from person_ledgers import (
    BATCH_FAULTS,
    FAULTS,
    SLOTS,
    a_lease_ahead,
    batched,
    changed,
    leased_runs,
    sound,
)

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.persons import PersonCharges, Visits
from privlearn.learners import PrivateArms
from privlearn.ledger import Ledger, Record, read_records, write_export
from privlearn.ledger.chain import chained
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.participation import Participation

DOCS = Path(__file__).resolve().parents[2] / "docs"
SEEN_ONLY_WITH_THE_PACKAGE = {
    "wrong S": "gains",
    "wrong kappa": "gains",
    "gain of one row": "gains",
    "no factorisation": "gains",
    "no price": "other losses than Gaussian ones",
}


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "verify_ledger", raising=False)
    spec = importlib.util.spec_from_file_location("verify_persons", DOCS / "verify_persons.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported(tmp_path: Path, records: list[Record]) -> Path:
    write_export(tmp_path / "ledger.jsonl", records)
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize("records", [sound, batched], ids=["apart", "per batch"])
def test_a_sound_ledger_of_persons_is_verified_without_the_package(
    tmp_path: Path, records: Callable[[], tuple[Record, ...]]
) -> None:
    path = exported(tmp_path, list(records()))
    command = [sys.executable, "-S", str(DOCS / "verify_persons.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert "how far all visits of a person move streams" in told["unchecked"]
    assert not [text for text in told["unchecked"] if "comes back" in text]


def test_a_plain_sum_with_a_loss_for_all_visits_is_refused_without_a_rule_too(
    tmp_path: Path, verifier: ModuleType
) -> None:
    account = CentralAccountant(ZCDP(1), users=range(4), noise=NoiseSource.simulation(0))
    sums = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/4"))
    token = account.issue(sums.loss(), users=range(4), label="sum")
    sums.release(Rows.seal(np.zeros((4, 2)), users=range(4)), token)
    records = account.ledger.records
    assert verifier.verify(exported(tmp_path, records))["problems"] == []
    bodies = [record.body for record in records]
    loss = {"kind": "visits", "adjacency": "replace-one", "most": 1, "apart": 1}
    bodies[2]["loss"] = {**loss, "loss": bodies[2]["loss"]}
    found = verifier.verify(exported(tmp_path, list(chained(bodies))))
    assert "entry 2: a sum of visits" in found["problems"]


def test_the_gain_of_a_plain_sum_is_one(tmp_path: Path, verifier: ModuleType) -> None:
    """A smaller one would make any noise cheap; of other arithmetic it is a mechanism's word."""
    account = CentralAccountant(ZCDP(1), users=range(4), noise=NoiseSource.simulation(0))
    sums = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/4"))
    token = account.issue(sums.loss(), users=range(4), label="sum")
    sums.release(Rows.seal(np.zeros((4, 2)), users=range(4)), token)
    bodies = [record.body for record in account.ledger.records]
    spend = {**bodies[2], "gain": 0.001, "loss": {**bodies[2]["loss"], "mu_squared": "0.000002"}}
    records = list(chained([*bodies[:2], spend, *bodies[3:]]))
    assert certify(records).problems
    found = verifier.verify(exported(tmp_path, records))
    assert "entry 2: the gain of a plain sum is 1" in found["problems"]
    own = {**spend, "arithmetic": "own"}
    found = verifier.verify(exported(tmp_path, list(chained([*bodies[:2], own, *bodies[3:]]))))
    assert found["problems"] == []
    assert [text for text in found["unchecked"] if text.startswith("gains of what")]


@pytest.mark.parametrize("noise", [NoiseSource.simulation(0), NoiseSource.secure()])
def test_a_simulation_is_said_to_protect_nobody(
    noise: NoiseSource, tmp_path: Path, verifier: ModuleType
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.memory()
    account = CentralAccountant(ZCDP(1), users=range(4), noise=noise, ledger=ledger)
    account.close()
    write_export(path, ledger.records)
    found = verifier.verify(path)
    assert found["problems"] == []
    told = [text for text in found["unchecked"] if "the noise is simulated" in text]
    assert bool(told) is noise.simulated


def test_the_other_verifier_says_that_it_left_the_totals(tmp_path: Path) -> None:
    path = exported(tmp_path, list(sound()))
    command = [sys.executable, "-I", "-S", str(DOCS / "verify_ledger.py"), str(path)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert told["problems"] == []
    assert [text for text in told["unchecked"] if "verify_persons.py" in text]


@pytest.mark.parametrize("name", [*FAULTS, *BATCH_FAULTS])
def test_faults_are_found_by_both(name: str, tmp_path: Path, verifier: ModuleType) -> None:
    records, (change, _) = (
        (sound(), FAULTS[name]) if name in FAULTS else (batched(), BATCH_FAULTS[name])
    )
    found = verifier.verify(exported(tmp_path, changed(records, change)))
    assert bool(found["problems"]) is (name not in SEEN_ONLY_WITH_THE_PACKAGE)
    if name in SEEN_ONLY_WITH_THE_PACKAGE:
        assert [text for text in found["unchecked"] if "person" in text]


def test_a_lease_is_of_slots_that_are_over_and_its_price_is_left(
    tmp_path: Path, verifier: ModuleType
) -> None:
    found = verifier.verify(exported(tmp_path, list(leased_runs())))
    assert found["problems"] == []
    assert "that leases pay for all of their runs, and sums with them" in found["unchecked"]
    assert "what has the kind composed, and sums with them" in found["unchecked"]
    (tmp_path / "ledger.jsonl").unlink()
    ahead = exported(tmp_path, changed(leased_runs(), a_lease_ahead))
    (problem,) = verifier.verify(ahead)["problems"]
    assert "a lease is of slots that are over" in problem


def test_a_cap_below_what_a_person_can_be_charged_is_a_problem(
    tmp_path: Path, verifier: ModuleType
) -> None:
    def smaller(bodies: list[dict[str, Any]], _: object) -> None:
        bodies[0]["cap"]["rho"] = "0.2"  # one visit and the stream are within it

    found = verifier.verify(exported(tmp_path, changed(sound(), smaller)))
    assert found["problems"] == ["a person can be charged more than the cap"]


def serve(learner: PrivateArms, upto: int) -> None:
    while learner.clock_ < upto:
        learner.select(person=f"p{learner.clock_ % 7}")
        learner.observe(1.0)


@pytest.mark.parametrize("cap", [PureDP(1), ZCDP(1)], ids=str)
def test_phases_of_persons_who_return_are_verified_across_a_kill(
    cap: Any, tmp_path: Path, verifier: ModuleType
) -> None:
    path, rule = tmp_path / "arms.db", Participation(2, apart=3)
    people = People.create(tmp_path / "people", rule)
    book = JointAccountant(cap, users=range(60), people=people, ledger=Ledger.create(path))
    serve(PrivateArms(2).start(book), 25)
    book.ledger.close()  # within a phase
    people.close()
    people = People.open(tmp_path / "people", rule)
    book = JointAccountant.resume(path, people=people)
    serve(PrivateArms.resume(book), 60)
    book.close()
    book.ledger.close()
    people.close()
    found = verifier.verify(path)
    assert found["problems"] == []
    assert not [text for text in found["unchecked"] if "sums with them" in text or "earns" in text]
    records = list(read_records(path))
    assert [record.body["entry"] for record in records].count("spend") == 2
    assert not certify(records).problems
    (name,) = cap.to_dict().keys() - {"kind"}

    def smaller(bodies: list[dict[str, Any]], _: object) -> None:
        bodies[0]["cap"][name] = "0.9"

    lie = changed(tuple(records), smaller)
    assert certify(lie).problems
    (problem,) = verifier.verify(exported(tmp_path, lie))["problems"]
    assert problem == "a person can be charged more than the cap"


Bodies = list[dict[str, Any]]


def planned_streams(*ways: tuple[range, tuple[int, ...]]) -> list[Record]:
    """One planned stream for persons with one visit, and a token of it for each way: its users, and
    how far it says that it comes."""
    opened, spend, end = (sound()[i].body for i in (0, 5, 6))
    of = {"accountant": opened["accountant"]}
    loss = {"kind": "gaussian", "adjacency": "zero-out", "mu_squared": "1"}
    item = {"label": "sum", "users": [0, 12], "loss": loss, "count": 1}
    features = {**opened["features"], "resume/1": "critical"}
    bodies: Bodies = [
        {**opened, "cap": {"kind": "zcdp", "rho": "1/2"}, "features": features},
        {**of, "entry": "plan", "items": [item]},
    ]
    rule = Participation(1).to_dict()
    data = {0: {"participation/1": {**sound()[0].ext["participation/1"], "rule": rule}}}
    for number, (users, stops) in enumerate(ways):
        token = {**of, "token": f"t{number}"}
        whom = {**token, "users": [users.start, users.stop]}
        budget = {"kind": "zcdp", "rho": "1/2"}
        bodies.append({**whom, "entry": "issue", "label": "sum", "budget": budget, "planned": 0})
        data[len(bodies)] = {"participation/1": {"clock": 12}}
        how = {"derived": False, "interactive": bool(stops)}
        bodies.append({**spend, **whom, "loss": loss, "parameters": {}, **how})
        bodies += [{**token, "entry": "reach", "stop": stop} for stop in stops]
        bodies.append({**end, **token})
    return chained(bodies, data)


def stray_batches(stray: bool) -> list[Record]:
    """Beside an account with batches one of single arrivals, perhaps with batches as well."""
    bodies = [record.body for record in batched()]
    features = {"exact/1": "optional"}
    other = {**bodies[0], "accountant": "other", "features": features}
    more = [other, {**bodies[1], "accountant": "other"}][: 1 + stray]
    return chained([*bodies, *more], {record.seq: dict(record.ext) for record in batched()})


def clock_of_the_spend(clock: int) -> list[Record]:
    def change(bodies: Bodies, data: dict[int, dict[str, Any]]) -> None:
        for seq in (5, 6):
            data[seq]["participation/1"]["clock"] = clock

    return changed(sound(), change)


def failing(failure: str) -> list[Record]:
    def change(bodies: Bodies, _: object) -> None:
        bodies[1]["failure"] = failure

    return changed(sound(), change)


def unused(users: list[int]) -> list[Record]:
    """A token for a whole budget, which was not used."""
    bodies = [record.body for record in batched()]
    issue = {**bodies[2], "token": "more", "users": users}
    end = {**bodies[-2], "token": "more", "outcome": "unused", "digest": None}
    data = {record.seq: dict(record.ext) for record in batched()}
    return chained([*bodies[:-1], issue, end, bodies[-1]], data)


ONCE: tuple[range, tuple[int, ...]] = SLOTS, ()
TRICKS: dict[str, tuple[list[Record], list[Record]]] = {
    "a planned run again": (planned_streams(ONCE), planned_streams(*[ONCE] * 3)),
    "a reach that goes back": (
        planned_streams((SLOTS, (6,)), (range(6, 12), (12,))),
        planned_streams((SLOTS, (12, 1)), (range(1, 12), (12,))),
    ),
    "batches of no rule": (stray_batches(False), stray_batches(True)),
    "a clock beyond the slots": (clock_of_the_spend(12), clock_of_the_spend(13)),
    "half a batch, unused": (unused([0, 6]), unused([0, 5])),
    "no probability": (failing("0.0"), failing("1")),
}


@pytest.mark.parametrize("name", TRICKS)
def test_structure_is_asked_for_in_any_case(
    name: str, tmp_path: Path, verifier: ModuleType
) -> None:
    """What is right passes both, and what is not is found by both."""
    for records, wrong in zip(TRICKS[name], (False, True), strict=True):
        found = certify(records)
        assert bool(found.problems) is wrong
        assert bool(verifier.verify(exported(tmp_path, records))["problems"]) is wrong
        (tmp_path / "ledger.jsonl").unlink()


def test_what_one_account_left_unchecked_stays_unchecked(
    tmp_path: Path, verifier: ModuleType
) -> None:
    """Its own checks say nothing of another account."""
    bodies = [record.body for record in sound()]
    cap = {"kind": "gdp", "mu_squared": "1"}
    other = {**bodies[0], "accountant": "other", "cap": cap}
    data = {record.seq: dict(record.ext) for record in sound()}
    records = chained([*bodies, other], {**data, len(bodies): data[0]})
    found = verifier.verify(exported(tmp_path, records))
    assert found["problems"] == []
    assert "what has the kind gdp, and sums with them" in found["unchecked"]


@pytest.mark.parametrize("seed", range(40))
def test_two_programmes_find_the_same_largest_total(seed: int, verifier: ModuleType) -> None:
    rng = np.random.default_rng(seed)
    most, starts = int(rng.integers(1, 6)), (0, 2, 5, 9)
    rule = [
        Participation(most, apart=int(rng.integers(1, 6))),
        Participation(most, pooled=True),
        Participation(most, per_batch=int(rng.integers(1, most + 1))),
    ][seed % 3]
    visits = Visits(rule, SLOTS, starts if rule.batched else ())
    theirs = object.__new__(verifier.Persons)
    theirs.rule, theirs.starts = rule.to_dict(), list(visits.starts)
    theirs.per_batch, theirs.left = rule.in_a_batch, 10**6
    theirs.body = {"users": [SLOTS.start, SLOTS.stop]}
    ours, charges = PersonCharges(visits, 1), []
    for _ in range(int(rng.integers(1, 7))):
        edges = [*starts, SLOTS.stop] if rule.batched else range(SLOTS.stop + 1)
        low, high = sorted(int(e) for e in rng.choice(edges, 2, replace=False))
        rho, shared = Fraction(int(rng.integers(1, 20)), 7), bool(rng.integers(2))
        ours.charge(range(low, high), (rho,), shared)
        charges.append(([low, high], rho, theirs.most([low, high]) if shared else 0))
    assert theirs.largest(charges) == ours.largest()[0]
