"""Private fits: priced, paid, certified, and distributed as the theorem says."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import kstest

from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Mechanism
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CurrencyError,
    HorizonError,
    LossExceedsTokenError,
    ProvenanceError,
    SolverError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses import MinimizerLoss, VisitsLoss, gaussian_loss, loss_from_dict
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi, budget_from_dict
from privlearn.mechanisms import (
    LinearObjective,
    LogisticObjective,
    MultinomialLogit,
    Objective,
    ObjectivePerturbation,
    objective_perturbation,
    published,
)
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.far_tilts import Reach
from privlearn.mechanisms.linear_models import Labelled
from privlearn.mechanisms.multinomial import Choices
from privlearn.mechanisms.objective_perturbation import BLUR_SHARE, least_noise
from privlearn.mechanisms.published import Tilt
from privlearn.mechanisms.regions import EuclideanBall, Region, WholeSpace, box, simplex
from privlearn.mechanisms.solver import Problem, attainable, minimise
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.domains.reading import OF_OBJECTIVES, is_shipped_kind
from privlearn.values.adjacency import Adjacency

LOGIT = MultinomialLogit(10, 5)
OBJECTIVES: list[Objective[Any]] = [
    LOGIT,
    MultinomialLogit(1, 3),
    MultinomialLogit(2, 4, outside=False),
    LinearObjective.logistic(3),
    LinearObjective.poisson(2, 7.0),
    LinearObjective.huber(4, 0.2),
]
AMOUNTS = st.fractions(min_value=Fraction(1, 10**5), max_value=100, max_denominator=10**9)
BUDGETS: st.SearchStrategy[Currency] = st.one_of(
    AMOUNTS.map(ZCDP),
    st.tuples(AMOUNTS, AMOUNTS).map(lambda e: Renyi({"1.1": e[0], 2: e[1], "40/3": sum(e)})),
)


def fit(**changes: Any) -> ObjectivePerturbation[Any]:
    """Logistic regression in the plane, little noise."""
    usual = {
        "objective": LinearObjective.logistic(2),
        "ridge": 5.0,
        "noise_std": 4.0,
        "blur_std": 1e-6,
        "max_rows": 20,
    }
    return ObjectivePerturbation(**{**usual, **changes})


def pairs(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)), rng.integers(0, 2, n).astype(float)


def book(seed: int = 0, n: int = 6, cap: str = "1e30", **other: Any) -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(cap), users=range(n), noise=NoiseSource.simulation(seed), **other)


def release(mechanism: ObjectivePerturbation[Any], block: Any, seed: int = 0) -> Array:
    n = len(block[0])
    accountant = book(seed, n, adjacency=mechanism.adjacency)
    token = accountant.issue(mechanism.loss(), users=range(n), label="fit")
    return mechanism.release(Rows.seal(block, users=range(n)), token).value


# --- the price ------------------------------------------------------------------------------------


def test_it_is_a_mechanism_without_inheriting_anything() -> None:
    mechanism: Mechanism[Any] = fit()
    assert ObjectivePerturbation.__mro__[1:] == (Generic, object)
    assert mechanism.loss() == fit().loss()
    assert fit().error_std() == 4.0


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("region", [None, EuclideanBall(2, 1.0), box(2, 0, 1), simplex(2)])
def test_the_loss_is_that_of_the_minimiser_and_that_of_its_blurred_error(
    adjacency: Adjacency, region: Region | None
) -> None:
    mechanism = fit(adjacency=adjacency, region=region)
    error = mechanism.solver_error
    exact = MinimizerLoss(
        difference=2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0,
        trace=0.25,
        rank=1,
        directions=2 if adjacency is Adjacency.REPLACE_ONE else 1,
        ridge=5.0,
        noise_std=4.0,
        adjacency=adjacency,
        dimension=2,
    )
    blurred = gaussian_loss(2 * error, 1e-6, adjacency)
    assert mechanism.loss() == exact + VisitsLoss(blurred, most=20)
    assert mechanism.spend().loss(adjacency) == mechanism.loss()
    mass = (2 * error / 1e-6) ** 2
    assert float(ZCDP(1).price(mechanism.loss()).rho) == pytest.approx(
        float(exact.zcdp()) + mass / 2, rel=1e-10
    )
    assert region is None or isinstance(region, EuclideanBall) or error > fit().solver_error


@settings(max_examples=50)
@given(
    BUDGETS,
    st.sampled_from(OBJECTIVES),
    st.sampled_from(Adjacency),
    st.sampled_from([1, 3, 10]),
    st.sampled_from([0.1, 1.0, 20.0]),
)
def test_calibrated_noise_fits_its_budget_and_wastes_little(
    budget: Currency, objective: Objective[Any], adjacency: Adjacency, calls: int, norm: float
) -> None:
    mechanism = ObjectivePerturbation.calibrated(
        objective, budget, max_rows=50, calls=calls, theta_norm=norm, adjacency=adjacency
    )
    single = budget.share(f"1/{calls}")
    price = single.price(mechanism.loss())
    assert single.covers(price)
    assert budget.covers(price * calls)
    waste = [(b - p) / b for b, p in zip(single.amounts, price.amounts, strict=True)]
    # With one order to meet, nothing is left; else the blur and the tilt may bind at different ones
    assert 0 <= min(waste) <= (1e-8 if isinstance(budget, ZCDP) else float(BLUR_SHARE))
    accountant = CentralAccountant(
        budget, users=range(2), noise=NoiseSource.simulation(0), adjacency=adjacency
    )
    for _ in range(calls):
        token = accountant.issue(mechanism.loss(), users=range(2), label="fit")
        token.spend(mechanism.spend())
    assert budget.covers(accountant.spent())


@pytest.mark.parametrize(("rho", "norm"), [("0.01", 1.0), ("0.1", 1.0), ("1", 1.0), ("1", 8.0)])
def test_calibration_minimises_the_error_that_it_names(rho: str, norm: float) -> None:
    """dσ² + Δ²‖θ‖² against all Δ of a fine grid."""
    budget = ZCDP(rho)
    found = ObjectivePerturbation.calibrated(LOGIT, budget, max_rows=100, theta_norm=norm)
    errors = []
    for ridge in found.ridge * np.geomspace(0.05, 20, 121):
        try:
            std = least_noise(LOGIT, float(ridge), budget)
        except BudgetError:
            continue
        errors.append(5 * std**2 + (ridge * norm) ** 2)
    assert len(errors) > 60
    own = 5 * found.noise_std**2 + (found.ridge * norm) ** 2
    assert own <= min(errors) * 1.015
    assert errors[0] > 1.5 * own
    assert errors[-1] > 1.5 * own


@pytest.mark.parametrize(
    ("rho", "best"), [("0.01", (49, 39.0)), ("0.1", (14.3, 12.5)), ("1", (4.1, 3.9))]
)
def test_calibration_is_as_good_as_the_errata_say(rho: str, best: tuple[float, float]) -> None:
    """(Δ, σ) of errata item 3b, which used the linear form of bound (B)."""
    found = ObjectivePerturbation.calibrated(LOGIT, ZCDP(rho), max_rows=100)
    error = 5 * found.noise_std**2 + found.ridge**2
    assert error <= (5 * best[1] ** 2 + best[0] ** 2) * 1.01
    printed = published.theorem_1(float(rho), 5, 5)
    assert 5 * printed.noise_std**2 + printed.ridge**2 > 30 * error


def test_the_noise_is_near_the_floor_of_a_gaussian() -> None:
    """Reference of the errata: ρ = 0.1, d = 5, Δ = 50."""
    found = ObjectivePerturbation.with_ridge(LOGIT, 50.0, ZCDP("0.1"), max_rows=1000)
    floor = 4 / math.sqrt(2 * 0.1)
    assert floor == pytest.approx(8.944, abs=1e-3)
    assert found.noise_std == pytest.approx(9.18, abs=0.01)
    assert floor < found.noise_std < 1.04 * floor
    assert ZCDP("0.1").covers(ZCDP("0.1").price(found.loss()))
    assert not ZCDP("0.1").covers(ZCDP("0.1").price(_scaled(found, 0.9999).loss()))


def _scaled(mechanism: ObjectivePerturbation[Any], factor: float) -> ObjectivePerturbation[Any]:
    return ObjectivePerturbation(
        mechanism.objective,
        mechanism.ridge,
        mechanism.noise_std * factor,
        mechanism.blur_std,
        mechanism.max_rows,
    )


@pytest.mark.parametrize(
    ("claimed", "dim", "items", "truth"),
    [("0.01", 5, 10, 3.7e-6), ("0.1", 5, 10, 3.7e-4), ("1", 5, 10, 0.035), ("0.1", 5, 2, 9.4e-4)],
)
def test_published_noise_is_priced_at_its_truth(
    claimed: str, dim: int, items: int, truth: float
) -> None:
    tilt = published.theorem_1(float(claimed), dim, published.printed_rank(dim, items))
    mechanism = ObjectivePerturbation.published(MultinomialLogit(items, dim), tilt, max_rows=1000)
    rho = float(ZCDP(1).price(mechanism.loss()).rho)
    assert (mechanism.ridge, mechanism.noise_std) == tilt
    assert 0.8 * truth <= rho <= truth * 1.01
    assert mechanism.calibration.value == "published"


def test_published_noise_with_one_item_has_no_tilt() -> None:
    with pytest.raises(ValueError, match="max_items = 1"):
        published.theorem_1(0.1, 5, published.printed_rank(5, 1))


def test_one_item_costs_half_the_noise() -> None:
    """K = 1: gradients (p − y)x of norm at most 1."""
    one, many = (
        ObjectivePerturbation.with_ridge(MultinomialLogit(k, 5), 50.0, ZCDP("0.1"), max_rows=9)
        for k in (1, 10)
    )
    assert one.noise_std == pytest.approx(many.noise_std / 2, rel=0.03)
    answers = Answer(np.ones((4, 1, 5)), np.ones((4, 1)), np.array([0, NO_ITEM, 0, 0]))
    assert release(one, answers).shape == (5,)


def test_currencies_without_a_price_and_budgets_of_nothing() -> None:
    makers: list[Callable[[Any], object]] = [
        lambda b: ObjectivePerturbation.calibrated(LinearObjective.logistic(2), b, max_rows=5),
        lambda b: ObjectivePerturbation.with_ridge(LinearObjective.logistic(2), 5.0, b, max_rows=5),
    ]
    nothing: list[Currency] = [ZCDP(0), Renyi({2: 0}), Renyi({2: 1, 4: 0})]
    for make in makers:
        with pytest.raises(CurrencyError, match="in GaussianDP: use ZCDP or Renyi"):
            make(GaussianDP(1))
        with pytest.raises(CurrencyError, match=r"no finite price in PureDP|in PureDP: use ZCDP"):
            make(PureDP(1))
        for budget in nothing:
            with pytest.raises(ValueError, match="noise needs a budget > 0"):
                make(budget)


@pytest.mark.parametrize("ridge", [1e-3, 1e-30])
def test_a_ridge_that_is_too_small_is_refused(ridge: float) -> None:
    with pytest.raises(BudgetError, match=r"ridge = .* no noise is enough, take a larger ridge"):
        ObjectivePerturbation.with_ridge(LOGIT, ridge, ZCDP("0.1"), max_rows=5)


BAD: dict[str, dict[str, Any]] = {
    "ridge = 0": {"ridge": 0},
    "ridge = -1.0": {"ridge": -1.0},
    "ridge = nan": {"ridge": math.nan},
    "ridge = inf": {"ridge": math.inf},
    "noise_std = 0.0": {"noise_std": 0.0},
    "noise_std = nan": {"noise_std": math.nan},
    "blur_std = 0.0": {"blur_std": 0.0},
    "blur_std = -0.1": {"blur_std": -0.1},
    "blur_std = nan": {"blur_std": math.nan},
    "blur_std = inf": {"blur_std": math.inf},
    "max_rows = 0": {"max_rows": 0},
    "max_rows = 2.5": {"max_rows": 2.5},
    "region in R.3: the objective is on R.2": {"region": box(3, 0, 1)},
    "adjacency = 'replace-one'": {"adjacency": "replace-one"},
}


@pytest.mark.parametrize("message", list(BAD))
def test_wrong_parameters_are_named(message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fit(**BAD[message])


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"theta_norm": 0.0}, {"max_rows": -1}])
def test_wrong_calibrations_are_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        ObjectivePerturbation.calibrated(
            LinearObjective.logistic(2), ZCDP(1), **{"max_rows": 5, **wrong}
        )


def test_an_objective_with_an_understated_bound_is_refused() -> None:
    class Boastful(LinearObjective):  # type: ignore[misc]
        """Says that its gradients are half as long as they are."""

        @property
        def gradient_bound(self) -> float:
            return 0.5

    with pytest.raises(ValueError, match=r"gradient_bound = 0\.5 is stated"):
        fit(objective=Boastful(LogisticObjective(), 2))


# --- the release ----------------------------------------------------------------------------------


def test_the_release_is_the_blurred_minimiser() -> None:
    """From the two draws of a source that can be drawn again."""
    block = pairs(6)
    mechanism = fit(blur_std=0.125)
    drawn = NoiseSource.simulation(7).pool().variates("normal", 4)
    tilt = np.ldexp([drawn.refined(i, 58) + 0.5 for i in range(2)], -58) * 4.0
    blur = drawn.floors[2:] * 2.0**-40 * 0.125
    data = LinearObjective.logistic(2).domain.clip(block)
    theta = release(mechanism, block, seed=7)
    steps = theta * 2.0**43
    assert np.array_equal(steps, np.rint(steps)), "θ leaves in steps of v·2^-40"
    slope = Problem(LinearObjective.logistic(2), data, 5.0, tilt).gradient(theta - blur)
    assert np.linalg.norm(slope) / 5.0 <= 2 * mechanism.solver_error
    assert np.array_equal(release(mechanism, block, 7), release(mechanism, block, 7))
    assert not np.array_equal(release(mechanism, block, 7), release(mechanism, block, 8))


@pytest.mark.parametrize("region", [EuclideanBall(2, 0.3), box(2, 0, 0.2), simplex(2)])
def test_what_leaves_lies_in_the_region_also_after_the_blur(region: Region) -> None:
    for seed in range(20):
        value = release(fit(region=region, blur_std=1.0), pairs(6), seed)
        assert region.project(value) == pytest.approx(value, abs=1e-14)


def test_bad_rows_count_exactly_as_null_records() -> None:
    """They change nothing but what they themselves would have contributed."""
    x, y = pairs(6)
    bad = x.copy(), y.copy()
    bad[0][1, 0], bad[1][4] = np.nan, np.inf
    null = x.copy(), y.copy()
    null[0][[1, 4]] = 0.0
    assert np.array_equal(release(fit(), bad), release(fit(), null))
    assert not np.array_equal(release(fit(), bad), release(fit(), (x, y)))

    users = range(6)
    kept = [i for i in users if i not in (1, 4)]
    fewer = release(fit(), (x[kept], y[kept]))
    assert fewer == pytest.approx(release(fit(), bad), abs=1e-9), "a null record has no gradient"
    accountant = book()
    token = accountant.issue(fit().loss(), users=users, label="fit")
    nothing: Rows[Any] = Rows.null(users)
    empty = fit().release(nothing, token).value
    assert np.array_equal(empty, release(fit(), (np.zeros((6, 2)), np.zeros(6))))


def test_null_rows_change_neither_errors_nor_the_ledger() -> None:
    def entries(block: Any) -> list[Any]:
        accountant = book()
        token = accountant.issue(fit().loss(), users=range(6), label="fit")
        fit().release(Rows.seal(block, users=range(6)), token)
        bodies = [entry.body() for entry in accountant.ledger.entries]
        private = ("accountant", "token", "digest")
        return [{k: v for k, v in b.items() if k not in private} for b in bodies]

    x, y = pairs(6)
    assert entries((x, y)) == entries((np.full((6, 2), np.nan), y))
    answers = Answer(
        np.ones((6, 2, 2)), np.ones((6, 2)), np.full(6, 9)
    )  # a place that is not there
    logit = fit(objective=MultinomialLogit(2, 2))
    assert np.array_equal(
        release(logit, answers),
        release(logit, answers._replace(offered=np.zeros((6, 2)))),
    )


def test_rows_cannot_be_empty_but_may_be_fewer_than_the_token_allows() -> None:
    """An empty history has no release: Rows name at least one user (who may be null)."""
    makers: list[Callable[[], Rows[Any]]] = [
        lambda: Rows.seal(pairs(0), users=range(0)),
        lambda: Rows.null(range(0)),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=r"users = range\(0, 0\): must be a non-empty range"):
            make()
    accountant = book()
    token = accountant.issue(fit().loss(), users=range(6), label="fit")
    assert fit().release(Rows.seal(pairs(2), users=range(2, 4)), token).value.shape == (2,)


def test_what_is_wrong_with_public_parameters_costs_nothing() -> None:
    accountant = book(n=30)
    token = accountant.issue(fit().loss(), users=range(25), label="fit")
    block = pairs(21)
    with pytest.raises(HorizonError, match="21 rows: at most max_rows = 20"):
        fit().release(Rows.seal(block, users=range(21)), token)
    with pytest.raises(UsersError, match="cannot be opened by token 'fit'"):
        fit().release(Rows.seal(pairs(2), users=range(24, 26)), token)
    with pytest.raises(AdjacencyError, match="a fit for zero-out, a token for replace-one"):
        fit(adjacency=Adjacency.ZERO_OUT).release(Rows.seal(pairs(2), users=range(2)), token)
    with pytest.raises(TypeError, match="must be Rows"):
        fit().release(pairs(2), token)  # type: ignore[arg-type]
    with pytest.raises(LossExceedsTokenError, match="objective-perturbation costs"):
        fit(noise_std=3.9).release(Rows.seal(pairs(2), users=range(2)), token)
    assert [entry.entry for entry in accountant.ledger.entries] == ["open", "issue"]
    fit().release(Rows.seal(pairs(2), users=range(2)), token)
    with pytest.raises(TokenSpentError, match="spent or retired before"):
        fit().release(Rows.seal(pairs(2), users=range(2)), token)


def test_tokens_of_other_currencies_and_neighbour_relations() -> None:
    pure = CentralAccountant(PureDP(9), users=range(3), noise=NoiseSource.simulation(0))
    with pytest.raises(CurrencyError):
        fit().release(
            Rows.seal(pairs(3), users=range(3)), pure.issue(PureDP(1), users=range(3), label="x")
        )
    assert len(pure.ledger.entries) == 2, "refused before anything was spent"
    curve = CentralAccountant(Renyi({2: 9}), users=range(3), noise=NoiseSource.simulation(0))
    token = curve.issue(fit().loss(), users=range(3), label="x")
    fit().release(Rows.seal(pairs(3), users=range(3)), token)
    assert float(curve.spent().curve[Fraction(2)]) == pytest.approx(fit().loss().renyi(2.0))
    zero_out = book(adjacency=Adjacency.ZERO_OUT)
    other = zero_out.issue(fit().loss(), users=range(3), label="x")
    with pytest.raises(AdjacencyError, match="a fit for replace-one, a token for zero-out"):
        fit().release(Rows.seal(pairs(3), users=range(3)), other)
    with pytest.raises(AdjacencyError, match="convert it explicitly"):
        other.spend(fit().spend())


def test_a_joint_guarantee_needs_served_rows() -> None:
    accountant = JointAccountant(ZCDP("1e30"), users=range(6), noise=NoiseSource.simulation(0))
    token = accountant.issue(fit().loss(), users=range(6), label="fit")
    logged: Rows[Any] = Rows.seal(pairs(6), users=range(6))
    with pytest.raises(ProvenanceError, match="logged rows"):
        fit().release(logged, token)
    assert [entry.entry for entry in accountant.ledger.entries] == ["open", "issue"]
    board = Billboard(accountant, range(6))
    served = board.serve(logged, lambda row: row[0]).deliver(lambda row, shown: row)
    assert fit().release(served, token).value.shape == (2,)


def test_a_minimiser_that_is_not_certified_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays charged, nothing leaves, and the message tells nothing of the data."""

    def fails(*_: object, **__: object) -> Array:
        raise SolverError("no certified minimiser: the outcome of this release is not covered")

    monkeypatch.setattr(objective_perturbation, "minimise", fails)
    accountant = book()
    token = accountant.issue(fit().loss(), users=range(6), label="fit")
    with pytest.raises(SolverError, match="is not covered"):
        fit().release(Rows.seal(pairs(6), users=range(6)), token)
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "uncovered"
    assert accountant.spent() == ZCDP(1).price(fit().loss())
    (problem,) = accountant.certificate().problems
    assert "its mechanism stopped after it had opened rows" in problem


def test_the_solver_is_asked_for_the_distance_that_is_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the number of rows, so that their number decides nothing but the time."""
    asked = []
    real = minimise

    def listens(problem: Problem, region: Region, distance: float) -> Array:
        asked.append(distance)
        return real(problem, region, distance)

    monkeypatch.setattr(objective_perturbation, "minimise", listens)
    mechanism = fit()
    for n in (1, 5, 20):
        release(mechanism, pairs(n))
    known: dict[str, Any] = {"rows": 20, "ridge": 5.0, "tilt_std": 4.0}
    usual = attainable(LinearObjective.logistic(2), WholeSpace(2), **known)
    far = Reach.of(LinearObjective.logistic(2), None, **known)
    assert far is not None
    assert usual < far.distance < 4 * usual
    assert asked == [far.distance] * 3
    # and the grid of the blur
    assert mechanism.solver_error == pytest.approx(far.distance + 1e-6 * 2.0**-40 * math.sqrt(2))
    assert mechanism.solver_error > far.distance


# --- the ledger -----------------------------------------------------------------------------------


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two fits, one with a published tilt, exported as JSON lines."""
    objective = MultinomialLogit(3, 2)
    repaired = ObjectivePerturbation.with_ridge(
        objective, 20.0, ZCDP("0.2"), max_rows=8, region=EuclideanBall(2, 2.0)
    )
    printed = ObjectivePerturbation.published(objective, published.theorem_1(0.5, 2, 2), max_rows=8)
    rng = np.random.default_rng(0)
    answers = Answer(rng.normal(size=(8, 3, 2)), np.ones((8, 3)), rng.integers(-1, 3, 8))
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        accountant = CentralAccountant(
            ZCDP(1), users=range(8), noise=NoiseSource.simulation(0), ledger=ledger
        )
        for name, mechanism in (("repaired", repaired), ("printed", printed)):
            token = accountant.issue(mechanism.loss(), users=range(8), label=name)
            mechanism.release(Rows.seal(answers, users=range(8)), token)
        accountant.close()
        ledger.export(tmp_path / "export.jsonl")
    return tmp_path / "export.jsonl"


def spends(path: Path) -> list[SpendEntry]:
    bodies = [record.body for record in read_records(path)]
    return [SpendEntry(**body) for body in bodies if body["entry"] == "spend"]


def test_an_audit_recomputes_the_price_from_the_export(export: Path) -> None:
    json.loads(export.read_text("utf-8").splitlines()[1])
    certificate = audit(export)
    assert certificate.problems == []
    total = Fraction(0)
    for entry in spends(export):
        price = ZCDP(1).price(loss_from_dict(entry.loss))
        # only from the published numbers, without the classes that made them
        tilt = MinimizerLoss(
            difference=4.0,
            trace=1.0,
            rank=2,
            directions=2,
            ridge=entry.parameters["ridge"],
            noise_std=entry.noise["std"],
        )
        error, blur = entry.parameters["solver_error"], entry.parameters["blur_std"]
        rho = float(tilt.zcdp()) + (2 * error / blur) ** 2 / 2
        assert float(price.rho) == pytest.approx(rho, rel=1e-9)
        total += price.rho
    assert certificate.spent[0].rho == pytest.approx(float(total), rel=1e-12)


def test_the_ledger_names_everything_public(export: Path) -> None:
    repaired, printed = spends(export)
    assert repaired.mechanism == printed.mechanism == "objective-perturbation"
    assert repaired.domain == {"kind": "choices", "max_items": 3, "dim": 2, "outside": True}
    assert repaired.parameters["objective"] == "multinomial-logit"
    assert repaired.parameters["region"] == {"region": "ball", "radius": 2.0}
    assert printed.parameters["region"] == {"region": "whole-space"}
    assert (repaired.calibration.value, printed.calibration.value) == ("proved", "published")
    assert not repaired.derived
    assert repaired.arithmetic == "own"
    both = (
        fit(objective=LinearObjective.logistic(2, radius=3.0), region=EuclideanBall(2, 7.0))
        .spend()
        .parameters
    )
    assert both["radius"] == 3.0, "of the domain, not of the region"
    assert both["region"]["radius"] == 7.0


def test_the_certificate_says_what_is_trusted_and_what_is_covered(export: Path) -> None:
    certificate = audit(export)
    own, exactly = certificate.trusted_code
    assert own.startswith("objective-perturbation: its loss, ")
    assert exactly.startswith("objective-perturbation: that it draws exactly ")
    lines = certificate.guarantees[0].assumptions
    worst = max(entry.parameters["solver_error"] for entry in spends(export))
    (solver,) = [line for line in lines if "Minimisers are certified" in line]
    said = re.search(r"within (\S+) of the exact ones", solver)
    assert said is not None
    assert worst <= float(said[1]) <= 1.01 * worst
    assert any("Noise of a published calibration was used" in line for line in lines)
    assert not any("no solver tolerance to pay" in line for line in lines)


def _minimizer(body: dict[str, Any]) -> dict[str, Any]:
    """The part of a spend's loss that is the exact minimiser's."""
    found: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("kind") == "objective-perturbation":
                found.append(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(body["loss"])
    (part,) = found
    return part


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "less noise than priced": (
        lambda body: body["noise"].update(std=body["noise"]["std"] / 2),
        "the loss is for a tilt of",
    ),
    "noise of another family": (
        lambda body: body.update(noise={"family": "laplace", "scale": body["noise"]["std"]}),
        "the loss is for a tilt of",
    ),
    "a loss for more noise": (
        lambda body: _minimizer(body).update(noise_std=body["noise"]["std"] * 2),
        "the loss is for a tilt of",
    ),
    "a loss for a smaller ridge": (
        lambda body: _minimizer(body).update(ridge=2.0),
        "costs",
    ),
    "a loss for a larger difference": (
        lambda body: _minimizer(body).update(difference=8.0),
        "costs",
    ),
    "said to be derived": (
        lambda body: body.update(derived=True),
        "needs trusted code but does not say so",
    ),
}


@pytest.mark.parametrize("name", list(FORGERIES))
def test_a_forged_spend_is_found_although_its_chain_was_rewritten(name: str, export: Path) -> None:
    change, message = FORGERIES[name]
    records = read_records(export)
    bodies = [copy.deepcopy(record.body) for record in records]
    assert certify(chained(bodies)).problems == []
    change(next(body for body in bodies if body["entry"] == "spend"))
    problems = certify(chained(bodies)).problems
    assert any(message in problem for problem in problems), problems
    head = audit(export).head
    assert any("cut or rewritten" in p for p in certify(chained(bodies), head=head).problems)


def test_losses_and_budgets_survive_the_ledger(export: Path) -> None:
    for entry in spends(export):
        loss = loss_from_dict(entry.loss)
        assert loss_from_dict(json.loads(json.dumps(entry.loss))) == loss
    issues = [r.body for r in read_records(export) if r.body["entry"] == "issue"]
    for body, entry in zip(issues, spends(export), strict=True):
        budget = budget_from_dict(body["budget"])
        assert isinstance(budget, ZCDP)
        assert budget.covers(budget.price(loss_from_dict(entry.loss)))


# --- the law of what leaves -----------------------------------------------------------------------

LINE = np.array([[0.9], [-0.7], [0.4], [1.0]]), np.array([1.0, 0.0, 1.0, 1.0])
RELEASES = 2_000


def on_a_line(std: float, n: int = RELEASES) -> Array:
    """Many releases of a one-dimensional logistic fit with little ridge."""
    mechanism = ObjectivePerturbation(LinearObjective.logistic(1), 0.5, std, 1e-6, 4)
    accountant = book(20, 4)
    rows = Rows.seal(LINE, users=range(4))
    return np.array(
        [
            mechanism.release(
                rows, accountant.issue(mechanism.loss(), users=range(4), label="x")
            ).value[0]
            for _ in range(n)
        ]
    )


def exact_cdf(theta: Array) -> Array:
    """P(θ* <= t) = Φ(∇J(t)/σ), whose density is φ(∇J)∇²J: from the paper's formulas."""
    x, y = LINE[0][:, 0], LINE[1]
    slopes = ((1 / (1 + np.exp(-theta[:, None] * x)) - y) * x).sum(axis=1) + 0.5 * theta
    return np.asarray(ndtr(slopes / 1.5))


def test_released_minimisers_have_the_law_that_the_price_is_for() -> None:
    assert kstest(exact_cdf(on_a_line(1.5)), "uniform").pvalue > 0.01


def test_half_the_noise_would_be_seen() -> None:
    assert kstest(exact_cdf(on_a_line(0.75, 400)), "uniform").pvalue < 1e-6


def test_the_law_in_the_plane() -> None:
    """θ* → −∇J(θ*) is a bijection, so the fit is right when that is N(0, σ²I)."""
    rng = np.random.default_rng(4)
    answers = Answer(rng.normal(size=(5, 3, 2)), np.ones((5, 3)), np.array([0, 1, 2, -1, 0]))
    objective, std = MultinomialLogit(3, 2), 2.0
    mechanism = ObjectivePerturbation(objective, 1.0, std, 1e-6, 5)
    accountant = book(21, 5)
    rows = Rows.seal(answers, users=range(5))
    data = objective.domain.clip(answers)
    bare = Problem(objective, data, 1.0, np.zeros(2))
    tilts = []
    for _ in range(600):
        token = accountant.issue(mechanism.loss(), users=range(5), label="x")
        tilts.append(-bare.gradient(mechanism.release(rows, token).value) / std)
    first, second = np.array(tilts).T
    for sample in (first, second, (first + second) / math.sqrt(2)):
        assert kstest(sample, "norm").pvalue > 0.005
    assert kstest(2 * first, "norm").pvalue < 1e-9
    assert kstest(1 - np.exp(-(first**2 + second**2) / 2), "uniform").pvalue > 0.005


def test_the_blur_has_the_stated_size() -> None:
    """Same seed, so same tilt: what two blurs add differs in their ratio only."""
    thin, thick = fit(blur_std=0.01), fit(blur_std=1.0)
    values = []
    for seed in range(150):
        low, high = release(thin, pairs(3), seed), release(thick, pairs(3), seed)
        values.append((high - low) / 0.99)
    noise = np.array(values).ravel()
    assert kstest(noise, "norm").pvalue > 0.005
    assert kstest(noise / 2, "norm").pvalue < 1e-6


def test_tilts_of_two_releases_are_fresh() -> None:
    mechanism, accountant = fit(), book()
    rows = Rows.seal(pairs(6), users=range(6))
    first, second = (
        mechanism.release(rows, accountant.issue(mechanism.loss(), users=range(6), label="x")).value
        for _ in range(2)
    )
    assert not np.array_equal(first, second)
    assert isinstance(published.theorem_1(0.1, 2, 1), Tilt)


def test_the_records_of_fits_are_of_this_package() -> None:
    records = {Choices.kind, Labelled.kind}
    assert records == OF_OBJECTIVES
    assert all(is_shipped_kind(kind) for kind in records)
