"""A service of real processes, which tests end in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from privlearn.service import Client

PATIENCE = 30.0


class RunningService:
    """`privlearn serve` in processes of its own; a context manager.

    Args:
        config: TOML file.
        options: of the command.
    """

    def __init__(self, config: Path, *options: str) -> None:
        self.config = config
        words = [sys.executable, "-m", "privlearn.cli", "serve", *options, str(config)]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log about an event."""
        return [line for line in self.lines if line["event"] == name]

    def until(self, ready: Callable[[], object]) -> None:
        """Waits until something holds."""
        end = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < end, self.lines[-5:]
            assert self.process.poll() is None or not self._reader.is_alive(), self.lines[-5:]
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """Where it answers."""
        self.until(lambda: self.events("owner-started") and self.events("worker-started"))
        (started,) = self.events("service-started")
        return f"http://127.0.0.1:{started['port']}"

    def client(self, token: str) -> Client:
        """A client that waits for as long as a process takes to start."""
        return Client(self.url, token, patience=PATIENCE)

    def children(self) -> dict[str, int]:
        """The processes of the service, by what they are."""
        found = {}
        own = self.process.pid
        for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found[words[2].decode().rpartition(".")[2]] = int(child)
        return found

    def kill(self, name: str) -> None:
        """Ends a process at once, as a lack of memory would."""
        os.kill(self.children()[name], signal.SIGKILL)

    def stop(self) -> int:
        """Ends it as a service manager does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
