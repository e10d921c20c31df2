# expect: arg-type
"""A token of one currency where another is wanted."""

from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP, GaussianDP


def pay(token: Token[ZCDP]) -> None: ...


def use(token: Token[GaussianDP]) -> None:
    pay(token)
