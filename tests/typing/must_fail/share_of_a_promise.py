# expect: attr-defined
"""An (epsilon, delta) promise does not add up, so it has no shares."""

from privlearn.losses.budgets import ApproxDP

ApproxDP(1, "1e-6").share("0.5")
