# expect: arg-type
"""A released value that nobody paid for."""

import numpy as np

from privlearn.domains import Array
from privlearn.tokens import Released

value: Released[Array] = Released("mint", np.zeros(2), "a/1", "")
