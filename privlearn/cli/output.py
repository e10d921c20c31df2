"""How commands talk: exit codes, one-line errors, the console and progress bars."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

from privlearn.errors import LedgerError, LedgerFeatureError, PrivlearnError
from privlearn.storage.addresses import without_passwords

PROBLEMS, BAD_INPUT, SIMULATION, UNREADABLE, POWERLESS, UNKNOWN_FEATURE = 1, 2, 3, 4, 5, 6
WRONG_SIGNATURE, OTHER_LEDGER, INCOMPLETE = 7, 8, 9
INTERRUPTED = 130
UNREAD = 141  # Whoever read the output stopped, as `head` does; as SIGPIPE would end it


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
    """One line: a message may quote a file that somebody else wrote, or an address."""
    from privlearn.reporting.visible import visible

    said = without_passwords("; ".join(message.splitlines()))
    typer.echo(f"error: {visible(said)}", err=True)


def unread(error: LedgerError) -> int:
    """The exit code for a ledger that was not audited."""
    return UNKNOWN_FEATURE if isinstance(error, LedgerFeatureError) else UNREADABLE


def of_system(error: OSError) -> str:
    """In words, what the system refused: a full disk says of no file which one it is."""
    if error.filename is None:
        return f"output cannot be written: {error.strerror or error}"
    return f"{error.filename} cannot be opened: {error.strerror}"


def check_drawn(plot: object) -> None:
    """Ends the command if a picture is asked for and cannot be drawn, before anything else."""
    if plot is None:
        return
    from privlearn.reporting.figures import NEEDED, can_draw

    if not can_draw():
        fail(f"--plot: {NEEDED}", BAD_INPUT)


FORESEEN: Final = (OSError, PrivlearnError, ValueError, OverflowError)
"""Errors that are told in one line."""


def of_error(error: Exception) -> str:
    """What is said of an error that was foreseen."""
    return of_system(error) if isinstance(error, OSError) else str(error)


def print_json(text: str) -> None:
    """Prints JSON with nothing in it that cannot be seen, or that this output cannot encode."""
    from privlearn.reporting.visible import in_json

    shown = in_json(text)
    try:
        shown.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        shown = in_json(shown, ascii_only=True)
    sys.stdout.write(shown + "\n")


class _Output(io.FileIO):
    """A standard output that may fail, as its reader stops or its disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for what is still to be flushed
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            raise


@contextmanager
def standard_output() -> Iterator[None]:
    """Text of any alphabet on any terminal, and exit codes of their own for outputs that fail."""
    if sys.stdout is None:
        say_error("the standard output is closed; /dev/null takes what nobody is to read")
        sys.exit(BAD_INPUT)
    before = sys.stdout
    if before is sys.__stdout__ and isinstance(before, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(before.fileno(), "w", closefd=False)),
            encoding=before.encoding,
            errors="backslashreplace",  # as standard error has it
            line_buffering=before.line_buffering,
        )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        say_error(of_system(error))
        sys.exit(BAD_INPUT)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turns errors made on purpose into one clear line and exit code 2."""
    try:
        yield
    except FORESEEN as error:
        fail(of_error(error), BAD_INPUT)


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
