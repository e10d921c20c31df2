"""What the typing corpus must let through."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking import check_mechanism
from privlearn.checking.budgets import assert_budget
from privlearn.checking.pytest_plugin import AccountantFactory
from privlearn.checking.reports import CheckReport
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Accountant, Mechanism
from privlearn.contract.receipts import Released
from privlearn.contract.tokens import Token
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP, ApproxDP, B, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, PSDTrace
from privlearn.values.adjacency import Adjacency


def same_currency(a: ZCDP, b: ZCDP) -> ZCDP:
    return a + b if a.covers(b) else b - a.share("1/2")


def spend(token: Token[GaussianDP]) -> Released[Array]:
    rows = Rows.seal(np.zeros((3, 2)), users=range(3))
    return NoisySum(Ball(1.0, 2), GaussianNoise(1.0)).release(rows.map(lambda row: row * 2), token)


def any_currency(
    accountant: Accountant[B], mechanism: Mechanism[Array], rows: Rows[Array]
) -> Array:
    token = accountant.issue(mechanism.loss(), users=rows.users, label="any")
    return mechanism.release(rows, token).value


def central() -> Array:
    accountant = CentralAccountant(ZCDP(1), users=range(3))
    rows = Rows.seal(np.zeros((3, 2)), users=range(3))
    return any_currency(accountant, NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)), rows)


def joint() -> None:
    accountant = JointAccountant(ZCDP(1), users=range(3))
    board = Billboard(accountant, range(3))
    gram = PrefixSum.calibrated(PSDTrace(1.0, 2), ZCDP(1), horizon=3)
    stream = gram.open(accountant.issue(gram.loss(), users=range(3), label="gram"))
    rows = Rows.seal(np.zeros((3, 1, 2)), users=range(3))
    shown = board.serve(rows, lambda own: own)
    board.post("gram", stream.append(shown.deliver(lambda own, action: own)))


def noisy(data: list[float], rng: Generator) -> float:
    return sum(data) + float(rng.laplace())


def noisy_by_name(data: Array, *, rng: Generator) -> Array:
    return data + rng.laplace(size=data.shape)


def checked() -> tuple[str, str]:
    check_mechanism(noisy, PureDP(1), neighbours=([0.0], [1.0]))
    check_mechanism(noisy, GaussianLoss(1), neighbours=[([0.0], [1.0]), ([1.0], [1.0, 2.0])])
    check_mechanism(noisy_by_name, ApproxDP(1, 1e-6), neighbours=(np.zeros(2), np.ones(2)))
    check_mechanism(lambda data: data, PureDP(1), neighbours=(0, 1))
    total = NoisySum.calibrated(Ball(1.0, 2), ZCDP(1))
    found: CheckReport = check_mechanism(total, neighbours=(np.zeros((1, 2)), np.ones((1, 2))))
    check_mechanism(PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=3), ZCDP("0.5"))
    assert check_mechanism(total).passed
    return found.verdict, assert_budget(lambda accountant: None, at_most=ZCDP(1)).subject


def in_a_test(privacy_accountant: AccountantFactory) -> Token[ZCDP]:
    joint: JointAccountant[ZCDP] = privacy_accountant(ZCDP(1), trust="joint")
    joint.close()
    return privacy_accountant(ZCDP(1)).issue(ZCDP(1), users=range(3), label="all")


def adjacency() -> GaussianLoss:
    return GaussianLoss("0.1", adjacency=Adjacency.ZERO_OUT)


def pure() -> PureDP:
    return 3 * PureDP("0.1")
