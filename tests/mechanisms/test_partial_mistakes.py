"""Mistakes that are easily made with partial sums: each is found by a test."""

from __future__ import annotations

import io
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.contract.billboard import Billboard
from privlearn.errors import ProvenanceError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import PartialSum, Rows, merge
from privlearn.rows.domains import Ball
from privlearn.rows.partitions import JobKey, PartitionedRows
from privlearn.rows.partitions.frames import Kind, framed, numbers_from
from privlearn.rows.partitions.rows import _bounded

SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
KEY = secrets.token_bytes(32)


def rows(users: range) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 2), 0.25), users=users)


def served(users: range) -> Rows[Any]:
    accountant = JointAccountant(ZCDP(1), users=range(10), noise=NoiseSource.simulation(1))
    board = Billboard(accountant, range(10))
    if users.start:
        board.skip(range(users.start))
    return board.serve(rows(users), lambda own: own).deliver(lambda own, _: own)


def test_the_same_sum_never_travels_under_the_same_nonce() -> None:
    one = SUM.partial(rows(range(5)))
    sent = [one.to_bytes(KEY) for _ in range(8)]
    assert len({data[:12] for data in sent}) == 8
    frames = [framed(Kind.ROWS, b"x", KEY) for _ in range(8)]
    assert len({frame[1:13] for frame in frames}) == 8


def test_functions_of_all_merged_sums_are_named() -> None:
    def halved(row: Any) -> Any:
        return row / 2

    def thirds(row: Any) -> Any:
        return row / 3

    one = SUM.partial(rows(range(5)).map(halved))
    other = SUM.partial(rows(range(5, 10)).map(thirds))
    total = merge(one, other, PartialSum._of_nobody(one))
    assert ["halved" in name for name in total.functions] == [True, False]


def test_sums_of_two_sources_are_not_merged() -> None:
    first = SUM.partial(served(range(5)))
    for other in (SUM.partial(rows(range(5, 10))), SUM.partial(served(range(5, 10)))):
        with pytest.raises(ProvenanceError, match="different billboards or sources"):
            merge(first, other)
        with pytest.raises(ProvenanceError, match="different billboards or sources"):
            merge(other, first)


def test_sums_of_served_rows_do_not_travel() -> None:
    with pytest.raises(ProvenanceError, match="are released where it is"):
        SUM.partial(served(range(5))).to_bytes(KEY)


def test_an_engine_adds_up(tmp_path: Path) -> None:
    key: Any = JobKey.create(tmp_path / "key")
    for engine in (5, object()):
        with pytest.raises(TypeError, match=r"engine = .*: must have add_up"):
            PartitionedRows.of_blocks([np.ones((3, 2))], key=key, engine=engine)  # type: ignore[arg-type]


def test_what_holds_objects_is_not_read_from_a_frame() -> None:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        numbers_from(out.getvalue())


def test_what_user_code_returns_has_room_where_it_travels() -> None:
    assert _bounded([10**40, -(10**40), 3], 2) == [2 << 62, -(2 << 62), 3]
