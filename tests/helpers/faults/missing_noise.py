"""Noise that is used twice, missing in places, or beside the point: the raw value shows."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from faults.cases import sampling_fault
from faults.sums import bits, laplace_vector
from privlearn.losses.budgets import PureDP
from privlearn.rows.domains import Array

CHO_SUN = "Cho & Sun, DPMNL"


# Noise ----------------------------------------------------------------------------------------


def one_noise_for_all(data: Array, rng: Generator) -> Array:
    """Two statistics share one draw of noise."""
    return np.asarray(data + rng.laplace(scale=2.0))


def noise_from_a_fixed_seed(data: Array, rng: Generator) -> Array:
    """The generator is made anew, with a constant seed, at every release."""
    return np.asarray(data + np.random.default_rng(0).laplace(scale=2.0, size=len(data)))


def noise_on_present_keys(data: Array, rng: Generator) -> Array:
    """Noise for the groups that occur; the others are released as 0."""
    return np.where(data > 0, data + rng.laplace(size=len(data)), 0.0)


def truncated_noise(data: float, rng: Generator) -> float:
    """Laplace noise drawn again until it is at most 2, as if that cost nothing."""
    noise = rng.laplace()
    while abs(noise) > 2:
        noise = rng.laplace()
    return data + float(noise)


# Beside the noise -----------------------------------------------------------------------------


def raw_value_beside(data: Array, rng: Generator) -> tuple[float, float]:
    """A noisy sum, and the raw mean for the log."""
    return float(data.sum() + rng.laplace()), float(data.mean())


def noisy_value_alone(data: Array, rng: Generator) -> tuple[float, float]:
    """A noisy sum, and the mean computed from it."""
    noisy = float(data.sum() + rng.laplace())
    return noisy, noisy / len(data)


def suppressed_if_small(data: Array, rng: Generator) -> float | None:
    """A noisy count, withheld if the raw count is below 5."""
    count = float(data.sum())
    return count + float(rng.laplace()) if count >= 5 else None


def suppressed_if_noisily_small(data: Array, rng: Generator) -> float | None:
    """The same, by the noisy count."""
    count = float(data.sum() + rng.laplace())
    return count if count >= 5 else None


def fewer_calls(data: Array, rng: Generator) -> list[float]:
    """A noisy value for each record that is not NaN: how many there are tells."""
    return [float(x + rng.laplace()) for x in data.tolist() if not math.isnan(x)]


def as_many_calls(data: Array, rng: Generator) -> list[float]:
    """A noisy value for each record, NaN counting as 0."""
    return [float(x + rng.laplace()) for x in np.nan_to_num(data).tolist()]


def prefix_sums_without_bad_records(data: Array, rng: Generator) -> Array:
    """Noisy sums of every block of 4 *good* records: a bad one shifts all that follow."""
    good = data[np.isfinite(data)][:16]
    return np.asarray(good.reshape(4, 4).sum(axis=1) + rng.laplace(size=4))


def prefix_sums_with_null_records(data: Array, rng: Generator) -> Array:
    """The same with a bad record counted as 0, in its place."""
    return np.asarray(np.nan_to_num(data)[:16].reshape(4, 4).sum(axis=1) + rng.laplace(size=4))


_STREAM = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
_TAIL = np.concatenate([_STREAM, [1.0, 1.0]])

FAULTS = (
    sampling_fault(
        "noise reused",
        "Two statistics share one draw, so that their difference is exact.",
        "Dwork & Roth 2014, Definition 3.3: the noise is independent; a usual slip of broadcasting",
        one_noise_for_all,
        laplace_vector(scale=2.0),
        PureDP(1),
        (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
    ),
    sampling_fault(
        "noise from a fixed seed",
        "Every release draws the same noise.",
        "reproducibility by seeds; Garfinkel & Leclerc 2020, Randomness concerns when deploying "
        "differential privacy",
        noise_from_a_fixed_seed,
        laplace_vector(scale=2.0),
        PureDP(1),
        (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
    ),
    sampling_fault(
        "noise on present keys only",
        "Groups that do not occur are released as an exact 0.",
        "Korolova, Kenthapadi, Mishra & Ntoulas 2009; Wilson et al. 2020, Section 3: keys leak",
        noise_on_present_keys,
        laplace_vector(scale=1.0),
        PureDP(1),
        (np.array([4.0, 1.0, 0.0]), np.array([4.0, 0.0, 0.0])),
    ),
    sampling_fault(
        "truncated noise",
        "Noise of bounded support is sold as pure ε.",
        "Holohan, Antonatos, Braghin & Mac Aonghusa 2018, The bounded Laplace mechanism",
        truncated_noise,
        lambda data, rng: data + float(rng.laplace()),
        PureDP(1),
        (0.0, 1.0),
    ),
    sampling_fault(
        "a raw value beside the noisy one",
        "The unprotected mean is returned for the log.",
        "a probe that the dp-recorder let pass when we tried it",
        raw_value_beside,
        noisy_value_alone,
        PureDP(1),
        (bits(1, 3), bits(3)),
    ),
    sampling_fault(
        "suppression by the raw count",
        "Whether a small count is withheld depends on the count without noise.",
        "the cell suppression of statistical offices, with noise added to what is left",
        suppressed_if_small,
        suppressed_if_noisily_small,
        PureDP(1),
        (bits(0, 1, 2, 3, 4), bits(0, 1, 2, 3)),
    ),
    sampling_fault(
        "fewer calls on the neighbour",
        "A noisy value for each good record: the length of the list tells.",
        "a probe that the dp-recorder let pass when we tried it",
        fewer_calls,
        as_many_calls,
        PureDP(1),
        (np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, math.nan])),
    ),
    sampling_fault(
        "a bad record skipped in a stream",
        "A bad record is left out instead of counted as null, which moves everybody behind it.",
        "measured on our prefix sums of 1000 steps: the sensitivity rose from 3.6 to 25",
        prefix_sums_without_bad_records,
        prefix_sums_with_null_records,
        PureDP(1),
        (_TAIL, np.concatenate([[math.nan], _TAIL[1:]])),
    ),
)
