"""Served learners go on from their ledger, wherever the process before ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import audit
from privlearn.entries import LearnerEntry, RetireEntry
from tests.helpers.resuming import (
    LEARNERS,
    Population,
    T,
    again,
    begin,
    die,
    estimates,
    killed_at,
)

ALL = pytest.mark.parametrize("name", LEARNERS)


def resumed(name: str, path: Path, seed: int = 1) -> tuple[Any, Any]:
    accountant = again(path, seed)
    return accountant, type(LEARNERS[name]()).resume(accountant)


@ALL
def test_a_learner_goes_on_from_wherever_its_process_ended(name: str, tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    points = [int(p) for p in np.random.default_rng(3).integers(60, T, size=3)]
    for number, point in enumerate(sorted(points)):
        if point > learner.clock_:
            crowd.play(learner, point)
        left = estimates(learner)
        die(accountant)
        accountant, learner = resumed(name, path, number)
        assert estimates(learner) == left
        first = learner.public_state()
        die(accountant)  # once more, before anybody came
        accountant, learner = resumed(name, path, number + 10)
        assert learner.public_state() == first
    crowd.play(learner, T)
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []
    assert accountant.budget.covers(accountant.spent())


@ALL
def test_a_learner_goes_on_after_every_entry(name: str, tmp_path: Path) -> None:
    """The process ends at an entry of the ledger, before or after it is written, and again."""
    crowd, rng = Population(), np.random.default_rng(5)
    path = tmp_path / "ledger"
    accountant: Any = begin(path)
    learner: Any = None
    deaths = 0
    for entry in [1, 2, 3, *rng.integers(1, 12, size=24).tolist(), 10_000]:
        with killed_at(accountant, entry, written=bool(rng.integers(2))) as left:
            if learner is None:
                learner = LEARNERS[name]().start(accountant)
            crowd.play(learner, T)
        if left[0] > 0:
            break
        deaths += 1
        accountant = again(path, deaths)
        begun = accountant.learner is not None
        learner = type(LEARNERS[name]()).resume(accountant) if begun else None
        if begun and learner.clock_ == T:
            break
    assert deaths > 5
    assert learner.clock_ == T
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []
    ends = [e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    streams = 2 if name == "newton correlated" else 1  # that are open at once
    assert certificate.lost == ends.count("lost") <= streams * deaths
    assert sum(isinstance(e, LearnerEntry) for e in accountant.ledger.entries) == 1
