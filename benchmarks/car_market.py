"""Regret in the market of real car profiles, the quickstart's setting.

    python benchmarks/car_market.py [--replicates 10] [--jobs 2]

100 cars on offer, K = 10 shown, T = 10,000 simulated people, uniform revenue, d = 22.  Replicate r
has market seed SEED + r and noise seed NOISE + r; the learner has its default parameters.
"""

from __future__ import annotations

from reporting import Table, in_parallel, parser, summary, write

from privlearn.accountants import JointAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.runs.cars import CAR_MARKET_SIDE_INFORMATION, car_market
from privlearn.runs.references import NonPrivateMNL, RandomAssortments

SEED = 9001
NOISE = 9_001_000
HORIZON, N_ITEMS, MAX_ITEMS = 10_000, 100, 10
RHOS = ("0.1", "1")
MARKS = (1_000, 3_000, 10_000)


def play(replicate: int) -> dict[str, list[float]]:
    """Regret of every player after each of MARKS."""
    market = car_market(SEED + replicate, horizon=HORIZON, n_items=N_ITEMS)
    dim = len(market.theta)
    regret = {}
    for rho in RHOS:
        with JointAccountant(
            ZCDP(rho),
            users=range(HORIZON),
            noise=NoiseSource.simulation(NOISE + replicate),
            side_information=CAR_MARKET_SIDE_INFORMATION,
        ) as accountant:
            learner = OnePassNewtonMNL(
                n_items=N_ITEMS, dim=dim, max_items=MAX_ITEMS, random_state=replicate
            ).start(accountant)
            regret[f"private, rho = {rho}"] = market.serve(learner)
    for exploration, player in ((0.0, "non-private"), (2.0, "non-private, bonus")):
        reference = NonPrivateMNL(
            horizon=HORIZON,
            dim=dim,
            max_items=MAX_ITEMS,
            exploration=exploration,
            random_state=replicate,
        )
        regret[player] = market.serve(reference)
    regret["random"] = market.serve(RandomAssortments(max_items=MAX_ITEMS, random_state=replicate))
    return {p: [float(r[:mark].sum()) for mark in MARKS] for p, r in regret.items()}


def main() -> None:
    """Prints and writes the table."""
    options = parser(__doc__, replicates=10).parse_args()
    found = in_parallel(play, [(r,) for r in range(options.replicates)], options.jobs)
    rows = [
        [player, *(str(summary(f[player][i] for f in found)) for i in range(len(MARKS)))]
        for player in found[0]
    ]
    suffix = "" if options.replicates == 10 else f"_{options.replicates}"
    write(
        f"car_market{suffix}",
        [Table("Regret in the car market", ["", *(f"after {m:,}" for m in MARKS)], rows)],
        {"seed": SEED, "noise_seed": NOISE, "regret": found},
        f"{options.replicates} replicates, market seeds from {SEED}; mean ± standard error.",
    )


if __name__ == "__main__":
    main()
