"""`OnePassNewtonGLM` with a single fault each, for replay; and wrong prices of what it releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from faults.cases import CheckCase, ExactCase, Fault, LawCase, ReplayCase
from privlearn.checking.laws.mechanisms import check_domain_laws
from privlearn.checking.replay.learners import predictions
from privlearn.checking.replay.populations import Person, buys_nothing, replaced, shopper
from privlearn.checking.replay.protocols import pulled
from privlearn.learners import OnePassNewtonGLM
from privlearn.learners.contextual import Arms
from privlearn.losses import GaussianLoss
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, GradientHessian, Norm, OneOf
from privlearn.values.adjacency import Adjacency

ACTIONS, DIM, USERS, AT = 4, 2, 24, 5


_GLM: Any = OnePassNewtonGLM  # which is final


class _Raw(_GLM):  # type: ignore[misc]  # of any type
    """Honest; keeps what no honest step looks at."""

    _theta: Array

    def _prepare(self, accountant: Any) -> None:
        self._rows_seen: list[Array] = []  # of users whose records can be used, with rewards
        self._null_slates = 0
        super()._prepare(accountant)

    def _clipped(self, features: Array, readable: Any) -> tuple[Array, Any]:
        clipped, unusable = super()._clipped(features, readable)
        self._null_slates += int(unusable.sum())
        return clipped, unusable

    def _learnable(self, features: Array, actions: Arms, rewards: Array) -> Any:
        found = super()._learnable(features, actions, rewards)
        good = np.isfinite(found.reward)
        self._rows_seen += list(np.column_stack([found.features, found.reward])[good])
        return found

    @property
    def _raw(self) -> Array:
        """The sum of all rows so far, features and rewards."""
        return np.asarray(np.sum([np.zeros(DIM + 1), *self._rows_seen], axis=0))


class BeliefFromRows(_Raw):
    """The estimate has in it a little of a sum that was not paid for."""

    def _believe(self) -> None:
        super()._believe()
        self._theta += 1e-9 * self._raw[:DIM]


class UsableRowsCount(_Raw):
    """Batches are weighed by how many of their rows could be used."""

    def _release(self, rows: Rows[Any], batch: range) -> None:
        super()._release(rows, batch)
        known = self._released[0]._batches
        known[-1] = known[-1]._replace(
            users=len(self._rows_seen) - sum(b.users for b in known[:-1])
        )


class WidthFromTheTrueHessian(_Raw):
    """Users are served with the width that follows from rows, and not from their noisy sum."""

    def _scores(self, features: Array, turn: Arms) -> Array:
        x = np.reshape([row[:DIM] for row in self._rows_seen], (-1, DIM))
        precision = np.eye(DIM) + x.T @ x
        width = np.einsum("nad,de,nae->na", features, np.linalg.inv(precision), features)
        return np.asarray(super()._scores(features, turn) + 20 * np.sqrt(width))


class LearnsWhenThereIsEnough(_Raw):
    """The belief stays as it is until so many rows can be used."""

    def _believe(self) -> None:
        if len(self._rows_seen) not in range(1, 6):
            super()._believe()


class NextInTurn(_Raw):
    """Who comes after an unusable slate is shown another action."""

    def _first_in_turn(self, turn: Arms) -> Arms:
        return np.asarray(super()._first_in_turn(turn) + self._null_slates)


class CoinsByOffers(_Raw):
    """As many coins are drawn for a user as there are actions in the slate."""

    _drawn = 0

    def play(self, features: Any, *given: Any, **more: Any) -> None:
        super().play(features, *given, **more)
        self._drawn += sum(map(len, features))

    def _first_in_turn(self, turn: Arms) -> Arms:
        return np.asarray(super()._first_in_turn(turn) + self._drawn)


class ScaledByTheBlock(_Raw):
    """Features are divided by the longest vector of a block, where it is longer than the scale."""

    def _clipped(self, features: Array, readable: Any) -> tuple[Array, Any]:
        norms = np.linalg.norm(np.nan_to_num(features), axis=-1)
        return super()._clipped(features / max(float(norms.max()), 1.0), readable)


class PredictsFromPending(_Raw):
    """Predictions are from the rows of the open batch, too."""

    def predict(self, features: Any) -> Array:
        return np.asarray(super().predict(features) + 1e-9 * self._raw[0])


class ShowsPending(_Raw):
    """Its text tells how many rows of the open batch can be used."""

    def __repr__(self) -> str:
        return f"{super().__repr__()}: {len(self._rows_seen)} rows"


def _crowd(kind: str) -> tuple[list[Person], list[Person]]:
    """Users with slates, and the same with the sixth replaced by one of a kind."""
    rng = np.random.default_rng(3)
    data = [shopper(rng, ACTIONS, DIM) for _ in range(USERS)]
    for user in (2, 11):  # others are null and have short slates in both
        data[user] = Person(data[user].features[: user // 3], data[user].answer)
    good = np.ones((ACTIONS, DIM)) / 2
    by = {
        "null": Person(good * np.nan, buys_nothing),
        "other": Person(8 * good * [1, -1], lambda items: 1),
        "short": Person(good[:1], lambda items: 0),
    }
    data[AT] = Person(good, lambda items: 0)
    return data, replaced(data, AT, by[kind])


LEAKS: tuple[tuple[type[_Raw], str], ...] = (
    (BeliefFromRows, "other"),
    (UsableRowsCount, "null"),
    (WidthFromTheTrueHessian, "other"),
    (LearnsWhenThereIsEnough, "null"),
    (NextInTurn, "null"),
    (CoinsByOffers, "short"),
    (ScaledByTheBlock, "other"),
    (PredictsFromPending, "null"),
    (ShowsPending, "null"),
)


def _started(kind: Callable[..., OnePassNewtonGLM], accountant: Any) -> OnePassNewtonGLM:
    return kind(ACTIONS, DIM, first_batch=8, longest_batch=8).start(accountant)


def _leak(kind: type[_Raw], neighbour: str) -> Fault:
    protocol, probe = pulled(3, slates=True), partial(predictions, width=DIM)
    broken, control = (
        ReplayCase(partial(_started, each), *_crowd(neighbour), protocol, probe)
        for each in (kind, _Raw)
    )
    source = "Hsu et al. 2016, the billboard lemma: all but own data must be a function of releases"
    return Fault(f"glm: {kind.__name__}", kind.__doc__ or "", source, broken, control)


# Prices -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unclipped:
    """A third party's gradient and Hessian of one line, whose residuals are not clipped."""

    dim: int = 2

    @property
    def size(self) -> int:
        return GradientHessian(self.dim).size

    def clip(self, block: Array) -> Array:
        clipped, lines = GradientHessian(self.dim).clip(block), np.nan_to_num(block)
        clipped[:, : self.dim] *= np.maximum(np.abs(lines[:, :1, self.dim]), 1.0)
        return clipped

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return GradientHessian(self.dim).sensitivity(adjacency, norm)

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "unclipped", "dim": self.dim}


STD = 4.0
LINES = np.array([[[1.0, 0, 9, 1]], [[0, 1.0, -9, 1]], [[0.5, 0.5, 1, 0.0]], [[np.nan] * 4]])


def _sum(domain: Any) -> NoisySum[Any]:
    return NoisySum(domain, GaussianNoise(STD))


def _priced(name: str, fault: str, domain: Any, squared: float) -> Fault:
    claim = GaussianLoss(squared / STD**2, adjacency=Adjacency.REPLACE_ONE)
    make = partial(_sum, domain)
    source = "Bun & Steinke 2016: the price follows from the sensitivity of what is released"
    broken: CheckCase = ExactCase(make, claim)
    return Fault(f"glm: {name}", fault, source, broken, ExactCase(make))


FAULTS = (
    *(_leak(*leak) for leak in LEAKS),
    _priced("price of 4.5", "Hessians are paid for as if all were alike.", GradientHessian(2), 4.5),
    _priced(
        "an angle unpaid",
        "A heavy Hessian is paid for at one feature vector.",
        GradientHessian(2, 2.0),
        8.0,
    ),
    _priced(
        "one of several at 1",
        "One of several models is paid for as one number.",
        OneOf(GradientHessian(1), 3),
        1.0,
    ),
    Fault(
        "glm: residuals unclipped",
        "Residuals go into the sum as they are.",
        "a bound on rewards that is assumed, and not enforced",
        LawCase(partial(_sum, Unclipped()), LINES, check_domain_laws),
        LawCase(partial(_sum, GradientHessian(2)), LINES, check_domain_laws),
    ),
)
