"""DPMNL on logged answers of several processes: what single mechanisms release on all rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import HorizonError, PartitionError, ProvenanceError, UsersError
from privlearn.learners import DPMNL
from privlearn.learners.logged_answers import LoggedAnswers
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, probabilities
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.partitions import InProcess, JobKey, PartitionedRows
from privlearn.values.participation import Participation
from privlearn.values.records import record_at

USERS, ITEMS, DIM = 300, 3, 2
THETA = np.array([2.0, -1.0])


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


def answers(seed: int = 0, users: int = USERS) -> Answer:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(users, ITEMS, DIM))
    offered = (rng.random((users, ITEMS)) < 0.9).astype(float)
    shares = probabilities(Answer(features / 2, offered, np.zeros(users, int)), THETA, outside=True)
    places = (rng.random(users)[:, None] > np.cumsum(shares, axis=1)).sum(axis=1)
    return Answer(features, offered, np.where(places == ITEMS, NO_ITEM, places))


def parts_of(block: Answer, *cuts: int) -> list[Answer]:
    edges = [0, *cuts, len(block.choice)]
    return [record_at(block, slice(a, b)) for a, b in pairwise(edges)]


def account(ledger: Ledger | None = None, **more: Any) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(2)
    return CentralAccountant(
        ZCDP(50), users=range(USERS), ledger=ledger or Ledger.memory(), noise=noise, **more
    )


def learner(**more: Any) -> DPMNL:
    return DPMNL(n_items=5, dim=DIM, max_items=ITEMS, max_updates=3, feature_scale=2.0, **more)


def learned(key: JobKey, block: Answer, *cuts: int) -> DPMNL:
    rows = PartitionedRows.of_blocks(parts_of(block, *cuts), key=key)
    return learner().start(account()).learn_logged(rows)


def test_it_releases_what_its_mechanisms_do_on_all_rows(key: JobKey) -> None:
    found = learned(key, answers(), 7, 50, 120)
    book, mine = account(), learner()
    mine.start(book)  # for the plan, and the mechanisms
    rows: Rows[Answer] = Rows.seal(answers(), users=range(USERS)).map_rows(
        LoggedAnswers(outside=True, scale=2.0)
    )
    gram, fit = mine._noise.gram, mine._noise.fit
    stream: Any = gram.open(book.issue(gram.loss(), users=range(USERS), label="gram"))
    ends = [0, *mine._ends]
    for batch in (range(a, b) for a, b in pairwise(ends)):
        total = stream.append(rows.slice(batch).map_rows(lambda a: a.features)).value
        if batch.stop in mine._fits_at:
            users = range(batch.stop)
            token = book.issue(fit.loss(), users=users, label="fit")
            theta = fit.release(rows.slice(users), token).value
    assert found.billboard_["gram"].tobytes() == total.tobytes()
    assert np.linalg.norm(found.theta_ - theta) <= 2 * fit.solver_error
    assert (found.clock_, found.updates_) == (USERS, 3)


def test_it_learns(key: JobKey) -> None:
    found = learned(key, answers(), 100)
    assert np.linalg.norm(found.theta_ - THETA) < 0.5 * np.linalg.norm(THETA)


def test_partitions_make_no_difference(key: JobKey) -> None:
    one, many = learned(key, answers()), learned(key, answers(), 1, 60, 61, 200)
    assert one.gram_.tobytes() == many.gram_.tobytes()
    assert np.linalg.norm(one.theta_ - many.theta_) <= 2 * one._noise.fit.solver_error


def test_bad_answers_are_null(key: JobKey) -> None:
    good, bad = answers(), answers()
    bad.features[3], good.features[3] = np.nan, 0.0
    bad.choice[5], good.offered[5] = 7, 0.0
    good.choice[[3, 5]], good.offered[3], good.features[5] = NO_ITEM, 0.0, 0.0
    one, other = learned(key, good, 90), learned(key, bad, 90)
    assert one.gram_.tobytes() == other.gram_.tobytes()
    assert one.theta_.tobytes() == other.theta_.tobytes()


def test_what_is_refused(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks([answers()], key=key)
    joint = JointAccountant(
        ZCDP(50), users=range(USERS), noise=NoiseSource.simulation(0), ledger=Ledger.memory()
    )
    with pytest.raises(ProvenanceError, match="logged answers depend on offers"):
        learner().start(joint).learn_logged(rows)
    with pytest.raises(ValueError, match="trigger = 'determinant', calibration = 'proved' with a"):
        learner(trigger="determinant").start(account())
    with pytest.raises(ValueError, match="without people="):
        learner().start(account(people=People.memory(Participation(1))))
    mine = learner().start(account())
    with pytest.raises(TypeError, match="must be PartitionedRows, not Rows"):
        mine.learn_logged(Rows.seal(answers(), users=range(USERS)))  # type: ignore[arg-type]
    for wrong in (rows.slice(range(USERS - 1)), rows.slice(range(1, USERS))):
        with pytest.raises(UsersError, match=r"must hold the users 0\.\.299, without gaps"):
            mine.learn_logged(wrong)
    with pytest.raises(ProvenanceError, match="JointAccountant"):
        mine.select(np.zeros((5, DIM)))
    mine.skip(3)
    with pytest.raises(UsersError, match="skip to 37 first"):
        mine.learn_logged(rows)
    mine.skip(34).learn_logged(rows)
    with pytest.raises(HorizonError):
        mine.learn_logged(rows)


def test_the_public_state_is_a_function_of_what_was_released(key: JobKey, tmp_path: Path) -> None:
    """Made again from the ledger, over null rows, it is the same to the last bit."""
    path = tmp_path / "ledger.db"
    rows = PartitionedRows.of_blocks(parts_of(answers(), 90), key=key)
    mine = learner().start(account(Ledger.create(path))).learn_logged(rows)
    state = mine.public_state()
    mine._accountant.ledger.close()  # type: ignore[attr-defined]
    again: DPMNL = DPMNL.resume(CentralAccountant.resume(path, noise=NoiseSource.simulation(3)))
    assert again.public_state() == state
    assert again.updates_ == 3


class Dying(InProcess):
    """A cluster that answers so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        if not self.left:
            raise PartitionError("the cluster is gone")
        self.left -= 1
        return super().add_up(work, parts, merge)


@pytest.mark.parametrize("times", [1, 18, 25])
def test_it_goes_on_from_its_ledger(times: int, key: JobKey, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    mine = learner().start(account(Ledger.create(path)))
    parts = parts_of(answers(), 100)
    with pytest.raises(PartitionError, match="gone"):
        mine.learn_logged(PartitionedRows.of_blocks(parts, key=key, engine=Dying(times)))
    rows = PartitionedRows.of_blocks(parts, key=key)
    with pytest.raises(RuntimeError, match="failed half-way"):
        mine.learn_logged(rows)
    before = mine.theta_
    mine._accountant.ledger.close()  # type: ignore[attr-defined]
    again = CentralAccountant[ZCDP].resume(path, noise=NoiseSource.simulation(3))
    went_on: DPMNL = DPMNL.resume(again)
    assert went_on.theta_.tobytes() == before.tobytes()  # a fit that was lost is not made again
    went_on.learn_logged(rows)
    assert (went_on.clock_, went_on.updates_) == (USERS, 3)
    assert np.linalg.norm(went_on.theta_ - THETA) < 0.6 * np.linalg.norm(THETA)
