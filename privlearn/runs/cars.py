"""The car choices that ship with privlearn: real choices to learn from, real cars to offer.

4,654 Californians each chose one of six hypothetical cars (McFadden and Train 2000; origin, units
and licence: `privlearn/runs/files/README.md`).  The features are the 21 of Brownstone and
Train's (1999) conditional logit, whose fit these data reproduce (log-likelihood -7391.83).

Examples:
    >>> cars = load_car_choices()
    >>> car_features(cars).shape
    (4654, 6, 21)
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.choice_model import fit_mle
from privlearn.runs.simulated_choices import Market, logged_answers
from privlearn.runs.simulated_visits import equally_often, heavy_tailed
from privlearn.values.validate import count

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
Integers = NDArray[np.int64]

FEATURE_NAMES: Final = (
    "price",
    "range",
    "acceleration",
    "speed",
    "pollution",
    "size",
    "big_enough",
    "space",
    "cost",
    "station",
    "sportuv",
    "sportcar",
    "stwagon",
    "truck",
    "van",
    "electric",
    "electric:coml5",
    "electric:college",
    "cng",
    "methanol",
    "methanol:college",
)
"""Columns of `car_features`, in order; `big_enough` is `hsg2` times (size = 3)."""

SCALE: Final = 2.0
"""Public divisor of all features.

Before it, the features stand in the published units (hundreds of miles, tens of seconds, hundreds
of mph, tens of cents; price over log income, fractions, sizes and dummies as they are), in which a
centred car has a length of 1.7 (median; 99% are below 2.6).  The units come from the publication.
The divisor 2 was chosen among 1, 1.5, 2, 2.5 and 3 with these data in view, so privacy statements
must not call it untuned; the README of the data says how little depends on it.
"""

OUTSIDE: Final = float(np.log(3.0))
"""Utility of not buying, against an average car of the catalogue, in the simulated market.

A public convention of this simulation: the survey has no such answer.  Three average cars together
are as attractive as buying none.
"""

Visits = Literal["five", "heavy"]

_RETURNING: Final = 17  # Sets the seeds of people who come back apart from those who do not

_TYPES: Final = {
    "r": "regcar",
    "u": "sportuv",
    "s": "sportcar",
    "w": "stwagon",
    "t": "truck",
    "v": "van",
}
_FUELS: Final = {"g": "gasoline", "m": "methanol", "c": "cng", "e": "electric"}


@dataclass(frozen=True)
class Cars:
    """Attributes of cars, in the units of the source; the arrays share one shape."""

    type: Labels
    """Body: regcar, sportuv, sportcar, stwagon, truck or van."""
    fuel: Labels
    """gasoline, methanol, cng or electric (names corrected, see the README of the data)."""
    price: Array
    """Price divided by the logarithm of the respondent's income."""
    range: Array
    """Miles between refuelings or rechargings."""
    acceleration: Array
    """Seconds from stop to 30 mph."""
    speed: Array
    """Top speed, mph."""
    pollution: Array
    """Tailpipe emissions as a fraction of those of a new gasoline car."""
    size: Array
    """0 mini, 1 subcompact, 2 compact, 3 mid-size or large."""
    space: Array
    """Luggage space as a fraction of that of a comparable new gasoline car."""
    cost: Array
    """Cents per mile."""
    station: Array
    """Fraction of stations that can refuel or recharge the car."""

    def take(self, indices: Integers) -> Cars:
        """The cars at `indices` of the flattened arrays, in the shape of `indices`."""
        return Cars(*(getattr(self, field.name).reshape(-1)[indices] for field in fields(self)))


@dataclass(frozen=True)
class People:
    """Covariates of persons, 0 or 1."""

    college: Array
    """Some college education."""
    hsg2: Array
    """More than two persons in the household."""
    coml5: Array
    """Commutes less than five miles a day."""

    def take(self, indices: Integers) -> People:
        """The persons at `indices`."""
        return People(self.college[indices], self.hsg2[indices], self.coml5[indices])

    def column(self) -> People:
        """The same persons with an axis for the cars."""
        return People(self.college[:, None], self.hsg2[:, None], self.coml5[:, None])


@dataclass(frozen=True)
class CarChoices:
    """The survey: n people, the six cars each was shown, and the one chosen (0 to 5)."""

    people: People
    cars: Cars
    choices: Integers


@lru_cache(maxsize=1)
def load_car_choices() -> CarChoices:
    """Reads the packaged survey; its arrays are shared between callers and read-only."""
    packed = resources.files("privlearn.runs.files").joinpath("car_choices.csv.gz").read_bytes()
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(packed).decode("ascii"))))

    def person(name: str) -> Array:
        return _frozen(np.array([float(row[name]) for row in rows]))

    def pairs(name: str) -> Array:
        # Cars 1-2, 3-4 and 5-6 share everything but the body type.
        shown = np.array([[float(row[name + pair]) for pair in "abc"] for row in rows])
        return _frozen(np.repeat(shown, 2, axis=1))

    types = np.array([[_TYPES[code] for code in row["types"]] for row in rows])
    fuels = np.array([[_FUELS[row["fuel" + pair]] for pair in "abc"] for row in rows])
    for labels in (types, fuels):
        labels.flags.writeable = False
    choices = np.array([int(row["choice"]) - 1 for row in rows], dtype=np.int64)
    choices.flags.writeable = False
    fuel = np.repeat(fuels, 2, axis=1)
    fuel.flags.writeable = False
    return CarChoices(
        people=People(person("college"), person("hsg2"), person("coml5")),
        cars=Cars(
            type=types,
            fuel=fuel,
            price=pairs("price"),
            range=pairs("range"),
            acceleration=pairs("acc"),
            speed=pairs("speed"),
            pollution=pairs("pollution"),
            size=pairs("size"),
            space=pairs("space"),
            cost=pairs("cost"),
            station=pairs("station"),
        ),
        choices=choices,
    )


def _frozen(values: Array) -> Array:
    values.flags.writeable = False
    return values


def published_features(people: People, cars: Cars) -> Array:
    """The 21 features in the published units; the arrays of `people` and `cars` are broadcast."""
    college, hsg2, coml5 = people.college, people.hsg2, people.coml5
    electric, methanol = cars.fuel == "electric", cars.fuel == "methanol"
    columns: tuple[NDArray[np.bool_] | Array, ...] = (
        cars.price,
        cars.range / 100,
        cars.acceleration / 10,
        cars.speed / 100,
        cars.pollution,
        cars.size,
        hsg2 * (cars.size == 3),
        cars.space,
        cars.cost / 10,
        cars.station,
        *(cars.type == body for body in ("sportuv", "sportcar", "stwagon", "truck", "van")),
        electric,
        coml5 * electric,
        college * electric,
        cars.fuel == "cng",
        methanol,
        college * methanol,
    )
    shape = np.broadcast_shapes(*(np.shape(column) for column in columns))
    return np.stack([np.broadcast_to(column, shape) for column in columns], axis=-1).astype(float)


def car_features(survey: CarChoices, scale: float = SCALE) -> Array:
    """Features (n, 6, 21): centred within each respondent's own row, divided by a public scale.

    Centring is row-local and changes no choice probability.  Nothing is clipped here: that is the
    mechanism's part.
    """
    features = published_features(survey.people.column(), survey.cars)
    return np.asarray((features - features.mean(axis=1, keepdims=True)) / scale)


def split(n: int) -> tuple[Integers, Integers]:
    """The public split: training (80%) and held-out indices."""
    order = np.random.default_rng(0).permutation(n).astype(np.int64)
    return order[: 4 * n // 5], order[4 * n // 5 :]


def catalogue(survey: CarChoices, n_items: int = 100) -> Cars:
    """The first distinct cars of the survey, in its order: the public stock of the market."""
    seen: dict[tuple[object, ...], int] = {}
    flat = [getattr(survey.cars, field.name).reshape(-1) for field in fields(Cars)]
    for index in range(flat[0].size):
        seen.setdefault(tuple(column[index] for column in flat), index)
        if len(seen) == n_items:
            return survey.cars.take(np.array(list(seen.values()), dtype=np.int64))
    raise ValueError(f"n_items = {n_items!r}: the survey has only {len(seen)} distinct cars")


def draw_people(survey: CarChoices, n: int, rng: np.random.Generator) -> People:
    """`n` simulated persons with the joint covariates of the survey's respondents.

    The survey is public side information of the simulation; the simulated persons are the users.
    """
    return survey.people.take(rng.integers(len(survey.choices), size=n))


def market_features(survey: CarChoices, stock: Cars, people: People) -> Array:
    """Item features (n, N, 22) for a market with an outside option of utility 0.

    The 21 features minus their mean over the stock at the survey's mean covariates, and a constant;
    all over `SCALE`.  Not clipped.
    """
    average = People(*(np.array(getattr(survey.people, f.name).mean()) for f in fields(People)))
    centre = published_features(average, stock).mean(axis=0)
    features = published_features(people.column(), stock) - centre
    constant = np.ones((*features.shape[:-1], 1))
    return np.concatenate([features, constant], axis=-1) / SCALE


def car_market(seed: int, *, horizon: int = 10_000, n_items: int = 100) -> Market:
    """Simulated people who choose among real car profiles, with preferences fitted on the survey.

    The survey behind it is public side information; the guarantee is about the simulated people.
    """
    survey = load_car_choices()
    rng = np.random.default_rng(count(seed=seed, at_least=0))
    people = draw_people(survey, horizon, rng)
    return _market(survey, people, rng.random(horizon), n_items)


def returning_car_market(
    seed: int, *, visits: Visits = "five", persons: int = 2_000, n_items: int = 100
) -> Market:
    """The car market of people who come back: 5·``persons`` visits, in random order.

    A person has the same covariates at every visit, and makes every choice anew.

    Args:
        seed: of everything.
        visits: ``"five"``: everybody comes five times; ``"heavy"``: at least once, and as often as
            a heavy tail has it (`heavy_tailed`).
        persons: how many there are.
        n_items: cars on offer.

    Raises:
        ValueError: another word, or no counts.
    """
    survey = load_car_choices()
    rng = np.random.default_rng([count(seed=seed, at_least=0), _RETURNING])
    covariates = draw_people(survey, count(persons=persons), rng)
    match visits:
        case "five":
            who = equally_often(persons, 5, rng)
        case "heavy":
            who = heavy_tailed(persons, 5 * persons, rng)
        case _:
            raise ValueError(f"visits = {visits!r}: must be 'five' or 'heavy'")
    market = _market(survey, covariates.take(who), rng.random(len(who)), n_items)
    market.people = who
    return market


def _market(survey: CarChoices, people: People, uniforms: Array, n_items: int) -> Market:
    covariates = np.stack([people.college, people.hsg2, people.coml5], axis=1)
    kinds, kind = np.unique(covariates, axis=0, return_inverse=True)  # at most 8
    table = market_features(survey, catalogue(survey, n_items), People(*kinds.T))

    def features_of(users: range) -> Array:
        return table[kind[users.start : users.stop]]

    tastes = fit_mle(logged_answers(car_features(survey), survey.choices), outside=False)
    theta = np.concatenate([tastes, [-OUTSIDE * SCALE]])
    return Market(theta, uniforms, features_of)


CAR_MARKET_SIDE_INFORMATION = (
    "the car survey of McFadden and Train (2000): 100 car profiles, the joint covariates that "
    "simulated people are drawn from, their true preferences, and the feature scale 2",
)
"""What a certificate of the car market has to declare."""
