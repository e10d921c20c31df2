"""Numbers of losses: what they may be, and how prices made from them are rounded up."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction

from privlearn.values.exact import Exact, exact
from privlearn.values.validate import count, finite

ULP = 2.0**-52
MOST_STEPS = 10**15
ROUNDING = 1e-14  # Relative slack that covers the float evaluation of closed forms (a few ulps)


def up(value: float) -> float:
    """A float that was evaluated in a few operations, rounded up."""
    return value * (1 + ROUNDING)


def valid_order(order: float) -> float:
    """Returns a Rényi order: finite and > 1."""
    alpha = finite(order=order)
    if alpha <= 1:
        raise ValueError(f"order = {order!r}: must be > 1")
    return alpha


def valid_epsilon(value: Exact) -> Fraction:
    """Returns a worst-case loss in nats: exact, in [1e-100, 700]."""
    epsilon = exact("epsilon", value)
    if not Fraction(1, 10**100) <= epsilon <= 700:
        raise ValueError(f"epsilon = {value!r}: must lie in [1e-100, 700]")
    return epsilon


def valid_number(name: str, value: Exact, low: str, high: str) -> Fraction:
    """Returns an exact number in [low, high]."""
    number = exact(name, value)
    if not Fraction(low) <= number <= Fraction(high):
        raise ValueError(f"{name} = {value!r}: must lie in [{low}, {high}]")
    return number


def valid_count(most: int, *, at_least: int, **named: int) -> int:
    """Returns an integer in [at_least, most]; the keyword is its name in the message."""
    ((name, value),) = named.items()
    number = count(at_least=at_least, **{name: value})
    if number > most:
        raise ValueError(f"{name} = {value!r}: must be an integer <= {most}")
    return number


def working_context(epsilon: Fraction) -> Context:
    """Precision that leaves 60 digits after the cancellation of ε − ε²/2 + …."""
    digits = len(str(epsilon.denominator)) - len(str(epsilon.numerator))
    return Context(prec=60 + 3 * max(digits, 0))


def decimal_of(value: Fraction, context: Context) -> Decimal:
    """The nearest decimal of the context."""
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def fraction_up(value: Decimal) -> Fraction:
    """A decimal of about 60 exact digits, rounded up to 30, which covers its last-digit errors."""
    return Fraction(value.normalize(Context(prec=30, rounding=ROUND_CEILING)))
