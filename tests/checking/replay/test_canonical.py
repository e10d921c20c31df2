"""Forms of values: bit by bit, to the ground, and where two of them differ."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import pytest

from privlearn.checking.replay.canonical import CanonicalForm, alike, difference, short
from privlearn.errors import CheckError, InterferenceError


class Colour(Enum):
    RED = 1
    BLUE = 2


def form(value: Any) -> Any:
    return CanonicalForm({}, objects=True).of(value, "x")


def long(at: int, value: float) -> Any:
    array = np.zeros((100, 50))
    array.ravel()[at] = value
    return array


DIFFERENT: list[tuple[Any, Any, str]] = [
    (1, 1.0, "x: 1, then 1.0"),
    (True, 1, "x: True, then 1"),
    (0.0, -0.0, "x: 0.0, then -0.0"),
    (None, math.nan, "x: None, then nan"),
    ("a", "b", "x: 'a', then 'b'"),
    ([1, 2], [1, 3], "x[1]: 2, then 3"),
    ([1, 2], [1, 2, 3], "x: [1, 2], then [1, 2, 3]"),
    ({"a": {"b": [0, 1.5]}}, {"a": {"b": [0, 2.5]}}, "x['a']['b'][1]: 1.5, then 2.5"),
    ({"a": 1}, {"b": 1}, "x: {'a': 1}, then {'b': 1}"),
    (Colour.RED, Colour.BLUE, "x: Colour.RED, then Colour.BLUE"),
    (long(4_999, 1e-300), long(4_999, 2e-300), "x[99, 49]: 1e-300, then 2e-300"),
    (np.float64(1), np.float64(2), "x: 1.0, then 2.0"),
    (np.zeros(2), np.zeros(2, dtype=np.float32), "x: array of dtype('float64') and shape (2,), "),
    (np.zeros((2, 1)), np.zeros((1, 2)), "x: array of dtype('float64') and shape (2, 1), then"),
    (np.array(["a", "b"]), np.array(["a", "c"]), "x[1]: 'b', then 'c'"),
    ({1, 2}, {1, 3}, "x"),
    (1j, 2j, "x"),
    (b"1", b"2", "x"),
    (np.random.default_rng(0), np.random.default_rng(1), "x"),
    (np.array([1, None]), np.array([2, None]), "x"),
]


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT, ids=str)
def test_differences_are_found_and_named(one: Any, other: Any, message: str) -> None:
    assert alike(form(one), form(one))
    assert not alike(form(one), form(other))
    assert difference(form(one), form(other), "x").startswith(message)


def test_equal_values_are_alike_whoever_holds_them() -> None:
    shared = [[1.5], "a"]
    for one, other in (
        ([math.nan, math.inf], [float("nan"), float("inf")]),
        ([shared, shared], [shared, shared]),
        ((1, 2), [1, 2]),
        (10**400, 10**400),
        (np.arange(6.0).reshape(2, 3).T, np.array([[0.0, 3], [1, 4], [2, 5]])),
        ({"π": "x" * 1_000}, {"π": "x" * 999 + "x"}),
    ):
        assert alike(form(one), form(other))


def test_a_value_may_contain_itself() -> None:
    loops: list[Any] = []
    for value in (1, 1, 2):
        loop: list[Any] = ["a", value]
        loop.append(loop)
        loops.append(form(loop))
    assert alike(loops[0], loops[1])
    assert not alike(loops[0], loops[2])
    assert difference(loops[0], loops[2], "x") == "x[1]: 1, then 2"


def test_a_changed_value_is_not_taken_for_the_one_before() -> None:
    printer = CanonicalForm({}, objects=True)
    offer, forms = [""], []
    for offer[0] in ("a", "b", "c"):
        forms.append(printer.of(offer, "x"))
    assert not alike(forms[0], forms[1])
    assert not alike(forms[1], forms[2])


def test_other_objects_are_refused_unless_asked_for() -> None:
    with pytest.raises(InterferenceError, match=r"x\['a'\]\[1\] is of type Fraction|of type set"):
        CanonicalForm({}).of({"a": [1, {2}]}, "x")
    with pytest.raises(CheckError, match="x cannot be compared"):
        form(i for i in range(3))


def test_the_accountants_random_name_is_taken_out() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.id = name

    forms = [
        CanonicalForm({"accountant": Named(name)}).of([f"{name}/1", {name: 1}], "x")
        for name in ("1f2e", "77aa")
    ]
    assert alike(*forms)


def test_long_values_are_shortened_for_messages() -> None:
    assert short(form("y" * 500)) == "'" + "y" * 79 + " ... " + "y" * 14 + "'"
    assert len(short(form([{"key": "z" * 50}] * 1_000))) <= 100
