"""A clip of gradients that follows what noisy sums say of them: post-processing of these sums.

A clip near the residuals' own size costs little noise, and biases nothing where they are about
symmetric; where they are skewed, as counts are, it finds their median rather than their mean.  So
every record adds two numbers to its gradient: whether it is inside of the clip, and what the clip
cuts off, signed.  The clip goes to where a public part of the records is inside, and up for as long
as what is cut off is clearly one-sided.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from privlearn.rows.domains import Array

EXTRA: Final = 2
"""Numbers that a record adds to its gradient."""
_INSIDE, _BEYOND = 0.25, 0.25  # Largest sizes, beside a gradient's 1: ±_INSIDE/2 and ±_BEYOND
RADIUS: Final = math.sqrt(1 + _INSIDE**2 / 4 + _BEYOND**2)
"""Bound on the ℓ2 norm of a clipped gradient with both numbers."""

_PART: Final = 0.6  # Of records inside, where nothing is one-sided
_REACH: Final = 3.0  # What is cut off counts up to so many clips
_SPEED, _LATER_SPEED, _EARLY = 0.5, 0.1, 0.4  # Per step; in the first part of all steps, and later
_PUSH, _LARGEST_PUSH = 20.0, 0.3  # Per clip that is cut off on one side
_DEVIATIONS: Final = 3.0  # Of the noise, below which nothing is one-sided
_MEMORY: Final = 0.1  # Weight of the last step in the running mean of what is cut off
_LEAST, _LARGEST = 0.01, 1.0


def with_extra(block: Array) -> Array:
    """Clipped gradients and the two numbers, shape (n, d + 2); row by row.

    Args:
        block: gradients in units of the clip and, last, what has the sign of the residual, shape
            (n, d + 1); NaN makes a row null.
    """
    gradients = block[:, :-1]
    sizes = np.sqrt(np.einsum("nd,nd->n", gradients, gradients))
    return clipped_with_extra(gradients, np.ones(len(block)), sizes, block[:, -1])


def clipped_with_extra(rows: Array, factors: Array, sizes: Array, signs: Array) -> Array:
    """As `with_extra`, of rows times factors, whose norms are ``sizes``."""
    found = np.empty((len(rows), rows.shape[1] + EXTRA))
    np.multiply(rows, (factors / np.maximum(sizes, 1.0))[:, None], out=found[:, :-EXTRA])
    found[:, -2] = np.where(sizes <= 1.0, _INSIDE / 2, -_INSIDE / 2)
    beyond = np.minimum(np.maximum(sizes - 1.0, 0.0), _REACH)
    found[:, -1] = np.copysign(_BEYOND / _REACH * beyond, signs)
    return found


class ClipFollower:
    """The clip of each step, in units of the root of the mean ‖u‖².

    Args:
        clip: the first one.
        steps: how many follow.
        records: about how many there are.
        noise: standard deviation of each number of a noisy sum.
        least: standard deviation of a fit's noise, in units of the clip: less that is cut off on
            one side does not matter.
    """

    def __init__(
        self, clip: float, *, steps: int, records: float, noise: float, least: float
    ) -> None:
        self._log, self._early = math.log(clip), _EARLY * steps
        self._records, self._least, self._seen = records, least, 0
        self._std = noise / (records * _BEYOND)
        self._mean = self._variance = 0.0
        self.inside = _PART
        """About the part of records that is inside, lately."""

    @property
    def clip(self) -> float:
        return math.exp(self._log)

    def see(self, sums: Array) -> None:
        """Moves the clip by the last two numbers of a noisy sum."""
        inside = 0.5 + float(sums[-2]) / (_INSIDE * self._records)
        self.inside += _MEMORY * (min(max(inside, 0.0), 1.0) - self.inside)
        beyond = float(sums[-1]) / (_BEYOND * self._records)
        self._mean += _MEMORY * (beyond - self._mean)
        self._variance = (1 - _MEMORY) ** 2 * self._variance + (_MEMORY * self._std) ** 2
        clear = abs(self._mean) - _DEVIATIONS * math.sqrt(self._variance)
        push = _PUSH * max(0.0, _REACH * max(clear, 0.0) - self._least)
        speed = _SPEED if self._seen < self._early else _LATER_SPEED
        self._log += speed * (_PART - min(max(inside, 0.0), 1.0)) + min(push, _LARGEST_PUSH)
        self._log = min(max(self._log, math.log(_LEAST)), math.log(_LARGEST))
        self._seen += 1
