"""The best factorisation of a small horizon: exact sensitivity, and a bound that nothing beats."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from privlearn.mechanisms import BandedBLT, BinaryTree, BufferedToeplitz
from privlearn.mechanisms.banded_parameters import fitted_parameters
from privlearn.mechanisms.banded_shapes import Array, Objective
from privlearn.values.participation import Participation
from privlearn_studies.optimal_factorization import (
    Certificate,
    OptimalFactorization,
    heaviest,
    one_visit_certificate,
    optimal_factorization,
)

pytest.importorskip("cvxpy")

OBJECTIVES: tuple[Objective, ...] = ("max", "mean")


def patterns(n: int, most: int, apart: int) -> list[tuple[int, ...]]:
    """All of them, by trying all subsets."""
    return [
        p
        for size in range(1, most + 1)
        for p in itertools.combinations(range(n), size)
        if all(np.diff(p) >= apart)
    ]


def sensitivity(c: Array, most: int, apart: int) -> float:
    sizes = np.abs(c.T @ c)
    tried = patterns(len(c), most, apart)
    return math.sqrt(max(sizes[np.ix_(p, p)].sum() for p in tried))


def error(c: Array, objective: Objective) -> float:
    variances = (np.linalg.solve(c.T, np.tri(len(c)).T) ** 2).sum(axis=0)
    return math.sqrt(variances.max() if objective == "max" else variances.mean())


def check(found: OptimalFactorization, most: int, apart: int, objective: Objective) -> None:
    c = found.c
    assert np.array_equal(c, np.tril(c))
    assert sensitivity(c, most, apart) == pytest.approx(1, abs=1e-9)
    assert found.error == pytest.approx(error(c, objective), rel=1e-9)
    assert found.lower_bound == found.certificate.bound() <= found.error


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_shipped_factorisations_against_the_best_for_one_visit(objective: Objective) -> None:
    n = 16
    found = optimal_factorization(n, objective=objective)
    check(found, 1, n, objective)
    assert found.error <= (1 + 1e-5) * found.lower_bound
    assert not found.certificate.problems(1, n, n)
    for made, limit in ((BandedBLT.fitted(n, objective=objective), 1.003),
                        (BufferedToeplitz.fitted(n), 1.15), (BinaryTree(n), 2.7)):  # fmt: skip
        own = made.max_error_std() if objective == "max" else made.rms_error_std()
        assert found.lower_bound < made.column_norm() * own <= limit * found.lower_bound


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_shipped_banded_factorisation_against_the_best_banded_one(objective: Objective) -> None:
    n, most, apart = 16, 2, 8
    rule = Participation(most, apart)
    found = optimal_factorization(n, rule, objective, band=apart)
    check(found, most, apart, objective)
    assert found.error <= (1 + 1e-4) * found.lower_bound
    assert not found.certificate.problems(most, apart, apart)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    assert np.abs(found.c[lag >= apart]).max() < 1e-15
    made = BandedBLT(n, *fitted_parameters(n, apart, objective))
    own = made.max_error_std() if objective == "max" else made.rms_error_std()
    # Unit columns are not the best: slots with fewer partners could have longer ones.
    assert found.lower_bound < math.sqrt(most) * own <= 1.02 * found.lower_bound


def test_larger_horizon_is_certified() -> None:
    found = optimal_factorization(32, objective="mean")
    made = BandedBLT.fitted(32, objective="mean")
    assert not found.certificate.problems(1, 32, 32)
    assert found.error <= (1 + 1e-5) * found.lower_bound
    assert made.rms_error_std() <= 1.002 * found.lower_bound


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_band_is_needed_where_visits_are_few(objective: Objective) -> None:
    n, most, apart = 12, 2, 3
    rule = Participation(most, apart)
    free = optimal_factorization(n, rule, objective)
    check(free, most, apart, objective)
    assert free.error <= (1 + 1e-4) * free.lower_bound
    assert not free.certificate.problems(most, apart, None)
    banded = optimal_factorization(n, rule, objective, band=apart)
    check(banded, most, apart, objective)
    assert free.error < 0.99 * banded.lower_bound


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_visit_needs_no_solver(objective: Objective) -> None:
    n = 20
    best = optimal_factorization(n, objective=objective)
    certificate = one_visit_certificate(n, objective)
    assert not certificate.problems(1, n, n)
    assert (1 - 1e-4) * best.error <= certificate.bound() <= best.error


@pytest.mark.parametrize(("objective", "gap"), [("max", 1.005), ("mean", 1.001)])
def test_shipped_factorisation_is_near_the_best(objective: Objective, gap: float) -> None:
    n = 128
    certificate = one_visit_certificate(n, objective, steps=5)
    assert not certificate.problems(1, n, n)
    made = BandedBLT.fitted(n, objective=objective)
    own = made.max_error_std() if objective == "max" else made.rms_error_std()
    assert certificate.bound() < own <= gap * certificate.bound()


def test_uneven_patterns_are_used() -> None:
    """Three visits fit into 16 slots in few ways: columns need not have the same length."""
    n, most, apart = 16, 3, 6
    found = optimal_factorization(n, Participation(most, apart), "mean", band=apart)
    check(found, most, apart, "mean")
    assert found.error <= (1 + 1e-4) * found.lower_bound
    assert np.ptp(np.diag(found.c.T @ found.c)) > 0.1


def test_a_certificate_that_does_not_hold_is_found_out() -> None:
    found = optimal_factorization(8, Participation(2, 4), "mean", band=4)
    good = found.certificate
    assert not good.problems(2, 4, 4)
    within = good.y.copy()
    within[0, 1] = within[1, 0] = 1e-6
    broken: dict[str, Certificate] = {
        "v is no weight": replace(good, v=2 * good.v),
        "diagonal of Y": replace(good, y=2 * good.y),
        "within the band": replace(good, y=within),
        "positive semidefinite": replace(good, y=good.y - np.eye(8)),
    }
    for message, certificate in broken.items():
        assert any(message in problem for problem in certificate.problems(2, 4, 4))
    assert good.problems(2, 4, None)
    assert good.problems(1, 4, 4)


def test_a_certificate_of_patterns_that_does_not_hold_is_found_out() -> None:
    found = optimal_factorization(8, Participation(2, 3), "mean")
    good = found.certificate
    assert not good.problems(2, 3, None)
    broken: dict[str, Certificate] = {
        "above the mixture": replace(good, y=1.01 * good.y),
        "admissible patterns": replace(good, patterns=((0, 1), *good.patterns[1:])),
        "q is no weight": replace(good, q=tuple(2 * x for x in good.q)),
    }
    for message, certificate in broken.items():
        assert any(message in problem for problem in certificate.problems(2, 3, None))
    assert good.problems(2, 4, None)
    assert good.problems(1, 3, None)


def test_heaviest_pattern_is_that_of_all_patterns() -> None:
    values = np.random.default_rng(2).random(11)
    for most, apart in ((1, 1), (2, 3), (3, 3), (4, 2), (11, 1), (3, 20)):
        sums = [values[list(p)].sum() for p in patterns(11, most, apart)]
        assert heaviest(values, most, apart) == pytest.approx(max(sums))


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="a stream has no batches"):
        optimal_factorization(8, Participation(2, per_batch=1))
    with pytest.raises(ValueError, match=r"band = 5: must be at most participation\.apart = 4"):
        optimal_factorization(8, Participation(2, 4), band=5)
    with pytest.raises(ValueError, match="more than 2000 patterns"):
        optimal_factorization(40, Participation(4, 2))
    with pytest.raises(ValueError, match="horizon"):
        optimal_factorization(0)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ImportError, match=r"privlearn\[cvxpy\]"):
        optimal_factorization(8)
