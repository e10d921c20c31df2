"""Stands between a process and a PostgreSQL server, and cuts connections at chosen moments."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after", "silently"]
"""Before a request reaches the server; after the server has done it, and before its answer arrives;
or before, and the server takes the connection to live."""


_BACKEND_KEY = b"K\0\0\0\x0c"
"""How the message begins that names the server's process."""


class Proxy:
    """Passes bytes on, until it is told to `cut`."""

    def __init__(self, server: Path, folder: Path) -> None:
        self._server, self.folder = server, folder
        self.cut: Cut | None = None
        """What happens to the next request, once."""
        self.pools = False
        """Whether it names another process of the server than the one that answers."""
        self.refuses = False
        """Whether new connections are closed at once."""
        self._held: list[socket.socket] = []
        self._unanswered: set[socket.socket] = set()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / ".s.PGSQL.5432"))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                if self.refuses:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server / ".s.PGSQL.5432"))
                self._held += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                cut, self.cut = self.cut, None
                if cut == "silently":
                    client.shutdown(socket.SHUT_RDWR)
                    return
                if cut == "before":
                    break
                if cut == "after":
                    self._unanswered.add(server)
                server.sendall(data)
        _end(client, server)

    def _pass(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and server not in self._unanswered:
                if self.pools:
                    at = data.find(_BACKEND_KEY)
                    if at >= 0:
                        data = data[: at + 5] + b"\0\0\0\7" + data[at + 9 :]
                client.sendall(data)
        _end(client, server)

    def end_all(self) -> None:
        """Ends all connections, also those that only the server takes to live."""
        _end(*self._held)

    def close(self) -> None:
        """Ends everything."""
        _end(self._socket)
        self.end_all()
        for each in (self._socket, *self._held):
            each.close()


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_of(server: Path) -> Iterator[Proxy]:
    """A proxy before the server whose socket is in a folder."""
    with tempfile.TemporaryDirectory(prefix="px-") as folder:
        proxy = Proxy(server, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
