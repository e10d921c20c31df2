"""Tables: whose cells are whose, what is declared, and that nothing is computed from the rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from privlearn.errors import DataError
from privlearn.runs import user_tables
from privlearn.runs.user_tables import CONSTANT, SHIPPED, Column, Table, Wanted, read_table
from privlearn.tables.lines import LONGEST_LINE, numbers

N = 6
TEXT = "age,name,dose,outcome\n" + "".join(
    f"{20 + 10 * k},p{k},{k / 10:.1f},{k - 2}\n" for k in range(N)
)


def write(path: Path, content: str | bytes = TEXT) -> Wanted:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Wanted(
        str(path),
        target="outcome",
        columns=("age", "dose"),
        bounds=(("age", (0.0, 100.0)),),
        feature_bound=2.0,
        label_bound=4.0,
    )


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    return write(tmp_path / "table.csv")


# Files ------------------------------------------------------------------------------------------


def test_columns_are_found_by_name_and_scaled_by_declared_bounds(wanted: Wanted) -> None:
    table = read_table(wanted, N)
    assert table.columns == (Column("age", 0.0, 100.0), Column("dose", -2.0, 2.0))
    assert table.values[:, 0].tolist() == [20, 30, 40, 50, 60, 70]
    inputs = table.inputs()
    assert inputs.shape == (N, table.dim) == (N, 3)
    assert inputs[:, 0] == pytest.approx([-0.6, -0.4, -0.2, 0.0, 0.2, 0.4])
    assert inputs[:, 1] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert (inputs[:, 2] == CONSTANT).all()
    assert table.targets() == pytest.approx([-0.5, -0.25, 0.0, 0.25, 0.5, 0.75])
    assert table.usable.all()
    assert table.messages == ()


def test_values_beyond_their_bounds_are_moved_onto_them(tmp_path: Path) -> None:
    wanted = write(tmp_path / "t.csv", TEXT.replace("20,p0", "900,p0").replace("30,", "-1e300,"))
    inputs = read_table(wanted, N).inputs()
    assert inputs[:2, 0].tolist() == [1.0, -1.0]


def test_all_columns_but_the_target_are_features_unless_some_are_named(wanted: Wanted) -> None:
    whole = replace(wanted, columns=None)
    table = read_table(whole, N)
    assert [column.name for column in table.columns] == ["age", "name", "dose"]
    assert not table.usable.any()  # names are no numbers


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
def test_inputs_of_a_row_depend_on_that_row_alone(wanted: Wanted, scale: float) -> None:
    """No data-dependent scaling: other people's rows may be anything."""
    table = read_table(wanted, N)
    rng = np.random.default_rng(0)
    values, labels = table.values.copy(), table.labels.copy()
    values[1:] = scale * rng.normal(size=values[1:].shape)
    labels[1:] = rng.uniform(-4, 4, size=N - 1)
    other = replace(table, values=values, labels=labels)
    assert np.array_equal(other.inputs()[0], table.inputs()[0])
    assert other.targets()[0] == table.targets()[0]
    assert other.describe() == table.describe()
    assert not np.array_equal(other.inputs()[1:], table.inputs()[1:])


BAD_LINES = [
    (b"40,p2,0.2", "3 cells, where the header has 4"),
    (b"40,p2,0.2,0,7", "5 cells, where the header has 4"),
    (b"", "1 cells, where the header has 4"),
    (b"forty,p2,0.2,0", "no number"),
    (b",p2,0.2,0", "missing"),
    (b"nan,p2,0.2,0", "no finite number"),
    (b"40,p2,inf,0", "no finite number"),
    (b"40,p2,1e999,0", "no finite number"),
    (b"40,p2,0.2,", "missing"),
    (b"40,p2,0.2,4.01", "out of its declared range"),
    (b"40,p2,0.2,-1e300", "out of its declared range"),
    (b"\xff\xfe,p2,0.2,0", "no number"),
    (b'"40,p2,0.2,0', "quotes or line ends are broken"),
    (b'40,"p2,0.2",0', "3 cells, where the header has 4"),
    (b"40,p2,0.2,0" + b"0" * LONGEST_LINE, "1 cells, where the header has 4"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_one_bad_line_costs_its_user_alone(tmp_path: Path, line: bytes, message: str) -> None:
    good = read_table(write(tmp_path / "good.csv"), N)
    lines = TEXT.encode().split(b"\n")
    lines[3] = line
    bad = read_table(write(tmp_path / "bad.csv", b"\n".join(lines)), N)
    others = np.arange(N) != 2
    assert np.array_equal(bad.usable, others)
    assert np.array_equal(bad.values[others], good.values[others])
    assert np.array_equal(bad.labels[others], good.labels[others])
    assert not np.isfinite(bad.targets()[2]) or not np.isfinite(bad.inputs()[2]).all()
    ((user, told),) = bad.messages
    assert user == 2
    assert message in told
    assert len(told) < 300


def test_rows_that_are_missing_are_null_and_further_ones_are_not_read(wanted: Wanted) -> None:
    longer = read_table(wanted, N + 2)
    assert longer.usable.tolist() == [True] * N
    assert (len(longer), longer.absent, longer.messages) == (N + 2, 2, ())
    assert (len(longer.take(slice(2, N + 1))), longer.take(slice(2, N + 1)).absent) == (N - 1, 1)
    assert (len(longer.take(slice(N + 1, None))), longer.take(slice(N + 1, None)).absent) == (1, 1)
    Path(wanted.data).write_text(TEXT + "strange,line\n")
    assert read_table(wanted, N).messages == ()


def test_quotes_marks_and_line_ends_of_spreadsheets_are_understood(tmp_path: Path) -> None:
    rows = [",".join(f'"{cell}"' for cell in line.split(",")) for line in TEXT.split()]
    plain = read_table(write(tmp_path / "a.csv"), N)
    quoted = read_table(write(tmp_path / "b.csv", b"\xef\xbb\xbf" + "\r\n".join(rows).encode()), N)
    assert quoted.columns == plain.columns
    assert np.array_equal(quoted.values, plain.values)
    assert np.array_equal(quoted.labels, plain.labels)


def test_a_missing_column_is_an_error_with_the_names_there_are(wanted: Wanted) -> None:
    for changed in (
        replace(wanted, target="income"),
        replace(wanted, columns=("age", "income")),
    ):
        with pytest.raises(DataError, match=r"income.*'age', 'name', 'dose', 'outcome'"):
            read_table(changed, N)
    with pytest.raises(DataError, match=r"bounds = 'income'.*'age', 'dose'"):
        read_table(replace(wanted, bounds=(("income", (0.0, 1.0)),)), N)
    with pytest.raises(DataError, match="'outcome' is the target"):
        read_table(replace(wanted, columns=("age", "outcome")), N)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must name every column"),
        (b"34,Alice,0.5,1\n35,Bob,0.5,1\n", "may be somebody's row"),
        (b"age,,dose,outcome\n", "must name every column"),
        (b"age,age,dose,outcome\n", "each column once"),
        (b"age,\xff,dose,outcome\n", "not UTF-8"),
        (b"age,dose\routcome\r1,2\r", "newlines"),
        (b"outcome\n1\n", "no column beside the target"),
    ],
)
def test_a_bad_header_is_an_error_that_quotes_no_cell(
    tmp_path: Path, content: bytes, message: str
) -> None:
    wanted = replace(write(tmp_path / "t.csv", content), columns=None, bounds=())
    with pytest.raises(DataError, match=message) as caught:
        read_table(wanted, N)
    assert "Alice" not in str(caught.value)


def test_what_must_be_declared_is_asked_for(wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none declared for dose.*never computed from the data"):
        read_table(replace(wanted, feature_bound=None), N)
    with pytest.raises(DataError, match="label_bound"):
        read_table(replace(wanted, label_bound=None), N)
    with pytest.raises(DataError, match="horizon"):
        read_table(wanted)
    with pytest.raises(DataError, match="target"):
        read_table(replace(wanted, target=None), N)
    with pytest.raises(DataError, match="cannot be read"):
        read_table(replace(wanted, data=str(tmp_path / "none.csv")), N)


def test_classes_are_known_by_text_or_number(tmp_path: Path) -> None:
    text = "x,y\n1,yes\n2,no\n3, yes \n4,perhaps\n5,\n6,YES\n"
    base = Wanted(str(tmp_path / "t.csv"), target="y", feature_bound=9.0, classes=("no", "yes"))
    (tmp_path / "t.csv").write_text(text)
    table = read_table(base, 6)
    assert table.labels[:3].tolist() == [1, 0, 1]
    assert table.usable.tolist() == [True, True, True, False, False, False]
    assert "perhaps" not in " ".join(told for _, told in table.messages)
    (tmp_path / "t.csv").write_text("x,y\n1,1\n2,0.0\n3,1e0\n4,2\n")
    table = read_table(replace(base, classes=("0", "1")), 4)
    assert table.labels[:3].tolist() == [1, 0, 1]
    assert table.usable.tolist() == [True, True, True, False]


# Parquet ------------------------------------------------------------------------------------------


def test_parquet_and_csv_give_the_same_table(wanted: Wanted, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    columns = {
        "age": [20, 30, 40, None, 60, 70],
        "name": [f"p{k}" for k in range(N)],
        "dose": [0.0, 0.1, float("nan"), 0.3, 0.4, 0.5],
        "outcome": [-2.0, -1.0, 0.0, 1.0, 20.0, 3.0],
    }
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    found = read_table(replace(wanted, data=str(path)), N + 1)
    assert found.usable.tolist() == [True, True, False, False, False, True]
    plain = read_table(wanted, N)
    both = [0, 1, 5]
    assert np.array_equal(found.values[both], plain.values[both])
    assert np.array_equal(found.labels[both], plain.labels[both])
    assert found.columns == plain.columns
    assert [user for user, _ in found.messages] == [2, 3, 4]
    with pytest.raises(DataError, match=r"income.*'age', 'name', 'dose', 'outcome'"):
        read_table(replace(wanted, data=str(path), target="income"), N)
    path.write_bytes(b"PAR1, but not really: Alice")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        read_table(replace(wanted, data=str(path)), N)
    assert "Alice" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read"):
        read_table(replace(wanted, data=str(tmp_path / "none.parquet")), N)


def test_a_parquet_cell_that_python_cannot_hold_costs_its_user_alone(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    raw = pyarrow.array([b"no", b"yes", b"\xff"], pyarrow.binary())
    labels = pyarrow.StringArray.from_buffers(3, *raw.buffers()[1:])  # the third is no UTF-8
    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0], "y": labels}), path)
    wanted = Wanted(str(path), target="y", feature_bound=9.0, classes=("no", "yes"))
    table = read_table(wanted, 3)
    assert table.usable.tolist() == [True, True, False]
    assert [user for user, _ in table.messages] == [2]


def test_parquet_without_pyarrow_is_one_clear_line(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install 'privlearn\[tables\]'"):
        read_table(replace(wanted, data="table.parquet"), N)


# Shipped tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "columns"), [("diabetes", 442, 10), ("breast_cancer", 569, 30)]
)
def test_shipped_tables_are_whole_and_mostly_within_their_bounds(
    name: str, rows: int, columns: int
) -> None:
    table = read_table(Wanted(name))
    assert table.values.shape == (rows, columns)
    assert len({column.name for column in table.columns}) == columns
    assert table.usable.all()
    assert "in view" in table.side_information[0]
    inputs = table.inputs()[:, :-1]
    assert (np.abs(inputs) <= 1).all()
    assert (np.abs(inputs) < 1).mean() > 0.85
    assert inputs.std(axis=0).min() > 0.15  # the bounds are of the right size


def test_digits_are_the_classes_that_were_asked_for() -> None:
    table = read_table(Wanted("digits", classes=("7", "3")))
    assert table.classes == ("7", "3")
    assert set(table.labels) == {0.0, 1.0}
    assert len(table) == 179 + 183
    assert any("classes 7, 3" in said for said in table.side_information)
    assert len(read_table(Wanted("digits", classes=SHIPPED["digits"].classes))) == 1797
    assert read_table(Wanted("digits")).classes == ("0", "1", "2")


def test_the_seed_orders_the_rows_of_a_shipped_table() -> None:
    first, again, other = (read_table(Wanted("diabetes", seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
    assert np.array_equal(np.sort(first.labels), np.sort(other.labels))


def test_declarations_override_those_of_a_shipped_table() -> None:
    wanted = Wanted("diabetes", columns=("bmi", "bp"), bounds=(("bp", (0.0, 200.0)),))
    assert read_table(wanted, 10).columns == (Column("bmi", 15, 40), Column("bp", 0.0, 200.0))
    narrow = read_table(replace(wanted, label_bound=10.0))
    assert 0 < narrow.usable.sum() < len(narrow) / 2
    assert len(narrow.messages) == (~narrow.usable).sum()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted("diabetes", target="bmi"), "the target of 'diabetes' is 'progression'"),
        (Wanted("diabetes", columns=("weight",)), "weight.*'age', 'sex'"),
        (Wanted("diabetes", bounds=(("weight", (0.0, 1.0)),)), "bounds = 'weight'"),
        (Wanted("diabetes", classes=("0", "1")), "is a regression"),
        (Wanted("digits", classes=("1", "ten")), "classes = 'ten'"),
    ],
)
def test_what_a_shipped_table_does_not_have_is_an_error(wanted: Wanted, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(wanted)
    with pytest.raises(DataError, match="has 442"):
        read_table(Wanted("diabetes"), 443)


def test_no_cell_ends_the_reading_whatever_kind_of_error_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(cells: list[Any], *rest: Any) -> list[float]:
        if cells[0] == "50":
            raise SystemExit("a secret")
        return numbers(cells, *rest)

    monkeypatch.setattr(user_tables, "numbers", read)
    table = read_table(write(tmp_path / "t.csv", TEXT), N)
    assert 3 in [user for user, _ in table.messages]
    assert not table.usable[3]

    class Column:
        def __len__(self) -> int:
            return 2

        def to_pylist(self) -> list[Any]:
            raise SystemExit("a secret")

        def __getitem__(self, place: int) -> Any:
            return pyarrow.scalar(7) if place else self.to_pylist()

    assert user_tables._listed(Column()) == [None, 7]


def test_a_part_of_a_table_keeps_its_messages(tmp_path: Path) -> None:
    table: Table = read_table(write(tmp_path / "t.csv", TEXT.replace("50,", "x,")), N)
    assert [user for user, _ in table.take(slice(0, 4)).messages] == [3]
    assert table.take(slice(4, N)).messages == ()
    assert len(table.take(slice(4, N))) == 2
