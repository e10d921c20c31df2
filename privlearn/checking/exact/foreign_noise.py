"""Noise of another package against its own price: what it draws has the law that its loss names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privlearn.checking.exact.check import Largest
from privlearn.checking.exact.loss_curves import rows_at_few_orders
from privlearn.checking.exact.moved import moved
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Density, LawPair, Product
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array, exponent_of

_ORDERS = (1.01, 1.5, 2.0, 4.0, 16.0, 128.0)
_DRAWS = 100_000
_CHANCE = 1e-6  # That numbers of the right law are refuted
_REACH, _CELLS = 200.0, 80_001  # Widths of a law on both sides of its centre, and points in them


def why_wrong(noise: Any, loss: Loss, sensitivity: float, dim: int) -> str:
    """What is wrong with a price; empty if nothing is.

    Args:
        noise: additive noise that did not come with this package.
        loss: what it costs when a record moves ``dim`` sums by the sensitivity in its norm.

    Raises:
        CheckError: its loss names no law on the line.
    """
    for p, q in loss.worst_pairs(_ORDERS) or ():
        if not (isinstance(p, Density) and isinstance(q, Density) and len(q.centre) == 1):
            continue
        if moved((p, q), 1.0) is None:
            continue
        shift = abs(p.centre[0] - q.centre[0])
        drawn = noise.draw(NoiseSource.simulation(0).pool(), (_DRAWS // dim, dim))
        standard = np.asarray(drawn, dtype=float) * shift / sensitivity
        return _of_numbers(standard, q) or _of_price(loss, (p, q), noise.norm, dim)
    raise CheckError("its loss names no law on the line that is moved (worst_pairs)")


def _of_numbers(numbers: Array, law: Density) -> str:
    """Whether they are independent and of this law: Kolmogorov's distance, by Massart's bound."""
    allowed = math.sqrt(math.log(2 / _CHANCE) / 2 / len(numbers))
    points = law.centre[0] + law.scale * np.linspace(-_REACH, _REACH, _CELLS)
    with np.errstate(all="ignore"):
        density = np.exp(law.log_density(points[:, None]))
    below = np.cumsum(density)
    for column in numbers.T:
        expected = np.interp(np.sort(column), points, below / below[-1])
        empirical = np.arange(1, len(column) + 1) / len(column)
        far = float(np.abs(empirical - expected).max())
        if far > allowed + 1e-3:
            return f"what is drawn has another law than its loss names: {far:.3g} apart"
    ranks = np.argsort(np.argsort(numbers, axis=0), axis=0)
    for a in range(numbers.shape[1] - 1):
        related = np.corrcoef(ranks[:, a], ranks[:, a + 1])[0, 1]
        if abs(related) > 4 * allowed:
            return f"numbers of one draw depend on each other: correlation {related:.3g}"
    return ""


def _of_price(loss: Loss, pair: LawPair, norm: Any, dim: int) -> str:
    """The price beside the loss of a move along one sum, and of the same along all of them."""
    both = [(*pair, "a move along one sum")]
    each = moved(pair, dim ** (-1 / exponent_of(norm)))
    if dim > 1 and each is not None:
        p, q = (Product(((law, dim),)) for law in each)
        both.append((p, q, f"a move along {dim} sums that is as long in {norm}"))
    for one in both:
        for row in rows_at_few_orders(loss, Largest([one])):
            if row.violated:
                return f"{row.measure}: claimed {row.claimed:.6g}, exact {row.exact:.6g} ({one[2]})"
    return ""
