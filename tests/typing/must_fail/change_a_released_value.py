# expect: misc
"""What was paid for cannot be exchanged."""

import numpy as np

from privlearn.contract.receipts import Released
from privlearn.rows.domains import Array


def use(released: Released[Array]) -> None:
    released.value = np.zeros(2)
