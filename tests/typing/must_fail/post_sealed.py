# expect: arg-type
"""Sealed rows on the billboard."""

from privlearn.billboard import Billboard
from privlearn.domains import Array
from privlearn.rows import Rows


def use(board: Billboard, rows: Rows[Array]) -> None:
    board.post("rows", rows)
