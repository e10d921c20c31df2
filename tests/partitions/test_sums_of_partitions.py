"""Sums of rows in several processes: bit for bit those of one, and nothing leaves a frame."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import (
    PartitionError,
    ProvenanceError,
    RowLocalityError,
    SealedError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import CrossPolytope, NoisySum, OneOfK, ReportNoisyMax
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball, PSDTrace
from privlearn.rows.partitions import InProcess, JobKey, Part, PartitionedRows, SumJob
from privlearn.rows.partitions.jobs import Steps
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

USERS = 60
BALL = NoisySum(Ball(1.0, 3), GaussianNoise(2.0))
GRAM = NoisySum(PSDTrace(1.0, 3), GaussianNoise(2.0))


def data(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.random.default_rng(seed).normal(size=(USERS, 3))
    values[::7] = np.nan
    return values


def factors(values: Any) -> Any:
    return values[:, None, :] * np.array([1.0, 0.5])[:, None]


MECHANISMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "vectors": (BALL, lambda values: values),
    "Gram": (GRAM, factors),
    "choice": (ReportNoisyMax(CrossPolytope(3), clip=1.0, scale=1.0), lambda values: values),
}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


def account(users: int = USERS, **more: Any) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(1)
    return CentralAccountant(ZCDP(100), users=range(users), noise=noise, **more)


def token_for(mechanism: Any, book: Any) -> Any:
    return book.issue(mechanism.loss(), users=book.users, label="sum")


def whole(mechanism: Any, block: Any) -> Any:
    rows = Rows.seal(block, users=range(len(block)))
    return mechanism.release(rows, token_for(mechanism, account(len(block)))).value


class Anyhow:
    """Adds up in a random order, as clusters do."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def add_up(
        self,
        work: Callable[[range, Any], bytes],
        parts: Sequence[Part],
        merge: Callable[[bytes, bytes], bytes],
    ) -> bytes:
        # what travels is pickled by every framework
        work, merge = pickle.loads(pickle.dumps((work, merge)))
        sums = [work(*pickle.loads(pickle.dumps((part.users, part.source)))) for part in parts]
        while len(sums) > 1:
            self.random.shuffle(sums)
            sums.append(merge(sums.pop(), sums.pop()))
        return sums[0]


# The same in any partition and any order -----------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, USERS), max_size=6), seed=st.integers(0, 99))
def test_a_release_is_the_one_of_one_process_bit_for_bit(
    name: str, cuts: list[int], seed: int, key: JobKey
) -> None:
    mechanism, of = MECHANISMS[name]
    blocks = np.split(of(data()), sorted(cuts))  # some of them empty
    rows = PartitionedRows.of_blocks(blocks, key=key, engine=Anyhow(seed))
    total = rows.partial(mechanism)
    assert total.users == rows.users == (range(USERS),)
    merged = mechanism.release_partial(total, token_for(mechanism, account())).value
    assert merged.tobytes() == whole(mechanism, of(data())).tobytes()


def test_gaps_and_parts_of_partitions(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks(np.split(data(), [10, 25]), key=key).slice(range(5, 40))
    total = rows.partial(BALL)
    assert (total.users, rows.users, rows.count) == ((range(5, 40),), (range(5, 40),), 35)
    only = np.where(np.isin(np.arange(USERS), range(5, 40))[:, None], data(), np.nan)
    released = BALL.release_partial(total, token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, only).tobytes()
    with pytest.raises(UsersError, match=r"users range\(0, 6\) are not all within"):
        rows.slice(range(6))


def test_a_large_partition_is_added_up_in_pieces(
    key: JobKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privlearn.rows.partitions.jobs._PIECE", 7)
    monkeypatch.setattr("privlearn.rows.clipping._PIECE", 6)
    total = PartitionedRows.of_blocks([data()], key=key).partial(BALL)
    released = BALL.release_partial(total, token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, data()).tobytes()


def test_all_null_partitions_are_null_rows(key: JobKey) -> None:
    bad = np.full((20, 3), np.nan)
    rows = PartitionedRows.of_blocks([data()[:40], bad], key=key)
    released = BALL.release_partial(rows.partial(BALL), token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, np.concatenate([data()[:40], bad])).tobytes()


def test_frames_and_named_tuples(key: JobKey) -> None:
    pandas: Any = pytest.importorskip("pandas")
    blocks: list[Any] = [pandas.DataFrame(data()[:30], columns=list("abc")), data()[30:]]
    total = PartitionedRows.of_blocks(blocks, key=key).partial(BALL)
    released = BALL.release_partial(total, token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, data()).tobytes()
    synthetic = OneOfK.calibrated(Ball(1.0, 3), ZCDP("0.5"), arms=2)
    arms = np.arange(USERS) % 2
    pairs = [(data()[:20], arms[:20]), (data()[20:], arms[20:])]
    total = PartitionedRows.of_blocks(pairs, key=key).partial(synthetic)
    rows: Rows[Any] = Rows.seal((data(), arms), users=range(USERS))
    one = synthetic.release(rows, token_for(synthetic, account())).value
    other = synthetic.release_partial(total, token_for(synthetic, account())).value
    assert one.tobytes() == other.tobytes()
    assert one.any()


def summed(values: Any) -> Any:
    """Rounds in an order that follows from how rows lie in memory."""
    return np.einsum("ij->i", values)[:, None]


def test_paths_need_somebody_who_reads_them(key: JobKey, tmp_path: Path) -> None:
    for source in ("part-0.npy", tmp_path / "part-0.npy"):
        with pytest.raises(TypeError, match="read: must be given where sources are paths"):
            PartitionedRows.of_sources([source], [3], key=key)


def test_files_are_read_at_the_worker(key: JobKey, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.npy") for i in range(3)]
    for path, block in zip(paths, np.split(data(), 3), strict=True):
        np.save(path, block)
    read = functools.partial(np.load, mmap_mode="r")
    rows = PartitionedRows.of_sources(paths, [20, 20, 20], key=key, read=read)
    released = BALL.release_partial(rows.partial(BALL), token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, data()).tobytes()
    by_columns = [np.asfortranarray(block) for block in np.split(data(), 3)]
    lists = [block.tolist() for block in by_columns]
    for blocks in (by_columns, lists):
        here = PartitionedRows.of_sources(blocks, [20] * 3, key=key).map_rows(summed)
        wide = NoisySum(Ball(1.0, 1), GaussianNoise(2.0))
        one = wide.release(
            Rows.seal(data(), users=range(USERS)).map_rows(summed), token_for(wide, account())
        )
        released = wide.release_partial(here.partial(wide), token_for(wide, account())).value
        assert released.tobytes() == one.value.tobytes()
    np.save(paths[1], data()[:19])
    with pytest.raises(PartitionError, match=r"users 20\.\.39: holds 19 rows, .* to hold 20"):
        rows.partial(BALL)
    os.unlink(paths[1])
    with pytest.raises(PartitionError, match=r"users 20\.\.39: FileNotFoundError: No such file"):
        rows.partial(BALL)


# What Spark and Beam run ----------------------------------------------------------------------


def tree_reduce(sums: list[bytes], merge: Callable[[bytes, bytes], bytes], depth: int = 2) -> bytes:
    """As Spark's ``treeReduce``: partitions are merged in rounds, of about n^(1/depth) each."""
    scale = max(int(np.ceil(len(sums) ** (1 / depth))), 2)
    while len(sums) > scale:
        sums = [functools.reduce(merge, sums[i::scale]) for i in range(scale)]
    return functools.reduce(merge, sums)


def test_tree_reduce(key: JobKey) -> None:
    job = SumJob.begin(BALL, key=key)
    parts = [(range(a, a + 6), data()[a : a + 6]) for a in range(0, USERS, 6)]
    total = job.total(tree_reduce([job.partial(*part) for part in parts], job.merge))
    released = BALL.release_partial(total, token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, data()).tobytes()


class SumFn:
    """The methods of a ``CombineFn`` of Beam, as docs/how-to/partitions.md shows them."""

    def __init__(self, job: SumJob[Any]) -> None:
        self.job = job

    def create_accumulator(self) -> bytes:
        return self.job.zero()

    def add_input(self, accumulator: bytes, element: tuple[range, Any]) -> bytes:
        return self.job.merge(accumulator, self.job.partial(*element))

    def merge_accumulators(self, accumulators: Iterator[bytes]) -> bytes:
        return functools.reduce(self.job.merge, accumulators)

    def extract_output(self, accumulator: bytes) -> bytes:
        return accumulator


def test_combine_fn(key: JobKey) -> None:
    combine = pickle.loads(pickle.dumps(SumFn(SumJob.begin(BALL, key=key))))
    bundles = [[combine.create_accumulator()] for _ in range(3)]
    for i, start in enumerate(range(0, USERS, 4)):
        bundle, element = bundles[i % 3], (range(start, start + 4), data()[start : start + 4])
        bundle[0] = combine.add_input(bundle[0], element)
    states = [*(bundle[0] for bundle in bundles), combine.create_accumulator()]
    found = combine.extract_output(combine.merge_accumulators(iter(states)))
    total = combine.job.total(found)
    released = BALL.release_partial(total, token_for(BALL, account())).value
    assert released.tobytes() == whole(BALL, data()).tobytes()
    nobody = combine.job.total(combine.create_accumulator())
    assert repr(nobody) == "PartialSum(users=none, sealed)"
    with pytest.raises(UsersError, match="of nobody's rows"):
        BALL.release_partial(nobody, token_for(BALL, account()))


# Rows count once ------------------------------------------------------------------------------


class Twice(InProcess):
    """A cluster that hands in the sum of a task that ran twice."""

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        return super().add_up(work, [*parts, parts[-1]], merge)


class OneLess(InProcess):
    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        return super().add_up(work, parts[1:], merge)


class Garbage(InProcess):
    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        total = super().add_up(work, parts, merge)
        return total[:-1] + bytes([total[-1] ^ 1])


class Object(InProcess):
    def add_up(self, work: Any, parts: Any, merge: Any) -> Any:
        return [super().add_up(work, parts, merge)]


@pytest.mark.parametrize(
    ("engine", "error", "match"),
    [
        (Twice(), UsersError, r"users 40\.\.59 are in two partial sums"),
        (OneLess(), UsersError, r"returned PartialSum\(users=20\.\.59, sealed\).*left out"),
        (Garbage(), PartitionError, "changed on the way, or of another job"),
        (Object(), PartitionError, "no sum of this package"),
    ],
    ids=["twice", "left out", "changed", "no bytes"],
)
def test_what_a_broken_cluster_returns(
    engine: Any, error: type[Exception], match: str, key: JobKey
) -> None:
    rows = PartitionedRows.of_blocks(np.split(data(), 3), key=key, engine=engine)
    with pytest.raises(error, match=match):
        rows.partial(BALL)


def test_partitions_that_share_users_are_refused(key: JobKey) -> None:
    job = PartitionedRows.of_blocks([data()], key=key)
    parts = [Part(range(10), None), Part(range(9, 12), None)]
    with pytest.raises(UsersError, match=r"users 9\.\.9 are in two partitions"):
        type(job)(job._PartitionedRows__job, parts, InProcess(), Steps())  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="all are empty"):
        PartitionedRows.of_blocks([data()[:0]], key=key)
    with pytest.raises(ValueError, match="sizes: 1 numbers for 2 sources"):
        PartitionedRows.of_sources(["a", "b"], [3], key=key)


# Parameters, tokens, keys ---------------------------------------------------------------------


def test_sums_of_other_parameters_are_named(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks([data()], key=key)
    narrow = NoisySum(Ball(0.5, 3), GaussianNoise(2.0))
    token = token_for(BALL, account())
    with pytest.raises(ValueError, match=r"has domain\.radius = 0\.5, must be 1\.0"):
        BALL.release_partial(rows.partial(narrow), token)
    one, other = SumJob.begin(BALL, key=key), SumJob.begin(narrow, key=key)
    mixed = dataclasses.replace(other, job=one.job)
    with pytest.raises(ValueError, match=r"domain\.radius = 1\.0 and 0\.5"):
        one.merge(one.partial(range(5), data()[:5]), mixed.partial(range(5, 9), data()[5:9]))
    with pytest.raises(TypeError, match=r"has no partial\(rows\)"):
        rows.partial(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"has no partial\(rows\)"):
        SumJob.begin(object(), key=key)  # type: ignore[arg-type]
    BALL.release_partial(rows.partial(BALL), token)  # nothing was spent by what was refused


def test_users_must_be_the_tokens(key: JobKey) -> None:
    late = PartitionedRows.of_blocks([data()], key=key, first=30)
    with pytest.raises(UsersError, match=r"users=30\.\.89.* users 0\.\.59 are left"):
        BALL.release_partial(late.partial(BALL), token_for(BALL, account()))
    mechanism = NoisySum(Ball(1.0, 3), GaussianNoise(2.0), Adjacency.ADD_REMOVE)
    some = PartitionedRows.of_blocks([data()[:50]], key=key)
    book = account(adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(UsersError, match="at once"):
        mechanism.release_partial(some.partial(mechanism), token_for(mechanism, book))


def test_they_are_logged_rows(key: JobKey) -> None:
    total = PartitionedRows.of_blocks([data()], key=key).partial(BALL)
    joint = JointAccountant(ZCDP(100), users=range(USERS), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="billboard"):
        BALL.release_partial(total, token_for(BALL, joint))
    people = People.memory(Participation(1))
    book = account(people=people)
    with pytest.raises(ProvenanceError, match="admitted by the accountant's registry"):
        BALL.release_partial(total, token_for(BALL, book))


def test_where_a_key_lies(key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({}, {"file": "a", "variable": "b"}):
        with pytest.raises(TypeError, match="either file= or variable="):
            JobKey(**wrong)
    with pytest.raises(TypeError, match="must be a JobKey, the place of a key, not bytes"):
        PartitionedRows.of_blocks([data()], key=bytes(32))  # type: ignore[arg-type]
    for text, match in (("00" * 31, "a key of 31 bytes, must be 32"), ("zz", "hexadecimal")):
        monkeypatch.setenv("JOB", text)
        with pytest.raises(PartitionError, match=f"the variable JOB: .*{match}"):
            PartitionedRows.of_blocks([data()], key=JobKey(variable="JOB"))
    monkeypatch.delenv("JOB")
    with pytest.raises(PartitionError, match="variable JOB: not set in this process"):
        JobKey(variable="JOB").read()
    with pytest.raises(PartitionError, match=r"cannot be read \(FileNotFoundError\)"):
        JobKey(file=str(tmp_path / "none")).read()
    own = JobKey.create(tmp_path / "own")
    assert os.stat(tmp_path / "own").st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError, match="a key is never overwritten; JobKey"):
        JobKey.create(tmp_path / "own")
    os.chmod(tmp_path / "own", 0o644)
    with pytest.raises(PartitionError, match="others can read it"):
        own.read()


def test_the_key_is_in_no_task_and_rows_are_not_either(key: JobKey) -> None:
    seen: list[bytes] = []

    class Watched(InProcess):
        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            seen.append(pickle.dumps((work, list(parts), merge)))
            seen.append(super().add_up(work, parts, merge))
            return seen[-1]

    marked = np.full((USERS, 3), 0.123456789)
    rows = PartitionedRows.of_blocks([marked[:9], marked[9:]], key=key, engine=Watched())
    rows.partial(BALL)
    secret = key.read()
    for data_seen in seen:
        assert secret not in data_seen
        assert secret.hex().encode() not in data_seen
        assert marked[0].tobytes() not in data_seen
        assert b"users" not in data_seen[-60:]


def test_a_worker_with_another_key_says_so(
    key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB", key.read().hex())

    class Elsewhere(InProcess):
        def __init__(self, text: str | None) -> None:
            self.text = text

        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            with pytest.MonkeyPatch.context() as other:
                if self.text is None:
                    other.delenv("JOB")
                else:
                    other.setenv("JOB", self.text)
                return super().add_up(work, parts, merge)

    for text, match in (("11" * 32, "is not the key that the owner"), (None, "not set in this")):
        rows = PartitionedRows.of_blocks(
            [data()[:9], data()[9:]], key=JobKey(variable="JOB"), engine=Elsewhere(text)
        )
        with pytest.raises(PartitionError, match=f"variable JOB: {match}"):
            rows.partial(BALL)


def test_nothing_of_another_job_is_merged_or_opened(key: JobKey) -> None:
    """Also under the same key: an old sum over the same users would pass for a new one."""
    one, other = SumJob.begin(BALL, key=key), SumJob.begin(BALL, key=key)
    mine, old = one.partial(range(5), data()[:5]), other.partial(range(5, 9), data()[5:9])
    for refused in (lambda: one.merge(mine, old), lambda: one.total(old)):
        with pytest.raises(PartitionError, match="or of another job"):
            refused()


def test_rows_of_one_partition_do_not_pass_for_those_of_another(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks([data()[:30], data()[30:]], key=key)
    one, other = rows._PartitionedRows__parts  # type: ignore[attr-defined]
    job = SumJob(rows._PartitionedRows__job, BALL)  # type: ignore[attr-defined]
    with pytest.raises(PartitionError, match=r"a frame of rows, .*changed on the way"):
        job.total(job.partial(one.users, other.source))


# Sealed ---------------------------------------------------------------------------------------


def test_nobody_looks_inside(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks([data()[:9], data()[9:]], key=key)
    assert repr(rows) == "PartitionedRows(users=0..59, 2 partitions, sealed)"
    looks: list[Any] = [np.asarray, list, copy.copy, copy.deepcopy, pickle.dumps, float, hash]
    for look in looks:
        with pytest.raises(SealedError):
            look(rows)
    parts = rows._PartitionedRows__parts  # type: ignore[attr-defined]
    assert repr(parts[0]) == "Part(users=0..8)"
    assert "encrypted" in repr(parts[0].source)


def test_what_an_error_at_a_worker_says_tells_nothing_of_rows(key: JobKey) -> None:
    def read(source: Any) -> Any:
        raise ValueError(f"could not convert string to float: {source[0, 0]}")

    rows = PartitionedRows.of_sources([np.full((4, 3), 0.777)], [4], key=key, read=read)
    with pytest.raises(
        PartitionError, match=r"users 0\.\.3: ValueError where its rows are read"
    ) as e:
        rows.partial(BALL)
    assert "0.777" not in str(e.value)
    job = SumJob.begin(BALL, key=key, read=read)
    assert b"ValueError" not in job.partial(range(4), np.full((4, 3), 0.777))
    for error in (SystemExit("0.777"), OSError(5, "at 0.777")):  # nothing of it is logged there

        def ends(source: Any, error: BaseException = error) -> Any:
            raise error

        failing = SumJob.begin(BALL, key=key, read=ends)
        with pytest.raises(PartitionError, match=type(error).__name__) as e:
            failing.total(failing.partial(range(4), None))
        assert "0.777" not in str(e.value)
    # a failure is what a merge with it is, and not an exception that is logged with its arguments
    failed, fine = job.partial(range(4), np.ones(4)), job.zero()
    assert job.merge(failed, fine) == job.merge(fine, failed) == failed


def doubled(values: Any) -> Any:
    return values * 2


def test_functions_are_named_and_applied_at_the_worker(key: JobKey) -> None:
    book = account(ledger=Ledger.memory())
    rows = PartitionedRows.of_blocks(np.split(data() / 2, 4), key=key, engine=Anyhow(0))
    mapped = rows.map_rows(doubled).map(doubled)
    assert [name.partition("(")[0] for name in mapped.functions] == ["map_rows", "map"]
    released = BALL.release_partial(mapped.partial(BALL), token_for(BALL, book)).value
    one = BALL.release(
        Rows.seal(data() / 2, users=range(USERS)).map_rows(doubled).map(doubled),
        token_for(BALL, account()),
    )
    assert released.tobytes() == one.value.tobytes()
    kinds = [entry.entry for entry in book.ledger.entries]
    assert kinds.index("spend") < kinds.index("functions") < kinds.index("retire")


def centred(values: Any) -> Any:
    return values - np.nanmean(values, axis=0)


def test_a_function_over_several_rows_is_told_when_it_is_paid_for(key: JobKey) -> None:
    rows = PartitionedRows.of_blocks(np.split(data(), 4), key=key).map_rows(centred)
    total, book = rows.partial(BALL), account()
    with pytest.raises(RowLocalityError, match="centred"):
        BALL.release_partial(total, token_for(BALL, book))
    assert book.ledger.entries[-1].outcome == "uncovered"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [0.0, 1e-9, -0.3, np.nan])
def test_frames_are_as_long_whatever_the_rows(value: float, key: JobKey) -> None:
    job = SumJob.begin(BALL, key=key)
    wanted = len(job.partial(range(9), np.full((9, 3), -0.5)))
    assert len(job.partial(range(9), np.full((9, 3), value))) == wanted
    assert isinstance(job.total(job.partial(range(9), np.full((9, 3), value))), PartialSum)
