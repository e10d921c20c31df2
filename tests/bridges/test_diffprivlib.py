"""diffprivlib under an account of ours: the real package, its prices, and what is refused.

Published faults that are rebuilt here: diffprivlib issue 80 (a NaN among the data comes out) and
issues 104 and 105 (sensitivities of linear regression and k-means; `test_diffprivlib_cases` has
them as functions).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffprivlib_here import use_diffprivlib
from pages import run_page

from privlearn.accountants import CentralAccountant, audit
from privlearn.bridges import installed
from privlearn.bridges.diffprivlib import diffprivlib_accountant
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    DataError,
    InsufficientBudgetError,
    PackageError,
    TokenCopyError,
    TokenError,
    UsersError,
)
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency

pytestmark = pytest.mark.filterwarnings("ignore")  # it warns of what is refused

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
N = 60
X = np.random.default_rng(0).uniform(0, 10, N)
TABLE = np.random.default_rng(1).uniform(0, 10, (N, 3))
LABELS = (TABLE[:, 0] > 5).astype(int)
SMALL: Any = {"epsilon": 0.5, "random_state": 7}
HOLED = np.where(X > 9, np.nan, X)


@pytest.fixture(scope="module")
def dpl() -> Any:
    use_diffprivlib()
    import diffprivlib.models
    import diffprivlib.tools

    return diffprivlib


def account(cap: Any = 100, **others: Any) -> CentralAccountant[Any]:
    return CentralAccountant(PureDP(cap), users=range(N), noise=NoiseSource.simulation(1), **others)


def spends(accountant: Any) -> list[SpendEntry]:
    return [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]


def fitted(model: Any, *names: str) -> list[Any]:
    return [getattr(model, name) for name in names]


def trees(model: Any) -> list[Any]:
    return [one.tree_.value for one in model.estimators_]


# name: the call, and what it costs in units of ε for a replaced and for an added record
CALLS: dict[str, tuple[Callable[[Any, Any], Any], int, int | None]] = {
    "mean": (lambda d, a: d.tools.mean(X, bounds=(0, 10), accountant=a, **SMALL), 1, None),
    "mean by column": (
        lambda d, a: d.tools.mean(TABLE, bounds=(0, 10), axis=0, accountant=a, **SMALL),
        1,
        None,
    ),
    "sum": (lambda d, a: d.tools.sum(X, bounds=(0, 10), accountant=a, **SMALL), 1, None),
    "var": (lambda d, a: d.tools.var(X, bounds=(0, 10), accountant=a, **SMALL), 1, None),
    "std": (lambda d, a: d.tools.std(X, bounds=(0, 10), accountant=a, **SMALL), 1, None),
    "nansum": (lambda d, a: d.tools.nansum(HOLED, bounds=(0, 10), accountant=a, **SMALL), 1, None),
    "count": (lambda d, a: d.tools.count_nonzero(X > 3, accountant=a, **SMALL), 1, None),
    "quantiles": (
        lambda d, a: d.tools.quantile(X, [0.1, 0.5, 0.9], bounds=(0, 10), accountant=a, **SMALL),
        1,
        1,
    ),
    "percentile": (
        lambda d, a: d.tools.percentile(X, 20, bounds=(0, 10), accountant=a, **SMALL),
        1,
        1,
    ),
    "median": (lambda d, a: d.tools.median(X, bounds=(0, 10), accountant=a, **SMALL), 1, 1),
    "histogram": (
        lambda d, a: d.tools.histogram(X, bins=4, range=(0, 10), accountant=a, **SMALL)[0],
        2,
        1,
    ),
    "edges": (
        lambda d, a: d.tools.histogram(X, bins=[0, 3, 10], accountant=a, **SMALL)[0],
        2,
        1,
    ),
    "histogramdd": (
        lambda d, a: d.tools.histogramdd(
            TABLE, bins=[2, [0, 4, 10], 1], range=[(0, 10), None, (0, 10)], accountant=a, **SMALL
        )[0],
        2,
        1,
    ),
    "histogram2d": (
        lambda d, a: d.tools.histogram2d(
            X, TABLE[:, 0], bins=3, range=[(0, 10), (0, 10)], accountant=a, **SMALL
        )[0],
        2,
        1,
    ),
    "scaler": (
        lambda d, a: fitted(
            d.models.StandardScaler(bounds=(0, 10), accountant=a, **SMALL).fit(TABLE),
            "mean_",
            "var_",
        ),
        1,
        None,
    ),
    "forest": (
        lambda d, a: trees(
            d.models.RandomForestClassifier(
                n_estimators=2, bounds=(0, 10), classes=[0, 1], max_depth=2, accountant=a, **SMALL
            ).fit(TABLE, LABELS)
        ),
        2,
        None,
    ),
}


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
def test_the_same_program_pays_before_and_finds_the_same(
    relation: Adjacency, dpl: Any, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    accountant = CentralAccountant(PureDP(100), users=range(N), ledger=path, adjacency=relation)
    ours, whole = diffprivlib_accountant(accountant), 0.0
    for name, (call, replaced, added) in CALLS.items():
        times = replaced if relation is Adjacency.REPLACE_ONE else added
        before = len(accountant.ledger.entries)
        if times is None:
            with pytest.raises(AdjacencyError, match="public number of records"):
                call(dpl, ours)
            assert len(accountant.ledger.entries) == before, name
            continue
        alone = dpl.BudgetAccountant()
        with_ours, with_theirs = call(dpl, ours), call(dpl, alone)
        np.testing.assert_equal(with_ours, with_theirs)
        whole += times * 0.5
        assert alone.total()[0] == pytest.approx(0.5), name
        assert ours.total()[0] == whole, name
    accountant.close()
    found = audit(path, delta=0)
    assert not found.problems
    assert found.spent[0].epsilon == pytest.approx(whole)
    assert any("0.6.6" in each and "in doubles, from a seed" in each for each in found.trusted_code)


def test_an_overspend_is_refused_before_the_library_draws(dpl: Any) -> None:
    accountant = account(1)
    ours, seed = diffprivlib_accountant(accountant), np.random.RandomState(3)
    state = seed.get_state(legacy=False)["state"]["pos"]
    with pytest.raises(InsufficientBudgetError):
        dpl.tools.mean(
            TABLE, epsilon=1.5, bounds=(0, 10), axis=0, accountant=ours, random_state=seed
        )
    assert seed.get_state(legacy=False)["state"]["pos"] == state
    assert not spends(accountant)
    dpl.tools.mean(TABLE, epsilon=1, bounds=(0, 10), axis=0, accountant=ours)  # 3 parts of 1/3
    assert accountant.remaining() == PureDP(0)


def test_ten_calls_of_a_tenth_cost_one(dpl: Any) -> None:
    accountant = account(1)
    ours = diffprivlib_accountant(accountant)
    for _ in range(10):
        dpl.tools.median(X, epsilon=0.1, bounds=(0, 10), accountant=ours)
    assert accountant.remaining() == PureDP(0)
    with pytest.raises(InsufficientBudgetError):
        dpl.tools.median(X, epsilon=1e-9, bounds=(0, 10), accountant=ours)


def linear(d: Any, a: Any) -> Any:
    bounds = {"bounds_X": (0, 10), "bounds_y": (0, 1)}
    return d.models.LinearRegression(accountant=a, **bounds).fit(TABLE, LABELS)


OF_VALUES = {
    "bounds of the data, hidden",
    "bounds of equal data",
    "issue 80",
    "issue 80, quantile",
}
"""Refused behind the spend: that they are refused tells of the data."""
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "bounds of the data": (
        lambda d, a: d.tools.mean(X, accountant=a),
        BudgetError,
        "bounds were not given",
    ),
    "bounds of the data, hidden": (
        lambda d, a: d.tools.quantile(X, 0.5, accountant=a),
        DataError,
        "smallest and the largest number of the data",
    ),
    "bounds of equal data": (
        lambda d, a: d.tools.quantile(np.full(N, 3.0), 0.5, accountant=a),
        DataError,
        "smallest and the largest number of the data",
    ),
    "bounds of the data, by percentile": (
        lambda d, a: d.tools.percentile(X, 50, accountant=a),
        BudgetError,
        "bounds were not given",
    ),
    "bounds of the data, in a model": (
        lambda d, a: d.models.StandardScaler(accountant=a).fit(TABLE),
        BudgetError,
        "bounds were not given",
    ),
    "classes of the data": (
        lambda d, a: d.models.RandomForestClassifier(bounds=(0, 10), accountant=a).fit(
            TABLE, LABELS
        ),
        BudgetError,
        "give classes",
    ),
    "range of the data": (
        lambda d, a: d.tools.histogram(X, accountant=a),
        BudgetError,
        "range was not given",
    ),
    "range of one dimension of the data": (
        lambda d, a: d.tools.histogramdd(
            TABLE, bins=[2, 2, 2], range=((0, 10), None, (0, 10)), accountant=a
        ),  # a tuple: of which the library does not warn
        BudgetError,
        "range was not given",
    ),
    "number of bins of the data": (
        lambda d, a: d.tools.histogram(X, bins="auto", range=(0, 10), accountant=a),
        BudgetError,
        "number of bins",
    ),
    "weights": (
        lambda d, a: d.tools.histogram(X, range=(0, 10), weights=X, accountant=a),
        BudgetError,
        "weights",
    ),
    "issue 80": (
        lambda d, a: d.tools.mean(HOLED, bounds=(0, 10), accountant=a),
        DataError,
        "issue 80",
    ),
    "issue 80, quantile": (
        lambda d, a: d.tools.median(HOLED, bounds=(0, 10), accountant=a),
        DataError,
        "issue 80",
    ),
    "masked ones in n": (
        lambda d, a: d.tools.mean(np.ma.masked_greater(X, 9), bounds=(0, 10), accountant=a),
        DataError,
        "MaskedArray",
    ),
    "missing ones in n": (
        lambda d, a: d.tools.nanmean(HOLED, bounds=(0, 10), accountant=a),
        BudgetError,
        "divides by all records",
    ),
    "missing ones as 0": (
        lambda d, a: d.tools.nansum(HOLED, bounds=(5, 10), accountant=a),
        BudgetError,
        "counts as 0",
    ),
    "issues 104 and 105": (linear, BudgetError, "issues 104, 105"),
    "issue 104, k-means": (
        lambda d, a: d.models.KMeans(3, bounds=(0, 10), accountant=a).fit(TABLE),
        BudgetError,
        "issue 104",
    ),
    "classes of the data, naive": (
        lambda d, a: d.models.GaussianNB(bounds=(0, 10), accountant=a).fit(TABLE, LABELS),
        BudgetError,
        "joins a class",
    ),
    "components": (
        lambda d, a: d.models.PCA(2, bounds=(0, 10), data_norm=9, accountant=a).fit(TABLE),
        BudgetError,
        "not proved",
    ),
    "a tree": (
        lambda d, a: d.models.DecisionTreeClassifier(accountant=a).fit(TABLE, LABELS),
        BudgetError,
        "n_estimators=1",
    ),
    "several numbers of a record": (
        lambda d, a: d.tools.mean(TABLE, bounds=(0, 10), accountant=a),
        DataError,
        "axis=0",
    ),
    "along a record": (
        lambda d, a: d.tools.mean(TABLE, bounds=(0, 10), axis=1, accountant=a),
        DataError,
        "axis=0",
    ),
    "more rows than people": (
        lambda d, a: d.tools.mean(np.r_[X, X], bounds=(0, 10), accountant=a),
        UsersError,
        "rows_each",
    ),
    "sums that overflow": (
        lambda d, a: d.tools.sum(X, bounds=(0, 10), dtype=np.int8, accountant=a),
        DataError,
        "dtype",
    ),
    "means that are cut to integers": (
        lambda d, a: d.tools.mean(X, bounds=(0, 10), dtype=int, accountant=a),
        DataError,
        "dtype",
    ),
    "sums that are rounded": (
        lambda d, a: d.tools.sum(X.astype(np.float16), bounds=(0, 10), accountant=a),
        DataError,
        "astype",
    ),
    "sums that are coarse": (
        lambda d, a: d.tools.sum(X, bounds=(1e15, 1e15 + 1), accountant=a),
        DataError,
        "too coarse",
    ),
    "no noise": (
        lambda d, a: d.tools.mean(X, epsilon=np.inf, bounds=(0, 10), accountant=a),
        ValueError,
        "finite",
    ),
    "endless bounds": (
        lambda d, a: d.tools.mean(X, bounds=(0, np.inf), accountant=a),
        ValueError,
        "finite",
    ),
    "behind its doors": (
        lambda d, a: d.tools.utils._mean(X, bounds=(0, 10), accountant=a),
        BudgetError,
        "has no price here",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_sound_price_is_refused_by_name_and_not_for_values_before_it_is_paid(
    name: str, dpl: Any
) -> None:
    call, error, words = REFUSED[name]
    accountant = account()
    with pytest.raises(error, match=words) as found:
        call(dpl, diffprivlib_accountant(accountant))
    of_values = name in OF_VALUES
    ends = [e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert ends == (["uncovered"] if of_values else [])
    assert len(spends(accountant)) == of_values
    assert not any(str(one) in str(found.value) for one in X.tolist())


def test_a_call_that_fails_stays_charged_and_the_next_is_paid(dpl: Any) -> None:
    accountant = account()
    ours = diffprivlib_accountant(accountant)
    endless = np.where(TABLE > 9, np.inf, TABLE)  # which scikit-learn refuses
    with pytest.raises(ValueError, match="infinity"):
        dpl.models.StandardScaler(bounds=(0, 10), accountant=ours, **SMALL).fit(endless)
    dpl.tools.median(X, bounds=(0, 10), accountant=ours, **SMALL)
    assert accountant.spent() == PureDP(1)
    ends = [e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert ends == ["uncovered", "released"]


def test_several_rows_of_a_person_cost_as_many_times(dpl: Any) -> None:
    accountant = account()
    ours = diffprivlib_accountant(accountant, rows_each=3, label="clinic")
    dpl.tools.histogram(np.r_[X, X, X], range=(0, 10), accountant=ours, **SMALL)
    assert accountant.spent() == PureDP(3)
    assert {e.label for e in accountant.ledger.entries if hasattr(e, "label")} == {"clinic"}


def test_the_number_of_records_is_not_told_where_it_is_not_public(dpl: Any) -> None:
    for relation, told in (Adjacency.REPLACE_ONE, True), (Adjacency.ADD_REMOVE, False):
        accountant = account(adjacency=relation)
        ours = diffprivlib_accountant(accountant)
        dpl.tools.median(X, bounds=(0, 10), accountant=ours, **SMALL)
        (spend,) = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
        assert ("rows" in spend.parameters["metered"]["parameters"]) is told
        with pytest.raises(UsersError) as refused:
            dpl.tools.median(np.r_[X, X, X], bounds=(0, 10), accountant=ours, **SMALL)
        assert str(3 * len(X)) not in str(refused.value).replace("diffprivlib", "")


def test_a_default_pays_once_for_a_forest_and_copies_are_the_account_itself(dpl: Any) -> None:
    from sklearn.base import clone

    accountant = account()
    ours = diffprivlib_accountant(accountant)
    with ours:
        forest = dpl.models.RandomForestClassifier(
            n_estimators=3, bounds=(0, 10), classes=[0, 1], **SMALL
        ).fit(TABLE, LABELS)
    assert accountant.spent() == PureDP(1)
    clone(forest).fit(TABLE, LABELS)  # a copy of theirs has the whole budget again
    assert accountant.spent() == PureDP(2)
    with pytest.raises(TokenCopyError, match="threads"):
        pickle.dumps(ours)
    with pytest.raises(BudgetError, match="account"):
        ours.remaining()
    with pytest.raises(BudgetError, match="composes"):
        ours.slack = 1e-6
    with pytest.raises(TokenError, match="without asking"):
        dpl.tools.mean(X, bounds=(0, 10), accountant=Unasked(ours))


def Unasked(ours: Any) -> Any:
    """An accountant that does not ask."""
    ours.check = lambda epsilon, delta: True
    return ours


def test_threads_pay_for_their_own_calls(dpl: Any) -> None:
    accountant = account()
    ours = diffprivlib_accountant(accountant)

    def many(seed: int) -> list[float]:
        one: list[float] = dpl.tools.mean(
            TABLE, epsilon=0.25, bounds=(0, 10), axis=0, accountant=ours, random_state=seed
        ).tolist()
        return one

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(many, [0] * 12))
    assert found == [found[0]] * 12
    assert accountant.spent() == PureDP(3)
    outcomes = {e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)}
    assert outcomes == {"released"}


def test_a_library_that_was_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda name: "0.7.0")
    with pytest.raises(PackageError, match=r"0\.7\.0.*0\.6\.6 only, nothing was spent"):
        diffprivlib_accountant(account())

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "version", missing)
    with pytest.raises(PackageError, match="not installed, nothing was spent: pip install"):
        diffprivlib_accountant(account())


def test_the_program_of_the_page_runs(
    dpl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "diffprivlib.md").read_text(encoding="utf-8").replace("```py\n", "```python\n")
    assert run_page(page, "diffprivlib.md", tmp_path, monkeypatch) == 1
    assert audit(tmp_path / "ages.db", delta=0).spent[0].epsilon == 1.5


# Prices: how often the library's own noise lets out what tells two neighbours apart ---------------


def bins(dpl: Any, data: Any, seed: Any) -> bool:
    counts = dpl.tools.histogram(data, epsilon=1, bins=2, range=(0, 10), random_state=seed)[0]
    return bool(counts[0] >= 9 and counts[1] <= 0)


def leaf(dpl: Any, data: Any, seed: Any) -> bool:
    tree = dpl.models.forest._FittingTree(1, 1, np.array([0, 1]), 1.0, ([0.0], [10.0]), seed)
    tree.build().fit(data[:, :1], data[:, 1])
    return bool(tree.values_[tree.apply(data[:, :1])[0], 0, 0] == 1)


def added(dpl: Any, data: Any, seed: Any) -> bool:
    return bool(dpl.tools.sum(data, epsilon=1, bounds=(8, 10), random_state=seed) > 50)


def missing(dpl: Any, data: Any, seed: Any) -> bool:
    return bool(dpl.tools.nansum(data, epsilon=1, bounds=(8, 10), random_state=seed) <= 40)


_one, _other = np.array([[5.0, 0.0]]), np.array([[5.0, 1.0]])
PRICES: dict[str, tuple[Any, Any, Any, int, float]] = {
    "a record goes to another bin": (
        *(bins, np.full(9, 2.0), np.r_[[7.0], np.full(8, 2.0)]),
        *(1000, 2),
    ),
    "a record goes to another class": (leaf, _one, _other, 400, 2),
    "a record joins a sum": (added, np.full(6, 9.0), np.full(5, 9.0), 300, np.inf),
    "a value is missing": (missing, np.r_[[np.nan], np.full(4, 9.0)], np.full(5, 9.0), 300, np.inf),
}


@pytest.mark.parametrize("name", PRICES)
def test_a_price_is_more_than_one_epsilon_where_the_bridge_says_so(name: str, dpl: Any) -> None:
    event, data, neighbour, draws, price = PRICES[name]
    seed = np.random.RandomState(5)
    one, other = (sum(event(dpl, x, seed) for _ in range(draws)) for x in (data, neighbour))
    found = np.log(one / max(other, 1))  # its standard deviation is below 0.13 here
    assert 1.25 < found < price + 0.3
