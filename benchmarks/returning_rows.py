"""Linear models from rows of people who come back, with one guarantee for each person.

    python benchmarks/returning_rows.py [--replicates 20] [--jobs 2]

400 persons, 10 columns in [-1, 1], labels x·θ + N(0, 0.2²), rho = 0.3 for a person, whose rows all
become empty ("zero-out").  Everybody has ten rows, or as many as a heavy tail has it (Pareto with
exponent 1.1, 200 at most), in random order.  ‖θ̂ − θ‖² of the final model, times 1000; that of θ = 0
is 1000.  The learners are as they come; replicate r has data and noise seed SEED + r.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import CentralAccountant
from privlearn.learners import DPPOFW, DPTOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.learners.tofw import Method
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

SEED = 30_000
PERSONS, DIM, RADIUS, RHO = 400, 10, 1.5, "0.3"
VISITS = {"ten rows": 10, "heavy tail": 200}
"""The most rows of a person."""


def _tofw(method: Method) -> Callable[[], StreamLearner]:
    bound, usual = float(np.sqrt(DIM)), float(np.sqrt(DIM / 3))
    return lambda: DPTOFW(DIM, radius=RADIUS, method=method, feature_bound=bound, usual_norm=usual)


METHODS: dict[str, Callable[[], StreamLearner]] = {
    "whitened": _tofw("whitened"),
    "buffered": _tofw("buffered"),
    "plain": _tofw("plain"),
    "pofw": lambda: DPPOFW(LpBall(DIM, 1, RADIUS)),
}
RULES = {
    "every row, as a group": Participation(max(VISITS.values())),
    "10 rows, as a group": Participation(10),
    "first row": Participation(1),
    "once per epoch, 2 epochs": Participation(2, per_batch=1),
    "pooled, first epoch": Participation(1, pooled=True),
    "pooled, 2 epochs": Participation(2, pooled=True),
    "pooled, 4 epochs": Participation(4, pooled=True),
    "10 rows, 200 apart": Participation(10, apart=200),
}


class Rows(NamedTuple):
    """Of everybody, in order of arrival."""

    people: Array
    x: Array
    y: Array
    theta: Array


def rows(seed: int, visits: str) -> Rows:
    """Features of norm at most 1."""
    rng = np.random.default_rng(seed)
    each = np.full(PERSONS, VISITS[visits])
    if visits == "heavy tail":
        each = np.minimum(rng.pareto(1.1, PERSONS) + 1, VISITS[visits]).astype(int)
    people = rng.permutation(np.repeat(np.arange(PERSONS), each))
    theta = rng.normal(size=DIM)
    theta /= np.abs(theta).sum()
    x = rng.uniform(-1, 1, size=(len(people), DIM))
    y = np.clip(x @ theta + rng.normal(size=len(people)) * 0.2, -1, 1)
    return Rows(people, x, y, theta)


def error(method: str, rule: Participation, data: Rows, seed: int) -> float:
    """Relative squared error, times 1000."""
    account = CentralAccountant(
        ZCDP(RHO),
        users=range(len(data.y)),
        noise=NoiseSource.simulation(seed),
        people=People.memory(rule),
    )
    learner = METHODS[method]().start(account)
    learner.partial_fit(data.x, data.y, people=data.people)
    return float(1000 * ((learner.coef_ - data.theta) ** 2).sum() / (data.theta**2).sum())


def fit(replicate: int) -> dict[str, float]:
    """Errors by visits, method and rule."""
    found = {}
    for visits in VISITS:
        data = rows(SEED + replicate, visits)
        for method in METHODS:
            for name, rule in RULES.items():
                if not (rule.batched and method == "plain"):
                    found[f"{visits}|{method}|{name}"] = error(method, rule, data, SEED + replicate)
    return found


def table(visits: str, found: list[dict[str, float]]) -> Table:
    """A row for each rule."""
    lines = []
    for name in RULES:
        keys = [f"{visits}|{method}|{name}" for method in METHODS]
        lines.append(
            [
                name,
                *(str(summary(f[key] for f in found)) if key in found[0] else "" for key in keys),
            ]
        )
    return Table(f"Squared error x 1000, {visits}", ["rule", *METHODS], lines)


def main() -> None:
    """Prints and writes the tables."""
    options = parser(__doc__, replicates=20).parse_args()
    found = in_parallel(fit, [(r,) for r in range(options.replicates)], options.jobs)
    write(
        "returning_rows",
        [table(visits, found) for visits in VISITS],
        {"seed": SEED, "error": found},
        f"{len(found)} replicates, seeds from {SEED}; mean ± standard error.",
    )


if __name__ == "__main__":
    main()
