# expect: arg-type
"""A receipt without a spend."""

from privlearn.budgets import ZCDP
from privlearn.tokens import Account, Issuer, Receipt, Spend, Token


def forge(issuer: Issuer, token: Token[ZCDP], spend: Spend, account: Account) -> Receipt:
    return Receipt(None, issuer, token, spend, account)
