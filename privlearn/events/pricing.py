"""What an event list costs, and the least noise with which it keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict

from privlearn.accountants.calibration import least_noise, least_noise_by_shares
from privlearn.accountants.epsilon_delta import Evaluated, RoundedNumber, evaluate
from privlearn.errors import AdjacencyError, BudgetError, DataError
from privlearn.events.lists import EventList, event_list
from privlearn.losses import as_replace_one
from privlearn.losses.budgets import ApproxDP
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact_text, float_down, float_up, round_up

_NOISE = {"noise_multiplier": 1, "scale": 1, "noise_std": 1, "epsilon": -1, "rho": -2}
"""The field that says how much noise there is, and the power of the factor it is multiplied by."""


class Price(BaseModel):
    """(ε, δ) of an event list, as the command line prints it in JSON.

    An ε that is infinite, of something non-private, is the text "Infinity" there.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    epsilon: float
    delta: float
    error_bound: float
    method: str
    adjacency: str
    trust: str


class CalibratedEvents(Price):
    """The price of the events with just enough noise, and the events themselves."""

    factors: list[str]
    """By how much the noise of each event was multiplied, exact."""
    events: dict[str, Any]
    """The whole list, as `privlearn.events.lists` reads it."""


def evaluated(events: EventList, *, replace_one: bool = False) -> Evaluated:
    """The composition of all events, in the listed order if the list says so.

    Raises:
        AdjacencyError: an event has no proved price under replace-one.
        BudgetError: an event is non-private, or no event has a loss.
    """
    parts = events.losses()
    if not parts:
        raise BudgetError("the events: nothing of any of them leaves, so there is no loss")
    if replace_one:
        if events.adjacency == Adjacency.REPLACE_ONE.value:
            raise AdjacencyError("the events are for replace-one already: nothing to convert")
        for i, (position, (loss, count)) in enumerate(zip(events.positions, parts, strict=True)):
            try:
                parts[i] = as_replace_one(loss).loss, count
            except ValueError as error:
                raise AdjacencyError(f"events[{position}]: {error}") from None
    return evaluate(parts, order=events.order)


def epsilon_price(events: EventList, delta: float, *, replace_one: bool = False) -> Price:
    """ε at ``delta``: infinite if an event is non-private, 0 if nothing leaves any of them.

    At 1 it is 0 for everything, and at 0 the sum of the worst cases.

    Raises:
        BudgetError: no ε is finite there.
        ValueError: delta outside [0, 1].
    """
    if not 0 <= delta <= 1:
        raise ValueError(f"delta = {delta!r}: must lie in [0, 1]")
    if delta == 1 or not (events.private and events.positions):
        epsilon = 0.0 if delta == 1 or events.private else math.inf
        return _certain(events, epsilon, float(delta), replace_one=replace_one)
    whole = evaluated(events, replace_one=replace_one)
    answer = whole.epsilon(delta) if delta else _at_worst(whole)
    if math.isinf(answer.value):
        raise BudgetError(
            f"delta = {delta!r}: no epsilon is finite there, as the events fail with probability "
            f"{float_up(round_up(whole.total.failure(), 4)):.4g} in all"
        )
    return _price(whole, events, answer, epsilon=answer.value, delta=delta)


def delta_price(events: EventList, epsilon: float, *, replace_one: bool = False) -> Price:
    """δ at ``epsilon`` nats: 1 if an event is non-private, 0 if nothing leaves any of them.

    At an infinite ε it is the probability that something fails.

    Raises:
        ValueError: epsilon is negative or not a number.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon!r}: must be >= 0")
    if not (events.private and events.positions):
        delta = 0.0 if events.private else 1.0
        return _certain(events, float(epsilon), delta, replace_one=replace_one)
    whole = evaluated(events, replace_one=replace_one)
    if math.isinf(epsilon):
        answer = RoundedNumber(float_up(whole.total.failure()), 0.0, "failure")
    else:
        answer = whole.delta(epsilon)
    return _price(whole, events, answer, epsilon=epsilon, delta=answer.value)


def _at_worst(whole: Evaluated) -> RoundedNumber:
    """ε at δ = 0."""
    if whole.total.failure():
        return RoundedNumber(math.inf, 0.0, "failure")
    worst = whole.total.pure()
    if worst is None:
        raise BudgetError("delta = 0: no epsilon is finite there, as losses are not bounded")
    return RoundedNumber(float_up(worst), 0.0, "pure")


def calibrate_events(
    events: EventList, promise: ApproxDP, *, shares: Sequence[Exact] | None = None
) -> CalibratedEvents:
    """The least noise with which all events together keep ``promise``.

    Without ``shares`` the noise of all events is multiplied by one factor, so that it stays in the
    stated proportions.  With them each event, all its runs, gets that share of the zCDP constant.

    Raises:
        BudgetError: no noise keeps the promise; an event has no noise that could be scaled.
        CurrencyError: shares, and an event without a zCDP constant.
    """
    for position, event in enumerate(events.events):
        if event.mechanism == "renyi":
            raise BudgetError(f"events[{position}]: a Rényi curve states no noise to be scaled")
        if event.mechanism in ("no-op", "non-private"):
            raise BudgetError(f"events[{position}]: {event.mechanism} has no noise to be scaled")
    parts = events.losses()
    if shares is None:
        factor = least_noise(parts, promise, order=events.order, thorough=True).factor
        factors = [factor] * len(parts)
    else:
        found = least_noise_by_shares(parts, shares, promise, order=events.order, thorough=True)
        factors = [one.factor for one in found]
    noisy = with_noise(events, factors)
    answer = evaluated(noisy).epsilon(float_down(promise.delta))
    if answer.value > float_down(promise.epsilon):
        raise BudgetError(f"factors {factors} were found, but cost {answer.value!r}")
    price = _price(
        evaluated(noisy), noisy, answer, epsilon=answer.value, delta=float(promise.delta)
    )
    return CalibratedEvents(
        **price.model_dump(),
        factors=[exact_text(factor) for factor in factors],
        events=to_dict(noisy),
    )


def with_noise(events: EventList, factors: Sequence[Fraction]) -> EventList:
    """The same events, the noise of each multiplied by its factor, in exact arithmetic.

    Raises:
        DataError: a number leaves its range.
    """
    data = to_dict(events)
    for position, (event, factor) in enumerate(zip(data["events"], factors, strict=True)):
        _scale(event, factor, f"events[{position}]")
    return event_list(data)


def _scale(event: dict[str, Any], factor: Fraction, where: str) -> None:
    inner = [name for name in ("sample", "tried") if name in event]
    fields = [name for name in _NOISE if name in event]
    if len(fields) + len(inner) != 1:
        raise DataError(f"{where}: states no noise to be scaled")
    for part in inner:
        for number, one in enumerate(event[part]):
            _scale(one, factor, f"{where}.{part}[{number}]")
    for name in fields:
        event[name] = exact_text(Fraction(event[name]) * factor ** _NOISE[name])


def to_dict(events: EventList) -> dict[str, Any]:
    """JSON form, with exact numbers as text; `event_list` reads it back.

    >>> from privlearn.events import event_list
    >>> one = {"mechanism": "pure", "epsilon": "0.5"}
    >>> to_dict(event_list({"adjacency": "replace-one", "trust": "central", "events": [one]}))
    {'adjacency': 'replace-one', 'trust': 'central', 'order': 'any', 'events': \
[{'mechanism': 'pure', 'epsilon': '0.5'}]}
    """
    return {
        "adjacency": events.adjacency,
        "trust": events.trust.value,
        "order": events.order,
        "events": [_plain(event) for event in events.events],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return exact_text(value)
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        told = {name: _plain(one) for name, one in value if one != fields[name].default}
        return {"mechanism": told.pop("mechanism"), **told}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _certain(events: EventList, epsilon: float, delta: float, *, replace_one: bool) -> Price:
    """What is certain without a computation: nothing leaves, or everything may."""
    if replace_one and events.adjacency == Adjacency.REPLACE_ONE.value:
        raise AdjacencyError("the events are for replace-one already: nothing to convert")
    return Price(
        epsilon=epsilon,
        delta=delta,
        error_bound=0.0,
        method="nothing" if events.private else "non-private",
        adjacency=Adjacency.REPLACE_ONE.value if replace_one else events.adjacency,
        trust=events.trust.value,
    )


def _price(
    whole: Evaluated, events: EventList, answer: RoundedNumber, *, epsilon: float, delta: float
) -> Price:
    return Price(
        epsilon=epsilon,
        delta=delta,
        error_bound=answer.error_bound,
        method=answer.method,
        adjacency=whole.total.adjacency.value,
        trust=events.trust.value,
    )
