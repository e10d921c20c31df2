"""Public numbers that people type: budgets, bounds and counts, with the ranges that are accepted.

>>> parse_budget("rho=0.5")
ZCDP('0.5')
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

from pydantic import AfterValidator

from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP
from privlearn.values.exact import Exact, exact

LEAST_BUDGET: Final = Decimal("1e-6")
LARGEST_BUDGET: Final = Decimal("1e9")
LARGEST_MU: Final = Decimal("1e4")
LARGEST_EPSILON: Final = Decimal(100)  # Of a budget without δ
LEAST_DELTA: Final = Decimal("1e-100")
LEAST, LARGEST = 1e-100, 1e100  # Of public bounds and scales
LONGEST_HORIZON: Final = 10**8  # More users than this are refused
MOST_SIMULATED: Final = 10**6  # Of people who are made up, each of whom takes a few kilobytes
MOST_ITEMS: Final = 10**5
_FORMS: Final = "rho=…, mu=… or epsilon=…,delta=… (short: 1,1e-6)"


def parse_budget(text: str, *, pure: bool = False) -> Currency | ApproxDP:
    """Reads ``rho=1``, ``mu=0.5`` or ``epsilon=2,delta=1e-6``, for which ``2,1e-6`` is short.

    Args:
        text: as somebody typed it.
        pure: take ``epsilon=1``, too, which no Gaussian noise has a price in.

    Raises:
        ValueError: another form, or a number out of range.
    """
    forms = f"epsilon=…, {_FORMS}" if pure else _FORMS
    if "=" not in text and text.count(",") == 1:
        text = "epsilon={},delta={}".format(*text.split(","))
    parts = _parts(text, forms)
    match sorted(parts):
        case ["epsilon"] if pure:
            return PureDP(_amount(text, "epsilon", parts["epsilon"], most=LARGEST_EPSILON))
        case ["rho"]:
            return ZCDP(_amount(text, "rho", parts["rho"]))
        case ["mu"]:
            return GaussianDP(_amount(text, "mu", parts["mu"], most=LARGEST_MU))
        case ["delta", "epsilon"]:
            epsilon = _amount(text, "epsilon", parts["epsilon"])
            return ApproxDP(epsilon, _delta(text, parts["delta"]))
    raise ValueError(f"budget = {text!r}: must be {forms}")


def parse_local_budget(text: str) -> PureDP | ApproxDP:
    """Reads ``epsilon=1`` or ``epsilon=1,delta=1e-3``."""
    parts = _parts(text, "epsilon=… or epsilon=…,delta=…")
    if sorted(parts) not in (["epsilon"], ["delta", "epsilon"]):
        raise ValueError(f"budget = {text!r}: must be epsilon=… or epsilon=…,delta=…")
    epsilon = _amount(text, "epsilon", parts["epsilon"], most=LARGEST_EPSILON)
    return ApproxDP(epsilon, _delta(text, parts["delta"])) if "delta" in parts else PureDP(epsilon)


def _parts(text: str, form: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.replace(" ", "").split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"budget = {text!r}: must be {form}")
        if name in parts:
            raise ValueError(f"budget = {text!r}: {name} stands twice; must be {form}")
        parts[name] = value
    return parts


def _amount(text: str, name: str, value: str, *, most: Decimal = LARGEST_BUDGET) -> Exact:
    number = _decimal(text, name, value)
    if not LEAST_BUDGET <= number <= most:
        raise ValueError(
            f"budget = {text!r}: {name} = {value} must lie between {float(LEAST_BUDGET):g} "
            f"and {float(most):g}"
        )
    return value


def _delta(text: str, value: str) -> Exact:
    number = _decimal(text, "delta", value)
    if not LEAST_DELTA <= number < 1:
        raise ValueError(
            f"budget = {text!r}: delta = {value} must be at least {float(LEAST_DELTA):g} and "
            "below 1"
        )
    return value


def _decimal(text: str, name: str, value: str) -> Decimal:
    """About the number, whose exact form may be too long to be made."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        try:
            fraction = exact(name, value)
            number = Decimal(fraction.numerator) / Decimal(fraction.denominator)
        except ValueError:
            number = Decimal("nan")
    if not number.is_finite():
        raise ValueError(f"budget = {text!r}: {name} = {value} must be a finite number")
    return number


def _between(low: float, high: float, what: str) -> AfterValidator:
    def valid(value: float) -> float:
        if not low <= value <= high:  # NaN is not
            raise ValueError(f"must be a number {what}")
        return value

    return AfterValidator(valid)


def _exponent(value: float) -> float:
    if not value > 1:
        raise ValueError("must be a number above 1, or inf")
    return value


PublicBound = Annotated[float, _between(LEAST, LARGEST, f"between {LEAST:g} and {LARGEST:g}")]
"""A public bound or divisor."""
Exponent = Annotated[float, AfterValidator(_exponent)]  # Of an ℓp ball
Centre = Annotated[float, _between(-LARGEST, LARGEST, f"between {-LARGEST:g} and {LARGEST:g}")]
"""A public number of either sign."""
Horizon = Annotated[int, _between(1, LONGEST_HORIZON, f"of users, 1 to {LONGEST_HORIZON:,}")]
"""A public number of users."""
Simulated = Annotated[
    int, _between(1, MOST_SIMULATED, f"of simulated people, 1 to {MOST_SIMULATED:,}")
]
"""A public number of simulated users."""
HeldOut = Annotated[int, _between(0, LONGEST_HORIZON, f"of rows, 0 to {LONGEST_HORIZON:,}")]
"""A number of rows that nothing is learned from."""
ItemCount = Annotated[int, _between(1, MOST_ITEMS, f"of items, 1 to {MOST_ITEMS:,}")]
"""Items on offer to each user."""
