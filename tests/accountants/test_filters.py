"""Filters, failures, odometers, sub-budgets and interleaved streams."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, Filter, Odometer, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.guarantee import epsilon_of
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CurrencyError,
    InsufficientBudgetError,
    LedgerError,
    LossExceedsTokenError,
    TokenError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import parse_entry
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PureLoss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
    gaussian_loss,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.losses.conversion import zcdp_rho
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting.certificates import weaknesses
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(10)
CAPS: list[Currency] = [
    PureDP(1),
    ZCDP("0.5"),
    GaussianDP(1),
    Renyi({4: 1}),
    Renyi({2: "0.3", 8: 1, 32: 3}),
]


def central(budget: Any = "1", **more: Any) -> CentralAccountant[Any]:
    cap = ZCDP(budget) if isinstance(budget, str) else budget
    return CentralAccountant(cap, users=USERS, noise=NoiseSource.simulation(0), **more)


def black_box(loss: Loss, **more: Any) -> Spend:
    return Spend("box", Ball(1.0, 2), GaussianNoise(1.0), own_loss=loss, **more)


def run(book: CentralAccountant[Any], loss: Loss, users: range = USERS) -> None:
    with book.issue(loss, users=users, label="box").spend(black_box(loss)):
        pass


# Filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", CAPS, ids=repr)
@given(data=st.data())
def test_a_greedy_adversary_never_gets_more_than_the_cap(cap: Currency, data: Any) -> None:
    """Always the largest loss that still fits, from random candidates in random order."""
    meter: Filter[Any] = Filter(cap)
    made: list[Loss] = []
    for _ in range(12):
        sizes = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
        for size in sorted(sizes, reverse=True):
            value = Fraction(size, 1000)
            loss: Loss = GaussianLoss(value) if not isinstance(cap, PureDP) else LaplaceLoss(value)
            if meter.fits(loss):
                meter.spend(loss)
                made.append(loss)
                break
            with pytest.raises(InsufficientBudgetError):
                meter.spend(loss)
    total = cap.zero()
    for loss in made:
        total = total + cap.price(loss)
    assert cap.covers(total)
    assert meter.spent.amounts == total.amounts
    if made:
        whole = made[0] if len(made) == 1 else sum(made[1:], start=made[0])
        assert epsilon_of(whole, 1e-6).value <= meter.epsilon(1e-6).value * (1 + 1e-9)


def test_a_filter_is_the_accountant_for_one_user() -> None:
    meter, book = Filter(ZCDP("0.1")), central("0.1")
    for size in (30, 1, 80, 20, 3, 50, 40, 7):
        loss = GaussianLoss(Fraction(size, 1000))
        if meter.fits(loss):
            meter.spend(loss)
            book.issue(loss, users=USERS, label="x")
        else:
            with pytest.raises(InsufficientBudgetError):
                book.issue(loss, users=USERS, label="x")
    assert meter.spent == book.spent()
    assert meter.remaining == book.remaining()
    assert meter.epsilon(1e-6).value == book.epsilon(1e-6)


def test_a_rule_that_stops_when_all_orders_are_exceeded_is_another_rule() -> None:
    """The planted defect: one order below its cap is enough.  Our cap holds at every order."""
    cap = Renyi({2: 1, 64: 1})
    meter = Filter(cap)
    loss = GaussianLoss("0.1")  # 0.1 and 3.2
    assert any(loss.renyi(float(a)) <= e for a, e in cap.curve.items())
    assert not meter.fits(loss)


def test_a_simulated_filter_keeps_its_divergence_and_one_without_a_cap_does_not() -> None:
    """Exact Rényi divergence of adaptively chosen randomized responses, by enumeration.

    The adversary goes on only after outputs that speak for the first world.
    """
    order, step = 3.0, PureLoss("0.8")
    p = math.exp(0.8) / (1 + math.exp(0.8))

    def moment(meter: Filter[Any] | None, depth: int, loss: float) -> float:
        going = depth > 0 and loss >= 0 and (meter is None or meter.fits(step))
        if not going:
            return math.exp((order - 1) * loss)
        inner = None
        if meter is not None:
            inner = Filter(meter.cap)
            inner._sum = meter._sum
            inner.spend(step)
        up, down = (moment(inner, depth - 1, loss + s) for s in (0.8, -0.8))
        return p * up + (1 - p) * down

    cap = Renyi({3: Fraction(step.renyi(order)) * 4})
    held = math.log(moment(Filter(cap), 10, 0.0)) / (order - 1)
    broken = math.log(moment(None, 10, 0.0)) / (order - 1)
    assert held <= float(cap.curve[Fraction(3)]) < broken


def test_counts_and_refusals_of_a_filter() -> None:
    meter = Filter(ZCDP("0.1"))
    meter.spend(GaussianLoss("0.02"), 10)
    assert meter.remaining.is_zero
    with pytest.raises(InsufficientBudgetError, match="requested ZCDP"):
        meter.spend(GaussianLoss("0.02"))
    for bad in (0, -1, True, 1.5):
        with pytest.raises((TypeError, ValueError), match="count"):
            meter.fits(GaussianLoss("0.1"), bad)  # type: ignore[arg-type]
    with pytest.raises(AdjacencyError):
        meter.fits(GaussianLoss("0.1", adjacency=Adjacency.ZERO_OUT))
    with pytest.raises(CurrencyError):
        Filter(GaussianDP(1)).spend(ZCDPLoss("0.1"))
    for cap in (ZCDP(0), None):
        with pytest.raises(BudgetError, match="must be a currency above zero"):
            Filter(cap)  # type: ignore[type-var]
    for refused, share in ((ZCDP(1), 1), (ApproxDP(1, "1e-6"), "1e-6"), (ApproxDP(1, "0.1"), -1)):
        with pytest.raises(BudgetError, match=r"failure = .*must lie in"):
            Filter(refused, failure=share)
    assert all("20" in Filter(cap).theorem for cap in CAPS)


# Rests in Gaussian mass -----------------------------------------------------------------------


def divergence(mass: Fraction, epsilon: float) -> float:
    """The hockey-stick of N(μ, 1) against N(0, 1) at any real ε."""
    if not mass:
        return max(0.0, 1 - math.exp(epsilon))
    mu = math.sqrt(2 * mass)
    first, second = (math.erfc(epsilon / mu + s * mu / 4) / 2 for s in (-1, 1))
    return first - math.exp(epsilon) * second


def reports(loss: Loss) -> list[tuple[float, float]]:
    """Probabilities under P, and losses, of a randomized response."""
    assert isinstance(loss, RandomizedResponse)
    top, z = float(loss.epsilon), math.exp(loss.epsilon) + loss.categories - 1
    return [(math.exp(top) / z, top), (1 / z, -top), ((loss.categories - 2) / z, 0.0)]


@pytest.mark.parametrize(("epsilon", "delta", "reached"), [(1, "1e-6", 21), (1, "1e-3", 59)])
def test_fully_adaptive_pure_releases_under_an_approximate_cap(
    epsilon: int, delta: str, reached: int
) -> None:
    meter = Filter(ApproxDP(epsilon, delta))
    loss = PureLoss("0.05")
    assert meter.fits(loss, reached)
    assert not meter.fits(loss, reached + 1)
    for _ in range(reached):
        meter.spend(loss)
    with pytest.raises(InsufficientBudgetError):
        meter.spend(loss)
    assert meter.epsilon(float(delta)).value <= epsilon
    additive = Filter(ZCDP(zcdp_rho(1.0, float(delta))))
    assert not additive.fits(loss, reached)


def test_the_best_adaptive_adversary_stays_below_the_cap_exactly() -> None:
    """Every choice after every output, by enumeration; what is left at an end goes to a Gaussian.

    The planted defect charges a pure loss ε² whatever the rest is: true only in the limit.
    """
    menu = [RandomizedResponse(e, k) for e, k in (("0.2", 2), ("0.9", 2), ("0.6", 12))]

    def best(meter: Filter[Any], depth: int, epsilon: float, broken: bool) -> float:
        rest = meter.remaining.mu_squared
        values = [divergence(rest, epsilon)]
        for loss in menu if depth else []:
            after = meter._after(loss, 1)
            if broken:
                paid = meter.spent.mu_squared + loss.epsilon**2
                after = ((paid,), Fraction(0)) if paid <= meter.cap.mu_squared else None
            if after is not None:
                inner = Filter(meter.cap)
                inner._sum = after
                values.append(
                    sum(p * best(inner, depth - 1, epsilon - s, broken) for p, s in reports(loss))
                )
        return max(values)

    for cap in (GaussianDP.from_mu_squared("0.9"), GaussianDP.from_mu_squared("2.1")):
        for epsilon in (-0.7, 0.0, 0.5, 2.5):
            held = best(Filter(cap), 3, epsilon, False)
            assert held <= divergence(cap.mu_squared, epsilon) * (1 + 1e-12)
        assert best(Filter(cap), 3, 0.0, True) > divergence(cap.mu_squared, 0.0) * 1.001


def test_a_natural_filter_on_whole_loss_distributions_breaks_its_promise() -> None:
    """The planted defect: composing the laws of what was spent, (ε, δ) of which is at most the cap.

    Each path stays within (1, δ) as if it had been planned, yet to choose the path by the first
    output is not (1, δ)-DP (arXiv 2602.06756).  The filter on rests holds for the same adversary.
    """
    first, bold, broad = (
        RandomizedResponse(e, k) for e, k in (("0.5", 2), ("0.512", 2), (2, 1000))
    )

    def stick(losses: list[Loss], epsilon: float) -> float:
        if not losses:
            return divergence(Fraction(0), epsilon)
        return sum(p * stick(losses[1:], epsilon - s) for p, s in reports(losses[0]))

    def chosen(epsilon: float, allowed: Sequence[Loss]) -> float:
        return sum(
            p * max(stick([loss] if loss else [], epsilon - s) for loss in (None, *allowed))
            for p, s in reports(first)
        )

    delta = max(stick([first, bold], 1.0), stick([first, broad], 1.0))
    assert chosen(1.0, [bold, broad]) > 1.2 * delta
    meter = Filter(ApproxDP(1, delta))
    if meter.fits(first):
        meter.spend(first)
    allowed = [loss for loss in (bold, broad) if meter.fits(loss)]
    assert chosen(1.0, allowed) <= delta


def test_what_may_fail_is_paid_from_the_share_of_delta_set_aside() -> None:
    meter = Filter(ApproxDP(1, "1e-6"), failure="3e-7")
    box = ApproxLoss("0.05", "1e-7")
    meter.spend(box, 3)
    assert meter.failed == Fraction(3, 10**7)
    assert not meter.fits(box)
    assert meter.fits(PureLoss("0.05"))
    assert 1 - 1e-9 < meter.epsilon(1e-6).value <= 1
    for cap in (ApproxDP(1, "1e-6"), GaussianDP(1)):
        with pytest.raises(InsufficientBudgetError, match="failure"):
            Filter(cap).spend(box)


def test_accounts_and_odometers_hold_pure_and_subsampled_losses(tmp_path: Path) -> None:
    book = central(GaussianDP(1), ledger=Ledger.create(tmp_path / "ledger.db"))
    for loss in (LaplaceLoss("0.1"), BoundedRangeLoss("0.2"), PureLoss("0.1")):
        run(book, loss)
    # at fixed prices, whatever else is spent: near π/2·(ε² + ε²/4 + ε²)
    assert float(book.spent().mu_squared) == pytest.approx(math.pi / 2 * 0.03, rel=0.03)
    book.close()
    assert audit(tmp_path / "ledger.db").problems == []
    meter = Odometer("1e-6", adjacency=Adjacency.ADD_REMOVE)
    plain = Odometer("1e-6", adjacency=Adjacency.ADD_REMOVE)
    meter.spend(SubsampledGaussian(10, "0.01"), 4)
    plain.spend(GaussianLoss("0.01", adjacency=Adjacency.ADD_REMOVE), 4)
    assert meter.bound.epsilon == pytest.approx(plain.bound.epsilon, rel=1e-6)


# Failures: the (ε, δ) filter ------------------------------------------------------------------


def whitehouse(epsilons: list[float], delta: float) -> float:
    """The (ε, δ) filter of Whitehouse et al. 2023: sqrt(2 log(1/δ) Σε²) + Σε²/2."""
    mass = sum(e * e for e in epsilons)
    return math.sqrt(2 * math.log(1 / delta) * mass) + mass / 2


def test_the_approximate_filter_is_no_worse_than_the_published_one() -> None:
    for epsilon, count in ((0.1, 100), (0.01, 5000), (0.5, 12)):
        meter: Filter[ZCDP] = Filter(ZCDP("100"), failure="1e-7")
        meter.spend(ApproxLoss(epsilon, "1e-12"), count)
        ours = Filter(meter.spent, failure="1e-7").epsilon(1.1e-6).value
        assert ours <= whitehouse([epsilon] * count, 1e-6)


def test_an_accountant_sets_failures_aside_and_keeps_its_promise(tmp_path: Path) -> None:
    promise = ApproxDP(1, "1e-6")
    ledger = Ledger.create(tmp_path / "ledger.db")
    book = central(promise, failure="3e-7", ledger=ledger)
    assert book.epsilon(1e-6) <= 1 + 1e-12
    assert book.budget.rho < central(promise).budget.rho
    box = ApproxLoss("0.05", "1e-7")
    for _ in range(3):
        run(book, box)
    assert book.failure() == Fraction(3, 10**7)
    with pytest.raises(InsufficientBudgetError, match=r"failure 1/10+|failure 0\.0*1, remaining"):
        run(book, box)
    run(book, PureLoss("0.05"))  # what cannot fail still fits
    assert 0 < book.epsilon(1e-6, of="spent") <= 1
    book.close()
    found = audit(tmp_path / "ledger.db")
    assert found.problems == []
    (guarantee,) = found.guarantees
    assert guarantee.failure == pytest.approx(3e-7)
    assert guarantee.epsilon == pytest.approx(1, rel=1e-6)
    assert any("includes a probability of failing" in line for line in guarantee.assumptions)


def test_a_failing_loss_needs_a_failure_budget() -> None:
    book = central()
    with pytest.raises(InsufficientBudgetError, match="failure"):
        book.issue(ApproxLoss("0.1", "1e-9"), users=USERS, label="x")
    plain = book.issue(ZCDP("0.1"), users=USERS, label="x")
    with pytest.raises(LossExceedsTokenError, match="fails with probability"):
        plain.spend(black_box(ApproxLoss("0.1", "1e-9")))
    with pytest.raises(LossExceedsTokenError, match="fails with probability"):
        book.issuer.record_spend(
            plain, black_box(ApproxLoss("0.1", "1e-9")), ApproxLoss("0.1", "1e-9")
        )
    with pytest.raises(BudgetError, match="says itself"):
        book.issue(GaussianLoss("0.1"), users=USERS, label="x", failure="1e-9")
    for bad in ("1e-6", "0.5", "-0.1"):
        with pytest.raises(BudgetError, match="failure"):
            central(ApproxDP(1, "1e-6"), failure=bad)
    assert book.failure() == 0


def test_the_rest_of_a_failure_budget_comes_back() -> None:
    book = central(failure="1e-6")
    token = book.issue(ZCDP("0.5"), users=range(5), label="x", failure="1e-6")
    assert book.failure(0) == Fraction(1, 10**6)
    assert book.failure(9) == 0
    with token.spend(black_box(ApproxLoss("0.1", "1e-8"))):
        pass
    assert book.failure() == Fraction(1, 10**8)
    book.issue(ZCDP("0.1"), users=USERS, label="x", failure="9e-7").retire()
    assert book.failure() == Fraction(1, 10**8)


def test_failures_are_kept_per_user_and_in_plans() -> None:
    book = central(failure="2e-9")
    box = ApproxLoss("0.1", "1e-9")
    plan = [Plan("a", box, range(5), 2), Plan("b", box, range(5, 10), 1)]
    with pytest.raises(InsufficientBudgetError, match="failure"):
        book.commit([*plan, Plan("c", box, range(4, 6), 1)])
    book.commit(plan)
    token = book.issue(box, users=range(5), label="a")
    assert token.failure == Fraction(1, 10**9)
    with token.spend(black_box(box)):
        pass
    assert book.epsilon(1e-9) == math.inf
    certificate = book.certificate(1e-9)
    assert certificate.guarantees[0].epsilon == math.inf
    assert any("no finite ε at δ = 1e-09" in text for text in weaknesses(certificate))
    assert certificate.problems == []  # a statement about the guarantee
    assert book.certificate(1e-6).problems == []


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5)), min_size=1, max_size=8),
    st.floats(0.1, 4),
)
def test_the_cap_with_failures_bounds_every_composition_under_it(
    sizes: list[tuple[int, int]], epsilon: float
) -> None:
    meter: Filter[ZCDP] = Filter(ZCDP("0.2"), failure="1e-5")
    made: list[Loss] = []
    for size, failing in sizes:
        value = Fraction(size, 1000)
        loss = ApproxLoss(value, Fraction(failing, 10**6)) if failing else PureLoss(value)
        if meter.fits(loss):
            meter.spend(loss)
            made.append(loss)
    if made:
        whole = made[0] if len(made) == 1 else sum(made[1:], start=made[0])
        from privlearn.accountants.guarantee import delta_of

        assert delta_of(whole, epsilon).value <= meter.delta(epsilon).value * (1 + 1e-9)


def test_old_entries_have_no_failures() -> None:
    book = central()
    run(book, GaussianLoss("0.1"))
    for record in book.ledger.records:
        body = {
            name: value
            for name, value in record.body.items()
            if name not in ("failure", "allowance", "odometer", "interactive", "profile")
        }
        assert parse_entry(body) == parse_entry(record.body)


def test_may_fail_is_data_and_composes() -> None:
    from privlearn.losses import loss_from_dict

    loss = FailingLoss(GaussianLoss("0.1"), "1e-8")
    assert loss_from_dict(loss.to_dict()) == loss
    assert (loss.zcdp(), loss.gaussian(), loss.pure()) == (None, None, None)
    assert loss.renyi(2) == math.inf
    assert (loss * 3).failure() == Fraction(3, 10**8)
    assert (loss * 3).unless_failed() == GaussianLoss("0.1") * 3
    for bad in (0, 1, -1):
        with pytest.raises(ValueError, match="failure"):
            FailingLoss(GaussianLoss("0.1"), bad)
    with pytest.raises(ValueError, match="failure"):
        FailingLoss(loss, "0.1")


# Odometers ------------------------------------------------------------------------------------


def test_the_odometer_covers_all_times_at_once() -> None:
    """Gaussian steps chosen from the past, the worst time of 300: the bound fails rarely.

    The planted defect is the bound for one time, Φ⁻¹, asked again after each spend.
    """
    delta, steps, runs = 0.05, 300, 2000
    random = np.random.default_rng(5)
    loss, mass = np.zeros(runs), np.zeros(runs)
    worst, naive = np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool)
    bounds: dict[float, float] = {}
    for _ in range(steps):
        # bold while the loss is high, as somebody who wants to be caught above the line
        size = np.where(loss > mass / 2, 0.04, 0.01)
        loss += np.sqrt(size) * random.normal(size=runs) + size / 2
        mass += size
        for value in np.unique(mass.round(6)):
            if value not in bounds:
                meter = Odometer("0.05")
                meter.spend(GaussianLoss(str(value)))
                bounds[value] = meter.bound.epsilon
        line = np.array([bounds[value] for value in mass.round(6)])
        worst |= loss > line
        naive |= loss > mass / 2 + 1.6449 * np.sqrt(mass)
    assert worst.mean() <= delta
    assert naive.mean() > 2 * delta


def test_the_odometer_is_a_union_of_lines() -> None:
    meter = Odometer("1e-6")
    assert meter.bound.epsilon == 0
    values = []
    for _ in range(40):
        meter.spend(GaussianLoss("0.02"))
        values.append(meter.bound.epsilon)
    assert values == sorted(values)
    rho = 0.4
    best = rho + 2 * math.sqrt(rho * math.log(17e6))
    assert best <= values[-1] <= best * 1.07
    assert meter.bound.delta == pytest.approx(1e-6)
    assert values[-1] > epsilon_of(ZCDP("0.4"), 1e-6).value  # time-uniform costs more


def test_odometers_of_other_currencies() -> None:
    pure = Odometer("0.01", currency=PureDP(1))
    pure.spend(LaplaceLoss("0.3"), 3)
    assert pure.bound.epsilon == pytest.approx(0.9)
    renyi = Odometer("0.01", currency=Renyi({2: 1, 11: 1}))
    renyi.spend(GaussianLoss("0.1"), 2)
    assert renyi.bound.epsilon == pytest.approx(1.1 + math.log(200) / 10)
    gdp = Odometer("0.01", currency=GaussianDP(1))
    zcdp = Odometer("0.01")
    for meter in (gdp, zcdp):
        meter.spend(GaussianLoss("0.3"))
    assert gdp.bound == zcdp.bound
    failing = Odometer("0.01", failure="0.001")
    failing.spend(ApproxLoss("0.1", "0.001"))
    assert failing.bound.delta == pytest.approx(0.011)
    with pytest.raises(InsufficientBudgetError, match="failure"):
        failing.spend(ApproxLoss("0.1", "0.001"))
    with pytest.raises(AdjacencyError):
        zcdp.spend(GaussianLoss("0.1", adjacency=Adjacency.ZERO_OUT))
    for bad in (0, 1, -1):
        with pytest.raises(ValueError, match="delta"):
            Odometer(bad)
    with pytest.raises(ValueError, match="failure"):
        Odometer("0.5", failure="0.5")


def test_an_accountant_states_its_odometer_beside_the_guarantee(tmp_path: Path) -> None:
    book = central("1000", odometer="1e-6", ledger=Ledger.create(tmp_path / "ledger.db"))
    meter = Odometer("1e-6")
    for _ in range(4):
        run(book, GaussianLoss("0.1"), range(5))
        meter.spend(GaussianLoss("0.1"))
        assert book.running_bound() == book.running_bound(0) == meter.bound
    assert book.running_bound(7).epsilon == 0
    book.close()
    found = audit(tmp_path / "ledger.db")
    assert found.problems == []
    assert found.guarantees[0].running is None  # the guarantee is the cap's
    running = found.spent[0].running
    assert running is not None
    assert running.epsilon == meter.bound.epsilon
    assert "Ville" in running.theorem
    with pytest.raises(BudgetError, match="declare its δ"):
        central().running_bound()
    for bad in ("0", "1", "-1"):
        with pytest.raises(BudgetError, match="odometer"):
            central(odometer=bad)


# Sub-budgets ----------------------------------------------------------------------------------


def test_a_component_spends_its_part_and_gives_back_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = central(ledger=Ledger.create(path))
    with book.delegate(ZCDP("0.6"), users=range(6), label="part") as part:
        assert (book.spent(0), book.spent(9)) == (ZCDP("0.6"), ZCDP(0))
        assert (part.budget, part.users, part.trust) == (ZCDP("0.6"), range(6), book.trust)
        SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.1"))
        rows = Rows.seal(np.ones((6, 2)), users=range(6))
        SUM.release(rows, part.issue(SUM.loss(), users=range(6), label="sum"))
        part.issue(ZCDP("0.5"), users=range(3), label="spare").retire()
        assert part.spent() == ZCDP(SUM.loss().zcdp() or 0)
        with pytest.raises(InsufficientBudgetError, match=r"remaining ZCDP\('0.5"):
            part.issue(ZCDP("0.51"), users=range(6), label="more")
        with pytest.raises(UsersError):
            part.issue(ZCDP("0.1"), users=range(5, 8), label="others")
        with pytest.raises(BudgetError, match="comes before the first token"):
            part.commit([Plan("late", GaussianLoss("0.1"), range(6))])
        with pytest.raises(InsufficientBudgetError):  # the rest of the cap is the accountant's
            book.issue(ZCDP("0.5"), users=USERS, label="own")
        book.issue(ZCDP("0.4"), users=USERS, label="own").retire()
    assert part.closed
    assert book.spent() == ZCDP(SUM.loss().zcdp() or 0)
    with pytest.raises(BudgetError, match="was returned before"):
        part.issue(ZCDP("0.1"), users=range(6), label="late")
    book.close()
    assert audit(path).problems == []


def test_what_a_component_left_out_stays_charged_until_it_ends() -> None:
    book = central()
    part = book.delegate(ZCDP("0.6"), users=USERS, label="part", failure=0)
    token = part.issue(ZCDP("0.4"), users=range(5), label="late")
    part.close()
    part.close()
    assert (book.spent(0), book.spent(9)) == (ZCDP("0.4"), ZCDP(0))
    with token.spend(black_box(GaussianLoss("0.1"))):
        pass
    assert book.spent() == ZCDP("0.05")
    assert book.certificate().problems == []


def test_failures_are_delegated_too() -> None:
    book = central(failure="1e-6")
    with book.delegate(ZCDP("0.5"), users=USERS, label="part", failure="6e-7") as part:
        assert part.failure == Fraction(6, 10**7)
        with pytest.raises(InsufficientBudgetError, match="failure"):
            book.issue(ZCDP("0.1"), users=USERS, label="x", failure="5e-7")
        with pytest.raises(InsufficientBudgetError, match="failure"):
            part.issue(ApproxLoss("0.1", "7e-7"), users=USERS, label="x")
        part.issue(ApproxLoss("0.1", "5e-7"), users=USERS, label="x")
    assert book.failure() == Fraction(5, 10**7)


def test_delegation_is_refused_where_it_has_no_place() -> None:
    book = central()
    with pytest.raises(InsufficientBudgetError):
        book.delegate(ZCDP("1.1"), users=USERS, label="part")
    with pytest.raises(BudgetError, match="can pay for nothing"):
        book.delegate(ZCDP(0), users=USERS, label="part")
    with pytest.raises(CurrencyError):
        book.delegate(PureDP(1), users=USERS, label="part")
    part = book.delegate(ZCDP("0.1"), users=USERS, label="part")
    with pytest.raises(BudgetError, match="committed once"):
        book.commit([Plan("x", GaussianLoss("0.1"), USERS)])
    with pytest.raises(TokenError, match="cannot be copied"):
        copy.copy(part)
    planned = central()
    planned.commit([Plan("x", GaussianLoss("0.1"), USERS)])
    with pytest.raises(BudgetError, match="a plan is exhaustive"):
        planned.delegate(ZCDP("0.1"), users=USERS, label="part")


def test_open_allowances_are_returned_at_the_end_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = central(ledger=Ledger.create(path))
    part = book.delegate(ZCDP("0.6"), users=USERS, label="part")
    with part.issue(ZCDP("0.2"), users=USERS, label="x").spend(black_box(GaussianLoss("0.1"))):
        pass
    part.issue(ZCDP("0.2"), users=USERS, label="forgotten")
    again: CentralAccountant[Any] = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    assert again.spent() == ZCDP("0.05")
    again.delegate(ZCDP("0.6"), users=USERS, label="second")
    again.close()
    assert audit(path).problems == []
    assert audit(path).closed


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (lambda b: b["delegate"].update(budget={"kind": "zcdp", "rho": "0.01"}), "exceeded"),
        (lambda b: b["delegate"].update(users=[0, 5]), "must be a non-empty part"),
        (lambda b: b["issue"].update(allowance="a/allowance-9"), "was never delegated"),
        (lambda b: b["issue"].update(allowance=None), "exceeded"),
        (lambda b: b["issue"].update(failure="0.1"), "failure"),
        (lambda b: b["issue"].update(failure="2"), "failure"),
        (lambda b: b["open"].update(failure="-1"), "failure"),
        (lambda b: b["return"].update(allowance="x"), "was never delegated"),
    ],
)
def test_a_component_that_took_more_than_its_part_is_found(lie: Any, message: str) -> None:
    book = central()
    with book.delegate(ZCDP("0.9"), users=USERS, label="part") as part:
        part.issue(ZCDP("0.5"), users=USERS, label="x").retire()
    bodies = [dict(record.body) for record in book.ledger.records]
    lie({body["entry"]: body for body in bodies})
    problems = certify(chained(bodies)).problems
    assert any(message in problem for problem in problems), problems


def test_a_close_with_an_open_allowance_is_a_problem() -> None:
    book = central()
    book.delegate(ZCDP("0.9"), users=USERS, label="part")
    book.close()
    bodies = [r.body for r in book.ledger.records if r.body["entry"] != "return"]
    assert any("return them first" in text for text in certify(chained(bodies)).problems)


@given(data=st.data())
def test_delegated_parts_and_own_tokens_never_exceed_the_cap(data: Any) -> None:
    """Random issues, spends, retirements and returns against one array per user."""
    book = central()
    parts: list[Any] = [book]
    live: list[Any] = []
    for _ in range(data.draw(st.integers(1, 20))):
        amount = Fraction(data.draw(st.integers(1, 60)), 100)
        users = range(data.draw(st.integers(0, 4)), data.draw(st.integers(5, 10)))
        try:
            match data.draw(st.sampled_from(["issue", "delegate", "return", "spend", "retire"])):
                case "issue":
                    who = parts[data.draw(st.integers(0, len(parts) - 1))]
                    live.append(who.issue(ZCDP(amount), users=users, label="x"))
                case "delegate":
                    parts.append(book.delegate(ZCDP(amount), users=users, label="x"))
                case "return" if len(parts) > 1:
                    parts[data.draw(st.integers(1, len(parts) - 1))].close()
                case "spend" if live:
                    token = live.pop()
                    loss = GaussianLoss(token.budget.rho * data.draw(st.sampled_from([1, 2])))
                    with token.spend(black_box(loss)):
                        pass
                case "retire" if live:
                    live.pop(0).retire()
        except (InsufficientBudgetError, UsersError, BudgetError):
            pass
        assert book.budget.covers(book.spent())
    for user in USERS:
        tally = next(v for users, v in book._state.charged.spent.pieces() if user in users)
        assert sum(Fraction(loss.zcdp() or 0) * n for loss, n in tally.items()) <= 1
    for part in parts[1:]:
        part.close()
    for token in live:
        token.retire()
    book.close()
    certificate = certify(book.ledger.records)
    assert certificate.problems == []
    charged = [value.amounts[0] for _, value in book._state.meter.pieces()]
    spent = {
        users.start: sum(Fraction(loss.zcdp() or 0) * n for loss, n in tally.items())
        for users, tally in book._state.charged.spent.pieces()
    }
    assert max(charged) == max(spent.values(), default=0)


# Interleaved streams --------------------------------------------------------------------------


def test_streams_are_marked_and_the_theorem_is_named() -> None:
    book = central()
    gram = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.1"), horizon=10)
    total = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.1"))
    rows = Rows.seal(np.ones((10, 2)), users=USERS)
    assert not book.certificate().interleaved
    with gram.open(book.issue(gram.loss(), users=USERS, label="gram")) as stream:
        stream.append(rows.slice(range(0, 5)))
        assert not book.certificate().interleaved
        total.release(rows, book.issue(total.loss(), users=USERS, label="sum"))
        stream.append(rows.slice(range(5, 10)))
    certificate = book.certificate()
    assert certificate.interleaved
    shares = {share.label: share.interactive for share in certificate.mechanisms}
    assert shares == {"gram": True, "sum": False}
    text = " ".join(certificate.guarantees[0].assumptions)
    assert "Haney" in text
    assert "Vadhan & Zhang 2023" in text
    assert "Lyu 2022" in text


def test_only_an_interactive_spend_lets_out_more_than_one_value() -> None:
    book = central()
    spend = black_box(GaussianLoss("0.1"))
    with book.issue(GaussianLoss("0.1"), users=USERS, label="x").spend(spend) as receipt:
        receipt.draw((1,))
        with pytest.raises(TokenError, match="interactive=True"):
            receipt.publish(np.zeros(1))
    stream = black_box(GaussianLoss("0.1"), interactive=True)
    with book.issue(GaussianLoss("0.1"), users=USERS, label="x").spend(stream) as receipt:
        receipt.draw((1,))
        receipt.publish(np.zeros(1))


def test_a_stream_whose_loss_holds_only_apart_from_an_event_is_refused() -> None:
    book = central(failure="1e-6")
    loss = FailingLoss(GaussianLoss("0.1"), "1e-7")
    token = book.issue(loss, users=USERS, label="x")
    with pytest.raises(BudgetError, match="no theorem is known"):
        token.spend(black_box(loss, interactive=True))
    with token.spend(black_box(loss)):
        pass


# The in-memory ledger -------------------------------------------------------------------------


def test_a_memory_ledger_still_refuses_what_a_file_could_not_hold() -> None:
    book = central()
    for bad in (object(), [object()], {"a": {1, 2}.__iter__}, b"\xff", math.nan):
        token = book.issue(gaussian_loss(2.0, 20.0, Adjacency.REPLACE_ONE), users=USERS, label="x")
        spend = Spend("x", Ball(1.0, 2), GaussianNoise(20.0), parameters={"value": bad})
        with pytest.raises((ValueError, TypeError)):
            token.spend(spend)
        token.retire()
    for good in ({1: 2}, (1, [2.5, None, "x"]), np.float64(1.5)):
        token = book.issue(gaussian_loss(2.0, 20.0, Adjacency.REPLACE_ONE), users=USERS, label="x")
        with token.spend(Spend("x", Ball(1.0, 2), GaussianNoise(20.0), parameters={"value": good})):
            pass
    assert certify(book.ledger.records).problems == []


def test_equal_numbers_of_other_types_are_not_taken_for_one_another() -> None:
    """The planted defect: a cache of readings in which True, 1 and 1.0 are one key."""
    from privlearn.accountants.prices import Reader

    reader = Reader(lambda data: type(data["x"]).__name__)
    values: list[Any] = [1.0, True, 1, "1", 1.0]
    assert [reader({"x": value}) for value in values] == ["float", "bool", "int", "str", "float"]
    assert reader({"x": [1]}) == "list"


def test_bounded_range_and_laplace_are_priced_alike_by_filter_and_account() -> None:
    for loss in (BoundedRangeLoss("0.3"), LaplaceLoss("0.2"), PureLoss("0.1")):
        meter, book = Filter(ZCDP(1)), central()
        meter.spend(loss, 3)
        for _ in range(3):
            run(book, loss)
        assert meter.spent == book.spent()
    book.close()
    with pytest.raises(LedgerError):
        run(book, GaussianLoss("0.1"))
