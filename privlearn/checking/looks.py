"""The two ways of looking at a claim: its exact loss, and a lower bound from samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from privlearn.checking.exact.check import white_box
from privlearn.checking.exact.probe import UnpredictedError
from privlearn.checking.isolation import TimeLimit
from privlearn.checking.laws.report import SECONDS
from privlearn.checking.reports import Axis, Coverage, Finding, Verdict
from privlearn.checking.sampling.check import black_box
from privlearn.checking.session import current
from privlearn.checking.targets import Claimable, SamplingTarget
from privlearn.errors import CheckError
from privlearn.values.user_code import attempted

CONFIDENCE = 0.99
"""Of bounds in tests that name none: one correct check in a hundred may fail, and with a fixed seed
it does so always or never."""
SAMPLES = 5_000
"""Runs, on both data sets together, where none are asked for."""
LEAST = 40
_TIMED = 3
FEW = 1_000
"""As many where the exact loss is known."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How outputs are drawn; see `check_mechanism`."""

    samples: int | None = None
    confidence: float = CONFIDENCE
    seed: int = 0
    seconds: float = SECONDS
    bits: bool | None = None

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1:
            raise CheckError(f"confidence = {self.confidence!r}: must lie between 0.5 and 1")
        if self.samples is not None and self.samples < LEAST:
            raise CheckError(f"samples = {self.samples!r}: must be at least {LEAST}")
        if not 0 < self.seconds < float("inf"):
            raise CheckError(f"seconds = {self.seconds!r}: must be a finite number above 0")


def level_of(confidence: float | None) -> float:
    """What was asked for, else the running test's confidence, else the default."""
    session = current()
    if confidence is None and session is not None:
        confidence = session.confidence
    return CONFIDENCE if confidence is None else confidence


def time_of(seconds: float | None) -> float:
    """What was asked for or the default, but no more than the running test has left.

    Raises:
        CheckError: the test has nothing left.
    """
    session = current()
    left = None if session is None else session.seconds_left
    if left is not None and left <= 0:
        raise CheckError("seconds: the time that the test's privacy marker allows is used up")
    limit = SECONDS if seconds is None else seconds
    return limit if left is None else min(limit, left)


def exactly(mechanism: Any, claim: Claimable | None, pairs: Any, seconds: float) -> Finding:
    """The exact loss beside the claim, where it can be computed (`white_box`)."""
    try:
        with TimeLimit(seconds, "it"):
            result = white_box(mechanism, claim, pairs)
    except UnpredictedError as error:  # so it was looked at, and something was seen
        axis = Axis("noise", f"acts otherwise on {len(error.pairs)} pairs that were found", False)
        return Finding("exact", "window", f"not computed: {error}", Coverage((axis,)), error)
    except CheckError as error:
        return Finding("exact", "not applicable", f"not computed: {error}")
    coverage = getattr(result, "coverage", Coverage())
    verdict: Verdict = "tight" if result.tight else "holds"
    if coverage.missing or not result.whole:
        verdict = "window"
    if result.violated:
        verdict = "violated"
    detail = str(result) if result.violated else str(result).splitlines()[0]
    return Finding("exact", verdict, detail, coverage, result, result.seconds)


def by_samples(subject: SamplingTarget[Any], how: Sampling, known: bool = False) -> Finding:
    """A bound from samples (`black_box`), and whether they refute at least half the claim.

    Args:
        subject: what is run.
        how: to run it.
        known: whether its exact loss is known.
    """
    evidence = black_box(
        subject,
        samples=how.samples or _affordable(subject, how, FEW if known else SAMPLES),
        confidence=how.confidence,
        seed=how.seed,
        seconds=how.seconds,
        bits=how.bits,
    )
    strong = evidence.bound > evidence.claimed / 2
    told = "half the claim would be refuted" if strong else "NOT EVEN HALF THE CLAIM IS REFUTED"
    power = f"{told} (at least {evidence.bound:.3g} of {evidence.claimed:.3g})"
    verdict: Verdict = "not refuted" if strong else "weak"
    return Finding(
        "samples",
        "violated" if evidence.violated else verdict,
        str(evidence),
        Coverage((Axis("power", power, strong), *evidence.coverage.axes)),
        evidence,
        evidence.seconds,
    )


def _affordable(subject: SamplingTarget[Any], how: Sampling, most: int) -> int:
    """As many as take a third of the time limit, where a run is slow."""
    draw = subject.start(subject.neighbours[0][0], how.seed)
    took = []
    for _ in range(_TIMED):
        began = time.perf_counter()
        attempted(draw)
        took.append(time.perf_counter() - began)
    return max(LEAST, min(most, int(how.seconds / 3 / max(min(took), 1e-9))))
