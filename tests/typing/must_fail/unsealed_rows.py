# expect: arg-type
"""Plain data where sealed rows are wanted."""

import numpy as np

from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.mechanisms import GaussianSum
from privlearn.tokens import Token


def use(token: Token[ZCDP]) -> None:
    GaussianSum(Ball(1.0, 2), 1.0).release(np.zeros((3, 2)), token)
