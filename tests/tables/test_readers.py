"""Frames, arrays and mappings give the same table; what form shows is refused, contents never."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from privlearn.errors import DataError
from privlearn.tables import (
    Boolean,
    Category,
    Date,
    Encoding,
    Number,
    Schema,
    Table,
    public_split,
    read,
)

pd: Any = pytest.importorskip("pandas")

SCHEMA = Schema(
    {
        "age": Number(17, 45),
        "educ": Number(9, 20, optional=True),
        "job": Category(["clerk", "farmer", "nurse"], optional=True),
        "grade": Category([1, 2]),
        "day": Date("2020-01-01", "2021-01-01"),
        "member": Boolean(optional=True),
        "affair": Category(["no", "yes"]),
    },
    target="affair",
    person="id",
)
COLUMNS: dict[str, list[Any]] = {
    "age": [20.0, 31.0, 99.0, None],
    "educ": [9, None, 20, 15],
    "job": ["clerk", "nurse", " farmer", "unknown"],
    "grade": [1.0, 2.0, 3.0, 1.0],
    "day": [datetime.date(2020, 1, 1), datetime.date(2020, 7, 1), None, datetime.date(2022, 1, 1)],
    "member": [True, False, None, True],
    "affair": ["no", "yes", "no", "maybe"],
    "id": [1, 2, 3, None],
    "unused": [object()] * 4,
}
PLAIN = {name: cells for name, cells in COLUMNS.items() if name != "unused"}


def _of_text(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {n: [None if c is None else str(c) for c in cells] for n, cells in columns.items()}


@pytest.mark.parametrize(
    "source",
    [
        COLUMNS,
        _of_text(COLUMNS),
        pd.DataFrame(COLUMNS),
        pd.DataFrame({**PLAIN, "day": pd.to_datetime(pd.Series(PLAIN["day"]))}),
        pd.DataFrame(PLAIN).astype({"job": "category", "affair": "category", "educ": "Int64"}),
        pd.DataFrame(_of_text(PLAIN)),
        pl.DataFrame(PLAIN),
        pl.DataFrame(PLAIN, schema_overrides={"job": pl.Categorical, "educ": pl.Decimal(9, 2)}),
        pa.table(PLAIN),
        pa.RecordBatch.from_pydict(PLAIN),
        np.array(list(zip(*PLAIN.values(), strict=True)), dtype=object),
        [list(row) for row in zip(*PLAIN.values(), strict=True)],
    ],
    ids=lambda source: type(source).__module__,
)
def test_every_source_gives_the_same_table(source: Any) -> None:
    table = read(source, SCHEMA)
    nan = np.nan
    want = {
        "age": [20, 31, 99, nan],
        "educ": [9, nan, 20, 15],
        "job": [0, 2, 1, nan],
        "grade": [0, 1, nan, 0],
        "day": [0, 182, nan, 731],
        "member": [1, 0, nan, 1],
        "affair": [0, 1, 0, nan],
    }
    for name, cells in want.items():
        np.testing.assert_array_equal(table.column(name), cells, err_msg=name)
    assert table.people is not None
    assert [person and person.removesuffix(".0") for person in table.people] == [
        "1",
        "2",
        "3",
        None,
    ]
    assert table.usable.tolist() == [True, True, False, False]
    assert [row for row, _ in table.messages] == [2, 3]
    encoding = Encoding(SCHEMA)
    inputs = encoding.inputs(table)
    assert encoding.names == (
        *("age", "educ", "educ missing", "job=farmer", "job=nurse", "job missing"),
        *("grade=2", "day", "member", "member missing"),
    )
    assert encoding.row_norm == pytest.approx(np.sqrt(5 / 4 + 1))
    np.testing.assert_allclose(
        inputs[1], [0, 0, 0.5, 0, 1, 0, 0.5, 182 / 183 - 1, -0.5, 0], atol=1e-12
    )
    assert np.isnan(inputs[2:]).all()
    answer = encoding.for_prediction(table)
    np.testing.assert_allclose(answer[3], [0, 1 / 11, 0, 0, 0, 1, -0.5, 1, 0.5, 0], atol=1e-12)
    np.testing.assert_array_equal(encoding.targets(table), want["affair"])
    assert encoding.from_target([1, 0]).tolist() == ["yes", "no"]


def test_a_regression_has_its_own_units_and_beyond_its_bounds_is_null() -> None:
    schema = Schema(
        {"x": Number(1, 100, log=True), "y": Number(0, 200)}, target="y", rows_per_person=1
    )
    table = read({"x": [10, 0, 1000], "y": [100, 150, 201]}, schema)
    encoding = Encoding(schema)
    np.testing.assert_allclose(encoding.inputs(table)[:, 0], [0, -1, 1], atol=1e-12)
    np.testing.assert_array_equal(encoding.targets(table), [0, 0.5, np.nan])
    np.testing.assert_allclose(encoding.from_target([0, 0.5]), [100, 150])
    assert table.usable.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (pl.DataFrame({"x": ["1"], "y": [1]}), "column 'x' has type String"),
        (pd.DataFrame({"x": pd.to_datetime(["2020-01-01"]), "y": [1]}), "column 'x' has type"),
        (pa.table({"x": [1.0], "z": [1]}), "column 'y' is not there"),
        (pd.DataFrame([[1, 1, 0]], columns=["x", "x", "y"]), "column 'x' stands there 2 times"),
        (pa.table({"x": [1.0], "y": [1.5]}), "can ever match"),
        (pa.table({"x": [1.0], "y": pa.array([1.5]).dictionary_encode()}), "can ever match"),
        (pa.table({"x": pa.nulls(1), "y": ["a"]}), "column 'x' has type null"),
        ({"x": [1.0], "y": ["a", "b"]}, "column 'y': 2 rows|column 'x': 1 rows"),
        (np.zeros((3, 3)), "3 columns; must be 2"),
        (np.zeros(3), "shape"),
        ({"x": [], "y": []}, "no row"),
        (pl.DataFrame({"x": [1.0], "y": ["a"]}).lazy(), "collect"),
    ],
)
def test_what_form_shows_is_refused_by_name(source: Any, says: str) -> None:
    schema = Schema({"x": Number(0, 1), "y": Category(["a", "b"])}, target="y")
    with pytest.raises((DataError, TypeError), match=says):
        read(source, schema)


def test_odd_names_and_unused_doubles_are_no_matter() -> None:
    frame = pd.DataFrame([[1, 7, 8, 0]], columns=[2000, "a", "a", ""])
    table = read(frame, Schema({"2000": Number(0, 1)}))
    assert table.column("2000").tolist() == [1.0]


def test_arrays_come_with_target_and_people_apart() -> None:
    schema = Schema.of_arrays(2, (-1, 1), classes=[0, 1])
    table = read(np.eye(2), schema, target=[True, 1.0], people=["a", None])
    assert Encoding(schema).targets(table).tolist() == [1.0, 1.0]
    assert table.usable.tolist() == [True, False]
    padded = read(np.eye(2), schema, rows=4, target=[0, 1])
    assert (len(padded), padded.absent, len(padded.messages)) == (4, 2, 0)
    assert padded.usable.tolist() == [True, True, False, False]
    assert padded.take(slice(1, 3)).absent == 1


def _as(kind: str, cells: list[Any]) -> Any:
    return {"pandas": pd.DataFrame, "mapping": dict, "array": _objects}[kind]({"x": cells})


def _objects(columns: dict[str, list[Any]]) -> Any:
    found = np.empty((len(columns["x"]), 1), dtype=object)
    found[:, 0] = columns["x"]
    return found


class _Hostile:
    def __float__(self) -> float:
        raise KeyboardInterrupt("secret")

    __str__ = __eq__ = __hash__ = __bool__ = __float__  # type: ignore[assignment]


@pytest.mark.parametrize("kind", ["pandas", "mapping", "array"])
@pytest.mark.parametrize(
    "cell", ["1_0", "١", "inf", "nan", "1e400", 10**400, 1j, _Hostile(), b"1", [1], {}, "", "0x1"]
)
def test_one_bad_cell_costs_its_own_record_only(kind: str, cell: Any) -> None:
    table = read(_as(kind, [0.25, " +5e-1 ", cell, ".75"]), Schema({"x": Number(0, 1)}))
    np.testing.assert_array_equal(table.column("x"), [0.25, 0.5, np.nan, 0.75])


def test_a_split_is_drawn_and_can_be_drawn_again() -> None:
    learn, held = public_split(1000, 0.2, seed=7)
    assert len(held) == 200
    assert sorted([*learn, *held]) == list(range(1000))
    assert held.tolist() == public_split(1000, 0.2, seed=7)[1].tolist()
    assert held.tolist() != public_split(1000, 0.2)[1].tolist()
    assert 60 < (held < 500).sum() < 140
    frames = public_split(pl.DataFrame({"x": range(10)}), 3)
    assert [len(frame) for frame in frames] == [7, 3]
    table = read({"x": range(10)}, Schema({"x": Number(0, 9)}))
    assert isinstance(public_split(table, 3)[1], Table)
    with pytest.raises(ValueError, match="held_out"):
        public_split(10, 1.5)
    with pytest.raises(TypeError, match="path"):
        public_split("t.csv", 0.2)


def test_a_split_of_people_has_nobody_on_both_sides_and_tells_no_number_of_rows() -> None:
    ids = np.repeat([f"p{i}" for i in range(200)], 5).astype(object)
    ids[7] = None
    schema = Schema({"x": Number(0, 999)}, person="id", rows_per_person=5)
    table = read({"id": ids, "x": range(1000)}, schema)
    learn, held = public_split(table, 0.3, seed=7)
    assert (len(learn), len(held)) == (1000, 1000)
    assert not set(learn.people) & set(held.people) - {None}
    assert set(learn.people) | set(held.people) == set(ids)
    np.testing.assert_array_equal(learn.usable | held.usable, table.usable)
    assert 600 < learn.usable.sum() < 800
    assert np.isnan(learn.column("x")[held.usable]).all()
    with pytest.raises(ValueError, match="share"):
        public_split(table, 3)


def test_a_category_with_very_many_values_is_read_and_not_made_into_inputs() -> None:
    schema = Schema({"zip": Category(range(100_000))})
    assert read({"zip": np.array([7, 1_000_000])}, schema).usable.tolist() == [True, False]
    with pytest.raises(ValueError, match=r"columns\.zip: 100,000 levels"):
        Encoding(schema)


def test_text_in_frames_is_written_as_the_schema_says() -> None:
    schema = Schema({"x": Number(0, 9)}, decimal=",")
    frame = pd.DataFrame({"x": ["1,5", "1.5", 2.5]})
    np.testing.assert_array_equal(read(frame, schema).column("x"), [1.5, np.nan, 2.5])


def test_rows_are_taken_in_order_whether_all_came_or_not() -> None:
    schema = Schema({"a": Number(0, 1)})
    for rows in (4, 6):  # as many as came, and two who did not
        table = read({"a": np.arange(4) / 4}, schema, rows=rows)
        assert len(table.take([0, 2, 3])) == 3
        for wrong in ([2, 0], [1, 1]):
            with pytest.raises(ValueError, match="must ascend"):
                table.take(wrong)
