"""Numbers as readers see them: what is used up is rounded up, what is left down.

No view of a report rounds by itself, so that none says less than another.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_NEAREST = Context(prec=12)
"""By which a float counts as the short decimal that it stands for, such as 0.7."""
_ANY_SIZE = Context(prec=400, Emax=MAX_EMAX)  # Holds every float with some places behind its point
_LONG = 1e9  # From here on a number is shown with a power of ten


def up(amount: float | None) -> str:
    """What was spent, or is held, with six digits.

    >>> up(0.7000000000000001), up(1 / 3), up(None)
    ('0.7', '0.333334', 'unknown')
    """
    return "unknown" if amount is None else f"{float(significant(amount)):.6g}"


def down(amount: float | None) -> str:
    """What is left, with six digits.

    >>> down(0.99999996)
    '0.999999'
    """
    return "unknown" if amount is None else f"{float(significant(amount, down=True)):.6g}"


def part(of_one: float, *, down: bool = False) -> str:
    """A part of a cap, upwards unless ``down``.

    >>> part(0.5132), part(0.07), part(1.0), part(1e30), part(0.5132, down=True)
    ('51.4%', '7.0%', '100.0%', '1e+32%', '51.3%')
    """
    if not math.isfinite(of_one):
        return "∞"
    if of_one >= _LONG:
        return f"{up(100 * of_one)}%"
    return f"{_raised(of_one, 1, 2, ROUND_FLOOR if down else ROUND_CEILING):,}%"


def fixed(value: float, places: int = 4) -> str:
    """A number with so many places behind its point, or six digits if it is small, upwards.

    >>> fixed(2**0.5), fixed(0.5), fixed(1e30), fixed(1e-6)
    ('1.4143', '0.5000', '1e+30', '1e-06')
    """
    if not math.isfinite(value):
        return "∞"
    if value >= _LONG or _is_small(value, places):
        return up(value)
    return f"{_raised(value, places):f}"


def power_up(value: float) -> str:
    """A very small number with two digits, upwards.

    >>> power_up(1.41e-15)
    '1.5e-15'
    """
    return f"{float(significant(value, 2)):.1e}"


def rounded_up(value: float, places: int) -> float:
    """The least number not below a float, with so many places, or six digits if it is small.

    >>> rounded_up(0.7, 2), rounded_up(0.0701, 3), rounded_up(1e-9, 2)
    (0.7, 0.071, 1e-09)
    """
    if _is_small(value, places):
        return float(significant(value))
    return float(_raised(value, places)) if math.isfinite(value) else value


def significant(value: float, digits: int = 6, *, down: bool = False) -> Decimal:
    """A number with so many significant digits, upwards unless ``down``."""
    rounding = ROUND_FLOOR if down else ROUND_CEILING
    return Context(prec=digits, rounding=rounding).create_decimal(_short(value))


def counted(number: int, noun: str) -> str:
    """How many, and of what.

    >>> counted(1, "spend"), counted(1200, "spend")
    ('1 spend', '1,200 spends')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def indices(ends: tuple[int, int]) -> str:
    """Arrival indices from the first to before the second, with both ends told.

    >>> indices((0, 50)), indices((7, 8)), indices((7, 7))
    ('0..49', '7', 'nobody')
    """
    start, stop = ends
    if stop <= start:
        return "nobody"
    return str(start) if stop == start + 1 else f"{start}..{stop - 1}"


def _is_small(value: float, places: int) -> bool:
    """Whether so many places would leave one digit, or none, and tell another magnitude."""
    return 0 < value < 10.0 ** (1 - places)


def _raised(value: float, places: int, shift: int = 0, rounding: str = ROUND_CEILING) -> Decimal:
    unit = Decimal(1).scaleb(-places)
    return _short(value).scaleb(shift).quantize(unit, rounding, _ANY_SIZE)


def _short(value: float) -> Decimal:
    return _NEAREST.create_decimal_from_float(value)
