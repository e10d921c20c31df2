"""Fits of frames and arrays: what they declare, pay, hide and leave behind."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pandas as pd
import polars as pl
import pytest

from privlearn import ApproxDP, GaussianDP, Ledger
from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import BudgetError, DataError, LedgerError
from privlearn.estimators import PrivateLinearRegression, PrivateLogisticRegression, load_model
from privlearn.estimators.choice_models import Situated
from privlearn.estimators.stopping import Opened
from privlearn.statistics import mean
from privlearn.statistics.queries import InGroup
from privlearn.tables import Category, Number, Schema, read

BUDGET: Final = ApproxDP(1, "1e-5")
N: Final = 400
SCHEMA: Final = Schema(
    {
        "age": Number(0, 1),
        "educ": Number(0, 1, optional=True),
        "job": Category(["clerk", "farmer", "nurse"]),
        "affair": Category(["no", "yes"]),
    },
    target="affair",
)
METHODS: Final = ("auto", "descent", "one-pass", "objective")


def _frame(n: int = N, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 1, n)
    return pl.DataFrame(
        {
            "age": age,
            "educ": [None if value < 0.1 else value for value in rng.uniform(0, 1, n).tolist()],
            "job": rng.choice(["clerk", "farmer", "nurse"], n),
            "affair": np.where(age > 0.5, "yes", "no"),
        },
    )


def _classifier(**parameters: Any) -> Any:
    return PrivateLogisticRegression(**{"budget": BUDGET, "schema": SCHEMA, **parameters})


@pytest.mark.parametrize("method", METHODS)
def test_each_method_learns_both_kinds_and_its_ledger_earns_the_budget(
    method: str, tmp_path: Path
) -> None:
    frame, held_out = _frame(2000), _frame(500, 1)
    path = tmp_path / "a.db"
    model = _classifier(method=method, ledger=path, budget=ApproxDP(3, "1e-5")).fit(frame)
    assert model.score(held_out) > 0.8
    assert model.coef_.shape == (1, 5)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.predict_proba(held_out).sum(axis=1) == pytest.approx(1)
    found = audit(path)
    assert found.holds
    assert found.closed
    assert found.epsilon <= 3
    x = np.column_stack([frame["age"], frame["educ"].fill_null(0.5)])
    line = PrivateLinearRegression(
        BUDGET, bounds=(0, 1), target_bounds=(-10, 30), method=method, simulate_noise=0
    )
    line.fit(x, 20 * x[:, 0] - 5)
    assert line.score(x, 20 * x[:, 0] - 5) > 0.6
    assert line.guarantee_.startswith("none: the noise is simulated")


def test_softmax_has_a_row_of_coefficients_for_each_class() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (1500, 2))
    y = np.floor(3 * x[:, 0]) + 5
    model = PrivateLogisticRegression(BUDGET, bounds=(0, 1), classes=(5, 6, 7)).fit(x, y)
    assert model.coef_.shape == (3, 2)
    assert model.intercept_.shape == (3,)
    assert model.score(x, y) > 0.5
    assert model.decision_function(x).shape == (1500, 3)
    assert {row.label for row in model.coef_table_} == {"5", "6", "7"}
    with pytest.raises(ValueError, match="more classes take 'auto'"):
        model.set_params(method="descent").fit(x, y)


def test_what_is_not_declared_is_asked_for_before_anything_is_spent(tmp_path: Path) -> None:
    x, y, path = np.zeros((9, 2)), np.zeros(9), tmp_path / "a.db"

    def line(**parameters: Any) -> Any:
        given = {"budget": BUDGET, "bounds": (0, 1), "target_bounds": (0, 1), "ledger": path}
        return PrivateLinearRegression(**{**given, **parameters})

    for model, message in (
        (line(budget=None), r"^budget: state it, as ApproxDP\(1, 1e-5\)$"),
        (line(budget=1.0), "must be ApproxDP"),
        (line(bounds=None), "bounds: state them"),
        (line(bounds={"x0": (0, 1)}), "bounds: none declared for 'x1'"),
        (line(bounds=(1, 0)), "low must be below high"),
        (line(target_bounds=None), "target_bounds: state"),
        (line(method="sgd"), "method = 'sgd': must be one of 'auto'"),
        (line(schema=SCHEMA), "bounds: stands in the schema"),
        (_classifier(bounds=(0, 1), schema=None), "classes: state all labels"),
        (_classifier(bounds=(0, 1), schema=None, classes=["a"]), "1 class is declared"),
        (_classifier(bounds=(0, 1), schema=None, classes=["a", "b"]), "no cell can ever match"),
        (_classifier(schema=Schema({"a": Number(0, 1)})), "schema.target: must name"),
        (PrivateLinearRegression(BUDGET, schema=SCHEMA), "a linear regression predicts a Number"),
        (line(ledger=None, accountant=object(), simulate_noise=0), "simulate_noise: is the acc"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(x, y)
    with pytest.raises(TypeError, match=r"epsilon= is no argument; .* ApproxDP\(epsilon, delta\)"):
        line(epsilon=1)
    with pytest.raises(TypeError, match="whose row it is says people="):
        line().fit(x, y, groups=y)
    with pytest.raises(ValueError, match="no price for a person"):
        line(method="objective").fit(x, y, people=list(range(9)))
    with pytest.raises(DataError, match="column 'job' is not there"):
        _classifier(ledger=path).fit(_frame().drop("job"))
    assert not path.exists()


def test_contents_change_nothing_public_and_are_counted_for_the_operator(caplog: Any) -> None:
    frame = _frame()
    bad = frame.with_columns(
        pl.when(pl.int_range(N) == 3).then(float("nan")).otherwise("age").alias("age"),
        pl.when(pl.int_range(N) == 5).then(pl.lit("maybe")).otherwise("affair").alias("affair"),
    )
    one_class = frame.with_columns(pl.lit("no").alias("affair"))
    told = []
    for rows in (frame, bad, one_class):
        caplog.clear()
        with caplog.at_level("INFO", "privlearn"):
            model = _classifier().fit(rows)
        entries = [type(item).__name__ for item in model.certificate_.mechanisms]
        told.append((caplog.text, model.guarantee_, entries, model.certificate_.entries))
        assert model.classes_.tolist() == ["no", "yes"]
    assert told[0] == told[1] == told[2]
    counts = _classifier().fit(bad).private_counts_
    assert (counts.rows, counts.null) == (N, 2)
    assert sum("'age'" in reason for reason in counts.reasons) == 1


def test_a_schema_by_somebody_who_looked_says_so_in_the_certificate() -> None:
    looked = dataclasses.replace(SCHEMA, looked_at_data=True)
    for schema, said in ((SCHEMA, False), (looked, True)):
        certificate = _classifier(schema=schema, method="one-pass").fit(_frame(60)).certificate_
        text = " ".join(certificate.composition.assumptions)
        assert "columns and of the target are declared public" in text
        assert ("had seen private values" in text) is said


def test_a_sorted_table_is_shuffled_where_its_order_matters() -> None:
    x = np.sort(np.random.default_rng(0).uniform(0, 1, (3000, 1)), axis=0)
    y = (x[:, 0] > 0.5).astype(int)
    model = PrivateLogisticRegression(BUDGET, bounds=(0, 1), classes=(0, 1), method="one-pass")
    learned = []

    def partial_fit(_: Any, labels: Any, **__: Any) -> None:
        learned.append(labels)

    model._learner = lambda *_: SimpleNamespace(  # type: ignore[method-assign]
        start=lambda _: None,
        partial_fit=partial_fit,
        coef_=np.zeros(1),
        intercept_=0.0,
        noise_std_=None,
    )
    model.fit(x, y)
    assert 0.4 < learned[0][:600].mean() < 0.6
    assert learned[0].sum() == y.sum()


def test_a_cell_of_a_list_decides_the_type_of_no_other() -> None:
    rows: list[Any] = [[0.1, 0.2], [0.3, "x"], [0.4], [0.5, None], [0.6, 0.7]]
    model = PrivateLinearRegression(BUDGET, bounds=(0, 1), target_bounds=(0, 1), method="one-pass")
    model.fit(rows, [0.1, 0.2, 0.3, 0.4, "x"])
    assert (model.private_counts_.rows, model.private_counts_.null) == (5, 4)
    assert np.isfinite(model.predict(rows)).all()


def test_a_person_with_many_rows_pays_as_one() -> None:
    frame = _frame().with_columns((pl.int_range(N) // 10).alias("who"))
    schema = Schema(dict(SCHEMA.columns), target="affair", person="who", rows_per_person=10)
    models = [_classifier(schema=schema).fit(frame)]
    models.append(_classifier().fit(frame, people=frame["who"]))
    for model in models:
        assert model.certificate_.guarantees[0].rule.pooled
        assert "all records of one person" in model.guarantee_
    accountant = CentralAccountant(GaussianDP(1), users=range(N), ledger=Ledger.memory())
    shared = _classifier(accountant=accountant, budget=GaussianDP(1))
    with pytest.raises(ValueError, match=r"people: .* no price in a shared accountant"):
        shared.fit(frame, people=frame["who"])
    assert accountant.spent().is_zero


def test_a_table_of_another_schema_is_refused_as_its_persons_and_places_are_others() -> None:
    frame = _frame(60).with_columns((pl.int_range(60) // 10).alias("who"))
    schema = Schema(dict(SCHEMA.columns), target="affair", person="who", rows_per_person=10)
    with pytest.raises(ValueError, match="not the one that the table was read with"):
        _classifier(schema=schema).fit(read(frame, SCHEMA))


def test_a_second_fit_pays_again_and_never_from_a_finished_ledger(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    frame, path = _frame(60), tmp_path / "fair.db"
    model = _classifier(ledger=str(path)).fit(frame)
    with pytest.raises(LedgerError, match=r"finished fit.*load_model.*privlearn audit.*'auto'"):
        model.fit(frame)
    (tmp_path / "other.db").write_text("text")
    with pytest.raises(LedgerError, match="no ledger; choose another path"):
        model.set_params(ledger=tmp_path / "other.db").fit(frame)
    model.set_params(ledger="auto")
    dated = {model.fit(frame).ledger_, model.fit(frame).ledger_}
    assert len(dated) == 2
    assert all(name.startswith("privlearn-logistic-regression-2") for name in dated)
    assert all(audit(name).holds for name in dated)
    memory = _classifier().fit(frame)
    assert "no file of the ledger was kept" in memory.guarantee_
    assert any("lived in memory" in text for text in memory.certificate_.composition.assumptions)


def test_a_shared_accountant_charges_all_its_users_and_gives_back_what_is_not_used() -> None:
    frame = _frame(100)
    accountant = CentralAccountant(
        BUDGET, users=range(150), ledger=Ledger.memory(), currency=GaussianDP
    )
    parts = BUDGET.split(2)
    model = _classifier(accountant=accountant, budget=parts[0]).fit(frame)
    assert float(accountant.spent(149).mu) == pytest.approx(float(parts[0].mu))
    assert "all that its accountant pays for together" in model.guarantee_
    with pytest.raises(BudgetError, match="it is for 150 users, and there are 400 rows"):
        _classifier(accountant=accountant, budget=parts[1]).fit(_frame())
    with pytest.raises(ValueError, match="no price"):
        _classifier(accountant=accountant, budget=parts[1], method="objective").fit(frame)
    assert accountant.remaining().covers(parts[1])


def test_a_saved_model_predicts_without_its_ledger_and_holds_nothing_private(
    tmp_path: Path,
) -> None:
    frame, path = _frame(), tmp_path / "model.json"
    frame[3, "age"] = None
    model = _classifier().fit(frame)
    model.save(path)
    again = load_model(path)
    blank = frame[:1].select(age=pl.lit(None, pl.Float64), educ=float("nan"), job=pl.lit("smith"))
    for rows in (frame, blank):
        assert (again.predict(rows) == model.predict(rows)).all()
        assert (again.predict_proba(rows) == model.predict_proba(rows)).all()
    assert again.classes_.tolist() == ["no", "yes"]
    assert again.guarantee_ == model.guarantee_
    assert "null" not in json.dumps(json.loads(path.read_text())["encoding"])
    assert set(json.loads(path.read_text())) == {
        *("format", "version", "estimator", "method", "loss", "encoding"),
        *("coef", "intercept", "noise_std", "guarantee", "ledger_head"),
    }
    assert read(frame, SCHEMA).usable.sum() == N - 1  # which the file does not tell
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert not {name for name in vars(copied) if "counts" in name}
        with pytest.raises(AttributeError, match="only where the estimator was fitted"):
            copied.private_counts_  # noqa: B018  # raises
    assert "private_counts_" not in dir(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told | {"more": 1}, "more: Extra inputs"),
        (lambda told: told | {"version": 2}, "version: "),
        (lambda told: told | {"coef": [[1.0]]}, "coef: the schema has 1 rows of 5 numbers"),
        (lambda told: told | {"coef": [[float("nan")] * 5]}, "coef.0.0: "),
        (lambda told: told | {"coef": [["1"] * 5]}, "coef.0.0: "),
        (lambda told: told | {"loss": "squared"}, "loss = 'squared' does not fit"),
        (lambda told: told | {"encoding": {"schema": {}}}, "a schema has a table"),
        (lambda told: [told], "file: "),
    ],
)
def test_a_hostile_model_file_is_refused_by_name(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    _classifier(simulate_noise=0).fit(_frame(30)).save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=rf"model.json is no model: .*{said}"):
        load_model(path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for text in ("{", "[" * 100_000, '{"format": "privlearn-model"}'):
        path.write_text(text)
        with pytest.raises(DataError, match="is no model"):
            load_model(path)
    with pytest.raises(DataError, match="cannot be read"):
        load_model(tmp_path / "none.json")


def test_what_holds_rows_shows_none_of_them() -> None:
    frame = _frame(30).with_columns(age=pl.lit(0.123456))
    given = _classifier()._given(frame, None, None)
    held = _classifier(simulate_noise=0).fit(frame)._held_out(frame, None)
    cell = f"{given.records.inputs[0, 0]:.5f}"[:6]
    lines = Situated(given.records.inputs, np.arange(30))
    opened = Opened(given.records.inputs, np.zeros(30))
    for holder in (given, given.records, held, lines, opened, InGroup(opened.x, opened.y)):
        assert cell not in repr(holder)
        assert len(repr(holder)) < 40


def test_columns_of_a_frame_may_be_numbers() -> None:
    frame = pd.DataFrame(np.random.default_rng(1).uniform(0, 1, (50, 2)), columns=[7, 8])
    bounds = {7: (0, 1), 8: (0, 2)}
    model = PrivateLinearRegression(
        ApproxDP(1, 1e-5), bounds=bounds, target_bounds=(0, 1), simulate_noise=0
    ).fit(frame, frame[7])
    assert [row.name for row in model.coef_table_][:2] == ["7", "8"]
    assert model.schema_.columns["8"] == Number(0, 2)
    np.testing.assert_array_equal(model.predict(frame), model.predict(frame.to_numpy()))
    whole = mean(frame, 7, bounds=(0, 1), budget=ApproxDP(100, 1e-5), simulate_noise=0)
    assert whole["mean"].value == pytest.approx(frame[7].mean(), abs=0.05)
