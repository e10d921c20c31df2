"""What `check_mechanism` says of a claim, without the laws, which take most of its time."""

from __future__ import annotations

from typing import Any

from privlearn.checking.laws.check import (
    Sampling,
    by_samples,
    check_mechanism,
    exactly,
    is_mechanism,
)
from privlearn.checking.reports import COMPUTED, CheckReport, Evidence
from privlearn.checking.targets import sampling_target


def looked_at(
    mechanism: Any, claim: Any = None, *, neighbours: Any = None, **how: Any
) -> CheckReport:
    """The exact loss of a mechanism, and what samples say."""
    subject = sampling_target(mechanism, claim, neighbours)
    given = neighbours is not None or not hasattr(mechanism, "domain")
    exact = exactly(mechanism, claim, list(subject.neighbours) if given else None, 60.0)
    samples = by_samples(subject, Sampling(**how), exact.verdict in COMPUTED)
    return CheckReport(subject.name, (exact, samples))


def assert_private(mechanism: Any, claim: Any = None, **options: Any) -> Evidence:
    """What samples say; raises if they or the exact loss refute the claim."""
    report = (looked_at if is_mechanism(mechanism) else check_mechanism)(
        mechanism, claim, **options
    )
    report.raise_if_bad()
    evidence = report["samples"].evidence
    assert isinstance(evidence, Evidence)
    return evidence
