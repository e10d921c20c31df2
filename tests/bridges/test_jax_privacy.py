"""DpEvents and factorizations under an account of ours.

Published faults that are rebuilt here: google/differential-privacy issue 378 (its RDP accountant
prices a Gaussian under replace-one as under add-remove), the sensitivity formula for coefficients
that do not fall (review of jax_privacy pull request 218), and batches of a fixed size that are
priced as Poisson samples (jax_privacy issue 84), as far as a plan says how it takes batches.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pages import run_page

from privlearn.accountants import CentralAccountant, audit
from privlearn.bridges import installed, jax_privacy
from privlearn.bridges.jax_privacy import meter_event, meter_factorization, participation_square
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    DataError,
    InsufficientBudgetError,
    PackageError,
)
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import GaussianLoss, Loss, loss_from_dict
from privlearn.losses.budgets import ZCDP, Renyi
from privlearn.mechanisms import BufferedToeplitz
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
N = 40


def account(relation: Adjacency, cap: Any = None, **others: Any) -> CentralAccountant[Any]:
    if "ledger" not in others:
        others["noise"] = NoiseSource.simulation(1)
    return CentralAccountant(cap or Renyi({8: 50}), users=range(N), adjacency=relation, **others)


def events() -> Any:
    return pytest.importorskip("dp_accounting").dp_event


def spends(accountant: Any) -> list[SpendEntry]:
    return [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]


def paid(accountant: Any) -> Loss:
    (entry,) = spends(accountant)
    return loss_from_dict(entry.loss)


# Events -------------------------------------------------------------------------------------------


def test_an_event_costs_at_each_relation_what_its_library_finds(tmp_path: Path) -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 40
            ),
            dp_accounting.LaplaceDpEvent(20.0),
        ]
    )
    relations = dp_accounting.NeighboringRelation
    for ours, theirs in (
        (Adjacency.ADD_REMOVE, relations.ADD_OR_REMOVE_ONE),
        (Adjacency.ZERO_OUT, relations.REPLACE_SPECIAL),
    ):
        path = tmp_path / f"{ours.value}.db"
        with account(ours, ledger=path) as accountant:
            with meter_event(accountant, event, package="dp-accounting") as spend:
                assert audit(path, delta=1e-5).spends == 1  # before it runs
                assert spend.release("a model") == "a model"
            loss = paid(accountant)
        found = audit(path, delta=1e-5)
        assert not found.problems
        assert any("package dp-accounting" in each for each in found.trusted_code)
        rdp = dp_accounting.rdp.RdpAccountant([8], theirs).compose(event)
        assert loss.renyi(8) == pytest.approx(rdp._rdp[0], rel=1e-3)


def test_a_gaussian_under_replace_one_is_moved_by_twice_the_norm() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    event = dp_accounting.GaussianDpEvent(4.0)
    accountant = account(Adjacency.REPLACE_ONE, ZCDP(1))
    with meter_event(accountant, event, package="dp-accounting") as spend:
        spend.release(None)
    true = (2 / 4) ** 2 / 2
    assert accountant.spent() == ZCDP(true)
    wrong = dp_accounting.rdp.RdpAccountant([2], dp_accounting.NeighboringRelation.REPLACE_ONE)
    assert wrong.compose(event)._rdp[0] == pytest.approx(2 * true / 4)  # issue 378


def test_an_overspend_is_refused_before_it_trains() -> None:
    training = events().SelfComposedDpEvent(
        events().PoissonSampledDpEvent(0.1, events().GaussianDpEvent(1.0)), 10_000
    )
    accountant, ran = account(Adjacency.ADD_REMOVE, Renyi({8: 1})), []

    @meter_event(accountant, training, package="dp-accounting")
    def train() -> None:
        ran.append(1)

    with pytest.raises(InsufficientBudgetError):
        train()
    assert not ran
    assert not spends(accountant)


def plan(batches: str, partition: str = "EQUAL_SPLIT", **others: Any) -> Any:
    """A plan as jax_privacy makes it, where it is not installed."""
    sampling = type(batches, (), {"partition_type": SimpleNamespace(name=partition)})()
    made = type("DPExecutionPlan", (), {})()
    made.batch_selection_strategy, made.dp_event = sampling, events().GaussianDpEvent(1.0)
    if not others:
        return made
    config = type("BandMFExecutionPlanConfig", (), {})()
    for name, value in (others | {"plan": made}).items():
        setattr(config, name, value)
    return config


BAD: dict[str, tuple[Any, Adjacency, type[Exception], str]] = {
    "non-private": (
        lambda: events().NonPrivateDpEvent(),
        Adjacency.ADD_REMOVE,
        BudgetError,
        "no finite price",
    ),
    "nothing": (lambda: events().NoOpDpEvent(), Adjacency.ADD_REMOVE, BudgetError, "no loss"),
    "unsupported": (
        lambda: events().ComposedDpEvent([events().UnsupportedDpEvent()]),
        Adjacency.ADD_REMOVE,
        DataError,
        r"event.events\[0\]: UnsupportedDpEvent has no counterpart",
    ),
    "no event": (lambda: 0.5, Adjacency.ADD_REMOVE, DataError, "is not a DpEvent"),
    "a tree under add-remove": (
        lambda: events().SingleEpochTreeAggregationDpEvent(1.0, 8),
        Adjacency.ADD_REMOVE,
        DataError,
        "zero-out or replace-one",
    ),
    "issue 84": (
        lambda: plan("FixedBatchSampling"),
        Adjacency.ZERO_OUT,
        DataError,
        "batches by FixedBatchSampling",
    ),
    "equal groups under add-remove": (
        lambda: plan("CyclicPoissonSampling"),
        Adjacency.ADD_REMOVE,
        AdjacencyError,
        "INDEPENDENT",
    ),
    "columns that are made longer": (
        lambda: plan("CyclicPoissonSampling", strategy=[0.5, 0.2], column_normalize=True),
        Adjacency.ZERO_OUT,
        DataError,
        "divide the strategy",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_sound_price_is_refused_before_anything_is_spent(name: str) -> None:
    event, relation, error, words = BAD[name]
    accountant = account(relation)
    with pytest.raises(error, match=words):
        meter_event(accountant, event(), package="dp-accounting")
    assert not spends(accountant)
    with pytest.raises(PackageError, match="name the one that runs"):
        meter_event(accountant, events().GaussianDpEvent(1.0), package="no-such-thing")


def test_a_jax_privacy_that_was_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    jax_privacy._version.cache_clear()
    monkeypatch.setattr(installed, "version", lambda name: "3.0.0")
    with pytest.raises(PackageError, match=r"3\.0\.0.*2\.0\.0 only"):
        meter_event(account(Adjacency.ZERO_OUT), events().GaussianDpEvent(1.0))


def test_a_long_event_stands_as_its_digest() -> None:
    many = [events().GaussianDpEvent(50.0 + i) for i in range(300)]
    accountant = account(Adjacency.ADD_REMOVE)
    with meter_event(accountant, events().ComposedDpEvent(many), package="dp-accounting") as spend:
        spend.release(None)
    told = spends(accountant)[0].parameters
    assert "sha256" in str(told)
    assert len(str(told)) < 4000


# Factorizations -----------------------------------------------------------------------------------


def worst(coefficients: list[float], rounds: int, most: int, apart: int) -> float:
    """S² by all patterns of one person, and rows that all point the same way."""
    c = np.zeros((rounds, rounds))
    for lag, value in enumerate(coefficients):
        c += abs(value) * np.eye(rounds, k=-lag)
    patterns = (
        chosen
        for size in range(1, most + 1)
        for chosen in itertools.combinations(range(rounds), size)
        if all(b - a >= apart for a, b in itertools.pairwise(chosen))
    )
    return max(float((c[:, list(chosen)].sum(axis=1) ** 2).sum()) for chosen in patterns)


def formula(coefficients: list[float], rounds: int, most: int, apart: int) -> float:
    """Of jax_privacy's `minsep_sensitivity_squared`, without its checks."""
    padded = np.array([*coefficients, *[0.0] * (rounds - len(coefficients))])
    total = np.zeros(rounds)
    for start in range(0, min(most * apart, rounds), apart):
        total[start:] += padded[: rounds - start]
    return float((total**2).sum())


@pytest.mark.parametrize("seed", range(6))
def test_one_person_moves_a_stream_by_no_more_than_is_paid_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    falling = np.sort(rng.uniform(0.01, 1, 5))[::-1].tolist()
    mixed = [0.5, *rng.uniform(-2, 2, 4).tolist()]
    for most, apart in ((1, 1), (2, 2), (3, 3), (4, 1), (2, 6)):
        shape = {"rounds": 9, "most": most, "apart": apart}
        exactly = float(participation_square(falling, **shape))
        assert exactly == pytest.approx(worst(falling, 9, most, apart), rel=1e-12)
        assert exactly == pytest.approx(formula(falling, 9, most, apart), rel=1e-12)
        assert float(participation_square(mixed, **shape)) >= worst(mixed, 9, most, apart) - 1e-12


def test_the_formula_is_too_small_where_coefficients_rise() -> None:
    rising = [0.1, 0.1, 3.0, 0.0, 0.0, 3.0]
    shape = (9, 2, 2)
    assert formula(rising, *shape) < 0.9 * worst(rising, *shape)
    assert participation_square(rising, rounds=9, most=2, apart=2) >= Fraction(
        worst(rising, *shape)
    )


def test_a_blt_costs_what_our_own_does() -> None:
    ours = BufferedToeplitz.fitted(64)
    first = ours.encoder(1)(np.eye(1, 64, dtype=np.int64).T * 10**6)[:, 0] / 10**6
    square = participation_square(np.minimum.accumulate(first), rounds=64, most=3, apart=16)
    assert math.sqrt(square) == pytest.approx(ours.participation_norm(3, 16), rel=1e-4)


@pytest.mark.parametrize(
    ("relation", "moves"), [(Adjacency.ZERO_OUT, 1), (Adjacency.REPLACE_ONE, 2)]
)
def test_a_factorization_is_one_gaussian(relation: Adjacency, moves: int) -> None:
    accountant = account(relation, ZCDP(5))
    meter = meter_factorization(
        *(accountant, [1.0, 0.5], 2), rounds=6, most=3, apart=2, package="dp-accounting"
    )
    with meter as spend:
        spend.release(None)
    loss = paid(accountant)
    assert loss == GaussianLoss(Fraction(3 * 5, 4) * moves**2 / 4, adjacency=relation)


def test_a_factorization_without_a_price_is_refused() -> None:
    shape = {"rounds": 4, "most": 1, "apart": 1, "package": "dp-accounting"}
    with pytest.raises(AdjacencyError, match="ZERO_OUT"):
        meter_factorization(account(Adjacency.ADD_REMOVE), [1.0], 1, **shape)  # type: ignore[arg-type]
    for coefficients, noise in (([], 1), ([0.0, 1.0], 1), ([1.0] * 5, 1), ([1.0], 0)):
        with pytest.raises(ValueError, match=r"coefficients|noise_multiplier"):
            meter_factorization(account(Adjacency.ZERO_OUT), coefficients, noise, **shape)  # type: ignore[arg-type]


# The real package ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_a_plan_of_jax_privacy_trains_the_same_and_is_paid_before(tmp_path: Path) -> None:
    execution_plan = pytest.importorskip(
        "jax_privacy.experimental.execution_plan", reason="pip install jax-privacy==2.0.0"
    )
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    import jax.numpy as jnp

    x = jnp.linspace(0, 1, N)
    config = execution_plan.BandMFExecutionPlanConfig(
        strategy=np.array([0.8, 0.6]),
        iterations=3,
        epsilon=None,
        delta=None,
        noise_multiplier=2.0,
        sampling_prob=0.5,
        noise_seed=3,
    )

    def train(plan: Any) -> float:
        gradient = plan.clipped_grad(lambda w, rows: jnp.sum((w - rows) ** 2))
        noise, w = plan.noise_addition_transform, jnp.zeros(())
        state = noise.init(w)
        for indices in plan.batch_selection_strategy.batch_iterator(N, rng=5):
            noisy, state = noise.update(gradient(w, x[indices]), state)
            w -= 0.01 * noisy
        return float(w)

    alone = train(config.plan)
    with account(Adjacency.ZERO_OUT, ledger=tmp_path / "ledger.db") as accountant:
        trained = meter_event(accountant, config)(train)  # the line that is added
        assert trained(config.plan) == alone
        loss = paid(accountant)
    found = audit(tmp_path / "ledger.db", delta=1e-5)
    assert not found.problems
    assert any("version 2.0.0" in each and "from a key" in each for each in found.trusted_code)
    assert loss.renyi(8) > 0
    coefficients = jnp.asarray([1.0, 0.5, 0.25])
    theirs = float(toeplitz.minsep_sensitivity_squared(coefficients, 2, 3, n=9))
    ours = participation_square([1.0, 0.5, 0.25], rounds=9, most=3, apart=2)
    assert theirs == pytest.approx(float(ours), rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax_privacy", reason="pip install jax-privacy==2.0.0")
    page = (DOCS / "jax-privacy.md").read_text(encoding="utf-8").replace("```py\n", "```python\n")
    assert run_page(page, "jax-privacy.md", tmp_path, monkeypatch) == 1
    assert audit(tmp_path / "training.db", delta=1e-5).spends == 1
