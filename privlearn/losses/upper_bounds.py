"""Where the bounds of one loss are above those of another one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import cast

from privlearn.losses.base import Loss
from privlearn.losses.discrete import DiscreteLaplace
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.minimum import LeastLoss
from privlearn.losses.pure import BoundedRangeLoss, LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.stated import RenyiCurve, ZCDPLoss
from privlearn.losses.subsampled import SubsampledGaussian
from privlearn.values.exact import exact_text, float_up, round_up

_SLACK = 1 + Fraction(1, 2**30)
"""Numbers that were computed in floating point may differ so much from one machine to another."""


def is_above(recorded: Loss, today: Loss, users: range) -> str | None:
    """In words, where the bounds of ``today`` are more than those recorded; None if nowhere."""
    try:
        return next(_above(recorded, today, users), None)
    except ValueError as error:  # a profile for fewer users
        return str(error)


def _above(recorded: Loss, today: Loss, users: range) -> Iterator[str]:
    theirs, at = today.over(users), 0
    for piece, part in recorded.over(users):
        while theirs[at][0].stop <= piece.start:
            at += 1
        next_one = at
        while next_one < len(theirs) and theirs[next_one][0].start < piece.stop:
            yield from _piece_above(part, theirs[next_one][1])
            next_one += 1


def _piece_above(recorded: Loss, today: Loss) -> Iterator[str]:
    failed, fails = recorded.failure(), today.failure()
    if fails > failed * _SLACK:
        yield f"it fails with probability {_short(fails)}, recorded is {_short(failed)}"
        return
    then, now = (loss.unless_failed() if loss.failure() else loss for loss in (recorded, today))
    for bound in then.losses if isinstance(then, LeastLoss) else (then,):
        yield from _bound_above(bound, now)


def _bound_above(bound: Loss, today: Loss) -> Iterator[str]:
    match bound:
        case GaussianLoss():
            yield from _number_above("mu²", bound.mu_squared, today.gaussian())
        case ZCDPLoss():
            yield from _number_above("rho", bound.rho, today.zcdp())
        case PureLoss():
            yield from _number_above("epsilon", bound.epsilon, today.pure())
        case RenyiCurve():
            for order, value in bound.points:
                found = today.renyi(float_up(order))
                now = Fraction(found) if math.isfinite(found) else None
                yield from _number_above(f"its bound at order {exact_text(order)}", value, now)
        case _:
            same = today.losses if isinstance(today, LeastLoss) else (today,)
            if not any(type(one) is type(bound) and _is_within(one, bound) for one in same):
                yield f"what stands for one run is not within {bound.numbers()}, as recorded"


def _number_above(name: str, then: Fraction, now: Fraction | None) -> Iterator[str]:
    if now is None:
        yield f"{name} is not bounded, recorded is {_short(then)}"
    elif now > then * _SLACK:
        yield f"{name} is {_short(now)}, recorded is {_short(then)}"


def _is_within(now: Loss, then: Loss) -> bool:
    match then:
        case LaplaceLoss() | BoundedRangeLoss():
            return cast(LaplaceLoss, now).epsilon <= then.epsilon * _SLACK
        case RandomizedResponse():
            other = cast(RandomizedResponse, now)
            return other.categories == then.categories and other.epsilon <= then.epsilon * _SLACK
        case DiscreteLaplace():
            drawn = cast(DiscreteLaplace, now)
            return drawn.sensitivity == then.sensitivity and drawn.epsilon <= then.epsilon * _SLACK
        case SubsampledGaussian():
            sampled = cast(SubsampledGaussian, now)
            return (
                sampled.sampling_probability <= then.sampling_probability * _SLACK
                and sampled.noise_multiplier * _SLACK >= then.noise_multiplier
            )
    return False


def _short(value: Fraction) -> str:
    return exact_text(round_up(value, 6))
