"""Whole runs behind `privlearn run`."""

from typing import TYPE_CHECKING

from privlearn import _former

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = _former.answer(__name__)
