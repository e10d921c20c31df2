"""Named checks, one after the other: what passed, what failed, and what could not be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Literal, TypeVar

import numpy as np

import privlearn
from privlearn.checking.evidence import Evidence
from privlearn.checking.exact.check import ExactResult
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.power import weakness
from privlearn.errors import CheckError, PrivacyViolation, PrivlearnError

__tracebackhide__ = told_in_full

C = TypeVar("C")
_LIBRARIES = (Path(privlearn.__file__).parent, Path(np.__file__).parent)
Verdict = Literal["passed", "failed", "not applicable", "not done"]


_WEAK = (
    "half of the noise might have passed, too.  Give neighbours=(one, other), two data sets "
    "of which one user's record makes the most difference, or more samples; or let out what can be "
    "computed exactly (why it was not: check_exact_divergence)"
)


class Broken(Exception):
    """A law does not hold; for checks only."""


class NotApplicable(Exception):
    """A law says nothing about this subject; for checks only."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: of the check.
        verdict: "not applicable" if the law says nothing about the subject; "not done" if it does
            and could not be tried, which is no pass.
        detail: why, or what was measured.
        evidence: of a sampling check, or of the exact comparison.
    """

    name: str
    verdict: Verdict
    detail: str
    evidence: Evidence | ExactResult | None = None

    def __str__(self) -> str:
        return f"{self.verdict:<15}{self.name}: {self.detail}"


@dataclass(frozen=True, slots=True)
class LawReport:
    """The results of all checks of one subject, in order."""

    subject: str
    results: tuple[CheckResult, ...]

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, name: str) -> CheckResult:
        return next(result for result in self.results if result.name == name)

    @property
    def failed(self) -> list[CheckResult]:
        return [result for result in self.results if result.verdict == "failed"]

    @property
    def undone(self) -> list[CheckResult]:
        return [result for result in self.results if result.verdict == "not done"]

    @property
    def passed(self) -> bool:
        return not self.failed and not self.undone

    @property
    def weak(self) -> bool:
        """Whether only samples were tried, and they would not have seen a fault of factor 2."""
        found = [result.evidence for result in self.results if result.evidence is not None]
        whole = any(isinstance(one, ExactResult) and one.whole for one in found)
        sampled = [one for one in found if isinstance(one, Evidence)]
        return bool(sampled) and not whole and all(map(weakness, sampled))

    def __str__(self) -> str:
        lines = [f"{self.subject}:", *map(str, self.results)]
        if self.passed and self.weak:
            lines.append(f"weak: {_WEAK}")
        return "\n  ".join(lines)

    def summary(self) -> str:
        count = {v: sum(r.verdict == v for r in self.results) for v in ("passed", "failed")}
        line = f"{self.subject}: {count['passed']} of {len(self.results)} checks passed"
        line += f", {count['failed']} FAILED" if count["failed"] else ""
        line += f", {len(self.undone)} not done" if self.undone else ""
        line += ", WEAK" if self.passed and self.weak else ""
        return line + "".join(
            f"; {r.evidence.unit} >= {r.evidence.bound:.4g} of {r.evidence.claimed:.4g} "
            f"at confidence {r.evidence.confidence:g}"
            for r in self.results
            if isinstance(r.evidence, Evidence)
        )

    def raise_if_bad(self) -> None:
        """Raises `PrivacyViolation` if a check failed, `CheckError` if one could not be done."""
        if self.failed:
            lines = "\n  ".join(f"{result.name}: {result.detail}" for result in self.failed)
            evidence = next((r.evidence for r in self.failed if r.evidence is not None), None)
            raise PrivacyViolation(
                f"{self.subject} fails {len(self.failed)} of {len(self)} checks\n  {lines}",
                self if evidence is None else evidence,
            )
        if self.undone:
            lines = "\n  ".join(f"{result.name}: {result.detail}" for result in self.undone)
            raise CheckError(f"{self.subject}: checks that could not be done\n  {lines}")


LawFinding = str | Evidence | ExactResult  # What a check returns that holds: what was measured


def perform(check: Callable[[C], LawFinding], case: C) -> CheckResult:
    """Runs one check; whatever happens is a result."""
    name = getattr(check, "__name__", type(check).__name__)
    try:
        outcome = check(case)
    except Broken as broken:
        return CheckResult(name, "failed", str(broken))
    except NotApplicable as reason:
        return CheckResult(name, "not applicable", str(reason))
    except PrivacyViolation as violation:
        seen = (
            violation.evidence if isinstance(violation.evidence, Evidence | ExactResult) else None
        )
        return CheckResult(name, "failed", str(violation), seen)
    except CheckError as error:
        return CheckResult(name, "not done", str(error))
    except Exception as error:  # the subject's own code failed where it must not
        return CheckResult(name, "failed", f"raises {_told(error)}")
    if isinstance(outcome, str):
        return CheckResult(name, "passed", outcome)
    verdict: Verdict = "failed" if outcome.violated else "passed"
    return CheckResult(name, verdict, str(outcome), outcome)


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


def _is_library(frame: FrameSummary) -> bool:
    return any(Path(frame.filename).is_relative_to(folder) for folder in _LIBRARIES)


def perform_all(subject: str, checks: Sequence[Callable[[C], LawFinding]], case: C) -> LawReport:
    """Runs all checks, whatever the first ones find."""
    return LawReport(subject, tuple(perform(check, case) for check in checks))
