# expect: index|NoReturn|Never|func-returns-value|attr-defined
"""One record of sealed rows."""

from privlearn.domains import Array
from privlearn.rows import Rows


def use(rows: Rows[Array]) -> Array:
    block: Array = rows.block
    return block
