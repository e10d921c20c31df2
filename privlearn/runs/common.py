"""What all runs share: the public and the private folder, their files, and what is printed."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from privlearn.accountants import Certificate
from privlearn.errors import DataError
from privlearn.learners.base import Learner
from privlearn.learners.kept_rows import gaps
from privlearn.ledger import Ledger
from privlearn.ledger.entries import CloseEntry, IssueEntry, PublishEntry, ReachEntry, RetireEntry
from privlearn.ledger.reader import iterate_records
from privlearn.losses.budgets import PureDP
from privlearn.people import People
from privlearn.reporting.certificates import certificate_markdown
from privlearn.rows import RowStore
from privlearn.rows.domains import Array
from privlearn.rows.store import joined
from privlearn.runs.persons import RunConfig
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_whole

LOOK: Final = "look.txt"  # What ``--look`` writes to the private folder
MOST_ROWS: Final = 200  # Of a file of curves

Progress = Callable[[str, int], Callable[[int], None]]
"""Starts a progress bar with a name and a length; the result advances it."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a run writes: what everybody may see, and what stays with the operator."""

    public: Path
    private: Path

    @classmethod
    def create(cls, out: Path, config: RunConfig | None = None, *, resume: bool = False) -> Folders:
        """Makes both folders, or finds those of a run that was cut off.

        Raises:
            DataError: the folder has contents that are not to be gone on with, or of a run with
                other settings, or cannot be written.
        """
        folders = cls(out / "public", out / "private")
        settings = folders.private / "settings.json"
        try:
            if resume and config is not None and settings.exists():
                _check_settings(
                    out, json.loads(read_whole(settings, at_most=LARGEST_SETTINGS)), config
                )
                folders._remove_empty_ledger()
                return folders
            out.mkdir(parents=True, exist_ok=True)
            if set(out.rglob("*")) - {folders.private, folders.private / LOOK}:
                raise DataError(
                    f"{out} is not empty: runs are never overwritten, choose another"
                    + (f"; {settings} is missing, so that it is no run to go on with" * resume)
                    + ("; --resume goes on with a run that was cut off" * settings.exists())
                )
            folders.public.mkdir()
            folders.private.mkdir(mode=0o700, exist_ok=True)
            if config is not None:
                settings.write_text(config.model_dump_json(indent=1), "utf-8")
        except OSError as error:
            raise DataError(f"{out} cannot be written: {error.strerror}") from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise DataError(f"{settings} cannot be read: it is no JSON") from None
        return folders

    @classmethod
    def write_look(cls, out: Path, text: str) -> Path:
        """Writes what a file holds to the private folder, in which a run may begin afterwards."""
        path = out / "private" / LOOK
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(text, "utf-8", errors="backslashreplace")
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None
        return path

    @property
    def looked(self) -> list[str]:
        """Side information, if the operator looked at the records before."""
        said = "the operator looked at the records (--look) before this run"
        return [said] if (self.private / LOOK).exists() else []

    @property
    def ledger(self) -> Path:
        return self.public / "ledger.db"

    @property
    def begun(self) -> bool:
        """Whether an earlier process began the ledger, which this one goes on with."""
        return self.ledger.exists()

    def _remove_empty_ledger(self) -> None:
        """Of a process that ended before its first entry, so that the run is begun anew."""
        if self.begun and next(iter(iterate_records(self.ledger, vouched=True)), None) is None:
            for end in (".head", "-tail", "-shm", "-wal", ""):
                self.ledger.with_name(self.ledger.name + end).unlink(missing_ok=True)


def _check_settings(out: Path, before: dict[str, Any], config: RunConfig) -> None:
    now = json.loads(config.model_dump_json())
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise DataError(
                f"{name} = {now.get(name)!r}: the run in {out} was begun with "
                f"{before.get(name)!r}; --resume goes on with the same settings"
            )


def accountant_of(
    kind: Any,
    config: Any,
    folders: Folders,
    *,
    users: int,
    people: People | None,
    side_information: Sequence[str],
) -> Any:
    """The accountant of a run, new or that of the run that was cut off.

    Raises:
        DataError: the run has ended.
        LedgerError: the ledger cannot be gone on with.
    """
    if folders.begun:
        _check_open(folders)
        return kind.resume(folders.ledger, noise=config.noise(), people=people)
    budget, currency = config.cap()
    return kind(
        budget,
        users=range(users),
        ledger=Ledger.create(folders.ledger),
        noise=config.noise(),
        currency=currency,
        side_information=side_information,
        people=people,
    )


def _check_open(folders: Folders) -> None:
    if any(isinstance(entry, CloseEntry) for entry in Ledger.open(folders.ledger).entries):
        with suppress(OSError):  # of a process that ended just before it did
            _remove_rows(folders)
        raise DataError(
            f"{folders.ledger} is closed: the run has learned from everybody, and nothing is left "
            "to go on with; it can be audited, and privlearn ledger export writes its entries"
        )


@final
class CutOff:
    """What a run that was cut off says of itself when it goes on; of a new one, nothing."""

    def __init__(self, accountant: Any) -> None:
        self._accountant = accountant
        self._before = _in_releases(accountant) if accountant.resumed else []
        self._first = 0
        self._null: list[range] = []

    def goes_on(self, learner: Learner) -> None:
        if self._accountant.resumed:
            self._first = learner.clock_
            there = sorted([*self._before, *learner.recovered_.rows], key=_ends)
            self._null = list(gaps(range(self._first), joined(there)))

    def check_learned(self, learner: Learner) -> None:
        """Checks that there is something to write, of all that the plan held.

        Raises:
            DataError: nothing was released, and what the plan still holds builds on what was lost.
        """
        if not self._accountant.resumed or learner.billboard_.history():
            return
        if self._accountant.unmade:
            raise DataError(
                "the run cannot go on: what it had released first was lost, so that it has learned "
                f"nothing, and {_unmade(self._accountant)} builds on that. No model was written, "
                "and the ledger stays open; a new run needs another folder, and of the same people "
                "it may spend what is left of their budget at most"
            )

    def lines(self) -> list[str]:
        if not self._accountant.resumed:
            return []
        return [
            f"the run was cut off and goes on with user {self._first:,}: what was released of the "
            "users before stands in the ledger, and rows of theirs that were in no release are "
            "null; curves of the private learner begin there",
            *self.lacks(),
        ]

    def lacks(self) -> list[str]:
        if not self._accountant.resumed:
            return []
        lines = []
        count, lost = _lost(self._accountant)
        if count:
            lines.append(
                f"spends lost with it: {count}, which stay charged; the model is without what they "
                f"had still to release{f' ({_listed(lost)})' if lost else ''}"
            )
        if self._accountant.unmade:
            lines.append(
                f"planned and never made: {_unmade(self._accountant)}, as rows of these users, or "
                "what it builds on, ended with the process before; it stays unspent, and the "
                "guarantee counts the whole plan"
            )
        return lines

    def messages(self) -> list[tuple[int, str]]:
        if not self._accountant.resumed:
            return []
        released = joined(_in_releases(self._accountant))
        null = [*self._null, *gaps(range(self._first), released)]
        why = "came before the run was cut off, and is in no release"
        return [(user, why) for user in sorted({user for part in null for user in part})]


def _entries(accountant: Any) -> list[Any]:
    return [entry for entry in accountant.ledger.entries if entry.accountant == accountant.id]


def _in_releases(accountant: Any) -> list[range]:
    users: dict[str, tuple[int, int]] = {}
    found: dict[str, int] = {}
    for entry in _entries(accountant):
        if isinstance(entry, IssueEntry):
            users[entry.token] = entry.users
        elif isinstance(entry, PublishEntry):
            found[entry.token] = entry.upto
        elif isinstance(entry, RetireEntry) and entry.value is not None:
            found[entry.token] = entry.value["upto"]
    return sorted((range(users[token][0], upto) for token, upto in found.items()), key=_ends)


def _ends(users: range) -> tuple[int, int]:
    return users.start, users.stop


def _lost(accountant: Any) -> tuple[int, list[str]]:
    issued: dict[str, IssueEntry] = {}
    reached: dict[str, int] = {}
    upto: dict[str, int] = {}
    lost: list[str] = []
    for entry in _entries(accountant):
        match entry:
            case IssueEntry():
                issued[entry.token] = entry
            case ReachEntry():
                reached[entry.token] = entry.stop
            case PublishEntry():
                upto[entry.token] = entry.upto
            case RetireEntry(outcome="lost"):
                lost.append(entry.token)
    parts = []
    for token in lost:
        start, stop = issued[token].users
        users = range(upto.get(token, start), reached.get(token, stop))
        if users:
            parts.append(_about(issued[token].label, users))
    return len(lost), parts


def _listed(parts: list[str]) -> str:
    return "; ".join([*parts[:3], *["…"][: len(parts) > 3]])


def _unmade(accountant: Any) -> str:
    return _listed(
        [f"{left} of {_about(label, users)}" for label, users, left in accountant.unmade]
    )


def _about(label: str, users: range) -> str:
    return f"{label!r} for users {users.start:,} to {users.stop - 1:,}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves behind."""

    certificate: Certificate
    released: list[str]
    lines: list[str]
    folders: Folders
    published: str = "ledger, billboard, certificate, model"


def write_public(folders: Folders, files: Mapping[str, Any]) -> None:
    """Writes what was learned: values for JSON, or text."""
    for name, value in files.items():
        if isinstance(value, str):
            (folders.public / name).write_text(value, "utf-8")
        else:
            write_json(folders.public / name, value)


def kept_rows(folders: Folders) -> RowStore | None:
    """Where rows are kept, encrypted, until the run has ended; to be asked for before its ledger.

    None of a run that was begun without: then rows of the open batch are null when it goes on.

    Raises:
        RowStoreError, OSError: it cannot be written or read.
    """
    rows, key = folders.private / "rows.db", folders.private / "rows.key"
    if folders.begun:
        return RowStore.open(rows, key.read_bytes()) if rows.exists() and key.exists() else None
    _remove_rows(folders)  # of a process that ended before its ledger was begun
    secret = RowStore.new_key()
    with open(key, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(secret)
    return RowStore.create(rows, secret)


def _remove_rows(folders: Folders) -> None:
    for name in ("rows.key", "rows.db", "rows.db-wal", "rows.db-shm"):
        (folders.private / name).unlink(missing_ok=True)


def finish(folders: Folders, accountant: Any, store: RowStore | None = None) -> Certificate:
    """Closes a run, of which all else is written: what fails before can be gone on with.

    Writes the export of the ledger and its certificate, and removes the rows that were kept.
    """
    accountant.close()
    if accountant.people is not None:
        accountant.people.close()
    if store is not None:
        store.close()
    _remove_rows(folders)
    pure = isinstance(accountant.budget, PureDP)
    certificate: Certificate = accountant.certificate(0.0 if pure else None)
    public = folders.public
    accountant.ledger.export(public / "ledger.jsonl")
    (public / "certificate.json").write_text(certificate.model_dump_json(indent=1), "utf-8")
    (public / "certificate.md").write_text(certificate_markdown(certificate), "utf-8")
    return certificate


def write_json(path: Path, value: Any) -> None:
    """Writes JSON that people can read."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), "utf-8")


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_curves(path: Path, unit: str, curves: Mapping[str, Array], form: str = ".6g") -> None:
    """Writes curves (T,) after 1, …, T users, at `MOST_ROWS` places or fewer."""
    length = min((len(curve) for curve in curves.values()), default=0)
    places = np.unique(np.linspace(1, length, min(length, MOST_ROWS)).astype(int))
    rows = ([n, *(format(curve[n - 1], form) for curve in curves.values())] for n in places)
    write_csv(path, [unit, *curves], rows)
