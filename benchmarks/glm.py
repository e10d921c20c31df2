"""Regret, coverage and cost of `OnePassNewtonGLM`: slates of actions with features.

    python benchmarks/glm.py [--only PART] [--runs 40] [--jobs 2]

Parts: logistic, large, linear, policies, rivals, links, arms, coverage, cost.

Features are uniform in the unit ball, θ is uniform on a sphere (radius 3 for d = 3 and 20, 3.5 for
d = 5, 4 for d = 40, ½ for linear rewards), rewards are 0 or 1, or −½ and ½ where linear; noise is
exact.  "New": every visitor sees other actions; "fixed": all see the same; "moving": features have
only their first half of coordinates until T/2, and only the second after.  Run s has visitors and
noise of seed FIRST_SEED + s; where there is no target, half as many are run.  "rivals" needs
vowpalwabbit==9.11.9 and mabwiser==2.7.4.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import glm_rivals as rivals
import numpy as np
from correlated_bandits import ARMS, DIM, HORIZON, market
from glm_market import CELLS, LINEAR, LOGISTIC, OTHERS, Cell, Visitors
from numpy.typing import NDArray
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.learners import OnePassNewtonGLM, OnePassNewtonMNL, PrivateLeastSquares
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared, zcdp_rho
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

FIRST_SEED = 9300
BUDGETS = {
    "no noise": 1e6,
    "(4, 10⁻⁶)": zcdp_rho(4.0, 1e-6),
    "(1, 10⁻⁶)": zcdp_rho(1.0, 1e-6),
    "(3, 10⁻⁶)": zcdp_rho(3.0, 1e-6),
    "(4, .02)": zcdp_rho(4.0, 0.02),
    "(1, .02)": zcdp_rho(1.0, 0.02),
}
MAIN = ("no noise", "(4, 10⁻⁶)", "(1, 10⁻⁶)")


NONE, LARGE = np.zeros(0), "d = 40, K = 40, T = 20,000"
TARGETS = {
    ("d = 3, K = 20", "(1, 10⁻⁶)"): 115,
    ("d = 3, K = 20", "(4, .02)"): 33,
    ("d = 20, K = 10", "(1, 10⁻⁶)"): 490,
    (LARGE, "(1, 10⁻⁶)"): 1400,
    ("linear, d = 5, new", "(1, 10⁻⁶)"): 260,
    ("linear, d = 5, fixed", "(1, 10⁻⁶)"): 450,
    ("linear, d = 20, new", "(1, 10⁻⁶)"): 720,
    ("linear, d = 20, fixed", "(1, 10⁻⁶)"): 600,
}


def learner(cell: Cell, budget: str, **options: Any) -> OnePassNewtonGLM:
    """As declared; without noise the first block is that of ρ = 1."""
    if budget == "no noise":
        options.setdefault("first_batch", 3 * cell.dim)
    return OnePassNewtonGLM(cell.n_actions, cell.dim, **{**cell.declared, **options})


class Run(NamedTuple):
    """What came of one."""

    regret: float
    random: float
    seconds: float
    errors: Array
    """θ − its estimate in its standard deviations."""


def served(name: str, budget: str, options: dict[str, Any], seed: int) -> Run:
    """One run of `OnePassNewtonGLM`."""
    cell = CELLS[name]
    visitors = Visitors(cell, seed)
    begin, own = time.process_time(), 0.0
    source = NoiseSource.simulation(seed)
    rho = ZCDP(BUDGETS[budget])
    with JointAccountant(rho, users=range(cell.horizon), noise=source) as accountant:
        made = learner(cell, budget, random_state=seed, **options).start(accountant)
        for features, uniform in visitors.chunks():
            begin = time.process_time()
            made.play(
                features,
                lambda slate, actions: visitors.answer(
                    slate.features, actions, slate.private[:, 0]
                ),
                private=uniform,
            )
            own += time.process_time() - begin
        stds = np.sqrt(np.diag(np.linalg.inv(made.precision_)))
        errors = (made.theta_ - visitors.theta) / stds
    return Run(visitors.regret, visitors.random, own, errors)


def mnl_served(name: str, budget: str, seed: int) -> Run:
    """`OnePassNewtonMNL` that shows one item, as before there was a GLM."""
    cell = CELLS[name]
    visitors = Visitors(cell, seed)
    source = NoiseSource.simulation(seed)
    begin = time.process_time()

    def choose(own: Any, items: NDArray[np.int64]) -> NDArray[np.int64]:
        rewards = visitors.answer(own.features, items[:, 0], own.private[:, 0])
        return np.where(rewards > 0, items[:, 0], -1)

    rho = ZCDP(BUDGETS[budget])
    with JointAccountant(rho, users=range(cell.horizon), noise=source) as accountant:
        made = OnePassNewtonMNL(
            n_items=cell.n_actions, dim=cell.dim, max_items=1, random_state=seed
        ).start(accountant)
        for features, uniform in visitors.chunks():
            made.play(features, choose, private=uniform)
    return Run(visitors.regret, visitors.random, time.process_time() - begin, NONE)


def rival(player: str, name: str, seed: int) -> Run:
    """One run of a rival that takes visitors one by one (`glm_rivals`)."""
    cell = CELLS[name]
    visitors, made = Visitors(cell, seed), rivals.PLAYERS[player](cell, seed)
    begin = time.process_time()
    for features, uniform in visitors.chunks():
        for slate, own in zip(features, uniform, strict=True):
            action = made.select(slate)
            heard = visitors.answer(slate[None], np.array([action]), own)
            made.observe(slate[action], float(heard[0]))
    return Run(visitors.regret, visitors.random, time.process_time() - begin, NONE)


# Tables -------------------------------------------------------------------------------------------


def cells_of(values: list[float]) -> list[str]:
    """Mean ± standard error, 95% quantile and worst."""
    sample = np.array(values)
    se = sample.std(ddof=1) / math.sqrt(len(sample))
    return [
        f"{sample.mean():.0f} ± {se:.1f}",
        f"{np.quantile(sample, 0.95):.0f}",
        f"{sample.max():.0f}",
    ]


class Task(NamedTuple):
    """A player in a cell; ``function`` takes ``args`` and a seed."""

    cell: str
    player: str
    function: Callable[..., Run]
    args: tuple[Any, ...]


def regrets(part: str, tasks: list[Task], runs: int, jobs: int) -> None:
    """Runs and writes what players do in cells."""
    begin = time.perf_counter()
    plain = [
        (i, (*task.args, FIRST_SEED + s))
        for i, task in enumerate(tasks)
        for s in range(runs if task[:2] in TARGETS else math.ceil(runs / 2))
    ]
    found = in_parallel(_call, [(tasks[i].function, args) for i, args in plain], jobs)
    totals: dict[tuple[str, str], list[float]] = {}
    randoms: dict[str, list[float]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for (i, _), run in zip(plain, found, strict=True):
        key = tasks[i].cell, tasks[i].player
        totals.setdefault(key, []).append(run.regret)
        seconds.setdefault(key, []).append(run.seconds)
        randoms.setdefault(key[0], []).append(run.random)
    rows = [
        [
            cell,
            player,
            *cells_of(values),
            str(len(values)),
            str(TARGETS.get((cell, player), "")),
            f"{np.mean(randoms[cell]):.0f}",
            f"{np.mean(seconds[cell, player]):.2f}",
        ]
        for (cell, player), values in totals.items()
    ]
    header = ["", "player or budget", "regret", "p95", "worst", "runs", "target", "random", "CPU s"]
    numbers = {
        "seconds": round(time.perf_counter() - begin, 1),
        "regret": {f"{a}; {b}": v for (a, b), v in totals.items()},
    }
    write(f"glm_{part}", [Table("regret", header, rows)], numbers, f"Seeds {FIRST_SEED} and on.")


def _call(function: Callable[..., Run], args: tuple[Any, ...]) -> Run:
    return function(*args)


def logistic(runs: int, jobs: int) -> None:
    """The market of the targets, at three budgets and more for d = 3."""
    more = {"d = 3, K = 20": ("(4, .02)", "(1, .02)")}
    tasks = [
        Task(name, budget, served, (name, budget, {}))
        for name in LOGISTIC
        for budget in (*MAIN, *more.get(name, ()))
    ]
    regrets("logistic", [task for task in tasks if task.cell != LARGE], runs, jobs)


def large(runs: int, jobs: int) -> None:
    """d = 40."""
    regrets("large", [Task(LARGE, b, served, (LARGE, b, {})) for b in reversed(MAIN)], runs, jobs)


def linear(runs: int, jobs: int) -> None:
    """Linear rewards."""
    names = [f"linear, {name}" for name in LINEAR]
    tasks = [Task(name, budget, served, (name, budget, {})) for name in names for budget in MAIN]
    regrets("linear", tasks, runs, jobs)


SHOWN = (
    "d = 3, K = 20",
    "d = 20, K = 10",
    "d = 3, K = 20, fixed",
    "linear, d = 5, new",
    "linear, d = 5, fixed",
)


def policies(runs: int, jobs: int) -> None:
    """Exploration, at (1, 10⁻⁶)."""
    kinds: dict[str, dict[str, Any]] = {
        "ucb": {},
        "greedy": {"policy": "greedy"},
        "thompson": {"policy": "thompson"},
    }
    tasks = [
        Task(name, kind, served, (name, "(1, 10⁻⁶)", options))
        for name in SHOWN
        for kind, options in kinds.items()
    ]
    regrets("policies", tasks, runs, jobs)


def others(runs: int, jobs: int) -> None:
    """The MNL learner with one item, and rivals."""
    tasks = [
        Task(name, f"MNL with one item, {budget}", mnl_served, (name, budget))
        for name in SHOWN
        for budget in ("no noise", "(1, 10⁻⁶)")
    ]
    tasks += [
        Task(name, player, rival, (player, name))
        for player, kinds in rivals.FOR.items()
        for name in SHOWN
        if CELLS[name].link in kinds and ("no features" not in player or "fixed" in name)
    ]
    regrets("rivals", tasks, runs, jobs)


def links(runs: int, jobs: int) -> None:
    """Probit and Poisson rewards, wrong links and wrong scales, at (1, 10⁻⁶)."""
    probit, poisson, plain = "probit, d = 5", "Poisson, d = 5", "d = 20, K = 10"
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        (probit, "probit", {}),
        (probit, "as logistic", {"link": "logistic"}),
        (probit, "as linear", {"link": "linear"}),
        (poisson, "Poisson", {}),
        (poisson, "Poisson, largest rate × 3", {"max_rate": 3 * math.e}),
        (poisson, "as linear", {"link": "linear", "reward_range": (0.0, 8.0), "max_rate": None}),
        (plain, "as declared", {}),
        (plain, "feature_scale × 2", {"feature_scale": 2.0}),
        (plain, "feature_scale ÷ 2 (clips)", {"feature_scale": 0.5}),
        (plain, "reward range × 3", {"reward_range": (-1.0, 2.0)}),
        (plain, "as linear", {"link": "linear"}),
    ]
    tasks = [
        Task(name, told, served, (name, "(1, 10⁻⁶)", options)) for name, told, options in kinds
    ]
    tasks += [Task(name, "no noise", served, (name, "no noise", {})) for name in (probit, poisson)]
    regrets("links", tasks, runs, jobs)


# One parameter vector per action ------------------------------------------------------------------

ARM_PLAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "private least squares": (PrivateLeastSquares, {}),
    "GLM, linear": (OnePassNewtonGLM, {"link": "linear"}),
    "GLM, linear, gradient_clip ÷ 4": (
        OnePassNewtonGLM,
        {"link": "linear", "gradient_clip": 0.125},
    ),
}
SPARSE = ("independent", "neighbours correlated 0.5", "all pairs correlated 0.5")


def arm_served(player: str, name: str, seed: int) -> Run:
    """One run of `correlated_bandits`: d = 50, two arms, rewards with a deviation of .05."""
    budget = GaussianDP.from_mu_squared(gaussian_mu_squared(1.0, 1 / HORIZON))
    kind, options = ARM_PLAYERS[player]
    own, begin = market(name, seed), time.process_time()
    means = own.means
    with JointAccountant(
        budget, users=range(HORIZON), noise=NoiseSource.simulation(seed)
    ) as accountant:
        if kind is PrivateLeastSquares:
            made = kind(n_arms=ARMS, dim=DIM, **options).start(accountant)
        else:
            told = {"per_action": True, "reward_range": (-1.0, 1.0), "feature_scale": 4.0}
            made = kind(ARMS, DIM, **told, **options).start(accountant)
        users = np.arange(HORIZON)
        own.pulled = np.zeros(HORIZON, dtype=np.int64)
        made.play(own.contexts, private=users[:, None].astype(float), respond=own.respond)
        lost = float((means.max(1) - means[users, own.pulled]).sum())
    return Run(lost, float((means.max(1) - means.mean(1)).sum()), time.process_time() - begin, NONE)


def arms(runs: int, jobs: int) -> None:
    """One parameter vector per action, on the visitor's context, at (1, 10⁻⁴)."""
    tasks = [
        Task(name, player, arm_served, (player, name)) for name in SPARSE for player in ARM_PLAYERS
    ]
    regrets("arms", tasks, runs, jobs)


# Coverage -----------------------------------------------------------------------------------------


def logged(name: str, budget: str, options: dict[str, Any], seed: int) -> Run:
    """Errors of an estimate from logged rewards of random actions."""
    cell = CELLS[name]
    visitors = Visitors(cell, seed)
    source = NoiseSource.simulation(seed)
    rho, begin = ZCDP(BUDGETS[budget]), time.process_time()
    with CentralAccountant(rho, users=range(cell.horizon), noise=source) as accountant:
        made = learner(cell, budget, **options).start(accountant)
        for features, uniform in visitors.chunks():
            first = np.zeros(len(features), dtype=np.int64)
            heard = visitors.answer(features, first, uniform[:, 0])
            made.partial_fit(features[:, 0], heard)
        stds = np.sqrt(np.diag(np.linalg.inv(made.precision_)))
        errors = (made.theta_ - visitors.theta) / stds
    return Run(0.0, 0.0, time.process_time() - begin, errors)


COVERED = (
    "linear, d = 5, new",
    "linear, d = 20, new",
    "d = 5, K = 20, T = 15,000",
    "d = 20, K = 10",
    *OTHERS,
)


def coverage(runs: int, jobs: int) -> None:
    """How often θ ± 2 standard deviations holds an entry of θ."""
    ways: list[Callable[..., Run]] = [served, logged]
    cases = [
        (name, budget, way)
        for name in COVERED
        for budget in ("no noise", "(3, 10⁻⁶)", "(1, 10⁻⁶)")
        for way in ways
        for _ in range(runs)
    ]
    tasks: list[tuple[Any, ...]] = [
        (way, (name, budget, {}, FIRST_SEED + i % runs))
        for i, (name, budget, way) in enumerate(cases)
    ]
    by: dict[tuple[str, str, str], list[Array]] = {}
    for (name, budget, way), run in zip(cases, in_parallel(_call, tasks, jobs), strict=True):
        by.setdefault((name, budget, way.__name__), []).append(run.errors)
    rows: list[list[str]] = []
    for (name, budget, kind), errors in by.items():
        own = np.abs(np.stack(errors))
        part = (own <= 2).mean(axis=1)
        se = part.std(ddof=1) / math.sqrt(len(part))
        rows.append(
            [name, budget, kind, f"{part.mean():.3f} ± {se:.3f}", f"{np.quantile(own, 0.95):.2f}"]
        )
    header = ["", "budget", "", "within 2 standard deviations", "95% quantile of errors"]
    numbers = {"errors": {"; ".join(key): np.stack(v).tolist() for key, v in by.items()}}
    write(
        "glm_coverage",
        [Table("coverage of entries", header, rows)],
        numbers,
        f"Seeds {FIRST_SEED} and on.",
    )


# Cost ---------------------------------------------------------------------------------------------


def cost(runs: int, jobs: int) -> None:
    """CPU seconds per 10,000 visitors, in blocks and one by one, on a ledger file."""
    del jobs
    rows, numbers = [], {}
    for name in ("d = 3, K = 20", "d = 20, K = 10"):
        cell = CELLS[name]
        for way in ("play, in memory", "play, ledger file", "select and observe, ledger file"):
            seconds = [_cost(cell, way, FIRST_SEED + s) for s in range(min(runs, 5))]
            numbers[f"{name}; {way}"] = seconds
            rows.append([name, way, f"{min(seconds):.2f}", f"{np.median(seconds):.2f}"])
    header = ["", "way", "least", "median"]
    write("glm_cost", [Table("CPU s per 10,000 visitors", header, rows)], numbers)


def _cost(cell: Cell, way: str, seed: int) -> float:
    visitors = Visitors(cell, seed)
    features = visitors.slates(0, cell.horizon)
    uniform = np.random.default_rng(seed).random((cell.horizon, 1))
    rewards = np.asarray(uniform[:, 0] < 0.5, dtype=float)
    with tempfile.TemporaryDirectory() as folder:
        path, budget = Path(folder) / "run.db", ZCDP(BUDGETS["(1, 10⁻⁶)"])
        with (
            Ledger.memory() if "memory" in way else Ledger.create(path) as book,
            JointAccountant(budget, users=range(cell.horizon), ledger=book) as accountant,
        ):
            begin = time.process_time()
            made = learner(cell, "").start(accountant)
            if "select" in way:
                for slate, reward in zip(features, rewards.tolist(), strict=True):
                    made.select(slate)
                    made.observe(reward)
            else:
                made.play(
                    features, lambda own, actions: own.private[:, 0], private=rewards[:, None]
                )
            return time.process_time() - begin


PARTS: dict[str, Callable[[int, int], None]] = {
    "logistic": logistic,
    "large": large,
    "linear": linear,
    "policies": policies,
    "rivals": others,
    "links": links,
    "arms": arms,
    "coverage": coverage,
    "cost": cost,
}


def main() -> None:
    """Runs parts and writes their tables."""
    options = parser(__doc__)
    options.add_argument("--only", choices=list(PARTS))
    options.add_argument("--runs", type=int, default=40)
    chosen = options.parse_args()
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            part(chosen.runs, chosen.jobs)


if __name__ == "__main__":
    main()
