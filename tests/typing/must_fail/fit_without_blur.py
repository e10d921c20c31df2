# expect: arg-type
"""The blur cannot be left out."""

from privlearn.mechanisms import LinearObjective, ObjectivePerturbation

ObjectivePerturbation(LinearObjective.logistic(2), 5.0, 4.0, None, 10)
