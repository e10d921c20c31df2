# expect: arg-type
"""An (epsilon, delta) promise is turned into a currency by an accountant, also for fits."""

from privlearn.losses.budgets import ApproxDP
from privlearn.mechanisms import LinearObjective, ObjectivePerturbation

ObjectivePerturbation.calibrated(LinearObjective.logistic(2), ApproxDP(1, "1e-6"), max_rows=10)
