# expect: arg-type
"""A region is a set, not its name."""

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LinearObjective, ObjectivePerturbation

ObjectivePerturbation.with_ridge(
    LinearObjective.logistic(2), 5.0, ZCDP(1), max_rows=10, region="ball"
)
