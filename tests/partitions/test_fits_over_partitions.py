"""Fits over rows of several processes: the mechanism of one, within what its proof covers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import (
    AdjacencyError,
    HorizonError,
    PartitionError,
    ProvenanceError,
    RowLocalityError,
    SolverError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    LinearObjective,
    MultinomialLogit,
    Objective,
    ObjectivePerturbation,
)
from privlearn.mechanisms.choice_model import Answer
from privlearn.mechanisms.partitioned_objective import AddedUp, ObjectiveSums
from privlearn.mechanisms.regions import EuclideanBall, box
from privlearn.mechanisms.scalar_objectives import HuberObjective
from privlearn.noise import NoiseSource
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball
from privlearn.rows.partitions import InProcess, JobKey, PartitionedRows
from privlearn.rows.partitions.rows import OpenedPartitions
from privlearn.values.adjacency import Adjacency

USERS, DIM = 48, 3


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


def pairs(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(USERS, DIM)), (rng.random(USERS) < 0.5).astype(float)
    x[::11] = np.nan
    return x, y


def choices(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(USERS, 2, DIM)) / 2
    return Answer(features, np.ones((USERS, 2)), rng.integers(-1, 2, size=USERS))


def parts_of(block: Any, cuts: list[int]) -> list[Any]:
    split = [np.split(array, cuts) for array in block]
    parts = [tuple(arrays) for arrays in zip(*split, strict=True)]
    return [type(block)(*part) if hasattr(block, "_fields") else part for part in parts]


def book(**more: Any) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(3)
    return CentralAccountant(ZCDP(100), users=range(USERS), noise=noise, **more)


def token_for(mechanism: Any, account: Any) -> Any:
    return account.issue(mechanism.loss(), users=account.users, label="fit")


def fitted(objective: Objective[Any], **more: Any) -> ObjectivePerturbation[Any]:
    return ObjectivePerturbation.calibrated(objective, ZCDP(5), max_rows=USERS, **more)


CASES: dict[str, tuple[Callable[[], ObjectivePerturbation[Any]], Any]] = {
    "logistic": (lambda: fitted(LinearObjective.logistic(DIM)), pairs()),
    "Huber": (lambda: fitted(LinearObjective(HuberObjective(0.5), DIM)), pairs()),
    "in a ball": (
        lambda: fitted(LinearObjective.logistic(DIM), region=EuclideanBall(DIM, 0.2)),
        pairs(),
    ),
    "in a box": (
        lambda: fitted(LinearObjective.logistic(DIM), region=box(DIM, -0.1, 0.3)),
        pairs(),
    ),
    "choices": (lambda: fitted(MultinomialLogit(2, DIM)), choices()),
}


@cache
def made(name: str) -> ObjectivePerturbation[Any]:
    """Calibrated when it is first asked for, and not when tests are collected."""
    return CASES[name][0]()


class Counting(InProcess):
    """Counts passes, and takes sums from the last to the first if it is told so."""

    def __init__(self, *, backwards: bool = False, least: int = 0) -> None:
        self.passes, self.backwards, self.seen = 0, backwards, list[Any]()
        self.fail_after = least or 10**9

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        self.passes += 1
        if self.passes > self.fail_after:
            raise PartitionError("the cluster is gone")
        work, merge = pickle.loads(pickle.dumps((work, merge)))
        found = super().add_up(work, parts[::-1] if self.backwards else parts, merge)
        self.seen.append((len(pickle.dumps(work)), len(found)))
        return found


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_release_of_one_process_within_the_certified_distance(
    name: str, key: JobKey
) -> None:
    mechanism, block = made(name), CASES[name][1]
    rows: Rows[Any] = Rows.seal(block, users=range(USERS))
    whole = mechanism.release(rows, token_for(mechanism, book())).value

    def released(part: Any, **engine: Any) -> Any:
        found = PartitionedRows.of_blocks(part, key=key, engine=Counting(**engine))
        return mechanism.release_partitions(found, token_for(mechanism, book())).value

    parts = parts_of(block, [5, 6, 30])
    merged = released(parts)
    # the same noise: blurred points differ as those do that are near the exact minimiser
    assert np.linalg.norm(merged - whole) <= 2 * mechanism.solver_error
    assert merged.tobytes() == released(parts, backwards=True).tobytes()
    assert np.linalg.norm(released(parts_of(block, [1])) - whole) <= 2 * mechanism.solver_error
    left_out = released(parts[:3])
    assert np.linalg.norm(left_out - whole) > 2 * mechanism.solver_error


def opened_at(
    objective: Objective[Any], block: Any, cuts: list[int], theta: Any, key: JobKey
) -> Any:
    rows: PartitionedRows[Any] = PartitionedRows.of_blocks(parts_of(block, cuts), key=key)
    sums = ObjectiveSums(objective)
    first = theta, rows._asked(sums, theta)
    opened = OpenedPartitions(rows)
    return AddedUp(opened, sums, USERS, 0.0, np.zeros(objective.dim), first)


@pytest.mark.parametrize("objective", [LinearObjective.logistic(DIM), MultinomialLogit(2, DIM)])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e3])
def test_gradients_are_within_what_the_certificate_allows(
    objective: Objective[Any], size: float, key: JobKey
) -> None:
    """Against sums in fractions; 64·u·n·L is what `attainable` counts for a sum of gradients."""
    block = choices() if isinstance(objective, MultinomialLogit) else pairs()
    theta = np.full(DIM, size)
    records = objective.domain.clip(block)
    exact = [
        sum(map(Fraction, column)) for column in objective.gradients(records, theta).T.tolist()
    ]
    allowed = 64 * 2.0**-53 * USERS * objective.gradient_bound
    for cuts in ([], list(range(1, USERS))):  # a row in each
        found = opened_at(objective, block, cuts, theta, key)
        error = [float(Fraction(a) - b) for a, b in zip(found.gradient(theta), exact, strict=True)]
        assert np.linalg.norm(error) <= allowed
        hessian = objective.hessian_sum(records, theta)
        assert found.hessian(theta) == pytest.approx(hessian, abs=1e-9)
        gained = objective.values(records, theta) - objective.values(records, 0 * theta)
        assert found.value(theta) == pytest.approx(gained.sum(), abs=1e-9 * max(size, 1))


@pytest.mark.parametrize("size", [12, 10**6, 10**40])
@pytest.mark.parametrize("name", ["logistic", "in a ball"])
def test_tilts_beyond_all_usual_ones(name: str, size: int, key: JobKey) -> None:
    """As in one process they have a certified minimiser, too."""
    mechanism, block = made(name), CASES[name][1]
    known = [size << 58, -(size << 57), 3]
    records = mechanism.objective.domain.clip(block)
    whole = mechanism._minimiser(records, known)

    def problem(tilt: Any) -> AddedUp:
        found: AddedUp = opened_at(mechanism.objective, block, [20], np.zeros(DIM), key)
        found.ridge, found._tilt = mechanism.ridge, tilt
        return found

    found = mechanism._minimised(problem, known)
    assert np.linalg.norm(found - whole) <= 2 * mechanism.solver_error


def test_the_number_of_passes_and_all_lengths_are_public(key: JobKey) -> None:
    """Whoever watches the cluster sees the same for any rows."""
    mechanism = made("logistic")
    seen = []
    for block in (pairs(0), pairs(1), (1e3 * np.ones((USERS, DIM)), np.ones(USERS))):
        engine = Counting()
        rows = PartitionedRows.of_blocks(parts_of(block, [9, 20]), key=key, engine=engine)
        mechanism.release_partitions(rows, token_for(mechanism, book()))
        seen.append(engine.seen)
    assert len(seen[0]) == 16
    assert seen[0] == seen[1] == seen[2]
    engine = Counting()
    rows = PartitionedRows.of_blocks(parts_of(pairs(), [9]), key=key, engine=engine)
    mechanism.release_partitions(rows, token_for(mechanism, book()), passes=1)
    assert 3 <= engine.passes < 16, "what the solver needs"


def test_iterates_do_not_travel_in_clear(key: JobKey) -> None:
    asked: list[Any] = []
    tasks: list[bytes] = []

    class Watched(InProcess):
        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            tasks.append(pickle.dumps(work))
            return super().add_up(work, parts, merge)

    @dataclass(frozen=True)
    class Noted(LinearObjective):  # type: ignore[misc]
        def gradients(self, records: Any, theta: Any) -> Any:
            asked.append(theta)
            return super().gradients(records, theta)

    globals()["Noted"], Noted.__qualname__ = Noted, "Noted"
    mechanism = fitted(Noted(LinearObjective.logistic(DIM).scalar, DIM))
    asked.clear()
    rows = PartitionedRows.of_blocks(parts_of(pairs(), [9]), key=key, engine=Watched())
    mechanism.release_partitions(rows, token_for(mechanism, book()), passes=1)
    travelled = {theta.tobytes() for theta in asked if theta.ndim == 1 and theta.any()}
    assert travelled
    assert not any(bits in task or bits[:8] in task for bits in travelled for task in tasks)


def test_what_cannot_be_read_costs_nothing(key: JobKey, tmp_path: Path) -> None:
    mechanism, account = made("logistic"), book()
    rows: PartitionedRows[Any] = PartitionedRows.of_sources(
        [str(tmp_path / "none")], [USERS], key=key, read=np.load
    )
    token = token_for(mechanism, account)
    with pytest.raises(PartitionError, match="FileNotFoundError"):
        mechanism.release_partitions(rows, token)
    whole = PartitionedRows.of_blocks([pairs()], key=key)
    mechanism.release_partitions(whole, token)  # not spent before


def test_a_cluster_that_dies_half_way_leaves_a_spend_and_no_value(key: JobKey) -> None:
    mechanism, account = made("logistic"), book(ledger=Ledger.memory())
    rows = PartitionedRows.of_blocks([pairs()], key=key, engine=Counting(least=2))
    with pytest.raises(PartitionError, match="the cluster is gone"):
        mechanism.release_partitions(rows, token_for(mechanism, account))
    kinds = [entry.entry for entry in account.ledger.entries]
    assert kinds[-2:] == ["spend", "retire"]
    assert account.ledger.entries[-1].outcome == "uncovered"  # type: ignore[union-attr]


def test_what_is_refused_before_anything_is_spent(key: JobKey) -> None:
    mechanism = made("logistic")
    rows = PartitionedRows.of_blocks([pairs()], key=key)
    token = token_for(mechanism, book())
    with pytest.raises(TypeError, match="rows: must be PartitionedRows, not Rows"):
        mechanism.release_partitions(Rows.seal(pairs(), users=range(USERS)), token)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="passes = 0"):
        mechanism.release_partitions(rows, token, passes=0)
    small = ObjectivePerturbation.calibrated(mechanism.objective, ZCDP(5), max_rows=47)
    with pytest.raises(HorizonError, match="48 rows: at most max_rows = 47"):
        small.release_partitions(rows, token)
    late = PartitionedRows.of_blocks([pairs()], key=key, first=5)
    with pytest.raises(UsersError, match=r"users=5\.\.52.*users 0\.\.47 are left"):
        mechanism.release_partitions(late, token)
    zero_out = fitted(LinearObjective.logistic(DIM), adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(AdjacencyError):
        zero_out.release_partitions(rows, token)
    joint = JointAccountant(ZCDP(100), users=range(USERS), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="billboard"):
        mechanism.release_partitions(rows, token_for(mechanism, joint))
    mechanism.release_partitions(rows, token)


class Wild(LinearObjective):  # type: ignore[misc]
    """Breaks its word on one record."""

    def gradients(self, records: Any, theta: Any) -> Any:
        found = super().gradients(records, theta)
        found[records[:, 0] == -0.125] = np.inf
        return found


class Raising(LinearObjective):  # type: ignore[misc]
    """Refuses one record."""

    def gradients(self, records: Any, theta: Any) -> Any:
        if (records[:, 0] == -0.125).any():
            raise ValueError("-0.125 is no good")
        return super().gradients(records, theta)


class Remembering(LinearObjective):  # type: ignore[misc]
    """The gradient of a row depends on others."""

    def gradients(self, records: Any, theta: Any) -> Any:
        found = super().gradients(records, theta)
        return found + (records[:, 0] == -0.125).any()


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Wild, SolverError), (Raising, SolverError), (Remembering, RowLocalityError)],
)
def test_somebodys_objective_that_breaks_its_word_is_told_when_it_is_paid_for(
    kind: Any, error: type[Exception], key: JobKey
) -> None:
    mechanism = fitted(kind(LinearObjective.logistic(DIM).scalar, DIM))
    x, y = pairs()
    x[7] = [-0.125, 0.0, 0.0]
    rows = PartitionedRows.of_blocks(parts_of((x, y), [20]), key=key)
    account = book(ledger=Ledger.memory())
    with pytest.raises(error):
        mechanism.release_partitions(rows, token_for(mechanism, account))
    assert account.ledger.entries[-1].outcome == "uncovered"  # type: ignore[union-attr]


def halved(pair: Any) -> Any:
    return pair[0] / 2, pair[1]


def test_functions_are_named_before_rows_are_opened(key: JobKey) -> None:
    mechanism, account = made("logistic"), book(ledger=Ledger.memory())
    rows = PartitionedRows.of_blocks([pairs()], key=key).map_rows(halved)
    mechanism.release_partitions(rows, token_for(mechanism, account))
    kinds = [entry.entry for entry in account.ledger.entries]
    assert kinds[-3:] == ["spend", "functions", "retire"]
    assert "halved" in str(account.ledger.entries[-2])


def test_sums_of_two_passes_are_not_merged(key: JobKey) -> None:
    """A late answer of the pass before, at another point, would make a gradient of two points."""
    objective = LinearObjective.logistic(DIM)
    rows = PartitionedRows.of_blocks(parts_of(pairs(), [20]), key=key)
    kept: list[tuple[Any, Any, Any]] = []

    class Late(InProcess):
        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            kept.append((work, parts, merge))
            if len(kept) == 1:
                return super().add_up(work, parts, merge)
            before = kept[0][0]
            return bytes(
                merge(
                    before(parts[0].users, parts[0].source), work(parts[1].users, parts[1].source)
                )
            )

    rows = PartitionedRows.of_blocks(parts_of(pairs(), [20]), key=key, engine=Late())
    sums = ObjectiveSums(objective)
    assert isinstance(rows._asked(sums, np.zeros(DIM)), PartialSum)
    with pytest.raises(ValueError, match="pass = "):
        rows._asked(sums, np.ones(DIM))


def test_the_sum_of_a_pass_is_not_taken_for_that_of_another(key: JobKey) -> None:
    """A cluster that keeps answers would have the solver stop where it was not asked to."""
    kept: list[bytes] = []

    class Keeping(InProcess):
        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            kept.append(super().add_up(work, parts, merge))
            return kept[0]

    rows = PartitionedRows.of_blocks(parts_of(pairs(), [20]), key=key, engine=Keeping())
    sums = ObjectiveSums(LinearObjective.logistic(DIM))
    rows._asked(sums, np.zeros(DIM))
    with pytest.raises(PartitionError, match="of another pass"):
        rows._asked(sums, np.ones(DIM))


def test_sums_of_a_fit_are_opened_by_no_other_mechanism(key: JobKey) -> None:
    from privlearn.mechanisms import NoisySum
    from privlearn.noise import GaussianNoise

    rows = PartitionedRows.of_blocks([pairs()], key=key)
    total = rows._asked(ObjectiveSums(LinearObjective.logistic(DIM)), np.zeros(DIM))
    mechanism = NoisySum(Ball(1.0, total.count), GaussianNoise(1.0))
    with pytest.raises(ValueError, match="total: has mechanism = None"):
        mechanism.release_partial(total, token_for(mechanism, book()))
