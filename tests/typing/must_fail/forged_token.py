# expect: arg-type
"""A token that no accountant made."""

from privlearn.contract.tokens import Issuer, Token
from privlearn.losses.budgets import ZCDP


def forge(issuer: Issuer) -> Token[ZCDP]:
    return Token(object(), issuer, "a/1", ZCDP(1), range(3), "forged")
