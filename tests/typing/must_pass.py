"""What the typing corpus must let through."""

from __future__ import annotations

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.adjacency import Adjacency
from privlearn.billboard import Billboard
from privlearn.budgets import ZCDP, B, GaussianDP, PureDP
from privlearn.domains import Array, Ball, PSDTrace
from privlearn.losses import Gaussian
from privlearn.mechanisms import GaussianSum, PrefixSum
from privlearn.protocols import Accountant, Mechanism
from privlearn.rows import Rows
from privlearn.tokens import Released, Token


def same_currency(a: ZCDP, b: ZCDP) -> ZCDP:
    return a + b if a.covers(b) else b - a.share("1/2")


def spend(token: Token[GaussianDP]) -> Released[Array]:
    rows = Rows.seal(np.zeros((3, 2)), users=range(3))
    return GaussianSum(Ball(1.0, 2), 1.0).release(rows.map(lambda row: row * 2), token)


def any_currency(
    accountant: Accountant[B], mechanism: Mechanism[Array], rows: Rows[Array]
) -> Array:
    token = accountant.issue(mechanism.loss(), users=rows.users, label="any")
    return mechanism.release(rows, token).value


def central() -> Array:
    accountant = CentralAccountant(ZCDP(1), users=range(3))
    rows = Rows.seal(np.zeros((3, 2)), users=range(3))
    return any_currency(accountant, GaussianSum.calibrated(Ball(1.0, 2), ZCDP(1)), rows)


def joint() -> None:
    accountant = JointAccountant(ZCDP(1), users=range(3))
    board = Billboard(accountant, range(3))
    gram = PrefixSum.calibrated(PSDTrace(1.0, 2), ZCDP(1), horizon=3)
    stream = gram.open(accountant.issue(gram.loss(), users=range(3), label="gram"))
    rows = Rows.seal(np.zeros((3, 1, 2)), users=range(3))
    shown = board.serve(rows, lambda own: own)
    board.post("gram", stream.append(shown.deliver(lambda own, action: own)))


def adjacency() -> Gaussian:
    return Gaussian("0.1", adjacency=Adjacency.ZERO_OUT)


def pure() -> PureDP:
    return 3 * PureDP("0.1")
