"""Regret of private bandits whose contexts are correlated: d = 50, K = 2, T = 10,000, (1, 1/T)-DP.

    python benchmarks/correlated_bandits.py [--seeds 20] [--jobs 2]

θ_a is 1/5 on five coordinates; contexts are normal, scaled to largest entry 1.  Seed s draws users
and noise, the same users for all.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import JointAccountant
from privlearn.learners.hdb import DPHDB
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.losses.budgets import GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs.simulated_arms import ArmMarket

FIRST_SEED = 7300
HORIZON, DIM, ARMS, ENTRIES, NOISE = 10_000, 50, 2, 5, 0.05
CONTEXTS = {
    "independent": ("neighbours", 0.0),
    "neighbours correlated 0.5": ("neighbours", 0.5),
    "neighbours correlated 0.9": ("neighbours", 0.9),
    "all pairs correlated 0.5": ("pairs", 0.5),
    "all pairs correlated 0.9": ("pairs", 0.9),
}
PLAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DP-HDB": (DPHDB, {}),
    "DP-HDB, curvature × 4": (DPHDB, {"curvature": 4 / (2 * math.log(DIM))}),
    "private least squares": (PrivateLeastSquares, {}),
}


def contexts(kind: str, rho: float, rng: np.random.Generator) -> Array:
    """Shape (T, d), in [−1, 1]."""
    values = rng.standard_normal((HORIZON, DIM))
    if kind == "pairs":
        common = rng.standard_normal((HORIZON, 1))
        values = math.sqrt(rho) * common + math.sqrt(1 - rho) * values
    else:
        for column in range(1, DIM):
            values[:, column] *= math.sqrt(1 - rho**2)
            values[:, column] += rho * values[:, column - 1]
    return np.asarray(values / np.abs(values).max(axis=1, keepdims=True))


def market(name: str, seed: int) -> ArmMarket:
    """Users of one replicate."""
    rng = np.random.default_rng([seed, list(CONTEXTS).index(name)])
    theta = np.zeros((ARMS, DIM))
    for arm in range(ARMS):
        theta[arm, rng.choice(DIM, ENTRIES, replace=False)] = 1 / ENTRIES
    own = contexts(*CONTEXTS[name], rng)
    means = own @ theta.T
    return ArmMarket(own, means + NOISE * rng.standard_normal(means.shape), means)


def regret(player: str, name: str, seed: int) -> float:
    """Total regret of one run."""
    budget = GaussianDP.from_mu_squared(gaussian_mu_squared(1.0, 1 / HORIZON))
    kind, options = PLAYERS[player]
    with JointAccountant(
        budget, users=range(HORIZON), noise=NoiseSource.simulation(seed)
    ) as accountant:
        learner = kind(n_arms=ARMS, dim=DIM, **options).start(accountant)
        return float(market(name, seed).serve(learner).sum())


def told(values: list[float]) -> str:
    """Mean ± standard deviation, 95% quantile and largest."""
    most = f"{np.quantile(values, 0.95):.0f}; {max(values):.0f}"
    return f"{np.mean(values):.0f} ± {np.std(values, ddof=1):.0f} ({most})"


def main() -> None:
    """Runs all and writes the table."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=20)
    chosen = options.parse_args()
    seeds, begin = [FIRST_SEED + s for s in range(chosen.seeds)], time.perf_counter()
    tasks = [(player, name, seed) for name in CONTEXTS for player in PLAYERS for seed in seeds]
    found = iter(in_parallel(regret, tasks, chosen.jobs))
    totals = {name: {p: [next(found) for _ in seeds] for p in PLAYERS} for name in CONTEXTS}
    rows = [
        [name, *(told(values) for values in by_player.values())]
        for name, by_player in totals.items()
    ]
    table = Table(f"regret, {len(seeds)} seeds", ["contexts", *PLAYERS], rows)
    numbers = {"seconds": round(time.perf_counter() - begin, 1), "regret": totals}
    note = f"Seeds {FIRST_SEED} and on. Means ± standard deviations (95% quantile; largest)."
    write("correlated_bandits", [table], numbers, note)


if __name__ == "__main__":
    main()
