"""The enclosures of tail(z), against Arb."""

from __future__ import annotations

import random

import flint
import pytest
from table_building import BALL_TAILS

from privlearn.noise.exact.tails import FAMILIES, Family, exp_minus

WORK = 700


@pytest.fixture(autouse=True)
def many_bits() -> object:
    old, flint.ctx.prec = flint.ctx.prec, WORK
    yield
    flint.ctx.prec = old


def places(family: Family, rng: random.Random) -> list[tuple[int, int, int]]:
    """(m, bits, precision): near 0, where most are, and far out."""
    least = {"gumbel-top": 0.3666, "gumbel-bottom": -0.3665}.get(family.name, 0.0)
    most = 6.0 if family.name == "gumbel-bottom" else 20.0
    found = []
    for _ in range(400):
        bits, precision = rng.choice([3, 40, 60, 150]), rng.choice([95, 127, 300])
        z = rng.choice(
            [
                rng.uniform(least, most),
                rng.uniform(least, least + 1),
                least + 10 ** -rng.uniform(1, 9),
            ]
        )
        m = int(z * 2 ** min(bits, 52)) << max(bits - 52, 0)
        found.append((m + 1 if z < 0 or bits == 3 else m, bits, precision))
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_bounds_hold_and_are_narrow(family: Family) -> None:
    rng = random.Random(7)
    for m, bits, precision in places(family, rng):
        low, high = family.tail(m, bits, precision)
        if family.name.startswith("gumbel") and low >= 1 << precision:
            continue  # beyond f's values: any bound at or above 1
        true = BALL_TAILS[family.name].of(flint.arb(m) / flint.arb(2) ** bits)
        true = true * flint.arb(2) ** precision
        assert not flint.arb(low) > true, (m, bits, precision)
        assert not true > flint.arb(high), (m, bits, precision)
        assert high - low <= 8


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tails_decrease_from_one_to_nothing(family: Family) -> None:
    start = {"gumbel-top": 0.3666, "gumbel-bottom": -0.3665}.get(family.name, 0.0)
    heights = [family.tail(int((start + i / 4) * 2**40), 40, 200)[0] for i in range(200)]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] > 0.99 * 2**200
    assert heights[-1] < 2**150
    low, high = family.tail(10**9 << 40, 40, 200)
    assert low == 0
    assert high <= 8


def test_an_exponential_of_nothing_is_one() -> None:
    assert exp_minus(0, 40, 100)[1] == 1 << 100
    assert exp_minus(1 << 140, 40, 100) == (0, 1)
    with pytest.raises(ValueError, match="x = -1"):
        exp_minus(-1, 40, 100)
