# expect: arg-type
"""A receipt without a spend."""

from privlearn.contract.tokens import Issuer, Receipt, RecordedToken, Spend, Token
from privlearn.losses.budgets import ZCDP


def forge(issuer: Issuer, token: Token[ZCDP], spend: Spend, account: RecordedToken) -> Receipt:
    return Receipt(None, issuer, token, spend, account)
