"""Grids of parameters of which `pytest` runs a part and `.ci/run` the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], keep: int = 2) -> list[Any]:
    """The first of every ``keep`` cases as it is; the others with the mark `calibration`.

    A case is one parameter, or a tuple of several.
    """
    return [
        pytest.param(*_values(case), marks=pytest.mark.calibration if number % keep else ())
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
