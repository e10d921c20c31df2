"""What a check looked at, what it found, and how sure that makes anybody: the one report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from privlearn.errors import CheckError, PrivacyViolation

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
_MOST = 3
"""Checks that a summary names."""
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
        return tuple(finding for finding in self.findings if finding.verdict == "violated")

    @property
    def undone(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "not done")

    @property
    def inconclusive(self) -> tuple[Finding, ...]:
        """Findings that refuted nothing and would have missed a fault; the axis is named.

        Weak samples are none where the exact loss is known.
        """
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
            lines = [f"{finding.check}: {finding.detail}" for finding in found]
            failed = "fails" if error is PrivacyViolation else "could not be put to"
            told = f"{self.subject} {failed} {len(found)} of {len(self.findings)} checks"
            told = "\n  ".join([told, *lines])
            if len(found) == 1 and found[0].detail.startswith(self.subject):
                told = found[0].detail
            if error is CheckError:
                raise CheckError(told)
            evidence = next((f.evidence for f in found if f.evidence is not None), self)
            raise PrivacyViolation(told, evidence)


# Samples ------------------------------------------------------------------------------------------


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
