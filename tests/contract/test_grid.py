"""Grids: exact steps, the finest that fits, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from typing import Any

import pytest

from privlearn.values.grid import Grid

SMALLEST = sys.float_info.min


@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 7e100, SMALLEST * 2.0**40, sys.float_info.max])
def test_the_step_is_exactly_the_scale_over_a_power_of_two(scale: float) -> None:
    for bits in (30, 37, 40):
        assert Fraction(Grid(scale, bits).step) == Fraction(scale) / 2**bits


@pytest.mark.parametrize(
    ("scale", "largest", "rows", "bits"),
    [
        (1.0, 1.0, 1, 40),
        (1.0, 0.0, 1, 40),
        (1.0, 2.0**21, 1, 39),  # 2^61 itself is too large
        (1.0, math.nextafter(2.0**21, 0), 1, 40),
        (1.0, 1.0, 2**21, 39),
        (1.0, 1.0, 2**21 - 1, 40),
        (1.0, 1.0, Fraction(2**22 - 1, 2), 40),
        (0.1, 2.0**20, 1, 37),
        (1.0, math.nextafter(2.0**31, 0), 1, 30),
        (3.0, 1e9, 6, 30),
    ],
)
def test_the_finest_grid_that_fits_is_taken(
    scale: float, largest: float, rows: int | Fraction, bits: int
) -> None:
    grid = Grid.fitting(scale, largest, rows)
    assert grid == Grid(scale, bits)
    sums = Fraction(largest) * rows / Fraction(grid.step)
    assert sums < 2**61
    assert bits == 40 or 2 * sums >= 2**61


@pytest.mark.parametrize(("largest", "rows"), [(2.0**31, 1), (1.0, 2.0**31), (1e300, 1e300)])
def test_numbers_too_large_for_their_noise_are_refused_by_name(largest: float, rows: float) -> None:
    with pytest.raises(ValueError, match=r"scale = 1.0: too small .* above 1"):
        Grid.fitting(1.0, largest, rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grid(0.0, 40), r"scale = 0.0: must be a normal double > 0"),
        (lambda: Grid(-1.0, 40), r"scale = -1.0: must be a normal double"),
        (lambda: Grid(5e-324, 40), r"scale = 5e-324: must be a normal double"),
        (lambda: Grid(math.inf, 40), r"scale = inf: must be finite"),
        (lambda: Grid(math.nan, 40), r"scale = nan: must be finite"),
        (lambda: Grid(SMALLEST * 2.0**39, 40), r"bits = 40: the step .* must be a normal"),
        (lambda: Grid(1.0, 29), r"bits = 29: must lie in 30..40"),
        (lambda: Grid(1.0, 41), r"bits = 41: must lie in 30..40"),
        (lambda: Grid.fitting(0.0, 1.0), r"scale = 0.0: must be a normal"),
        (lambda: Grid.fitting(1.0, -1.0), r"largest = -1.0: must be >= 0"),
        (lambda: Grid.fitting(1.0, math.inf), r"largest = inf: must be finite"),
        (lambda: Grid.fitting(1.0, 1.0, 0.5), r"rows = 0.5: must be >= 1"),
        (lambda: Grid.fitting(1.0, 1.0, math.inf), r"rows = inf: must be finite"),
    ],
)
def test_bad_numbers_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match=r"bits = 40.0: must be an integer"):
        Grid(1.0, 40.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("grid", [Grid(0.1, 40), Grid(1 / 3, 30), Grid(1e300, 33)])
def test_json_keeps_every_bit(grid: Grid) -> None:
    form = json.loads(json.dumps(grid.to_dict()))
    assert Grid.from_dict(form) == grid
    assert form == {"scale": grid.scale.hex(), "bits": grid.bits}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"bits": 40}, "grid lacks 'scale'"),
        ({"scale": 1.0, "bits": 40}, "scale = 1.0: must be text"),
        ({"scale": "0x1.0p+0", "bits": 40.0}, "bits = 40.0: must be an integer"),
        ({"scale": "0x1.0p+0", "bits": True}, "bits = True: must be an integer"),
        ({"scale": "0x1.0p+0", "bits": 40, "n": 1}, "has no 'n'"),
        ({"scale": "1.0", "bits": 40}, "must be what float.hex writes"),
        ({"scale": "0x1p+0", "bits": 40}, "must be what float.hex writes"),
        ({"scale": "0x1.0p+99999", "bits": 40}, "must be what float.hex writes"),
        ({"scale": "one", "bits": 40}, "must be what float.hex writes"),
        ({"scale": "inf", "bits": 40}, "must be finite"),
        ({"scale": "nan", "bits": 40}, "must be finite"),
    ],
)
def test_other_json_is_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid.from_dict(form)
