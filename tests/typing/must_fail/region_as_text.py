# expect: arg-type
"""A region is a set, not its name."""

from privlearn.budgets import ZCDP
from privlearn.mechanisms import Logistic, ObjectivePerturbation

ObjectivePerturbation.with_ridge(Logistic(2), 5.0, ZCDP(1), max_rows=10, region="ball")
