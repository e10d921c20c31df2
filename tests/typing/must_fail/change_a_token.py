# expect: misc
"""What a token holds cannot be raised."""

from privlearn.budgets import ZCDP
from privlearn.tokens import Token


def use(token: Token[ZCDP]) -> None:
    token.budget = ZCDP(100)
