"""Sets given as cvxpy constraints, against sets of our own, and in the learners that take them."""

from __future__ import annotations

import builtins
from typing import Any

import cvxpy
import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import DPTOFW
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import (
    ConstraintSet,
    CvxpySet,
    LinearObjective,
    LpBall,
    ObjectivePerturbation,
    Simplex,
)
from privlearn.mechanisms.regions import Polyhedron
from privlearn.noise import NoiseSource
from privlearn.rows import Rows

cp: Any = cvxpy


def ball(dim: int, radius: float) -> CvxpySet:
    x = cp.Variable(dim)
    return CvxpySet(x, [cp.norm(x, 2) <= radius])


def simplex(dim: int) -> CvxpySet:
    x = cp.Variable(dim)
    return CvxpySet(x, [x >= 0, cp.sum(x) == 1])


def test_it_answers_as_the_sets_of_our_own() -> None:
    rng = np.random.default_rng(0)
    for ours, theirs in ((LpBall(3, 2, 2.0), ball(3, 2.0)), (Simplex(3, 1.0), simplex(3))):
        assert isinstance(theirs, ConstraintSet)
        directions = rng.normal(size=(4, 3))
        assert theirs.minimize(directions) == pytest.approx(ours.minimize(directions), abs=1e-5)
        for point in rng.normal(size=(3, 3)) * 4:
            assert theirs.project(point) == pytest.approx(ours.project(point), abs=1e-5)
            assert theirs.contains(theirs.pull(point), 1e-6)
            assert not theirs.contains(point + 20)
        inside = ours.project(np.zeros(3))
        assert np.array_equal(theirs.pull(inside), inside)
        for norm in (1.0, 2.0, np.inf):
            assert theirs.diameter(norm) >= ours.diameter(norm) - 1e-6


def test_linear_constraints_become_the_polyhedron_they_say() -> None:
    x = cp.Variable(2)
    found = CvxpySet(x, [x <= np.array([1.0, 2.0]), x >= -1, cp.sum(x) == 0.5]).polyhedron()
    eye = np.eye(2)
    rows = np.vstack([eye, -eye, np.ones((1, 2)), -np.ones((1, 2))])
    assert found == Polyhedron(rows, np.array([1.0, 2.0, 1.0, 1.0, 0.5, -0.5]))
    with pytest.raises(ValueError, match="only linear constraints make a polyhedron"):
        ball(2, 1.0).polyhedron()


def test_a_polyhedron_has_the_coefficients_to_the_last_digit() -> None:
    """Also where the offset is large: a difference of values would have lost them."""
    rng = np.random.default_rng(5)
    x, matrix, limits = cp.Variable(3), rng.normal(size=(4, 3)), rng.uniform(1e7, 2e7, size=(4, 2))
    values = cp.vstack([matrix @ x, -0.7 * (matrix @ x)]).T
    found = CvxpySet(x, [values <= limits]).polyhedron()
    assert found == Polyhedron(np.vstack([matrix, -0.7 * matrix]), limits.ravel(order="F"))


def test_objective_perturbation_keeps_to_it() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(400, 2))
    labels = (features @ [2.0, -2.0] > 0).astype(float)
    x = cp.Variable(2)
    region = CvxpySet(x, [x >= 0, x <= 1]).polyhedron()
    fit: Any = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(2), ZCDP(1), max_rows=400, region=region
    )
    accountant = CentralAccountant(ZCDP(1), users=range(400), noise=NoiseSource.simulation(2))
    accountant.commit(fit=fit)
    theta = accountant.release("fit", Rows.seal((features, labels), users=range(400))).value
    assert region.project(theta) == pytest.approx(theta, abs=1e-9)
    assert theta[0] > theta[1]


def test_frank_wolfe_learns_within_it() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([0.6, -0.4, 0.0])
    features = rng.normal(size=(600, 3))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = features @ truth
    x = cp.Variable(3)
    inside = CvxpySet(x, [cp.norm(x, 2) <= 1, x[0] >= 0, x[2] == 0])
    errors = []
    for theta_set in (inside, None):
        learner = DPTOFW(3, radius=1.0, label_bound=1.0, theta_set=theta_set)
        accountant: Any = CentralAccountant(
            GaussianDP(50), users=range(600), noise=NoiseSource.simulation(4)
        )
        learner.start(accountant).partial_fit(features, labels)
        errors.append(float(np.mean((features @ (learner.coef_ - truth)) ** 2)))
        if theta_set is not None:
            assert inside.contains(learner.coef_, 1e-5)
    assert errors[0] < 0.25 * float(np.mean(labels**2))
    assert errors[0] < 2 * errors[1] + 1e-3


def test_bad_sets_are_refused_by_name() -> None:
    x, y, bounded = cp.Variable(2), cp.Variable(2), cp.Variable(2, bounds=[0, 1])
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (x, [x >= 0], ValueError, "unbounded"),
        (x, [x >= 1, x <= 0], ValueError, "empty"),
        (x, [cp.norm(x, 2) >= 1], ValueError, r"constraints\[0\].*must be convex"),
        (x, [x >= 0, x <= y], ValueError, r"constraints\[1\].*another variable"),
        (x, [True], TypeError, r"constraints\[0\] = True"),
        (np.zeros(2), [], TypeError, "must be a cvxpy.Variable"),
        (cp.Variable((2, 2)), [], TypeError, "must be a cvxpy.Variable"),
        (cp.Variable(2, nonneg=True), [], ValueError, "give nonneg=True"),
        (bounded, [bounded <= 5, bounded >= -5], ValueError, "variable: give"),
        (x, [x <= cp.Parameter(value=1.0), x >= 0], ValueError, r"\[0\].*parameter's value"),
    ]
    for variable, constraints, kind, message in cases:
        with pytest.raises(kind, match=message):
            CvxpySet(variable, constraints)


def test_without_cvxpy_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "cvxpy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'privlearn\[cvxpy\]'"):
        CvxpySet(None, [])
