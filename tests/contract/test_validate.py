"""Dataclasses whose annotations say what their fields accept."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from privlearn.values.validate import (
    AtLeastTwo,
    Checked,
    Count,
    Finite,
    Positive,
    assign,
    check_fields,
)


@dataclass(frozen=True, slots=True)
class Numbers(Checked):
    scale: Positive
    low: Finite = -1.0
    size: Count = 1
    arms: AtLeastTwo = 2
    anything: object = None


@dataclass(frozen=True, slots=True)
class Derived:
    scale: Positive
    double: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        assign(self, double=2 * self.scale)


def test_what_the_check_returns_is_stored() -> None:
    made = Numbers(Fraction(1, 2), 3, anything="text")  # type: ignore[arg-type]
    assert (made.scale, made.low, made.anything) == (0.5, 3.0, "text")
    assert type(made.scale) is type(made.low) is float
    assert Derived("0.5").double == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 0}, "scale = 0: must be > 0"),
        ({"scale": "wide"}, "scale = 'wide': must be a number"),
        ({"low": float("inf")}, "low = inf: must be finite"),
        ({"scale": 10**400}, f"scale = {10**400}: must be finite"),
        ({"size": 0}, "size = 0: must be an integer >= 1"),
        ({"size": True}, "size = True: must be an integer"),
        ({"arms": 1}, "arms = 1: must be an integer >= 2"),
    ],
)
def test_a_bad_value_is_named_when_it_is_made_and_when_it_is_replaced(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        Numbers(**{"scale": 1.0, **changes})  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        replace(Numbers(1.0), **changes)  # type: ignore[arg-type]
