"""Simulated users of local bandits, and their regret.

A `LocalMarket` is the users' side of an experiment: contexts, what every arm would pay, and its
expectation.  `meet` lets a client and a server serve it batch by batch; `serve` does so with
accountants of its own and simulated noise, which protects nobody.  Everything computed here from
rewards is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import Certificate, LocalAccountant
from privlearn.learners.links import Link, mean_of
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.protocol import LocalBanditConfig, LocalLearner
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.values.validate import count, not_negative

PulledArms = NDArray[np.int64]
ContextDesign = Literal["sphere", "anisotropic", "prices"]
LINKS: Final[tuple[Link, ...]] = ("linear", "logistic", "poisson")
DESIGNS: Final[tuple[ContextDesign, ...]] = ("sphere", "anisotropic", "prices")

CONDITION = 10.0
"""Condition number of the covariance of anisotropic contexts."""

NOISE_SEEDS = 500_000
"""Added to a seed for noise, so that it never shares random words with the data."""


@final
@dataclass(frozen=True, slots=True)
class LocalMarket:
    """T users, their contexts, and what each of K arms would pay.

    Args:
        contexts: shape (T, K, d), one row per arm and one θ for all; or (T, d), one θ per arm.
        rewards: what each arm would pay, shape (T, K).
        means: expected rewards, shape (T, K); regret is counted in these.
        context_bound: public ℓ2 bound that learners may know; longer contexts occur.
        reward_low, reward_high: public bounds that learners may know; rewards beyond occur.
        link: how means follow from x·θ, public.

    Raises:
        ValueError: shapes that do not fit, or bounds out of order.
    """

    contexts: Array
    rewards: Array
    means: Array
    context_bound: float
    reward_low: float
    reward_high: float
    link: Link = "linear"

    def __post_init__(self) -> None:
        users_arms = self.means.shape
        shared = self.contexts.ndim == 3 and self.contexts.shape[:2] == users_arms
        own = self.contexts.ndim == 2 and len(self.contexts) == len(self.means)
        if self.rewards.shape != users_arms or len(users_arms) != 2 or not (shared or own):
            raise ValueError(
                f"contexts {self.contexts.shape}, rewards {self.rewards.shape} and means "
                f"{self.means.shape}: must be (T, K, d) or (T, d), (T, K) and (T, K)"
            )
        if not self.reward_low < self.reward_high or self.context_bound <= 0:
            raise ValueError("bounds: must be 0 < context_bound and reward_low < reward_high")

    @property
    def shared(self) -> bool:
        """Whether one θ serves all arms."""
        return self.contexts.ndim == 3

    @property
    def horizon(self) -> int:
        """T, the number of users."""
        return len(self.means)

    @property
    def n_arms(self) -> int:
        """K."""
        return int(self.means.shape[1])

    @property
    def dim(self) -> int:
        """d."""
        return int(self.contexts.shape[-1])

    @property
    def public(self) -> dict[str, Any]:
        """What a learner knows, by the names of a method's fields."""
        return {
            "dim": self.dim,
            "n_arms": self.n_arms,
            "horizon": self.horizon,
            "shared": self.shared,
            "context_bound": self.context_bound,
            "reward_low": self.reward_low,
            "reward_high": self.reward_high,
        }

    def pulled(self, users: slice, arms: PulledArms) -> tuple[Array, Array]:
        """Contexts (n, d) and rewards (n,) of the arms that these users pulled."""
        own = self.contexts[users]
        at = np.arange(len(arms))
        return own[at, arms] if self.shared else own, self.rewards[users][at, arms]

    def regrets(self, arms: PulledArms) -> Array:
        """Expected reward of the best arm minus that of the arm pulled, per user."""
        got = np.take_along_axis(self.means, arms[:, None], axis=1)[:, 0]
        return np.asarray(self.means.max(axis=1) - got)


# Serving -------------------------------------------------------------------------------------


def meet(
    client: LocalClient[Any],
    server: LocalServer,
    market: LocalMarket,
    progress: Callable[[int], None] = lambda users: None,
) -> PulledArms:
    """Lets devices and server meet batch by batch; returns the arm that each user pulled, (T,).

    Args:
        client: of all users.
        server: at its start.
        market: who is served.
        progress: called with the number of users of each batch.
    """
    arms = np.zeros(market.horizon, dtype=np.int64)
    while len(users := server.users):
        own = slice(users.start, users.stop)
        arms[own] = client.choose_many(market.contexts[own], server.model(), users=users)
        contexts, rewards = market.pulled(own, arms[own])
        server.update_many(client.randomize_many(contexts, arms[own], rewards, users=users))
        server.advance()
        progress(len(users))
    return arms


class LocalRun(NamedTuple):
    """What a run leaves; all but the certificates is private."""

    regrets: Array
    """Of each user, shape (T,)."""
    arms: PulledArms
    """Who pulled what, shape (T,)."""
    device: Certificate
    """By the devices' ledger: what was spent."""
    server: Certificate
    """By the server's ledger: what devices attest."""

    @property
    def epsilon(self) -> float:
        """ε that both ledgers prove for every user, at the method's δ."""
        stated = [*self.device.guarantees, *self.server.guarantees]
        return max(guarantee.epsilon for guarantee in stated)


def serve(
    method: LocalLearner,
    market: LocalMarket,
    *,
    noise_seed: int,
    progress: Callable[[int], None] = lambda users: None,
) -> LocalRun:
    """Builds a method's client and server, and lets them `meet` on the market.

    Both have an accountant with a ledger in memory, and a cap of what one message really costs,
    which may be more or less than the method's own (ε, δ).

    Args:
        method: built for the market's sizes, `LocalMarket.public`.
        market: who is served.
        noise_seed: of the simulated noise.
        progress: called with the number of users of each batch.

    Raises:
        ValueError: the method is for other sizes.
    """
    sizes = {name: getattr(method, name) for name in ("dim", "n_arms", "horizon", "shared")}
    wrong = [name for name, size in sizes.items() if market.public[name] != size]
    if wrong:
        given = ", ".join(f"{name} = {sizes[name]!r}" for name in wrong)
        raise ValueError(
            f"{given}: the market has {', '.join(str(market.public[n]) for n in wrong)}"
        )
    config = LocalBanditConfig("market", method)
    noise = NoiseSource.simulation(noise_seed)
    with (
        LocalAccountant.for_device(
            config, Ledger.memory(), user=config.users, noise=noise
        ) as device,
        LocalAccountant.for_server(config, Ledger.memory(), noise=noise) as attested,
    ):
        server = LocalServer(config, attested, by="privlearn's simulated devices")
        with LocalClient(config, device) as client:
            arms = meet(client, server, market, progress)
        delta = method.delta
        stated = device.certificate(delta), attested.certificate(delta)
    return LocalRun(market.regrets(arms), arms, *stated)


class UnpricedPlayer(Protocol):
    """Who promises nothing and needs no accountant."""

    def choose(self, contexts: Array, /) -> PulledArms:
        """Arms, shape (n,)."""

    def learn(self, contexts: Array, arms: PulledArms, rewards: Array, /) -> None:
        """Takes the contexts (n, d) of the pulled arms, the arms, and their rewards."""


def play(player: UnpricedPlayer, market: LocalMarket) -> PulledArms:
    """Lets a player without privacy serve everybody; returns the arm that each user pulled, (T,).

    Users come in blocks of one fiftieth of those before.
    """
    arms = np.zeros(market.horizon, dtype=np.int64)
    at = 0
    while at < market.horizon:
        own = slice(at, min(at + max(1, at // 50), market.horizon))
        arms[own] = player.choose(market.contexts[own])
        contexts, rewards = market.pulled(own, arms[own])
        player.learn(contexts, arms[own], rewards)
        at = own.stop
    return arms


# Designs ------------------------------------------------------------------------------------


def shared_market(
    seed: int,
    *,
    horizon: int = 20_000,
    dim: int = 2,
    n_arms: int = 10,
    design: ContextDesign = "sphere",
    link: Link = "linear",
    reward_sd: float = 0.0,
) -> LocalMarket:
    """One θ, uniform on the unit sphere, for all arms; a context per arm, no longer than 1.

    * ``sphere``: contexts uniform on the unit sphere, the setting of Han et al. (2021).
    * ``anisotropic``: those times a diagonal from 1 to √(1/10), geometric.
    * ``prices``: user features z, uniform on the unit sphere of ⌊d/2⌋ dimensions, and arms at fixed
      prices p from 0 to 1: contexts (z, p·z)/√2 (filled up with 0).

    Rewards are x·θ + N(0, reward_sd²); 1 with probability σ(x·θ) and else 0; or Poisson(exp(x·θ)).

    Raises:
        ValueError: a size or name is out of range; for ``prices``, dim below 2.
    """
    rng = np.random.default_rng([count(seed=seed, at_least=0), 707])
    _check(design=design, link=link, reward_sd=reward_sd)
    count(horizon=horizon)
    count(n_arms=n_arms, at_least=2)
    theta = _sphere(rng, (count(dim=dim),))
    if design == "prices":
        contexts = _priced(rng, horizon, dim, n_arms)
    else:
        contexts = _sphere(rng, (horizon, n_arms, dim))
    if design == "anisotropic":
        contexts *= np.geomspace(1.0, 1 / math.sqrt(CONDITION), dim)
    return _answered(rng, contexts, contexts @ theta, 1.0, link, reward_sd)


def arm_market(
    seed: int,
    *,
    horizon: int = 10_000,
    dim: int = 20,
    n_arms: int = 3,
    link: Link = "linear",
    reward_sd: float = 0.05,
) -> LocalMarket:
    """One θ per arm, each uniform on the unit sphere, and N(0, I) contexts: the authors' code.

    The public bound is √d, about which the norms concentrate; for linear rewards ±3.

    Raises:
        ValueError: a size or name is out of range.
    """
    rng = np.random.default_rng([count(seed=seed, at_least=0), 707])
    _check(design="sphere", link=link, reward_sd=reward_sd)
    theta = _sphere(rng, (count(n_arms=n_arms, at_least=2), count(dim=dim)))
    contexts = rng.standard_normal((count(horizon=horizon), dim))
    return _answered(rng, contexts, contexts @ theta.T, math.sqrt(dim), link, reward_sd, 3.0)


def _check(*, design: str, link: str, reward_sd: float) -> None:
    if design not in DESIGNS:
        raise ValueError(f"design = {design!r}: must be one of {', '.join(DESIGNS)}")
    if link not in LINKS:
        raise ValueError(f"link = {link!r}: must be one of {', '.join(LINKS)}")
    not_negative(reward_sd=reward_sd)


def _sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    points = rng.standard_normal(shape)
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))


def _priced(rng: np.random.Generator, horizon: int, dim: int, n_arms: int) -> Array:
    half = dim // 2
    if half < 1:
        raise ValueError(f"dim = {dim!r}: must be at least 2, for features and their prices")
    features = _sphere(rng, (horizon, 1, half))
    prices = np.linspace(0.0, 1.0, n_arms)[None, :, None]
    contexts = np.zeros((horizon, n_arms, dim))
    contexts[..., :half] = features / math.sqrt(2)
    contexts[..., half : 2 * half] = prices * features / math.sqrt(2)
    return contexts


MOST_EVENTS = 6.0
"""Public bound on Poisson rewards, whose means are at most e for contexts and θ of norm 1."""


def _answered(
    rng: np.random.Generator,
    contexts: Array,
    indices: Array,
    bound: float,
    link: Link,
    reward_sd: float,
    reach: float = 1.0,
) -> LocalMarket:
    """A market with means ``link(indices)``; linear rewards are said to lie in ±reach."""
    means = mean_of(link, indices)
    if link == "logistic":
        rewards = (rng.random(means.shape) < means).astype(np.float64)
        return LocalMarket(contexts, rewards, means, bound, 0.0, 1.0, link)
    if link == "poisson":
        rewards = rng.poisson(means).astype(np.float64)
        return LocalMarket(contexts, rewards, means, bound, 0.0, MOST_EVENTS, link)
    rewards = indices + reward_sd * rng.standard_normal(indices.shape)
    return LocalMarket(contexts, rewards, indices, bound, -reach, reach, link)
