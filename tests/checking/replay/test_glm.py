"""`check_learner` finds every leak that is planted into `OnePassNewtonGLM`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from answer_orders import assert_answers_in_any_order
from faults.glm_leaking import ACTIONS, DIM, LEAKS

from privlearn.checking import Tardy, check_learner
from privlearn.checking.replay.populations import stranger
from privlearn.errors import InterferenceError
from privlearn.learners import OnePassNewtonGLM

BLOCKS: dict[str, Any] = {"first_batch": 4, "longest_batch": 4}


@pytest.mark.parametrize("leak", [leak for leak, _ in LEAKS])
def test_every_leak_is_found(leak: Any) -> None:
    with pytest.raises(InterferenceError):
        check_learner(leak(ACTIONS, DIM, **BLOCKS), pairs=24)


def test_the_learner_passes_in_every_way() -> None:
    report = check_learner(OnePassNewtonGLM(3, DIM, first_batch=4), pairs=4)
    assert len(report.findings) == 7
    assert not report.inconclusive


def test_nothing_follows_from_the_order_of_answers() -> None:
    rng = np.random.default_rng(4)
    users = [Tardy(stranger(rng, ACTIONS, DIM), None if i % 7 == 3 else 0) for i in range(24)]

    def started(accountant: Any) -> Any:
        return OnePassNewtonGLM(ACTIONS, DIM, first_batch=8, longest_batch=8).start(accountant)

    assert_answers_in_any_order(started, users, wait=3, arms=True, slates=True)
