# expect: arg-type
"""A fit is paid by a token, not by a budget."""

from privlearn.budgets import ZCDP
from privlearn.domains import Array
from privlearn.mechanisms import LinearObjective, ObjectivePerturbation
from privlearn.rows import Rows


def use(rows: Rows[tuple[Array, Array]]) -> None:
    ObjectivePerturbation(LinearObjective.logistic(2), 5.0, 4.0, 0.1, 10).release(rows, ZCDP(1))
