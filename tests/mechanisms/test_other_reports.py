"""Gaussian, Laplace and category reports, and what all local reports have in common."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any, cast

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.accountants.audit import certify
from privlearn.checking.exact.check import white_box
from privlearn.contract import receipts
from privlearn.contract.protocols import Report
from privlearn.contract.spends import Spend
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    LossExceedsTokenError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.learners.local.form import MessageForm
from privlearn.ledger import Ledger
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    BallReport,
    CategoryReport,
    NoisyReport,
    NoisySum,
    OneOfKReport,
    ProjectedReport,
    report_from_dict,
    report_streams,
)
from privlearn.noise import (
    CapNoise,
    CategoryNoise,
    GaussianNoise,
    GeneralizedGaussianNoise,
    LaplaceNoise,
    NoiseSource,
)
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.noise.exact.tables import SAMPLER, SHA256
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Box, Categories, OneOf, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

Array = NDArray[np.float64]
MU = GaussianDP.from_mu_squared("0.5")
REPORTS: list[Report[Any]] = [
    BallReport.duchi(3, 2.0, 1),
    BallReport.privunit(3, 2.0, 1),
    BallReport.privunit_g(3, 2.0, 1),
    ProjectedReport.privunit(3, 2.0, 1, size=2),
    NoisyReport.calibrated(Ball(2.0, 3), MU),
    NoisyReport.calibrated(Box(-1.0, 1.0, 3), PureDP(1), noise="laplace"),
    NoisyReport(Ball(1.0, 3, 4.0), GeneralizedGaussianNoise(2.0, 4.0)),
    CategoryReport.calibrated(4, 1),
    OneOfKReport(BallReport.best(3, 2.0, 1), 2),
    OneOfKReport(ProjectedReport.privunit(3, 2.0, 1, size=2), 2),
    OneOfKReport(NoisyReport.calibrated(Ball(2.0, 3), MU), 2),
]
NAMES = [
    f"{i}-{(r.report if isinstance(r, OneOfKReport) else r).__class__.__name__}"
    for i, r in enumerate(REPORTS)
]


def epsilon_of(report: Any) -> float:
    pure = report.loss().pure()
    assert pure is not None
    return float(pure)


def cap_of(report: Any) -> Any:
    loss = report.loss()
    if loss.gaussian() is None and loss.pure() is None:  # generalized Gaussian
        return ZCDP(40)
    return GaussianDP.from_mu_squared(9) if loss.pure() is None else PureDP(40)


def device(report: Any, n: int, seed: int = 0) -> LocalAccountant[Any]:
    return LocalAccountant(cap_of(report), users=range(n), noise=NoiseSource.simulation(seed))


def rows_for(report: Any, n: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if isinstance(report, CategoryReport):
        return rng.integers(0, report.categories, n)
    if isinstance(report, OneOfKReport):
        return rows_for(report.report, n, seed), rng.integers(0, report.arms, n)
    return rng.normal(size=(n, 3))


def sampled(report: Any, rows: Any, seed: int = 0) -> Array:
    n = len(rows[1]) if isinstance(rows, tuple) else len(rows)
    token = device(report, n, seed).issue(report.loss(), users=range(n), label="message")
    value: Array = report.release(Rows.seal(rows, users=range(n)), token).value
    return value


# All of them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_forms(report: Any) -> None:
    """Shapes, limits, JSON; a report of its own is plausible, also after rounding to the grid."""
    reports = sampled(report, rows_for(report, 50))
    assert reports.shape == (50, report.size)
    assert np.abs(reports).max() <= report.limit * (1 + 1e-12)
    assert report.estimate(reports).shape == (50, report.domain.size)
    grid = report.limit / 2**23
    sent = np.rint(reports / grid) * grid
    assert report.plausible(sent, grid / 2).all()
    assert not report.plausible(sent + 3 * report.limit, grid / 2).any()
    assert not report.plausible(np.full_like(sent, np.nan), grid / 2).any()
    again: Any = report_from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False)))
    assert again == report
    assert again.loss() == report.loss()
    assert np.array_equal(sampled(again, rows_for(report, 50)), reports)


def test_reports_without_a_surface_are_plausible_up_to_their_limit() -> None:
    for report in (
        BallReport.privunit_g(3, 2.0, 1),
        NoisyReport.calibrated(Ball(2.0, 3), MU),
        NoisyReport.calibrated(Box(-1.0, 1.0, 3), PureDP(1), noise="laplace"),
        NoisyReport(Ball(1.0, 3, 4.0), GeneralizedGaussianNoise(2.0, 4.0)),
    ):
        end, grid = np.full((1, 3), report.limit), report.limit / 2**23
        assert report.plausible(np.concatenate([end, -end]), 0.0).all()
        assert report.plausible(end + 0.9 * grid, grid).all()
        assert not report.plausible(np.concatenate([end, -end]) * 1.001, grid).any()


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_a_report_depends_on_nobody_elses_row(report: Any) -> None:
    """The same noise, all other rows replaced: not a bit changes; batches and streams alike."""
    n, at = 20, 7

    def streamed(rows: Any) -> Array:
        token = device(report, n).issue(report.loss(), users=range(n), label="message")
        with report.open(token) as stream:
            parts = [
                stream.append(Rows.seal(rows, users=range(n)).slice(range(i, i + size))).value
                for i, size in ((0, 1), (1, 5), (6, 1), (7, 1), (8, 12))
            ]
        return np.concatenate(parts)

    ours, theirs = rows_for(report, n), rows_for(report, n, seed=1)
    for old, new in zip(
        ours if isinstance(ours, tuple) else (ours,),
        theirs if isinstance(theirs, tuple) else (theirs,),
        strict=True,
    ):
        new[at] = old[at]
    for run in (streamed, lambda rows: sampled(report, rows)):
        before, after = run(ours), run(theirs)
        assert np.array_equal(before[at], after[at])
        others = np.arange(n) != at
        assert not np.array_equal(before[others], after[others])


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_estimates_are_unbiased(report: Any) -> None:
    """By samples, for one record in the set; worst-case errors are not exceeded."""
    n = 40_000
    one = rows_for(report, 1)
    rows = tuple(np.repeat(x, n, axis=0) for x in one) if isinstance(one, tuple) else None
    block = np.repeat(one, n, axis=0) if rows is None else rows
    clipped = report.domain.clip(one)[0]
    estimates = report.estimate(sampled(report, block, seed=5))
    spread = estimates.std(axis=0) / math.sqrt(n)
    assert (np.abs(estimates.mean(axis=0) - clipped) < 4.5 * spread).all()
    errors = np.square(estimates - clipped).sum(axis=1)
    assert errors.mean() <= report.mean_squared_error() + 4.5 * errors.std() / math.sqrt(n)


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_tokens_of_reports(report: Any) -> None:
    """Each user pays once; a stream takes users in order, each once, and closes."""
    book = device(report, 6)
    token = book.issue(report.loss(), users=range(1, 5), label="message")
    rows = Rows.seal(rows_for(report, 6), users=range(6))
    with report.open(token) as stream:
        stream.append(rows.slice(range(1, 2)))
        with pytest.raises(UsersError):
            stream.append(rows.slice(range(1, 2)))
        with pytest.raises(UsersError):
            stream.append(rows.slice(range(4, 6)))
        stream.append(rows.slice(range(3, 4)))  # user 2 sends nothing, and stays charged
        with pytest.raises(UsersError):
            stream.append(rows.slice(range(2, 3)))
        assert not stream.closed
    assert stream.closed
    with pytest.raises(TokenSpentError):
        stream.append(rows.slice(range(4, 5)))
    price = cap_of(report).price(report.loss())
    spent = [book.spent(user) for user in range(6)]
    assert spent == [price.zero(), *[price] * 4, price.zero()]
    book.close()
    certificate = certify(book.ledger.records)
    assert not certificate.problems
    name = report.spend().mechanism
    word = f"{name}: that every output depends on its user's row and own noise alone is its code's "
    word += "word"
    rounded = [line for line in certificate.trusted_code if "floating point" in line]
    assert [line for line in certificate.trusted_code if line not in rounded] == [word]
    assert bool(rounded) == (report.spend().exact_form() is None)


def test_noise_that_is_drawn_ahead_is_used_once_and_in_order() -> None:
    drawn: list[int] = []

    def numbered(n: int) -> Array:
        first = sum(drawn)
        drawn.append(n)
        return np.arange(first, first + n, dtype=float)

    ahead, used = report_streams._Ahead(numbered), []
    sizes = [1, 1, 2, 1, 70, 1, 300, 1, 1, 255, 3, 256, 257, *[1] * 600, 5]
    for size in sizes:
        noise = ahead(size)
        assert len(noise) == size
        used.extend(noise.tolist())
    assert len(used) == sum(sizes) <= sum(drawn)
    assert (np.diff(used) > 0).all()  # no row twice, none out of order
    assert used[-1] < sum(drawn)
    assert len(drawn) < 30  # ahead


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_users_of_one_record_have_different_reports(report: Any) -> None:
    """One after the other, more of them than noise is drawn ahead for."""
    n = 300
    if isinstance(report, CategoryReport):
        pytest.skip("four answers; the law of the checking kit sees to them")
    one = rows_for(report, 1)
    rows = tuple(np.repeat(x, n, axis=0) for x in one) if isinstance(one, tuple) else None
    sealed: Rows[Any] = Rows.seal(
        np.repeat(one, n, axis=0) if rows is None else rows, users=range(n)
    )
    token = device(report, n).issue(report.loss(), users=range(n), label="message")
    with report.open(token) as stream:
        reports = [stream.append(sealed.slice(range(i, i + 1))).value[0] for i in range(n)]
    for numbers in np.transpose(reports):  # every number, of every arm
        assert len(np.unique(numbers)) == n


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
@pytest.mark.parametrize("streamed", [False, True])
def test_floating_point_errors_of_the_caller_s_making_tell_of_no_row(
    report: Any, streamed: bool
) -> None:
    def tiny(values: Array) -> Array:
        return values * 1e-155 if values.dtype == np.float64 else values

    rows = rows_for(report, 2)
    block = tuple(map(tiny, rows)) if isinstance(rows, tuple) else tiny(rows)
    sealed: Rows[Any] = Rows.seal(block, users=range(2))
    token = device(report, 2).issue(report.loss(), users=range(2), label="message")
    with np.errstate(all="raise"):
        released = report.open(token).append(sealed) if streamed else report.release(sealed, token)
    assert len(released.value) == 2


@pytest.mark.parametrize("stage", ["clip", "draw", "randomized", "publish"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_interruption_costs_its_own_users_their_report_alone(
    stage: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, n = BallReport.best(3, 1.0, 1), 8
    book = device(report, n)
    token = book.issue(report.loss(), users=range(n), label="message")
    rows = Rows.seal(np.tile([0.6, 0.0, 0.8], (n, 1)), users=range(n))

    def interrupted(*_: Any, **__: Any) -> Any:
        raise error

    places: dict[str, tuple[Any, str]] = {
        "clip": (Ball, "clip"),
        "draw": (CapNoise, "rows"),
        "randomized": (CapRows, "steps"),
        "publish": (receipts, "digest_of"),
    }
    with report.open(token) as stream:
        seen = [stream.append(rows.slice(range(1))).value]
        for first in (1, 3):
            with monkeypatch.context() as broken:
                broken.setattr(*places[stage], interrupted)
                with pytest.raises(error):
                    stream.append(rows.slice(range(first, first + 1)))
        with pytest.raises(UsersError):
            stream.append(rows.slice(range(1, 2)))
        seen.append(stream.append(rows.slice(range(5, 6))).value)
        seen.append(stream.append(rows.slice(range(6, n))).value)
    assert len(seen[-1]) == 2
    together = np.concatenate(seen)
    assert len(np.unique(together[:, 0])) == len(together)
    # An interrupt comes from outside; an error may be about a user's row, and no price covers that.
    outcome = "released" if error is KeyboardInterrupt else "uncovered"
    assert book.ledger.records[-1].body["outcome"] == outcome
    price = PureDP(1).price(report.loss())
    assert [book.spent(user) for user in range(n)] == [price] * n


def test_a_failing_block_closes_the_stream_as_lost() -> None:
    report = REPORTS[0]
    book = device(report, 2)
    token = book.issue(report.loss(), users=range(2), label="message")
    with pytest.raises(KeyError), report.open(token) as stream:  # type: ignore[attr-defined]
        raise KeyError
    assert stream.closed
    assert book.ledger.records[-1].body["outcome"] == "lost"


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_small_tokens_and_other_relations_are_refused(report: Any) -> None:
    book = device(report, 3)
    rows = Rows.seal(rows_for(report, 3), users=range(3))
    small = book.issue(cap_of(report).price(report.loss()).share("0.99"), users=range(3), label="m")
    with pytest.raises(LossExceedsTokenError):
        report.release(rows, small)
    with pytest.raises(LossExceedsTokenError):
        report.open(small)
    zero = LocalAccountant(
        cap_of(report),
        users=range(3),
        noise=NoiseSource.simulation(0),
        adjacency=Adjacency.ZERO_OUT,
    )
    other = zero.issue(zero.budget, users=range(3), label="m")
    with pytest.raises(AdjacencyError):
        report.release(rows, other)
    with pytest.raises(AdjacencyError):
        report.open(other)


def test_one_output_for_each_user() -> None:
    """A spend that says ``each`` cannot release a sum, or less, or more than was opened."""
    spend = Spend("mine", Ball(1.0, 2), GaussianNoise(9.0), arithmetic="each", interactive=True)
    book = CentralAccountant(MU, users=range(4), noise=NoiseSource.simulation(0))
    rows = Rows.seal(np.zeros((4, 2)), users=range(4))
    with book.issue(spend.loss(book.adjacency), users=range(4), label="m").spend(spend) as receipt:
        noisy = receipt.open(rows.slice(range(2))) + receipt.draw((2, 2))
        for wrong in (
            noisy.sum(axis=0)[:1],
            noisy[:1],
            np.concatenate([noisy, noisy]),
            noisy[0, 0],
        ):
            with pytest.raises(TokenError, match="one output for each"):
                receipt.publish(wrong)
        receipt.publish(noisy)
        with pytest.raises(TokenError, match="0 users were opened"):
            receipt.publish(noisy)
        # users that are left out do not count
        receipt.publish(receipt.open(rows.slice(range(3, 4))) + receipt.draw((1, 2)))
        receipt.close()
    with pytest.raises(ValueError, match="'sum', 'own' or 'each'"):
        Spend("mine", Ball(1.0, 2), GaussianNoise(9.0), arithmetic="all")  # type: ignore[arg-type]


def test_noise_for_each_user() -> None:
    """A sum with one row of noise, handed to three users, is refused; drawing ahead is not."""
    spend = Spend("tiled", Ball(1.0, 2), LaplaceNoise(9.0), arithmetic="each", interactive=True)
    loss = spend.loss(Adjacency.REPLACE_ONE)
    rows = Rows.seal(np.zeros((9, 2)), users=range(9))

    def receipt() -> Any:
        book = LocalAccountant(PureDP(9), users=range(9), noise=NoiseSource.simulation(0))
        return book.issue(loss, users=range(9), label="m").spend(spend)

    for shape in ((1, 1), (2, 2), (), (8, 2, 2)):
        with receipt() as tiled:
            total = tiled.open(rows).sum() + tiled.draw(shape).sum()
            with pytest.raises(TokenError, match="rows of noise were drawn for 9 users"):
                tiled.release(np.tile(total, (9, 1)))
    with receipt() as ahead:
        noise = ahead.draw((4, 2))
        ahead.draw((0, 2))
        ahead.publish(ahead.open(rows.slice(range(1))) + noise[:1])
        ahead.publish(ahead.open(rows.slice(range(1, 4))) + noise[1:])
        values = ahead.open(rows.slice(range(4, 6)))
        with pytest.raises(TokenError, match="4 rows of noise were drawn for 6 users"):
            ahead.publish(values + noise[2:])
        noise = ahead.draw((1, 2))
        with pytest.raises(TokenError, match="5 rows"):
            ahead.publish(values + noise)
        ahead.publish(values + np.concatenate([noise, ahead.draw((1, 2))]))
        ahead.close()


def test_reports_of_many_users_stand_in_one_entry(tmp_path: Any) -> None:
    report = BallReport.best(2, 1.0, 1)
    with Ledger.create(tmp_path / "device.jsonl") as ledger:
        book = LocalAccountant(PureDP(1), users=range(5000), ledger=ledger)
        token = book.issue(report.loss(), users=range(5000), label="message")
        report.release(Rows.seal(np.zeros((5000, 2)), users=range(5000)), token)
        assert [record.body["entry"] for record in ledger.records[1:]] == [
            "issue",
            "spend",
            "retire",
        ]
        assert ledger.records[2].body["arithmetic"] == "each"


# Gaussian ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "weight"), [(2, 1.0), (2, 0.7), (5, 0.5), (1, 1.0)])
def test_least_squares_sensitivity_is_attained(dim: int, weight: float) -> None:
    """Search over pairs of records: √2·(1 + w²) for (xx', w·xr, w²r²), r² for nothing."""
    domain = PSDTrace(1 + weight**2, dim + 1)

    def factors(x: Array, r: float) -> Array:
        return np.append(x, weight * r)[None, None, :]

    def apart(v: Array) -> float:
        x, y = v[:dim], v[dim : 2 * dim]
        x = x / max(1.0, float(np.linalg.norm(x)))
        y = y / max(1.0, float(np.linalg.norm(y)))
        r, s = np.clip(v[2 * dim :], -1, 1)
        f, g = domain.clip(factors(x, r)), domain.clip(factors(y, s))
        return -float(np.linalg.norm(f - g))

    rng = np.random.default_rng(0)
    best = min(
        float(optimize.minimize(apart, rng.uniform(-1, 1, 2 * dim + 2), method="Nelder-Mead").fun)
        for _ in range(12)
    )
    bound = domain.sensitivity(Adjacency.REPLACE_ONE, "l2")
    assert bound == pytest.approx(math.sqrt(2) * (1 + weight**2))
    assert -best <= bound * (1 + 1e-9)
    if dim > 1 or weight == 1.0:  # x and x' at the angle of cosine w², opposite rewards
        assert -best == pytest.approx(bound, rel=2e-3)


def test_records_within_their_bounds_are_not_cut_by_the_joint_factor() -> None:
    """‖x‖ <= 1 and |r| <= 1 use the trace 1 + w² up, and no more."""
    w, d = 0.7, 3
    report = NoisyReport.calibrated(PSDTrace(1 + w**2, d + 1), MU)
    x = np.array([[0.6, 0.0, 0.8]])
    factor = np.concatenate([x, [[-w]]], axis=1)
    matrix = report.domain.decode(report.domain.clip(factor[:, None, :]))[0]
    assert matrix == pytest.approx(factor.T @ factor, rel=1e-11)


def test_gaussian_reports_are_calibrated_exactly() -> None:
    """The δ of the curve at ε is the one asked for, and 5% less noise exceeds it."""
    epsilon, delta = 1.0, 0.01
    noise = NoiseSource.simulation(0)
    book: Any = LocalAccountant(
        ApproxDP(epsilon, delta), users=range(1), noise=noise, currency=GaussianDP
    )
    budget = book.budget
    domain = PSDTrace(1.49, 3)
    report = NoisyReport.calibrated(domain, budget)

    def spent(std: float) -> float:
        mu = domain.sensitivity(Adjacency.REPLACE_ONE) / std
        upper = stats.norm.cdf(-epsilon / mu + mu / 2)
        return float(upper - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2))

    assert spent(report.error_std()) == pytest.approx(delta, rel=1e-5)
    assert spent(report.error_std()) <= delta * (1 + 1e-9)
    assert spent(0.95 * report.error_std()) > 1.05 * delta
    less = NoisyReport(domain, GaussianNoise(0.95 * report.error_std()))
    with pytest.raises(BudgetError):
        book.issue(less.loss(), users=range(1), label="m")


def test_additive_noise_has_its_scale() -> None:
    """From what is released; a scale 5% too small is noticed."""
    n = 20_000
    gaussian = NoisyReport.calibrated(Ball(1.0, 3), MU)
    laplace = NoisyReport.calibrated(Ball(1.0, 3, "l1"), PureDP(1), noise="laplace")
    x = np.tile([0.2, -0.1, 0.3], (n, 1))
    ours = (sampled(gaussian, x) - x[0]).ravel() / gaussian.error_std()
    assert stats.kstest(ours, "norm").pvalue > 1e-3
    assert stats.kstest(0.95 * ours, "norm").pvalue < 1e-3
    ours = (sampled(laplace, x) - x[0]).ravel() * math.sqrt(2) / laplace.error_std()
    assert stats.kstest(ours, "laplace").pvalue > 1e-3
    assert stats.kstest(0.95 * ours, "laplace").pvalue < 1e-3


@pytest.mark.parametrize("arms", [2, 5])
def test_gaussian_one_of_k_costs_the_maximum(arms: int) -> None:
    """Same arm: the diameter; two arms: √2 times the radius; both by enumeration."""
    gram = PSDTrace(1.49, 3)
    for domain in (Ball(1.0, 3), gram, Box(0.0, 1.0, 3)):
        one: NoisyReport[Any] = NoisyReport.calibrated(domain, MU)
        report = OneOfKReport(one, arms)
        shape = (200, 1, 3) if domain is gram else (200, 3)
        records = np.random.default_rng(0).normal(size=shape) * 9
        if domain is gram:
            records[:2, 0] = 9 * np.eye(3)[:2]
        elif isinstance(domain, Ball):
            records[:2] = 9 * np.eye(3)[0] * np.array([[1], [-1]])
        else:
            records[:2] = np.array([[9.0] * 3, [-9.0] * 3])
        f = domain.clip(records)
        same = float(np.max(np.linalg.norm(f[:, None] - f, axis=2)))
        two = math.sqrt(2) * float(np.max(np.linalg.norm(f - domain.null(), axis=1)))
        rows = report.domain.clip((np.repeat(records[:2], 2, axis=0), np.array([0, 1, 0, 1])))
        apart = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(rows, 2))
        mass = report.loss().gaussian()
        assert mass is not None
        assert math.sqrt(mass) * one.error_std() == pytest.approx(max(same, two), rel=1e-9)
        assert apart == pytest.approx(max(same, two), rel=1e-9)
        if not isinstance(domain, Box):  # not the sum of the arms, nor more than one
            assert report.loss() == one.loss()


# Laplace -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", ["0.1", 1, "8"])
@pytest.mark.parametrize("domain", [Ball(1.0, 2, "l1"), Ball(3.0, 4), Box(-1.0, 2.0, 3)])
def test_laplace_reports_cost_their_epsilon(domain: Any, epsilon: Any) -> None:
    report: NoisyReport[Any] = NoisyReport.calibrated(domain, PureDP(epsilon), noise="laplace")
    assert isinstance(report.loss(), LaplaceLoss)
    reach = domain.sensitivity(Adjacency.REPLACE_ONE, "l1")
    assert isinstance(report.noise, LaplaceNoise)
    ratio = (
        reach / report.noise.scale
    )  # of log densities, attained at the two farthest contributions
    assert ratio <= epsilon_of(report) * (1 + 1e-15) <= float(epsilon) * (1 + 1e-15)
    assert ratio >= float(epsilon) * (1 - 1e-10)
    with pytest.raises(ValueError, match="epsilon"):
        NoisyReport.calibrated(domain, PureDP(0), noise="laplace")


# Categories --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 2])
def test_randomized_response_by_its_matrix(k: int, epsilon: float) -> None:
    """All ratios of probabilities, null reports included; e^ε is attained."""
    report = CategoryReport.calibrated(k, epsilon)
    p = report.probability
    matrix = np.full((k + 1, k), (1 - p) / (k - 1))
    matrix[np.arange(k), np.arange(k)] = p
    matrix[k] = 1 / k
    ratio = max(float(np.max(a / b)) for a, b in itertools.permutations(matrix, 2))
    loss = report.loss()
    assert isinstance(loss, RandomizedResponse)
    assert ratio <= math.exp(epsilon_of(report)) * (1 + 1e-14)
    assert epsilon_of(report) <= epsilon
    assert ratio == pytest.approx(math.exp(epsilon), rel=1e-10)
    zero = CategoryReport(k, p, Adjacency.ZERO_OUT)
    assert isinstance(zero.loss(), PureLoss)
    out = float(np.max(np.maximum(matrix[:k] * k, 1 / (matrix[:k] * k))))
    assert math.exp(epsilon_of(zero)) == pytest.approx(out, rel=1e-10)
    # exact mean and error of the estimate, row by row of the matrix
    said = report.estimate(np.arange(k, dtype=float)[:, None])
    truth = np.concatenate([np.eye(k), np.full((1, k), 1 / k)])
    assert matrix @ said == pytest.approx(truth, abs=1e-12)
    errors = matrix @ np.square(said).sum(axis=1) - np.square(truth).sum(axis=1)
    assert max(errors) == pytest.approx(report.mean_squared_error())


@pytest.mark.parametrize("k", [2, 3, 1000, 2**16 + 1, 2**20])
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_the_price_of_an_answer_is_exact_to_its_12_digits(k: int, adjacency: Adjacency) -> None:
    """log p(k−1)/(1−p), or the larger log against the null law, in 40 digits; never below it."""
    for epsilon in ("0.001", "1", "12.5"):
        report = CategoryReport.calibrated(k, epsilon, adjacency=adjacency)
        price = report.loss().pure()
        assert price is not None
        with mpmath.workdps(40):
            p = mpmath.mpf(report.probability)
            most, least = p * k, (1 - p) * k / (k - 1)
            logs = mpmath.log(most), -mpmath.log(least)
            exact = sum(logs) if adjacency is Adjacency.REPLACE_ONE else max(logs)
            stated = mpmath.mpf(price.numerator) / price.denominator
            assert exact <= stated <= exact * (1 + mpmath.mpf(10) ** -11)
        # and the probability is the largest one at this price, up to the 12 digits
        more = CategoryNoise(k, report.probability + 2.0**-30 * (1 - report.probability))
        assert (more.loss(1.0, Adjacency.REPLACE_ONE).pure() or 0) > Fraction(epsilon)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_answers_have_exactly_their_law(k: int) -> None:
    """Frequencies are counted, also of who has no answer."""
    report, n = CategoryReport.calibrated(k, 1), 60_000
    for row, masses in (
        (0, [report.probability] + [(1 - report.probability) / (k - 1)] * (k - 1)),
        (-1, [1 / k] * k),  # no answer
    ):
        said = sampled(report, np.full(n, row), seed=5)[:, 0]
        counts = np.bincount(said.astype(int), minlength=k)
        assert stats.chisquare(counts, np.array(masses) * n).pvalue > 1e-3
        if row == 0:  # a truth 5% too probable would be seen
            wrong = np.array(masses) * n
            wrong[0] *= 1.05
            wrong[1:] *= (n - wrong[0]) / wrong[1:].sum()
            assert stats.chisquare(counts, wrong).pvalue < 1e-3


def test_the_truth_is_told_for_as_many_words_as_its_probability_says() -> None:
    class Scripted:
        def __init__(self, first: int) -> None:
            self.words_of = iter([first])

        def words(self, n: int) -> Any:
            return np.full(n, next(self.words_of, 7), np.uint64)

    noise = CategoryNoise.at(5, 1)
    last = int(noise.probability * 2**52) << 12
    for word, true in ((0, True), (last - 1, True), (last, False), (2**64 - 1, False)):
        rows = noise.rows(cast(Any, Scripted(word)), 3)
        assert rows.true.tolist() == [true] * 3
        assert rows.others.tolist() == [7 % 4] * 3
        assert rows.nulls.tolist() == [7 % 5] * 3


@pytest.mark.parametrize("epsilon", [0.1, 1, 8])
def test_two_categories_are_checked(epsilon: float) -> None:
    report = CategoryReport.calibrated(2, epsilon)
    assert not white_box(report).violated
    price = report.loss().pure()
    assert price is not None
    assert white_box(report, PureDP(price * Fraction(99, 100))).violated


@pytest.mark.parametrize(
    "report",
    [
        NoisyReport.calibrated(Ball(2.0, 3), MU),
        NoisyReport.calibrated(Box(-1.0, 1.0, 3), PureDP(1), noise="laplace"),
        OneOfKReport(NoisyReport.calibrated(Ball(2.0, 3), MU), 2),
    ],
)
def test_noisy_reports_are_sums_of_integers(report: Any) -> None:
    """Released numbers are steps of the noise's grid times integers, in all worlds."""
    grid = report.spend().grid
    assert grid is not None
    for seed in (0, 1):
        values = sampled(report, rows_for(report, 40, seed), seed)
        steps = np.rint(values / grid.step)
        assert np.array_equal(values, steps * grid.step)
        assert np.abs(steps).max() < 2**52  # so that these are the integers
    # a message is a function of them: on its own grid, cut at the limit
    form = MessageForm(report, report, bytes(8))
    sent = form.to_grid(values)
    wanted = np.clip(np.floor(values / form.step + 0.5), -(2**23), 2**23)
    assert np.array_equal(sent, wanted)
    far = form.to_grid(np.full((1, report.size), 3 * report.limit))
    assert (far == 2**23).all()


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_certificates_say_exact(report: Any) -> None:
    book = device(report, 2)
    token = book.issue(report.loss(), users=range(2), label="m")
    report.release(Rows.seal(rows_for(report, 2), users=range(2)), token)
    (spent,) = (entry.exact for entry in book.ledger.entries if isinstance(entry, SpendEntry))
    inner = report.report if isinstance(report, OneOfKReport) else report
    if not isinstance(inner, NoisyReport):
        assert spent == {"sampler": SAMPLER, "tables": SHA256}
    elif isinstance(inner.noise, GaussianNoise | LaplaceNoise):
        assert spent is not None
        assert Grid.from_dict(spent["grid"]) == report.spend().grid
    else:
        return  # noise without integers: the certificate says so
    certificate = certify(book.ledger.records)
    assert not certificate.problems
    assert certificate.noise.endswith("exact")


def test_noise_that_makes_reports_draws_no_numbers_and_other_noise_no_reports() -> None:
    report = BallReport.best(3, 1.0, 1)
    token = device(report, 1).issue(report.loss(), users=range(1), label="m")
    with token.spend(report.spend()) as receipt, pytest.raises(TokenError, match="draw_rows"):
        receipt.draw((1, 3))
    noisy = NoisyReport.calibrated(Ball(2.0, 3), MU)
    token = device(noisy, 1).issue(noisy.loss(), users=range(1), label="m")
    with token.spend(noisy.spend()) as receipt, pytest.raises(TokenError, match="makes no reports"):
        receipt.draw_rows(1)


def test_answers_have_their_frequencies() -> None:
    """Released answers against the matrix; a probability 5% closer to certainty is noticed."""
    n, k = 60_000, 3
    report = CategoryReport.calibrated(k, 1)
    p = report.probability
    for rows, law in (
        (np.ones(n, dtype=int), [(1 - p) / 2, p, (1 - p) / 2]),
        (np.full(n, 7), [1 / 3] * 3),
        (np.full(n, np.nan), [1 / 3] * 3),
        (np.full(n, 0.5), [1 / 3] * 3),
    ):
        counts = np.bincount(sampled(report, rows)[:, 0].astype(int), minlength=k)
        assert stats.chisquare(counts, n * np.array(law)).pvalue > 1e-3
        if law[1] == p:
            pushed = p + 0.05 * (1 - p)
            wrong = [(1 - pushed) / 2, pushed, (1 - pushed) / 2]
            assert stats.chisquare(counts, n * np.array(wrong)).pvalue < 1e-6


def test_categories_are_a_domain() -> None:
    domain = Categories(4)
    rows = domain.clip(np.array([0, 3, 4, -1, 1.5, np.nan, 2**40]))
    assert rows[:2].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert (rows[2:] == 0.25).all()
    every = np.concatenate([np.eye(4), rows[2:3]])
    for norm, order in (("l1", 1.0), ("l2", 2.0), ("linf", math.inf), (3.0, 3.0)):
        apart = max(np.linalg.norm(a - b, ord=order) for a in every for b in every)
        assert domain.sensitivity(Adjacency.REPLACE_ONE, norm) == pytest.approx(apart)  # type: ignore[arg-type]
        away = max(np.linalg.norm(a - every[-1], ord=order) for a in every)
        assert domain.sensitivity(Adjacency.ZERO_OUT, norm) == pytest.approx(away)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        Categories(1)


# Bad input ---------------------------------------------------------------------------------------


def test_refused() -> None:
    for make in (
        lambda: NoisyReport(Ball(1.0, 2), GaussianNoise(1.0), Adjacency.ADD_REMOVE),
        lambda: NoisyReport(Ball(1.0, 2), LaplaceNoise(1.0), Adjacency.ADD_REMOVE),
        lambda: CategoryReport(3, 0.9, Adjacency.ADD_REMOVE),
    ):
        with pytest.raises(AdjacencyError, match="add-remove"):
            make()
    with pytest.raises(ValueError, match=r"std = 0\.0"):
        NoisyReport(Ball(1.0, 2), GaussianNoise(0.0))
    for probability in (0.2, 1 / 3, 1.0, math.nan):
        with pytest.raises(ValueError, match="probability"):
            CategoryNoise(3, probability)
    for epsilon in (0, -1, 31):
        with pytest.raises(ValueError, match="epsilon"):
            CategoryReport.calibrated(3, epsilon)
    with pytest.raises(ValueError, match="categories = 1048577: must be at most 1048576"):
        CategoryReport(2**20 + 1, 0.5)
    with pytest.raises(ValueError, match="categories = 1048577: must be at most 1048576"):
        CategoryReport.calibrated(2**20 + 1, 1)
    with pytest.raises(ValueError, match="arms"):
        OneOfKReport(BallReport.best(2, 1.0, 1), 1)
    with pytest.raises(TypeError, match="must be noise that is added to numbers"):
        NoisyReport(Ball(1.0, 2), 1.0)  # type: ignore[arg-type]
    # ρ of two arms is 2·(p−1)R²/(2σ²) where noise is drawn for each, and not 2^{2/p} of one
    joint = NoisyReport(Ball(1.0, 2, 3.0), GeneralizedGaussianNoise(9.0, 3.0))
    for wrong in (
        CategoryReport.calibrated(3, 1),
        NoisySum(Ball(1.0, 2), GaussianNoise(1.0)),
        joint,
    ):
        with pytest.raises(TypeError, match="the lemma is proved for"):
            OneOfKReport(wrong, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one contribution"):
        OneOfKReport(NoisyReport(OneOf(Ball(1.0, 2), 2), GaussianNoise(1.0)), 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "other", "adjacency": "replace-one"}, "no shipped report"),
        ({"kind": "ball-report", "adjacency": "replace-one"}, "lacks 'dim'"),
        ({"kind": "ball-report", "adjacency": "sideways"}, "sideways"),
        (
            {
                "kind": "ball-report",
                "adjacency": "replace-one",
                "dim": 2,
                "radius": 1.0,
                "cap": {"family": "gaussian", "std": 1.0},
            },
            "cap noise",
        ),
        (
            {"kind": "gaussian-report", "adjacency": "replace-one", "domain": {"kind": "mine"}},
            "shipped domain",
        ),
        (None, "must be a JSON object"),
        ([], "must be a JSON object"),
        ("ball-report", "must be a JSON object"),
        ({}, "None: lacks 'kind'"),
        ({"kind": "one-of-k-report", "report": None, "arms": 2}, "must be a JSON object"),
        (
            {
                "kind": "one-of-k-report",
                "report": CategoryReport.calibrated(3, 1).to_dict(),
                "arms": 2,
            },
            "the lemma is proved for",
        ),
        *(
            (
                {
                    "kind": "gaussian-report",
                    "adjacency": "replace-one",
                    "domain": domain,
                    "noise_std": std,
                },
                "^gaussian-report: ",
            )
            for domain, std in (
                (None, 1.0),
                ([], 1.0),
                ({**Ball(1.0, 2).to_dict(), "radius": "a"}, 1.0),
                (Ball(1.0, 2).to_dict(), "a"),
                (Ball(1.0, 2).to_dict(), None),
            )
        ),
        *(
            ({"kind": "ball-report", "adjacency": "replace-one", **numbers}, "^ball-report: ")
            for numbers in (
                {"dim": 2, "radius": 1.0, "cap": None},
                {"dim": "2", "radius": 1.0, "cap": CapNoise.half(2, 1).to_dict()},
                {"dim": 2, "radius": 1.0, "cap": {**CapNoise.half(2, 1).to_dict(), "dim": "a"}},
            )
        ),
    ],
)
def test_forms_that_are_no_report(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report_from_dict(data)
