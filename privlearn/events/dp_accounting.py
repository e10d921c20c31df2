"""Event lists from dp-accounting's `DpEvent` objects, and back.

**Whose sensitivity.**  A `DpEvent` states noise relative to the norm C of *one record's* summand,
whatever the neighbour relation; an event list states it relative to what one *neighbour* changes.
Under add-remove and zero-out that is C and the numbers agree.  Under replace-one it is 2C: a
multiplier of z there is z/2 here.  (dp-accounting 0.6.0 doubles C in its PLD accountant for
Gaussians, forgets to do so in its RDP accountant, and its PLD accountant refuses Laplace noise
under replace-one.)
Randomized response replaces a record by its nature, and zCDP constants, (ε, δ) and the ε of an
exponential mechanism carry no sensitivity: they are taken as they are.

Of a Poisson sample the noise is relative to one record in every relation, as in both packages a
record joins the sample; of a fixed batch it is relative to a replacement.

(ε, δ), discrete Gaussian, exponential mechanism and permute-and-flip have events in dp-accounting
after 0.6.0 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    FixedBatchEvent,
    GaussianEvent,
    GaussianMixtureEvent,
    LaplaceEvent,
    NonPrivateEvent,
    NoOpEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedResponseEvent,
    SelectedEvent,
    SubsampledGaussianEvent,
    TreeAggregationEvent,
    TruncatedPoissonEvent,
    ZCDPEvent,
    event_list,
)
from privlearn.losses.declared import ORDERS
from privlearn.values.exact import Exact, exact, float_down, float_up, round_up

NeighbourRelation = Literal["replace-one", "add-remove", "zero-out"]


def from_dp_event(
    event: Any,
    *,
    adjacency: NeighbourRelation,
    trust: Literal["central", "joint", "local"] = "central",
    selection_delta: Exact | None = None,
) -> EventList:
    """Reads a `DpEvent`, and compositions of them in their order.

    All of dp-accounting but `UnsupportedDpEvent`, and samples of what has no pair of its own.

    Args:
        event: of the package dp-accounting.
        adjacency: the neighbour relation, which a `DpEvent` leaves open; dp-accounting's
            ``REPLACE_SPECIAL`` is zero-out.
        trust: whom the users trust.
        selection_delta: the probability of failing at which a `RepeatAndSelectDpEvent` is priced,
            which adds to δ; a `DpEvent` does not name one.

    Raises:
        DataError: an event without a counterpart, named by its place; or one that is priced for
            the other relation only.
    """
    if type(event).__module__.partition(".")[0] != "dp_accounting":
        raise DataError(f"event: {type(event).__name__} is not a DpEvent of dp-accounting")
    found = _Found(event, 1, "event", adjacency, adjacency == "replace-one", selection_delta)
    listed = _flat(found) or [{"mechanism": "no-op"}]
    return event_list({"adjacency": adjacency, "trust": trust, "order": "listed", "events": listed})


Singles = list[dict[str, Any]]
"""Events of a list, in JSON form."""


@dataclass(frozen=True, slots=True)
class _Found:
    event: Any
    count: int
    where: str
    adjacency: NeighbourRelation
    doubles: bool
    """Whether what is stated of one record is half of what a neighbour changes."""
    selection_delta: Exact | None

    @property
    def reach(self) -> int:
        return 2 if self.doubles else 1

    def one(self, mechanism: str, **numbers: object) -> Singles:
        return [{"mechanism": mechanism, "count": self.count, **numbers}]

    def inside(
        self, event: Any, place: str, count: int = 1, doubles: bool | None = None
    ) -> Singles:
        return _flat(
            replace(
                self,
                event=event,
                count=count,
                where=f"{self.where}.{place}",
                doubles=self.doubles if doubles is None else doubles,
            )
        )

    def size(self, name: str) -> int:
        value = getattr(self.event, name)
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise self.wrong(name, "must be an integer >= 0")
        return int(value)

    def sample(self, doubles: bool, kind: str) -> Singles:
        """What runs on a sample."""
        inner = self.inside(self.event.event, "event", doubles=doubles)
        if any(part["mechanism"] == "non-private" for part in inner):
            return self.one("non-private")
        for part in inner:
            if part["mechanism"] not in _ON_SAMPLES:
                raise DataError(
                    f"{self.where}.event: {part['mechanism']} on a {kind} is not known here; only "
                    + ", ".join(_ON_SAMPLES)
                )
        return inner

    def told(self, inner: Singles, chance: Fraction) -> Singles | None:
        """What is told of a record whenever it is in the sample, which has that chance."""
        if inner != self.one("non-private"):
            return None
        return self.one("approx", epsilon=_LEAST, delta=chance)

    def times(self, inner: Singles) -> Singles:
        """All of ``inner`` each time."""
        return [{**part, "count": part["count"] * self.count} for part in inner]

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

    def noisy(self, name: str, noise: Callable[[Fraction], Singles]) -> Singles:
        """What there is with so much noise; without any it is non-private."""
        value = self.number(name)
        if value < 0:
            raise self.wrong(name, "must be >= 0")
        return noise(value) if value else self.one("non-private")

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


def _choice(found: _Found) -> Singles:
    worst = found.epsilon()
    if worst is None:
        return found.one("non-private")
    if type(found.event).__name__ == "PermuteAndFlipDpEvent":  # docs/proofs.md#choices
        return found.one("laplace", scale=1 / worst) if worst else []
    return found.one("exponential", epsilon=worst) if worst else []


def _discrete_gaussian(found: _Found) -> Singles:
    size = found.positive("sensitivity") * found.reach
    return found.noisy(
        "sigma", lambda sigma: found.one("discrete-gaussian", noise_multiplier=sigma / size)
    )


def _discrete_laplace(found: _Found) -> Singles:
    steps = found.positive("sensitivity") * found.reach
    if steps.denominator != 1:
        raise found.wrong("sensitivity", "must be an integer")
    return found.noisy(  # 0 would be noise that is uniform on all integers
        "noise_parameter",
        lambda rate: found.one(
            "discrete-laplace", scale=1 / (rate * steps), sensitivity=int(steps)
        ),
    )


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
    leaves = tuple(int(n) for n in listed if n)
    if any(n < 0 for n in leaves):
        raise found.wrong("step_counts", "must be >= 0")
    if not leaves:
        return []
    return found.noisy(
        "noise_multiplier",
        lambda multiplier: found.one(
            "tree-aggregation", noise_multiplier=multiplier / found.reach, steps=leaves
        ),
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
    xi, rho = found.number("xi"), found.number("rho")
    if xi < 0:
        raise found.wrong("xi", "must be >= 0")
    if not xi:
        return found.one("zcdp", rho=found.positive("rho"))
    if rho < 0:
        raise found.wrong("rho", "must be >= 0")
    # (α−1)(ξ + ρα) is convex in α: chords between orders are above it
    return found.one("renyi", curve=[[order, round_up(xi + rho * order)] for order in ORDERS])


def _randomized_response(found: _Found) -> Singles:
    p, k = found.number("noise_parameter"), found.event.num_buckets
    if not 0 <= p <= 1:
        raise found.wrong("noise_parameter", "must lie in [0, 1]")
    if p == 1 or k == 1:
        return []
    if not p:
        return found.one("non-private")
    if found.adjacency != "replace-one":
        raise DataError(f"{found.where}: randomized response is for replace-one")
    return found.one("randomized-response", epsilon=_log_up(1 + k * (1 - p) / p), categories=k)


def _chance(found: _Found) -> Fraction:
    chance = found.number("sampling_probability")
    if not 0 <= chance <= 1:
        raise found.wrong("sampling_probability", "must lie in [0, 1]")
    return chance


def _sampled(found: _Found) -> Singles:
    chance = _chance(found)
    if chance == 1:
        return found.times(found.inside(found.event.event, "event"))
    if not chance:
        return []
    mixture = found.event.event
    if type(mixture).__name__ == "MixtureOfGaussiansDpEvent":
        mixtures = found.inside(mixture, "event")
        if not mixtures:
            return []
        (one,) = mixtures
        chances = [1 - chance, *(chance * p for p in one["probabilities"])]
        whole = {**one, "sensitivities": [0, *one["sensitivities"]], "probabilities": chances}
        return found.times([whole])
    inner = found.sample(False, "Poisson sample")
    if not inner:
        return []
    if (told := found.told(inner, chance)) is not None:
        return told
    if found.adjacency != "replace-one" and all(p["mechanism"] == "gaussian" for p in inner):
        return found.one(
            "subsampled-gaussian",
            noise_multiplier=_together(inner),
            sampling_probability=chance,
        )
    return found.one("poisson-sampled", sampling_probability=chance, sample=inner)


def _truncated(found: _Found) -> Singles:
    chance = _chance(found)
    size, batch = found.size("dataset_size"), found.size("truncated_batch_size")
    if not (chance and size and batch):
        return []
    multiplier = found.number("noise_multiplier")
    if not multiplier:
        return found.one("non-private")
    if multiplier < 0:
        raise found.wrong("noise_multiplier", "must be >= 0")
    one = {"mechanism": "gaussian", "count": 1, "noise_multiplier": multiplier}
    if batch < size:
        if chance == 1:
            raise found.wrong("sampling_probability", "must be < 1 of a sample that is cut")
        return found.one(
            "truncated-poisson",
            sampling_probability=chance,
            dataset_size=size,
            largest_batch=batch,
            sample=[one],
        )
    if chance == 1:
        return found.one("gaussian", noise_multiplier=multiplier / found.reach)
    if found.adjacency == "replace-one":
        return found.one("poisson-sampled", sampling_probability=chance, sample=[one])
    return found.one(
        "subsampled-gaussian", sampling_probability=chance, noise_multiplier=multiplier
    )


def _batch(replacement: bool, found: _Found) -> Singles:
    population, batch = found.size("source_dataset_size"), found.size("sample_size")
    if found.adjacency == "add-remove":
        raise DataError(
            f"{found.where}: a fixed batch is priced for replace-one and zero-out: without the "
            "record another one is in the batch"
        )
    if batch > population:
        raise found.wrong("sample_size", f"must be at most {population}, the population")
    if not batch:
        return []
    if batch == population and not replacement:
        return found.times(found.inside(found.event.event, "event"))
    inner = found.sample(True, "fixed batch")
    if not inner:
        return []
    if (told := found.told(inner, Fraction(min(batch, population - 1), population))) is not None:
        return told
    return found.one(
        "fixed-batch", population=population, batch=batch, replacement=replacement, sample=inner
    )


def _mixture(found: _Found) -> Singles:
    try:
        sizes = [exact("sensitivities", c) for c in found.event.sensitivities]
        chances = [exact("sampling_probs", p) for p in found.event.sampling_probs]
    except (TypeError, ValueError) as error:
        raise DataError(f"{found.where}: {error}") from None
    if len(sizes) != len(chances) or any(c < 0 for c in sizes) or any(p < 0 for p in chances):
        raise found.wrong("sensitivities", "must be >= 0, as many as probabilities >= 0")
    missing = 1 - sum(chances, Fraction(0))
    if abs(missing) > _ROUNDED:
        raise found.wrong("sampling_probs", "must add up to 1")
    if not any(c and p for c, p in zip(sizes, chances, strict=True)):
        return []
    parts = sorted(zip(sizes, chances, strict=True))
    # what rounding left is moved to where it costs more
    at = (
        len(parts) - 1 if missing > 0 else next(i for i, (_, p) in enumerate(parts) if p > -missing)
    )
    parts[at] = parts[at][0], parts[at][1] + missing
    parts = [(c, p) for c, p in parts if p]
    return found.noisy(
        "standard_deviation",
        lambda std: found.one(
            "gaussian-mixture",
            sensitivities=[c for c, _ in parts],
            probabilities=[p for _, p in parts],
            noise_std=std,
        ),
    )


def _selected(found: _Found) -> Singles:
    if found.selection_delta is None:
        raise DataError(
            f"{found.where}: RepeatAndSelectDpEvent is priced at a probability of failing: state "
            "it as selection_delta"
        )
    tried = found.inside(found.event.event, "event")
    if not tried:
        return []
    shape, mean = found.event.shape, found.event.mean
    if not (isinstance(mean, int | float) and math.isfinite(mean)):
        raise found.wrong("mean", "a number of tries with no bound on its mean has no price")
    numbers: dict[str, object] = {} if shape == math.inf else {"eta": found.number("shape")}
    return found.one(
        "selected",
        tried=tried,
        tries=found.positive("mean"),
        delta=exact("selection_delta", found.selection_delta),
        **numbers,
    )


def _noise(kind: str, field: str, found: _Found) -> Singles:
    return found.noisy(
        "noise_multiplier", lambda noise: found.one(kind, **{field: noise / found.reach})
    )


_READERS: dict[str, Callable[[_Found], Singles]] = {
    "NoOpDpEvent": lambda found: [],
    "NonPrivateDpEvent": lambda found: found.one("non-private"),
    "EpsilonDeltaDpEvent": _approx,
    "ExponentialMechanismDpEvent": _choice,
    "PermuteAndFlipDpEvent": _choice,
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
    "SampledWithoutReplacementDpEvent": partial(_batch, False),
    "SampledWithReplacementDpEvent": partial(_batch, True),
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "MixtureOfGaussiansDpEvent": _mixture,
    "RepeatAndSelectDpEvent": _selected,
}
_ON_SAMPLES = (
    *("gaussian", "laplace", "discrete-gaussian", "discrete-laplace"),
    *("pure", "randomized-response"),
)
_ROUNDED = Fraction(1, 10**9)  # What float probabilities may miss of 1


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
    doubles = events.adjacency == "replace-one"
    return _joined(
        [
            _Written(one, f"events[{position}]", events.adjacency, doubles).whole()
            for position, one in enumerate(events.events)
        ]
    )


def _joined(found: list[Any]) -> Any:
    from dp_accounting import dp_event

    return found[0] if len(found) == 1 else dp_event.ComposedDpEvent(found)


@dataclass(frozen=True, slots=True)
class _Written:
    event: Any
    where: str
    adjacency: NeighbourRelation
    doubles: bool

    def whole(self) -> Any:
        one = self._one()
        if self.event.count == 1:
            return one
        return self.made("SelfComposedDpEvent", one, self.event.count)

    def made(self, name: str, *numbers: Any) -> Any:
        from dp_accounting import dp_event

        if not hasattr(dp_event, name):
            raise DataError(
                f"{self.where}: {self.event.mechanism} needs {name}, which this version of "
                "dp-accounting does not have"
            )
        return getattr(dp_event, name)(*numbers)

    def inside(self, name: str, doubles: bool) -> Any:
        parts = enumerate(getattr(self.event, name))
        return _joined(
            [
                _Written(one, f"{self.where}.{name}[{i}]", self.adjacency, doubles).whole()
                for i, one in parts
            ]
        )

    def _one(self) -> Any:
        event, reach = self.event, 2 if self.doubles else 1
        found = self._of_sample(event)
        if found is not None:
            return found
        match event:
            case GaussianEvent():
                return self.made("GaussianDpEvent", float_down(event.noise_multiplier * reach))
            case LaplaceEvent():
                return self.made("LaplaceDpEvent", float_down(event.scale * reach))
            case DiscreteLaplaceEvent() if event.sensitivity % reach == 0:
                rate = float_up(1 / (event.scale * event.sensitivity))
                return self.made("DiscreteLaplaceDpEvent", rate, event.sensitivity // reach)
            case RandomizedResponseEvent() if self.adjacency == "replace-one":
                k = event.categories
                share = k / (math.exp(event.epsilon) + k - 1) * (1 - 1e-14)
                return self.made("RandomizedResponseDpEvent", share, k)
            case TreeAggregationEvent():
                multiplier = float_down(event.noise_multiplier * reach)
                return self.made("SingleEpochTreeAggregationDpEvent", multiplier, list(event.steps))
            case DiscreteGaussianEvent():
                multiplier = float_down(event.noise_multiplier * reach)
                return self.made("DiscreteGaussianDpEvent", multiplier)
            case ExponentialEvent():
                return self.made("ExponentialMechanismDpEvent", float_up(event.epsilon))
            case PureEvent():
                return self.made("EpsilonDeltaDpEvent", float_up(event.epsilon), 0.0)
            case ApproxEvent():
                numbers = float_up(event.epsilon), float_up(event.delta)
                return self.made("EpsilonDeltaDpEvent", *numbers)
            case NoOpEvent():
                return self.made("NoOpDpEvent")
            case NonPrivateEvent():
                return self.made("NonPrivateDpEvent")
            case ZCDPEvent():
                return self.made("ZCDpEvent", float_up(event.rho))
        raise DataError(
            f"{self.where}: {event.mechanism} has no counterpart in dp-accounting under "
            f"{self.adjacency}"
        )

    def _of_sample(self, event: Any) -> Any:
        """The event of a sample, a mixture or a selection; None of any other."""
        match event:
            case SubsampledGaussianEvent():
                noise = float_down(event.noise_multiplier)
                inside = self.made("GaussianDpEvent", noise)
                return self.made(
                    "PoissonSampledDpEvent", float_up(event.sampling_probability), inside
                )
            case PoissonSampledEvent():
                chance = float_up(event.sampling_probability)
                return self.made("PoissonSampledDpEvent", chance, self.inside("sample", False))
            case TruncatedPoissonEvent(sample=(GaussianEvent(count=1, noise_multiplier=noise),)):
                return self.made(
                    "TruncatedSubsampledGaussianDpEvent",
                    event.dataset_size,
                    float_up(event.sampling_probability),
                    event.largest_batch,
                    float_down(noise),
                )
            case FixedBatchEvent():
                way = "With" if event.replacement else "Without"
                sizes = event.population, event.batch
                inside = self.inside("sample", True)
                return self.made(f"Sampled{way}ReplacementDpEvent", *sizes, inside)
            case GaussianMixtureEvent():
                return self.made(
                    "MixtureOfGaussiansDpEvent",
                    float_down(event.noise_std),
                    [float_up(c) for c in event.sensitivities],
                    [float(p) for p in event.probabilities],
                )
            case SelectedEvent():
                shape = math.inf if event.eta is None else float(event.eta)
                inside = self.inside("tried", self.doubles)
                return self.made("RepeatAndSelectDpEvent", inside, float_up(event.tries), shape)
        return None


def _log_up(value: Fraction) -> Fraction:
    precise = Context(prec=40, rounding=ROUND_CEILING)
    ratio = precise.divide(Decimal(value.numerator), Decimal(value.denominator))
    # ln is rounded to nearest whatever the context says: one unit of the last digit on top
    return round_up(Fraction(precise.ln(ratio).next_plus(precise)), 20)
