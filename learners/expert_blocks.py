r"""Public blocks for experts, and how much the losses of each block count in later picks.

A pick k adds up losses of block b <= k with weight A_kb over the scale of the noise.  One user of
block b costs Σ_k A_kb^p at most, with p = 2 in zCDP and p = 1 in pure ε.  While experts differ by
less than noise, the regret in the block behind pick k, of n_k users, is about n_k/s_k times the
logarithm of their number, where s_k = Σ_b A_kb·m_b is how much a pick knows; m_b are the sizes.
Minimise Σ_k n_k/s_k under Σ_k A_kb^p <= 1 for every b: the Lagrange conditions say
A_kb^{p−1} ∝ (n_k/s_k²)·(m_b/λ_b), so that A_kb = r_k·w_b, a weight of the block and a scale of the
pick.  Recent blocks count more and the noise grows with them; early ones, which are in many picks,
fade.  Pure ε-DP would have each block in one pick only (p = 1), where statistical errors are
larger; scales of p = 3/2 are between, with weights that make all blocks cost the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privlearn.mechanisms.noisy_max_batches import GROWTH_UNIT, LARGEST_WEIGHT
from privlearn.rows.domains import Array

_STEPS = 200
_LEAST_WEIGHT = 16
"""Weights are whole numbers; of this size and above rounding says little."""
_PART = 20
"""The largest part of the users that is served by one pick is one in so many."""


def block_ends(users: int, first: int, growth: float) -> list[int]:
    """How many users have come at the end of each block: first, and then ``growth`` times as many.

    No later block is longer than a twentieth of all users, or the first.
    """
    longest, ends = max(first, users // _PART), [min(first, users)]
    while ends[-1] < users:
        grown = max(round(min(ends[-1] * growth, users)), ends[-1] + 1)
        ends.append(min(grown, ends[-1] + longest, users))
    return ends


def fading(sizes: Sequence[int], *, pure: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Weights of all blocks but the last, and by how much noise grows, for `NoisyMaxBatches`.

    Args:
        sizes: users of each block, two blocks at least; after the last no pick is made.
        pure: whether the price is pure ε, else zCDP.
    """
    known, served = np.array(sizes[:-1], dtype=float), np.array(sizes[1:], dtype=float)
    power, paid = (1.5, 1) if pure else (2.0, 2)
    prices, to = np.ones(len(known)), 1 / (power - 1)
    for _ in range(_STEPS):
        weights = (known / prices) ** to
        knows = (served**to * np.cumsum(weights * known)) ** (1 / (1 + 2 * to))
        scales = (served / knows**2) ** to
        costs = weights**power * _from_here_on(scales**power)
        prices *= (costs / costs.max()) ** ((power - 1) / 4)
    weights = _from_here_on(scales**paid) ** (-1 / paid)  # so that all blocks cost the same
    weights = np.rint(_LEAST_WEIGHT * weights / weights.min())
    growth = np.ceil(GROWTH_UNIT * scales.max() / scales)
    return _whole(weights), _whole(growth)


def _from_here_on(numbers: Array) -> Array:
    return np.asarray(np.cumsum(numbers[::-1])[::-1])


def _whole(numbers: Array) -> tuple[int, ...]:
    return tuple(int(number) for number in np.minimum(numbers, LARGEST_WEIGHT))
