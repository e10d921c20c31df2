"""A kind of loss of another package: one class, and every price, check and ledger takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, LocalAccountant, audit
from privlearn.accountants.calibration import least_noise
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.checking.exact.check import ExactResult
from privlearn.checking.exact.loss_curves import check_loss
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError
from privlearn.ledger import Ledger
from privlearn.losses import (
    BoundedRangeLoss,
    GaussianLoss,
    Loss,
    PerArrivalLoss,
    PureLoss,
    as_replace_one,
    foreign_kinds,
    loss_from_dict,
    register,
)
from privlearn.losses.budgets import ApproxDP, PureDP, Renyi
from privlearn.losses.numerics import valid_epsilon, valid_number
from privlearn.losses.output_laws import Discrete, LawPair
from privlearn.losses.steps import BoundedRangeStep, Order, PureStep
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.rows.domains import Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, float_up


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class StaircaseLoss(Loss):
    """Staircase-shaped noise for sensitivity 1 (Geng & Viswanath 2014): priced as any ε-DP one.

    The density falls by e^−ε at γ, 1, 1+γ, 2, …, so a shift by 1 has the losses ε, 0 and −ε.
    """

    kind = "staircase"
    epsilon: Fraction
    gamma: Fraction
    adjacency: Adjacency

    def __init__(
        self, epsilon: Exact, gamma: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ):
        self._set(
            epsilon=valid_epsilon(epsilon),
            gamma=valid_number("gamma", gamma, "1e-9", "1"),
            adjacency=adjacency,
        )

    def renyi(self, order: float) -> float:
        return PureLoss(self.epsilon).renyi(order)

    def zcdp(self) -> Fraction:
        return PureLoss(self.epsilon).zcdp()

    def pure(self) -> Fraction:
        return self.epsilon

    def doubled(self) -> PureLoss:
        return PureLoss(2 * self.epsilon)

    def noisier(self, factor: Fraction) -> StaircaseLoss:
        return StaircaseLoss(self.epsilon / factor, self.gamma, adjacency=self.adjacency)

    def step(self) -> PureStep:
        return PureStep(float_up(self.epsilon))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair]:
        epsilon, gamma = float(self.epsilon), float(self.gamma)
        height = -math.expm1(-epsilon) / (2 * (gamma + math.exp(-epsilon) * (1 - gamma)))
        equal = abs(1 - 2 * gamma) * height * (math.exp(-epsilon) if gamma < 0.5 else 1.0)
        high = (1 - equal) / (1 + math.exp(-epsilon))
        with np.errstate(divide="ignore"):
            law = np.log([high, equal, high * math.exp(-epsilon)])
        return [(Discrete(law), Discrete(law[::-1].copy()))]


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class ChoiceLoss(Loss):
    """An exponential mechanism of another package: a bounded range."""

    kind = "other-choice"
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        self._set(epsilon=valid_epsilon(epsilon), adjacency=adjacency)

    def renyi(self, order: float) -> float:
        return BoundedRangeLoss(self.epsilon).renyi(order)

    def step(self) -> BoundedRangeStep:
        return BoundedRangeStep(float_up(self.epsilon))


LOSS = StaircaseLoss("0.5", "0.3")


def test_a_tight_composition_takes_its_step() -> None:
    found, same = (evaluate([(loss, 50)]).epsilon(1e-6) for loss in (LOSS, PureLoss("0.5")))
    assert found == same
    assert found.method == "dominating pairs"


def test_it_is_converted_and_made_noisier() -> None:
    assert as_replace_one(StaircaseLoss("0.5", "0.3", adjacency=Adjacency.ZERO_OUT)).loss == (
        PureLoss(1)
    )
    least = least_noise([(LOSS, 10)], ApproxDP(1, "1e-6"))
    pure = least_noise([(PureLoss("0.5"), 10)], ApproxDP(1, "1e-6"))
    assert least.factor == pure.factor
    assert least.parts == ((StaircaseLoss(Fraction("0.5") / least.factor, "0.3"), 10),)


@pytest.mark.parametrize("gamma", ["0.1", "0.5", "0.9"])
def test_its_laws_are_compared_with_its_price(gamma: str) -> None:
    found = check_loss(StaircaseLoss("0.5", gamma))
    assert not found.violated
    exact = found["renyi"].evidence
    assert isinstance(exact, ExactResult)
    assert exact.tight is (gamma == "0.5")


def test_its_json_form_is_that_of_its_fields() -> None:
    good = LOSS.to_dict()
    for bad in ({**good, "gamma": 0.3}, {**good, "gamma": True}, {**good, "delta": "0"}):
        with pytest.raises(ValueError, match=r"gamma = .* must be text|has no .delta., only .*"):
            loss_from_dict(bad)


@dataclass(frozen=True, slots=True)
class Table(Loss):
    """A field without a JSON form of its own."""

    kind = "table"
    values: frozenset[float]
    adjacency: Adjacency

    def renyi(self, order: float) -> float:
        return max(self.values)


def test_a_field_without_a_json_form_needs_one() -> None:
    with pytest.raises(ValueError, match=r"'table': values is of type .*override `json_form`"):
        register(Table)

    class Stated(Table):
        kind = "stated-table"

        def numbers(self) -> dict[str, Any]:
            return {"values": sorted(self.values)}

        @classmethod
        def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
            return cls(frozenset(data["values"]), adjacency)

        @classmethod
        def json_form(cls) -> Mapping[str, tuple[type, ...]]:
            return {"values": (list,)}

    table = register(Stated)(frozenset({1.0, 2.0}), Adjacency.ZERO_OUT)
    assert loss_from_dict(table.to_dict()) == table
    with pytest.raises(ValueError, match="values = '1': must be a list"):
        loss_from_dict({**table.to_dict(), "values": "1"})


@dataclass(frozen=True, slots=True)
class Noted(Loss):
    """Prices are kept by losses that are equal: this one could get another one's."""

    kind = "noted"
    value: float = field(compare=False)
    adjacency: Adjacency

    def renyi(self, order: float) -> float:
        return self.value


def test_what_is_no_class_of_losses_is_not_registered() -> None:
    def read(data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
        return LOSS

    for wrong in (read, int, LOSS):
        with pytest.raises(TypeError, match="must be a class of losses"):
            register(wrong)  # type: ignore[type-var]


def test_a_field_that_is_not_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="'noted': value is not compared"):
        register(Noted)


def test_the_audit_names_it_wherever_it_stands() -> None:
    inside = PerArrivalLoss([(2, LOSS), (3, PureLoss(1) + LOSS)])
    assert set(foreign_kinds(inside)) == {StaircaseLoss}
    assert not list(foreign_kinds(PureLoss(1) + GaussianLoss(1)))
    accountant = CentralAccountant(PureDP(3), users=range(5), noise=NoiseSource.simulation(0))
    token = accountant.issue(inside, users=range(5), label="own")
    token.spend(Spend("own", Box(0, 1, 1), LaplaceNoise(1.0), own_loss=inside))
    found = accountant.certificate().trusted_code
    assert [note for note in found if note.startswith("loss kind 'staircase'")]
    devices = LocalAccountant(
        PureDP(3), users=range(5), noise=NoiseSource.simulation(0), attested=True
    )
    devices.attest(LOSS, users=range(5), most_messages=1, count=5, by="us", mechanism="m")
    found = devices.certificate().trusted_code
    assert [note for note in found if note.startswith("loss kind 'staircase'")]


def test_a_ledger_that_holds_it_is_audited(tmp_path: Path) -> None:
    assert loss_from_dict(LOSS.to_dict()) == LOSS
    path = tmp_path / "ledger.db"
    with CentralAccountant(
        PureDP(1), users=range(5), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ) as accountant:
        accountant.commit([Plan("sum", LOSS, range(5), 2)])
        accountant.issue(LOSS, users=range(5), label="sum")
    report = audit(path)
    assert not report.problems
    (note,) = report.trusted_code
    assert note.startswith("loss kind 'staircase', for plan 'sum': its bounds are counted as they ")
    assert note.endswith(f"asked again here, {__name__}.StaircaseLoss states no more)")
    assert report.guarantees[0].epsilon <= 1


@pytest.mark.parametrize("order", ["any", "listed"])
def test_a_bounded_range_is_one_whoever_states_it(order: Order) -> None:
    """Where the order matters, it matters for a foreign kind, too."""
    parts = [(PureLoss("0.1") + BoundedRangeLoss("0.3"), 4), (BoundedRangeLoss("0.2"), 3)]
    other = [
        (PureLoss("0.1") + ChoiceLoss("0.3"), 4),
        (ChoiceLoss("0.2"), 3),
    ]
    ours, theirs = (evaluate(p, order=order).epsilon(1e-4) for p in (parts, other))
    assert "recursion" in ours.method
    assert theirs == ours


def test_a_stream_of_bounded_ranges_is_refused_whoever_states_it() -> None:
    loss = ChoiceLoss("0.2")
    cap = Renyi({"2": 1})
    with CentralAccountant(cap, users=range(3), noise=NoiseSource.simulation(0)) as accountant:
        token = accountant.issue(loss, users=range(3), label="stream")
        spend = Spend("stream", Box(0, 1, 1), LaplaceNoise(1.0), own_loss=loss, interactive=True)
        with pytest.raises(BudgetError, match="bounded range is a statement about one release"):
            token.spend(spend)
