"""Fifteen faults by somebody who had not seen the shipped ones, each with its correct twin.

They were written before any was tried, and checked as a user would with the one-line tools.  What
is wrong with each is its docstring; ``broken`` chooses between it and its twin, which differs
only by the fault.  Those that the tools miss at their defaults are in `MISSED`, with the reason.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from claims_alone import assert_private, looked_at

from privlearn import ZCDP, Adjacency, Ball, Box, PureDP, Released, Rows, Spend, Token
from privlearn.accountants import CentralAccountant
from privlearn.checking import (
    assert_budget,
    check_domain,
    check_mechanism,
    check_row_local,
    generated_pairs,
)
from privlearn.checking.neighbours import default_pairs
from privlearn.checking.replay.check import assert_noninterference
from privlearn.contract.billboard import Billboard
from privlearn.contract.receipts import Receipt
from privlearn.errors import InterferenceError, PrivacyViolation, UsersError
from privlearn.ledger import Ledger
from privlearn.losses import GaussianLoss, Loss, PureLoss
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, GumbelNoise, LaplaceNoise
from privlearn.rows.domains import Array

pytestmark = pytest.mark.calibration

LOG = logging.getLogger("fresh_eyes")


class Stated:
    """A mechanism whose loss is that of its statement."""

    def spend(self) -> Spend:
        raise NotImplementedError

    def loss(self) -> Loss:
        return self.spend().loss(Adjacency.REPLACE_ONE)


class Opened:
    """An open stream; `step` makes the outputs of the next contributions."""

    def __init__(self, token: Token[Any], spend: Spend, step: Callable[[Receipt, Array], Array]):
        self._receipt, self._step = token.spend(spend), step
        self._next = token.users.start

    def append(self, rows: Rows[Any]) -> Released[Array]:
        if rows.users.start != self._next:
            raise UsersError(f"the next user is {self._next}, the rows are {rows.users!r}")
        self._next = rows.users.stop
        with self._receipt.round():
            return self._receipt.publish(self._step(self._receipt, self._receipt.open(rows)))

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *details: object) -> None:
        if not self._receipt.closed:
            self._receipt.close()


@dataclass(frozen=True)
class SmoothedReadings(Stated):
    """Readings with noise that goes up and down slowly, so that the plot looks calm."""

    broken: bool
    horizon: int = 12

    def spend(self) -> Spend:
        return Spend("readings", Box(0, 1, 1), GaussianNoise(1.0), interactive=True)

    def open(self, token: Token[Any]) -> Opened:
        keep = 0.7 if self.broken else 0.0
        last: Array | None = None

        def step(receipt: Receipt, values: Array) -> Array:
            nonlocal last
            noise = receipt.draw(values.shape)
            for i in range(len(noise)):
                if last is not None:
                    noise[i] = keep * last + math.sqrt(1 - keep**2) * noise[i]
                last = noise[i].copy()
            return values + noise

        return Opened(token, self.spend(), step)


@dataclass(frozen=True)
class BestWithScore(Stated):
    """The best item, and its score with the noise that it won with."""

    broken: bool

    def spend(self) -> Spend:
        noise = LaplaceNoise(2.0 if self.broken else 4.0)
        return Spend("best-with-score", Box(0, 1, 6), noise, own_loss=PureLoss(1))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            scores = receipt.open(rows).sum(axis=0)
            noisy = scores + receipt.draw(scores.shape)
            best = int(noisy.argmax())
            again = scores[best] + receipt.draw((1,))[0] / 2
            return receipt.release(np.array([best, noisy[best] if self.broken else again]))


@dataclass(frozen=True)
class PopularTag(Stated):
    """The exponential mechanism on tags, after rare ones were taken out."""

    broken: bool

    def spend(self) -> Spend:
        return Spend("popular-tag", Box(0, 1, 4), GumbelNoise(2.0), own_loss=PureLoss(1))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            counts = receipt.open(rows).sum(axis=0)
            noisy = counts + receipt.draw(counts.shape)
            frequent = counts >= 5
            if self.broken and frequent.any():
                noisy = np.where(frequent, noisy, -np.inf)
            return receipt.release(np.array([float(noisy.argmax())]))


@dataclass(frozen=True)
class ActiveMean(Stated):
    """The mean of those who did anything, with noise for the mean of all."""

    broken: bool

    def spend(self) -> Spend:
        return Spend("active-mean", Ball(1.0, 2), GaussianNoise(2.0))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            values = receipt.open(rows)
            active = max(int(values.any(axis=1).sum()), 1) if self.broken else len(values)
            noise = receipt.draw((2,)) / len(values)
            return receipt.release(values.sum(axis=0) / active + noise)


@dataclass(frozen=True)
class QuietCounter(Stated):
    """A running count that is brought up to date only when it has changed enough."""

    broken: bool
    horizon: int = 16

    def spend(self) -> Spend:
        return Spend("quiet-counter", Box(0, 1, 1), LaplaceNoise(1.0), interactive=True)

    def open(self, token: Token[Any]) -> Opened:
        shown, pending, waited = math.nan, 0.0, 0

        def step(receipt: Receipt, values: Array) -> Array:
            nonlocal shown, pending, waited
            out = np.empty(values.shape)
            if math.isnan(shown):
                shown = float(receipt.draw((1,))[0])
            for i, value in enumerate(values[:, 0]):
                pending, waited = pending + value, waited + 1
                if pending >= 3 if self.broken else waited == 4:
                    shown += pending + receipt.draw((1,))[0]
                    pending, waited = 0.0, 0
                out[i] = shown
            return out

        return Opened(token, self.spend(), step)


@dataclass(frozen=True)
class RollingWindows(Stated):
    """Sums over the last four arrivals, after every second one."""

    broken: bool
    horizon: int = 16

    def spend(self) -> Spend:
        times = 1.0 if self.broken else 2.0
        return Spend("rolling", Box(0, 1, 1), LaplaceNoise(times), gain=times, interactive=True)

    def open(self, token: Token[Any]) -> Opened:
        last: list[float] = []
        shown = np.zeros(1)

        def step(receipt: Receipt, values: Array) -> Array:
            nonlocal shown
            if not last:
                shown = receipt.draw((1,))
            out = np.empty(values.shape)
            for i, value in enumerate(values[:, 0]):
                last.append(float(value))
                if len(last) % 2 == 0:
                    shown = sum(last[-4:]) + receipt.draw((1,))
                out[i] = shown
            return out

        return Opened(token, self.spend(), step)


def sampled_rounds(broken: bool) -> Callable[[Array, np.random.Generator], Array]:
    """Four noisy sums of a Poisson sample of a quarter; the sample is drawn once."""

    def rounds(values: Array, rng: np.random.Generator) -> Array:
        sample, out = rng.random(len(values)) < 0.25, np.empty(4)
        for t in range(4):
            if t and not broken:
                sample = rng.random(len(values)) < 0.25
            out[t] = np.clip(values[sample], 0, 1).sum() + rng.laplace(scale=2.0)
        return out

    return rounds


SAMPLED_CLAIM = PureDP("0.6012")  # 4·log(1 + (e^0.5 − 1)/4)
ONE_PERSON = (np.eye(1, 8)[0], np.zeros(8))


@dataclass(frozen=True)
class EntryClip:
    """Somebody's own domain: every entry clamped to ±radius."""

    broken: bool
    radius: float = 1.0
    size: int = 4

    def clip(self, block: Array) -> Array:
        values = np.asarray(block, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.size:
            raise ValueError(f"rows of shape {values.shape[1:]}")
        usable: Any = np.isfinite(values).all(axis=1)
        values = np.where(usable[:, None], values, 0.0)
        return np.clip(values, -self.radius, self.radius)

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Any = "l2") -> float:
        p = {"l1": 1.0, "l2": 2.0, "linf": math.inf}.get(norm, norm)
        stretch = 1.0 if self.broken else self.size ** (1 / p)
        return (2 if adjacency is Adjacency.REPLACE_ONE else 1) * self.radius * stretch

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "entry-clip", "radius": self.radius, "size": self.size}


def entry_sum(broken: bool) -> NoisySum[Any]:
    """A sum over it at mu = 1."""
    return NoisySum(EntryClip(broken), GaussianNoise(2.0 if broken else 4.0))


@dataclass(frozen=True)
class MicrobatchSum(Stated):
    """Gradients clipped to norm 1 two at a time instead of one by one."""

    broken: bool

    def spend(self) -> Spend:
        return Spend("microbatch", Ball(10.0, 2), GaussianNoise(2.0), own_loss=GaussianLoss(1))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            gradients, size = receipt.open(rows), 2 if self.broken else 1
            total = np.zeros(2)
            for at in range(0, len(gradients), size):
                batch = gradients[at : at + size]
                mean = batch.mean(axis=0)
                total += len(batch) * mean / max(1.0, float(np.linalg.norm(mean)))
            return receipt.release(total + receipt.draw((2,)))


@dataclass(frozen=True)
class PlausibleCount(Stated):
    """A noisy count, drawn again until it is one that can be."""

    broken: bool

    def spend(self) -> Spend:
        return Spend("plausible-count", Box(0, 1, 1), LaplaceNoise(1.0))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            values = receipt.open(rows)
            noisy = values.sum(axis=0) + receipt.draw((1,))
            while self.broken and not 0 <= noisy[0] <= len(values):
                noisy = values.sum(axis=0) + receipt.draw((1,))
            return receipt.release(np.clip(noisy, 0, len(values)))


def nightly(broken: bool) -> Callable[[Any], Any]:
    """A report within the budget, and a warm-up from an accountant of its own."""

    def run(accountant: Any) -> Any:
        users = range(20)
        rows = Rows.seal(np.full((20, 2), 0.3), users=users)
        price = ZCDP("0.25" if broken else "0.1")
        warm_up = NoisySum.calibrated(Ball(1.0, 2), price)
        payer = accountant
        if broken:
            payer = CentralAccountant(ZCDP("0.25"), users=users, ledger=Ledger.memory())
        warm_up.release(rows, payer.issue(warm_up.loss(), users=users, label="warm-up"))
        report = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.4"))
        return report.release(rows, accountant.issue(report.loss(), users=users, label="report"))

    return run


def filled(broken: bool) -> Callable[[Array], Array]:
    """Missing numbers filled with the row before, or with a public number."""

    def fill(rows: Array) -> Array:
        out = np.array(rows, dtype=np.float64)
        for i in range(len(out)):
            missing = np.isnan(out[i])
            out[i, missing] = out[i - 1, missing] if broken and i else 0.0
        return np.clip(out, -3, 3)

    return fill


class _Counting:
    """Serves the items that were bought most, by noisy counts of batches of five users."""

    def __init__(self, broken: bool, accountant: Any) -> None:
        self._broken, self._accountant = broken, accountant
        self._board = Billboard(accountant, accountant.users)
        self._counter = NoisySum.calibrated(Box(0, 1, 6), ZCDP("0.5"))
        self._scores = np.zeros(6)
        self._pending: list[Rows[Any]] = []
        self._bought = self._usable = 0

    def _greedy(self) -> bool:
        return self._board.clock > 4

    def select(self, features: object) -> Any:
        first = np.argsort(-self._scores, kind="stable")[:3] if self._greedy() else np.arange(3, 6)
        at = self._board.clock
        rows = Rows.seal(np.zeros((1, 1)), users=range(at, at + 1))
        self._shown = self._board.serve(rows, lambda own: np.tile(np.sort(first), (len(own), 1)))
        return self._shown.reveal()

    def observe(self, choice: object) -> None:
        answer = np.full(6, 0.0 if choice is None else np.nan)
        if valid := isinstance(choice, int) and 0 <= choice < 6:
            answer = np.eye(6)[choice]
        answered = self._shown.deliver(lambda own, shown: np.tile(answer, (len(own), 1)))
        self._bought += valid
        self._learn(answered, valid or choice is None)

    def _learn(self, answered: Rows[Any], valid: bool) -> None:
        self._pending.append(answered)
        if len(self._pending) == 5:
            self._release()

    def _release(self) -> None:
        rows, self._pending = Rows.concat(self._pending), []
        token = self._accountant.issue(self._counter.loss(), users=rows.users, label="counts")
        self._scores = self._scores + self._board.post("counts", self._counter.release(rows, token))

    def public_state(self) -> dict[str, Any]:
        return {"scores": self._scores.tolist(), "clock": self._board.clock}


class EagerBandit(_Counting):
    """Stops exploring after four purchases instead of after four users."""

    def _greedy(self) -> bool:
        return self._bought >= 4 if self._broken else super()._greedy()


class SkippingLearner(_Counting):
    """Answers that cannot be used do not count for the batch, which ends later."""

    def _learn(self, answered: Rows[Any], valid: bool) -> None:
        self._pending.append(answered)
        self._usable += valid if self._broken else 1
        if self._usable == 5:
            self._usable = 0
            self._release()


@dataclass(frozen=True)
class TalkativeSum(Stated):
    """A sum that logs how many records had to be clipped."""

    broken: bool

    def spend(self) -> Spend:
        return Spend("talkative", Ball(5.0, 2), GaussianNoise(2.0), own_loss=GaussianLoss(1))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            values = receipt.open(rows)
            norms = np.linalg.norm(values, axis=1)
            many = int((norms > 1).sum()) if self.broken else len(values)
            LOG.info("clipped %d records", many)
            total = (values / np.maximum(norms, 1.0)[:, None]).sum(axis=0)
            return receipt.release(total + receipt.draw((2,)))


# Checked as a user would --------------------------------------------------------------------------


def _sampled(mechanism: Callable[[bool], Any], samples: int = 2_500) -> Callable[[bool], object]:
    return lambda broken: assert_private(mechanism(broken), samples=samples)


def _lawful(mechanism: Callable[[bool], Any]) -> Callable[[bool], object]:
    return lambda broken: check_mechanism(mechanism(broken), samples=400)


def _replayed(learner: Callable[[bool, Any], Any]) -> Callable[[bool], object]:
    def check(broken: bool) -> None:
        for data, neighbour in generated_pairs(8):
            assert_noninterference(lambda accountant: learner(broken, accountant), data, neighbour)

    return check


def _filling(broken: bool) -> None:
    people = np.random.default_rng(0).normal(size=(6, 2))
    check_row_local(filled(broken), people, np.ones((1, 2)))


CAUGHT: dict[str, Callable[[bool], object]] = {
    "smoothed noise": _lawful(SmoothedReadings),
    "candidates by raw counts": _lawful(PopularTag),
    "a mean of the active alone": _sampled(ActiveMean),
    "updates when raw counts change": _sampled(QuietCounter, 600),
    "overlapping windows at one price": _sampled(RollingWindows, 600),
    "entries clipped, noise for the norm": lambda broken: check_domain(EntryClip(broken)),
    "a sum over that domain": _lawful(entry_sum),
    "clipped two at a time": _sampled(MicrobatchSum, 600),
    "an accountant of its own": lambda broken: assert_budget(
        nightly(broken), at_most=ZCDP("0.5"), users=range(20)
    ),
    "filled from the row before": _filling,
    "exploration ends by purchases": _replayed(EagerBandit),
    "batches end by usable answers": _replayed(SkippingLearner),
    "logs how many were clipped": _lawful(TalkativeSum),
}

MISSED = {
    "the best and the score it won with": "a loss of 3 in the lower tail, above 1 in events of a "
    "tenth: 5,000 samples choose another pair of 27; where that shows little, 20,000 more find it "
    "(seeds 0 and 1), and where it shows nine tenths of the claim nothing more is tried (2 and 3); "
    "5,000 find it on the right neighbours",
    "drawn again until plausible": "a loss of 1.49 times the claim, and little more than the claim "
    "in events that are not rare: 5,000 samples refute it with some seeds and not with most; the "
    "exact check says that it does not apply, and why",
    "one sample for four rounds": "a loss of 1.6 times the claim where all four sums are large at "
    "once, which the first data set shows in under one run in fifty: 200,000 samples do not see it",
}
"""What the one-line tools do not reliably see at their defaults, and why."""


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_fault_is_caught_and_its_twin_is_not_accused(fault: str) -> None:
    check = CAUGHT[fault]
    check(False)
    with pytest.raises((PrivacyViolation, InterferenceError)):
        check(True)


def test_twins_of_what_is_missed_are_not_accused() -> None:
    twins = (
        assert_private(BestWithScore(False), samples=400),
        assert_private(PlausibleCount(False), samples=400),
    )
    rounds = assert_private(sampled_rounds(False), SAMPLED_CLAIM, neighbours=ONE_PERSON)
    assert len(MISSED) == len({*twins, rounds})


def test_the_score_that_won_is_caught_on_the_right_neighbours() -> None:
    everything_or_nothing = default_pairs(BestWithScore(True))[0]
    with pytest.raises(PrivacyViolation):
        assert_private(BestWithScore(True), neighbours=everything_or_nothing)


def test_noise_that_is_drawn_again_for_ever_ends_the_exact_check() -> None:
    exact = looked_at(PlausibleCount(True), samples=600)["exact"]
    assert "asks for noise more than" in exact.detail
