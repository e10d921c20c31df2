"""Connections of one worker: each in a place, which nobody keeps by sending or reading nothing.

Whoever lets the worker wait (for a request that has not come whole, or for an answer that is not
read) is let go after a time, and at once where another one needs the place.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final, final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_WANTED: Final = (h11.IDLE, h11.SEND_BODY)  # Where HTTP waits for more of a request


@final
class Places:
    """Of the connections that are open at a time.

    Args:
        most: connections.
        seconds: that one may let the worker wait.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._open: set[_Connection] = set()
        self._waits: dict[_Connection, asyncio.TimerHandle] = {}  # the longest first

    @property
    def full(self) -> bool:
        """Whether there are more connections than places, all of them with work to be done."""
        return len(self._open) > self._most

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes for each connection."""
        return type("_Placed", (_Connection,), {"places": self})

    def came(self, connection: _Connection) -> None:
        self._open.add(connection)
        if self.full and self._waits:
            self._close(next(iter(self._waits)))
        self.waits(connection)

    def waits(self, connection: _Connection) -> None:
        """From now on the worker waits for the other side."""
        if connection in self._open and connection not in self._waits:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._seconds, self._close, connection)
            self._waits[connection] = timer

    def works(self, connection: _Connection) -> None:
        """The worker has all that it needs."""
        if (timer := self._waits.pop(connection, None)) is not None:
            timer.cancel()

    def left(self, connection: _Connection) -> None:
        self.works(connection)
        self._open.discard(connection)

    def _close(self, connection: _Connection) -> None:
        self.left(connection)
        connection.transport.abort()


class _Connection(H11Protocol):
    places: ClassVar[Places]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.places.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.places.works(self)  # the time of the next request begins
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        wanted = self.conn.their_state in _WANTED
        if wanted or self.flow.write_paused or self.transport.is_closing():
            self.places.waits(self)
        else:
            self.places.works(self)
