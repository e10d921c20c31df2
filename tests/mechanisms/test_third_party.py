"""A mechanism that a third party writes in about ten lines, as the guide shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.contract.protocols import Mechanism, Plan
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    BudgetError,
    InsufficientBudgetError,
    LossExceedsTokenError,
    ProvenanceError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses import LaplaceLoss, Loss
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box
from privlearn.values.adjacency import Adjacency

USERS = range(100)


@dataclass(frozen=True)
class LaplaceMean:
    """Written as in docs/how-to/write-a-mechanism.md, in doubles."""

    domain: Box
    scale: float

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def _spend(self) -> Spend:
        return Spend("laplace-mean", self.domain, LaplaceNoise(self.scale))

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release((total + receipt.draw(total.shape)) / len(rows))


def test_a_mean_of_its_own_pays_and_releases() -> None:
    book = accountant()
    mean = LaplaceMean(Box(0, 1, 1), 4.0)
    token = book.issue(mean.loss(), users=USERS, label="own")
    assert mean.release(rows(np.ones(100)), token).value == pytest.approx(1.0, rel=0.5)
    assert book.spent() == PureDP("0.25")


def total_of(scale: float) -> NoisySum[Array]:
    """Sums of values in [−1, 1], diameter 2: ε = 2/scale."""
    return NoisySum(Ball(1.0, 1, "l1"), LaplaceNoise(scale))


def accountant(epsilon: str = "1", seed: int = 0) -> CentralAccountant[PureDP]:
    return CentralAccountant(PureDP(epsilon), users=USERS, noise=NoiseSource.simulation(seed))


def rows(values: Array) -> Rows[Array]:
    return Rows.seal(values[:, None], users=range(len(values)))


def test_it_is_a_mechanism_without_inheriting_anything() -> None:
    mean: Mechanism[Array] = LaplaceMean(Box(0, 1, 1), 4.0)
    assert LaplaceMean.__mro__ == (LaplaceMean, object)
    assert mean.loss() == LaplaceLoss("0.25")


def test_it_releases_the_count_with_the_stated_noise() -> None:
    values = (np.arange(100) < 37).astype(float)
    errors = []
    for seed in range(400):
        book = accountant(seed=seed)
        token = book.issue(total_of(4.0).loss(), users=USERS, label="count")
        released = total_of(4.0).release(rows(values), token)
        assert released.value.shape == (1,)
        errors.append(released.value[0] - 37)
    # |LaplaceLoss(4)| has mean 4 and standard deviation 4.
    assert np.mean(np.abs(errors)) == pytest.approx(4.0, abs=4 * 4 / math.sqrt(400))
    assert np.mean(errors) == pytest.approx(0.0, abs=4 * 4 * math.sqrt(2 / 400))


def test_values_outside_the_domain_count_at_most_one_and_bad_ones_nothing() -> None:
    values = np.array([1e9, -1e9, 2.0, np.nan, np.inf, 0.25])
    book = CentralAccountant(PureDP(100), users=range(6), noise=NoiseSource.simulation(0))
    clipped = total_of(0.02).domain.clip(values[:, None]).ravel()
    assert clipped == pytest.approx([1, -1, 1, 0, 0, 0.25])
    token = book.issue(total_of(0.02).loss(), users=range(6), label="count")
    released = total_of(0.02).release(rows(values), token)
    assert released.value[0] == pytest.approx(1.25, abs=0.2)


def test_it_is_priced_in_every_currency_that_holds_laplace_noise() -> None:
    loss = total_of(4.0).loss()
    assert PureDP(1).price(loss) == PureDP("0.5")
    rho = 0.5 + math.exp(-0.5) - 1
    assert float(ZCDP(1).price(loss).rho) == pytest.approx(rho, rel=1e-12)
    assert GaussianDP(1).price(loss).mu_squared == pytest.approx(0.5**2 * 1.274, rel=0.01)
    assert loss * 2 != loss
    assert PureDP(2).price(loss * 3) == PureDP("1.5")


def test_it_is_refused_when_it_overspends_and_nothing_is_opened() -> None:
    book = accountant("1")
    small = book.issue(PureDP("0.4"), users=USERS, label="count")
    with pytest.raises(LossExceedsTokenError, match="laplace-sum costs PureDP"):
        total_of(4.0).release(rows(np.ones(100)), small)
    assert not any(isinstance(entry, SpendEntry) for entry in book.ledger.entries)
    total_of(5.0).release(rows(np.ones(100)), small)  # ε = 0.4 fits, the token is still good
    with pytest.raises(TokenSpentError, match="spent or retired before"):
        total_of(5.0).release(rows(np.ones(100)), small)
    with pytest.raises(InsufficientBudgetError, match="nothing was charged"):
        book.issue(total_of(2.0).loss(), users=USERS, label="count")
    assert book.spent() == PureDP("0.4")
    assert book.remaining() == PureDP("0.6")


def test_disjoint_users_cost_the_maximum() -> None:
    book = accountant("0.5")
    for users in (range(50), range(50, 100)):
        token = book.issue(total_of(4.0).loss(), users=users, label="count")
        total_of(4.0).release(Rows.seal(np.ones((50, 1)), users=users), token)
    assert book.spent() == PureDP("0.5")
    assert book.epsilon(1e-6, of="spent") <= 0.5


def test_it_stands_in_the_ledger_and_needs_no_trust() -> None:
    book = accountant("1")
    count = total_of(4.0)
    book.commit([Plan("count", count.loss(), USERS, count=2)])
    for _ in range(2):
        count.release(rows(np.ones(100)), book.issue(count.loss(), users=USERS, label="count"))
    with pytest.raises(BudgetError, match="no longer"):
        book.issue(count.loss(), users=USERS, label="count")
    book.close()
    spends = [entry for entry in book.ledger.entries if isinstance(entry, SpendEntry)]
    assert [entry.mechanism for entry in spends] == ["laplace-sum"] * 2
    assert spends[0].noise == {"family": "laplace", "scale": 4.0}
    assert spends[0].domain == {"kind": "ball", "radius": 1.0, "size": 1, "norm": "l1"}
    assert spends[0].loss["kind"] == "laplace"
    ends = [entry.outcome for entry in book.ledger.entries if isinstance(entry, RetireEntry)]
    assert ends == ["released", "released"]
    certificate = book.certificate()
    assert certificate.problems == []
    assert certificate.trusted_code == [], "domain and noise alone explain the price"
    assert [(share.mechanism, share.spends) for share in certificate.mechanisms] == [
        ("laplace-sum", 2)
    ]
    assert certificate.guarantees[0].epsilon <= 1.0


def test_an_understated_loss_of_its_own_is_listed_as_trusted_code() -> None:
    book = accountant("1")
    count = total_of(4.0)
    own = Spend("laplace-sum", count.domain, LaplaceNoise(4.0), own_loss=LaplaceLoss("0.001"))
    token = book.issue(own.loss(Adjacency.REPLACE_ONE), users=USERS, label="count")
    with token.spend(own) as receipt:
        receipt.release(receipt.open(rows(np.ones(100))).sum(axis=0) + receipt.draw((1,)))
    rounded, note = book.certificate().trusted_code
    assert rounded.startswith("laplace-sum: computes in floating point")
    assert note.startswith("laplace-sum: ")
    assert note.endswith("code's word")


def test_arithmetic_of_its_own_is_listed_as_trusted_code() -> None:
    book = accountant("1")
    spend = Spend("laplace-mean", total_of(4.0).domain, LaplaceNoise(4.0))
    token = book.issue(spend.loss(Adjacency.REPLACE_ONE), users=USERS, label="mean")
    with token.spend(spend) as receipt:
        noisy = receipt.open(rows(np.ones(100))).sum(axis=0) + receipt.draw((1,))
        receipt.release(noisy / 100)
    rounded, note = book.certificate().trusted_code
    assert rounded.startswith("laplace-mean: computes in floating point")
    assert note == "laplace-mean: what it computes from opened rows is its code's word"


def test_a_failure_after_the_spend_stays_charged_as_lost() -> None:
    book = accountant("1")
    mean = LaplaceMean(Box(0, 1, 1), 4.0)  # looks at rows after it spent
    token = book.issue(mean.loss(), users=range(50), label="mean")
    with pytest.raises(UsersError, match="cannot be opened by token"):
        mean.release(rows(np.ones(100)), token)
    assert book.spent() == PureDP("0.25")
    assert book.certificate().lost == 1


def test_under_a_joint_guarantee_it_opens_no_logged_rows() -> None:
    book = JointAccountant(PureDP(1), users=USERS, noise=NoiseSource.simulation(0))
    token = book.issue(total_of(4.0).loss(), users=USERS, label="count")
    with pytest.raises(ProvenanceError, match="a joint guarantee needs rows served"):
        total_of(4.0).release(rows(np.ones(100)), token)
