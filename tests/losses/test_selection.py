"""The best of a random number of runs: the price from above, from below, and in a ledger."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from privlearn.accountants import CentralAccountant
from privlearn.errors import InsufficientBudgetError
from privlearn.losses import (
    ApproxLoss,
    DiscreteLaplace,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PoissonSampled,
    PureLoss,
    RepeatAndSelect,
    SelectedLoss,
    loss_from_dict,
)
from privlearn.losses.budgets import PureDP
from privlearn.losses.conversion import gaussian_delta, gaussian_epsilon, renyi_epsilon
from privlearn.losses.selected import profile_of
from privlearn.losses.selection import chance_of_trying, largest_mass
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency

DELTA = 1e-5
Law = tuple[float, int]  # η and E[K]


def gamma_of(mean: float, eta: float) -> Fraction:
    if eta == 1:
        return 1 / Fraction(mean)
    tries = lambda g: RepeatAndSelect("1e-6", DELTA, g, eta).mean() - mean  # noqa: E731
    return Fraction(brentq(tries, 1e-9, 0.9999))


@pytest.mark.parametrize(
    ("epsilon", "mean", "logarithmic", "geometric"),
    [
        (1, 4, 0.1793, 0.1675),
        (1, 16, 0.1503, 0.1264),
        (1, 64, 0.1337, 0.1074),
        (3, 4, 0.5142, 0.4885),
        (3, 64, 0.3895, 0.3177),
    ],
)
def test_the_noise_of_a_try_is_that_of_an_independent_program(
    epsilon: int, mean: int, logarithmic: float, geometric: float
) -> None:
    for eta, mu in ((0, logarithmic), (1, geometric)):
        mass = largest_mass(epsilon, DELTA, gamma_of(mean, eta), eta)
        assert math.sqrt(mass) == pytest.approx(mu, abs=6e-5)


def by_renyi(mass: float, gamma: float, eta: float, mean: float) -> float:
    """Papernot & Steinke 2022, Theorem 2, at the best second order in closed form."""
    second = max(math.sqrt(-2 * math.log(gamma) / mass), 1.0)
    rest = (1 + eta) * ((second - 1) * mass / 2 - math.log(gamma) / second)
    return renyi_epsilon(
        lambda order: order * mass / 2 + rest + math.log(mean) / (order - 1), DELTA
    ).value


@pytest.mark.parametrize("law", [(0, 4), (0, 64), (1, 4), (1, 64), (2, 500), (0.5, 16)])
def test_the_profile_costs_less_than_the_renyi_curve_and_not_much_less(law: Law) -> None:
    eta, mean = law
    gamma = gamma_of(mean, eta)
    for mass in ("0.002", "0.02", "0.5"):
        price = RepeatAndSelect(mass, DELTA, gamma, eta).epsilon()
        renyi = by_renyi(float(mass), float(gamma), eta, mean)
        assert 0.7 * renyi < price < renyi


def selected(mass: float, gamma: float, eta: float, mean: float, epsilon: float) -> float:
    """δ at ε of one selection among runs N(μ, 1) or N(0, 1), the best of several orders of outputs.

    Outputs below a are the best, and the others the better the larger: it is where N(0, 1) is
    likelier that another output wins, which makes N(μ, 1) win too often.
    """
    mu, odds = math.sqrt(mass), (1 - gamma) / gamma
    y = np.linspace(-12, 13, 50_001)
    best = 0.0
    for a in np.linspace(-4, 2, 13):
        laws = []
        for m in (mu, 0.0):
            better = ndtr(a - m) + ndtr(m - y)
            density = np.exp(-((y - m) ** 2) / 2) / math.sqrt(2 * math.pi)
            laws.append(density * mean * (1 + odds * better) ** -(eta + 1))
        excess = np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0)[y > a]
        best = max(best, float(excess.sum()) * (y[1] - y[0]))
    return best


def broken(mass: float, gamma: float, eta: float, mean: float, what: str) -> float:
    """The price without the power η+1, or without E[K]."""
    mu, odds = math.sqrt(mass), (1 - gamma) / gamma
    e1 = np.linspace(0, 10 * mu, 400)
    shift = min(math.log(math.exp(e) + odds * gaussian_delta(mass, e).value) for e in e1)
    power, tries = (1.0, mean) if what == "power" else (1 + eta, 1.0)
    return power * shift + gaussian_epsilon(mass, DELTA / tries).value


LAWS = [(0, 1000, 0.09), (1, 64, 0.0115), (1, 1000, 0.09), (2, 16, 0.0160)]


def test_no_selection_has_more_than_the_price() -> None:
    for eta, mean, mass in LAWS:
        gamma = gamma_of(mean, eta)
        price = RepeatAndSelect(Fraction(mass), DELTA, gamma, eta).epsilon()
        assert 0 < selected(mass, float(gamma), eta, mean, price) <= DELTA


@pytest.mark.parametrize(("what", "law"), [("power", 1), ("power", 3), ("mean", 0)])
def test_a_price_that_leaves_something_out_is_refuted(what: str, law: int) -> None:
    eta, mean, mass = LAWS[law]
    gamma = float(gamma_of(mean, eta))
    price = broken(mass, gamma, eta, mean, what)
    assert selected(mass, gamma, eta, mean, price) > DELTA


def test_the_law_of_the_number_of_tries() -> None:
    gamma = 0.05
    draws = np.random.default_rng(0).geometric(gamma, 20_000)
    for count in (4, 16):
        tried = 1 - (1 - 1 / count) ** draws
        assert chance_of_trying(count, gamma) == pytest.approx(tried.mean(), abs=4e-3)
    assert RepeatAndSelect("0.01", DELTA, Fraction(1, 20)).mean() == pytest.approx(20)
    assert chance_of_trying(16, 1 / 135) == pytest.approx(0.9, abs=1e-12)


def test_one_entry_is_the_whole_cap_and_the_ledger_says_the_profile_bound() -> None:
    loss = RepeatAndSelect("0.01", "1e-5", "1/135")
    cap = PureDP(Fraction(loss.epsilon()))
    book = CentralAccountant(cap, users=range(9), failure="1e-5", noise=NoiseSource.simulation(0))
    book.issue(loss, users=range(9), label="search")
    assert book.remaining().is_zero
    with pytest.raises(InsufficientBudgetError):
        book.issue(RepeatAndSelect("1e-6", "1e-9", "1/2"), users=range(9), label="more")
    assert book.epsilon(DELTA) == pytest.approx(loss.epsilon(), rel=1e-12)
    assert book.epsilon(DELTA) >= loss.epsilon()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"gamma": 1}, "gamma"),
        ({"gamma": 0}, "gamma"),
        ({"eta": -1}, "eta"),
        ({"delta": 0}, "delta"),
        ({"mu_squared": 0}, "mu_squared"),
        ({"mu_squared": 10_000}, "above 700"),
    ],
)
def test_numbers_out_of_range_are_named(wrong: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"mu_squared": "0.01", "delta": "1e-5", "gamma": "0.1", "eta": 1}
    with pytest.raises(ValueError, match=name):
        RepeatAndSelect(**{**given, **wrong})
    with pytest.raises(ValueError, match="no usable noise"):
        largest_mass("1e-5", "1e-12", "1e-9")


def test_every_selection_has_one_price() -> None:
    """A Gaussian try costs what `RepeatAndSelect` says, whatever states it."""
    for eta, mean in ((0, 20), (1, 20), (Fraction("0.5"), 20)):
        selected_loss = SelectedLoss(GaussianLoss("0.04"), DELTA, mean, eta)
        known = RepeatAndSelect("0.04", DELTA, gamma_of(mean, float(eta)), eta)
        assert selected_loss.epsilon() == pytest.approx(known.epsilon(), rel=1e-6)
        assert loss_from_dict(selected_loss.to_dict()) == selected_loss
    plain = SelectedLoss(GaussianLoss("0.04") + GaussianLoss("0.05"), DELTA, 7, 1)
    assert plain.epsilon() == SelectedLoss(GaussianLoss("0.09"), DELTA, 7, 1).epsilon()
    poisson = SelectedLoss(GaussianLoss("0.04"), DELTA, 3, None)
    assert loss_from_dict(poisson.to_dict()) == poisson


TRIES = (LaplaceLoss("0.3"), PureLoss("0.3"), DiscreteLaplace("0.4", 2))


@pytest.mark.parametrize("loss", TRIES, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("eta", [0, 1, None])
def test_selections_among_a_few_outputs_are_below_the_price(loss: Any, eta: Any) -> None:
    """Every order of the outputs, and every event: the laws of the best of K tries, summed up."""
    if isinstance(loss, LaplaceLoss):  # as rounded to few outputs
        above = np.exp(-0.15 * np.arange(4)) * [1, 1, 1, 0]
        p = np.append(0.5, -np.diff(above) / 2)
    else:
        ((one, _),) = loss.worst_pairs((2.0,))
        p = np.exp(one.log_mass)
    q, mean = p[::-1], 6.0
    price = SelectedLoss(loss, "1e-3", 6, eta).epsilon()
    gamma = None if eta is None else float(gamma_of(mean, eta))

    def generating(x: Any) -> Any:
        if gamma is None:
            return np.exp(mean * (x - 1))
        left = np.log1p(-(1 - gamma) * x)
        return left / math.log(gamma) if eta == 0 else np.expm1(-left) / (1 / gamma - 1)

    worst = 0.0
    for order in itertools.permutations(range(len(p))):
        laws = []
        for law in (p, q):
            below = np.append(0, np.cumsum(law[list(order)]))
            laws.append(np.diff(generating(np.minimum(below, 1))))
        worst = max(worst, float(np.maximum(laws[0] - math.exp(price) * laws[1], 0).sum()))
    assert worst <= 1e-3


def test_a_profile_is_that_of_the_try() -> None:
    cases: list[tuple[Loss, Callable[[float], float]]] = [
        (LaplaceLoss(1), lambda e: -math.expm1((e - 1) / 2)),
        (PureLoss(1), lambda e: (math.e - math.exp(e)) / (1 + math.e)),
        (ApproxLoss(1, "0.01"), lambda e: 0.01 + 0.99 * (math.e - math.exp(e)) / (1 + math.e)),
        (GaussianLoss(1), lambda e: gaussian_delta(1, e).value),
    ]
    for loss, truth in cases:
        profile = profile_of(loss)
        for epsilon in (0.0, 1e-9, 0.2, 0.9, 0.9999):
            assert truth(epsilon) <= profile(epsilon) <= truth(epsilon) + 2e-7
    sampled = PoissonSampled(LaplaceLoss(1, adjacency=Adjacency.ADD_REMOVE), "0.1")
    level = (math.exp(0.05) - 0.9) / 0.1
    truth_there = 0.1 * -math.expm1((math.log(level) - 1) / 2)
    assert truth_there <= profile_of(sampled)(0.05) <= truth_there + 1e-7


@pytest.mark.parametrize(
    ("tries", "eta", "words"),
    [
        (math.inf, 1, "no bound on its mean"),
        (math.nan, 1, "no bound on its mean"),
        (0.5, 1, "tries = 0.5"),
        (10**10, 1, "tries = "),
        (4, 5e-324, "eta = .*must be 0 or lie in"),
        (4, -1, "eta = -1"),
        (4, 101, "eta = 101"),
        (0, None, "tries = 0"),
    ],
)
def test_numbers_of_tries_without_a_price_are_named(tries: Any, eta: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SelectedLoss(GaussianLoss("0.04"), DELTA, tries, eta)


def test_a_shape_too_small_to_be_told_from_0_costs_as_0() -> None:
    tiny, zero = (RepeatAndSelect("0.04", DELTA, "1/50", eta) for eta in ("1e-300", 0))
    assert tiny.epsilon() == pytest.approx(zero.epsilon(), rel=1e-9)
