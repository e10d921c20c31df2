"""The best factorisation of a small horizon, by convex programming, and how good any can be.

A = B C for the prefix-sum matrix A, X = C'C.  With B = A C^-1, the variances of prefix sums are the
diagonal of A X^-1 A', which is convex in X, and what one person moves is S with

    S**2 = max over patterns p of sum_{i,j in p} |X_ij|,

so that the least error at S = 1 is a semidefinite program.  Its size allows horizons up to about
100.  C is taken lower triangular, which costs nothing: any X is C'C for such a C.

Certificate:  let Y be positive semidefinite with <Y, X> <= 1 for every X with S <= 1, and v >= 0
              with sum 1.  For every factorisation with S = 1,

                  max_t var_t >= sum_t v_t var_t = ||V A C^-1||_F**2 >= ||V A Y^1/2||_*, squared,

              with V = diag(v)**1/2, by ||M N||_* <= ||M||_F ||N||_F at M = V A C^-1, N = C Y^1/2.
              Such a Y is (a) |Y_ij| <= P_ij, P = sum_p q_p 1_p 1_p' for weights q of patterns with
              sum 1; or (b) where X_ij = 0 for |i - j| >= band, which makes S**2 a sum of the X_jj
              of a pattern: any Y that is 0 at 0 < |i - j| < band with a diagonal that is a mixture
              of patterns: at most 1 in each ``apart`` neighbouring slots together and ``most`` in
              all (intervals of slots make a totally unimodular matrix, so that these inequalities
              describe the mixtures).  The solver proposes v, q and Y; they are made to comply and
              the bound is then computed from them, whatever the solver did.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.mechanisms.banded_shapes import Objective
from privlearn.values.participation import Participation
from privlearn.values.validate import count

Array = NDArray[np.float64]
Pattern = tuple[int, ...]
_MOST_PATTERNS = 2000
_INTERIOR = 24
"""Horizons up to which an interior-point method is fast; more exact than splitting, beyond."""
_SLACK = 1e-12
"""Of the norms below, relative: they are off by some 2**-53 times n."""


@final
@dataclass(frozen=True, eq=False)
class Certificate:
    """What shows that no factorisation has a smaller error.

    Args:
        v: weight of each time, summing up to at most 1.
        y: Y above.
        patterns, q: of case (a), patterns and their weights; none in case (b).
    """

    v: Array
    y: Array
    patterns: tuple[Pattern, ...] = ()
    q: tuple[float, ...] = ()

    def bound(self) -> float:
        """A lower bound on the error at S = 1; valid if `problems` finds none."""
        values, vectors = np.linalg.eigh(self.y)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        product = np.sqrt(self.v)[:, None] * np.cumsum(root, axis=0)
        return float(np.linalg.svd(product, compute_uv=False).sum()) * (1 - _SLACK)

    def problems(self, most: int, apart: int, band: int | None) -> list[str]:
        """Why the bound would not hold, for at most ``most`` visits, ``apart`` slots apart."""
        n, found = len(self.v), []
        if self.v.min() < 0 or self.v.sum() > 1 + _SLACK:
            found.append("v is no weight of times")
        if not np.array_equal(self.y, self.y.T) or np.linalg.eigvalsh(self.y)[0] < -_SLACK:
            found.append("Y is not positive semidefinite")
        if band is None:
            allowed = all(_admissible(p, n, most, apart) for p in self.patterns)
            if not allowed or min(self.q, default=0) < 0 or math.fsum(self.q) > 1 + _SLACK:
                found.append("q is no weight of admissible patterns")
            if np.any(np.abs(self.y) > _mixture(n, self.patterns, self.q) * (1 + _SLACK)):
                found.append("an entry of Y is above the mixture of patterns")
        else:
            lag = _lags(n)
            if band > apart or np.any(self.y[(lag > 0) & (lag < band)] != 0):
                found.append("Y is not 0 within the band")
            if _loads(np.diag(self.y), most, apart).max() > 1 + _SLACK:
                found.append("the diagonal of Y is no mixture of patterns")
        return found


@final
@dataclass(frozen=True, eq=False)
class OptimalFactorization:
    """What `optimal_factorization` found.

    Args:
        c: C, lower triangular, with S = 1.
        error: of the objective, the largest standard deviation of a prefix sum or the rms.
        lower_bound: no factorisation of its kind has a smaller one; from ``certificate``.
        certificate: what shows it.
    """

    c: Array
    error: float
    lower_bound: float
    certificate: Certificate


def optimal_factorization(
    horizon: int,
    participation: Participation | None = None,
    objective: Objective = "max",
    band: int | None = None,
) -> OptimalFactorization:
    """Solves the convex program; seconds at 32 slots, minutes at 100; needs cvxpy.

    Args:
        horizon: number of slots.
        participation: how often one person comes; once, where left out.
        objective: ``max`` or ``mean``, of the variances of prefix sums.
        band: entries of C from that lag on are 0; None: any C.  At most ``participation.apart``.

    Raises:
        ImportError: without cvxpy.
        ValueError: a rule with batches; a band above ``apart``; more than 2000 patterns to
            consider, which a band avoids; the solver gave up.
    """
    count(horizon=horizon)
    rule = Participation(1) if participation is None else participation
    if rule.batched:
        raise ValueError(f"participation = {rule}: a stream has no batches, give most and apart")
    visits = min(rule.most, -(-horizon // rule.apart))
    if band is None and visits == 1:
        band = apart = horizon
    else:
        apart = rule.apart
    if band is not None and count(band=band) > apart:
        raise ValueError(f"band = {band}: must be at most participation.apart = {apart}, or None")
    program = _Program(horizon, visits, apart, band)
    return program.solved(objective)


def one_visit_certificate(
    horizon: int, objective: Objective = "max", steps: int = 10
) -> Certificate:
    """For a person who comes once, without a solver: any horizon whose matrices can be decomposed.

    Then Y = diag(p), and with M = V A Y^1/2 = U S W' the best v and p are the diagonals of U S U'
    and of W S W', over tr S: each step puts them in.  After 10 steps the bound is within 0.01% of
    the least error (tests), in time O(steps * horizon**3).

    Raises:
        ValueError: horizon < 1.
    """
    v = p = np.full(count(horizon=horizon), 1.0 / horizon)
    for _ in range(steps):
        product = np.sqrt(v)[:, None] * np.tri(horizon) * np.sqrt(p)
        left, sizes, right = np.linalg.svd(product)
        p = (right.T**2) @ sizes
        p /= p.sum()
        if objective == "max":
            v = (left**2) @ sizes
            v /= v.sum()
    return Certificate(v, np.diag(p))


class _Program:
    """One program."""

    def __init__(self, horizon: int, visits: int, apart: int, band: int | None) -> None:
        self.n, self.visits, self.apart, self.band = horizon, visits, apart, band
        self.patterns = () if band is not None else _patterns(horizon, visits, apart)

    def solved(self, objective: Objective) -> OptimalFactorization:
        cp, n = _cvxpy(), self.n
        a = np.tri(n)
        x, z = cp.Variable((n, n), symmetric=True), cp.Variable((n, n), symmetric=True)
        worst = cp.Variable()
        rows = cp.diag(z) <= worst
        least = worst if objective == "max" else cp.trace(z) / n
        sensitivity, weighed = self._sensitivity(cp, x)
        constraints = [cp.bmat([[z, a], [a.T, x]]) >> 0, rows, *sensitivity]
        problem = cp.Problem(cp.Minimize(least), constraints)
        try:
            with warnings.catch_warnings(action="ignore"):  # of inaccuracy: all is computed again
                if n <= _INTERIOR:
                    problem.solve(solver=cp.CLARABEL)
                else:
                    problem.solve(solver=cp.SCS, eps=1e-6, max_iters=20_000)
        except cp.SolverError as reason:
            raise ValueError(f"horizon = {n}: the solver gave up: {reason}") from None
        if x.value is None:
            raise ValueError(f"horizon = {n}: the solver gave up: {problem.status}")
        gram = self._feasible(x.value)
        variances = _variances(gram)
        v = np.full(n, 1.0 / n)
        if objective == "max":
            v = np.maximum(np.asarray(rows.dual_value, dtype=float), 0.0)
            v /= v.sum()
        q = np.maximum(np.ravel(weighed.dual_value), 0.0) if self.band is None else np.ones(0)
        certificate = self._certificate(gram, v, q)
        error = math.sqrt(variances.max() if objective == "max" else variances.mean())
        return OptimalFactorization(_root(gram), error, certificate.bound(), certificate)

    def _sensitivity(self, cp: Any, x: Any) -> tuple[list[Any], Any]:
        """Constraints for S <= 1, and that of them whose duals weigh the patterns."""
        n = self.n
        if self.band is not None:  # X_jj <= z + the windows over j, of least total 1
            windows = _windows(n, self.apart)
            of_windows, of_all = cp.Variable(len(windows), nonneg=True), cp.Variable(nonneg=True)
            total = cp.sum(of_windows) + self.visits * of_all <= 1
            zero = [x[_lags(n) >= self.band] == 0] if self.band < n else []
            return [cp.diag(x) <= windows.T @ of_windows + of_all, total, *zero], total
        sizes = cp.Variable((n, n), symmetric=True)
        members = np.array([_indicator(n, p) for p in self.patterns])
        pairs = np.einsum("pi,pj->pij", members, members).reshape(len(members), -1)
        weighed = pairs @ cp.vec(sizes, order="C") <= 1
        return [sizes >= x, sizes >= -x, weighed], weighed

    def _feasible(self, x: Array) -> Array:
        """X with S = 1."""
        gram = (x + x.T) / 2.0
        if self.band is None:
            members = np.array([_indicator(self.n, p) for p in self.patterns])
            largest = np.einsum("pi,ij,pj->p", members, np.abs(gram), members).max()
        else:
            gram[_lags(self.n) >= self.band] = 0.0
            largest = heaviest(np.diag(gram), self.visits, self.apart)
        return np.asarray(gram / largest)

    def _certificate(self, gram: Array, v: Array, q: Array) -> Certificate:
        """Y from the derivative of the error by X, made to comply."""
        inner = np.linalg.solve(gram, np.tri(self.n).T * np.sqrt(v))
        y = inner @ inner.T
        y /= np.sum(y * gram)
        patterns: tuple[Pattern, ...] = ()
        weights: tuple[float, ...] = ()
        if self.band is None:
            q = q / q.sum()
            used = np.flatnonzero(q > 0)
            patterns = tuple(self.patterns[i] for i in used)
            weights = tuple(map(float, q[used]))
            most = _mixture(self.n, patterns, weights)
            y = np.clip(y, -most, most)
        else:
            lag = _lags(self.n)
            y[(lag > 0) & (lag < self.band)] = 0.0
            load = np.sqrt(_loads(np.diag(y), self.visits, self.apart))
            y /= np.multiply.outer(load, load)
        return Certificate(v, _positive((y + y.T) / 2.0), patterns, weights)


def heaviest(values: Array, visits: int, apart: int) -> float:
    """Largest sum of ``values`` >= 0 over a pattern."""
    best = np.zeros(len(values) + apart)
    for _ in range(visits):
        best[: len(values)] = values + best[apart:]
        best = np.maximum.accumulate(best[::-1])[::-1]
    return float(best[0])


def _loads(diagonal: Array, most: int, apart: int) -> Array:
    """By how much each slot has to shrink at most until the diagonal is a mixture of patterns.

    The largest sum over a window of ``apart`` slots it is in, or the sum of all over ``most``: once
    every slot is divided by its own, each window has at most 1.
    """
    windows = _windows(len(diagonal), apart)
    loads = (windows * (windows @ diagonal)[:, None]).max(axis=0)
    return np.asarray(np.maximum(loads, diagonal.sum() / most))


def _windows(n: int, apart: int) -> Array:
    """Rows of 1 over each ``apart`` neighbouring slots."""
    size = min(apart, n)
    starts = np.arange(n - size + 1)[:, None]
    slots = np.arange(n)
    return ((slots >= starts) & (slots < starts + size)).astype(float)


def _patterns(n: int, visits: int, apart: int) -> tuple[Pattern, ...]:
    """All patterns to which no visit can be added: |X| is largest there."""
    found = []
    for pattern in _extensions((), n, visits, apart):
        found.append(pattern)
        if len(found) > _MOST_PATTERNS:
            raise ValueError(
                f"horizon = {n} with most = {visits}, apart = {apart}: more than {_MOST_PATTERNS} "
                "patterns of visits; give a band of at most apart"
            )
    return tuple(found)


def _extensions(before: Pattern, n: int, left: int, apart: int) -> Iterator[Pattern]:
    first = before[-1] + apart if before else 0
    if left == 0 or first >= n:
        yield before
        return
    stop = min(n, first + apart) if left > n // apart else n  # a longer pause has room for a visit
    for j in range(first, stop):
        yield from _extensions((*before, j), n, left - 1, apart)


def _admissible(pattern: Pattern, n: int, most: int, apart: int) -> bool:
    apart_enough = all(b - a >= apart for a, b in itertools.pairwise(pattern))
    return len(pattern) <= most and min(pattern) >= 0 and max(pattern) < n and apart_enough


def _indicator(n: int, pattern: Pattern) -> Array:
    found = np.zeros(n)
    found[list(pattern)] = 1.0
    return found


def _mixture(n: int, patterns: tuple[Pattern, ...], q: tuple[float, ...]) -> Array:
    members = np.array([_indicator(n, p) for p in patterns]).reshape(-1, n)
    return np.asarray((members.T * np.array(q)) @ members)


def _positive(y: Array) -> Array:
    """y with the least share of its own diagonal that makes it positive semidefinite."""
    diagonal = np.diag(np.diag(y))
    share = 1e-12
    while np.linalg.eigvalsh(y)[0] < 0:
        y = (1 - share) * y + share * diagonal
        share *= 2
    return y


def _variances(gram: Array) -> Array:
    """Of prefix sums: the diagonal of A X^-1 A'."""
    b = np.linalg.solve(_root(gram).T, np.tri(len(gram)).T)
    return np.asarray((b * b).sum(axis=0))


def _root(gram: Array) -> Array:
    """Lower triangular C with C'C = X."""
    return np.asarray(np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T)


def _lags(n: int) -> NDArray[np.int64]:
    return np.asarray(np.abs(np.subtract.outer(np.arange(n), np.arange(n))))


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise ImportError(
            "optimal factorisations need cvxpy: pip install 'privlearn[cvxpy]'"
        ) from None
    return cvxpy
