# expect: arg-type
"""A budget is not the right to spend it."""

from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.mechanisms import PrefixSum

PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=3).open(ZCDP(1))
