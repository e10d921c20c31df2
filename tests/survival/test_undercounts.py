"""What forgets spends is refused: a ledger that is deleted, replaced, copied back, cut or moved."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn import ZCDP, Ball
from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import LedgerError, LedgerHeadError
from privlearn.ledger import Ledger
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows

MECHANISM = NoisySum(Ball(1.0, 2), GaussianNoise(4.0))
ENDS = ("", ".head", "-wal")
BEFORE, AFTER = 2, 5
"""Releases until somebody copies the ledger, and until its process dies."""


class Run:
    """A process with one ledger, whose heads go elsewhere as well, if it is told so."""

    def __init__(self, folder: Path, *, elsewhere: bool) -> None:
        self.path, self.heads, self._elsewhere = folder / "ledger.db", list[str](), elsewhere
        keep = {"keep_head": self.heads.append} if elsewhere else {}
        book = Ledger.create(self.path, **keep)
        self._go_on(CentralAccountant, book)

    def _go_on(self, make: Callable[..., Any], book: Ledger) -> None:
        noise = NoiseSource.simulation(0)
        if make is CentralAccountant:
            self.account = make(ZCDP(1), users=range(4), ledger=book, noise=noise)
        else:
            self.account = make(book, noise=noise)

    def release(self) -> None:
        token = self.account.issue(MECHANISM.loss(), users=range(4), label="sum")
        MECHANISM.release(Rows.seal(np.ones((4, 2)), users=range(4)), token)

    def die(self) -> None:
        disk: Any = self.account.ledger._disk
        disk._end()

    def begin_again(self) -> None:
        """As a program does that is started again; raises what it is told."""
        known: dict[str, Any] = {}
        if self._elsewhere:
            known = {"head": self.heads[-1], "keep_head": self.heads.append}
        if self.path.exists():
            self._go_on(CentralAccountant.resume, Ledger.open(self.path, **known))
        else:
            known.pop("head", None)
            self._go_on(CentralAccountant, Ledger.create(self.path, **known))


def copied(path: Path, name: str) -> Path:
    """A copy of a ledger and of all that stands beside it."""
    folder = path.parent / name
    folder.mkdir()
    for end in ENDS:
        if Path(f"{path}{end}").exists():
            shutil.copyfile(f"{path}{end}", folder / f"{path.name}{end}")
    return folder / path.name


def put_back(path: Path, older: Path, ends: tuple[str, ...]) -> None:
    for end in (*ends, "-wal"):
        Path(f"{path}{end}").unlink(missing_ok=True)
        if Path(f"{older}{end}").exists():
            os.replace(f"{older}{end}", f"{path}{end}")


def delete(path: Path, older: Path) -> None:
    put_back(path, path.with_name("nothing"), ("",))


def restore_the_copy(path: Path, older: Path) -> None:
    put_back(path, older, ("",))


def restore_all(path: Path, older: Path) -> None:
    put_back(path, older, ("", ".head"))


def cut(path: Path, older: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq > 3")
    connection.close()


def tear(path: Path, older: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
    Path(f"{path}-wal").unlink(missing_ok=True)


def put_another_there(path: Path, older: Path) -> None:
    other = path.with_name("other.db")
    account = CentralAccountant(
        ZCDP(1), users=range(4), ledger=Ledger.create(other), noise=NoiseSource.simulation(1)
    )
    account.ledger.close()
    delete(path, older)
    os.replace(other, path)


MISHAPS = [delete, restore_the_copy, restore_all, cut, tear, put_another_there]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_program_that_is_started_again_refuses_what_forgot_spends(
    mishap: Callable[[Path, Path], None], elsewhere: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path, elsewhere=elsewhere)
    for _ in range(BEFORE):
        run.release()
    older = copied(run.path, "older")
    for _ in range(AFTER - BEFORE):
        run.release()
    run.die()
    mishap(run.path, older)
    if mishap is restore_all and not elsewhere:
        run.begin_again()  # the guide says that this is not seen
        assert audit(run.path).spends == BEFORE
        return
    with pytest.raises(LedgerError) as refused:
        run.begin_again()
    assert str(run.path) in str(refused.value)
    if mishap in (restore_the_copy, restore_all):
        assert isinstance(refused.value, LedgerHeadError)


@pytest.mark.parametrize("mishap", [delete, restore_the_copy, restore_all, put_another_there])
def test_a_process_that_writes_stops_when_its_file_is_another_one(
    mishap: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    run = Run(tmp_path, elsewhere=False)
    run.release()
    older = copied(run.path, "older")
    run.release()
    mishap(run.path, older)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"moved, deleted or replaced|log .* was deleted"):
            run.release()


def test_nothing_is_refused_without_a_mishap(tmp_path: Path) -> None:
    for elsewhere in (False, True):
        folder = tmp_path / str(elsewhere)
        folder.mkdir()
        run = Run(folder, elsewhere=elsewhere)
        run.release()
        run.die()
        run.begin_again()
        run.release()
        assert audit(run.path).spends == 2
