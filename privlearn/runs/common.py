"""What all runs share: the public and the private folder, their files, and what is printed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from privlearn._foreign_files import LARGEST_SETTINGS, read_whole
from privlearn.accountants import Certificate
from privlearn.domains import Array
from privlearn.entries import CloseEntry
from privlearn.errors import DataError
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.reporting.certificates import certificate_markdown
from privlearn.runs.settings import RunConfig

MOST_ROWS: Final = 200
"""Of a file of curves."""

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

        Args:
            out: the folder of both.
            config: settings of the run, which stand in the private folder; None for a run that
                cannot go on.
            resume: whether to go on in a folder in which a run with these settings has begun.

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
                return folders
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise DataError(
                    f"{out} is not empty: runs are never overwritten, choose another"
                    + (f"; {settings} is missing, so that it is no run to go on with" * resume)
                    + ("; --resume goes on with a run that was cut off" * settings.exists())
                )
            folders.public.mkdir()
            folders.private.mkdir(mode=0o700)
            if config is not None:
                settings.write_text(config.model_dump_json(indent=1), "utf-8")
        except OSError as error:
            raise DataError(f"{out} cannot be written: {error.strerror}") from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise DataError(f"{settings} cannot be read: it is no JSON") from None
        return folders

    @property
    def ledger(self) -> Path:
        """The ledger of the learner."""
        return self.public / "ledger.db"

    @property
    def begun(self) -> bool:
        """Whether an earlier process began the ledger, which this one goes on with."""
        return self.ledger.exists()


def _check_settings(out: Path, before: dict[str, Any], config: RunConfig) -> None:
    """Raises DataError if a run was begun with other settings."""
    now = json.loads(config.model_dump_json())
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise DataError(
                f"{name} = {now.get(name)!r}: the run in {out} was begun with "
                f"{before.get(name)!r}; --resume goes on with the same settings"
            )


def resumed(kind: Any, folders: Folders, noise: NoiseSource, people: People | None) -> Any:
    """The accountant of a run that was cut off.

    Raises:
        DataError: the run has ended.
        LedgerError: the ledger cannot be gone on with.
    """
    if any(isinstance(entry, CloseEntry) for entry in Ledger.open(folders.ledger).entries):
        raise DataError(
            f"{folders.ledger} is closed: the run has learned from everybody, and nothing is left "
            "to go on with; it can be audited"
        )
    return kind.resume(folders.ledger, noise=noise, people=people)


def gone_on_from(first: int, begun: bool, lost: int) -> list[str]:
    """What a run that was cut off says of where it goes on, and of lost spends; public."""
    if not begun:
        return []
    lines = [
        f"the run was cut off and goes on with user {first:,}: what was released of the users "
        "before stands in the ledger, and rows of theirs that were in no release are null; curves "
        "of the private learner begin there"
    ]
    if lost:
        lines.append(
            f"spends lost with it: {lost}, which stay charged; the model is without what they had "
            "still to release"
        )
    return lines


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves behind.

    Attributes:
        certificate: of the public ledger.
        released: lines about what is public.
        lines: for the operator only.
        folders: where the files are.
        published: what the public folder holds, in words.
    """

    certificate: Certificate
    released: list[str]
    lines: list[str]
    folders: Folders
    published: str = "ledger, billboard, certificate, model"


def write_public(folders: Folders, accountant: Any, files: Mapping[str, Any]) -> Certificate:
    """Writes the export of the ledger, its certificate, and ``files``: values for JSON, or text."""
    certificate: Certificate = accountant.certificate()
    public = folders.public
    accountant.ledger.export(public / "ledger.jsonl")
    (public / "certificate.json").write_text(certificate.model_dump_json(indent=1), "utf-8")
    (public / "certificate.md").write_text(certificate_markdown(certificate), "utf-8")
    for name, value in files.items():
        if isinstance(value, str):
            (public / name).write_text(value, "utf-8")
        else:
            write_json(public / name, value)
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
    """Writes curves (T,) after 1, …, T users, at `MOST_ROWS` places or fewer.

    Args:
        path: of the CSV file.
        unit: head of the first column, the number of users.
        curves: one column each, by its head.
        form: how numbers are written.
    """
    length = min((len(curve) for curve in curves.values()), default=0)
    places = np.unique(np.linspace(1, length, min(length, MOST_ROWS)).astype(int))
    rows = ([n, *(format(curve[n - 1], form) for curve in curves.values())] for n in places)
    write_csv(path, [unit, *curves], rows)
