"""What a check looked at, what it found, and how sure that makes anybody: the one report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Literal, TypeVar, get_args

import numpy as np

import privlearn
from privlearn.checking.isolation import TimeLimit, is_output
from privlearn.errors import CheckError, PrivacyViolation, PrivlearnError

Verdict = Literal[
    "not applicable", "tight", "holds", "not refuted", "weak", "window", "not done", "violated"
]
"""From the strongest to the worst.

``tight``: the claim is the exact loss, and every axis of the coverage was tried in full.
``holds``: computed or tried in full, with slack.  ``window``: computed, on a part of what there is.
``not refuted``: samples, which do refute half the claim.  ``weak``: not even that.
"""

ORDER: tuple[Verdict, ...] = get_args(Verdict)
COMPUTED: frozenset[Verdict] = frozenset({"tight", "holds"})
_MOST = 3  # Checks that a summary names
BAD: frozenset[Verdict] = frozenset({"violated", "not done"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that a check varies, what was tried in words, and whether that is enough to have
    seen a fault along it.
    """

    name: str
    tried: str
    enough: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.tried}{'' if self.enough else ' (NOT ENOUGH)'}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was tried, axis by axis."""

    axes: tuple[Axis, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Axes along which a fault might not have been seen."""
        return tuple(axis.name for axis in self.axes if not axis.enough)

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage((*self.axes, *other.axes))

    def __str__(self) -> str:
        return "; ".join(map(str, self.axes)) or "nothing is known of what was tried"


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """What one way of looking found: "exact", "samples", "replay", or the name of a law.

    ``evidence`` are the numbers behind it, such as an `Evidence` or an `ExactResult`.
    """

    check: str
    verdict: Verdict
    detail: str
    coverage: Coverage = Coverage()
    evidence: object = None
    seconds: float = 0.0

    def __str__(self) -> str:
        tried = f"\n{'':17}tried: {self.coverage}" if self.coverage.axes else ""
        return f"{self.verdict:<15}{self.check}: {self.detail}{tried}"

    def __repr__(self) -> str:
        first = self.detail.partition("\n")[0]
        return f"{self.check}: {self.verdict}: {first}"

    @property
    def missing(self) -> str:
        """Axes along which a fault might not have been seen: the first in words."""
        first, *others = [axis for axis in self.coverage.axes if not axis.enough] or [Axis("", "")]
        return f"{first}{'; also ' if others else ''}{', '.join(axis.name for axis in others)}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that was found about one subject, in order."""

    subject: str
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = field(default=())
    """What no check of this kind can see, and a person has to."""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.findings if finding.check == check)

    @property
    def violated(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict == "violated")

    @property
    def undone(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict == "not done")

    @property
    def inconclusive(self) -> tuple[Finding, ...]:
        """Findings that refuted nothing and would have missed a fault; the axis is named. Weak
        samples are none where the exact loss is known."""
        known = any(f.check == "exact" and f.verdict in COMPUTED for f in self.findings)
        return tuple(
            f for f in self.findings if f.verdict == "window" or (f.verdict == "weak" and not known)
        )

    @property
    def passed(self) -> bool:
        """Whether nothing was refuted, and everything could be done."""
        return not (self.violated or self.undone)

    def __str__(self) -> str:
        lines = [f"{self.subject}:", *map(str, self.findings)]
        lines += [f"inconclusive: {f.check}: {f.verdict}: {f.missing}" for f in self.inconclusive]
        lines += [f"not seen by this check: {text}" for text in self.unseen]
        return "\n  ".join(lines)

    @property
    def verdict(self) -> Verdict:
        """What was refuted or stayed open; else the exact loss, if it is known; else the worst."""
        bad = (*self.violated, *self.undone, *self.inconclusive)
        known = [f for f in self.findings if f.check == "exact" and f.verdict in COMPUTED]
        found = {finding.verdict for finding in bad or known or self.findings}
        return max(found, key=ORDER.index)

    def summary(self) -> str:
        """One line: how many checks held, and what was found about the claim."""
        applied = [f for f in self.findings if f.verdict != "not applicable"]
        bad = [*self.violated, *self.undone]
        line = f"{self.subject}: {len(applied) - len(bad)} of {len(applied)} checks passed"
        for finding in applied:
            shown = finding in bad[:_MOST] or finding in self.inconclusive
            if shown or finding.evidence is not None:
                verdict = finding.verdict.upper() if shown else finding.verdict
                stated = getattr(finding.evidence, "summary", "")
                line += f"; {finding.check}: {verdict}{', ' if stated else ''}{stated}"
        return line

    def raise_if_bad(self) -> None:
        """Raises `PrivacyViolation` if something was refuted, `CheckError` if it was not done."""
        for found, error in ((self.violated, PrivacyViolation), (self.undone, CheckError)):
            if not found:
                continue
            failed = "fails" if error is PrivacyViolation else "could not be put to"
            told = f"{self.subject} {failed} {len(found)} of {len(self.findings)} checks"
            told = "\n  ".join([told, *(f"{f.check}: {f.detail}" for f in found)])
            if len(found) == 1 and found[0].detail.startswith(self.subject):
                told = found[0].detail
            if error is CheckError:
                raise CheckError(told)
            evidence = next((f.evidence for f in found if f.evidence is not None), self)
            raise PrivacyViolation(told, evidence)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What samples say about a claim: a lower bound with its confidence, never a bare pass.

    The loss is at least ``bound`` (in ``unit``, of ``claimed``), unless something of probability 1
    − ``confidence`` happened. ``event`` separates the data sets of pair ``pair`` best: ``p`` and
    ``q`` are its held-out frequencies on either. The same ``seed`` gives the same evidence;
    ``notes`` are no part of the bound.
    """

    subject: str
    claim: str
    unit: str
    claimed: float
    bound: float
    confidence: float
    samples: int
    event: str
    p: float
    q: float
    pair: int
    seed: int
    seconds: float
    notes: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def violated(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound > self.claimed

    @property
    def summary(self) -> str:
        """The bound, beside the claim."""
        return (
            f"{self.unit} >= {self.bound:.4g} of {self.claimed:.4g} at confidence "
            f"{self.confidence:g} ({self.samples} samples)"
        )

    def __str__(self) -> str:
        verdict = "VIOLATED" if self.violated else "not refuted"
        found = (
            f"{self.subject}: {verdict}. Claimed {self.claim}; {self.unit} is at least "
            f"{self.bound:.4g} with confidence {self.confidence:g} "
            f"({self.samples} samples, {self.seconds:.2f} s)\n"
            f"  event: {self.event}\n"
            f"  happens with frequency {self.p:.4g} on the first data set of pair {self.pair}, "
            f"{self.q:.4g} on the second; seed {self.seed}"
        )
        return "\n  note: ".join([found, *self.notes])


C = TypeVar("C")
_NUMPY = Path(np.__file__).parent
_LIBRARIES = (Path(privlearn.__file__).parent, _NUMPY)
SECONDS = 60.0  # Time limit of one law, and of the samples that are drawn of one subject
ALL = 3  # So many times as long all laws of a subject may take together


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
        return Finding(name, verdict, detail, Coverage(), evidence, time.perf_counter() - began)

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
            return found("not done", f"this check itself fails at {where}: {error!r}")
        return found("violated", f"raises {_told(error)}")
    return found("holds", outcome) if isinstance(outcome, str) else outcome


def _told(error: BaseException) -> str:
    """What was raised, and at which line of the subject's own code. Where this package keeps back
    why somebody's code failed, it is told here: rows of a check are nobody's."""
    kept_back = error.__context__ if isinstance(error, PrivlearnError) else None
    if kept_back is not None:
        return f"{type(error).__name__}: {error}; it was {_told(kept_back)}"
    frames = extract_tb(error.__traceback__)
    outside = [f for f in frames if not {*Path(f.filename).parents} & {*_LIBRARIES}]
    where = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {error}{where}"


def _in_this_kit(error: BaseException) -> str:
    """Where a check raised it itself: at a fault of this package, or of what it was given."""
    frames = [f for f in extract_tb(error.__traceback__) if _NUMPY not in Path(f.filename).parents]
    last = Path(frames[-1].filename)
    own = Path(__file__).parent in last.parents and not last.name.startswith("scripted_")
    return f"{last.name}:{frames[-1].lineno}" if own else ""


def perform_all(
    subject: str, checks: Sequence[Callable[[C], LawFinding]], case: C, seconds: float = SECONDS
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
