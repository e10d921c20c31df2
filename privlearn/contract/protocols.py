"""What the layers expect of each other; everything here is structural, nothing to inherit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.issuing import Issuer
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.ledger.entries import LearnerEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency, Trust

X = TypeVar("X")
B_inv = TypeVar("B_inv", bound=Currency)


@dataclass(frozen=True, slots=True)
class Plan:
    """``count`` runs of ``loss`` on ``users``, committed under ``label`` before the first token."""

    label: str
    loss: Loss
    users: range
    count: int = 1


class Mechanism(Protocol[X]):
    """A frozen specification that prices itself and spends a token before it releases."""

    def loss(self) -> Loss:
        """The price of one release."""

    def release(self, rows: Rows[X], token: Token[B], /) -> Released[Array]:
        """Spends the token, then opens the rows, then draws noise."""


S_co = TypeVar("S_co", covariant=True)


class Streaming(Protocol[S_co]):
    """A mechanism that is open for some time, and takes its rows as they come."""

    def loss(self) -> Loss:
        """The price of the whole stream."""

    def open(self, token: Token[B], /) -> S_co:
        """Spends the token and begins."""


class ReportStream(Protocol[X]):
    """Reports of a token's users as their rows come, in order."""

    def append(self, rows: Rows[X], /) -> Released[Array]:
        """Releases one report of every row, shape (n, size)."""

    def close(self) -> None:
        """Retires the token."""

    @property
    def closed(self) -> bool:
        """Whether the token is retired."""


class Report(Protocol[X]):
    """A local mechanism: every user's row becomes one report, an array of ``size`` numbers."""

    @property
    def domain(self) -> Domain[Any]:
        """What a user can contribute; records are clipped into it."""

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of the price."""

    @property
    def size(self) -> int:
        """Numbers in a report."""

    @property
    def limit(self) -> float:
        """Every number of a report lies in [−limit, limit]."""

    @property
    def estimate_limit(self) -> float:
        """Every number of an estimate lies in [−estimate_limit, estimate_limit]."""

    def loss(self) -> Loss:
        """The price of one user's report."""

    def spend(self, *, interactive: bool = False) -> Spend:
        """The statement for the ledger."""

    def release(self, rows: Rows[X], token: Token[B], /) -> Released[Array]:
        """Spends the token on one report of every row, shape (n, size)."""

    def open(self, token: Token[B], /) -> ReportStream[X]:
        """Spends the token on reports of rows that come one after the other."""

    def estimate(self, reports: Array, /) -> Array:
        """Unbiased estimates of the clipped contributions, shape (n, domain.size)."""

    def plausible(self, reports: Array, /, slack: float) -> NDArray[np.bool_]:
        """Whether each row could be a report, up to ``slack`` in every number, shape (n,)."""

    def mean_squared_error(self) -> float:
        """A bound on E‖estimate − contribution‖² for every record."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


class Replaying(Protocol):
    """What earlier processes released."""

    def points(self, unbounded: frozenset[str], /) -> list[int]:
        """Where public time stood when something was released, or lost; ascending."""

    def taken(self, unbounded: frozenset[str], /) -> int:
        """One past the last user whose row was certainly there when something was released."""


class Accountant(Protocol[B_inv]):
    """What a learner is handed: it can commit a plan and issue tokens, and knows its cap."""

    @property
    def id(self) -> str: ...
    @property
    def issuer(self) -> Issuer:
        """What its tokens talk to."""

    @property
    def people(self) -> People | None:
        """The registry under whose rule persons may come back; None if a user is an index."""

    @property
    def budget(self) -> B_inv:
        """The cap for every user."""

    @property
    def users(self) -> range:
        """The arrival indices that are protected."""

    @property
    def adjacency(self) -> Adjacency: ...

    @property
    def trust(self) -> Trust: ...

    def of_person(self, loss: Loss, users: range, /) -> Loss:
        """The loss of one person with all visits in a range; ``loss`` itself without a rule."""

    def divide(self, starts: Sequence[int], /) -> None:
        """Declares the public batches of a rule that counts within them."""

    def commit(self, plan: Iterable[Plan], /) -> None:
        """Commits all losses and counts in advance."""

    @property
    def learner(self) -> LearnerEntry | None:
        """Whose plan stands in the ledger."""

    @property
    def closed(self) -> bool:
        """Whether nothing more can be issued or spent."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier process began the account."""

    @property
    def begun(self) -> bool:
        """Whether a plan stands in the ledger, or a token was issued."""

    def record_learner(
        self, name: str, parameters: dict[str, Any], made: dict[str, Any], /
    ) -> None:
        """Writes what makes the same learner again; before the plan."""

    def replaying(self, *, goes_on: bool = False) -> AbstractContextManager[Replaying]:
        """A block in which tokens are those of earlier processes, and release what they did.

        A learner that ``goes_on`` then makes what the plan still holds.
        """

    def rest(self, label: str, users: range, /) -> range | None:
        """The users of whom a planned stream can still take rows."""

    def left(self, label: str, users: range, /) -> int:
        """How many tokens of a committed plan item are still to be issued."""

    def held(self, label: str, users: range, /) -> list[range]:
        """Whose rows tokens of that label are for, that are out or were spent on some of them."""

    def lost(self, label: str, users: range, upto: int | None = None, /) -> bool:
        """Whether a step of a process that died released nothing of the rows before ``upto``."""

    def issue(self, price: Loss | B_inv, /, *, users: range, label: str) -> Token[B_inv]:
        """Issues a token for ``users``."""
