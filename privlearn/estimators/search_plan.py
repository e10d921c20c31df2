"""What a search costs: what is left for each fit by each way, from public numbers alone.

``all``         Every candidate is fitted, on equal parts of the budget of the rows that are learned
                from.  Which one leaves is a noisy choice by the rows that were held out.
``stopping``    Candidates are drawn from the grid, again and again, a secret number of times; each
                is fitted and scored, and only the best leaves (`RepeatAndSelect`).  A fit is left
                more, and there are many more of them.

Rows are learned from or held out, by a split that no row decides: a person pays for fits or for the
choice, so the most of the two counts, not their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, final

from privlearn.losses import RepeatAndSelect
from privlearn.losses.budgets import ApproxDP
from privlearn.losses.selection import largest_mass

Way = Literal["all", "stopping"]
WAYS: Final = ("auto", "all", "stopping")

COVERAGE: Final = Fraction(9, 10)
"""The probability that stopping tries the best candidate."""
_WORTH: Final = 1.2
"""By so many times the μ of a fit must grow for stopping to be worth its many more fits."""
_EVEN_BITS: Final = 30


@final
@dataclass(frozen=True)
class Stopping:
    """The law of the number of tries, P(K = n) = γ(1−γ)^{n−1}, and what each may cost.

    With γ = 1/(9(k−1)) one of k candidates is tried with probability 1 − γ(k−1)/(1+γ(k−1)) = 0.9.
    """

    loss: RepeatAndSelect
    bound: int
    """1/γ, which is the mean number of tries."""
    steps: int
    """μ of a try, in units of 2^−30: noisy scores then lie on a grid, exactly."""

    @property
    def mu(self) -> float:
        """μ of a try."""
        return math.ldexp(self.steps, -_EVEN_BITS)


def stopping(candidates: int, budget: ApproxDP) -> Stopping:
    """The most that a try may cost, so that the whole is (ε, δ)-DP.

    Raises:
        ValueError: no usable noise keeps the promise.
    """
    odds = COVERAGE / (1 - COVERAGE)
    bound = math.ceil(odds * (candidates - 1))
    mass = largest_mass(budget.epsilon, budget.delta, Fraction(1, bound))
    steps = math.floor(math.ldexp(math.sqrt(mass), _EVEN_BITS))
    while True:
        squared = Fraction(steps, 2**_EVEN_BITS) ** 2
        loss = RepeatAndSelect(squared, budget.delta, Fraction(1, bound))
        if Fraction(loss.epsilon()) <= budget.epsilon:
            return Stopping(loss, bound, steps)
        steps -= 1


@final
@dataclass(frozen=True)
class SearchPlan:
    """What a search will do, and what else could be done with the same budget.

    Attributes:
        way: that runs.
        candidates: k.
        budget: of the whole.
        default: μ of one fit, of no search: of a default that was chosen on other tables.
        every: μ of each of k fits, by ``all``.
        tries: what ``stopping`` would do; None where it has no price.
    """

    way: Way
    candidates: int
    budget: ApproxDP
    default: float
    every: float
    tries: Stopping | None

    @property
    def mu(self) -> float:
        """μ that each fit gets."""
        return self.tries.mu if self.way == "stopping" and self.tries else self.every

    @property
    def fits(self) -> int:
        """How many fits are to be expected."""
        return self.tries.bound if self.way == "stopping" and self.tries else self.candidates

    @property
    def lost_rows(self) -> float:
        """How many hits among held-out rows a choice among all loses at most, with chance 95%."""
        return 2 / float(self.budget.epsilon) * math.log(self.candidates / 0.05)

    def __str__(self) -> str:
        epsilon, delta = (float(amount) for amount in self.budget.amounts)
        lines = [
            f"{self.candidates} candidates, ε = {epsilon:g} at δ = {delta:g}; way: {self.way}",
            f"{'way':10}{'fits':>12}{'μ of each':>12}",
            f"{'all':10}{self.candidates:12,}{self.every:12.4f}",
        ]
        if self.tries is None:
            lines.append(f"{'stopping':10}{'no price':>12}")
        else:
            about = f"about {self.tries.bound:,}"
            lines.append(f"{'stopping':10}{about:>12}{self.tries.mu:12.4f}")
        lines.append(f"{'a default':10}{1:12}{self.default:12.4f}")
        return "\n".join(lines)


def planned(
    candidates: int, budget: ApproxDP, default: float, method: str, *, gaussian: bool
) -> SearchPlan:
    """Which way is taken; by the prices where ``method`` is "auto".

    Args:
        candidates: at least 2.
        budget: of the whole.
        default: μ of one fit with all of it.
        method: "auto", "all" or "stopping".
        gaussian: whether all methods are priced in GaussianDP, which stopping needs.

    Raises:
        ValueError: another method, or one without a price.
    """
    if method not in WAYS:
        raise ValueError(f"method = {method!r}: must be one of {', '.join(map(repr, WAYS))}")
    every = default / math.sqrt(candidates)
    tries = _stopping(candidates, budget, method) if gaussian else None
    if method == "stopping" and tries is None:
        raise ValueError(
            "method = 'stopping': every try is priced as a Gaussian, and a method of the grid is "
            "not; use 'all', or leave that method out"
        )
    better = tries is not None and tries.mu >= _WORTH * every
    way: Way = "stopping" if method == "stopping" or (method == "auto" and better) else "all"
    return SearchPlan(way, candidates, budget, default, every, tries)


def _stopping(candidates: int, budget: ApproxDP, method: str) -> Stopping | None:
    try:
        return stopping(candidates, budget)
    except ValueError:
        if method == "stopping":
            raise
        return None
