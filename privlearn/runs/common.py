"""What all runs share: the public and the private folder, their files, and what is printed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from privlearn.accountants import Certificate
from privlearn.domains import Array
from privlearn.errors import DataError
from privlearn.reporting.certificates import certificate_markdown

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
    def create(cls, out: Path) -> Folders:
        """Makes both folders.

        Raises:
            DataError: the folder has contents, or cannot be written.
        """
        try:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise DataError(f"{out} is not empty: runs are never overwritten, choose another")
            folders = cls(out / "public", out / "private")
            folders.public.mkdir()
            folders.private.mkdir(mode=0o700)
        except OSError as error:
            raise DataError(f"{out} cannot be written: {error.strerror}") from None
        return folders


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
    published: str = "ledger, billboard, certificate, learner"


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
