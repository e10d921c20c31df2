"""What the layers expect of each other; everything here is structural, nothing to inherit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from privlearn.adjacency import Adjacency, Trust
from privlearn.budgets import B, Currency
from privlearn.domains import Array
from privlearn.losses import Loss
from privlearn.rows import Rows
from privlearn.tokens import Issuer, Released, Token

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


class Accountant(Issuer, Protocol[B_inv]):
    """What a learner is handed: it can commit a plan and issue tokens, and knows its cap."""

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

    def commit(self, plan: Iterable[Plan], /) -> None:
        """Commits all losses and counts in advance."""

    def left(self, label: str, users: range, /) -> int:
        """How many tokens of a committed plan item are still to be issued."""

    def issue(self, price: Loss | B_inv, /, *, users: range, label: str) -> Token[B_inv]:
        """Issues a token for ``users``."""
