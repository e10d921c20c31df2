"""Values of a learner as JSON and back: exact, small, and nothing but what is listed."""

from __future__ import annotations

import json
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.errors import LedgerUnreadableError
from privlearn.learners.hdb_epochs import CorrelatedEpochs, EpochSetting
from privlearn.learners.stored import _HOME_OF, restored, stored
from privlearn.ledger.canonical_json import canonical
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.mechanisms.scalar_objectives import HuberObjective
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency


def round_trip(value: Any) -> Any:
    return restored(json.loads(canonical(stored(value))))


@settings(max_examples=60)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=5)
        | st.fractions(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_values_survive_exactly(value: Any) -> None:
    again = round_trip(value)
    assert again == value
    assert stored(again) == stored(value), "types and signs of zero, too"


def test_what_learners_hold_survives() -> None:
    setting = EpochSetting(2, 3, 40, 0.1, False, 1.0, 0.5, 2.0, ZCDP("1/3"), Adjacency.REPLACE_ONE)
    for value in (
        setting,
        range(3, 9),
        GaussianDP("0.7"),
        float("inf"),
        CorrelatedEpochs(growth=1.25),
        HuberObjective(1.5),
        NoisySum(Ball(1.0, 3), GaussianNoise(2.0)),
        PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=100_000),
        np.float32(0.1).item(),
    ):
        assert round_trip(value) == value
        assert len(canonical(stored(value))) < 2_000, "a factorisation is a few numbers"
    for array in (np.array([[0.1, -0.0], [np.inf, 1e-320]]), np.arange(3), np.array(2.5)):
        found = round_trip(array)
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert found.tobytes() == array.tobytes()
    assert np.isnan(round_trip(float("nan")))
    assert round_trip(np.int64(3)) == 3


class Sneaky(tuple[int, ...]):
    """Prints as a tuple, and is none."""


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {3},
        1j,
        object(),
        len,
        Sneaky((1, 2)),
        np.array([object()]),
        np.array(["text"]),
        range(0, 10, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_not_written(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written to a ledger"):
        stored(value)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"real": 3},
        {"real": "three"},
        {"exact": "1/0"},
        {"exact": "9" * 500},
        {"range": [0, "ten"]},
        {"range": [0, 1, 2]},
        {"tuple": {"0": 1}},
        {"real": "1.0", "exact": "1"},
        {"budget": {"kind": "gold", "ounces": 3}},
        {"array": {"dtype": "O", "shape": [1], "base64": "AAAAAAAAAAA="}},
        {"array": {"dtype": "<f8", "shape": [-1], "base64": "AAAAAAAAAAA="}},
        {"array": {"dtype": "<f8", "shape": [2], "base64": "AAAAAAAAAAA="}},
        {"array": {"dtype": "<f8", "shape": [1], "base64": "!!"}},
        {"array": {"dtype": "<f8", "shape": [10**12], "base64": ""}},
        {"class": "Popen", "fields": {"args": "true"}},
        {"class": "os.system", "fields": {"command": "true"}},
        {"class": "CustomObjective", "fields": {}},
        {"class": ["Ball"], "fields": {}},
        {"class": "Ball", "fields": {"radius": 1.5, "dim": 3, "colour": "red"}},
        {"class": "Ball", "fields": {"radius": -1.5, "dim": 3}},
        {"class": "Ball", "member": "__init__"},
        {"class": "Adjacency", "member": "NO_SUCH"},
        {"class": "Adjacency", "fields": {"value": "replace-one"}},
        {"class": "Adjacency", "member": ["REPLACE_ONE"]},
        {"names": {"x": {"class": "Module", "fields": {}}}},
    ],
    ids=repr,
)
def test_what_was_not_written_so_is_refused(data: Any) -> None:
    with pytest.raises(LedgerUnreadableError, match="cannot be read as a value"):
        restored(data)


def test_nesting_without_end_is_refused() -> None:
    data: Any = 1
    for _ in range(5_000):
        data = {"tuple": [data]}
    with pytest.raises(LedgerUnreadableError, match="cannot be read as a value"):
        restored(data)


def test_listed_classes_are_where_the_list_says() -> None:
    for name, home in _HOME_OF.items():
        found = getattr(import_module(home), name)
        assert (found.__name__, found.__module__) == (name, home)
    assert round_trip(Fraction(1, 3)) == Fraction(1, 3)
