"""Faults of one line that a test must find, as cases for pytest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from mutation import Edit, InspectionCase, Mutant

Fault = tuple[str, str, str, Callable[..., Any]]
"""``module:Class.method``, a text that stands there once, what it becomes, and the test."""


def cases(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """A parametrisation by target, old and new text and test."""
    return pytest.mark.parametrize(
        ("target", "old", "new", "test"),
        [
            pytest.param(*fault, id=f"{fault[0].rpartition(':')[2]}-{i}")
            for i, fault in enumerate(faults)
        ],
    )


def is_found(target: str, old: str, new: str, test: Callable[..., Any]) -> bool:
    """Whether the test fails with the fault."""

    def look() -> str | None:
        try:
            test()
        except (Exception, pytest.fail.Exception) as error:
            return repr(error)
        return None

    mutant = Mutant("planted", "One line.", (Edit(target, old, new),), InspectionCase(look))
    return mutant.check().caught
