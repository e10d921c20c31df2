"""One of K: the price is the maximum over arms, and what it takes for that to hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from claims_alone import assert_private
from grids import thinned
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from privlearn.accountants import CentralAccountant
from privlearn.checking import check_domain
from privlearn.checking.exact.check import white_box
from privlearn.errors import AdjacencyError, PrivacyViolation, UsersError
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import GaussianLoss, LaplaceLoss, PureLoss
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    CrossPolytope,
    ExplicitVertices,
    LinearObjective,
    NoisySum,
    ObjectivePerturbation,
    OneOfK,
    PrefixSum,
    ReportNoisyMax,
    SimplexVertices,
    local_one_of_k,
)
from privlearn.mechanisms.noisy_max import ChoiceNoise, choice_loss
from privlearn.mechanisms.vertices import Vertices
from privlearn.noise import GaussianNoise, GeneralizedGaussianNoise, LaplaceNoise, NoiseSource
from privlearn.noise.exact.pool import Kind
from privlearn.rows import Rows
from privlearn.rows.domains import (
    Array,
    Ball,
    Box,
    Domain,
    Norm,
    OneOf,
    PSDTrace,
    domain_from_dict,
    exponent_of,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

ORDERS = (1.01, 1.5, 2.0, 4.0, 16.0)
RHO = ZCDP("0.5")
INNER: list[Domain[Any]] = [
    Ball(0.5, 2),
    Ball(0.5, 3, "linf"),
    Ball(1.5, 2, 3.0),
    Box(0.0, 1.0, 2),
    Box(-1.0, 3.0, 2),
    Box(2.0, 3.0, 1),
    PSDTrace(1.0, 2),
]


def book_for(users: range, cap: Any = None, **more: Any) -> CentralAccountant[Any]:
    cap = ZCDP("1e30") if cap is None else cap
    return CentralAccountant(cap, users=users, noise=NoiseSource.simulation(0), **more)


def run(mechanism: Any, block: Any, seed: int = 0) -> Any:
    users = range(len(block[1]))
    book: CentralAccountant[Any] = CentralAccountant(
        ZCDP("1e30"),
        users=users,
        noise=NoiseSource.simulation(seed),
        adjacency=mechanism.adjacency,
    )
    token = book.issue(mechanism.loss(), users=users, label="arms")
    if hasattr(mechanism, "release"):
        return mechanism.release(Rows.seal(block, users=users), token).value
    with mechanism.open(token) as stream:
        return stream.append(Rows.seal(block, users=users)).value


# The domain -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER, ids=repr)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_domain_keeps_its_laws(inner: Domain[Any], adjacency: Adjacency) -> None:
    norms: tuple[Norm, ...] = ("l1", "l2", "linf", 3.0)
    for arms in (2, 3):
        check_domain(OneOf(inner, arms), adjacency=adjacency, norms=norms)
    assert domain_from_dict(OneOf(inner, 4).to_dict()) == OneOf(inner, 4)


@pytest.mark.parametrize("inner", INNER, ids=repr)
@pytest.mark.parametrize("norm", ["l1", "l2", 3.0])
def test_the_sensitivity_is_attained(inner: Domain[Any], norm: Norm) -> None:
    """By a search over extreme records of one arm, and of two."""
    domain = OneOf(inner, 3)
    p = exponent_of(norm)
    size = inner.size if not isinstance(inner, PSDTrace) else inner.dim
    corners = np.array([*product((-1, 0, 1), repeat=size)], dtype=float) * 1e3
    records = corners[:, None, :] if isinstance(inner, PSDTrace) else corners
    rows = np.concatenate([domain.clip((records, np.full(len(records), a))) for a in range(3)])
    far = max(float(np.linalg.norm(rows - row, ord=p, axis=1).max()) for row in rows)
    stated = domain.sensitivity(Adjacency.REPLACE_ONE, norm)
    assert far <= stated * (1 + 1e-12)
    if not isinstance(inner, PSDTrace) or norm == "l2":
        assert far >= stated * (1 - 1e-9)
    null = float(np.linalg.norm(rows - domain.null(), ord=p, axis=1).max())
    assert null <= domain.sensitivity(Adjacency.ZERO_OUT, norm) * (1 + 1e-12)


@given(
    st.floats(-5, 5),
    st.floats(0.1, 4),
    st.integers(1, 5),
    st.integers(2, 6),
    st.sampled_from(list(Adjacency)[:2]),
)
def test_in_l2_it_is_the_larger_of_one_arm_and_two(
    low: float, width: float, size: int, arms: int, adjacency: Adjacency
) -> None:
    inner = Box(low, low + width, size)
    d, r = inner.diameter(), inner.sensitivity(Adjacency.ZERO_OUT)
    squared = OneOf(inner, arms).sensitivity(adjacency) ** 2
    expected = max(d**2, 2 * r**2) if adjacency is Adjacency.REPLACE_ONE else r**2
    if adjacency is not Adjacency.ADD_REMOVE:
        assert squared == pytest.approx(expected)
    assert OneOf(Ball(width, size), arms).diameter() == Ball(width, size).diameter()


def test_a_record_goes_to_its_arm_and_bad_arms_are_null() -> None:
    domain = OneOf(Box(2.0, 3.0, 2), 3)
    records = np.full((8, 2), 2.75)
    arms = np.array([0, 2, -1, 3, 1.5, np.nan, np.inf, 1])
    clipped = domain.clip((records, arms)).reshape(8, 3, 2)
    expected = np.full((8, 3, 2), 2.0)
    expected[0, 0] = expected[1, 2] = expected[7, 1] = 2.75
    np.testing.assert_array_equal(clipped, expected)
    whole = domain.clip((records[:3], np.array([0, 2, -1]))).reshape(3, 3, 2)
    np.testing.assert_array_equal(whole, expected[:3])
    with pytest.raises(ValueError, match=r"arms of shape \(7,\): must be \(8,\)"):
        domain.clip((records, arms[:7]))


@dataclass(frozen=True)
class _Foreign:
    size: int = 2

    def clip(self, block: Array) -> Array:
        return np.clip(block, -1, 1)

    def null(self) -> Array:
        return np.zeros(2)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 4.0

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "foreign"}


def test_domains_that_cannot_be_rebuilt_are_refused() -> None:
    for inner in (_Foreign(), OneOf(Ball(1.0, 2), 2)):
        with pytest.raises(TypeError, match="must be a shipped domain of one contribution"):
            OneOf(inner, 2)
    for bad in (1, 0, -2):
        with pytest.raises(ValueError, match="arms"):
            OneOf(Ball(1.0, 2), bad)
    data = {"kind": "one-of", "arms": 2, "inner": {"kind": "foreign"}}
    with pytest.raises(ValueError, match="must be a shipped domain"):
        domain_from_dict(data)


# Gaussian sums and streams: exact ---------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER[:1] + INNER[3:], ids=repr)
@pytest.mark.parametrize("adjacency", thinned([Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT]))
def test_the_price_of_gaussian_arms_is_exact(inner: Domain[Any], adjacency: Adjacency) -> None:
    """Measured on the running code, for pairs on one arm and on two; half of it is refuted."""
    mechanism = OneOfK.calibrated(inner, RHO, arms=3, adjacency=adjacency)
    assert float(RHO.rho - RHO.price(mechanism.loss()).rho) < 1e-9
    assert white_box(mechanism).tight
    half = GaussianLoss("0.5", adjacency=adjacency)
    assert white_box(mechanism, half).violated
    assert mechanism.domain.arms == mechanism.arms == 3


@pytest.mark.parametrize("inner", [Ball(1.0, 2), Box(0.0, 1.0, 1)], ids=repr)
def test_the_price_of_a_stream_is_exact(inner: Domain[Any]) -> None:
    mechanism = PrefixSum.calibrated(OneOf(inner, 2), RHO, horizon=12)
    assert white_box(mechanism).tight
    assert white_box(mechanism, GaussianLoss("0.5")).violated


def test_the_price_of_one_arm_alone_is_too_small_where_null_is_no_centre() -> None:
    """Box(0, 1): D = R = 1, so two arms cost twice as much as one; the sum of K arms is not due."""
    one = NoisySum(Box(0.0, 1.0, 1), GaussianNoise(1.0))
    mechanism: Any = OneOfK(one, 5)
    assert mechanism.loss() == GaussianLoss(2) or float(
        mechanism.loss().zcdp() or 0
    ) == pytest.approx(1.0)
    assert white_box(mechanism, one.loss()).violated
    assert not white_box(mechanism, one.loss() * 5).violated
    ball = NoisySum(Ball(1.0, 3), GaussianNoise(1.0))
    assert OneOfK(ball, 5).loss() == ball.loss()
    count = NoisySum(Box(0.0, 1.0, 1), LaplaceNoise(4.0))
    assert (count.loss(), OneOfK(count, 5).loss()) == (LaplaceLoss("0.25"), LaplaceLoss("0.5"))
    assert white_box(OneOfK(count, 5), count.loss()).violated


def test_arms_are_released_apart_with_independent_noise() -> None:
    records = np.array([[0.5, 0.0], [0.0, 0.5], [9.0, 0.0], [np.nan, 0.0]])
    arms = np.array([0, 2, 2, 1])
    exact = np.array([[0.5, 0.0], [0.0, 0.0], [1.0, 0.5]])
    quiet = run(OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(1e-9)), 3), (records, arms))
    np.testing.assert_allclose(quiet, exact, atol=1e-6)
    gg = NoisySum(Ball(1.0, 2, 3.0), GeneralizedGaussianNoise(1e-9, 3.0))
    np.testing.assert_allclose(run(OneOfK(gg, 3), (records, arms)), exact, atol=1e-6)
    stream = run(PrefixSum.calibrated(OneOf(Ball(1.0, 2), 3), ZCDP(10**8), horizon=4),
                 (records, arms))  # fmt: skip
    np.testing.assert_allclose(stream[-1], exact, atol=1e-2)
    assert stream.shape == (4, 3, 2)
    grams = run(
        OneOfK(NoisySum(PSDTrace(1.0, 2), GaussianNoise(1e-9)), 2),
        (np.ones((1, 1, 2)), np.array([1])),
    )
    np.testing.assert_allclose(grams, [np.zeros((2, 2)), np.full((2, 2), 0.5)], atol=1e-6)
    loud = [
        OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(3.0)), 3),
        OneOfK(NoisySum(Ball(1.0, 2, 3.0), GeneralizedGaussianNoise(3.0, 3.0)), 3),
    ]
    for mechanism in loud:
        many = np.array([run(mechanism, (records, arms), seed) for seed in range(400)])
        flat = (many - exact).reshape(400, -1)
        assert np.abs(np.corrcoef(flat.T) - np.eye(6)).max() < 0.2


def test_every_arm_advances_at_every_row() -> None:
    """A user of no arm, a bad arm or a bad record takes a place; nobody behind is shifted."""
    mechanism = PrefixSum.calibrated(OneOf(Ball(1.0, 1), 2), ZCDP(1), horizon=4)
    records, arms = np.array([[0.5], [0.25], [0.5], [0.5]]), np.array([0, 1, 0, 1])
    usual = run(mechanism, (records, arms))
    for other, arm in ((0.25, -1), (0.25, 7), (np.nan, 1)):
        changed, moved = records.copy(), arms.copy()
        changed[1], moved[1] = other, arm
        seen = run(mechanism, (changed, moved))
        difference = usual - seen
        np.testing.assert_allclose(difference[:, 0], 0, atol=1e-12)
        np.testing.assert_allclose(difference[:, 1, 0], [0, 0.25, 0.25, 0.25], atol=1e-9)
    book = book_for(range(4))
    token = book.issue(mechanism.loss(), users=range(4), label="arms")
    rows = Rows.seal((records, arms), users=range(4))
    with mechanism.open(token) as stream:
        stream.append(rows.slice(range(2)))
        with pytest.raises(UsersError, match="the stream is at user 2"):
            stream.append(rows.slice(range(3, 4)))


# Choices: exact ---------------------------------------------------------------------------------

TRIANGLE = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))


def renyi(p: Array, q: Array, order: float) -> float:
    logs = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def joint(vertices: Vertices, sums: Array, scale: float) -> NDArray[np.float64]:
    """The law of the choices of all arms, one Gumbel pick each."""
    one, two = (softmax(vertices.scores(g) / scale) for g in sums)
    return np.asarray(np.outer(one, two).reshape(-1))


@pytest.mark.parametrize("vertices", [CrossPolytope(2), SimplexVertices(2), TRIANGLE], ids=repr)
@pytest.mark.parametrize("same", [True, False])
def test_exact_choices_of_two_arms_stay_below_the_price(vertices: Vertices, same: bool) -> None:
    clip, scale = 1.0, 3.0
    mechanism: Any = OneOfK(ReportNoisyMax(vertices, clip, scale), 2)
    stated, eta = mechanism.loss(), mechanism.mechanism.eta
    assert stated == mechanism.mechanism.loss(), "ball around null: what one arm costs"
    rng, widest, rate = np.random.default_rng(0), 0.0, 0.0
    corners = np.array([*product((-1, 1), repeat=2)], dtype=float) * clip
    bases = [*rng.normal(scale=6, size=(40, 2, 2)), np.zeros((2, 2))]
    for base in bases:
        for f, g in product(corners, corners):
            one, two = base.copy(), base.copy()
            one[0] += f
            two[0 if same else 1] += g
            p, q = joint(vertices, one, scale), joint(vertices, two, scale)
            widest = max(widest, float(np.ptp(np.log(p / q))))
            for order in ORDERS:
                exact = renyi(p, q, order)
                assert exact <= stated.renyi(order) + 1e-10
                rate = max(rate, exact / order)
    assert widest <= float(eta) * (1 + 1e-9)
    assert widest >= float(eta) * (1 - 1e-9), "the range is attained, on one arm and on two"
    assert rate <= float(stated.zcdp() or 0)


@pytest.mark.calibration
def test_half_the_price_of_choices_is_caught() -> None:
    """Arms that are paid for by half each: the mover's two arms together cost the whole."""
    mechanism: Any = OneOfK(ReportNoisyMax(SimplexVertices(2), 1.0, 1.0), 2)
    near = np.array([[1.0, -1.0], [-1.0, 1.0], [-1.0, 1.0]])
    pair = (near, np.array([0, 0, 1])), (near * [[-1.0], [1.0], [1.0]], np.array([1, 0, 1]))
    # both users behind push their arm the other way, where a small probability is multiplied
    assert_private(mechanism, neighbours=pair, samples=2_000)
    broken = choice_loss("gumbel", Fraction(2), 1, Adjacency.REPLACE_ONE)
    with pytest.raises(PrivacyViolation):
        assert_private(mechanism, broken, neighbours=pair, samples=8_000)


@pytest.mark.parametrize("family", ["gumbel", "laplace", "exponential"])
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_choices_have_their_price_and_their_shape(
    family: ChoiceNoise, adjacency: Adjacency
) -> None:
    one = ReportNoisyMax(CrossPolytope(3), 1.0, 0.05, 2, family, adjacency=adjacency)
    mechanism: Any = OneOfK(one, 4)
    assert mechanism.loss() == one.loss()
    records = np.array([[1.0, 0.5, 0.0], [-0.5, -1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.5]])
    picks = run(mechanism, (records, np.array([2, 0, 3, 1])))
    assert picks.dtype == np.int64
    np.testing.assert_array_equal(picks, [[4, 3], [0, 2], [0, 1], [2, 1]])


# Generalized Gaussian ---------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_arms_with_generalized_gaussian_noise_add_up_their_divergences(
    adjacency: Adjacency,
) -> None:
    for inner, factor in ((Ball(1.0, 3, 3.0), 1.0), (Box(0.0, 1.0, 3), 2.0)):
        one: Any = NoisySum(inner, GeneralizedGaussianNoise(2.0, 3.0), adjacency)
        same = float(one.loss().zcdp())
        expected = same * (factor if adjacency is Adjacency.REPLACE_ONE else 1.0)
        assert float(OneOfK(one, 4).loss().zcdp() or 0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (lambda: OneOfK(NoisySum(Ball(0.7, 2), GaussianNoise(3.0)), 3), 3.0),
        (lambda: OneOfK(NoisySum(Box(0.0, 1.0, 2), LaplaceNoise(0.3)), 3), 0.3),
        (lambda: OneOfK(ReportNoisyMax(CrossPolytope(2), 1.0, 6.0), 3), 6.0),
    ],
)
def test_arms_have_the_grid_of_one_arm(make: Callable[[], Any], scale: float) -> None:
    mechanism = make()
    spend = mechanism.spend()
    assert spend.grid == mechanism.mechanism.spend().grid == Grid(scale, 40)
    assert spend.exact_form()["bound"] == mechanism.mechanism.spend().exact_form()["bound"]
    if isinstance(mechanism.mechanism, NoisySum):
        block = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 3
        released = run(mechanism, block).reshape(-1)
        exact = spend.domain.integers(block, spend.grid).sum(axis=0)
        noise = released / spend.grid.step - exact
        kind: Kind = "normal" if scale == 3.0 else "laplace"
        expected = NoiseSource.simulation(0).pool().floors(kind, 6)
        np.testing.assert_array_equal(released, (exact + expected) * spend.grid.step)
        assert (np.abs(noise) > 2**30).all()


def test_arms_pick_by_noise_of_their_own() -> None:
    """By hand, from the same noise: the first arm's numbers first."""
    mechanism: Any = OneOfK(ReportNoisyMax(CrossPolytope(2), 1.0, 4.0), 3)
    rng = np.random.default_rng(0)
    for seed in range(20):
        block = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
        sums = mechanism.domain.clip(block).sum(axis=0).reshape(3, 2)
        noise = NoiseSource.simulation(seed).pool().floors("gumbel", 12).reshape(3, 4) * 2.0**-40
        expected = (CrossPolytope(2).scores(sums) + 4.0 * noise).argmax(axis=1)
        np.testing.assert_array_equal(run(mechanism, block, seed)[:, 0], expected)


# Hypotheses -------------------------------------------------------------------------------------

REFUSED: list[Callable[[], Any]] = [
    lambda: OneOfK(OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(1.0)), 2), 2),  # type: ignore[arg-type]
    lambda: OneOfK(NoisySum(OneOf(Ball(1.0, 2), 2), GaussianNoise(1.0)), 2),
    lambda: OneOfK(PrefixSum.calibrated(Ball(1.0, 2), RHO, horizon=4), 2),  # type: ignore[arg-type]
    lambda: OneOfK(
        ObjectivePerturbation.calibrated(LinearObjective.logistic(2), RHO, max_rows=9),  # type: ignore[arg-type]
        2,
    ),
    lambda: OneOfK(NoisySum(_Foreign(), GaussianNoise(1.0)), 2),
]


@pytest.mark.parametrize("make", REFUSED)
def test_mechanisms_without_a_lemma_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"the lemma is proved for one arm|must be a shipped domain"
    ):
        make()


def test_add_remove_and_single_arms_are_refused() -> None:
    with pytest.raises(AdjacencyError, match="one of K has no add-remove price"):
        OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(1.0), Adjacency.ADD_REMOVE), 2)
    for bad in (1, 0):
        with pytest.raises(ValueError, match="arms"):
            OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(1.0)), bad)
    with pytest.raises(TypeError, match="arms"):
        OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(1.0)), 2.5)  # type: ignore[arg-type]
    users = range(1)
    book = book_for(users, adjacency=Adjacency.ZERO_OUT)
    token = book.issue(ZCDP(1), users=users, label="arms")
    rows = Rows.seal((np.ones((1, 2)), np.zeros(1, dtype=int)), users=users)
    with pytest.raises(AdjacencyError, match="a mechanism for replace-one"):
        OneOfK(NoisySum(Ball(1.0, 2), GaussianNoise(9.0)), 2).release(rows, token)


def test_an_audit_recomputes_gaussian_arms_and_trusts_choices() -> None:
    users, block = range(3), (np.ones((3, 2)), np.array([0, 1, 1]))
    book = book_for(users, GaussianDP(9))
    for mechanism in (
        OneOfK.calibrated(Ball(1.0, 2), GaussianDP(1), arms=2),
        PrefixSum.calibrated(OneOf(Ball(1.0, 2), 2), GaussianDP(1), horizon=3),
    ):
        token = book.issue(mechanism.loss(), users=users, label="arms")
        if isinstance(mechanism, OneOfK):
            mechanism.release(Rows.seal(block, users=users), token)
        else:
            with mechanism.open(token) as stream:
                stream.append(Rows.seal(block, users=users))
    spends = [entry for entry in book.ledger.entries if isinstance(entry, SpendEntry)]
    assert all(spend.derived for spend in spends)
    assert [spend.mechanism for spend in spends] == ["one-of-k/gaussian-sum", "prefix-sum"]
    assert spends[0].domain == {
        "kind": "one-of",
        "arms": 2,
        "inner": {"kind": "ball", "radius": 1.0, "size": 2, "norm": "l2"},
    }
    certificate = book.certificate()
    assert certificate.problems == []
    assert [note.split(":")[0] for note in certificate.trusted_code] == ["prefix-sum"]

    book = book_for(users, PureDP(9))
    chosen: Any = OneOfK(ReportNoisyMax(CrossPolytope(2), 1.0, 6.0), 2)
    token = book.issue(chosen.loss(), users=users, label="arms")
    chosen.release(Rows.seal(block, users=users), token)
    (note,) = book.certificate().trusted_code
    assert note.startswith("one-of-k/report-noisy-max: its loss")


# Local ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.25, 1.0, 4.0])
def test_the_local_price_of_the_ball_mechanism_is_the_whole_epsilon(eps: float) -> None:
    """Ψ of errata 8: the density against its null law takes the values 2e^ε/(1+e^ε), 2/(1+e^ε)."""
    most, least = 2 * math.exp(eps) / (1 + math.exp(eps)), 2 / (1 + math.exp(eps))
    loss = local_one_of_k(least, most)
    assert isinstance(loss, PureLoss)
    assert eps * (1 - 1e-12) <= float(loss.epsilon) <= eps * (1 + 1e-9)
    zero_out = local_one_of_k(least, most, adjacency=Adjacency.ZERO_OUT)
    assert float(zero_out.epsilon) == pytest.approx(-math.log(least))


@given(st.lists(st.floats(0.05, 3), min_size=3, max_size=3), st.integers(0, 2**32))
def test_the_local_price_holds_exactly(null: list[float], seed: int) -> None:
    """Discrete laws against a null law: same arm and different arms, all messages."""
    q0 = np.array(null) / sum(null)
    laws = np.random.default_rng(seed).dirichlet(np.ones(3), 4) * 0.8 + 0.2 * q0
    ratios = laws / q0
    loss = local_one_of_k(float(ratios.min()), float(ratios.max()))
    limit = float(loss.epsilon) * (1 + 1e-9)
    worst = 0.0
    for x, y in product(laws, laws):
        worst = max(worst, float(np.abs(np.log(x / y)).max()))
        apart = np.log(np.outer(x, q0) / np.outer(q0, y))
        worst = max(worst, float(np.abs(apart).max()))
    assert worst <= limit
    assert worst >= limit * (1 - 1e-6), "attained by users on different arms"
    single = max(float(np.abs(np.log(r)).max()) for r in ratios)
    assert single <= float(
        local_one_of_k(
            float(ratios.min()), float(ratios.max()), adjacency=Adjacency.ZERO_OUT
        ).epsilon
    ) * (1 + 1e-9)


@pytest.mark.parametrize(("least", "most"), [(0, 2), (1.5, 2), (0.5, 0.9), (-1, 2)])
def test_bounds_that_no_two_laws_can_have_are_refused(least: float, most: float) -> None:
    with pytest.raises(ValueError, match="must be 0 < least <= 1 <= most"):
        local_one_of_k(least, most)
