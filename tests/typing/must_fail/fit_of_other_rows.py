# expect: arg-type
"""Vectors where a fit takes the answers of users."""

from privlearn.contract.tokens import Token
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import MultinomialLogit, ObjectivePerturbation
from privlearn.rows import Rows
from privlearn.rows.domains import Array


def use(rows: Rows[Array], token: Token[ZCDP]) -> None:
    ObjectivePerturbation(MultinomialLogit(3, 2), 5.0, 4.0, 0.1, 10).release(rows, token)
