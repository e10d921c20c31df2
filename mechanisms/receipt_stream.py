"""What all open streams share: one receipt for many rows, taken in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Annotated, Any, Generic, Self, TypeVar

from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import AdjacencyError, TokenSpentError, UsersError
from privlearn.mechanisms.wiping import wipe
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.storage import processes
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency

T = TypeVar("T")
X = TypeVar("X")


def _of_stream(*, adjacency: Adjacency) -> Adjacency:
    if adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyError("a stream has no add-remove price: every later row would shift")
    return adjacency


StreamAdjacency = Annotated[Adjacency, _of_stream]


class OpenReceipt(Generic[X]):
    """The receipt of an open stream; closing it (or leaving its ``with`` block) retires the token.

    What adds rows works inside ``with self._lock, self._receipt.round():`` and takes them by
    `_opened`.
    """

    __slots__ = ("__weakref__", "_in_step", "_lock", "_next", "_receipt")

    def __init__(self, spend: Spend, token: Token[Any], adjacency: Adjacency) -> None:
        check_adjacency(adjacency, token)
        self._receipt: Receipt = token.spend(spend)
        self._next = token.users.start
        self._in_step = self._next  # a stream of sums: users up to here were added up to the end
        self._lock = Exclusive("a stream")
        processes.INHERITED.add(self)

    def in_child(self) -> None:
        """Overwrites what it keeps of rows and noise, in a forked child."""
        wipe(self)

    def _opened(self, rows: Rows[X]) -> Array:
        return self._next_rows(rows, self._receipt.open)

    def _next_rows(self, rows: Rows[X], opened: Callable[[Rows[X]], T]) -> T:
        if rows.users.start != self._next:
            raise UsersError(f"the stream is at user {self._next}, the rows at {rows.users.start}")
        values = opened(rows)
        self._next = rows.users.stop
        return values

    def _check_in_step(self) -> None:
        """Sums that were cut off half-way may count a row twice, or under another's price.

        A round that fails ends the stream; this is for a second signal, before that was done.
        """
        if self._receipt.next_user != self._in_step and not self.closed:
            self._receipt.abandon()
            raise TokenSpentError(f"{self!r} was cut off while it added up rows: it has ended")

    @property
    def _complete(self) -> bool:
        """Whether leaving the ``with`` block closes the stream; else its token ends ``lost``."""
        return True

    @property
    def closed(self) -> bool:
        """Whether the token is retired."""
        return self._receipt.closed

    @property
    def died(self) -> bool:
        """Whether it ended with its process, and has handed out again what it had released."""
        return self._receipt.of_past and self.closed

    @property
    def was_closed(self) -> bool:
        """Whether its process closed it, once it has handed out again what it had released."""
        return self._receipt.of_past and not self.closed

    def close(self) -> None:
        """Retires the token; nothing more can be appended.

        Raises:
            TokenSpentError: closed before.
        """
        with self._lock:
            self._receipt.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._complete and not self.closed:
            self.close()
        else:
            self._receipt.abandon(error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(next user {self._next}, sealed)"


class ReceiptStream(OpenReceipt[X], ABC):
    """An open stream that takes its rows by ``append``; see `OpenReceipt`."""

    __slots__ = ()

    @abstractmethod
    def append(self, rows: Rows[X]) -> Released[Any] | None:
        """Adds the next rows, and releases what follows from them.

        Raises:
            UsersError: these are others.
            DataError: of a form that the domain cannot use; nothing is opened, the stream goes on.
        """


def check_adjacency(adjacency: Adjacency, token: Token[Any]) -> None:
    """Raises AdjacencyError unless the token is for the neighbour relation of the price."""
    if token.adjacency is not adjacency:
        raise AdjacencyError(
            f"a mechanism for {adjacency.value}, a token for {token.adjacency.value}"
        )
