"""Ledgers that learners in phases and experts leave after kills, and each of them with one lie."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import die
from grids import thinned
from mortal_subjects import Leader

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.accountants.audit import certify
from privlearn.learners import HeldPolicy, PrivateArms, PrivateExperts, PrivateTest
from privlearn.ledger import Ledger, Record, read_records, write_export
from privlearn.ledger.chain import chained
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.noise import NoiseSource

Entries = list[tuple[dict[str, Any], dict[str, Any]]]
"""Bodies, each with its data of extensions."""
LEARNERS: dict[str, tuple[Callable[[], Any], int, Any]] = {
    "arms": (lambda: PrivateArms(2, first_phase=3), 40, PureDP(1)),
    "arms with memory": (lambda: PrivateArms(2, first_phase=3, memory=20), 40, GaussianDP(1)),
    "held": (lambda: HeldPolicy(Leader(2), n_arms=2, hold=4), 30, ZCDP(1)),
    "test": (lambda: PrivateTest(3, random_state=1), 500, PureDP("0.5")),
    "experts": (lambda: PrivateExperts(3, first_block=10), 90, ZCDP("0.5")),
}


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    """The one that shares no code with the package."""
    file = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def left_by(name: str, seed: int, path: Path) -> list[Record]:
    """A learner's ledger, whose process died twice at some users."""
    make, users, budget = LEARNERS[name]
    rng = np.random.default_rng([seed, 6])
    kind: Any = (JointAccountant, CentralAccountant)[seed % 2]
    noise, ledger = NoiseSource.simulation(seed), Ledger.create(path)
    accountant = kind(budget, users=range(users), ledger=ledger, noise=noise)
    for stop in (*sorted(rng.integers(1, users, size=2).tolist()), users):
        learner = make().start(accountant)
        while learner.clock_ < stop:
            learner.select()
            heard = float(rng.integers(2))
            learner.observe([heard, 1 - heard, 0.5] if name == "experts" else heard)
        if stop < users:
            die(accountant)
            accountant = kind.resume(path, noise=noise)
    accountant.close()
    accountant.ledger.close()
    return list(read_records(path))


def lies(entries: Entries) -> Iterator[tuple[str, Entries]]:
    """With one entry of a phase changed, left out, said twice or at another place."""
    ends = {body["token"]: body["outcome"] for body, _ in entries if body["entry"] == "retire"}
    at = {(b["token"], b["entry"]): i for i, (b, _) in enumerate(entries) if "token" in b}
    for i, (body, ext) in enumerate(entries):
        if body["entry"] not in ("phase", "reach", "publish"):
            continue
        before, after = entries[:i], entries[i + 1 :]
        number = "upto" if body["entry"] == "publish" else "stop"
        # the last of a token that died may just as well not have been written
        if ends[body["token"]] != "lost" or at[body["token"], body["entry"]] != i:
            yield f"{body['entry']} {i} left out", [*before, *after]
        yield f"{body['entry']} {i} twice", [*before, entries[i], entries[i], *after]
        for move in (-1, 1):
            other = {**body, number: body[number] + move}
            yield f"{body['entry']} {i} moved by {move}", [*before, (other, ext), *after]
        if after[0][0].get("token") == body["token"] and after[0][0]["entry"] != "retire":
            yield f"{body['entry']} {i} a place later", [*before, after[0], entries[i], *after[1:]]
    for i, (body, ext) in enumerate(entries):
        if body["entry"] == "spend":
            plain = {k: v for k, v in body["parameters"].items() if k != "phases"}
            changed: Entries = [({**body, "parameters": plain}, ext)]
            yield f"spend {i} without phases", [*entries[:i], *changed, *entries[i + 1 :]]


def rewritten(entries: Entries) -> list[Record]:
    """The chain of these entries, as if they had been written so."""
    return chained([body for body, _ in entries], {i: ext for i, (_, ext) in enumerate(entries)})


CASES = [("arms", 0, 5), *((name, seed, 1) for seed in range(2) for name in LEARNERS)]


@pytest.mark.parametrize(("name", "seed", "step"), thinned(CASES, len(CASES)))
def test_a_learners_ledger_is_sound_and_no_lie_about_its_phases_is(
    name: str, seed: int, step: int, tmp_path: Path, verifier: ModuleType
) -> None:
    records = left_by(name, seed, tmp_path / "ledger.db")
    assert certify(records).problems == []
    assert verifier.verify(tmp_path / "ledger.db")["problems"] == []
    entries: Entries = [(dict(record.body), dict(record.ext)) for record in records]
    if name == "experts":
        return
    assert certify(rewritten(entries)).problems == []
    tried = 0
    for number, (what, told) in enumerate(islice(lies(entries), None, None, step)):
        written = rewritten(told)
        file = tmp_path / f"{number}.jsonl"
        write_export(file, written)
        assert certify(written).problems, what
        assert verifier.verify(file)["problems"], what
        tried += 1
    assert tried > 40 // step
