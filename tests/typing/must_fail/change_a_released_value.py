# expect: misc
"""What was paid for cannot be exchanged."""

import numpy as np

from privlearn.domains import Array
from privlearn.tokens import Released


def use(released: Released[Array]) -> None:
    released.value = np.zeros(2)
