"""Sparse regression in scikit-learn's manner: one pass, an ℓ1 ball or a simplex, streams."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from privlearn import ApproxDP
from privlearn.accountants.audit import audit
from privlearn.errors import HorizonError
from privlearn.estimators import PrivateSparseRegression, load_model
from privlearn.rows.domains import Array
from privlearn.tables import Number, Schema

N, D = 3000, 30
BUDGET = ApproxDP(2, 1e-5)


def rows(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N, D))
    return X, 0.8 * X[:, 0] - 0.5 * X[:, 7] + 0.1 * rng.normal(size=N) + 0.3


def model(**options: Any) -> PrivateSparseRegression:
    declared = {"bounds": (-1, 1), "target_bounds": (-2, 2), "simulate_noise": 3, **options}
    return PrivateSparseRegression(BUDGET, **declared)


def test_few_columns_are_found_among_many(tmp_path: Path) -> None:
    X, y = rows()
    found = model().fit(X, y)
    assert set(np.argsort(-np.abs(found.coef_))[:2]) == {0, 7}
    assert np.abs(found.coef_).sum() <= 2
    assert found.score(*rows(1)) > 0.9
    found.save(tmp_path / "model.json")
    assert np.array_equal(load_model(tmp_path / "model.json").predict(X), found.predict(X))


def test_a_simplex_mixes_columns_in_their_own_units() -> None:
    X, _ = rows()
    y = 0.7 * X[:, 2] + 0.3 * X[:, 5]
    found = model(constraint="simplex", target_bounds=(-1, 1), method="vertices").fit(X, y)
    assert found.coef_.sum() == pytest.approx(1)
    assert found.coef_.min() >= 0
    assert found.intercept_ == 0
    assert set(np.argsort(-found.coef_)[:2]) == {2, 5}


@pytest.mark.parametrize("method", ["choices", "projections", "vertices"])
def test_every_method_keeps_its_promise(method: str) -> None:
    X, y = rows()
    found = model(method=method, simulate_noise=None).fit(X, y)
    assert found.certificate_ is not None
    (guarantee,) = found.certificate_.guarantees
    assert 1.8 < guarantee.epsilon <= 2
    assert guarantee.delta == 1e-5


def test_a_stream_is_one_fit_in_parts(tmp_path: Path) -> None:
    X, y = rows()
    whole = model(n_rows=N).partial_fit(X, y)
    path = tmp_path / "stream.db"
    parts = model(n_rows=N, ledger=path)
    for start in range(0, N, 1000):
        parts.partial_fit(X[start : start + 1000], y[start : start + 1000])
        assert ("open at" in parts.guarantee_) == (start + 1000 < N)
        assert np.isfinite(parts.predict(X)).all()
        assert pickle.loads(pickle.dumps(parts)).guarantee_ == parts.guarantee_
    assert np.array_equal(parts.coef_, whole.coef_)
    assert audit(path).simulation
    assert not audit(path).problems
    assert parts.private_counts_.rows == N
    with pytest.raises(HorizonError):
        parts.partial_fit(X[:1], y[:1])
    with pytest.raises(HorizonError):
        model(n_rows=5).partial_fit(X[:6], y[:6])


def test_bad_cells_of_a_stream_cost_their_own_row_alone() -> None:
    X, y = rows()
    spoilt, out = X.copy(), y.copy()
    spoilt[5, 3], out[8] = np.nan, 99.0
    found = model(n_rows=N).partial_fit(spoilt, out)
    assert found.private_counts_.null == 2
    for row in (5, 8):
        spoilt[row] = np.inf
    same = model(n_rows=N).partial_fit(spoilt, y)
    assert np.array_equal(same.coef_, found.coef_)


def test_a_sorted_file_is_shuffled() -> None:
    X, y = rows()
    order = np.argsort(y)
    shuffled = model().fit(X[order], y[order]).score(X, y)
    in_order = model(n_rows=N).partial_fit(X[order], y[order]).score(X, y)
    assert shuffled > 0.9 > in_order + 0.1


def test_what_is_declared_wrongly_is_named_before_anything_is_spent(tmp_path: Path) -> None:
    X, y = rows()
    path = tmp_path / "no.db"
    for options, told in (
        ({"constraint": "l2"}, "constraint = 'l2': must be 'l1' or 'simplex'"),
        ({"radius": -1}, "radius"),
        ({"method": "frank"}, "method"),
        ({"constraint": "simplex", "method": "choices"}, "ℓ1 ball only"),
    ):
        with pytest.raises(ValueError, match=told):
            model(ledger=path, simulate_noise=None, **options).fit(X, y)
    with pytest.raises(ValueError, match="n_rows"):
        model(ledger=path, n_rows=0).partial_fit(X, y)
    with pytest.raises(ValueError, match="n_features = 1"):
        model(ledger=path, constraint="simplex").fit(X[:, :1], y)
    assert not path.exists()
    assert not hasattr(model(), "partial_fit")
    stream = model(n_rows=N).partial_fit(X[:10], y[:10])
    stream.set_params(bounds=(-2, 2))
    with pytest.raises(ValueError, match="another than in the first call"):
        stream.partial_fit(X[:10], y[:10])
    again = clone(stream).set_params(bounds=(-1, 1)).partial_fit(X[:10], y[:10])
    assert again.private_counts_.rows == 10


def test_frames_and_schemas_are_read(tmp_path: Path) -> None:
    X, y = rows()
    columns = {f"c{k}": X[:, k] for k in (0, 3, 7)} | {"gain": y}
    schema = Schema(
        {**{f"c{k}": Number(-1, 1) for k in (0, 3, 7)}, "gain": Number(-2, 2)}, target="gain"
    )
    found = PrivateSparseRegression(BUDGET, schema=schema, simulate_noise=1).fit(columns)
    assert list(found.feature_names_in_) == ["c0", "c3", "c7"]
    assert found.score(columns) > 0.9


@pytest.mark.filterwarnings("ignore")
def test_only_the_check_fails_that_asks_to_raise_for_contents() -> None:
    found = check_estimator(model(bounds=(-5, 5), target_bounds=(-3, 3), n_rows=200), on_fail=None)
    failed = {one["check_name"] for one in found if one["status"] == "failed"}
    assert len(found) > 45
    assert failed == {"check_supervised_y_no_nan"}, "y is infinite: the record is null"
