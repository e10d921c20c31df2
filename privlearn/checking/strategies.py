"""Hypothesis strategies for neighbouring data sets, as the other checks take them.

Pairs come as tuples of two data sets: blocks of records (arrays, or tuples of arrays, with users
along the leading axis) for `assert_private` and for mechanisms, lists of users for
`assert_noninterference`.  They shrink towards few users, who are alike, and small numbers.

In all of them ``records`` draws the record of one user, ``min_users`` is at least 1 and
``max_users`` no less; hypothesis fills in ``draw``.

This is the only module that needs hypothesis (``pip install privlearn[checking]``).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

try:
    from hypothesis import assume
    from hypothesis import strategies as st
except ImportError as missing:  # pragma: no cover - the tests have it
    raise ImportError(
        "privlearn.checking.strategies needs hypothesis: pip install privlearn[checking]"
    ) from missing

from privlearn.checking.replay.populations import Person, null_person, replaced, shopper, stranger
from privlearn.rows.domains import Array, Norm
from privlearn.values.records import each_leaf, join, leaves, record_at, stack
from privlearn.values.validate import count, positive

Block = Any
"""Records of several users: an array, or a tuple of arrays, with users along the leading axis."""
_ORDERS: dict[Norm, float] = {"l1": 1, "l2": 2, "linf": np.inf}


def bounded_vectors(radius: float, dim: int, norm: Norm = "l2") -> st.SearchStrategy[Array]:
    """Vectors of shape (dim,) within a ball, many of them at its edge; they shrink towards 0.

    Args:
        radius: > 0.
        dim: >= 1.
        norm: of the ball.
    """
    positive(radius=radius)
    if norm not in _ORDERS:
        raise ValueError(f"norm = {norm!r}: must be 'l1', 'l2' or 'linf'")
    entry = st.floats(-1, 1, allow_subnormal=False)
    entries = st.lists(entry, min_size=count(dim=dim), max_size=dim)
    return st.builds(_in_ball, entries, st.booleans(), st.just(radius), st.just(norm))


def _in_ball(entries: list[float], at_edge: bool, radius: float, norm: Norm) -> Array:
    vector = np.array(entries)
    largest = np.abs(vector).max()
    if at_edge and largest > 0:
        vector = vector / largest  # first, as squares of small numbers vanish
    size = float(np.linalg.norm(vector, ord=_ORDERS[norm]))
    if size > 1 or (at_edge and size > 0):
        vector = vector / size
    return np.asarray(vector * (radius * (1 - 1e-12)))


def blocks(
    records: st.SearchStrategy[Any], *, min_users: int = 1, max_users: int = 6
) -> st.SearchStrategy[Block]:
    """Blocks of independent records.

    Args:
        records: of one user: an array, a number, or a (named) tuple of those.
    """
    _check_users(min_users, max_users)
    return st.lists(records, min_size=min_users, max_size=max_users).map(stack)


def _check_users(least: int, most: int) -> None:
    if count(min_users=least) > count(max_users=most):
        raise ValueError(f"max_users = {most}: must be at least min_users = {least}")


@st.composite
def replace_one(
    draw: st.DrawFn,
    records: st.SearchStrategy[Any],
    *,
    min_users: int = 1,
    max_users: int = 6,
    at: int | None = None,
) -> tuple[Block, Block]:
    """Two blocks that differ in exactly one record.

    Args:
        at: whose record differs; default anybody's.
    """
    if at is not None and not 0 <= at < min_users:
        raise ValueError(f"at = {at}: must lie in 0..{min_users - 1}, where there always is a user")
    first = draw(blocks(records, min_users=min_users, max_users=max_users))
    n = len(next(leaves(first)))
    place = draw(st.integers(0, n - 1)) if at is None else at
    old = record_at(first, place)
    new = draw(records.filter(lambda record: not _alike(record, old)))
    return first, _with_record(first, place, new)


def _alike(record: Any, other: Any) -> bool:
    pairs = zip(leaves(record), leaves(other), strict=True)
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def _with_record(block: Block, place: int, record: Any) -> Block:
    n = len(next(leaves(block)))
    order = np.where(np.arange(n) == place, n, np.arange(n))
    return record_at(join([block, stack([record])]), order)


@st.composite
def zero_out(
    draw: st.DrawFn,
    records: st.SearchStrategy[Any],
    *,
    null: Any = None,
    min_users: int = 1,
    max_users: int = 6,
) -> tuple[Block, Block]:
    """A block, and the same block with one record null.

    Args:
        null: the null record; default NaN in place of every floating-point number, which every
            shipped domain takes for null.
    """
    first = draw(blocks(records, min_users=min_users, max_users=max_users))
    n = len(next(leaves(first)))
    place = draw(st.integers(0, n - 1))
    old = record_at(first, place)
    gone = _blank(old) if null is None else null
    assume(not _alike(gone, old))
    return first, _with_record(first, place, gone)


def _blank(record: Any) -> Any:
    return each_leaf(
        record,
        lambda leaf: np.full_like(leaf, np.nan) if leaf.dtype.kind == "f" else np.zeros_like(leaf),
    )


@st.composite
def add_remove(
    draw: st.DrawFn, records: st.SearchStrategy[Any], *, min_users: int = 1, max_users: int = 6
) -> tuple[Block, Block]:
    """A block, and the same block without one of its records; either may come first.

    Args:
        min_users: of the smaller block, >= 1.
        max_users: of the larger block, > min_users.
    """
    if count(max_users=max_users) <= count(min_users=min_users):
        raise ValueError(f"max_users = {max_users}: must be above min_users = {min_users}")
    larger = draw(blocks(records, min_users=min_users + 1, max_users=max_users))
    n = len(next(leaves(larger)))
    place = draw(st.integers(0, n - 1))
    smaller = record_at(larger, np.delete(np.arange(n), place))
    return (smaller, larger) if draw(st.booleans()) else (larger, smaller)


def streams(
    records: st.SearchStrategy[Any], *, horizon: int = 8
) -> st.SearchStrategy[tuple[Block, Block]]:
    """Two streams of ``horizon`` records that differ at one arrival.

    Args:
        horizon: >= 1; all streams are as long, so that outputs have one shape.
    """
    return replace_one(records, min_users=horizon, max_users=horizon)


PersonKind = Literal["shopper", "stranger", "null"]


def people(
    n_items: int = 6,
    dim: int = 2,
    *,
    kinds: tuple[PersonKind, ...] = ("shopper", "stranger", "null"),
) -> st.SearchStrategy[Person]:
    """Users with own data and a response to any offer; they shrink towards the first kind.

    Args:
        kinds: "shopper" (proper data), "stranger" (mostly data that no learner may trust), "null".
    """
    return st.builds(
        _person,
        st.sampled_from(kinds),
        st.integers(0, 2**32 - 1),
        st.just(count(n_items=n_items)),
        st.just(count(dim=dim)),
    )


def _person(kind: PersonKind, seed: int, n_items: int, dim: int) -> Person:
    if kind == "null":
        return null_person(n_items, dim)
    return (shopper if kind == "shopper" else stranger)(np.random.default_rng(seed), n_items, dim)


@st.composite
def choice_rounds(
    draw: st.DrawFn,
    *,
    n_items: int = 6,
    dim: int = 2,
    min_users: int = 1,
    max_users: int = 10,
    odd: bool = True,
) -> tuple[list[Person], list[Person]]:
    """Two populations for `assert_noninterference`; one user is somebody else, or null.

    Args:
        odd: whether users may have data that no learner may trust.
    """
    _check_users(min_users, max_users)
    kinds: tuple[PersonKind, ...] = ("shopper", "stranger") if odd else ("shopper",)
    somebody = people(n_items, dim, kinds=kinds)
    data = draw(st.lists(somebody, min_size=min_users, max_size=max_users))
    at = draw(st.integers(0, len(data) - 1))
    new = draw(people(n_items, dim, kinds=("null", *kinds)))
    return data, replaced(data, at, new)
