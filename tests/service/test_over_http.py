"""A worker at a real socket: bodies and connections that are not what they should be."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from services import PEOPLE, TEXT, USERS, Local, features, run_with, write_config
from uvicorn import Server

from privlearn.service.link import Asked
from privlearn.service.worker import server_of

PATIENCE = 60.0
HALVES = (
    b"",
    b"GET /health HTT",
    b"GET /health HTTP/1.1\r\nHost: x\r\n",
    b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
)
"""Of requests."""


class Connections:
    """Connections to a worker, which end with the block that they are made in."""

    def __init__(self, server: Server, address: tuple[Any, ...], held: AsyncExitStack) -> None:
        self._server, self._address, self._held = server, address, held

    async def send(self, data: bytes) -> asyncio.StreamReader:
        """Of a new connection what comes back."""
        reader, writer = await asyncio.open_connection(*self._address, limit=1_024)
        self._held.callback(writer.close)
        writer.write(data)
        return reader

    async def status(self, data: bytes) -> int:
        """Of the answer to a request."""
        line = await (await self.send(data)).readline()
        return int(line.split()[1])

    async def until(self, most: int) -> None:
        """Waits until the worker has no more connections."""
        while len(self._server.server_state.connections) > most:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(service: Local, asked: Asked | None = None) -> AsyncIterator[Connections]:
    """A worker of a service at a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        server = server_of(service.config, asked or service.desk)
        serving = asyncio.create_task(server.serve(sockets=[taken]))
        try:
            async with AsyncExitStack() as held, asyncio.timeout(PATIENCE):
                yield Connections(server, taken.getsockname(), held)
        finally:
            server.should_exit = True
            await serving


def asking(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_every_body_takes_one_place_whatever_it_is(tmp_path: Path) -> None:
    good = json.dumps({"features": features().tolist(), "person": "ann"}).encode()

    def of(features: str, person: str = '"ann"') -> bytes:
        return f'{{"features": {features}, "person": {person}}}'.encode()

    usable = [
        good,
        good[:-1] + b', "person": "bob"}',  # the last of two counts
        of(json.dumps(features().tolist()), "7"),
    ]
    strange = [
        of("9" * 4_999),
        of("9" * 400),
        of("NaN"),
        of("[" * 5_000 + "]" * 5_000),
        of("[" * 400 + "]" * 400),
        of("1", '"\\ud800"'),
        of("1", "9" * 4_999),
        of("1", "[]"),
        of("true", '""'),
        b'{"\\ud800": 1}',
        b'{"features": 1, "person": null, "more": 1}',
        b'{"person": "ann"}',
        b'{"features": 1}',
        b"[1]",
        b"{",
        b"\xff\xfe{",
        b"\x00" * 9,
        b"",
    ]

    async def work(service: Local) -> None:
        head = "POST /v1/recommend HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n"
        known, foreign = (head.format(t).encode() for t in (service.tokens["serve"], "nobody"))

        def sized(body: bytes, size: int | None = None) -> bytes:
            return b"Content-Length: %d\r\n\r\n" % (len(body) if size is None else size) + body

        def chunked(body: bytes) -> bytes:
            pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
            return b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"

        async def clock() -> int:
            return int((await service.get("/v1/status")).json()["clock"])

        async with listening(service) as made:
            requests = [known + sized(body) for body in (*usable, *strange)]
            requests += [known + chunked(body) for body in (good, strange[3][:300])]
            requests += [
                known + f"Content-Type: {kind}\r\n".encode() + sized(good)
                for kind in ("application/json", "text/plain", "application/octet-stream", "x")
            ]
            told = []
            for taken, request in enumerate(requests, start=1):
                told.append(await made.status(request))
                assert await clock() == taken, request[-60:]
            assert set(told) == {200, 422}
            for refused in (sized(b"", 10**9), chunked(good)[:-7] + b"x\r\n\r\n"):
                assert await made.status(known + refused) in (400, 413)
            assert await made.status(foreign + sized(good)) == 401
            await made.send(known + sized(good, 10**3))  # and no more
        assert await clock() == len(requests) < USERS
        messages = service.books.offers.learner.private_messages_
        unusable = {*range(len(usable), len(usable) + len(strange)), len(usable) + len(strange) + 1}
        assert unusable <= {user for user, _ in messages}
        # nothing that others see follows from what was wrong with a body
        metrics = (await service.get("/metrics")).text
        assert "bad-request" not in metrics

    run_with(write_config(tmp_path, TEXT + PEOPLE), work)


def limits(most: int, time: str) -> str:
    more = f'workers = 1\nmost_connections = {most}\nrequest_time = "{time}"'
    return TEXT.replace("workers = 1", more)


def test_connections_that_send_nothing_keep_no_place(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        async with listening(service) as made:
            for half in HALVES * 5:
                await made.send(half)
            for _ in range(3):
                assert await made.status(asking("/health")) == 200
                assert await made.status(asking("/ready")) == 200
            await made.until(8)  # the others gave way

    run_with(write_config(tmp_path, limits(8, "1 h")), work)


def test_a_request_has_to_come_and_its_answer_to_be_read_in_time(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        async with listening(service) as made:
            for half in HALVES:
                await made.send(half)
                await made.send(asking("/health") + half)
            await made.send(asking("/openapi.json") * 40)  # more than is held for who reads nothing
            assert await made.status(asking("/health")) == 200
            await made.until(0)

    run_with(write_config(tmp_path, limits(50, "50 ms")), work)


def test_health_is_answered_where_every_place_has_work(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        ends = asyncio.Event()

        class Slow:
            async def ask(self, name: str, fields: dict[str, Any], attached: bytes = b"") -> Any:
                await ends.wait()
                return {}

        async with listening(service, Slow()) as made:
            asked = [await made.send(asking("/ready")) for _ in range(2)]
            for _ in range(3):
                assert await made.status(asking("/health")) == 200
            assert await made.status(asking("/ready")) == 503
            ends.set()
            for reader in asked:
                assert (await reader.readline()).split()[1] == b"200"

    run_with(write_config(tmp_path, limits(2, "1 h")), work)
