"""Laws of mechanisms one by one: one is enough to catch a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privlearn.checking.isolation import silenced
from privlearn.checking.laws.check import (
    SAMPLES,
    Sampling,
    case_of,
    check_runs_on_null_records,
    looks_at_claim,
    sampled_subject,
)
from privlearn.checking.laws.mechanisms import MECHANISM_CHECKS, Case
from privlearn.checking.reports import CheckReport, Finding, LawFinding, perform


@silenced
def laws_until_failed(
    mechanism: Any, *, confidence: float, seed: int = 0, records: Any = None
) -> CheckReport:
    """As `check_mechanism`, up to the first check that fails."""
    name = type(mechanism).__name__
    found = [perform(check_runs_on_null_records, (mechanism, mechanism.loss()))]
    if found[0].verdict != "holds":
        return CheckReport(name, tuple(found))
    case = case_of(mechanism, records=records, seed=seed)
    for check in MECHANISM_CHECKS:
        found.append(perform(check, case))
        if found[-1].verdict == "violated":
            return CheckReport(name, tuple(found))
    how = Sampling(SAMPLES, confidence, seed)
    looks = looks_at_claim(sampled_subject(case, None), case, None, None, how)
    return CheckReport(name, (*found, *looks))


@silenced
def check_one_law(mechanism: Any, law: Callable[[Case], LawFinding], **options: Any) -> Finding:
    """One check of `check_mechanism`, for the same options; raises nothing."""
    return perform(law, case_of(mechanism, **options))
