"""Steps of a composition: what the tight accounting can do with one run of a mechanism.

`Loss.step` says which one stands for a loss.  Parameters are floats, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GaussianStep:
    """N(0, std^2) noise, (sensitivity/std)^2 = mu_squared."""

    mu_squared: float


@dataclass(frozen=True, slots=True)
class LaplaceStep:
    """Laplace noise with l1 sensitivity/scale = epsilon, in any dimension."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class RandomizedResponseStep:
    """k-ary randomized response: the truth with probability e^epsilon/(e^epsilon + k - 1)."""

    epsilon: float
    k: int = 2


@dataclass(frozen=True, slots=True)
class PureStep:
    """Any epsilon-DP mechanism: dominated by binary randomized response."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceStep:
    """Integer noise, P(x) proportional to e^(-epsilon |x|/sensitivity), l1 sensitivity as named."""

    epsilon: float
    sensitivity: int


@dataclass(frozen=True, slots=True)
class SubsampledGaussianStep:
    """Poisson subsampling at rate q, noise multiplier sigma, ADD_REMOVE adjacency."""

    q: float
    sigma: float


@dataclass(frozen=True, slots=True)
class BoundedRangeStep:
    """The loss lies in some interval of length epsilon: the exponential mechanism."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class CurveStep:
    """Anything else: an upper bound on the Renyi divergence of every order, both directions."""

    renyi: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class SupremumStep:
    """The law whose hockey-stick curve is the supremum over all laws of bounded range epsilon."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class FixedStep:
    """The two-point law on {e^top, e^(top - epsilon)}: one fixed choice, for lower bounds."""

    epsilon: float
    top: float


Dominated = (
    SupremumStep
    | FixedStep
    | GaussianStep
    | LaplaceStep
    | DiscreteLaplaceStep
    | RandomizedResponseStep
    | PureStep
    | SubsampledGaussianStep
)
Step = Dominated | BoundedRangeStep | CurveStep
StepPlan = Sequence[tuple[Step, int]]
Order = Literal["listed", "any"]
"""Steps run in the listed order; or in any order, also one chosen from earlier outputs."""
Direction = Literal["remove", "add"]


def check_step(step: Step, count: int) -> None:
    """Raises ValueError for a count below 1 or a parameter out of range."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count = {count!r}: must be an integer >= 1")
    match step:
        case GaussianStep(mass):
            good = 1e-30 < mass < 1e6
        case SubsampledGaussianStep(q, sigma):
            good = 1e-9 <= q <= 1 and 0.05 <= sigma <= 1e6
        case RandomizedResponseStep(eps, k):
            good = 1e-12 <= eps <= 200 and k >= 2
        case DiscreteLaplaceStep(eps, sensitivity):
            good = 1e-12 <= eps <= 200 and sensitivity >= 1
        case LaplaceStep(eps) | PureStep(eps) | BoundedRangeStep(eps):
            good = 1e-12 <= eps <= 200
        case CurveStep():
            good = True
    if not good:
        raise ValueError(f"{step!r}: a parameter is out of range")
