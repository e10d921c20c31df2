# expect: misc
"""What was found stands."""

from privlearn.checking import check_mechanism
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

found = check_mechanism(NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)))
found.findings = ()
