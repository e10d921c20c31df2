# expect: abstract
"""A loss function that states none of its bounds has no price."""

from privlearn.domains import Array
from privlearn.mechanisms import Objective


class Unbounded(Objective[Array]):
    """No gradient_bound, no trace, no rank."""


Unbounded()
