# expect: arg-type
"""A set to clip to is no loss function."""

from privlearn.domains import Ball
from privlearn.mechanisms import ObjectivePerturbation

ObjectivePerturbation(Ball(1.0, 2), 5.0, 4.0, 0.1, 10)
