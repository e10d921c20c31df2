"""The laws of partial sums see what the corpus of faults has, and what these variants do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faults.partials import FAULTS, MadeApart
from single_laws import check_one_law

from privlearn.checking.laws.mechanisms import check_partial_sums
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball, PSDTrace

RECORDS = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -0.5], [9.0, 0.1], [-1.0, 0.0], [0.2, 0.3]])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_are_caught_and_their_controls_are_not(fault: Any) -> None:
    assert fault.broken.check().caught
    assert not fault.control.check().caught


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [
        (NoisySum(Ball(1.0, 2), GaussianNoise(2.0)), "sealed, 7 data sets; 3 parts in 3 orders"),
        (NoisySum(PSDTrace(1.0, 2), GaussianNoise(2.0)), "3 parts in 3 orders"),
        (BatchedPrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), sizes=[3, 3]), "sealed, 7 data sets"),
        (PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=6), "it has no partial(rows)"),
    ],
)
def test_shipped_sums_keep_the_law_as_far_as_they_are_made_apart(mechanism: Any, told: str) -> None:
    found = check_one_law(mechanism, check_partial_sums)
    assert found.verdict == ("not applicable" if "no partial" in told else "holds")
    assert found.detail.endswith(told)


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
    ("broken", "how"),
    [
        (Spent, "lets a value out for a token that was spent"),
        (Counted, "what a partial sum shows for the examples"),
    ],
)
def test_other_variants_are_seen(broken: Any, how: str) -> None:
    found = check_one_law(broken(), check_partial_sums, records=RECORDS)
    assert found.verdict == "violated"
    assert how in found.detail
