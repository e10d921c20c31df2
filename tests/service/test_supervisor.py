"""The supervisor, with stand-ins for the processes that it keeps."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from services import TEXT, write_config

from privlearn.errors import DataError
from privlearn.service import supervisor
from privlearn.service.config import read_config

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.setattr(supervisor, "_OWNER", "stand_in")
    monkeypatch.setattr(supervisor, "_WORKER", "stand_in")
    monkeypatch.setattr(supervisor, "_FIRST_WAIT", 0.001)


class Kept:
    """A supervisor in this thread, and what its processes wrote."""

    def __init__(self, folder: Path, *, begin: bool = False) -> None:
        self.notes = folder / "notes"
        self.config = read_config(write_config(folder))
        self.begin = begin

    def run(self, during: Callable[[Kept], None]) -> int:
        """The exit code; ``during`` runs in another thread."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            made = supervisor._Supervisor(self.notes, self.config, [listening], begin=self.begin)
            other = threading.Thread(target=during, args=(self,))
            other.start()
            code = asyncio.run(made.run())
            other.join()
        return code

    def read(self) -> list[str]:
        """Lines about the owner by how it was started; a worker's begin with a number."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return ["worker " + line.split()[1] if line[0].isdigit() else line for line in lines]

    def until(self, *lines: str) -> None:
        end = time.monotonic() + 20
        while any(self.read().count(line) < lines.count(line) for line in lines):
            assert time.monotonic() < end, self.read()
            time.sleep(0.002)


def stop(kept: Kept) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_owner_stops_first(tmp_path: Path) -> None:
    def during(kept: Kept) -> None:
        kept.until("resume started", "worker started")
        stop(kept)

    kept = Kept(tmp_path)
    assert kept.run(during) == 0
    assert kept.read()[-2:] == ["resume stopped", "worker stopped"]


def test_what_dies_is_started_again_and_may_have_begun(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("70 2 1")  # after its first start

    def during(kept: Kept) -> None:
        kept.until("begin started", "either started", "either started", "either started")
        kept.until("worker started")
        stop(kept)

    kept = Kept(tmp_path, begin=True)
    assert kept.run(during) == 0
    assert kept.read().count("begin started") == 1


@pytest.mark.parametrize(("codes", "told"), [("2", 2), ("71", 0), ("70 71", 0), ("70 72", 2)])
def test_an_owner_that_cannot_begin_is_over_or_was_fenced_ends_the_service(
    tmp_path: Path, codes: str, told: int
) -> None:
    (tmp_path / "codes").write_text(codes)
    assert Kept(tmp_path).run(lambda kept: None) == told


def test_who_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE", 0.01)

    def during(kept: Kept) -> None:
        kept.until("stubborn started", "worker started")
        stop(kept)

    kept = Kept(tmp_path)
    monkeypatch.setattr(supervisor, "_start_of", lambda begin: "stubborn")
    assert kept.run(during) == 0
    assert "stubborn stopped" not in kept.read()


def test_an_address_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FREED", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = read_config(write_config(tmp_path, port=str(port)))
        with pytest.raises(DataError, match=rf"http\.port = {port}: 127\.0\.0\.1 cannot be listen"):
            supervisor._listening(config)


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    text = TEXT.replace("workers = 1", 'tls_certificate = "c.pem"\ntls_key = "k.pem"')
    config = read_config(write_config(tmp_path, text))
    with pytest.raises(DataError, match=r"k\.pem cannot be read: No such file"):
        supervisor._check_tls(config)
    (tmp_path / "k.pem").touch(0o600)
    with pytest.raises(DataError, match=r"c\.pem'.*: cannot be used: No such file"):
        supervisor._check_tls(config)
    (tmp_path / "c.pem").write_text("no certificate")
    with pytest.raises(DataError, match=r"cannot be used: "):
        supervisor._check_tls(config)
    (tmp_path / "k.pem").chmod(0o644)
    with pytest.raises(DataError, match="chmod 600"):
        supervisor._check_tls(config)
