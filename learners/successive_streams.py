"""Streams of one plan item, each of which goes on where the process of the one before it died.

Noise of an open stream is secret, and ends with its process.  Its token is then charged to the
users whose rows it may have taken, and a second stream takes the rows of the others, with noise of
its own at the same price: users are disjoint, so nobody pays twice.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from privlearn.contract.protocols import Accountant, Plan
from privlearn.contract.tokens import Token
from privlearn.losses import Loss


class OpenStream(Protocol):
    """What a mechanism opens."""

    @property
    def closed(self) -> bool:
        """Whether the token is retired."""

    @property
    def died(self) -> bool:
        """Whether it ended with its process."""

    @property
    def was_closed(self) -> bool:
        """Whether its process closed it."""

    def close(self) -> None:
        """Retires the token."""


S = TypeVar("S", bound=OpenStream)
S_co = TypeVar("S_co", bound=OpenStream, covariant=True)


class GoesOn(Protocol[S_co]):
    """The mechanism of a stream that another can follow."""

    def loss(self) -> Loss:
        """The price of the whole stream."""

    def open(self, token: Token[Any], /) -> S_co:
        """Spends the token and begins."""

    def for_last(self, users: range, /) -> GoesOn[S_co]:
        """The mechanism for the last users of a stream that ended early; costs no more."""


class SuccessiveStreams(Generic[S]):
    """One stream for all of ``users`` or, after crashes, several.

    Args:
        accountant: that the plan is committed with.
        label: of the plan item.
        users: of the plan item, in order of arrival.
        mechanism: for all users.

    Attributes:
        first: the first user whose row the last stream took, or can take.
        number: how many streams were opened.
    """

    def __init__(
        self, accountant: Accountant[Any], label: str, users: range, mechanism: GoesOn[S]
    ) -> None:
        self._accountant, self.label, self.users = accountant, label, users
        self._mechanism = self._open = mechanism
        self._stream: S | None = None
        self.first, self.number = users.start, 0

    def plan(self) -> Plan:
        return Plan(self.label, self._mechanism.loss(), self.users)

    def takes(self, users: range) -> range:
        """Those of the next users whose rows the open stream takes; opens one, if none is.

        All of them, but for those whose rows a stream that ended with its process may have taken.
        """
        if self._stream is None or self._stream.died:
            left = self._accountant.rest(self.label, self.users)
            # Users have passed, and the first stream, which is for all of them, was not begun: a
            # process died between this stream's beginning and that of another one.
            late = left == self.users and users.start > self.users.start
            if left is None or users.stop <= left.start or late:
                return range(users.stop, users.stop)
            self._begin(range(max(left.start, users.start), self.users.stop))
        return range(max(users.start, self.first), users.stop)

    def _begin(self, users: range) -> None:
        self._open = self._mechanism.for_last(users)
        token = self._accountant.issue(self._open.loss(), users=users, label=self.label)
        self._stream = self._open.open(token)
        self.first, self.number = users.start, self.number + 1

    @property
    def open(self) -> S:
        """The stream that is open.

        Raises:
            RuntimeError: none is; `takes` opens one.
        """
        if self._stream is None:
            raise RuntimeError(f"stream {self.label!r}: not open")
        return self._stream

    @property
    def was_closed(self) -> bool:
        """After a replay: whether the last stream was closed before all its users had come."""
        return self._stream is not None and self._stream.was_closed

    def close(self) -> None:
        """Ends the open stream, if there is one."""
        if self._stream is not None and not self._stream.closed:
            self._stream.close()
