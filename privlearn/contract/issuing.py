"""What tokens and receipts talk to: the side of an accountant that writes what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from privlearn.contract.partial_sums import partial_sum as partial_sum
from privlearn.contract.spends import Arithmetic as Arithmetic
from privlearn.contract.spends import Spend as Spend
from privlearn.losses import Loss
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency, Trust

if TYPE_CHECKING:
    from privlearn.contract.tokens import Token

Outcome = Literal["released", "unused", "lost", "uncovered"]
"""How a token ends; ``uncovered``: the mechanism stopped after it had opened rows, without a value.
Whether it does may depend on the rows, which no price covers."""


class ReleaseObserver(Protocol):
    """What a check sees at the receipts of a simulation; see `privlearn.checking`."""

    def spent(self, token: Token[Any], spend: Spend) -> None:
        """A spend was recorded."""

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        """Clipped rows were opened; what is written into ``rows`` is what the mechanism gets."""

    def released(self, token: Token[Any], value: Array) -> Array:
        """A value is about to leave; what is returned leaves instead."""


class RecordedToken(Protocol):
    """What an accountant records of a token, as long as the token lives."""

    @property
    def outcome(self) -> str | None:
        """How the token ended; None while it has no recorded end."""

    @property
    def past(self) -> Past | None:
        """What the token released in a process that ended; None for a token of this one."""


class Past(Protocol):
    """Values that a token released in a process that ended, which leave once more."""

    def __len__(self) -> int:
        """How many are left."""

    def next(self) -> tuple[Array, int]:
        """The next value, and one past the last user whose row it was made of."""


class Issuer(Protocol):
    """What tokens and receipts talk to: it writes their entries."""

    @property
    def id(self) -> str: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def noise(self) -> NoiseSource: ...
    @property
    def observer(self) -> ReleaseObserver | None: ...
    @property
    def people(self) -> People | None:
        """The registry under whose rule persons may come back; None if a user is an index."""

    def of_person(self, loss: Loss, users: range, /) -> Loss:
        """The loss of one person with all visits in a range; ``loss`` itself without a rule."""

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        """Returns the token's account, only when the spend stands durably in the ledger.

        ``runs``: how many a lease pays for; ``loss`` is that of all of them.
        """

    def check_ledger(self) -> None:
        """Raises LedgerError if nothing can be recorded any more, as far as is known unwritten."""

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        """Returns only when the names of user code stand durably in the ledger."""

    def record_phase(self, token: Token[Any], stop: int) -> None:
        """Returns when it stands durably that the next users, up to ``stop``, are one phase."""

    def record_reach(self, token: Token[Any], stop: int) -> int:
        """Returns how far a stream may open rows, at least ``stop``, when that is durable."""

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """Returns when a value stands in the ledger that leaves a spend which stays open."""

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        """Closes the token's account, with the value that leaves at its end."""


class ReleasedValue(NamedTuple):
    """A value that is about to leave."""

    value: Array
    digest: str
    """SHA-256 of type, shape and bytes."""
    upto: int
    """One past the last user whose row was opened."""


class Mint:
    """Key to the constructors below; accountants own the only instance."""

    __slots__ = ()


MINT = Mint()
