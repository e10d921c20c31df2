"""Questions and answers between processes over a Unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from privlearn.errors import BudgetError, LedgerBusyError, LocalSocketError, TokenCopyError
from privlearn.storage import sockets
from privlearn.storage.frames import HEAD, Limits, Message, framed
from privlearn.storage.sockets import AsyncClient, Client, LocalServer, Peer

SMALL = Limits(json=1000, attached=5000, connections=3, unanswered=4, seconds=0.5)


class Echo:
    """Answers after a while, with what it was asked."""

    def __init__(self) -> None:
        self.left_by: list[int] = []
        self.asked = self.most = self.now = 0

    async def answer(self, peer: Peer, asked: Message) -> Message:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(asked.fields.get("wait", 0))
            match asked.fields.get("fail"):
                case "budget":
                    raise BudgetError("no such budget")
                case "other":
                    raise RuntimeError("the salary of Ann is 3")
                case "large":
                    return Message({"x": "x" * 2000})
            return Message({**asked.fields, "from": peer.process}, asked.attached[::-1])
        finally:
            self.now -= 1

    def left(self, peer: Peer) -> None:
        self.left_by.append(peer.process)


@contextmanager
def served(path: Path, answerer: Any, limits: Limits = SMALL) -> Iterator[LocalServer]:
    """A server in a thread."""
    server = LocalServer(path, answerer, limits=limits, grace=0.3)
    ready: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event] | BaseException] = Queue()

    async def serve() -> None:
        async with server:
            stop = asyncio.Event()
            ready.put((asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except LocalSocketError as error:
            ready.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun = ready.get(timeout=5)
    try:
        if isinstance(begun, BaseException):
            raise begun
        yield server
    finally:
        if not isinstance(begun, BaseException):
            begun[0].call_soon_threadsafe(begun[1].set)
        thread.join()
        assert ready.empty()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def test_threads_get_their_own_answers_in_any_order(path: Path) -> None:
    echo = Echo()
    found: dict[int, Message] = {}
    ended: list[int] = []
    with served(path, echo), Client(path) as client:

        def ask(i: int) -> None:
            found[i] = client.ask({"i": i, "wait": 0.06 - i / 50}, b"ab%d" % i)
            ended.append(i)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for i, message in found.items():
        assert message.fields["i"] == i
        assert message.fields["from"] == os.getpid()
        assert message.attached == (b"ab%d" % i)[::-1]
    assert ended == [3, 2, 1, 0]
    assert echo.left_by == [os.getpid()]
    assert not path.exists()


def test_coroutines_ask_at_once_and_the_server_bounds_how_many(path: Path) -> None:
    async def ask() -> list[Message]:
        async with await AsyncClient.connect(path) as client:
            return await asyncio.gather(
                *(client.ask({"i": i, "wait": 0.01}, b"x" * i) for i in range(20))
            )

    echo = Echo()
    with served(path, echo):
        found = asyncio.run(ask())
    assert [message.fields["i"] for message in found] == list(range(20))
    assert [len(message.attached) for message in found] == list(range(20))
    assert echo.most == SMALL.unanswered


def test_errors_come_by_name_and_what_may_tell_of_data_does_not(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(fields: dict[str, Any]) -> Message:
        async with await AsyncClient.connect(path) as client:
            return await client.ask(fields)

    with served(path, Echo()), Client(path) as client:
        for raised in (client.ask, lambda fields: asyncio.run(ask(fields))):
            with pytest.raises(BudgetError, match="no such budget"):
                raised({"fail": "budget"})
            with pytest.raises(LocalSocketError, match="failed unexpectedly") as caught:
                raised({"fail": "other"})
            assert "Ann" not in str(caught.value)
            with pytest.raises(LocalSocketError, match="at most 1000 and 5000"):
                raised({"fail": "large"})
        assert client.ask({"i": 1}).fields["i"] == 1  # the connection lives on
    assert "RuntimeError" in caplog.text
    assert "Ann" not in caplog.text


def test_what_is_too_large_is_refused_before_it_is_sent(path: Path) -> None:
    with served(path, Echo()), Client(path, limits=SMALL) as client:
        with pytest.raises(LocalSocketError, match="at most 1000 and 5000"):
            client.ask({"x": "x" * 1000})
        with pytest.raises(LocalSocketError, match="at most 1000 and 5000"):
            client.ask({}, bytes(5001))
        assert client.ask({}, bytes(5000)).attached == bytes(5000)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (HEAD.pack(1001, 0), "a frame of 1001 bytes"),
        (HEAD.pack(2, 2**32 - 1), "4294967295 others"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
        (HEAD.pack(3, 0) + b"\xff\xfe{", "no JSON"),
        (HEAD.pack(4, 0) + b"[NaN", "no JSON"),
        (HEAD.pack(1000, 0) + b"[" * 1000, "no JSON"),
        (HEAD.pack(12, 0) + b'{"ask":{}}  ', "without an id"),
        (HEAD.pack(8, 0) + b'{"id":1}', "without 'ask'"),
        (HEAD.pack(14, 0) + b'{"id":true,"a"', "no JSON"),
        (HEAD.pack(20, 0) + b'{"id":true,"ask":{}}', "without an id"),
        (HEAD.pack(20, 0) + b'{"id"', "too slow"),
        (HEAD.pack(20, 0)[:3], "too slow"),
    ],
)
def test_who_speaks_another_way_is_cut_off_alone(
    path: Path, sent: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    echo, limits = Echo(), Limits(json=1000, attached=5000, seconds=0.1)
    with served(path, echo, limits), Client(path) as good:
        with socket.socket(socket.AF_UNIX) as bad:
            bad.connect(os.fspath(path))
            bad.sendall(sent)
            bad.settimeout(5)
            assert bad.recv(10) == b""
        assert good.ask({"i": 1}).fields["i"] == 1
    assert said in caplog.text
    assert echo.asked == 1


def test_who_takes_no_answers_is_cut_off(path: Path) -> None:
    limits = Limits(json=1000, attached=2**20, seconds=0.2)
    with served(path, Echo(), limits), socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(os.fspath(path))
        deaf.settimeout(5)
        frames = b"".join(framed({"id": i, "ask": {}}, bytes(2**20), limits) for i in range(20))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deaf.sendall(frames)


def test_connections_are_counted(path: Path) -> None:
    with served(path, Echo()):
        clients = [Client(path) for _ in range(3)]
        for client in clients:
            client.ask({})
        with Client(path) as fourth, pytest.raises(LocalSocketError, match="was lost"):
            fourth.ask({})
        clients.pop().close()
        deadline = time.monotonic() + 5
        while True:  # until the server has seen that
            with Client(path) as other:
                try:
                    other.ask({})
                    break
                except LocalSocketError:
                    assert time.monotonic() < deadline
        for client in clients:
            client.close()


@pytest.mark.parametrize("side", ["server", "client"])
def test_another_user_is_refused(path: Path, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    with served(path, echo):
        real, here = sockets.user_of, threading.current_thread()

        def another(end: socket.socket) -> tuple[int, int]:
            process, user = real(end)
            asked = "client" if threading.current_thread() is here else "server"
            return process, user + (asked == side)

        monkeypatch.setattr(sockets, "user_of", another)
        if side == "client":
            with pytest.raises(LocalSocketError, match="both must be the same"):
                Client(path)
        else:
            with Client(path) as client, pytest.raises(LocalSocketError, match="was lost"):
                client.ask({})
        assert not echo.asked


def test_no_answer_in_time_leaves_the_connection_whole(path: Path) -> None:
    async def ask() -> int:
        async with await AsyncClient.connect(path) as client:
            with pytest.raises(LocalSocketError, match="no answer came in time"):
                await client.ask({"wait": 0.1}, seconds=0.01)
            number: int = (await client.ask({"i": 2})).fields["i"]
            return number

    with served(path, Echo()), Client(path) as client:
        with pytest.raises(LocalSocketError, match="no answer came in time"):
            client.ask({"i": 1, "wait": 0.1}, seconds=0.01)
        assert client.ask({"i": 2}).fields["i"] == 2
        assert asyncio.run(ask()) == 2


def test_the_end_of_a_server_answers_what_is_under_way_and_no_more(path: Path) -> None:
    found: list[object] = []
    with served(path, Echo()) as server:
        client = Client(path)

        def ask() -> None:
            found.append(client.ask({"i": 1, "wait": 0.1}).fields["i"])

        thread = threading.Thread(target=ask)
        thread.start()
        while not server._under_way:
            time.sleep(0.001)
    thread.join()
    assert found == [1]
    with pytest.raises(LocalSocketError, match="was lost"):
        client.ask({})
    assert client.lost
    with pytest.raises(LocalSocketError, match="nobody answers there"):
        Client(path)
    client.close()
    client.close()


_SERVE = """
import asyncio, sys
from privlearn.storage.sockets import LocalServer
async def main():
    async with LocalServer(sys.argv[1], None):
        print("serving", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def test_one_serves_while_it_lives_and_the_next_takes_the_place_of_a_dead_one(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _SERVE, path], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"serving\n"
        with (
            pytest.raises(LocalSocketError, match=rf"another process, {first.pid}: there is one"),
            served(path, Echo()),
        ):
            pass
        first.kill()
        first.wait()
    assert path.is_socket()
    with served(path, Echo()), Client(path) as client:
        assert client.ask({"i": 3}).fields["i"] == 3


def test_nothing_that_lives_or_is_no_socket_is_replaced(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(LocalSocketError, match="is no socket"), served(path, Echo()):
        pass
    assert path.read_text() == "mine"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path))
        other.listen()
        with pytest.raises(LocalSocketError, match="takes no lock"), served(path, Echo()):
            pass
        assert path.is_socket()


def test_paths_have_the_length_of_the_system(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 108)
    with pytest.raises(LocalSocketError, match="at most 107: give a shorter one"):
        Client(long)
    with pytest.raises(LocalSocketError, match="at most 107"):
        LocalServer(long, Echo())
    with pytest.raises(LocalSocketError, match="No such file or directory"):
        Client(tmp_path / "none" / "s.sock")


def test_a_forked_child_asks_nothing_and_keeps_nothing_alive(path: Path) -> None:
    echo = Echo()
    with served(path, echo):
        client = Client(path)
        client.ask({})
        told, tells = os.pipe()
        waits, wakes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.ask({})
            except TokenCopyError:
                os.write(tells, b"refused")
            finally:
                os.read(waits, 1)  # lives until it is told
                os._exit(0)
        assert os.read(told, 7) == b"refused"
        client.close()
        deadline = time.monotonic() + 5
        while not echo.left_by and time.monotonic() < deadline:
            time.sleep(0.001)
        assert echo.left_by == [os.getpid()]
        os.write(wakes, b".")
        os.waitpid(child, 0)
        for each in (told, tells, waits, wakes):
            os.close(each)


def test_errors_come_as_they_are_told_and_unknown_ones_as_of_the_socket() -> None:
    from privlearn.errors import InsufficientBudgetError
    from privlearn.storage.frames import error_form, error_from

    room = InsufficientBudgetError(spent=1, requested=2, remaining=0, users=range(3))
    for error in (room, room.of("team a"), LedgerBusyError("busy")):
        found = error_from(error_form(error))
        assert type(found) is type(error)
        assert str(found) == str(error)
    for name in ("SystemExit", "annotations", "Exception", ""):
        assert type(error_from({"name": name, "message": "m"})) is LocalSocketError
