# expect: arg-type
"""Rows of another type than the mechanism's domain takes."""

from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Ball


def use(rows: Rows[str], token: Token[ZCDP]) -> None:
    NoisySum(Ball(1.0, 2), GaussianNoise(1.0)).release(rows, token)
