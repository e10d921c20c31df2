# expect: arg-type
"""A budget is made of a number."""

from privlearn.losses.budgets import ZCDP

ZCDP([1])
