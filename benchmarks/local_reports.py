"""Local reports: mean squared error against dimension and ε, ours and the published ones; speed.

Errors are exact (`Report.mean_squared_error`, checked against samples and quadrature by the tests),
for vectors of the unit ball; nothing is random here but the speed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import Table, parser, write

from privlearn.accountants import LocalAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ApproxDP, Currency, GaussianDP, PureDP
from privlearn.mechanisms import (
    BallReport,
    NoisyReport,
    OneOfKReport,
    ProjectedReport,
)
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, PSDTrace

DIMS = (1, 2, 5, 10, 20, 50, 200)
EPSILONS = (0.25, 0.5, 1, 2, 4, 8)
KEPT = 10
"""Numbers of a projected report, or all if there are fewer."""
WEIGHT = 0.7
"""Of the reward in the joint factor (x, w·r)."""


def gaussian(epsilon: float, delta: str) -> Currency:
    """The Gaussian budget of exactly (ε, δ)."""
    book: Any = LocalAccountant(
        ApproxDP(epsilon, delta),
        users=range(1),
        noise=NoiseSource.simulation(0),
        currency=GaussianDP,
    )
    budget: Currency = book.budget
    return budget


def errors(dim: int, epsilon: float) -> dict[str, float]:
    """Worst mean squared error of one report about a vector with ‖x‖₂ <= 1."""
    unit = Ball(1.0, dim)
    found: dict[str, Any] = {
        "Duchi et al.": BallReport.duchi(dim, 1.0, epsilon),
        "PrivUnit": BallReport.privunit(dim, 1.0, epsilon),
        "PrivUnitG": BallReport.privunit_g(dim, 1.0, epsilon),
        "best": BallReport.best(dim, 1.0, epsilon),
        f"projected to {KEPT}": ProjectedReport.privunit(dim, 1.0, epsilon, size=min(dim, KEPT)),
        "Gaussian, δ = 1e-2": NoisyReport.calibrated(unit, gaussian(epsilon, "0.01")),
        "Gaussian, δ = 1e-6": NoisyReport.calibrated(unit, gaussian(epsilon, "1e-6")),
        "Laplace": NoisyReport.calibrated(unit, PureDP(epsilon), noise="laplace"),
        "published ball": BallReport.duchi(dim, 2.0, epsilon),
    }
    return {name: report.mean_squared_error() for name, report in found.items()}


def arms_errors(dim: int, epsilon: float) -> tuple[float, float]:
    """Of the real part of a synthetic update: at full ε, and as published, R = 2 and ε/2."""
    ours: OneOfKReport[Any] = OneOfKReport(BallReport.best(dim, 1.0, epsilon), 3)
    return ours.report.mean_squared_error(), BallReport.duchi(
        dim, 2.0, epsilon / 2
    ).mean_squared_error()


def pair_stds(epsilon: float, delta: float = 0.01) -> dict[str, float]:
    """Noise on an entry of xr, the same for xxᵀ but where said, for ‖x‖ <= 1 and |r| <= 1."""
    report: NoisyReport[Any] = NoisyReport.calibrated(
        PSDTrace(1 + WEIGHT**2, 2), gaussian(epsilon, str(delta))
    )
    return {
        "authors' code": 6 * math.sqrt(2 * math.log(2.5 / delta)) / epsilon,
        "paper, xr": 2 * math.sqrt(2 * math.log(1.25 / delta)) / epsilon,
        "paper, xxᵀ": 4 * math.sqrt(2 * math.log(1.25 / delta)) / epsilon,
        "Zheng et al.": 2 * math.sqrt(4 * math.log(1.25 / delta)) / epsilon,
        "joint, xr": report.error_std() / (math.sqrt(2) * WEIGHT),
        "joint, xxᵀ, diagonal": report.error_std(),
        "joint, xxᵀ, off it": report.error_std() / math.sqrt(2),
    }


def speed(make: Callable[[], Any], rows: np.ndarray[Any, Any]) -> dict[str, float]:
    """CPU microseconds per report, the best of several tries: at once, and one after the other."""
    n, report = len(rows), make()
    best = {"at once": math.inf, "one by one": math.inf}
    for _ in range(20):
        for way in best:
            price = report.loss()
            cap = PureDP(40) if price.pure() is not None else GaussianDP.from_mu_squared(9)
            book: Any = LocalAccountant(
                cap, users=range(n), noise=NoiseSource.secure(), ledger=Ledger.memory()
            )
            token = book.issue(price, users=range(n), label="messages")
            began = time.process_time()
            if way == "at once":
                report.release(Rows.seal(rows, users=range(n)), token)
            else:
                with report.open(token) as stream:
                    for i in range(n):
                        stream.append(Rows.seal(rows[i : i + 1], users=range(i, i + 1)))
            best[way] = min(best[way], (time.process_time() - began) / n * 1e6)
    return best


def main() -> None:
    """Prints and writes all tables."""
    parser(__doc__).parse_args()
    tables: list[Table] = []
    numbers: dict[str, Any] = {}
    for epsilon in EPSILONS:
        by_dim = {dim: errors(dim, epsilon) for dim in DIMS}
        names = list(by_dim[1])
        lines = [[f"{dim}", *(f"{by_dim[dim][name]:.3g}" for name in names)] for dim in DIMS]
        tables.append(Table(f"Mean squared error, ε = {epsilon:g}", ["d", *names], lines))
        numbers[f"errors, epsilon {epsilon:g}"] = by_dim
    ratios = {
        dim: [
            numbers[f"errors, epsilon {epsilon:g}"][dim]["published ball"]
            / numbers[f"errors, epsilon {epsilon:g}"][dim]["best"]
            for epsilon in EPSILONS
        ]
        for dim in DIMS
    }
    heads = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    lines = [[f"{dim}", *(f"{ratio:.1f}" for ratio in ratios[dim])] for dim in DIMS]
    tables.append(Table("Published ball over the best, one vector", ["d", *heads], lines))
    arms = {dim: [arms_errors(dim, epsilon) for epsilon in EPSILONS] for dim in DIMS}
    lines = [
        [f"{dim}", *(f"{published / ours:.1f}" for ours, published in arms[dim])] for dim in DIMS
    ]
    tables.append(Table("Published over ours, one arm of a synthetic update", ["d", *heads], lines))
    pairs = {epsilon: pair_stds(epsilon) for epsilon in EPSILONS}
    lines = [[f"{e:g}", *(f"{std:.3g}" for std in stds.values())] for e, stds in pairs.items()]
    tables.append(
        Table(
            "Noise std of the pair (xxᵀ, xr), δ = 0.01", ["ε", *next(iter(pairs.values()))], lines
        )
    )
    vectors = np.random.default_rng(0).normal(size=(4_000, 10)) / 4
    factors = np.random.default_rng(0).normal(size=(4_000, 1, 11)) / 4
    speeds = {
        "PrivUnit, d = 10": speed(lambda: BallReport.privunit(10, 1.0, 1), vectors),
        "PrivUnitG, d = 10": speed(lambda: BallReport.privunit_g(10, 1.0, 1), vectors),
        "Gaussian pair, d = 10": speed(
            lambda: NoisyReport.calibrated(PSDTrace(1.49, 11), gaussian(1, "0.01")), factors
        ),
    }
    lines = [[name, *(f"{us:.1f}" for us in found.values())] for name, found in speeds.items()]
    tables.append(Table("CPU microseconds per report", ["", "at once", "one by one"], lines))
    numbers |= {"ratios": ratios, "arms": arms, "pairs": pairs, "speed": speeds}
    write(
        "local_reports",
        tables,
        numbers,
        "Worst mean squared error of one report about a vector of the unit ball, at replace-one; "
        "for ball reports that is at x = 0, and less by ‖x‖² elsewhere. All are pure but the "
        "Gaussian ones. The published ball has R = 2 (2·c_r·C_B).",
    )


if __name__ == "__main__":
    main()
