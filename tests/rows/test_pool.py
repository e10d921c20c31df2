"""One row for each person and batch, made of that person's records only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.errors import ProvenanceError, UsersError
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.pooling import mean_of_visits
from privlearn.values.participation import Participation

STARTS = (0, 6, 12)
N = 18


def registry(**rule: Any) -> People:
    people = People.memory(Participation(**{"most": 3, "pooled": True, **rule}))
    people.bind("account", range(N))
    people.divide(STARTS)
    return people


def opened(rows: Rows[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """All records, and which of them are real: as a receipt would see them."""
    chunks = Rows._unseal(rows)
    valid = np.concatenate([chunk.valid for chunk in chunks])
    blocks = [np.asarray(c.block) for c in chunks if c.block is not None]
    return np.concatenate(blocks) if blocks else np.zeros((len(valid), 0)), valid


def total(block: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(block.sum(axis=0))


def test_a_person_has_one_row_at_the_first_visit_of_a_batch() -> None:
    ids = ["a", "b", "a", "c", "a", "b", "b", "b", "a", "a", "a", "c"]
    values = np.arange(12.0)[:, None]
    rows = registry().admit(Rows.seal(values, users=range(12)), ids)
    block, valid = opened(rows.pool(total))
    assert np.flatnonzero(valid).tolist() == [0, 1, 3, 6, 8, 11]
    assert block[valid, 0].tolist() == [0 + 2 + 4, 1 + 5, 3, 6 + 7, 8 + 9 + 10, 11]


def test_what_others_do_changes_nothing_of_it() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 2))
    own = np.array([1, 4, 5, 7])
    kept: list[bytes] = []
    for trial in range(20):
        ids = [f"p{i}" for i in np.random.default_rng(trial).integers(0, 4, 12)]
        others = np.where(np.isin(np.arange(12), own)[:, None], values, rng.normal(size=(12, 2)))
        for i in own:
            ids[i] = "me"
        block, valid = opened(registry().admit(Rows.seal(others, users=range(12)), ids).pool(total))
        mine = [1, 7]
        assert valid[mine].all()
        assert not valid[[4, 5]].any()
        kept.append(block[mine].tobytes())
    assert len(set(kept)) == 1


def test_odd_records_of_others_do_not_part_a_persons_own() -> None:
    """A record of another shape stands in a chunk of its own, between the two of one person."""
    rows = registry().admit(Rows.seal(np.arange(6.0), users=range(6)), list("ababcc"))

    def odd(x: Any) -> NDArray[Any]:
        return np.full(3, x) if x in (1.0, 4.0) else np.full(2, x)

    chunks = Rows._unseal(rows.map(odd).pool(total))
    found = [
        np.asarray(record).tolist() if real else None
        for chunk in chunks
        for record, real in zip(
            chunk.block if chunk.block is not None else chunk.valid, chunk.valid, strict=True
        )
    ]
    # a: 0 + 2; b and c have records of two shapes, which cannot be pooled
    assert found == [[2.0, 2.0], None, None, None, None, None]


def test_null_and_surplus_records_are_left_out() -> None:
    people = registry(most=1)
    values = np.arange(12.0)[:, None]
    values[2] = np.nan
    ids = ["a", None, "a", "b", "", "b", "a", "c", "a", "c", "b", "b"]

    def checked(x: NDArray[Any]) -> NDArray[Any]:
        if np.isnan(x).any():
            raise ValueError
        return x

    rows = people.admit(Rows.seal(values, users=range(12)), ids).map(checked)
    block, valid = opened(rows.pool(total))
    # in the second batch only c has a batch left
    assert np.flatnonzero(valid).tolist() == [0, 3, 7]
    assert block[valid, 0].tolist() == [0, 3 + 5, 7 + 9]


def test_a_combine_that_fails_makes_that_persons_row_null() -> None:
    def fails(block: NDArray[Any]) -> NDArray[Any]:
        if len(block) > 2:
            raise RuntimeError("three of them")
        return total(block)

    rows = registry().admit(Rows.seal(np.ones((6, 1)), users=range(6)), list("aaabbc"))
    _, valid = opened(rows.pool(fails))
    assert np.flatnonzero(valid).tolist() == [3, 5]


def test_a_combine_that_remembers_is_found_out() -> None:
    seen: list[int] = []

    def remembers(block: NDArray[Any]) -> NDArray[Any]:
        seen.append(len(block))
        return np.asarray([float(len(seen))])

    rows = registry().admit(Rows.seal(np.ones((6, 1)), users=range(6)), list("aaabbc"))
    pooled = rows.pool(remembers)
    assert any("remembers" in name for name in pooled.functions)
    with pytest.raises(Exception, match="computed again"):
        opened(pooled)


def test_rows_must_be_whole_batches_once_and_stamped() -> None:
    people = registry()
    rows = people.admit(Rows.seal(np.ones((9, 1)), users=range(9)), list("abcabcabc"))
    with pytest.raises(UsersError, match="whole batches"):
        rows.pool(total)
    pooled = rows.slice(range(6)).pool(total)
    with pytest.raises(ProvenanceError, match="pooled before"):
        pooled.pool(total)
    with pytest.raises(ProvenanceError, match="no stamp"):
        Rows.seal(np.ones((6, 1)), users=range(6)).pool(total)
    assert opened(Rows[Any].null(range(6)).pool(total))[1].tolist() == [False] * 6


def test_stamps_stay_with_parts_and_joined_rows() -> None:
    people = registry()
    first = people.admit(Rows.seal(np.arange(4.0)[:, None], users=range(4)), list("aaba"))
    people.skip(range(4, 5))
    last = people.admit(Rows.seal(np.array([[5.0]]), users=range(5, 6)), ["b"])
    rows = Rows.concat([first, Rows.null(range(4, 5)), last])
    block, valid = opened(rows.pool(total))
    assert np.flatnonzero(valid).tolist() == [0, 2]
    assert block[valid, 0].tolist() == [0 + 1 + 3, 2 + 5]
    other = registry()
    strange = other.admit(Rows.seal(np.ones((6, 1)), users=range(6)), list("abcabc"))
    mixed = Rows.concat(
        [rows, other.admit(Rows.seal(np.ones((6, 1)), users=range(6, 12)), list("uvwxyz"))]
    )
    assert Rows._stamp_of(mixed) is None
    assert Rows._stamp_of(strange) is not None


@pytest.mark.parametrize("dim", [1, 5])
def test_means_of_all_persons_at_once_have_the_bits_of_each_by_itself(dim: int) -> None:
    rng = np.random.default_rng(dim)
    ids = [None if i > 6 else int(i) for i in rng.integers(0, 8, N)]
    values = rng.normal(size=(N, dim))
    values[rng.random(N) < 0.2] = np.nan
    rows = registry().admit(Rows.seal(values, users=range(N)), ids)
    at_once, real = opened(rows.pool(mean_of_visits))
    each, too = opened(rows.pool(lambda block: mean_of_visits(block)))
    assert real.any()
    assert not real.all()
    assert real.tolist() == too.tolist()
    assert at_once[real].tobytes() == each[real].tobytes()
    for slot in np.flatnonzero(real):
        low = max(start for start in STARTS if start <= slot)
        mine = [i for i in range(low, low + 6) if ids[i] == ids[slot]]
        assert mine[0] == slot
        assert np.allclose(at_once[slot], np.nanmean(values[mine], axis=0))


@pytest.mark.parametrize("combine", [total, mean_of_visits], ids=["user code", "ours"])
def test_a_batch_that_is_pooled_in_parts_has_each_person_once(combine: Any) -> None:
    """With null rows in place of a half, the first visit of that half would be a second row."""
    people = registry()
    ones = [
        Rows.seal(np.ones((n, 1)), users=users) for users, n in ((range(3), 3), (range(3, 6), 3))
    ]
    first, second = people.admit(ones[0], list("abc")), people.admit(ones[1], list("bdb"))
    early = Rows.concat([first, Rows.null(range(3, 6))]).pool(combine)
    late = Rows.concat([Rows.null(range(3)), second]).pool(combine)
    whole = Rows.concat([first, second]).pool(combine)
    assert opened(early)[1].tolist() == [True, True, True, False, False, False]
    assert opened(late)[1].tolist() == [False, False, False, False, True, False]
    assert opened(whole)[1].tolist() == [True, True, True, False, True, False]
    # what a receipt would open, slot by slot, from whichever of them
    for parts in ((early, late), (early, whole), (whole, late)):
        slots = [np.flatnonzero(opened(rows)[1]) for rows in parts]
        met = [slot for slot in slots[0] if slot < 3] + [slot for slot in slots[1] if slot >= 3]
        assert met == [0, 1, 2, 4]


@pytest.mark.filterwarnings("error")
def test_means_that_overflow_warn_of_nothing() -> None:
    """A warning would tell what somebody's rows hold."""
    values = np.full((N, 2), 1e308)
    rows = registry().admit(Rows.seal(values, users=range(N)), ["a", "b"] * (N // 2))
    block, valid = opened(rows.pool(mean_of_visits))
    each, _ = opened(rows.pool(lambda block: mean_of_visits(block)))
    assert valid.any()
    assert block[valid].tobytes() == each[valid].tobytes()
