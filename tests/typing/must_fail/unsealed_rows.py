# expect: arg-type
"""Plain data where sealed rows are wanted."""

import numpy as np

from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.tokens import Token


def use(token: Token[ZCDP]) -> None:
    NoisySum(Ball(1.0, 2), GaussianNoise(1.0)).release(np.zeros((3, 2)), token)
