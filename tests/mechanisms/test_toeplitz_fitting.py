"""BLTs that are fitted to the visits of a person."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privlearn.mechanisms import BufferedToeplitz
from privlearn.mechanisms.banded_shapes import Array, Objective
from privlearn.mechanisms.buffered_toeplitz import fitted_decays
from privlearn.mechanisms.toeplitz_fitting import (
    decoded,
    encoded,
    fit_toeplitz,
    norm_square,
    residues,
    variance,
)
from privlearn.values.participation import Participation


def coefficients(decay: Array, output_decay: Array, size: int) -> Array:
    powers = (1 - decay) ** np.arange(size - 1)[:, None]
    return np.concatenate([[1.0], powers @ residues(decay, output_decay)])


def by_columns(made: BufferedToeplitz, most: int, apart: int) -> float:
    """S of visits at 0, apart, 2 apart, ..."""
    n = made.horizon
    c = coefficients(np.array(made.decay), np.array(made.output_decay), n)
    total = np.zeros(n)
    for first in range(0, min(most * apart, n), apart):
        total[first:] += c[: n - first]
    return float(np.linalg.norm(total))


@pytest.mark.parametrize(("most", "apart"), [(1, 1), (4, 10), (3, 1), (60, 1), (7, 9), (2, 59)])
def test_closed_form_is_the_norm_of_the_columns(most: int, apart: int) -> None:
    made = BufferedToeplitz.fitted(60)
    decays = np.array(made.decay), np.array(made.output_decay)
    visits = min(most, -(-60 // apart))
    found = math.sqrt(norm_square(*decays, 60, visits, apart))
    assert found == pytest.approx(by_columns(made, most, apart), rel=1e-12)


@pytest.mark.parametrize("horizon", [1, 2, 60, 2**20])
def test_variances_are_those_of_the_class(horizon: int) -> None:
    made = BufferedToeplitz.fitted(horizon)
    decays = np.array(made.decay), np.array(made.output_decay)
    largest, mean = (math.sqrt(variance(*decays, horizon, o)) for o in ("max", "mean"))
    assert largest == pytest.approx(made.max_error_std(), rel=1e-9)
    assert mean == pytest.approx(made.rms_error_std(), rel=1e-9)


def test_logits_and_decays_are_inverse() -> None:
    decays = tuple(map(np.array, fitted_decays(1000)))
    np.testing.assert_allclose(decoded(encoded(*decays)), decays, rtol=1e-12)


@pytest.mark.parametrize(("objective", "gain"), [("max", 0.94), ("mean", 0.95)])
def test_fit_is_better_than_that_for_one_visit(objective: Objective, gain: float) -> None:
    horizon, most, apart = 2**12, 16, 64
    made = fit_toeplitz(horizon, Participation(most, apart), objective)
    one = BufferedToeplitz.fitted(horizon)

    def error(blt: BufferedToeplitz) -> float:
        std = blt.max_error_std() if objective == "max" else blt.rms_error_std()
        return by_columns(blt, most, apart) * std

    assert error(made) < gain * error(one)
    assert made == fit_toeplitz(horizon, Participation(most, apart), objective)


def test_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="a stream has no batches"):
        fit_toeplitz(100, Participation(2, pooled=True))


def test_too_many_visits_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 16384 visits"):
        fit_toeplitz(2**15, Participation(2**15))
