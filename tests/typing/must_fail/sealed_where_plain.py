# expect: arg-type
"""Sealed rows where plain data are wanted."""

from privlearn.rows import Rows
from privlearn.rows.domains import Array


def mean(data: Array) -> float:
    return float(data.mean())


def use(rows: Rows[Array]) -> float:
    return mean(rows)
