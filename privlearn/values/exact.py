"""Exact numbers: read from text or floats, written as text, and rounded to one side."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Exact: TypeAlias = int | float | str | Decimal | Fraction | np.integer[Any] | np.floating[Any]
"""What may be written for an exact number."""

MOST_DIGITS = 400
"""Of an exact number, and its largest power of ten: numbers come from files of strangers."""
_MOST = 10**MOST_DIGITS
_DIGITS = f"[0-9]{{1,{MOST_DIGITS}}}"
_NUMBER = re.compile(
    rf"[+-]?(?:{_DIGITS}/{_DIGITS}"
    rf"|(?:{_DIGITS}(?:\.[0-9]{{0,{MOST_DIGITS}}})?|\.{_DIGITS})"
    r"(?:[eE][+-]?0*(?P<exponent>[0-9]{1,3}))?)"
)


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "an integer"
    return text if len(text) <= 80 else f"{text[:76]}..."


def _within(value: int | str | Decimal | Fraction) -> bool:
    """Whether a number is written with few enough digits to be worth reading."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        return found is not None and int(found["exponent"] or 0) <= MOST_DIGITS
    if isinstance(value, Decimal):
        return not value.is_finite() or (
            len(value.as_tuple().digits) <= MOST_DIGITS
            and abs(int(value.as_tuple().exponent)) <= 2 * MOST_DIGITS
        )
    return not isinstance(value, int) or -_MOST < value < _MOST


def exact(name: str, value: Exact) -> Fraction:
    """Returns ``value`` as an exact fraction; floats count as their shortest decimal, NumPy's too.

    Text is a decimal, with or without a power of ten, or ``p/q``: at most 400 digits each, and at
    most 400 for the power.

    Raises:
        TypeError: not a number.
        ValueError: not finite, or longer than that.
    """
    if value.__class__ is Fraction:
        return value
    if value.__class__ is int and -_MOST < value < _MOST:
        return Fraction(value)
    if value.__class__ is str and len(value) <= _SHORT:
        return _read(name, value)
    return _looked_at(name, value)


_SHORT = 32
"""Characters of a text that is remembered once it was read."""


def _looked_at(name: str, value: Any) -> Fraction:
    if isinstance(value, np.integer):
        value = int(value)
    elif isinstance(value, np.floating) and not isinstance(value, float):
        value = str(value) if np.isfinite(value) else float(value)  # its own shortest decimal
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        raise TypeError(f"{name} = {value!r}: must be a number or a string such as '0.1' or '1/3'")
    if not isinstance(value, float) and not _within(value):
        raise ValueError(
            f"{name} = {_short(value)}: must be a finite number of at most {MOST_DIGITS} digits, "
            f"such as '0.1', '1e-6' or '1/3', with powers of ten up to {MOST_DIGITS}"
        )
    try:
        return Fraction(repr(float(value)) if isinstance(value, float) else value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} = {value!r}: must be a finite number") from None
    except ZeroDivisionError:
        raise ValueError(f"{name} = {value!r}: must not divide by zero") from None


_read = lru_cache(maxsize=1024)(_looked_at)


def exact_text(value: Fraction) -> str:
    """Writes a fraction as a plain decimal where that is exact, else as ``p/q``.

    >>> exact_text(Fraction(1, 8)), exact_text(Fraction(1, 3)), exact_text(Fraction(20))
    ('0.125', '1/3', '20')
    """
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1 or max(twos, fives) > 60:
        return str(value)
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole, tail = (digits[:-places], digits[-places:]) if places else (digits, "")
    return ("-" if value < 0 else "") + whole + ("." + tail if tail else "")


def float_up(value: Fraction) -> float:
    """Returns the smallest float that is not below ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_down(value: Fraction) -> float:
    """Returns the largest float that is not above ``value``."""
    return -float_up(-value)


@lru_cache(maxsize=4096)
def round_up(value: Fraction, digits: int = 12) -> Fraction:
    """Returns the smallest number of ``digits`` significant decimals that is not below ``value``.

    Prices made from floats are rounded this way: never below the truth, legible in a ledger, and
    cheap to add exactly.

    >>> exact_text(round_up(Fraction(1, 3), 4))
    '0.3334'
    """
    if value <= 0:
        return Fraction(0)
    exponent = len(str(value.numerator)) - len(str(value.denominator))
    unit = Fraction(10) ** (exponent - digits)
    steps = -(-value // unit)
    while steps > 10**digits:
        unit *= 10
        steps = -(-value // unit)
    return steps * unit
