"""A paid search: its plan, what its ledger holds, what leaves, and what is refused."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import BudgetError, LedgerError, TokenError
from privlearn.estimators import (
    PrivateChoiceModel,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSearchCV,
    select_best,
)
from privlearn.estimators.models import LinearModel
from privlearn.estimators.search import _row_scores
from privlearn.estimators.search_plan import planned, stopping
from privlearn.estimators.stopping import Opened, RandomStopping, sealed
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ApproxDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.tables.encoding import Encoding
from privlearn.tables.schema import Schema
from privlearn.tables.table import public_split

VERIFIER = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
BUDGET = ApproxDP(1, "1e-5")
AMPLE = ApproxDP(60, "1e-5")
N = 300
RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (N, 2))
Y = (X[:, 0] > 0.0).astype(int)


class Turned(PrivateLogisticRegression):
    """Predicts the other class, if it is told to: a candidate that is known to be bad."""

    def __init__(
        self,
        budget: Any = None,
        *,
        schema: Any = None,
        bounds: Any = None,
        classes: Any = None,
        method: str = "descent",
        ledger: Any = None,
        accountant: Any = None,
        simulate_noise: int | None = None,
        turned: int = 0,
    ) -> None:
        super().__init__(
            budget,
            schema=schema,
            bounds=bounds,
            classes=classes,
            method=method,
            ledger=ledger,
            accountant=accountant,
            simulate_noise=simulate_noise,
        )
        self.turned = turned

    def _model_of(self, encoding: Any, learner: Any) -> LinearModel:
        model = super()._model_of(encoding, learner)
        if self.turned:
            model.coef = -model.coef
        return model


def turned(seed: int | None = 1, **given: Any) -> PrivateSearchCV:
    estimator = Turned(bounds=(-1, 1), classes=[0, 1], simulate_noise=seed)
    given.setdefault("budget", AMPLE)
    return PrivateSearchCV(estimator, {"turned": given.pop("turned", [1, 0, 2])}, **given)


def entries(path: Path | str) -> list[dict[str, Any]]:
    found = sqlite3.connect(path).execute("SELECT entry FROM entries ORDER BY seq")
    return [json.loads(text) for (text,) in found]


# The plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "candidates", "every", "tried", "way"),
    [
        (1, 4, 0.1340, 0.1180, "all"),
        (1, 16, 0.0670, 0.1003, "stopping"),
        (1, 64, 0.0335, 0.0899, "stopping"),
        (3, 4, 0.3596, 0.3483, "all"),
        (3, 16, 0.1798, 0.2970, "stopping"),
    ],
)
def test_what_each_fit_gets_is_that_of_an_independent_program(
    epsilon: int, candidates: int, every: float, tried: float, way: str
) -> None:
    search = turned(turned=list(range(candidates)), budget=ApproxDP(epsilon, "1e-5"))
    plan = search.plan()
    assert plan.tries is not None
    assert (plan.every, plan.tries.mu) == pytest.approx((every, tried), abs=6e-5)
    assert (plan.way, plan.tries.bound) == (way, 9 * (candidates - 1))
    assert plan.default == pytest.approx({1: 0.2681, 3: 0.7191}[epsilon], abs=5e-5)
    assert f"way: {way}" in str(plan)


def test_a_price_that_no_gaussian_has_leaves_one_way() -> None:
    assert planned(16, BUDGET, 0.2, "auto", gaussian=False).way == "all"
    with pytest.raises(ValueError, match="priced as a Gaussian"):
        planned(16, BUDGET, 0.2, "stopping", gaussian=False)
    with pytest.raises(ValueError, match="method = 'best'"):
        planned(16, BUDGET, 0.2, "best", gaussian=True)
    tiny = ApproxDP("1e-9", "1e-30")
    assert "no price" in str(planned(16, tiny, 1e-10, "auto", gaussian=True))
    with pytest.raises(ValueError, match="no usable noise"):
        planned(16, tiny, 1e-10, "stopping", gaussian=True)
    undeclared = PrivateSearchCV(PrivateLogisticRegression(), {"method": ["auto"] * 2})
    with pytest.raises(ValueError, match="bounds: state them"):
        undeclared.set_params(budget=BUDGET).plan()


# All candidates ---------------------------------------------------------------------------------


def test_all_fits_and_the_choice_stand_in_one_ledger_at_one_price(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    search = turned(None, budget=BUDGET, ledger=path, method="all").fit(X, Y)
    report = audit(path, delta=1e-5)
    assert report.problems == []
    assert search.certificate_.epsilon == report.epsilon <= 1.0 + 1e-9
    bodies = [entry["body"] for entry in entries(path)]
    opened, choosing = (body for body in bodies if body["entry"] == "open")
    assert (opened["users"], choosing["users"]) == ([0, 240], [240, 300])
    parts = [body["budget"]["mu_squared"] for body in bodies if body["entry"] == "delegate"]
    assert sum(map(Fraction, parts)) == Fraction(opened["cap"]["mu_squared"])
    assert sum(body["entry"] == "spend" and body["users"] == [240, 300] for body in bodies) == 1
    verified = subprocess.run([sys.executable, VERIFIER, path], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert "ε = 1 at δ = 1e-05" in search.guarantee_
    assert search.best_estimator_.guarantee_ == search.guarantee_
    search.best_estimator_.save(tmp_path / "model.json")
    with pytest.raises(LedgerError, match="finished fit"):
        turned(None, budget=BUDGET, ledger=path).fit(X, Y)


@pytest.mark.parametrize("method", ["all", "stopping"])
def test_the_better_candidate_is_chosen(method: str) -> None:
    search = turned(method=method).fit(X, Y)
    assert search.best_params_ == {"turned": 0}
    assert search.best_index_ == 1
    again = turned(method=method).fit(X, Y)  # simulated
    assert np.array_equal(again.best_estimator_.coef_, search.best_estimator_.coef_)
    assert search.score(X, Y) > 0.8
    assert search.predict(X[:3]).shape == (3,)
    assert not hasattr(search, "cv_results_")


def test_the_choice_is_made_by_rows_that_were_held_out() -> None:
    _, held = public_split(N, 0.2, seed=1)
    other = Y.copy()
    other[held] = 1 - other[held]  # where the better candidate is the other one
    assert turned(1, turned=[0, 1], method="all").fit(X, other).best_params_ == {"turned": 1}


# Stopping ---------------------------------------------------------------------------------------


def test_the_number_of_tries_is_nowhere_to_be_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    tries = 0
    before = RandomStopping._try

    def counted(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        return before(*args)

    monkeypatch.setattr(RandomStopping, "_try", counted)
    numbers, seen = set(), set()
    for seed in (2, 3, 4):
        tries = 0
        path = tmp_path / f"{seed}.db"
        search = turned(seed, turned=[1, 0], method="stopping", ledger=path).fit(X, Y)
        numbers.add(tries)
        kept = entries(path)
        kinds = tuple(entry["body"]["entry"] for entry in kept)
        assert [entry["body"]["entry"] for entry in kept if "at" in entry][-1] == "spend"
        names = (*vars(search), *vars(search.best_estimator_))
        seen.add((kinds, names, len(caplog.records), capsys.readouterr()))
        report = audit(path, delta=1e-5)
        assert (report.problems, report.closed) == ([], False)
    assert len(numbers) == 3
    assert len(seen) == 1
    assert kinds == ("open", "issue", "spend", "retire")
    spend = kept[2]["body"]
    assert spend["loss"] == stopping(2, AMPLE).loss.to_dict()
    assert spend["parameters"]["mean_tries"] == 9


def opened_rows(n: int = 12) -> Opened:
    return Opened(np.linspace(-1, 1, n)[:, None], np.zeros(n))


def mechanism(fit: Any, score: Any = None, tries: Any = None) -> RandomStopping[Any]:
    return RandomStopping(
        stopping(2, BUDGET) if tries is None else tries,
        2,
        fit,
        lambda fitted: np.array([float(fitted)]),
        score or (lambda fitted, rows: np.zeros(len(rows.y), np.int64)),
        inputs=1,
        largest_target=1.0,
        learn=range(8),
    )


def ran(stop: RandomStopping[Any], seed: int) -> tuple[CentralAccountant[PureDP], Any]:
    book = CentralAccountant(
        PureDP(1), users=range(12), failure="1e-5", noise=NoiseSource.simulation(seed)
    )
    token = book.issue(stop.loss(), users=range(12), label="search")
    return book, lambda: stop.release(sealed(*opened_rows()), token, book.noise)


def test_tries_follow_the_law_and_see_what_was_sealed() -> None:
    numbers: list[int] = []

    def fit(which: int, part: Any, rows: Opened) -> int:
        numbers[-1] += 1
        assert np.array_equal(rows.x, opened_rows().x[:8])
        assert part.users == range(8)
        return which

    for seed in range(60):
        numbers.append(0)
        ran(mechanism(fit), seed)[1]()
    assert np.mean(numbers) == pytest.approx(9, abs=2.5)
    assert min(numbers) == 1
    assert max(numbers) > 18


def test_a_warning_of_a_try_stays_inside() -> None:
    def loud(which: int, part: Any, rows: Opened) -> int:
        warnings.warn("a row", stacklevel=1)
        return int(np.float64(which) / np.float64(0) > 0)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("error")
        ran(mechanism(loud), 0)[1]()
        warnings.simplefilter("always")
        ran(mechanism(loud), 0)[1]()
    assert not heard


def test_a_try_that_would_cost_more_is_stopped_and_the_charge_stays() -> None:
    tries = stopping(2, BUDGET)

    parts: list[Any] = []

    def dear(which: int, part: Any, rows: Opened) -> int:
        parts.append(part)
        part.issue(GaussianLoss(tries.loss.mu_squared * 2), users=part.users, label="more")
        return which

    book, release = ran(mechanism(dear), 0)
    with pytest.raises(TokenError, match="is not told here") as failed:
        release()
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__
    assert book.remaining().epsilon < Fraction(1, 10**8)
    assert [part.budget.mu_squared for part in parts] == [tries.loss.mu_squared]
    assert Fraction(tries.steps, 2**30) ** 2 == tries.loss.mu_squared


def test_one_row_moves_a_score_by_mu_standard_deviations() -> None:
    tries = stopping(2, BUDGET)
    stop = mechanism(lambda *_: 0)
    none: Any = SimpleNamespace(draw_variates=lambda n: SimpleNamespace(floors=[0] * n))
    assert stop._noisy(2**10, none) == tries.mu * 2**40
    noise: Any = SimpleNamespace(draw_variates=lambda n: SimpleNamespace(floors=[-7] * n))
    assert stop._noisy(2**10, noise) == tries.mu * 2**40 - 7
    assert stop.spend().noise.to_dict()["std"] == 1 / tries.mu


def test_null_rows_stay_null_inside() -> None:
    seen: list[Opened] = []

    def fit(which: int, part: Any, rows: Opened) -> int:
        seen.append(rows)
        return which

    book, _ = ran(mechanism(fit), 0)
    stop = mechanism(fit)
    rows = opened_rows()
    rows.x[3], rows.y[5] = np.nan, np.nan
    book = CentralAccountant(
        PureDP(1), users=range(12), failure="1e-5", noise=NoiseSource.simulation(0)
    )
    token = book.issue(stop.loss(), users=range(12), label="search")
    stop.release(sealed(*rows), token, book.noise)
    gone = np.isnan(seen[0].x[:, 0])
    assert np.flatnonzero(gone).tolist() == [3, 5]
    assert np.array_equal(gone, np.isnan(seen[0].y))


# Scores, and a choice among finished models ------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_row_moves_its_own_score_only_and_no_further_than_one(loss: Any) -> None:
    classes = {"squared": None, "logistic": [0, 1], "softmax": [0, 1, 2]}[loss]
    bounds = (-1, 1) if classes is None else None
    schema = Schema.of_arrays(2, (-1, 1), target_bounds=bounds, classes=classes)
    outputs = 3 if loss == "softmax" else 1
    coef = np.random.default_rng(1).normal(size=(outputs, 2)) * 40
    model = LinearModel(Encoding(schema), loss, coef, np.zeros(outputs))
    y = RNG.uniform(-1, 1, 50) if classes is None else RNG.integers(0, outputs, 50).astype(float)
    rows = Opened(RNG.uniform(-1, 1, (50, 2)), y)
    before = _row_scores(model, rows)
    assert before.min() >= 0
    assert before.max() <= 1024
    for change in (np.nan, 1.0, -1.0):
        other = Opened(rows.x.copy(), rows.y.copy())
        other.x[7], other.y[7] = change, abs(change)
        after = _row_scores(model, other)
        assert np.array_equal(np.delete(before, 7), np.delete(after, 7))
        assert 0 <= after[7] <= 1024
    assert _row_scores(model, Opened(rows.x * np.nan, rows.y)).max() == 0


def test_a_choice_among_models_of_one_schema_pays_its_epsilon(tmp_path: Path) -> None:
    def model(seed: int, sign: int) -> PrivateLinearRegression:
        made = PrivateLinearRegression(
            AMPLE, bounds=(-1, 1), target_bounds=(-1, 1), simulate_noise=seed
        )
        return made.fit(X, sign * X[:, 0])

    models = [model(1, -1), model(2, 1)]
    path = tmp_path / "choice.db"
    found = select_best(models, X, X[:, 0], budget=BUDGET, ledger=path)
    assert (found.place, found.model) == (1, models[1])
    assert 0.9999 < found.certificate.epsilon <= 1
    spends = [entry["body"] for entry in entries(path) if entry["body"]["entry"] == "spend"]
    assert [spend["mechanism"] for spend in spends] == ["report-noisy-max"]
    narrow = PrivateLinearRegression(
        AMPLE, bounds=(-2, 1), target_bounds=(-1, 1), simulate_noise=1
    ).fit(X, X[:, 0])
    lists: list[tuple[list[Any], str]] = [
        (models[:1], "at least 2"),
        ([models[0], narrow], "one schema"),
        ([models[0], "model"], "fitted private"),
        ([models[0], PrivateChoiceModel()], "scored singly"),
    ]
    for wrong, message in lists:
        with pytest.raises((ValueError, TypeError), match=message):
            select_best(wrong, X, X[:, 0], budget=BUDGET)
    with pytest.raises(BudgetError, match="state it"):
        select_best(models, X, X[:, 0], budget=None)  # type: ignore[arg-type]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"budget": None}, BudgetError, "budget: state it"),
        ({"budget": PureDP(1)}, TypeError, "paid as ApproxDP"),
        ({"held_out": 0}, ValueError, "on both sides"),
        ({"grid": {"turned": [1]}}, ValueError, "1 candidate"),
        ({"grid": {"bounds": [(-1, 1), (-2, 2)]}}, ValueError, "same for all candidates"),
        ({"grid": {"budget": [1, 2]}}, ValueError, "same for all candidates"),
        ({"method": "fast"}, ValueError, "method = 'fast'"),
        ({"estimator__ledger": "auto"}, ValueError, "estimator.ledger: is the search's"),
        ({"estimator__budget": BUDGET}, ValueError, "estimator.budget: is the search's"),
        ({"grid": {"method": ["descent", "unknown"]}}, ValueError, "method = 'unknown'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_spent(
    tmp_path: Path, change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    path = tmp_path / "search.db"
    search = turned(ledger=path).set_params(**change)
    with pytest.raises(kind, match=message):
        search.fit(X, Y)
    assert not path.exists()


def test_steps_that_learn_outside_of_the_guarantee_are_refused() -> None:
    scaled = make_pipeline(StandardScaler().fit(X), Turned(bounds=(-1, 1), classes=[0, 1]))
    with pytest.raises(TypeError, match=r"outside of the guarantee \(it has: standardscaler\)"):
        PrivateSearchCV(scaled, {"turned__turned": [0, 1]}, budget=BUDGET).plan()
    with pytest.raises(TypeError, match="must be a private estimator"):
        PrivateSearchCV(StandardScaler(), {"with_mean": [True, False]}, budget=BUDGET).fit(X, Y)
