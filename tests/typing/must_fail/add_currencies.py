# expect: operator
"""Budgets of different currencies do not add up."""

from privlearn.losses.budgets import ZCDP, PureDP

total = ZCDP(1) + PureDP(1)
