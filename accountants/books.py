"""One ledger for what a call is paid from: where it is made, and what it promises in one line."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from privlearn.accountants.accountant import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.shown_numbers import up
from privlearn.errors import LedgerError, PrivlearnError
from privlearn.ledger import Ledger
from privlearn.ledger.reader import iterate_records
from privlearn.noise import NoiseSource


def check_new(path: Path, made: str) -> None:
    """Checks that no file is there.

    Args:
        path: of the ledger that will be made.
        made: what such a ledger holds once it is closed, and where that is found.

    Raises:
        LedgerError: one is; it says what it holds and what can be done.
    """
    if not path.exists():
        return
    found = "there is a file, which is no ledger; choose another path"
    with suppress(PrivlearnError, OSError):
        kinds = [record.body.get("entry") for record in iterate_records(path, vouched=True)]
        found = f"it holds {made}; "
        if "close" not in kinds:
            found = "what it pays for was cut off, or has not ended: its whole budget counts; "
        found += (
            f"`privlearn audit {path}` shows its guarantee. What is run again is paid for once "
            "more, and needs another path, or ledger='auto'"
        )
    raise LedgerError(f"ledger = {str(path)!r}: {found}")


def _dated(name: str) -> Path:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower().removeprefix("private-")
    stem = f"privlearn-{words}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    path, number = Path(f"{stem}.db"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}.db"), number + 1
    return path


@final
class Book:
    """One ledger for several accounts, made with the first of them.

    Args:
        ledger: a path that is new, "auto" for a dated file, an open `Ledger`, or None for memory.
        simulate_noise: a seed, which certifies nothing; None for secure noise.
        name: of a dated file.
        made: as of `check_new`.

    Attributes:
        path: of the file, once it is made; None in memory, and of a ledger that was handed over.

    Raises:
        LedgerError: the file of the ledger is there already.
    """

    path: str | None = None

    def __init__(self, ledger: Any, simulate_noise: int | None, name: str, made: str) -> None:
        if isinstance(ledger, str | os.PathLike) and ledger != "auto":
            check_new(Path(ledger), made)
        self._given, self._seed, self._of = ledger, simulate_noise, name
        self._book: Ledger | None = None

    def account(self, cap: Any, *, users: range, **given: Any) -> CentralAccountant[Any]:
        """Opens an account beside those that are there; arguments are those of an accountant."""
        first, source = self._book is None, self._given
        if self._book is None:
            if isinstance(source, str | os.PathLike):
                path = _dated(self._of) if source == "auto" else Path(source)
                self._book, self.path = Ledger.create(path), str(path)
            else:
                self._book = source if isinstance(source, Ledger) else Ledger.memory()
            seed = self._seed
            self._noise = NoiseSource.secure() if seed is None else NoiseSource.simulation(seed)
        return CentralAccountant(
            cap, users=users, ledger=self._book, noise=self._noise, shared=not first, **given
        )

    def certificate(self, delta: float | None) -> Certificate:
        """What all accounts promise together."""
        assert self._book is not None
        return certify(self._book.iterate(), delta=delta)

    def close(self) -> None:
        """Ends it for this process; accounts that are open stay open in the file."""
        if self._book is not None:
            self._book.close()

    @property
    def head(self) -> str | None:
        """The last hash of the ledger."""
        return None if self._book is None else str(self._book.head)


def guarantee_line(certificate: Certificate | None, ledger: str | None, *, shared: bool) -> str:
    """What is promised, in one line.

    Args:
        certificate: None of a part of an account.
        ledger: path of its file; None where none was kept.
        shared: whether the account is for other calls, too.
    """
    if certificate is None:
        return "part of an account, whose certificate states the guarantee"
    where = "no file of the ledger was kept" if ledger is None else f"ledger {ledger}"
    if shared:
        where = "for all that its accountant pays for together"
    if certificate.simulation:
        return f"none: the noise is simulated and protects nobody; {where}"
    whole = certificate.composition
    if whole is None or certificate.not_certified:
        return f"none is certified: {certificate.not_certified}; {where}"
    who = "the record of one person" if whole.rule is None else "all records of one person"
    doing = {"replace-one": "changing", "zero-out": "blanking out"}
    what = f"{doing.get(whole.adjacency.value, whole.adjacency.value)} {who}"
    return f"ε = {up(whole.epsilon)} at δ = {up(whole.delta)} for {what}; {where}"
