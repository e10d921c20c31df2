"""What a learner keeps of single users does not grow with the length of a run."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.learners import DPHDB, DPMNL, DPTOFW, OnePassNewtonMNL, messages
from privlearn.learners.messages import PrivateMessages
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource


def learner_of_nulls(users: int, handler: Any = None) -> OnePassNewtonMNL:
    accountant: JointAccountant[ZCDP] = JointAccountant(
        ZCDP(1), users=range(users), noise=NoiseSource.simulation(0)
    )
    learner = OnePassNewtonMNL(n_items=3, dim=2).start(accountant)
    learner.on_private_message = handler
    learner.play(np.full((users, 3, 2), np.nan), lambda own, shown: shown[:, 0])
    return learner


def test_the_last_messages_are_kept_and_all_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_MESSAGES", 5)
    told: list[tuple[int, str]] = []
    learner = learner_of_nulls(20, lambda user, text: told.append((user, text)))
    assert [user for user, _ in told] == list(range(20))
    assert learner.private_messages_ == told[-5:]
    assert learner.private_messages_.dropped == 15


def test_a_handler_that_fails_changes_nothing_public() -> None:
    def fail(user: int, text: str) -> None:
        raise RuntimeError(text)

    whole, failing = learner_of_nulls(4), learner_of_nulls(4, fail)
    assert failing.public_state() == whole.public_state()
    said = [text for _, text in failing.private_messages_]
    assert said[1::2] == ["on_private_message failed: RuntimeError"] * 4
    assert said[::2] == [text for _, text in whole.private_messages_]


def test_messages_are_a_list() -> None:
    assert PrivateMessages() == []
    assert messages.MOST_MESSAGES == 10_000


def newton(users: int) -> Any:
    return OnePassNewtonMNL(n_items=3, dim=2).start(joint(users)), (3, 2)


def dpmnl(users: int) -> Any:
    return DPMNL(n_items=3, dim=2).start(joint(users)), (3, 2)


def hdb(users: int) -> Any:
    return DPHDB(n_arms=3, dim=2).start(joint(users)), (2,)


def joint(users: int) -> JointAccountant[ZCDP]:
    return JointAccountant(ZCDP(1), users=range(users), noise=NoiseSource.simulation(0))


class Tofw:
    """Learns from logged rows in the calls of the others."""

    def __init__(self, users: int) -> None:
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(1), users=range(users), noise=NoiseSource.simulation(0)
        )
        self.learner = DPTOFW(dim=2, method="plain").start(accountant)

    def play(self, rows: Any, _: object) -> None:
        self.learner.partial_fit(rows, rows[:, 0])


USERS, PART = 6_000, 1_000


@pytest.mark.parametrize(
    ("make", "grows"),
    [
        (newton, False),
        (hdb, False),
        (lambda users: (Tofw(users), (2,)), False),
        (dpmnl, True),
    ],
    ids=["newton", "hdb", "plain", "dpmnl"],
)
def test_memory_per_user(make: Any, grows: bool) -> None:
    """In bytes for each of the users of the second half; entries of the ledger are not counted.

    DPMNL keeps every answer, as its fits are over all of them.
    """
    learner, shape = make(USERS)
    rng = np.random.default_rng(0)
    tracemalloc.start()
    try:
        sizes = []
        for part in range(1, USERS // PART + 1):
            rows = rng.normal(size=(PART, *shape)) / 4
            learner.play(rows, lambda own, shown: shown[..., 0] if np.ndim(shown) > 1 else shown)
            del rows
            if part % (USERS // PART // 2):  # a look takes as long as a thousand users
                continue
            gc.collect()
            ours = tracemalloc.take_snapshot().filter_traces(
                [
                    tracemalloc.Filter(True, "*/learners/*"),
                    tracemalloc.Filter(True, "*/privlearn/contract/billboard.py"),
                    tracemalloc.Filter(True, "*/privlearn/values/records.py"),
                    tracemalloc.Filter(True, "*/privlearn/rows/*"),
                ]
            )
            sizes.append(sum(trace.size for trace in ours.traces))
    finally:
        tracemalloc.stop()
    later = (sizes[1] - sizes[0]) / (USERS / 2)
    assert (later > 20.0) is grows, f"{later:.1f} bytes a user"
