"""Adds up a batch's messages on a Dask cluster: any partition, any order, the same sums.

A tally is what a partition of the messages becomes, and what two tallies become.  Tallies travel as
bytes, so that what a broken machine returns is refused, not added.  Run it as it is for a cluster
of two processes on this machine, or hand `tally_messages` a client of your own.  In Spark it is
``rdd.mapPartitions(...).treeReduce(...)`` with the same two functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from dask.delayed import delayed
from distributed import Client, LocalCluster

from privlearn.accountants import LocalAccountant
from privlearn.baselines.local import LDPUCB
from privlearn.budgets import ApproxDP, GaussianDP
from privlearn.learners import LocalBandit, LocalClient, LocalServer, Tally
from privlearn.noise import NoiseSource


def tally_partition(config: str, batch: int, messages: Iterable[bytes]) -> bytes:
    """One machine's part: the tally of some messages, as bytes."""
    tally = Tally(LocalBandit.model_validate_json(config), batch)
    tally.update_many(messages)
    return tally.to_bytes()


def merged(config: str, one: bytes, other: bytes) -> bytes:
    """Two tallies in one.

    Raises:
        UsersError: they share a user.  DataError: torn bytes.
    """
    public = LocalBandit.model_validate_json(config)
    return Tally.from_bytes(public, one).merge(Tally.from_bytes(public, other)).to_bytes()


def by_user(messages: Iterable[bytes], parts: int) -> list[list[bytes]]:
    """Partitions in which all messages that claim one user stand together.

    Then somebody who sends a message twice has it rejected, instead of spoiling a merge.
    """
    partitions: list[list[bytes]] = [[] for _ in range(parts)]
    for message in messages:
        partitions[int.from_bytes(message[16:24], "little") % parts].append(message)
    return partitions


def tally_messages(
    cluster: Client, config: LocalBandit, batch: int, partitions: Sequence[Iterable[bytes]]
) -> Tally:
    """The tally of all partitions, merged pair by pair on the cluster."""
    public = config.model_dump_json()
    tallies = [delayed(tally_partition)(public, batch, part) for part in partitions]
    while len(tallies) > 1:
        pairs = zip(tallies[::2], tallies[1::2], strict=False)
        odd = tallies[-1:] if len(tallies) % 2 else []
        tallies = [*(delayed(merged)(public, one, other) for one, other in pairs), *odd]
    return Tally.from_bytes(config, cluster.compute(tallies[0]).result())


def account(
    config: LocalBandit, users: range, seed: int, *, attested: bool
) -> LocalAccountant[GaussianDP]:
    """A simulated account: of devices, or of a server."""
    budget = ApproxDP(config.method.epsilon, config.method.delta)
    noise = NoiseSource.simulation(seed)
    return LocalAccountant(budget, users=users, noise=noise, currency=GaussianDP, attested=attested)


def simulated(config: LocalBandit, server: LocalServer, seed: int) -> list[bytes]:
    """Messages of the open batch from simulated users; theirs would come over the network."""
    users, method = server.users, config.method
    rng = np.random.default_rng([seed, server.batch])
    contexts = rng.normal(size=(len(users), method.n_arms, method.dim)) / np.sqrt(method.dim)
    gateway = LocalClient(config, account(config, users, seed + server.batch, attested=False))
    arms = gateway.choose_many(contexts, server.model(), users=users)
    shown = contexts[np.arange(len(users)), arms]
    sent = gateway.randomize_many(shown, arms, shown[:, 0], users=users)
    size = len(sent) // len(users)
    return [sent[i : i + size] for i in range(0, len(sent), size)]


def serve(config: LocalBandit, cluster: Client, batches: int, parts: int = 4) -> LocalServer:
    """Serves the first batches; their messages are added up on the cluster."""
    claims = account(config, range(config.method.horizon), 0, attested=True)
    server = LocalServer(config, claims, by="examples/dask_tally.py")
    for _ in range(batches):
        partitions = by_user(simulated(config, server, seed=1), parts)
        server.absorb(tally_messages(cluster, config, server.batch, partitions))
        server.advance()
    return server


def main() -> None:
    """Two processes on this machine."""
    method = LDPUCB(dim=2, n_arms=5, horizon=1_000_000, shared=True, epsilon=2.0, delta=0.01)
    config = LocalBandit(name="dask example", method=method)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        server = serve(config, Client(cluster), batches=4)
    print(f"{server.heard} messages in {server.batch} batches, rejected: {server.rejected}")


if __name__ == "__main__":
    main()
