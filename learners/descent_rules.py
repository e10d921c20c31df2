"""Public constants of `WhitenedDescent`: what they are for a size of problem, and where from.

The constants were chosen on simulated tables of nine kinds (``benchmarks/tables.py``, seeds 0 to 4)
and on four public tables (breast cancer, digits 0 and 1, wine, diabetes) at ε = .3, 1 and 3; they
were judged on other seeds, and on tables that none of them was chosen on (docs/benchmarks.md).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, NamedTuple


class DescentRule(NamedTuple):
    """One line of constants; rows are scaled to ‖x‖² about d'/4, labels to [−1, 1]."""

    gram: Fraction
    """q: the share of the budget for Σzzᵀ."""
    clip: float
    """c: of gradients, in units of the root of the mean ‖u‖²."""
    per_noise: float
    """κ: the sum of step sizes, per signal to noise of a gradient."""
    longest: float
    """S_max: the largest sum of step sizes, times the curvature."""
    lifted: float
    """a: eigenvalues are lifted by so many usual sizes of the largest eigenvalue of the noise."""
    floor: float
    """What eigenvalues of a correlation matrix are lifted by in any case."""
    most_steps: int


_Q1, _Q2, _Q3 = Fraction("0.1"), Fraction("0.2"), Fraction("0.3")

RULES: Final[dict[str, tuple[tuple[float, DescentRule], ...]]] = {
    "squared": (
        (1.0, DescentRule(_Q1, 0.3, 0.1, 15.0, 1.0, 0.1, 64)),
        (8.0, DescentRule(_Q2, 0.3, 0.1, 10.0, 1.0, 0.1, 64)),
        (math.inf, DescentRule(_Q2, 0.8, 0.12, 60.0, 1.0, 0.03, 256)),
    ),
    "logistic": (
        (8.0, DescentRule(_Q1, 0.4, 0.8, 10.0, 0.3, 0.1, 64)),
        (math.inf, DescentRule(_Q2, 0.7, 0.8, 250.0, 1.0, 0.03, 128)),
    ),
    "softmax": (
        (2.0, DescentRule(_Q1, 0.3, 0.5, 10.0, 1.0, 0.2, 64)),
        (8.0, DescentRule(_Q3, 0.5, 0.5, 10.0, 0.5, 0.05, 64)),
        (math.inf, DescentRule(_Q2, 0.7, 0.5, 250.0, 1.0, 0.03, 128)),
    ),
}
"""By loss: up to which r = μ·n/d^{3/2} a line holds."""
_LEAST_STEPS = 16


def rule_for(loss: str, users: int, dim: int, mu: float) -> DescentRule:
    """The constants for ``users`` rows of ``dim`` columns, the constant one included, at μ-GDP."""
    ratio = mu * users / dim**1.5
    return next(rule for upto, rule in RULES[loss] if ratio < upto)


def steps_for(rule: DescentRule, users: int, dim: int, mu: float, curvature: float) -> int:
    """T: as many steps as the horizon needs at steps of one over the curvature; public."""
    steep = mu * math.sqrt(1 - rule.gram)
    horizon = min(
        rule.per_noise * steep * users * curvature / (2 * rule.clip), rule.longest * dim / 2
    )
    return int(min(max(math.ceil(horizon), _LEAST_STEPS), rule.most_steps))
