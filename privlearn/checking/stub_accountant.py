"""An accountant for single mechanisms under test: any price, no cap, no ledger, seeded noise."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self, final

from privlearn.contract.issuing import Outcome, Past, RecordedToken, ReleasedValue, ReleaseObserver
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
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


@dataclass(slots=True)
class _StubRecord:
    outcome: str | None = None
    past: Past | None = None


@final
class StubAccountant:
    """Issues tokens for mechanisms under test, thousands a second, and remembers the last spend.

    Noise can be reached only after a spend here too: `record_spend` is what unlocks it, so that a
    mechanism that draws first fails as it would fail to be durable.

    Args:
        noise: where it is drawn; a number is the seed of simulated noise.
        adjacency: the neighbour relation that tokens carry.
        people: a registry, as an accountant with a rule of participation has one.
    """

    trust: ClassVar[Trust] = Trust.CENTRAL
    observer: ClassVar[ReleaseObserver | None] = None

    def __init__(
        self,
        noise: int | NoiseSource,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        *,
        people: People | None = None,
    ) -> None:
        self.people = people
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
