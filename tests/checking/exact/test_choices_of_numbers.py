"""Choices of somebody else's: a number that leaves for the winner, and scores among many rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from claims_alone import looked_at
from faults.few_inputs import ComputingMechanism

from privlearn import Box, Released, Rows, Spend, Token
from privlearn.checking import check_mechanism
from privlearn.checking.exact.check import ExactResult, white_box
from privlearn.contract.receipts import Receipt
from privlearn.errors import CheckError
from privlearn.losses import BoundedRangeLoss, PureLoss
from privlearn.noise import ExponentialNoise, GumbelNoise, LaplaceNoise, Noise
from privlearn.rows.domains import Array

AGES = np.array([0.0, 20.0, 40.0, 60.0, 80.0])


@dataclass(frozen=True)
class Median:
    """Among five ages; a score moves by at most 1, by which noise of scale 2/ε costs ε."""

    noise: float = 4.0

    def spend(self) -> Spend:
        return Spend(
            "ages.median", Box(0, 80, 1), GumbelNoise(self.noise), own_loss=PureLoss("1/2")
        )

    def loss(self) -> PureLoss:
        return PureLoss("1/2")

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            ages = receipt.open(rows)
            below = (ages <= self.candidates(ages)).sum(axis=0)
            noisy = -np.abs(below - len(ages) / 2) + receipt.draw(below.shape)
            return receipt.release(self.left(ages, int(np.argmax(noisy))))

    def candidates(self, ages: Array) -> Array:
        return AGES

    def left(self, ages: Array, winner: int) -> Any:
        return self.candidates(ages)[[winner]]


class OfIndices(Median):
    def left(self, ages: Array, winner: int) -> Any:
        return np.array([winner])


@dataclass(frozen=True)
class Mode(Median):
    """The age that most records have, of which one may count more."""

    heavy: float = 1.0

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            votes = (receipt.open(rows) == AGES) * np.where(AGES == 60, self.heavy, 1.0)
            noisy = votes.sum(axis=0) + receipt.draw(AGES.shape)
            return receipt.release(AGES[[int(np.argmax(noisy))]])


def test_crowds_of_records_that_the_code_mentions_are_tried() -> None:
    assert white_box(Mode(heavy=1.25)).violated
    assert not white_box(Mode()).violated


class AmongTheRecords(Median):
    def candidates(self, ages: Array) -> Array:
        return np.unique(ages)


class OfGroups(Median):
    def left(self, ages: Array, winner: int) -> Any:
        return np.array([float(winner > 2)])


class OfIntervals(Median):
    def left(self, ages: Array, winner: int) -> Any:
        return np.array([AGES[winner], AGES[winner] + 20])


class OneNumberForAll(OfIndices):
    """The same noise on every score changes no winner."""

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            ages = receipt.open(rows)
            noisy = -np.abs((ages <= AGES).sum(axis=0) - len(ages) / 2) + receipt.draw((1,))
            return receipt.release(np.array([int(np.argmax(noisy))]))


CROWD = np.array([[0.0]] * 4 + [[20.0]] + [[80.0]] * 5)
MOVED = np.array([[0.0]] * 5 + [[20.0]] + [[80.0]] * 4)


def test_the_law_of_a_number_is_that_of_its_index() -> None:
    claim = Median().loss()
    found = white_box(Median(), claim, neighbours=[(CROWD, MOVED)])
    of_indices = white_box(OfIndices(), claim, neighbours=[(CROWD, MOVED)])
    assert [row.exact for row in found.rows] == [row.exact for row in of_indices.rows]
    first, second = (np.exp(-np.abs((ages <= AGES).sum(axis=0) - 5) / 4) for ages in (CROWD, MOVED))
    ratio = np.abs(np.log(first / first.sum()) - np.log(second / second.sum())).max()
    (epsilon,) = [row for row in found.rows if row.measure == "epsilon"]
    assert epsilon.exact == pytest.approx(ratio, abs=1e-8)
    beyond = white_box(Median(), neighbours=[(CROWD, MOVED)])  # its own claim is about all data
    assert beyond.worst.exact > ratio
    assert beyond.worst.pair.startswith("found ")


def test_too_little_noise_is_found_without_neighbours() -> None:
    report = check_mechanism(Median(noise=0.4), samples=400, raise_error=False)
    assert "exact" in {law.check for law in report.violated}
    kept = check_mechanism(Median(), samples=400)["exact"]
    assert kept.verdict == "holds"
    assert isinstance(kept.evidence, ExactResult)
    assert kept.evidence.worst.exact > 0.2  # the data sets that were found are not alike


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        (AmongTheRecords(), "must follow from public numbers"),
        (OfGroups(), "release the index of the winner"),
        (OfIntervals(), "release the index of the winner, or one number for each candidate"),
    ],
)
def test_what_cannot_be_computed_says_what_would_help(mechanism: Median, why: str) -> None:
    with pytest.raises(CheckError, match=why):
        white_box(mechanism, neighbours=[(CROWD, MOVED)])


def test_a_choice_with_one_number_of_noise_for_all_is_named_and_refuted() -> None:
    with pytest.raises(CheckError, match=r"one number of noise .* draw one for each"):
        white_box(OneNumberForAll())
    one_younger = CROWD.copy()
    one_younger[4] = 0.0
    report = looked_at(OneNumberForAll(), neighbours=[(CROWD, one_younger)], samples=400)
    assert report["exact"].detail.startswith("not computed: one number of noise")
    assert report["samples"].verdict == "violated"


class NoNoiseIfClear(OfIndices):
    """Among counts of the ends of a range: many alike have a clear winner."""

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Array]:
        with token.spend(self.spend()) as receipt:
            ages = receipt.open(rows)
            scores = np.array([(ages < 40).sum(), (ages >= 40).sum()])
            noise = receipt.draw(scores.shape)
            clear = abs(scores[0] - scores[1]) > 8 * self.noise
            return receipt.release(np.array([int(np.argmax(scores if clear else scores + noise))]))


def test_others_between_make_a_choice_cost_what_it_is_charged() -> None:
    half = white_box(Median(noise=2.0), orders=(2.0,))
    assert half.violated
    assert half.worst.exact == pytest.approx(1.0, abs=0.01)
    right = white_box(Median(), orders=(2.0,))
    assert not right.violated
    assert right.worst.exact == pytest.approx(0.5, abs=0.01)


def test_a_clear_winner_without_noise_is_refuted() -> None:
    found = white_box(NoNoiseIfClear(), orders=(2.0,))
    assert found.violated
    assert "noise cannot turn" in found.worst.pair


def _normalised(values: Array, noise: Array) -> Array:
    """Scores over their maximum, which one record among nobody moves by as many as there are."""
    scores = values.sum(axis=0) / max(values.sum(axis=0).max(), 1e-9)
    return np.asarray(scores * math.log1p(len(values)) + noise)


def _clear(gap: float) -> Callable[[Array, Array], Array]:
    def noisy(values: Array, noise: Array) -> Array:
        scores = values.sum(axis=0)
        first, second = np.sort(scores)[:-3:-1]
        return np.asarray(scores + (noise if first - second <= gap else 0))

    return noisy


def _capped(values: Array, noise: Array) -> Array:
    return np.asarray(np.minimum(values.sum(axis=0), 60.0) + noise)


@pytest.mark.parametrize(
    ("noisy", "noise", "refuted"),
    [
        (_normalised, GumbelNoise(8.0), True),
        (_normalised, GumbelNoise(14.0), False),  # 2·log(1 + 1,000) / 14 < 1
        (_clear(50.0), GumbelNoise(2.0), True),
        (_clear(200.0), ExponentialNoise(2.0), True),
        (_capped, LaplaceNoise(2.0), False),
    ],
)
def test_scores_that_move_among_many_rows(noisy: Any, noise: Noise, refuted: bool) -> None:
    """One record that stands out among rows of nobody, and so clear a winner that noise is left."""

    def compute(values: Array, receipt: Receipt) -> Array:
        return np.array([np.argmax(noisy(values, receipt.draw(values.shape[1:])))])

    price = BoundedRangeLoss(1) if isinstance(noise, GumbelNoise) else PureLoss(1)
    found = white_box(ComputingMechanism("choice", Box(0, 1, 3), noise, compute, price))
    assert found.violated == refuted, found
    assert found.whole
