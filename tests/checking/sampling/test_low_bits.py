"""The precision attack of the benchmark, on fewer samples: exact noise gives it nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location(
        "exact_noise_attack", ROOT / "benchmarks" / "exact_noise_attack.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there for their annotations
    spec.loader.exec_module(module)
    return module


attack = _loaded()
SAMPLES = 40_000


@pytest.mark.parametrize("subject", attack.SUBJECTS, ids=lambda subject: subject.name)
def test_last_bits_of_exact_noise_tell_nothing(subject: Any) -> None:
    first, second = (attack.drawn(subject, which, SAMPLES) for which in (False, True))
    for bits in attack.BITS:
        assert attack.low_bits_bound(first, second, subject.step, bits) < 0.005
    assert attack.off_lattice(first, subject.step) == 0
    assert attack.off_lattice(second, subject.step) == 0


@pytest.mark.parametrize("subject", attack.IN_DOUBLES, ids=lambda subject: subject.name)
def test_last_bits_of_doubles_tell(subject: Any) -> None:
    first, second = (attack.drawn(subject, which, SAMPLES) for which in (False, True))
    assert max(attack.low_bits_bound(first, second, subject.step, b) for b in attack.BITS) > 0.5


def test_a_number_beside_the_lattice_is_counted() -> None:
    step = 2.0**-40 / 0.3
    on = np.array([5, -7, 2**50 + 1]) * step
    assert attack.off_lattice(on, step) == 0
    assert attack.off_lattice(on + np.array([0.0, 0.4 * step, 0.0]), step) == 1
