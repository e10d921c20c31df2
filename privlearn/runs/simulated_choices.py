"""Simulated users who choose by a multinomial logit, and their regret.

A `Market` is the users' side of an experiment: it holds what no learner may see (true preferences,
the uniforms of each user) and scores what the users were shown.  Everything it computes is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from privlearn.learners.assortment import best_assortments, largest_utilities
from privlearn.learners.serving import Arrival, Respond
from privlearn.mechanisms.choice_model import (
    NO_ITEM,
    Answer,
    Items,
    clip_items,
    log_likelihoods,
    utilities,
)
from privlearn.rows.domains import Array
from privlearn.runs.simulated_visits import Visitors
from privlearn.values.validate import count

BLOCK = 2_000
"""Users per block; bounds memory, changes no result."""


class Player(Protocol):
    """A learner that can serve blocks of users."""

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
        /,
    ) -> None:
        """Serves the next users."""


class PeoplePlayer(Protocol):
    """A learner that can serve blocks of users, and must know who they are."""

    def play(
        self,
        features: Array,
        respond: Respond,
        revenues: Array | None = None,
        private: Array | None = None,
        /,
        *,
        people: Sequence[Any],
    ) -> None:
        """Serves the next users."""


@final
@dataclass(slots=True)
class Market:
    """T users, each with N items to choose from.

    Args:
        theta: true preferences, shape (d,).
        uniforms: a number per user, shape (T,); with the offered set it decides the choice.
        features_of: item features of a range of users, shape (n, N, d).
        revenues: per user and item, shape (T, N), or None if all sales count alike.
        people: the number of the person behind each user, shape (T,), if persons come back.
    """

    theta: Array
    uniforms: Array
    features_of: Callable[[range], Array]
    revenues: Array | None = None
    people: Visitors | None = None
    shown: dict[int, Items] = field(default_factory=dict)
    sold: dict[int, int] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """T, the number of users."""
        return len(self.uniforms)

    def respond(self, own: Arrival, shown: Items) -> Items:
        """The users' choices by inverse distribution function: a function of own row and offer."""
        values = self._offered_utilities(own.features, shown)
        weights = np.exp(values)
        edges = np.cumsum(weights, axis=1) / (1.0 + weights.sum(axis=1, keepdims=True))
        place = (edges < own.private[:, :1]).sum(axis=1)
        bought = place < shown.shape[1]
        choice = np.take_along_axis(shown, np.minimum(place, shown.shape[1] - 1)[:, None], 1)[:, 0]
        choice = np.where(bought, choice, NO_ITEM)
        users = own.private[:, 1].astype(int).tolist()
        self.shown.update(zip(users, shown, strict=True))
        self.sold.update(zip(users, choice.tolist(), strict=True))
        return choice

    def _offered_utilities(self, features: Array, shown: Items) -> Array:
        chosen = np.take_along_axis(features, np.maximum(shown, 0)[..., None], axis=1)
        return np.where(shown == NO_ITEM, -np.inf, utilities(chosen, self.theta))

    def blocks(self, first: int = 0) -> Iterator[tuple[range, Array, Array | None, Array]]:
        """Users in order of arrival: indices, features, revenues, private part of the row."""
        for start in range(first, self.horizon, BLOCK):
            users = range(start, min(start + BLOCK, self.horizon))
            private = np.stack(
                [self.uniforms[users.start : users.stop], np.arange(*_ends(users))], 1
            )
            earned = None if self.revenues is None else self.revenues[users.start : users.stop]
            yield users, self.features_of(users), earned, private

    def serve(
        self, player: Player, progress: Callable[[int], None] = lambda n: None, *, start: int = 0
    ) -> Array:
        """Lets ``player`` serve the users from ``start`` on; the regret of each, shape (n,).

        ``progress`` is called with the number of users of each block.
        """

        def play(users: range, features: Array, earned: Array | None, private: Array) -> None:
            player.play(features, self.respond, earned, private)

        return self._serve(play, progress, start)

    def serve_people(
        self,
        player: PeoplePlayer,
        progress: Callable[[int], None] = lambda n: None,
        *,
        start: int = 0,
    ) -> Array:
        """As `serve`, for a player under a rule of participation, who is told who comes.

        Raises:
            ValueError: this market does not know.
        """
        people = self.people
        if people is None:
            raise ValueError("people = None: nobody comes back to this market; use serve")

        def play(users: range, features: Array, earned: Array | None, private: Array) -> None:
            ids = people[users.start : users.stop].tolist()
            player.play(features, self.respond, earned, private, people=ids)

        return self._serve(play, progress, start)

    def _serve(
        self,
        play: Callable[[range, Array, Array | None, Array], None],
        progress: Callable[[int], None],
        start: int,
    ) -> Array:
        self.shown.clear()
        self.sold.clear()
        for users, features, earned, private in self.blocks(start):
            play(users, features, earned, private)
            progress(len(users))
        return self.regrets(start)

    def regrets(self, start: int = 0) -> Array:
        """Expected revenue of the best set minus that of the set shown, per user from ``start``."""
        if start == self.horizon:
            return np.zeros(0)
        size = len(next(iter(self.shown.values())))
        regret = np.empty(self.horizon)
        for users, features, earned, _ in self.blocks(start):
            values = utilities(features, self.theta)
            if earned is None:
                earned, best = np.ones(values.shape), largest_utilities(values, size)
            else:
                best = best_assortments(values, earned, size)
            shown = np.stack([self.shown[user] for user in users])
            ideal = self._revenue(features, earned, best)
            regret[users.start : users.stop] = ideal - self._revenue(features, earned, shown)
        return regret[start:]

    def _revenue(self, features: Array, earned: Array, items: Items) -> Array:
        weights = np.exp(self._offered_utilities(features, items))
        prices = np.take_along_axis(earned, np.maximum(items, 0), 1)
        total: Array = (weights * prices).sum(axis=1) / (1.0 + weights.sum(axis=1))
        return total


def _ends(users: range) -> tuple[int, int]:
    return users.start, users.stop


def gaussian_market(
    seed: int,
    replicate: int = 0,
    *,
    horizon: int = 10_000,
    n_items: int = 100,
    dim: int = 5,
    general_revenue: bool = False,
) -> Market:
    """The papers' synthetic users: x ~ N(0, I) clipped to the unit ball, θ* ~ U[0, 1]^d.

    Revenues are 1, or U(0, 1) per user and item.
    """
    rng = np.random.default_rng(
        [count(seed=seed, at_least=0), count(replicate=replicate, at_least=0)]
    )
    theta, uniforms = rng.random(dim), rng.random(horizon)
    features = clip_items(rng.standard_normal((horizon, n_items, dim)))
    revenues = rng.random((horizon, n_items)) if general_revenue else None
    return Market(theta, uniforms, lambda users: features[users.start : users.stop], revenues)


def product_lines_market(
    seed: int,
    replicate: int = 0,
    *,
    horizon: int = 10_000,
    n_items: int = 100,
    dim: int = 10,
    spread: float = 0.1,
) -> Market:
    """One fixed catalogue of ``dim`` lines with near-identical variants, shown to every user.

    Item i belongs to line i mod d: x_i = (1 − spread)·e_line + spread·N(0, I), clipped.  A greedy
    shelf is filled by variants of one line and so informs about one direction only; without spread
    they are one and the same (one-hot).
    """
    rng = np.random.default_rng(
        [count(seed=seed, at_least=0), count(replicate=replicate, at_least=0)]
    )
    theta, uniforms = rng.random(dim), rng.random(horizon)
    lines = (1 - spread) * np.eye(dim)[np.arange(n_items) % dim]
    stock = clip_items(lines + spread * rng.standard_normal((n_items, dim)))
    return Market(theta, uniforms, lambda users: np.broadcast_to(stock, (len(users), n_items, dim)))


def logged_answers(features: Array, choices: Items) -> Answer:
    """Users who saw all N items (n, N, d) and chose one of them, (n,)."""
    return Answer(features, np.ones(features.shape[:2]), choices)


def held_out_gain(theta: Array, answers: Answer, reference: float) -> float:
    """(LL(θ) − LL_null)/(LL_ref − LL_null) on held-out choices: 0 uniform choice, 1 reference.

    Args:
        theta: fitted parameter, shape (d,).
        answers: held-out users without an outside option.
        reference: mean log-likelihood of the reference fit on the same users, nats.
    """
    null = -float(np.log(answers.features.shape[1]))
    mean = float(log_likelihoods(answers, theta, outside=False).mean())
    return (mean - null) / (reference - null)
