"""What is known of one token, and which entries of it may follow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from privlearn.accountants.prices import LossPrice
from privlearn.accountants.streams import Stream
from privlearn.errors import (
    LedgerError,
    LossExceedsTokenError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.entries import (
    RESUME,
    SHA256,
    FunctionsEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
    Users,
)
from privlearn.losses import Loss
from privlearn.losses.budgets import Currency
from privlearn.values.exact import exact_text


@final
@dataclass(slots=True)
class Account:
    """One token's history; of its issue only what is still needed, as an audit may hold many."""

    token: str
    label: str
    users: Users
    planned: int | None
    allowance: str | None
    budget: Currency
    failure: Fraction
    spend: SpendEntry | None = None
    """Of a token that has ended, one of the same mechanism: its own stands in the ledger."""
    loss: Loss | None = None
    outcome: str | None = None
    held: bool = True
    """Whether its budget is charged; not once the loss or nothing is charged instead."""
    shared: bool = False
    """Whether it is for a loss that `Prices.shares` holds of."""
    functions: dict[str, None] | None = None
    """Names of user code that its rows passed through, in the order in which they came."""
    upto: int = 0
    """One past the last user whose row was open when a value left."""
    stream: Stream | None = None
    """What is known of a stream that is charged as far as it came, once it has ended."""
    wrong: bool = False
    """Whether an entry of it did not check, so that nothing of what it is charged becomes free."""
    running: bool = False
    """Whether it was spent and has not ended; not of a lease."""
    past: None = None
    """Nothing that it released in another process leaves again."""

    def check_unspent(self, entry: SpendEntry) -> None:
        """Raises unless it can be spent, on these users."""
        if self.spend is not None or self.outcome is not None:
            raise TokenSpentError(f"token {self.token} {self._before()}")
        if entry.users != self.users:
            raise TokenError(f"token {self.token} was issued for users {self.users}")

    def check_holds(self, mechanism: str, loss: Loss, price: LossPrice, *, shares: bool) -> None:
        """Raises LossExceedsTokenError unless it holds what a loss costs.

        ``shares``: whether that is known to grow with a person's visits.
        """
        if self.budget is not price.budget and not self.budget.covers(price.budget):
            raise LossExceedsTokenError(
                f"{mechanism} costs {price.budget}, token {self.token} holds {self.budget}"
            )
        if self.shared and not shares:
            raise LossExceedsTokenError(
                f"{mechanism}: token {self.token} is for a loss that grows with a person's "
                f"visits, which {loss.kind!r} is not known to do; issue a token for this loss"
            )
        if price.failure > self.failure:
            raise LossExceedsTokenError(
                f"{mechanism} fails with probability {exact_text(price.failure)}, token "
                f"{self.token} holds {exact_text(self.failure)}"
            )

    def check_running(self) -> None:
        """Raises TokenError unless rows are opened for it."""
        if self.spend is None or self.outcome is not None:
            state = "unspent" if self.spend is None else "retired"
            raise TokenError(f"token {self.token} is {state}: no rows are opened for it")

    def check_reach(self, entry: ReachEntry) -> None:
        """Raises unless the stream can come so far."""
        self.check_running()
        if self.stream is None:
            raise TokenError(f"token {self.token} is charged whole: it has no reach")
        before = self.stream.reach
        if not before < entry.stop <= self.users[1]:
            raise UsersError(
                f"token {self.token}: reach {entry.stop} after {before}, of users {self.users}"
            )

    def check_publish(self, entry: PublishEntry) -> None:
        """Raises unless a value can leave now, of these rows."""
        self.check_running()
        self._check_upto(entry.upto)

    def check_functions(self, entry: FunctionsEntry) -> None:
        """Raises unless these functions are new."""
        self.check_running()
        if known := [name for name in entry.names if name in (self.functions or ())]:
            raise LedgerError(f"token {self.token}: functions {known} were named before")

    def check_retire(self, entry: RetireEntry) -> None:
        """Raises unless it can end so, with the value that it then releases."""
        if self.outcome is not None:
            raise TokenSpentError(f"token {self.token} {self._before()}")
        if (entry.outcome == "unused") is not (self.spend is None):
            state = "unspent" if self.spend is None else "spent"
            raise TokenError(f"token {self.token} is {state}: it cannot end as {entry.outcome}")
        if entry.value is None:
            return
        said = entry.value
        if set(said) != {"digest", "upto"} or not re.fullmatch(SHA256, str(said["digest"])):
            raise LedgerError(f"token {self.token}: data of {RESUME!r} must be digest and upto")
        if entry.outcome not in ("released", "uncovered"):
            raise LedgerError(f"token {self.token}: it ended {entry.outcome}, with a value")
        self._check_upto(said["upto"])

    def _check_upto(self, upto: object) -> None:
        """Rows that a value is made of must have been within the reach when they were opened."""
        start, stop = self.users
        most = stop if self.stream is None else self.stream.reach
        if type(upto) is not int or not max(self.upto, start) <= upto <= most:
            raise UsersError(
                f"token {self.token}: a value with rows up to {upto!r}; must lie in "
                f"{max(self.upto, start)}..{most}"
            )

    def _before(self) -> str:
        """What the ledger says of a token that can be spent, or ended, no more."""
        match self.outcome:
            case None:
                return "was spent before: it stays charged; whether anything left is not known here"
            case "unused":
                return (
                    "was retired before, unspent and free of charge: by its own process, or by "
                    "another one when the connection of that was cut; issue another token"
                )
            case "lost":
                return (
                    "was spent and then retired before, its outcome lost: it stays charged, and "
                    "nothing more is released for it; issue another token"
                )
            case outcome:
                return f"was spent and then retired before, as {outcome}: it stays charged"
