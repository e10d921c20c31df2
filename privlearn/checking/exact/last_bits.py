"""Whether anything but noisy integers is told, where a grid is stated: down to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from privlearn.checking.default_neighbours import spend_of
from privlearn.checking.exact.probe import Affine, centre, run
from privlearn.checking.neighbours import each_float
from privlearn.checking.scripted_noise import Script
from privlearn.losses import Loss
from privlearn.rows.domains import Array
from privlearn.values.grid import Grid

_INNER = (0.618, 2.3e-4, 3.7e-4, 5.1e-4, 7.9e-4)
"""By which records are made smaller that need not be extreme."""
_FAR = 2.0**48  # Steps that are found from doubles with digits to spare
_OFF = 0.3  # Of a step, from the nearest integer; less is rounding


def telling_outputs(
    mechanism: Any, loss: Loss, pairs: Sequence[tuple[Any, Any]], noise: Affine
) -> int:
    """Numbers of the output that are no function of the noisy integers of a stated grid."""
    grid = spend_of(mechanism, loss.adjacency).grid
    if grid is None:
        return 0
    # two extreme records may be an even number of steps apart
    inner = [each_float(pairs[0][0], partial(np.multiply, factor)) for factor in _INNER]
    tried = [*pairs, *((block, pairs[0][1]) for block in inner)]
    return max(
        _differing_outputs(mechanism, loss, pair, noise, grid, seed)
        for seed, pair in enumerate(tried)
    )


def _differing_outputs(
    mechanism: Any, loss: Loss, pair: tuple[Any, Any], noise: Affine, grid: Grid, seed: int
) -> int:
    """How many numbers of the output tell which of two data sets the same noisy integers are of.

    Exact noise makes X + N private, X the integers of the data and N those of the noise, and
    whatever is computed from it.  So if X becomes X′ and N becomes N + X − X′, nothing may change:
    not the last bit of a double, as it does where noise is added to an exact sum after it was
    rounded.  X − X′ is taken from the outputs without noise, and must be integers.
    """
    first, second = pair
    shift = centre(mechanism, loss, first) - centre(mechanism, loss, second)
    moved = np.ldexp(np.linalg.lstsq(noise.matrix, shift, rcond=1e-12)[0], grid.bits)
    if np.abs(moved).max(initial=0.0) > _FAR:
        return 0
    whole = np.rint(moved)
    if np.abs(moved - whole).max(initial=0.0) > _OFF:
        return len(shift)
    drawn = np.rint(np.ldexp(np.random.default_rng(seed).normal(size=len(whole)), grid.bits))
    one = run(mechanism, loss, first, _steps(drawn, grid))
    two = run(mechanism, loss, second, _steps(drawn + whole, grid))
    return int(np.count_nonzero(one.view(np.int64) != two.view(np.int64)))


def _steps(numbers: Array, grid: Grid) -> Script:
    return Script(np.ldexp(numbers, -grid.bits))
