"""`DpEvent`s read and written, against dp-accounting's own accountants under both relations."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import dp_accounting as dpa
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant, common, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from privlearn.accountants.guarantee import epsilon_of
from privlearn.errors import BudgetError, DataError
from privlearn.events.dp_accounting import from_dp_event, to_dp_event
from privlearn.events.lists import EventList, event_list
from privlearn.events.pricing import delta_price, epsilon_price, to_dict
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteLaplace,
    GaussianLoss,
    GaussianMixture,
    LaplaceLoss,
    PureLoss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
)
from privlearn.values.adjacency import Adjacency

Relation = Literal["replace-one", "add-remove", "zero-out"]
THEIRS = {
    "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
    "add-remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero-out": dpa.NeighboringRelation.REPLACE_SPECIAL,
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


def tight(events: EventList, delta: float = 1e-6) -> float:
    return epsilon_price(events, delta).epsilon


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
        (dp_event.UnsupportedDpEvent(), "event: UnsupportedDpEvent has no counterpart"),
        (dp_event.GaussianDpEvent(-1.0), "event: noise_multiplier = -1.0: must be >= 0"),
        (dp_event.GaussianDpEvent(math.nan), "event: noise_multiplier = nan: must be a finite"),
        (dp_event.SelfComposedDpEvent(GAUSSIAN, -5), "event: count = -5"),
        (dp_event.ZCDpEvent(0.1, -0.2), "event: xi = -0.2"),
        (
            dp_event.PoissonSampledDpEvent(0.1, dp_event.ZCDpEvent(1.0)),
            r"event\.event: zcdp on a Poisson sample is not known here",
        ),
        (dp_event.PoissonSampledDpEvent(1.5, GAUSSIAN), "sampling_probability = 1.5: must lie"),
        (
            dp_event.SampledWithoutReplacementDpEvent(10, 2, GAUSSIAN),
            "event: a fixed batch is priced for replace-one and zero-out",
        ),
        (dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 4.0, 1.0), "state it as selection_delta"),
        (
            dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.4]),
            "sampling_probs = .*: must add up to 1",
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
            r"event\.events\[1\]\.event: under add-remove a record",
        ),
        ("gaussian", "is not a DpEvent"),
    ],
)
def test_what_has_no_counterpart_is_named_by_its_place(event: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_dp_event(event, adjacency="add-remove")


def test_bad_samples_and_selections_are_named() -> None:
    for event, words in (
        (dp_event.SampledWithoutReplacementDpEvent(10, 11, GAUSSIAN), "must be at most 10"),
        (dp_event.SampledWithReplacementDpEvent(-1, 1, GAUSSIAN), "must be an integer >= 0"),
        (dp_event.RepeatAndSelectDpEvent(GAUSSIAN, math.inf, 1.0), "no bound on its mean"),
    ):
        with pytest.raises(DataError, match=words):
            from_dp_event(event, adjacency="replace-one", selection_delta="1e-8")


def mog(*chances: float) -> Any:
    return dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 2.5], list(chances))


SAMPLES: list[tuple[Any, Relation]] = [
    (dp_event.PoissonSampledDpEvent(0.02, dp_event.LaplaceDpEvent(1.5)), "add-remove"),
    (dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.5)), "replace-one"),
    (dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.02, 35, 2.0), "add-remove"),
    (dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.02, 35, 2.0), "replace-one"),
]


@pytest.mark.parametrize(("event", "relation"), SAMPLES, ids=lambda x: str(x)[:24])
def test_samples_cost_what_the_peer_says_or_less(event: Any, relation: Relation) -> None:
    many = dp_event.SelfComposedDpEvent(event, 50)
    theirs = pld(many, relation)
    found = from_dp_event(many, adjacency=relation)
    mine = tight(found)
    assert 0.95 * theirs <= mine <= theirs * (1 + 1e-4)
    if "Truncated" not in type(event).__name__:
        assert mine == pytest.approx(theirs, rel=2e-4)
    again = from_dp_event(to_dp_event(found), adjacency=relation)
    assert tight(again) == pytest.approx(mine, rel=1e-6)
    assert [e.mechanism for e in again.events] == [e.mechanism for e in found.events]


def test_fixed_batches_cost_less_than_the_peer_says() -> None:
    inside = dp_event.GaussianDpEvent(3.0)
    for event in (
        dp_event.SampledWithoutReplacementDpEvent(1000, 20, inside),
        dp_event.SampledWithReplacementDpEvent(1000, 20, inside),
    ):
        many = dp_event.SelfComposedDpEvent(event, 200)
        found = from_dp_event(many, adjacency="replace-one")
        assert to_dp_event(found) == many
        mine = tight(found)
        assert mine < 3
        if "Without" in type(event).__name__:
            # whose Gaussian is not doubled under replace-one, as above
            half = dp_event.SampledWithoutReplacementDpEvent(
                1000, 20, dp_event.GaussianDpEvent(1.5)
            )
            theirs = rdp(dp_event.SelfComposedDpEvent(half, 200), "replace-one")
            assert 0.5 * theirs < mine < theirs
    whole = dp_event.SampledWithoutReplacementDpEvent(20, 20, inside)
    assert tight(from_dp_event(whole, adjacency="replace-one")) == tight(
        from_dp_event(inside, adjacency="replace-one")
    )


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_selections_cost_less_than_the_peer_says(shape: float) -> None:
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(8.0), 10.0, shape)
    found = from_dp_event(event, adjacency="add-remove", selection_delta="9e-7")
    assert to_dp_event(found) == event
    mine, theirs = tight(found), rdp(event, "add-remove")
    assert 0.5 * theirs < mine < 1.05 * theirs


def test_what_samples_become() -> None:
    def of(event: Any, relation: Relation) -> list[dict[str, Any]]:
        return list(to_dict(from_dp_event(event, adjacency=relation))["events"])

    both = dp_event.ComposedDpEvent([GAUSSIAN, dp_event.LaplaceDpEvent(3.0)])
    (one,) = of(dp_event.PoissonSampledDpEvent(0.5, both), "replace-one")
    assert [part["mechanism"] for part in one["sample"]] == ["gaussian", "laplace"]
    assert one["sample"][1]["scale"] == "3"  # of one record that joins
    (one,) = of(dp_event.SampledWithoutReplacementDpEvent(9, 3, both), "replace-one")
    assert one["sample"][1]["scale"] == "1.5"  # of a replacement
    halved = dp_event.PoissonSampledDpEvent(0.5, mog(0.5, 0.25, 0.25))
    assert from_dp_event(halved, adjacency="add-remove").losses() == [
        (GaussianMixture([0, 1, "2.5"], ["0.75", "0.125", "0.125"], 2), 1)
    ]
    for nothing in (
        dp_event.PoissonSampledDpEvent(0.0, GAUSSIAN),
        dp_event.TruncatedSubsampledGaussianDpEvent(10, 0.1, 0, 1.0),
        dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0], [1.0]),
    ):
        assert of(nothing, "add-remove") == [{"mechanism": "no-op"}]
    assert of(dp_event.PoissonSampledDpEvent(1.0, GAUSSIAN), "replace-one") == of(
        GAUSSIAN, "replace-one"
    )
    uncut = dp_event.TruncatedSubsampledGaussianDpEvent(10, 0.1, 10, 1.0)
    assert of(uncut, "add-remove") == of(
        dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0)), "add-remove"
    )
    # (ξ, ρ)-zCDP is a curve: above it, and equal at its orders
    ((loss, _),) = from_dp_event(dp_event.ZCDpEvent(0.1, 0.2), adjacency="add-remove").losses()
    assert loss.renyi(1.5) == pytest.approx(0.35, rel=1e-9)
    assert 0.2 + 0.13 <= loss.renyi(1.3) <= 0.36
    # chances that rounding left below 1 go to the largest sensitivity
    thirds = dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [1 / 3, 1 / 3, 1 / 3])
    (one,) = of(thirds, "add-remove")
    assert sum(map(Fraction, one["probabilities"])) == 1


def test_what_is_priced_for_one_relation_is_refused_for_the_other() -> None:
    top = {"adjacency": "replace-one", "trust": "central"}
    for event in (
        {"mechanism": "generalized-gaussian", "kappa": 2, "noise_multiplier": 1},
        {"mechanism": "discrete-laplace", "scale": 4},
    ):
        with pytest.raises(DataError, match=r"events\[1\]: .* has no counterpart"):
            to_dp_event(event_list({**top, "events": [EVENTS[1], event]}))


def newer(name: str, **numbers: Any) -> Any:
    """An event that dp-accounting has after 0.6.0; with that, one that looks like it."""
    if hasattr(dp_event, name):
        return getattr(dp_event, name)(**numbers)
    made = type(name, (dp_event.DpEvent,), {"__module__": dp_event.__name__, **numbers})
    return made()


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "zero-out"])
def test_what_is_not_private_and_what_is_nothing(relation: Relation) -> None:
    none, all_ = dp_event.NoOpDpEvent(), dp_event.NonPrivateDpEvent()
    nested = dp_event.ComposedDpEvent([GAUSSIAN, dp_event.SelfComposedDpEvent(all_, 3), none])
    for event, epsilon, delta in (
        (none, 0.0, 0.0),
        (dp_event.SelfComposedDpEvent(none, 5), 0.0, 0.0),
        (all_, math.inf, 1.0),
        (nested, math.inf, 1.0),
    ):
        found = from_dp_event(event, adjacency=relation)
        assert epsilon_price(found, 1e-6).epsilon == epsilon
        assert delta_price(found, 2.0).delta == delta
        if relation != "zero-out":
            assert epsilon == pytest.approx(pld(event, relation), abs=1e-9)
        again = from_dp_event(to_dp_event(found), adjacency=relation)
        assert again.events == found.events
    one = event_list({"adjacency": relation, "trust": "central", "events": [NO_OP, LAPLACE]})
    assert ours(one) == ours(from_dp_event(to_dp_event(one), adjacency=relation))
    assert [e.mechanism for e in from_dp_event(nested, adjacency=relation).events] == [
        "gaussian",
        "non-private",
    ]


NO_OP, LAPLACE = {"mechanism": "no-op"}, {"mechanism": "laplace", "scale": 4}


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "zero-out"])
def test_without_noise_nothing_is_private_but_who_is_not_in_a_sample(relation: Relation) -> None:
    for event in (
        dp_event.GaussianDpEvent(0.0),
        dp_event.LaplaceDpEvent(0),
        dp_event.DiscreteLaplaceDpEvent(0.0, 1),
        dp_event.MixtureOfGaussiansDpEvent(0.0, [0.0, 1.0], [0.5, 0.5]),
        dp_event.RandomizedResponseDpEvent(0.0, 3),
        newer("DiscreteGaussianDpEvent", sigma=0.0, sensitivity=1.0),
    ):
        found = from_dp_event(event, adjacency=relation)
        assert epsilon_price(found, 0.999).epsilon == math.inf
        assert (epsilon_price(found, 1.0).epsilon, delta_price(found, math.inf).delta) == (0.0, 1.0)
    sample = dp_event.PoissonSampledDpEvent(0.25, dp_event.GaussianDpEvent(0))
    found = from_dp_event(dp_event.SelfComposedDpEvent(sample, 2), adjacency=relation)
    told = 1 - 0.75**2  # of a record that is in one of the two samples; then everything
    assert told <= delta_price(found, 3.0).delta <= told * (1 + 1e-12)
    with pytest.raises(BudgetError, match="no epsilon is finite"):
        epsilon_price(found, told * 0.999)


def test_at_delta_0_and_at_an_infinite_epsilon() -> None:
    pure = dp_event.ComposedDpEvent([dp_event.LaplaceDpEvent(2.0), dp_event.LaplaceDpEvent(4.0)])
    found = from_dp_event(pure, adjacency="add-remove")
    assert epsilon_price(found, 0).epsilon == 0.75
    assert delta_price(found, math.inf).delta == 0
    approx = {"mechanism": "approx", "epsilon": 1, "delta": "0.01", "count": 3}
    failing = event_list({"adjacency": "add-remove", "trust": "central", "events": [approx]})
    assert 1 - 0.99**3 <= delta_price(failing, math.inf).delta <= 0.0301
    for events in (failing, from_dp_event(GAUSSIAN, adjacency="add-remove")):
        with pytest.raises(BudgetError, match="no epsilon is finite"):
            epsilon_price(events, 0)


def completed_nodes(leaf: int, leaves: int) -> int:
    """Of the dyadic intervals that a binary counter completes, how many hold a leaf."""
    spans, height = 0, 1
    while height <= leaves:
        spans += leaf // height * height + height <= leaves
        height *= 2
    return spans


@pytest.mark.parametrize("steps", [[1], [2], [3], [4], [7, 2], [8], [2, 64, 5], [1000]])
def test_single_epoch_trees(steps: list[int]) -> None:
    event = dp_event.SelfComposedDpEvent(dp_event.SingleEpochTreeAggregationDpEvent(3.0, steps), 2)
    (loss, count), *_ = from_dp_event(event, adjacency="zero-out").losses()
    most = max(completed_nodes(leaf, n) for n in steps for leaf in range(n))
    assert (loss.gaussian(), count) == (Fraction(most, 9), 2)
    theirs = rdp(event, "zero-out")
    mine = ours(from_dp_event(event, adjacency="zero-out"))
    assert theirs * 0.8 <= mine <= theirs
    # two leaves of a replaced record are twice as far apart
    (loss, _), *_ = from_dp_event(event, adjacency="replace-one").losses()
    assert loss.gaussian() == Fraction(4 * most, 9)
    assert rdp(
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3.0), 2 * most), "zero-out"
    ) == pytest.approx(theirs, rel=1e-9)


def test_gaussians_on_one_poisson_sample_are_one() -> None:
    inside = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(6.0), 4),
            dp_event.GaussianDpEvent(3.0),
        ]
    )
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, inside), 300)
    for relation in ("add-remove", "zero-out"):
        found = from_dp_event(event, adjacency=relation)
        ((loss, count),) = found.losses()
        assert isinstance(loss, SubsampledGaussian)
        assert count == 300
        assert 0 <= 4.5 - loss.noise_multiplier**2 <= 1e-25  # 1/σ² = 4/36 + 1/9
        theirs = rdp(event, relation)
        assert renyi_only(found) == pytest.approx(theirs, rel=5e-3)
        assert ours(found) <= theirs
    separate = dp_event.ComposedDpEvent(
        [dp_event.PoissonSampledDpEvent(0.02, part) for part in inside.events]
    )
    # what would come out if each had a sample of its own, which is too little
    assert renyi_only(
        from_dp_event(dp_event.SelfComposedDpEvent(separate, 300), adjacency="add-remove")
    ) < 0.95 * rdp(event, "add-remove")


def renyi_only(events: EventList) -> float:
    return epsilon_of(events.loss(), 1e-6).value


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "zero-out"])
def test_epsilon_delta_events(relation: Relation) -> None:
    event = dp_event.SelfComposedDpEvent(newer("EpsilonDeltaDpEvent", epsilon=0.3, delta=1e-8), 12)
    found = from_dp_event(event, adjacency=relation)
    assert found.losses() == [(ApproxLoss("0.3", "1e-8", adjacency=Adjacency(relation)), 12)]
    parameters = common.DifferentialPrivacyParameters(0.3, 1e-8)
    oracle = privacy_loss_distribution.from_privacy_parameters(parameters).self_compose(12)
    mine = epsilon_price(found, 1e-6).epsilon
    assert mine == pytest.approx(oracle.get_epsilon_for_delta(1e-6), rel=2e-3)

    def of(epsilon: float, delta: float) -> EventList:
        made = newer("EpsilonDeltaDpEvent", epsilon=epsilon, delta=delta)
        return from_dp_event(made, adjacency=relation)

    assert of(0.3, 0.0).losses() == [(PureLoss("0.3", adjacency=Adjacency(relation)), 1)]
    assert epsilon_price(of(0.0, 0.0), 1e-6).epsilon == 0
    assert 0 <= epsilon_price(of(0.0, 1e-7), 1e-6).epsilon <= 1e-99
    assert epsilon_price(of(math.inf, 0.0), 1e-6).epsilon == math.inf
    assert epsilon_price(of(1.0, 1.0), 1e-6).epsilon == math.inf
    for bad in ({"epsilon": -1.0, "delta": 0.1}, {"epsilon": 1.0, "delta": -0.1}):
        with pytest.raises(DataError, match=r"event: (epsilon|delta) = .*: must be >= 0"):
            of(**bad)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_discrete_gaussian_events(relation: Relation) -> None:
    """Against the exact discrete Gaussian, at the shift that the relation means."""
    event = newer("DiscreteGaussianDpEvent", sigma=6.0, sensitivity=2.0, dimension=1)
    found = from_dp_event(dp_event.SelfComposedDpEvent(event, 10), adjacency=relation)
    shift = 4 if relation == "replace-one" else 2
    oracle = privacy_loss_distribution.from_discrete_gaussian_mechanism(6.0, shift)
    theirs = oracle.self_compose(10).get_epsilon_for_delta(1e-6)
    mine = epsilon_price(found, 1e-6).epsilon
    assert theirs <= mine <= 1.15 * theirs
    assert mine > epsilon_of(GaussianLoss(Fraction(10 * shift**2, 36)), 1e-6).value


def test_exponential_mechanism_events() -> None:
    """At most what a black box costs, and at least what one exponential mechanism does."""
    event = newer("ExponentialMechanismDpEvent", epsilon=0.5)
    found = from_dp_event(dp_event.SelfComposedDpEvent(event, 20), adjacency="replace-one")
    assert found.losses() == [(BoundedRangeLoss("0.5"), 20)]
    mine = epsilon_price(found, 1e-6).epsilon
    parameters = common.DifferentialPrivacyParameters(0.5, 0)
    black_box = privacy_loss_distribution.from_privacy_parameters(parameters).self_compose(20)
    # two outcomes, whose log-ratios are 0.5 apart
    p = 1 / (1 + math.exp(-0.25))
    assert math.log(p / (1 - p)) - math.log((1 - p) / p) == pytest.approx(0.5)
    played = privacy_loss_distribution.from_two_probability_mass_functions(
        {"a": math.log(p), "b": math.log(1 - p)}, {"a": math.log(1 - p), "b": math.log(p)}
    ).self_compose(20)
    assert (
        0.99 * played.get_epsilon_for_delta(1e-6)
        <= mine
        < 0.75 * black_box.get_epsilon_for_delta(1e-6)
    )
    flipped = newer("PermuteAndFlipDpEvent", epsilon=0.5)
    assert from_dp_event(flipped, adjacency="replace-one").losses() == [(LaplaceLoss("0.5"), 1)]


def test_events_that_this_version_does_not_have_are_named() -> None:
    top = {"adjacency": "replace-one", "trust": "central"}
    for event, name in (
        ({"mechanism": "exponential", "epsilon": 1}, "ExponentialMechanismDpEvent"),
        ({"mechanism": "approx", "epsilon": 1, "delta": 0.1}, "EpsilonDeltaDpEvent"),
        ({"mechanism": "pure", "epsilon": 1}, "EpsilonDeltaDpEvent"),
        ({"mechanism": "discrete-gaussian", "noise_multiplier": 3}, "DiscreteGaussianDpEvent"),
    ):
        listed = event_list({**top, "events": [event]})
        if hasattr(dp_event, name):
            again = from_dp_event(to_dp_event(listed), adjacency="replace-one")
            assert again.events == listed.events
        else:
            with pytest.raises(DataError, match=rf"events\[0\]: .* needs {name}, which this"):
                to_dp_event(listed)
