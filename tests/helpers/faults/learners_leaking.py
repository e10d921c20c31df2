"""Learners with a single fault in what they publish, and all broken learners as faults."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from faults import learners_learning as learning
from faults.cases import Fault, ReplayCase, RowMapCase
from faults.learners_learning import DIM, N_ITEMS, Honest
from privlearn.checking.replay.populations import Person, buys_nothing, replaced, shopper
from privlearn.learners.newton import Belief
from privlearn.mechanisms.choice_model import Items
from privlearn.rows import Rows
from privlearn.rows.domains import Array


class RawValueBesideTheRelease(Honest):
    """An unpaid sum stands in the public state, beside the noisy one."""

    def public_state(self) -> Any:
        return {"belief": self.belief.tolist(), "sum": float(np.nansum(self._seen))}


class RawValueInALongPublicArray(Honest):
    """An unpaid sum stands in the middle of a long public array."""

    def public_state(self) -> Any:
        history = np.zeros(10_000)
        history[5_000] = np.nansum(self._seen)
        return {"history": history}


class RawValueInALongArrayOfAnObject(Honest):
    """An unpaid sum stands in an array inside a public object."""

    def public_state(self) -> Any:
        history = np.zeros(10_000)
        history[5_000] = np.nansum(self._seen)
        return {"belief": Belief(history, np.eye(2))}


class RawValueBelowThePrintedDigits(Honest):
    """An unpaid sum is added to the released value, in digits that no print shows."""

    def public_state(self) -> Any:
        return {"belief": self.belief + 1e-12 * np.nansum(np.clip(self._seen, -1, 1))}


class RawValueInThePolicy(Honest):
    """Other users are served from an exact sum."""

    def learn(self, rows: Rows[Array]) -> Array:
        super().learn(rows)
        return np.asarray(np.nansum(self._seen, axis=(0, 1)))

    def public_state(self) -> Any:
        return {}


class RawValueInAnAttribute(Honest):
    """No public state is declared, and an attribute without underscore tells."""

    public_state = None  # type: ignore[assignment]

    @property
    def total(self) -> float:
        return float(np.nansum(self._seen))


class Wrapped:
    """Prints alike whatever is inside."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __repr__(self) -> str:
        return "Wrapped"


class RawValueBehindACoarsePrint(Honest):
    """A public object does not tell what it holds."""

    def public_state(self) -> Any:
        return {"belief": [Wrapped(self._seen)]}


class Prints(Honest):
    """An extreme user is told of on standard output."""

    def tell(self, text: str) -> None:
        print(text)

    def select(self, features: Array, /) -> Items:
        if np.abs(features).max() > 1e3:
            self.tell("extreme user")
        return super().select(features)


class PrintsToStderr(Prints):
    """An extreme user is told of on standard error."""

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr)


class Warns(Prints):
    """An extreme user is told of in a warning."""

    def tell(self, text: str) -> None:
        warnings.warn(text, stacklevel=1)


class Logs(Prints):
    """An extreme user is told of in a log."""

    def tell(self, text: str) -> None:
        logging.getLogger("learner").debug(text)


class TellsOnAnotherBoard(Honest):
    """The billboard that is shown is not the one that was paid for."""

    @property
    def billboard_(self) -> Any:
        return {"sum": np.nansum(self._seen)}


BadData = Literal["nan", "large"]
ArrayFunction = Callable[[Array], Array]


def crowd_and_neighbour(kind: BadData) -> tuple[list[Person], list[Person]]:
    """Forty users, and the same with the eighth replaced by one with data of that kind."""
    rng = np.random.default_rng(5)
    data = [shopper(rng, N_ITEMS, DIM) for _ in range(40)]
    value = np.nan if kind == "nan" else 1e4
    bad_one = Person(np.where(np.eye(N_ITEMS, DIM) > 0, value, 1.0), buys_nothing, f"{kind} data")
    return data, replaced(data, 7, bad_one)


_PROBE = "a probe that dp-recorder, a tool for record / freeze / replay, let pass when we tried it"
_BILLBOARD = "Hsu et al. 2016, the billboard lemma: all but own data must be a function of releases"
_PAID = "Bun & Steinke 2016: the price follows from the sensitivity of what is released"
_CHANNEL = "outputs beside the billboard; found in review of learners like these"

LEAKS: tuple[tuple[type[Honest], BadData, str], ...] = (
    (learning.SkipsBadRows, "nan", _PROBE),
    (learning.SkipsBadRowsSilently, "nan", _PROBE),
    (learning.RawMaximumInAParameter, "large", _PROBE),
    (learning.RawMaximumInALongParameter, "large", _PROBE),
    (learning.RawMaximumAsTheDomain, "large", _PAID),
    (RawValueBesideTheRelease, "large", _PROBE),
    (RawValueInALongPublicArray, "large", _PROBE),
    (RawValueInALongArrayOfAnObject, "large", _CHANNEL),
    (RawValueBelowThePrintedDigits, "large", _CHANNEL),
    (RawValueInThePolicy, "large", _BILLBOARD),
    (learning.DataDependentBatchEnd, "large", _BILLBOARD),
    (learning.FewerCallsOnBadData, "nan", _PROBE),
    (learning.FailsOnBadData, "nan", _CHANNEL),
    (learning.BatchStatistic, "large", _PAID),
    (learning.ChangesTheLabel, "large", _CHANNEL),
    (learning.ForgetsToRetire, "nan", _CHANNEL),
    (learning.ReleasesWithoutNoise, "large", _PAID),
    (learning.RawValueInTheRelease, "large", _PAID),
    (learning.RawNotANumberInTheRelease, "nan", _PAID),
    (learning.OldValueInTheRelease, "large", _PAID),
    (learning.OldValueInAStream, "large", _PAID),
    (RawValueInAnAttribute, "large", _CHANNEL),
    (RawValueBehindACoarsePrint, "large", _CHANNEL),
    (Prints, "large", _CHANNEL),
    (PrintsToStderr, "large", _CHANNEL),
    (Warns, "large", _CHANNEL),
    (Logs, "large", _CHANNEL),
    (TellsOnAnotherBoard, "large", _BILLBOARD),
    (learning.UnderstatedSensitivity, "large", _PAID),
)
"""Each leak, the data that bring it out, and where it comes from."""


_HONEST: dict[BadData, ReplayCase] = {
    "nan": ReplayCase(Honest, *crowd_and_neighbour("nan")),
    "large": ReplayCase(Honest, *crowd_and_neighbour("large")),
}


def _leak(learner: type[Honest], kind: BadData, source: str) -> Fault:
    control = _HONEST[kind]
    fault = learner.__doc__ or learner.__name__
    broken = ReplayCase(learner, control.data, control.neighbour)
    return Fault(f"learner: {learner.__name__}", fault, source, broken, control)


# Row maps -----------------------------------------------------------------------------------------


def _row_map(name: str, fault: str, broken: ArrayFunction, control: ArrayFunction) -> Fault:
    rng = np.random.default_rng(0)
    block, other = rng.normal(size=(5, 2)), 10 + rng.normal(size=(1, 2))
    source = "batch statistics of neural networks; the privacy of a sum needs row-local summands"
    return Fault(
        f"row map: {name}",
        fault,
        source,
        RowMapCase(broken, block, other),
        RowMapCase(control, block, other),
    )


FAULTS = (
    *(_leak(*leak) for leak in LEAKS),
    _row_map(
        "centring",
        "Rows are centred by the mean of their batch.",
        lambda block: block - block.mean(axis=0),
        lambda block: block - block.mean(axis=1, keepdims=True),
    ),
    _row_map(
        "scaling",
        "Rows are divided by the largest number of their batch.",
        lambda block: block / np.abs(block).max(),
        lambda block: block / np.abs(block).max(axis=1, keepdims=True),
    ),
    _row_map(
        "ranking",
        "Rows are replaced by their ranks in the batch.",
        lambda block: np.argsort(np.argsort(block, axis=0), axis=0).astype(float),
        lambda block: np.argsort(np.argsort(block, axis=1), axis=1).astype(float),
    ),
    _row_map(
        "position",
        "What becomes of a row depends on its place in the batch.",
        lambda block: block + np.arange(len(block))[:, None],
        lambda block: block + np.arange(block.shape[1]),
    ),
)
