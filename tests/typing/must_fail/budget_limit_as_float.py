# expect: Argument "at_most" to "assert_budget" has incompatible type "float"
"""A number is no budget."""

from privlearn.accountants import CentralAccountant
from privlearn.checking.budgets import assert_budget
from privlearn.losses.budgets import ZCDP


def run(accountant: CentralAccountant[ZCDP]) -> None:
    accountant.issue(ZCDP(1), users=range(3), label="all")


assert_budget(run, at_most=1.0)
