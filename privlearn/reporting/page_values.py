"""Numbers, times and names as they stand on a page: rounded for readers, exact in the markup."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from privlearn.accountants.shown_numbers import indices, part, rounded_up, significant
from privlearn.reporting.visible import visible

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN = (1e-6, 1e9)  # Between these a number is written without a power of ten


def rounded(value: float, digits: int = 6, *, down: bool = False) -> str:
    """A number with so many significant digits, upwards unless ``down``.

    >>> rounded(1 / 3), rounded(1 / 3, down=True), rounded(2.5e-8), rounded(1234567.8)
    ('0.333334', '0.333333', '2.5 × 10⁻⁸', '1,234,570')
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    cut = significant(value, digits, down=down).normalize()
    if _PLAIN[0] <= abs(cut) < _PLAIN[1]:
        return f"{cut:,f}"
    mantissa, exponent = f"{cut:e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def number(value: float | None, *, down: bool = False, missing: str = "unknown") -> Markup:
    """A number of the report, with its exact value in the markup."""
    return _data(value, "" if value is None else rounded(value, down=down), missing)


def percent(value: float | None, *, missing: str = "unknown") -> Markup:
    """A part of one of the report, as a percentage."""
    if value is None:
        return _data(None, "", missing)
    return _data(value, part(value), missing)


def chance(value: float) -> Markup:
    """A probability of the report as a percentage with two places, upwards as `Reading.words`."""
    return _data(value, f"{rounded_up(100 * value, 2):g}%", "")


def odds(value: float) -> Markup:
    """Odds of the report with two places, upwards as `Reading.words`."""
    return _data(value, f"{rounded_up(value, 2):g}", "")


def count(value: int | None, *, missing: str = "unknown") -> Markup:
    """How many, whole."""
    return _data(value, "" if value is None else f"{value:,}", missing)


def _data(value: float | None, text: str, missing: str) -> Markup:
    if value is None:
        return Markup('<span class="missing">{}</span>').format(missing)
    return Markup('<data value="{}">{}</data>').format(repr(value), text)


def minute(text: str | None) -> Markup:
    """A minute in UTC, as the ledger declares it."""
    if text is None:
        return Markup('<span class="missing">no time</span>')
    return Markup('<time datetime="{}">{} UTC</time>').format(text, text[:-1].replace("T", " "))


def users(ends: tuple[int, int] | None) -> Markup:
    """A range of indices with both its ends."""
    if ends is None:
        return Markup('<span class="missing">several populations</span>')
    return Markup('<span class="users">{}</span>').format(indices(ends))


def asked(value: str | float) -> Markup | str:
    """What an option of the audit was given."""
    return value if isinstance(value, str) else _data(value, f"{value:,}", "")


def plain(text: str, most: int) -> Markup:
    """Text of the ledger, made visible and escaped."""
    return escape(visible(text, most))


def cell(value: str | Markup, most: int) -> Markup:
    """What stands in a table: text of the ledger, or markup of ours."""
    return value if isinstance(value, Markup) else words(value, most)


def words(text: str, most: int) -> Markup:
    """Text of the ledger, made visible, escaped, and kept apart from what stands around it."""
    return Markup("<bdi>{}</bdi>").format(plain(text, most))
