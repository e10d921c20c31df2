# expect: arg-type
"""Budgets of different currencies are not compared."""

from privlearn.losses.budgets import ZCDP, GaussianDP

ZCDP(1).covers(GaussianDP(1))
