# expect: arg-type
"""A token that no accountant made."""

from privlearn.contract.issuing import Issuer
from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP


def forge(issuer: Issuer) -> Token[ZCDP]:
    return Token(object(), issuer, "a/1", ZCDP(1), range(3), "forged")
