"""Laws of additive noise after a larger or a smaller move, found from the laws after one move.

If P is Q moved by s, the record moved the output by s and noise was added: moved twice as far, or
under half of the noise, P is Q moved by 2s, whatever Q is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density, Discrete, LawPair
from privlearn.rows.domains import Array

_TRIED = 30.0  # Widths of the law on either side of its centre
_NEGLIGIBLE = 1e-10  # Mass beyond the ends of a list of symbols


def moved(pair: LawPair, times: float) -> LawPair | None:
    """The laws after ``times`` the move of these; None if they are not those of a move."""
    p, q = pair
    match p, q:
        case Density(), Density():
            return _density(p, q, times)
        case Discrete(), Discrete() if len(p.log_mass) == len(q.log_mass):
            return _discrete(p.log_mass, q.log_mass, times)
    return None


def _density(p: Density, q: Density, times: float) -> LawPair | None:
    shift = p.centre[0] - q.centre[0]
    points = q.centre[0] + np.linspace(-_TRIED, _TRIED, 401)[:, None] * q.scale
    if not _same(p.log_density(points + shift), q.log_density(points)):
        return None
    far = times * shift
    jumps = tuple(tuple(x + far for x in part) for part in q.jumps)
    centre = (q.centre[0] + far,)
    return replace(q, log_density=lambda x: q.log_density(x - far), centre=centre, jumps=jumps), q


def _same(one: Array, two: Array) -> bool:
    return np.array_equal(np.isneginf(one), np.isneginf(two)) and np.allclose(
        one[np.isfinite(one)], two[np.isfinite(two)], rtol=1e-8, atol=1e-8
    )


def _discrete(p: Array, q: Array, times: float) -> LawPair | None:
    """Of integers in their order, and by whole numbers; what lies beyond the ends is left out."""
    step = int(p.argmax()) - int(q.argmax())
    if step < 0:
        p, q, step = p[::-1], q[::-1], -step
    far, n = round(step * times), len(q)
    left = np.exp(p[:step]).sum() + np.exp(q[n - step :]).sum()
    if not step or far != step * times or far >= n or left > _NEGLIGIBLE:
        return None
    if not _same(p[step:], q[: n - step]):
        return None
    try:
        return Discrete(q[: n - far]), Discrete(q[far:])
    except CheckError:  # the list is too short
        return None
