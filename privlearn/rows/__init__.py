"""Sealed rows and sums of them, user functions over them, and table-like input."""

from privlearn.rows.partial_sums import PartialSum, merge
from privlearn.rows.sealed import Rows, Sealed, Source

__all__ = ["PartialSum", "Rows", "Sealed", "Source", "merge"]
