"""Joint guarantees in every currency: what others receive costs what was released, no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.accountants.guarantee import epsilon_of
from privlearn.contract.billboard import Billboard
from privlearn.contract.spends import Spend
from privlearn.errors import InsufficientBudgetError, ProvenanceError
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

USERS = range(8)
LAPLACE = Spend("laplace", Ball(1.0, 1), LaplaceNoise(10.0), arithmetic="sum")
GAUSSIAN = Spend("gaussian", Ball(1.0, 2), GaussianNoise(10.0), arithmetic="sum")


def joint(cap: Any, **more: Any) -> JointAccountant[Any]:
    return JointAccountant(cap, users=USERS, noise=NoiseSource.simulation(0), **more)


def serve_and_sum(book: JointAccountant[Any], spend: Spend, times: int) -> None:
    """Serves all users from the board and posts noisy sums of what they answered."""
    board = Billboard(book, USERS)
    shown = board.serve(Rows.seal(np.ones((8, 2)), users=USERS), lambda own: own)
    answered = shown.deliver(lambda own, _: own)
    for _ in range(times):
        token = book.issue(spend.loss(book.adjacency), users=USERS, label="sum")
        with token.spend(spend) as receipt:
            board.post("sum", receipt.release_sum(answered))


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize(
    ("cap", "spend"),
    [
        (PureDP(1), LAPLACE),
        (ZCDP(1), LAPLACE),
        (Renyi({2: 1, 8: 4}), LAPLACE),
        (ZCDP(1), GAUSSIAN),
        (GaussianDP(1), GAUSSIAN),
        (Renyi({2: 1, 8: 4}), GAUSSIAN),
    ],
)
def test_a_joint_guarantee_in_every_currency(
    cap: Currency, spend: Spend, adjacency: Adjacency
) -> None:
    book = joint(cap, adjacency=adjacency)
    serve_and_sum(book, spend, 3)
    loss = spend.loss(adjacency)
    assert book.spent() == cap.price(loss) * 3
    certificate = book.certificate()
    assert certificate.problems == []
    (guarantee,), (spent,) = certificate.guarantees, certificate.spent
    assert (guarantee.trust, guarantee.adjacency) == (Trust.JOINT, adjacency)
    assert guarantee.epsilon == epsilon_of(cap, 1e-6).value
    assert spent.epsilon == epsilon_of(loss * 3, 1e-6).value < guarantee.epsilon
    assert any("billboard lemma" in line for line in guarantee.assumptions)


@pytest.mark.parametrize(
    ("cap", "spend"),
    [
        (PureDP("0.6"), LAPLACE),
        (ZCDP(1).price(LaplaceLoss("0.2")) * 3, LAPLACE),
        (GaussianDP.from_mu_squared("0.12"), GAUSSIAN),
        (Renyi({2: 1}).price(GaussianLoss("0.04")) * 3, GAUSSIAN),
    ],
)
def test_the_cap_is_a_cap_in_every_currency(cap: Currency, spend: Spend) -> None:
    book = joint(cap)
    serve_and_sum(book, spend, 3)
    assert book.remaining().is_zero
    with pytest.raises(InsufficientBudgetError):
        book.issue(spend.loss(book.adjacency), users=range(1), label="sum")


@pytest.mark.parametrize("currency", [ZCDP, GaussianDP, Renyi])
def test_a_joint_promise_in_epsilon_and_delta(currency: type[Currency]) -> None:
    book: JointAccountant[Any] = joint(ApproxDP(1, "1e-6"), currency=currency)
    serve_and_sum(book, GAUSSIAN, 1)
    (guarantee,) = book.certificate().guarantees
    assert guarantee.delta == 1e-6
    assert guarantee.epsilon == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("cap", [PureDP(1), ZCDP(1), Renyi({2: 1})])
def test_logged_rows_are_refused_in_every_currency(cap: Currency) -> None:
    book = joint(cap)
    token = book.issue(LaplaceLoss("0.2"), users=USERS, label="sum")
    with token.spend(LAPLACE) as receipt, pytest.raises(ProvenanceError, match="logged rows"):
        receipt.release_sum(Rows.seal(np.ones((8, 1)), users=USERS))
