# expect: arg-type
"""Sealed rows on the billboard."""

from privlearn.contract.billboard import Billboard
from privlearn.rows import Rows
from privlearn.rows.domains import Array


def use(board: Billboard, rows: Rows[Array]) -> None:
    board.post("rows", rows)
