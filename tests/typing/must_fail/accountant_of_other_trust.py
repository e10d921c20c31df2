# expect: assignment
"""The factory of the pytest plugin says which accountant it makes."""

from privlearn.accountants import JointAccountant
from privlearn.budgets import ZCDP
from privlearn.checking.pytest_plugin import AccountantFactory


def test_it(privacy_accountant: AccountantFactory) -> None:
    joint: JointAccountant[ZCDP] = privacy_accountant(ZCDP(1))
    joint.close()
