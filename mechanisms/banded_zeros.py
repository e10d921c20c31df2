"""Whether the coefficients of 1/c(x) decay, for c of a banded BLT: no zero of c in the unit disc.

Zeros are counted by the turns of c(x) around 0 as x goes around the disc: c(x) = c0(x) - x**b
tail(x), with c0 that of the BLT which is not cut.  Up to the angle of 256 waves of x**b there are
16 points to a wave; from there on the cut has to be small against c0 and changes no turn, so that
64 points to a doubling of the angle are enough.  Where nothing is cut within the horizon, the disc
is smaller by exp(-3/horizon): coefficients may then grow by 20 in all.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_WAVES, _POINTS = 256, 16
_PER_DOUBLING = 64
_LEAST = 1e-6  # Least size of c on the circle: 1/c amplifies by less than a million


@lru_cache(maxsize=64)
def inverse_decays(
    lags: int, cut: bool, weights: tuple[float, ...], decay: tuple[float, ...]
) -> bool:
    """Whether they do, as far as some 5000 points on the circle tell; a few ms."""
    angles = _angles(lags)
    radius = 0.0 if cut else -3.0 / lags
    log_x = radius + 1j * angles
    x = np.exp(log_x)
    values = np.ones(len(x), dtype=np.complex128)
    gone = np.zeros(len(x), dtype=np.complex128)
    for w, a in zip(weights, decay, strict=True):
        log_ratio = np.log1p(-a) + log_x
        values += w * x * np.expm1((lags - 1) * log_ratio) / np.expm1(log_ratio)
        gone -= w * x * np.exp((lags - 1) * log_ratio) / np.expm1(log_ratio)
    if not np.abs(values).min() >= _LEAST:
        return False
    late = angles > 2 * np.pi * _WAVES / lags
    values[late] += gone[late]
    if (np.abs(gone[late]) > 0.5 * np.abs(values[late])).any():
        return False
    turns = np.angle(values[1:] / values[:-1])
    return bool(np.abs(turns).max() < 2.0 and abs(turns.sum()) < 1.0)


def _angles(lags: int) -> NDArray[np.float64]:
    last = min(2 * np.pi * _WAVES / lags, np.pi)
    near = np.linspace(0.0, last, _WAVES * _POINTS + 1)
    doublings = np.log2(np.pi / last)
    far = np.geomspace(last, np.pi, int(doublings * _PER_DOUBLING) + 2)[1:]
    return np.concatenate([near, far]) if doublings > 0 else near
