# expect: arg-type
"""The blur cannot be left out."""

from privlearn.mechanisms import Logistic, ObjectivePerturbation

ObjectivePerturbation(Logistic(2), 5.0, 4.0, None, 10)
