"""Broken sums, counts and histograms: the noise is too small, used twice, or not everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from faults.cases import RandomFunction, sampling_fault
from privlearn.losses import SubsampledGaussian
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

CHO_SUN = "Cho & Sun, DPMNL"


# Sensitivity ----------------------------------------------------------------------------------


def gram_matrix(variance: float) -> RandomFunction:
    """Upper triangle of the sum of xxᵀ over one user's K offered items, plus Gaussian noise."""

    def release(items: Array, rng: Generator) -> Array:
        matrix = items.T @ items
        total = np.array([matrix[0, 0], matrix[0, 1], matrix[1, 1]])
        return total + rng.normal(scale=math.sqrt(variance), size=3)

    return release


def laplace_sum(scale: float) -> RandomFunction:
    """The sum of records in [−1, 1] plus Laplace noise."""
    return lambda data, rng: data.sum() + rng.laplace(scale=scale)


def gaussian_vector(std: float) -> RandomFunction:
    """A vector plus Gaussian noise on every coordinate."""
    return lambda data, rng: data + rng.normal(scale=std, size=len(data))


def laplace_vector(scale: float) -> RandomFunction:
    """A vector plus Laplace noise on every coordinate."""
    return lambda data, rng: data + rng.laplace(scale=scale, size=len(data))


def ball_noise(scale: float) -> RandomFunction:
    """Noise of density exp(−‖z‖²/(2σ²)) by its radius, ‖z‖² ~ Gamma(d/2, ``scale``)."""

    def release(data: Array, rng: Generator) -> Array:
        direction = rng.normal(size=len(data))
        radius = math.sqrt(rng.gamma(len(data) / 2, scale))
        return np.asarray(data + direction * (radius / math.sqrt(direction @ direction)))

    return release


# Bounds ---------------------------------------------------------------------------------------


def clipped_sum(clip: Callable[[Array], Array]) -> RandomFunction:
    """A sum of records that ``clip`` is to bring into [0, 1], plus Laplace noise for ε = 1."""
    return lambda data, rng: clip(data).sum() + rng.laplace()


def sum_within_its_own_bounds(data: Array, rng: Generator) -> float:
    """The noise is scaled to the range that the data happen to have."""
    return float(data.sum() + rng.laplace(scale=data.max() - data.min()))


def mean_scaled_by_private_count(data: Array, rng: Generator) -> float:
    """A mean of records in [0, 1], with noise for sensitivity 1/n, n being private."""
    return float(data.mean() + rng.laplace(scale=1 / len(data)))


def mean_of_noisy_sum_and_count(data: Array, rng: Generator) -> float:
    """The same from a noisy sum and a noisy count, half of ε = 1 each."""
    total = data.sum() + rng.laplace(scale=2.0)
    return float(total / max(len(data) + rng.laplace(scale=2.0), 1.0))


def refuses_bad_records(data: Array, rng: Generator) -> float:
    """Raises for data outside of [0, 1]; the exception tells."""
    if data.max() > 1:
        raise ValueError("records must lie in [0, 1]")
    return float(data.sum() + rng.laplace())


def median_at_local_sensitivity(data: Array, rng: Generator) -> float:
    """A median of three, with noise for what one replacement could change in *these* data."""
    low, median, high = np.sort(data)
    return float(median + rng.laplace(scale=max(median - low, high - median) / 4))


def median_at_global_sensitivity(data: Array, rng: Generator) -> float:
    """The same for records in [0, 1], with noise for any data."""
    return float(np.median(np.clip(data, 0, 1)) + rng.laplace(scale=1 / 4))


def _into_ball(rows: Array) -> Array:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1.0))


def clipped_batch(data: Array, rng: Generator) -> Array:
    """The mean gradient is clipped, and gets the noise of a mean of clipped gradients."""
    return np.asarray(_into_ball(data.mean(axis=0)) + rng.normal(scale=2 / len(data), size=2))


def clipped_records(data: Array, rng: Generator) -> Array:
    """Each gradient is clipped."""
    return np.asarray(_into_ball(data).mean(axis=0) + rng.normal(scale=2 / len(data), size=2))


# Prices ---------------------------------------------------------------------------------------


def randomized_response(truth: float, choices: int) -> RandomFunction:
    """The true one of several choices with probability ``truth``, else one of the others."""

    def release(data: int, rng: Generator) -> str:
        other = int(rng.integers(choices - 1))
        answer = data if rng.random() < truth else other + (other >= data)
        return f"choice {answer}"

    return release


def noisy_batch(rate: float) -> RandomFunction:
    """A sum over a sample of the records, each in it with probability ``rate``, plus noise."""

    def release(data: Array, rng: Generator) -> float:
        return float((data * (rng.random(len(data)) < rate)).sum() + rng.normal())

    return release


def bits(*ones: int, n: int = 10) -> Array:
    """Zeros but for some ones."""
    return np.isin(np.arange(n), ones).astype(float)


def _replaced(data: Sequence[float], last: float) -> Array:
    return np.array([*data[:-1], last])


_E1, _E2 = np.tile([1.0, 0.0], (10, 1)), np.tile([0.0, 1.0], (10, 1))
_HALF = [0.5] * 10

FAULTS = (
    sampling_fault(
        "Gram matrix with sensitivity √(2K)",
        "The norm of a sum of K outer products is taken for that of orthogonal ones.",
        f"{CHO_SUN}, Lemma S5 and Theorem 2 (docs/errata/gram.md): √2·K is right",
        gram_matrix(variance=10 / 0.5),
        gram_matrix(variance=10**2 / 0.5),
        ZCDP("0.5"),
        (_E1, _E2),
    ),
    sampling_fault(
        "add-remove noise under replace-one",
        "A record in [−1, 1] is replaced, which moves the sum by 2, with noise for 1.",
        "Dwork & Roth 2014, Section 2.3, on the two neighbour relations; a usual slip",
        laplace_sum(scale=1.0),
        laplace_sum(scale=2.0),
        PureDP(1),
        (_replaced(_HALF, 1.0), _replaced(_HALF, -1.0)),
    ),
    sampling_fault(
        "half the noise of a Gaussian",
        "σ is half of what μ = 1 asks for.",
        "the sensitivity 2C of a clipped sum mistaken for C, as in many first DP-SGD loops",
        gaussian_vector(std=0.5),
        gaussian_vector(std=1.0),
        GaussianDP(1),
        (np.zeros(15), np.full(15, 1 / math.sqrt(15))),
        samples=1_000,
    ),
    sampling_fault(
        "a variance taken for a standard deviation",
        "σ² < σ is passed where σ is asked for.",
        "numpy.random.Generator.normal takes a scale; a usual slip",
        gaussian_vector(std=0.25),
        gaussian_vector(std=0.5),
        GaussianDP(2),
        (np.zeros(3), np.array([1.0, 0.0, 0.0])),
    ),
    sampling_fault(
        "the Gamma scale of generalised Gaussian noise",
        "The squared radius is drawn with scale 2σ in place of 2σ².",
        "Han et al., private online Frank-Wolfe, Lemma 3.1 and Algorithm 4 "
        "(docs/errata/generalized-gaussian.md)",
        ball_noise(scale=2 * 4.0),
        ball_noise(scale=2 * 4.0**2),
        GaussianDP("0.5"),
        (np.zeros(4), np.array([2.0, 0.0, 0.0, 0.0])),
    ),
    sampling_fault(
        "an inverted scale",
        "Laplace noise of scale ε in place of 1/ε.",
        "Ding, Wang, Wang, Zhang & Kifer 2018, Detecting violations of differential privacy: the "
        "histogram with the wrong scale",
        laplace_vector(scale=0.5),
        laplace_vector(scale=2.0),
        PureDP("0.5"),
        (bits(0, n=5), bits(n=5)),
    ),
    sampling_fault(
        "a budget that is not split",
        "Four statistics of the same record are released with the noise of the whole ε each.",
        "Dwork & Roth 2014, Theorem 3.16 (composition); a usual slip",
        laplace_vector(scale=1.0),
        laplace_vector(scale=4.0),
        PureDP(1),
        (np.zeros(4), np.ones(4)),
    ),
    sampling_fault(
        "the count of releases forgotten",
        "Nine Gaussian answers are sold at the price of one.",
        "Bun & Steinke 2016, Lemma 1.7: ρ adds up; a usual slip",
        gaussian_vector(std=1.0),
        gaussian_vector(std=3.0),
        ZCDP("0.5"),
        (np.zeros(9), np.ones(9)),
    ),
    sampling_fault(
        "NaN passing a clip",
        "np.clip lets NaN through, and the released sum is NaN.",
        "numpy.clip returns NaN for NaN, and so do min and max",
        clipped_sum(lambda data: np.clip(data, 0.0, 1.0)),
        clipped_sum(lambda data: np.clip(np.nan_to_num(data), 0.0, 1.0)),
        PureDP(1),
        (_replaced(_HALF, 0.5), _replaced(_HALF, math.nan)),
    ),
    sampling_fault(
        "bounds taken from the data",
        "The noise is scaled to the largest and smallest record, which one record decides.",
        "diffprivlib warns of it (PrivacyLeakWarning: bounds taken from the data)",
        sum_within_its_own_bounds,
        laplace_sum(scale=100.0),
        PureDP(1),
        (_replaced([0.0, 1.0, 0.0], 1.0), _replaced([0.0, 1.0, 0.0], 100.0)),
    ),
    sampling_fault(
        "noise scaled by the private count",
        "Under add-remove the size of the data is private, and so is sensitivity 1/n.",
        "Dwork & Roth 2014, Section 2.3; Wilson et al. 2020, Differentially private SQL with "
        "bounded user contribution, on means",
        mean_scaled_by_private_count,
        mean_of_noisy_sum_and_count,
        PureDP(1),
        (np.array([0.5]), np.array([0.5, 0.5])),
    ),
    sampling_fault(
        "an exception for bad records",
        "Data outside of the bounds raise, and the exception is seen.",
        "Dwork & Roth 2014 take outputs for all there is to see; exceptions are outputs",
        refuses_bad_records,
        clipped_sum(lambda data: np.clip(data, 0.0, 1.0)),
        PureDP(1),
        (_replaced(_HALF, 0.0), _replaced(_HALF, 7.0)),
    ),
    sampling_fault(
        "noise scaled to the local sensitivity",
        "How much these data could change is itself private.",
        "Nissim, Raskhodnikova & Smith 2007, Smooth sensitivity and sampling in private data "
        "analysis, Section 2",
        median_at_local_sensitivity,
        median_at_global_sensitivity,
        PureDP(4),
        (np.array([0.5, 0.5, 0.5]), np.array([0.5, 0.5, 1.0])),
    ),
    sampling_fault(
        "a batch clipped in place of its records",
        "The mean of the gradients is clipped, so that one record may move it by the whole bound.",
        "Abadi et al. 2016, Deep learning with differential privacy, clip each example; a usual "
        "slip in training loops",
        clipped_batch,
        clipped_records,
        GaussianDP(1),
        (
            np.concatenate([np.zeros((19, 2)), [[100.0, 0.0]]]),
            np.concatenate([np.zeros((19, 2)), [[-100.0, 0.0]]]),
        ),
    ),
    sampling_fault(
        "binary randomised response for ten choices",
        "The truth is told with the probability that is right for two choices: ε + log 9.",
        "Kairouz, Bonawitz & Ramage 2016, Discrete distribution estimation: k enters",
        randomized_response(truth=math.e / (math.e + 1), choices=10),
        randomized_response(truth=math.e / (math.e + 9), choices=10),
        PureDP(1),
        (0, 1),
    ),
    sampling_fault(
        "amplification by sampling that does not happen",
        "All records are used at the price of a Poisson sample of a tenth.",
        "Chua et al. 2024, How private are DP-SGD implementations?",
        noisy_batch(rate=1.0),
        noisy_batch(rate=0.1),
        SubsampledGaussian(1, "0.1", adjacency=Adjacency.ADD_REMOVE),
        (bits(0), bits()),
    ),
)
