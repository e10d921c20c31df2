# expect: call-arg
"""Rows are sealed for named users."""

import numpy as np

from privlearn.rows import Rows

Rows.seal(np.zeros((3, 2)))
