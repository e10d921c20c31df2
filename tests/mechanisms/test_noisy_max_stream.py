"""Picks after every row: their law, their price, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.checking.replay.check import assert_pipeline_noninterference
from privlearn.contract import receipts
from privlearn.errors import (
    AdjacencyError,
    CurrencyError,
    HorizonError,
    TokenSpentError,
    UsersError,
)
from privlearn.losses import BoundedRangeLoss
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP, Renyi
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.noisy_max_stream import NoisyMaxPicks, NoisyMaxStream
from privlearn.mechanisms.vertices import CrossPolytope
from privlearn.noise import GumbelNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import round_up
from privlearn.values.grid import Grid

LINE = CrossPolytope(1)


def opened(
    stream: NoisyMaxStream, seed: int = 0, budget: Any = None
) -> tuple[CentralAccountant[Any], NoisyMaxPicks]:
    users = range(stream.horizon)
    accountant: CentralAccountant[Any] = CentralAccountant(
        ZCDP(10**6) if budget is None else budget,
        users=users,
        noise=NoiseSource.simulation(seed),
    )
    return accountant, stream.open(accountant.issue(stream.loss(), users=users, label="picks"))


@pytest.mark.parametrize("horizon", [1, 2, 3, 7, 8, 100])
def test_the_price_is_that_of_all_picks_together(horizon: int) -> None:
    stream = NoisyMaxStream(CrossPolytope(3, 2.0), 0.5, 40.0, horizon)
    singles = [
        ReportNoisyMax(stream.vertices, 0.5, stream.scale_at(t)).loss()
        for t in range(1, horizon + 1)
    ]
    expected = sum(float(single.zcdp() or 0) for single in singles)
    assert float(stream.loss().zcdp() or 0) == pytest.approx(expected)
    # Not more than noise that grows exactly like the root, by the paper's sum, times 2.
    harmonic = sum(1 / t for t in range(1, horizon + 1))
    assert expected <= 2 * harmonic * (4.0 / 40.0) ** 2 / 8


def test_the_ledger_has_what_the_price_follows_from() -> None:
    """Spread, scale, horizon and growth, by an auditor who knows the exponential mechanism."""
    stream = NoisyMaxStream(CrossPolytope(3, 2.0), 0.5, 40.0, 100)
    spend: Any = stream.spend()
    stated, total = spend.parameters, Fraction(0)
    for k, text in enumerate(stated["growth"]):
        times = min(2**k, stated["horizon"] - 2**k + 1)
        eta = round_up(Fraction(stated["spread"]) / (Fraction(spend.noise.scale) * Fraction(text)))
        assert Fraction(text) ** 2 >= 2**k, "never less noise than the root"
        total += times * BoundedRangeLoss(eta).zcdp()
    assert stream.loss().zcdp() == round_up(total)
    assert len(stated["growth"]) == 7
    assert spend.grid == stream.grid == Grid(20.0, 40)
    assert spend.noise == GumbelNoise(20.0)


def test_sums_of_the_whole_horizon_fit() -> None:
    """At the bound in every row; a longer horizon gets a coarser grid, and then none."""
    long = NoisyMaxStream(LINE, 1.0, 2.0**-3, 2**20)
    assert long.grid.bits == 37
    stated: Any = long.spend().exact_form()
    assert 2**20 * int(stated["bound"]["largest"]) < 2**61
    with pytest.raises(ValueError, match="no grid has room"):
        NoisyMaxStream(LINE, 1.0, 2.0**-3, 2**28)
    found = NoisyMaxStream.calibrated(LINE, 1.0, ZCDP(1), horizon=2**27)
    assert found.grid.bits == 36, "although scales were tried for which there is no grid"
    stream = NoisyMaxStream(LINE, 1.0, 2.0**-3, 2**12)
    rows = np.ones((2**12, 1))
    assert not opened(stream)[1].append(Rows.seal(rows, users=range(2**12))).value[100:].any()


def test_noise_grows_by_doublings() -> None:
    stream = NoisyMaxStream(LINE, 1.0, 3.0, 100)
    scales = [stream.scale_at(t) / 3 for t in (1, 2, 3, 4, 7, 8, 64)]
    assert scales == pytest.approx([1, 2**0.5, 2**0.5, 2, 2, 8**0.5, 8], rel=2e-6)
    assert scales[1] > 2**0.5, "not below, so that the price is no higher than with the root"


def test_picks_have_the_law_of_the_exponential_mechanism() -> None:
    stream = NoisyMaxStream(LINE, 1.0, 0.05, 4095)
    rows = np.zeros((4095, 1))
    rows[0] = 1.0
    picks = opened(stream)[1].append(Rows.seal(rows, users=range(4095))).value
    for first in (1024, 2048):
        block = picks[first - 1 : 2 * first - 1]
        odds = math.exp(2.0 / stream.scale_at(first))
        chance = odds / (1 + odds)
        slack = 4 * math.sqrt(chance * (1 - chance) / first)
        assert float((block == 0).mean()) == pytest.approx(chance, abs=slack)


def test_one_by_one_is_all_at_once() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    stream = NoisyMaxStream(CrossPolytope(4), 1.0, 2.0, 50)
    whole = opened(stream)[1].append(Rows.seal(rows, users=range(50))).value
    single = opened(stream)[1]
    parts = [
        single.append(Rows.seal(rows[t : t + 1], users=range(t, t + 1))).value for t in range(50)
    ]
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("budget", [ZCDP("0.1"), Renyi({4: "0.5"})], ids=repr)
def test_calibrated_noise_uses_the_budget_up(budget: Any) -> None:
    stream = NoisyMaxStream.calibrated(CrossPolytope(3), 0.3, budget, horizon=500)
    price = budget.price(stream.loss())
    assert budget.covers(price)
    assert not budget.share("0.999").covers(price)


def test_neighbours_change_nothing_but_their_row() -> None:
    def pipeline(accountant: Any, rows: Rows[Array]) -> Any:
        made = NoisyMaxStream.calibrated(CrossPolytope(2), 1.0, ZCDP(1), horizon=len(rows))
        token = accountant.issue(made.loss(), users=rows.users, label="picks")
        with made.open(token) as stream:
            return stream.append(rows).value

    rows = 3 * np.random.default_rng(0).normal(size=(30, 2))
    other = rows.copy()
    other[0] = -rows[0]
    assert assert_pipeline_noninterference(pipeline, rows, other).moved == 1


def test_a_closed_stream_is_released_and_a_broken_one_lost() -> None:
    stream = NoisyMaxStream(LINE, 1.0, 5.0, 3)
    accountant, picks = opened(stream)
    with picks:
        picks.append(Rows.seal(np.zeros((3, 1)), users=range(3)))
    assert accountant.ledger.entries[-1].model_dump()["outcome"] == "released"
    accountant, picks = opened(stream)
    with pytest.raises(UsersError, match="at user 0"), picks:
        picks.append(Rows.seal(np.zeros((1, 1)), users=range(1, 2)))
    assert accountant.ledger.entries[-1].model_dump()["outcome"] == "lost"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AdjacencyError, match="add-remove"):
        NoisyMaxStream(LINE, 1.0, 1.0, 3, Adjacency.ADD_REMOVE)
    with pytest.raises(ValueError, match="scale"):
        NoisyMaxStream(LINE, 1.0, 0.0, 3)
    with pytest.raises(ValueError, match="horizon"):
        NoisyMaxStream(LINE, 1.0, 1.0, 0)
    for budget in (GaussianDP(1), PureDP(1)):
        with pytest.raises(CurrencyError):
            NoisyMaxStream.calibrated(LINE, 1.0, budget, horizon=3)
    with pytest.raises(ValueError, match="budget"):
        NoisyMaxStream.calibrated(LINE, 1.0, ZCDP(0), horizon=3)
    stream = NoisyMaxStream(LINE, 1.0, 5.0, 3)
    accountant: CentralAccountant[Any] = CentralAccountant(
        ZCDP(1), users=range(4), noise=NoiseSource.simulation(0)
    )
    token = accountant.issue(stream.loss(), users=range(4), label="picks")
    with pytest.raises(HorizonError, match="horizon = 3"):
        stream.open(token)


def test_under_zero_out_half_the_noise_is_enough() -> None:
    budgets = [
        NoisyMaxStream.calibrated(LINE, 1.0, ZCDP(1), horizon=9, adjacency=adjacency).scale
        for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
    ]
    assert budgets[1] == pytest.approx(budgets[0] / 2, rel=1e-5)


def test_every_pick_is_made_with_the_noise_of_its_time() -> None:
    """The same noise, by hand: a little less noise would change some of these picks."""
    horizon, clip, scale = 600, 0.5, 2.0
    rows = np.random.default_rng(3).uniform(-clip, clip, (horizon, 2))
    stream = NoisyMaxStream(CrossPolytope(2), clip, scale, horizon)
    _, picks = opened(stream, seed=5)
    found = picks.append(Rows.seal(rows.copy(), users=range(horizon))).value
    drawn = NoiseSource.simulation(5).pool().floors("gumbel", 4 * horizon)
    standard = drawn.reshape(horizon, 4) * 2.0**-40
    times = np.arange(1, horizon + 1)
    scales = scale * 2.0 ** (np.floor(np.log2(times)) / 2)
    scores = np.cumsum(np.hstack([rows, -rows]), axis=0)

    def chosen(factor: float) -> Array:
        noise = standard * scales[:, None] * factor
        return np.asarray((scores + noise).argmax(axis=1))

    assert np.array_equal(found, chosen(1.0))
    assert (chosen(0.95) != chosen(1.0)).any()


def test_a_second_signal_while_the_first_one_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else later picks would be made with the noise of an earlier, cheaper time."""
    _, picks = opened(NoisyMaxStream(CrossPolytope(3), 1.0, 40.0, 16))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NoisyMaxPicks, "_units", interrupted)
        patched.setattr(receipts._Round, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            picks.append(Rows.seal(np.ones((4, 3)), users=range(4)))
    assert not picks.closed
    with pytest.raises(TokenSpentError, match="cut off while it added up"):
        picks.append(Rows.seal(np.ones((4, 3)), users=range(4, 8)))
    assert picks.closed
