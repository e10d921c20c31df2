"""Private bandits of the literature, and simpler rules, simulated phase by phase.

Rewards are 0 or 1 and noise is continuous, so that a phase is one binomial and one Laplace number.
Constants are those of the papers, times ``scale`` where that is not 1.  All promise ε for a reward:

- DP-SE: Sajed and Sheffet 2019, An optimal private stochastic-MAB algorithm, Algorithm 2.
- Anytime-Lazy-UCB: Hu, Huang and Mehta 2021, arXiv:2102.07929.
- AdaP-UCB and AdaP-KLUCB: Azize and Basu 2022, When privacy meets partial information (α = 3.1).
- DP-IMED: Azize et al. 2025, arXiv:2505.05613: IMED with the divergence inf_z kl(z, q) + ε|z − p|
  of cumulative sums.
- fixed τ: arXiv:2505.21790, phases of 10/ε users, IMED on all of them.
- per-user Thompson sampling: each user draws by public coins, phases of arms interleave.
- IMED, KL-UCB and UCB: with sums weighted as `PrivateArms` does.  ``ours`` is its own rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from privlearn.rows.domains import Array

DRAWN = 4.0


def kl(p: Array, q: Array) -> Array:
    """Divergence of Bernoulli distributions, elementwise."""
    p, q = np.clip(p, 0, 1), np.clip(q, 1e-12, 1 - 1e-12)
    return np.asarray(np.maximum(xlogy(p, p / q) + xlogy(1 - p, (1 - p) / (1 - q)), 0))


def kl_bound(p: Array, level: Array) -> Array:
    """The largest q with kl(p, q) <= level."""
    p = np.clip(p, 0, 1)
    low, high = p, np.ones_like(p)
    for _ in range(30):
        middle = (low + high) / 2
        inside = kl(p, middle) <= level
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(low)


class Seen(NamedTuple):
    """What is public of runs (R, K): weighted means, n that counts noise, plain means and pulls."""

    means: Array
    n: Array
    plain: Array
    pulls: Array
    last: Array
    t: NDArray[np.int64]
    horizon: int
    epsilon: float

    @property
    def best(self) -> Array:
        return np.asarray(np.where(self.n > 0, self.means, -np.inf).max(axis=1, keepdims=True))


Rule = Callable[[Seen], Array]
"""An index, (R, K); the least is shown next, and arms that were not shown come first."""


def ours(seen: Seen) -> Array:
    """That of `privlearn.learners.arm_policies`."""
    n, best = seen.n, np.clip(seen.best, 1e-9, 1 - 1e-9)
    drawn = (n * np.clip(seen.means, 1e-9, 1 - 1e-9) + DRAWN * best) / (n + DRAWN)
    left = (seen.horizon - seen.t)[:, None] / n.shape[1]
    return np.asarray((n + DRAWN) * kl(drawn, best) + np.log(np.minimum(n, np.maximum(left, 1))))


def imed(seen: Seen) -> Array:
    return seen.n * kl(seen.means, seen.best) + np.log(seen.n)


def kl_ucb(seen: Seen) -> Array:
    return -kl_bound(seen.means, np.log(np.maximum(seen.t, 1))[:, None] / seen.n)


def ucb(seen: Seen) -> Array:
    return -seen.means - np.sqrt(np.log(np.maximum(seen.t, 1))[:, None] / (2 * seen.n))


def adap_ucb(seen: Seen, alpha: float = 3.1) -> Array:
    width = alpha * np.log(np.maximum(seen.t, 1))[:, None] / seen.last
    return -seen.means - np.sqrt(width / 2) - width / seen.epsilon


def adap_kl_ucb(seen: Seen, alpha: float = 3.1) -> Array:
    width = alpha * np.log(np.maximum(seen.t, 1))[:, None] / seen.last
    return -kl_bound(seen.means + width / seen.epsilon, width)


def lazy_ucb(seen: Seen, scale: float = 1.0) -> Array:
    width = 3 * scale * np.log(np.maximum(seen.t, 1))[:, None] / seen.last
    return -seen.means - np.sqrt(width) - width / seen.epsilon


def dp_imed(seen: Seen) -> Array:
    best = np.where(seen.pulls > 0, seen.plain, -np.inf).max(axis=1, keepdims=True)
    best = np.clip(best, 1e-9, 1 - 1e-9)
    odds = best / (1 - best) * math.exp(-seen.epsilon)
    z = np.maximum(np.minimum(seen.plain, best), odds / (1 + odds))
    divergence = kl(z, best) + seen.epsilon * np.maximum(z - seen.plain, 0)
    return np.asarray(seen.pulls * divergence + np.log(seen.pulls))


@dataclass(frozen=True)
class Held:
    """A rule that holds an arm for a phase.

    Attributes:
        growth: an arm's pulls after a phase over those before, where it is longer than ``first``.
        first: the shortest phase; None: ⌈2σ⌉.
        forgets: whether only an arm's last phase counts.
    """

    rule: Rule
    growth: float = 1.5
    first: int | None = None
    forgets: bool = False

    def regret(self, means: Array, horizon: int, epsilon: float, seed: Any) -> Array:
        """Total regret of runs whose arms have these means (R, K), shape (R,)."""
        rng, (runs, arms) = np.random.default_rng(seed), means.shape
        sd = math.sqrt(2) / epsilon
        first = self.first or max(1, math.ceil(2 * sd))
        info, total, plain, pulls, last = np.zeros((5, runs, arms))
        t, regret = np.zeros(runs, dtype=np.int64), np.zeros(runs)
        live = np.arange(runs)
        while len(live):
            known = pulls[live] > 0
            with np.errstate(divide="ignore", invalid="ignore"):
                seen = Seen(
                    total[live] / info[live],
                    info[live] / 4,
                    plain[live] / pulls[live],
                    pulls[live],
                    last[live],
                    t[live],
                    horizon,
                    epsilon,
                )
                index = np.where(known, self.rule(seen), -np.inf)
            arm = index.argmin(axis=1)
            at = live, arm
            m = np.maximum(first, np.floor((self.growth - 1) * pulls[at])).astype(np.int64)
            m = np.minimum(m, horizon - t[live])
            heard = rng.binomial(m, means[at]) + rng.laplace(scale=1 / epsilon, size=len(live))
            information = 1 / (0.25 / m + (sd / m) ** 2)
            if self.forgets:
                info[at], total[at] = 0, 0
            info[at] += information
            total[at] += information * heard / m
            plain[at] += heard
            pulls[at] += m
            last[at] = m
            regret[live] += m * (means[live].max(axis=1) - means[at])
            t[live] += m
            live = live[t[live] < horizon]
        return regret


def dp_se(means: Array, horizon: int, epsilon: float, seed: Any, scale: float = 1.0) -> Array:
    """Successive elimination, shape (R,)."""
    rng = np.random.default_rng(seed)
    return np.array([_eliminate(row, horizon, epsilon, rng, scale) for row in means])


def _eliminate(
    means: Array, horizon: int, epsilon: float, rng: np.random.Generator, scale: float
) -> float:
    gaps, arms, t, regret, epoch = means.max() - means, np.arange(len(means)), 0, 0.0, 0
    while t < horizon:
        epoch += 1
        gap, bound = 2.0**-epoch, 4 * len(arms) * epoch**2 * horizon
        rewards, noise = 32 * math.log(2 * bound) / gap**2, 8 * math.log(bound) / (epsilon * gap)
        pulls = math.ceil(scale * max(rewards, noise)) + 1
        if len(arms) == 1 or t + pulls * len(arms) >= horizon:
            return regret + (horizon - t) * float(gaps[arms].mean())
        heard = rng.binomial(pulls, means[arms]) / pulls
        heard += rng.laplace(scale=1 / (epsilon * pulls), size=len(arms))
        width = math.sqrt(scale * math.log(2 * bound) / (2 * pulls))
        width += scale * math.log(bound) / (pulls * epsilon)
        regret, t = regret + pulls * float(gaps[arms].sum()), t + pulls * len(arms)
        arms = arms[heard.max() - heard <= 2 * width]
    return regret


def thompson(means: Array, horizon: int, epsilon: float, seed: Any) -> Array:
    """One draw of each user, first phases of 4σ, shape (R,)."""
    rng, (runs, arms) = np.random.default_rng(seed), means.shape
    sd, rows = math.sqrt(2) / epsilon, np.arange(runs)
    first = max(1, math.ceil(4 * sd))
    info, total = np.full((runs, arms), 4.0), np.full((runs, arms), 2.0)  # prior N(1/2, 1/4)
    pulls, sums, shown = np.zeros((3, runs, arms))
    length, regret = np.full((runs, arms), first), np.zeros(runs)
    for _ in range(horizon):
        draws = total / info + rng.standard_normal((runs, arms)) / np.sqrt(info)
        arm: NDArray[np.int64] = draws.argmax(axis=1)
        regret += means.max(axis=1) - means[rows, arm]
        shown[rows, arm] += 1
        sums[rows, arm] += rng.random(runs) < means[rows, arm]
        full = rows[shown[rows, arm] >= length[rows, arm]]
        at = full, arm[full]
        m, noise = shown[at], rng.laplace(scale=1 / epsilon, size=len(full))
        information = 1 / (0.25 / m + (sd / m) ** 2)
        info[at] += information
        total[at] += information * (sums[at] + noise) / m
        pulls[at] += m
        length[at] = np.maximum(first, pulls[at] // 2)
        shown[at], sums[at] = 0, 0
    return regret
