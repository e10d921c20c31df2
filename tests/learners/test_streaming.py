"""What all stream learners share: rows that are none, bounds, horizons, parameters."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from grids import thinned

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import (
    AdjacencyError,
    CurrencyError,
    HorizonError,
    ProvenanceError,
)
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.streaming import StreamLearner, epoch_count, epoch_sizes, typical_length
from privlearn.learners.tofw import DPTOFW
from privlearn.losses.budgets import GaussianDP, PureDP
from privlearn.mechanisms.constraint_sets import LpBall, norms
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

DIM, HORIZON = 3, 60
THETA = np.array([0.6, -0.3, 0.1])


def central(horizon: int = HORIZON, seed: int = 0, **options: Any) -> CentralAccountant[Any]:
    budget = options.pop("budget", GaussianDP(20))
    return CentralAccountant(
        budget, users=range(horizon), noise=NoiseSource.simulation(seed), **options
    )


def unstarted(which: str, **changes: Any) -> StreamLearner:
    if which == "pofw":
        return DPPOFW(LpBall(DIM, 1, 2.0), **changes)
    return DPTOFW(DIM, p=1.5, method=which, **changes)  # type: ignore[arg-type]


def stream(n: int = HORIZON, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM))
    x /= norms(x, math.inf)[:, None] * 2
    return x, x @ THETA + 0.05 * rng.normal(size=n)


WAYS = ("plain", "buffered", "pofw")
every = pytest.mark.parametrize("which", WAYS)


@pytest.mark.parametrize("which", thinned(WAYS, 3))
@pytest.mark.parametrize(
    ("bad_x", "bad_y"),
    [
        ([math.nan, 0.0, 0.0], 0.5),
        ([math.inf, 0.0, 0.0], 0.5),
        ([0.1, 0.2], 0.5),
        ("text", 0.5),
        (None, 0.5),
        ([0.1, 0.2, 0.3], math.nan),
        ([0.1, 0.2, 0.3], "dear"),
        ([0.1, 0.2, 0.3], math.inf),
        ([0.1, 0.2, 0.3], [1.0, 2.0]),
    ],
)
def test_a_bad_row_is_null_alone_and_the_clock_goes_on(which: str, bad_x: Any, bad_y: Any) -> None:
    x, y = stream()
    blank = x.copy()
    blank[7] = 0.0  # what the null contribution amounts to
    reference = unstarted(which).start(central()).partial_fit(blank, y)
    rows, labels = list(x), list(y)
    rows[7], labels[7] = bad_x, bad_y
    learner = unstarted(which).start(central()).partial_fit(rows, labels)
    assert np.array_equal(learner.coef_, reference.coef_)
    assert learner.clock_ == HORIZON
    assert [user for user, _ in learner.private_messages_] == [7]
    assert reference.private_messages_ == []
    alone = unstarted(which).start(central())
    for row, label in zip(rows, labels, strict=True):
        if isinstance(label, list):
            alone.partial_fit([row], [label])
        else:
            alone.partial_fit(row, label)
    assert np.array_equal(alone.coef_, reference.coef_)
    assert alone.private_messages_ == learner.private_messages_
    assert str(bad_x) not in json.dumps(learner.public_state())


@every
def test_labels_that_are_no_classes_are_null(which: str) -> None:
    x, y = stream()
    classes = (y > 0).astype(float)
    odd, blank = classes.copy(), x.copy()
    odd[3], blank[3] = 0.5, 0.0
    learner = unstarted(which, loss="logistic").start(central()).partial_fit(x, odd)
    reference = unstarted(which, loss="logistic").start(central()).partial_fit(blank, classes)
    assert np.array_equal(learner.coef_, reference.coef_)
    assert [user for user, _ in learner.private_messages_] == [3]
    assert "label" in learner.private_messages_[0][1]


@every
def test_features_and_labels_are_held_to_their_bounds(which: str) -> None:
    x, y = stream()
    far, near = x.copy(), x.copy()
    q = math.inf if which == "pofw" else 3.0
    far[4] *= 1e6
    near[4] = x[4] / norms(x[4], q)
    high, low = y.copy(), y.copy()
    high[5], low[5] = 1e9, 1.0
    # Scaling leaves rounding errors, nothing more.
    found = unstarted(which).start(central()).partial_fit(far, high).coef_
    expected = unstarted(which).start(central()).partial_fit(near, low).coef_
    assert found == pytest.approx(expected, abs=1e-9)


class Fragile:
    """A loss of the user's own whose parts fail on some labels."""

    curvature, slope, unit = 1.0, 1.0, None

    def derivative(self, score: Array, label: Array, /) -> Array:
        if (label == 0.25).any():
            raise ZeroDivisionError(f"label {label}")
        return np.clip(score - label, -1, 1)

    def labels(self, values: Array, /) -> Array:
        if (values == 0.75).any():
            raise ValueError(f"labels {values}")
        return values

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "fragile"}


@every
def test_what_a_loss_raises_about_a_row_makes_it_null(which: str) -> None:
    x, y = stream()
    odd, blank = y.copy(), x.copy()
    odd[[3, 9]], blank[[3, 9]] = (0.25, 0.75), 0.0
    learner = unstarted(which, loss=Fragile()).start(central()).partial_fit(x, odd)
    reference = unstarted(which, loss=Fragile()).start(central()).partial_fit(blank, y)
    assert np.array_equal(learner.coef_, reference.coef_)
    assert learner.clock_ == HORIZON


@every
def test_arrival_indices_may_start_anywhere(which: str) -> None:
    x, y = stream()
    late: CentralAccountant[Any] = CentralAccountant(
        GaussianDP(20), users=range(1000, 1000 + HORIZON), noise=NoiseSource.simulation(0)
    )
    learner = unstarted(which).start(late).partial_fit(x[:33], y[:33])
    learner.partial_fit(x[33:], y[33:])
    expected = unstarted(which).start(central()).partial_fit(x, y)
    assert np.array_equal(learner.coef_, expected.coef_)
    assert learner.clock_ == 1000 + HORIZON


@every
def test_a_large_but_finite_row_overflows_nothing(which: str) -> None:
    x, y = stream()
    x[2] = [1e308, -1e308, 1e308]
    y[3] = -1e308
    assert np.isfinite(unstarted(which).start(central()).partial_fit(x, y).coef_).all()


@every
def test_a_hard_horizon_refuses_more_users_and_takes_none_of_them(which: str) -> None:
    x, y = stream()
    learner = unstarted(which).start(central()).partial_fit(x[:50], y[:50])
    before = learner.coef_
    with pytest.raises(HorizonError, match="11 users after 50"):
        learner.partial_fit(np.zeros((11, DIM)), np.zeros(11))
    assert learner.clock_ == 50
    assert np.array_equal(learner.coef_, before)
    learner.partial_fit(x[50:], y[50:])
    with pytest.raises(HorizonError, match="1 users after 60"):
        learner.partial_fit(x[0], y[0])


@every
def test_public_shapes_raise(which: str) -> None:
    learner = unstarted(which).start(central())
    with pytest.raises(ValueError, match=r"x of shape \(5, 2\)"):
        learner.partial_fit(np.zeros((5, 2)), np.zeros(5))
    with pytest.raises(ValueError, match=r"y of shape \(4,\)"):
        learner.partial_fit(np.zeros((5, DIM)), np.zeros(4))
    with pytest.raises(ValueError, match="y of 2 rows"):
        learner.partial_fit(np.zeros((3, DIM)), [0.0, 1.0])
    assert learner.partial_fit(np.zeros((0, DIM)), np.zeros(0)).clock_ == 0
    assert learner.partial_fit(np.zeros((1, DIM)), np.zeros(1)).clock_ == 1


@every
def test_logged_rows_need_a_central_accountant(which: str) -> None:
    joint = JointAccountant(GaussianDP(1), users=range(HORIZON), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="CentralAccountant"):
        unstarted(which).start(joint)
    with pytest.raises(AdjacencyError, match="add-remove"):
        unstarted(which).start(central(adjacency=Adjacency.ADD_REMOVE))


@pytest.mark.parametrize("which", ["plain", "buffered"])
def test_a_budget_without_room_for_gaussian_noise_is_refused(which: str) -> None:
    accountant = central(budget=PureDP(1))
    with pytest.raises(CurrencyError, match="PureDP"):
        unstarted(which).start(accountant)
    assert len(accountant.ledger.entries) == 1, "nothing was committed"


@every
def test_it_starts_once_and_not_by_itself(which: str) -> None:
    learner = unstarted(which)
    with pytest.raises(RuntimeError, match="start"):
        learner.partial_fit(np.zeros(DIM), 0.0)
    learner.start(central())
    with pytest.raises(RuntimeError, match="has started"):
        learner.start(central())
    with pytest.raises(RuntimeError, match="public history"):
        learner.set_params(loss="logistic")


@every
def test_parameters_are_read_and_set_as_in_scikit_learn(which: str) -> None:
    learner = unstarted(which)
    assert learner.get_params()["loss"] == "squared"
    copy = type(learner)(**learner.get_params())
    assert copy.get_params() == learner.get_params()
    assert learner.set_params(loss="logistic").get_params()["loss"] == "logistic"
    with pytest.raises(ValueError, match="step: not a parameter"):
        learner.set_params(step=1)


@every
@pytest.mark.parametrize(
    "changes",
    [{"feature_bound": 0.0}, {"label_bound": -1.0}, {"loss": "hinge"}, {"method": "magic"}],
)
def test_bad_parameters_are_refused_at_the_start(which: str, changes: dict[str, Any]) -> None:
    accountant = central()
    with pytest.raises(ValueError, match=next(iter(changes))):
        unstarted(which).set_params(**changes).start(accountant)
    assert len(accountant.ledger.entries) == 1, "nothing was committed"


@every
def test_predictions_are_scores(which: str) -> None:
    x, y = stream()
    learner = unstarted(which).start(central()).partial_fit(x, y)
    assert np.array_equal(learner.predict(x), x @ learner.coef_)
    assert learner.predict(x[0]) == pytest.approx(x[0] @ learner.coef_)
    learner.coef_[:] = 0  # a copy
    assert learner.coef_.any()


@every
def test_the_public_state_is_json(which: str) -> None:
    x, y = stream()
    learner = unstarted(which).start(central()).partial_fit(x, y)
    state = json.loads(json.dumps(learner.public_state()))
    assert state["clock"] == HORIZON
    assert state["coef"] == learner.coef_.tolist()


@every
def test_after_a_failure_in_a_release_nothing_goes_on(which: str) -> None:
    x, y = stream()
    accountant = central()
    learner = unstarted(which).start(accountant)
    learner.partial_fit(x[0], y[0])
    accountant.close()
    with pytest.raises(Exception, match=r".+"):
        learner.partial_fit(x[1:], y[1:])
    with pytest.raises(RuntimeError, match="half-way"):
        learner.partial_fit(x[1:], y[1:])


@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, 3.0])
def test_the_typical_length_is_typical(q: float) -> None:
    x = np.random.default_rng(0).normal(size=(4000, 40))
    lengths = norms(x, 2) / norms(x, q)
    assert typical_length(40, q) == pytest.approx(float(np.median(lengths)), rel=0.02)


def test_epochs_add_up() -> None:
    for users in (1, 2, 3, 7, 1000):
        for growth in (1.0, 1.7, 3.0):
            sizes = epoch_sizes(users, epoch_count(users, 2.5, 4), growth)
            assert sum(sizes) == users
            assert min(sizes) >= 1
    assert epoch_count(1000, 400.0, 5) == 2
    assert epoch_count(10, 400.0, 5) == 1
