"""A registry of people behind a socket, served by a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from privlearn.people import People
from privlearn.people.server import PeopleAnswers
from privlearn.storage.frames import Message
from privlearn.storage.sockets import LocalServer, Peer


class _Answerer:
    """Answers about one registry, each in a thread, as its owner does."""

    def __init__(self, answers: PeopleAnswers) -> None:
        self._answers = answers

    async def answer(self, peer: Peer, asked: Message) -> Message:
        return await asyncio.to_thread(self._answers.answer, asked)

    def left(self, peer: Peer) -> None:
        pass


@contextmanager
def served(people: People, path: Path, epoch: Callable[[], int] = lambda: 1) -> Iterator[None]:
    """Serves it at the path of a socket, until the block ends."""
    begun, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        done = asyncio.Event()
        async with LocalServer(path, _Answerer(PeopleAnswers(people, epoch))):
            loops.append((asyncio.get_running_loop(), done))
            begun.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        for loop, done in loops:
            loop.call_soon_threadsafe(done.set)
        thread.join()
