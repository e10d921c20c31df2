# expect: arg-type
"""Sealed rows where plain data are wanted."""

from privlearn.domains import Array
from privlearn.rows import Rows


def mean(data: Array) -> float:
    return float(data.mean())


def use(rows: Rows[Array]) -> float:
    return mean(rows)
