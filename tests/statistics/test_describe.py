"""What is asked of a table: its price, its missing cells, and what is refused before it is paid."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import privlearn.statistics as private
from privlearn import ApproxDP, GaussianDP, PureDP
from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import AdjacencyError, BudgetError, DataError, LedgerError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import Currency
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.statistics.accounts import Terms, plan_for
from privlearn.statistics.choices import FirstAboveQuery, TopQuery
from privlearn.statistics.columns import Groups, cell_column, number_column
from privlearn.statistics.covariances import CovarianceQuery
from privlearn.statistics.displays import text_table
from privlearn.statistics.quantile_queries import QuantilesQuery
from privlearn.statistics.queries import HistogramQuery, MomentsQuery, Query, TotalQuery
from privlearn.tables import Boolean, Category, Date, Ignored, Number, Schema, read
from privlearn.values.adjacency import Adjacency

BUDGET = ApproxDP(1, "1e-6")
SCHEMA = Schema(
    {
        "age": Number(0, 100, optional=True),
        "job": Category(["clerk", "nurse"]),
        "ill": Boolean(optional=True),
        "since": Date("2020-01-01", "2020-12-31"),
        "id": Ignored(),
    }
)


def frame(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    age = rng.uniform(20, 60, n)
    age[::4] = np.nan
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "age": age,
            "job": np.where(np.arange(n) % 3, "nurse", "clerk"),
            "ill": [None, True, False, False] * (n // 4),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 366, n), "D"),
        }
    )


def test_one_plan_pays_for_all_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    found = private.describe(frame(), SCHEMA, BUDGET, ledger=path)
    assert list(found) == ["age", "job", "ill", "since"]
    certificate = audit(path, delta=1e-6)
    assert certificate.closed
    assert 0.9 < certificate.epsilon <= 1
    assert found.guarantee.startswith("ε = ")
    assert "at δ = 1e-06 for changing the record of one person" in found.guarantee
    assert str(path) in found.guarantee
    assert set(found["age"].estimates) == {"count", "missing", "mean", "sd"}
    assert list(found["age"].quantiles) == [0.25, 0.5, 0.75]
    assert list(found["job"].histogram) == ["clerk", "nurse", "missing"]
    assert "quantile 0.5" in str(found)
    assert found.guarantee.split(" for")[0] in str(found)
    with pytest.raises(LedgerError, match="finished statistics"):
        private.describe(frame(), SCHEMA, BUDGET, ledger=path)


@pytest.mark.parametrize("budget", [PureDP(1), GaussianDP("0.3"), BUDGET])
def test_the_plan_takes_the_whole_cap(budget: Any) -> None:
    column = number_column(SCHEMA, "age", what="mean")
    queries: list[Query] = [
        MomentsQuery(column, Groups(), 1.0, ("mean",)),
        QuantilesQuery(column, Groups(), private.describing._QUARTILES, 200),
        HistogramQuery(cell_column(SCHEMA, "job"), Groups()),
    ]
    planned = plan_for(queries, Terms(budget))
    cap: Currency = planned.cap
    total = cap.zero()
    for mechanism in planned.mechanisms.values():
        total += cap.price(mechanism.loss())
    assert cap.covers(total)
    assert not cap.share("0.999").covers(total)


def test_missing_cells_are_counted_and_never_read_as_zero() -> None:
    large = {"age": np.where(np.arange(4000) % 4, 80.0, np.nan)}
    schema = Schema({"age": SCHEMA.columns["age"]})
    found = private.describe(large, schema, PureDP(5), simulate_noise=0)["age"]
    assert float(found.mean) == pytest.approx(80, abs=0.5)
    assert float(found["missing"]) == pytest.approx(1000, abs=20)
    assert float(found.quantiles[0.25]) == pytest.approx(80, abs=0.5)
    total = private.sum(large, "age", PureDP(5), schema=schema, simulate_noise=0)
    assert total.value == pytest.approx(240_000, rel=0.01)
    assert found.guarantee.startswith("none: the noise is simulated")


def test_groups_have_statistics_of_their_own() -> None:
    data = frame(3000)
    found = private.mean(data, "age", PureDP(3), schema=SCHEMA, by="job", simulate_noise=1)
    assert set(found) == {"clerk", "nurse"}
    own = data[data.job == "nurse"].age
    assert float(found["nurse"].mean) == pytest.approx(own.mean(), abs=1)
    assert float(found["nurse"]["count"]) == pytest.approx(own.count(), abs=15)
    described = private.describe(data, SCHEMA, BUDGET, by="job", simulate_noise=1)
    assert set(described["age"]) == {"clerk", "nurse"}
    assert "missing" not in described["age"]["nurse"].estimates
    assert list(described["job"].histogram) == ["clerk", "nurse", "missing"]


def test_an_array_with_bounds_is_a_column() -> None:
    values = frame(2000).age.to_numpy()
    found = private.variance(values, budget=PureDP(4), bounds=(0, 100), simulate_noise=2)
    assert float(found["variance"]) == pytest.approx(np.nanvar(values), rel=0.1)
    low, high = found["variance"].interval()
    assert low < float(found["variance"]) < high
    wider = found["mean"].interval(sampling=True)
    assert wider[0] < found["mean"].interval()[0] < found["mean"].interval()[1] < wider[1]
    half = private.quantile(values, None, 0.5, PureDP(4), bounds=(0, 100), simulate_noise=2)
    assert half.value == pytest.approx(np.nanmedian(values), abs=2)
    without = private.quantiles(
        values, None, (0.1, 0.9), PureDP(4), bounds=(0, 100), intervals=False, simulate_noise=2
    )
    assert without.interval()[0.1] == (0, 100)
    assert len(found.to_frame()) == 4
    assert found.plot().figure_ is not None


def test_choices_and_second_moments_are_calls_like_the_others() -> None:
    data = frame(2000)
    top = private.top_k(data, "job", 1, PureDP(5), schema=SCHEMA, simulate_noise=0)
    assert top.value == ("nurse",)
    first = private.above_threshold(
        data, "age", 300.0, PureDP(5), schema=SCHEMA, bins=5, simulate_noise=0
    )
    assert first.value == ("20 – 40",)
    assert "20 – 40" in str(first)
    data["twice"] = 2 * data.age
    both = Schema({"age": Number(0, 100, optional=True), "twice": Number(0, 200, optional=True)})
    found = private.covariance(data, ["age", "twice"], PureDP(50), schema=both, simulate_noise=0)
    assert found.value == pytest.approx(np.array(data[["age", "twice"]].cov()), rel=0.1)
    one = private.correlation(
        data, ["age", "twice"], PureDP(50), bounds=(0, 200), by=None, simulate_noise=0
    )
    assert one.value[0, 1] == pytest.approx(1, abs=0.05)
    with pytest.raises(ValueError, match="below the number of cells"):
        private.top_k(data, "job", 2, PureDP(1), schema=SCHEMA)
    with pytest.raises(ValueError, match="two or more different names"):
        private.covariance(data, ["age", "age"], PureDP(1), schema=SCHEMA)
    with pytest.raises(TypeError, match="no keyword by"):
        private.top_k(data, "age", 1, PureDP(1), schema=SCHEMA, by="job")


def test_one_element_of_a_list_decides_neither_form_nor_type_of_the_others() -> None:
    for odd in ("x", [1, 2], 1j, None, "0.5"):
        found = private.mean([True] * 199 + [odd], budget=PureDP(500), bounds=(0, 1))
        assert float(found["mean"]) == pytest.approx(1, abs=0.01)
        assert float(found["count"]) == pytest.approx(199, abs=1.2)


def test_bins_are_declared() -> None:
    found = private.histogram(frame(), "age", PureDP(9), schema=SCHEMA, bins=[0, 30, 100])
    assert list(found.histogram) == ["0 – 30", "30 – 100", "missing"]
    assert sum(float(one) for one in found.histogram.values()) == pytest.approx(200, abs=15)
    edges = private.histogram(
        {"x": np.array([0.0, 5.0, 10.0])}, "x", PureDP(500), bounds=(0, 10), bins=2
    )
    assert [round(float(one)) for one in edges.histogram.values()] == [1, 2, 0]


def test_several_calls_share_an_accountant() -> None:
    book = CentralAccountant(
        PureDP(1), users=range(200), ledger=Ledger.memory(), noise=NoiseSource.simulation(0)
    )
    part = book.budget.share("1/4")
    private.count(frame(), "age", part, schema=SCHEMA, accountant=book)
    private.mean(frame(), "age", part, schema=SCHEMA, accountant=book)
    private.histogram(frame(), "job", schema=SCHEMA, accountant=book)
    with pytest.raises(BudgetError):
        private.mean(frame(), "age", part, schema=SCHEMA, accountant=book)
    with pytest.raises(BudgetError, match="200 users"):
        private.mean(frame(100), "age", part, schema=SCHEMA, accountant=book)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"budget": None}, BudgetError, "state it"),
        ({"budget": 1.0}, TypeError, "must be ApproxDP"),
        ({"budget": ApproxDP(0, "1e-6")}, BudgetError, "> 0"),
        ({"column": "wage"}, ValueError, "'wage'.*declares 'age'"),
        ({"column": "job"}, ValueError, "use histogram"),
        ({"by": "age"}, ValueError, "by = 'age' is a Number"),
        ({"schema": None}, ValueError, "schema or bounds"),
        ({"epsilon": 1}, TypeError, "no keyword epsilon"),
        ({"data": frame()[["job"]]}, DataError, "age"),
        ({"schema": Schema({"age": Number(0, 1)}, person="id")}, ValueError, "one row of each"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_spent(
    keywords: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.db"
    given = {"data": frame(), "column": "age", "budget": BUDGET, "schema": SCHEMA, "ledger": path}
    with pytest.raises(error, match=words):
        private.mean(**(given | keywords))
    assert not path.exists()


def test_neither_persons_with_many_rows_nor_a_secret_number_of_rows_is_described() -> None:
    table = read(frame(), SCHEMA, people=np.arange(200) // 4)
    with pytest.raises(ValueError, match="one row for one person"):
        private.mean(table, "age", BUDGET, schema=SCHEMA)
    book = CentralAccountant(
        PureDP(1),
        users=range(200),
        adjacency=Adjacency.ADD_REMOVE,
        noise=NoiseSource.simulation(0),
    )
    with pytest.raises(AdjacencyError, match="hides the number of rows"):
        private.histogram(frame(), "job", schema=SCHEMA, accountant=book)


@pytest.mark.parametrize("bins", [0, [1], [3, 2], True, [0, np.nan]])
def test_bins_that_are_none_are_refused(bins: Any) -> None:
    with pytest.raises(ValueError, match="bins"):
        private.histogram(frame(), "age", BUDGET, schema=SCHEMA, bins=bins)


def test_what_is_found_depends_on_what_was_released_alone() -> None:
    """Asked of other rows with the same releases, every query finds the same."""
    others = frame(400).iloc[200:].assign(age=33.0, job="nurse", ill=None)
    tables = [read(each, SCHEMA) for each in (frame(), others)]
    age, since = (number_column(SCHEMA, name, what="test") for name in ("age", "since"))
    job, bins = cell_column(SCHEMA, "job"), cell_column(SCHEMA, "age", 7)
    queries: list[Query] = [FirstAboveQuery(job, 50.0), TopQuery(bins, 2)]
    for groups in (Groups(), Groups(job)):
        queries.append(MomentsQuery(age, groups, 1.0, ("count", "missing", "mean", "sd")))
        queries.append(QuantilesQuery(age, groups, (Fraction(1, 4), Fraction(1, 2)), 200))
        queries += [TotalQuery(age, groups, "sum"), TotalQuery(bins, groups, "count")]
        queries += [HistogramQuery(bins, groups), CovarianceQuery((age, since), groups, False)]
    for query in queries:
        made = query.mechanisms(PureDP(3))
        released: dict[str, Any] = {}
        book = CentralAccountant(PureDP(3), users=range(200), noise=NoiseSource.simulation(2))
        book.commit(**made)

        def release(label: str, records: Any, *, book: Any = book, kept: Any = released) -> Any:
            if label not in kept:
                kept[label] = book.release(label, Rows.seal(records, users=range(200))).value
            return kept[label]

        once = query.ask(tables[0], made, release)
        again = query.ask(tables[1], made, release)
        assert [str(each) for each in once] == [str(each) for each in again], query.label


def test_contents_never_raise_and_null_cells_change_no_form() -> None:
    data = pd.DataFrame({"age": ["x", None, "1e999", "33"] * 50, "job": ["pilot"] * 200})
    schema = Schema({"age": Number(0, 100, optional=True), "job": Category(["a", "b"])})
    found = private.describe(data, schema, PureDP(50), by="job", simulate_noise=3)
    assert float(found["job"].histogram["missing"]) == pytest.approx(200, abs=5)
    low, high = found["age"]["a"]["mean"].interval()
    assert (low, high) == (0, 100)


def test_text_has_few_digits_and_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = private.describe(frame(), SCHEMA, BUDGET, simulate_noise=1)
    assert repr(found) == str(found)
    assert "\x1b" not in str(found)
    assert repr(found["age"].mean) == "<mean: 35, 95% interval 16 … 53>"
    assert "since (days since 2020-01-01)" in str(found)
    assert not re.search(r"\d\.\d{4}", str(found))
    rows = [
        {"column": "x", "group": None, "statistic": "mean"} | ends
        for ends in (
            {"value": 1234.5678, "low": 1234.561, "high": 1234.5999},
            {"value": 0.0, "low": 0.0, "high": 0.0},
        )
    ]
    assert "1,234.568   1,234.561 … 1,234.600" in text_table(rows, "", 0.95)


def test_as_many_cells_as_can_be_counted() -> None:
    many = Schema({"x": Category([str(i) for i in range(20_000)])})
    found = private.histogram({"x": ["1"] * 50}, "x", BUDGET, schema=many)
    assert len(found.rows()) == 20_001
    with pytest.raises(ValueError, match=r"column 'x': 100,001 values .*Ignored"):
        private.describe({"x": ["1"]}, Schema({"x": Category(range(100_001))}), BUDGET)
