"""A Dask cluster of two processes: what is released is what one process would release."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fatal_reads import Fatal

from privlearn.accountants import CentralAccountant
from privlearn.errors import PartitionError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LinearObjective, NoisySum, ObjectivePerturbation
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.rows.partitions import JobKey, OnDask, PartitionedRows
from privlearn.rows.partitions.rows import Part
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

dask: Any = pytest.importorskip("dask")
distributed: Any = pytest.importorskip("distributed")

USERS = 80
SUM = NoisySum(Ball(1.0, 3), GaussianNoise(2.0))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """One for all tests, as starting its processes takes seconds."""
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "30s"}),  # not for ever
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",  # None would be port 8787, which another may have
            silence_logs=logging.ERROR,
        ) as machines,
        distributed.Client(machines) as connected,
    ):
        yield connected


def data() -> Any:
    return np.random.default_rng(0).normal(size=(USERS, 3))


def account() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(100), users=range(USERS), noise=NoiseSource.simulation(1))


def token_for(mechanism: Any) -> Any:
    return account().issue(mechanism.loss(), users=range(USERS), label="sum")


def released(rows: PartitionedRows[Any]) -> bytes:
    return bytes(SUM.release_partial(rows.partial(SUM), token_for(SUM)).value.tobytes())


def whole() -> bytes:
    rows: Rows[Any] = Rows.seal(data(), users=range(USERS))
    return bytes(SUM.release(rows, token_for(SUM)).value.tobytes())


def files(folder: Path) -> list[str]:
    paths = [str(folder / f"{i}.npy") for i in range(8)]
    for path, block in zip(paths, np.split(data(), 8), strict=True):
        np.save(path, block)
    return paths


def test_arrays_frames_and_files(client: Any, key: JobKey, tmp_path: Path) -> None:
    engine = OnDask(client)
    blocks = PartitionedRows.of_blocks(np.split(data(), [9, 9, 50]), key=key, engine=engine)
    assert released(blocks) == whole()
    pandas: Any = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")  # which frames of Dask need
    dataframe: Any = pytest.importorskip("dask.dataframe")
    frame = dataframe.from_pandas(pandas.DataFrame(data(), columns=list("abc")), npartitions=3)
    sizes = frame.map_partitions(len).compute().tolist()
    parts: PartitionedRows[Any] = PartitionedRows.of_sources(
        frame.to_delayed(), sizes, key=key, engine=engine
    )
    assert released(parts) == whole()
    held = client.scatter(np.split(data(), 2))  # futures, which lie in memory of workers
    scattered: PartitionedRows[Any] = PartitionedRows.of_sources(
        held, [40, 40], key=key, engine=engine
    )
    assert released(scattered) == whole()
    read = PartitionedRows.of_sources(
        files(tmp_path), [10] * 8, key=key, engine=engine, read=np.load
    )
    assert released(read) == whole()


def test_admitted_rows_of_handles_futures_and_files(
    client: Any, key: JobKey, tmp_path: Path
) -> None:
    rule, ids = Participation(2, apart=3), ["maria", "kim", "maria", "zoe"] * 20
    mechanism = NoisySum(Ball(1.0, 3), GaussianNoise(2.0), Adjacency.ZERO_OUT)

    def book() -> tuple[People, Any]:
        people = People.memory(rule)
        found = CentralAccountant(
            ZCDP(100), users=range(USERS), people=people, noise=NoiseSource.simulation(1)
        )
        return people, found.issue(mechanism.loss(), users=range(USERS), label="sum")

    people, token = book()
    rows: Rows[Any] = people.admit(Rows.seal(data(), users=range(USERS)), ids)
    wanted = mechanism.release(rows, token).value.tobytes()
    engine, blocks = OnDask(client), np.split(data(), 4)
    load = dask.delayed(np.asarray, pure=False)
    kinds: dict[str, PartitionedRows[Any]] = {
        "handles": PartitionedRows.of_sources(
            [load(block) for block in blocks], [20] * 4, key=key, engine=engine
        ),
        "futures": PartitionedRows.of_sources(
            client.scatter(blocks), [20] * 4, key=key, engine=engine
        ),
        "files": PartitionedRows.of_sources(
            files(tmp_path), [10] * 8, key=key, engine=engine, read=np.load
        ),
        "arrays": PartitionedRows.of_blocks(blocks, key=key, engine=engine),
    }
    for name, parts in kinds.items():
        people, token = book()
        total = parts.admitted(people, ids).partial(mechanism)
        assert mechanism.release_partial(total, token).value.tobytes() == wanted, name


def test_many_files_are_added_up_several_by_a_task(
    client: Any, key: JobKey, tmp_path: Path
) -> None:
    """And handles of the cluster, or what holds one, each by its own, where it lies."""
    engine, paths = OnDask(client), [str(tmp_path / f"{i}.npy") for i in range(USERS)]
    for path, row in zip(paths, data(), strict=True):
        np.save(path, row[None])
    rows = PartitionedRows.of_sources(paths, [1] * USERS, key=key, engine=engine, read=np.load)
    assert released(rows) == whole()
    held = client.scatter([0, 1])
    sources = [*paths[:40], *held, (paths[0], held[0]), *((path, 1) for path in paths[40:72])]
    parts = [Part(range(i, i + 1), source) for i, source in enumerate(sources)]
    tasks = list(engine._tasks(parts))
    assert [part for task in tasks for part in task] == [(p.users, p.source) for p in parts]
    assert [len(task) for task in tasks] == [9, 9, 9, 9, 4, 1, 1, 1, 9, 9, 9, 5]


def test_a_fit(client: Any, key: JobKey) -> None:
    mechanism = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(3), ZCDP(5), max_rows=USERS
    )
    block = data(), (data()[:, 0] > 0).astype(float)
    rows: Rows[Any] = Rows.seal(block, users=range(USERS))
    one = mechanism.release(rows, token_for(mechanism)).value
    parts = [tuple(array[a : a + 20] for array in block) for a in range(0, USERS, 20)]
    here = PartitionedRows.of_blocks(parts, key=key)
    there = PartitionedRows.of_blocks(parts, key=key, engine=OnDask(client))
    first = mechanism.release_partitions(here, token_for(mechanism), passes=1).value
    second = mechanism.release_partitions(there, token_for(mechanism), passes=1).value
    assert first.tobytes() == second.tobytes()
    assert np.linalg.norm(second - one) <= 2 * mechanism.solver_error


def test_a_worker_that_dies_half_way_doubles_nothing(
    client: Any, key: JobKey, tmp_path: Path
) -> None:
    paths = files(tmp_path)
    mark = tmp_path / "killed"
    rows = PartitionedRows.of_sources(
        paths, [10] * 8, key=key, engine=OnDask(client), read=Fatal(str(mark), paths[-1])
    )
    before = set(client.run(os.getpid).values())
    assert released(rows) == whole()
    assert mark.exists()
    client.wait_for_workers(2, timeout=60)
    assert len(before & set(client.run(os.getpid).values())) == 1


def test_what_a_cluster_gives_up_is_told(client: Any, key: JobKey, tmp_path: Path) -> None:
    engine = OnDask(client)
    missing = PartitionedRows.of_sources(
        [str(tmp_path / "none")], [10], key=key, engine=engine, read=np.load
    )
    with pytest.raises(PartitionError, match=r"users 0\.\.9: FileNotFoundError"):
        missing.partial(SUM)
    handle = distributed.Client.map(client, float, ["0.777x"], pure=False)
    torn: PartitionedRows[Any] = PartitionedRows.of_sources(handle, [10], key=key, engine=engine)
    with pytest.raises(PartitionError, match="1 partitions: ValueError; its log") as found:
        torn.partial(SUM)
    assert "0.777" not in "".join(traceback.format_exception(found.value))
    with pytest.raises(TypeError, match=r"client = None: must be a distributed\.Client"):
        OnDask(None)  # type: ignore[arg-type]


def test_the_scheduler_sees_no_rows_and_no_key(client: Any, key: JobKey) -> None:
    """Names of tasks are random, too: made of the arguments they would be a fingerprint of rows."""
    tasks: dict[str, bytes] = {}

    class Watching(distributed.SchedulerPlugin):  # type: ignore[misc]
        """Keeps what the scheduler, which runs in this process, is told of tasks."""

        name = "watching"

        def update_graph(self, scheduler: Any, **_: Any) -> None:
            for name, task in scheduler.tasks.items():
                tasks[name] = pickle.dumps(task.run_spec)

    marked = np.full((USERS, 3), 0.1234567890123)
    scheduler = client.cluster.scheduler
    before = set(scheduler.tasks)  # of another test's, which it has not forgotten yet
    scheduler.add_plugin(Watching())
    try:
        for _ in range(2):
            rows = PartitionedRows.of_blocks([marked], key=key, engine=OnDask(client))
            released(rows)
    finally:
        scheduler.remove_plugin("watching")
    seen = b"".join(tasks.values())
    assert b"SumJob" in seen
    assert len({name for name in tasks.keys() - before if "summed" in name}) == 2
    for secret in (marked[0].tobytes(), key.read(), key.read().hex().encode()):
        assert secret not in seen


def test_a_function_that_workers_cannot_import_is_named(
    client: Any, key: JobKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("only_here")
    exec("def read(source):\n    return source", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    rows = PartitionedRows.of_sources(
        [data()], [USERS], key=key, engine=OnDask(client), read=module.read
    )
    with pytest.raises(PartitionError, match="workers cannot import 'only_here'"):
        rows.partial(SUM)
    again = PartitionedRows.of_blocks([data()], key=key, engine=OnDask(client))
    assert released(again) == whole()  # the workers live
