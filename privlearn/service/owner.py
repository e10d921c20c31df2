"""The process that owns the ledger, the learner and all that is sealed; there is one.

It reads a pipe from its supervisor: when that is closed, however the supervisor ended, it stops as
it does at SIGTERM.  It exits with 0 when it was stopped, with `OVER` when the run is over, with
`BAD_INPUT` when it could not begin, with `FENCED` when another process took the ledger, and with
`FAILED` after an error from which only a new start helps.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from privlearn import __version__
from privlearn.errors import DataError, LedgerBusyError, LedgerFencedError, PrivlearnError
from privlearn.service.books import Books, RunIsOverError, Start, open_books
from privlearn.service.config import ServiceConfig, read_config
from privlearn.service.desk import Desk
from privlearn.service.link import OwnerEnd, limits
from privlearn.service.logs import log, log_crashes, log_error, log_to_stderr
from privlearn.service.stopping import BAD_INPUT, FAILED, FENCED, OVER, when_told
from privlearn.storage.sockets import LocalServer

_PATIENCE: Final = 10.0  # Seconds, beyond ``http.drain``, that an earlier owner has to end


async def serve(config: ServiceConfig, books: Books, lifeline: int | None) -> int:
    """Answers workers until it is told to stop; the exit code."""
    desk = Desk(config, books.accountant, books.offers)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    when_told(lambda: end(0), lifeline)
    keeping = asyncio.create_task(desk.keep_time())
    keeping.add_done_callback(lambda task: _end_if_failed(task, end))
    server = LocalServer(
        config.at(config.socket),
        OwnerEnd(desk, lambda error: end(_code_for(error))),
        limits=limits(config.largest_request),
    )
    async with server:
        account = books.accountant
        log(
            "owner-started",
            resumed=account.resumed,
            clock=books.offers.clock_,
            users=len(account.users),
            version=__version__,
        )
        code = await ended
        if code == 0:
            log("stopping", seconds=config.http.drain)
            await desk.stop(config.http.drain)
            await asyncio.wait([keeping])  # it may be in the middle of a batch
    keeping.cancel()
    await desk.close()
    return code


def _end_if_failed(task: asyncio.Task[None], end: Callable[[int], None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log_error("batch-failed", error)
        end(_code_for(error))


def _code_for(error: BaseException) -> int:
    return FENCED if isinstance(error, LedgerFencedError | LedgerBusyError) else FAILED


def alone(path: Path, patience: float) -> int:
    """A lock that one owner has until it ends; waits for one that is just stopping.

    Raises:
        DataError: another one goes on.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(file)
                told = "another service with this configuration runs; end it first"
                raise DataError(f"{path} is locked: {told}") from None
            time.sleep(0.05)


def main() -> None:
    """``python -m privlearn.service.owner CONFIG START LIFELINE``; for the supervisor."""
    path, start, lifeline = sys.argv[1:4]
    log_to_stderr("owner")
    log_crashes()
    try:
        config = read_config(Path(path))
        lock = config.at(config.socket)
        alone(lock.with_name(f"{lock.name}.owner"), config.http.drain + _PATIENCE)
        books = open_books(config, cast(Start, start))
    except RunIsOverError:
        log("over")
        sys.exit(OVER)
    except (PrivlearnError, ValueError, TypeError) as error:  # of public parameters and files
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    try:
        code = asyncio.run(serve(config, books, int(lifeline)))
    finally:
        books.close()
    log("owner-stopped")
    sys.exit(code)


if __name__ == "__main__":
    main()
