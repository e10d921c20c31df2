"""Simulated customers of a price experiment: each is quoted one price and says yes or no.

A `PricingMarket` is the customers' side of an experiment.  It is a `LocalMarket` whose arms are
prices, and it remembers acceptance, so that a run can be told in money.  Everything computed from
acceptance is private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from privlearn.learners.links import Link
from privlearn.rows.domains import Array
from privlearn_studies.simulated.local_bandit import LocalMarket

RewardKind = Literal["revenue", "coins", "acceptance"]
"""What a reward is: the price, as a share of the highest one, if it is accepted; 1 with that chance
by the toss of a coin, and else 0, which has the same mean and suits a logistic link; or 1 if the
price is accepted, whatever it earns."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PricingMarket:
    """T customers and K prices.

    Args:
        users: contexts, and rewards as learners see them.
        prices: shape (K,), public.
        unit: of prices.
        acceptance: chance that a customer accepts a price, shape (T, K).
        objective: what a reward is.
        feature_names: of the d features.
        side_information: what certificates have to declare.
        examples: contexts of made-up customers by name, to show what a model would quote them.
    """

    users: LocalMarket
    prices: Array
    unit: str
    acceptance: Array
    objective: RewardKind
    feature_names: tuple[str, ...]
    side_information: tuple[str, ...]
    examples: Mapping[str, Array]

    @property
    def revenue(self) -> Array:
        """Expected revenue of each price, shape (T, K)."""
        return np.asarray(self.acceptance * self.prices)

    def got(self, arms: NDArray[np.int64], values: Array) -> Array:
        """The entries of ``values``, (T, K), at the arms that were pulled, (T,)."""
        return np.asarray(np.take_along_axis(values, arms[:, None], axis=1)[:, 0])


def pricing_market(
    contexts: Array,
    prices: Array,
    acceptance: Array,
    rng: np.random.Generator,
    *,
    unit: str,
    objective: RewardKind,
    feature_names: Sequence[str],
    side_information: Sequence[str],
    examples: Mapping[str, Array],
) -> PricingMarket:
    """A market of customers who accept a price when their uniform number is below its chance.

    Args:
        contexts: of norm at most 1, shape (T, K, d) for one θ and (T, d) for one θ per price.
        prices: shape (K,).
        acceptance: shape (T, K).
        rng: for the uniform number of every customer, who accepts all prices that are at least as
            likely to be accepted as one that is, and for the coins.
        unit: of prices.
        objective: what rewards are.
        feature_names: d names.
        side_information: for the certificate.
        examples: one customer's contexts, (K, d) or (d,), by name.
    """
    horizon = len(acceptance)
    rewards = (rng.random((horizon, 1)) < acceptance).astype(np.float64)
    means = acceptance
    if objective != "acceptance":
        shares = prices / prices.max()
        rewards, means = shares * rewards, shares * acceptance
    if objective == "coins":
        rewards = (rng.random((horizon, 1)) < rewards).astype(np.float64)
    link: Link = "linear" if objective == "revenue" else "logistic"
    users = LocalMarket(contexts, rewards, means, 1.0, 0.0, 1.0, link)
    names, declared = tuple(feature_names), tuple(side_information)
    return PricingMarket(users, prices, unit, acceptance, objective, names, declared, examples)


def shuffled(market: PricingMarket, seed: int) -> PricingMarket:
    """The same with its prices in random order: of equal scores the first wins.

    Otherwise who has learnt nothing quotes the lowest price, which may be the best one.
    """
    order = np.random.default_rng([seed, 708]).permutation(len(market.prices))
    users = replace(
        market.users,
        contexts=market.users.contexts[:, order],
        rewards=market.users.rewards[:, order],
        means=market.users.means[:, order],
    )
    return replace(
        market,
        users=users,
        prices=market.prices[order],
        acceptance=market.acceptance[:, order],
        examples={name: contexts[order] for name, contexts in market.examples.items()},
    )
