"""Event lists from dp-accounting's `DpEvent` objects, and back.

**Whose sensitivity.**  A `DpEvent` states noise relative to the norm C of *one record's* summand,
whatever the neighbour relation; an event list states it relative to what one *neighbour* changes.
Under add-remove and zero-out that is C and the numbers agree.  Under replace-one it is 2C: a
multiplier of z there is z/2 here.  (dp-accounting 0.6.0 doubles C in its PLD accountant for
Gaussians, forgets to do so in its RDP accountant, and its PLD accountant refuses Laplace noise
under replace-one.)
Randomized response replaces a record by its nature, and zCDP constants, (ε, δ) and the ε of an
exponential mechanism carry no sensitivity: they are taken as they are.

(ε, δ), discrete Gaussian, exponential mechanism and permute-and-flip have events in dp-accounting
after 0.6.0 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from privlearn.errors import DataError
from privlearn.events.lists import (
    ApproxEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    EventList,
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    NoOpEvent,
    PureEvent,
    RandomizedResponseEvent,
    SubsampledGaussianEvent,
    TreeAggregationEvent,
    ZCDPEvent,
    event_list,
)
from privlearn.values.exact import exact, float_down, float_up, round_up

NeighbourRelation = Literal["replace-one", "add-remove", "zero-out"]


def from_dp_event(
    event: Any,
    *,
    adjacency: NeighbourRelation,
    trust: Literal["central", "joint", "local"] = "central",
) -> EventList:
    """Reads a `DpEvent`, and compositions of them in their order.

    Gaussian, Laplace, discrete Gaussian, discrete Laplace, exponential mechanism, permute-and-flip
    (as pure ε), randomized response, single-epoch trees, zCDP, (ε, δ), Gaussians on a Poisson
    sample, no-op and non-private.

    Args:
        event: of the package dp-accounting.
        adjacency: the neighbour relation, which a `DpEvent` leaves open; dp-accounting's
            ``REPLACE_SPECIAL`` is zero-out.
        trust: whom the users trust.

    Raises:
        DataError: an event without a counterpart, named by its place; or one that is priced for
            the other relation only.
    """
    if type(event).__module__.partition(".")[0] != "dp_accounting":
        raise DataError(f"event: {type(event).__name__} is not a DpEvent of dp-accounting")
    listed = _flat(_Found(event, 1, "event", adjacency)) or [{"mechanism": "no-op"}]
    return event_list({"adjacency": adjacency, "trust": trust, "order": "listed", "events": listed})


Singles = list[dict[str, Any]]
"""Events of a list, in JSON form."""


@dataclass(frozen=True, slots=True)
class _Found:
    event: Any
    count: int
    where: str
    adjacency: NeighbourRelation

    @property
    def reach(self) -> int:
        return 2 if self.adjacency == "replace-one" else 1

    def one(self, mechanism: str, **numbers: object) -> Singles:
        return [{"mechanism": mechanism, "count": self.count, **numbers}]

    def inside(self, event: Any, place: str, count: int = 1) -> Singles:
        return _flat(_Found(event, count, f"{self.where}.{place}", self.adjacency))

    def wrong(self, name: str, why: str) -> DataError:
        return DataError(f"{self.where}: {name} = {getattr(self.event, name)!r}: {why}")

    def number(self, name: str) -> Fraction:
        try:
            return exact(name, getattr(self.event, name))
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.where}: {error}") from None

    def positive(self, name: str) -> Fraction:
        value = self.number(name)
        if value <= 0:
            raise self.wrong(name, "must be > 0")
        return value

    def epsilon(self) -> Fraction | None:
        """None where there is no finite one."""
        if self.event.epsilon == math.inf:
            return None
        if (value := self.number("epsilon")) < 0:
            raise self.wrong("epsilon", "must be >= 0")
        return value


def _flat(found: _Found) -> Singles:
    name = type(found.event).__name__
    if name not in _READERS:
        raise DataError(f"{found.where}: {name} has no counterpart here")
    return _READERS[name](found)


def _approx(found: _Found) -> Singles:
    worst, delta = found.epsilon(), found.number("delta")
    if delta < 0:
        raise found.wrong("delta", "must be >= 0")
    if worst is None or delta >= 1:
        return found.one("non-private")
    if delta:
        return found.one("approx", epsilon=max(worst, _LEAST), delta=delta)
    return found.one("pure", epsilon=worst) if worst else []


def _choice(kind: str, found: _Found) -> Singles:
    worst = found.epsilon()
    if worst is None:
        return found.one("non-private")
    return found.one(kind, epsilon=worst) if worst else []


def _discrete_gaussian(found: _Found) -> Singles:
    multiplier = found.positive("sigma") / (found.positive("sensitivity") * found.reach)
    return found.one("discrete-gaussian", noise_multiplier=multiplier)


def _discrete_laplace(found: _Found) -> Singles:
    steps = found.positive("sensitivity") * found.reach
    if steps.denominator != 1:
        raise found.wrong("sensitivity", "must be an integer")
    scale = 1 / (found.positive("noise_parameter") * steps)
    return found.one("discrete-laplace", scale=scale, sensitivity=int(steps))


def _tree(found: _Found) -> Singles:
    if found.adjacency == "add-remove":
        raise DataError(
            f"{found.where}: under add-remove a record that is removed shifts those behind to "
            "other leaves: state zero-out or replace-one"
        )
    steps = found.event.step_counts
    listed = [steps] if hasattr(steps, "__index__") else list(steps)
    if not listed or any(isinstance(n, bool) or not hasattr(n, "__index__") for n in listed):
        raise found.wrong("step_counts", "must be integers, one or more")
    multiplier = found.positive("noise_multiplier") / found.reach
    leaves = tuple(int(n) for n in listed if n)
    if any(n < 0 for n in leaves):
        raise found.wrong("step_counts", "must be >= 0")
    return (
        found.one("tree-aggregation", noise_multiplier=multiplier, steps=leaves) if leaves else []
    )


def _composed(found: _Found) -> Singles:
    parts = enumerate(found.event.events)
    return [one for i, part in parts for one in found.inside(part, f"events[{i}]", found.count)]


def _repeated(found: _Found) -> Singles:
    times = found.event.count
    if isinstance(times, bool) or not hasattr(times, "__index__") or times < 1:
        raise found.wrong("count", "must be an integer >= 1")
    return found.inside(found.event.event, "event", found.count * int(times))


def _zcdp(found: _Found) -> Singles:
    if found.event.xi != 0:
        raise found.wrong("xi", "only zCDP with xi = 0 is known here")
    return found.one("zcdp", rho=found.positive("rho"))


def _randomized_response(found: _Found) -> Singles:
    if found.adjacency != "replace-one":
        raise DataError(f"{found.where}: randomized response is for replace-one")
    p, k = found.positive("noise_parameter"), found.event.num_buckets
    if p > 1:
        raise DataError(f"{found.where}: noise_parameter = {float(p)}: must be at most 1")
    if p == 1 or k == 1:
        return []
    return found.one("randomized-response", epsilon=_log_up(1 + k * (1 - p) / p), categories=k)


def _sampled(found: _Found) -> Singles:
    if found.adjacency == "replace-one":
        raise DataError(
            f"{found.where}: a Poisson sample is priced for add-remove and zero-out only"
        )
    inner = found.inside(found.event.event, "event")
    if any(part["mechanism"] != "gaussian" for part in inner):
        raise DataError(f"{found.where}.event: only Gaussians on a Poisson sample are known here")
    if not inner:
        return []
    return found.one(
        "subsampled-gaussian",
        noise_multiplier=_together(inner),
        sampling_probability=found.number("sampling_probability"),
    )


def _noise(kind: str, field: str, found: _Found) -> Singles:
    return found.one(kind, **{field: found.positive("noise_multiplier") / found.reach})


_READERS: dict[str, Callable[[_Found], Singles]] = {
    "NoOpDpEvent": lambda found: [],
    "NonPrivateDpEvent": lambda found: found.one("non-private"),
    "EpsilonDeltaDpEvent": _approx,
    "ExponentialMechanismDpEvent": partial(_choice, "exponential"),
    "PermuteAndFlipDpEvent": partial(_choice, "pure"),
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "SingleEpochTreeAggregationDpEvent": _tree,
    "ComposedDpEvent": _composed,
    "SelfComposedDpEvent": _repeated,
    "GaussianDpEvent": partial(_noise, "gaussian", "noise_multiplier"),
    "LaplaceDpEvent": partial(_noise, "laplace", "scale"),
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "ZCDpEvent": _zcdp,
    "RandomizedResponseDpEvent": _randomized_response,
    "PoissonSampledDpEvent": _sampled,
}


_LEAST = Fraction(1, 10**100)  # The least ε of a list


def _together(gaussians: list[dict[str, Any]]) -> Fraction:
    """The multiplier of the one Gaussian that several on the same sample are, rounded down.

    They are post-processing of it also where each is chosen after the ones before, whoever is in
    the sample; so the mixtures over samples are as well.
    """
    if [part["count"] for part in gaussians] == [1]:
        return Fraction(gaussians[0]["noise_multiplier"])
    mass = sum(part["count"] / part["noise_multiplier"] ** 2 for part in gaussians)
    return Fraction(math.isqrt(10**60 * mass.denominator // mass.numerator), 10**30)


def to_dp_event(events: EventList) -> Any:
    """Writes an event list as a `DpEvent`, noise rounded down; the inverse of `from_dp_event`.

    Price it under the same neighbour relation, with an accountant that heeds it.

    Raises:
        DataError: an event without a counterpart.
        ImportError: dp-accounting is not installed.
    """
    from dp_accounting import dp_event

    reach = 2 if events.adjacency == "replace-one" else 1

    def made(name: str, *numbers: float) -> Any:
        if not hasattr(dp_event, name):
            raise DataError(
                f"events[{position}]: {event.mechanism} needs {name}, which this version of "
                "dp-accounting does not have"
            )
        return getattr(dp_event, name)(*numbers)

    found: list[Any] = []
    for position, event in enumerate(events.events):
        one: Any
        match event:
            case GaussianEvent():
                one = dp_event.GaussianDpEvent(float_down(event.noise_multiplier * reach))
            case LaplaceEvent():
                one = dp_event.LaplaceDpEvent(float_down(event.scale * reach))
            case DiscreteLaplaceEvent() if event.sensitivity % reach == 0:
                rate = float_up(1 / (event.scale * event.sensitivity))
                one = dp_event.DiscreteLaplaceDpEvent(rate, event.sensitivity // reach)
            case SubsampledGaussianEvent():
                one = dp_event.PoissonSampledDpEvent(
                    float_up(event.sampling_probability),
                    dp_event.GaussianDpEvent(float_down(event.noise_multiplier * reach)),
                )
            case RandomizedResponseEvent() if events.adjacency == "replace-one":
                k = event.categories
                share = k / (math.exp(event.epsilon) + k - 1) * (1 - 1e-14)
                one = dp_event.RandomizedResponseDpEvent(share, k)
            case TreeAggregationEvent():
                one = dp_event.SingleEpochTreeAggregationDpEvent(
                    float_down(event.noise_multiplier * reach), list(event.steps)
                )
            case DiscreteGaussianEvent():
                one = made("DiscreteGaussianDpEvent", float_down(event.noise_multiplier * reach))
            case ExponentialEvent():
                one = made("ExponentialMechanismDpEvent", float_up(event.epsilon))
            case PureEvent():
                one = made("EpsilonDeltaDpEvent", float_up(event.epsilon), 0.0)
            case ApproxEvent():
                one = made("EpsilonDeltaDpEvent", float_up(event.epsilon), float_up(event.delta))
            case NoOpEvent():
                one = dp_event.NoOpDpEvent()
            case NonPrivateEvent():
                one = dp_event.NonPrivateDpEvent()
            case ZCDPEvent():
                one = dp_event.ZCDpEvent(float_up(event.rho))
            case _:
                raise DataError(
                    f"events[{position}]: {event.mechanism} has no counterpart in dp-accounting "
                    f"under {events.adjacency}"
                )
        found.append(one if event.count == 1 else dp_event.SelfComposedDpEvent(one, event.count))
    return found[0] if len(found) == 1 else dp_event.ComposedDpEvent(found)


def _log_up(value: Fraction) -> Fraction:
    precise = Context(prec=40, rounding=ROUND_CEILING)
    ratio = precise.divide(Decimal(value.numerator), Decimal(value.denominator))
    # ln is rounded to nearest whatever the context says: one unit of the last digit on top
    return round_up(Fraction(precise.ln(ratio).next_plus(precise)), 20)
