"""The files of a service: what is missing or wrong is told before anything is begun."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from services import TEXT, write_config

from privlearn.errors import DataError, LedgerBusyError
from privlearn.ledger import Ledger
from privlearn.ledger.owner_lock import OwnerLock
from privlearn.service import access, books, supervisor
from privlearn.service.books import open_books
from privlearn.service.config import read_config
from privlearn.service.example import write_example

ROWS = '\n[rows]\npath = "rows.db"\nkey_file = "rows.key"\n'
POSTGRES = TEXT.replace('path = "ledger.db"', 'url_file = "postgres.url"')


def private(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)


def test_what_the_operator_has_to_bring_is_looked_at_first(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, TEXT + ROWS))
    with pytest.raises(DataError, match=r"access\.json' cannot be read: .*privlearn access add"):
        supervisor.check(config, begin=True)
    access.add(config.at(config.access.file), "shop", "serve")
    with pytest.raises(DataError, match=r"rows\.key cannot be read: No such file"):
        supervisor.check(config, begin=True)
    with pytest.raises(DataError, match=r"ledger\.path = .*: there is none.*--begin"):
        books.check_files(read_config(write_config(tmp_path)), begin=False)
    with pytest.raises(DataError, match="cannot be read"):
        open_books(config, "begin")
    private(tmp_path / "rows.key", b"short")
    with pytest.raises(DataError, match=r"rows\.key': holds 5 bytes, must be 32 random ones"):
        supervisor.check(config, begin=True)
    private(tmp_path / "rows.key", bytes(range(32)))
    supervisor.check(config, begin=True)
    open_books(config, "begin").close()  # what failed before left nothing that is in its way
    supervisor.check(config, begin=False)


@pytest.mark.parametrize("content", [b"", b"shop.db", b"\xff", b"mysql://shop@db/app?ledger=a"])
def test_an_address_that_is_none_is_not_shown(tmp_path: Path, content: bytes) -> None:
    config = read_config(write_config(tmp_path, POSTGRES))
    private(tmp_path / "postgres.url", content)
    with pytest.raises(DataError, match=r"ledger\.url_file = .*postgres\.url'") as error:
        books.check_files(config, begin=True)
    assert "shop@" not in str(error.value)


@pytest.mark.parametrize("step", ["_people", "_rows", "_begun"])
def test_an_owner_that_died_in_the_middle_of_a_begin_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Wherever it died: there is no account without the files that it needs."""
    config = read_config(write_example(tmp_path / "shop"))
    done = getattr(books, step)

    def dies(*given: Any, **named: Any) -> None:
        if (made := done(*given, **named)) is not None and step != "_begun":
            made.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(books, step, dies)
    with pytest.raises(KeyboardInterrupt):
        open_books(config, "begin")
    monkeypatch.setattr(books, step, done)
    open_books(config, "either").close()


def test_nobody_else_opens_the_ledger_of_a_service(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    path = tmp_path / "ledger.db"
    for start in ("begin", "resume"):
        opened = open_books(config, start)
        with ExitStack() as held, pytest.raises(LedgerBusyError, match="is served by its owner"):
            held.enter_context(OwnerLock(path))
        opened.close()
    Ledger.open(path).close()
