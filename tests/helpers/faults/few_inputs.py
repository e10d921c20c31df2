"""Faults that show on some neighbours only, in mechanisms of this package's protocol.

The checks get no neighbours here: they have to find the records, and the other users beside them,
on which the fault shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from faults.cases import CheckCase, ExactCase, Fault, SamplingCase
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import UsersError
from privlearn.losses import BoundedRangeLoss, Loss, PureLoss, ZCDPLoss
from privlearn.noise import ExponentialNoise, GaussianNoise, GumbelNoise, LaplaceNoise, Noise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box, Domain

Compute = Callable[[Array, Receipt], Any]


@dataclass(frozen=True)
class ComputingMechanism:
    """A mechanism of somebody's own: contributions (n, size) and a receipt to what is released."""

    name: str
    domain: Domain[Any]
    noise: Noise
    compute: Compute
    price: Loss

    def spend(self) -> Spend:
        return Spend(self.name, self.domain, self.noise, own_loss=self.price)

    def loss(self) -> Loss:
        return self.price

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            return receipt.release(self.compute(receipt.open(rows), receipt))


def largest(top: int) -> Compute:
    """The ``top`` largest numbers of the noisy sum, by index, from one draw of noise."""

    def compute(values: Array, receipt: Receipt) -> Any:
        noisy = values.sum(axis=0) + receipt.draw(values.shape[1:])
        return np.argsort(-noisy)[:top]

    return compute


def two_moments(values: Array, receipt: Receipt) -> Array:
    """Σx and Σx², under the same noise."""
    noise = receipt.draw((1,))
    return np.concatenate([values.sum(axis=0) + noise, (values**2).sum(axis=0) + noise])


def two_moments_apart(values: Array, receipt: Receipt) -> Array:
    """Σx and Σx², each under noise of its own."""
    sums = np.concatenate([values.sum(axis=0), (values**2).sum(axis=0)])
    return np.asarray(sums + receipt.draw((2,)))


def gated(threshold: float) -> Compute:
    """The noisy sum, or only noise where the raw sum is below a threshold."""

    def compute(values: Array, receipt: Receipt) -> Array:
        total = values.sum(axis=0)
        return np.asarray(total * (total[0] >= threshold) + receipt.draw(total.shape))

    return compute


def gated_by_the_noisy_sum(threshold: float) -> Compute:
    """The same where the noisy sum decides, with its sign turned below."""

    def compute(values: Array, receipt: Receipt) -> Array:
        noisy = values.sum(axis=0) + receipt.draw((1,))
        return np.asarray(noisy if noisy[0] >= threshold else -noisy)

    return compute


def mean(by_the_true_count: bool) -> Compute:
    """The noisy sum over the number of users that have something, or over that of all users."""

    def compute(values: Array, receipt: Receipt) -> Array:
        count = np.count_nonzero(values.any(axis=1)) if by_the_true_count else len(values)
        return np.asarray((values.sum(axis=0) + receipt.draw((1,))) / max(count, 1))

    return compute


# A stream -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningSums:
    """Every running sum of a stream with fresh noise, priced for so many sums.

    Args:
        noise_std: of every sum; numbers lie in [0, 1].
        horizon: the most rows.
        paid_for: running sums that one row is in, by the price.
    """

    noise_std: float
    horizon: int
    paid_for: int

    @property
    def domain(self) -> Box:
        return Box(0.0, 1.0, 1)

    def loss(self) -> Loss:
        return ZCDPLoss(str(round(self.paid_for / (2 * self.noise_std**2), 9)))

    def open(self, token: Token[Any]) -> _Running:
        spend = Spend(
            "running-sums",
            self.domain,
            GaussianNoise(self.noise_std),
            own_loss=self.loss(),
            interactive=True,
        )
        return _Running(token.spend(spend))


class _Running:
    def __init__(self, receipt: Receipt) -> None:
        self._receipt, self._total, self._next = receipt, np.zeros(1), 0

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *details: object) -> None:
        if details[0] is None:
            self._receipt.close()

    def append(self, rows: Rows[Any]) -> Released[Array]:
        if rows.users.start != self._next:
            raise UsersError(f"user {self._next} is next, not {rows.users.start}")
        self._next = rows.users.stop
        with self._receipt.round():
            sums = self._total + np.cumsum(self._receipt.open(rows), axis=0)
            self._total = sums[-1]
            return self._receipt.publish(sums + self._receipt.draw(sums.shape))


# As faults ----------------------------------------------------------------------------------------


_SPREAD = 4.0
"""One record in [−1, 1] moves the difference of two scores over a simplex by so much at most."""
_UNIT = Box(0.0, 1.0, 1)


def _choice(noise: Noise, price: Loss, *, points: int = 3, top: int = 1) -> ComputingMechanism:
    return ComputingMechanism("choice", Ball(1.0, points, "linf"), noise, largest(top), price)


def _number(compute: Compute, noise: Noise, price: Loss) -> ComputingMechanism:
    return ComputingMechanism("own", _UNIT, noise, compute, price)


FEW_INPUT_FAULTS: dict[str, tuple[str, str, Any, Any]] = {
    "half the spread of a simplex": (
        "Report noisy max with exponential noise forgets that one record moves two scores.",
        "Dwork & Roth 2014, Section 3.3: scores that move both ways cost twice",
        _choice(ExponentialNoise(_SPREAD / 2), PureLoss(1)),
        _choice(ExponentialNoise(_SPREAD), PureLoss(1)),
    ),
    "a choice at a quarter of its price": (
        "A Gumbel choice is sold at a quarter of its range.",
        "Durfee & Rogers 2019: the range is the spread over the scale",
        _choice(GumbelNoise(_SPREAD / 4), BoundedRangeLoss(1)),
        _choice(GumbelNoise(_SPREAD), BoundedRangeLoss(1)),
    ),
    "two picks with one noise": (
        "The two best are released from one draw of noise, at the price of one.",
        "Durfee & Rogers 2019: k picks cost k times",
        _choice(GumbelNoise(_SPREAD), PureLoss(1), points=6, top=2),
        _choice(GumbelNoise(2 * _SPREAD), PureLoss(1), points=6, top=2),
    ),
    "x and its square under one noise": (
        "Two sums share their noise, so that their difference has none.",
        "a usual slip: the noise is drawn once and broadcast",
        _number(two_moments, LaplaceNoise(2.0), PureLoss(1)),
        _number(two_moments_apart, LaplaceNoise(2.0), PureLoss(1)),
    ),
    "a release gated on the raw sum": (
        "Whether anything is released follows from the sum before noise.",
        "Lyu, Su & Li 2017: a threshold test needs noise of its own",
        _number(gated(20.5), LaplaceNoise(1.0), PureLoss(1)),
        _number(gated_by_the_noisy_sum(20.5), LaplaceNoise(1.0), PureLoss(1)),
    ),
    "a noisy sum over the true count": (
        "How many users have something is told by the scale of the noise.",
        "a usual slip: only the numerator is protected",
        _number(mean(True), LaplaceNoise(2.0), PureLoss("0.5")),
        _number(mean(False), LaplaceNoise(2.0), PureLoss("0.5")),
    ),
    "a stream of 256 rows priced for 16": (
        "The first row is in 256 running sums and pays for 16.",
        "Dwork, Naor, Pitassi & Rothblum 2010: continual release pays for every release",
        RunningSums(4.0, 256, 16),
        RunningSums(4.0, 256, 256),
    ),
}
"""Each fault, where it comes from, the broken mechanism and the correct one."""

_SAMPLES = {
    "x and its square under one noise": 800,
    "a release gated on the raw sum": 800,
    "a noisy sum over the true count": 2_500,
    "a stream of 256 rows priced for 16": 200,
}


_DECIDING = {"a release gated on the raw sum", "a noisy sum over the true count"}
"""Found by the search for data sets on which noise acts otherwise."""


def _case(name: str, mechanism: Any, *, broken: bool) -> CheckCase:
    """Choices have an exact law; most others are sampled on neighbours that the kit finds."""
    choice = isinstance(mechanism, ComputingMechanism) and mechanism.name == "choice"
    if choice or (broken and name in _DECIDING):
        return ExactCase(lambda: mechanism)
    return SamplingCase(mechanism, _SAMPLES[name])


FAULTS = tuple(
    Fault(name, fault, source, _case(name, broken, broken=True), _case(name, good, broken=False))
    for name, (fault, source, broken, good) in FEW_INPUT_FAULTS.items()
)
