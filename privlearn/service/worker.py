"""A process that answers HTTP on a socket that its supervisor opened, and asks the owner."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from privlearn.service.access import AccessTokens
from privlearn.service.app import create_app
from privlearn.service.config import ServiceConfig, read_config
from privlearn.service.link import OwnerLink
from privlearn.service.logs import log, log_crashes, log_to_stderr
from privlearn.service.stopping import when_told

_WAITING = 1_024
"""Requests of one name that may wait for the owner, of all workers together."""


class _Server(uvicorn.Server):
    """Leaves signals to `when_told`."""

    def install_signal_handlers(self) -> None:
        """Installs none."""

    def capture_signals(self) -> Any:
        """Captures none."""
        from contextlib import nullcontext

        return nullcontext()


async def serve(config: ServiceConfig, listening: socket.socket, lifeline: int) -> None:
    """Answers HTTP until it is told to stop, and then what has begun."""
    http = config.http
    link = OwnerLink(config.at(config.socket), config.largest_request, _WAITING // http.workers)
    app = create_app(config, AccessTokens(config.at(config.access.file)), link)
    server = _Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=http.most_connections // http.workers + 1,  # that many it refuses
            timeout_graceful_shutdown=5,
            ssl_certfile=None if http.tls_certificate is None else config.at(http.tls_certificate),
            ssl_keyfile=None if http.tls_key is None else config.at(http.tls_key),
            lifespan="on",
        )
    )

    def stop() -> None:
        server.should_exit = True

    when_told(stop, lifeline)
    log("worker-started", pid=os.getpid())
    await server.serve(sockets=[listening])
    await link.close()


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
