"""Regret of DPMNL, as repaired and proved here and as published, with ablations.

    python benchmarks/dpmnl_regret.py [--replicates 30] [--jobs 2]

N = 100 items, K = 10 shown, d = 5 features, T = 10,000 users.  Replicate r draws its market from
seed [SEED, r], its noise from seed NOISE + r and its public coins from random_state r, the same for
all rows.  Noise is simulated, with the law of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from reporting import Summary, Table, in_parallel, parser, summary, write
from scipy.optimize import minimize_scalar

from privlearn.accountants import JointAccountant
from privlearn.learners import DPMNL, OnePassNewtonMNL, dpmnl_noise
from privlearn.learners.dpmnl_noise import DPMNLNoise, Shape
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, Renyi
from privlearn.mechanisms import BinaryTree, ObjectivePerturbation, PrefixSum
from privlearn.mechanisms.published import Tilt
from privlearn.noise import NoiseSource
from privlearn.rows.domains import PSDTrace
from privlearn.runs.references import NonPrivateMNL, RandomAssortments
from privlearn.runs.simulated_choices import Market, Player, gaussian_market
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact

SEED = 12001
NOISE = 12_001_000
DELTA = "1e-8"
RHOS = ("0.1", "0.5", "1")
EPSILONS = {"0.1": "2.54", "0.5": "6.09", "1": "8.98"}
HORIZON, N_ITEMS, DIM, MAX_ITEMS = 10_000, 100, 5, 10

PROVED = dpmnl_noise.proved
Calibrate = Callable[..., DPMNLNoise]


# Ablated noise ------------------------------------------------------------------------------------


def without_theorem_n(
    shape: Shape, budget: ZCDP, *, gram_share: Exact, adjacency: Adjacency, **others: Any
) -> DPMNLNoise:
    """The same learner as if bound (B) were all that is known about the minimiser.

    B(α)/α is largest for α → 1, where it is l + c²/2 + cE[χ_r]; σ = s/c solves that for the budget
    and Δ minimises dσ² + Δ² as in `ObjectivePerturbation.calibrated`.  What is charged is the true
    and far lower price.
    """
    whole = PROVED(shape, budget, gram_share=gram_share, adjacency=adjacency, **others)
    objective, guess = shape.objective, others["theta_norm"]
    single = float(budget.rho * (1 - exact("share", gram_share)) / shape.calls) * 0.999
    r = objective.directions(adjacency)
    mean = math.sqrt(2) * math.exp(math.lgamma((r + 1) / 2) - math.lgamma(r / 2))

    def std(ridge: float) -> float:
        left = single - objective.rank * math.log1p(objective.trace / (objective.rank * ridge))
        if left <= 0:
            return math.inf
        return objective.spread(adjacency) / (math.sqrt(mean**2 + 2 * left) - mean)

    def error(log_ridge: float) -> float:
        ridge = math.exp(log_ridge)
        return min(math.log((ridge * guess) ** 2 + shape.dim * std(ridge) ** 2), 1e9)

    lowest = math.log(objective.rank / single / 10)
    ridge = math.exp(minimize_scalar(error, bounds=(lowest, lowest + 10)).x)
    fit = ObjectivePerturbation.published(
        objective, Tilt(ridge, std(ridge)), max_rows=shape.horizon, adjacency=adjacency
    )
    return replace(whole, fit=fit, width=dpmnl_noise._width(shape, fit, others["kappa"]))


def with_tree(
    shape: Shape, budget: Currency, *, gram_share: Exact, adjacency: Adjacency, **others: Any
) -> DPMNLNoise:
    """Gram sums by the binary tree, at the same price."""
    whole = PROVED(shape, budget, gram_share=gram_share, adjacency=adjacency, **others)
    gram = PrefixSum.calibrated(
        PSDTrace(shape.max_items, shape.dim),
        budget.share(gram_share),
        factorization=BinaryTree(shape.horizon),
        adjacency=adjacency,
    )
    shift = gram.factorization.max_error_std() * gram.noise_std * dpmnl_noise._norm(shape)
    return replace(whole, gram=gram, shift=shift)


# Players ------------------------------------------------------------------------------------------


class Variant(NamedTuple):
    """One way to run DPMNL; ``published`` and ``renyi`` say what its budget is."""

    params: dict[str, Any]
    published: bool = False
    renyi: bool = False
    calibrate: Calibrate | None = None
    rhos: tuple[str, ...] = RHOS


class Facts(NamedTuple):
    """What one run was made with and certified for."""

    calls: int
    ridge: float
    noise_std: float
    shift: float
    rho: float | None
    epsilon: float


class Outcome(NamedTuple):
    """By row and ρ: regret, fits made, and for replicate 0 the facts."""

    regret: dict[str, dict[str, float]]
    fits: dict[str, dict[str, int]]
    facts: dict[str, dict[str, Facts]]


DETERMINANT = {"trigger": "determinant"}
PRINTED = {"calibration": "published", "initial_rounds": 500, **DETERMINANT}
ENDS = ("0.1", "1")
MAIN = {
    "DPMNL, proved": Variant({}),
    "DPMNL, proved, determinant": Variant(DETERMINANT),
    "DPMNL, proved, (ε, δ)": Variant({}, renyi=True),
    "DPMNL, published, D = 58": Variant({**PRINTED, "max_updates": 58}, published=True),
    "DPMNL, published, D = 8": Variant({**PRINTED, "max_updates": 8}, published=True),
}
GENERAL = {
    "DPMNL, proved": Variant({"initial_rounds": 10}),
    "DPMNL, proved, determinant": Variant({"initial_rounds": 10, **DETERMINANT}),
}
ABLATIONS = {
    "bound (B) instead of Theorem N": Variant({}, calibrate=without_theorem_n, rhos=ENDS),
    "tree instead of BLT": Variant({}, calibrate=with_tree, rhos=ENDS),
    "exploration 0": Variant({"exploration": 0.0}, rhos=ENDS),
    "gram_share 2%": Variant({"gram_share": 0.02}, rhos=ENDS),
    "gram_share 30%": Variant({"gram_share": 0.3}, rhos=ENDS),
    "D_MLE = 4": Variant({"max_updates": 4}, rhos=ENDS),
    "D_MLE = 16": Variant({"max_updates": 16}, rhos=ENDS),
    "theta_norm 0.5": Variant({"theta_norm": 0.5}, rhos=ENDS),
    "theta_norm 2": Variant({"theta_norm": 2.0}, rhos=ENDS),
}
BY_DETERMINANT = {
    "determinant: bound (B) instead of Theorem N": Variant(
        DETERMINANT, calibrate=without_theorem_n, rhos=ENDS
    ),
    "determinant: tree instead of BLT": Variant(DETERMINANT, calibrate=with_tree, rhos=ENDS),
    "determinant: exploration 0": Variant({"exploration": 0.0, **DETERMINANT}, rhos=ENDS),
}
NEWTON = "OnePassNewtonMNL"
YARDSTICKS = ("non-private", "random")
TARGETS = {
    "uniform": {
        "DPMNL, proved": (45, 18, 14),
        "DPMNL, proved, determinant": (50, 20, 16),
        "DPMNL, proved, (ε, δ)": (36, 16, 12),
    },
    "general": {"DPMNL, proved": (9, 7, 6)},
}
SETTINGS = {"uniform": MAIN | ABLATIONS | BY_DETERMINANT, "general": GENERAL}


def accountant_for(
    variant: Variant, rho: str, learner: DPMNL, replicate: int
) -> JointAccountant[Any]:
    """An accountant whose cap holds the run."""
    users, noise = range(HORIZON), NoiseSource.simulation(NOISE + replicate)
    if variant.renyi:
        promise = ApproxDP(EPSILONS[rho], DELTA)
        return JointAccountant(promise, currency=Renyi, users=users, noise=noise)
    cap = ZCDP(rho)
    if variant.published:
        true = learner.worst_loss(HORIZON).zcdp()
        assert true is not None
        cap = ZCDP(true)
    return JointAccountant(cap, users=users, noise=noise)


def run(
    market: Market, variant: Variant, rho: str, replicate: int
) -> tuple[float, DPMNL, JointAccountant[Any]]:
    """One run of DPMNL; its regret."""
    nominal = ZCDP(rho) if variant.published else None
    learner = DPMNL(
        n_items=N_ITEMS,
        dim=DIM,
        max_items=MAX_ITEMS,
        nominal=nominal,
        random_state=replicate,
        **variant.params,
    )
    with patch.object(dpmnl_noise, "proved", variant.calibrate or PROVED):
        accountant = accountant_for(variant, rho, learner, replicate)
        learner.start(accountant)
    with accountant:
        regret = float(market.serve(learner).sum())
    return regret, learner, accountant


def play(setting: str, replicate: int) -> Outcome:
    """One replicate: everybody serves the same users."""
    market = gaussian_market(
        SEED,
        replicate,
        horizon=HORIZON,
        n_items=N_ITEMS,
        dim=DIM,
        general_revenue=setting == "general",
    )
    outcome = Outcome({}, {}, {})
    for title, variant in SETTINGS[setting].items():
        for table in outcome:
            table[title] = {}
        for rho in variant.rhos:
            regret, learner, accountant = run(market, variant, rho, replicate)
            outcome.regret[title][rho] = regret
            outcome.fits[title][rho] = learner.updates_
            if replicate == 0:
                outcome.facts[title][rho] = facts(learner, accountant)
    outcome.regret[NEWTON] = {}
    for rho in RHOS:
        with JointAccountant(
            ZCDP(rho), users=range(HORIZON), noise=NoiseSource.simulation(NOISE + replicate)
        ) as account:
            newton = OnePassNewtonMNL(
                n_items=N_ITEMS, dim=DIM, max_items=MAX_ITEMS, random_state=replicate
            ).start(account)
            outcome.regret[NEWTON][rho] = float(market.serve(newton).sum())
    others: dict[str, Player] = {
        "non-private": NonPrivateMNL(
            horizon=HORIZON,
            dim=DIM,
            max_items=MAX_ITEMS,
            exploration=0.0,
            random_state=replicate,
        ),
        "random": RandomAssortments(max_items=MAX_ITEMS, random_state=replicate),
    }
    for title, player in others.items():
        outcome.regret[title] = {"": float(market.serve(player).sum())}
    return outcome


def facts(learner: DPMNL, accountant: JointAccountant[Any]) -> Facts:
    """The noise of a run and what its certificate states for the most charged user."""
    stated = accountant.certificate(float(DELTA)).guarantees
    rhos = [one.rho for one in stated]
    noise = learner._noise
    return Facts(
        learner.max_updates,
        noise.fit.ridge,
        noise.fit.noise_std,
        noise.shift,
        None if None in rhos else max(rho for rho in rhos if rho is not None),
        max(one.epsilon for one in stated),
    )


# Tables -------------------------------------------------------------------------------------------

Means = dict[str, dict[str, Summary]]


def regret_table(setting: str, means: Means) -> Table:
    """Regret against the targets, and the yardsticks."""
    rows = []
    for title in [*(MAIN if setting == "uniform" else GENERAL), NEWTON]:
        found = [means[title][rho] for rho in RHOS]
        limits = TARGETS[setting].get(title)
        cells = ["", ""]
        if limits is not None:
            pairs = zip(found, limits, strict=True)
            met = " / ".join("yes" if s.mean <= limit else "NO" for s, limit in pairs)
            cells = [" / ".join(map(str, limits)), met]
        rows.append([title, *map(str, found), *cells])
    rows += [[title, *[str(means[title][""])] * 3, "", ""] for title in YARDSTICKS]
    header = ["", *(f"rho = {rho}" for rho in RHOS), "at most", "met"]
    return Table(f"Total regret after 10,000 users, {setting} revenue", header, rows)


def facts_table(outcomes: list[Outcome]) -> Table:
    """Noise, number of fits, and the certificate."""
    rows = []
    for title, variant in MAIN.items():
        for rho in RHOS:
            fact = outcomes[0].facts[title][rho]
            fits = summary(o.fits[title][rho] for o in outcomes)
            nominal = f"ε = {EPSILONS[rho]}" if variant.renyi else f"ρ = {rho}"
            rows.append(
                [
                    title,
                    nominal,
                    f"{fact.ridge:.1f}",
                    f"{fact.noise_std:.1f}",
                    f"{fact.shift:.0f}",
                    f"{fits.mean:.1f} of {fact.calls}",
                    "" if fact.rho is None else f"{fact.rho:.4g}",
                    f"{fact.epsilon:.3f}",
                ]
            )
    header = ["", "nominal", "Δ", "σ", "λ", "fits", "true rho", f"epsilon at {DELTA}"]
    return Table("Noise, fits made and the certificate, replace-one", header, rows)


def ablation_table(
    means: Means, outcomes: list[Outcome]
) -> tuple[Table, dict[str, dict[str, Summary]]]:
    """Each change of the default, paired with it."""
    rows, paired = [], {}
    for base, changes in (
        ("DPMNL, proved", ABLATIONS),
        ("DPMNL, proved, determinant", BY_DETERMINANT),
    ):
        rows.append([base, *(cell for rho in ENDS for cell in (str(means[base][rho]), ""))])
        for title in changes:
            paired[title] = {
                rho: summary(o.regret[title][rho] - o.regret[base][rho] for o in outcomes)
                for rho in ENDS
            }
            cells = (
                (str(means[title][rho]), f"{change.mean:+.2f} ± {change.se:.2f}")
                for rho, change in paired[title].items()
            )
            rows.append([title, *(text for pair in cells for text in pair)])
    header = ["", *(cell for rho in ENDS for cell in (f"rho = {rho}", "change, paired"))]
    return Table("Ablations, uniform revenue", header, rows), paired


def main() -> None:
    """Runs everything and writes the tables."""
    options = parser(__doc__, replicates=30).parse_args()
    tasks = [(setting, r) for setting in SETTINGS for r in range(options.replicates)]
    played = in_parallel(play, tasks, options.jobs)
    outcomes = {
        setting: played[i * options.replicates : (i + 1) * options.replicates]
        for i, setting in enumerate(SETTINGS)
    }
    means: dict[str, Means] = {
        setting: {
            title: {rho: summary(o.regret[title][rho] for o in found) for rho in by_rho}
            for title, by_rho in found[0].regret.items()
        }
        for setting, found in outcomes.items()
    }
    ablations, paired = ablation_table(means["uniform"], outcomes["uniform"])
    suffix = "" if options.replicates == 30 else f"_{options.replicates}"
    write(
        f"dpmnl_regret{suffix}",
        [
            regret_table("uniform", means["uniform"]),
            facts_table(outcomes["uniform"]),
            regret_table("general", means["general"]),
            ablations,
        ],
        {
            "seed": SEED,
            "noise_seed": NOISE,
            "regret": {
                setting: {
                    t: {rho: s._asdict() for rho, s in row.items()} for t, row in all_.items()
                }
                for setting, all_ in means.items()
            },
            "ablation minus default, paired": {
                t: {rho: s._asdict() for rho, s in row.items()} for t, row in paired.items()
            },
            "facts": {
                setting: {
                    t: {rho: fact._asdict() for rho, fact in row.items()}
                    for t, row in found[0].facts.items()
                }
                for setting, found in outcomes.items()
            },
            "per replicate": {s: [o.regret for o in found] for s, found in outcomes.items()},
            "fits per replicate": {s: [o.fits for o in found] for s, found in outcomes.items()},
        },
        f"{options.replicates} replicates, seed {SEED}; mean ± standard error.",
    )


if __name__ == "__main__":
    main()
