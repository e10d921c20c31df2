"""Noisy sums: clipped, priced, and noisy as stated."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant
from privlearn.errors import CurrencyError, LossExceedsTokenError
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.least_noise import least_noise
from privlearn.noise import (
    AdditiveNoise,
    CapNoise,
    GaussianNoise,
    GeneralizedGaussianNoise,
    GumbelNoise,
    LaplaceNoise,
    NoiseSource,
)
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Box, Domain, PSDTrace
from privlearn.values.adjacency import Adjacency

SAMPLE_SIZE = 20_000
STD_TOLERANCE = 0.015
"""At least three standard errors of each std below; a third of the planted defect."""

AMOUNTS = st.fractions(min_value=Fraction(1, 10**6), max_value=10**4, max_denominator=10**9)
BUDGETS: st.SearchStrategy[Currency] = st.one_of(
    AMOUNTS.map(ZCDP),
    AMOUNTS.map(GaussianDP.from_mu_squared),
    st.tuples(AMOUNTS, AMOUNTS).map(lambda e: Renyi({"1.1": e[0], 2: e[1], "40/3": sum(e)})),
)
DOMAINS: list[Domain[Any]] = [
    Ball(0.3, 4),
    Ball(2.0, 3, "l1"),
    Ball(1.0, 7, "linf"),
    Box(-1, 3, 2),
    PSDTrace(3.0, 3),
]


def run(mechanism: NoisySum[Any], data: Any, seed: int = 0) -> Any:
    users = range(len(data))
    accountant = CentralAccountant(ZCDP("1e30"), users=users, noise=NoiseSource.simulation(seed))
    token = accountant.issue(mechanism.loss(), users=users, label="sum")
    return mechanism.release(Rows.seal(data, users=users), token).value


@given(BUDGETS, st.sampled_from(DOMAINS), st.sampled_from(Adjacency))
def test_calibrated_noise_fits_its_budget_and_wastes_none(
    budget: Currency, domain: Domain[Any], adjacency: Adjacency
) -> None:
    mechanism = NoisySum.calibrated(domain, budget, adjacency=adjacency)
    price = budget.price(mechanism.loss())
    assert budget.covers(price)
    waste = [(b - p) / b for b, p in zip(budget.amounts, price.amounts, strict=True)]
    assert 0 <= min(waste) <= Fraction(1, 10**9)
    accountant = CentralAccountant(
        budget, users=range(2), noise=NoiseSource.simulation(0), adjacency=adjacency
    )
    accountant.issue(mechanism.loss(), users=range(2), label="sum").spend(mechanism.spend())


def test_pure_budgets_and_budgets_of_nothing_buy_no_gaussian() -> None:
    with pytest.raises(CurrencyError, match="no finite price in it; use noise='laplace'"):
        NoisySum.calibrated(Ball(1.0, 2), PureDP(1))
    with pytest.raises(ValueError, match="noise needs a budget > 0"):
        NoisySum.calibrated(Ball(1.0, 2), ZCDP(0))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"std = .*must be"):
        NoisySum(Ball(1.0, 2), GaussianNoise(bad))


def test_the_sum_is_of_clipped_rows() -> None:
    data = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [6e307, -8e307]])
    total = run(NoisySum(Ball(1.0, 2), GaussianNoise(1e-8)), data)
    np.testing.assert_allclose(total, [1.5, 0.4], atol=1e-6)
    factors = np.array([[[3.0, 0.0]], [[0.0, 0.5]]])
    gram = run(NoisySum(PSDTrace(1.0, 2), GaussianNoise(1e-8)), factors)
    np.testing.assert_allclose(gram, [[1.0, 0.0], [0.0, 0.25]], atol=1e-6)


def test_a_null_row_counts_as_the_null_contribution_of_the_domain() -> None:
    data = np.array([[2.5], [np.nan]])
    np.testing.assert_allclose(
        run(NoisySum(Box(2, 3, 1), GaussianNoise(1e-8)), data), [2.5 + 2.0], atol=1e-6
    )


def test_the_noise_has_the_stated_std_on_every_coordinate_and_half_variance_off_diagonal() -> None:
    std, users = 3.0, range(2)
    mechanism = NoisySum(PSDTrace(1.0, 2), GaussianNoise(std))
    accountant = CentralAccountant(ZCDP("1e30"), users=users, noise=NoiseSource.simulation(5))
    rows = Rows.seal(np.zeros((2, 1, 2)), users=users)
    noise = mechanism.spend().noise
    many = mechanism.domain.decode(noise.draw(accountant.noise.pool(), (SAMPLE_SIZE, 3)))
    released = np.array(
        [
            mechanism.release(
                rows, accountant.issue(mechanism.loss(), users=users, label="x")
            ).value
            for _ in range(50)
        ]
    )
    assert np.array_equal(released, released.transpose(0, 2, 1))
    assert 0.7 < released.std() / many.std() < 1.3
    for (i, j), expected in (((0, 0), std), ((1, 1), std), ((0, 1), std / 2**0.5)):
        found = many[:, i, j].std() / expected
        assert abs(found - 1) < STD_TOLERANCE
        assert abs(0.95 * found - 1) > STD_TOLERANCE
    assert mechanism.error_std() == std


def test_the_spend_is_in_the_ledger_before_rows_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an error after it leaves the token lost and charged."""
    users = range(3)
    accountant = CentralAccountant(ZCDP(1), users=users, noise=NoiseSource.simulation(0))
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(10.0))
    token = accountant.issue(mechanism.loss(), users=users, label="sum")
    seen: list[str] = []

    def fails(self: Any, block: Any, grid: Any) -> Any:
        seen.extend(entry.entry for entry in accountant.ledger.entries)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ball, "integers", fails)
    with pytest.raises(KeyboardInterrupt):
        mechanism.release(Rows.seal(np.ones((3, 2)), users=users), token)
    assert seen == ["open", "issue", "spend"]
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "lost"
    assert accountant.spent() == ZCDP("0.02")


def test_a_token_that_is_too_small_is_left_alone() -> None:
    users = range(3)
    accountant = CentralAccountant(ZCDP(1), users=users, noise=NoiseSource.simulation(0))
    token = accountant.issue(ZCDP("0.001"), users=users, label="small")
    with pytest.raises(LossExceedsTokenError, match="gaussian-sum costs"):
        NoisySum(Ball(1.0, 2), GaussianNoise(10.0)).release(
            Rows.seal(np.ones((3, 2)), users=users), token
        )
    assert not any(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)


def test_null_rows_change_neither_errors_nor_the_ledger() -> None:
    """Public artefacts do not tell whether a row was bad."""

    def entries(data: Any) -> list[Any]:
        users = range(4)
        accountant = CentralAccountant(ZCDP(1), users=users, noise=NoiseSource.simulation(0))
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(10.0))
        token = accountant.issue(mechanism.loss(), users=users, label="sum")
        mechanism.release(Rows.seal(data, users=users), token)
        bodies = [entry.body() for entry in accountant.ledger.entries]
        return [
            {k: v for k, v in b.items() if k not in ("accountant", "token", "digest")}
            for b in bodies
        ]

    good = np.ones((4, 2))
    bad = np.array([[np.nan, 1], [1, 1], [np.inf, 1], [1, 1]])
    assert entries(good) == entries(bad)


# Any noise ----------------------------------------------------------------------------------------

NOISES: list[tuple[Domain[Any], AdditiveNoise, str]] = [
    (Ball(1.0, 2), GaussianNoise(3.0), "gaussian-sum"),
    (Ball(1.0, 2, "l1"), LaplaceNoise(4.0), "laplace-sum"),
    (Ball(1.0, 2, 3.0), GeneralizedGaussianNoise(5.0, 3.0), "generalized-gaussian-sum"),
]


@pytest.mark.parametrize(("domain", "noise", "name"), NOISES, ids=[name for *_, name in NOISES])
def test_any_noise_is_priced_and_named(
    domain: Domain[Any], noise: AdditiveNoise, name: str
) -> None:
    mechanism = NoisySum(domain, noise)
    assert mechanism.spend().mechanism == name, "ledgers of earlier versions say the same"
    assert NoisySum(domain, noise, name="our-sum").spend().mechanism == "our-sum"
    reach = domain.sensitivity(Adjacency.REPLACE_ONE, noise.norm)
    assert mechanism.loss() == noise.loss(reach, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(("domain", "noise", "name"), NOISES, ids=[name for *_, name in NOISES])
def test_the_stated_error_is_that_of_what_is_released(
    domain: Domain[Any], noise: AdditiveNoise, name: str
) -> None:
    drawn = noise.draw(NoiseSource.simulation(3).pool(), (40_000, domain.size))
    stated = NoisySum(domain, noise).error_std()
    assert np.std(drawn) == pytest.approx(stated, rel=STD_TOLERANCE)
    assert np.std(drawn * 1.05) != pytest.approx(stated, rel=STD_TOLERANCE)
    assert np.abs(drawn).max() <= noise.reach(domain.size)


@given(
    st.fractions(min_value=Fraction(1, 1000), max_value=50, max_denominator=10**9),
    st.sampled_from(DOMAINS),
    st.sampled_from(Adjacency),
)
def test_laplace_noise_fits_its_budget_and_wastes_none(
    epsilon: Fraction, domain: Domain[Any], adjacency: Adjacency
) -> None:
    mechanism = NoisySum.calibrated(domain, PureDP(epsilon), noise="laplace", adjacency=adjacency)
    price = PureDP(epsilon).price(mechanism.loss()).epsilon
    assert 0 <= (epsilon - price) / epsilon <= Fraction(1, 10**9)


def test_what_is_no_additive_noise_is_refused() -> None:
    with pytest.raises(TypeError, match=r"noise = 20\.0: must be noise that is added to numbers"):
        NoisySum(Ball(1.0, 2), 20.0)  # type: ignore[arg-type]
    for other in (GumbelNoise(1.0), CapNoise.half(2, 1)):  # whose price knows no sensitivity
        with pytest.raises(TypeError, match=r"Noise\(.*\): must be noise that is added to numbers"):
            NoisySum(Ball(1.0, 2), other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noise = 'gauss': must be one of gaussian, laplace"):
        NoisySum.calibrated(Ball(1.0, 2), ZCDP(1), noise="gauss")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"exponent = 3\.0: only generalized Gaussian noise"):
        NoisySum.calibrated(Ball(1.0, 2), ZCDP(1), exponent=3.0)
    with pytest.raises(CurrencyError, match="Laplace noise is fitted to PureDP"):
        NoisySum.calibrated(Ball(1.0, 2), ZCDP(1), noise="laplace")


@pytest.mark.parametrize("wrong", ["replace-one", None])
def test_a_neighbour_relation_by_its_name_is_refused(wrong: Any) -> None:
    """Domains would take it for the cheapest one, so that half the noise would seem to do."""
    for make in (
        lambda: NoisySum(Ball(1.0, 2), GaussianNoise(1.0), wrong),
        lambda: NoisySum.calibrated(Ball(1.0, 2), ZCDP(1), adjacency=wrong),
        lambda: least_noise(Ball(1.0, 2), ZCDP(1), adjacency=wrong),
    ):
        with pytest.raises(TypeError, match=r"adjacency = .*: must be an Adjacency"):
            make()
