"""Which of ten films to show?  Slates of real ratings: MovieLens-100k, the copy of recbole 1.2.1.

    pip install --no-deps recbole==1.2.1
    python benchmarks/movielens_slates.py [--replicates 40] [--jobs 2]

Of each of the 943 people the first half of the ratings, by time, is the person's own history; the
others, in random order, are cut into visits of ten films.  One is shown, and the reward is 1 if its
rating is 4 or 5.  The ratings of all ten are known: nothing is replayed or imputed.  4,635 visits,
36 at most of a person, in random order; replicate r has order, coins and noise of SEED + r.

Features are of the film and of the person's own history; what other people rated enters none of
them.  Their scales, the genres and the middle of the years are declared, not taken from the data.

The guarantee is for a visit, of a person who comes once.  For a person, under a rule of
participation, all learned visits are null ("zero-out").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from real_logs import Codes, Films, films, movielens, ratings
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant, in_gaussian
from privlearn.learners import OnePassNewtonGLM
from privlearn.learners.served_actions import Slate
from privlearn.learners.serving import Arrival
from privlearn.losses.budgets import ApproxDP
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.runs.references import NonPrivateMNL
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

SEED = 8200
SLATE, LIKED = 10, 4
MIDDLE, SPAN = 1985, 15
"""Of the years of films, clipped to [-1, 1] after that."""
DIMS = (24, 5)
EPSILONS = {"no noise": 500, "ε = 3": 3, "1": 1}
TARGETS = {"24|ε = 3": 0.634, "24|1": 0.615, "5|ε = 3": 0.634, "5|1": 0.622}


class Visits(NamedTuple):
    """Slates of `SLATE` films that one person rated, in order of visits."""

    features: Array
    """Shape (n, `SLATE`, d), before the clip into the unit ball."""
    liked: Array
    """0 or 1, shape (n, `SLATE`)."""
    people: Codes
    years: Array
    """Of the films, shape (n, `SLATE`)."""
    ratings: Codes
    """How many histories a film is in, shape (n, `SLATE`)."""


def visits(seed: int) -> Visits:
    """All visits in random order, with all 24 features; the last 5 are those without genres."""
    rng = np.random.default_rng(seed)
    given, every = ratings(movielens()), films(movielens())
    of_film = np.searchsorted(every.numbers, given.films)
    order = np.lexsort((given.times, given.people))
    ends = np.flatnonzero(np.diff(given.people[order])) + 1
    known = np.zeros(len(every.numbers), dtype=np.int64)
    parts = []
    for mine in np.split(order, ends):
        history, later = np.split(mine, [len(mine) // 2])
        known[of_film[history]] += 1
        cut = rng.permutation(later)[: len(later) // SLATE * SLATE].reshape(-1, SLATE)
        liked = (given.stars >= LIKED).astype(float)
        own = features(every, of_film[history], liked[history], of_film[cut])
        parts.append((own, liked[cut], given.people[cut[:, 0]], of_film[cut]))
    x, liked, people, shown = (np.concatenate(part) for part in zip(*parts, strict=True))
    at = rng.permutation(len(x))
    shown = shown[at]
    return Visits(x[at], liked[at], people[at], every.years[shown], known[shown])


def features(every: Films, seen: Codes, liked: Array, shown: Codes) -> Array:
    """Of films for a person with a history: nothing of other people enters.

    Genres, then a constant, the year, how much the person likes the film's genres and years, and
    films in all, each a sum of deviations over (count + 3).  Returns shape (..., 24).
    """
    years = np.clip((every.years - MIDDLE) / SPAN, -1, 1)
    rate = liked.mean()
    of_genre = (liked - rate) @ every.genres[seen] / (every.genres[seen].sum(axis=0) + 3)
    of_year = (liked - rate) @ years[seen] / (len(seen) + 3)
    genres = every.genres[shown]
    genres = genres / np.sqrt(np.maximum(genres.sum(axis=-1, keepdims=True), 1))
    year, affinity = years[shown], genres @ of_genre
    same = np.ones(shown.shape)
    columns = (0.3 * same, 0.5 * year, 1.5 * affinity, of_year * year, (rate - 0.5) * same)
    return np.concatenate([0.5 * genres, np.stack(columns, axis=-1)], axis=-1)


def picked(scores: Array, liked: Array) -> float:
    """Like rate of the films with the largest scores."""
    return float(np.take_along_axis(liked, scores.argmax(axis=1)[:, None], axis=1).mean())


def rules(own: Visits, seed: int) -> dict[str, float]:
    """Like rates without privacy; what is fitted is fitted in hindsight, but by the bandit."""
    from sklearn.linear_model import LogisticRegression

    dim = own.features.shape[2]
    x, y = own.features.reshape(-1, dim), own.liked.ravel()
    fit = LogisticRegression(C=1000, fit_intercept=False).fit(x, y)
    signed = np.concatenate([own.features, -own.features], axis=-1)
    single = [picked(signed[..., j], own.liked) for j in range(2 * dim)]
    return {
        "random": float(y.mean()),
        "most popular": picked(own.ratings.astype(float), own.liked),
        "own genres": picked(own.features[..., -3], own.liked),
        "oldest film": picked(-own.years, own.liked),
        "best single feature, in hindsight": max(single),
        "logistic, in hindsight": picked(own.features @ fit.coef_[0], own.liked),
        "logistic bandit, not private": without_privacy(own, seed),
        "oracle": float(own.liked.max(axis=1).mean()),
    }


class Way(NamedTuple):
    """Who comes, and what a person is."""

    rule: Participation | None = None
    visits: int | None = None
    """So many, drawn again from all; default each once."""
    first: bool = False
    """Whether only everybody's first visit is there."""


WAYS = {
    "a visit": Way(),
    "a visit, 20,000 of them, drawn again": Way(visits=20_000),
    "one visit of everybody (943)": Way(first=True),
    "a person, first visit learned": Way(Participation(most=1)),
    "a person, all visits in the first block learned": Way(Participation(most=1, pooled=True)),
    "a person, 4 visits learned": Way(Participation(most=4)),
    "a person, all visits learned": Way(Participation(most=36)),
}


def who_comes(own: Visits, way: Way, seed: int) -> Codes:
    """Numbers of visits, in order."""
    if way.first:
        return np.sort(np.unique(own.people, return_index=True)[1])
    if way.visits is not None:
        return np.random.default_rng(seed).integers(len(own.people), size=way.visits)
    return np.arange(len(own.people))


def like_rate(own: Visits, way: Way, epsilon: float, seed: int) -> float:
    """Share of visits whose film was liked, in one run of the learner as it comes."""
    order = who_comes(own, way, seed)
    heard: list[Array] = []

    def respond(slate: Slate, actions: NDArray[np.int64]) -> Array:
        heard.append(np.take_along_axis(slate.private, actions[:, None], axis=1)[:, 0])
        return heard[-1]

    people = None if way.rule is None else People.memory(way.rule)
    with JointAccountant(
        in_gaussian(ApproxDP(epsilon, "1e-6")),
        users=range(len(order)),
        adjacency=Adjacency.REPLACE_ONE if way.rule is None else Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(seed),
        people=people,
    ) as accountant:
        dim = own.features.shape[2]
        learner = OnePassNewtonGLM(SLATE, dim, random_state=seed).start(accountant)
        ids = None if way.rule is None else own.people[order].tolist()
        learner.play(own.features[order], respond, private=own.liked[order], people=ids)
    return float(np.concatenate(heard).mean())


def without_privacy(own: Visits, seed: int) -> float:
    """Like rate of a logistic bandit that refits on all rewards at the end of every block."""
    heard: list[Array] = []

    def respond(arrival: Arrival, shown: Items) -> Items:
        liked = np.take_along_axis(arrival.private, shown[:, :1], axis=1)[:, 0]
        heard.append(liked)
        return np.where(liked > 0, shown[:, 0], NO_ITEM)

    n, _, dim = own.features.shape
    bandit = NonPrivateMNL(
        horizon=n, dim=dim, max_items=1, prior_precision=1, exploration=1, random_state=seed
    )
    bandit.play(own.features, respond, private=own.liked)
    return float(np.concatenate(heard).mean())


def run(seed: int) -> dict[str, float]:
    """Like rates by d and rule, or d, whom the guarantee is for, and budget."""
    own = visits(seed)
    once = who_comes(own, Way(first=True), seed)
    found = {
        "random": float(own.liked[once].mean()),
        "oldest film": picked(-own.years[once], own.liked[once]),
    }
    for dim in DIMS:
        of_dim = own._replace(features=own.features[..., -dim:])
        found |= {f"{dim}|{rule}": rate for rule, rate in rules(of_dim, seed).items()}
        for name, way in WAYS.items():
            for budget, epsilon in EPSILONS.items():
                found[f"{dim}|{name}|{budget}"] = like_rate(of_dim, way, epsilon, seed)
    return found


def main() -> None:
    """Runs all and writes the tables."""
    chosen = parser(__doc__, replicates=40).parse_args()
    seeds = [SEED + r for r in range(chosen.replicates)]
    found = in_parallel(run, [(seed,) for seed in seeds], chosen.jobs)
    names = [key.removeprefix("24|") for key in found[0] if key.startswith("24|")]
    others = [
        [name, *(_cell([one[f"{d}|{name}"] for one in found]) for d in DIMS)]
        for name in names
        if "|" not in name
    ]
    rows = []
    for d in DIMS:
        for way in WAYS:
            values = ([one[f"{d}|{way}|{e}"] for one in found] for e in EPSILONS)
            rows.append([f"d = {d}: {way}", *map(_cell, values)])
            if way == "a visit":
                targets = [TARGETS.get(f"{d}|{e}") for e in EPSILONS]
                rows.append(["target", *(f"{t:.3f}" if t else "" for t in targets)])
    write(
        "movielens_slates",
        [
            Table("like rate without privacy", ["", *(f"d = {d}" for d in DIMS)], others),
            Table("like rate of OnePassNewtonGLM", ["the guarantee is for", *EPSILONS], rows),
        ],
        {"like rate": found},
        f"Seeds {SEED} and on, {len(seeds)} runs: mean ± standard error, (worst). δ = 10⁻⁶; no "
        "noise: ε = 500. “Most popular” counts the histories that a film is in, of all people, and "
        "so is not private; no learner is told it. The learner at ε = 1, d = 24 less “the oldest "
        f"film”, on the same visits: {_difference(found)}. One visit of everybody: random films "
        f"{summary(one['random'] for one in found).mean:.3f}, the oldest film "
        f"{summary(one['oldest film'] for one in found).mean:.3f}.",
    )


def _difference(found: list[dict[str, float]]) -> str:
    apart = summary(one["24|a visit|1"] - one["24|oldest film"] for one in found)
    return f"{apart.mean:+.4f} ± {apart.se:.4f}"


def _cell(values: list[float]) -> str:
    found = summary(values)
    return f"{found.mean:.4f} ± {found.se:.4f} ({min(values):.3f})"


if __name__ == "__main__":
    main()
