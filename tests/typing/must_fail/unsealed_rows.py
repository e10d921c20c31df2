# expect: arg-type
"""Plain data where sealed rows are wanted."""

import numpy as np

from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball


def use(token: Token[ZCDP]) -> None:
    NoisySum(Ball(1.0, 2), GaussianNoise(1.0)).release(np.zeros((3, 2)), token)
