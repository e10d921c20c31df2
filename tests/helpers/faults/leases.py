"""Broken leases: a run too many, runs that are given back, runs that share their noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, final

import numpy as np
from leased import UnderLease

from faults.cases import CaseResult, Fault, sampling_case
from privlearn.accountants import CentralAccountant
from privlearn.contract.leases import Lease
from privlearn.errors import InsufficientBudgetError, TokenError
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.noise.exact.pool import NoisePool
from privlearn.rows import Rows
from privlearn.rows.domains import Box

SUM: NoisySum[Any] = NoisySum(Box(0, 1, 1), LaplaceNoise(1.0))
"""ε = 1 for each run."""
_PAIR = np.array([[0.0], [0.0]]), np.array([[1.0], [0.0]])
_OTHER_ROW = np.array([[0.0], [0.0]]), np.array([[0.0], [1.0]])
_SEEDS = count(1)


def lends_one_more(lease: Lease[Any]) -> None:
    """The number of runs that are left is one too large."""
    lease._left += 1


@final
class _SameNoise:
    """In place of the pools of a lease: each run draws what the one before drew."""

    def __init__(self) -> None:
        self._seed = next(_SEEDS)

    def pop(self) -> NoisePool:
        return NoiseSource.simulation(self._seed).pool()

    def append(self, pool: NoisePool) -> None:
        """It is not used again."""

    def clear(self) -> None:
        """There is nothing."""


def shares_noise(lease: Lease[Any]) -> None:
    """A pool that is returned begins anew."""
    pools: Any = _SameNoise()
    lease._pools = pools


def closes(lease: Lease[Any]) -> None:
    """Ends a lease as it should be."""
    lease.close()


def closes_and_refunds(lease: Lease[Any]) -> None:
    """What was not used is handed back, as that of an unspent token is."""
    lease._token._issuer.record_retire(lease._token, "unused", None)


@final
@dataclass(frozen=True, slots=True)
class CapCase:
    """Leases are taken and ended, one after the other, until the cap is used up.

    Args:
        end: how each of them is ended, after one of its two runs.
    """

    end: Callable[[Lease[Any]], object]

    def check(self, *, confidence: float = 0.95, seed: int = 0) -> CaseResult:
        """As for every case; nothing is sampled, so ``confidence`` is ignored."""
        users, left = range(1), 0
        accountant = CentralAccountant(PureDP(4), users=users, noise=NoiseSource.simulation(seed))
        try:
            for _ in range(5):
                lease = accountant.lease(SUM, runs=2, users=users, label="sums")
                lease.release(Rows.seal(np.ones((1, 1)), users=users))
                left += 1
                self.end(lease)
        except InsufficientBudgetError:
            pass
        except TokenError as error:
            return CaseResult(True, f"after {left} runs: {error}")
        return CaseResult(left > 2, f"{left} of the leases whose runs the cap pays for")


FAULTS = (
    Fault(
        "a lease of one run too many",
        "The number of runs that are left is compared after it was counted down, so that one more "
        "leaves than was paid for.",
        "a usual slip in counters that several threads share",
        sampling_case(UnderLease(SUM, 1, lends_one_more, used=2), None, _PAIR, samples=3000),
        sampling_case(UnderLease(SUM, 2), None, _PAIR, samples=3000),
    ),
    Fault(
        "runs of a lease that share their noise",
        "Each run draws the noise of the one before, so that the difference of two outputs has "
        "none.",
        "a generator that is made anew from the same seed for each task; a usual slip",
        sampling_case(UnderLease(SUM, 2, shares_noise), None, _OTHER_ROW, samples=1500),
        sampling_case(UnderLease(SUM, 2), None, _OTHER_ROW, samples=1500),
    ),
    Fault(
        "runs of a lease that are given back",
        "What was not used is handed back when the lease ends, though rows were opened under the "
        "spend that paid for it.",
        "docs/how-to/leases-and-retries.md: nothing is refunded once rows were opened",
        CapCase(closes_and_refunds),
        CapCase(closes),
    ),
)
