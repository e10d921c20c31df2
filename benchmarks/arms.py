"""Regret and cost of arms without features: `PrivateArms`, policies of other libraries, rivals.

    python benchmarks/arms.py [--only PART] [--runs 200] [--jobs 2]

Parts: grid, long, cells, drift, held, rivals, cost.

T = 10,000 visitors, rewards 0 or 1, the best arm .6 and the others below it by gaps that are
uniform on [.05, .3], in random order; noise is exact.  "held" needs mabwiser==2.7.4 and river.
Run s has arms, rewards and noise of seed FIRST_SEED + s.
"""

from __future__ import annotations

import cProfile
import math
import pstats
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import arm_rivals as rivals
import numpy as np
from numpy.typing import NDArray
from reporting import Table, in_parallel, parser, write
from scipy.stats import ks_2samp

from privlearn.accountants import JointAccountant
from privlearn.learners import HeldPolicy, PrivateArms
from privlearn.learners.phases import PhaseLearner
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.losses.conversion import zcdp_rho
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

FIRST_SEED = 8300
HORIZON, LONG = 10_000, 100_000
BUDGETS: dict[str, Currency] = {
    "no noise": PureDP(500),
    "ε = 3": PureDP(3),
    "1": PureDP(1),
    "0.3": PureDP("0.3"),
    "0.1": PureDP("0.1"),
    "(1, 10⁻⁶)": ZCDP(zcdp_rho(1.0, 1e-6)),
}
ARMS = (3, 10, 50)
TARGETS = {(3, "1"): 52, (10, "1"): 240, (50, "1"): 1080}
TARGETS |= {(3, "0.3"): 115, (10, "0.3"): 475, (50, "0.3"): 1500}
FEWER = {50: 4}
"""Of so many arms, a fourth of the runs."""


def usual(n_arms: int, rng: np.random.Generator) -> Array:
    """Means of the arms of one run, shape (K,)."""
    return rng.permutation(0.6 - np.append(0, rng.uniform(0.05, 0.3, n_arms - 1)))


def fixed(*means: float) -> Callable[[np.random.Generator], Array]:
    """These means in random order."""
    return lambda rng: rng.permutation(np.array(means))


CELLS: dict[str, Callable[[np.random.Generator], Array]] = {
    "clicks: .02, nine of .01": fixed(0.02, *[0.01] * 9),
    "near 0: .05, .03, .03": fixed(0.05, 0.03, 0.03),
    "near 1: .97, .95, .95": fixed(0.97, 0.95, 0.95),
    "small gap: .5, .48, .48": fixed(0.5, 0.48, 0.48),
    "far: .9, nine of .1": fixed(0.9, *[0.1] * 9),
    "ten of U[0, 1]": lambda rng: rng.random(10),
    "one of 50: .6, others .5": fixed(0.6, *[0.5] * 49),
}


class Crowd:
    """Visitors of one run, and the regret of what they were shown.

    Args:
        means: of the arms, shape (K,).
        later: their means from T/2 on, if others.
    """

    def __init__(self, means: Array, rng: np.random.Generator, later: Array | None = None) -> None:
        self._means = np.stack([means, means if later is None else later])
        self._rng, self._shown, self.regret = rng, 0, 0.0

    def respond(self, arms: NDArray[np.int64]) -> Array:
        """Rewards of the next visitors."""
        visitors = np.arange(self._shown, self._shown + len(arms))
        means = self._means[(visitors >= HORIZON // 2).astype(int), arms]
        best = self._means.max(axis=1)[(visitors >= HORIZON // 2).astype(int)]
        self._shown += len(arms)
        self.regret += float((best - means).sum())
        return np.asarray(self._rng.random(len(arms)) < means, dtype=float)


def regret(
    learner: PhaseLearner, budget: Currency, crowd: Crowd, seed: int, horizon: int = HORIZON
) -> float:
    """Total regret of one run."""
    source = NoiseSource.simulation(seed)
    with JointAccountant(budget, users=range(horizon), noise=source) as accountant:
        learner.start(accountant).play(horizon, crowd.respond)
    return crowd.regret


def usual_regret(n_arms: int, budget: str, seed: int, drift: bool = False, **options: Any) -> float:
    """That of `PrivateArms` in a usual run."""
    rng = np.random.default_rng([seed, n_arms])
    means, later = usual(n_arms, rng), usual(n_arms, rng) if drift else None
    crowd = Crowd(means, rng, later)
    return regret(PrivateArms(n_arms, **options), BUDGETS[budget], crowd, seed)


def long_regret(budget: str, seed: int) -> float:
    """That of `PrivateArms` with ten arms and ten times as many visitors."""
    rng = np.random.default_rng([seed, LONG])
    crowd = Crowd(usual(10, rng), rng)
    return regret(PrivateArms(10), BUDGETS[budget], crowd, seed, LONG)


def cell_regret(cell: str, budget: str, seed: int) -> float:
    """That of `PrivateArms` with other means."""
    rng = np.random.default_rng([seed, list(CELLS).index(cell)])
    means = CELLS[cell](rng)
    return regret(PrivateArms(len(means)), BUDGETS[budget], Crowd(means, rng), seed)


# Policies of other libraries ---------------------------------------------------------------------

HELD_ARMS = 5


def policy(name: str, seed: int) -> Any:
    """A policy of MABWiser or river."""
    from mabwiser.mab import MAB, LearningPolicy
    from river import bandit

    made: dict[str, Callable[[], Any]] = {
        "MABWiser EpsilonGreedy(.1)": lambda: LearningPolicy.EpsilonGreedy(0.1),
        "MABWiser UCB1(.5)": lambda: LearningPolicy.UCB1(0.5),
        "MABWiser Softmax(.1)": lambda: LearningPolicy.Softmax(0.1),
        "river UCB(.3)": lambda: bandit.UCB(delta=0.3, seed=seed),
        "river Exp3(.1)": lambda: bandit.Exp3(gamma=0.1, seed=seed),
    }
    if name.startswith("MABWiser"):
        return MAB(list(range(HELD_ARMS)), made[name](), seed=seed)
    return made[name]()


POLICIES = (
    "MABWiser EpsilonGreedy(.1)",
    "MABWiser UCB1(.5)",
    "MABWiser Softmax(.1)",
    "river UCB(.3)",
    "river Exp3(.1)",
)
HELD_BUDGETS = {"1": 1.0, "0.3": 0.3}


def held_regret(name: str, budget: str, factor: float, seed: int) -> float:
    """That of a policy that holds an arm for ``factor`` times the default."""
    rng = np.random.default_rng([seed, HELD_ARMS])
    crowd = Crowd(usual(HELD_ARMS, rng), rng)
    epsilon = HELD_BUDGETS[budget]
    hold = max(1, round(factor * math.ceil(2 / epsilon)))
    learner = HeldPolicy(policy(name, seed), n_arms=HELD_ARMS, hold=hold)
    return regret(learner, PureDP(epsilon), crowd, seed)


# Tables ------------------------------------------------------------------------------------------


def told(values: list[float]) -> str:
    """Mean ± standard error; 95% point; worst."""
    mean, high = np.mean(values), np.quantile(values, 0.95)
    return f"{mean:.0f} ± {_se(values):.1f}; {high:.0f}; {max(values):.0f}"


def _short(values: list[float]) -> str:
    return f"{np.mean(values):.0f} ± {_se(values):.0f}"


def _se(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def seeds(runs: int, n_arms: int = 3) -> list[int]:
    """Of a setting with so many arms."""
    return [FIRST_SEED + s for s in range(max(runs // FEWER.get(n_arms, 1), 2))]


class Part(NamedTuple):
    """A table and the numbers behind it."""

    table: Table
    numbers: dict[str, Any]


def tabled(title: str, header: list[str], found: dict[str, dict[str, list[float]]]) -> Part:
    """A row for each name."""
    rows = [[name, *(told(values) for values in by.values())] for name, by in found.items()]
    return Part(Table(f"{title}: mean ± se; 95% point; worst", header, rows), {title: found})


def grid(runs: int, jobs: int) -> list[Part]:
    """`PrivateArms` at its defaults."""
    settings = [(k, budget) for k in ARMS for budget in BUDGETS]
    tasks = [(k, budget, s) for k, budget in settings for s in seeds(runs, k)]
    results = iter(in_parallel(usual_regret, tasks, jobs))
    found = {
        f"K = {k}": {b: [next(results) for _ in seeds(runs, k)] for b in BUDGETS} for k in ARMS
    }
    targets = []
    for (k, budget), target in TARGETS.items():
        values = found[f"K = {k}"][budget]
        mean, se = np.mean(values), _se(values)
        above = sum(value > 4 * mean for value in values)
        verdict = "met" if mean <= target else "within 2 se" if mean - 2 * se <= target else "NOT"
        row = [f"K = {k}, ε = {budget}", f"{mean:.1f} ± {se:.1f}", f"{target}", verdict]
        targets.append([*row, f"{above} of {len(values)}"])
    header = ["", "regret", "target", "", "runs above 4 × mean"]
    verdicts = Part(Table("targets", header, targets), {})
    return [tabled("PrivateArms, T = 10,000", ["", *BUDGETS], found), verdicts]


def long(runs: int, jobs: int) -> list[Part]:
    """T = 100,000."""
    few = seeds(runs // 4)
    results = iter(in_parallel(long_regret, [(b, s) for b in BUDGETS for s in few], jobs))
    found = {"K = 10": {b: [next(results) for _ in few] for b in BUDGETS}}
    return [tabled("PrivateArms, T = 100,000", ["", *BUDGETS], found)]


def cells(runs: int, jobs: int) -> list[Part]:
    """Other means."""
    budgets = ("no noise", "1", "0.3")
    few = seeds(runs // 4)
    tasks = [(cell, budget, s) for cell in CELLS for budget in budgets for s in few]
    results = iter(in_parallel(cell_regret, tasks, jobs))
    found = {cell: {b: [next(results) for _ in few] for b in budgets} for cell in CELLS}
    table, numbers = tabled("PrivateArms, other means", ["", *budgets], found)
    rows = []
    for row, cell in zip(table.rows, CELLS.values(), strict=True):
        means = np.stack([cell(np.random.default_rng(s)) for s in few])
        rows.append([*row, f"{HORIZON * np.mean(means.max(axis=1) - means.mean(axis=1)):.0f}"])
    return [Part(Table(table.title, [*table.header, "random"], rows), numbers)]


def drift(runs: int, jobs: int) -> list[Part]:
    """New means in the middle, and what `memory` costs where there are none."""
    header = [f"K = {k}, ε = {b}{d}" for k in (3, 10) for b in ("1", "0.3") for d in ("", ", new")]
    memories, few = (None, HORIZON // 5, HORIZON // 2), seeds(runs // 4)
    shapes = [(k, b, new) for k in (3, 10) for b in ("1", "0.3") for new in (False, True)]
    tasks = [(*shape, m, s) for m in memories for shape in shapes for s in few]
    results = iter(in_parallel(_with_memory, tasks, jobs))
    found: dict[str, dict[str, list[float]]] = {}
    for memory in memories:
        found[f"memory = {memory}"] = {name: [next(results) for _ in few] for name in header}
    return [tabled("new means at T/2", ["", *header], found)]


def _with_memory(n_arms: int, budget: str, new: bool, memory: int | None, seed: int) -> float:
    return usual_regret(n_arms, budget, seed, new, memory=memory)


def held(runs: int, jobs: int) -> list[Part]:
    """Policies of other libraries beside `PrivateArms`, K = 5."""
    few, factors = seeds(runs // 25), (0.25, 1.0, 4.0)
    shapes = [(p, b, f) for p in POLICIES for b in HELD_BUDGETS for f in factors]
    tasks = [(*shape, s) for shape in shapes for s in few]
    results = iter(in_parallel(held_regret, tasks, jobs))
    header = [f"ε = {b}, {f:g} × hold" for b in HELD_BUDGETS for f in factors]
    found = {p: {name: [next(results) for _ in few] for name in header} for p in POLICIES}
    own = {b: [usual_regret(HELD_ARMS, b, s) for s in few] for b in HELD_BUDGETS}
    rows = [[p, *(_short(v) for v in by.values())] for p, by in found.items()]
    rows.append(["PrivateArms"])
    for values in own.values():
        rows[-1] += ["", _short(values), ""]
    title = f"HeldPolicy, K = 5, {len(few)} runs; the default is 1 × hold, ⌈2/ε⌉"
    table = Table(title, ["", *header], rows)
    return [Part(table, {"HeldPolicy": found, "PrivateArms, K = 5": own})]


RIVALS: dict[str, Callable[..., Array]] = {
    "the learner's rule": rivals.Held(rivals.ours).regret,
    "IMED": rivals.Held(rivals.imed).regret,
    "KL-UCB": rivals.Held(rivals.kl_ucb).regret,
    "UCB": rivals.Held(rivals.ucb).regret,
    "Thompson, each user": rivals.thompson,
    "DP-IMED": rivals.Held(rivals.dp_imed).regret,
    "AdaP-KLUCB": rivals.Held(rivals.adap_kl_ucb, 2, 1, True).regret,
    "AdaP-KLUCB, α = .3": rivals.Held(partial(rivals.adap_kl_ucb, alpha=0.3), 2, 1, True).regret,
    "AdaP-UCB": rivals.Held(rivals.adap_ucb, 2, 1, True).regret,
    "Anytime-Lazy-UCB": rivals.Held(rivals.lazy_ucb, 2, 1, True).regret,
    "the same × .1": rivals.Held(partial(rivals.lazy_ucb, scale=0.1), 2, 1, True).regret,
    "DP-SE": rivals.dp_se,
    "DP-SE × .03": partial(rivals.dp_se, scale=0.03),
}


def beside(runs: int, jobs: int) -> list[Part]:
    """Rivals, and the learner beside the simulation of its own rule."""
    shapes = [(k, epsilon) for epsilon in (1.0, 0.3) for k in ARMS]
    found: dict[str, dict[str, list[float]]] = {}
    for name, play in RIVALS.items():
        found[name] = {}
        for k, epsilon in shapes:
            rng = np.random.default_rng([FIRST_SEED, k])
            means = np.stack([usual(k, rng) for _ in seeds(runs // 2, k)])
            of_all = play(means, HORIZON, epsilon, [FIRST_SEED, k])
            found[name][f"ε = {epsilon}, K = {k}"] = of_all.tolist()
    k, few = 10, seeds(runs // 2)
    own = in_parallel(usual_regret, [(k, "1", s) for s in few], jobs)
    simulated = found["the learner's rule"][f"ε = 1.0, K = {k}"]
    agree = ks_2samp(own, simulated).pvalue
    line = ["K = 10, ε = 1", told(own), told(simulated), f"{agree:.2f}"]
    header = ["", "learner, exact noise", "simulation", "p of Kolmogorov and Smirnov"]
    agreement = Part(Table("the same law", header, [line]), {"p of agreement": agree})
    names = [f"ε = {epsilon}, K = {k}" for k, epsilon in shapes]
    return [tabled("simulated phase by phase", ["", *names], found), agreement]


def cost(runs: int, jobs: int) -> list[Part]:
    """CPU seconds of 10,000 visitors, the least of five tries."""
    rows, numbers = [], {}
    for k in ARMS:
        blocks = min(_seconds(partial(usual_regret, k, "1", s)) for s in seeds(10))
        single = min(_seconds(partial(_one_by_one, k, s)) for s in seeds(5))
        rows.append([f"K = {k}", f"{blocks:.3f}", f"{single:.2f}"])
        numbers[f"K = {k}"] = [blocks, single]
    header = ["", "blocks", "one by one, ledger on disk"]
    profile = cProfile.Profile()
    profile.runcall(_one_by_one, 10, FIRST_SEED)
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)
    return [Part(Table("CPU seconds of 10,000 visitors, ε = 1", header, rows), {"CPU s": numbers})]


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _one_by_one(n_arms: int, seed: int) -> None:
    rng = np.random.default_rng([seed, n_arms])
    means, luck = usual(n_arms, rng).tolist(), rng.random(HORIZON).tolist()
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(Path(folder) / "ledger.db") as book,
        JointAccountant(PureDP(1), users=range(HORIZON), ledger=book) as accountant,
    ):
        learner = PrivateArms(n_arms).start(accountant)
        for drawn in luck:
            learner.observe(float(drawn < means[learner.select()]))


PARTS = {
    "grid": grid,
    "long": long,
    "cells": cells,
    "drift": drift,
    "held": held,
    "rivals": beside,
    "cost": cost,
}


def main() -> None:
    """Runs all, or a part, and writes the tables."""
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--only", choices=PARTS)
    chosen = options.parse_args()
    begin, parts = time.perf_counter(), []
    for name, made in PARTS.items():
        if chosen.only in (None, name):
            parts += made(chosen.runs, chosen.jobs)
    numbers: dict[str, Any] = {"first seed": FIRST_SEED}
    for part in parts:
        numbers |= part.numbers
    numbers["seconds"] = round(time.perf_counter() - begin, 1)
    note = f"Seeds {FIRST_SEED} and on, on which nothing was chosen; {chosen.runs} runs or fewer."
    suffix = f"_{chosen.only}" if chosen.only else ""
    write(f"arms{suffix}", [part.table for part in parts], numbers, note)


if __name__ == "__main__":
    main()
