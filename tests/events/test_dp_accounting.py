"""`DpEvent`s read and written, against dp-accounting's own accountants under both relations."""

from __future__ import annotations

import math
from typing import Any, Literal

import dp_accounting as dpa
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import DataError
from privlearn.events.dp_accounting import from_dp_event, to_dp_event
from privlearn.events.lists import EventList, event_list
from privlearn.losses import (
    DiscreteLaplace,
    GaussianLoss,
    LaplaceLoss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
)

Relation = Literal["replace-one", "add-remove"]
THEIRS = {
    "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
    "add-remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
}
GAUSSIAN = dp_event.GaussianDpEvent(2.0)


def pld(event: Any, relation: Relation, delta: float = 1e-6) -> float:
    accountant = PLDAccountant(THEIRS[relation])
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def rdp(event: Any, relation: Relation, delta: float = 1e-6) -> float:
    accountant = RdpAccountant(neighboring_relation=THEIRS[relation])
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def ours(events: EventList, delta: float = 1e-6) -> float:
    return epsilon_of(events.loss(), delta).value


def test_a_multiplier_is_of_one_record_there_and_of_one_neighbour_here() -> None:
    assert (
        from_dp_event(GAUSSIAN, adjacency="add-remove").loss().gaussian()
        == 1 / GaussianLoss(4).mu_squared
    )
    assert from_dp_event(GAUSSIAN, adjacency="replace-one").loss().gaussian() == 1


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_gaussians_agree_with_an_accountant_that_heeds_the_relation(relation: Relation) -> None:
    for count in (1, 5):
        event = dp_event.SelfComposedDpEvent(GAUSSIAN, count)
        mine = ours(from_dp_event(event, adjacency=relation))
        assert mine == pytest.approx(pld(event, relation), rel=2e-3)
        assert mine <= pld(event, relation) * (1 + 1e-9)


def test_the_rdp_accountant_forgets_the_relation_and_we_do_not() -> None:
    one = dp_event.GaussianDpEvent(1.0)
    assert rdp(one, "replace-one") == rdp(one, "add-remove") < 5.3
    assert ours(from_dp_event(one, adjacency="replace-one")) == pytest.approx(10.997, abs=1e-3)
    assert ours(from_dp_event(one, adjacency="add-remove")) == pytest.approx(4.887, abs=1e-3)


def test_poisson_samples_and_zcdp_agree() -> None:
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000
    )
    found = from_dp_event(event, adjacency="add-remove")
    assert found.losses() == [(SubsampledGaussian(1, "0.01"), 1000)]
    assert ours(found) == pytest.approx(rdp(event, "add-remove"), rel=5e-3)
    for relation in ("replace-one", "add-remove"):
        zcdp = from_dp_event(dp_event.ZCDpEvent(0.25), adjacency=relation)
        assert zcdp.losses()[0][0].zcdp() == ZCDPLoss("0.25").rho
        assert ours(zcdp) == pytest.approx(rdp(dp_event.ZCDpEvent(0.25), relation), rel=5e-3)


def test_laplace_and_discrete_laplace_noise() -> None:
    laplace = dp_event.LaplaceDpEvent(4.0)
    (found, _), *_ = from_dp_event(laplace, adjacency="add-remove").losses()
    assert found.pure() == LaplaceLoss("0.25").epsilon
    assert found.pure() == pytest.approx(pld(laplace, "add-remove", 1e-9), rel=1e-3)
    assert from_dp_event(laplace, adjacency="replace-one").losses() == [(LaplaceLoss("0.5"), 1)]
    discrete = dp_event.DiscreteLaplaceDpEvent(0.1, 3)
    (found, _), *_ = from_dp_event(discrete, adjacency="add-remove").losses()
    assert found.pure() == pytest.approx(pld(discrete, "add-remove", 1e-9), rel=1e-3)
    assert from_dp_event(discrete, adjacency="replace-one").losses() == [
        (DiscreteLaplace("0.6", 6), 1)
    ]


def test_randomized_response() -> None:
    event = dp_event.RandomizedResponseDpEvent(0.4, 5)
    ((loss, _),) = from_dp_event(event, adjacency="replace-one").losses()
    assert isinstance(loss, RandomizedResponse)
    assert loss.categories == 5
    assert float(loss.epsilon) == pytest.approx(math.log((0.6 + 0.08) / 0.08), rel=1e-12)
    assert loss.pure() == pytest.approx(pld(event, "replace-one", 1e-9), rel=1e-3)
    with pytest.raises(DataError, match="for replace-one"):
        from_dp_event(event, adjacency="add-remove")


def test_compositions_keep_order_and_counts() -> None:
    laplace = dp_event.LaplaceDpEvent(4.0)
    event = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(laplace, 3), 5),
            dp_event.NoOpDpEvent(),
            dp_event.ComposedDpEvent([GAUSSIAN, laplace]),
        ]
    )
    found = from_dp_event(event, adjacency="add-remove")
    assert [(e.mechanism, e.count) for e in found.events] == [
        ("laplace", 15),
        ("gaussian", 1),
        ("laplace", 1),
    ]
    assert (found.order, found.trust.value) == ("listed", "central")


EVENTS: list[dict[str, Any]] = [
    {"mechanism": "gaussian", "noise_multiplier": "1/3", "count": 7},
    {"mechanism": "laplace", "scale": 4},
    {"mechanism": "zcdp", "rho": "0.1"},
    {"mechanism": "discrete-laplace", "scale": 4, "sensitivity": 6},
]


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_there_and_back_costs_no_less_and_hardly_more(relation: Relation) -> None:
    extra: list[dict[str, Any]] = (
        [{"mechanism": "randomized-response", "epsilon": 1, "categories": 4, "count": 2}]
        if relation == "replace-one"
        else [
            {
                "mechanism": "subsampled-gaussian",
                "noise_multiplier": 1,
                "sampling_probability": "1/30",
                "count": 9,
            }
        ]
    )
    top = {"adjacency": relation, "trust": "central", "order": "listed"}
    before = event_list({**top, "events": [*EVENTS, *extra]})
    after = from_dp_event(to_dp_event(before), adjacency=relation)
    assert [e.count for e in after.events] == [e.count for e in before.events]
    for (old, _), (new, _) in zip(before.losses(), after.losses(), strict=True):
        assert type(old) is type(new)
        for order in (1.5, 3.0, 20.0):
            assert old.renyi(order) <= new.renyi(order) * (1 + 1e-13)
            assert new.renyi(order) == pytest.approx(old.renyi(order), rel=1e-9)
    single = to_dp_event(event_list({**top, "events": [EVENTS[1]]}))
    assert single == dp_event.LaplaceDpEvent(4.0 if relation == "add-remove" else 8.0)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp_event.NonPrivateDpEvent(), "event: NonPrivateDpEvent has no counterpart"),
        (dp_event.UnsupportedDpEvent(), "event: UnsupportedDpEvent has no counterpart"),
        (dp_event.NoOpDpEvent(), "nothing private"),
        (dp_event.GaussianDpEvent(0.0), "event: noise_multiplier = 0.0: must be > 0"),
        (dp_event.GaussianDpEvent(math.nan), "event: noise_multiplier = nan: must be a finite"),
        (dp_event.SelfComposedDpEvent(GAUSSIAN, -5), "event: count = -5"),
        (dp_event.ZCDpEvent(0.1, 0.2), "event: xi = 0.2"),
        (
            dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)),
            r"event\.event: only a Gaussian",
        ),
        (
            dp_event.ComposedDpEvent(
                [
                    GAUSSIAN,
                    dp_event.SelfComposedDpEvent(
                        dp_event.SingleEpochTreeAggregationDpEvent(1.0, 4), 2
                    ),
                ]
            ),
            r"event\.events\[1\]\.event: SingleEpochTree.* has no counterpart",
        ),
        ("gaussian", "is not a DpEvent"),
    ],
)
def test_what_has_no_counterpart_is_named_by_its_place(event: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_dp_event(event, adjacency="add-remove")


def test_what_is_priced_for_one_relation_is_refused_for_the_other() -> None:
    with pytest.raises(DataError, match="add-remove only"):
        from_dp_event(dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN), adjacency="replace-one")
    top = {"adjacency": "replace-one", "trust": "central"}
    for event in (
        {"mechanism": "exponential", "epsilon": 1},
        {"mechanism": "discrete-laplace", "scale": 4},
    ):
        with pytest.raises(DataError, match=r"events\[1\]: .* has no counterpart"):
            to_dp_event(event_list({**top, "events": [EVENTS[1], event]}))
