"""Objective perturbation: noise, calibration, error against the published noise, time of a fit.

    OMP_NUM_THREADS=1 python benchmarks/objective_perturbation.py [--replicates 30] [--jobs 2]

Wall times on a shared machine: minima (and medians) of several tries.  Nothing here is asserted.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from reporting import Table, in_parallel, parser, write

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.losses import compose
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, Renyi
from privlearn.mechanisms import (
    LinearObjective,
    MultinomialLogit,
    ObjectivePerturbation,
    published,
)
from privlearn.mechanisms.choice_model import Answer, clip_items, fit_mle
from privlearn.mechanisms.objective_perturbation import least_noise
from privlearn.mechanisms.objectives import Objective
from privlearn.mechanisms.regions import EuclideanBall, Region
from privlearn.mechanisms.solver import Problem
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array

SEED = 12101
NOISE = 12_101_000
DIM, MAX_ITEMS, HORIZON = 5, 10, 10_000
LOGIT = MultinomialLogit(MAX_ITEMS, DIM)
DELTA = "1e-8"
RHOS = ("0.1", "0.5", "1")
EPSILONS = {"0.1": "2.54", "0.5": "6.09", "1": "8.98"}
CALLS = (1, 4, 8, 16, 58)
FITS = Fraction(9, 10)
"""Part of the budget for all fits, as in DPMNL; one call gets all of it."""
RADIUS = 2.0
TRIES = 5


# Noise --------------------------------------------------------------------------------------------


def noise_rows() -> tuple[list[list[str]], dict[str, float]]:
    """σ at ρ = 0.1, d = 5 and Δ = 50 against its floor and the published one."""
    std = least_noise(LOGIT, 50.0, ZCDP("0.1"))
    whole = ObjectivePerturbation.with_ridge(LOGIT, 50.0, ZCDP("0.1"), max_rows=HORIZON)
    floor = LOGIT.difference / math.sqrt(2 * 0.1)
    printed = published.theorem_1(0.1, DIM, DIM)
    rows = [
        ["Gaussian floor s/√(2ρ)", f"{floor:.3f}", "1", ""],
        ["exact minimiser", f"{std:.3f}", f"{std / floor:.4f}", "<= 1.04"],
        [
            "with the blur paid (a thousandth of ρ)",
            f"{whole.noise_std:.3f}",
            f"{whole.noise_std / floor:.4f}",
            "<= 1.04",
        ],
        [
            f"published (Δ = {printed.ridge:.0f})",
            f"{printed.noise_std:.1f}",
            f"{printed.noise_std / floor:.1f}",
            "",
        ],
    ]
    return rows, {
        "floor": floor,
        "exact": std,
        "with_blur": whole.noise_std,
        "published": printed.noise_std,
    }


def fits_budget(whole: Currency, calls: int) -> Currency:
    """What all calls may spend."""
    return whole if calls == 1 else whole.share(FITS)


def renyi_cap(epsilon: str) -> Renyi:
    """The cap that an accountant makes of (ε, δ)."""
    with JointAccountant(
        ApproxDP(epsilon, DELTA),
        currency=Renyi,
        users=range(1),
        noise=NoiseSource.simulation(0),
    ) as accountant:
        return accountant.budget


def tilt_table(theta_norm: float) -> tuple[Table, dict[str, Any]]:
    """(Δ, σ) by budget and calls, and the published ones."""
    rows, numbers = [], {}
    for calls in CALLS:
        for title in ("proved, ρ", "proved, (ε, δ)", "published, ρ"):
            cells = []
            for rho in RHOS:
                if title == "published, ρ":
                    part = float(rho) * (1.0 if calls == 1 else float(FITS)) / calls
                    ridge, std = published.theorem_1(part, DIM, DIM)
                else:
                    cap = ZCDP(rho) if title == "proved, ρ" else renyi_cap(EPSILONS[rho])
                    fit = ObjectivePerturbation.calibrated(
                        LOGIT,
                        fits_budget(cap, calls),
                        max_rows=HORIZON,
                        calls=calls,
                        theta_norm=theta_norm,
                    )
                    ridge, std = fit.ridge, fit.noise_std
                digits = 1 if ridge < 1000 else 0
                cells.append(f"({ridge:.{digits}f}, {std:.{digits}f})")
                numbers[f"{calls} calls, {title} = {rho}"] = (ridge, std)
            rows.append([f"{calls}", title, *cells])
    budgets = (f"ρ = {rho} (ε = {epsilon})" for rho, epsilon in EPSILONS.items())
    header = ["calls", "", *budgets]
    share = "one call: the whole budget; more: 90% of it for all"
    title = f"(Δ, σ), d = 5, K = 10, theta_norm = {theta_norm:g}; {share}"
    return Table(title, header, rows), numbers


# Error --------------------------------------------------------------------------------------------


def choices(rng: np.random.Generator, n: int) -> tuple[Answer, Array]:
    """n users who saw K random items; and their θ*."""
    theta = rng.random(DIM)
    features = clip_items(rng.standard_normal((n, MAX_ITEMS, DIM)))
    weights = np.exp(features @ theta)
    edges = weights.cumsum(axis=1) / (1 + weights.sum(axis=1, keepdims=True))
    place = (edges < rng.random((n, 1))).sum(axis=1)
    choice = np.where(place < MAX_ITEMS, place, -1)
    return Answer(features, np.ones((n, MAX_ITEMS)), choice), theta


def release(fit: ObjectivePerturbation[Any], rows: Rows[Any], seed: int) -> Array:
    """One release, paid from a budget that is just enough."""
    with CentralAccountant(
        _zcdp_of(fit), users=rows.users, noise=NoiseSource.simulation(seed)
    ) as accountant:
        token = accountant.issue(fit.loss(), users=rows.users, label="fit")
        return fit.release(rows, token).value


def _zcdp_of(fit: ObjectivePerturbation[Any], calls: int = 1) -> ZCDP:
    rho = compose([(fit.loss(), calls)]).zcdp()
    assert rho is not None
    return ZCDP(rho)


class Errors(NamedTuple):
    """Squared distances to the MLE and to θ* of one replicate."""

    proved: tuple[float, float]
    printed: tuple[float, float]


def errors(replicate: int, rho: str, calls: int) -> Errors:
    """One call of several on 10,000 users, proved and published noise of the same seed."""
    answer, theta = choices(np.random.default_rng([SEED, replicate]), HORIZON)
    best = fit_mle(answer, outside=True)
    rows = Rows.seal(answer, users=range(HORIZON))
    each = fits_budget(ZCDP(rho), calls)
    fits = (
        ObjectivePerturbation.calibrated(LOGIT, each, max_rows=HORIZON, calls=calls),
        printed_fit(rho, calls),
    )
    found = [release(fit, rows, NOISE + replicate) for fit in fits]
    squares = [
        (float(np.sum((value - best) ** 2)), float(np.sum((value - theta) ** 2))) for value in found
    ]
    return Errors(*squares)


def printed_fit(rho: str, calls: int) -> ObjectivePerturbation[Answer]:
    """Theorem 1 at a nominal ρ for all calls."""
    nominal = fits_budget(ZCDP(rho), calls)
    assert isinstance(nominal, ZCDP)
    tilt = published.theorem_1(float(nominal.rho) / calls, DIM, DIM)
    return ObjectivePerturbation.published(LOGIT, tilt, max_rows=HORIZON)


def error_table(replicates: int, jobs: int) -> tuple[Table, dict[str, Any]]:
    """Root mean square errors, and what the published noise really costs."""
    rows, numbers = [], {}
    for calls in (1, 8):
        for rho in RHOS:
            found = in_parallel(errors, [(r, rho, calls) for r in range(replicates)], jobs)
            roots = [
                math.sqrt(np.mean([pair[k] for pair in column]))
                for column in zip(*found, strict=True)
                for k in (0, 1)
            ]
            true = float(_zcdp_of(printed_fit(rho, calls), calls).rho)
            nominal = float(rho) * (1 if calls == 1 else float(FITS))
            rows.append(
                [
                    f"{calls}, ρ = {rho}",
                    f"{roots[0]:.4f}",
                    f"{roots[2]:.4f}",
                    f"{roots[2] / roots[0]:.1f}",
                    f"{roots[1]:.4f}",
                    f"{roots[3]:.4f}",
                    f"{true:.2g}",
                    f"{true / nominal:.2g}",
                ]
            )
            numbers[f"{calls} calls, rho={rho}"] = {
                "per replicate": [one._asdict() for one in found],
                "true_rho_of_published": true,
            }
    header = [
        "calls, budget",
        "to MLE: proved",
        "published",
        "ratio",
        "to θ*: proved",
        "published",
        "true ρ of published",
        "of nominal",
    ]
    return Table(
        "Rms error of one fit on 10,000 users, logit, d = 5, K = 10", header, rows
    ), numbers


# Time ---------------------------------------------------------------------------------------------


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def calibrated(budget: Currency) -> ObjectivePerturbation[Answer]:
    """The noise of DPMNL's fits."""
    return ObjectivePerturbation.calibrated(LOGIT, budget, max_rows=HORIZON, calls=8)


def first_call(code: str) -> float:
    """What ``code`` prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def calibration_times() -> dict[str, tuple[float, float, float, float]]:
    """Seconds: the first call of a process, without and with SciPy's optimisers imported before it,
    and best and median of warm ones with new budgets.
    """
    code = (
        "import time\n"
        "{before}\n"
        "from privlearn.losses.budgets import ZCDP, Renyi\n"
        "from privlearn.mechanisms import MultinomialLogit, ObjectivePerturbation\n"
        "a = time.perf_counter()\n"
        "ObjectivePerturbation.calibrated("
        "MultinomialLogit(10, 5), {budget}, max_rows=10_000, calls=8)\n"
        "print(time.perf_counter() - a)"
    )
    cap = renyi_cap("2.54")
    (order,) = cap.curve
    budgets: dict[str, tuple[str, Callable[[int], Currency]]] = {
        "ZCDP": ("ZCDP('0.1')", lambda i: ZCDP(f"0.{1000 + i}")),
        "Renyi, one order": (
            f"Renyi({{'{order}': '{cap.curve[order]}'}})",
            lambda i: cap.share(Fraction(1000 - i, 1000)),
        ),
    }
    times = {}
    for title, (text, budget) in budgets.items():
        cold, imported = (
            min(first_call(code.format(before=before, budget=text)) for _ in range(TRIES))
            for before in ("", "import scipy.optimize")
        )
        caps = [budget(i + 1) for i in range(20)]
        warm = [seconds(partial(calibrated, cap)) for cap in caps]
        times[title] = (cold, imported, min(warm), statistics.median(warm))
    return times


class Case(NamedTuple):
    """An objective with data drawn from its model."""

    objective: Objective[Any]
    draw: Callable[[np.random.Generator, int], Any]


def labelled(mean: Callable[[np.random.Generator, Array], Array]) -> Callable[..., Any]:
    """Vectors of the unit ball with labels of a linear model, ‖θ*‖ = 1."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        theta = rng.standard_normal(DIM)
        x = clip_items(rng.standard_normal((n, DIM)))
        return x, mean(rng, x @ (theta / np.linalg.norm(theta)))

    return draw


CASES = {
    "MNL, K = 10": Case(LOGIT, lambda rng, n: choices(rng, n)[0]),
    "logistic": Case(
        LinearObjective.logistic(DIM),
        labelled(lambda rng, u: (rng.random(len(u)) < 1 / (1 + np.exp(-u))).astype(float)),
    ),
    "Poisson, rate <= 4": Case(
        LinearObjective.poisson(DIM, 4.0),
        labelled(lambda rng, u: rng.poisson(np.exp(u)).astype(float)),
    ),
    "Huber, threshold 1": Case(
        LinearObjective.huber(DIM), labelled(lambda rng, u: u + 0.3 * rng.standard_t(3, len(u)))
    ),
}


def fit_row(title: str, region: Region | None, n: int) -> tuple[list[str], dict[str, Any]]:
    """One objective, region and size."""
    case = CASES[title]
    data = case.draw(np.random.default_rng([SEED, n]), n)
    rows = Rows.seal(data, users=range(n))
    fit = ObjectivePerturbation.calibrated(
        case.objective, ZCDP("0.1"), max_rows=n, region=region, theta_norm=1.0
    )
    steps: list[int] = []
    times = []
    hessian = Problem.hessian

    def counted(problem: Problem, theta: Array) -> Array:
        steps[-1] += 1
        return hessian(problem, theta)

    with patch.object(Problem, "hessian", counted):
        for i in range(TRIES):
            steps.append(0)
            times.append(seconds(partial(release, fit, rows, NOISE + i)))
    theta = release(fit, rows, NOISE)
    curvature = case.objective.hessian_sum(case.objective.domain.clip(data), theta)
    inverse = np.linalg.inv(curvature + fit.ridge * np.eye(DIM))
    tilt, blur = fit.noise_std * float(np.linalg.norm(inverse)), fit.blur_std * math.sqrt(DIM)
    where = "R^5" if region is None else f"ball of {RADIUS:g}"
    cells = [
        f"{title}, {where}",
        f"{n:,}",
        f"{fit.ridge:.1f}",
        f"{fit.noise_std:.2f}",
        f"{fit.solver_error:.1e}",
        f"{blur:.1e}",
        f"{tilt:.1e}",
        f"{min(steps)}" if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}",
        f"{min(times) * 1e3:.1f} ({statistics.median(times) * 1e3:.1f})",
    ]
    return cells, {
        "ridge": fit.ridge,
        "noise_std": fit.noise_std,
        "solver_error": fit.solver_error,
        "blur_std": fit.blur_std,
        "rms_of_blur": blur,
        "rms_of_tilt": tilt,
        "newton_steps": steps,
        "seconds": times,
    }


def fit_table() -> tuple[Table, dict[str, Any]]:
    """Time, steps, certified error and blur of fits."""
    rows, numbers = [], {}
    regions: tuple[Region | None, ...] = (None, EuclideanBall(DIM, RADIUS))
    for title in CASES:
        for region in regions:
            for n in (10_000, 100_000):
                cells, found = fit_row(title, region, n)
                rows.append(cells)
                numbers[f"{cells[0]}, n={n}"] = found
    header = [
        "",
        "n",
        "Δ",
        "σ",
        "certified error e",
        "rms of the blur, v√d",
        "of the tilt, σ‖H⁻¹‖",
        "Newton steps",
        "ms, min (median)",
    ]
    return Table("One fit at ρ = 0.1, d = 5, one call", header, rows), numbers


def main() -> None:
    """Measures everything."""
    options = parser(__doc__, replicates=30).parse_args()
    times = calibration_times()
    fits, fit_numbers = fit_table()
    noise, noise_numbers = noise_rows()
    tilts = {norm: tilt_table(norm) for norm in (1.0, 1.3)}
    error, error_numbers = error_table(options.replicates, options.jobs)
    calibration = Table(
        "Calibration, logit, 8 calls, ms",
        [
            "currency",
            "first call of a process",
            "scipy.optimize imported before",
            "warm: min (median)",
            "at most",
        ],
        [
            [
                title,
                f"{cold * 1e3:.0f}",
                f"{imported * 1e3:.0f}",
                f"{best * 1e3:.1f} ({middle * 1e3:.1f})",
                "50",
            ]
            for title, (cold, imported, best, middle) in times.items()
        ],
    )
    write(
        "objective_perturbation",
        [
            Table(
                "σ of the tilt at ρ = 0.1, d = 5, Δ = 50",
                ["", "σ", "over the floor", "target"],
                noise,
            ),
            *(table for table, _ in tilts.values()),
            error,
            calibration,
            fits,
        ],
        {
            "seed": SEED,
            "noise_seed": NOISE,
            "noise": noise_numbers,
            "tilts": {str(norm): numbers for norm, (_, numbers) in tilts.items()},
            "errors": error_numbers,
            "calibration_s": times,
            "fits": fit_numbers,
        },
        f"{options.replicates} replicates, seed {SEED}, noise seed {NOISE}. Times are minima of "
        f"{TRIES} or more tries; a fit's time is that of the whole release: clipping, solving, "
        "accountant and ledger in memory.",
    )


if __name__ == "__main__":
    main()
