"""The whitened way of DP-TOFW: what it learns from tables, its coordinates, its intercept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import tofw_whitened
from privlearn.learners.tofw import DPTOFW
from privlearn.learners.tofw_whitened import Whitening
from privlearn.ledger.entries import SpendEntry
from privlearn.losses.budgets import GaussianDP
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

CONSTANT = 0.5
MU = GaussianDP("0.22")  # about ε = 1 at δ = 1e-6


def zeros_and_ones(users: int, seed: int) -> tuple[Array, Array]:
    """Eight columns of ±1, most of them rare, two others, and the constant; labels about 0.3."""
    rng = np.random.default_rng(seed)
    yes = 2.0 * (rng.random((users, 8)) < [0.05, 0.1, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95]) - 1
    rest = np.clip(rng.normal(size=(users, 2)) * 0.35 - 0.2, -1, 1)
    x = np.hstack([yes, rest, np.full((users, 1), CONSTANT)])
    told = 0.06 * yes[:, 4] - 0.05 * yes[:, 5] + 0.1 * rest[:, 0]
    return x, 0.3 + told + 0.1 * (rng.exponential(size=users) - 1)


def fit(x: Array, y: Array, budget: Any = MU, **options: Any) -> DPTOFW:
    dim = x.shape[1]
    settings = {
        "feature_bound": np.sqrt(dim),
        "usual_norm": np.sqrt(dim) / 2,
        "method": "whitened",
        "constant": CONSTANT,
        **options,
    }
    with CentralAccountant(
        budget, users=range(len(x)), noise=NoiseSource.simulation(3)
    ) as accountant:
        return DPTOFW(dim, **settings).start(accountant).partial_fit(x, y)


def gain(theta: Any, seed: int = 99) -> float:
    """R² on fresh rows, against their mean."""
    x, y = zeros_and_ones(4_000, seed)
    return float(1 - np.mean((x @ theta - y) ** 2) / np.var(y))


def test_a_table_of_zeros_and_ones_is_learned_and_buffered_loses_to_the_constant() -> None:
    x, y = zeros_and_ones(4_000, 1)
    best = gain(np.linalg.lstsq(x, y, rcond=None)[0])
    private = gain(fit(x, y).coef_)
    assert best > private > 0.85 * best > 0.2
    half = np.sqrt(x.shape[1]) / 2
    other = fit(x, y, method="buffered", constant=None, feature_bound=half, usual_norm=None)
    assert gain(other.coef_) < -0.2


def test_without_white_coordinates_the_same_steps_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(moments: Array, noise: float, least: float) -> Whitening:
        root = np.sqrt(0.25)  # what columns without means of their own would have
        return Whitening(np.eye(len(moments)) / root, np.eye(len(moments)) * root)

    monkeypatch.setattr(tofw_whitened.Whitening, "of", blind)
    assert gain(fit(*zeros_and_ones(4_000, 1)).coef_) < 0.25  # 0.41 with them


def test_classes_are_learned_above_the_commoner_one() -> None:
    x, y = zeros_and_ones(4_000, 2)
    classes = (y > 0.3).astype(float)
    theta = fit(x, classes, loss="logistic", radius=5.0).coef_
    test, truth = zeros_and_ones(4_000, 98)
    right = np.mean((test @ theta > 0) == (truth > 0.3))
    assert right > max(np.mean(truth > 0.3), np.mean(truth <= 0.3)) + 0.05


def test_whitening_is_the_inverse_root_of_the_moments_down_to_the_noise() -> None:
    rng = np.random.default_rng(0)
    turned, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    moments = turned @ np.diag([4.0, 1.0, 0.01]) @ turned.T
    white = Whitening.of(moments, noise=0.25, least=0.1)
    np.testing.assert_allclose(white.forward @ white.back, np.eye(3), atol=1e-12)
    values = np.linalg.eigvalsh(white.forward.T @ moments @ white.forward)
    np.testing.assert_allclose(values, [0.01 / 0.25, 1, 1], atol=1e-12)
    lowest = Whitening.of(-moments, 0.0, 0.5).back
    np.testing.assert_allclose(lowest @ lowest.T, 0.5 * np.eye(3), atol=1e-12)


def test_the_intercept_is_a_mean_though_gradients_are_clipped() -> None:
    """Of labels that no column explains and whose median is far below their mean."""
    rng = np.random.default_rng(4)
    y = np.clip(0.1 * rng.exponential(size=2_000) - 0.2, -1, 1)
    x = np.hstack([rng.normal(size=(2_000, 3)) * 0.3, np.full((2_000, 1), CONSTANT)])
    theta = fit(x, y, GaussianDP(100)).coef_
    assert np.mean(x @ theta) == pytest.approx(y.mean(), abs=0.01)
    assert y.mean() - np.median(y) > 0.025
    without = fit(x, y, GaussianDP(100), constant=None).coef_
    assert np.mean(x @ without) < y.mean() - 0.01


@pytest.mark.parametrize(("users", "epochs"), [(900, 1), (9_000, 2)])
def test_the_first_of_two_epochs_has_enough_users_for_its_noise(users: int, epochs: int) -> None:
    x, y = zeros_and_ones(users, 5)
    with CentralAccountant(MU, users=range(users), noise=NoiseSource.simulation(0)) as accountant:
        learner = DPTOFW(x.shape[1], method="whitened", constant=CONSTANT).start(accountant)
        learner.partial_fit(x[:-1], y[:-1])
        assert bool(np.any(learner.coef_)) == (epochs == 2)
        learner.partial_fit(x[-1:], y[-1:])
        assert np.any(learner.coef_)
        spends = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
    assert len({entry.users for entry in spends}) == epochs
    assert len(spends) == 17 * epochs + epochs + 1  # moments, 16 steps, last mean; the first mean


def test_a_few_rows_at_once_give_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = zeros_and_ones(300, 6)
    whole = fit(x, y).coef_
    monkeypatch.setattr(tofw_whitened, "_NUMBERS_AT_ONCE", 7 * x.shape[1] ** 2)
    np.testing.assert_allclose(fit(x, y).coef_, whole, rtol=1e-9)


def test_an_epoch_that_is_cut_short_ends_as_released() -> None:
    x, y = zeros_and_ones(50, 7)
    accountant = CentralAccountant(MU, users=range(100), noise=NoiseSource.simulation(0))
    learner = DPTOFW(x.shape[1], method="whitened").start(accountant).partial_fit(x, y)
    learner.close()
    accountant.close()
    assert accountant.certificate(1e-6).problems == []
    assert not np.any(learner.coef_)


def test_forecasts_shrink_rows_as_learning_does() -> None:
    x, y = zeros_and_ones(2_000, 8)
    learner = fit(x, y, feature_bound=1.5, usual_norm=1.5)
    short = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    np.testing.assert_allclose(learner.predict(x), short @ learner.coef_)
    assert learner.predict(x[0]) == pytest.approx(learner.predict(x)[0])
    assert np.abs(learner.predict(x) - x @ learner.coef_).max() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constant": 0.0}, "constant"),
        ({"constant": 0.5, "method": "buffered"}, "only method = 'whitened'"),
        ({"usual_norm": 2.0}, "at most feature_bound"),
        ({"usual_norm": -1.0}, "usual_norm"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_committed(
    options: dict[str, Any], message: str
) -> None:
    accountant = CentralAccountant(MU, users=range(10), noise=NoiseSource.simulation(0))
    with pytest.raises(ValueError, match=message):
        DPTOFW(3, **{"method": "whitened", **options}).start(accountant)
    assert len(accountant.ledger.entries) == 1
