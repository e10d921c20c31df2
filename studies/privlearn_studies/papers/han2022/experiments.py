"""The experiments of Han et al. (2022), Section 5: their cells, and one run of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.learners.hdb import DPHDB
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP
from privlearn.losses.conversion import gaussian_mu_squared, zcdp_rho
from privlearn.noise import NoiseSource
from privlearn.runs.references import LassoBandit, RandomArms
from privlearn.runs.simulated_arms import sparse_market
from privlearn_studies.papers.han2022 import competitors
from privlearn_studies.rivals.linear_bandits import DPUCB
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs
from privlearn_studies.simulated import regression

TABLE, FIGURE = "table5.1", "fig5.1"
TARGETS: Final = (TABLE, FIGURE)

HORIZONS, DIMS, EXPONENTS = (1000, 2000, 5000, 10_000), (5, 10, 20), (1.5, math.inf)
"""The paper's T, d and p of Table 5.1."""

BANDIT_HORIZON, BANDIT_DIM, BANDIT_ARMS = 10_000, 50, 2
"""The paper's T, d and K of Figure 5.1."""

DEFAULT_HORIZONS: Final = {TABLE: HORIZONS, FIGURE: (BANDIT_HORIZON,)}

EPSILON = 1.0
"""The paper's ε; δ = 1/T."""

POINTS = 50
"""Points of a regret curve."""

COMMON = (
    competitors.PRINTED,
    competitors.TRUE_NOISE,
    competitors.PLAIN,
    competitors.BUFFERED,
    competitors.SFW,
    competitors.SGD,
    competitors.NO_NOISE,
)
BY_EXPONENT: Final = {
    1.5: (*COMMON[:-2], competitors.SFW_GENERALIZED, competitors.MIRROR, *COMMON[-2:]),
    math.inf: COMMON,
}
"""Who competes; generalized noise and `LocalMD` are the paper's for p = 1.5."""


class Quoted(NamedTuple):
    """SubOpt as Table 5.1 prints it: mean and standard deviation of 10 runs."""

    mean: float
    sd: float


_RIVAL_15 = """.522 .0565 .953 .0947 1.05 .0108 .44 .0287 .887 .0691 .957 .0673
    .35 .135 .808 .115 1 .0266 .351 .161 .789 .0744 .937 .0303"""
_OFW_15 = """.0172 .00987 .201 .0483 .775 .128 .00235 .00106 .0595 .0321 .406 .106
    .000702 .00051 .0163 .0053 .185 .0558 .000318 .000179 .00465 .00184 .0592 .0155"""
_RIVAL_INF = """.0802 .0613 .636 .186 .955 .111 .0344 .0133 .484 .178 .947 .0672
    .00989 .00378 .115 .0118 .602 .0571 nan nan .0505 .00514 .482 .0453"""
_OFW_INF = """.112 .0727 .582 .157 .982 .0768 .0432 .02 .364 .0795 .82 .114
    .0145 .00153 .125 .0204 .637 .105 .00293 .00106 .0467 .0159 .363 .0283"""


def _quoted(text: str, p: float) -> dict[tuple[float, int, int], Quoted]:
    numbers = [float(word) for word in text.split()]
    cells = [(horizon, dim) for horizon in HORIZONS for dim in DIMS]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {(p, *cell): Quoted(*pair) for cell, pair in zip(cells, pairs, strict=True)}


PAPER_OFW: Final = _quoted(_OFW_15, 1.5) | _quoted(_OFW_INF, math.inf)
"""Their DP-TOFW, by (p, T, d)."""
PAPER_RIVAL: Final = _quoted(_RIVAL_15, 1.5) | _quoted(_RIVAL_INF, math.inf)
"""Their NoisySFW (p = 1.5) and NoisySGD (p = ∞; one cell was not printed)."""
RIVAL: Final = {1.5: "NoisySFW", math.inf: "NoisySGD"}

HDB, HDB_CHOICES = "DP-HDB", "DP-HDB, noisy max"
UCB, LEAST_SQUARES = "DP-UCB", "private least squares"
LASSO, RANDOM = "Lasso bandit, not private", "random"
BANDITS: Final = (HDB, HDB_CHOICES, UCB, LEAST_SQUARES, LASSO, RANDOM)


@final
@dataclass(frozen=True, slots=True)
class Han2022Cell:
    """One player in one setting; for the bandit p is 1 and d its dimension."""

    player: str
    p: float
    horizon: int
    dim: int

    def to_dict(self) -> dict[str, Any]:
        """JSON form, unique within a target."""
        return asdict(self) | {"p": f"{self.p:g}"}


class Han2022Result(NamedTuple):
    """One run: total regret and its curve for a bandit, else SubOpt and risk."""

    value: float
    risk: float | None
    epsilon: float | None
    """Certified at δ = 1/T; None where nothing is promised."""
    curve: list[float]


def cells(target: str, horizons: tuple[int, ...]) -> list[Han2022Cell]:
    """All cells of a table or figure, in the order in which they are run."""
    if target == FIGURE:
        return [Han2022Cell(player, 1.0, h, BANDIT_DIM) for h in horizons for player in BANDITS]
    return [
        Han2022Cell(player, p, horizon, dim)
        for horizon in horizons
        for dim in DIMS
        for p in EXPONENTS
        for player in BY_EXPONENT[p]
    ]


def play(target: str, cell: Han2022Cell, seed: int) -> Han2022Result:
    """One run; users and noise are simulated with ``seed``."""
    if target == FIGURE:
        return _pull(cell, seed)
    stream = regression.linear_stream(seed, horizon=cell.horizon, dim=cell.dim, p=cell.p)
    outcome = competitors.compete(cell.player, stream, seed, epsilon=EPSILON)
    return Han2022Result(outcome.suboptimality, outcome.risk, outcome.epsilon, [])


def _pull(cell: Han2022Cell, seed: int) -> Han2022Result:
    market = sparse_market(seed, horizon=cell.horizon, dim=cell.dim, n_arms=BANDIT_ARMS)
    size: Any = {"n_arms": BANDIT_ARMS, "dim": cell.dim}
    if cell.player in (LASSO, RANDOM):
        bare: Any = LassoBandit(**size)
        if cell.player == RANDOM:
            bare = RandomArms(n_arms=BANDIT_ARMS, random_state=seed)
        return _scored(market.serve(bare), None)
    makers: dict[str, Callable[[], Any]] = {
        HDB: lambda: DPHDB(**size),
        HDB_CHOICES: lambda: DPHDB(**size, method=NoisyMaxEpochs()),
        UCB: lambda: DPUCB(**size),
        LEAST_SQUARES: lambda: PrivateLeastSquares(**size),
    }
    delta = 1 / cell.horizon
    budget: Currency = GaussianDP.from_mu_squared(gaussian_mu_squared(EPSILON, delta))
    if cell.player == HDB_CHOICES:  # choices have no price in GaussianDP
        budget = ZCDP(zcdp_rho(EPSILON, delta))
    with JointAccountant(
        budget, users=range(cell.horizon), noise=NoiseSource.simulation(seed)
    ) as accountant:
        regret = market.serve(makers[cell.player]().start(accountant))
        stated = accountant.certificate(delta).guarantees
    return _scored(regret, max(guarantee.epsilon for guarantee in stated))


def _scored(regret: np.ndarray[Any, np.dtype[np.float64]], epsilon: float | None) -> Han2022Result:
    ends = np.linspace(0, len(regret), POINTS + 1)[1:].astype(int)
    total = np.cumsum(regret)
    return Han2022Result(float(total[-1]), None, epsilon, [float(total[end - 1]) for end in ends])
