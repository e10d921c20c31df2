"""A process that answers HTTP on a socket that its supervisor opened, and asks the owner."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from privlearn.service.access import AccessTokens
from privlearn.service.app import create_app
from privlearn.service.config import ServiceConfig, read_config
from privlearn.service.connections import Places
from privlearn.service.link import Asked, OwnerLink
from privlearn.service.logs import log, log_crashes, log_to_stderr
from privlearn.service.stopping import when_told

_BESIDE = 256  # Files that a worker may have, beyond those of its connections
_WAITING = 1_024  # Requests of one name that may wait for the owner, of all workers together


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Installs none."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


async def serve(config: ServiceConfig, listening: socket.socket, lifeline: int) -> None:
    """Answers HTTP until it is told to stop, and then what has begun."""
    waiting = _WAITING // config.http.workers
    link = OwnerLink(config.at(config.socket), config.largest_request, waiting)
    server = server_of(config, link)

    def stop() -> None:
        server.should_exit = True

    when_told(stop, lifeline)
    log("worker-started", pid=os.getpid())
    await server.serve(sockets=[listening])
    await link.close()


def server_of(config: ServiceConfig, asked: Asked) -> uvicorn.Server:
    """What answers HTTP, with this worker's part of all connections."""
    http = config.http
    most = http.most_connections // http.workers
    _have_files(most + _BESIDE)
    places = Places(most, http.request_time)
    tokens = AccessTokens(config.at(config.access.file))
    return _Server(
        uvicorn.Config(
            create_app(config, tokens, asked, full=lambda: places.full),
            http=places.protocol(),
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
            ssl_certfile=None if http.tls_certificate is None else config.at(http.tls_certificate),
            ssl_keyfile=None if http.tls_key is None else config.at(http.tls_key),
            lifespan="on",
        )
    )


def _have_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < wanted:
        may = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (may, hard))


def main() -> None:
    """``python -m privlearn.service.worker CONFIG LISTENING LIFELINE``; for the supervisor."""
    path, listening, lifeline = sys.argv[1:4]
    log_to_stderr("worker")
    log_crashes()
    config = read_config(Path(path))
    asyncio.run(serve(config, socket.socket(fileno=int(listening)), int(lifeline)))
    log("worker-stopped", pid=os.getpid())


if __name__ == "__main__":
    main()
