"""What rivals release tells one user of another no more than is paid for, in generated worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.protocols import examples, played, pulled
from privlearn.checking.replay.shipped_learners import LearnerCase, replay_pairs
from privlearn.learners import DPHDB
from privlearn.runs.references import RandomAssortments
from privlearn_studies.rivals.convex import LocalMD, NoisySFW
from privlearn_studies.rivals.linear_bandits import DPUCB
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

PAIRS, ARMS, INPUTS, FIRST = 4, 2, 4, 4
_CENTRAL = {"accountant": CentralAccountant}


class _AtRandom:
    """Takes the users of a block as a list, as learners do."""

    def __init__(self) -> None:
        self._inner = RandomAssortments(max_items=3)

    def play(self, features: Any, respond: Any, *others: Any) -> None:
        self._inner.play(np.stack(features), respond, *others)


def _at_random(accountant: Any) -> _AtRandom:
    return _AtRandom()


def _started(kind: Any, *args: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda accountant: kind(*args, **options).start(accountant)


_UCB = _started(DPUCB, n_arms=ARMS, dim=INPUTS)
_MAX = _started(
    DPHDB,
    n_arms=ARMS,
    dim=INPUTS,
    method=NoisyMaxEpochs(),
    first_epoch=FIRST,
    preselection=0.5,
)

CASES = (
    LearnerCase(
        "RandomAssortments",
        "in blocks",
        _at_random,
        played(4),
        {"may_spend_nothing": True},
        arrays=True,
    ),
    LearnerCase(
        "NoisySFW", "in blocks", _started(NoisySFW, INPUTS), examples(3), _CENTRAL, n_items=ARMS
    ),
    LearnerCase(
        "LocalMD",
        "in blocks",
        _started(LocalMD, INPUTS, phases=2, steps=3),
        examples(4),
        _CENTRAL,
        n_items=ARMS,
    ),
    LearnerCase("DPUCB", "one by one", _UCB, pulled(), n_items=ARMS),
    LearnerCase("DPUCB", "in blocks", _UCB, pulled(4), n_items=ARMS),
    LearnerCase("DPHDB", "by noisy choices", _MAX, pulled(), n_items=ARMS),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_moves_but_what_is_paid_for(case: LearnerCase) -> None:
    replays = replay_pairs(case, PAIRS, seed=5)
    assert replays.pairs == PAIRS
    assert replays.moved or case.options.get("may_spend_nothing")
