"""Laws of outputs that are no shift of each other: noise clipped, dropped, or scaled by the data.

One number of the output is a function of one standard number, on a line of noise; its law follows
from where it passes from one bin to the next (`exact.one_number`).  Bins only make laws more alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.one_number import pieces
from privlearn.checking.exact.probe import Affine
from privlearn.errors import CheckError
from privlearn.rows.domains import Array

ERROR = 1e-6  # Of a log probability
_POINTS = np.linspace(-30.1, 30.3, 81)  # Between which changes of the bin are looked for
_CUTS = np.array([-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
"""Bins end at what leaves there."""
_NEAR = 0.02  # Between further points about the noise that was found to act oddly
_LEAPS = 4  # Of each data set
_MOST_BINS = 96
_SAME = 1e-8  # Of two numbers of the output, against the largest
_TRIED = 4  # Draws on which it is tried that the number depends on that line alone
_ELSEWHERE = 24  # Points at which it is tried that nothing was missed between others


def piecewise_pair(
    run: Callable[[Any, Array], Array], blocks: tuple[Any, Any], noise: Affine, z: Array
) -> DistributionPair | None:
    """The laws, on two data sets, of the number of the output on which ``z`` acts most oddly.

    None where it is no number, depends on more than one line of noise, or turns too often.
    """
    try:
        found = _line_of(run, blocks, noise, z)
        if found is None:
            return None
        number, line = found
        sides: list[Callable[[float], float]] = [
            partial(lambda block, t: float(run(block, t * line)[number]), block) for block in blocks
        ]
        at = np.unique([*_POINTS, *_CUTS, *(float(line @ z) + _NEAR * np.arange(-3, 4))])
        values = np.array([[side(t) for t in at] for side in sides])
        ends = [
            end for side, own in zip(sides, values, strict=True) for end in _leaps(side, at, own)
        ]
        edges = _edges(at, values, ends)
        laws = []
        for side in sides:

            def bin_of(t: float, side: Callable[[float], float] = side) -> int:
                return int(np.searchsorted(edges, side(t)))

            laws.append(pieces(noise.family, bin_of, list(map(float, at))))
            rng = np.random.default_rng(0)
            elsewhere = [*rng.normal(size=_ELSEWHERE), *rng.uniform(at[0], at[-1], _ELSEWHERE)]
            if len(edges) > _MOST_BINS or any(bin_of(t) != laws[-1].at(t) for t in elsewhere):
                return None
    except Exception:  # what it raises on some data is an output of another form
        return None
    pair = laws[0].against(laws[1])
    return DistributionPair(pair.p, pair.q, f"number {number} of what leaves, in bins")


def _line_of(
    run: Callable[[Any, Array], Array], blocks: tuple[Any, Any], noise: Affine, z: Array
) -> tuple[int, Array] | None:
    left = []
    for block in blocks:
        base, moved = run(block, 0 * z), run(block, z)
        if base.shape != moved.shape or base.shape != noise.matrix.shape[:1]:
            return None
        left.append(np.abs(moved - base - noise.matrix @ z))
    number = int(np.max(left, axis=0).argmax())
    line = noise.matrix[number]
    if not line.any() or (noise.family != "normal" and np.count_nonzero(line) > 1):
        return None
    line = line / np.linalg.norm(line)
    rng = np.random.default_rng(0)
    for block in blocks:
        for far in np.linspace(0.5, 6.0, _TRIED):
            other = far * rng.normal(size=len(z))
            one, two = run(block, other), run(block, (line @ other) * line)
            if not abs(one[number] - two[number]) <= 1e-7 * (1 + abs(one[number])):
                return None
    return number, line


def _edges(at: Array, values: Array, ends: list[float]) -> Array:
    """Between bins: about what leaves on whole intervals, at the ends of leaps, and elsewhere."""
    room = _SAME * (1 + float(np.abs(values).max()))
    flat = values[:, 1:][np.abs(np.diff(values)) <= room]
    some = np.concatenate([flat, values[:, np.isin(at, _CUTS)].reshape(-1), ends])
    near = np.unique(np.round(some / room)) * room
    return np.unique(np.concatenate([near - 2 * room, near + 2 * room]))


def _leaps(side: Callable[[float], float], at: Array, values: Array) -> list[float]:
    """What leaves on either side of where that leaps most.

    Raises:
        CheckError: it turns back without a leap, so that more may lie between the points.
    """
    slopes = np.diff(values) / np.diff(at)
    bends = np.abs(np.diff(slopes, prepend=slopes[0], append=slopes[-1]))
    odd, least = np.minimum(bends[:-1], bends[1:]), _SAME * float(np.abs(slopes).max())
    ends, leaping = [], np.zeros(len(slopes), dtype=bool)
    for k in np.argsort(-odd)[:_LEAPS]:
        if odd[k] > least:
            low, high, one, two = at[k], at[k + 1], values[k], values[k + 1]
            while low < (middle := (low + high) / 2) < high:
                value = side(middle)
                if abs(value - one) > abs(value - two):
                    high, two = middle, value
                else:
                    low, one = middle, value
            ends += [one, two]
            leaping[k] = abs(two - one) > _SAME * (1 + float(np.abs(values).max()))
    way = np.where(np.abs(slopes) > least, np.sign(slopes), 0.0)
    if ((way[1:] * way[:-1] < 0) & ~(leaping[1:] | leaping[:-1])).any():
        raise CheckError("the output turns back as noise grows")
    return ends
