"""Regret of the private MNL learner on simulated users, beside two yardsticks.

    python benchmarks/mnl_regret.py [--replicates 40] [--jobs 2] [--only main]

N = 100 items, K = 10 shown, d = 5 features, T = 10,000 users unless a row says otherwise.
Replicate r draws its market from seed [SEED, r] and its noise from seed NOISE + r, the same for all
rows; the learner has its default parameters.  Noise is simulated, with the law of the real one.
"non-private" is the greedy ridge MLE after 30 random users; "bonus" adds the default exploration.
"one-hot": ten lines of ten identical items; "product lines": of near-identical ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from reporting import Summary, Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.runs.references import NonPrivateMNL, RandomAssortments
from privlearn.runs.simulated_choices import Market, Player, gaussian_market, product_lines_market

SEED = 33_501
NOISE = 33_501_000
EXPLORATION = OnePassNewtonMNL(n_items=1, dim=1).exploration
DELTA = 1e-8
RHOS = ("0.1", "0.5", "1")
TARGETS = {"uniform": (8, 5.2, 4.8), "general": (6, 5, 5)}
WORST = 5
"""Times the mean, that the worst run may be at most."""
HORIZON, N_ITEMS = 10_000, 100


class Setting(NamedTuple):
    """A market and the players that serve it: name -> (rho, exploration), or None."""

    make: Callable[[int], Market]
    dim: int
    max_items: int
    players: dict[str, tuple[str, float] | None]


class Outcome(NamedTuple):
    """Regret by player, and by rho what the certificate says (rho, mu, epsilon at DELTA)."""

    regret: dict[str, float]
    guarantee: dict[str, tuple[float | None, float | None, float]]


YARDSTICKS: dict[str, tuple[str, float] | None] = dict.fromkeys(
    ("non-private", "non-private, bonus", "random")
)


def private(rhos: tuple[str, ...], *explorations: float) -> dict[str, tuple[str, float] | None]:
    """Private players by name."""
    return {name(rho, a): (rho, a) for rho in rhos for a in explorations}


def name(rho: str, exploration: float = EXPLORATION) -> str:
    """Name of a private player."""
    return f"rho={rho}, exploration={exploration:g}"


def gaussian(
    rhos: tuple[str, ...],
    *explorations: float,
    dim: int = 5,
    max_items: int = 10,
    general: bool = False,
) -> Setting:
    """The papers' synthetic market."""

    def make(replicate: int) -> Market:
        return gaussian_market(
            SEED, replicate, horizon=HORIZON, n_items=N_ITEMS, dim=dim, general_revenue=general
        )

    return Setting(make, dim, max_items, private(rhos, *explorations) | YARDSTICKS)


def product_lines(replicate: int) -> Market:
    """The named setting with fixed contexts."""
    return product_lines_market(SEED, replicate, horizon=HORIZON, n_items=N_ITEMS, dim=10)


def one_hot(replicate: int) -> Market:
    """Ten lines of ten identical items."""
    return product_lines_market(
        SEED, replicate, horizon=HORIZON, n_items=N_ITEMS, dim=10, spread=0.0
    )


DIMS, SIZES = (3, 7, 11, 15), (3, 20)
MAIN = {
    "uniform": gaussian(RHOS, EXPLORATION, 0.0),
    "general": gaussian(RHOS, EXPLORATION, 0.0, general=True),
}
FIXED = ("one-hot", "product lines")
MORE = {
    title: Setting(make, 10, 10, private(("0.1", "1"), EXPLORATION, 0.0) | YARDSTICKS)
    for title, make in zip(FIXED, (one_hot, product_lines), strict=True)
} | {
    **{f"d={d}": gaussian(("0.1", "1"), EXPLORATION, dim=d) for d in DIMS},
    **{f"K={k}": gaussian(("0.1", "1"), EXPLORATION, max_items=k) for k in SIZES},
}


def play(setting: Setting, replicate: int) -> Outcome:
    """One replicate: everybody serves the same users."""
    market = setting.make(replicate)
    outcome = Outcome({}, {})
    for player, terms in setting.players.items():
        if terms is None:
            yardstick: Player = (
                RandomAssortments(max_items=setting.max_items, random_state=replicate)
                if player == "random"
                else NonPrivateMNL(
                    horizon=HORIZON,
                    dim=setting.dim,
                    max_items=setting.max_items,
                    exploration=0.0 if player == "non-private" else EXPLORATION,
                    random_state=replicate,
                )
            )
            outcome.regret[player] = float(market.serve(yardstick).sum())
            continue
        rho, exploration = terms
        with JointAccountant(
            ZCDP(rho), users=range(HORIZON), noise=NoiseSource.simulation(NOISE + replicate)
        ) as accountant:
            learner = OnePassNewtonMNL(
                n_items=N_ITEMS,
                dim=setting.dim,
                max_items=setting.max_items,
                exploration=exploration,
                random_state=replicate,
            ).start(accountant)
            outcome.regret[player] = float(market.serve(learner).sum())
            if replicate == 0:
                (stated,) = accountant.certificate(DELTA).guarantees
                outcome.guarantee[rho] = (stated.rho, stated.mu, stated.epsilon)
    return outcome


def difference(outcomes: list[Outcome], player: str, other: str) -> Summary:
    """Paired difference of regrets."""
    return summary(o.regret[player] - o.regret[other] for o in outcomes)


def main() -> None:
    """Runs everything and writes the tables."""
    arguments = parser(__doc__, replicates=40)
    arguments.add_argument("--only", choices=["main", "fixed"], help="fewer markets")
    options = arguments.parse_args()
    fixed = {title: MORE[title] for title in FIXED}
    settings = {"main": MAIN, "fixed": MAIN | fixed, None: MAIN | MORE}[options.only]
    tasks = [(setting, r) for setting in settings.values() for r in range(options.replicates)]
    played = in_parallel(play, tasks, options.jobs)
    outcomes = {
        title: played[i * options.replicates : (i + 1) * options.replicates]
        for i, title in enumerate(settings)
    }
    means = {
        title: {p: summary(o.regret[p] for o in found) for p in settings[title].players}
        for title, found in outcomes.items()
    }

    tables = [main_table(means), spread_table(outcomes), guarantee_table(outcomes["uniform"][0])]
    if not options.only:
        tables += [table_of_shapes(means)]
    bonus, paired = bonus_table(means, outcomes)
    tables.append(bonus)

    suffix = "" if options.replicates == 40 else f"_{options.replicates}"
    write(
        f"mnl_regret{suffix}",
        tables,
        {
            "seed": SEED,
            "noise_seed": NOISE,
            "regret": {t: {p: s._asdict() for p, s in row.items()} for t, row in means.items()},
            "default exploration minus 0, paired": {k: s._asdict() for k, s in paired.items()},
            "per replicate": {t: [o.regret for o in found] for t, found in outcomes.items()},
            "guarantee": outcomes["uniform"][0].guarantee,
        },
        f"{options.replicates} replicates, seed {SEED}; mean ± standard error.",
    )


def main_table(means: dict[str, dict[str, Summary]]) -> Table:
    """Private regret against the targets."""
    rows: list[list[str]] = []
    for title in MAIN:
        found = [means[title][name(rho)] for rho in RHOS]
        limits = TARGETS[title]
        verdicts = (
            "yes" if s.mean <= limit else "NO" for s, limit in zip(found, limits, strict=True)
        )
        yardsticks = (means[title][p] for p in YARDSTICKS)
        rows.append(
            [
                title,
                *map(str, found),
                " / ".join(map(str, limits)),
                " / ".join(verdicts),
                *map(str, yardsticks),
            ]
        )
    header = ["revenues", *(f"rho = {r}" for r in RHOS), "at most", "met", *YARDSTICKS]
    return Table("Total regret after 10,000 users", header, rows)


def spread_table(outcomes: dict[str, list[Outcome]]) -> Table:
    """Mean, 95 % point and worst run."""
    rows = []
    for title, found in outcomes.items():
        if title not in (*MAIN, *FIXED):
            continue
        for player in found[0].regret:
            values = np.array([o.regret[player] for o in found])
            worst = float(values.max() / values.mean())
            told = [f"{np.quantile(values, 0.95):.3g}", f"{values.max():.3g}", f"{worst:.1f}"]
            met = ("yes" if worst <= WORST else "NO") if player.startswith("rho") else ""
            rows.append([f"{title}, {player}", str(summary(values)), *told, met])
    header = ["", "mean", "95 %", "worst", "worst / mean", f"at most {WORST}"]
    return Table("The spread of total regret", header, rows)


def guarantee_table(outcome: Outcome) -> Table:
    """What the certificate states for each rho."""
    rows = [
        [rho, f"{stated[0]:.12g}", f"{stated[1]:.6f}", f"{stated[2]:.4f}"]
        for rho, stated in sorted(outcome.guarantee.items(), key=lambda item: float(item[0]))
    ]
    return Table(
        "The certificate's joint guarantee for every user, replace-one",
        ["budget rho", "rho", "mu", f"epsilon at {DELTA:g}"],
        rows,
    )


def table_of_shapes(means: dict[str, dict[str, Summary]]) -> Table:
    """Other d and K, uniform revenue."""
    rows = []
    for title in ("d=3", "uniform", "d=7", "d=11", "d=15", "K=3", "K=20"):
        cells = [means[title][p] for p in (name("0.1"), name("1"), *YARDSTICKS)]
        rows.append(["d=5, K=10" if title == "uniform" else title, *map(str, cells)])
    return Table(
        "Other d (K = 10) and K (d = 5), uniform revenue",
        ["", "rho = 0.1", "rho = 1", *YARDSTICKS],
        rows,
    )


def bonus_table(
    means: dict[str, dict[str, Summary]], outcomes: dict[str, list[Outcome]]
) -> tuple[Table, dict[str, Summary]]:
    """The default exploration against 0, paired."""
    rows, paired = [], {}
    for title, found in outcomes.items():
        for rho in RHOS:
            if name(rho, 0.0) not in found[0].regret:
                continue
            change = difference(found, name(rho), name(rho, 0.0))
            with_bonus, without = means[title][name(rho)], means[title][name(rho, 0.0)]
            paired[f"{title}, rho={rho}"] = change
            rows.append(
                [
                    f"{title}, rho = {rho}",
                    str(with_bonus),
                    str(without),
                    f"{change.mean:+.2f} ± {change.se:.2f}",
                    f"{change.mean / change.se:+.1f}",
                    f"{change.mean / without.mean:+.1%}",
                ]
            )
    header = [
        "setting",
        f"exploration {EXPLORATION:g}",
        "exploration 0",
        "difference, paired",
        "in se",
        "relative",
    ]
    return Table("Exploration bonus", header, rows), paired


if __name__ == "__main__":
    main()
