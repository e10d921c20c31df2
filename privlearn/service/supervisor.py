"""Starts the owner and the workers, and starts again whichever dies, until it is told to stop.

At SIGTERM or SIGINT the owner stops first: it makes no more offers, takes answers for
``http.drain``, and lets go of the ledger; the workers follow.  All of them read a pipe from here,
so that none outlives a supervisor that was killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import sys
import time
from asyncio.subprocess import Process
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, final

from privlearn import __version__
from privlearn.errors import DataError
from privlearn.service.access import AccessTokens, check_private
from privlearn.service.books import check_files
from privlearn.service.config import ServiceConfig
from privlearn.service.logs import log, log_to_stderr
from privlearn.service.stopping import BAD_INPUT, FENCED, OVER
from privlearn.storage.addresses import located_socket

_BACKLOG: Final = 1_024
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0
"""Seconds before a process that died is started again; twice as long each time."""
_LIVED: Final = 10.0  # Seconds after which a process counts as one that works
_FREED: Final = 3.0  # Seconds in which workers of a supervisor that was killed leave its port
_PATIENCE: Final = 10.0
"""Seconds that a process has to stop, beyond ``http.drain``, before it is killed."""


def run(path: Path, config: ServiceConfig, *, begin: bool) -> int:
    """Serves until it is told to stop; the exit code.

    Raises:
        DataError: a file or the address cannot be used.
    """
    check(config, begin=begin)
    log_to_stderr("supervisor")
    if config.guarantee.simulate_noise is not None:
        log("simulated-noise", reason="protects nobody, and the ledger says so")
    with ExitStack() as held:
        listening = [held.enter_context(each) for each in _listening(config)]
        return asyncio.run(_Supervisor(path, config, listening, begin=begin).run())


def check(config: ServiceConfig, *, begin: bool) -> None:
    """Says now what a process would say: what is wrong with the files that a service is given.

    Raises:
        DataError, PeopleError, RowStoreError: a file cannot be used.
    """
    located_socket(config.at(config.socket))
    AccessTokens(config.at(config.access.file))
    _check_tls(config)
    check_files(config, begin=begin)


def _check_tls(config: ServiceConfig) -> None:
    http = config.http
    if http.tls_certificate is None or http.tls_key is None:
        return
    certificate, key = config.at(http.tls_certificate), config.at(http.tls_key)
    check_private(key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # SSLError is one
        raise DataError(
            f"http.tls_certificate = {str(certificate)!r}, tls_key = {str(key)!r}: cannot be used: "
            f"{error.strerror or error}"
        ) from None


def _listening(config: ServiceConfig) -> list[socket.socket]:
    """One socket for each worker, on one port: the system spreads connections over them.

    They stay open here, so that connections to a worker that died wait for the next one.
    """
    address, port = config.http.address, config.http.port
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def listening(port: int, *, shared: bool) -> socket.socket:
        where = address, port
        return socket.create_server(where, family=family, backlog=_BACKLOG, reuse_port=shared)

    end = time.monotonic() + _FREED
    while True:
        try:
            with listening(port, shared=False) as alone:  # or another service would share the port
                port = alone.getsockname()[1]
            return [listening(port, shared=True) for _ in range(config.http.workers)]
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < end:
                time.sleep(0.05)
                continue
            raise DataError(
                f"http.port = {port}: {address} cannot be listened at: {error.strerror or error}"
            ) from None


@final
class _Supervisor:
    def __init__(
        self, path: Path, config: ServiceConfig, listening: list[socket.socket], *, begin: bool
    ) -> None:
        self._path, self._config, self._listening = path, config, listening
        self._begin = _start_of(begin)
        self._processes: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._code = 0
        self._lifeline, self._mine = os.pipe()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        host, port = self._listening[0].getsockname()[:2]
        workers = len(self._listening)
        log("service-started", address=host, port=port, workers=workers, version=__version__)
        owner = asyncio.create_task(self._keep("owner", _OWNER, self._begin, ()))
        others = [
            asyncio.create_task(self._keep(f"worker-{n}", _WORKER, str(file), (file,)))
            for n, file in enumerate(each.fileno() for each in self._listening)
        ]
        await self._stopping.wait()
        log("stopping")
        await self._end("owner", owner, self._config.http.drain + _PATIENCE)
        for n, task in enumerate(others):
            await self._end(f"worker-{n}", task, _PATIENCE)
        log("service-stopped")
        return self._code

    async def _keep(self, name: str, module: str, argument: str, files: tuple[int, ...]) -> None:
        """One process, over and over; ``files`` are those that it inherits."""
        wait, worked = _FIRST_WAIT, False
        while not self._stopping.is_set():
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(self._path), argument, str(self._lifeline)),
                pass_fds=(*files, self._lifeline),
                start_new_session=True,  # a Ctrl-C at the terminal is the supervisor's to pass on
            )
            self._processes[name] = process
            if argument == "begin":  # whether it came so far is not known
                argument = "either"
            code = await process.wait()
            if self._stopping.is_set():
                return
            log("process-ended", process=name, number=code)
            lived = time.monotonic() - began
            if name == "owner" and (code in (FENCED, OVER) or (code == BAD_INPUT and not worked)):
                self._code = 0 if code == OVER else BAD_INPUT
                self._stopping.set()
                return
            worked = worked or code != BAD_INPUT  # from then on what it needs is only away
            wait = _FIRST_WAIT if lived >= _LIVED else min(2 * wait, _LONGEST_WAIT)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)

    async def _end(self, name: str, task: asyncio.Task[None], patience: float) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), patience)
            except TimeoutError:
                log("killed", process=name)
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        await task


def _start_of(begin: bool) -> str:
    return "begin" if begin else "resume"


_OWNER = "privlearn.service.owner"
_WORKER = "privlearn.service.worker"
