"""Prefix sums for people who come back: banded BLTs beside the factorisations of jax_privacy.

    pip install jax-privacy
    OMP_NUM_THREADS=1 python benchmarks/participation.py       jax_privacy up to n = 2^10
    OMP_NUM_THREADS=1 python benchmarks/participation.py --peer-horizon 0      without it

Errors are standard deviations of prefix sums at mu = 1 for a person who comes at most k times, at
least b slots apart, with sensitivity 1 for each visit: the largest and the rms over all slots.
Ours, with parameters from the shipped table and from a fit of their own; jax_privacy's banded
Toeplitz matrices, BLTs and column-normalised banded matrices (n b numbers; where these are at most
2^17, and with ``STEPS`` steps of its optimiser, whose default is 100), each optimised for (n, k, b)
by its own function.  Each family is fitted for the largest and for the mean error; seconds are of
the processor, compilation included.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fit_banded import own_parameters
from reporting import Table, parser, write

from privlearn.mechanisms import BandedBLT
from privlearn.mechanisms.banded_shapes import Errors, Objective
from privlearn.values.participation import Participation

STEPS = 50
MOST_NUMBERS = 2**17
OBJECTIVES: tuple[Objective, ...] = ("max", "mean")


class Setting(NamedTuple):
    """n, k, b and, where one was set, the target of the largest error."""

    horizon: int
    most: int
    apart: int
    target: float | None = None

    @property
    def visits(self) -> int:
        return min(self.most, -(-self.horizon // self.apart))

    def __str__(self) -> str:
        k, b = f"k = {self.most}", f", b = {self.apart:,}" if self.most > 1 else ""
        return f"n = {self.horizon:,}, {k}{b}"


SETTINGS = (
    Setting(2**10, 1, 2**10, 2.98),
    Setting(2**14, 1, 2**14, 1.03 * 3.791),
    Setting(2**16, 1, 2**16, 1.03 * 4.232),
    Setting(2**10, 8, 128, 10.8),
    Setting(2**10, 16, 64),
    Setting(2**14, 4, 2**12, 8.4),
    Setting(2**14, 16, 2**10, 22.0),
    Setting(2**16, 4, 2**14, 9.3),
    Setting(2**16, 16, 2**12, 23.5),
)


class Fit(NamedTuple):
    """One factorisation that was fitted for one objective, for a person."""

    family: str
    objective: str
    errors: Errors
    seconds: float


def timed(
    family: Callable[[Setting, Objective], Errors], setting: Setting, objective: Objective
) -> Fit:
    start = time.process_time()
    found = family(setting, objective)
    return Fit(family.__doc__ or "", objective, found, time.process_time() - start)


def own(setting: Setting) -> list[Fit]:
    """Banded BLTs; seconds are without the errors, which nobody needs to compute."""
    rule = Participation(setting.most, setting.apart if setting.most > 1 else 1)
    found = []
    for objective in OBJECTIVES:
        for family in ("table", "own fit"):
            start = time.process_time()
            made = BandedBLT.fitted(setting.horizon, rule, objective)
            if family == "own fit":
                fitted = own_parameters(made.horizon, made.band, objective, setting.visits)
                made = BandedBLT(made.horizon, *fitted)
            seconds = time.process_time() - start
            norm = made.participation_norm(rule.most, rule.apart)
            errors = Errors(norm * made.max_error_std(), norm * made.rms_error_std())
            found.append(Fit(f"banded BLT, {family}", objective, errors, seconds))
    return found


def of_person(setting: Setting, largest: float, rms: float, norm: float = 1.0) -> Errors:
    """From errors with columns of length ``norm``, and a person's visits in separate rows."""
    factor = norm * math.sqrt(setting.visits)
    return Errors(factor * largest, factor * rms)


def peers(setting: Setting) -> list[Fit]:
    """What jax_privacy finds."""
    imported("jax").config.update("jax_enable_x64", True)
    families = [of_toeplitz, of_buffered]
    if setting.horizon * setting.apart <= MOST_NUMBERS:
        families.append(of_columns)
    return [timed(family, setting, objective) for objective in OBJECTIVES for family in families]


def of_toeplitz(setting: Setting, objective: Objective) -> Errors:
    """jax_privacy, banded Toeplitz"""
    toeplitz = peer("toeplitz")
    n, bands = setting.horizon, setting.apart
    c = toeplitz.optimize_banded_toeplitz(n, bands, reduction_fn=reduction(objective))
    variances = toeplitz.per_query_error(strategy_coef=c, n=n)
    return of_person(setting, *roots(variances), norm=float((c**2).sum()) ** 0.5)


def of_buffered(setting: Setting, objective: Objective) -> Errors:
    """jax_privacy, BLT"""
    toeplitz, n = peer("toeplitz"), setting.horizon
    blt = peer("buffered_toeplitz").optimize(
        n=n, min_sep=setting.apart, max_participations=setting.most, error=objective
    )
    c = blt.toeplitz_coefs(n)
    square = toeplitz.minsep_sensitivity_squared(c, setting.apart, setting.most, n)
    largest, rms = roots(toeplitz.per_query_error(strategy_coef=c, n=n))
    return Errors(largest * math.sqrt(square), rms * math.sqrt(square))


def of_columns(setting: Setting, objective: Objective) -> Errors:
    """jax_privacy, column-normalised banded"""
    banded = peer("banded")
    c = banded.optimize(
        setting.horizon,
        bands=setting.apart,
        reduction_fn=reduction(objective),
        max_optimizer_steps=STEPS,
    )
    return of_person(setting, *roots(banded.per_query_error(c)))


def reduction(objective: Objective) -> Any:
    return getattr(imported("jax.numpy"), objective)


def roots(variances: Any) -> tuple[float, float]:
    """Largest and rms standard deviation."""
    return math.sqrt(variances.max()), math.sqrt(variances.mean())


def peer(module: str) -> Any:
    return imported(f"jax_privacy.matrix_factorization.{module}")


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SystemExit(
            f"{module} is missing: pip install jax-privacy, or give --peer-horizon 0"
        ) from None


def rows(setting: Setting, fits: list[Fit]) -> list[list[str]]:
    return [
        [
            str(setting),
            fit.family,
            fit.objective,
            f"{fit.errors.largest:.3f}",
            f"{fit.errors.rms:.3f}",
            f"{fit.seconds:.2g}",
        ]
        for fit in fits
    ]


def target_row(setting: Setting, fits: list[Fit]) -> list[str]:
    """The shipped factorisation against the target."""
    found = next(fit for fit in fits if fit.objective == "max").errors.largest
    target = setting.target or math.inf
    return [str(setting), f"{target:.3f}", f"{found:.3f}", "met" if found <= target else "missed"]


def main() -> None:
    """Prints and writes the tables."""
    made = parser(__doc__)
    made.add_argument("--peer-horizon", type=int, default=2**10, help="largest for jax_privacy")
    limit = made.parse_args().peer_horizon
    found: dict[Setting, list[Fit]] = {}
    for setting in SETTINGS:
        found[setting] = own(setting)
        if setting.horizon <= limit:
            found[setting] += peers(setting)
        for line in rows(setting, found[setting]):
            print("  ".join(line), file=sys.stderr, flush=True)
    header = ["", "family", "fitted for", "largest", "rms", "seconds"]
    targets = [target_row(s, fits) for s, fits in found.items() if s.target is not None]
    lines = [line for s, fits in found.items() for line in rows(s, fits)]
    title = "Targets of the largest error, parameters from the table"
    tables = [
        Table(title, ["", "target", "measured", ""], targets),
        Table("Errors of a person", header, lines),
    ]
    numbers = {
        "fits": [
            {**s._asdict(), **fit._asdict(), "errors": fit.errors._asdict()}
            for s, fits in found.items()
            for fit in fits
        ]
    }
    write("participation", tables, numbers)


if __name__ == "__main__":
    main()
