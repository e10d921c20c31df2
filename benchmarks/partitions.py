"""How fast logged rows are added up in several processes of a Dask cluster.

    OMP_NUM_THREADS=1 python benchmarks/partitions.py [--rows 10000000] [--workers 4]

Rows of 20 columns lie in files, which workers read; a sum of vectors, a Gram matrix and one pass
of a fit.  ``here`` is this process alone, without a cluster.  CPU is that of all processes; the
load of the machine is printed, as rates say little on one that has other work.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import LinearObjective, NoisySum, ObjectivePerturbation
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball, PSDTrace
from privlearn.rows.partitions import Engine, InProcess, JobKey, OnDask, PartitionedRows

COLUMNS = 20
Sources = tuple[list[str], list[int]]


def written(folder: Path, rows: int, parts: int) -> Sources:
    sizes = [len(part) for part in np.array_split(np.arange(rows), parts)]
    paths = [str(folder / f"{i}.npy") for i in range(parts)]
    for i, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        np.save(path, np.random.default_rng(i).normal(size=(size, COLUMNS)) / 4)
    return paths, sizes


def vectors(path: str) -> Any:
    return np.load(path, mmap_mode="r")


def factors(path: str) -> Any:
    return vectors(path)[:, None, :]


def labelled(path: str) -> Any:
    block = vectors(path)
    return block, (block[:, 0] > 0).astype(float)


def add_vectors(engine: Engine, key: JobKey, sources: Sources) -> None:
    mechanism = NoisySum(Ball(1.0, COLUMNS), GaussianNoise(3.0))
    lying = PartitionedRows.of_sources(*sources, key=key, engine=engine, read=vectors)
    lying.partial(mechanism)


def add_matrices(engine: Engine, key: JobKey, sources: Sources) -> None:
    mechanism = NoisySum(PSDTrace(1.0, COLUMNS), GaussianNoise(3.0))
    lying = PartitionedRows.of_sources(*sources, key=key, engine=engine, read=factors)
    lying.partial(mechanism)


def fit(engine: Engine, key: JobKey, sources: Sources) -> None:
    """As many passes as the solver needs."""
    rows = sum(sources[1])
    mechanism = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(COLUMNS), ZCDP(1), max_rows=rows
    )
    account = CentralAccountant(ZCDP(2), users=range(rows), ledger=Ledger.memory())
    token = account.issue(mechanism.loss(), users=range(rows), label="fit")
    lying = PartitionedRows.of_sources(*sources, key=key, engine=engine, read=labelled)
    mechanism.release_partitions(lying, token, passes=1)


TASKS: dict[str, Callable[[Engine, JobKey, Sources], None]] = {
    "vectors": add_vectors,
    "Gram matrix": add_matrices,
    "logistic fit": fit,
}


def cpu_of(client: Client | None) -> float:
    if client is None:
        return time.process_time()
    return float(time.process_time() + sum(client.run(time.process_time).values()))


def timed(
    name: str, client: Client | None, key: JobKey, sources: Sources, repeats: int
) -> tuple[float, float]:
    """The least wall and CPU time, in seconds."""
    engine = InProcess() if client is None else OnDask(client)
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), cpu_of(client)
        TASKS[name](engine, key, sources)
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_of(client) - cpu)
    return min(walls), min(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--parts", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = JobKey.create(Path(folder) / "key")
        sources = written(Path(folder), given.rows, given.parts)
        print(f"{given.rows} rows of {COLUMNS} columns in {given.parts} files")
        for name in given.tasks:
            one = None
            for workers in (0, 1, given.workers):
                wall, cpu = on(workers, name, key, sources, given.repeats)
                where = f"{workers} Dask processes" if workers else "here"
                one = wall if workers == 1 else one
                ratio = f", {one / wall:.2f} times one" if one and workers > 1 else ""
                print(
                    f"{name}, {where}: {wall:.2f} s, CPU {cpu:.2f} s, "
                    f"{given.rows / wall / 1e6:.2f} million rows a second{ratio}; load "
                    f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
                    flush=True,
                )


def on(workers: int, name: str, key: JobKey, sources: Sources, repeats: int) -> tuple[float, float]:
    if not workers:
        return timed(name, None, key, sources, repeats)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": dict(OnDask.ENVIRONMENT)}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        return timed(name, client, key, sources, repeats)


if __name__ == "__main__":
    main()
