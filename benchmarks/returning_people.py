"""Regret in the car market of people who come back, with one guarantee for each person.

    python benchmarks/returning_people.py [--replicates 60] [--others 60] [--jobs 2] [--resume]

2,000 people with 10,000 visits in random order, 100 cars, K = 10, rho = 1 for a person: everybody
comes five times, or as often as a heavy tail has it.  Two relations: all of a person's rows are
replaced and the pattern of visits is public ("replace-one"), or all slots of a person become empty
("zero-out").  Replicate r has market seed and noise seed SEED + r; the learners are as they come.
Rules that are there for comparison only run with the first ``--others`` replicates.  With
``--resume`` what stands in the results is kept, and only what is missing is run.

The rule was chosen on a faster copy of learner and market.  Worse there: independent noise, two
pooled batches or more, weights 1/m and 1/√m of m pooled visits, growth 2.5, first batches of 200;
other shares of the Hessians, exploration, prior precision and clips were no better.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from reporting import RESULTS, Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.serving import Arrival, Respond
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import Items
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.runs.cars import CAR_MARKET_SIDE_INFORMATION, Visits, returning_car_market
from privlearn.runs.references import NonPrivateMNL, RandomAssortments
from privlearn.runs.simulated_choices import Market
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation, Pattern

SEED = 20_000
N_ITEMS, MAX_ITEMS = 100, 10
MARKETS: tuple[Visits, ...] = ("five", "heavy")
RELATIONS = {"replace-one": Adjacency.REPLACE_ONE, "zero-out": Adjacency.ZERO_OUT}
BY_HAND = "first visit only, by hand"
CHUNK = 10
"""Replicates after which results are written."""


class Way(NamedTuple):
    """A way to serve people who come back."""

    rule: dict[str, Any]
    learner: tuple[tuple[str, Any], ...] = ()
    main: bool = False


WAYS = {
    "pooled, first batch (default learner)": Way({"most": 1, "pooled": True}, main=True),
    "first visit only": Way({"most": 1}),
    "pooled, 2 batches": Way({"most": 2, "pooled": True}),
    "once per batch, 2 batches": Way({"most": 2, "per_batch": 1}),
    "once per batch, 5 batches": Way({"most": 5, "per_batch": 1}),
}


class FirstVisitsOnly:
    """Makes every answer of a later visit one that no learner can use: null in its place."""

    def __init__(self, learner: OnePassNewtonMNL, people: Items) -> None:
        self._learner = learner
        self._first = np.zeros(len(people), dtype=bool)
        self._first[np.unique(people, return_index=True)[1]] = True

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
    ) -> None:
        """Serves the next users."""

        def first_only(own: Arrival, shown: Items) -> Items:
            choice = respond(own, shown)
            return np.where(self._first[own.private[:, 1].astype(int)], choice, N_ITEMS)

        self._learner.play(features, first_only, revenues, private)


def learner(market: Market, seed: int, **params: Any) -> OnePassNewtonMNL:
    """As it comes."""
    return OnePassNewtonMNL(
        n_items=N_ITEMS,
        dim=len(market.theta),
        max_items=MAX_ITEMS,
        random_state=seed,
        **params,
    )


def accountant(
    market: Market, seed: int, rho: str, relation: str, people: People | None = None
) -> JointAccountant[ZCDP]:
    """Of one run."""
    return JointAccountant(
        ZCDP(rho),
        users=range(market.horizon),
        adjacency=RELATIONS[relation],
        noise=NoiseSource.simulation(seed),
        side_information=CAR_MARKET_SIDE_INFORMATION,
        people=people,
    )


def under_rule(market: Market, seed: int, relation: str, way: Way) -> float:
    """Regret with a registry of people."""
    pattern: Pattern = "public" if relation == "replace-one" else "private"
    people = People.memory(Participation(**way.rule, pattern=pattern))
    account = accountant(market, seed, "1", relation, people)
    player = learner(market, seed, **dict(way.learner)).start(account)
    return float(market.serve_people(player).sum())


def by_hand(market: Market, seed: int, relation: str) -> float:
    """Regret if a person is an index and all visits but the first are nulled beforehand."""
    assert market.people is not None
    player = learner(market, seed).start(accountant(market, seed, "1", relation))
    return float(market.serve(FirstVisitsOnly(player, market.people)).sum())


def as_group(market: Market, seed: int, relation: str) -> float:
    """Regret if all visits are learned and a person is a group of as many as anybody has."""
    assert market.people is not None
    most = int(np.bincount(market.people).max())
    account = accountant(market, seed, f"1/{most**2}", relation)
    return float(market.serve(learner(market, seed).start(account)).sum())


def ways(others: bool) -> dict[str, Callable[[Market, int], float]]:
    """What to run, by relation and name."""
    found: dict[str, Callable[[Market, int], float]] = {}
    for relation in RELATIONS:
        found[f"{relation}|{BY_HAND}"] = partial(by_hand, relation=relation)
        for name, way in WAYS.items():
            if way.main or (others and relation == "replace-one"):
                run = partial(under_rule, relation=relation, way=way)
                found[f"{relation}|{name}"] = run
    if others:
        found["replace-one|every visit, as a group"] = partial(as_group, relation="replace-one")
        found["replace-one|without privacy"] = without_privacy
        found["replace-one|random"] = at_random
    return found


def without_privacy(market: Market, seed: int) -> float:
    """Regret of refits on everything."""
    free = NonPrivateMNL(
        horizon=market.horizon,
        dim=len(market.theta),
        max_items=MAX_ITEMS,
        random_state=seed,
    )
    return float(market.serve(free).sum())


def at_random(market: Market, seed: int) -> float:
    """Regret of random items."""
    coins = RandomAssortments(max_items=MAX_ITEMS, random_state=seed)
    return float(market.serve(coins).sum())


def play(replicate: int, others: bool, known: dict[str, float]) -> dict[str, float]:
    """Regret of every way in both markets, under both relations, but for what is known."""
    seed, found = SEED + replicate, dict(known)
    for visits in MARKETS:
        missing = {k: run for k, run in ways(others).items() if f"{visits}|{k}" not in known}
        if missing:
            market = returning_car_market(seed, visits=visits)
            for key, run in missing.items():
                found[f"{visits}|{key}"] = run(market, seed)
    return found


def earlier() -> list[dict[str, float]]:
    """What stands in the results."""
    text = (RESULTS / "returning_people.json").read_text(encoding="utf-8")
    known: list[dict[str, float]] = json.loads(text)["regret"]
    return known


def table(relation: str, found: list[dict[str, float]]) -> Table:
    """Means, and gains over the first visit by hand with the same seeds."""
    names = list(dict.fromkeys(key.split("|")[2] for f in found for key in f if relation in key))
    rows = []
    for name in names:
        row = [name]
        for visits in MARKETS:
            key, base = f"{visits}|{relation}|{name}", f"{visits}|{relation}|{BY_HAND}"
            values = [f[key] for f in found if key in f]
            gains = [f[base] - f[key] for f in found if key in f]
            row += [str(summary(values)), "" if name == BY_HAND else str(summary(gains))]
        rows.append([*row, str(len(values))])
    header = [relation, "five visits", "gain", "heavy tail", "gain", "replicates"]
    return Table(f"Regret under person-level rho = 1, {relation}", header, rows)


def main() -> None:
    """Prints and writes the tables, after every few replicates."""
    arguments = parser(__doc__, replicates=60)
    arguments.add_argument("--others", type=int, default=60, help="replicates of all ways")
    arguments.add_argument("--resume", action="store_true", help="run what is missing")
    options = arguments.parse_args()
    known = earlier() if options.resume else []
    known += [{} for _ in range(options.replicates - len(known))]
    for start in range(0, options.replicates, CHUNK):
        stop = min(start + CHUNK, options.replicates)
        tasks = [(r, r < options.others, known[r]) for r in range(start, stop)]
        known[start:stop] = in_parallel(play, tasks, options.jobs)
        done = [found for found in known if found]
        write(
            "returning_people",
            [table(relation, done) for relation in RELATIONS],
            {"seed": SEED, "regret": done},
            f"{len(done)} replicates, seeds from {SEED}; mean ± standard error; gains over "
            f"'{BY_HAND}' are paired.",
        )


if __name__ == "__main__":
    main()
