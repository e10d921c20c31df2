"""Regret of private experts, and what they cost.

    python benchmarks/experts.py [--replicates 40] [--jobs 2]

10,000 users, each with a loss of 0 or 1 for every one of N experts; regret is against the best
single expert in hindsight, so that whoever follows a change can be below 0.  *iid*: means uniform
in [.3, .7].  *drift*: other such means from the middle on.  *one better*: .45 against .5.  Hedge
without privacy has the rate sqrt(8 log N/T).  "Plain sums" are what is drawn from where all blocks
count alike and noise stays the same (blocks end at 50, and grow by 1.25).  Noise is drawn exactly,
from seeds; replicate r has data and noise seed SEED + r.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.learners import PrivateExperts
from privlearn.learners.expert_blocks import block_ends
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ApproxDP, PureDP
from privlearn.mechanisms import NoisyMaxBatches, SimplexVertices
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array

SEED = 520_000
USERS = 10_000
EXPERTS = (10, 100, 1000)
KINDS = ("iid", "drift", "one better")
BUDGETS: dict[str, Any] = {
    "ε = 1": PureDP(1),
    "(1, 1e-6)": ApproxDP(1, "1e-6"),
    "(3, 1e-6)": ApproxDP(3, "1e-6"),
    "(0.3, 1e-6)": ApproxDP("0.3", "1e-6"),
}
FEWER = 4  # times fewer replicates at N = 1000


def losses(kind: str, experts: int, seed: int) -> Array:
    """Of all users, shape (USERS, N)."""
    rng = np.random.default_rng(seed)
    means = rng.uniform(0.3, 0.7, (2, experts))
    if kind == "one better":
        means[:] = 0.5
        means[:, rng.integers(experts)] = 0.45
    if kind != "drift":
        means[1] = means[0]
    half = USERS // 2
    return (rng.random((USERS, experts)) < np.repeat(means, half, axis=0)).astype(float)


def regret(table: Array, followed: NDArray[np.int64]) -> float:
    """Of experts, shape (USERS,)."""
    return float(table[np.arange(USERS), followed].sum() - table.sum(axis=0).min())


def _account(budget: Any, seed: int) -> JointAccountant[Any]:
    return JointAccountant(budget, users=range(USERS), noise=NoiseSource.simulation(seed))


def private(budget: Any) -> Callable[[Array, int], float]:
    """`PrivateExperts` as it comes."""

    def run(table: Array, seed: int) -> float:
        learner = PrivateExperts(table.shape[1]).start(_account(budget, seed))
        followed: list[NDArray[np.int64]] = []

        def respond(experts: NDArray[np.int64]) -> Array:
            first = sum(map(len, followed))
            followed.append(experts)
            return table[first : first + len(experts)]

        learner.play(USERS, respond)
        return regret(table, np.concatenate(followed))

    return run


def plain_sums(budget: Any) -> Callable[[Array, int], float]:
    """All blocks alike, and noise of one scale."""

    def run(table: Array, seed: int) -> float:
        ends, experts = block_ends(USERS, 50, 1.25), table.shape[1]
        account: CentralAccountant[Any] = CentralAccountant(
            budget, users=range(USERS), noise=NoiseSource.simulation(seed)
        )
        made = NoisyMaxBatches.calibrated(
            SimplexVertices(experts),
            0.5,
            account.budget,
            sizes=np.diff([0, *ends])[:-1].tolist(),
        )
        token = account.issue(made.loss(), users=range(ends[-2]), label="picks")
        followed = np.arange(USERS) % experts
        with made.open(token) as stream:
            for first, last, after in zip([0, *ends], ends[:-1], ends[1:], strict=False):
                rows = Rows.seal(0.5 - table[first:last], users=range(first, last))
                released = stream.append(rows)
                assert released is not None
                followed[last:after] = released.value[0]
        return regret(table, followed)

    return run


def hedge(table: Array, seed: int) -> float:
    """Its expected regret."""
    rate = np.sqrt(8 * np.log(table.shape[1]) / USERS)
    sums = np.vstack([np.zeros(table.shape[1]), table.cumsum(axis=0)[:-1]])
    weights = np.exp(-rate * (sums - sums.min(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    return float((weights * table).sum() - table.sum(axis=0).min())


def uniform(table: Array, seed: int) -> float:
    """Its expected regret."""
    return float(table.mean(axis=1).sum() - table.sum(axis=0).min())


WAYS: dict[str, Callable[[Array, int], float]] = {
    "uniform": uniform,
    "Hedge, no privacy": hedge,
    **{f"PrivateExperts, {name}": private(budget) for name, budget in BUDGETS.items()},
    "plain sums, (1, 1e-6)": plain_sums(BUDGETS["(1, 1e-6)"]),
}


def play(replicate: int, experts: int) -> dict[str, float]:
    """Regret by kind and way."""
    found = {}
    for kind in KINDS:
        table = losses(kind, experts, SEED + replicate)
        for way, run in WAYS.items():
            found[f"{kind}|{way}"] = run(table, SEED + replicate)
    return found


def seconds(experts: int) -> list[float]:
    """CPU seconds: of a start, of all users in one call, and one by one on a durable ledger."""
    table = losses("iid", experts, SEED)
    times = [time.process_time()]
    learner = PrivateExperts(experts).start(_account(PureDP(1), 0))
    times.append(time.process_time())
    done = [0]

    def respond(followed: NDArray[np.int64]) -> Array:
        done[0] += len(followed)
        return table[done[0] - len(followed) : done[0]]

    learner.play(USERS, respond)
    times.append(time.process_time())
    return [*np.diff(times).tolist(), _one_by_one(table)]


def _one_by_one(table: Array) -> float:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.db")
        account = JointAccountant(PureDP(1), users=range(USERS), ledger=ledger)
        learner = PrivateExperts(table.shape[1]).start(account)
        begun = time.process_time()
        for row in table:
            learner.select()
            learner.observe(row)
        return time.process_time() - begun


def table_of(kind: str, found: dict[int, list[dict[str, float]]]) -> Table:
    """A row for each way: mean ± standard error, 95 % quantile and worst."""
    lines = []
    for way in WAYS:
        cells = []
        for runs in found.values():
            each = np.array([run[f"{kind}|{way}"] for run in runs])
            error = each.std(ddof=1) / np.sqrt(len(each))
            high = np.quantile(each, 0.95)
            cells.append(f"{each.mean():.0f} ± {error:.0f}; {high:.0f}; {each.max():.0f}")
        lines.append([way, *cells])
    return Table(f"Regret, {kind}", ["", *(f"N = {n}" for n in found)], lines)


def main() -> None:
    """Prints and writes the tables."""
    options = parser(__doc__, replicates=40).parse_args()
    found, cost = {}, []
    for experts in EXPERTS:
        runs = options.replicates // (FEWER if experts == EXPERTS[-1] else 1)
        tasks = [(r, experts) for r in range(max(runs, 2))]
        found[experts] = in_parallel(play, tasks, options.jobs)
        cost.append([str(experts), *(f"{second:.2f}" for second in seconds(experts))])
    columns = ["N", "start", f"{USERS} users in one call", "one by one, durable ledger"]
    write(
        "experts",
        [*(table_of(kind, found) for kind in KINDS), Table("CPU seconds", columns, cost)],
        {"seed": SEED, "regret": {str(n): runs for n, runs in found.items()}},
        f"{len(found[EXPERTS[0]])} replicates, {len(found[EXPERTS[-1]])} of them at N = "
        f"{EXPERTS[-1]}, seeds from {SEED}; mean ± standard error; 95 % quantile; worst.",
    )


if __name__ == "__main__":
    main()
