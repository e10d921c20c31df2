"""Broken selections: noisy maxima, exponential mechanisms, permute-and-flip.

Data are the scores of the candidates, each of sensitivity 1 in both directions (not monotone).
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from faults.cases import RandomFunction, sampling_fault
from privlearn.losses import BoundedRangeLoss
from privlearn.losses.budgets import PureDP
from privlearn.rows.domains import Array


def exponential(rate: float) -> RandomFunction:
    """A candidate with probability proportional to exp(``rate``·score)."""
    return lambda scores, rng: (
        f"candidate {np.argmax(rate * scores + rng.gumbel(size=len(scores)))}"
    )


def noisy_max(scale: float) -> RandomFunction:
    """The candidate with the largest score after Laplace noise."""
    return lambda scores, rng: (
        f"candidate {np.argmax(scores + rng.laplace(scale=scale, size=len(scores)))}"
    )


def permute_and_flip(epsilon: float) -> RandomFunction:
    """The largest score after exponential noise, which is the same (Ding et al. 2021)."""
    return lambda scores, rng: (
        f"candidate {np.argmax(scores + rng.exponential(scale=2 / epsilon, size=len(scores)))}"
    )


def noisy_max_with_value(scores: Array, rng: Generator) -> float:
    """The largest noisy score itself, at ε = 2."""
    return float((scores + rng.laplace(size=len(scores))).max())


def noisy_max_with_fresh_value(scores: Array, rng: Generator) -> float:
    """The score of a candidate chosen at ε = 1, with fresh noise for another ε = 1."""
    chosen = int(np.argmax(scores + rng.laplace(scale=2.0, size=len(scores))))
    return float(scores[chosen] + rng.laplace())


def one_noise_for_all(scores: Array, rng: Generator) -> str:
    """The noise is one number, which moves no maximum."""
    return f"candidate {np.argmax(scores + rng.laplace(scale=2.0))}"


def several(rate: float) -> RandomFunction:
    """The five best of ten, without replacement, by an exponential mechanism each."""

    def release(scores: Array, rng: Generator) -> tuple[str, ...]:
        order = np.argsort(-(rate * scores + rng.gumbel(size=len(scores))))
        return tuple(f"candidate {i}" for i in order[:5])

    return release


def arg_max_with_raw_sign(gradient: Array, rng: Generator) -> tuple[str, str]:
    """The coordinate is chosen by noisy absolute values, its sign read off the raw gradient."""
    best = int(np.argmax(np.abs(gradient) + rng.laplace(scale=2.0, size=len(gradient))))
    return f"coordinate {best}", "+" if gradient[best] > 0 else "-"


def arg_max_over_vertices(gradient: Array, rng: Generator) -> tuple[str, str]:
    """The noise goes to all 2d vertices ±e_j, so that the sign is chosen with the coordinate."""
    scores = np.concatenate([gradient, -gradient])
    best = int(np.argmax(scores + rng.laplace(scale=2.0, size=len(scores))))
    return f"coordinate {best % len(gradient)}", "+" if best < len(gradient) else "-"


def _first_of(n: int) -> tuple[Array, Array]:
    """The first candidate is ahead of all others by 1, or behind by 1."""
    ahead = np.where(np.arange(n) == 0, 1.0, 0.0)
    return ahead, 1 - ahead


_HALVES = (np.repeat([1.0, 0.0], 5), np.repeat([0.0, 1.0], 5))

FAULTS = (
    sampling_fault(
        "exponential mechanism with the monotone constant",
        "The factor 2 that scores moving in both directions need is left out: 2ε.",
        "McSherry & Talwar 2007; Dwork & Roth 2014, Theorem 3.10 and the remark on monotone scores",
        exponential(rate=2.0),
        exponential(rate=1.0),
        PureDP(2),
        _first_of(10),
    ),
    sampling_fault(
        "report noisy max with the monotone constant",
        "The same for Laplace noise of scale 1/ε: right for counts that only grow.",
        "Dwork & Roth 2014, Claim 3.9, applied by Han et al., Theorem 3.4 (docs/errata/pofw.md)",
        noisy_max(scale=0.5),
        noisy_max(scale=1.0),
        PureDP(2),
        _first_of(10),
    ),
    sampling_fault(
        "permute-and-flip priced as bounded range",
        "Permute-and-flip is ε-DP, but its losses range over nearly 2ε, not ε.",
        "McKenna & Sheldon 2020; docs/errata/pofw.md: use Gumbel noise where losses compose",
        permute_and_flip(epsilon=2.0),
        exponential(rate=1.0),
        BoundedRangeLoss(2),
        (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
    ),
    sampling_fault(
        "report noisy max with its noisy value",
        "The value that won is released for nothing.",
        "Ding, Wang, Wang, Zhang & Kifer 2018, Detecting violations of differential privacy",
        noisy_max_with_value,
        noisy_max_with_fresh_value,
        PureDP(2),
        (np.ones(20), np.zeros(20)),
    ),
    sampling_fault(
        "one noise for all candidates",
        "A scalar draw is broadcast, and the arg-max is that of the raw scores.",
        "a usual slip of broadcasting",
        one_noise_for_all,
        noisy_max(scale=2.0),
        PureDP(1),
        (np.array([1.0, 0.5]), np.array([0.0, 0.5])),
    ),
    sampling_fault(
        "the count of selections forgotten",
        "Five candidates are chosen at the price of one: 5ε.",
        "Durfee & Rogers 2019, Practical differentially private top-k: the noise grows with k",
        several(rate=0.5),
        several(rate=0.1),
        PureDP(1),
        _HALVES,
    ),
    sampling_fault(
        "a raw sign beside a noisy arg-max",
        "The coordinate is chosen privately, its sign is released as it is.",
        "the authors' code for DP-HDB, whose regret rests on it",
        arg_max_with_raw_sign,
        arg_max_over_vertices,
        PureDP(1),
        (np.array([0.5, 0.2]), np.array([-0.5, 0.2])),
    ),
)
