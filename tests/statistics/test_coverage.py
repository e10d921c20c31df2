"""Intervals hold what there would be without noise as often as they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.losses.budgets import Currency, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum, ReportQuantiles
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.statistics.choices import FirstAboveQuery, TopQuery
from privlearn.statistics.columns import CellColumn, Groups, NumberColumn
from privlearn.statistics.covariances import CovarianceQuery
from privlearn.statistics.intervals import NoiseLaw, NoisyQuotient
from privlearn.statistics.quantile_queries import QuantilesQuery
from privlearn.statistics.queries import HistogramQuery, MomentsQuery, Query, TotalQuery
from privlearn.tables import Category, Number, Schema, Table

SEEDS = 60
BUDGETS: list[Currency] = [PureDP("0.5"), GaussianDP("0.25")]


class Simulated:
    """Releases without an account: clipped sums and simulated noise, as mechanisms do it."""

    def __init__(self, mechanisms: dict[str, Any], seed: int) -> None:
        self._mechanisms, self._pool = mechanisms, NoiseSource.simulation(seed).pool()

    def __call__(self, label: str, records: Any) -> Array:
        mechanism = self._mechanisms[label]
        if isinstance(mechanism, NoisySum):
            total = mechanism.domain.clip(records).sum(axis=0)
            noisy = total + mechanism.noise.draw(self._pool, total.shape)
            return np.asarray(mechanism.domain.decode(noisy))
        assert isinstance(mechanism, ReportQuantiles)
        opened = mechanism.domain.clip(records)
        counts = mechanism._counts(opened, range(len(opened)))
        return np.array([mechanism._picks(self, held) for held in counts])  # type: ignore[arg-type]

    def draw_variates(self, n: int) -> Any:
        return self._pool.variates("gumbel", n)


def table(n: int = 400) -> tuple[Table, Array, Array]:
    """Right-skewed numbers of which some are missing, in three groups of unequal size."""
    rng = np.random.default_rng(0)
    x = np.minimum(rng.exponential(8, n) + 2, 60)
    x[rng.random(n) < 0.2] = np.nan
    group = np.minimum(rng.integers(0, 40, n) // 14, 2).astype(float)
    schema = Schema({"x": Number(0, 60, optional=True), "g": Category(["a", "b", "c"])})
    return Table(schema, {"x": x, "g": group}, n), x, group


def covered(
    query: Query, data: Table, budget: Currency, truth: Sequence[dict[Any, Any]], level: float
) -> dict[Any, list[bool]]:
    """By name or label, for each seed and group, whether the interval holds ``truth``."""
    mechanisms = query.mechanisms(budget)
    hits: dict[Any, list[bool]] = {name: [] for name in truth[0]}
    for seed in range(SEEDS):
        for number, found in enumerate(query.ask(data, mechanisms, Simulated(mechanisms, seed))):
            for name, value in truth[number].items():
                low, high = found._all[name].interval(level)
                hits[name].append(bool(low - 1e-9 <= value <= high + 1e-9))
    return hits


def assert_level(hits: dict[Any, list[bool]], level: float) -> None:
    error = math.sqrt(level * (1 - level) / SEEDS)  # those of one seed are not independent
    for name, held in hits.items():
        assert np.mean(held) >= level - 2 * error, name


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("by_group", [False, True])
def test_moments(budget: Currency, by_group: bool) -> None:
    data, x, g = table()
    groups = Groups(CellColumn("g", ("a", "b", "c"))) if by_group else Groups()
    column = NumberColumn("x", 0, 60)
    parts = [x[g == i] for i in range(3)] if by_group else [x]
    truth = [
        {"count": np.isfinite(p).sum(), "mean": np.nanmean(p), "variance": np.nanvar(p)}
        for p in parts
    ]
    query = MomentsQuery(column, groups, 1.0, ("count", "mean", "variance"))
    hits = covered(query, data, budget, truth, 0.8)
    assert_level(hits, 0.8)
    assert max(np.mean(hits["mean"]), np.mean(hits["count"])) <= 0.95  # not wider than need be


@pytest.mark.parametrize("budget", BUDGETS)
def test_totals_and_histograms(budget: Currency) -> None:
    data, x, g = table()
    column, there = NumberColumn("x", 0, 60), np.isfinite(x)
    for what, value in (("count", there.sum()), ("sum", np.nansum(x))):
        hits = covered(TotalQuery(column, Groups(), what), data, budget, [{what: value}], 0.8)
        assert_level(hits, 0.8)
        assert np.mean(hits[what]) <= 0.95
    cells = CellColumn("x", ("low", "high"), (0.0, 10.0, 60.0))
    counts = {"low": (x < 10).sum(), "high": (x >= 10).sum(), "missing": (~there).sum()}
    assert_level(covered(HistogramQuery(cells, Groups()), data, budget, [counts], 0.8), 0.8)
    groups = Groups(CellColumn("g", ("a", "b", "c")))
    of_groups = [
        {"low": (x[g == i] < 10).sum(), "missing": (~there[g == i]).sum()} for i in range(3)
    ]
    assert_level(covered(HistogramQuery(cells, groups), data, budget, of_groups, 0.8), 0.8)


@pytest.mark.parametrize("budget", BUDGETS)
def test_quantiles(budget: Currency) -> None:
    data, x, _ = table()
    asked = (Fraction(1, 4), Fraction(1, 2))
    sorted_x = np.sort(x[np.isfinite(x)])
    truth = {float(q): sorted_x[math.ceil(q * len(sorted_x)) - 1] for q in asked}
    query = QuantilesQuery(NumberColumn("x", 0, 60), Groups(), asked, len(data))
    assert_level(covered(query, data, budget, [truth], 0.8), 0.8)


@pytest.mark.parametrize("laplace", [False, True])
def test_where_there_may_be_no_count_the_interval_is_all_that_is_declared(laplace: bool) -> None:
    law = NoiseLaw(1.0, laplace)
    nothing = NoisyQuotient(0.5, 1.5, law, 2.0, 3.0)
    assert nothing.interval(0.95) == (-1.0, 1.0)
    assert nothing.value(100) == 0.0
    beyond = NoisyQuotient(150.0, 100.0, law, 1.0, 1.0)
    assert beyond.interval(0.95) == (1.0, 1.0)


def test_widths_of_sums_of_laplace_noise_are_those_of_draws() -> None:
    law, rng = NoiseLaw(2.0, True), np.random.default_rng(2)
    for weights in ((1.0,), (1.0, 0.3), (1.0, 1.0), (0.9, -0.5, 0.2), (0.5,) * 9):
        sums = 2.0 * (rng.laplace(size=(100_000, len(weights))) @ np.array(weights))
        share = (np.abs(sums) <= law.width(0.9, *weights)).mean()
        assert share == pytest.approx(0.9, abs=0.004)


@pytest.mark.parametrize("correlations", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_second_moments(budget: Currency, correlations: bool) -> None:
    _, x, _ = table()
    y = 30 - x / 2 + np.random.default_rng(1).uniform(-2, 2, len(x))
    schema = Schema({"x": Number(0, 60, optional=True), "y": Number(-10, 40, optional=True)})
    query = CovarianceQuery(
        (NumberColumn("x", 0, 60), NumberColumn("y", -10, 40)), Groups(), correlations
    )
    there = np.isfinite(x)
    both = np.stack([x[there], y[there]])
    truth = np.corrcoef(both) if correlations else np.cov(both, bias=True)
    mechanisms, hits = query.mechanisms(budget), []
    data = Table(schema, {"x": x, "y": y}, len(x))
    for seed in range(SEEDS):
        (found,) = query.ask(data, mechanisms, Simulated(mechanisms, seed))
        low, high = found.interval(0.8)
        hits.append((low - 1e-9 <= truth) & (truth <= high + 1e-9))
        assert (np.linalg.eigvalsh(found.value) >= -1e-6 * found.value.max()).all()
    assert (np.mean(hits, axis=0) >= 0.8 - 2 * math.sqrt(0.16 / SEEDS)).all()


class Choosing:
    """Releases of a choice, from an account for each."""

    def __init__(self, mechanism: Any, seed: int) -> None:
        self._mechanism, self._seed = mechanism, seed

    def __call__(self, label: str, records: Any) -> Array:
        users = range(len(records))
        noise = NoiseSource.simulation(self._seed)
        book = CentralAccountant(PureDP(1), users=users, noise=noise)
        token = book.issue(self._mechanism.loss(), users=users, label=label)
        rows = Rows.seal(records, users=users)
        return np.asarray(self._mechanism.release(rows, token).value)


@pytest.mark.parametrize("top", [0, 1, 2])
def test_choices_are_right_within_what_they_say(top: int) -> None:
    labels, counts = ("a", "b", "c", "d"), (100, 90, 60, 5)
    cells = np.repeat(np.arange(4.0), counts)
    data = Table(Schema({"x": Category(labels)}), {"x": cells}, len(cells))
    column = CellColumn("x", labels)
    query: Query = TopQuery(column, top) if top else FirstAboveQuery(column, 95)
    mechanisms, right = query.mechanisms(PureDP("0.5")), 0
    for seed in range(20):
        (found,) = query.ask(data, mechanisms, Choosing(mechanisms[query.label], seed))
        chosen = [labels.index(label) for label in found.value]
        others = [counts[i] for i in range(4) if i not in chosen]
        if top:
            short = max(others) - min(counts[i] for i in chosen)
        else:
            earlier = counts[: chosen[0]] if chosen else counts
            short = max([c - 95 for c in earlier] + [95 - counts[i] for i in chosen])
        right += short <= found.within(0.8)
    assert right >= 16
