"""The norms ℓp, by name or exponent."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Norm = Literal["l1", "l2", "linf"] | float
"""A name, or the exponent p >= 1 of ℓp.  Noise asks in numbers p > 2 only, where an answer for ℓ2
is never too small."""


def exponent_of(norm: Norm) -> float:
    """The exponent p of the norm ℓp.

    Raises:
        ValueError: no such norm.
    """
    named = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
    p = named.get(norm, 0.0) if isinstance(norm, str) else float(norm)
    if not p >= 1:
        raise ValueError(f"norm = {norm!r}: must be 'l1', 'l2', 'linf' or an exponent >= 1")
    return p


def norm_name(*, norm: Norm) -> Norm:
    """The name of a norm, where it has one."""
    names: dict[float, Norm] = {1.0: "l1", 2.0: "l2", math.inf: "linf"}
    p = exponent_of(norm)
    return names.get(p, p)


def power(size: int, exponent: float) -> float:
    """size^exponent, a square root where it is one."""
    return math.sqrt(size) if exponent == 0.5 else float(size**exponent)
