# expect: misc
"""What was found stands."""

from privlearn.checking.asserts import assert_private
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

found = assert_private(NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)))
found.bound = 0.0
