"""Errors of single statistics beside OpenDP and diffprivlib, at the same guarantee.

    pip install opendp==0.16.0 diffprivlib==0.6.6
    python benchmarks/table_statistics.py [--replicates 60] [--jobs 2]

All replace one row; numbers of rows and bounds are public.  OpenDP has the better of Laplace noise
at ε and Gaussian noise by zCDP at (ε, δ); of quantiles, the
better of ε/k and ρ/k for each of k, with 4,096 candidates.  diffprivlib has ε, and divides it by
itself; of histograms ε/2, as its price is for a row more or less.  Quantiles have a quarter of the
replicates.  Errors are mean absolute ones, of quantiles in ranks (to the nearest that a value is
good for), on columns of tables that scikit-learn and statsmodels ship, and two laws.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import Table, in_parallel, parser, summary, write

import privlearn.statistics as ours
from privlearn.accountants import in_zcdp
from privlearn.losses.budgets import ApproxDP
from privlearn.rows.domains import Array

FIRST_SEED = 5100
DELTA = 1e-6
EPSILONS = (0.3, 1.0)
QUARTILES = (0.25, 0.5, 0.75)
DECILES = tuple(round(0.1 * i, 1) for i in range(1, 10))
ASKED: dict[str, tuple[float, ...]] = {
    "median": (0.5,),
    "quartiles": QUARTILES,
    "deciles": DECILES,
}
BINS = 10
STATISTICS = ("sum", "mean", "variance", "histogram", *ASKED)
TIED = ("fair: age", "fair: yrs_married", "randhie: disea")
CANDIDATES = 4096
NOTES = (
    "The median takes the same mechanism at the same price everywhere: its ratio is that of few "
    "replicates to the better of two rivals. On 1,000 evenly spaced values at ε = 1 and 300 "
    "replicates privlearn, OpenDP and diffprivlib are off by 1.98, 1.99 and 1.95 ranks (± 0.12)."
)
PROBE = 1e6
"""A scale at which the price of OpenDP's noise is asked for."""


def columns() -> dict[str, tuple[Array, float, float]]:
    """Values and their public bounds."""
    import statsmodels.api as sm  # of which this only takes tables
    from sklearn.datasets import load_breast_cancer, load_diabetes

    fair, rand = (getattr(sm.datasets, name).load_pandas().data for name in ("fair", "randhie"))
    rng = np.random.default_rng(99)
    found = {
        "diabetes: target": (load_diabetes().target, 0, 400),
        "cancer: radius": (load_breast_cancer().data[:, 0], 0, 40),
        "fair: age": (fair.age, 15, 60),
        "fair: yrs_married": (fair.yrs_married, 0, 40),
        "randhie: disea": (rand.disea, 0, 60),
        "log-normal": (np.exp(rng.normal(10, 0.6, 10_000)), 0, 200_000),
        "normal": (rng.normal(size=3_000), -5, 5),
    }
    return {
        name: (np.clip(np.asarray(v, dtype=np.float64), a, b), float(a), float(b))
        for name, (v, a, b) in found.items()
    }


def truth(statistic: str, x: Array, low: float, high: float) -> Array:
    if statistic == "histogram":
        return np.histogram(x, BINS, (low, high))[0].astype(float)
    functions: dict[str, Callable[[Array], Any]] = {
        "sum": np.sum,
        "mean": np.mean,
        "variance": np.var,
    }
    return np.atleast_1d(functions[statistic](x))


def error(statistic: str, found: Any, x: Array, low: float, high: float) -> float:
    """Mean absolute error; of quantiles, ranks between the value and the probability."""
    values = np.atleast_1d(np.asarray(found, dtype=np.float64))
    if statistic not in ASKED:
        return float(np.abs(values - truth(statistic, x, low, high)).mean())
    ordered, targets = np.sort(x), np.array(ASKED[statistic]) * len(x)
    near = (high - low) / 2 / CANDIDATES  # as near as the rivals' candidates can tell
    below = np.searchsorted(ordered, values - near, "left")
    above = np.searchsorted(ordered, values + near, "right")
    return float(np.maximum(np.maximum(below - targets, targets - above), 0).mean())


def own(
    statistic: str, x: Array, low: float, high: float, epsilon: float, seed: int, intervals: bool
) -> Any:
    """What this package finds."""
    given: dict[str, Any] = {
        "budget": ApproxDP(epsilon, str(DELTA)),
        "bounds": (low, high),
        "simulate_noise": seed,
    }
    if statistic in ASKED:
        asked = ours.quantiles(x, None, ASKED[statistic], intervals=intervals, **given)
        return list(q.value for q in asked.quantiles.values())
    if statistic == "histogram":
        counts = ours.histogram(x, bins=BINS, **given).histogram
        return [one.value for label, one in counts.items() if label != "missing"]
    return getattr(ours, statistic)(x, **given)[statistic].value


def opendp(measurements: list[Any], statistic: str, x: Array, low: float, high: float) -> Any:
    """What OpenDP finds."""
    if statistic == "histogram":
        indices = np.minimum((x - low) / (high - low) * BINS, BINS - 1).astype(int).tolist()
        return measurements[0](indices)[:BINS]
    return [made(x.tolist()) for made in measurements]


def opendp_made(statistic: str, n: int, low: float, high: float, epsilon: float) -> list[Any]:
    """Its measurements, by the better of both ways."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    atoms = dp.atom_domain(bounds=(low, high), nan=False)
    if statistic in ASKED:
        atoms = dp.atom_domain(T=float, nan=False)
    if statistic == "histogram":
        atoms = dp.atom_domain(T=int)
    space = dp.vector_domain(atoms, size=n), dp.symmetric_distance()
    if statistic in ASKED:
        return [
            _opendp_quantile(dp, space, statistic, q, low, high, epsilon) for q in ASKED[statistic]
        ]
    if statistic == "histogram":
        first, second = (
            space >> dp.t.then_count_by_categories(list(range(BINS)), MO=distance, TOA="int")
            for distance in ("L1Distance<int>", "L2Distance<int>")
        )
    else:
        then: dict[str, Any] = {
            "sum": dp.t.then_sum,
            "mean": dp.t.then_mean,
            "variance": dp.t.then_variance,
        }
        first = second = space >> then[statistic]()

    rho = float(in_zcdp(ApproxDP(epsilon, str(DELTA))).rho)
    # ε falls as 1/scale, ρ as its square
    pure = (first >> dp.m.then_laplace(PROBE)).map(2) * PROBE / epsilon
    squared = (second >> dp.m.then_gaussian(PROBE)).map(2) * PROBE**2 / rho
    if np.sqrt(2) * pure <= np.sqrt(squared):
        return [first >> dp.m.then_laplace(pure)]
    return [second >> dp.m.then_gaussian(float(np.sqrt(squared)))]


def _opendp_quantile(
    dp: Any, space: Any, statistic: str, q: float, low: float, high: float, epsilon: float
) -> Any:
    candidates = (low + (np.arange(CANDIDATES) + 0.5) * (high - low) / CANDIDATES).tolist()
    rho = float(in_zcdp(ApproxDP(epsilon, str(DELTA))).rho)

    def made(measure: Any, scale: float) -> Any:
        return space >> dp.m.then_private_quantile(measure, candidates, q, scale)

    pure, zcdp = dp.max_divergence(), dp.zero_concentrated_divergence()
    number = len(ASKED[statistic])
    by_epsilon = made(pure, PROBE).map(2) * PROBE * number / epsilon
    by_rho = float(np.sqrt(made(zcdp, PROBE).map(2) * PROBE**2 * number / rho))
    return made(pure, by_epsilon) if by_epsilon <= by_rho else made(zcdp, by_rho)


def diffprivlib(statistic: str, x: Array, low: float, high: float, epsilon: float) -> Any:
    """What diffprivlib finds."""
    # its models ask for what scikit-learn has no longer; its tools do not need them
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    given: dict[str, Any] = {"epsilon": epsilon, "bounds": (low, high)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if statistic in ASKED:
            return tools.quantile(x, list(ASKED[statistic]), **given)
        if statistic == "histogram":
            # its price is that of one row more, which replaces half of one
            return tools.histogram(x, epsilon=epsilon / 2, bins=BINS, range=(low, high))[0]
        function = {"sum": tools.sum, "mean": tools.mean, "variance": tools.var}[statistic]
        return function(x, **given)


def cell(name: str, epsilon: float, statistic: str, replicates: int) -> dict[str, list[float]]:
    """Errors of all ways on one column, at one ε, over seeds."""
    x, low, high = columns()[name]
    made = opendp_made(statistic, len(x), low, high, epsilon)
    found: dict[str, list[float]] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + replicates):
        here: dict[str, Any] = {
            "privlearn": own(statistic, x, low, high, epsilon, seed, intervals=False)
        }
        if statistic in ASKED:
            here["with intervals"] = own(statistic, x, low, high, epsilon, seed, intervals=True)
        here["OpenDP"] = opendp(made, statistic, x, low, high)
        here["diffprivlib"] = diffprivlib(statistic, x, low, high, epsilon)
        for way, value in here.items():
            found.setdefault(way, []).append(error(statistic, value, x, low, high))
    return found


def _short(errors: dict[str, list[float]]) -> dict[str, list[float]]:
    """Four digits of each, so that the record is not heavy."""
    return {way: [float(f"{error:.4g}") for error in each] for way, each in errors.items()}


def main() -> None:
    given = parser(__doc__, replicates=60).parse_args()
    several = {s: given.replicates // (4 if s in ASKED else 1) for s in STATISTICS}
    tasks = [(c, e, s, several[s]) for s in STATISTICS for e in EPSILONS for c in columns()]
    report(tasks, in_parallel(cell, tasks, given.jobs))


def report(tasks: list[tuple[Any, ...]], results: list[dict[str, list[float]]]) -> None:
    """Prints and writes the tables."""
    lines: list[list[str]] = []
    totals: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (column, epsilon, statistic, _), errors in zip(tasks, results, strict=True):
        means = {way: summary(each) for way, each in errors.items()}
        best = min(means[way].mean for way in ("OpenDP", "diffprivlib"))
        for way in ("privlearn", "with intervals"):
            if way in means and column not in TIED * (statistic in ASKED):
                totals.setdefault((statistic, way), []).append((means[way].mean, best))
        ways = ("privlearn", "with intervals", "OpenDP", "diffprivlib")
        shown = [f"{means[way].mean:.4g}" if way in means else "" for way in ways]
        ratio = f"{means['privlearn'].mean / best:.2f}" if best else ""
        lines.append([f"{statistic}, {column}", f"{epsilon:g}", *shown, ratio])
    overall = [
        [statistic, way, f"{_ratio(statistic, each):.3f}"]
        for (statistic, way), each in totals.items()
    ]
    tables = [
        Table(
            "Error over that of the rival that is better in the cell: geometric mean over columns "
            "and ε; of quantiles the quotient of sums, over columns without many equal values",
            ["statistic", "way", "ratio"],
            overall,
        ),
        Table(
            f"Mean absolute error (of quantiles: ranks) at (ε, {DELTA:g})",
            ["", "ε", "privlearn", "with intervals", "OpenDP", "diffprivlib", "ratio"],
            lines,
        ),
    ]
    numbers = {
        "cells": [
            {"column": c, "epsilon": e, "statistic": s, "errors": _short(errors)}
            for (c, e, s, _), errors in zip(tasks, results, strict=True)
        ]
    }
    write("table_statistics", tables, numbers, NOTES)


def _ratio(statistic: str, each: list[tuple[float, float]]) -> float:
    own, best = np.array(each).T
    if statistic in ASKED:
        return float(own.sum() / best.sum())
    return float(np.exp(np.log(own / best).mean()))


if __name__ == "__main__":
    main()
