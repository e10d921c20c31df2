"""What follows from the parts that a loss is made of."""

from __future__ import annotations

from fractions import Fraction

from privlearn.errors import BudgetError
from privlearn.losses import (
    BoundedRangeLoss,
    DeclaredLoss,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    LeastLoss,
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    PureLoss,
    RandomizedResponse,
    VisitsLoss,
    ZCDPLoss,
    compose,
    has_visits,
    leaves_of,
)

Tally = dict[Loss, int]
"""Losses with multiplicities."""
_OF_EPSILON = (LaplaceLoss, BoundedRangeLoss, PureLoss)


def of_visits(loss: Loss) -> bool:
    """Whether a minimiser's loss is stated as that of several rows."""
    if isinstance(loss, VisitsLoss):
        return has_minimizer(loss)
    return any(of_visits(part) for part, _ in loss.inner())


def has_minimizer(loss: Loss) -> bool:
    """Whether an objective perturbation is part of ``loss``."""
    return any(isinstance(part, MinimizerLoss) for part, _ in leaves_of(loss))


def may_fail(loss: Loss) -> bool:
    """Whether it holds only apart from an event."""
    return isinstance(loss, FailingLoss) or any(may_fail(part) for part, _ in loss.inner())


def responses(loss: Loss) -> int:
    """How many randomized responses of three or more categories are part of it."""
    if isinstance(loss, LeastLoss):
        return sum(map(responses, loss.losses))
    here = isinstance(loss, RandomizedResponse) and loss.categories > 2
    return here + sum(responses(part) for part, _ in loss.inner())


def by_arrival(loss: Loss) -> bool:
    """Whether it differs between the users of a range."""
    return isinstance(loss, PerArrivalLoss) or any(by_arrival(part) for part, _ in loss.inner())


def gaussian_part(loss: Loss) -> Fraction:
    """The μ² of all Gaussian parts together."""
    masses = (p.mu_squared * count for p, count in leaves_of(loss) if isinstance(p, GaussianLoss))
    return sum(masses, Fraction(0))


def over(loss: Loss, users: range) -> list[tuple[range, Loss]]:
    """What each of the users pays.

    Raises:
        BudgetError: the loss is not for so many.
    """
    try:
        return loss.over(users)
    except ValueError as error:
        raise BudgetError(str(error)) from None


def dominates(stated: Loss, actual: Loss) -> bool:
    """Whether ``stated`` is provably at least as large as ``actual`` at every order."""
    if stated is actual or stated == actual:
        return True
    if isinstance(stated, DeclaredLoss):
        return dominates(stated.loss, actual)
    if isinstance(stated, VisitsLoss) and isinstance(actual, VisitsLoss):
        as_many = stated.most <= actual.most and stated.apart >= actual.apart
        return as_many and dominates(stated.loss, actual.loss)
    if isinstance(stated, LeastLoss) and isinstance(actual, LeastLoss):  # all hold of a run
        return all(any(dominates(one, other) for other in actual.losses) for one in stated.losses)
    if any(isinstance(leaf, LeastLoss) for leaf, _ in leaves_of(stated)):
        return False  # in some currency it costs less than its Gaussian mass
    if by_arrival(stated):
        return False  # its bounds are those of its dearest users
    if has_visits(stated):
        return False  # it says of many visits what ``actual`` says of one
    if isinstance(stated, _OF_EPSILON) and isinstance(actual, type(stated)):
        return actual.epsilon <= stated.epsilon
    if isinstance(stated, ZCDPLoss) and isinstance(actual, ZCDPLoss):
        return actual.rho <= stated.rho
    mass, actual_mass = stated.gaussian(), actual.gaussian()
    return mass is not None and actual_mass is not None and actual_mass <= mass


def total(tally: Tally) -> Loss | None:
    """The composition of a tally; None when it is empty."""
    return compose(list(tally.items())) if tally else None
