"""Learners with a single fault in how they learn, for replay on a neighbouring population.

`Honest` is right; each leak overrides one step of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.contract.billboard import Billboard, Shown
from privlearn.contract.protocols import Accountant
from privlearn.contract.spends import Spend
from privlearn.losses import GaussianLoss
from privlearn.mechanisms.choice_model import Items
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Norm
from privlearn.values.adjacency import Adjacency

N_ITEMS, DIM, SHOWN = 6, 2, 3


@dataclass(frozen=True)
class OwnSum:
    """A third party's mechanism, with the places where a leak can be planted."""

    domain: Any = field(default_factory=lambda: Ball(1.0, DIM))
    std: float = 20.0
    parameters: dict[str, Any] = field(default_factory=dict)
    own_loss: GaussianLoss | None = None

    def spend(self) -> Spend:
        return Spend(
            "noisy-sum",
            self.domain,
            GaussianNoise(self.std),
            own_loss=self.own_loss,
            parameters=self.parameters,
        )

    def release(self, accountant: Accountant[Any], rows: Rows[Any]) -> Array:
        loss = self.spend().loss(accountant.adjacency)
        token = accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(self.spend()) as receipt:
            total: Array = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape)).value


class Honest:
    """Shows items by a released sum of mean features; releases every ``every`` users.

    Leaks override one step.  ``_seen`` holds the raw rows, which no honest step looks at.
    """

    every = 5

    def __init__(self, accountant: Accountant[Any]) -> None:
        self.accountant = accountant
        self.board = Billboard(accountant, accountant.users)
        self.belief = np.zeros(DIM)
        self.pending: list[Rows[Array]] = []
        self._seen: list[Array] = []
        self.asked: Shown[Array, Items] | None = None

    def select(self, features: Array, /) -> Items:
        self._seen.append(np.array(features, dtype=float))
        user = range(self.board.clock, self.board.clock + 1)
        rows = Rows.seal(np.array(features)[None], users=user)
        self.asked = self.board.serve(rows, self.policy)
        items = self.asked.reveal()
        assert items is not None
        return items

    def policy(self, own: Array) -> Items:
        values = np.nan_to_num(own) @ self.belief
        return np.sort(np.argsort(-values, axis=1)[:, :SHOWN], axis=1)

    def observe(self, choice: int | None, /) -> None:
        assert self.asked is not None
        self.pending.append(self.asked.deliver(lambda own, items: own.mean(axis=1)))
        if self.is_full():
            rows, self.pending = Rows.concat(self.pending), []
            self.belief = self.learn(rows)

    def is_full(self) -> bool:
        return len(self.pending) == self.every

    def learn(self, rows: Rows[Array]) -> Array:
        return OwnSum().release(self.accountant, rows)

    def public_state(self) -> Any:
        return {"belief": self.belief.tolist()}


class SkipsBadRows(Honest):
    """A record of NaN is not learned from, which shifts everybody behind it."""

    def observe(self, choice: int | None, /) -> None:
        if np.isfinite(self._seen[-1]).all():
            super().observe(choice)
            return
        assert self.asked is not None
        self.asked.deliver(lambda own, items: own.mean(axis=1))


class SkipsBadRowsSilently(Honest):
    """Records of NaN do not count towards a batch, which then waits for another user."""

    def __init__(self, accountant: Accountant[Any]) -> None:
        super().__init__(accountant)
        self.good = 0

    def is_full(self) -> bool:
        self.good += bool(np.isfinite(self._seen[-1]).all())
        full = self.good == self.every
        self.good = 0 if full else self.good
        return full


class RawMaximumInAParameter(Honest):
    """A bound computed from the data is written to the ledger."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self._seen[-self.every :])))
        return OwnSum(parameters={"bound": largest}).release(self.accountant, rows)


class RawMaximumInALongParameter(Honest):
    """A bound computed from the data hides in the middle of a long list in the ledger."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self._seen[-self.every :])))
        edges = [0.0] * 5_000
        edges[2_500] = largest
        return OwnSum(parameters={"edges": edges}).release(self.accountant, rows)


class RawMaximumAsTheDomain(Honest):
    """Rows are clipped to a radius computed from them."""

    def learn(self, rows: Rows[Array]) -> Array:
        largest = float(np.nanmax(np.abs(self._seen[-self.every :])))
        return OwnSum(Ball(largest, DIM), std=20 * largest).release(self.accountant, rows)


class DataDependentBatchEnd(Honest):
    """A batch closes when enough was observed."""

    def is_full(self) -> bool:
        weight = np.nansum(np.clip(np.abs(self._seen[-len(self.pending) :]), 0, 1))
        return bool(weight > 30)


class FewerCallsOnBadData(Honest):
    """A release is left out when the batch has a bad row: fewer calls on the neighbour."""

    def learn(self, rows: Rows[Array]) -> Array:
        if not np.isfinite(self._seen[-self.every :]).all():
            return self.belief
        return super().learn(rows)


class FailsOnBadData(Honest):
    """An exception is raised for some data only."""

    def select(self, features: Array, /) -> Items:
        if not np.isfinite(features).all():
            raise ValueError("features must be finite")
        return super().select(features)


class BatchStatistic(Honest):
    """Rows are centred by the mean of their batch before they are clipped."""

    def learn(self, rows: Rows[Array]) -> Array:
        mean = np.nanmean(np.clip(self._seen[-self.every :], -1e3, 1e3))
        return OwnSum().release(self.accountant, rows.map_rows(lambda block: block - mean))


class ChangesTheLabel(Honest):
    """A token's public label tells of the data."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = OwnSum()
        label = "large" if np.nanmax(np.abs(self._seen)) > 1e3 else "small"
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label=label)
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape)).value


class ForgetsToRetire(Honest):
    """A release that fails on bad data leaves another ledger."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = OwnSum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            if np.isfinite(self._seen[-self.every :]).all():
                return receipt.release(total + receipt.draw(total.shape)).value
        return self.belief


@dataclass(frozen=True)
class LyingBall:
    """A third party's domain whose clip does not clip."""

    radius: float
    size: int

    def clip(self, block: Array) -> Array:
        return np.nan_to_num(np.asarray(block, dtype=np.float64))

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 2 * self.radius

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "my-ball", "radius": self.radius, "size": self.size}


class UnderstatedSensitivity(Honest):
    """The diameter that is paid for is not that of the contributions."""

    def learn(self, rows: Rows[Array]) -> Array:
        own = GaussianLoss("0.01", adjacency=Adjacency.REPLACE_ONE)
        return OwnSum(LyingBall(1.0, DIM), std=20.0, own_loss=own).release(self.accountant, rows)


class ReleasesWithoutNoise(Honest):
    """The noise is drawn and forgotten."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return 1000 * total

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = OwnSum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(mechanism.spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            value = self.leaving(total, receipt.draw(total.shape))
            return np.array(receipt.release(value).value)


class RawValueInTheRelease(ReleasesWithoutNoise):
    """A raw value rides on a noisy release."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + np.nansum(self._seen[-self.every :])


class RawNotANumberInTheRelease(ReleasesWithoutNoise):
    """A raw NaN, which is above no bound, rides on a noisy release."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + np.sum(self._seen[-self.every :])


class OldValueInTheRelease(ReleasesWithoutNoise):
    """A value within the sensitivity, but of users who paid nothing, rides on a release."""

    def leaving(self, total: Array, noise: Array) -> Array:
        return total + noise + math.tanh(float(np.nansum(self._seen[: -self.every])) / 1e4)


class OldValueInAStream(Honest):
    """A running sum holds users who were not opened yet."""

    def learn(self, rows: Rows[Array]) -> Array:
        mechanism = OwnSum()
        loss = mechanism.spend().loss(self.accountant.adjacency)
        token = self.accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(replace(mechanism.spend(), interactive=True)) as receipt:
            total = np.zeros(DIM)
            for user in rows.users:
                total = total + receipt.open(rows.slice(range(user, user + 1)))[0]
                noise = receipt.draw(total.shape)
                peek = np.tanh(np.nansum(self._seen) / 1e4)
                last = receipt.publish(total + noise + peek).value
            receipt.close()
        return last
