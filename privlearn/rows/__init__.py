"""Sealed rows and sums of them, user functions over them, and table-like input."""

from privlearn.rows.partial_sums import PartialSum, merge
from privlearn.rows.sealed import Rows, Sealed, Source
from privlearn.rows.store import RowStore
from privlearn.rows.travel import rows_from_bytes, rows_to_bytes

__all__ = [
    "PartialSum",
    "RowStore",
    "Rows",
    "Sealed",
    "Source",
    "merge",
    "rows_from_bytes",
    "rows_to_bytes",
]
