"""Record, freeze and replay: what a learner releases must not tell one user of another."""

from typing import TYPE_CHECKING

from privlearn import _former

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = _former.answer(__name__)
