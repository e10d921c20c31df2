"""Electricity contracts: a shipped price experiment with real people, and a market made from it.

361 residential customers in the United States were asked up to twelve times which of four suppliers
they would choose; prices varied by design (Huber and Train 2001; origin, units and licence:
`files/README.md`).  `electricity_market` lets a supplier of fixed-price contracts learn what to
charge, only from yes and no.

Examples:
    >>> survey = load_electricity()
    >>> survey.offers.shape
    (4308, 4, 6)
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from privlearn.mechanisms.choice_model import Answer, fit_mle
from privlearn.rows.domains import Array
from privlearn.values.validate import count
from privlearn_studies.simulated.pricing import PricingMarket, pricing_market

Integers = NDArray[np.int64]

ATTRIBUTES: Final = ("price", "years", "local", "known", "day", "season")
"""Of an offer: fixed price in cents per kWh (0: none), length of the contract in years (0: none),
local supplier, well-known supplier, time-of-day tariff, seasonal tariff."""

PRICES: Final = (4.0, 6.0, 8.0, 10.0)
"""Prices that may be charged, cents per kWh; the survey's own were 7 and 9."""

AFFINITY_CENTRE: Final = 0.45
AFFINITY_SPREAD: Final = 0.25
"""Public: an affinity of centre ± spread is ±1 as a feature, and more is cut.

Both were chosen with this survey in view, as were `PRICES`.
"""

FEATURE_NAMES: Final = ("constant", "affinity")
"""Features of a customer, each in [−1, 1] and over √2; every price has its own weights."""

SIDE_INFORMATION: Final = (
    "electricity survey: the simulated customers' true preferences, a ridge fit to which supplier "
    "each person chose",
    "electricity survey: customers are drawn from its people and the offers they were shown; the "
    "guarantee is about the simulated customers and not about the people who were asked",
    "electricity survey: the prices, the scale of the features and the settings of the learners "
    "were chosen with it, and with customers simulated from it, in view",
)
"""What a certificate of the electricity market has to declare."""

_RIDGE: Final = 1.0
_EXAMPLES: Final = (0.2, 0.45, 0.7)
_TARIFF: Final = {"7": (7, 0, 0), "9": (9, 0, 0), "t": (0, 1, 0), "s": (0, 0, 1)}
_KIND: Final = {"l": (1, 0), "w": (0, 1), "n": (0, 0)}


@dataclass(frozen=True, eq=False)
class ElectricityChoices:
    """The survey: 4,308 experiments, in the order of the source; the arrays are read-only."""

    person: Integers
    """Who was asked, 0..360, shape (4308,); everybody's experiments stand together."""
    offers: Array
    """What each of the four suppliers offered, in the order of `ATTRIBUTES`, shape (4308, 4, 6)."""
    choice: Integers
    """The supplier chosen, 0..3, shape (4308,)."""


@lru_cache(maxsize=1)
def load_electricity() -> ElectricityChoices:
    """Reads the packaged survey; its arrays are shared between callers and read-only."""
    packed = resources.files("privlearn_studies.data.files").joinpath("electricity_choices.csv.gz")
    text = gzip.decompress(packed.read_bytes()).decode("ascii")
    rows = list(csv.DictReader(io.StringIO(text)))
    offers = [[_offer(row[f"offer{k}"]) for k in range(1, 5)] for row in rows]
    survey = ElectricityChoices(
        person=np.array([int(row["person"]) - 1 for row in rows], dtype=np.int64),
        offers=np.array(offers, dtype=np.float64),
        choice=np.array([int(row["choice"]) - 1 for row in rows], dtype=np.int64),
    )
    for values in (survey.person, survey.offers, survey.choice):
        values.flags.writeable = False
    return survey


def _offer(code: str) -> tuple[int, ...]:
    price, day, season = _TARIFF[code[0]]
    return (price, int(code[1]), *_KIND[code[2]], day, season)


def other_answers(survey: ElectricityChoices, values: Array) -> Array:
    """Mean of ``values``, one row per experiment, over the same person's other experiments."""
    people = int(survey.person.max()) + 1
    totals = np.zeros((people, *values.shape[1:]))
    np.add.at(totals, survey.person, values)
    asked = np.bincount(survey.person, minlength=people)
    others = (asked - 1)[survey.person].reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray((totals[survey.person] - values) / others)


def fitted_tastes(survey: ElectricityChoices) -> Array:
    """The price and attribute weights of each experiment's person, (4308, 6); **not private**.

    A multinomial logit with ridge λ = 1 in the six attributes and their products with how the
    person answered *other* experiments: the shares with a fixed price, a local and a well-known
    supplier, and the mean contract length over five years, each minus its mean.
    """
    chosen = _chosen(survey)
    habits = np.stack([chosen[:, 0] > 0, chosen[:, 2], chosen[:, 3], chosen[:, 1] / 5], axis=1)
    shares = other_answers(survey, habits.astype(np.float64))
    shares = np.insert(shares - shares.mean(axis=0), 0, 1.0, axis=1)
    n, k, a = survey.offers.shape
    features = np.einsum("nja,nh->njha", survey.offers, shares).reshape(n, k, -1)
    answer = Answer(features, np.ones((n, k)), survey.choice)
    theta = fit_mle(answer, outside=False, prior_precision=_RIDGE)
    return np.asarray(shares @ theta.reshape(-1, a))


@dataclass(frozen=True, eq=False)
class Contracts:
    """The fixed-price offers of the survey, each with the person it was made to; m = 8,534."""

    experiment: Integers
    """Where the offer was made, shape (m,)."""
    affinity: Array
    """How often, in the other experiments, the person chose an offer like this one, in [0, 1].

    The mean of three shares: of offers with a fixed price, of suppliers of the same kind (local,
    well-known, neither), and of contracts of the same length; shape (m,)."""
    sensitivity: Array
    """What a cent per kWh costs in utility, > 0, shape (m,)."""
    appeal: Array
    """Utility at price 0 minus the largest of the three rivals, which has a random part; (m,)."""

    def acceptance(self, prices: Array) -> Array:
        """Chance that the person takes the offer at each price, rivals unchanged; (m, K)."""
        return np.asarray(expit(self.appeal[:, None] - self.sensitivity[:, None] * prices))


@lru_cache(maxsize=1)
def contracts() -> Contracts:
    """All fixed-price offers of the packaged survey, with the fitted tastes of their people."""
    survey = load_electricity()
    tastes, chosen = fitted_tastes(survey), _chosen(survey)
    experiment, place = np.nonzero(survey.offers[:, :, 0] > 0)
    own, theirs = survey.offers[experiment, place], tastes[experiment]
    utilities = np.einsum("nja,na->nj", survey.offers[experiment], theirs)
    rivals = utilities.copy()
    rivals[np.arange(len(place)), place] = -np.inf
    sensitivity = -theirs[:, 0]
    appeal = utilities[np.arange(len(place)), place] + sensitivity * own[:, 0]
    kinds = other_answers(survey, (chosen[:, None, 2:4] == _KINDS).all(axis=2).astype(np.float64))
    lengths = other_answers(survey, (chosen[:, 1:2] == _LENGTHS).astype(np.float64))
    fixed = other_answers(survey, (chosen[:, 0] > 0).astype(np.float64))
    same_kind = (own[:, None, 2:4] == _KINDS).all(axis=2)
    same_length = own[:, 1:2] == _LENGTHS
    affinity = fixed[experiment] + kinds[experiment][same_kind] + lengths[experiment][same_length]
    appeal = appeal - logsumexp(rivals, axis=1)
    found = Contracts(experiment, affinity / 3, sensitivity, appeal)
    for values in (found.experiment, found.affinity, found.sensitivity, found.appeal):
        values.flags.writeable = False
    return found


_KINDS: Final = np.array(list(_KIND.values()))
_LENGTHS: Final = np.array([0, 1, 5])


def _chosen(survey: ElectricityChoices) -> Array:
    return np.asarray(survey.offers[np.arange(len(survey.choice)), survey.choice])


def customer_features(affinity: Array) -> Array:
    """Features of customers with these affinities, (n, 2), of norm <= 1."""
    scaled = np.clip((affinity - AFFINITY_CENTRE) / AFFINITY_SPREAD, -1, 1)
    return np.asarray(np.stack([np.ones_like(scaled), scaled], axis=-1) / np.sqrt(2))


def electricity_market(seed: int, *, horizon: int = 50_000, coins: bool = False) -> PricingMarket:
    """Simulated customers who are each quoted one of four prices for a fixed-price contract.

    A customer is one of the survey's people, and the contract one of those that the person was
    shown, with its length and kind of supplier; the rivals keep their offers.  Whether the person
    accepts a price is simulated from `fitted_tastes`, beyond the survey's 7 and 9 cents by
    extrapolation of the logit.  What a device knows and keeps is how its person answered elsewhere
    (`Contracts.affinity`).  The reward is the revenue per kWh, as a share of the highest price.

    Args:
        seed: of the customers and their random choices.
        horizon: number of customers.
        coins: devices toss a coin with that chance: rewards 0 or 1, of the same mean.

    Raises:
        ValueError: seed < 0 or horizon < 1.
    """
    rng = np.random.default_rng([count(seed=seed, at_least=0), 707])
    offers = contracts()
    drawn = rng.integers(len(offers.experiment), size=count(horizon=horizon))
    prices = np.array(PRICES)
    return pricing_market(
        customer_features(offers.affinity[drawn]),
        prices,
        offers.acceptance(prices)[drawn],
        rng,
        unit="cents per kWh",
        objective="coins" if coins else "revenue",
        feature_names=FEATURE_NAMES,
        side_information=SIDE_INFORMATION,
        examples={f"affinity {a:g}": customer_features(np.array([a]))[0] for a in _EXAMPLES},
    )
