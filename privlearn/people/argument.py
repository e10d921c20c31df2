"""Ids are given where there is a rule of participation, and nowhere else: one answer for all."""

from __future__ import annotations

from privlearn.errors import ProvenanceError
from privlearn.values.participation import Participation


def not_as_ruled(rule: Participation | None, name: str) -> ProvenanceError:
    """The error for ids that are missing under a rule, or are given without one."""
    if rule is None:
        return ProvenanceError(
            f"{name}: the accountant has no rule of participation, so that an index is one person; "
            "make it with people=People.create(path, rule), or leave this out"
        )
    return ProvenanceError(
        f"{name} is missing: the accountant has {rule}, and must be told who comes (an empty id: "
        "nobody who can be told apart, whose visit is not learned)"
    )
