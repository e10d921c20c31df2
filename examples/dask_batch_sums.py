"""Adds up a batch's messages on a Dask cluster: any partition, any order, the same sums.

Batch sums are what a partition of the messages becomes, and what two of them become.  They travel
as bytes, so that what a broken machine returns is refused, not added.  Run it as it is for a
cluster of two processes on this machine, or hand `sum_messages` your own.  In Spark it is
``rdd.mapPartitions(...).treeReduce(...)`` with the same two functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from dask.delayed import delayed
from distributed import Client, LocalCluster

from privlearn.accountants import LocalAccountant
from privlearn.learners.local import BatchSums, LocalBanditConfig, LocalClient, LocalServer
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn_studies.rivals.local import LDPUCB


def sum_partition(config: str, batch: int, messages: Iterable[bytes]) -> bytes:
    """One machine's part: the sums of some messages, as bytes."""
    sums = BatchSums(LocalBanditConfig.model_validate_json(config), batch)
    sums.update_many(messages)
    return sums.to_bytes()


def merged(config: str, one: bytes, other: bytes) -> bytes:
    """Two sums in one.

    Raises:
        UsersError: they share a user.  DataError: torn bytes.
    """
    public = LocalBanditConfig.model_validate_json(config)
    return BatchSums.from_bytes(public, one).merge(BatchSums.from_bytes(public, other)).to_bytes()


def by_user(messages: Iterable[bytes], parts: int) -> list[list[bytes]]:
    """Partitions in which all messages that claim one user stand together.

    Then somebody who sends a message twice has it rejected, instead of spoiling a merge.
    """
    partitions: list[list[bytes]] = [[] for _ in range(parts)]
    for message in messages:
        partitions[int.from_bytes(message[16:24], "little") % parts].append(message)
    return partitions


def sum_messages(
    cluster: Client, config: LocalBanditConfig, batch: int, partitions: Sequence[Iterable[bytes]]
) -> BatchSums:
    """The sums of all partitions, merged pair by pair on the cluster."""
    public = config.model_dump_json()
    partial = [delayed(sum_partition)(public, batch, part) for part in partitions]
    while len(partial) > 1:
        pairs = zip(partial[::2], partial[1::2], strict=False)
        odd = partial[-1:] if len(partial) % 2 else []
        partial = [*(delayed(merged)(public, one, other) for one, other in pairs), *odd]
    return BatchSums.from_bytes(config, cluster.compute(partial[0]).result())


def simulated(config: LocalBanditConfig, server: LocalServer, seed: int) -> list[bytes]:
    """Messages of the open batch from simulated users; theirs would come over the network."""
    users, method = server.users, config.method
    rng = np.random.default_rng([seed, server.batch])
    contexts = rng.normal(size=(len(users), method.n_arms, method.dim)) / np.sqrt(method.dim)
    noise = NoiseSource.simulation(seed + server.batch)
    account = LocalAccountant.for_device(config, Ledger.memory(), user=users, noise=noise)
    gateway = LocalClient(config, account)
    arms = gateway.choose_many(contexts, server.model(), users=users)
    shown = contexts[np.arange(len(users)), arms]
    sent = gateway.randomize_many(shown, arms, shown[:, 0], users=users)
    size = len(sent) // len(users)
    return [sent[i : i + size] for i in range(0, len(sent), size)]


def serve(config: LocalBanditConfig, cluster: Client, batches: int, parts: int = 4) -> LocalServer:
    """Serves the first batches; their messages are added up on the cluster."""
    noise = NoiseSource.simulation(0)  # of the devices
    claims = LocalAccountant.for_server(config, Ledger.memory(), noise=noise)
    server = LocalServer(config, claims, by="examples/dask_batch_sums.py")
    for _ in range(batches):
        partitions = by_user(simulated(config, server, seed=1), parts)
        server.absorb(sum_messages(cluster, config, server.batch, partitions))
        server.advance()
    return server


def main() -> None:
    """Two processes on this machine."""
    method = LDPUCB(dim=2, n_arms=5, horizon=1_000_000, shared=True, epsilon=2.0, delta=0.01)
    config = LocalBanditConfig("dask example", method)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        server = serve(config, Client(cluster), batches=4)
    print(f"{server.heard} messages in {server.batch} batches, rejected: {server.rejected}")


if __name__ == "__main__":
    main()
