"""Wrong sensitivities and budgets of diffprivlib 0.6.6, rebuilt as functions, and refuted.

Reported as diffprivlib#104 for its linear regression, k-means and vector mechanism: bounds, and a
budget that is used twice, are as the issue quotes them; the others are what the code of these
models does with the bounds and budgets that it is given.  Neighbours are what a user would give:
one record more or less, with its values at a corner of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.checking import check_mechanism
from privlearn.errors import PrivacyViolation
from privlearn.losses.budgets import PureDP

EPSILON = 1.0
LOWER, UPPER = 0.5, 4.0  # of each number
Array = Any


def squares(data: Array, rng: Any, *, bounds: tuple[float, float] = (LOWER, LOWER)) -> float:
    """The diagonal of XᵀX: its sensitivity is taken from the lower bound, twice."""
    sensitivity = np.abs(bounds).max() ** 2
    return float((data[:, 0] ** 2).sum() + rng.laplace(0, sensitivity / EPSILON))


def products(data: Array, rng: Any, *, corners: Callable[..., Any] = np.ptp) -> float:
    """An entry of Xᵀy: its sensitivity is the range of the corners, as if none were missing."""
    sensitivity = corners([LOWER * LOWER, LOWER * UPPER, UPPER * UPPER])
    return float((data[:, 0] * data[:, 1]).sum() + rng.laplace(0, sensitivity / EPSILON))


def centred(data: Array, rng: Any, *, parts: float = 2.0) -> tuple[float, float, float]:
    """Two means are released for one share of the budget, ε/(features + 1); a product for ε/2."""
    scale = UPPER * parts / EPSILON
    x, y = (float(data[:, k].sum() + rng.laplace(0, scale)) for k in (0, 1))
    product = (data[:, 0] * data[:, 1]).sum() + rng.laplace(0, UPPER**2 * 2 / EPSILON)
    return x, y, float(product)


def centres(data: Array, rng: Any, *, swapped: bool = True, features: int = 8) -> Any:
    """A step of k-means: shares of ε for the count and for each sum, the wrong way round."""
    for_count = np.cbrt(4 * features * 0.225**2)
    unit = EPSILON / (features + for_count)
    count, each = (unit, for_count * unit) if swapped else (for_count * unit, unit)
    sums = np.repeat(data[:, 0].sum(), features) + rng.laplace(0, UPPER / each, features)
    return len(data) + rng.laplace(0, 1 / count), sums


def untouched(data: Array, rng: Any, *, skips: bool = True) -> float:
    """A centre of k-means, which stays as it was where no record is near it."""
    near = data[data[:, 0] > 3]
    if skips and not len(near):
        return 2.0
    return float(near[:, 0].sum() + rng.laplace(0, UPPER / EPSILON))


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "the lower bound twice": (squares, {"bounds": (LOWER, UPPER)}),
    "the range of corners": (products, {"corners": np.max}),
    "one share for two means": (centred, {"parts": 4.0}),
    "shares swapped": (centres, {"swapped": False}),
    "an empty cluster is skipped": (untouched, {"skips": False}),
}
_few = np.full((3, 2), 1.0)
PAIR = np.vstack([_few, [[UPPER, UPPER]]]), _few


@pytest.mark.parametrize("name", CASES)
def test_wrong_sensitivities_of_diffprivlib_are_refuted_and_repaired_ones_are_not(
    name: str,
) -> None:
    function, repair = CASES[name]
    with pytest.raises(PrivacyViolation):
        check_mechanism(function, PureDP(1), neighbours=PAIR, samples=1_000)

    def repaired(data: Array, rng: Any) -> Any:
        return function(data, rng, **repair)

    assert not check_mechanism(
        repaired, PureDP("1.000001"), neighbours=PAIR, samples=1_000
    ).violated
