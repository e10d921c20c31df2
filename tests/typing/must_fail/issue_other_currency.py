# expect: arg-type
"""A budget of another currency than the accountant's."""

from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import ZCDP, GaussianDP


def use(accountant: CentralAccountant[ZCDP]) -> None:
    accountant.issue(GaussianDP(1), users=range(3), label="x")
