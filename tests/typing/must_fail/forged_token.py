# expect: arg-type
"""A token that no accountant made."""

from privlearn.budgets import ZCDP
from privlearn.tokens import Issuer, Token


def forge(issuer: Issuer) -> Token[ZCDP]:
    return Token(object(), issuer, "a/1", ZCDP(1), range(3), "forged")
