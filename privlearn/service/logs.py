"""Logs as JSON lines, one event each, without data of anybody.

What may stand in a line is listed, not filtered: an event's name, and fields of `_FIELDS` with
public values.  Of other libraries' messages, and of errors, there is the type and the place in the
code: what they say may quote what somebody sent, also where it is no argument of a template.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
import warnings
from datetime import UTC, datetime
from typing import Any, Final

_FIELDS: Final = frozenset(
    {
        "address",
        "caller",
        "clock",
        "code",
        "count",
        "error",
        "file",
        "line",
        "number",
        "pid",
        "port",
        "process",
        "reason",
        "resumed",
        "role",
        "seconds",
        "users",
        "version",
        "workers",
    }
)
_LOGGER: Final = logging.getLogger("privlearn.service")


class _Lines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        told: dict[str, Any] = {"time": at, "level": level, "by": self._process}
        if record.name == _LOGGER.name:
            told |= {"event": record.msg, **getattr(record, "told", {})}
        else:  # another library's
            told |= {"event": "library", "logger": record.name, **_place(record.pathname)}
            told["line"] = record.lineno
        if record.exc_info and record.exc_info[1] is not None:
            told |= of_error(record.exc_info[1])
        return json.dumps(told, ensure_ascii=True)


class _Whole(logging.Handler):
    """One system call a line, so that the lines of several processes do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode() + b"\n"
            sys.stderr.flush()
            with _TURN:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
        except (OSError, ValueError):  # whoever read it is gone; the service goes on
            pass


_TURN: Final = threading.Lock()


def log_to_stderr(process: str) -> None:
    """Sends everything that is logged in this process to standard error, as JSON lines."""
    handler = _Whole()
    handler.setFormatter(_Lines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # warns of each request that is no HTTP
    _LOGGER.setLevel(logging.INFO)


def log_crashes() -> None:
    """Logs what nobody caught like any other error, and shows no warnings, in this process.

    By default Python writes to standard error what they say.
    """
    sys.excepthook = lambda kind, error, trace: log_error("crashed", error)
    sys.unraisablehook = lambda found: _log_uncaught(found.exc_value)
    threading.excepthook = lambda found: _log_uncaught(found.exc_value)
    warnings.simplefilter("ignore")


def _log_uncaught(error: BaseException | None) -> None:
    if error is not None:
        log_error("uncaught", error)


def log(event: str, *, level: int = logging.INFO, **told: Any) -> None:
    """One event, with public fields only.

    Raises:
        ValueError: a field that is not listed, which is an error of the program.
    """
    if unknown := sorted(set(told) - _FIELDS):
        raise ValueError(f"{unknown[0]}: no field of a log; see privlearn.service.logs")
    _LOGGER.log(level, event, extra={"told": told})


def log_error(event: str, error: BaseException) -> None:
    """An error by its type and place, never by what it says."""
    log(event, level=logging.ERROR, **of_error(error))


def of_error(error: BaseException) -> dict[str, Any]:
    """Type of an error, and where it was raised."""
    told: dict[str, Any] = {"error": type(error).__name__}
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        told |= {**_place(frames[-1].filename), "line": frames[-1].lineno}
    return told


def _place(file: str) -> dict[str, Any]:
    return {"file": "/".join(file.split("/")[-2:])}
