# expect: misc
"""What a token holds cannot be raised."""

from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP


def use(token: Token[ZCDP]) -> None:
    token.budget = ZCDP(100)
