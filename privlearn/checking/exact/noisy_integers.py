"""Whether a mechanism's output is a function of its noisy integers, bit for bit.

Exact noise makes X + N private, X the integers of the data and N those of the noise, and whatever
is computed from it.  So if X becomes X′ and N becomes N + X − X′, nothing may change: not the last
bit of a double, as it does where noise is added to an exact sum after it was rounded.  X − X′ is
taken from the outputs without noise, and must be integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privlearn.checking.exact.probe import Affine, centre, run
from privlearn.checking.scripted_noise import Script
from privlearn.losses import Loss
from privlearn.rows.domains import Array
from privlearn.values.grid import Grid

_FAR = 2.0**48  # Steps that are found from doubles with digits to spare
_OFF = 0.3  # Of a step, from the nearest integer; less is rounding


def differing_outputs(
    mechanism: Any, loss: Loss, pair: tuple[Any, Any], noise: Affine, grid: Grid, seed: int
) -> int:
    """How many numbers of the output tell which of two data sets the same noisy integers are of.

    Returns:
        0 where the output is a function of noisy integers; all of them where the data are not on
        the grid.
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
