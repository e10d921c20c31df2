# expect: arg-type
"""A receipt without a spend."""

from privlearn.contract.issuing import Issuer, RecordedToken
from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP


def forge(issuer: Issuer, token: Token[ZCDP], spend: Spend, account: RecordedToken) -> Receipt:
    return Receipt(None, issuer, token, spend, account)
