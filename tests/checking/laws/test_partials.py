"""The laws of partial sums see what the corpus of faults has, and what these variants do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from faults.partials import FAULTS, MadeApart
from single_laws import check_one_law

from privlearn.checking.laws import partials
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball, PSDTrace

RECORDS = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -0.5], [9.0, 0.1], [-1.0, 0.0], [0.2, 0.3]])
LAWS = (partials.check_partials_tell_nothing, partials.check_partials_add_up)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_are_caught_and_their_controls_are_not(fault: Any) -> None:
    assert fault.broken.check().caught
    assert not fault.control.check().caught


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "mechanism",
    [NoisySum(Ball(1.0, 2), GaussianNoise(2.0)), NoisySum(PSDTrace(1.0, 2), GaussianNoise(2.0))],
    ids=["vectors", "matrices"],
)
def test_shipped_sums_keep_them(mechanism: Any, law: Callable[[Any], Any]) -> None:
    assert check_one_law(mechanism, law).verdict == "holds"


def test_streams_of_batches_tell_nothing_either() -> None:
    stream = BatchedPrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), sizes=[3, 3])
    assert check_one_law(stream, LAWS[0]).verdict == "holds"
    assert check_one_law(stream, LAWS[1]).verdict == "not applicable"
    single = PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=6)
    assert check_one_law(single, LAWS[0]).verdict == "not applicable"


KEPT: list[tuple[Any, Any]] = []


class Spent(MadeApart):
    """Hands out again what a token was spent on, beside the ledger."""

    def release_partial(self, total: PartialSum, token: Any) -> Any:
        found = [value for paid, value in KEPT if paid is token]
        if not found:
            found = [super().release_partial(total, token)]
            KEPT.append((token, found[0]))
        return found[0]


class Counted(MadeApart):
    """Encrypted bytes as long as the number of rows that are not null."""

    def partial(self, rows: Rows[Any]) -> Any:
        seen: list[int] = []

        def peek(block: Any) -> Any:
            seen.append(int(np.abs(block).max() > 1))
            return block

        rows.map_rows(peek)
        made = super().partial(rows)
        terms = {**made.terms, **({"large": True} if any(seen) else {})}
        opened = PartialSum._opened(made)
        return PartialSum(made.users, opened, terms, made.functions, None, None)


@pytest.mark.parametrize(
    ("broken", "law", "how"),
    [
        (Spent, LAWS[1], "lets a value out for a token that was spent"),
        (Counted, LAWS[0], "attribute terms of a partial sum depends on the data"),
    ],
)
def test_other_variants_are_seen(broken: Any, law: Callable[[Any], Any], how: str) -> None:
    found = check_one_law(broken(), law, records=RECORDS)
    assert found.verdict == "violated"
    assert how in found.detail


def test_equal_bytes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privlearn.rows.partial_sums.os.urandom", bytes)
    found = check_one_law(MadeApart(), LAWS[0], records=RECORDS)
    assert "the same bytes twice" in found.detail
