"""Mechanism runs as a declared list, in JSON or TOML, and the losses they cost.

::

    {"adjacency": "replace-one", "trust": "central", "order": "listed",
     "events": [{"mechanism": "gaussian", "noise_multiplier": 20, "count": 1000},
                {"mechanism": "laplace", "scale": 30},
                {"mechanism": "exponential", "epsilon": "0.05"}]}

``noise_multiplier`` and ``scale`` are in units of the sensitivity under the *stated* adjacency:
they say how much noise there is relative to what one neighbour changes, so the label by itself
does not change a price.  Numbers are exact: a JSON or TOML number counts as its decimal digits,
and a string such as ``"1/3"`` as that fraction.  An error names the event by its position,
``events[3].count``.
"""

from __future__ import annotations

import json
import os
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from privlearn.errors import BudgetError, DataError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedBatch,
    GaussianLoss,
    GaussianMixture,
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PoissonSampled,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    SelectedLoss,
    TruncatedPoisson,
    ZCDPLoss,
    compose,
    sampled_gaussian_loss,
)
from privlearn.storage.foreign_files import read_whole
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact, float_down, float_up


def _plain(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        raise ValueError("must be a number, or a string such as '0.1' or '1/3'")
    if isinstance(value, str):
        value = _number_in_text(value)
    if isinstance(value, Decimal) and (not value.is_finite() or abs(value.adjusted()) > 400):
        raise ValueError(f"{value} must be a finite number between 1e-100 and 1e100")
    try:
        return exact("value", value)
    except ValueError:
        raise ValueError(f"{value} must be a finite number") from None


def _number_in_text(text: str) -> Exact:
    if len(text) <= 200:
        try:
            return Fraction(text) if "/" in text else Decimal(text)
        except (ValueError, ZeroDivisionError, InvalidOperation):
            pass
    raise ValueError(f"{text[:40]!r} must be a number, or a string such as '0.1' or '1/3'")


def _within(low: str, high: str) -> BeforeValidator:
    """Refuses what is not a number > 0 in the closed interval that the losses take."""

    def check(value: Any) -> Fraction:
        number = _plain(value)
        if number <= 0:
            raise ValueError(f"{value} must be > 0")
        if not Fraction(low) <= number <= Fraction(high):
            raise ValueError(f"{value} must lie in [{low}, {high}]")
        return number

    return BeforeValidator(check)


def _probability(value: Any) -> Fraction:
    number = _plain(value)
    if not Fraction(1, 10**300) <= number < 1:
        raise ValueError(f"{value} must lie strictly between 0 and 1 (at least 1e-300)")
    return number


def _curve(value: Any) -> tuple[tuple[Fraction, Fraction], ...]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not pairs:
        raise ValueError("must name at least one order: {'2': 0.1} or [[2, 0.1]]")
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("must be pairs of an order and a bound: [[2, 0.1], [8, 0.5]]")
    points = tuple((_plain(order), _plain(bound)) for order, bound in pairs)
    if any(order <= 1 for order, _ in points):
        raise ValueError("orders must be > 1")
    if any(not 0 < bound <= 10**75 or order > 10**75 for order, bound in points):
        raise ValueError("bounds must be > 0, and nothing above 1e75")
    if len({order for order, _ in points}) != len(points):
        raise ValueError("names an order twice")
    return points


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


Size = Annotated[Fraction, _within("1e-75", "1e75")]
Epsilon = Annotated[Fraction, _within("1e-100", "700")]
NoiseScale = Annotated[Fraction, _within("1/700", "1e100")]
Probability = Annotated[Fraction, BeforeValidator(_probability)]
CurvePoints = Annotated[tuple[tuple[Fraction, Fraction], ...], BeforeValidator(_curve)]
Whole = Annotated[int, Field(strict=True, ge=1, le=10**15)]


class _Event(BaseModel, ABC):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True
    )
    count: Whole = 1  # How many times the mechanism runs


class _PricedEvent(_Event):
    @abstractmethod
    def loss(self, adjacency: Adjacency) -> Loss:
        """What one run costs."""


class NoOpEvent(_Event):
    """Something of which nothing about anybody leaves."""

    mechanism: Literal["no-op"]


class NonPrivateEvent(_Event):
    """Something that can tell everything about everybody: no ε is finite, and δ is 1."""

    mechanism: Literal["non-private"]


class GaussianEvent(_PricedEvent):
    """Gaussian noise; the multiplier is std over ℓ2 sensitivity."""

    mechanism: Literal["gaussian"]
    noise_multiplier: Size

    def loss(self, adjacency: Adjacency) -> Loss:
        return GaussianLoss(1 / self.noise_multiplier**2, adjacency=adjacency)


class DiscreteGaussianEvent(_PricedEvent):
    """Discrete Gaussian noise on integers; the multiplier is σ over ℓ2 sensitivity."""

    mechanism: Literal["discrete-gaussian"]
    noise_multiplier: Size

    def loss(self, adjacency: Adjacency) -> Loss:
        return DiscreteGaussian(1, self.noise_multiplier, adjacency=adjacency)


class GeneralizedGaussianEvent(_PricedEvent):
    """Noise ∝ exp(−‖z‖₊²/(2σ²)); the multiplier is σ over the sensitivity in the κ-regular norm."""

    mechanism: Literal["generalized-gaussian"]
    kappa: Annotated[Fraction, _within("1", "1e75")]
    noise_multiplier: Size

    def loss(self, adjacency: Adjacency) -> Loss:
        return GeneralizedGaussian(self.kappa, 1, self.noise_multiplier, adjacency=adjacency)


class SubsampledGaussianEvent(_PricedEvent):
    """Gaussian noise on the sum over a Poisson sample; add-remove only."""

    mechanism: Literal["subsampled-gaussian"]
    noise_multiplier: Annotated[Fraction, _within("1e-3", "1e6")]
    sampling_probability: Annotated[Fraction, _within("1e-12", "1")]

    def loss(self, adjacency: Adjacency) -> Loss:
        return sampled_gaussian_loss(self.noise_multiplier, self.sampling_probability, adjacency)


class TreeAggregationEvent(_PricedEvent):
    """Running sums over trees of Gaussian nodes; a record is at one leaf of one tree.

    The multiplier is the std of a node over the ℓ2 sensitivity of a leaf, ``steps`` the leaves of
    each tree.  A leaf lies in at most one node of each height, of which a tree of n leaves
    completes ⌊log₂ n⌋ + 1: so many Gaussians (Kairouz, McMahan, Song, Thakkar, Thakurta & Xu 2021,
    appendix D).
    """

    mechanism: Literal["tree-aggregation"]
    noise_multiplier: Size
    steps: Annotated[tuple[Whole, ...], Field(min_length=1), BeforeValidator(_listed)]

    @property
    def depth(self) -> int:
        """The most nodes that a record is in."""
        return max(self.steps).bit_length()

    def loss(self, adjacency: Adjacency) -> Loss:
        return GaussianLoss(self.depth / self.noise_multiplier**2, adjacency=adjacency)


class LaplaceEvent(_PricedEvent):
    """Laplace noise; the scale is in units of the ℓ1 sensitivity."""

    mechanism: Literal["laplace"]
    scale: NoiseScale

    def loss(self, adjacency: Adjacency) -> Loss:
        return LaplaceLoss(1 / self.scale, adjacency=adjacency)


class DiscreteLaplaceEvent(_PricedEvent):
    """Discrete Laplace noise on integers; the scale is in units of the ℓ1 sensitivity.

    ``sensitivity`` is in steps of the grid; 1, the default, is the worst case.
    """

    mechanism: Literal["discrete-laplace"]
    scale: NoiseScale
    sensitivity: Whole = 1

    def loss(self, adjacency: Adjacency) -> Loss:
        return DiscreteLaplace(1 / self.scale, self.sensitivity, adjacency=adjacency)


class ExponentialEvent(_PricedEvent):
    """The exponential mechanism; ε is the range of its privacy loss."""

    mechanism: Literal["exponential"]
    epsilon: Epsilon

    def loss(self, adjacency: Adjacency) -> Loss:
        return BoundedRangeLoss(self.epsilon, adjacency=adjacency)


class RandomizedResponseEvent(_PricedEvent):
    """k-ary randomized response."""

    mechanism: Literal["randomized-response"]
    epsilon: Epsilon
    categories: Annotated[int, Field(strict=True, ge=2, le=10**15)] = 2

    def loss(self, adjacency: Adjacency) -> Loss:
        return RandomizedResponse(self.epsilon, self.categories, adjacency=adjacency)


class ObjectivePerturbationEvent(_PricedEvent):
    """The exact minimiser of a randomly tilted objective; rank and directions default to dim."""

    mechanism: Literal["objective-perturbation"]
    noise_std: Size
    regularization: Size
    gradient_difference: Size
    hessian_trace: Size
    dim: Whole
    rank: Whole | None = None
    directions: Whole | None = None

    @model_validator(mode="after")
    def _within_dim(self) -> Self:
        for name, value in (("rank", self.rank), ("directions", self.directions)):
            if value is not None and value > self.dim:
                raise ValueError(f"{name} = {value} must be at most dim = {self.dim}")
        return self

    def loss(self, adjacency: Adjacency) -> Loss:
        return MinimizerLoss(
            difference=float_up(self.gradient_difference),
            trace=float_up(self.hessian_trace),
            rank=self.rank or self.dim,
            directions=self.directions or self.dim,
            ridge=float_down(self.regularization),
            noise_std=float_down(self.noise_std),
            adjacency=adjacency,
        )


class PureEvent(_PricedEvent):
    """A black box that is ε-DP."""

    mechanism: Literal["pure"]
    epsilon: Epsilon

    def loss(self, adjacency: Adjacency) -> Loss:
        return PureLoss(self.epsilon, adjacency=adjacency)


class ZCDPEvent(_PricedEvent):
    """A black box that is ρ-zCDP."""

    mechanism: Literal["zcdp"]
    rho: Size

    def loss(self, adjacency: Adjacency) -> Loss:
        return ZCDPLoss(self.rho, adjacency=adjacency)


class ApproxEvent(_PricedEvent):
    """A black box that is (ε, δ)-DP."""

    mechanism: Literal["approx"]
    epsilon: Epsilon
    delta: Probability

    def loss(self, adjacency: Adjacency) -> Loss:
        return ApproxLoss(self.epsilon, self.delta, adjacency=adjacency)


class RenyiEvent(_PricedEvent):
    """A black box of which Rényi bounds at some orders are known."""

    mechanism: Literal["renyi"]
    curve: CurvePoints

    def loss(self, adjacency: Adjacency) -> Loss:
        return RenyiCurve(dict(self.curve), adjacency=adjacency)


Sampled = Annotated[
    GaussianEvent
    | LaplaceEvent
    | DiscreteGaussianEvent
    | DiscreteLaplaceEvent
    | PureEvent
    | RandomizedResponseEvent,
    Field(discriminator="mechanism"),
]


class _SampleEvent(_PricedEvent):
    """What runs on one sample.

    A ``noise_multiplier`` or ``scale`` in it is in units of what one record of the sample changes:
    by joining a Poisson sample, by being replaced in a fixed batch.
    """

    sample: Annotated[tuple[Sampled, ...], Field(min_length=1)]

    def inside(self, adjacency: Adjacency) -> Loss:
        """All that runs on the sample."""
        return compose([(event.loss(adjacency), event.count) for event in self.sample])


class PoissonSampledEvent(_SampleEvent):
    """Mechanisms on one Poisson sample."""

    mechanism: Literal["poisson-sampled"]
    sampling_probability: Annotated[Fraction, _within("1e-12", "1")]

    def loss(self, adjacency: Adjacency) -> Loss:
        return PoissonSampled(
            self.inside(_joining(adjacency)), self.sampling_probability, adjacency=adjacency
        )


class TruncatedPoissonEvent(_SampleEvent):
    """Mechanisms on one Poisson sample of which at most ``largest_batch`` records are kept."""

    mechanism: Literal["truncated-poisson"]
    sampling_probability: Annotated[Fraction, _within("1e-12", "1")]
    dataset_size: Whole
    largest_batch: Whole

    def loss(self, adjacency: Adjacency) -> Loss:
        return TruncatedPoisson(
            self.inside(_joining(adjacency)),
            self.sampling_probability,
            self.dataset_size,
            self.largest_batch,
            adjacency=adjacency,
        )


class FixedBatchEvent(_SampleEvent):
    """Mechanisms on a batch of a fixed size from a population; not under add-remove."""

    mechanism: Literal["fixed-batch"]
    population: Whole
    batch: Whole
    replacement: bool = False

    def loss(self, adjacency: Adjacency) -> Loss:
        return FixedBatch(
            self.inside(Adjacency.REPLACE_ONE),
            self.population,
            self.batch,
            replacement=self.replacement,
            adjacency=adjacency,
        )


class GaussianMixtureEvent(_PricedEvent):
    """Gaussian noise on a sum to which a record contributes a random multiple."""

    mechanism: Literal["gaussian-mixture"]
    sensitivities: Annotated[tuple[Annotated[Fraction, BeforeValidator(_plain)], ...], Field()]
    probabilities: Annotated[tuple[Annotated[Fraction, BeforeValidator(_plain)], ...], Field()]
    noise_std: Size

    def loss(self, adjacency: Adjacency) -> Loss:
        return GaussianMixture(
            self.sensitivities, self.probabilities, self.noise_std, adjacency=adjacency
        )


SampledOrSample = Annotated[
    GaussianEvent
    | LaplaceEvent
    | DiscreteGaussianEvent
    | DiscreteLaplaceEvent
    | PureEvent
    | RandomizedResponseEvent
    | SubsampledGaussianEvent
    | PoissonSampledEvent
    | TruncatedPoissonEvent
    | FixedBatchEvent
    | GaussianMixtureEvent
    | ZCDPEvent,
    Field(discriminator="mechanism"),
]


class SelectedEvent(_PricedEvent):
    """The best of a secret, random number of tries of all that is ``tried``, one time each.

    ``eta`` is the shape of the law of the number of tries, of mean ``tries``; without it the
    number is Poisson.  It is priced at a probability ``delta`` of failing.
    """

    mechanism: Literal["selected"]
    tried: Annotated[tuple[SampledOrSample, ...], Field(min_length=1)]
    delta: Probability
    tries: Annotated[Fraction, BeforeValidator(_plain)]
    eta: Annotated[Fraction | None, BeforeValidator(_plain)] = None

    def loss(self, adjacency: Adjacency) -> Loss:
        one = compose([(event.loss(adjacency), event.count) for event in self.tried])
        return SelectedLoss(one, self.delta, self.tries, self.eta)


def _joining(adjacency: Adjacency) -> Adjacency:
    """The relation of what runs on a Poisson sample: a record joins it, whatever else is stated."""
    return Adjacency.ADD_REMOVE if adjacency is Adjacency.REPLACE_ONE else adjacency


Event = Annotated[
    GaussianEvent
    | DiscreteGaussianEvent
    | GeneralizedGaussianEvent
    | SubsampledGaussianEvent
    | PoissonSampledEvent
    | TruncatedPoissonEvent
    | FixedBatchEvent
    | GaussianMixtureEvent
    | SelectedEvent
    | TreeAggregationEvent
    | LaplaceEvent
    | DiscreteLaplaceEvent
    | ExponentialEvent
    | RandomizedResponseEvent
    | ObjectivePerturbationEvent
    | PureEvent
    | ZCDPEvent
    | ApproxEvent
    | RenyiEvent
    | NoOpEvent
    | NonPrivateEvent,
    Field(discriminator="mechanism"),
]


class EventList(BaseModel):
    """Whom a guarantee is for, and every mechanism that runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    adjacency: Literal["replace-one", "add-remove", "zero-out"]
    trust: Trust
    order: Literal["listed", "any"] = "any"
    """Whether they run in the listed order, or the guarantee has to hold for any order."""
    events: Annotated[tuple[Event, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.adjacency == "add-remove" and self.trust is Trust.LOCAL:
            raise ValueError(
                "adjacency: under local trust every user sends a report, so there is no neighbour "
                "without one: state replace-one"
            )
        if self.adjacency == "add-remove" and self.trust is Trust.JOINT:
            raise ValueError(
                "adjacency: removing a user shifts what everybody behind is served, so a joint "
                "guarantee is for replace-one"
            )
        if self.adjacency == "add-remove":
            for position, event in enumerate(self.events):
                if isinstance(event, TreeAggregationEvent):
                    raise ValueError(
                        f"events[{position}]: under add-remove a record that is removed shifts "
                        "those behind to other leaves: state zero-out or replace-one"
                    )
        self._priced()  # each kind's own ranges
        return self

    @property
    def private(self) -> bool:
        """Whether no event is non-private."""
        return not any(isinstance(event, NonPrivateEvent) for event in self.events)

    @property
    def positions(self) -> list[int]:
        """Of the events that have a loss, in `events`: all but those of ``no-op``."""
        return [i for i, event in enumerate(self.events) if isinstance(event, _PricedEvent)]

    def losses(self) -> list[tuple[Loss, int]]:
        """The price of one run and the number of runs of each event that has a loss, as listed.

        Raises:
            BudgetError: an event is non-private.
            ValueError: a number is outside of what its loss takes.
        """
        if not self.private:
            raise BudgetError("the events: one is non-private, which has no finite price")
        return self._priced()

    def _priced(self) -> list[tuple[Loss, int]]:
        relation = Adjacency(self.adjacency)
        parts = []
        for position, event in enumerate(self.events):
            if isinstance(event, _PricedEvent):
                try:
                    parts.append((event.loss(relation), event.count))
                except ValueError as error:
                    raise ValueError(f"events[{position}]: {error}") from None
        return parts

    def loss(self) -> Loss:
        """All of them composed.

        Raises:
            BudgetError: an event is non-private, or nothing of any leaves.
        """
        parts = self.losses()
        if not parts:
            raise BudgetError("the events: nothing of any of them leaves, so there is no loss")
        return compose(parts)


@cache
def _adapter() -> TypeAdapter[EventList]:
    return TypeAdapter(EventList)


def event_list(data: Mapping[str, Any]) -> EventList:
    """Checks an event list given as a mapping.

    Raises:
        DataError: with one line for each thing that is wrong, naming the event by its position.
    """
    try:
        return _adapter().validate_python(dict(data))
    except ValidationError as error:
        found = error.errors(include_url=False)
        places = [each["loc"] for each in found]
        # pydantic calls a list empty if none of its events is valid
        lines = [
            _problem(list(each["loc"]), each)
            for each in found
            if each["type"] != "too_short"
            or not any(_is_within(one, each["loc"]) for one in places)
        ]
        raise DataError("\n".join(lines)) from None


def _is_within(place: tuple[str | int, ...], whole: tuple[str | int, ...]) -> bool:
    return len(place) > len(whole) and place[: len(whole)] == whole


def event_list_from_text(text: str, *, form: Literal["json", "toml"] = "json") -> EventList:
    """Reads an event list from JSON or TOML text.

    Raises:
        DataError: not that form, a key given twice, or an event list with mistakes.
    """
    try:
        if form == "toml":
            data: Any = tomllib.loads(text, parse_float=Decimal)
        else:
            data = json.loads(text, parse_float=Decimal, object_pairs_hook=_once)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise DataError(f"not an event list in {form.upper()}: {error}") from None
    if not isinstance(data, dict):
        raise DataError("an event list must be an object with adjacency, trust and events")
    return event_list(data)


_MOST_BYTES = 2**26


def read_event_list(path: str | os.PathLike[str]) -> EventList:
    """Reads an event list from a ``.json`` or ``.toml`` file.

    Raises:
        DataError: another ending, or see `event_list_from_text`.
    """
    file = Path(path)
    if file.suffix not in (".json", ".toml"):
        raise DataError(f"{path}: an event list must end in .json or .toml")
    try:
        text = read_whole(file, at_most=_MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name}: not UTF-8 text: {error}") from None
    return event_list_from_text(text, form="toml" if file.suffix == ".toml" else "json")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} is given twice")
    return dict(pairs)


_PLAIN = {
    "missing": "is missing",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "union_tag_not_found": "mechanism is missing",
    "too_short": "must not be empty",
    "greater_than_equal": "must be >= {ge}",
    "less_than_equal": "must be <= {le}",
    "model_attributes_type": "must be an object with a mechanism",
    "tuple_type": "must be a list",
}


def _problem(where: list[str | int], error: Mapping[str, Any]) -> str:
    kind = error["type"]
    text = _PLAIN.get(kind, "").format(**error.get("ctx", {}))
    text = text or str(error["msg"]).removeprefix("Value error, ")
    if len(where) > 2 and where[0] == "events":
        del where[2]  # pydantic names the mechanism there
    if kind == "extra_forbidden":
        text = "is not a known key"
    elif kind == "union_tag_invalid":
        context = error["ctx"]
        text = f"mechanism {context['tag']!r} is unknown; known: {context['expected_tags']}"
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return f"{path.lstrip('.')}: {text}" if path else text
