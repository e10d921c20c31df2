"""A real PgBouncer before a server, with one session of the server for all who connect."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
import pytest
from postgres import ADMIN, REQUIRED, Server

Pooling = Literal["session", "transaction", "statement"]


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail("no PgBouncer is installed: pgbouncer is not found")
        pytest.skip("no PgBouncer is installed (Debian: apt-get install pgbouncer)")
    return found


@contextmanager
def pooled(server: Server, pooling: Pooling) -> Iterator[Path]:
    """The folder of its socket, to which one connects as to that of the server."""
    program, folder = _program(), server.folder / server.new_name()
    folder.mkdir()
    if server.user:
        os.chown(folder, server.user["user"], server.user["group"])
    settings = folder / "settings"
    settings.write_text(
        f"[databases]\n* = host={server.folder} user={ADMIN}\n"
        f"[pgbouncer]\npool_mode = {pooling}\ndefault_pool_size = 1\nquery_wait_timeout = 10\n"
        f"listen_addr =\nlisten_port = 5432\nunix_socket_dir = {folder}\nauth_type = any\n"
    )
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program, settings], stdout=log, stderr=log, **server.user)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(host=str(folder), user=ADMIN, dbname=ADMIN).close()
                break
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PgBouncer did not start: {error}; {said}") from error
                time.sleep(0.01)
        yield folder
    finally:
        process.terminate()
        process.wait(60)
