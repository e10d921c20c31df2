"""Data sets that ship with privlearn, and readers of published and of user files."""

from typing import TYPE_CHECKING

from privlearn import _former

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = _former.answer(__name__)
