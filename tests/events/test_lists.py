"""Event lists: what they cost, and what is refused with which words."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import DataError
from privlearn.events.lists import EventList, event_list, event_list_from_text, read_event_list
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    GaussianLoss,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SubsampledGaussian,
    ZCDPLoss,
    compose,
)
from privlearn.values.adjacency import Adjacency, Trust

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 1}
TREE = {"mechanism": "tree-aggregation", "noise_multiplier": 3, "steps": [5, 64, 2]}
EXAMPLES: list[tuple[dict[str, Any], Loss]] = [
    ({"mechanism": "gaussian", "noise_multiplier": 20}, GaussianLoss("1/400")),
    ({"mechanism": "laplace", "scale": 30}, LaplaceLoss("1/30")),
    ({"mechanism": "exponential", "epsilon": 0.05}, BoundedRangeLoss("0.05")),
    ({"mechanism": "randomized-response", "epsilon": 1.0}, RandomizedResponse(1)),
    (
        {"mechanism": "randomized-response", "epsilon": 1.0, "categories": 5},
        RandomizedResponse(1, 5),
    ),
    ({"mechanism": "zcdp", "rho": 0.1}, ZCDPLoss("0.1")),
    ({"mechanism": "pure", "epsilon": "1/3"}, PureLoss("1/3")),
    (
        {
            "mechanism": "objective-perturbation",
            "noise_std": 12,
            "regularization": 15,
            "gradient_difference": 4,
            "hessian_trace": 1,
            "dim": 5,
        },
        MinimizerLoss(difference=4, trace=1, rank=5, directions=5, ridge=15, noise_std=12),
    ),
    (TREE, GaussianLoss("7/9")),
    ({"mechanism": "tree-aggregation", "noise_multiplier": 2, "steps": 3}, GaussianLoss("1/2")),
    ({"mechanism": "discrete-gaussian", "noise_multiplier": 5}, DiscreteGaussian(1, 5)),
    ({"mechanism": "discrete-laplace", "scale": 4}, DiscreteLaplace("0.25")),
    (
        {"mechanism": "discrete-laplace", "scale": 4, "sensitivity": 3},
        DiscreteLaplace("0.25", 3),
    ),
    (
        {"mechanism": "generalized-gaussian", "kappa": 2, "noise_multiplier": 6},
        GeneralizedGaussian(2, 1, 6),
    ),
    ({"mechanism": "approx", "epsilon": 0.5, "delta": 1e-7}, ApproxLoss("0.5", "1e-7")),
    ({"mechanism": "renyi", "curve": {"2": 0.1, "8": 0.5}}, RenyiCurve({2: "0.1", 8: "0.5"})),
    ({"mechanism": "renyi", "curve": [[2, 0.1], [8, 0.5]]}, RenyiCurve({2: "0.1", 8: "0.5"})),
]


def listed(*events: object, **other: object) -> EventList:
    top = {"adjacency": "replace-one", "trust": "central", "order": "listed"}
    return event_list({**top, "events": list(events), **other})


@pytest.mark.parametrize(("event", "loss"), EXAMPLES, ids=lambda x: str(x)[:40])
def test_each_mechanism_becomes_its_loss(event: dict[str, Any], loss: Loss) -> None:
    assert listed(event).losses() == [(loss, 1)]
    assert listed({**event, "count": 7}).loss() == loss * 7
    whole = {"adjacency": "replace-one", "trust": "joint", "events": [event]}
    assert event_list_from_text(json.dumps(whole)).loss() == loss


def test_all_events_are_composed_in_their_order() -> None:
    found = listed(*(event for event, _ in EXAMPLES), order="listed")
    assert found.losses() == [(loss, 1) for _, loss in EXAMPLES]
    assert found.loss() == compose([(loss, 1) for _, loss in EXAMPLES])
    assert (found.order, found.trust) == ("listed", Trust.CENTRAL)
    assert listed(GAUSSIAN, trust="local").trust is Trust.LOCAL


def test_the_label_of_the_adjacency_does_not_change_a_gaussian() -> None:
    for adjacency in ("replace-one", "add-remove"):
        found = listed(GAUSSIAN, adjacency=adjacency)
        assert found.loss().adjacency is Adjacency(adjacency)
        assert epsilon_of(found.loss(), 1e-6).value == pytest.approx(4.887, abs=5e-4)


def test_subsampling_needs_add_remove() -> None:
    event = {
        "mechanism": "subsampled-gaussian",
        "noise_multiplier": 1,
        "sampling_probability": 0.01,
        "count": 10_000,
    }
    found = listed(event, adjacency="add-remove")
    assert found.losses() == [(SubsampledGaussian(1, "0.01"), 10_000)]
    assert epsilon_of(found.loss(), 1e-6).value == pytest.approx(7.414, abs=5e-4)
    with pytest.raises(DataError, match=r"events\[1\]: .*may be replace-one"):
        listed(GAUSSIAN, event)
    all_of_them = {**event, "sampling_probability": 1, "count": 1}
    assert listed(all_of_them).loss() == GaussianLoss(1)


BAD = [
    ({"noise_multiplier": 0}, r"events\[1\]\.noise_multiplier: 0 must be > 0"),
    ({"noise_multiplier": -2}, r"events\[1\]\.noise_multiplier: -2 must be > 0"),
    ({"noise_multiplier": math.nan}, r"events\[1\]\.noise_multiplier: nan must be a finite"),
    ({"noise_multiplier": math.inf}, r"events\[1\]\.noise_multiplier: inf must be a finite"),
    ({"noise_multiplier": "1e999999999"}, r"events\[1\]\.noise_multiplier: .*finite"),
    ({"noise_multiplier": "1/0"}, r"events\[1\]\.noise_multiplier: '1/0' must be a number"),
    ({"noise_multiplier": True}, r"events\[1\]\.noise_multiplier: must be a number"),
    ({"noise_multiplier": None}, r"events\[1\]\.noise_multiplier: must be a number"),
    ({"noise_multiplier": 1e80}, r"events\[1\]\.noise_multiplier: .*must lie in \[1e-75, 1e75\]"),
    ({"count": 0}, r"events\[1\]\.count: must be >= 1"),
    ({"count": -5}, r"events\[1\]\.count: must be >= 1"),
    ({"count": 1.5}, r"events\[1\]\.count: must be an integer"),
    ({"count": 2.0}, r"events\[1\]\.count: must be an integer"),
    ({"count": True}, r"events\[1\]\.count: must be an integer"),
    ({"count": "3"}, r"events\[1\]\.count: must be an integer"),
    ({"Count": 3}, r"events\[1\]\.Count: is not a known key"),
    ({"mechanism": "magic"}, r"events\[1\]: mechanism 'magic' is unknown; known: 'gaussian'"),
    ({"mechanism": "laplace"}, r"events\[1\]\.scale: is missing"),
    ({"mechanism": None}, r"events\[1\]: mechanism"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_mistakes_are_named_by_position(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        listed(GAUSSIAN, {**GAUSSIAN, **change})


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (5, "must be an object"),
        ({}, "mechanism is missing"),
        ({"mechanism": "exponential", "epsilon": 701}, r"epsilon: 701 must lie in \[1e-100, 700\]"),
        ({"mechanism": "laplace", "scale": "1/701"}, r"scale: 1/701 must lie in \[1/700, 1e100\]"),
        ({"mechanism": "approx", "epsilon": 1, "delta": 1}, "delta: 1 must lie strictly"),
        ({"mechanism": "approx", "epsilon": 1, "delta": 0}, "delta: 0 must lie strictly"),
        (
            {"mechanism": "generalized-gaussian", "kappa": 0.5, "noise_multiplier": 1},
            r"kappa: 0.5 must lie in \[1, 1e75\]",
        ),
        (
            {"mechanism": "randomized-response", "epsilon": 1, "categories": 1},
            "categories: must be >= 2",
        ),
        ({"mechanism": "renyi", "curve": {}}, "curve: must name at least one order"),
        ({"mechanism": "renyi", "curve": []}, "curve: must name at least one order"),
        ({"mechanism": "renyi", "curve": [[1, 1]]}, "curve: orders must be > 1"),
        ({"mechanism": "renyi", "curve": [[2, -1]]}, "curve: bounds must be > 0"),
        ({"mechanism": "renyi", "curve": [[2, 1], ["2.0", 3]]}, "curve: names an order twice"),
        ({"mechanism": "renyi", "curve": [2, 1]}, "curve: must be pairs"),
        ({**EXAMPLES[7][0], "rank": 6}, "rank = 6 must be at most dim = 5"),
        ({**EXAMPLES[7][0], "dim": 0}, "dim: must be >= 1"),
    ],
)
def test_mistakes_of_each_kind(event: object, words: str) -> None:
    with pytest.raises(DataError, match=r"^events\[0\].*" + words):
        listed(event)


def test_every_mistake_is_listed() -> None:
    with pytest.raises(DataError) as error:
        listed({**GAUSSIAN, "count": 0, "noise_multiplier": 0}, {"mechanism": "pure"}, extra=1)
    assert str(error.value).splitlines() == [
        "events[0].count: must be >= 1",
        "events[0].noise_multiplier: 0 must be > 0",
        "events[1].epsilon: is missing",
        "extra: is not a known key",
    ]


def test_the_frame_is_checked() -> None:
    with pytest.raises(DataError, match=r"^events: must not be empty"):
        listed()
    with pytest.raises(DataError, match=r"^adjacency: is missing\ntrust: is missing"):
        event_list({"events": [GAUSSIAN]})
    with pytest.raises(DataError, match=r"^adjacency: under local trust"):
        listed(GAUSSIAN, adjacency="add-remove", trust="local")
    with pytest.raises(DataError, match=r"^adjacency: removing a user shifts"):
        listed(GAUSSIAN, adjacency="add-remove", trust="joint")
    with pytest.raises(DataError, match=r"^adjacency: .*'replace-one', 'add-remove' or 'zero-out'"):
        listed(GAUSSIAN, adjacency="swap")
    with pytest.raises(DataError, match=r"events\[1\]: under add-remove a record that is removed"):
        listed(GAUSSIAN, TREE, adjacency="add-remove")
    with pytest.raises(DataError, match=r"^order: "):
        listed(GAUSSIAN, order="best")
    assert event_list({"adjacency": "add-remove", "trust": "central", "events": [GAUSSIAN]}).order


def test_files_in_json_and_toml(tmp_path: Path) -> None:
    path = tmp_path / "events.toml"
    path.write_text(
        'adjacency = "replace-one"\ntrust = "central"\n[[events]]\nmechanism = "zcdp"\n'
        'rho = 0.1000000000000000055511151231257827\n[[events]]\nmechanism = "pure"\nepsilon = 1\n'
    )
    (first, _), (second, _) = read_event_list(path).losses()
    assert first == ZCDPLoss("0.1000000000000000055511151231257827")  # not the nearest float
    assert second == PureLoss(1)
    other = tmp_path / "events.json"
    other.write_text('{"adjacency": "replace-one", "trust": "central", "events": [{"mechanism":')
    with pytest.raises(DataError, match="not an event list in JSON"):
        read_event_list(other)
    with pytest.raises(DataError, match=r"must end in \.json or \.toml"):
        read_event_list(tmp_path / "events.yaml")
    other.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        read_event_list(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "must be an object"),
        ("[" * 100_000, "not an event list"),
        ('{"events": [], "events": []}', "'events' is given twice"),
        (
            '{"adjacency": "replace-one", "trust": "central", "events": '
            '[{"mechanism": "pure", "epsilon": 1, "epsilon": 2}]}',
            "'epsilon' is given twice",
        ),
        (
            '{"adjacency": "replace-one", "trust": "central", "events": '
            '[{"mechanism": "pure", "epsilon": NaN}]}',
            r"events\[0\]\.epsilon: nan must be a finite number",
        ),
        (
            '{"adjacency": "replace-one", "trust": "central", "events": '
            '[{"mechanism": "pure", "epsilon": 1e-999999999}]}',
            r"events\[0\]\.epsilon: 1E-999999999 must be a finite number",
        ),
    ],
)
def test_text_that_is_no_event_list(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        event_list_from_text(text)


@given(
    st.lists(st.tuples(st.sampled_from(EXAMPLES), st.integers(1, 1000)), min_size=1, max_size=6),
)
def test_prices_of_lists_are_sums(parts: list[tuple[tuple[dict[str, Any], Loss], int]]) -> None:
    found = listed(*({**event, "count": n} for (event, _), n in parts)).loss()
    assert found == compose([(loss, n) for (_, loss), n in parts])
    assert found.renyi(1.5) == pytest.approx(
        math.fsum(loss.renyi(1.5) * n for (_, loss), n in parts), rel=1e-9
    )


def test_numbers_are_exact() -> None:
    found = listed({"mechanism": "gaussian", "noise_multiplier": "1/3"}).loss()
    assert found.gaussian() == 9
    found = listed({"mechanism": "zcdp", "rho": 0.1, "count": 10}).loss()
    assert found.zcdp() == Fraction(1)
