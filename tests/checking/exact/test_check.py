"""White box: exact divergences against closed forms, and broken claims that must be caught."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import minimisers
import mpmath
import numpy as np
import plane
import pytest
from grids import thinned
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.checking.exact import probe, search
from privlearn.checking.exact.check import (
    ORDERS,
    ExactResult,
    compare,
    white_box,
)
from privlearn.checking.exact.distributions import (
    DistributionPair,
    hockey_stick,
    largest_ratio,
    renyi,
)
from privlearn.checking.neighbours import extreme_records, worst_pairs
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import CheckError
from privlearn.losses import (
    ApproxLoss,
    BoundedRangeLoss,
    DiscreteGaussian,
    DiscreteLaplace,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    MinimizerLoss,
    PureLoss,
    RandomizedResponse,
    SubsampledGaussian,
    ZCDPLoss,
    leaves_of,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.losses.output_laws import (
    Density,
    Discrete,
    Normal,
    Product,
    laplace,
    normal,
)
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BinaryTree,
    BufferedToeplitz,
    LinearObjective,
    MultinomialLogit,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
    objective_perturbation,
)
from privlearn.mechanisms.regions import box
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.noise.exact import pool as sampler
from privlearn.noise.exact.near import nearly
from privlearn.noise.exact.pool import Kind
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Box, Domain, GradientHessian, PSDTrace
from privlearn.values.adjacency import Adjacency

DOMAINS: list[Domain[Any]] = [
    Ball(2.0, 3),
    Ball(2.0, 3, "l1"),
    Ball(0.5, 3, "linf"),
    Ball(1.0, 1),
    Box(-1.0, 3.0, 2),
    Box(2.0, 3.0, 1),
    PSDTrace(2.0, 3),
    PSDTrace(2.0, 3, "triangle"),
    GradientHessian(1),
    GradientHessian(3),
    GradientHessian(3, 2.0),
]


# Neighbours ------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_first_pair_attains_the_sensitivity(domain: Domain[Any], adjacency: Adjacency) -> None:
    first, second = worst_pairs(domain, adjacency=adjacency)[0]
    theirs = domain.clip(second)[0] if len(second) else np.zeros(domain.size)
    reached = float(np.linalg.norm(domain.clip(first).sum(axis=0) - theirs))
    assert reached == pytest.approx(domain.sensitivity(adjacency), rel=1e-11)
    if adjacency is Adjacency.ZERO_OUT:
        assert np.array_equal(theirs, domain.null())


@pytest.mark.parametrize("domain", DOMAINS[:6], ids=repr)
def test_some_pair_attains_the_sensitivity_in_l1(domain: Domain[Any]) -> None:
    far = [np.abs(domain.clip(a) - domain.clip(b)).sum() for a, b in worst_pairs(domain)]
    wanted = domain.sensitivity(Adjacency.REPLACE_ONE, "l1")
    assert max(far) == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize(
    "objective",
    [
        LinearObjective.logistic(2),
        LinearObjective.huber(2),
        LinearObjective.poisson(2, 3.0),
        MultinomialLogit(2, 2),
    ],
    ids=repr,
)
def test_pairs_of_an_objective_come_in_the_order_of_their_gradients(objective: Any) -> None:
    domain = objective.domain
    theta = np.vstack([np.zeros((1, 2)), *(s * np.eye(2) for s in (-5, -1, 1, 5))])

    def apart(pair: tuple[Any, Any]) -> float:
        one, two = (domain.clip(block) for block in pair)
        return max(
            float(np.linalg.norm(objective.gradients(one, t) - objective.gradients(two, t)))
            for t in theta
        )

    far = [round(apart(pair), 9) for pair in worst_pairs(objective)]
    assert far == sorted(far, reverse=True)
    assert far[0] > 0.7 * objective.difference


def test_unknown_domains_are_refused() -> None:
    class Mine:
        size = 1

    with pytest.raises(CheckError, match="records are not known; give neighbours"):
        extreme_records(Mine())  # type: ignore[arg-type]


# Laws ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    mean=st.floats(-6, 6),
    std=st.floats(0.05, 20),
    order=st.floats(1.01, 128),
)
def test_normal_laws(mean: float, std: float, order: float) -> None:
    value, error = renyi(normal(mean, std), normal(0.0, std), order)
    truth = order * (mean / std) ** 2 / 2
    assert abs(value - truth) <= error + 1e-9 * truth
    assert error <= 1e-6 * max(1, truth)


def _mp_laplace(epsilon: float, order: float) -> float:
    with mpmath.workdps(40):
        a, e = mpmath.mpf(order), mpmath.mpf(epsilon)
        moment = a / (2 * a - 1) * mpmath.exp((a - 1) * e)
        moment += (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)
        return float(mpmath.log(moment) / (a - 1))


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0])
def test_laplace_laws_with_their_kinks(epsilon: float) -> None:
    for order in ORDERS:
        value, error = renyi(laplace(epsilon, 1.0), laplace(0.0, 1.0), order)
        assert abs(value - _mp_laplace(epsilon, order)) <= 1e-11
        assert error < 1e-9


def test_kinks_and_jumps_that_nobody_declared() -> None:
    def undeclared(mean: float) -> Density:
        law = laplace(mean, 1.0)
        return Density(law.log_density, law.centre, law.scale)

    for epsilon in (0.25, 0.5, 1.0, math.pi):
        for order in (1.01, 1.5, 2.0, 32.0):
            value, error = renyi(undeclared(epsilon), undeclared(0.0), order)
            assert abs(value - _mp_laplace(epsilon, order)) <= error + 1e-12
            assert error < 1e-6

    def stairs(share: float) -> Density:
        """Two uniform pieces, of width 1 each, the first with probability ``share``."""

        def log_density(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            left, right = math.log(share), math.log1p(-share)
            inside = np.where(x[:, 0] < 0, left, right)
            return np.where(np.abs(x[:, 0]) < 1, inside, -np.inf)

        return Density(log_density, (0.0,), 0.3)

    value, error = renyi(stairs(0.2), stairs(0.7), 2.0)
    assert abs(value - math.log(0.04 / 0.7 + 0.64 / 0.3)) <= error + 1e-12
    assert error < 1e-6


def test_discrete_laws_and_mass_on_one_side_only() -> None:
    p, q = Discrete(np.log([0.5, 0.3, 0.2])), Discrete(np.log([0.25, 0.25, 0.5]))
    truth = math.log(0.25 / 0.25 + 0.09 / 0.25 + 0.04 / 0.5)
    assert renyi(p, q, 2.0).value == pytest.approx(truth, abs=1e-14)
    assert hockey_stick(p, q, 0.1).value == pytest.approx(
        0.5 - math.exp(0.1) * 0.25 + 0.3 - math.exp(0.1) * 0.25
    )
    assert largest_ratio(q, p).value == pytest.approx(math.log(2.5))
    alone = Discrete(np.array([0.0, -np.inf, -np.inf]))
    assert renyi(p, alone, 2.0).value == math.inf
    assert renyi(alone, p, 2.0).value == pytest.approx(math.log(2))
    twice = Product(((p, 2),)), Product(((q, 2),))
    assert renyi(*twice, 2.0).value == pytest.approx(2 * truth)
    with pytest.raises(CheckError, match="add up to 1"):
        Discrete(np.log([0.5, 0.6]))
    with pytest.raises(CheckError, match="cannot compare"):
        renyi(p, normal(0.0, 1.0), 2.0)
    with pytest.raises(ValueError, match="order"):
        renyi(p, q, 1.0)


def test_normal_laws_of_many_dimensions_and_directions_without_noise() -> None:
    factor = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]])  # rank 2 in three dimensions
    hidden, bare = factor @ np.array([0.3, -0.4]), np.array([1.0, 0.0, 0.0])
    zero = Normal(np.zeros(3), factor)
    assert renyi(Normal(hidden, factor), zero, 4.0).value == pytest.approx(4 * 0.25 / 2)
    assert renyi(Normal(bare, factor), zero, 4.0).value == math.inf
    assert hockey_stick(Normal(bare, factor), zero, 5.0).value == 1.0


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.0), (1.0, 1.0), (1.0, 5.0), (4.0, 2.0)])
def test_delta_of_normal_laws(mu: float, epsilon: float) -> None:
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    value, error = hockey_stick(normal(mu, 1.0), normal(0.0, 1.0), epsilon)
    assert abs(value - float(truth)) <= error + 1e-15
    assert error < 1e-12


# Losses and their laws ---------------------------------------------------------------------------

TIGHT: list[Loss] = [
    GaussianLoss("0.7"),
    LaplaceLoss("0.5"),
    BoundedRangeLoss("1.5"),
    PureLoss("1"),
    RandomizedResponse("1", 2),
    RandomizedResponse("2", 40),
    DiscreteLaplace("1", 5),
    ZCDPLoss("0.2"),
    GaussianLoss("0.3") + GaussianLoss("0.4") * 2,
]


def _pairs(loss: Loss) -> list[DistributionPair]:
    return [DistributionPair(p, q) for p, q in loss.worst_pairs(ORDERS) or ()]


def _against_its_laws(loss: Loss) -> ExactResult:
    return compare(loss, _pairs(loss))


@pytest.mark.parametrize("loss", TIGHT, ids=lambda loss: str(loss.kind))
def test_losses_that_are_said_to_be_tight_are(loss: Loss) -> None:
    found = _against_its_laws(loss)
    assert not found.violated, found
    assert found.tight, found
    assert found.error < 1e-6


def test_losses_that_are_tight_at_some_orders_only() -> None:
    grid = _against_its_laws(DiscreteGaussian("3", "0.4"))
    assert not grid.violated
    assert not grid.tight  # between the integers
    assert all(row.tight for row in grid.curve if float(row.measure[2:-1]).is_integer())
    sampled = _against_its_laws(SubsampledGaussian("1.1", "0.01"))
    assert not sampled.violated
    assert all(row.tight for row in sampled.curve if float(row.measure[2:-1]).is_integer())
    mixed = _against_its_laws(LaplaceLoss("0.5") + DiscreteGaussian("2", "2") * 3)
    assert not mixed.violated


def test_an_event_of_failure_is_compared_as_delta() -> None:
    found = _against_its_laws(ApproxLoss("0.5", "1e-3"))
    assert not found.violated
    assert found.tight
    pairs = _pairs(ApproxLoss("0.5", "2e-3"))
    assert compare(ApproxDP("0.5", "1e-3"), pairs).violated
    with pytest.raises(CheckError, match="may fail"):
        compare(FailingLoss(GaussianLoss("1"), "1e-3"), pairs)


def _minus(loss: Loss, share: float) -> Renyi:
    return Renyi({order: loss.renyi(order) * share for order in (1.5, 2.0, 8.0)})


@pytest.mark.parametrize("loss", TIGHT, ids=lambda loss: str(loss.kind))
def test_a_curve_a_thousandth_too_low_is_caught(loss: Loss) -> None:
    pairs = _pairs(loss)
    assert compare(_minus(loss, 0.999), pairs, orders=(1.5, 2.0, 8.0)).violated


@pytest.mark.parametrize(
    ("claim", "good"),
    [
        (PureDP("0.5"), True),
        (PureDP("0.499"), False),
        (ZCDP("0.106531"), True),
        (ZCDP("0.1060"), False),
        (GaussianDP("0.5"), False),  # no normal law dominates it at mu = ε
        (ApproxDP("0.25", "0.1176"), True),
        (ApproxDP("0.25", "0.1174"), False),
        (PureLoss("0.5"), True),
        (LaplaceLoss("0.49"), False),
    ],
    ids=repr,
)
def test_claims_of_every_kind_about_laplace_noise(claim: Any, good: bool) -> None:
    found = compare(claim, [DistributionPair(laplace(0.5, 1.0), laplace(0.0, 1.0), "pair")])
    assert found.violated is not good, found
    assert ("VIOLATED" in str(found)) is not good


# Mechanisms that add noise ---------------------------------------------------------------------


@dataclass(frozen=True)
class OwnSum:
    """A sum by its own arithmetic, with the faults that are asked for."""

    domain: Domain[Any]
    std: float = 2.0
    halved: bool = False
    raw_beside: bool = False
    by_size: bool = False
    squared: bool = False

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def _spend(self) -> Spend:
        return Spend("own-sum", self.domain, GaussianNoise(self.std))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        with token.spend(self._spend()) as receipt:
            values = receipt.open(rows).sum(axis=0)
            noise = receipt.draw(values.shape)
            if self.by_size:
                noise = noise * (1 + np.abs(values))
            noisy = values + (noise / 2 if self.halved else noise)
            if self.squared:
                noisy = noisy**2
            if self.raw_beside:
                noisy = np.append(noisy, values[0])
            return receipt.release(noisy)


@pytest.mark.parametrize(
    ("domain", "adjacency"),
    thinned(
        [(domain, list(Adjacency)[k % 3]) for k, domain in enumerate(DOMAINS)]
        + [(DOMAINS[0], adjacency) for adjacency in list(Adjacency)[1:]]
    ),
    ids=repr,
)
def test_gaussian_sums_are_tight(
    domain: Domain[Any], adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SECONDS", 60.0)  # it ends by itself, on a slow machine too
    found = white_box(NoisySum(domain, GaussianNoise(1.7), adjacency), orders=(1.01, 2.0, 128.0))
    assert not found.violated, found
    assert found.tight, found
    assert found.error < 1e-6


def test_one_dimensional_matrices_cost_half_of_what_is_charged() -> None:
    """The pair of the docstring needs two axes: at dim = 1 the diameter is the trace."""
    found = white_box(NoisySum(PSDTrace(1.0, 1), GaussianNoise(1.0)), orders=(2.0,))
    assert found.curve[0].ratio == pytest.approx(2.0)


def test_laplace_sums_of_a_third_party() -> None:
    for domain in (Ball(1.0, 3, "l1"), Box(0.0, 1.0, 1)):
        found = white_box(NoisySum(domain, LaplaceNoise(2.0)), orders=(1.01, 2.0, 32.0))
        assert not found.violated, found
        assert found.tight, found
    spread = white_box(NoisySum(Ball(1.0, 2), LaplaceNoise(2.0)), orders=(1.01, 2.0, 32.0))
    assert not spread.violated
    assert not spread.tight  # a sensitivity spread over coordinates costs less


@pytest.mark.parametrize("horizon", [1, 13, 64])
@pytest.mark.parametrize("make", [BinaryTree, BufferedToeplitz.fitted, BandedBLT.fitted])
def test_prefix_sums_are_tight(make: Any, horizon: int) -> None:
    found = white_box(PrefixSum(Ball(1.0, 1), make(horizon), 2.0), orders=(2.0, 64.0))
    assert not found.violated, found
    assert found.tight, found
    assert found.error < 1e-6


def test_prefix_sums_of_matrices_by_arrival_and_without_a_horizon() -> None:
    matrices = PrefixSum(PSDTrace(1.0, 2), BinaryTree(9), 1.0)
    assert white_box(matrices, orders=(2.0,)).tight
    profile = PrefixSum(Ball(1.0, 1), BinaryTree(16), 2.0, by_arrival=True)
    found = white_box(profile, orders=(2.0,))
    assert found.tight
    assert not found.violated
    endless = white_box(PrefixSum(Ball(1.0, 1), AnytimeBLT(), 2.0), users=40, orders=(2.0,))
    assert not endless.violated
    assert 1 < endless.curve[0].ratio < 1.6  # the whole column is longer than 40 rows of it


def test_the_other_bug_of_a_tree_and_of_adjacency() -> None:
    tree = PrefixSum(Ball(1.0, 1), BinaryTree(16), 2.0)
    honest = tree.loss().gaussian()
    assert honest is not None
    shallow = GaussianLoss(honest * 4 / 5)  # a depth of 4 instead of 5
    assert white_box(tree, shallow, orders=(2.0,)).violated
    total = NoisySum(Ball(1.0, 2), GaussianNoise(2.0))
    removed = NoisySum(Ball(1.0, 2), GaussianNoise(2.0), Adjacency.ADD_REMOVE).loss()
    assert white_box(total, removed, orders=(2.0,)).violated
    gram = NoisySum(PSDTrace(4.0, 3), GaussianNoise(3.0))
    published = GaussianLoss(2 * 4.0 / 9.0)  # (√(2K)/σ)² for K = 4, where (√2·K/σ)² is right
    assert white_box(gram, published, orders=(2.0,)).violated


@pytest.mark.calibration
def test_faults_of_mechanisms_with_their_own_arithmetic() -> None:
    domain = Ball(1.0, 2)
    sound = white_box(OwnSum(domain), orders=(2.0,))
    assert sound.tight
    assert not sound.violated
    assert white_box(OwnSum(domain, halved=True), orders=(2.0,)).curve[0].ratio == pytest.approx(
        0.25
    )
    beside = white_box(OwnSum(domain, raw_beside=True), orders=(2.0,))
    assert beside.violated
    assert beside.curve[0].exact == math.inf
    assert white_box(OwnSum(domain, by_size=True), orders=(2.0,)).violated
    with pytest.raises(CheckError, match="check it by sampling"):
        white_box(OwnSum(domain, squared=True), orders=(2.0,))


def test_a_clip_that_is_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Ball, "integers", lambda self, block, grid: np.int64(np.nan_to_num(block) / grid.step)
    )
    assert white_box(NoisySum(Ball(1.0, 2), GaussianNoise(2.0)), orders=(2.0,)).violated


def test_noise_that_is_a_little_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plain = GaussianNoise.integers
        patch.setattr(
            GaussianNoise,
            "integers",
            lambda self, pool, shape, bits: plain(self, pool, shape, bits) * 19 // 20,
        )
        found = white_box(NoisySum(Ball(1.0, 2), GaussianNoise(2.0)), orders=(2.0,))
        assert found.curve[0].ratio == pytest.approx(0.95**2)
        assert found.violated
    _reduce_floors(monkeypatch)
    with pytest.raises(CheckError, match="sampler is off"):
        white_box(NoisySum(Ball(1.0, 2), GaussianNoise(2.0)), orders=(2.0,))


def _reduce_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that comes from the tables is a fortieth too small."""
    plain = vars(sampler)["floors"]

    def reduced(*args: Any) -> Any:
        found, extended = plain(*args)
        return found - found // 40, extended

    monkeypatch.setattr(sampler, "floors", reduced)


@pytest.mark.parametrize("kind", ["normal", "laplace", "exponential", "gumbel"])
def test_the_samplers_have_their_laws(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.sampler_gap(kind) < 1e-4
    _reduce_floors(monkeypatch)
    assert probe.sampler_gap(kind) > 2e-3


def test_neighbours_of_ones_own() -> None:
    near = [(np.array([[0.1, 0.0], [0.0, 0.0]]), np.array([[0.2, 0.0], [0.0, 0.0]]))]
    total = NoisySum(Ball(1.0, 2), GaussianNoise(2.0))
    found = white_box(total, total.loss(), neighbours=near, orders=(2.0,))
    assert found.curve[0].exact == pytest.approx(0.0025)  # a claim about these alone
    worse = white_box(total, neighbours=near, orders=(2.0,))
    assert worse.tight  # its own claim is about all there are
    with pytest.raises(CheckError, match="neither release"):
        white_box(_Homeless(), orders=(2.0,))
    with pytest.raises(CheckError, match="no two data sets"):
        compare(PureDP(1), [])


class _Homeless:
    def loss(self) -> Loss:
        return GaussianLoss(1)


# Objective perturbation ------------------------------------------------------------------------


def _fitted(objective: Any, rho: str = "2") -> ObjectivePerturbation[Any]:
    return ObjectivePerturbation.calibrated(objective, ZCDP(rho), max_rows=3)


@pytest.mark.parametrize(
    "objective",
    [
        LinearObjective.logistic(1),
        LinearObjective.huber(1),
        LinearObjective.poisson(1, 2.0),
        MultinomialLogit(2, 1),
    ],
    ids=repr,
)
def test_minimisers_on_the_line_are_priced_above_the_truth(objective: Any) -> None:
    found = minimisers.compared(_fitted(objective))
    assert not found.violated, found
    assert not found.tight
    assert found.worst.ratio < 6  # not so far above that the check would see nothing
    assert found.error < 1e-6


@pytest.mark.parametrize(
    "objective",
    [
        LinearObjective.logistic(2),
        LinearObjective.huber(2),
        LinearObjective.poisson(2, 0.5),
        MultinomialLogit(2, 2),
    ],
    ids=repr,
)
def test_minimisers_in_the_plane_are_priced_above_the_truth(objective: Any) -> None:
    fit = _fitted(objective)
    (claim,) = [loss for loss, _ in leaves_of(fit.loss()) if isinstance(loss, MinimizerLoss)]
    one, two = (objective.domain.clip(block) for block in worst_pairs(objective)[0])
    laws = [plane.minimiser(fit, records) for records in (one, two)]
    for order in (1.1, 16.0):
        exact = plane.renyi(laws[0], laws[1], order, 300 * fit.noise_std / fit.ridge)
        assert exact < claim.renyi(order) < 15 * exact


@pytest.mark.parametrize(
    "objective",
    [LinearObjective.logistic(1), LinearObjective.huber(1), LinearObjective.poisson(1, 2.0)],
    ids=repr,
)
def test_the_density_of_a_minimiser_is_that_of_the_solver(objective: Any) -> None:
    """P(θ <= t) = P(b >= −J′(t)), as θ falls in b; the density must integrate to that."""
    records = objective.examples(np.random.default_rng(3), 3)
    law = minimisers.minimiser_density(objective, records, 0.5, 1.5)
    x = np.linspace(-60.0, 60.0, 400_001)
    p = np.exp(law.log_density(x[:, None]))
    mass = np.concatenate([[0.0], np.cumsum((p[1:] + p[:-1]) / 2 * (x[1] - x[0]))])
    assert mass[-1] == pytest.approx(1.0, abs=1e-4)
    for t in (-2.0, 0.0, 1.0):
        slope = float(objective.gradients(records, np.array([t])).sum()) + 0.5 * t
        wanted = math.erfc(-slope / 1.5 / math.sqrt(2)) / 2
        assert float(np.interp(t, x, mass)) == pytest.approx(wanted, abs=1e-4)


def test_too_little_noise_for_a_minimiser_is_caught() -> None:
    honest = _fitted(LinearObjective.huber(1))
    # the same claim for a tilt with a third of the noise
    weak = ObjectivePerturbation(
        LinearObjective.huber(1), honest.ridge, honest.noise_std / 3, honest.blur_std, max_rows=3
    )
    claim = MinimizerLoss(
        difference=LinearObjective.huber(1).difference,
        trace=1.0,
        rank=1,
        directions=1,
        ridge=honest.ridge,
        noise_std=honest.noise_std,
    )
    assert not minimisers.compared(honest, claim).violated
    assert minimisers.compared(weak, claim).violated


def test_a_determinant_that_is_forgotten_is_caught() -> None:
    """Without the determinants a small ridge would look free."""
    steep = ObjectivePerturbation(LinearObjective.huber(1), 0.02, 40.0, 1.0, max_rows=3)
    shift_only = GaussianLoss((LinearObjective.huber(1).difference / 40.0) ** 2)
    assert minimisers.compared(steep, shift_only, (1.5, 2.0)).violated


def test_the_released_minimiser_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        objective_perturbation, "nearly", lambda drawn: [m // 2 for m in nearly(drawn)]
    )
    with pytest.raises(CheckError, match="not the minimiser"):
        minimisers.compared(_fitted(LinearObjective.logistic(1)))


def test_what_has_no_density_is_refused() -> None:
    small = box(1, -1.0, 1.0)
    bounded = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(1), ZCDP("1"), max_rows=3, region=small
    )
    with pytest.raises(CheckError, match="on a region"):
        minimisers.minimiser_pairs(bounded)
    with pytest.raises(CheckError, match="for one dimension"):
        minimisers.minimiser_pairs(_fitted(LinearObjective.logistic(3)))
