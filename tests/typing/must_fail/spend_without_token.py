# expect: arg-type
"""A budget is not the right to spend it."""

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import PrefixSum
from privlearn.rows.domains import Ball

PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=3).open(ZCDP(1))
