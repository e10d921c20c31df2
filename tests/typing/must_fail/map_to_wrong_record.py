# expect: arg-type
"""A function of another record type."""

from privlearn.rows import Rows
from privlearn.rows.domains import Array


def shout(word: str) -> str:
    return word.upper()


def use(rows: Rows[Array]) -> None:
    rows.map(shout)
