"""Queries of polars frames under our accounts; what this version prices too low is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from privlearn.accountants import CentralAccountant
from privlearn.bridges.opendp import meter_context, meter_measurement
from privlearn.bridges.opendp_frames import _kept
from privlearn.errors import AdjacencyError, BudgetError, InsufficientBudgetError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.values.adjacency import Adjacency

dp: Any = pytest.importorskip("opendp.prelude", reason="opendp is not installed")
pl: Any = pytest.importorskip("polars", reason="polars is not installed")
WANTED = import_module("opendp.mod")._EXPECTED_POLARS_VERSION
if pl.__version__ != WANTED:
    pytest.skip(
        f"OpenDP computes frames of polars {WANTED} only; installed is {pl.__version__}",
        allow_module_level=True,
    )
dp.enable_features("contrib", "honest-but-curious")

ROWS = pl.LazyFrame({"id": [0, 0, 0, 1, 2, 3], "g": ["a", "a", "b", "b", "c", "c"], "x": range(6)})


def account(cap: Currency | None = None, relation: Adjacency = Adjacency.ADD_REMOVE) -> Any:
    return CentralAccountant(
        cap or ZCDP(10**6), users=range(6), adjacency=relation, ledger=Ledger.memory()
    )


def context(loss: Any, **unit: Any) -> Any:
    return dp.Context.compositor(
        data=ROWS,
        privacy_unit=dp.unit_of(contributions=1, **unit),
        privacy_loss=loss,
        split_evenly_over=2,
        margins=[dp.polars.Margin(max_length=100)],
    )


def ask(asked: Any, scale: float = 2.5, *, truncated: int | None = None) -> Any:
    """A count with stated noise: `release` takes seconds to find a scale."""
    query, (domain, metric) = asked.query(), asked.accountant.input_space
    if truncated is not None:
        query = query.truncate_per_group(truncated)
    plan = query.select(dp.len(scale=scale, signed=True))
    return asked(
        dp.m.make_private_lazyframe(
            domain,
            metric,
            asked.accountant.output_measure,
            object.__getattribute__(plan, "polars_plan"),
        )
    )


def test_a_query_pays_and_its_frame_is_drawn_once() -> None:
    accountant, asked = account(PureDP("0.7")), context(dp.loss_of(epsilon=1.0))
    meter_context(accountant, asked)
    released = ask(asked)
    assert float(accountant.spent().epsilon) == pytest.approx(0.4)
    drawn = [released.collect().item() for _ in range(20)]
    assert len(set(drawn)) == 1  # the library's own frame refuses to be collected twice
    with pytest.raises(InsufficientBudgetError):
        ask(asked)
    assert len(asked.current_privacy_loss()) == 1


def test_a_measurement_of_a_frame_pays() -> None:
    accountant = account(PureDP(1))
    domain = dp.lazyframe_domain([dp.series_domain("x", dp.atom_domain(T="i64"))])
    plan = pl.LazyFrame(schema={"x": pl.Int64}).select(dp.len(scale=2.0, signed=True))
    metered = meter_measurement(
        accountant,
        dp.m.make_private_lazyframe(domain, dp.symmetric_distance(), dp.max_divergence(), plan),
        1,
    )
    assert metered(ROWS.select("x")).collect().shape == (1, 1)
    assert accountant.spent() == PureDP("0.5")


def test_identifiers_bound_a_person_whose_rows_are_truncated() -> None:
    accountant, asked = account(PureDP("0.7")), context(dp.loss_of(epsilon=1.0), identifier="id")
    meter_context(accountant, asked)
    ask(asked, 5.0, truncated=2)
    assert float(accountant.spent().epsilon) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="counts identifiers"):
        meter_context(account(), context(dp.loss_of(epsilon=1.0), identifier="id"), rows_each=2)


def test_bounds_by_group_are_those_of_a_person_who_joins() -> None:
    bounds = [dp.polars.Bound(per_group=3), dp.polars.Bound(by=["g"], per_group=2, num_groups=2)]

    def asked() -> Any:
        return dp.Context.compositor(
            data=ROWS,
            privacy_unit=dp.unit_of(contributions=bounds),
            privacy_loss=dp.loss_of(epsilon=1.0),
            split_evenly_over=2,
        )

    accountant, metered = account(), asked()
    meter_context(accountant, metered, rows_each=3)
    ask(metered, 7.5)
    assert float(accountant.spent().rho) == pytest.approx(0.4 * math.tanh(0.2))  # of ε = 0.4
    with pytest.raises(AdjacencyError, match="per_group=1"):
        meter_context(account(), asked())
    with pytest.raises(AdjacencyError, match="bounds by group"):
        meter_context(account(relation=Adjacency.REPLACE_ONE), asked(), rows_each=6)


# Published faults, each rebuilt in this version ---------------------------------------------------


def of_frame(domain: Any, measure: Any, plan: Any, metric: Any = None, **others: Any) -> Any:
    return dp.m.make_private_lazyframe(
        domain, metric or dp.symmetric_distance(), measure, plan, **others
    )


def refused(measurement: Any, d_in: Any, why: str, **others: Any) -> None:
    accountant = account()
    with pytest.raises(BudgetError, match=rf"{why}.*nothing was spent"):
        meter_measurement(accountant, measurement, d_in, **others)
    assert accountant.spent() == ZCDP(0)


NUMBERS = pl.LazyFrame({"x": [float("nan"), *[1.0] * 15], "m": [0, *[3] * 15]})


@pytest.mark.parametrize(
    ("issue", "column"),
    [
        (2938, lambda: pl.col("x").fill_null(0.0).cast(pl.Int64, strict=False)),
        (2939, lambda: pl.col("x").fill_null(0.0).cut([1.5])),
        (2940, lambda: pl.lit(1) % pl.col("m").fill_null(0)),
    ],
)
def test_counts_behind_an_invariant_come_without_noise(
    issue: int, column: Callable[[], Any]
) -> None:
    columns = [
        dp.series_domain("x", dp.option_domain(dp.atom_domain(T=float))),
        dp.series_domain("m", dp.option_domain(dp.atom_domain(T="i64"))),
    ]
    domain = dp.with_margin(
        dp.lazyframe_domain(columns), dp.polars.Margin(max_length=16, invariant="lengths")
    )
    plan = NUMBERS.select(column().count().dp.noise())
    free = of_frame(domain, dp.max_divergence(), plan, global_scale=1.0)
    assert free.map(2) == 0  # and yet it tells how many of the numbers are of one kind:
    assert {free(NUMBERS).collect().item() for _ in range(3)} == {15}
    refused(free, 2, str(issue), rows_each=2)


def summed(max_length: int) -> Any:
    schema = {"A": pl.String, "B": pl.Int32}
    columns = [
        dp.series_domain("A", dp.atom_domain(T=str)),
        dp.series_domain("B", dp.atom_domain(T=int)),
    ]
    domain = dp.with_margin(
        dp.lazyframe_domain(columns), dp.polars.Margin(by=["A"], max_length=max_length)
    )
    plan = pl.LazyFrame(schema=schema).group_by("A").agg(pl.col("B").dp.sum((-10, 10), scale=30.0))
    keyed = pl.LazyFrame({"A": ["a"]}).join(plan, on="A", how="left", nulls_equal=True)
    return of_frame(domain, dp.max_divergence(), keyed)


def test_a_short_group_is_taken_for_the_most_that_changes() -> None:
    short = summed(3)
    true = 6 * 10 / 30  # three rows of 10 leave, three of −10 join
    assert short.map(6) < true
    refused(short, 6, "2945", rows_each=6)
    accountant = account(PureDP(3))
    meter_measurement(accountant, summed(6), 6, rows_each=6)
    assert summed(6).map(6) >= true
    meter_measurement(accountant, short, 3, rows_each=3)  # as many as one person has


def domain_of_rows() -> Any:
    return dp.lazyframe_domain(
        [dp.series_domain(name, dp.atom_domain(T="i64")) for name in ("id", "g")]
    )


def truncated(*, again: bool, before: bool = True, space: Any = None) -> Any:
    plan = pl.LazyFrame(schema={"id": pl.Int64, "g": pl.Int64})
    if before:
        plan = plan.filter(pl.int_range(pl.len()).over("id", "g") < 1)
        plan = plan.filter(pl.struct("g").rank("dense").over("id") < 101)
        metric = dp.symmetric_id_distance(identifier=pl.col("id"))
    else:
        metric = dp.frame_distance(dp.symmetric_distance())
    if again:
        plan = plan.with_columns(g=pl.lit(0, dtype=pl.Int64))
    counts = plan.group_by("g").agg(dp.len(scale=1.0, signed=True))
    domain, metric = space or (domain_of_rows(), metric)
    keyed = pl.LazyFrame({"g": [0]}).join(counts, on="g", how="left", nulls_equal=True)
    return of_frame(domain, dp.zero_concentrated_divergence(), keyed, metric)


def test_columns_that_are_defined_after_a_truncation_undo_it() -> None:
    undone = truncated(again=True)
    assert undone.map(1) < 100**2 / 2  # one person has 100 rows in the one group that is left
    refused(undone, 1, "2949")
    accountant = account()
    meter_measurement(accountant, truncated(again=False), 1)
    both = dp.c.make_composition([truncated(again=False), undone])
    refused(both, 1, "2949")


def test_columns_that_are_defined_anew_undo_bounds_by_group() -> None:
    bounds = [
        dp.polars.Bound(per_group=100),
        dp.polars.Bound(by=["g"], per_group=1, num_groups=100),
    ]
    for again, true in ((False, 1 / 2), (True, 100**2 / 2)):
        measurement = truncated(again=again, before=False)
        assert measurement.map(bounds) == 1 / 2
        if true == 1 / 2:
            meter_measurement(account(), measurement, bounds, rows_each=100)
        else:
            refused(measurement, bounds, "2949", rows_each=100)


def test_a_plan_behind_another_is_not_seen() -> None:
    metric = dp.symmetric_id_distance(identifier=pl.col("id"))
    plan = pl.LazyFrame(schema={"id": pl.Int64, "g": pl.Int64})
    plan = plan.filter(pl.int_range(pl.len()).over("id", "g") < 1)
    first = dp.t.make_stable_lazyframe(
        domain_of_rows(),
        metric,
        plan.filter(pl.struct("g").rank("dense").over("id") < 101),
        MO="FrameDistance<SymmetricDistance>",
    )
    space = first.output_domain, first.output_metric
    undone = first >> truncated(again=True, before=False, space=space)
    assert undone.map(1) < 100**2 / 2
    refused(undone, 1, "is not to be seen")


@pytest.mark.parametrize(
    ("issue", "column"),
    [
        (2936, lambda: pl.col("x").fill_null(float("nan")).clip(0.0, 1.0).sum()),
        (2936, lambda: pl.col("x").fill_null(pl.col("y")).clip(0.0, 1.0).sum()),
        (2942, lambda: pl.col("t").dt.year().clip(2000, 2030).sum()),
        (2944, lambda: pl.col("x").cut([1.0]).to_physical().clip(0, 1).sum()),
        (2938, lambda: pl.col("x").cast(pl.Int64, strict=False).null_count()),
    ],
)
def test_expressions_that_are_known_to_be_wrong(issue: int, column: Callable[[], Any]) -> None:
    schema = {"x": pl.Float64, "y": pl.Float64, "t": pl.Datetime("us")}
    plan = pl.LazyFrame(schema=schema).select(column())
    with pytest.raises(BudgetError, match=rf"opendp issue {issue}: .*nothing was spent"):
        _kept(plan.explain(optimized=False), of_people=False, grouped=False)


def test_codes_of_categories_follow_the_rows_before() -> None:
    columns = [dp.series_domain("x", dp.atom_domain(T=float, nan=False))]
    domain = dp.with_margin(dp.lazyframe_domain(columns), dp.polars.Margin(max_length=101))
    codes = pl.col("x").cut([1.0]).to_physical().dp.sum((0, 1), scale=1.0)
    plan = pl.LazyFrame(schema={"x": pl.Float64}).select(codes)
    summed = of_frame(domain, dp.max_divergence(), plan)
    assert summed.map(1) == 1  # and yet one row that joins moves the sum by 100:
    one = summed(pl.LazyFrame({"x": [0.5] * 100})).collect().item()
    assert summed(pl.LazyFrame({"x": [2.0, *[0.5] * 100]})).collect().item() > one + 50
    refused(summed, 1, "2944")


def test_a_map_that_fails_is_no_price() -> None:
    """Opendp issue 1908: the measurement runs, its map does not."""

    def failing(_: Any) -> float:
        raise ValueError("max_num_partitions must be known")

    space = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    measurement = dp.m.make_user_measurement(
        *space, dp.max_divergence(), lambda _: 0.0, failing, TO=float
    )
    assert measurement([1]) == 0.0
    refused(measurement, 1, "the map has no price at d_in = 1")


def test_plans_that_nobody_sees_are_refused() -> None:
    later = dp.c.make_adaptive_composition(
        domain_of_rows(),
        dp.symmetric_id_distance(identifier=pl.col("id")),
        dp.max_divergence(),
        d_in=1,
        d_mids=[1.0],
    )
    refused(later, 1, "is not to be seen")
