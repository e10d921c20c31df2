"""Sealed rows: nothing looks in, a bad record is null alone, the clock goes on."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.contract.billboard import Billboard
from privlearn.contract.spends import Spend
from privlearn.errors import ProvenanceError, SealedError, UsersError
from privlearn.losses.budgets import ZCDP
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows, Sealed, Source
from privlearn.rows.domains import Ball, Domain, PSDTrace

Array = NDArray[np.float64]
SECRET = 123456.789


def contributions(rows: Rows[Any], domain: Domain[Any]) -> Array:
    """What a mechanism sees of the rows."""
    accountant = CentralAccountant(ZCDP(1), users=rows.users, noise=NoiseSource.simulation(0))
    token = accountant.issue(ZCDP(1), users=rows.users, label="probe")
    with token.spend(Spend("probe", domain, GaussianNoise(1e9))) as receipt:
        return receipt.open(rows)


@pytest.fixture(params=["rows", "shown"])
def sealed(request: pytest.FixtureRequest) -> Iterator[Sealed]:
    rows = Rows.seal(np.full((1, 2), SECRET), users=range(7, 8))
    if request.param == "rows":
        yield rows
    else:
        accountant = CentralAccountant(ZCDP(1), users=range(7, 8), noise=NoiseSource.simulation(0))
        yield Billboard(accountant, range(7, 8)).serve(rows, lambda own: own)


LOOKS: list[Callable[[Any], object]] = [
    float,
    int,
    complex,
    bool,
    iter,
    list,
    hash,
    math.floor,
    np.asarray,
    np.sum,
    pickle.dumps,
    copy.copy,
    copy.deepcopy,
    reversed,
    operator.index,
    lambda sealed: np.add(sealed, 1.0),
    lambda sealed: np.concatenate([sealed, sealed]),
    lambda sealed: sealed == sealed,
    lambda sealed: sealed != SECRET,
    lambda sealed: sealed < 1,
    lambda sealed: sealed >= 1,
    lambda sealed: sealed[0],
    lambda sealed: SECRET in sealed,
    lambda sealed: f"{sealed}",
    lambda sealed: format(sealed, ".3f"),
    lambda sealed: sealed + 1,
    lambda sealed: 1 - sealed,
    lambda sealed: sealed * 2,
    lambda sealed: sum([sealed]),
    lambda sealed: 1 if sealed else 0,
]


@pytest.mark.parametrize("look", LOOKS)
def test_sealed_values_refuse_every_look(sealed: Sealed, look: Callable[[Any], object]) -> None:
    with pytest.raises(SealedError, match="is sealed: only a mechanism that spent a token"):
        look(sealed)


@pytest.mark.parametrize(
    "look", [round, abs, operator.neg, operator.invert, memoryview, bytes, len]
)
def test_what_is_not_defined_on_sealed_values_shows_nothing(sealed: Sealed, look: Any) -> None:
    if look is len:
        assert len(sealed) == 1 if isinstance(sealed, Rows) else not hasattr(sealed, "__len__")
        return
    with pytest.raises(TypeError, match=r"^[^0-9]*$"):
        look(sealed)


def test_the_repr_shows_users_and_no_data(sealed: Sealed) -> None:
    for text in (repr(sealed), str(sealed), repr((sealed,)), repr([sealed])):
        assert "sealed" in text
        assert "7..7" in text
        assert "123456" not in text
    assert not hasattr(sealed, "__dict__")
    with pytest.raises(AttributeError, match="block"):
        sealed.block  # type: ignore[attr-defined]  # noqa: B018


def test_users_must_match_the_block() -> None:
    with pytest.raises(UsersError, match="names 4 rows, the block has 3"):
        Rows.seal(np.zeros((3, 2)), users=range(4))
    with pytest.raises(ValueError, match="one common leading axis"):
        Rows.seal((np.zeros(3), np.zeros(4)), users=range(3))
    for bad in (range(0), range(-1, 2), range(0, 6, 2), range(3, 0)):
        with pytest.raises(ValueError, match="must be a non-empty range"):
            Rows.seal(np.zeros((3, 2)), users=bad)
    with pytest.raises(TypeError, match="must be a range"):
        Rows.seal(np.zeros((3, 2)), users=[0, 1, 2])  # type: ignore[arg-type]


def test_slices_are_contiguous_parts() -> None:
    rows = Rows.seal(np.arange(10.0)[:, None], users=range(5, 15))
    part = rows.slice(range(7, 9))
    assert part.users == range(7, 9)
    assert contributions(part, Ball(100.0, 1)).ravel().tolist() == [2.0, 3.0]
    for outside in (range(4, 6), range(14, 16)):
        with pytest.raises(UsersError, match="are not all within"):
            rows.slice(outside)
    for bad in (range(5, 9, 2), range(7, 7), range(9, 7, -1)):
        with pytest.raises(ValueError, match="must be a non-empty range"):
            rows.slice(bad)


def test_only_consecutive_rows_of_one_source_join() -> None:
    left, right = (Rows.seal(np.full((2, 1), v), users=range(2 * v, 2 * v + 2)) for v in (0, 1))
    both = Rows.concat([left, right])
    assert both.users == range(4)
    assert contributions(both, Ball(9.0, 1)).ravel().tolist() == [0, 0, 1, 1]
    with pytest.raises(UsersError, match="are not consecutive"):
        Rows.concat([right, left])
    with pytest.raises(ValueError, match="needs at least one Rows"):
        Rows.concat([])
    accountant = CentralAccountant(ZCDP(1), users=range(4), noise=NoiseSource.simulation(0))
    board = Billboard(accountant, range(4))
    served = board.serve(left, lambda own: own).deliver(lambda own, _: own)
    assert (served.source, left.source) == (Source.SERVED, Source.LOGGED)
    with pytest.raises(ProvenanceError, match="different billboards or sources"):
        Rows.concat([served, right])


class Record(NamedTuple):
    context: Array
    choice: Array


def test_named_tuples_of_arrays_travel_as_records() -> None:
    block = Record(np.arange(6.0).reshape(3, 2), np.array([1.0, 2.0, 3.0]))
    rows = Rows.seal(block, users=range(3))
    by_one = rows.map(lambda record: record.context * record.choice)
    by_block = rows.map_rows(lambda record: record.context * record.choice[:, None])
    for found in (by_one, by_block):
        expected = block.context * block.choice[:, None]
        assert np.array_equal(contributions(found, Ball(1e6, 2)), expected)


def _weights(d: int) -> Array:
    return np.random.default_rng(1).normal(size=(d, 5))


@given(n=st.integers(2, 40), bad=st.integers(0, 39), d=st.integers(1, 9))
def test_a_record_on_which_map_fails_leaves_the_others_bitwise_alone(
    n: int, bad: int, d: int
) -> None:
    """Also through a later matrix product, whose rounding depends on the size of the block."""
    data, weights, bad = np.random.default_rng(n).normal(size=(n, d)), _weights(d), bad % n

    def fails(record: Array) -> Array:
        if np.array_equal(record, data[bad]):
            raise ValueError(f"the secret is {record}")
        return record

    rows = Rows.seal(data, users=range(n))
    domain = Ball(1e6, 5)
    whole = contributions(rows.map(lambda r: r).map_rows(lambda b: b @ weights), domain)
    holed = contributions(rows.map(fails).map_rows(lambda b: b @ weights), domain)
    others = np.arange(n) != bad
    assert np.array_equal(holed[others], whole[others])
    assert np.array_equal(holed[bad], domain.null())


@given(n=st.integers(2, 40), bad=st.integers(0, 39), d=st.integers(1, 9))
def test_a_record_on_which_map_rows_fails_leaves_the_others_bitwise_alone(
    n: int, bad: int, d: int
) -> None:
    data, weights, bad = np.random.default_rng(n).normal(size=(n, d)), _weights(d), bad % n

    def fails(block: Array) -> Array:
        if (block == data[bad]).all(axis=1).any():
            raise RuntimeError("the secret is in here")
        return block @ weights

    domain = Ball(1e6, 5)
    rows = Rows.seal(data, users=range(n))
    whole = contributions(rows.map_rows(lambda b: b @ weights), domain)
    holed = contributions(rows.map_rows(fails), domain)
    others = np.arange(n) != bad
    assert np.array_equal(holed[others], whole[others])
    assert np.array_equal(holed[bad], domain.null())


def _wrong_shape(record: Array) -> Array:
    return record if record[0] != 3 else np.append(record, SECRET)


def _nan(record: Array) -> Array:
    return record if record[0] != 3 else np.full_like(record, np.nan)


def _inf(record: Array) -> Array:
    return record if record[0] != 3 else np.array([3.0, np.inf])


def _text(record: Array) -> Array:
    return record if record[0] != 3 else np.array(["three", "threes"])


def _raises(record: Array) -> Array:
    return record if record[0] != 3 else np.zeros(1 // 0)


@pytest.mark.parametrize("spoil", [_wrong_shape, _nan, _inf, _text, _raises])
def test_a_bad_row_alone_becomes_null_and_keeps_its_place(spoil: Callable[[Array], Array]) -> None:
    data = np.column_stack([np.arange(8.0), np.random.default_rng(0).normal(size=8)])
    rows = Rows.seal(data, users=range(8))
    domain = Ball(2.5, 2)
    whole, holed = (contributions(r, domain) for r in (rows.map(lambda r: r), rows.map(spoil)))
    assert holed.shape == (8, 2)
    assert np.array_equal(holed[3], domain.null())
    others = np.arange(8) != 3
    assert np.array_equal(holed[others], whole[others])
    assert contributions(rows.map(spoil).slice(range(3, 4)), domain).tolist() == [[0.0, 0.0]]


def test_nan_in_factors_is_the_zero_matrix_for_that_user_alone() -> None:
    factors = np.random.default_rng(0).normal(size=(5, 3, 2))
    whole = contributions(Rows.seal(factors.copy(), users=range(5)), PSDTrace(1.0, 2))
    factors[2, 1, 0] = np.nan
    holed = contributions(Rows.seal(factors, users=range(5)), PSDTrace(1.0, 2))
    assert np.array_equal(holed[2], np.zeros(3))
    assert np.array_equal(np.delete(holed, 2, 0), np.delete(whole, 2, 0))


def test_a_function_that_skips_a_row_is_noticed_and_shifts_nobody() -> None:
    """The planted leak: dropping a record would move everybody behind it by one index."""
    data = np.arange(1.0, 6.0)[:, None]
    rows = Rows.seal(data, users=range(5)).map_rows(lambda block: block[block[:, 0] != 3])
    assert contributions(rows, Ball(9.0, 1)).ravel().tolist() == [1, 2, 0, 4, 5]


def test_null_rows_are_null_in_every_domain_and_are_passed_to_no_function() -> None:
    seen: list[float] = []

    def note(record: Array) -> Array:
        seen.append(float(record[0]))
        return record

    rows = Rows.seal(np.arange(4.0)[:, None], users=range(4)).map(
        lambda record: record if record[0] != 2 else np.zeros(1 // 0)
    )
    assert contributions(rows.map(note), Ball(9.0, 1)).ravel().tolist() == [0, 1, 0, 3]
    assert set(seen) == {0, 1, 3}
    lost: Rows[Array] = Rows.null(range(2))
    assert contributions(lost.map_rows(lambda b: b + 1), Ball(1.0, 3)).tolist() == [[0] * 3] * 2


def test_an_error_in_user_code_says_nothing_about_the_record(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(record: Array) -> Array:
        raise ValueError(f"the secret is {record}")

    Rows.seal(np.full((2, 1), SECRET), users=range(2)).map(fails)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


# Whose arrays they are ---------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


WIDE = Ball(1e6, 2)
VALUES = np.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda values: values,
        lambda values: values[::-1][::-1],
        lambda values: np.asfortranarray(values),
        lambda values: memoryview(values),
        lambda values: [list(row) for row in values],
    ],
    ids=["array", "view", "columns first", "buffer", "lists"],
)
def test_a_block_that_is_written_to_after_sealing_changes_nothing(
    make: Callable[[Array], Any],
) -> None:
    given_ = make(VALUES.copy())
    rows = Rows.seal(given_, users=range(4))
    view = rows.slice(range(1, 3))
    for row in given_ if isinstance(given_, list) else [np.asarray(given_)]:
        row[:] = [99.0, 99.0] if isinstance(row, list) else 99.0
    assert np.array_equal(contributions(rows, WIDE), VALUES)
    assert np.array_equal(contributions(view, WIDE), VALUES[1:3])


def test_the_fields_of_records_are_copied_and_keep_their_type() -> None:
    left, right = VALUES.copy(), VALUES[:, 0].copy()
    rows = Rows.seal(Pair(left, (right, left)), users=range(4))
    left[:], right[:] = 99.0, 99.0

    def both(pair: Pair) -> Array:
        assert isinstance(pair, Pair)
        found: Array = np.stack([pair.left[:, 0], pair.right[0]], axis=1)
        return found

    assert np.array_equal(contributions(rows.map_rows(both), WIDE), VALUES[:, [0, 0]])


def test_a_masked_cell_is_missing_whatever_is_written_later() -> None:
    masked = np.ma.array(VALUES.copy(), mask=VALUES == 3)
    early = Rows.seal(masked, users=range(4))
    masked.mask = False
    masked[1, 1] = 99.0
    expected = np.where((VALUES == 3).any(axis=1)[:, None], 0.0, VALUES)
    assert np.array_equal(contributions(early, WIDE), expected)


class Stubborn:
    """Cannot be copied."""

    def __deepcopy__(self, memo: object) -> None:
        raise RuntimeError("no")


def numbers(block: NDArray[np.object_]) -> Array:
    return np.array([[sum(cell), len(cell)] for cell in block[:, 0]], dtype=np.float64)


@pytest.mark.parametrize("spoilt", [False, True])
def test_objects_inside_an_array_are_copied_and_one_that_cannot_be_is_null_alone(
    spoilt: bool,
) -> None:
    block = np.empty((3, 1), dtype=object)
    block[:, 0] = [[1.0, 2.0], np.array([3.0, 4.0]), [5.0]]
    if spoilt:
        block[1, 0] = Stubborn()
    cells = [cell for cell in block[:, 0] if not isinstance(cell, Stubborn)]
    rows = Rows.seal(block, users=range(3))
    for cell in cells:
        cell[0] = 99.0
    block[:, 0] = None
    found = contributions(rows.map_rows(numbers), WIDE)
    assert found.tolist() == [[3, 2], [0, 0] if spoilt else [7, 2], [5, 1]]


def test_a_function_may_return_the_same_array_every_time() -> None:
    """Else the second user's result would stand in the first one's record, too."""
    reused = np.zeros((2, 2))

    def doubled(block: Array) -> Array:
        np.multiply(block, 2, out=reused)
        return reused

    parts = [Rows.seal(VALUES[i : i + 2], users=range(i, i + 2)) for i in (0, 2)]
    twice = Rows.concat([part.map_rows(doubled) for part in parts])
    assert np.array_equal(contributions(twice, WIDE), 2 * VALUES)


def test_a_block_that_changes_while_it_is_clipped_was_copied_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The norm is taken, the row is changed, and then divided by the old norm."""
    block = VALUES.copy()
    rows, clip = Rows.seal(block, users=range(4)), Ball.clip
    expected = contributions(rows, Ball(1.0, 2))

    def late(self: Ball, rows: Array) -> Array:
        block[:] = 1e9  # another thread's work
        return clip(self, rows)

    monkeypatch.setattr(Ball, "clip", late)
    assert np.array_equal(contributions(rows, Ball(1.0, 2)), expected)
