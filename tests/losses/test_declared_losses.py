"""Losses of other packages as ledgers hold them: what is charged, what is refused, who is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from privlearn.accountants import CentralAccountant, account_log, audit
from privlearn.accountants.loss_structure import dominates
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError, PackageError, UnknownKindError
from privlearn.ledger import Ledger
from privlearn.losses import (
    BoundedRangeLoss,
    DeclaredLoss,
    FailingLoss,
    GaussianLoss,
    LeastLoss,
    Loss,
    PerArrivalLoss,
    PureLoss,
    RenyiCurve,
    VisitsLoss,
    ZCDPLoss,
    as_replace_one,
    as_zero_out,
    compose,
    declared_in,
    foreign_kinds,
    is_bounded_range,
    leaves_of,
    loss_from_dict,
    recorded,
    register,
)
from privlearn.losses.budgets import ZCDP, PureDP, Renyi
from privlearn.losses.recheck import ask_again
from privlearn.losses.steps import CurveStep
from privlearn.losses.upper_bounds import is_above
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows.domains import Ball, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact

OUT = Adjacency.ZERO_OUT
USERS = range(4)


@register
@dataclass(frozen=True, slots=True, init=False)
class Elsewhere(Loss):
    """A curve of its own: ρ·α below order 40, and nothing beyond."""

    kind = "test.elsewhere"
    rho: Fraction
    adjacency: Adjacency

    def __init__(self, rho: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE):
        self._set(rho=exact("rho", rho), adjacency=adjacency)

    def renyi(self, order: float) -> float:
        return float(self.rho) * order * (1 + 1e-12) if order < 40 else math.inf


@register
@dataclass(frozen=True, slots=True)
class ByTurn(Loss):
    """The first two users pay twice as much, or all of them where it may fail."""

    kind = "test.by-turn"
    rho: Fraction
    failing: Fraction
    adjacency: Adjacency

    def renyi(self, order: float) -> float:
        return math.inf if self.failing else float(2 * self.rho) * order

    def zcdp(self) -> Fraction | None:
        return None if self.failing else 2 * self.rho

    def failure(self) -> Fraction:
        return self.failing

    def unless_failed(self) -> Loss:
        return ZCDPLoss(2 * self.rho, adjacency=self.adjacency) if self.failing else self

    def over(self, users: range) -> list[tuple[range, Loss]]:
        if self.failing and self.rho < 1:
            return [(users, self)]
        late = range(users.start + 2, users.stop)
        return [
            (range(users.start, late.start), ZCDPLoss(2 * self.rho, adjacency=self.adjacency)),
            (late, ZCDPLoss(self.rho, adjacency=self.adjacency)),
        ]

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> ByTurn:
        return cls(Fraction(data["rho"]), Fraction(data["failing"]), adjacency)


ELSEWHERE = Elsewhere("0.01")
CHANCE = Fraction(1, 1000)


def opened(cap: Any = None, **more: Any) -> CentralAccountant[Any]:
    return CentralAccountant(cap or ZCDP(1), users=USERS, noise=NoiseSource.simulation(0), **more)


def own(name: str, loss: Loss, **more: Any) -> Spend:
    return Spend(name, Box(0, 1, 1), LaplaceNoise(1.0), own_loss=loss, **more)


def declared(loss: Loss, **more: Any) -> DeclaredLoss:
    return DeclaredLoss({"kind": "x", "adjacency": loss.adjacency.value}, loss, **more)


# What is recorded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.01, 1.125, 1.2, 1.99, 2.0, 7.3, 31.0, 33.0])
def test_a_recorded_curve_is_never_below_what_was_declared_and_close_to_it(order: float) -> None:
    """Between recorded orders the chord is above: the curve is convex where (α−1)D_α is."""
    stands, truth = recorded(ELSEWHERE, USERS), 0.01 * order
    first = 0.01 * 1.125  # below the first order nothing smaller is known
    assert truth <= stands.renyi(order) <= max(1.03 * truth, (1 + 1e-9) * first)


def test_a_recorded_curve_ends_where_the_declared_one_does() -> None:
    stands = recorded(ELSEWHERE, USERS)
    assert stands.renyi(33.0) < math.inf
    assert stands.renyi(45.0) == math.inf
    assert stands.zcdp() is stands.gaussian() is stands.pure() is None


def test_losses_of_this_package_stay_as_they_are() -> None:
    ours = compose([(FailingLoss(PureLoss(1), "0.1"), 2), (GaussianLoss(1), 3)])
    assert recorded(ours, USERS) is ours


@pytest.mark.parametrize(
    "loss",
    [
        compose([(ELSEWHERE, 3), (PureLoss("0.1"), 1)]),
        FailingLoss(ELSEWHERE, "0.001"),
        VisitsLoss(ELSEWHERE, 2, 5),
        PerArrivalLoss([(1, ELSEWHERE), (3, compose([(ELSEWHERE, 2), (PureLoss(1), 1)]))]),
        compose([(VisitsLoss(PerArrivalLoss([(4, FailingLoss(ELSEWHERE, "0.01"))]), 2), 2)]),
    ],
)
def test_however_deeply_it_is_nested_it_is_recorded(loss: Loss) -> None:
    stands = recorded(loss, USERS)
    assert list(foreign_kinds(loss))
    assert not list(foreign_kinds(stands))
    form = json.loads(json.dumps(stands.to_dict(), allow_nan=False))
    assert loss_from_dict(form) == stands
    assert {one.of_kind for one, _ in declared_in(stands, USERS)} == {"test.elsewhere"}
    assert stands.failure() == loss.failure()
    apart, truth = stands.unless_failed(), loss.unless_failed()
    assert apart.renyi(8.0) == pytest.approx(truth.renyi(8.0), rel=1e-9)
    assert apart.renyi(8.0) >= truth.renyi(8.0) * (1 - 1e-15)


def test_who_pays_what_is_recorded_for_these_users() -> None:
    stands = recorded(ByTurn(Fraction(1, 100), Fraction(0), OUT), range(10, 15))
    assert isinstance(stands, DeclaredLoss)
    assert [(users, part.zcdp()) for users, part in stands.over(range(10, 15))] == [
        (range(10, 12), Fraction(2, 100)),
        (range(12, 15), Fraction(1, 100)),
    ]


def test_the_prices_of_a_declared_loss_are_those_of_its_bounds() -> None:
    loss = declared(LeastLoss([PureLoss("0.5"), ZCDPLoss("0.01")]))
    assert loss.step() == PureLoss("0.5").step()
    assert loss.zcdp() == Fraction("0.01")
    assert loss.pure() == Fraction("0.5")
    group = loss.for_visits(3)
    assert group.zcdp() == Fraction("0.09")
    assert group.pure() == Fraction("1.5")
    with pytest.raises(BudgetError, match="a declared loss states no noise"):
        loss.noisier(Fraction(2))
    curve = declared(LeastLoss([ZCDPLoss("0.01"), RenyiCurve({"2": "0.015"})]))
    assert isinstance(curve.step(), CurveStep)
    assert curve.renyi(2.0) == pytest.approx(0.015, rel=1e-12)
    out = declared(LeastLoss([PureLoss("0.5", adjacency=OUT), ZCDPLoss("0.01", adjacency=OUT)]))
    twice = as_replace_one(out).loss
    assert twice.zcdp() == Fraction("0.04")
    assert twice.pure() == 1
    again = as_zero_out(loss).loss
    assert isinstance(again, DeclaredLoss)
    assert again.of["adjacency"] == again.loss.adjacency.value == "zero-out"


def test_a_bounded_range_is_seen_behind_its_declaration() -> None:
    ranged = declared(LeastLoss([BoundedRangeLoss("0.2"), ZCDPLoss("0.004")]))
    assert any(is_bounded_range(part) for part, _ in leaves_of(ranged))


def test_bounds_are_no_parts() -> None:
    """Else a minimiser's output noise could be paid for by a bound that costs nothing."""
    both = LeastLoss([GaussianLoss(4), ZCDPLoss("1e-9")])
    assert [part for part, _ in leaves_of(compose([(both, 1), (PureLoss(1), 1)]))] == [
        both,
        PureLoss(1),
    ]


# What is refused ----------------------------------------------------------------------------------

RHO = {"kind": "zcdp", "adjacency": "replace-one", "rho": "0.01"}
CURVE = {"kind": "renyi-curve", "adjacency": "replace-one"}


def of_bounds(*losses: Any) -> dict[str, Any]:
    return {"kind": "least", "adjacency": "replace-one", "losses": list(losses)}


def curve(*points: Any) -> dict[str, Any]:
    return of_bounds(RHO, {**CURVE, "curve": list(points)})


def form(loss: Any = RHO, **changes: Any) -> dict[str, Any]:
    of = {"kind": "test.unknown", "adjacency": "replace-one"}
    return {"kind": "declared", "adjacency": "replace-one", "of": of, "loss": loss} | changes


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (form(of={"kind": "gaussian", "adjacency": "replace-one"}), "is a kind of this package"),
        (form(of={"kind": "declared", "adjacency": "replace-one"}), "is a kind of this package"),
        (form(of={"kind": "x", "adjacency": "zero-out"}), "adjacency = 'zero-out': must be"),
        (form(of={"adjacency": "replace-one"}), "kind = None: must be"),
        (form(of={"kind": "a\x1b[2J", "adjacency": "replace-one"}), "must be 1 to 200 letters"),
        (form(of={"kind": "gaussian ", "adjacency": "replace-one"}), "must be 1 to 200 letters"),
        (form(of="x"), "of = 'x': must be an object"),
        (form(distribution="a b"), "must be the name of one"),
        (form(distribution=1), "distribution = 1: must be text"),
        (form(note="mine"), "has no 'note'"),
        (form({**RHO, "rho": 0.01}), "rho = 0.01: must be text"),
        (form({**RHO, "rho": "nan"}), "must be a finite number"),
        (form({**RHO, "rho": "-1"}), "must lie in"),
        (form(curve(["2", "0.02"], ["1", "0.01"])), "orders > 1"),
        (form(curve(["2", "-0.02"])), "bounds >= 0"),
        (form(curve(["2", "nan"])), "must be a finite number"),
        (form(curve(["2", 0.02])), "numbers that are text"),
        (form(curve(["2", "0.02"], ["4", "0.01"])), "do not fall with the order"),
        (form(curve(["2", "0.021"])), "contradict each other"),
        (form(curve(*([str(n), "0.001"] for n in range(2, 131)))), "at most 128"),
        (form(of_bounds(RHO)), "must be 2 to 8"),
        (form(of_bounds(RHO, form())), "a declared loss as a bound of one run"),
        (form(of_bounds(RHO, of_bounds(RHO, RHO))), "a least loss as a bound of one run"),
        (form(form()), "a declared loss cannot be declared"),
        (form({"kind": "visits", "adjacency": "replace-one", "loss": RHO, "most": 2, "apart": 1}),
         "a visits loss cannot be declared"),
        (form({"kind": "may-fail", "adjacency": "replace-one", "loss": RHO, "failure": "1"}),
         "strictly between 0 and 1"),
        (form({"kind": "may-fail", "adjacency": "replace-one", "loss": RHO, "failure": "-0.1"}),
         "strictly between 0 and 1"),
        (form(of_bounds(RHO, {**RHO, "kind": "bounded-range", "rho": "0.1"})), "bounded-range"),
        (form(of_bounds(RHO, {"kind": "bounded-range", "adjacency": "replace-one",
                              "epsilon": "0.1"})), "must stand first"),
        (form({**RHO, "adjacency": "zero-out"}), "a loss for zero-out in one for replace-one"),
    ],
)  # fmt: skip
def test_a_hostile_declaration_is_refused(bad: dict[str, Any], message: str) -> None:
    assert loss_from_dict(form())
    with pytest.raises((ValueError, BudgetError), match=message):
        loss_from_dict(bad)


def test_a_bound_that_is_large_enough_does_not_carry_one_that_is_not() -> None:
    """A spend that states its Gaussian mass, and beside it a price that nothing earns."""
    cheap = LeastLoss([GaussianLoss(1), ZCDPLoss("1e-9")])
    for stated in (cheap, declared(cheap), compose([(cheap, 1), (GaussianLoss(1), 1)])):
        assert not dominates(stated, GaussianLoss(1))
    assert dominates(declared(GaussianLoss(1)), GaussianLoss(1))
    account = opened()
    token = account.issue(GaussianLoss(1), users=USERS, label="sum")
    token.spend(Spend("sum", Ball(0.5, 1), GaussianNoise(1.0)))
    entry = next(e for e in account.ledger.entries if e.entry == "spend")
    fresh = account.issue(cheap, users=USERS, label="sum")
    smuggled = entry.model_copy(update={"token": fresh.id, "loss": declared(cheap).to_dict()})
    with pytest.raises(BudgetError, match="more than the stated"):
        account._state.check(smuggled)


def test_what_nobody_could_ask_again_is_refused() -> None:
    class Unregistered(Elsewhere):
        kind = "test.unregistered"

    class Posing(Elsewhere):
        kind = "zcdp"

    for kind, error, message in (
        (Unregistered, UnknownKindError, "'test.unregistered': .*Unregistered is not registered"),
        (Posing, PackageError, "'zcdp': .*Posing names itself as a kind of this package"),
    ):
        account = opened(Renyi({"8": 1}))
        with pytest.raises(error, match=message):
            account.issue(kind("0.01"), users=USERS, label="x")
        assert [entry.entry for entry in account.ledger.entries] == ["open"]


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("renyi", lambda self, order: math.nan, "must be a bound >= 0"),
        ("renyi", lambda self, order: -1.0, "must be a bound >= 0"),
        ("renyi", lambda self, order: math.inf, "no order of its curve is finite"),
        ("renyi", lambda self, order: 1 / 0, "declares what cannot be a loss"),
        ("zcdp", lambda self: Fraction(-1), "must lie in"),
        ("failure", lambda self: Fraction(1, 2), r"unless_failed\(\) may still fail"),
        ("failure", lambda self: Fraction(-1, 2), "may still fail|strictly between"),
        ("step", lambda self: "a step", "is none of privlearn.losses.steps"),
        ("over", lambda self, users: [(users[:1], self), (users[2:], self)], "leaves some"),
        ("to_dict", lambda self: {"kind": "test.elsewhere", "adjacency": "zero-out"}, "lacks|rho"),
        ("numbers", lambda self: {"rho": math.nan}, "cannot be written: of: nan: is nothing"),
    ],
)
def test_a_package_that_says_what_cannot_be_is_refused_before_anything_is_spent(
    method: str, answer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elsewhere, method, answer)
    account = opened(Renyi({"8": 1}))
    with pytest.raises(PackageError, match=message):
        account.issue(Elsewhere("0.01"), users=USERS, label="x")
    assert [entry.entry for entry in account.ledger.entries] == ["open"]


def test_a_failure_that_no_user_pays_for_is_refused() -> None:
    with pytest.raises(PackageError, match="it may fail, and for none of its users"):
        recorded(ByTurn(Fraction(2), CHANCE, OUT), USERS)


def test_a_stream_of_another_package_that_may_fail_is_refused() -> None:
    loss = ByTurn(Fraction(1, 100), CHANCE, Adjacency.REPLACE_ONE)
    token = opened(failure="0.01").issue(loss, users=USERS, label="x")
    with pytest.raises(BudgetError, match="no theorem is known for a stream"):
        token.spend(own("x", loss, interactive=True))


# What is charged ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        ELSEWHERE,
        ELSEWHERE * 2,
        VisitsLoss(ELSEWHERE, 1),
        PerArrivalLoss([(1, ELSEWHERE), (3, ELSEWHERE * 2)]),
    ],
)
@pytest.mark.parametrize("planned", [True, False])
def test_the_live_account_and_its_audit_charge_the_recorded_numbers(
    loss: Loss, planned: bool, tmp_path: Path
) -> None:
    cap = Renyi({"1.3": 1, "9": 1})
    path = tmp_path / "ledger.db"
    with opened(cap, ledger=Ledger.create(path)) as account:
        if planned:
            account.commit([Plan("x", loss, USERS)])
        account.issue(loss, users=USERS, label="x").spend(own("x", loss))
        price = cap.price(recorded(loss, USERS))
        assert account.remaining() == cap - price
        live = account.epsilon(1e-6)
    found = audit(path, delta=1e-6)
    assert not found.problems
    assert found.guarantees[0].epsilon == live
    (one,) = found.declarations
    assert (one.kind, one.status, one.distribution) == ("test.elsewhere", "agrees", None)
    assert found.model_dump_json()


def test_a_failure_that_was_declared_is_charged(tmp_path: Path) -> None:
    loss = ByTurn(Fraction(1, 100), CHANCE, Adjacency.REPLACE_ONE)
    path = tmp_path / "ledger.db"
    with opened(ledger=Ledger.create(path), failure="0.01") as account:
        account.issue(loss, users=USERS, label="x").spend(own("x", loss))
    found = audit(path)
    assert not found.problems
    assert found.spent[0].failure == float(CHANCE)
    assert math.isfinite(found.spent[0].epsilon)
    assert [one.status for one in found.declarations] == ["agrees"]


def test_a_package_that_says_something_else_each_time_pays_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = opened()
    monkeypatch.setattr(Elsewhere, "zcdp", lambda self: Fraction(1, 10))
    token = account.issue(Elsewhere("0.01"), users=USERS, label="x")
    monkeypatch.setattr(Elsewhere, "zcdp", lambda self: Fraction(1, 1000))
    token.spend(own("x", Elsewhere("0.01")))
    assert account.remaining().rho == Fraction(999, 1000)  # what stands in the spend
    (problem,) = [p for p in account.certificate().problems if "test.elsewhere" in p] or [""]
    assert problem == ""
    monkeypatch.setattr(Elsewhere, "zcdp", lambda self: Fraction(1, 500))
    (problem,) = account.certificate().problems
    assert "for x: as " in problem
    assert "rho is 0.002, recorded is 0.001" in problem


# Who is asked again -------------------------------------------------------------------------------


def test_a_package_is_asked_for_every_number_that_it_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Elsewhere, "pure", lambda self: Fraction(1, 2))
    stands = recorded(Elsewhere("0.01"), USERS)
    assert isinstance(stands, DeclaredLoss)
    assert ask_again(stands, USERS).status == "agrees"
    for method, less, more in (
        ("pure", Fraction(1, 3), Fraction(51, 100)),
        ("pure", Fraction(1, 3), None),
        ("renyi", 0.001, 0.5),
        ("failure", Fraction(0), CHANCE),
    ):
        before = getattr(Elsewhere, method)
        for answer, status in ((less, "agrees"), (more, "more")):
            monkeypatch.setattr(Elsewhere, method, lambda *_, answer=answer: answer)
            if method == "failure" and answer:
                monkeypatch.setattr(Elsewhere, "unless_failed", lambda self: ZCDPLoss("1e-9"))
            assert ask_again(stands, USERS).status == status, (method, answer)
        monkeypatch.setattr(Elsewhere, method, before)


def test_a_package_that_takes_what_was_recorded_for_none_of_its_own_agrees_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stands = recorded(Elsewhere("0.01"), USERS)
    assert isinstance(stands, DeclaredLoss)

    def refuses(*_: object, **__: object) -> None:
        raise ValueError("rho must be above 1")

    monkeypatch.setattr(Elsewhere, "__init__", refuses)
    found = ask_again(stands, USERS)
    assert (found.status, "refuses its own numbers" in found.why) == ("more", True)


def test_who_pays_more_than_was_recorded_is_found_wherever_it_is() -> None:
    """Profiles whose pieces do not begin at the same users."""
    cheap, dear = ZCDPLoss("0.1"), ZCDPLoss("0.2")
    then = PerArrivalLoss([(3, dear), (2, cheap), (5, dear)])
    for now, above in (
        ([(1, dear), (2, dear), (7, cheap)], False),
        ([(3, cheap), (3, cheap), (4, dear)], False),
        ([(3, dear), (1, cheap), (6, dear)], True),
        ([(4, dear), (6, cheap)], True),
    ):
        found = is_above(then, PerArrivalLoss(now), range(20, 30))
        assert found == ("rho is 0.2, recorded is 0.1" if above else None)
    assert "for 3 users only" in str(is_above(PerArrivalLoss([(3, cheap)]), cheap, range(5)))


def test_a_package_that_is_not_here_is_said_to_be_missing() -> None:
    assert ask_again(declared(ZCDPLoss("0.1")), USERS).status == "not here"
    account = opened()
    loss = declared(ZCDPLoss("0.1"), distribution="far-away")
    account.issue(loss, users=USERS, label="x").spend(own("m", loss))
    found = account.certificate()
    assert [p for p in found.problems if "simul" not in p] == []
    (note,) = [text for text in found.trusted_code if text.startswith("loss kind")]
    assert note.startswith("loss kind 'x' of far-away, for m: its bounds are counted as they were ")
    (said,) = [a for a in found.guarantees[0].rests_on if a.text.startswith("Loss kind 'x'")]
    assert (said.kind, said.weakens) == ("declared", True)


# Going on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("says", "goes_on"), [("0.01", True), ("0.005", True), ("0.02", False)])
def test_a_run_goes_on_at_what_was_recorded_unless_the_package_says_more(
    says: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    plan = [Plan("x", Elsewhere("0.01"), USERS, 2)]
    monkeypatch.setattr(Elsewhere, "zcdp", lambda self: Fraction("0.01"))
    first = opened(ledger=Ledger.create(path))
    first.commit(plan)
    first.issue(Elsewhere("0.01"), users=USERS, label="x").spend(own("x", Elsewhere("0.01")))
    first.ledger.close()
    monkeypatch.setattr(Elsewhere, "zcdp", lambda self: Fraction(says))
    monkeypatch.setattr(Elsewhere, "renyi", lambda self, order: float(says) * order)
    again: CentralAccountant[Any] = CentralAccountant.resume(path, noise=NoiseSource.simulation(0))
    if not goes_on:
        with pytest.raises(BudgetError):
            again.commit(plan)
        return
    again.commit(plan)
    token = again.issue(Elsewhere("0.01"), users=USERS, label="x")
    token.spend(own("x", Elsewhere("0.01")))
    again.close()
    found = audit(path)
    assert not found.problems
    assert found.spent[0].rho == pytest.approx(0.02)


def test_a_run_that_an_older_version_began_goes_on_with_bare_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    cap = Renyi({"8": 1})
    with monkeypatch.context() as older:
        older.setattr(account_log, "recorded", lambda loss, users, before: loss)
        first = opened(cap, ledger=Ledger.create(path))
        first.commit([Plan("x", ELSEWHERE, USERS, 2)])
        first.ledger.close()
    again: CentralAccountant[Any] = CentralAccountant.resume(path, noise=NoiseSource.simulation(0))
    again.commit([Plan("x", ELSEWHERE, USERS, 2)])
    again.issue(ELSEWHERE, users=USERS, label="x").spend(own("x", ELSEWHERE))
    again.close()
    found = audit(path)
    assert not found.problems
    assert not found.declarations
    assert [note for note in found.trusted_code if note.startswith("loss kind 'test.elsewhere' (")]


def test_a_token_of_a_budget_pays_for_what_is_recorded() -> None:
    account = opened(PureDP(1))
    token = account.issue(PureDP("0.1"), users=USERS, label="x")
    loss = declared(PureLoss("0.1"))
    token.spend(own("x", loss))
    assert account.remaining() == PureDP("0.9")
