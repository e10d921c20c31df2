"""Streams that follow one another: whose rows are in a sum, its noise, and its price."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, resumed
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants import audit, streams
from privlearn.errors import BudgetError, HorizonError, UsersError
from privlearn.learners.planned_stream import PlannedStream
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import AnytimeBLT, BandedBLT, BinaryTree, PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.factorization import Factorization
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, PSDTrace

SEGMENT = 8
USERS = 60
SIZES = (7, 12, 1, 20, 15, 5)
ENDS = np.cumsum(SIZES).tolist()
NO_NOISE = ZCDP(10**9)


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT", SEGMENT)


class Process:
    """One process with one planned stream, which goes on where the one before it died."""

    def __init__(self, accountant: Any, sums: Any, values: Array) -> None:
        self.accountant, self.values = accountant, values
        self.stream: PlannedStream[Any] = PlannedStream(accountant, "sums", range(USERS), sums)
        if not accountant.resumed:
            accountant.record_learner("Process", {}, {})
        accountant.commit([self.stream.plan()])
        self.last: Array | None = None
        self.clock = 0
        if accountant.resumed:
            with accountant.replaying() as past:
                for point in past.points():
                    self._append(Rows.null(range(self.clock, point)))

    def until(self, stop: int, cuts: Sequence[int] = ()) -> None:
        ends = ENDS if isinstance(self.stream.sums, BatchedPrefixSum) else []
        for end in sorted({stop, *(c for c in (*cuts, *ends) if self.clock < c < stop)}):
            users = range(self.clock, end)
            self._append(Rows.seal(self.values[users.start : users.stop], users=users))

    def _append(self, rows: Rows[Array]) -> None:
        released = self.stream.append(rows)
        if released is not None:
            single = isinstance(self.stream.sums, BatchedPrefixSum)
            self.last = self.stream.whole(released.value if single else released.value[-1])
        self.clock = rows.users.stop


def ran(
    path: Path, sums: Any, values: Array, deaths: Sequence[int], budget: Any, cuts: Any = ()
) -> tuple[Process, list[range]]:
    """The last process, and the users whose rows were lost at each death."""
    process = Process(begun(path, budget, USERS), sums, values)
    lost: list[range] = []
    for number, death in enumerate(deaths):
        process.until(death, cuts)
        learned, last = process.stream.learned, process.last
        die(process.accountant)
        process = Process(resumed(path, number + 1), sums, values)
        assert process.stream.learned == learned
        assert (process.last is None) is (last is None)
        assert last is None or np.array_equal(process.last, last)  # type: ignore[arg-type]
        kept = learned + sum(map(len, lost))
        lost.append(range(kept, process.clock))
        assert process.clock <= max(death - 1, 0) // SEGMENT * SEGMENT + 2 * SEGMENT
    process.until(USERS, cuts)
    return process, lost


def made(kind: str, dim: int, budget: Any) -> Any:
    ball = Ball(1.0, dim)
    if kind == "batches":
        return BatchedPrefixSum.calibrated(ball, budget, sizes=SIZES)
    made_of: dict[str, Callable[[int], Factorization]] = {
        "banded": BandedBLT.fitted,
        "anytime": lambda horizon: AnytimeBLT(horizon=horizon),
        "tree": BinaryTree,
    }
    return PrefixSum.calibrated(ball, budget, factorization=made_of[kind](USERS))


KINDS = ("batches", "banded", "anytime", "tree")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deaths", [(), (23,), (5, 30), (1, 9, 41)])
def test_the_sum_is_of_the_rows_that_a_stream_took_and_released(
    kind: str, deaths: Sequence[int], tmp_path: Path
) -> None:
    values = np.eye(USERS) / 2  # so that a sum says who is in it
    sums = made(kind, USERS, NO_NOISE)
    process, lost = ran(tmp_path / "l.db", sums, values, deaths, NO_NOISE, cuts=(3, 17, 18, 50))
    assert process.last is not None
    expected = np.full(USERS, 0.5)
    for users in lost:
        expected[users.start : users.stop] = 0.0
    np.testing.assert_allclose(process.last, expected, atol=2e-2)
    assert process.stream.learned == USERS - sum(map(len, lost))
    process.stream.close()
    process.stream.close()  # which does nothing more
    process.accountant.close()
    found = audit(tmp_path / "l.db")
    assert found.problems == []
    assert found.lost == len(deaths)
    assert found.spent[0].rho == pytest.approx(1e9)  # users are disjoint: nobody pays twice


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deaths", [(), (23,), (9, 35)])
def test_the_variance_of_a_sum_is_that_of_all_streams_in_it(
    kind: str, deaths: Sequence[int], tmp_path: Path
) -> None:
    dim, budget = 3_000, ZCDP("0.5")
    sums = made(kind, dim, budget)
    at = 51 if kind == "batches" else USERS
    process, _ = ran(tmp_path / "l.db", sums, np.zeros((USERS, dim)), deaths, budget, cuts=(at,))
    assert process.last is not None
    variance = float(np.mean(process.last**2))
    stated = process.stream.error_std(USERS) ** 2
    assert variance == pytest.approx(stated, rel=6 * math.sqrt(2 / dim))
    alone = sums.error_std(len(SIZES) if kind == "batches" else USERS) ** 2
    if deaths:  # a stream whose noise is forgotten would be outside of the tolerance
        assert stated > 1.3 * alone
        assert process.stream.excess() > 1
    else:
        assert stated == pytest.approx(alone)
        assert process.stream.excess() == 1
    process.accountant.close()


def test_variances_add_up_stream_by_stream(tmp_path: Path) -> None:
    sums = made("banded", 2, ZCDP(1))
    process, lost = ran(tmp_path / "l.db", sums, np.zeros((USERS, 2)), (10, 30), ZCDP(1), cuts=())
    first, second = 10, 30 - lost[0].stop
    expected = sum(sums.error_std(t) ** 2 for t in (first, second, USERS - lost[1].stop))
    assert process.stream.error_std(USERS) == pytest.approx(math.sqrt(expected))
    process.accountant.close()


def test_a_stream_that_was_closed_or_failed_here_does_not_go_on_in_silence(tmp_path: Path) -> None:
    process = Process(begun(tmp_path / "l.db", ZCDP(1), USERS), made("tree", 2, ZCDP(1)), ZEROS)
    process.until(10)
    process.stream.close()
    with pytest.raises(Exception, match="closed"):
        process.until(12)


ZEROS = np.zeros((USERS, 2))


def test_a_first_stream_cannot_begin_after_users_have_passed(tmp_path: Path) -> None:
    process = Process(begun(tmp_path / "l.db", ZCDP(1), USERS), made("tree", 2, ZCDP(1)), ZEROS)
    assert not process.stream.takes(range(4, 9))
    assert process.stream.number == 0


# The mechanism of those that follow ------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=13),
    part=st.floats(0, 1, exclude_min=True),
    rho=st.sampled_from(["0.02", "1", "50"]),
    domain=st.sampled_from([Ball(1.0, 2), Ball(7.7, 1), PSDTrace(2.0, 3)]),
)
def test_the_rest_of_a_stream_never_costs_more_and_its_batches_end_where_they_did(
    sizes: list[int], part: float, rho: str, domain: Any
) -> None:
    whole = BatchedPrefixSum.calibrated(domain, ZCDP(rho), sizes=sizes)
    users = sum(sizes)
    left = max(math.ceil(part * users), 1)
    rest = whole.for_last(range(users - left, users))
    assert sum(rest.sizes) == left
    ends = set(np.cumsum(sizes).tolist())
    assert {users - left + int(end) for end in np.cumsum(rest.sizes)} <= ends
    assert rest.noise_std == whole.noise_std
    assert rest.spend().gain <= whole.spend().gain
    assert ZCDP(rho).price(whole.loss()).amounts >= ZCDP(rho).price(rest.loss()).amounts


def test_the_rest_of_a_prefix_sum_is_the_same_mechanism() -> None:
    sums = made("tree", 2, ZCDP(1))
    assert sums.for_last(range(20, USERS)) is sums
    with pytest.raises(HorizonError, match="exceed horizon = 60"):
        sums.for_last(range(USERS + 1))
    batches = made("batches", 2, ZCDP(1))
    for users in (range(USERS + 1), range(0)):
        with pytest.raises(UsersError, match="must be some of the last 60"):
            batches.for_last(users)


def test_a_stream_by_arrival_has_no_rest_and_says_why(tmp_path: Path) -> None:
    sums = PrefixSum(Ball(1.0, 2), BandedBLT.fitted(USERS), 9.0, by_arrival=True)
    with pytest.raises(ValueError, match="no other stream can follow"):
        sums.for_last(range(20, USERS))
    assert sums.for_last(range(USERS)) is sums
    process = Process(begun(tmp_path / "l.db", ZCDP(1), USERS), sums, ZEROS)
    process.until(10)
    die(process.accountant)
    accountant = resumed(tmp_path / "l.db")
    assert accountant.rest("sums", range(USERS)) is None
    with pytest.raises(BudgetError, match="no longer"):
        accountant.issue(sums.loss(), users=range(20, USERS), label="sums")
    accountant.close()
