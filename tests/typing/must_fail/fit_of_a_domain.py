# expect: arg-type
"""A set to clip to is no loss function."""

from privlearn.mechanisms import ObjectivePerturbation
from privlearn.rows.domains import Ball

ObjectivePerturbation(Ball(1.0, 2), 5.0, 4.0, 0.1, 10)
