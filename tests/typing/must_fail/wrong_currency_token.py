# expect: arg-type
"""A token of one currency where another is wanted."""

from privlearn.budgets import ZCDP, GaussianDP
from privlearn.tokens import Token


def pay(token: Token[ZCDP]) -> None: ...


def use(token: Token[GaussianDP]) -> None:
    pay(token)
