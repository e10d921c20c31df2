"""Laws as named checks: each is a function that returns what it measured, or raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import TypeVar

import numpy as np

import privlearn
from privlearn.checking.isolation import TimeLimit, is_output
from privlearn.checking.reports import CheckReport, Finding, Verdict
from privlearn.errors import CheckError, PrivacyViolation, PrivlearnError

C = TypeVar("C")
_NUMPY = Path(np.__file__).parent
_LIBRARIES = (Path(privlearn.__file__).parent, _NUMPY)
SECONDS = 60.0
"""Time limit of one law, and of the samples that are drawn of one subject."""
ALL = 3
"""So many times as long all laws of a subject may take together."""


class Broken(Exception):
    """A law does not hold; for checks only."""


class NotApplicable(Exception):
    """A law says nothing about this subject; for checks only."""


LawFinding = str | Finding  # What a check returns that holds: what was measured


def perform(check: Callable[[C], LawFinding], case: C, seconds: float = SECONDS) -> Finding:
    """Runs one check; whatever happens is a finding."""
    name = getattr(check, "__name__", type(check).__name__)
    began = time.perf_counter()

    def found(verdict: Verdict, detail: str, evidence: object = None) -> Finding:
        return Finding(
            name, verdict, detail, evidence=evidence, seconds=time.perf_counter() - began
        )

    try:
        with TimeLimit(seconds, "it"):
            outcome = check(case)
    except Broken as broken:
        return found("violated", str(broken))
    except NotApplicable as reason:
        return found("not applicable", str(reason))
    except PrivacyViolation as violation:
        return found("violated", str(violation), violation.evidence)
    except CheckError as error:
        return found("not done", str(error))
    except BaseException as error:  # the subject's own code failed where it must not
        if not is_output(error):
            raise
        if where := _in_this_kit(error):
            told = f"this check itself fails at {where}: {type(error).__name__}: {error}"
            return found("not done", told)
        return found("violated", f"raises {_told(error)}")
    return found("holds", outcome) if isinstance(outcome, str) else outcome


def _told(error: BaseException) -> str:
    """What was raised, and at which line of the subject's own code.

    Where this package keeps back why somebody's code failed, it is told here: rows of a check are
    nobody's.
    """
    kept_back = error.__context__ if isinstance(error, PrivlearnError) else None
    if kept_back is not None:
        return f"{type(error).__name__}: {error}; it was {_told(kept_back)}"
    outside = [frame for frame in extract_tb(error.__traceback__) if not _is_library(frame)]
    where = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {error}{where}"


def _in_this_kit(error: BaseException) -> str:
    """Where a check raised it itself: at a fault of this package, or of what it was given."""
    frames = [f for f in extract_tb(error.__traceback__) if _NUMPY not in Path(f.filename).parents]
    last = Path(frames[-1].filename)
    own = Path(__file__).parents[1] in last.parents and not last.name.startswith("scripted_")
    return f"{last.name}:{frames[-1].lineno}" if own else ""


def _is_library(frame: FrameSummary) -> bool:
    return any(Path(frame.filename).is_relative_to(folder) for folder in _LIBRARIES)


def perform_all(
    subject: str,
    checks: Sequence[Callable[[C], LawFinding]],
    case: C,
    seconds: float = SECONDS,
) -> CheckReport:
    """Runs all checks, whatever the first ones find, until time is up."""
    findings: list[Finding] = []
    end = time.monotonic() + ALL * seconds
    for check in checks:
        left = min(seconds, end - time.monotonic())
        if left > 0:
            findings.append(perform(check, case, left))
        else:
            late = f"all checks together took {ALL * seconds:g} seconds"
            findings.append(Finding(check.__name__, "not done", late))
    return CheckReport(subject, tuple(findings))
