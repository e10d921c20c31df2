"""The Dask example, on clusters of this machine: of threads, and of processes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from privlearn.accountants import LocalAccountant
from privlearn.errors import UsersError
from privlearn.learners.local import BatchSums, LocalBanditConfig
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn_studies.rivals.local import LDPUCB

distributed: Any = pytest.importorskip("distributed")
EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_batch_sums.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dask_batch_sums", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",  # None would be port 8787, which another may have
        ) as machines,
        distributed.Client(machines) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def config() -> LocalBanditConfig:
    method = LDPUCB(dim=2, n_arms=3, horizon=40_000, shared=True, epsilon=2.0, delta=0.01)
    return LocalBanditConfig(name="dask", method=method)


def test_the_cluster_adds_up_what_one_pass_does(
    example: Any, cluster: Any, config: LocalBanditConfig
) -> None:
    claims = LocalAccountant.for_server(config, Ledger.memory(), noise=NoiseSource.simulation(0))
    server = example.LocalServer(config, claims, by="test")
    sent = example.simulated(config, server, seed=3)
    odd = [b"", sent[0][:-1], sent[1]]
    whole = BatchSums(config, 0)
    whole.update_many([*sent, *odd])
    for parts in (1, 2, 5):
        partitions = example.by_user([*sent, *odd[2:]], parts)
        partitions[0] += odd[:2]
        found = example.sum_messages(cluster, config, 0, partitions)
        assert found.to_bytes() == whole.to_bytes()
    assert whole.rejected["malformed"] == 2
    assert whole.rejected["duplicate"] == 1
    server.absorb(found)
    assert server.heard == len(sent) == len(config.users_of(0))


def test_an_overlap_is_refused_on_the_cluster(
    example: Any, cluster: Any, config: LocalBanditConfig
) -> None:
    claims = LocalAccountant.for_server(config, Ledger.memory(), noise=NoiseSource.simulation(0))
    sent = example.simulated(config, example.LocalServer(config, claims, by="test"), seed=3)
    with pytest.raises(UsersError, match="in both sums"):
        example.sum_messages(cluster, config, 0, [sent[:3], sent[2:]])


def test_batches_are_served_through_the_cluster(
    example: Any, cluster: Any, config: LocalBanditConfig
) -> None:
    server = example.serve(config, cluster, batches=2)
    assert (server.batch, server.heard) == (2, server.users.start)
    assert not any(server.rejected.values())


def test_the_script_runs_on_processes() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "500 messages in 4 batches" in done.stdout, done.stderr
