"""Noise: the stated scale, from a source that cannot be used twice."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from privlearn.adjacency import Adjacency
from privlearn.errors import TokenCopyError
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource, noise_from_dict

SAMPLE_SIZE = 400_000
STD_TOLERANCE = 0.01
"""Nine standard errors of the sample std, and a fifth of the planted defect."""
P_THRESHOLD = 1e-9
"""Secure noise is fresh on every run: a false alarm once in a thousand million runs."""


def std_is(sample: NDArray[np.float64], std: float) -> bool:
    return bool(abs(sample.std() / std - 1) < STD_TOLERANCE and abs(sample.mean()) < std / 100)


def test_gaussian_noise_has_its_std_and_five_percent_less_is_seen() -> None:
    draw = GaussianNoise(2.5).draw(NoiseSource.simulation(1), (SAMPLE_SIZE // 4, 4))
    assert draw.shape == (SAMPLE_SIZE // 4, 4)
    assert std_is(draw, 2.5)
    assert not std_is(draw * 0.95, 2.5)
    assert np.abs(np.corrcoef(draw.T) - np.eye(4)).max() < 0.02
    assert scipy.stats.kstest(draw.ravel() / 2.5, "norm").pvalue > 1e-4


def test_laplace_noise_has_its_scale_and_five_percent_less_is_seen() -> None:
    draw = LaplaceNoise(3.0).draw(NoiseSource.simulation(2), (SAMPLE_SIZE,))
    assert std_is(draw, 3.0 * math.sqrt(2))
    assert not std_is(draw * 0.95, 3.0 * math.sqrt(2))
    assert scipy.stats.kstest(draw / 3.0, "laplace").pvalue > 1e-4


def test_secure_noise_is_normal_laplace_and_uniform() -> None:
    source = NoiseSource.secure()
    tests: list[tuple[NDArray[np.float64], str]] = [
        (source.normal((20_000,)), "norm"),
        (source.uniform((20_000,)), "uniform"),
        (LaplaceNoise(1.0).draw(source, (20_000,)), "laplace"),
    ]
    for sample, law in tests:
        assert scipy.stats.kstest(sample, law).pvalue > P_THRESHOLD
    planted = source.normal((20_000,)) * 0.9
    assert scipy.stats.kstest(planted, "norm").pvalue < P_THRESHOLD


def test_both_halves_of_box_muller_are_independent() -> None:
    flat = NoiseSource.simulation(3).normal((100_000,))
    first, second = flat[:50_000], flat[50_000:]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(np.abs(first), np.abs(second))[0, 1]) < 0.03


def test_two_secure_sources_never_agree_and_one_never_repeats() -> None:
    first, second = NoiseSource.secure(), NoiseSource.secure()
    a, b, c = first.normal((1000,)), second.normal((1000,)), first.normal((1000,))
    assert len(np.unique(np.concatenate([a, b, c]))) == 3000
    assert not first.simulated
    assert "floating-point" in first.name


def test_simulation_repeats_itself_and_says_so() -> None:
    first, second = NoiseSource.simulation(7), NoiseSource.simulation(7)
    assert np.array_equal(first.normal((10,)), second.normal((10,)))
    assert first.simulated
    assert first.name == "simulation, seed 7"
    with pytest.raises(ValueError, match="seed = -1"):
        NoiseSource.simulation(-1)


def test_uniforms_never_touch_zero_or_one() -> None:
    class Extreme:
        def words(self, n: int) -> NDArray[np.uint64]:
            return np.array([0, 2**64 - 1] * n, dtype=np.uint64)[:n]

    source = NoiseSource(Extreme(), "extreme", simulated=True)  # type: ignore[arg-type]
    uniforms = source.uniform((2,))
    assert 0 < uniforms[0] < uniforms[1] < 1
    assert np.isfinite(source.normal((4,))).all()
    assert np.isfinite(LaplaceNoise(1.0).draw(source, (4,))).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0), (2, 3)])
def test_every_shape_can_be_drawn(shape: tuple[int, ...]) -> None:
    for source in (NoiseSource.secure(), NoiseSource.simulation(0)):
        assert np.shape(source.normal(shape)) == shape


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_copied(copier: Callable[[object], object]) -> None:
    for source in (NoiseSource.secure(), NoiseSource.simulation(0)):
        with pytest.raises(TokenCopyError, match="cannot be copied or pickled"):
            copier(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_source_is_useless_in_a_forked_child() -> None:
    source = NoiseSource.secure()
    child = os.fork()
    if child == 0:
        try:
            source.normal((3,))
        except TokenCopyError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


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
