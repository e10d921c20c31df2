"""Losses of OpenDP's measurements, as their maps state them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from privlearn.errors import BudgetError
from privlearn.losses import ApproxLoss, FailingLoss, Loss, PureLoss, RenyiCurve, ZCDPLoss
from privlearn.losses.declared import ORDERS
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, exact_text, float_down, round_up

_STEPS = 64
"""Floats upwards that are tried where a profile's ε, asked again, says a larger δ."""
_DIGITS = 12


def price_of(
    opendp: Any,
    measurement: Any,
    measure: str,
    d_in: Any,
    adjacency: Adjacency,
    delta: Exact | None,
) -> Loss:
    """What one run costs neighbours at distance ``d_in``, in the output measure that is named.

    Raises:
        BudgetError: the map refuses the distance, states no finite price, or none at all.
        ValueError: a ``delta`` without a use, or none where it is needed.
    """
    if (delta is None) is (measure == "SmoothedMaxDivergence"):
        raise ValueError(
            f"delta = {delta!r}: {measure} "
            + (
                "is a whole curve of (ε, δ): state the delta at which it is read"
                if delta is None
                else "states its price without one: leave it out"
            )
        )
    try:
        stated = measurement.map(d_in)
    except (opendp.mod.OpenDPException, TypeError, ValueError) as error:
        raise BudgetError(
            f"opendp: the map has no price at d_in = {d_in}: {_first_line(error)}; nothing was "
            "spent"
        ) from None
    match measure:
        case "MaxDivergence":
            return PureLoss(_number("ε", stated), adjacency=adjacency)
        case "ZeroConcentratedDivergence":
            return ZCDPLoss(_number("ρ", stated), adjacency=adjacency)
        case "Approximate<MaxDivergence>":
            epsilon, failure = _number("ε", stated[0]), _failure(stated[1])
            if not failure:
                return PureLoss(epsilon, adjacency=adjacency)
            return ApproxLoss(epsilon, failure, adjacency=adjacency)
        case "Approximate<ZeroConcentratedDivergence>":
            apart, failure = ZCDPLoss(_number("ρ", stated[0]), adjacency=adjacency), stated[1]
            return FailingLoss(apart, _failure(failure)) if _failure(failure) else apart
        case "RenyiDivergence":
            return _curve(stated, adjacency)
        case "SmoothedMaxDivergence":
            assert delta is not None
            return _read(stated, exact("delta", delta), adjacency)
    raise BudgetError(
        f"opendp: output measure {measure}: its distances have no meaning here: convert the "
        "measurement to one of OpenDP's own measures; nothing was spent"
    )


def _number(name: str, stated: Any) -> Fraction:
    """A finite price above 0, exact."""
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not stated >= 0:
        raise BudgetError(f"opendp: the map says {name} = {stated!r}, which is no price")
    if stated == math.inf:
        raise BudgetError(
            f"opendp: the map says {name} = inf: more noise, or narrower bounds, would have a "
            "price; nothing was spent"
        )
    if stated == 0:
        raise BudgetError(
            f"opendp: the map says {name} = 0, that this output depends on nobody. Of counts it "
            "says so wrongly in this version (opendp issues 2938, 2939, 2940), so it is not "
            "metered: add noise, or compute what is public without a measurement; nothing was spent"
        )
    return Fraction(stated)


def _failure(stated: Any) -> Fraction:
    if not isinstance(stated, int | float) or not 0 <= stated < 1:
        raise BudgetError(f"opendp: the map says δ = {stated!r}: must lie in [0, 1)")
    return Fraction(stated)


def _curve(stated: Any, adjacency: Adjacency) -> RenyiCurve:
    """What the curve says at the orders at which ledgers hold curves."""
    points: dict[Exact, Exact] = {}
    for order in ORDERS:
        bound = stated(float(order))
        if bound != math.inf:
            points[order] = round_up(_number(f"D_{float(order):g}", bound), _DIGITS)
    if not points:
        raise BudgetError("opendp: the Rényi curve is infinite at all orders; nothing was spent")
    return RenyiCurve(points, adjacency=adjacency)


def _read(profile: Any, delta: Fraction, adjacency: Adjacency) -> ApproxLoss:
    """ε of a privacy profile at ``delta``: a float at which the profile says no more than that."""
    if not 0 < delta < 1:
        raise ValueError(f"delta = {exact_text(delta)}: must lie strictly between 0 and 1")
    epsilon = max(float(profile.epsilon(float_down(delta))), _LEAST)
    for _ in range(_STEPS):
        if epsilon == math.inf or _failure(profile.delta(epsilon)) <= delta:
            return ApproxLoss(_number("ε", epsilon), delta, adjacency=adjacency)
        epsilon = math.nextafter(epsilon, math.inf)
    raise BudgetError(
        f"opendp: the profile says ε = {epsilon:g} at δ = {exact_text(delta)}, and at that ε a "
        "larger δ: it is no price; nothing was spent"
    )


_LEAST = 1e-12
"""An ε that is charged where a profile says 0 at the δ that is paid."""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
