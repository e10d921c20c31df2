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
from privlearn.contract.protocols import Plan
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
from privlearn.ledger.entries import RetireEntry, SpendEntry, parse_entry
from privlearn.losses import GaussianLoss, PureLoss, SubsampledGaussian
from privlearn.losses.budgets import ZCDP, ApproxDP, Renyi
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Box
from privlearn.values.adjacency import Adjacency

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
        assert drawn <= priced <= drawn + Fraction(1, 2**24)
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
    """The gradient that is used, less the clipped sum, has the stated std (12,000 draws)."""
    _, model, optimizer, loader = private
    book = accountant(Renyi({8: 10_000}))
    spend_tokens(optimizer, loader, book)
    import torch

    values = []
    for _ in range(3000):
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
    assert noise.std() == pytest.approx(MULTIPLIER * NORM, rel=0.025)
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


def one_step(model: Any, optimizer: Any, batch: Any) -> None:
    import torch

    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    optimizer.step()


def attached(private: Any) -> tuple[Any, Any, Any, CentralAccountant[Renyi]]:
    _, model, optimizer, loader = private
    book = accountant(ApproxDP(8, "1e-5"))
    spend_tokens(optimizer, loader, book)
    return model, optimizer, loader, book


@pytest.mark.filterwarnings("ignore")
def test_the_helper_opens_what_holds_the_steps(private: Any, tmp_path: Path) -> None:
    _, model, optimizer, loader = private
    promise = ApproxDP(3, "1e-5")
    fits = most_steps(promise, MULTIPLIER, 1 / 4)
    more = most_steps(promise, MULTIPLIER, 1 / 4, committed=True)
    assert 0 < fits < more
    source = NoiseSource.simulation(0)
    free = opacus_accountant(promise, optimizer, loader, noise=source)
    assert free.epsilon(1e-5) <= 3
    assert (
        int(free.budget.amounts[0] / free.budget.price(dp_sgd_loss(1.3, 0.25)).amounts[0]) == fits
    )
    with pytest.raises(
        BudgetError, match=rf"steps = {more + 1}: they cost .* holds {more} of them"
    ):
        opacus_accountant(promise, optimizer, loader, noise=source, steps=more + 1)
    few = opacus_accountant(ApproxDP(3, "1e-5"), optimizer, loader, noise=source, steps=1)
    assert few.epsilon(1e-5) < free.epsilon(1e-5)
    path = tmp_path / "ledger.db"
    book = opacus_accountant(
        promise, optimizer, loader, noise=source, steps=more, ledger=Ledger.create(path)
    )
    assert book.epsilon(1e-5) <= 3
    spend_tokens(optimizer, loader, book)
    done = 0
    while book.left(LABEL, book.users):
        batch = next(iter(loader))
        one_step(model, optimizer, batch)
        done += 1
    assert done == more
    with pytest.raises(BudgetError, match="in the committed plan"):
        one_step(model, optimizer, next(iter(loader)))
    book.close()
    certificate = audit(path, delta=1e-5)
    assert certificate.problems == []
    assert certificate.guarantees[0].epsilon <= 3
    optimizer.noise_multiplier = 0.3
    with pytest.raises(BudgetError, match="not one uncommitted step"):
        opacus_accountant(ApproxDP("0.1", "1e-5"), optimizer, loader, noise=source)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("committed", [False, True])
def test_steps_share_an_account_with_a_histogram_and_code_of_others(
    committed: bool, private: Any, tmp_path: Path
) -> None:
    _, model, optimizer, loader = private
    loss, path = dp_sgd_loss(MULTIPLIER, BATCH / RECORDS), tmp_path / "ledger.db"
    counts = NoisySum.calibrated(Box(0, 1, 4), ZCDP("0.01"), adjacency=Adjacency.ADD_REMOVE)
    query = PureLoss("0.1", adjacency=Adjacency.ADD_REMOVE)
    cap = ApproxDP(8, "1e-5")
    book = CentralAccountant(
        in_renyi(cap, loss),
        users=range(RECORDS),
        ledger=path,
        noise=NoiseSource.simulation(0),
        adjacency=Adjacency.ADD_REMOVE,
    )
    steps = most_steps(cap, MULTIPLIER, BATCH / RECORDS) - 3
    assert steps > 2
    if committed:
        whole = [Plan("dp-sgd", loss, book.users, steps), Plan("query", query, book.users)]
        book.commit([*whole, Plan("counts", counts.loss(), book.users)])
    spend_tokens(optimizer, loader, book)
    rows = Rows.seal(np.ones((RECORDS, 4)), users=range(RECORDS))
    for step in range(steps):
        one_step(model, optimizer, next(iter(loader)))
        if step == 0:
            with book.meter(query, label="query") as spend:
                spend.release(1.0)
        if step == 1:
            counts.release(rows, book.issue(counts.loss(), users=book.users, label="counts"))
    with pytest.raises(BudgetError):
        train(model, optimizer, loader)  # 4 steps
    book.close()
    certificate = audit(path, delta=1e-5)
    assert certificate.problems == []
    assert certificate.guarantees[0].epsilon <= 8


@pytest.mark.filterwarnings("ignore")
def test_a_sample_pays_for_one_step(private: Any) -> None:
    """Two steps on one sample are not two steps on two: they share who is in it."""
    model, optimizer, loader, book = attached(private)
    batch = next(iter(loader))
    one_step(model, optimizer, batch)
    spent = book.spent()
    with pytest.raises(ValueError, match="without a new Poisson sample"):
        one_step(model, optimizer, batch)
    # nor for a step of each of two optimizers
    import torch
    from opacus.optimizers import DPOptimizer

    other = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=MULTIPLIER,
        max_grad_norm=NORM,
        expected_batch_size=BATCH,
    )
    spend_tokens(other, loader, book)
    batch = next(iter(loader))
    one_step(model, optimizer, batch)
    with pytest.raises(ValueError, match="without a new Poisson sample"):
        one_step(model, other, batch)
    assert book.spent() == spent + spent
    with pytest.raises(ValueError, match="without a new Poisson sample"):
        one_step(model, optimizer, (torch.randn(4, 3), torch.randn(4, 1)))


@pytest.mark.filterwarnings("ignore")
def test_two_samples_are_not_added_up_to_one(private: Any) -> None:
    """As with `signal_skip_step` by hand: a record in both moves the sum by twice the norm."""
    model, optimizer, loader, book = attached(private)
    batches = iter(loader)
    optimizer.signal_skip_step(do_skip=True)
    one_step(model, optimizer, next(batches))
    optimizer.signal_skip_step(do_skip=False)
    with pytest.raises(ValueError, match="not those of the next Poisson sample"):
        one_step(model, optimizer, next(batches))
    assert book.spent().is_zero


@pytest.mark.filterwarnings("ignore")
def test_a_sample_split_for_memory_is_one_step(private: Any) -> None:
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    model, optimizer, loader, book = attached(private)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=3, optimizer=optimizer
    ) as small:
        parts = train(model, optimizer, small)
    steps = RECORDS // BATCH
    assert parts > steps
    assert book.spent() == book.budget.price(dp_sgd_loss(MULTIPLIER, 0.25)) * steps


@pytest.mark.filterwarnings("ignore")
def test_the_norm_cannot_change_within_a_sample(private: Any) -> None:
    model, optimizer, loader, book = attached(private)
    features, target = next(iter(loader))
    optimizer.signal_skip_step(do_skip=True)
    optimizer.max_grad_norm = 100.0
    one_step(model, optimizer, (features[:2], target[:2]))
    optimizer.max_grad_norm = NORM
    with pytest.raises(ValueError, match=r"max_grad_norm = \[0\.7, 100\.0\]: it was changed"):
        one_step(model, optimizer, (features[2:], target[2:]))
    assert book.spent().is_zero


@pytest.mark.filterwarnings("ignore")
def test_each_step_costs_what_noise_norm_and_rate_then_are(private: Any) -> None:
    model, optimizer, loader, book = attached(private)
    price, expected = book.budget.price, book.budget.zero()
    for multiplier, norm, rate in ((1.3, 0.7, 0.25), (0.9, 0.7, 0.25), (1.3, 0.1, 0.5)):
        optimizer.noise_multiplier, optimizer.max_grad_norm = multiplier, norm
        loader.batch_sampler.sample_rate = rate
        one_step(model, optimizer, next(iter(loader)))
        expected += price(dp_sgd_loss(multiplier, rate))
        assert book.spent() == expected
    last = [entry for entry in book.ledger.entries if isinstance(entry, SpendEntry)][-1]
    assert last.noise["std"] == pytest.approx(0.13, rel=1e-12)
    optimizer.noise_multiplier = 0.0
    with pytest.raises(ValueError, match="noise_multiplier"):
        one_step(model, optimizer, next(iter(loader)))
    assert book.spent() == expected


@pytest.mark.filterwarnings("ignore")
def test_an_empty_sample_is_a_step_like_any_other(private: Any) -> None:
    """That a step was left out would say that the sample was empty."""
    model, optimizer, loader, book = attached(private)
    one_step(model, optimizer, next(iter(loader)))  # the loader learns what a batch looks like
    rows = []

    def empty(*_: object, **__: object) -> Any:
        import torch

        rows.append(0)
        return torch.ones(RECORDS)

    spent = book.spent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.rand", empty)
        batch = next(iter(loader))
    assert (len(batch[0]), len(rows)) == (0, 1)
    one_step(model, optimizer, batch)
    assert book.spent() == spent + spent
    batches = iter(loader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.rand", empty)
        next(batches)
    with pytest.raises(ValueError, match="also if it is empty"):
        one_step(model, optimizer, next(batches))


@pytest.mark.filterwarnings("ignore")
def test_a_gradient_that_is_no_number_is_null(private: Any) -> None:
    """Opacus would clip it to NaN, and a sum of NaN says who is in it."""
    import torch

    model, optimizer, loader, _ = attached(private)
    features, target = next(iter(loader))

    def clipped_sum(features: Any, target: Any) -> Any:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target, reduction="sum").backward()
        optimizer.clip_and_accumulate()
        return torch.cat([p.summed_grad.flatten() for p in optimizer.params])

    without = clipped_sum(features[1:], target[1:])
    for bad in (math.nan, math.inf, -math.inf, 1e38):
        features[0, 1] = bad
        assert torch.allclose(clipped_sum(features, target), without)


@pytest.mark.filterwarnings("ignore")
def test_loaders_that_would_cost_more_are_refused(private: Any) -> None:
    _, _, optimizer, loader = private
    book = accountant(ApproxDP(8, "1e-5"))
    loader.collate_fn.rand_on_empty = True
    with pytest.raises(ValueError, match="rand_on_empty"):
        spend_tokens(optimizer, loader, book)
    loader.collate_fn.rand_on_empty = False
    loader.batch_sampler.num_samples = 5
    with pytest.raises(ValueError, match="draws from 5 records, the data have 64"):
        spend_tokens(optimizer, loader, book)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_uneven_last_batch_is_priced_at_the_rate_of_the_sampler(drop_last: bool) -> None:
    pytest.importorskip("opacus")
    import torch
    from opacus import PrivacyEngine

    model = torch.nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(torch.randn(65, 3), torch.randn(65, 1))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=16, drop_last=drop_last),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    book = opacus_accountant(
        ApproxDP(8, "1e-5"), optimizer, loader, noise=NoiseSource.simulation(0)
    )
    spend_tokens(optimizer, loader, book)
    steps = train(model, optimizer, loader)
    rate = 1 / 4 if drop_last else 1 / 5
    assert book.spent() == book.budget.price(dp_sgd_loss(2.0, rate)) * steps


@pytest.mark.filterwarnings("ignore")
def test_training_goes_on_after_a_crash_with_what_is_left(private: Any, tmp_path: Path) -> None:
    _, model, optimizer, loader = private
    path = tmp_path / "ledger.db"
    book = opacus_accountant(
        ApproxDP(3, "1e-5"),
        optimizer,
        loader,
        noise=NoiseSource.simulation(0),
        steps=4,
        ledger=Ledger.create(path),
    )
    spend_tokens(optimizer, loader, book)
    one_step(model, optimizer, next(iter(loader)))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:  # between the spend and the gradient
        patch.setattr("privlearn.contract.receipts.Receipt.draw", dies)
        with pytest.raises(KeyboardInterrupt):
            one_step(model, optimizer, next(iter(loader)))
    book.ledger.close()
    again: CentralAccountant[Renyi] = CentralAccountant.resume(
        path, noise=NoiseSource.simulation(1)
    )
    spend_tokens(optimizer, loader, again)
    assert again.left(LABEL, again.users) == 2
    for _ in range(2):
        one_step(model, optimizer, next(iter(loader)))
    with pytest.raises(BudgetError, match="in the committed plan"):
        one_step(model, optimizer, next(iter(loader)))
    again.close()
    assert audit(path, delta=1e-5).problems == []


@pytest.mark.filterwarnings("ignore")
def test_a_gradient_is_in_the_ledger_by_its_digest_only(private: Any, tmp_path: Path) -> None:
    _, model, optimizer, loader = private
    book = accountant(ApproxDP(8, "1e-5"), Ledger.create(tmp_path / "ledger.db"))
    spend_tokens(optimizer, loader, book)
    one_step(model, optimizer, next(iter(loader)))
    assert book.released(LABEL) == []
    ends = [entry for entry in book.ledger.entries if isinstance(entry, RetireEntry)]
    assert [(end.outcome, end.value) for end in ends] == [("released", None)]
    assert ends[0].digest is not None
    book.close()
