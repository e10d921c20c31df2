"""The form of records is public, and checked before a spend; values and lists are private."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars
import pyarrow
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.errors import DataError, UsersError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    LinearObjective,
    MultinomialLogit,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
    mechanism,
)
from privlearn.mechanisms.choice_model import Answer
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows, rows_from_bytes, rows_to_bytes
from privlearn.rows.domains import Ball, Box, Categories, Domain, OneOf, PSDTrace
from privlearn.rows.partitions import JobKey, PartitionedRows
from privlearn.rows.pooling import mean_of_visits
from privlearn.values.participation import Participation

pandas: Any = pytest.importorskip("pandas")
ONE, TWO = Ball(1e3, 1), Ball(1e3, 2)
TINY = GaussianNoise(1e-6)
FIT: Any = ObjectivePerturbation.calibrated(LinearObjective.logistic(2), ZCDP(1), max_rows=6)
X, Y = np.ones((6, 2)), np.ones(6)


def summing(domain: Domain[Any]) -> Any:
    return NoisySum(domain, TINY)


def released(release: Any, rows: Rows[Any]) -> Any:
    """The value, of a mechanism that has paid; nothing stands in the ledger if it raises."""
    users = rows.users
    book = CentralAccountant(ZCDP(10**24), users=users, noise=NoiseSource.simulation(0))
    token = book.issue(release.loss(), users=users, label="probe")
    try:
        value = release.release(rows, token).value
    except DataError:
        assert [entry.entry for entry in book.ledger.entries] == ["open", "issue"]
        raise
    return value


def pooling(slots: int) -> People:
    people = People.memory(Participation(2, pooled=True))
    people.bind("account", range(slots))
    people.divide([0])
    return people


def total(block: Any, domain: Domain[Any] = TWO) -> list[float]:
    n = len(block[0]) if isinstance(block, tuple) else len(block)
    found = released(summing(domain), Rows.seal(block, users=range(n)))
    return [round(float(x), 3) for x in np.ravel(found)]


@pytest.mark.parametrize(
    ("block", "release", "told"),
    [
        (np.ones(6), summing(ONE), "numbers of shape (), where Ball("),
        (np.ones(6), summing(ONE), "takes numbers of shape (1,): use x[:, None]"),
        ([1.0] * 6, summing(ONE), "use x[:, None]"),
        (pandas.Series(np.ones(6)), summing(ONE), ".to_numpy()[:, None]"),
        ([{"a": 1.0, "b": 2.0}] * 6, summing(TWO), "dict of shape (), where"),
        ([{"a": 1.0, "b": 2.0}] * 6, summing(TWO), "rows.map(lambda r: [r['a'], r['b']])"),
        (np.array([{}, {}, {}] * 2), summing(Categories(2)), "map records to numbers first"),
        (np.ones((6, 2, 1)), summing(TWO), "x.reshape(len(x), -1)"),
        (np.ones((6, 3)), summing(TWO), "choose columns, x[:, :2]"),
        (np.ones((6, 6)), summing(TWO), "or turn a transposed array, x.T"),
        (np.ones((6, 1)), summing(Categories(2)), "use x[:, 0]"),
        ((X, Y), summing(TWO), "a tuple of 2 arrays, where"),
        ((X, Y), summing(TWO), "map them to one array first"),
        (["yes", "no", "yes", "no", "yes", "no"], summing(Categories(2)), "text of shape ()"),
        (np.array(["1"] * 6), summing(Categories(2)), "convert numbers, x.astype(float)"),
        (np.zeros(6, "M8[D]"), summing(Categories(2)), "datetime64[D] of shape (), where"),
        (np.zeros(6, "M8[D]"), summing(Categories(2)), "x.astype('datetime64[s]')"),
        (np.zeros(6, "m8[s]"), summing(Categories(2)), "x / np.timedelta64(1, 's')"),
        (np.zeros((6, 2), complex), summing(TWO), "np.column_stack([x.real, x.imag])"),
        (np.zeros(6, "f,f"), summing(TWO), "structured_to_unstructured(x)"),
        (np.ones((6, 2, 3)), summing(PSDTrace(1.0, 2)), "takes numbers of shape (any, 2)"),
        ((X, X), summing(OneOf(TWO, 3)), "field 1: a record is numbers of shape (2,), where"),
        (X, summing(OneOf(TWO, 3)), "seal a tuple of 2 arrays"),
        ((X, Y[:, None]), FIT, "field 1: a record is numbers of shape (1,), where"),
        ((X, pandas.DataFrame({"y": Y})), FIT, "use x[:, 0]"),
        ((Y, X), FIT, "the fields are swapped"),
        ((np.ones((6, 3)), Y), FIT, "field 0: a record is numbers of shape (3,)"),
        (X, FIT, "Rows.seal((x, y), users=...)"),
    ],
)
def test_a_form_that_fits_no_record_is_refused_before_a_token_is_spent(
    block: Any, release: Any, told: str
) -> None:
    with pytest.raises(DataError, match=re.escape(told)):
        released(release, Rows.seal(block, users=range(6)))


def test_answers_of_the_choice_model_and_functions_pass_the_same_check() -> None:
    fit: Any = ObjectivePerturbation.calibrated(MultinomialLogit(3, 2), ZCDP(1), max_rows=6)
    wide = Answer(np.ones((6, 3, 4)), np.ones((6, 3)), np.zeros(6, int))

    @mechanism(domain=Box(0, 1, 2), noise=GaussianNoise(1.0))
    def added(rows: Any, draw: Any) -> Any:
        return rows.sum(axis=0) + draw((2,))

    for release, block in ((fit, wide), (added, Y)):
        with pytest.raises(DataError, match="takes"):
            released(release, Rows.seal(block, users=range(6)))


def test_a_stream_refuses_a_form_and_stays_where_it_was() -> None:
    book = CentralAccountant(ZCDP(10**24), users=range(4), noise=NoiseSource.simulation(0))
    sums = PrefixSum.calibrated(TWO, ZCDP(1), horizon=4)
    with sums.open(book.issue(sums.loss(), users=range(4), label="sums")) as stream:
        entries = len(book.ledger.entries)
        with pytest.raises(DataError, match="choose columns"):
            stream.append(Rows.seal(np.ones((2, 3)), users=range(2)))
        assert len(book.ledger.entries) == entries
        assert stream.append(Rows.seal(np.ones((2, 2)), users=range(2))).value.shape == (2, 2)
        assert stream.append(Rows.seal(np.ones((2, 2)), users=range(2, 4))).value.shape == (2, 2)


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.map(lambda r: r.left[:1]),
        lambda rows: rows.map_rows(lambda b: b.left[:, :1]),
        lambda rows: rows.map(lambda r: r.left).slice(range(2, 6)).map(np.square).map(np.sum),
        lambda rows: Rows.concat(
            [
                rows.map(lambda r: r.left).slice(range(3)),
                rows.map_rows(lambda b: b.right).slice(range(3, 6)),
            ]
        ),
    ],
)
def test_what_a_function_makes_of_zeros_is_the_form_of_its_results(
    made: Callable[[Rows[Any]], Rows[Any]],
) -> None:
    with pytest.raises(DataError, match="a record is numbers"):
        released(summing(TWO), made(Rows.seal(Pair(X, Y), users=range(6))))


def test_the_form_of_results_does_not_follow_from_values() -> None:
    """Where the function fails on zeros it is unknown, and rows that do not fit are null alone."""

    def odd(record: Any) -> Any:
        if record[0] == 0:
            raise ValueError
        return record if record[0] == 1 else np.ones(5)

    for first, sum_of in ((1.0, 6.0), (2.0, 0.0)):
        rows = Rows.seal(np.full((6, 2), first), users=range(6)).map(odd)
        assert released(summing(TWO), rows) == pytest.approx([sum_of] * 2, abs=1e-3)
    dicts: Rows[Any] = Rows.seal([{"a": 1.0, "b": 2.0}] * 6, users=range(6))
    assert released(summing(TWO), dicts.map(lambda r: [r["a"], r["b"]])) == pytest.approx(
        [6.0, 12.0], abs=1e-3
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda r: np.log(r) if r[0] > 0 else np.nan,
        lambda r: r[r > 0],
        lambda r: np.concatenate([r[:1], r[1:] / r[0] if r[0] else [np.nan, np.nan]]),
    ],
)
def test_what_a_function_makes_of_zeros_tells_nothing_if_it_says_that_they_are_no_use(
    function: Callable[[Any], Any],
) -> None:
    rows = Rows.seal(np.full((6, 2), 2.5), users=range(6))
    right = 6 * function(np.full(2, 2.5))
    assert released(summing(TWO), rows.map(function)) == pytest.approx(right, abs=1e-3)
    with pytest.raises(DataError, match=r"a record is numbers of shape \(2,\)"):
        released(summing(ONE), rows.map(function))


def test_the_form_goes_with_rows_that_are_pooled_and_that_travel(tmp_path: Path) -> None:
    people = pooling(6)
    rows = people.admit(Rows.seal(np.ones((6, 3)), users=range(6)), list("abcabc"))
    for pooled in (rows.pool(mean_of_visits), rows.pool(lambda block: block.sum(axis=0))):
        with pytest.raises(DataError, match="shape \\(3,\\)"):
            summing(TWO).partial(pooled)
    sent = rows_to_bytes(Rows.seal(Pair(X, Y), users=range(6)), bytes(32), kinds=[Pair])
    back = rows_from_bytes(sent, bytes(32), kinds=[Pair])
    for again in (back, back.map(lambda pair: pair.left[:1])):
        with pytest.raises(DataError):
            released(summing(TWO), again)
    key = JobKey.create(tmp_path / "key")
    parted: Any = PartitionedRows.of_blocks([X, np.ones((6, 3))], key=key)
    with pytest.raises(Exception, match=r"users 6..11: rows: a record is numbers of shape \(3,\)"):
        parted.partial(summing(TWO))
    odd: Any = PartitionedRows.of_blocks([[[1.0, 2.0], [1.0]], [None, [3.0, "4"]]], key=key)
    book = CentralAccountant(ZCDP(10**24), users=range(4), noise=NoiseSource.simulation(0))
    token = book.issue(summing(TWO).loss(), users=range(4), label="sum")
    value = summing(TWO).release_partial(odd.partial(summing(TWO)), token).value
    assert value == pytest.approx([4.0, 6.0], abs=1e-3)


# One bad entry is a NaN row ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        [[1.0, 2.0], [1.0]],
        [[1.0, 2.0], None],
        [[1.0, 2.0], [1.0, "n/a"]],
        [["1", "2.0"], ["1", "n/a"]],
        [[1, 2], [None, 1]],
        [[1, 2], [decimal.Decimal("sNaN"), 1]],
        [[1, 2], {"a": 1}],
        [[1, 2], [[1], [2, 3]]],
        [np.array([1.0, 2.0]), np.array([1j, 2])],
        (lambda cells: cells)(np.array([[1, 2], [1, "n/a"]], dtype=object)),
        np.ma.array([[1.0, 2.0], [1.0, 2.0]], mask=[[False, False], [True, False]]),
        pandas.DataFrame({"a": [1, 1], "b": [2.0, "n/a"]}),
        pandas.DataFrame({"a": ["1", None], "b": [2, 5]}),
        pandas.DataFrame([[1, 2], [None, 1]], dtype=object),
        polars.DataFrame({"a": ["1", "x"], "b": [2, 5]}),
        polars.DataFrame({"a": [1, None], "b": [2, 5]}),
        pyarrow.table({"a": [1, None], "b": ["2", "3"]}),
    ],
    ids=lambda block: type(block).__module__.partition(".")[0] + repr(block)[:60],
)
def test_one_bad_entry_is_a_nan_row_whatever_it_is(block: Any) -> None:
    assert total(block) == [1.0, 2.0]


@pytest.mark.parametrize(
    "block",
    [
        [True, None],
        [1, "n/a"],
        [1, 10**400],
        [1, np.ma.masked],
        pandas.Series([1, "n/a"]),
        pandas.Series([True, None]),
        polars.Series([True, None]),
        np.array([1, {}], dtype=object),
    ],
    ids=repr,
)
def test_one_bad_number_is_null(block: Any) -> None:
    assert total(block, Categories(2)) == [0.5, 1.5]


@pytest.mark.parametrize(
    "block",
    [
        np.full((2, 2), np.nan),
        [[np.nan, 1.0]] * 2,
        [None, None],
        [{"a": 1}, None],
        pandas.DataFrame({"a": [None, None], "b": [1.0, 2.0]}),
        pandas.DataFrame({"a": [pandas.NA, pandas.NA], "b": [1.0, 2.0]}),
        polars.DataFrame({"a": [None, None], "b": [1.0, 2.0]}),
        pyarrow.table({"a": pyarrow.nulls(2), "b": [1.0, 2.0]}),
    ],
    ids=lambda block: type(block).__module__.partition(".")[0] + repr(block)[:40],
)
def test_rows_without_a_number_are_paid_for(block: Any) -> None:
    assert total(block) == [0.0, 0.0]


def test_a_record_of_a_list_stays_as_it_is_for_functions() -> None:
    rows: Rows[Any] = Rows.seal([["Ann", 1.5], ["Bob", "x"], None, ["Cy", 2.5, 7]], users=range(4))
    assert released(summing(ONE), rows.map(lambda r: [float(r[1])])) == pytest.approx(
        [4.0], abs=1e-3
    )
    texts: Rows[Any] = Rows.seal(["yes", "no", "yes"], users=range(3))
    assert released(summing(ONE), texts.map(lambda r: [r == "yes"])) == pytest.approx([2], abs=1e-3)


class Unasked:
    """An object that fails when it is asked what it is."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError("the secret")


FIELDS = np.dtype([("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    "cell",
    [
        np.ma.masked,
        np.complex128(1 + 2j),
        decimal.Decimal("sNaN"),
        np.ma.array([(1, 2.0)], dtype=FIELDS, mask=[(True, False)]),
        np.ma.array((1, 2.0), dtype=FIELDS),
        np.ma.array([(1, 2.0)], dtype=FIELDS)[0],
        Unasked,
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_an_odd_cell_is_null_alone_and_nothing_warns_of_it(cell: Any) -> None:
    """Warnings are errors in these tests."""
    column = np.empty(4, dtype=object)
    column[:] = [1.0, "2", None, 4.0]
    column[2] = cell = Unasked() if cell is Unasked else cell
    frames = [
        pandas.DataFrame({"a": column}),
        polars.DataFrame({"a": polars.Series(column, dtype=polars.Object)}),
    ]
    for block in (
        *frames,
        column[:, None],
        [[1.0], ["2"], cell, [4.0]],
        [[1.0], ["2"], [cell], [4.0]],
    ):
        assert total(block, ONE) == [7.0]


def test_a_masked_array_of_fields_is_of_tuples() -> None:
    block = np.ma.array([(1, 2.0)] * 6, dtype=FIELDS, mask=[(i == 0, False) for i in range(6)])
    with pytest.raises(DataError, match="a record is tuple"):
        total(block)
    rows: Rows[Any] = Rows.seal(block, users=range(6))
    assert released(summing(ONE), rows.map(lambda r: [r[0]])) == pytest.approx([5], abs=1e-3)


# Frames ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [[0, 1], [1, 0], ["a", "a"], [None, ("b", 1)], pandas.to_datetime(["2026", "2027"])]
)
def test_columns_are_taken_by_their_places_whatever_their_names(names: Any) -> None:
    assert total(pandas.DataFrame([[1.0, 2.0]] * 5, columns=names)) == [5.0, 10.0]
    with pytest.raises(TypeError, match=r"block: column .* has type Datetime"):
        total(pandas.DataFrame([pandas.to_datetime(["2026", "2027"])] * 2, columns=names))


def test_a_column_of_text_without_a_number_is_refused_and_named() -> None:
    frame = pandas.DataFrame({"size": [1.0, 2.0, 3.0], "city": ["Oslo", "Rome", "Bonn"]})
    for table in (frame, polars.from_pandas(frame), pyarrow.Table.from_pandas(frame)):
        with pytest.raises(TypeError, match="column 'city' has type String, and no cell of it"):
            total(table)


# What is raised because of a value ---------------------------------------------------------------


def panics(value: Any) -> Any:
    return polars.Series([int(value)]).cast(polars.Datetime("ms")).to_list()[0].year


@pytest.mark.parametrize("error", [None, GeneratorExit, SystemExit, MemoryError, KeyboardInterrupt])
def test_nothing_that_user_code_raises_about_a_record_comes_out(error: Any) -> None:
    def year(record: Any) -> Any:
        if error is not None and record[0] > 10**15:
            raise error(f"the secret is {record}")
        return [panics(record[0]) - 1970]

    for made in (
        Rows.seal(np.array([[0.0], [1e18]]), users=range(2)).map(year),
        Rows.seal(np.array([[0.0], [1e18]]), users=range(2)).map_rows(
            lambda block: np.array([year(record) for record in block])
        ),
    ):
        assert released(summing(ONE), made) == pytest.approx([0.0], abs=1e-3)
    rows = pooling(2).admit(Rows.seal(np.array([[0.0], [1e18]]), users=range(2)), ["a", "b"])
    pooled = rows.pool(lambda block: np.asarray(year(block[0]), dtype=float))
    assert summing(ONE).partial(pooled).count == 2


class Spiteful:
    """Raises whatever is asked of it."""

    def _refuse(self, *_: object) -> Any:
        raise GeneratorExit("the secret")

    __float__ = __array__ = __len__ = __iter__ = __index__ = __eq__ = __getitem__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Uncopied(Spiteful):
    def __deepcopy__(self, memo: object) -> Any:
        raise MemoryError


@pytest.mark.parametrize("thing", [Spiteful, Uncopied])
def test_an_object_in_a_record_is_null_whatever_it_raises(thing: type[Spiteful]) -> None:
    cells = np.empty((2, 2), dtype=object)
    cells[0], cells[1, 0], cells[1, 1] = [1.0, 2.0], thing(), 5.0
    for block in (cells, [[1.0, 2.0], thing()], [[1.0, 2.0], [thing(), 5.0]]):
        assert total(block) == [1.0, 2.0]


def test_a_clip_of_somebody_else_may_raise_anything() -> None:
    class Picky:
        size = 2

        def clip(self, block: Any) -> Any:
            if (block == 7).any():
                raise GeneratorExit("the secret")
            return np.clip(block, -1, 1)

        def null(self) -> Any:
            return np.zeros(2)

        def sensitivity(self, adjacency: Any, norm: Any = "l2") -> float:
            return 3.0

        def decode(self, total: Any) -> Any:
            return total

        def to_dict(self) -> Any:
            return {"kind": "picky"}

    assert total(np.array([[1.0, 1.0], [7.0, 0.0]]), Picky()) == [1.0, 1.0]


def test_nobody_on_a_timetable_has_no_form() -> None:
    with pytest.raises(UsersError):
        Rows.seal(np.zeros(0), users=range(3))
    assert Rows._forms_of(Rows.seal(np.zeros(0), users=range(3), slots=[])) == ()
