"""Releases over partitions that are asked for again by their nonce: one value, paid for once."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, dying_at, resumed

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.errors import NonceReusedError, PartitionError, SpendLostError, UsersError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    CrossPolytope,
    LinearObjective,
    NoisyReport,
    NoisySum,
    ObjectivePerturbation,
    ReportNoisyMax,
)
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball
from privlearn.rows.partitions import InProcess, JobKey, PartitionedRows
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

USERS = range(30)
NONCE = "0123456789abcdef" * 2
SUM = NoisySum(Ball(1.0, 3), GaussianNoise(2.0))
FIT = ObjectivePerturbation(LinearObjective.logistic(3), 5.0, 4.0, 1e-3, 30)
PICK = ReportNoisyMax(CrossPolytope(3), clip=1.0, scale=1.0)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


class Passes(InProcess):
    """Counts passes, and is gone when it is told so."""

    def __init__(self) -> None:
        self.made, self.gone = 0, False

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        if self.gone:
            raise PartitionError("the cluster is gone")
        self.made += 1
        return super().add_up(work, parts, merge)


def values(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(len(USERS), 3))


def cut(mechanism: Any, key: JobKey, engine: Any = None) -> PartitionedRows[Any]:
    blocks: list[Any] = np.split(values(), [7, 20])
    if mechanism is FIT:
        blocks = [(block, (block[:, 0] > 0).astype(float)) for block in blocks]
    return PartitionedRows.of_blocks(blocks, key=key, engine=engine)


def once(accountant: Any, mechanism: Any, rows: Any, nonce: str = NONCE) -> Released[Any]:
    found: Released[Any] = accountant.release_once(
        nonce, mechanism, rows, users=USERS, label="asked"
    )
    return found


def spends(accountant: Any) -> int:
    return sum(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All sums that are opened from here on."""
    opened: list[Any] = []
    look = PartialSum._opened

    def looked(partial: PartialSum) -> Any:
        opened.append(look(partial))
        return opened[-1]

    monkeypatch.setattr(PartialSum, "_opened", staticmethod(looked))
    return opened


@pytest.mark.parametrize("mechanism", [SUM, PICK, FIT], ids=["sum", "choice", "fit"])
def test_a_retry_returns_the_value_that_left_and_reads_no_partition(
    mechanism: Any, key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant, engine = begun(tmp_path / "l.db", ZCDP(1000), len(USERS)), Passes()
    rows = cut(mechanism, key, engine)
    first = once(accountant, mechanism, rows)
    made, head, spent = engine.made, accountant.ledger.head, accountant.spent()
    assert made == (16 if mechanism is FIT else 1)
    opened = watched(monkeypatch)
    engine.gone = True
    for _ in range(2):
        again = once(accountant, mechanism, rows)
        assert np.array_equal(again.value, first.value)
        assert (again.paid_by, again.digest) == (first.paid_by, first.digest)
        assert (accountant.ledger.head, accountant.spent()) == (head, spent)
        die(accountant)
        accountant = resumed(tmp_path / "l.db", seed=7)
        head = accountant.ledger.head
    assert not any(np.any(total) for total in opened), "nothing is opened again"
    engine.gone = False
    other = once(accountant, mechanism, rows, secrets.token_hex(16))
    assert spends(accountant) == 2
    assert accountant.spent() == spent + spent
    if mechanism is not PICK:
        assert not np.array_equal(other.value, first.value)
    accountant.close()
    assert audit(tmp_path / "l.db").problems == []


def test_the_value_is_that_of_release_partial(key: JobKey) -> None:
    def account() -> CentralAccountant[ZCDP]:
        return CentralAccountant(ZCDP(1000), users=USERS, noise=NoiseSource.simulation(1))

    plain, total = account(), cut(SUM, key).partial(SUM)
    token = plain.issue(SUM.loss(), users=USERS, label="asked")
    wanted = SUM.release_partial(total, token).value.tobytes()
    accountant = account()
    asked: list[Any] = [total, cut(SUM, key), Rows.null(USERS)]  # rows are not compared
    for rows in asked:
        assert once(accountant, SUM, rows).value.tobytes() == wanted
    assert spends(accountant) == 1
    committed = account()
    committed.commit(sums=SUM)
    assert committed.release("sums", cut(SUM, key), nonce=NONCE).value.tobytes() == wanted
    assert committed.release("sums", total, nonce=NONCE).value.tobytes() == wanted
    committed = account()
    committed.commit(sums=SUM)
    assert committed.release("sums", cut(SUM, key)).value.tobytes() == wanted


class Fits:
    """Somebody's own mechanism, around a fit over rows of its own."""

    def __init__(self, rows: PartitionedRows[Any]) -> None:
        self.rows = rows

    def loss(self) -> Any:
        return FIT.loss()

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        return FIT.release_partitions(self.rows, token, passes=1)


def test_a_mechanism_that_holds_partitions_itself_is_asked_again(
    key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1000), len(USERS))
    first = once(accountant, Fits(cut(FIT, key)), Rows.null(USERS))
    die(accountant)
    accountant = resumed(tmp_path / "l.db", seed=7)
    opened = watched(monkeypatch)
    again = once(accountant, Fits(cut(FIT, key)), Rows.null(USERS))
    assert np.array_equal(again.value, first.value)
    assert opened
    assert not any(np.any(total) for total in opened)
    assert spends(accountant) == 1


@pytest.mark.parametrize("mechanism", [SUM, FIT], ids=["sum", "fit"])
def test_wherever_the_first_try_dies_nothing_is_paid_twice(
    mechanism: Any, key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry, written in ((1, True), (2, False), (2, True), (3, False), (3, True)):
        path = tmp_path / f"{entry}{written}.db"
        accountant = begun(path, ZCDP(1000), len(USERS))
        with dying_at(monkeypatch, entry, written=written):
            once(accountant, mechanism, cut(mechanism, key))
        die(accountant)
        accountant = resumed(path, seed=9)
        if (entry, written) in ((2, True), (3, False)):
            with pytest.raises(SpendLostError, match="a new nonce pays anew"):
                once(accountant, mechanism, cut(mechanism, key))
        else:
            once(accountant, mechanism, cut(mechanism, key))
        assert spends(accountant) == 1
        accountant.close()
        assert audit(path).problems == []


def test_what_is_refused_before_anything_is_spent(key: JobKey) -> None:
    accountant = CentralAccountant(ZCDP(1000), users=USERS, noise=NoiseSource.simulation(1))
    engine = Passes()
    late = PartitionedRows.of_blocks([values()], key=key, first=5, engine=engine)
    with pytest.raises(UsersError, match=r"users=5\.\.34.* users 0\.\.29 are left"):
        once(accountant, SUM, late)
    report = NoisyReport(Ball(1.0, 3), GaussianNoise(2.0))
    with pytest.raises(TypeError, match=r"has no partial\(rows\)"):
        once(accountant, report, cut(SUM, key, engine))
    with pytest.raises(TypeError, match="releases no sum that was made before"):
        once(accountant, report, cut(SUM, key).partial(SUM))
    assert (engine.made, spends(accountant)) == (0, 0)
    assert accountant.spent() == ZCDP(0)
    once(accountant, SUM, cut(SUM, key, engine))
    with pytest.raises(NonceReusedError, match="nothing was spent"):
        once(accountant, PICK, cut(PICK, key, engine))
    assert (engine.made, spends(accountant)) == (1, 1)


def test_under_a_rule_a_retry_needs_no_visit_again(key: JobKey, tmp_path: Path) -> None:
    """Those of the first try are used up, and which of them were learned ended with its process."""
    rule, ids = Participation(2, apart=2), ["maria", "kim", "maria"] * 10
    mechanism = NoisySum(Ball(1.0, 3), GaussianNoise(2.0), Adjacency.ZERO_OUT)

    def whole(people: People) -> Any:
        return people.admit(Rows.seal(values(), users=USERS), ids)

    def parts(people: People) -> Any:
        return cut(mechanism, key).admitted(people, ids)

    left = []
    for name, asked in (("whole", whole), ("parts", parts)):
        path, registry = tmp_path / f"{name}.db", tmp_path / f"{name}-people.db"
        people = People.create(registry, rule)
        accountant = CentralAccountant(
            ZCDP(1000),
            users=USERS,
            people=people,
            ledger=Ledger.create(path),
            noise=NoiseSource.simulation(1),
        )
        first = once(accountant, mechanism, asked(people))
        people.close()
        die(accountant)
        people = People.open(registry, rule)
        again: Any = CentralAccountant.resume(path, people=people, noise=NoiseSource.simulation(2))
        for rows in (cut(mechanism, key), Rows.seal(values(), users=USERS)):
            assert np.array_equal(once(again, mechanism, rows).value, first.value)
        assert (spends(again), again.spent()) == (1, ZCDP("4/8"))
        left.append(first.value.tobytes())
        again.close()
        people.close()
        assert audit(path).problems == []
    assert left[0] == left[1]
