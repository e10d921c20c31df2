# expect: arg-type
"""A released value that nobody paid for."""

import numpy as np

from privlearn.contract.receipts import Released
from privlearn.rows.domains import Array

value: Released[Array] = Released("mint", np.zeros(2), "a/1", "")
