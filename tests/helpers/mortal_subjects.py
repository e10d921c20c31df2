"""Programs that can be killed at any time and simply started again, one for each learner and stream.

A program takes its account, new or resumed.  It gives a function that tells up to which user it
came and the arrays that everybody can see by then, and the steps that are left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privlearn import ZCDP
from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.domains import Array
from privlearn.learners import DPMNL, DPTOFW, OnePassNewtonMNL
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource

Now = Callable[[], tuple[int, tuple[Array, ...]]]
Program = Callable[[Any], tuple[Now, Iterator[None]]]

SEGMENT = 256
"""Users that an open stream has told the ledger of, and a crash costs, at most."""


@dataclass(frozen=True)
class Subject:
    """A program, the account that it runs under, and how many users a crash may cost it."""

    program: Program
    account: Callable[..., Any]
    users: int
    most_users: int

    def begun(self, path: Path, noise: NoiseSource | None) -> Any:
        """The account of a ledger file, new, just created or left by a process that died.

        None if it was closed: all is done.
        """
        book = Ledger.open(path) if path.exists() else Ledger.create(path)
        if not book.entries:
            return self.account(users=range(self.users), ledger=book, noise=noise)
        if not book.open_accountants:
            book.close()
            return None
        return self.account.func.resume(book, noise=noise)  # type: ignore[attr-defined]


STEP = 23
"""Users of one step: they end neither with batches nor with blocks."""


def _steps(learner: Any, users: int, step: Callable[[slice], None]) -> Iterator[None]:
    while learner.clock_ < users:
        step(slice(learner.clock_, min(learner.clock_ + STEP, users)))
        yield


def served(
    make: Callable[[], Any], users: int, arrays: Callable[[Any], Iterable[Array]]
) -> Program:
    """A learner that shows items to users."""

    def program(accountant: Any) -> tuple[Now, Iterator[None]]:
        learner = make().start(accountant)
        features = np.random.default_rng(1).normal(size=(users, 5, 3)) / 3

        def step(part: slice) -> None:
            learner.play(features[part], lambda own, shown: shown[:, 0])

        return lambda: (learner.clock_, tuple(arrays(learner))), _steps(learner, users, step)

    return program


def logged(make: Callable[[], Any], users: int) -> Program:
    """A learner of rows (x, y)."""

    def program(accountant: Any) -> tuple[Now, Iterator[None]]:
        learner = make().start(accountant)
        x = np.random.default_rng(2).normal(size=(users, 3)) / 2
        y = x @ [1.0, 0.0, -0.5]

        def step(part: slice) -> None:
            learner.partial_fit(x[part], y[part])

        return lambda: (learner.clock_, (learner.coef_,)), _steps(learner, users, step)

    return program


def _joint(program: Program, users: int, most_users: int) -> Subject:
    return Subject(program, partial(JointAccountant, ZCDP(1)), users, most_users)


def _central(program: Program, users: int, most_users: int) -> Subject:
    return Subject(program, partial(CentralAccountant, ZCDP(1)), users, most_users)


def _newton() -> Any:
    return OnePassNewtonMNL(n_items=5, dim=3)


def _dpmnl() -> Any:
    return DPMNL(n_items=5, dim=3)


def _plain() -> Any:
    return DPTOFW(dim=3, method="plain")


SUBJECTS: dict[str, Subject] = {
    "OnePassNewtonMNL": _joint(
        served(_newton, 900, lambda of: (of.theta_, of.precision_)), 900, most_users=500
    ),
    "DPMNL": _joint(served(_dpmnl, 700, lambda of: (of.theta_, of.gram_)), 700, SEGMENT + STEP),
    "DPTOFW plain": _central(logged(_plain, 600), 600, SEGMENT + STEP),
}
