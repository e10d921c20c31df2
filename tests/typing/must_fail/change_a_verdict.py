# expect: misc
"""Whether a claim is violated follows from the bound."""

from privlearn.checking.reports import Evidence


def overrule(found: Evidence) -> None:
    found.violated = False
