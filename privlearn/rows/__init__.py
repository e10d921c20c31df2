"""Sealed rows, user functions over them, and table-like input."""

from privlearn.rows.sealed import Rows, Sealed, Source

__all__ = ["Rows", "Sealed", "Source"]
