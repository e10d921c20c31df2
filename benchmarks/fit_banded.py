"""Fits the curves of mechanisms/banded_table.json, and computes their errors.

    python benchmarks/fit_banded.py > new.json            the curves, without errors; seven minutes
    python benchmarks/fit_banded.py --errors > new.json   the curves that are shipped, with errors;
                                                        twenty minutes, of which 2**20 takes most
    python benchmarks/fit_banded.py --between             what the table loses between its entries

Each of the first two makes a table that is moved to mechanisms/banded_table.json.

For the mean error a fit starts from the one at the next larger horizon or, at the largest, at the
next smaller ratio; for the largest error, and for the mean error of visits that fill the horizon,
it starts from the fit for the mean: curves that change slowly from entry to entry can be
interpolated.  Errors are those of the factorisation with the curves' exponentials, over all times
(`banded_errors` says how exactly).
"""

from __future__ import annotations

import json
import math
import sys
import time

from banded_fitting import fit_shape

from privlearn.mechanisms import BandedBLT
from privlearn.mechanisms.banded_parameters import (
    BandedParameters,
    banded_table,
    best_curves,
    fitted_errors,
    fitted_parameters,
    fitted_shape,
    parameters_of,
    shape_of,
)
from privlearn.mechanisms.banded_shapes import FLAT, Curves, Errors, Objective, Shape

LOG_HORIZONS = (4, 5, 6, 8, 10, 13, 16, 20)
HALF_OCTAVES = 15  # 2 log2(n/band) = 0, ..., 14
ERROR_OCTAVES = 13  # log2(n/band) = 0, ..., 12
CURVES: tuple[Curves, ...] = ("max", "mean", "visits")
Key = tuple[Curves, int, int]


def ratios(log_horizon: int) -> range:
    """In half octaves; bands of two rows and more."""
    return range(min(HALF_OCTAVES, 2 * log_horizon - 1))


def band_of(log_horizon: int, half_octaves: int) -> int:
    """The nearest whole number."""
    return round(math.exp2(log_horizon - half_octaves / 2))


def fit_all() -> dict[Key, Shape]:
    """All entries, rounded to the digits that are shipped."""
    found: dict[Key, Shape] = {}
    above = LOG_HORIZONS[-1]
    for k in reversed(LOG_HORIZONS):
        for r in ratios(k):
            start = found.get(("mean", above, r), found.get(("mean", k, r - 1), FLAT))
            began = time.perf_counter()
            band = band_of(k, r)
            start = found["mean", k, r] = rounded(fit_shape(2**k, band, "mean", start))
            found["max", k, r] = rounded(fit_shape(2**k, band, "max", start))
            found["visits", k, r] = fit_visits(k, r, start)
            print(f"{k} {r} {time.perf_counter() - began:.1f} s", file=sys.stderr)
        above = k
    return found


def fit_visits(k: int, r: int, start: Shape) -> Shape:
    """For as many visits as there are bands, from the fit with unit columns."""
    band = band_of(k, r)
    return rounded(fit_shape(2**k, band, "mean", start, -(-(2**k) // band)))


def rounded(shape: Shape) -> Shape:
    """Four decimals."""
    return Shape(*(tuple(round(x, 4) + 0.0 for x in numbers) for numbers in parts(shape)))


def parts(shape: Shape) -> tuple[tuple[float, ...], ...]:
    return shape.lags, shape.rows, shape.columns


def shipped() -> dict[Key, Shape]:
    """What the table holds."""
    return {
        (curves, k, r): shape_of(entry)
        for curves in CURVES
        for k, entries in banded_table("shapes", curves).items()
        for r, entry in enumerate(entries)
    }


def errors(horizon: int, band: int, shape: Shape) -> Errors:
    """Over all times."""
    made = BandedBLT(horizon, *parameters_of(shape, band))
    return Errors(made.max_error_std(), made.rms_error_std())


def all_errors() -> dict[Key, Errors]:
    """Of what is shipped, for bands of two rows and more."""
    found = {}
    for curves in CURVES:
        for k in LOG_HORIZONS:
            for r in range(min(k, ERROR_OCTAVES)):
                shape = fitted_shape(2**k, 2 ** (k - r), curves)
                found[curves, k, r] = errors(2**k, 2 ** (k - r), shape)
                print(curves, k, r, found[curves, k, r], file=sys.stderr)
    return found


def print_table(shapes: dict[Key, Shape], found: dict[Key, Errors]) -> None:
    """Prints the table as JSON, one line for each entry."""
    entries = {
        key: (*shape.lags, *shape.rows, *(shape.columns if key[0] == "visits" else ()))
        for key, shape in shapes.items()
    }
    logs = {key: tuple(round(math.log(x), 4) for x in pair) for key, pair in found.items()}
    parts = []
    for name, numbers in (("shapes", entries), ("errors", logs)):
        of_curves = []
        for curves in CURVES:
            rows = []
            for k in LOG_HORIZONS:
                keys = sorted(key for key in numbers if key[:2] == (curves, k))
                lines = ",\n".join(f"   {json.dumps(numbers[key])}" for key in keys)
                rows.append(f'  "{k}": [\n{lines}\n  ]')
            of_curves.append(f' "{curves}": {{\n' + ",\n".join(rows) + "\n }")
        parts.append(f'"{name}": {{\n' + ",\n".join(of_curves) + "\n}")
    print("{\n" + ",\n".join(parts) + "\n}")


def own_parameters(
    horizon: int, band: int, objective: Objective, visits: int = 1
) -> BandedParameters:
    """From a fit that starts from the table; seconds."""
    start = fitted_shape(horizon, band, best_curves(horizon, band, objective, visits))
    return parameters_of(fit_shape(horizon, band, objective, start, visits), band)


def print_between() -> None:
    """Errors of the table and of fits of their own, at sizes that the table does not hold."""
    for horizon, band in (
        (24, 24), (24, 8), (100, 100), (100, 33), (365, 365), (365, 30), (700, 233), (1000, 1000),
        (1000, 700), (1000, 500), (1000, 150), (2900, 2900), (2900, 800), (5000, 1700), (5000, 110),
        (30_000, 2_500), (30_000, 700),
    ):  # fmt: skip
        most = -(-horizon // band)
        kinds: list[tuple[Objective, int]] = [("max", 1), ("mean", 1), ("mean", most)]
        for objective, visits in kinds[: 2 if band == horizon else 3]:
            curves = best_curves(horizon, band, objective, visits)
            made = BandedBLT(horizon, *fitted_parameters(horizon, band, curves))
            own = BandedBLT(horizon, *own_parameters(horizon, band, objective, visits))
            found, best = (of_person(each, objective, visits) for each in (made, own))
            told = fitted_errors(horizon, band, curves)[objective == "mean"]
            told *= made.participation_norm(visits, band)
            print(
                f"n = {horizon}, band = {band}, {visits} visits, {objective}: table {found:.4f}, "
                f"own fit {best:.4f} ({found / best - 1:+.2%}); as tabulated {told:.4f} "
                f"({told / found - 1:+.2%})",
                flush=True,
            )


def of_person(made: BandedBLT, objective: Objective, visits: int) -> float:
    """Its error for visits a band apart."""
    alone = made.max_error_std() if objective == "max" else made.rms_error_std()
    return alone * made.participation_norm(visits, made.band)


def main() -> None:
    """Prints the table, or what the table loses."""
    if "--between" in sys.argv[1:]:
        print_between()
        return
    if "--errors" in sys.argv[1:]:
        print_table(shipped(), all_errors())
    else:
        print_table(fit_all(), {})


if __name__ == "__main__":
    main()
