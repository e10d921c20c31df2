"""An accountant for single mechanisms under test: any price, no cap, no ledger, seeded noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self, cast, final

import numpy as np

from privlearn.contract.issuing import Outcome, Past, RecordedToken, ReleasedValue, ReleaseObserver
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import Currency
from privlearn.noise import CapNoise, CategoryNoise, ExactNoise, Noise, NoiseSource
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Pool, Variates
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency, Trust


@final
class _Anything(Currency):
    __slots__ = ()
    kind: ClassVar[str] = "anything"

    def __init__(self) -> None:
        self.amounts = ()

    def _with(self, amounts: tuple[Fraction, ...]) -> Self:
        return type(self)()

    def price(self, loss: Loss) -> Self:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@final
class _DividedNoise:
    """Noise divided by a power of two; everything else is said as before.

    Integers and variates are those of z/2^halvings itself: ⌊2^b z/2^h⌋ = ⌊2^(b−h) z⌋.
    """

    def __init__(self, noise: Noise, halvings: int) -> None:
        if isinstance(noise, CapNoise | CategoryNoise):
            raise CheckError(f"{type(noise).__name__} has no scale that could be divided")
        self.noise, self._halvings = noise, halvings

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return np.ldexp(self.noise.draw(pool, shape), -self._halvings)

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        return cast(ExactNoise, self.noise).integers(pool, shape, bits - self._halvings)

    def variates(self, pool: Pool, n: int) -> _DividedVariates:
        return _DividedVariates(cast(Any, self.noise).variates(pool, n), self._halvings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.noise, name)


@final
class _DividedVariates:
    """Variates divided by 2^halvings, to as many bits as are asked for."""

    def __init__(self, variates: Variates, halvings: int) -> None:
        self._variates, self._halvings = variates, halvings
        self.kind, self.floors = variates.kind, variates.floors >> halvings

    def __len__(self) -> int:
        return len(self.floors)

    def refined(self, i: int, bits: int) -> int:
        return self._variates.refined(i, bits - self._halvings)

    def part(self, start: int, stop: int) -> _DividedVariates:
        return _DividedVariates(self._variates.part(start, stop), self._halvings)


@dataclass(slots=True)
class _StubRecord:
    outcome: str | None = None
    past: Past | None = None


def _stated(noise: Noise) -> Noise:
    return noise.noise if isinstance(noise, _DividedNoise) else noise


@final
class StubAccountant:
    """Issues tokens for mechanisms under test, thousands a second, and remembers the last spend.

    Noise can be reached only after a spend here too: `record_spend` is what unlocks it, so that a
    mechanism that draws first fails as it would fail to be durable.

    Args:
        noise: where it is drawn; a number is the seed of simulated noise.
        adjacency: the neighbour relation that tokens carry.
        noise_divisor: by how much the noise is divided that receipts draw, a power of two: a
            planted fault, by which a check measures its own power.

    Raises:
        ValueError: another divisor.
    """

    trust: ClassVar[Trust] = Trust.CENTRAL
    observer: ClassVar[ReleaseObserver | None] = None
    people: ClassVar[People | None] = None

    def __init__(
        self,
        noise: int | NoiseSource,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        *,
        noise_divisor: float = 1.0,
    ) -> None:
        mantissa, exponent = math.frexp(noise_divisor)
        if mantissa != 0.5 or exponent < 1:
            raise ValueError(f"noise_divisor = {noise_divisor!r}: must be a power of two >= 1")
        self._halvings = exponent - 1
        self._stated: dict[str, tuple[Spend, Noise]] = {}
        self.id, self.adjacency = "stub", adjacency
        self.last_spend: Spend | None = None
        self._noise = NoiseSource.simulation(noise) if isinstance(noise, int) else noise
        self._open: dict[str, _StubRecord] = {}
        self._count = 0
        self._budget = _Anything()

    @property
    def noise(self) -> NoiseSource:
        if not self._open:
            raise CheckError("noise was drawn before a token was spent, or after it was retired")
        return self._noise

    def issue(self, users: range) -> Token[Currency]:
        self._count += 1
        token: Token[Currency] = mint_token(
            self, f"stub/{self._count}", self._budget, users, "check", Fraction(1)
        )
        return token

    def of_person(self, loss: Loss, users: range) -> Loss:
        return loss

    def check_ledger(self) -> None:
        """There is none."""

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        self.last_spend = spend
        account = self._open[token.id] = _StubRecord()
        if self._halvings:
            self._stated[token.id] = spend, _stated(spend.noise)
            # behind the back of the receipt, which holds this object
            divided = _DividedNoise(_stated(spend.noise), self._halvings)
            object.__setattr__(spend, "noise", divided)
        return account

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        pass

    def record_phase(self, token: Token[Any], stop: int) -> None:
        pass

    def record_reach(self, token: Token[Any], stop: int) -> int:
        return token.users.stop

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        pass

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        if token.id in self._open:
            self._open.pop(token.id).outcome = outcome
        if token.id in self._stated:
            spend, noise = self._stated.pop(token.id)
            object.__setattr__(spend, "noise", noise)
