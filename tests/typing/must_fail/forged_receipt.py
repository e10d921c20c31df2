# expect: arg-type
"""A receipt without a spend."""

from privlearn.budgets import ZCDP
from privlearn.tokens import Issuer, Receipt, RecordedToken, Spend, Token


def forge(issuer: Issuer, token: Token[ZCDP], spend: Spend, account: RecordedToken) -> Receipt:
    return Receipt(None, issuer, token, spend, account)
