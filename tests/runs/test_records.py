"""What the options of `privlearn run` declare, shipped tables, and splits by public chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.errors import DataError
from privlearn.runs.configs import TableConfig
from privlearn.runs.records import CONSTANT, Records, records_of, split_seed, write_split
from privlearn.runs.shipped_tables import SHIPPED, shipped_schema
from privlearn.tables import Boolean, Category, Number, Schema

N = 6
TEXT = "age,name,dose,outcome\n" + "".join(
    f"{20 + 10 * k},p{k},{k / 10:.1f},{k - 2}\n" for k in range(N)
)
DECLARED: dict[str, Any] = {
    "target": "outcome",
    "columns": ("age", "dose"),
    "bounds": {"age": (0.0, 100.0)},
    "feature_bound": 2.0,
    "label_bound": 4.0,
    "horizon": N,
}


def wanted(path: Path, content: str = TEXT, **changed: Any) -> TableConfig:
    path.write_text(content, "utf-8")
    given = {name: value for name, value in (DECLARED | changed).items() if value is not None}
    return TableConfig(learner="tofw", data=str(path), **given)


def shipped(data: str, **declared: Any) -> Records:
    learner = declared.pop("learner", "hdb")
    return records_of(TableConfig(learner=learner, data=data, held_out=0, **declared))[0]


def test_options_become_a_schema(tmp_path: Path) -> None:
    records, test = records_of(wanted(tmp_path / "t.csv"))
    assert records.schema.columns == {
        "age": Number(0, 100),
        "dose": Number(-2, 2),
        "outcome": Number(-4, 4),
    }
    inputs = records.inputs()
    assert inputs.shape == (N, records.dim) == (N, 3)
    np.testing.assert_allclose(inputs[:, 0], [-0.6, -0.4, -0.2, 0.0, 0.2, 0.4], atol=1e-12)
    np.testing.assert_allclose(inputs[:, 1], [0.0, 0.05, 0.1, 0.15, 0.2, 0.25], atol=1e-12)
    assert (inputs[:, 2] == CONSTANT).all()
    np.testing.assert_allclose(records.targets(), [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75])
    assert records.usable.all()
    assert (len(test), len(records.messages)) == (0, 0)
    classes = wanted(
        tmp_path / "c.csv", "x,y\n1,yes\n2,no\n3, yes \n4,perhaps\n5,\n6,YES\n", target="y",
        classes=("no", "yes"), columns=None, bounds=None, label_bound=None,
    )  # fmt: skip
    found, _ = records_of(classes)
    assert found.classes == ("no", "yes")
    np.testing.assert_array_equal(found.targets(), [1, 0, 1, np.nan, np.nan, np.nan])
    assert "perhaps" not in " ".join(told for _, told in found.messages)


def test_a_schema_file_says_more(tmp_path: Path) -> None:
    schema = Schema(
        {"age": Number(0, 100), "dose": Number(0, 1, optional=True), "outcome": Number(-4, 4)},
        target="outcome",
        looked_at_data=True,
    )
    schema.save(tmp_path / "s.toml")
    only: dict[str, Any] = {name: None for name in DECLARED if name != "horizon"}
    config = wanted(tmp_path / "t.csv", **only, schema_file=str(tmp_path / "s.toml"))
    records, _ = records_of(config)
    assert records.encoding.names == ("age", "dose", "dose missing")
    assert any("had looked at these data" in said for said in records.side_information)
    with pytest.raises(DataError, match="bounds: is declared in the schema"):
        records_of(config.model_copy(update={"bounds": {"age": (0.0, 1.0)}}))
    with pytest.raises(DataError, match="'outcome' is a regression"):
        records_of(config.model_copy(update={"learner": "hdb"}))
    for changed, says in (
        ({"target": None}, "name the column to predict"),
        ({"columns": {**schema.columns, "outcome": Category([1, 2, 3])}}, "needs two classes"),
        ({"person": "name"}, "people = 'name'"),
    ):
        told = schema.to_dict() | Schema(**{**vars(schema), **changed}).to_dict()
        if changed == {"target": None}:
            told.pop("target")
        Schema.from_dict(told).save(tmp_path / "s.toml")
        with pytest.raises(DataError, match=says):
            records_of(config)


def test_rows_that_are_missing_are_null_and_further_ones_are_not_read(tmp_path: Path) -> None:
    longer, _ = records_of(wanted(tmp_path / "t.csv", horizon=N + 2))
    assert longer.usable.tolist() == [True] * N
    assert (len(longer), longer.absent, longer.messages) == (N + 2, 2, [])
    part = longer.take(slice(2, N + 1))
    assert (len(part), part.absent) == (N - 1, 1)
    spoiled, _ = records_of(wanted(tmp_path / "t.csv", TEXT + "strange,line\n"))
    assert spoiled.messages == []


def test_held_out_rows_are_drawn_and_the_same_when_a_run_goes_on(tmp_path: Path) -> None:
    text = "x,y\n" + "".join(f"{k},{k}\n" for k in range(40))  # sorted by the label
    declared = {"target": "y", "columns": None, "bounds": None, "feature_bound": 50.0}
    config = wanted(
        tmp_path / "t.csv", text, **declared, label_bound=50.0, horizon=30, held_out=10, seed=4
    )
    public = tmp_path / "public"
    public.mkdir()
    seed = split_seed(config, tmp_path, resume=False)
    write_split(config, seed, public)
    found = [records.came.column("x") for records in records_of(config, seed)]
    assert [len(part) for part in found] == [30, 10]
    assert sorted(np.concatenate(found).tolist()) == list(range(40))
    assert found[1].min() < 20 < found[1].max()
    assert (np.diff(found[0]) > 0).all()
    told = json.loads((public / "split.json").read_text("utf-8"))
    by_hand = np.random.default_rng(told["seed"]).permutation(told["rows"])[: told["held_out"]]
    assert sorted(by_hand.tolist()) == found[1].tolist()
    assert split_seed(config, tmp_path, resume=True) == 4
    (public / "ledger.db").write_text("")
    assert split_seed(config, tmp_path, resume=True) == 4
    (public / "split.json").unlink()  # a run of an earlier version, which went by position
    assert split_seed(config, tmp_path, resume=True) is None
    by_position = records_of(config, None)[1].came.column("x")
    assert by_position.tolist() == list(range(30, 40))


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for changed, says in (
        ({"target": "income"}, r"income.*'age', 'name', 'dose', 'outcome'"),
        ({"columns": ("age", "income")}, r"income.*'age', 'name', 'dose', 'outcome'"),
        ({"bounds": {"income": (0.0, 1.0)}}, r"bounds = 'income'.*'age', 'dose'"),
        ({"columns": ("age", "outcome")}, "'outcome' is the target"),
        ({"people": "age", "most": 1}, "'age' is the people column"),
        ({"people": "outcome", "most": 1}, "'outcome' is the target"),
        ({"feature_bound": None}, r"none declared for dose.*never computed from the data"),
        ({"label_bound": None}, "label_bound"),
    ):
        with pytest.raises(DataError, match=says):
            records_of(wanted(path, **changed))
    plain = {"columns": None, "bounds": None}
    for content, says in (
        ("", "must name every column"),
        ("34,Alice,0.5,1\n35,Bob,0.5,1\n", "may be somebody's row"),
        ("age,,dose,outcome\n", "must name every column"),
        ("age,age,dose,outcome\n1,2,3,4\n", "'age' stands there 2 times"),
        ("outcome\n1\n", "no column beside the target"),
    ):
        with pytest.raises(DataError, match=says) as caught:
            records_of(wanted(path, content, **plain))
        assert "Alice" not in str(caught.value)
    index = wanted(path, ",2000,x,x,outcome\n0,1,7,8,1\n", columns=("2000",), bounds=None)
    np.testing.assert_array_equal(records_of(index)[0].inputs()[0], [0.5, CONSTANT])


# Shipped tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "columns"), [("diabetes", 442, 10), ("breast_cancer", 569, 30)]
)
def test_shipped_tables_are_whole_and_mostly_within_their_bounds(
    name: str, rows: int, columns: int
) -> None:
    records = shipped(name, learner="tofw")
    inputs = records.inputs()[:, :-1]
    assert inputs.shape == (rows, columns)
    assert records.usable.all()
    assert "in view" in records.side_information[0]
    assert (np.abs(inputs) < 1).mean() > 0.85
    assert inputs.std(axis=0).min() > 0.15  # the bounds are of the right size


def test_digits_are_the_classes_that_were_asked_for() -> None:
    records = shipped("digits", classes=("7", "3"))
    assert records.classes == ("7", "3")
    targets = records.targets()
    assert ((targets == 0).sum(), (targets == 1).sum()) == (179, 183)
    assert any("classes 7, 3" in said for said in records.side_information)
    assert len(shipped("digits", classes=shipped_schema("digits").classes)) == 1797
    assert shipped("digits").classes == ("0", "1", "2")
    assert shipped("digits", learner="tofw").classes == ("0", "1")
    assert set(SHIPPED) == {"diabetes", "breast_cancer", "digits"}


def test_the_seed_orders_the_rows_of_a_shipped_table() -> None:
    first, again, other = (
        shipped("diabetes", learner="tofw", seed=seed).came.column("bmi") for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(np.sort(first), np.sort(other))


def test_declarations_override_those_of_a_shipped_table() -> None:
    bounds = {"bp": (0.0, 200.0)}
    chosen = shipped("diabetes", learner="tofw", columns=("bmi", "bp"), bounds=bounds)
    assert chosen.schema.columns == {
        "bmi": Number(15, 40, unit="kg/m²"),
        "bp": Number(0, 200),
        "progression": Number(-50, 350),
    }
    narrow = shipped("diabetes", learner="tofw", label_bound=10.0)
    assert narrow.schema.columns["progression"] == Number(140, 160)
    assert 0 < narrow.usable.sum() < len(narrow) / 2
    assert len(narrow.messages) == (~narrow.usable).sum()


@pytest.mark.parametrize(
    ("data", "declared", "message"),
    [
        ("diabetes", {"target": "bmi"}, "the target of 'diabetes' is 'progression'"),
        ("diabetes", {"columns": ("weight",)}, "weight.*'age', 'sex'"),
        ("diabetes", {"bounds": {"weight": (0.0, 1.0)}}, "bounds = 'weight'"),
        ("diabetes", {"classes": ("0", "1")}, "is a regression"),
        ("diabetes", {"horizon": 443}, "has 442 rows"),
        ("diabetes", {"schema_file": "s.toml"}, "has its own"),
        ("digits", {"classes": ("1", "ten")}, "classes = 'ten'"),
    ],
)
def test_what_a_shipped_table_does_not_have_is_an_error(
    data: str, declared: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        shipped(data, learner="tofw", **declared)


def test_a_boolean_column_may_be_a_target(tmp_path: Path) -> None:
    schema = Schema({"x": Number(0, 9), "y": Boolean()}, target="y")
    schema.save(tmp_path / "s.json")
    (tmp_path / "t.csv").write_text("x,y\n1,TRUE\n2,0\n", "utf-8")
    config = TableConfig(
        learner="tofw",
        data=str(tmp_path / "t.csv"),
        schema_file=str(tmp_path / "s.json"),
        horizon=2,
    )
    records, _ = records_of(config)
    assert (records.classes, records.targets().tolist()) == (("False", "True"), [1.0, 0.0])
