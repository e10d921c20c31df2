# expect: misc
"""What was found stands."""

from privlearn.budgets import ZCDP
from privlearn.checking.asserts import assert_private
from privlearn.domains import Ball
from privlearn.mechanisms import NoisySum

found = assert_private(NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)))
found.bound = 0.0
