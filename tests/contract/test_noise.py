"""Noise: the stated scale, from a source that cannot be used twice."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from privlearn.errors import TokenCopyError
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource, noise_from_dict
from privlearn.noise.exact.pool import uniform
from privlearn.values.adjacency import Adjacency

SAMPLE_SIZE = 400_000
STD_TOLERANCE = 0.01
"""Nine standard errors of the sample std, and a fifth of the planted defect."""
P_THRESHOLD = 1e-9
"""Secure noise is fresh on every run: a false alarm once in a thousand million runs."""


def std_is(sample: NDArray[np.float64], std: float) -> bool:
    return bool(abs(sample.std() / std - 1) < STD_TOLERANCE and abs(sample.mean()) < std / 100)


def test_gaussian_noise_has_its_std_and_five_percent_less_is_seen() -> None:
    draw = GaussianNoise(2.5).draw(NoiseSource.simulation(1).pool(), (SAMPLE_SIZE // 4, 4))
    assert draw.shape == (SAMPLE_SIZE // 4, 4)
    assert std_is(draw, 2.5)
    assert not std_is(draw * 0.95, 2.5)
    assert np.abs(np.corrcoef(draw.T) - np.eye(4)).max() < 0.02
    assert scipy.stats.kstest(draw.ravel() / 2.5, "norm").pvalue > 1e-4


def test_laplace_noise_has_its_scale_and_five_percent_less_is_seen() -> None:
    draw = LaplaceNoise(3.0).draw(NoiseSource.simulation(2).pool(), (SAMPLE_SIZE,))
    assert std_is(draw, 3.0 * math.sqrt(2))
    assert not std_is(draw * 0.95, 3.0 * math.sqrt(2))
    assert scipy.stats.kstest(draw / 3.0, "laplace").pvalue > 1e-4


def test_secure_noise_is_normal_laplace_and_uniform() -> None:
    pool = NoiseSource.secure().pool()
    tests: list[tuple[NDArray[np.float64], str]] = [
        (GaussianNoise(1.0).draw(pool, (20_000,)), "norm"),
        (uniform(pool.words(20_000)), "uniform"),
        (LaplaceNoise(1.0).draw(pool, (20_000,)), "laplace"),
    ]
    for sample, law in tests:
        assert scipy.stats.kstest(sample, law).pvalue > P_THRESHOLD
    planted = GaussianNoise(0.9).draw(pool, (20_000,))
    assert scipy.stats.kstest(planted, "norm").pvalue < P_THRESHOLD


def test_two_secure_sources_never_agree_and_one_never_repeats() -> None:
    first, second = NoiseSource.secure(), NoiseSource.secure()
    a, b, c = (source.pool().floors("normal", 1000) for source in (first, second, first))
    assert len(np.unique(np.concatenate([a, b, c]))) == 3000
    assert not first.simulated
    assert first.name == "secure keystream"


def test_simulation_repeats_itself_and_says_so() -> None:
    first, second = NoiseSource.simulation(7), NoiseSource.simulation(7)
    one, two = (source.pool().floors("normal", 10) for source in (first, second))
    assert np.array_equal(one, two)
    assert first.simulated
    assert first.name == "simulation, seed 7"
    with pytest.raises(ValueError, match="seed = -1"):
        NoiseSource.simulation(-1)


@pytest.mark.parametrize("noise", [GaussianNoise(0.3), LaplaceNoise(7.0)])
@pytest.mark.parametrize("bits", [30, 33, 40])
def test_integers_are_floors_of_the_same_noise(noise: Any, bits: int) -> None:
    fine = noise.integers(NoiseSource.simulation(1).pool(), (50, 2), 40)
    coarse = noise.integers(NoiseSource.simulation(1).pool(), (50, 2), bits)
    assert (coarse == fine >> 40 - bits).all()
    doubles = noise.draw(NoiseSource.simulation(1).pool(), (50, 2))
    assert np.abs(doubles / noise.unit - fine * 2.0**-40).max() <= 2.0**-40
    variates = noise.variates(NoiseSource.simulation(1).pool(), 100)
    assert (variates.floors == fine.reshape(-1)).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0), (2, 3)])
def test_every_shape_can_be_drawn(shape: tuple[int, ...]) -> None:
    for source in (NoiseSource.secure(), NoiseSource.simulation(0)):
        assert GaussianNoise(1.0).draw(source.pool(), shape).shape == shape
        assert GaussianNoise(1.0).integers(source.pool(), shape, 40).shape == shape


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_copied(copier: Callable[[object], object]) -> None:
    for source in (NoiseSource.secure(), NoiseSource.simulation(0)):
        with pytest.raises(TokenCopyError, match="cannot be copied or pickled"):
            copier(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_noise_of_its_own() -> None:
    """A key of its own for each spend, from the system: parent and child never draw the same."""
    source = NoiseSource.secure()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.pool().floors("normal", 50).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    childs = np.frombuffer(os.read(reader, 400), np.int64)
    assert not np.isin(childs, source.pool().floors("normal", 50)).any()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_noise_of_no_or_unknown_size_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"std = .*must be"):
        GaussianNoise(bad)
    with pytest.raises(ValueError, match=r"scale = .*must be"):
        LaplaceNoise(bad)


def test_losses_are_rounded_up() -> None:
    gauss = GaussianNoise(3.0).loss(1.0, Adjacency.REPLACE_ONE)
    assert isinstance(gauss, GaussianLoss)
    assert Fraction(1, 9) <= gauss.mu_squared <= Fraction(1, 9) * (1 + Fraction(1, 10**10))
    laplace = LaplaceNoise(3.0).loss(1.0, Adjacency.ZERO_OUT)
    assert isinstance(laplace, LaplaceLoss)
    assert Fraction(1, 3) <= laplace.epsilon <= Fraction(1, 3) * (1 + Fraction(1, 10**10))
    assert laplace.adjacency is Adjacency.ZERO_OUT


def test_noise_is_rebuilt_from_json() -> None:
    for noise in (GaussianNoise(0.3), LaplaceNoise(7.0)):
        assert noise_from_dict(noise.to_dict()) == noise
    assert noise_from_dict({"family": "my own"}) is None
