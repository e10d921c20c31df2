"""Broken sums in phases: one token, and a noisy sum of every phase, which is begun beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from faults.cases import ExactCase, Fault, LawCase
from privlearn.checking.laws.mechanisms import check_stream_takes_users_in_order
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import UsersError
from privlearn.losses import Loss
from privlearn.noise import LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box
from privlearn.values.adjacency import Adjacency

OUTPUTS, USERS = 2, 12


class OwnStream:
    """Sums of a third party, open; right as it is, and broken forms override one step."""

    def __init__(self, receipt: Any, users: range) -> None:
        self._receipt, self._users = receipt, users
        self._phase = range(users.start, users.start)
        self._signs: Array = np.zeros((0, OUTPUTS))
        self._kept: Array = np.zeros(1)  # of rows that were opened before

    def begin(self, stop: int, signs: Any) -> None:
        first = self._receipt.next_user
        if not first < stop <= self._users.stop or self.is_open():
            raise UsersError("no such phase")
        self._phase = range(first, stop)
        self._signs = self.signed(np.array(signs, dtype=float))

    def is_open(self) -> bool:
        return bool(self._receipt.next_user < self._phase.stop)

    def signed(self, signs: Array) -> Array:
        return signs

    def summed(self, values: Array) -> Array:
        return self._signs.T @ values

    def end(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            self.check(rows.users)
            total = self.summed(self._receipt.open(rows))
            return self._receipt.publish(total + self._receipt.draw(total.shape))

    def check(self, users: range) -> None:
        if users != self._phase or not self.is_open():
            raise UsersError("other users")

    def __enter__(self) -> OwnStream:
        return self

    def __exit__(self, *details: object) -> None:
        self._receipt.__exit__(*details)


@dataclass(frozen=True)
class OwnPhases:
    """The mechanism of such a stream; the price is that of one sum."""

    stream: type[OwnStream] = OwnStream
    scale: float = 2.0
    drawn: float = 2.0
    domain: Box = field(default_factory=lambda: Box(0.0, 1.0, 1))
    horizon: ClassVar[int] = USERS
    outputs: ClassVar[int] = OUTPUTS

    def loss(self) -> Loss:
        return Spend("own-phases", self.domain, LaplaceNoise(self.scale)).loss(
            Adjacency.REPLACE_ONE
        )

    def open(self, token: Token[Any]) -> OwnStream:
        spend = Spend(
            "own-phases",
            self.domain,
            LaplaceNoise(self.drawn),
            own_loss=self.loss(),
            interactive=True,
        )
        return self.stream(token.spend(spend), token.users)


class TwoSignsForOneUser(OwnStream):
    """A user is in two numbers at once."""

    def signed(self, signs: Array) -> Array:
        return signs + np.roll(signs, 1, axis=1)


class SignsAboveOne(OwnStream):
    """A user counts twice."""

    def signed(self, signs: Array) -> Array:
        return 2 * signs


class OverlapsTheLastPhase(OwnStream):
    """The last user of a phase is in the next one, too."""

    def summed(self, values: Array) -> Array:
        total = super().summed(values)
        total[0] += self._kept
        self._kept = values[-1]
        return total


class EndsWithItsRows(OwnStream):
    """A phase ends with whatever rows come, so that its caller may have looked at them."""

    def check(self, users: range) -> None:
        if not self.is_open():
            raise UsersError("no phase is open")
        self._signs, self._phase = self._signs[: len(users)], users


_SOURCE = "adaptive parallel composition: exactly one released number may hold a user, once"


def _fault(name: str, description: str, broken: OwnPhases) -> Fault:
    return Fault(
        f"phases: {name}", description, _SOURCE, ExactCase(lambda: broken), ExactCase(OwnPhases)
    )


FAULTS = (
    _fault("half the noise", "The noise is half of what is paid for.", OwnPhases(drawn=1.0)),
    *(
        _fault(kind.__name__, kind.__doc__ or "", OwnPhases(kind))
        for kind in (TwoSignsForOneUser, SignsAboveOne, OverlapsTheLastPhase)
    ),
    Fault(
        f"phases: {EndsWithItsRows.__name__}",
        EndsWithItsRows.__doc__ or "",
        _SOURCE,
        LawCase(lambda: OwnPhases(EndsWithItsRows), only=check_stream_takes_users_in_order),
        LawCase(OwnPhases, only=check_stream_takes_users_in_order),
    ),
)
