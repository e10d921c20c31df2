"""Rules of participation compared for DPMNL and DP-HDB, whose users come back.

    python benchmarks/returning_others.py [--replicates 10] [--jobs 2]

10,000 visits of 2,000 people, five each or heavy-tailed, rho = 1 for a person under zero-out.
DPMNL serves the car market (`returning_people.py`), DP-HDB the sparse bandit of `hdb.py` (a new
context at every visit).  Replicate r has seed SEED + r; learners are as they come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import DPHDB, DPMNL
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.runs.cars import Visits, returning_car_market
from privlearn.runs.simulated_arms import BLOCK, sparse_market
from privlearn.runs.simulated_visits import equally_often, heavy_tailed
from privlearn.values.participation import Participation

SEED = 30_000
PERSONS, HORIZON = 2_000, 10_000
MARKETS: tuple[Visits, ...] = ("five", "heavy")
RULES: dict[str, dict[str, Participation]] = {
    "DPMNL": {
        "first visit only": Participation(1),
        "once between fits, 2": Participation(2, per_batch=1),
        "first 2 visits": Participation(2),
    },
    "DP-HDB": {
        "first visit only": Participation(1),
        "pooled, first epoch": Participation(1, pooled=True),
        "pooled, 2 epochs": Participation(2, pooled=True),
        "once per epoch, 2": Participation(2, per_batch=1),
        "once per epoch, 5": Participation(5, per_batch=1),
    },
}


def accountant(rule: Participation, seed: int) -> JointAccountant[ZCDP]:
    """Of one run."""
    return JointAccountant(
        ZCDP("1"),
        users=range(HORIZON),
        noise=NoiseSource.simulation(seed),
        people=People.memory(rule),
    )


def assortments(rule: Participation, visits: Visits, seed: int) -> float:
    """Regret of DPMNL."""
    market = returning_car_market(seed, visits=visits, persons=PERSONS)
    learner = DPMNL(n_items=100, dim=len(market.theta), max_items=10, random_state=seed)
    return float(market.serve_people(learner.start(accountant(rule, seed))).sum())


def arms(rule: Participation, visits: Visits, seed: int) -> float:
    """Regret of DP-HDB."""
    market, rng = sparse_market(seed, horizon=HORIZON), np.random.default_rng([seed, 1])
    five = visits == "five"
    who = equally_often(PERSONS, 5, rng) if five else heavy_tailed(PERSONS, HORIZON, rng)
    learner = DPHDB(n_arms=market.n_arms, dim=market.dim).start(accountant(rule, seed))
    market.pulled = np.full(HORIZON, -1, dtype=np.int64)
    for start in range(0, HORIZON, BLOCK):
        users = np.arange(start, start + BLOCK)
        private = users[:, None].astype(np.float64)
        learner.play(market.contexts[users], market.respond, private, people=who[users].tolist())
    return float(market.regrets().sum())


def play(replicate: int) -> dict[str, float]:
    """Regret of everything."""
    seed, found = SEED + replicate, {}
    for learner, rules in RULES.items():
        run: Any = assortments if learner == "DPMNL" else arms
        for name, rule in rules.items():
            for visits in MARKETS:
                found[f"{learner}|{name}|{visits}"] = run(rule, visits, seed)
    return found


def main() -> None:
    """Prints and writes the tables."""
    options = parser(__doc__, replicates=10).parse_args()
    found = in_parallel(play, [(r,) for r in range(options.replicates)], options.jobs)
    tables = []
    for learner, rules in RULES.items():
        rows = []
        for name in rules:
            row = [name]
            for visits in MARKETS:
                values = np.array([f[f"{learner}|{name}|{visits}"] for f in found])
                base = np.array([f[f"{learner}|first visit only|{visits}"] for f in found])
                gain = "" if name == "first visit only" else str(summary(base - values))
                row += [str(summary(values)), gain]
            rows.append(row)
        header = [learner, "five visits", "gain", "heavy tail", "gain"]
        tables.append(Table(f"Regret of {learner} under person-level rho = 1", header, rows))
    write(
        "returning_others",
        tables,
        {"seed": SEED, "regret": found},
        f"{options.replicates} replicates, seeds from {SEED}; mean ± standard error; gains over "
        "first visits are paired.",
    )


if __name__ == "__main__":
    main()
