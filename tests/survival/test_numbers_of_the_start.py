"""A later version, whose constants are others, begins with the numbers that the ledger holds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import resuming
from dropped_ledgers import begun, die, resumed

from privlearn import learners
from privlearn.accountants import streams
from privlearn.learners import DPPOFW, DPTOFW
from privlearn.learners.base import Learner
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LpBall
from privlearn_studies import rivals

USERS, DIM = 240, 3
LOGGED: dict[str, Callable[[], Any]] = {
    "plain": lambda: DPTOFW(DIM, method="plain"),
    "buffered": lambda: DPTOFW(DIM, method="buffered"),
    "whitened": lambda: DPTOFW(DIM, method="whitened", constant=0.5),
    "thresholds": lambda: DPPOFW(LpBall(DIM, 1, 2.0), method="thresholds"),
    "choices": lambda: DPPOFW(LpBall(DIM, 1, 2.0), method="choices"),
}


def _modules() -> list[ModuleType]:
    return [
        importlib.import_module(found.name)
        for package in (learners, rivals)
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]


MODULES = _modules()


@contextmanager
def other_constants() -> Iterator[int]:
    """All numbers that are constants of modules of learners are larger; how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        changed = 0
        for module in MODULES:
            for name, value in list(vars(module).items()):
                if name.upper() == name and type(value) in (int, float):
                    patch.setattr(module, name, value + 1 if type(value) is int else 1.5 * value)
                    changed += 1
        yield changed


@contextmanager
def later_version() -> Iterator[None]:
    """Learners work out the numbers of their start with other constants, and then go on as before.

    What they do at each step is not looked at: it has to stay the same.
    """
    start, prepare = Learner.start, "_prepare"

    def started(self: Any, accountant: Any, **more: Any) -> Any:
        own = getattr(self, prepare)

        def prepared(accountant: Any) -> None:
            with other_constants():
                own(accountant)

        setattr(self, prepare, prepared)
        try:
            return start(self, accountant, **more)
        finally:
            delattr(self, prepare)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "start", started)
        yield


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT", 8)


def fed(learner: Any, stop: int) -> None:
    x = np.random.default_rng(0).normal(size=(USERS, DIM))
    x /= 2 * np.abs(x).sum(axis=1)[:, None]
    part = slice(learner.clock_, stop)
    learner.partial_fit(x[part], x[part] @ [0.5, -0.3, 0.2])


def gone_on(path: Path, make: Callable[[], Any]) -> list[bytes]:
    """What a learner has learned after a restart, and after all users."""
    learner = make().start(resumed(path, 1))
    found = [learner.coef_.tobytes()]
    fed(learner, USERS)
    return [*found, learner.coef_.tobytes()]


def copied(path: Path, to: Path) -> Path:
    to.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file() and not file.name.endswith("-shm"):
            (to / file.name).write_bytes(file.read_bytes())
    return to / path.name


@pytest.mark.parametrize("name", LOGGED)
def test_a_learner_of_logged_rows_has_the_numbers_of_its_ledger(name: str, tmp_path: Path) -> None:
    path, make = tmp_path / "ledger", LOGGED[name]
    account = begun(path, ZCDP(20), USERS)
    fed(make().start(account), 130)
    die(account)
    first, second = copied(path, tmp_path / "1"), copied(path, tmp_path / "2")
    with later_version():
        later = gone_on(first, make)
    assert later == gone_on(second, make)


SERVED = ("newton", "glm", "glm per action", "dpmnl", "hdb", "hdb noisy max", "least squares")


@pytest.mark.parametrize("name", SERVED)
def test_a_learner_that_serves_has_the_numbers_of_its_ledger(name: str, tmp_path: Path) -> None:
    path, make = tmp_path / "ledger", resuming.LEARNERS[name]
    account = resuming.begin(path)
    people = resuming.Population()
    people.play(make().start(account), 200)
    die(account)
    found = []
    for number, copy in enumerate((copied(path, tmp_path / "1"), copied(path, tmp_path / "2"))):
        if number:
            learner = make().start(resuming.again(copy))
        else:
            with later_version():
                learner = make().start(resuming.again(copy))
        people.play(learner, 330)
        found.append(repr(resuming.estimates(learner)))
    assert found[0] == found[1]


def test_other_constants_make_other_learners(tmp_path: Path) -> None:
    """What the checks above rely on: without a ledger, numbers of the start are others."""
    with other_constants() as changed:
        assert changed > 30
    coefficients = []
    for number in range(2):
        learner = LOGGED["plain"]()
        account = begun(tmp_path / f"{number}", ZCDP(20), USERS)
        if number:
            with later_version():
                learner.start(account)
        else:
            learner.start(account)
        fed(learner, USERS)
        coefficients.append(learner.coef_.tobytes())
    assert coefficients[0] != coefficients[1]
