"""Pictures and their words: bounds that hold, and files that can be looked at."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.errors import DataError, LedgerUnreadableError
from privlearn.ledger import Ledger
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss, PureLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.reporting import figures
from privlearn.reporting.figures import plot_guarantee, plot_spending, spending
from privlearn.reporting.privacy_curves import curve_of, reading
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

PNG = b"\x89PNG\r\n\x1a\n"
NORMAL = NormalDist()


def test_the_trade_off_of_a_gaussian_is_bounded_from_its_curve() -> None:
    mu = 1.3
    curve = curve_of(evaluate([(GaussianLoss("1.69"), 1)]))
    rates = np.linspace(1e-4, 1, 200)
    exact = np.array([NORMAL.cdf(NORMAL.inv_cdf(min(a, 1 - 1e-12)) + mu) for a in rates])
    bound = curve.power(rates)
    assert (bound >= exact - 1e-9).all(), "no attack is stronger than drawn"
    assert (bound <= exact + 0.01).all(), "and hardly weaker"
    assert curve.advantage == pytest.approx(2 * NORMAL.cdf(mu / 2) - 1, rel=1e-9)
    assert curve.power(0.0) == pytest.approx(0, abs=1e-9)
    assert (np.diff(curve.deltas) <= 0).all()


def test_the_power_against_a_pure_mechanism_is_that_of_randomized_response() -> None:
    curve = curve_of(evaluate([(PureLoss(1), 1)]))
    for rate in (0.01, 0.1, 0.2):
        assert curve.power(rate) >= rate * math.e - 1e-12
        assert curve.power(rate) <= min(rate * math.e * 1.05, 1)
    assert curve.advantage >= (math.e - 1) / (math.e + 1)


def test_the_words_round_up_and_name_the_relation() -> None:
    words = reading(evaluate([(GaussianLoss("0.25"), 1)]))
    advantage = 2 * NORMAL.cdf(0.25) - 1
    assert f"at most {math.ceil((50 + 50 * advantage) * 100) / 100}% of cases" in words[0]
    assert "which of two records a person contributed" in words[0]
    assert "Posterior odds" in words[1]
    add = reading(evaluate([(GaussianLoss("0.25", adjacency=Adjacency.ADD_REMOVE), 1)]))
    assert "whether a person took part" in add[0]
    zero = reading(evaluate([(GaussianLoss("0.25", adjacency=Adjacency.ZERO_OUT), 1)]))
    assert "blanked out" in zero[0]


@pytest.mark.parametrize(
    "parts",
    [
        [(GaussianLoss("1/400"), 1000)],
        [(LaplaceLoss(1), 1)],
        [(ApproxLoss("0.5", "1e-3"), 2)],
        [(ApproxLoss(1, "0.4"), 3)],
    ],
    ids=["gaussian", "pure", "failing", "failing-always"],
)
def test_each_kind_can_be_drawn(parts: Any, tmp_path: Path) -> None:
    whole = evaluate(parts)
    words = plot_guarantee(tmp_path / "a.png", whole, epsilon=1, delta=whole.delta(1).value)
    assert len(words) == 2
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    plot_guarantee(tmp_path / "a.svg", whole)
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")
    with pytest.raises(DataError, match="cannot be drawn"):
        plot_guarantee(tmp_path / "a.nothing", whole)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Ten users; users 0..4 pay three times, the others once."""
    path = tmp_path / "ledger.db"
    book = CentralAccountant(
        ZCDP(1), users=range(10), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    )
    for users, rho, label in (
        (range(10), "0.2", "all"),
        (range(5), "0.3", "some"),
        (range(5), "0.1", "some"),
        (range(5, 10), "0.3", "others"),
    ):
        mechanism = NoisySum.calibrated(Ball(1.0, 1), ZCDP(rho))
        rows: Rows[Any] = Rows.seal(np.zeros((len(users), 1)), users=users)
        mechanism.release(rows, book.issue(mechanism.loss(), users=users, label=label))
    book.close()
    return path


def test_spending_is_that_of_the_most_charged_user(ledger: Path, tmp_path: Path) -> None:
    (found,) = spending(ledger)
    assert (found.user, found.unit, found.cap) == (0, "ρ", 1.0)
    assert found.labels == ["gaussian-sum: all", "gaussian-sum: some"]
    assert found.cumulated == pytest.approx(
        np.array([[0, 0.2, 0.2, 0.2], [0, 0, 0.3, 0.4]]), rel=1e-9
    )
    assert len(plot_spending(tmp_path / "spent.png", ledger)) == 1
    assert (tmp_path / "spent.png").read_bytes().startswith(PNG)


def test_a_ledger_without_spends_or_none_at_all(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    CentralAccountant(
        ZCDP(1), users=range(2), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ).close()
    (found,) = plot_spending(tmp_path / "empty.png", path)
    assert found.labels == []
    with pytest.raises(LedgerUnreadableError):
        spending(tmp_path / "none.db")
    Ledger.create(tmp_path / "bare.db").close()
    with pytest.raises(DataError, match="no accountant"):
        plot_spending(tmp_path / "bare.png", tmp_path / "bare.db")


def test_curves_differ_without_colours_too_and_have_few_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    regrets = {f"learner {k}": np.random.default_rng(k).random(20_000) for k in range(4)}
    figures.plot_regret("regret.png", regrets, "title")
    figures.plot_running_averages("averages.png", regrets, "x", "y")
    for axes in (axes for figure in drawn for axes in figure.axes):
        assert len({line.get_linestyle() for line in axes.lines}) == 4
        assert all(len(line.get_xdata()) <= 400 for line in axes.lines)
    total = drawn[0].axes[0].lines[0]
    assert total.get_xdata()[-1] == 20_000
    assert total.get_ydata()[-1] == pytest.approx(regrets["learner 0"].sum())
