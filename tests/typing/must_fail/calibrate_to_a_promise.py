# expect: arg-type
"""An (epsilon, delta) promise is turned into a currency by an accountant, not by a mechanism."""

from privlearn.budgets import ApproxDP
from privlearn.domains import Ball
from privlearn.mechanisms import NoisySum

NoisySum.calibrated(Ball(1.0, 2), ApproxDP(1, "1e-6"))
