"""What rivals release tells one user of another no more than is paid for, in generated worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.learners import Way, replayed
from privlearn.checking.replay.populations import generated_pairs
from privlearn.checking.replay.protocols import examples, played, pulled
from privlearn.learners import DPHDB
from privlearn.runs.references import RandomAssortments
from privlearn_studies.rivals.convex import LocalMD, NoisySFW
from privlearn_studies.rivals.linear_bandits import DPUCB
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

PAIRS, ARMS, INPUTS, FIRST = 4, 2, 4, 4
SHAPE = 6, 2  # Of items and their features
NULL = np.full(SHAPE, np.nan)
_CENTRAL = {"accountant": CentralAccountant}


class _AtRandom:
    """Takes the users of a block as a list, as learners do."""

    def __init__(self) -> None:
        self._inner = RandomAssortments(max_items=3)

    def play(self, features: Any, respond: Any, *others: Any) -> None:
        table = [x if getattr(x, "shape", None) == SHAPE else NULL for x in features]
        self._inner.play(np.stack(table), respond, *others)


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
    Way("RandomAssortments", _at_random, played(4), {"may_spend_nothing": True}),
    Way("NoisySFW", _started(NoisySFW, INPUTS), examples(3), _CENTRAL, n_items=ARMS),
    Way(
        "LocalMD",
        _started(LocalMD, INPUTS, phases=2, steps=3),
        examples(4),
        _CENTRAL,
        n_items=ARMS,
    ),
    Way("DPUCB, one by one", _UCB, pulled(), n_items=ARMS),
    Way("DPUCB, in blocks", _UCB, pulled(4), n_items=ARMS),
    Way("DPHDB, by noisy choices", _MAX, pulled(), n_items=ARMS),
)


@pytest.mark.parametrize("way", CASES, ids=lambda way: way.how)
def test_nothing_moves_but_what_is_paid_for(way: Way) -> None:
    pairs = generated_pairs(PAIRS, 5, n_items=way.n_items, positions=(FIRST - 1, FIRST))
    found = replayed(way, pairs, 5)
    assert len(found) == PAIRS
    assert way.options.get("may_spend_nothing") or any(replay.moved for replay in found)
