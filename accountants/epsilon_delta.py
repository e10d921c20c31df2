"""(ε, δ) of losses, by the method with the least bound.

`evaluate` takes losses with counts, in the order in which they run; `largest_epsilon` and
`largest_delta` take what stands for each user of an accountant, who runs its tokens in any order.
The answer is the least of all bounds that hold, with the method that gave it:

- ``gaussian``: all mass is Gaussian; the exact curve;
- ``pure``: the sum of the worst cases;
- ``renyi``: Rényi curves at the best real order (Canonne, Kamath & Steinke 2020);
- ``dominating pairs``, ``backward recursion, ... order``, ``Gaussian majorant, any order``: tight
  composition over fully adaptive inputs (`privlearn.accountants.composition`); ``+renyi`` where
  losses of which only a curve is known take a part of δ;
- ``group``: bounds for a person with several rows;
- ``failure``: nothing but the probability of failing (ε infinite, or δ of 1);
- ``nothing``: nothing was spent.

Where something fails with a probability of its own, that is added whatever the method is.  An
`RoundedNumber` is an upper bound. For ``gaussian`` and the tight methods the exact worst case over
all mechanisms of these losses and all adaptive inputs is at most ``error_bound`` below it (the
lower end is computed too); for ``pure`` and ``renyi`` the bound covers rounding only, and the truth
can be lower. With ``+renyi`` the distance is to the worst case of only the other losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeGuard, final

from privlearn.accountants import tight_composition
from privlearn.accountants.guarantee import Composite, delta_of, epsilon_of, group_epsilon, pure_of
from privlearn.losses import Loss, SubsampledGaussian, compose, parts_of, without_visits
from privlearn.losses.budgets import GaussianDP, PureDP
from privlearn.losses.conversion import Bounded, RoundedNumber
from privlearn.losses.steps import Order
from privlearn.values.exact import exact, float_down, float_up
from privlearn.values.validate import probability

__all__ = [
    "Evaluated",
    "Order",
    "RoundedNumber",
    "Work",
    "evaluate",
    "largest_delta",
    "largest_epsilon",
]

_TIGHT = {
    "dominating pairs",
    "backward recursion, listed order",
    "backward recursion, any order",
    "Gaussian majorant, any order",
}
_MOST_COMPARED = 100
_MOST_TIGHT = 4  # Users with different losses whose tight composition is computed for one answer
_MOST_KEPT = 4096
"""Bounds that are kept: an audit, its page and a difference ask for the same ones again."""


@final
@dataclass(frozen=True, slots=True)
class Evaluated:
    """A list of losses whose (ε, δ) can be asked for; made by `evaluate`."""

    parts: tuple[tuple[Loss, int], ...]
    order: Order
    total: Loss
    effort: float

    def epsilon(self, delta: float) -> RoundedNumber:
        """ε at ``delta``; infinite where the failures by themselves are more likely than that.

        Raises:
            ValueError: delta outside (0, 1).
        """
        return _best_epsilon(self, probability(delta=delta))

    def delta(self, epsilon: float) -> RoundedNumber:
        """δ at ``epsilon`` nats.

        Raises:
            ValueError: epsilon is negative or not finite.
        """
        return _best_delta(self, epsilon)


def evaluate(
    parts: Sequence[tuple[Loss, int]],
    *,
    order: Order = "any",
    effort: float = tight_composition.THOROUGH,
) -> Evaluated:
    """The composition of ``parts``: losses of one run with their counts, in the order they run.

    Args:
        order: "listed" if they run one after the other as listed (the n runs of an entry one after
            the other, too; a stream that goes on while others run counts where it begins); "any" if
            they may interleave in any way.
        effort: bound on the work of a tight composition; 0 leaves it out.  The default takes
            seconds at most.

    Raises:
        ValueError: no parts, or a count below 1.
        AdjacencyError: adjacencies differ.

    >>> from privlearn.losses import GaussianLoss
    >>> evaluate([(GaussianLoss("1/400"), 1000)]).epsilon(1e-6).method
    'gaussian'
    """
    return Evaluated(tuple(parts), order, compose(parts), effort)


@final
class Work:
    """How much work is left for the tight compositions of one certificate.

    Whoever wrote a ledger decides how many accountants it has, and may want the audit not to end.
    What comes after the work is done has the bounds without tight compositions, which hold, too.
    """

    def __init__(self) -> None:
        self._left = _MOST_WORK
        self._done: set[Loss] = set()

    def allows(self, loss: Loss) -> bool:
        """Whether there is work left for a composition, which is then taken off."""
        if loss in self._done:
            return True
        parts = [without_visits(_sound(part)) for part, _ in _any_order(loss).parts]
        sampled = sum(isinstance(part, SubsampledGaussian) for part in parts)
        work = 100 + len(parts) + _SAMPLED_WORK * sampled
        if work > self._left:
            return False
        self._left -= work
        self._done.add(loss)
        return True


_MOST_WORK = 5_000
"""Some seconds: a composition of one loss takes 100, one of a thousand losses ten times as much."""
_SAMPLED_WORK = 1000


def largest_epsilon(
    parts: Sequence[Composite], delta: float, rounds: int = 1, work: Work | None = None
) -> RoundedNumber:
    """ε at δ for whoever loses most, of what stands for each user (`promised`, `spent`).

    Tokens of a plan can be spent in any order, and that order can depend on earlier outputs, so the
    answer holds for every order.  Tight compositions are computed for the few users with the
    largest bounds without them; for the others those bounds count.  For a person with several
    ``rounds`` (rows) it is `group_epsilon`.  At δ = 0 it is the sum of the worst cases, times
    ``rounds``, and infinite where one of them is.  Tight compositions end with the ``work``.
    """
    if delta == 0:
        worst = [pure_of(what) for what in parts]
        known = [float_up(Fraction(value) * rounds) for value in worst if value is not None]
        return RoundedNumber(max(known) if len(known) == len(worst) else math.inf, 0.0, "pure")
    if rounds != 1:
        bounds = [group_epsilon(what, delta, rounds) for what in parts]
        return RoundedNumber(*max(bounds, key=lambda bound: bound.value), "group")
    return _largest(parts, _quick_epsilon, _best_epsilon, probability(delta=delta), work)


def largest_delta(
    parts: Sequence[Composite], epsilon: float, work: Work | None = None
) -> RoundedNumber:
    """δ at ε for whoever loses most; as `largest_epsilon`."""
    return _largest(parts, _quick_delta, _best_delta, epsilon, work)


def _largest(
    parts: Sequence[Composite],
    quick: Callable[[Composite, float], RoundedNumber],
    best: Callable[[Evaluated, float], RoundedNumber],
    at: float,
    work: Work | None = None,
) -> RoundedNumber:
    def tightly(what: Composite) -> TypeGuard[Loss]:
        return isinstance(what, Loss) and (work is None or work.allows(what))

    if len(parts) == 1 and tightly(parts[0]):
        return best(_any_order(parts[0]), at)
    bounds = [(what, quick(what, at)) for what in _maximal(parts)]
    found: list[RoundedNumber] = []
    for what, answer in sorted(bounds, key=lambda pair: pair[1].value, reverse=True):
        if found and max(a.value for a in found) >= answer.value:
            break  # nobody further down can lose more
        if len(found) < _MOST_TIGHT and tightly(what):
            answer = best(_any_order(what), at)
        found.append(answer)
    return max(found, key=lambda answer: answer.value)


def _maximal(parts: Sequence[Composite]) -> list[Composite]:
    if len(parts) > _MOST_COMPARED:
        return list(parts)
    tallies = [dict(_any_order(p).parts) if isinstance(p, Loss) else None for p in parts]

    def covered(i: int) -> bool:
        mine = tallies[i]
        return mine is not None and any(
            all(other.get(loss, 0) >= n for loss, n in mine.items())
            for j, other in enumerate(tallies)
            if other is not None and j != i and (other != mine or j < i)
        )

    return [what for i, what in enumerate(parts) if not covered(i)]


def _any_order(loss: Loss) -> Evaluated:
    return Evaluated(parts_of(loss), "any", loss, tight_composition.QUICK)


# Bounds without a tight composition -------------------------------------------------------------


@lru_cache(maxsize=_MOST_KEPT)
def _quick_epsilon(what: Composite, delta: float) -> RoundedNumber:
    bound = epsilon_of(what, delta)
    worst = _sound(what).pure() if isinstance(what, Loss) else None
    pure = worst is not None and bound.value == float_up(worst)
    return _named(what, bound, pure=pure, nothing=math.isinf(bound.value))


@lru_cache(maxsize=_MOST_KEPT)
def _quick_delta(what: Composite, epsilon: float) -> RoundedNumber:
    bound = delta_of(what, epsilon)
    worst = _sound(what).pure() if isinstance(what, Loss) else None
    pure = worst is not None and epsilon >= worst
    return _named(what, bound, pure=pure, nothing=bound.value >= 1)


def _named(what: Composite, bound: Bounded, *, pure: bool, nothing: bool) -> RoundedNumber:
    if what is None:
        method = "nothing"
    elif isinstance(what, GaussianDP):
        method = "gaussian"
    elif isinstance(what, PureDP):
        method = "pure" if bound.value in (0, float_up(what.epsilon)) else "renyi"
    elif not isinstance(what, Loss):
        method = "renyi"
    elif nothing and what.failure():
        method = "failure"
    elif _sound(what).gaussian() is not None:
        method = "gaussian"
    else:
        method = "pure" if pure else "renyi"
    return RoundedNumber(*bound, method)


def _sound(loss: Loss) -> Loss:
    return loss.unless_failed()


def _failing(loss: Loss) -> Fraction:
    """The probability that one of the parts fails, rounded up.

    Parts fail independently of each other and of what is released (`ApproxLoss`, `FailingLoss`), so
    it is 1 - ∏(1 - δ_i).
    """
    none, total = Fraction(1), loss.failure()
    for part, count in parts_of(loss):
        failed = part.failure()
        if not failed or failed >= 1:
            continue
        if failed.denominator.bit_length() * count > _MOST_BITS:
            return total
        none *= (1 - failed) ** count
        if none.denominator.bit_length() > _MOST_BITS:
            return total
    return min(1 - none, total)


_MOST_BITS = 10**5
"""Of an exact product of probabilities; beyond, they are added up."""


def _best_epsilon(what: Evaluated, delta: float) -> RoundedNumber:
    failed, sound = _failing(what.total), _sound(what.total)
    if failed >= 1 or (left := (exact("delta", delta) - failed) / (1 - failed)) < 0:
        return _quick_epsilon(what.total, delta)
    if left == 0:
        worst = sound.pure()
        return RoundedNumber(math.inf if worst is None else float_up(worst), 0.0, "pure")
    rest = float_down(left)
    found = None
    if _may_gain(what):
        found = tight_composition.epsilon(*_in_order(what), rest, what.effort)
    return _better(found, lambda: _quick_epsilon(sound, rest))


def _best_delta(what: Evaluated, epsilon: float) -> RoundedNumber:
    failed, sound = _failing(what.total), _sound(what.total)
    if failed >= 1:
        return _quick_delta(what.total, epsilon)
    found = None
    if _may_gain(what):
        found = tight_composition.delta(*_in_order(what), epsilon, what.effort)
    best = _better(found, lambda: _quick_delta(sound, epsilon))
    if not failed:
        return best
    value, error = (Fraction(number) for number in best[:2])
    total, error = failed + (1 - failed) * value, (1 - failed) * error
    return RoundedNumber(float_up(total), float_up(error), best.method)


def _better(found: RoundedNumber | None, quick: Callable[[], RoundedNumber]) -> RoundedNumber:
    if found is not None and found.method in _TIGHT:
        return found
    other = quick()
    return found if found is not None and found.value < other.value else other


def _may_gain(what: Evaluated) -> bool:
    return what.effort > 0 and _sound(what.total).gaussian() is None


def _in_order(what: Evaluated) -> tuple[tight_composition.LossParts, Order]:
    parts = [(_sound(loss), count) for loss, count in what.parts]
    return tight_composition.in_order(parts, what.order)
