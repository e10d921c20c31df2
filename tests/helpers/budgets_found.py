"""The numbers behind a report on a budget."""

from __future__ import annotations

from privlearn.checking.budgets import BudgetReport
from privlearn.checking.reports import CheckReport


def budget_of(report: CheckReport) -> BudgetReport:
    """What was found about the first limit."""
    found = report.findings[0].evidence
    assert isinstance(found, BudgetReport)
    return found
