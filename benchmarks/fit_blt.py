"""Fits the BLT parameters of mechanisms/blt_table.json; a few seconds.

    python benchmarks/fit_blt.py > blt_table.json     then move it to mechanisms/
    python benchmarks/fit_blt.py --anytime

Minimises column_norm() * max_error_std() of BufferedToeplitz, both in closed form, by BFGS over the
logits of the ratios of neighbours in the chain 1 > output_decay[0] > decay[0] > ... > 0.  The start
at 2**30 is a geometric chain; every other horizon starts from the one above it.  The minima are
flat: digits differ between platforms, most of all at small horizons, errors agree to 1e-4.

``--anytime`` minimises the worst ratio of the AnytimeBLT's error to the known-horizon one
over 16 <= t <= 2**20, and prints it beside that of the shipped constants.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from privlearn.mechanisms.buffered_toeplitz import AnytimeBLT, BufferedToeplitz

BUFFERS = 5
LARGEST = 30  # log2 of the largest horizon
FIRST = 16  # earliest time of the anytime objective
Decays = tuple[tuple[float, ...], tuple[float, ...]]
Array = NDArray[np.float64]


def decode(logits: Array) -> Decays:
    """Logits of the ratios of neighbours -> (decay, output_decay)."""
    chain = np.cumprod(1.0 / (1.0 + np.exp(-np.clip(logits, -25.0, 25.0))))
    return tuple(map(float, chain[1::2])), tuple(map(float, chain[::2]))


def encode(decays: Decays) -> Array:
    """Inverse of ``decode``."""
    chain = np.ravel(np.column_stack(decays[::-1]))
    ratio = chain / np.concatenate([[1.0], chain[:-1]])
    return np.asarray(np.log(ratio / (1.0 - ratio)))


def error(decays: Decays, horizon: int) -> float:
    """Largest standard deviation at mu = 1, sensitivity 1."""
    blt = BufferedToeplitz(horizon, *decays)
    return blt.column_norm() * blt.max_error_std()


def minimised(objective: Callable[[Array], float], start: Array) -> Array:
    """BFGS with gradients by differences."""
    fit: Any = minimize(objective, start, method="BFGS", options={"gtol": 1e-6})
    return np.asarray(fit.x)


def fit_table() -> dict[int, Decays]:
    """log2(horizon) -> decays, rounded to the digits that are shipped."""
    ratios = np.tile([0.3, 0.1], BUFFERS)
    logits = np.log(ratios / (1.0 - ratios))
    table = {}
    for k in range(LARGEST, 0, -1):

        def objective(x: Array, horizon: int = 2**k) -> float:
            return math.log(error(decode(x), horizon))

        logits = minimised(objective, logits)
        decay, output_decay = decode(logits)
        table[k] = rounded(decay), rounded(output_decay)
    return table


def rounded(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Six significant digits."""
    return tuple(float(f"{p:.5e}") for p in numbers)


def anytime_ratios(blt: AnytimeBLT, times: Array, best: Array) -> Array:
    """Log of the error over the best known-horizon one, at each time."""
    errors = [blt.column_norm() * blt.error_std(int(t)) for t in times]
    return np.asarray(np.log(np.array(errors) / best))


def fit_anytime(times: Array, best: Array, start: Decays) -> AnytimeBLT:
    """Minimax over ``times``, by p-norms of growing p."""
    logits = encode(start)
    for p in (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0):

        def objective(x: Array, p: float = p) -> float:
            ratios = anytime_ratios(AnytimeBLT(*decode(x)), times, best)
            return float(np.logaddexp.reduce(p * ratios)) / p

        logits = minimised(objective, logits)
    return AnytimeBLT(*decode(logits))


def print_table(table: dict[int, Decays]) -> None:
    """Prints the table as JSON, one line for each row of decays."""
    entries = []
    for k in sorted(table):
        rows = (json.dumps([float(f"{p:.5e}") for p in row]) for row in table[k])
        entries.append(f' "{k}": [\n  ' + ",\n  ".join(rows) + "\n ]")
    print("{\n" + ",\n".join(entries) + "\n}")


def main() -> None:
    """Prints the table, or with --anytime the anytime comparison."""
    if "--anytime" not in sys.argv[1:]:
        print_table(fit_table())
        return
    times = np.round(2.0 ** np.arange(np.log2(FIRST), 20.25, 0.25))
    fitted = [BufferedToeplitz.fitted(int(t)) for t in times]
    best = np.array([blt.column_norm() * blt.max_error_std() for blt in fitted])
    refit = fit_anytime(times, best, (fitted[-1].decay, fitted[-1].output_decay))
    for name, blt in (("shipped", AnytimeBLT()), ("refit", refit)):
        worst = np.exp(anytime_ratios(blt, times, best).max())
        print(f"{name}: worst ratio {worst:.4f}, column norm {blt.column_norm():.4f}")
        print(f"  decay {blt.decay}\n  output_decay {blt.output_decay}")


if __name__ == "__main__":
    main()
