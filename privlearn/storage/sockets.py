"""Questions and answers between processes of one user on one host, over a Unix socket.

`LocalServer` answers, in one asyncio loop, any number of connections with any number of questions
each; `Client` asks from threads, `AsyncClient` from coroutines.

The socket is its owner's alone (mode 0600), and both sides ask the kernel who the other one is
(``SO_PEERCRED``): a process of another user is refused, whatever the mode of the file or folder.
Only a server for a ``group`` (mode 0660) hears its members, and its answerer knows who they are.
A server holds a lock of the system (``flock``) on ``PATH.lock``, which ends with it however it
ends, and only with this lock the socket that a dead server left is replaced.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, final

from privlearn.errors import LocalSocketError, PrivlearnError, TokenCopyError
from privlearn.storage import processes
from privlearn.storage.addresses import located_socket
from privlearn.storage.frames import (
    HEAD,
    Limits,
    Message,
    error_form,
    error_from,
    framed,
    lengths,
    object_in,
    parsed,
)

try:
    import fcntl
except ImportError:  # `located_socket` says so
    fcntl = None  # type: ignore[assignment]

_BETWEEN = 0.1  # Seconds until a server that could not take a connection tries again
_LOG = logging.getLogger("privlearn.local_sockets")
_UNKNOWN = LocalSocketError("the other side failed unexpectedly; its log says how")


def user_of(end: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them."""
    form = struct.Struct("=iII")
    process, user, _ = form.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return process, user


@final
class Peer:
    """One connection of a server.

    Attributes:
        process: number of the process that made it.
        other: another user than the server's, whose process it is; None for the server's own.
    """

    __slots__ = ("_bytes", "_limits", "_questions", "_room", "other", "process")

    def __init__(self, process: int, limits: Limits, other: int | None = None) -> None:
        self.process, self._limits, self.other = process, limits, other
        self._questions = self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def _count(self, questions: int, size: int) -> None:
        self._questions += questions
        self._bytes += size
        if self._questions < self._limits.unanswered and self._bytes < self._limits.attached:
            self._room.set()
        else:
            self._room.clear()


class Answerer(Protocol):
    """What a `LocalServer` asks for answers; all of it in the server's loop."""

    async def answer(self, peer: Peer, asked: Message) -> Message:
        """The answer to one question; others of the same connection may be under way.

        A PrivlearnError becomes the answer, by its name and message.  Of any other the asker learns
        only that there was one, as it may tell of data.  It goes on when the connection is cut.
        """

    def left(self, peer: Peer) -> None:
        """A connection has ended; there are no further questions on it."""


@final
class _Place:
    """The lock and the listening socket of a server."""

    def __init__(self, path: Path, group: int | None) -> None:
        self.path, self.lock, self._group = path, _lock(path), group
        try:
            _remove_dead(path)
            self.socket = self._bound()
        except BaseException:
            os.close(self.lock)
            raise
        found = path.lstat()
        self._own = found.st_dev, found.st_ino
        processes.INHERITED.add(self)

    def _bound(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(made.fileno(), 0o600)  # so there is no moment at which others may connect
            made.bind(os.fspath(self.path))
            if self._group is not None:
                os.chown(self.path, -1, self._group)
            os.chmod(self.path, 0o600 if self._group is None else 0o660)
            made.listen(128)
            made.setblocking(False)
        except OSError as error:
            made.close()
            raise LocalSocketError(
                f"{self.path} cannot be served: {error.strerror or error}"
            ) from None
        return made

    def unlink(self) -> None:
        with suppress(OSError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._own:
                self.path.unlink()

    def leave(self) -> None:
        processes.INHERITED.discard(self)
        self.socket.close()
        os.close(self.lock)

    def in_child(self) -> None:
        self.leave()


def _lock(path: Path) -> int:
    name = f"{path}.lock"
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LocalSocketError(f"{name} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        who = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        os.close(file)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise LocalSocketError(f"{name} cannot be locked: {error.strerror}") from None
        raise LocalSocketError(
            f"{path} is served by another process{f', {who}' if who else ''}: there is one at a "
            "time; connect to it, or end it first"
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def _remove_dead(path: Path) -> None:
    """Removes the socket that a dead server left; called with the lock."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalSocketError(f"{path} cannot be served: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise LocalSocketError(f"{path} is no socket: it is not replaced; give another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1)
        try:
            trial.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise LocalSocketError(f"{path} is served by a program that takes no lock: give another path")


@final
class LocalServer:
    """Serves a socket, in an ``async with`` block; the end of the block ends it.

    At the end it takes no more connections and questions, waits ``grace`` seconds for the answers
    under way, and removes the socket.

    Args:
        path: of the socket, in a directory that is there.
        answerer: gives the answers.
        limits: of what it takes.
        grace: seconds.
        group: whose members may connect, too, though they are other users.

    Raises:
        LocalSocketError: another process serves there, or the path cannot be one of a socket.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        answerer: Answerer,
        *,
        limits: Limits | None = None,
        grace: float = 5.0,
        group: int | None = None,
    ) -> None:
        self.path, self._group = located_socket(path), group
        self._answerer, self._grace = answerer, grace
        self._limits = limits if limits is not None else Limits()
        self._ending = False
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._place = _Place(self.path, self._group)
        self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        self._place.unlink()
        asyncio.get_running_loop().remove_reader(self._place.socket)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._grace)
        tasks = [*self._connections, *self._under_way]
        for each in tasks:
            each.cancel()
        ends = list(self._connections.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:  # of those that were not looked at yet, too
            end.close()
        self._place.leave()

    def _listen(self) -> None:
        if not self._ending:
            asyncio.get_running_loop().add_reader(self._place.socket, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            end, _ = self._place.socket.accept()
        except BlockingIOError:  # who came is gone
            return
        except OSError as error:  # no more files, say
            _LOG.warning("%s: %s", self.path, error.strerror)
            loop.remove_reader(self._place.socket)
            loop.call_later(_BETWEEN, self._listen)
            return
        end.setblocking(False)
        task = loop.create_task(self._serve(end))
        self._connections[task] = end
        task.add_done_callback(self._connections.pop)

    async def _serve(self, end: socket.socket) -> None:
        with end:
            process, user = user_of(end)
            other = None if user == os.geteuid() else user
            if other is not None and self._group is None:
                _LOG.warning("%s: process %d of user %d is refused", self.path, process, user)
                return
            if len(self._connections) > self._limits.connections:
                _LOG.warning("%s: more than %d connections", self.path, self._limits.connections)
                return
            reader, writer = await asyncio.open_unix_connection(sock=end)
            peer = Peer(process, self._limits, other)
            try:
                await self._hear(peer, reader, writer)
            except (LocalSocketError, TimeoutError) as error:
                why = str(error) or "too slow"
                _LOG.warning("%s: process %d: %s", self.path, process, why)
            except (OSError, EOFError) as error:  # it died, say
                _LOG.info("%s: process %d: %s", self.path, process, error)
            finally:
                writer.transport.abort()
                self._answerer.left(peer)

    async def _hear(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sending = asyncio.Lock()
        while (frame := await _next_frame(reader, self._limits)) is not None:
            number, found, attached = frame
            asked = Message(object_in(found, "ask"), attached)
            peer._count(1, len(attached))
            task = asyncio.create_task(self._answer(peer, number, asked, writer, sending))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await peer._room.wait()

    async def _answer(
        self,
        peer: Peer,
        number: int,
        asked: Message,
        writer: asyncio.StreamWriter,
        sending: asyncio.Lock,
    ) -> None:
        try:
            frame = await self._framed_answer(peer, number, asked)
            writer.write(frame)
            if writer.transport.get_write_buffer_size():
                async with sending, asyncio.timeout(self._limits.seconds):
                    await writer.drain()
        except (OSError, TimeoutError):  # nobody takes it
            writer.transport.abort()
        finally:
            peer._count(-1, -len(asked.attached))

    async def _framed_answer(self, peer: Peer, number: int, asked: Message) -> bytes:
        try:
            if self._ending:
                raise LocalSocketError(f"{self.path}: its server is ending")
            found = await self._answerer.answer(peer, asked)
            return framed({"id": number, "answer": found.fields}, found.attached, self._limits)
        except PrivlearnError as error:
            form = error_form(error)
        except Exception as error:  # its message may tell of data, and is not logged
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = type(error).__name__
            _LOG.error("%s: %s at %s:%s", self.path, kind, where.filename, where.lineno)
            form = error_form(_UNKNOWN)
        return framed({"id": number, "error": form}, b"", self._limits)


async def _next_frame(
    reader: asyncio.StreamReader, limits: Limits
) -> tuple[int, dict[str, Any], bytes] | None:
    """The next frame; None at the end of the connection, between two of them."""
    first = await reader.read(1)
    if not first:
        return None
    async with asyncio.timeout(limits.seconds):
        head = first + await reader.readexactly(HEAD.size - 1)
        size, others = lengths(head, limits)
        number, found = parsed(await reader.readexactly(size))
        return number, found, await reader.readexactly(others)


def _connected(path: Path, seconds: float, of: int | None = None) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(seconds)
        end.connect(os.fspath(path))
        process, user = user_of(end)
        expected = os.geteuid() if of is None else of
        if user != expected:
            theirs = "this one is of user" if of is None else "its owner was said to be user"
            raise LocalSocketError(
                f"{path} is served by process {process} of user {user}, and {theirs} {expected}: "
                "both must be the same"
            )
    except OSError as error:
        end.close()
        raise LocalSocketError(
            f"{path}: nobody answers there ({error.strerror or error}): start who serves it"
        ) from None
    except LocalSocketError:
        end.close()
        raise
    return end


def _answer_in(found: dict[str, Any], attached: bytes) -> Message | PrivlearnError:
    if "error" in found:
        return error_from(object_in(found, "error"))
    return Message(object_in(found, "answer"), attached)


@final
class _Asked:
    """A question on its way."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Message | PrivlearnError | None = None


@final
class Client:
    """One connection, which any threads ask over; a context manager.

    Whoever waits for an answer reads, one at a time, also those of the others.  A connection that
    was lost stays so: make another.

    Args:
        path: of the socket.
        limits: of what is sent and taken.
        of: the user whose process must serve there; default, this one's.

    Raises:
        LocalSocketError: nobody serves there, or a process of another user.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        of: int | None = None,
    ) -> None:
        self.path = located_socket(path)
        self._limits = limits if limits is not None else Limits()
        self._made_in = processes.here()
        self._socket = _connected(self.path, self._limits.seconds, of)
        self._socket.setblocking(False)
        weakref.finalize(self, self._socket.close).atexit = False
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._sending = threading.Lock()
        self._lock = threading.RLock()
        self._waiting = threading.Condition(self._lock)
        self._reader: _Asked | None = None
        self._buffer = bytearray()
        self._lost = ""
        processes.INHERITED.add(self)

    def ask(
        self, fields: dict[str, Any], attached: bytes = b"", *, seconds: float | None = None
    ) -> Message:
        """Sends a question, and waits for its answer.

        Raises:
            LocalSocketError: no answer came, and whether the question did is not known; or it is
                too large.
            PrivlearnError: what the other side raised.
            TokenCopyError: in a forked process.
        """
        self._check_process()
        deadline = time.monotonic() + (self._limits.seconds if seconds is None else seconds)
        number, asked = next(self._numbers), _Asked()
        frame = framed({"id": number, "ask": fields}, attached, self._limits)
        self._asked[number] = asked
        try:
            self._put(frame, deadline)
            answer = self._wait(asked, deadline)
        finally:
            self._asked.pop(number, None)
        if isinstance(answer, PrivlearnError):
            raise answer
        return answer

    def tell(self, fields: dict[str, Any]) -> None:
        """Sends a question, and waits for no answer.

        Raises:
            LocalSocketError: it could not be sent.
            TokenCopyError: in a forked process.
        """
        self._check_process()
        deadline = time.monotonic() + self._limits.seconds
        self._put(framed({"id": next(self._numbers), "ask": fields}, b"", self._limits), deadline)

    def _check_process(self) -> None:
        if self._made_in != processes.here():
            raise TokenCopyError(f"a connection to {self.path} cannot be used in a forked process")

    def _put(self, frame: bytes, deadline: float) -> None:
        with self._sending:
            self._check_open()
            try:
                self._send(frame, deadline)
            except BaseException as error:  # half of it may have been sent
                raise self._broken(error) from None

    def _send(self, frame: bytes, deadline: float) -> None:
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._until_ready(select.POLLOUT, deadline)

    def _until_ready(self, event: int, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(self._socket, event)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError

    def _wait(self, asked: _Asked, deadline: float) -> Message | PrivlearnError:
        while asked.answer is None:
            try:
                try:
                    if self._may_read(asked, deadline):
                        self._read(deadline)
                finally:
                    self._let_read(asked)
            except BaseException:  # a signal's may have fallen before it began to
                self._let_read(asked)
                raise
        return asked.answer

    def _may_read(self, asked: _Asked, deadline: float) -> bool:
        """Whether it is this thread's to read, whoever waited for that."""
        with self._lock:  # not the condition, which is left by Python code: see `Block`
            if asked.answer is not None:
                return False
            if self._reader is not None:
                if not self._waiting.wait(max(0.0, deadline - time.monotonic())):
                    raise self._no_answer(deadline)
                return False
            self._check_open()
            self._reader = asked
            return True

    def _let_read(self, asked: _Asked) -> None:
        """Lets another thread read, if this one does; may be called again if it is interrupted."""
        if self._reader is asked:
            with self._lock:
                self._waiting.notify_all()
                self._reader = None

    def _read(self, deadline: float) -> None:
        """Takes what has come, and gives the whole answers in it to who asked."""
        try:
            self._until_ready(select.POLLIN, deadline)
        except TimeoutError:  # what was read of a frame is kept for the next reader
            raise self._no_answer(deadline) from None
        try:
            data = self._socket.recv(_AT_ONCE)
            if not data:
                raise EOFError
            self._buffer += data
            while (frame := self._cut()) is not None:
                number, found, attached = frame
                asked = self._asked.get(number)
                if asked is not None:  # else whoever asked has waited long enough
                    asked.answer = _answer_in(found, attached)
        except BaseException as error:
            raise self._broken(error) from None

    def _cut(self) -> tuple[int, dict[str, Any], bytes] | None:
        buffer = self._buffer
        if len(buffer) < HEAD.size:
            return None
        size, others = lengths(buffer[: HEAD.size], self._limits)
        middle = HEAD.size + size
        if len(buffer) < middle + others:
            return None
        data, attached = bytes(buffer[HEAD.size : middle]), bytes(buffer[middle : middle + others])
        del buffer[: middle + others]
        return *parsed(data), attached

    def _broken(self, error: BaseException) -> BaseException:
        """Lets nobody use the connection any more; what to raise."""
        why = "it was closed from the other side" if isinstance(error, EOFError) else str(error)
        self._lost = self._lost or why or type(error).__name__
        self._close()
        return self._gone() if isinstance(error, Exception) else error

    def _gone(self) -> LocalSocketError:
        return LocalSocketError(f"{self.path}: the connection was lost: {self._lost}")

    def _no_answer(self, deadline: float) -> LocalSocketError:
        return LocalSocketError(f"{self.path}: no answer came in time")

    def _check_open(self) -> None:
        if self._lost:
            raise self._gone()

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked over it any more."""
        return bool(self._lost)

    def _close(self) -> None:
        # wakes who reads, which closing alone does not
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection, and all that waits for an answer; may be called twice."""
        if self._made_in == processes.here():
            self._lost = self._lost or "it was closed"
            self._close()
            self._socket.close()

    def in_child(self) -> None:
        """A forked child does not keep the connection alive when its parent ends."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a connection cannot be copied or pickled: make another")


@final
class AsyncClient:
    """One connection, which any coroutines of one loop ask over; `connect` makes it."""

    def __init__(
        self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        self.path, self._reader, self._writer, self._limits = path, reader, writer, limits
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._sending = asyncio.Lock()
        self._lost = ""
        self._task = asyncio.create_task(self._hear())

    @classmethod
    async def connect(
        cls, path: str | os.PathLike[str], *, limits: Limits | None = None
    ) -> AsyncClient:
        """Connects to a server; raises as `Client`."""
        where, taken = located_socket(path), limits if limits is not None else Limits()
        end = _connected(where, taken.seconds)  # a Unix socket connects at once
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(where, reader, writer, taken)

    async def ask(
        self, fields: dict[str, Any], attached: bytes = b"", *, seconds: float | None = None
    ) -> Message:
        number = next(self._numbers)
        frame = framed({"id": number, "ask": fields}, attached, self._limits)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._limits.seconds if seconds is None else seconds):
                async with self._sending:
                    if self._lost:
                        raise self._gone()
                    self._asked[number] = future
                    self._writer.write(frame)  # whole, also where the rest is cancelled
                    await self._writer.drain()
                return await future
        except TimeoutError:
            raise LocalSocketError(f"{self.path}: no answer came in time") from None
        except OSError as error:
            raise LocalSocketError(f"{self.path}: the connection was lost: {error}") from None
        finally:
            self._asked.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # nobody may wait for it any more

    async def _hear(self) -> None:
        try:
            while (frame := await _next_frame(self._reader, self._limits)) is not None:
                number, found, attached = frame
                answer = _answer_in(found, attached)
                future = self._asked.get(number)
                if future is None or future.done():
                    continue
                if isinstance(answer, PrivlearnError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            self._lost = "it was closed from the other side"
        except (LocalSocketError, OSError, EOFError, TimeoutError) as error:
            self._lost = str(error) or type(error).__name__
        finally:
            self._lost = self._lost or "it was closed"
            self._writer.transport.abort()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(self._gone())

    def _gone(self) -> LocalSocketError:
        return LocalSocketError(f"{self.path}: the connection was lost: {self._lost}")

    @property
    def lost(self) -> bool:
        return bool(self._lost)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_AT_ONCE = 2**18  # Bytes that are read at once
