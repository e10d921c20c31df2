"""Files: one broken line or cell costs its own record only, and what form shows is refused."""

from __future__ import annotations

import gzip
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.errors import DataError
from privlearn.tables import Boolean, Category, Date, Encoding, Number, Schema, Table, files, read
from privlearn.tables import columns as table_columns
from privlearn.tables.cells import number_reader
from privlearn.tables.lines import LONGEST_LINE
from privlearn.tables.readers import read_encoded

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

SCHEMA = Schema(
    {
        "age": Number(0, 100),
        "job": Category(["a, b", 'c"d', "e"], optional=True),
        "day": Date("2020-01-01", "2021-01-01", optional=True),
        "member": Boolean(),
        "y": Number(-5, 5),
    },
    target="y",
    person="id",
)
HEADER = ",id,age,job,day,2000,member,y,x,x"
LINES = [
    "0,p0,20,e,2020-01-31,1,true,-1,,",
    '1,p1,30.5,"a, b",,1,False,0.5,"n, ""o""",',
    '2,p2,4e1,"c""d",2020-02-29,,1,+2,,',
    '"3","p3","50","","","","0","3","",""',
    "4,7,60, e ,2020-12-31 12:00,,TRUE,4,é,𝄞",
    "5,p5,70,e,,,0.0,-5,,",
]


def write(path: Path, lines: list[Any], header: str = HEADER, end: str = "\n") -> Path:
    text = [part if isinstance(part, bytes) else part.encode() for part in (header, *lines)]
    path.write_bytes(end.encode().join(text) + end.encode())
    return path


def cells(table: Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Everything that the rows say, a row each."""
    assert table.people is not None
    ids = [number_reader()(person and person.removeprefix("p")) for person in table.people]
    named = [table.column(name) for name in (*SCHEMA.features, "y")]
    return np.column_stack([ids, *named, table.usable])


def test_a_csv_file_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    found = cells(read(write(tmp_path / "t.csv", LINES), SCHEMA))
    nan = np.nan
    np.testing.assert_array_equal(
        found,
        [
            [0, 20, 2, 30, 1, -1, 1],
            [1, 30.5, 0, nan, 0, 0.5, 1],
            [2, 40, 1, 59, 1, 2, 1],
            [3, 50, nan, nan, 0, 3, 1],
            [7, 60, 2, 365.5, 1, 4, 1],
            [5, 70, 2, nan, 0, -5, 1],
        ],
    )
    for name, data in {
        "crlf.csv": "\r\n".join([HEADER, *LINES]).encode(),
        "bom.csv": b"\xef\xbb\xbf" + "\n".join([HEADER, *LINES]).encode(),
        "t.csv.gz": gzip.compress("\n".join([HEADER, *LINES, ""]).encode()),
    }.items():
        (tmp_path / name).write_bytes(data)
        np.testing.assert_array_equal(cells(read(tmp_path / name, SCHEMA)), found, err_msg=name)


TOKENS = (
    *('"', '""', ",", ",,", "\r", "\0", "\\", "#", "\t", "\x1a", "\ufeff", "a", "1", "nan", " "),
    *("é", "𝄞", "2020-01-01", "\u2028", "\x85"),
)


@pytest.mark.parametrize("halves", [False, True])
def test_no_line_moves_another_persons_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halves: bool
) -> None:
    """As lines are screened; and as they would be if one still upset the reader behind."""
    good = cells(read(write(tmp_path / "t.csv", LINES), SCHEMA))
    chance = random.Random(5)
    if halves:
        parsed = files._parsed
        monkeypatch.setattr(
            files, "_parsed", lambda lines, *rest: parsed(lines[: 2 - len(lines) % 2], *rest)
        )
    for _ in range(30 if halves else 200):
        lines: list[Any] = list(LINES)
        place = chance.randrange(len(lines))
        parts = [chance.choice(TOKENS).encode() for _ in range(chance.randrange(9))]
        if chance.random() < 0.3:
            parts.append(bytes([chance.randrange(128, 256)]))
        old = lines[place].encode()
        cut = chance.randrange(len(old))
        lines[place] = b"".join(parts) + (old[cut:] if chance.random() < 0.5 else b"")
        found = cells(read(write(tmp_path / "t.csv", lines), SCHEMA))
        others = np.arange(len(lines)) != place
        np.testing.assert_array_equal(found[others], good[others], err_msg=repr(lines[place]))
    long = [*LINES[:2], b"1" * (LONGEST_LINE + 5), *LINES[3:]]
    for size in (2**24, 2**19):
        monkeypatch.setattr("privlearn.tables.lines._CHUNK", size)
        table = read(write(tmp_path / "t.csv", long), SCHEMA)
        np.testing.assert_array_equal(np.delete(cells(table), 2, 0), np.delete(good, 2, 0))
        assert table.messages == [(2, "1 cell, where the header has 10")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0,p0,20", "3 cells, where the header has 10"),
        ("", "1 cell, where the header has 10"),
        ('0,p0,"20,e,,1,true,-1,,', "quotes or line ends are broken"),
        ("0,p0,20\r,e,,1,true,-1,,", "quotes or line ends are broken"),
        ("0,,20,e,,1,true,-1,,", "no id says who came"),
        ("0,p0,,e,,1,true,-1,,", "column 'age'"),
        ("0,p0,20,e,,1,maybe,-1,,", "column 'member'"),
        ("0,p0,20,e,,1,true,5.01,,", "column 'y'.*declared range"),
    ],
)
def test_a_broken_record_is_null_and_told_without_its_cells(
    tmp_path: Path, line: str, says: str
) -> None:
    table = read(write(tmp_path / "t.csv", [LINES[0], line]), SCHEMA)
    assert table.usable.tolist() == [True, False]
    encoding = Encoding(SCHEMA)
    assert np.isnan(encoding.inputs(table)[1]).all() or np.isnan(encoding.targets(table)[1])
    assert np.isfinite(encoding.for_prediction(table)).all()
    ((row, told),) = table.messages
    assert row == 1
    assert pytest.importorskip("re").search(says, told)


def test_a_broken_line_is_null_even_where_every_cell_may_be_missing(tmp_path: Path) -> None:
    schema = Schema({"a": Number(0, 1, optional=True), "b": Number(0, 1, optional=True)})
    table = read(write(tmp_path / "t.csv", [",", "1", '"'], header="a,b"), schema, rows=4)
    assert table.usable.tolist() == [True, False, False, False]
    assert np.isnan(Encoding(schema).inputs(table)).all(axis=1).tolist() == [
        False,
        True,
        True,
        True,
    ]


def test_how_a_file_is_written_is_declared(tmp_path: Path) -> None:
    schema = Schema(
        {"größe": Number(0, 1e7), "wo": Category(["Köln; Süd", "Trier"])},
        separator=";",
        decimal=",",
        thousands=".",
        encoding="cp1252",
    )
    lines = ['1.234,5;"Köln; Süd"', "12.34,5;Trier", "-1e2;Trier", "1234.567;Trier", "7\x81;Trier"]
    path = tmp_path / "t.csv"
    path.write_bytes("\n".join(["größe;wo", *lines]).encode("latin-1"))
    table = read(path, schema)
    np.testing.assert_array_equal(table.column("größe"), [1234.5, np.nan, -100, np.nan, np.nan])
    np.testing.assert_array_equal(table.column("wo"), [0, 1, 1, 1, 1])


@pytest.mark.parametrize("marks", [(), (",", "."), (".", " ")])
def test_numbers_are_the_same_in_a_column_and_alone(
    marks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    alphabet = [
        *"0123456789",
        *"012",
        ".",
        ",",
        "-",
        "+",
        "e",
        "E",
        " ",
        "_",
        "x",
        "١",
        "inf",
        "nan",
    ]
    texts = ["".join(chance.choices(alphabet, k=chance.randrange(7))) for _ in range(3000)]
    texts += ["1e400", "-1e400", "1e-400", "Infinity", "NaN", "0x10", "1\n", "\n1", "1\x0b", "1d5"]
    one = number_reader(*marks)
    want = [one(text) for text in texts]
    assert 500 < np.isfinite(want).sum() < 2500
    found = table_columns.text_numbers(pyarrow.chunked_array([texts]), table_columns.Marks(*marks))
    np.testing.assert_array_equal(found, want)
    good = [text for text, number in zip(texts, want, strict=True) if math.isfinite(number)]
    again = table_columns.text_numbers(pyarrow.chunked_array([good]), table_columns.Marks(*marks))
    np.testing.assert_array_equal(again, [one(text) for text in good])
    for text, number in zip(texts[-10:], want[-10:], strict=True):
        alone = table_columns.text_numbers(
            pyarrow.chunked_array([[text]]), table_columns.Marks(*marks)
        )
        np.testing.assert_array_equal(alone, [number])


def test_parquet_is_the_same_table_and_one_cell_costs_its_own_record(tmp_path: Path) -> None:
    raw = pyarrow.array([b"e", b"a, b", b"\xff"], pyarrow.binary())
    columns = {
        "id": pyarrow.array([1, 2, 3]),
        "age": pyarrow.array([20, 2**62 + 1, None]),
        "job": pyarrow.StringArray.from_buffers(3, *raw.buffers()[1:]),  # the third is no UTF-8
        "day": pyarrow.array([None, "2020-02-29", "2020-02-30"]).dictionary_encode(),
        "member": pyarrow.array([True, False, None]),
        "y": pyarrow.array([1.0, np.nan, 2.0]),
        "x": pyarrow.array([[1], None, [2]]),
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    nan = np.nan
    want = [
        [1, 20, 2, nan, 1, 1, 1],
        [2, 2**62, 0, 59, 0, nan, 0],
        [3, nan, nan, nan, nan, 2, 0],
    ]
    np.testing.assert_array_equal(cells(read(path, SCHEMA)), want)
    encoding = Encoding(SCHEMA)
    whole, apart = read(path, SCHEMA), read_encoded(path, encoding)
    np.testing.assert_array_equal(apart.inputs, encoding.inputs(whole))
    assert apart.targets is not None
    np.testing.assert_array_equal(apart.targets, encoding.targets(whole))
    assert (apart.people, apart.messages) == (whole.people, whole.messages)


def test_parts_of_a_file_are_joined_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{i}" if i % 7 else "broken,line" for i in range(50)]
    schema, path = Schema({"x": Number(0, 49)}), write(tmp_path / "t.csv", lines, header="x")
    whole = read(path, schema)
    monkeypatch.setattr("privlearn.tables.lines._CHUNK", 40)
    monkeypatch.setattr("privlearn.tables.readers._BATCH", 3)
    parts = read(path, schema)
    np.testing.assert_array_equal(parts.column("x"), whole.column("x"))
    assert parts.messages == whole.messages
    assert [row for row, _ in parts.messages] == list(range(0, 50, 7))
    encoded = read_encoded(path, Encoding(schema))
    np.testing.assert_array_equal(encoded.inputs, Encoding(schema).inputs(whole))
    assert encoded.messages == whole.messages
    assert len(read(path, schema, rows=5)) == 5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "must name every column"),
        (b"34,Alice,0.5\n35,Bob,0.5\n", "may be somebody's row"),
        (b"a,\xff,c\n1,2,3\n", "not UTF-8"),
        (b"a,y\rAlice,2\r", "newlines"),
        (b'a,"b;1";c\n', "semicolons.*separator = ';'"),
        (b"a,b\n1,2\n", "'y' is not there.*'a', 'b'"),
        (b"a,y,y\n1,2,3\n", "'y' stands there 2 times"),
        (b"a,y\n", "no row"),
    ],
)
def test_a_bad_header_is_refused_and_quotes_no_cell(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read(path, Schema({"a": Number(0, 1), "y": Number(0, 1)}))
    assert "Alice" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema({"x": Number(0, 1)})
    whole = gzip.compress(b"x\n" + b"0.123456\n" * 1000)
    for name, data, says in (
        ("cut.csv.gz", whole[:-20], "damaged or cut off"),
        ("no.csv.gz", b"x\n1\n", "damaged or cut off"),
        ("t.parquet", b"PAR1, but not really: Alice", "not a file that pyarrow can read"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name}.*{says}") as caught:
            read(tmp_path / name, schema)
        assert "Alice" not in str(caught.value)
    for name in ("none.csv", "none.parquet", "."):
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / name, schema)
    parquet.write_table(pyarrow.table({"x": ["1"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'x' has type string.*numbers or booleans"):
        read(tmp_path / "t.parquet", schema)
    for module in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'privlearn\[tables\]'"):
        read(tmp_path / "t.csv", schema)


def test_a_draft_of_a_file_reads_its_first_line_only(tmp_path: Path) -> None:
    drafts = []
    for lines in (LINES, ["Alice"]):
        drafts.append(Schema.draft(write(tmp_path / "t.csv", lines)))
    assert drafts[0] == drafts[1]
    assert 'age = { kind = "?" }' in drafts[0]
