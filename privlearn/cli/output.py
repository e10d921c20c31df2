"""How commands talk: exit codes, one-line errors, the console and progress bars."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from privlearn.errors import LedgerError, LedgerFeatureError, PrivlearnError

PROBLEMS, BAD_INPUT, SIMULATION, UNREADABLE, POWERLESS, UNKNOWN_FEATURE = 1, 2, 3, 4, 5, 6
WRONG_SIGNATURE, OTHER_LEDGER, INCOMPLETE = 7, 8, 9
INTERRUPTED = 130


def console() -> Any:
    """A console as wide as the terminal, or in a file as COLUMNS says, or of 110 columns."""
    from rich.console import Console

    said = os.environ.get("COLUMNS", "")
    wide = sys.stdout.isatty() or (said.isascii() and said.isdigit())  # Rich looks at it, too
    return Console(width=None if wide else 110, highlight=False)


def fail(message: str, code: int) -> NoReturn:
    """Ends the command with one line and an exit code."""
    say_error(message)
    raise typer.Exit(code)


def say_error(message: str) -> None:
    """One line: a message may quote a file that somebody else wrote."""
    from privlearn.reporting.visible import visible

    typer.echo(f"error: {visible('; '.join(message.splitlines()))}", err=True)


def unread(error: LedgerError) -> int:
    """The exit code for a ledger that was not audited."""
    return UNKNOWN_FEATURE if isinstance(error, LedgerFeatureError) else UNREADABLE


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turns errors made on purpose into one clear line and exit code 2."""
    try:
        yield
    except OSError as error:
        fail(f"{error.filename} cannot be opened: {error.strerror}", BAD_INPUT)
    except (PrivlearnError, ValueError, OverflowError) as error:
        fail("; ".join(str(error).splitlines()), BAD_INPUT)


@contextmanager
def progress_bars() -> Iterator[Callable[..., Callable[[int], None]]]:
    """Starts bars by name and length, and closes them all."""
    from tqdm import tqdm

    bars: list[Any] = []

    def start(name: str, length: int, done: int = 0, unit: str = " users") -> Callable[[int], None]:
        bar = tqdm(total=length, initial=done, desc=f"{name:22}", unit=unit, disable=None)
        bars.append(bar)

        def advance(users: int) -> None:
            bar.update(users)

        return advance

    try:
        yield start
    finally:
        for bar in bars:
            bar.close()
