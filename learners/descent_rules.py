"""Public constants of `WhitenedDescent`: what they are for a size of problem, and where from.

They were chosen on the simulated tables of ``benchmarks/tables.py`` (other seeds than its own), on
the cells of ``benchmarks/convex.py`` (seeds 100 and on), for r above 250 on simulated rows, and on
public tables, four of the six that docs/benchmarks.md shows and parts of diabetes, randhie and
star98; all at δ from 1e-5 to 1e-3.  They are judged there on seeds and tables that none of them was
chosen on.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, NamedTuple


class DescentRule(NamedTuple):
    """One line of constants; rows are scaled to ‖x‖² about d/4, labels to [−1, 1]."""

    moments: Fraction
    """q: the share of the budget for Σzzᵀ."""
    mean: Fraction
    """The share for the mean label, from which the intercept starts; 0 for no such release."""
    clip: float
    """c: of gradients, in units of the root of the mean ‖u‖²; where it follows, the first one."""
    follows: bool
    """Whether the clip follows the gradients (`ClipFollower`)."""
    per_noise: float
    """κ: the sum of step sizes, per signal to noise of a gradient."""
    longest: float
    """S_max: the largest sum of step sizes, times the curvature."""
    lifted: float
    """a: eigenvalues are lifted by so many usual sizes of the largest eigenvalue of the noise."""
    floor: float
    """What eigenvalues of a correlation matrix are lifted by in any case."""
    steps: int
    """T: all of them public."""
    largest: float
    """Of the size of a step, times the curvature; no less than 2/(mean ‖u‖²) for a bounded loss."""


class _Line(NamedTuple):
    upto: float
    """r = μ·n/d^{3/2} is below this."""
    moments: str
    clip: float
    per_noise: float
    longest: float
    lifted: float
    floor: float
    most_steps: int
    largest: float = 0.0


_MANY: Final = 250.0
"""r from which noise hides so little of Σzzᵀ that few long steps get as far as many."""

_LINES: Final[dict[str, tuple[_Line, ...]]] = {
    "squared": (
        _Line(1.0, "0.1", 0.3, 0.1, 60, 1.0, 0.1, 64, 0.25),
        _Line(8.0, "0.2", 0.3, 0.1, 60, 1.0, 0.1, 64, 0.25),
        _Line(_MANY, "0.2", 0.3, 0.12, 60, 1.0, 0.03, 64, 0.25),
        _Line(4 * _MANY, "0.2", 0.3, 0.12, 60, 1.0, 0.03, 32, 1.0),
        _Line(math.inf, "0.2", 0.3, 0.12, 60, 1.0, 0.03, 16, 1.0),
    ),
    "logistic": (
        _Line(8.0, "0.1", 0.4, 0.8, 10, 0.3, 0.1, 64),
        _Line(40.0, "0.2", 0.7, 0.8, 250, 1.0, 0.03, 128),
        _Line(_MANY, "0.2", 0.85, 0.8, 250, 1.0, 0.03, 128),
        _Line(4 * _MANY, "0.2", 1.2, 0.8, 250, 1.0, 0.03, 64, 1.0),
        _Line(math.inf, "0.2", 1.2, 0.8, 250, 1.0, 0.03, 32, 1.0),
    ),
    "softmax": (
        _Line(2.0, "0.1", 0.3, 0.5, 10, 1.0, 0.2, 64),
        _Line(8.0, "0.3", 0.5, 0.5, 10, 0.5, 0.05, 64),
        _Line(_MANY, "0.2", 0.7, 0.5, 250, 1.0, 0.03, 128),
        _Line(4 * _MANY, "0.2", 1.2, 0.5, 250, 1.0, 0.03, 64, 1.0),
        _Line(math.inf, "0.2", 1.2, 0.5, 250, 1.0, 0.03, 32, 1.0),
    ),
}
LOSSES: Final = tuple(_LINES)
_LEAST_STEPS: Final = 16
_MEAN: Final = Fraction(1, 50)  # Share for the mean of labels
_MEAN_FROM, _FOLLOWS_FROM = 150.0, 250.0
"""μ·n from which the mean label is released, and from which the clip follows the gradients: below,
their noise says too little."""
_OF_A_PERSON: Final = 0.75
"""Rows of one person are alike, but not all the same: k of them have a gradient of this power."""


def usual_sum(rows: float) -> float:
    """How many times as long as one gradient the sum of those of a person with so many rows is."""
    return math.pow(rows, _OF_A_PERSON)


def rule_for(loss: str, users: float, dim: int, mu: float, curvature: float) -> DescentRule:
    """The constants for rows of ``dim`` columns, the constant one included, at μ-GDP.

    Args:
        loss: one of `LOSSES`.
        users: n; of persons with several rows, how many rows would have as much noise.
        dim, mu: d and μ, of replacing one row.
        curvature: of the loss.
    """
    ratio = mu * users / dim**1.5
    line = next(line for line in _LINES[loss] if ratio < line.upto)
    squared, share = loss == "squared", Fraction(line.moments)
    follows = squared and mu * users >= _FOLLOWS_FROM
    steps = line.most_steps
    if not follows:
        steep = line.per_noise * mu * math.sqrt(1 - share) * users * curvature / (2 * line.clip)
        horizon = min(steep, line.longest * dim / 2)
        steps = int(min(max(math.ceil(horizon), _LEAST_STEPS), steps))
    return DescentRule(
        share,
        _MEAN if squared and mu * users >= _MEAN_FROM else Fraction(0),
        line.clip,
        follows,
        line.per_noise,
        line.longest / curvature,
        line.lifted,
        line.floor,
        steps,
        line.largest,
    )
