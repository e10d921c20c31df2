"""Which failures of a test pytest shows without the frames of this package.

The pytest plugin says ``__tracebackhide__ = told_in_full`` in the modules of the kit, which are
then left out of the traceback, so that a log ends with the line of the test and what was found.
"""

from __future__ import annotations

from typing import Protocol

from privlearn.errors import CheckError, InterferenceError, PrivacyViolation, SurvivalError


class _Failure(Protocol):
    def errisinstance(self, kinds: tuple[type[BaseException], ...], /) -> bool: ...


def told_in_full(failure: _Failure) -> bool:
    """Whether the message says what was found, and no code of ours would add to it."""
    return failure.errisinstance((PrivacyViolation, CheckError, SurvivalError, InterferenceError))
