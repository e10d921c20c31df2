# expect: arg-type
"""A budget is made of a number."""

from privlearn.budgets import ZCDP

ZCDP([1])
