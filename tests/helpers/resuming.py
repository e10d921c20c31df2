"""Served learners on ledgers of files, which end without a word, for several test files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.errors import LedgerError
from privlearn.learners import DPHDB, DPMNL, OnePassNewtonGLM, OnePassNewtonMNL
from privlearn.learners.hdb_epochs import CorrelatedEpochs
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn_studies.rivals.linear_bandits import DPUCB
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

T, N_ITEMS, DIM = 900, 4, 2
"""More users than a stream says ahead that it takes (`streams.SEGMENT`), several times."""

_ITEMS: dict[str, Any] = {"n_items": N_ITEMS, "dim": DIM, "max_items": 2}
_ARMS: dict[str, Any] = {"n_arms": N_ITEMS, "dim": DIM}

LEARNERS: dict[str, Callable[[], Any]] = {
    "newton": lambda: OnePassNewtonMNL(**_ITEMS, first_batch=40, growth=1.1),
    "glm": lambda: OnePassNewtonGLM(N_ITEMS, DIM, first_batch=40, longest_batch=70),
    "glm per action": lambda: OnePassNewtonGLM(
        N_ITEMS, DIM, per_action=True, policy="thompson", reward_range=(-1, 1), first_batch=60
    ),
    "dpmnl": lambda: DPMNL(**_ITEMS, initial_rounds=60),
    "dpmnl determinant": lambda: DPMNL(
        **_ITEMS, initial_rounds=60, trigger="determinant", max_updates=4
    ),
    "hdb": lambda: DPHDB(**_ARMS, first_epoch=60, method=CorrelatedEpochs(growth=1.1)),
    "hdb noisy max": lambda: DPHDB(
        **_ARMS, first_epoch=80, method=NoisyMaxEpochs(first_picks=2, picks=1)
    ),
    "least squares": lambda: PrivateLeastSquares(**_ARMS, blocks=20),
    "dpucb": lambda: DPUCB(**_ARMS, blocks=20),
}
STREAMS = (
    "newton",
    "glm",
    "glm per action",
    "dpmnl",
    "dpmnl determinant",
    "hdb",
    "least squares",
    "dpucb",
)
"""Whose noise is that of one stream."""


def begin(path: Path, seed: int = 0, people: People | None = None) -> JointAccountant[ZCDP]:
    return JointAccountant(
        ZCDP(1),
        users=range(T),
        ledger=Ledger.create(path),
        noise=NoiseSource.simulation(seed),
        people=people,
    )


def again(path: Path, seed: int = 1, people: People | None = None) -> JointAccountant[ZCDP]:
    return JointAccountant.resume(path, noise=NoiseSource.simulation(seed), people=people)


def die(accountant: Any) -> None:
    """The connection ends as it does with its process."""
    accountant.ledger._disk._end()


class _Killed(BaseException):
    """The end of a process."""


@contextmanager
def killed_at(accountant: Any, entry: int, *, written: bool) -> Iterator[list[int]]:
    """The process ends when so many entries were appended, or the last is about to be.

    Yields what is left, which is above 0 if it did not end.
    """
    left, append = [entry], accountant.ledger.append

    def counting(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and written:
            append(*args, **kwargs)
        if left[0] > 0:
            return append(*args, **kwargs)
        die(accountant)
        raise _Killed

    accountant.ledger.append = counting
    try:
        yield left
    except (_Killed, LedgerError):
        if left[0] > 0:
            raise


class Population:
    """Users of any served learner: item features or contexts, and answers that follow a model."""

    def __init__(self, seed: int = 0, n: int = T) -> None:
        rng = np.random.default_rng(seed)
        self.features = rng.normal(size=(n, N_ITEMS, DIM)) / 2
        self.contexts = rng.normal(size=(n, DIM)) / 2
        self.theta = np.array([1.5, -1.0])
        self.arms = rng.normal(size=(N_ITEMS, DIM))
        self.luck = rng.random((n, 1))

    def _choose(self, own: Any, shown: Any) -> Any:
        worth = np.exp(own.features @ self.theta)
        picked = np.where(shown == NO_ITEM, 0.0, np.take_along_axis(worth, shown, axis=1))
        edges = np.cumsum(picked, axis=1) / (1 + picked.sum(axis=1, keepdims=True))
        place = (edges < own.private).sum(axis=1)
        some = np.minimum(place, shown.shape[1] - 1)
        chosen = np.take_along_axis(shown, some[:, None], axis=1)[:, 0]
        return np.where(place < shown.shape[1], chosen, NO_ITEM)

    def _click(self, own: Any, shown: Any) -> Array:
        features = own.features[np.arange(len(shown)), shown]
        return np.asarray(features @ self.theta > own.private[:, 0] - 0.5, dtype=np.float64)

    def _reward(self, own: Any, arms: Any) -> Array:
        scores = np.einsum("nd,nd->n", own[0], self.arms[arms])
        return np.asarray(np.clip(scores + 0.2 * (own.private[:, 0] - 0.5), -1, 1))

    def play(self, learner: Any, stop: int, **more: Any) -> None:
        part = slice(learner.clock_, stop)
        if isinstance(learner, OnePassNewtonMNL | DPMNL):
            learner.play(self.features[part], self._choose, None, self.luck[part], **more)
        elif isinstance(learner, OnePassNewtonGLM) and not learner.per_action:
            learner.play(self.features[part], self._click, private=self.luck[part], **more)
        else:
            learner.play(self.contexts[part], self._reward, private=self.luck[part], **more)


def estimates(learner: Any) -> dict[str, Any]:
    """What was learned from releases, without the clock and what follows from it only."""
    state = learner.public_state()
    passing = ("clock", "coins", "width", "updates", "batch", "block", "shift", "params")
    return {name: value for name, value in state.items() if name not in passing}
