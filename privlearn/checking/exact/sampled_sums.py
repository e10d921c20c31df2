r"""Exact laws of noisy sums over a random sample, but for its rate, which is counted.

All records but one are null; the noise is written down, the coins are the code's own.  With rate q
the laws are (1−q)·N + q·(N moved by the record), N the noise, and for the neighbour N, or the same
with its record.  By joint convexity, what is computed at a rate below q is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privlearn.checking.default_neighbours import stated_spend
from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.one_number import located, mixture
from privlearn.checking.exact.probe import affine, check_sampler, run
from privlearn.checking.neighbours import extreme_records, worst_pairs
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_generator import Standard
from privlearn.checking.scripted_noise import Script
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Discrete
from privlearn.rows.domains import Array
from privlearn.values.records import join, record_at

_RUNS = 1_000  # On each data set
_FIRST, _MANY = 12, 64  # Runs, on so many records, in which it is seen whether there are coins
_FAILS = 1e-6  # Probability that the rate is below what is taken for it
_NULLS = 3  # Records beside the one that differs
_SAME = 1e-7


@dataclass(frozen=True)
class SampledLaw:
    """Laws on two data sets at the least rate that the counts allow, and what was tried."""

    pair: DistributionPair
    coverage: Coverage


def sampled_law(
    output: Callable[[Any, Array], Array], pair: tuple[Any, Any], family: Standard, matrix: Array
) -> SampledLaw | None:
    """Laws of a sample's noisy sum; None if the output is none, such as without coins.

    Args:
        output: of data and standard noise, flat, with fresh coins.
        pair: data sets that differ in one record, all others null.
        family: "normal" or "laplace".
        matrix: that takes the noise to the output, shape (outputs, numbers).
    """
    rng = np.random.default_rng(0)
    seen = [_centres(output, data, matrix, rng) for data in pair]
    bases = [value for value in seen[0] if value in seen[1]]
    values = sorted(map(len, seen))
    if values not in ([1, 2], [2, 2]) or len(bases) != 1:
        return None
    moves = [(value, n) for part in seen for value, n in part.items() if value != bases[0]]
    count, runs = sum(n for _, n in moves), _RUNS * len(moves)
    low, high = _interval(count, runs)
    found = [_in_units(matrix, np.subtract(value, bases[0])) for value, _ in moves]
    shifts = [shift for shift in found if shift is not None]
    label = f"a sample at a rate of {low:.3g}"
    if len(shifts) < len(found):
        bare = DistributionPair(
            Discrete(np.log([1 - low, low])), Discrete(np.array([0.0, -np.inf])), label
        )
        return SampledLaw(bare, _coverage(low, high, runs))
    places = _on_a_line(shifts, family)
    if places is None:
        return None
    zero = located(family, 0.0, 1.0)
    moved = [mixture([(1 - low, zero), (low, located(family, x, 1.0))]) for x in places]
    laws = [*moved, zero][:2]
    return SampledLaw(DistributionPair(laws[0], laws[1], label), _coverage(low, high, runs))


def _coverage(low: float, high: float, runs: int) -> Coverage:
    rate = f"a record is in the sample at a rate between {low:.3g} and {high:.3g} ({runs} runs)"
    return Coverage(
        (Axis("coins", rate, enough=False), Axis("records", "one; all others null", enough=False))
    )


def _centres(
    output: Callable[[Any, Array], Array], data: Any, matrix: Array, rng: np.random.Generator
) -> dict[tuple[float, ...], int]:
    """What is left of outputs without their noise, and how often; up to three of them."""
    found: dict[tuple[float, ...], int] = {}
    for _ in range(_RUNS):
        z = rng.standard_normal((matrix.shape[1],))
        noise = np.asarray(matrix @ z)
        if (out := output(data, z)).shape != noise.shape:
            raise CheckError("the length of the output is up to chance")
        room = _SAME * (1 + np.abs(noise).max(initial=0.0))
        left = tuple(float(x) + 0.0 for x in np.round(out - noise, 6))
        near = next((x for x in found if np.abs(np.subtract(x, left)).max() < room + 2e-6), left)
        found[near] = found.get(near, 0) + 1
        if len(found) > 2:
            break
    return found


def _interval(count: int, runs: int) -> tuple[float, float]:
    """Clopper and Pearson's, with probability `_FAILS` of missing at either end."""
    from scipy.stats import beta

    high = beta.ppf(1 - _FAILS, count + 1, runs - count) if count < runs else 1.0
    return float(beta.ppf(_FAILS, count, runs - count + 1)), float(high)


def _in_units(matrix: Array, move: Array) -> Array | None:
    """The move in standard numbers; None if no noise hides it."""
    inside = np.linalg.lstsq(matrix, move, rcond=1e-12)[0]
    hidden = np.linalg.norm(move - matrix @ inside) <= 1e-5 * np.linalg.norm(move)
    return np.asarray(inside, dtype=np.float64) if hidden else None


def _on_a_line(shifts: Sequence[Array], family: str) -> list[float] | None:
    """Where the records move the noise to, in units of it; None if that is no line."""
    size = max(float(np.linalg.norm(shift)) for shift in shifts)
    along = shifts[0] / np.linalg.norm(shifts[0])
    if family == "laplace" and np.count_nonzero(np.abs(along) > 1e-5) > 1:
        return None
    places = [float(shift @ along) for shift in shifts]
    off = max(float(np.linalg.norm(s - p * along)) for s, p in zip(shifts, places, strict=True))
    return places if off <= 1e-5 * size else None


def law_of_coins(mechanism: Any) -> SampledLaw | None:
    """Of a mechanism that tosses coins of its own; None if it is none."""
    loss = mechanism.loss()
    spend = stated_spend(mechanism, loss.adjacency) if hasattr(mechanism, "release") else None
    if spend is None:
        return None

    def output(block: Any, z: Array) -> Array:
        return run(mechanism, loss, block, Script(z))

    try:
        null = record_at(extreme_records(spend.domain), slice(-1, None))
        pair = worst_pairs(spend.domain, adjacency=loss.adjacency)[0]
        first, second = (join([part, *[null] * _NULLS]) for part in pair)
        many = join([first] * (_MANY // (_NULLS + 1)))
        still = [output(many, np.zeros(0)) for _ in range(_FIRST)]
        if all(np.array_equal(still[0], other) for other in still[1:]):
            return None
        noise = affine(mechanism, loss, join([null] * (_NULLS + 1)))
        check_sampler(noise.family)
        return sampled_law(output, (first, second), noise.family, noise.matrix)
    except CheckError:  # noise that is not added, or of another law
        return None
