# expect: index|NoReturn|Never|func-returns-value|attr-defined
"""One record of sealed rows."""

from privlearn.rows import Rows
from privlearn.rows.domains import Array


def use(rows: Rows[Array]) -> Array:
    block: Array = rows.block
    return block
