"""DPMNL's noise, shift and confidence width: against the paper's text, simulation and prices."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import JointAccountant
from privlearn.accountants.guarantee import epsilon_of
from privlearn.contract.billboard import Billboard
from privlearn.errors import CurrencyError
from privlearn.learners import DPMNL
from privlearn.learners.dpmnl_noise import DPMNLNoise, Shape, benchmark, proved, published
from privlearn.losses import Loss, compose
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, Renyi
from privlearn.losses.conversion import renyi_order
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

REPLACE = Adjacency.REPLACE_ONE
TIMES = [1, 2, 10, 500, 10_000]


def price(loss: Loss) -> float:
    rho = loss.zcdp()
    assert rho is not None
    return float(rho)


def of_zcdp(shape: Shape, rho: Any, share: Any = "0.1", kappa: float = 1.0) -> DPMNLNoise:
    return published(shape, ZCDP(rho), gram_share=share, kappa=kappa, adjacency=REPLACE)


def of_benchmark(shape: Shape, nominal: ApproxDP, share: Any, corrected: bool) -> DPMNLNoise:
    return benchmark(shape, nominal, gram_share=share, corrected=corrected, adjacency=REPLACE)


def of_budget(
    shape: Shape, budget: Currency, share: Any = "0.1", theta_norm: float = 1.0, kappa: float = 1.0
) -> DPMNLNoise:
    return proved(
        shape, budget, gram_share=share, theta_norm=theta_norm, kappa=kappa, adjacency=REPLACE
    )


# What was published -----------------------------------------------------------------------


def bracket(d: int, T: int) -> Any:
    """The bracket of Lemma S6, for d >= 2."""
    log_d = mp.log(d)
    ratio = mp.cbrt(log_d / d)
    third = 6 * (1 + ratio) * mp.sqrt(log_d) / mp.sqrt(mp.log(1 + ratio))
    first = 2 * mp.sqrt(d) + 2 * mp.root(d, 6) * mp.cbrt(log_d)
    return first + third + 2 * mp.sqrt(4 * mp.log(T))


@pytest.mark.parametrize(("d", "K", "D", "T"), [(2, 3, 1, 64), (5, 10, 58, 10_000), (15, 4, 8, 99)])
@pytest.mark.parametrize("rho", ["0.1", "1", "5"])
@pytest.mark.parametrize("kappa", [1.0, 0.1])
def test_the_radius_of_lemma_s10(d: int, K: int, D: int, T: int, rho: str, kappa: float) -> None:
    """Transcribed from Algorithms 2 and 3 and Lemmas S6 and S10, with log t under the root.

    The printed lemma may be read with log t outside; Equation (S10) and its derivation (δ = 1/t²)
    have it inside.
    """
    noise = of_zcdp(Shape(T, d, K, D, True), rho, "0.1", kappa)
    q, R = mp.mpf(1) / 2, min(d, K - 1)
    rho_1, rho_2 = mp.mpf(rho) * 9 / 10, mp.mpf(rho) / 10
    m, nodes = 1 + int(mp.ceil(mp.log(T, 2))), int(mp.floor(mp.log(T, 2))) + 1
    shift = mp.sqrt(K * m / rho_2) * mp.sqrt(nodes) * bracket(d, T)
    assert noise.shift == pytest.approx(float(shift), rel=1e-12)
    delta = 4 / (mp.exp((1 - q) * rho_1 / (R * D)) - 1)
    root = mp.sqrt(d + 2 * q * rho_1 / D) + mp.sqrt(d)
    assert noise.fit.ridge == pytest.approx(float(delta), rel=1e-12)
    assert noise.fit.noise_std == pytest.approx(float(2 * D * root / (q * rho_1)), rel=1e-12)
    assert noise.gram.noise_std == pytest.approx(float(mp.sqrt(K * m / rho_2)), rel=1e-12)
    for t in TIMES:
        sampling = mp.sqrt(mp.mpf(d) / 2 * mp.log(1 + mp.mpf(t) / d) + mp.log(t))
        tilt = 4 * D * mp.sqrt(d) * root / (q * rho_1) * mp.sqrt(mp.log(T) / K)
        alpha = (sampling + delta + tilt) / mp.mpf(kappa) + mp.sqrt(3 * shift)
        assert noise.width(t, noise.shift) == pytest.approx(float(alpha), rel=1e-12)


@pytest.mark.parametrize(("d", "K", "D", "T"), [(2, 3, 1, 64), (5, 10, 58, 10_000), (15, 4, 8, 99)])
@pytest.mark.parametrize("epsilon", ["0.5", "8"])
def test_the_radius_of_the_benchmark(d: int, K: int, D: int, T: int, epsilon: str) -> None:
    """Transcribed from Algorithms 4 and 5 and the end of S.3.3."""
    nominal = ApproxDP(epsilon, "1e-5")
    noise = of_benchmark(Shape(T, d, K, D, True), nominal, "0.2", corrected=False)
    q, L, R = mp.mpf(1) / 2, 2, min(d, K - 1)
    eps_1, delta_1 = mp.mpf(epsilon) * 8 / 10, mp.mpf("1e-5") * 8 / 10
    eps_2, delta_2 = mp.mpf(epsilon) * 2 / 10, mp.mpf("1e-5") * 2 / 10
    each, each_delta = eps_1 / mp.sqrt(8 * D * mp.log(1 / delta_1)), delta_1 / (2 * D)
    x = mp.log(2 / each_delta)
    radius = d + 2 * mp.sqrt(d * x) + 2 * x
    sigma = 4 * L * (mp.sqrt(radius) + mp.sqrt(radius + 2 * q * each)) / each
    assert noise.fit.ridge == pytest.approx(float(2 * R / each), rel=1e-12)
    assert noise.fit.noise_std == pytest.approx(float(sigma), rel=1e-12)
    m, nodes = 1 + int(mp.ceil(mp.log(T, 2))), int(mp.floor(mp.log(T, 2))) + 1
    cov = mp.sqrt(32 * m * K * mp.log(4 / delta_2) ** 2 / eps_2**2)
    shift = cov * mp.sqrt(nodes) * bracket(d, T)
    assert noise.shift == pytest.approx(float(shift), rel=1e-12)
    for t in TIMES:
        alpha = (
            mp.sqrt(mp.mpf(d) / 2 * mp.log(1 + mp.mpf(t + 1) / d) + mp.log(t + 1))
            + 4 * R / (each * mp.sqrt(K))
            + mp.sqrt(4 * d * mp.log(T) * sigma**2) / mp.sqrt(K)
            + mp.sqrt(3 * shift)
        )
        assert noise.width(t, noise.shift) == pytest.approx(float(alpha), rel=1e-12)
    # (N' + N'^T)/√2 with iid N'_ij ~ N(0, σ²)
    draws = np.random.default_rng(0).normal(size=(20_000, d * (d + 1) // 2))
    matrices = noise.gram.domain.decode(draws * noise.gram.noise_std)
    assert matrices[:, 0, 0].std() == pytest.approx(float(cov) * math.sqrt(2), rel=0.03)
    assert matrices[:, 0, 1].std() == pytest.approx(float(cov), rel=0.03)


@pytest.mark.parametrize("horizon", [1_000, 1_023, 1_024, 1_025, 5_000])
@pytest.mark.parametrize("max_items", [5, 10])
def test_the_published_gram_sums_cost_k_times_their_nominal_budget(
    horizon: int, max_items: int
) -> None:
    """ρ = K·ρ₂·m′/m: sensitivity √2·K for √(2K), m′ = ⌊log₂ T⌋ + 1 nodes for m = 1 + ⌈log₂ T⌉."""
    noise = of_zcdp(Shape(horizon, 5, max_items, 8, True), 1)
    nodes, stated = math.floor(math.log2(horizon)) + 1, 1 + math.ceil(math.log2(horizon))
    true = price(noise.gram.loss())
    assert true == pytest.approx(max_items * 0.1 * nodes / stated, rel=1e-9)
    if (horizon, max_items) == (1_024, 10):
        assert true == pytest.approx(10 * 0.1, rel=1e-9)
    if (horizon, max_items) == (5_000, 5):
        assert true == pytest.approx(4.64 * 0.1, rel=1e-2)


def test_the_worst_pair_of_users_costs_that_much() -> None:
    """All of one user's items at e₁, all of the other's at e₂: the divergence of the sums."""
    noise = of_zcdp(Shape(1_024, 2, 10, 8, True), 1)
    same = np.zeros((2, 10, 2))
    same[0, :, 0] = same[1, :, 1] = 1.0
    one, other = noise.gram.domain.clip(cast(Any, same))
    nodes = 11  # user 0 is in one node of every length 1, 2, …, 1024
    mass = nodes * float(np.sum((one - other) ** 2)) / noise.gram.noise_std**2
    assert mass / 2 == pytest.approx(price(noise.gram.loss()), rel=1e-9)
    assert mass / 2 == pytest.approx(10 * 0.1, rel=1e-9), "and not the nominal 0.1"


def test_the_published_fits_cost_a_small_part_of_their_nominal_budget() -> None:
    """d = 5, K = 10, nominal ρ₁ in one call; errata item 3b's upper bounds."""
    for rho, bound in ((1, 0.035), ("0.1", 3.7e-4), ("0.01", 3.7e-6)):
        noise = of_zcdp(Shape(1_000, 5, 10, 1, True), rho, "1e-9")
        assert bound / 3 < price(noise.fit.loss()) <= bound * 1.03


@pytest.mark.parametrize("max_items", [5, 10, 60])
def test_the_benchmark_is_over_noised_and_its_repair_keeps_its_promise(max_items: int) -> None:
    """Errata item 1: total ρ = K·ε²·(m′/m)/(64·ln²(4/δ)) for the printed Gram sums."""
    shape, nominal = Shape(1_024, 5, max_items, 8, True), ApproxDP(1, "1e-5")
    printed = of_benchmark(shape, nominal, "0.5", corrected=False)
    repaired = of_benchmark(shape, nominal, "0.5", corrected=True)
    epsilon, delta = 0.5, 0.5e-5
    rho = max_items * epsilon**2 / (64 * math.log(4 / delta) ** 2)
    assert price(printed.gram.loss()) == pytest.approx(rho, rel=1e-9)
    parts = (repaired.gram.loss(), compose([(repaired.fit.loss(), 8)]))
    for loss in parts:
        assert epsilon_of(loss, delta).value < epsilon
    two = of_benchmark(shape._replace(max_items=2), nominal, "0.5", corrected=True)
    assert price(parts[0]) == pytest.approx(price(two.gram.loss()), rel=1e-9), "whatever K is"


def test_one_dimension_has_a_shift_too() -> None:
    noise = of_zcdp(Shape(100, 1, 2, 2, True), 1)
    assert noise.shift == pytest.approx(
        math.sqrt(2 * 8 / 0.1) * math.sqrt(7) * (2 + 4 * math.sqrt(math.log(100)))
    )


# The proved noise -------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 5, 20])
@pytest.mark.parametrize("horizon", [50, 3_000])
def test_the_shift_bounds_the_noise_and_not_by_much(d: int, horizon: int) -> None:
    noise = of_budget(Shape(horizon, d, 4, 3, True), ZCDP(1))
    std = noise.gram.noise_std * noise.gram.factorization.max_error_std()
    rng = np.random.default_rng([d, horizon])
    draws = std * rng.normal(size=(2_000, d * (d + 1) // 2))
    norms = np.linalg.norm(noise.gram.domain.decode(draws), ord=2, axis=(1, 2))
    assert norms.max() <= noise.shift
    assert norms.mean() < math.sqrt(2 * d) * std
    assert norms.max() > noise.shift / (6 if d == 1 else 3.5)
    tail = noise.shift / std - math.sqrt(2 * d)
    assert math.exp(-(tail**2) / 2) == pytest.approx(1 / horizon**2)
    if d > 2:
        assert norms.mean() > 0.8 * math.sqrt(2 * d) * std
    # Noise that is not halved off the diagonal would stand out in high dimension.
    if d == 20:
        flat = rng.normal(size=(2_000, d, d)) * std
        full = np.triu(flat) + np.triu(flat, 1).transpose(0, 2, 1)
        assert np.linalg.norm(full, ord=2, axis=(1, 2)).mean() > 1.2 * math.sqrt(2 * d) * std


@pytest.mark.parametrize("kind", ["proved", "published", "printed benchmark", "corrected"])
def test_the_noise_of_a_whole_stream_stays_below_the_shift(kind: str) -> None:
    T, d = 64, 3
    shape, nominal = Shape(T, d, 4, 3, True), ApproxDP(1, "1e-5")
    noise = {
        "proved": lambda: of_budget(shape, ZCDP(1)),
        "published": lambda: of_zcdp(shape, 1),
        "printed benchmark": lambda: of_benchmark(shape, nominal, "0.5", corrected=False),
        "corrected": lambda: of_benchmark(shape, nominal, "0.5", corrected=True),
    }[kind]()
    largest = []
    for seed in range(100):
        accountant = JointAccountant(ZCDP(100), users=range(T), noise=NoiseSource.simulation(seed))
        stream = noise.gram.open(accountant.issue(noise.gram.loss(), users=range(T), label="gram"))
        nobody = Billboard(accountant, range(T)).skip(range(T))
        released = stream.append(nobody)
        assert released is not None
        found = released.value
        largest.append(np.abs(np.linalg.eigvalsh(found)).max())
    assert max(largest) <= noise.shift
    assert max(largest) > noise.shift / 12


@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("kappa", [1.0, 0.25])
def test_the_radius_has_the_noise_really_in_use(d: int, kappa: float) -> None:
    shape = Shape(400, d, 4, 3, True)
    noise = of_budget(shape, ZCDP("0.5"), kappa=kappa)
    for t in TIMES:
        sampling = mp.sqrt(mp.mpf(d) / 2 * mp.log(1 + mp.mpf(t) / d) + mp.log(t))
        tilt = 2 * noise.fit.noise_std * mp.sqrt(d * mp.log(400) / 4)
        alpha = (sampling + noise.fit.ridge + tilt) / kappa + mp.sqrt(3 * noise.shift)
        assert noise.width(t, noise.shift) == pytest.approx(float(alpha), rel=1e-12)
    # ‖b‖ <= 2σ√(d·log T) but for a probability of 1/T²
    tilts = np.linalg.norm(np.random.default_rng(0).normal(size=(20_000, d)), axis=1)
    assert tilts.max() < 2 * math.sqrt(d * math.log(400))


def test_theta_norm_moves_the_balance_and_the_share_the_noise() -> None:
    shape = Shape(1_000, 5, 10, 8, True)
    ridges = [of_budget(shape, ZCDP(1), theta_norm=norm).fit.ridge for norm in (0.3, 1, 3)]
    assert ridges == sorted(set(ridges), reverse=True)
    stds = [of_budget(shape, ZCDP(1), theta_norm=norm).fit.noise_std for norm in (0.3, 1, 3)]
    assert stds == sorted(set(stds))
    fits = [of_budget(shape, ZCDP(1), share=share).fit.noise_std for share in (0.02, 0.1, 0.5)]
    grams = [of_budget(shape, ZCDP(1), share=share).gram.noise_std for share in (0.02, 0.1, 0.5)]
    assert fits == sorted(set(fits))
    assert grams == sorted(set(grams), reverse=True)
    whole = of_budget(shape, ZCDP(1), share="1/3")
    assert price(whole.gram.loss()) == pytest.approx(1 / 3, rel=1e-9)
    assert 8 * price(whole.fit.loss()) == pytest.approx(2 / 3, rel=1e-6)


def test_one_renyi_order_wastes_nothing() -> None:
    order, divergence = renyi_order(1.0, 1e-6)
    budget = Renyi({order: divergence})
    noise = of_budget(Shape(1_000, 5, 10, 8, True), budget)
    total = compose([(noise.gram.loss(), 1), (noise.fit.loss(), 8)])
    assert budget.covers(budget.price(total))
    assert total.renyi(order) > 0.9999 * divergence
    assert 0.999 < epsilon_of(total, 1e-6).value <= 1


def test_an_order_that_fits_cannot_be_priced_at_is_refused() -> None:
    class Coins(Currency):
        kind = "coins"

        def _with(self, amounts: tuple[Fraction, ...]) -> Any:
            made = type(self).__new__(type(self))
            made.amounts = amounts
            return made

        def __init__(self) -> None:
            self.amounts = (Fraction(1),)

        def price(self, loss: Loss) -> Any:
            raise CurrencyError("no price in coins")

        def gaussian_mass(self) -> Fraction:
            return Fraction(1)

        def to_dict(self) -> dict[str, Any]:
            return {"kind": self.kind}

    with pytest.raises(CurrencyError, match="has no price in Coins: use ZCDP or Renyi"):
        of_budget(Shape(100, 2, 3, 2, True), Coins())


# Times ------------------------------------------------------------------------------------


@given(
    horizon=st.integers(1, 20_000),
    part=st.floats(0, 1),
    updates=st.integers(1, 60),
    trigger=st.sampled_from(["public", "determinant"]),
)
def test_fits_are_geometric_and_blocks_grow_by_a_twentieth(
    horizon: int, part: float, updates: int, trigger: Any
) -> None:
    first = max(1, round(horizon * part))
    learner = DPMNL(n_items=3, dim=2, max_updates=updates, initial_rounds=first, trigger=trigger)
    times, ends = learner._fit_times(horizon), learner._block_ends(horizon)
    expected = {round(first * (horizon / first) ** (k / updates)) for k in range(updates)}
    assert times == (sorted(expected) if trigger == "public" else [first])
    assert len(times) <= updates
    assert set(times) <= set(ends)
    assert (ends[0], ends[-1]) == (first, horizon)
    assert all(isinstance(end, int) for end in ends)
    for a, b in pairwise(ends):
        assert a < b <= a * 1.05 + 1.03, "rounding moves each end by half a user"


def test_the_default_random_phase_is_short() -> None:
    found = [DPMNL(n_items=3, dim=2)._first_rounds(T) for T in (1, 7, 8, 80, 800, 10_000)]
    assert found == [1, 1, 1, 10, 100, 100]
    assert DPMNL(n_items=3, dim=2)._fit_times(10_000)[1:3] == [178, 316]


# The determinant, and noise of any size ---------------------------------------------------

T, DIM, N_ITEMS = 120, 2, 5


def run(learner: DPMNL, rho: Any, seed: int = 0) -> DPMNL:
    learner.start(JointAccountant(ZCDP(rho), users=range(T), noise=NoiseSource.simulation(seed)))
    features = np.random.default_rng(seed).normal(size=(T, N_ITEMS, DIM))
    learner.play(features, lambda own, shown: shown[:, 0])
    return learner


def by_determinant(**changes: Any) -> DPMNL:
    params: dict[str, Any] = {
        "n_items": N_ITEMS,
        "dim": DIM,
        "max_items": 3,
        "initial_rounds": 6,
        "trigger": "determinant",
        **changes,
    }
    return DPMNL(**params)


@pytest.mark.parametrize("max_updates", [1, 2, 4, 30])
@pytest.mark.parametrize("rho", ["0.1", "100", "100000"])
def test_fits_follow_the_released_determinant_alone(max_updates: int, rho: str) -> None:
    """Recomputed from the billboard: a fit when det V has doubled since the last one."""
    learner = run(by_determinant(max_updates=max_updates, gram_share=0.5), rho)
    shift = learner._noise.shift
    posts = learner.billboard_.history()
    found = [post["at"] for post in posts if post["name"].startswith("theta/")]
    expected: list[int] = []
    last = 0.0
    for post in (post for post in posts if post["name"] == "gram"):
        (noisy,) = np.array(post["value"])
        values = np.maximum(np.linalg.eigvalsh(noisy) + 2 * shift, shift)
        volume = float(np.prod(values))
        due = not expected or (volume > 2 * last and post["at"] < T)
        if due and len(expected) < max_updates:
            expected.append(post["at"])
            last = volume
    assert found == expected
    assert found[0] == 6
    assert learner.updates_ == len(found) <= max_updates
    assert [post["at"] for post in posts if post["name"] == "gram"] == learner._block_ends(T)
    if rho == "100000" and max_updates == 30:
        assert 4 <= len(found) < 30, "the determinant grows by more than 2^4"
    if rho == "0.1":
        assert len(found) <= 2, "2λI hides the growth"


@pytest.mark.parametrize("max_updates", [1, 3, 7, 100])
def test_a_determinant_that_always_doubles_is_followed_up_to_the_cap(
    max_updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grams: list[int] = []

    def explosive(self: DPMNL, noisy: Array) -> Array:
        grams.append(self.clock_)
        return np.asarray(2.0 ** len(grams) * np.eye(DIM))

    monkeypatch.setattr(DPMNL, "_shifted", explosive)
    learner = run(by_determinant(max_updates=max_updates), 1)
    posts = learner.billboard_.history()
    found = [post["at"] for post in posts if post["name"].startswith("theta/")]
    assert grams == learner._block_ends(T)
    assert found == grams[:-1][:max_updates], "none after the last user, whom it could not serve"


@pytest.mark.parametrize("size", [-1e12, -1e3, 1e3, 1e12])
@pytest.mark.parametrize("trigger", ["public", "determinant"])
def test_v_stays_positive_whatever_the_noise(
    size: float, trigger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DPMNL._shifted
    seen: list[float] = []

    def extreme(self: DPMNL, noisy: Array) -> Array:
        spread = np.random.default_rng(len(seen)).normal(size=(DIM, DIM))
        gram = honest(self, noisy + size * (spread + spread.T + np.eye(DIM)))
        seen.append(np.linalg.eigvalsh(gram)[0] / self._noise.shift)
        assert np.array_equal(gram, gram.T) or np.allclose(gram, gram.T, rtol=1e-12)
        return gram

    monkeypatch.setattr(DPMNL, "_shifted", extreme)
    learner = run(by_determinant(trigger=trigger, exploration=1.0), 1)
    assert min(seen) > 0.5 if abs(size) < 1e6 else min(seen) > 0
    assert np.isfinite(learner.gram_).all()
    assert learner.clock_ == T
    assert learner.updates_ <= learner.max_updates


def test_v_is_the_released_sum_plus_the_shift_where_that_is_positive() -> None:
    learner = run(by_determinant(), 1)
    shift, eye = learner._noise.shift, np.eye(DIM)
    rng = np.random.default_rng(0)
    for _ in range(50):
        matrix = rng.normal(size=(DIM, DIM))
        noisy = 10 * shift * (matrix + matrix.T)
        values, vectors = np.linalg.eigh(noisy + 2 * shift * eye)
        expected = (vectors * np.maximum(values, shift)) @ vectors.T
        np.testing.assert_allclose(learner._shifted(noisy), expected, rtol=1e-9, atol=1e-9 * shift)
        mild = matrix @ matrix.T
        np.testing.assert_allclose(
            learner._shifted(mild), mild + 2 * shift * eye, rtol=1e-12, atol=1e-12 * shift
        )


def test_the_gram_sums_begin_with_the_first_user() -> None:
    """Sums over all users so far, the random phase included, in the limit of little noise."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(T, N_ITEMS, DIM))
    learner = by_determinant(gram_share=0.999)
    learner.start(JointAccountant(ZCDP(10**12), users=range(T), noise=NoiseSource.simulation(0)))
    offered: list[Array] = []

    def respond(own: Any, shown: Any) -> Any:
        chosen = np.take_along_axis(own.features, shown[..., None], axis=1)
        norms = np.maximum(np.linalg.norm(chosen, axis=2, keepdims=True), 1)
        offered.append(chosen / norms)
        return shown[:, 0]

    learner.play(features, respond)
    everything = np.concatenate(offered).reshape(-1, DIM)
    np.testing.assert_allclose(
        learner.gram_, everything.T @ everything + 2 * learner._noise.shift * np.eye(DIM), atol=1e-2
    )
    assert learner._noise.width(T, learner._shift) == learner._width
