"""A tiny model under Opacus' own engine: history import, and a loop that spends our tokens."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.epsilon_delta import largest_epsilon
from privlearn.accountants.guarantee import epsilon_of, in_renyi
from privlearn.adjacency import Adjacency
from privlearn.budgets import ZCDP, ApproxDP, Renyi
from privlearn.entries import SpendEntry, parse_entry
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    DataError,
    InsufficientBudgetError,
    LedgerError,
)
from privlearn.events.opacus import (
    LABEL,
    MECHANISM,
    dp_sgd_loss,
    from_opacus_history,
    most_steps,
    opacus_accountant,
    spend_tokens,
)
from privlearn.ledger import Ledger
from privlearn.losses import GaussianLoss, SubsampledGaussian
from privlearn.noise import NoiseSource
from privlearn.protocols import Plan

RECORDS, BATCH, MULTIPLIER, NORM = 64, 16, 1.3, 0.7


# Without Opacus --------------------------------------------------------------------------------


def test_a_history_becomes_events_for_add_remove_in_its_order() -> None:
    found = from_opacus_history([(1.0, 0.01, 10_000), (2.0, 0.05, 3), (2.0, 1.0, 2)])
    assert (found.adjacency, found.order) == ("add-remove", "listed")
    assert found.losses() == [
        (SubsampledGaussian(1, "0.01"), 10_000),
        (SubsampledGaussian(2, "0.05"), 3),
        (GaussianLoss("1/4", adjacency=Adjacency.ADD_REMOVE), 2),
    ]
    assert found.losses()[2][0] == dp_sgd_loss(2.0, 1.0)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ((1.0, 0.01), r"history\[1\] = .*must be \(noise multiplier"),
        (5, r"history\[1\] = 5"),
        ((0.0, 0.01, 5), r"events\[1\]\.noise_multiplier: .*must be > 0"),
        ((math.nan, 0.01, 5), r"events\[1\]\.noise_multiplier: nan must be a finite"),
        ((1.0, 0.0, 5), r"events\[1\]\.sampling_probability: .*must be > 0"),
        ((1.0, 1.5, 5), r"events\[1\]\.sampling_probability: .*must lie in"),
        ((1.0, 0.01, -5), r"events\[1\]\.count: must be >= 1"),
    ],
)
def test_bad_histories_are_named_by_position(entry: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_opacus_history([(1.0, 0.01, 1), entry])


def test_the_rate_is_rounded_up_to_what_the_sampler_draws_with() -> None:
    """Opacus compares uniform multiples of 2^-24 with the rate, in single precision."""
    uniform = np.arange(2**24, dtype=np.float32) / np.float32(2**24)
    for rate in (0.05, 0.3, 1 / 3, 1e-3, 1e-7, 1e-9, 0.999999999):
        drawn = Fraction(int((uniform < np.float32(rate)).sum()), 2**24)
        loss = dp_sgd_loss(2.0, rate)
        priced = loss.sampling_probability if isinstance(loss, SubsampledGaussian) else 1
        assert drawn <= priced <= drawn + Fraction(2, 2**24)
        assert priced >= Fraction(rate)


SETTINGS = [  # promise, noise multiplier, rate, steps by Opacus' RDP and PRV accountants
    (ApproxDP(1, "1e-5"), 1.5, 0.05, 18, 30),
    (ApproxDP(3, "1e-5"), 1.0, 0.01, 2195, 2649),
    (ApproxDP(2, "1e-6"), 2.0, 0.1, 44, 54),
    (ApproxDP("0.1", "1e-5"), 1.5, 0.05, 0, 0),
]


@pytest.mark.parametrize(("promise", "multiplier", "rate", "rdp", "prv"), SETTINGS)
def test_as_many_steps_as_opacus_allows(
    promise: ApproxDP, multiplier: float, rate: float, rdp: int, prv: int
) -> None:
    assert most_steps(promise, multiplier, rate) == rdp
    assert most_steps(promise, multiplier, rate, committed=True) >= prv


def test_the_order_of_a_gaussian_holds_not_one_of_these_steps() -> None:
    """What the order is chosen for: the same promise at the order for Gaussians."""
    promise, loss = SETTINGS[0][0], dp_sgd_loss(1.5, 0.05)
    for cap, steps in ((in_renyi(promise), 0), (in_renyi(promise, loss), 18)):
        assert int(cap.amounts[0] / cap.price(loss).amounts[0]) == steps
        assert epsilon_of(cap, 1e-5).value <= 1


@pytest.mark.parametrize(("promise", "multiplier", "rate", "rdp", "prv"), SETTINGS[:3])
def test_the_most_steps_are_the_most(
    promise: ApproxDP, multiplier: float, rate: float, rdp: int, prv: int
) -> None:
    """At no order is there room for one more; committed, one more costs more than is promised."""
    loss, delta = dp_sgd_loss(multiplier, rate), float(promise.delta)
    assert epsilon_of(loss * rdp, delta).value <= promise.epsilon
    assert epsilon_of(loss * (rdp + 1), delta).value > promise.epsilon
    most = most_steps(promise, multiplier, rate, committed=True)
    assert largest_epsilon([loss * most], delta).value <= promise.epsilon
    assert largest_epsilon([loss * (most + 1)], delta).value > promise.epsilon


# With Opacus -----------------------------------------------------------------------------------


def accountant(
    budget: ApproxDP | Renyi, ledger: Ledger | None = None, seed: int = 0
) -> CentralAccountant[Renyi]:
    return CentralAccountant(
        budget,
        users=range(RECORDS),
        ledger=ledger,
        noise=NoiseSource.simulation(seed),
        currency=Renyi,
        adjacency=Adjacency.ADD_REMOVE,
    )


@pytest.fixture
def private() -> Any:
    """A linear model, its optimizer and loader, as Opacus' engine returns them."""
    pytest.importorskip("opacus")
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(RECORDS, 3), torch.randn(RECORDS, 1))
    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        noise_multiplier=MULTIPLIER,
        max_grad_norm=NORM,
    )
    return engine, *made


def train(model: Any, optimizer: Any, loader: Any) -> int:
    """One epoch; the number of steps."""
    import torch

    steps = 0
    for features, target in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()
        steps += 1
    return steps


@pytest.mark.filterwarnings("ignore")
def test_each_step_spends_a_token_and_the_ledger_agrees_with_opacus(
    private: Any, tmp_path: Path
) -> None:
    engine, model, optimizer, loader = private
    ledger = Ledger.create(tmp_path / "ledger.db")
    book = accountant(ApproxDP(8, "1e-5"), ledger)
    loss = dp_sgd_loss(optimizer.noise_multiplier, loader.sample_rate)
    book.commit([Plan("dp-sgd", loss, book.users, count=2 * len(loader))])
    spend_tokens(optimizer, loader, book)
    before = [p.detach().clone() for p in model.parameters()]
    steps = train(model, optimizer, loader) + train(model, optimizer, loader)
    assert steps == 2 * RECORDS // BATCH
    after = list(model.parameters())
    assert all((a != b).all() for a, b in zip(after, before, strict=True))
    spends = [
        entry
        for entry in (parse_entry(record.body) for record in ledger.records)
        if isinstance(entry, SpendEntry)
    ]
    assert [entry.mechanism for entry in spends] == [MECHANISM] * steps
    assert all(e.noise["std"] == pytest.approx(MULTIPLIER * NORM, rel=1e-12) for e in spends)
    assert book.left("dp-sgd", book.users) == 0
    # Opacus' own accountant has counted the same, and its history reads as the same losses
    events = from_opacus_history(engine.accountant.history)
    assert [count for _, count in events.losses()] == [steps]
    ours = epsilon_of(events.loss(), 1e-5).value
    assert ours <= engine.get_epsilon(1e-5) * (1 + 1e-9)
    assert ours == pytest.approx(engine.get_epsilon(1e-5), rel=0.02)
    book.close()
    certificate = audit(tmp_path / "ledger.db", delta=1e-5)
    assert certificate.problems == []
    assert any(MECHANISM in note for note in certificate.trusted_code)
    line = "Not exact: clipping, sums and noise of the following are computed in floating point"
    assert any(line in a and MECHANISM in a for a in certificate.guarantees[0].assumptions)
    assert certificate.guarantees[0].adjacency is Adjacency.ADD_REMOVE


@pytest.mark.filterwarnings("ignore")
def test_a_step_beyond_the_cap_draws_no_noise_and_changes_nothing(private: Any) -> None:
    _, model, optimizer, loader = private
    loss = dp_sgd_loss(MULTIPLIER, loader.sample_rate)
    book = accountant(Renyi({8: 1}).price(loss) * 3)
    spend_tokens(optimizer, loader, book)
    batches = iter(loader)
    for step in range(4):
        import torch

        features, target = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target).backward()
        if step < 3:
            optimizer.step()
            continue
        state = book.noise._words  # the fourth step does not fit any more
        drawn: list[int] = []
        book.noise._words = Counting(state, drawn)  # type: ignore[assignment]
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(InsufficientBudgetError):
            optimizer.step()
        assert drawn == []
        after = list(model.parameters())
        assert all((a == b).all() for a, b in zip(after, before, strict=True))


class Counting:
    def __init__(self, inside: Any, drawn: list[int]) -> None:
        self.inside, self.drawn = inside, drawn

    def words(self, n: int) -> Any:
        self.drawn.append(n)
        return self.inside.words(n)


@pytest.mark.filterwarnings("ignore")
def test_the_charge_stands_before_the_noise_is_drawn(private: Any, monkeypatch: Any) -> None:
    _, model, optimizer, loader = private
    book = accountant(ApproxDP(8, "1e-5"))
    spend_tokens(optimizer, loader, book)
    drawn: list[int] = []
    book.noise._words = Counting(book.noise._words, drawn)  # type: ignore[assignment]

    def broken(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(book.ledger, "append", broken)
    with pytest.raises(LedgerError, match="disk"):
        train(model, optimizer, loader)
    assert drawn == []


@pytest.mark.filterwarnings("ignore")
def test_the_noise_of_a_step_is_as_large_as_priced(private: Any) -> None:
    """The gradient that is used, less the clipped sum, has the stated std (4,000 draws)."""
    _, model, optimizer, loader = private
    book = accountant(Renyi({8: 10_000}))
    spend_tokens(optimizer, loader, book)
    import torch

    values = []
    for _ in range(1000):
        features, target = next(iter(loader))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target).backward()
        optimizer.clip_and_accumulate()
        sums = [p.summed_grad.clone() for p in optimizer.params]
        optimizer.add_noise()
        values += [
            (p.grad - s).flatten().numpy() for p, s in zip(optimizer.params, sums, strict=True)
        ]
    noise = np.concatenate(values)
    assert noise.std() == pytest.approx(MULTIPLIER * NORM, rel=0.05)
    assert abs(noise.mean()) < 4 * MULTIPLIER * NORM / math.sqrt(len(noise))


@pytest.mark.filterwarnings("ignore")
def test_what_the_price_would_not_cover_is_refused(private: Any) -> None:
    _, model, optimizer, loader = private
    book = accountant(ApproxDP(8, "1e-5"))
    with pytest.raises(TypeError, match="DPOptimizer"):
        spend_tokens(optimizer.original_optimizer, loader, book)
    import torch

    with pytest.raises(TypeError, match="Poisson"):
        spend_tokens(optimizer, torch.utils.data.DataLoader(loader.dataset), book)
    other = CentralAccountant(ZCDP(1), users=range(RECORDS), noise=NoiseSource.simulation(0))
    with pytest.raises(AdjacencyError, match="add-remove"):
        spend_tokens(optimizer, loader, other)
    few = CentralAccountant(
        ApproxDP(1, "1e-5"),
        users=range(5),
        noise=NoiseSource.simulation(0),
        currency=Renyi,
        adjacency=Adjacency.ADD_REMOVE,
    )
    with pytest.raises(ValueError, match="protects 5, the data have 64"):
        spend_tokens(optimizer, loader, few)
    spend_tokens(optimizer, loader, book)
    # two samples without a step between them, which Opacus refuses too unless told otherwise: a
    # record may be in both
    model.allow_grad_accumulation()
    for features, target in list(loader)[:2]:
        torch.nn.functional.mse_loss(model(features), target).backward()
    with pytest.raises(ValueError, match="accumulated gradients"):
        optimizer.step()
    assert book.spent().is_zero
