# expect: arg-type
"""An (epsilon, delta) promise is turned into a currency by an accountant, not by a mechanism."""

from privlearn.losses.budgets import ApproxDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

NoisySum.calibrated(Ball(1.0, 2), ApproxDP(1, "1e-6"))
