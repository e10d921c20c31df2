"""Regret of DP-HDB and its rivals: d = 50, K = 2, T = 10,000, (1, 1/T)-DP, and other settings.

    python benchmarks/hdb.py [--seeds 40] [--jobs 2]

Seed s draws users and noise, the same users for all.  Guarantees are joint and replace-one.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import JointAccountant
from privlearn.learners.hdb import DPHDB
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared, zcdp_rho
from privlearn.noise import NoiseSource
from privlearn.runs.references import RandomArms
from privlearn.runs.simulated_arms import sparse_market
from privlearn_studies.papers.han2022 import experiments
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

FIRST_SEED = 7300
HORIZON, DIM, ARMS = 10_000, 50, 2
TARGETS = {experiments.HDB: 99, experiments.HDB_CHOICES: 310, experiments.LEAST_SQUARES: 460}


class Variant(NamedTuple):
    """A setting beyond that of the figure."""

    text: str
    market: dict[str, Any]
    learner: dict[str, Any]
    epsilon: float = 1.0


VARIANTS = (
    Variant("ε = 0.5", {}, {}, 0.5),
    Variant("ε = 4", {}, {}, 4.0),
    Variant("K = 5", {"n_arms": 5}, {"n_arms": 5}),
    Variant("d = 200", {"dim": 200}, {"dim": 200}),
    Variant("T = 40,000", {"horizon": 40_000}, {}),
    Variant("logistic rewards", {"logistic": True}, {"loss": "logistic"}),
    Variant("rewards with sd 0.2", {"noise": 0.2}, {}),
    Variant("with pre-selection, h = 0.4", {}, {"preselection": 0.4}),
)
EPOCHS = {"gaussian": "gaussian", "noisy_max": NoisyMaxEpochs()}
METHODS = (*EPOCHS, "random")


def play(player: str, seed: int) -> experiments.Han2022Result:
    """One run of the figure."""
    return experiments.play(
        experiments.FIGURE, experiments.Han2022Cell(player, 1.0, HORIZON, DIM), seed
    )


def vary(variant: Variant, method: str, seed: int) -> float:
    """Total regret of one run in another setting."""
    market = sparse_market(
        seed, **({"horizon": HORIZON, "dim": DIM, "n_arms": ARMS} | variant.market)
    )
    if method == "random":
        return float(market.serve(RandomArms(n_arms=market.n_arms, random_state=seed)).sum())
    delta = 1 / market.horizon
    budget: Currency = GaussianDP.from_mu_squared(gaussian_mu_squared(variant.epsilon, delta))
    if method == "noisy_max":
        budget = ZCDP(zcdp_rho(variant.epsilon, delta))
    arms: dict[str, Any] = {"n_arms": ARMS, "dim": DIM, "method": EPOCHS[method]} | variant.learner
    with JointAccountant(
        budget, users=range(market.horizon), noise=NoiseSource.simulation(seed)
    ) as accountant:
        return float(market.serve(DPHDB(**arms).start(accountant)).sum())


def told(values: list[float]) -> str:
    """Mean ± standard deviation, 95% quantile and largest."""
    sd = np.std(values, ddof=1) if len(values) > 1 else math.nan
    most = f"{np.quantile(values, 0.95):.0f}; {max(values):.0f}"
    return f"{np.mean(values):.1f} ± {sd:.1f} ({most})"


def main() -> None:
    """Runs all and writes the tables."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=40)
    chosen = options.parse_args()
    seeds, begin = [FIRST_SEED + s for s in range(chosen.seeds)], time.perf_counter()
    runs = {p: seeds if p == experiments.HDB else seeds[:10] for p in experiments.BANDITS}
    tasks = [(player, seed) for player, own in runs.items() for seed in own]
    played = iter(in_parallel(play, tasks, chosen.jobs))
    results = {player: [next(played) for _ in own] for player, own in runs.items()}
    rows = []
    for player, found in results.items():
        values = [result.value for result in found]
        half = np.mean([result.curve[experiments.POINTS // 2 - 1] for result in found])
        target = TARGETS.get(player)
        verdict = ""
        if target is not None:
            verdict = "met" if np.mean(values) <= target else "**NOT met**"
        epsilon = found[0].epsilon
        rows.append(
            [
                player,
                told(values),
                f"{half:.1f}",
                "" if target is None else f"≤ {target}",
                verdict,
                "none" if epsilon is None else f"{epsilon:.3f}",
            ]
        )
    header = ["learner", "regret", "in the first half", "target", "", "certified ε"]
    figure = Table(
        f"d = {DIM}, K = {ARMS}, T = {HORIZON:,}, ε = 1, δ = 1/T; {len(seeds)} seeds, rivals 10",
        header,
        rows,
    )
    some = {m: seeds[:20] if m == "gaussian" else seeds[:5] for m in METHODS}
    tasks_more = [
        (v, method, seed) for v in VARIANTS for method in METHODS for seed in some[method]
    ]
    varied = iter(in_parallel(vary, tasks_more, chosen.jobs))
    others = {v.text: {m: [next(varied) for _ in some[m]] for m in METHODS} for v in VARIANTS}
    more = Table(
        f"DP-HDB in other settings, {len(some['gaussian'])} seeds, others 5",
        ["changed", experiments.HDB, experiments.HDB_CHOICES, experiments.RANDOM],
        [[text, *(told(found[m]) for m in METHODS)] for text, found in others.items()],
    )
    numbers = {
        "first seed": FIRST_SEED,
        "seconds": round(time.perf_counter() - begin, 1),
        "regret": {p: [result.value for result in found] for p, found in results.items()},
        "others": others,
    }
    note = (
        f"Seeds {FIRST_SEED} and on, on which nothing was tuned. Means ± standard deviations "
        "(95% quantile; largest)."
    )
    write("hdb", [figure, more], numbers, note)


if __name__ == "__main__":
    main()
