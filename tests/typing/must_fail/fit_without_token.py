# expect: arg-type
"""A fit is paid by a token, not by a budget."""

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LinearObjective, ObjectivePerturbation
from privlearn.rows import Rows
from privlearn.rows.domains import Array


def use(rows: Rows[tuple[Array, Array]]) -> None:
    ObjectivePerturbation(LinearObjective.logistic(2), 5.0, 4.0, 0.1, 10).release(rows, ZCDP(1))
