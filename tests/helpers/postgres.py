"""A real PostgreSQL server in a temporary folder, on a Unix socket, for the tests of one process.

It listens to no network, and whoever reaches the socket is let in.  Its commits are durable, as the
package refuses a server whose commits are not; only making the cluster skips what a crash of the
machine would need.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

REQUIRED = "PRIVLEARN_POSTGRES_TESTS"
"""Set to ``required``, where a missing server is to fail the tests and not to skip them."""
ADMIN = "postgres"
_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "min_wal_size": "2MB",
    "max_wal_size": "64MB",
    "autovacuum": "off",
    "logging_collector": "off",
    "log_min_messages": "fatal",
}
_numbers = count(1)


def programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``; None where no server is installed."""
    found = shutil.which("initdb")
    here = [Path(found).resolve().parent] if found else []
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: each.parent.name.zfill(9)
    )
    for folder in [*here, *reversed(debian)]:
        if all((folder / name).is_file() for name in ("initdb", "postgres")):
            return folder
    return None


def required_programs() -> Path:
    """As `programs`; skips the test where there are none, or fails it where there must be."""
    found = programs()
    if found is None:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail("no PostgreSQL server is installed: initdb and postgres are not found")
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return found


class Server:
    """A server that runs; `started` makes one.

    Args:
        programs: folder of its programs.
        folder: of its files, which its user may write to.
        user: whom it runs as, where that is not who runs the tests: it refuses to be root.
    """

    def __init__(self, programs: Path, folder: Path, user: dict[str, Any]) -> None:
        self.programs, self.folder, self.user = programs, folder, user
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Makes the cluster."""
        subprocess.run(
            [
                self.programs / "initdb",
                *("--pgdata", self.folder / "data", "--username", ADMIN, "--auth", "trust"),
                *("--no-sync", "--no-locale", "--encoding", "UTF8", "--wal-segsize", "1"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            **self.user,
        )

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [f"-c{name}={value}" for name, value in settings.items()]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # what interrupts the tests does not interrupt it
                **self.user,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the server did not start: {error}; {said}") from error
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Ends it: by default at once, as a crash of the server does."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def new_name(self) -> str:
        """Of a ledger, a database or whatever else there is not yet."""
        return f"new_{next(_numbers)}"

    def url(self, user: str = ADMIN, *, database: str = "postgres", **more: str) -> str:
        """What to connect to, as the package takes it."""
        options = "".join(f"&{name}={value}" for name, value in more.items())
        return f"postgresql://{user}@/{database}?host={self.folder}{options}"

    def connect(
        self, user: str = ADMIN, *, database: str = "postgres"
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in which each statement is a transaction."""
        return psycopg.connect(
            host=str(self.folder), user=user, dbname=database, autocommit=True, connect_timeout=10
        )

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs statements as the administrator; the rows of the last one, if it has any."""
        with self.connect(database=database) as connection:
            done = [connection.execute(statement.encode()) for statement in statements]
            return done[-1].fetchall() if done[-1].description is not None else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """A new database, which is dropped afterwards, whoever uses it."""
        name = self.new_name()
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def role(self, name: str, *, database: str = "postgres") -> Iterator[str]:
        """A new role that may log in and nothing else, which is dropped afterwards."""
        self.execute(f"CREATE ROLE {name} LOGIN")
        try:
            yield name
        finally:
            self.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}", database=database)

    @contextmanager
    def configured(self, **settings: str | None) -> Iterator[None]:
        """The whole server with other settings, of those that need no restart."""
        self._configure(settings)
        try:
            yield
        finally:
            self._configure(dict.fromkeys(settings))

    @contextmanager
    def unconfirmed(self) -> Iterator[None]:
        """Commits wait for a standby that there is not, and are made to give up soon."""
        done = threading.Event()

        def give_up() -> None:
            with self.connect() as connection:
                while not done.wait(0.02):
                    connection.execute(
                        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                        " WHERE wait_event = 'SyncRep'"
                    )

        with self.configured(synchronous_standby_names="nobody"):
            thread = threading.Thread(target=give_up)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()

    def _configure(self, settings: Mapping[str, str | None]) -> None:
        with self.connect() as connection:
            for name, value in settings.items():
                change = sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
                if value is not None:
                    change = sql.SQL("ALTER SYSTEM SET {} = {}").format(
                        sql.Identifier(name), sql.Literal(value)
                    )
                connection.execute(change)
        loaded = self._loaded()
        self.execute("SELECT pg_reload_conf()")
        while self._loaded() == loaded:
            time.sleep(0.005)

    def _loaded(self) -> object:
        # of a new connection, which has read what the server has
        return self.execute("SELECT pg_conf_load_time()")[0][0]


@contextmanager
def started() -> Iterator[Server]:
    """A new server, which ends with the block.

    Where the tests run as root it runs as nobody, who may not reach root's temporary folders.
    """
    found = required_programs()
    user: dict[str, Any] = {}
    # a socket's path has at most 107 bytes
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(
        prefix="pg-", dir="/tmp" if root else None, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        if root:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = Server(found, folder, user)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
