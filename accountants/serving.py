"""Owning a ledger file, so that other processes of this host issue and spend through its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Annotated, final

from privlearn.accountants.accounts import Accounts
from privlearn.ledger import Ledger
from privlearn.ledger.disk import located
from privlearn.ledger.kept_heads import KeepHead
from privlearn.ledger.owner import GRACE, TURN, LedgerOwner
from privlearn.ledger.owner_lock import OwnerLock
from privlearn.ledger.socket_store import LIMITS
from privlearn.people import People
from privlearn.people.server import PeopleAnswers, WithPeople
from privlearn.storage.addresses import located_socket
from privlearn.storage.sockets import Answerer, LocalServer
from privlearn.storage.users import group_number
from privlearn.values.validate import Positive, check_fields, not_negative

_FINISH = 5.0  # Seconds that a process has to end its turn when the owner is asked to end


def default_socket(ledger: str | os.PathLike[str]) -> Path:
    """Where the owner of a ledger serves, unless it is told: beside the file."""
    where = located(ledger)
    return where.with_name(f"{where.name}.sock")


def serve_ledger(
    ledger: str | os.PathLike[str],
    *,
    socket: str | os.PathLike[str] | None = None,
    new: bool = False,
    head: str | None = None,
    unknown_head: bool = False,
    keep_head: KeepHead | None = None,
    people: People | None = None,
    turn_seconds: float = TURN,
    grace: float = GRACE,
    group: str | None = None,
    ready: Callable[[Path], object] = lambda socket: None,
) -> None:
    """Owns a ledger file until SIGTERM or SIGINT, and lets other processes write to it.

    They come by `Ledger.connect`, and `CentralAccountant.join` or `JointAccountant.join`; one of
    them opens the account, or resumes it where it holds a learner.

    Args:
        ledger: the file.
        socket: where it serves; default beside the file, ``LEDGER.sock``.
        new: makes the file, which must not exist.
        head, unknown_head, keep_head: as of `Ledger.open`.
        people: a registry beside it, which others come to by `People.connect`; its file is open in
            this process alone.
        turn_seconds: after which a process that holds up others loses its turn; public.
        grace: seconds that a process whose connection was cut has to come back; public.
        group: whose members may connect, too, and spend what was granted to them.
        ready: is called with the socket once it serves.

    Raises:
        LedgerBusyError: another process serves it.
        LedgerError: as of `Ledger.open` and `Ledger.create`; an entry does not check; or, while it
            serves, the file cannot be written any more.
        LocalSocketError: the socket cannot be served.
        ValueError, TypeError: seconds that are none, no registry, no group, or a ``head`` that is
            none.
    """
    asyncio.run(
        _own(
            ledger,
            _Options(
                socket, new, head, unknown_head, keep_head, people, turn_seconds, grace, group
            ),
            ready=lambda where, _: ready(where),
            signals=True,
        )
    )


@contextmanager
def owning_ledger(
    ledger: str | os.PathLike[str],
    *,
    socket: str | os.PathLike[str] | None = None,
    new: bool = False,
    head: str | None = None,
    unknown_head: bool = False,
    keep_head: KeepHead | None = None,
    people: People | None = None,
    turn_seconds: float = TURN,
    grace: float = GRACE,
    group: str | None = None,
) -> Iterator[Path]:
    """Owns a ledger file in a thread of this process while the block runs; returns the socket.

    This process comes to the ledger through the socket, too.  Arguments and errors are those of
    `serve_ledger`; what stops the owner is raised at the end of the block.
    """
    options = _Options(
        socket, new, head, unknown_head, keep_head, people, turn_seconds, grace, group
    )
    begun: Queue[tuple[Path, Callable[[], object]] | None] = Queue()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_own(ledger, options, ready=lambda *told: begun.put(told), signals=False))
        except BaseException as error:
            failed.append(error)
        begun.put(None)

    thread = threading.Thread(target=run, name="privlearn-owner")
    thread.start()
    told = begun.get()
    try:
        if told is not None:
            yield told[0]
    finally:
        if told is not None:
            with suppress(RuntimeError):  # it has stopped by itself
                told[1]()
        thread.join()
    if failed:
        raise failed[0]


@final
@dataclass(frozen=True, slots=True)
class _Options:
    socket: str | os.PathLike[str] | None
    new: bool
    head: str | None
    unknown_head: bool
    keep_head: KeepHead | None
    people: People | None
    turn_seconds: Positive
    grace: Annotated[float, not_negative]
    group: str | None

    def __post_init__(self) -> None:
        if self.people is not None and not isinstance(self.people, People):
            kind = type(self.people).__name__
            raise TypeError(f"people: a {kind}: must be the registry, People.open(path)")
        check_fields(self)


async def _own(
    ledger: str | os.PathLike[str],
    options: _Options,
    *,
    ready: Callable[[Path, Callable[[], object]], object],
    signals: bool,
) -> None:
    where = located_socket(default_socket(ledger) if options.socket is None else options.socket)
    group = None if options.group is None else group_number(options.group)
    keep_head = options.keep_head
    if options.new:
        Ledger.create(ledger, keep_head=keep_head).close()
    path = located(ledger)
    with OwnerLock(path) as lock:
        with lock.opening():
            book = Ledger.open(
                path, head=options.head, unknown_head=options.unknown_head, keep_head=keep_head
            )
        with closing(book):
            accounts = Accounts.read(book)
            owner = LedgerOwner(
                book, accounts, turn_seconds=options.turn_seconds, grace=options.grace
            )
            book.settled(book.settling())
            await _serve(
                owner, _answerer(owner, book, options.people), where, group, ready, signals
            )


def _answerer(owner: LedgerOwner, book: Ledger, people: People | None) -> Answerer:
    if people is None:
        return owner

    def epoch() -> int:
        if owner.failure is not None:  # nobody is admitted where nothing can be spent
            raise owner.failure
        return book.log.tip.epoch

    return WithPeople(owner, PeopleAnswers(people, epoch))


async def _serve(
    owner: LedgerOwner,
    answerer: Answerer,
    where: Path,
    group: int | None,
    ready: Callable[[Path, Callable[[], object]], object],
    signals: bool,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
        loop.add_signal_handler(number, stop.set)
    async with LocalServer(where, answerer, limits=LIMITS, group=group):
        ready(where, lambda: loop.call_soon_threadsafe(stop.set))
        waits = [asyncio.create_task(each.wait()) for each in (stop, owner.failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await owner.finish(_FINISH)
    await owner.end()
    if owner.failure is not None:
        raise owner.failure
