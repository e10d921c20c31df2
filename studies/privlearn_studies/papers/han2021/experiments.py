"""The experiments of Han et al. (2021): their cells, and one run of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np

from privlearn.learners.ldp_ols import LDPOLS
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.local.protocol import LocalLearner
from privlearn.rows.domains import Array
from privlearn_studies.data.auto_loans import CprmLoans, cprm_market
from privlearn_studies.rivals.local import LDPGLOC, LDPUCB, PublishedOLS, PublishedSGD
from privlearn_studies.rivals.local_nonprivate import (
    GreedyLeastSquares,
    GreedySGD,
    LinUCB,
    RandomPlay,
)
from privlearn_studies.simulated import local_bandit as local
from privlearn_studies.simulated.local_bandit import LocalMarket
from privlearn_studies.simulated.pricing import shuffled

FIGURE, LENDING = "fig5.1", "lending"
TARGETS: Final = (FIGURE, LENDING)

SINGLE, MULTI = "single", "multi"

POINTS = 50
"""Points of a regret curve."""


class Setting(NamedTuple):
    """One panel of a figure."""

    name: str
    text: str
    dim: int
    n_arms: int
    delta: float
    reward_sd: float
    warm_up: int
    """Of the published learners with one θ per arm, out of 10,000 users."""


SETTINGS: Final = {
    SINGLE: Setting(SINGLE, "one θ, d = 2, K = 10", 2, 10, 0.01, 0.0, 0),
    MULTI: Setting(MULTI, "θ per arm, d = 20, K = 3", 20, 3, 0.1, 0.05, 3000),
    LENDING: Setting(LENDING, "auto loans, d = 18, K = 25", 18, 25, 0.01, 0.0, 0),
}
"""As in the authors' code, where the paper is silent."""

EPSILONS: Final = {FIGURE: (1.0, 5.0), LENDING: (1.0,)}
"""The paper's; of the auto loans, the code's."""

HORIZONS: Final = {FIGURE: 50_000, LENDING: 100_000}
"""The paper's for the auto loans; it gives none for the figure, and its code has 10⁶."""

SGD, OLS = "LDP-SGD", "LDP-OLS"
SGD_RUN, OLS_RUN = "LDP-SGD, as run", "LDP-OLS, as run"
OLS_PRINTED = "LDP-OLS, as printed"
UCB_PUBLISHED, UCB_TIGHT = "LDP-UCB, published", "LDP-UCB, tight"
GLOC_PUBLISHED, GLOC_TIGHT = "LDP-GLOC, published", "LDP-GLOC, tight"
FREE_OLS, FREE_UCB = "least squares, not private", "LinUCB, not private"
FREE_SGD, RANDOM = "SGD, not private", "random"

PRIVATE: Final = (
    SGD,
    OLS,
    SGD_RUN,
    OLS_RUN,
    OLS_PRINTED,
    UCB_TIGHT,
    UCB_PUBLISHED,
    GLOC_TIGHT,
    GLOC_PUBLISHED,
)
FREE: Final = (FREE_OLS, FREE_UCB, FREE_SGD, RANDOM)
LENDERS: Final = (SGD, SGD_RUN, GLOC_TIGHT, GLOC_PUBLISHED, FREE_SGD, RANDOM)
"""The paper leaves the two linear learners out of the auto loans."""


@final
@dataclass(frozen=True, slots=True)
class Han2021Cell:
    """One player in one panel."""

    player: str
    setting: str
    epsilon: float
    horizon: int

    def to_dict(self) -> dict[str, Any]:
        """JSON form, unique within a target."""
        return asdict(self)


class Han2021Result(NamedTuple):
    """One run."""

    value: float
    """Total regret."""
    epsilon: float | None
    """Certified at the method's δ; None where nothing is promised."""
    delta: float | None
    curve: list[float]


def cells(target: str, horizon: int) -> list[Han2021Cell]:
    """All cells of a target, in the order in which they are run."""
    names = (SINGLE, MULTI) if target == FIGURE else (LENDING,)
    players = (*PRIVATE, *FREE) if target == FIGURE else LENDERS
    return [
        Han2021Cell(player, name, epsilon, horizon)
        for name in names
        for epsilon in EPSILONS[target]
        for player in players
    ]


def play(loans: CprmLoans | None, cell: Han2021Cell, seed: int) -> Han2021Result:
    """One run; users and noise are simulated, from different words of ``seed``."""
    return compete(cell, _market(loans, cell, seed), seed)


def _market(loans: CprmLoans | None, cell: Han2021Cell, seed: int) -> LocalMarket:
    setting, horizon = SETTINGS[cell.setting], cell.horizon
    if cell.setting == LENDING:
        assert loans is not None
        return shuffled(cprm_market(loans, seed=seed, horizon=horizon), seed).users
    size: Any = {"horizon": horizon, "dim": setting.dim, "n_arms": setting.n_arms}
    if cell.setting == SINGLE:
        return local.shared_market(seed, **size, reward_sd=setting.reward_sd)
    return local.arm_market(seed, **size, reward_sd=setting.reward_sd)


def compete(cell: Han2021Cell, market: LocalMarket, seed: int) -> Han2021Result:
    """One player on a market."""
    setting = SETTINGS[cell.setting]
    if cell.player in FREE:
        arms = local.play(free_player(cell.player, market, seed), market)
        return _scored(market.regrets(arms), None, None)
    method = private_method(
        cell.player, market, epsilon=cell.epsilon, delta=setting.delta, warm_up=setting.warm_up
    )
    served = local.serve(method, market, noise_seed=seed + local.NOISE_SEEDS)
    return _scored(served.regrets, served.epsilon, method.delta)


def private_method(
    player: str, market: LocalMarket, *, epsilon: float, delta: float, warm_up: int = 0
) -> LocalLearner:
    """A private player with its public rule, for a market; pure ε-DP where it can be.

    Args:
        warm_up: users in turn out of 10,000, for the published learners with one θ per arm.
    """
    public: Any = market.public | {"epsilon": epsilon}
    gaussian = public | {"delta": delta}
    link = market.link
    turns = math.ceil(warm_up * market.horizon / 10_000)
    makers: dict[str, Callable[[], LocalLearner]] = {
        SGD: lambda: LDPSGD(**public, link=link),
        OLS: lambda: LDPOLS(**gaussian),
        SGD_RUN: lambda: PublishedSGD(**public, link=link, warm_up_users=turns),
        OLS_RUN: lambda: PublishedOLS(**gaussian, code=True, warm_up_users=turns),
        OLS_PRINTED: lambda: PublishedOLS(**gaussian, warm_up_users=turns),
        UCB_TIGHT: lambda: LDPUCB(**gaussian),
        UCB_PUBLISHED: lambda: LDPUCB(**gaussian, form="published"),
        GLOC_TIGHT: lambda: LDPGLOC(**gaussian, link=link),
        GLOC_PUBLISHED: lambda: LDPGLOC(**gaussian, link=link, form="published"),
    }
    return makers[player]()


def free_player(player: str, market: LocalMarket, seed: int) -> local.UnpricedPlayer:
    """A player without privacy, for a market."""
    size: Any = {name: market.public[name] for name in ("dim", "n_arms", "shared")}
    makers: dict[str, Callable[[], local.UnpricedPlayer]] = {
        FREE_OLS: lambda: GreedyLeastSquares(**size),
        FREE_UCB: lambda: LinUCB(**size, horizon=market.horizon),
        FREE_SGD: lambda: GreedySGD(**size, link=market.link),
        RANDOM: lambda: RandomPlay(n_arms=market.n_arms, random_state=seed),
    }
    return makers[player]()


def _scored(regrets: Array, epsilon: float | None, delta: float | None) -> Han2021Result:
    ends = np.linspace(0, len(regrets), POINTS + 1)[1:].astype(int)
    total = np.cumsum(regrets)
    return Han2021Result(
        float(total[-1]), epsilon, delta, [float(total[max(end, 1) - 1]) for end in ends]
    )
