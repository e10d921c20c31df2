"""A real PgBouncer in front of the PostgreSQL server of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from postgres import ADMIN, REQUIRED, Server


def program() -> str:
    """Where it is; skips the test where it is not installed, or fails it where it must be."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail("PgBouncer is not installed")
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    return found


@contextmanager
def pooled(server: Server, mode: str, *, connections: int) -> Iterator[Path]:
    """The folder of its socket.

    Args:
        server: that answers.
        mode: ``"session"``, ``"transaction"`` or ``"statement"``: how long a client keeps one of
            the server's sessions.
        connections: to the server, which all clients share.
    """
    found = program()
    with tempfile.TemporaryDirectory(prefix="pb-", dir=server.folder.parent) as name:
        folder = Path(name)
        (folder / "users").write_text(f'"{ADMIN}" ""\n')
        (folder / "ini").write_text(
            f"""[databases]
* = host={server.folder}
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {connections}
"""
        )
        if server.user:  # as the server, it refuses to be root
            for each in (folder, *folder.iterdir()):
                os.chown(each, server.user["user"], server.user["group"])
        process = subprocess.Popen(
            [found, "--quiet", folder / "ini"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **server.user,
        )
        try:
            _wait(process, folder)
            yield folder
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=str(folder), user=ADMIN, dbname="postgres").close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer did not start: {error}") from error
            time.sleep(0.01)
