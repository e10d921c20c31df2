# expect: assignment
"""The factory of the pytest plugin says which accountant it makes."""

from privlearn.accountants import JointAccountant
from privlearn.checking.pytest_plugin import AccountantFactory
from privlearn.losses.budgets import ZCDP


def test_it(privacy_accountant: AccountantFactory) -> None:
    joint: JointAccountant[ZCDP] = privacy_accountant(ZCDP(1))
    joint.close()
