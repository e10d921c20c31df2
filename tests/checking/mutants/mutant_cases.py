"""What source mutants of this package are seen by: its own code, put together at the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import minimisers
import numpy as np
from faults.cases import (
    CaseResult,
    CheckCase,
    ReplayCase,
    RowMapCase,
    SamplingCase,
    sampling_case,
)
from faults.learners_leaking import BadData, crowd_and_neighbour
from faults.learners_learning import DIM, N_ITEMS, SHOWN
from mutation import Deferred

from privlearn.accountants import CentralAccountant
from privlearn.checking.laws.domains import check_domain
from privlearn.checking.targets import SamplingTarget
from privlearn.contract.protocols import Accountant
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import LossExceedsTokenError
from privlearn.learners import OnePassNewtonMNL, serving
from privlearn.learners.newton import Belief
from privlearn.learners.serving import Arrival
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BinaryTree,
    BufferedToeplitz,
    LinearObjective,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
)
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, PSDTrace

# What is run --------------------------------------------------------------------------------------


def against_own_loss(
    make: Callable[[], Any], first: Any, second: Any, samples: int = 1_000
) -> CheckCase:
    """A mechanism on two blocks, against the loss that it states itself."""
    return Deferred(lambda: sampling_case(make(), None, (first, second), samples=samples))


def against_budget(make: Callable[[], Any], first: Any, second: Any) -> CheckCase:
    """A mechanism on two blocks, against the budget that it was calibrated for."""
    return Deferred(lambda: sampling_case(make(), ZCDP(1), (first, second), samples=2_000))


def record(*values: float) -> Array:
    """One record, as a block."""

    return np.array([values])


def stream(n: int, at: int = 0) -> Array:
    """A stream of zeros but for one record."""
    return np.where(np.arange(n) == at, 1.0, 0.0)[:, None]


def gaussian_sum(size: int = 1) -> NoisySum[Array]:
    """μ = 1 for vectors of the unit ball."""

    return NoisySum(Ball(1.0, size), GaussianNoise(2.0))


def matrix_sum() -> NoisySum[Array]:
    """A sum of matrices of trace 10."""

    return NoisySum(PSDTrace(10.0, 2), GaussianNoise(14.0))


def tree() -> PrefixSum[Array]:
    """A stream of two steps, the first of which is in two nodes."""

    return PrefixSum(Ball(1.0, 1), BinaryTree(2), noise_std=2.0)


def buffered() -> PrefixSum[Array]:
    """A stream of sixteen steps with the noise of a buffered Toeplitz factorisation."""

    return PrefixSum(Ball(1.0, 1), BufferedToeplitz.fitted(16), noise_std=3.0)


def fit() -> ObjectivePerturbation[Any]:
    """A logistic fit in one dimension."""

    return ObjectivePerturbation(
        LinearObjective.logistic(1), 10.0, noise_std=4.5, blur_std=1e-6, max_rows=1
    )


FITTED = (record(1.0), np.array([1.0])), (record(1.0), np.array([-1.0]))
"""The same vector with either label."""


def drawn(noise: GaussianNoise | LaplaceNoise, size: int, samples: int) -> CheckCase:
    """Noise by itself, on vectors at the distance that it was made for."""

    def make() -> CheckCase:
        ends = np.zeros(size), np.full(size, 1 / size**0.5)

        def start(data: Array, seed: int) -> Callable[[], Array]:
            pool = NoiseSource.simulation(seed).pool()
            return lambda: data + noise.draw(pool, data.shape)

        claim = noise.loss(1.0, gaussian_sum().adjacency)
        return SamplingCase(SamplingTarget(type(noise).__name__, start, claim, [ends]), samples)

    return Deferred(make)


@dataclass(frozen=True)
class LawsOfDomain:
    """A domain for its own laws."""

    domain: Any

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        report = check_domain(self.domain, seed=seed, raise_error=False)
        failed = "; ".join(f"{law.check}: {law.detail}" for law in report.violated)
        return CaseResult(bool(failed), failed or report.summary())


# What is looked at --------------------------------------------------------------------------------


class _Watch:
    """A tape that looks whether a spend stands in the ledger when rows open and values leave."""

    def __init__(self) -> None:
        self.accountant: CentralAccountant[Any] | None = None
        self.fault: str | None = None

    def spent(self, token: Token[Any], spend: Spend) -> None:
        pass

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self._look(token, "rows are opened")

    def released(self, token: Token[Any], value: Array) -> Array:
        self._look(token, "a value leaves")
        return value

    def _look(self, token: Token[Any], what: str) -> None:
        assert self.accountant is not None
        entries = self.accountant.ledger.entries
        if not any(isinstance(x, SpendEntry) and x.token == token.id for x in entries):
            self.fault = self.fault or f"{what} before the spend of {token.label!r} is recorded"


def costs_more() -> str | None:
    """Whether a fit on the line costs more than it states, by the oracle of the tests."""
    found = minimisers.compared(fit())
    return str(found) if found.violated else None


def spends_late() -> str | None:
    """Whether a crash right after the release would leave a ledger without it."""
    watch, mechanism = _Watch(), gaussian_sum()
    noise = NoiseSource.simulation(0)
    accountant = CentralAccountant(ZCDP(1), users=range(1), noise=noise, observer=watch)
    watch.accountant = accountant
    token = accountant.issue(mechanism.loss(), users=range(1), label="sum")
    mechanism.release(Rows.seal(record(1.0), users=range(1)), token)
    return watch.fault


def overspends() -> str | None:
    """Whether a token pays for more than it holds."""
    noise = NoiseSource.simulation(0)
    accountant = CentralAccountant(ZCDP(1), users=range(1), noise=noise)
    token = accountant.issue(GaussianLoss("0.1"), users=range(1), label="sum")
    try:
        gaussian_sum().release(Rows.seal(record(1.0), users=range(1)), token)
    except LossExceedsTokenError:
        return None
    return "a token that holds a mass of 0.1 paid for one of 1"


# Learners -----------------------------------------------------------------------------------------


def _newton(accountant: Accountant[Any]) -> OnePassNewtonMNL:
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, max_items=SHOWN, first_batch=6)
    return learner.start(accountant)


def served(kind: BadData) -> CheckCase:
    """The shipped one-pass learner on a population and its neighbour."""

    return Deferred(lambda: ReplayCase(_newton, *crowd_and_neighbour(kind)))


def _arrivals(rng: np.random.Generator, n: int) -> Arrival:
    blank = np.zeros((n, N_ITEMS))
    return Arrival(rng.normal(size=(n, N_ITEMS, DIM)), blank + 1, blank, np.zeros((n, 0)))


def policy_map() -> CheckCase:
    """What users are shown, as a map of rows."""

    rng = np.random.default_rng(0)
    belief = Belief(rng.normal(size=DIM), 3 * np.eye(DIM))
    policy = partial(
        serving.optimistic_items, belief=belief, max_items=SHOWN, exploration=3.0, scale=1.0
    )
    return RowMapCase(policy, _arrivals(rng, 7), _arrivals(rng, 1))
