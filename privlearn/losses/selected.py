"""The best of a random number of runs of any mechanism of a known profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self, final

import numpy as np

from privlearn.losses.base import Loss, loss_from_dict, of_relation, register
from privlearn.losses.conversion import gaussian_delta, renyi_delta
from privlearn.losses.numerics import valid_number, valid_order
from privlearn.losses.pure import PureLoss
from privlearn.losses.selection import mean_tries, selection_shift
from privlearn.losses.steps import Direction, PairStep, Points
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_down, float_up
from privlearn.values.json_forms import OBJECT, TEXT, Form

_SLACK = 1 + 1e-11  # For sums of a quadrature and what is computed from them
_LARGEST_EPSILON = 700.0
_TAIL = 1e-30
_SMALL = 1e-3  # Share of γ/(1−γ) below which δ(ε₁) no longer pays
_FINEST = 2.0**-11  # Of a lattice on which a law is cut
_MOST_POINTS = 2**16


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class SelectedLoss(Loss):
    """The best of K runs, K secret and random, of a mechanism with a known privacy profile.

    It is (ε, δ)-DP for ``delta`` and the least ε of the theorem of `privlearn.losses.selection`,
    which prices `RepeatAndSelect` as well.  The profile of a try is exact for a Gaussian mass and
    for one loss of a known pair, else it follows from the Rényi curve.

    Args:
        loss: of one try, whatever its relation.
        delta: the probability of failing at which ε is stated.
        tries: E[K]; at least 1, or above 0 for a Poisson number.
        eta: the shape of the truncated negative binomial law of K: 1 is geometric, 0 logarithmic,
            else in [1e-6, 100]; None is a Poisson number, of which 0 tries release nothing.

    Raises:
        ValueError: a number of tries with no bound on its mean, or another number out of range.
    """

    kind = "selected"
    loss: Loss
    delta: Fraction
    tries: Fraction
    eta: Fraction | None

    def __init__(self, loss: Loss, delta: Exact, tries: Exact, eta: Exact | None):
        if isinstance(tries, float) and not math.isfinite(tries):
            raise ValueError(
                f"tries = {tries!r}: a number of tries with no bound on its mean has no price"
            )
        number = exact("tries", tries)
        least = Fraction(1, 10**6) if eta is None else Fraction(1)
        if not least <= number <= 10**9:
            raise ValueError(f"tries = {tries!r}: must lie in [{float(least):g}, 1e9]")
        shape = None if eta is None else valid_number("eta", eta, "0", "100")
        if shape and shape < Fraction(1, 10**6):
            raise ValueError(f"eta = {eta!r}: must be 0 or lie in [1e-6, 100]")
        failure = exact("delta", delta)
        if not Fraction(1, 10**200) <= failure <= Fraction(1, 2):
            raise ValueError(f"delta = {delta!r}: must lie in [1e-200, 1/2]")
        self._set(loss=loss, delta=failure, tries=number, eta=shape)
        if not self.epsilon() <= _LARGEST_EPSILON:
            raise ValueError(
                f"tries = {tries!r}, eta = {eta!r}: the price of the best of these {loss.kind} "
                f"tries is above {_LARGEST_EPSILON}"
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.loss.adjacency

    def epsilon(self) -> float:
        """ε at ``delta`` in nats, rounded up."""
        return _epsilon(self)

    def renyi(self, order: float) -> float:
        valid_order(order)
        return math.inf

    def failure(self) -> Fraction:
        """δ, as of an `ApproxLoss`."""
        return self.delta

    def unless_failed(self) -> Loss:
        """The loss apart from that event, as of an `ApproxLoss`."""
        return PureLoss(max(Fraction(self.epsilon()), _LEAST), adjacency=self.adjacency)

    def doubled(self) -> SelectedLoss:
        return SelectedLoss(self.loss.doubled(), self.delta, self.tries, self.eta)

    def several(self, visits: int, apart: int) -> SelectedLoss:
        """Each try is that of a mechanism where all these rows change."""
        loss = self.loss.for_visits(visits, apart)
        return SelectedLoss(loss, self.delta, self.tries, self.eta)

    def noisier(self, factor: Fraction) -> SelectedLoss:
        return SelectedLoss(self.loss.noisier(factor), self.delta, self.tries, self.eta)

    def numbers(self) -> dict[str, Any]:
        return {
            "loss": self.loss.to_dict(),
            "delta": exact_text(self.delta),
            "tries": exact_text(self.tries),
            **({} if self.eta is None else {"eta": exact_text(self.eta)}),
        }

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Self:
        loss = of_relation(adjacency, loss_from_dict(data["loss"]))
        return cls(loss, data["delta"], data["tries"], data.get("eta"))

    @classmethod
    def json_form(cls) -> Form:
        return {"loss": OBJECT, "delta": TEXT, "tries": TEXT}

    @classmethod
    def json_optional(cls) -> Form:
        return {"eta": TEXT}


_LEAST = Fraction(1, 10**100)


@lru_cache(maxsize=1024)
def _epsilon(loss: SelectedLoss) -> float:
    profile = profile_of(loss.loss)
    goal = float_down(loss.delta)
    if loss.eta is None:
        mean = float_up(loss.tries)
        # f'(x) = m·e^{m(x−1)}: the quotient is at most e^{m·(p'−p)}, and p' − p <= δ(0)
        shift = mean * profile(0.0) * _SLACK
        return (shift + profile_epsilon(profile, goal / (mean * _SLACK))) * _SLACK
    gamma = _gamma(loss.tries, loss.eta)
    tries = mean_tries(gamma, loss.eta)

    def shifted(first: float) -> float:
        odds = float_up((1 - gamma) / gamma)
        return math.log1p((math.expm1(first) + odds * profile(first)) * _SLACK)

    largest = profile_epsilon(profile, 1 / float_up((1 - gamma) / gamma) * _SMALL)
    shift = selection_shift(shifted, loss.eta, min(largest, _LARGEST_EPSILON))
    return (shift + profile_epsilon(profile, goal / (tries * _SLACK))) * _SLACK


@lru_cache(maxsize=1024)
def _gamma(tries: Fraction, eta: Fraction) -> Fraction:
    """The parameter for which E[K] is at least ``tries``, and hardly more."""
    if eta == 1:
        return min(1 / tries, 1 - Fraction(1, 10**12))
    low, high = 1e-12, 1 - 1e-12
    if mean_tries(Fraction(low), eta) < tries:
        raise ValueError(f"tries = {exact_text(tries)}: too many for this shape")
    for _ in range(200):
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        if mean_tries(Fraction(middle), eta) >= tries * (1 + Fraction(1, 10**11)):
            low = middle
        else:
            high = middle
    return Fraction(low)


def profile_of(loss: Loss) -> Callable[[float], float]:
    """δ(ε) of one run for ε >= 0, rounded up."""
    failed = float_up(loss.failure())
    apart = loss.unless_failed()
    mass, step = apart.gaussian(), apart.step()
    known: Callable[[float], float]
    if mass is not None:
        squared = float_up(mass)
        known = lambda epsilon: gaussian_delta(squared, epsilon).value  # noqa: E731
    elif isinstance(step, PairStep) and step.in_range():
        known = lru_cache(maxsize=4096)(lambda epsilon: _stick(step, epsilon))
    else:
        known = lru_cache(maxsize=4096)(lambda epsilon: renyi_delta(apart.renyi, epsilon).value)
    if not failed:
        return known
    return lambda epsilon: min((failed + (1 - failed) * known(epsilon)) * _SLACK, 1.0)


def _stick(step: PairStep, epsilon: float) -> float:
    """The larger hockey stick of a pair in both directions.

    By the chord between two points of a lattice, on which the quadrature breaks: δ is convex in
    e^ε.
    """
    size, laws = _laws(step)
    low = math.floor(epsilon / size) * size
    share = math.expm1(epsilon - low) / math.expm1(size)
    best = 0.0
    for law in laws:
        ends = []
        for end in (low, low + size):
            above = law.loss > end
            ends.append(float((law.p[above] * -np.expm1(end - law.loss[above])).sum()) + law.lost)
        best = max(best, ends[0] + share * (ends[1] - ends[0]))
    return best * _SLACK


@lru_cache(maxsize=16)
def _laws(step: PairStep) -> tuple[float, list[Points]]:
    ways: tuple[Direction, ...] = ("remove", "add") if step.both_ways else ("remove",)
    span = max(float(np.ptp(step.points(way, 1.0, _TAIL).loss)) for way in ways)
    size = max(_FINEST, 2.0 ** math.ceil(math.log2(span / _MOST_POINTS)))
    return size, [step.points(way, size, _TAIL) for way in ways]


def profile_epsilon(profile: Callable[[float], float], delta: float) -> float:
    """The least ε >= 0 with profile(ε) <= δ, rounded up; infinite where there is none."""
    if profile(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while profile(high) > delta:
        low, high = high, 2 * high
        if high > 2 * _LARGEST_EPSILON:
            return math.inf
    for _ in range(44):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return high
