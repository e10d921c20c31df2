"""Laws of mechanisms one by one: one is enough to catch a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privlearn.checking.isolation import silenced
from privlearn.checking.laws.check import _broken_at_once, _case_of
from privlearn.checking.laws.harness import Case
from privlearn.checking.laws.mechanisms import MECHANISM_CHECKS
from privlearn.checking.laws.report import CheckResult, LawFinding, LawReport, perform


@silenced
def laws_until_failed(mechanism: Any, **options: Any) -> LawReport:
    """As `check_mechanism`, up to the first check that fails."""
    if (broken := _broken_at_once(mechanism, None)) is not None:
        return broken
    case, results = _case_of(mechanism, **options), []
    for check in MECHANISM_CHECKS:
        results.append(perform(check, case))
        if results[-1].verdict == "failed":
            break
    return LawReport(case.name, tuple(results))


@silenced
def check_one_law(mechanism: Any, law: Callable[[Case], LawFinding], **options: Any) -> CheckResult:
    """One check of `check_mechanism`, for the same options; raises nothing."""
    return perform(law, _case_of(mechanism, **options))
