# expect: abstract
"""A loss function that states none of its bounds has no price."""

from privlearn.mechanisms import Objective
from privlearn.rows.domains import Array


class Unbounded(Objective[Array]):
    """No gradient_bound, no trace, no rank."""


Unbounded()
