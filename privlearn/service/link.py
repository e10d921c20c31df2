"""Workers ask the owner over a Unix socket: refusals and numbers, never objects.

A question is ``{"do": "recommend", "with": {...}}`` with numbers as 64-bit floats beside it; its
answer ``{"found": {...}}`` or ``{"refused": {...}}``.  The frames, their limits, and who may be at
the other end are those of `privlearn.storage.sockets`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from privlearn.errors import LedgerError, LocalSocketError, PeopleError, RowStoreError, ServiceError
from privlearn.service.logs import log_error
from privlearn.service.problems import problem
from privlearn.storage.frames import Limits, Message
from privlearn.storage.sockets import AsyncClient, Peer

_SECONDS = 30.0  # That a worker waits for an answer


class Asked(Protocol):
    """Whoever holds the learner, or a way to it."""

    async def ask(self, name: str, fields: dict[str, Any], attached: bytes = b"") -> dict[str, Any]:
        """What was asked for.

        Raises:
            ServiceError: it is refused.
        """


def limits(largest: int) -> Limits:
    """What is taken of the other side, where a request's body has ``largest`` bytes at most."""
    return Limits(json=2**20 + largest, attached=largest, connections=256, seconds=_SECONDS)


class OwnerEnd:
    """The owner's end, as `privlearn.storage.sockets.LocalServer` wants it.

    Args:
        desk: answers.
        failing: called with an error that is no refusal, after which the owner cannot go on.
    """

    def __init__(self, desk: Asked, failing: Callable[[BaseException], None]) -> None:
        self._desk, self._failing = desk, failing
        self._failed = False

    async def answer(self, peer: Peer, asked: Message) -> Message:
        """A refusal is an answer; any other error ends the owner, and says nothing of itself."""
        try:
            name, fields = str(asked.fields["do"]), dict(asked.fields["with"])
            return Message({"found": await self._desk.ask(name, fields, asked.attached)})
        except ServiceError as error:
            return _refusal(error)
        except Exception as error:
            log_error("request-failed", error)
            # a disk or server that is away, or a learner that an error before has ended
            away = self._failed or isinstance(error, LedgerError | PeopleError | RowStoreError)
            self._failed = True
            self._failing(error)
            return _refusal(problem("owner-away", retry_after=1) if away else problem("failed"))

    def left(self, peer: Peer) -> None:
        """A worker that is gone leaves its offers open."""


def _refusal(error: ServiceError) -> Message:
    told = {"code": error.code, "message": str(error), "retry_after": error.retry_after}
    return Message({"refused": told})


class OwnerLink:
    """A worker's end, which finds the next owner when one died.

    Args:
        path: of the owner's socket.
        largest: bytes of a request's body.
        waiting: requests of one name that may wait for an answer; each name by itself, as whether
            offers are made must not follow from how many answer.
    """

    def __init__(self, path: Path, largest: int, waiting: int) -> None:
        self._path, self._limits, self._most = path, limits(largest), waiting
        self._waiting: Counter[str] = Counter()
        self._client: AsyncClient | None = None
        self._turn = asyncio.Lock()

    async def ask(self, name: str, fields: dict[str, Any], attached: bytes = b"") -> dict[str, Any]:
        """What the owner answers.

        Raises:
            ServiceError: it refuses; it is away, or goes away before it answers; or too many wait.
        """
        if self._waiting[name] >= self._most:
            raise problem("busy", retry_after=1)
        self._waiting[name] += 1
        try:
            client = await self._connected()
            found = (await client.ask({"do": name, "with": fields}, attached)).fields
        except LocalSocketError:
            raise problem("owner-away", retry_after=1) from None
        finally:
            self._waiting[name] -= 1
        if "refused" in found:
            told = found["refused"]
            raise problem(told["code"], told["message"], retry_after=told["retry_after"])
        answer: dict[str, Any] = found["found"]
        return answer

    async def _connected(self) -> AsyncClient:
        if self._client is not None and not self._client.lost:
            return self._client
        async with self._turn:
            if self._client is None or self._client.lost:
                await self.close()
                self._client = await AsyncClient.connect(self._path, limits=self._limits)
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
