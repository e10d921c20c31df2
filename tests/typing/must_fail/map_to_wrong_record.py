# expect: arg-type
"""A function of another record type."""

from privlearn.domains import Array
from privlearn.rows import Rows


def shout(word: str) -> str:
    return word.upper()


def use(rows: Rows[Array]) -> None:
    rows.map(shout)
