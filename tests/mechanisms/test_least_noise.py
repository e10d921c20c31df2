"""The least noise at a price, under exact multiplication."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from privlearn.adjacency import Adjacency
from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.mechanisms.least_noise import gaussian_noise


@given(st.floats(0.01, 100), st.floats(1, 4))
@example(0.0715541752799933, 1.000000325001199)
def test_an_exact_product_of_sensitivity_and_gain_earns_no_larger_loss(
    radius: float, gain: float
) -> None:
    """As somebody finds who multiplies what stands in a spend, which is 1e-16 off in floats."""
    noise = gaussian_noise(Ball(radius, 2), ZCDP(1), Adjacency.REPLACE_ONE, gain=gain)
    earned = (2 * Fraction(radius) * Fraction(gain) / Fraction(noise.std)) ** 2
    assert earned <= 2 <= earned * (1 + Fraction(1, 10**10))
