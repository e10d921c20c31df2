"""Amounts as they are printed: what is used up or promised is rounded up, and what is left down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_NEAREST = Context(prec=12)
"""By which a float counts as the short decimal that it stands for, such as 0.7."""
_UP_BRIEFLY = Context(prec=2, rounding=ROUND_CEILING)
_UP, _DOWN = Context(prec=6, rounding=ROUND_CEILING), Context(prec=6, rounding=ROUND_FLOOR)


def up(amount: float | None) -> str:
    """What was spent, or is held.

    >>> up(0.7000000000000001), up(1 / 3), up(None)
    ('0.7', '0.333334', 'unknown')
    """
    return _shown(amount, _UP)


def places_up(amount: float, places: int = 4) -> str:
    """An ε, a μ or another number with so many places after the point, upwards.

    >>> places_up(1.00001), places_up(1.0), places_up(0.3), places_up(math.inf)
    ('1.0001', '1.0000', '0.3000', '∞')
    """
    if not math.isfinite(amount):
        return "∞"
    exact = _NEAREST.create_decimal_from_float(amount)
    return f"{exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING):f}"


def power_up(amount: float) -> str:
    """A very small number with two digits, upwards.

    >>> power_up(1.41e-15)
    '1.5e-15'
    """
    return f"{float(_UP_BRIEFLY.create_decimal_from_float(amount)):.1e}"


def down(amount: float | None) -> str:
    """What is left.

    >>> down(0.99999996)
    '0.999999'
    """
    return _shown(amount, _DOWN)


def part(of_one: float) -> str:
    """A part of a cap, upwards.

    >>> part(0.5132), part(0.07), part(1.0)
    ('51.4%', '7.0%', '100.0%')
    """
    if not math.isfinite(of_one):
        return "∞"
    exact = _NEAREST.create_decimal_from_float(of_one).scaleb(2)
    return f"{exact.quantize(Decimal('0.1'), rounding=ROUND_CEILING):,}%"


def _shown(amount: float | None, rounding: Context) -> str:
    if amount is None:
        return "unknown"
    return f"{float(rounding.create_decimal(_NEAREST.create_decimal_from_float(amount))):.6g}"
