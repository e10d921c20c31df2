"""What each user is promised and charged, by arrival index."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.guarantee import epsilon_of
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import AdjacencyError, BudgetError, UsersError
from privlearn.ledger import Ledger
from privlearn.ledger.chain import chained
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss, PerArrivalLoss, loss_from_dict
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import PrefixSum
from privlearn.mechanisms.binary_tree import BinaryTree
from privlearn.mechanisms.buffered_toeplitz import AnytimeBLT, BufferedToeplitz
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.reporting import certificates as report
from privlearn.reporting.figures import plot_arrivals
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency

USERS = range(16)
PROFILE = PerArrivalLoss(
    [(4, GaussianLoss("0.4")), (8, GaussianLoss("0.2")), (4, GaussianLoss("0.1"))]
)


def central(cap: str = "1", users: range = USERS, **more: Any) -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(cap), users=users, noise=NoiseSource.simulation(0), **more)


# Losses with a profile ------------------------------------------------------------------------


def test_a_profile_is_data_and_its_bounds_are_the_largest() -> None:
    assert loss_from_dict(PROFILE.to_dict()) == PROFILE
    assert PROFILE.zcdp() == Fraction(1, 5)
    assert PROFILE.gaussian() == Fraction(2, 5)
    assert PROFILE.pure() is None
    assert PROFILE.renyi(3) == GaussianLoss("0.4").renyi(3)
    mixed = PerArrivalLoss([(1, LaplaceLoss("0.1")), (1, ApproxLoss("0.2", "1e-9"))])
    assert mixed.failure() == Fraction(1, 10**9)
    assert mixed.renyi(2) == math.inf
    assert mixed.unless_failed().pure() == Fraction(1, 5)


def test_a_profile_starts_at_the_first_user_of_the_token() -> None:
    pieces = PROFILE.over(range(3, 9))
    assert pieces == [(range(3, 7), GaussianLoss("0.4")), (range(7, 9), GaussianLoss("0.2"))]
    twice = (PROFILE + LaplaceLoss("0.1")).over(range(0, 6))
    assert twice == [
        (range(0, 4), GaussianLoss("0.4") + LaplaceLoss("0.1")),
        (range(4, 6), GaussianLoss("0.2") + LaplaceLoss("0.1")),
    ]
    with pytest.raises(ValueError, match="for 16 users only"):
        PROFILE.over(range(0, 17))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_profiles_compose_user_by_user(
    left: list[tuple[int, int]], right: list[tuple[int, int]], count: int
) -> None:
    losses = [PerArrivalLoss([(n, GaussianLoss(m)) for n, m in parts]) for parts in (left, right)]
    arrays = [[m for n, m in parts for _ in range(n)] for parts in (left, right)]
    length = min(map(len, arrays))
    whole = losses[0] * count + losses[1]
    found = [piece.gaussian() for users, piece in whole.over(range(7, 7 + length)) for _ in users]
    assert found == [a * count + b for a, b in zip(*arrays, strict=False)][:length]


def test_bad_profiles_are_refused() -> None:
    for parts in ([], [(0, GaussianLoss(1))], [(True, GaussianLoss(1))]):
        with pytest.raises((TypeError, ValueError)):
            PerArrivalLoss(parts)
    with pytest.raises(AdjacencyError):
        PerArrivalLoss([(1, GaussianLoss(1)), (1, GaussianLoss(1, adjacency=Adjacency.ZERO_OUT))])
    with pytest.raises(AdjacencyError, match="add-remove"):
        PerArrivalLoss([(1, GaussianLoss(1, adjacency=Adjacency.ADD_REMOVE))])
    spend = (Ball(1.0, 2), GaussianNoise(1.0))
    with pytest.raises(ValueError, match="largest of the profile"):
        Spend("x", *spend, gain=1.0, profile=((1, 0.5),))
    with pytest.raises(ValueError, match="PerArrivalLoss"):
        Spend("x", *spend, profile=((1, 1.0),), own_loss=GaussianLoss(1))
    with pytest.raises(ValueError, match="one release"):
        Spend("x", *spend, profile=((1, 1.0),), arithmetic="sum")


# Charges --------------------------------------------------------------------------------------


def test_late_users_are_charged_less() -> None:
    for planned in (False, True):
        book = central()
        if planned:
            book.commit([Plan("stream", PROFILE, USERS, 2)])
            assert book.spent(15) == ZCDP("0.1")
        token = book.issue(PROFILE, users=USERS, label="stream")
        assert token.budget == ZCDP("0.2")
        box = Spend("box", Ball(1.0, 2), GaussianNoise(1.0), own_loss=PROFILE)
        with token.spend(box):
            pass
        if not planned:
            expected = ["0.2"] * 4 + ["0.1"] * 8 + ["0.05"] * 4
            assert [book.spent(user) for user in USERS] == [ZCDP(rho) for rho in expected]
        certificate = book.certificate()
        assert certificate.problems == []
        (share,) = certificate.mechanisms
        assert (share.spends, share.share) == (1, 1.0)


def test_a_profile_is_not_below_a_loss_that_everybody_pays() -> None:
    """The planted defect: comparing the dearest users only."""
    book = central()
    book.commit([Plan("stream", PROFILE, USERS)])
    with pytest.raises(BudgetError, match="is not"):
        book.issue(GaussianLoss("0.4"), users=USERS, label="stream")
    other = PerArrivalLoss([(16, GaussianLoss("0.4"))])
    with pytest.raises(BudgetError, match="is not"):
        book.issue(other, users=USERS, label="stream")
    wider = central()
    wider.commit([Plan("stream", GaussianLoss("0.4"), USERS)])
    wider.issue(PROFILE, users=USERS, label="stream")


def test_a_profile_for_too_few_users_is_refused() -> None:
    book = central(users=range(20))
    with pytest.raises(BudgetError, match="16 users only"):
        book.commit([Plan("x", PROFILE, range(20))])
    token = book.issue(PROFILE, users=range(20), label="x")
    with pytest.raises(BudgetError, match="16 users only"):
        token.spend(Spend("box", Ball(1.0, 2), GaussianNoise(1.0), own_loss=PROFILE))


@pytest.mark.parametrize("tree", [True, False])
def test_a_stream_by_arrival_charges_each_column(tree: bool) -> None:
    factorization = BinaryTree(64) if tree else BufferedToeplitz.fitted(64)
    users = range(64)
    mechanism = PrefixSum(Ball(1.0, 2), factorization, 10.0, by_arrival=True)
    flat = PrefixSum(Ball(1.0, 2), factorization, 10.0)
    book = central("10", users=users)
    with mechanism.open(book.issue(mechanism.loss(), users=users, label="s")) as stream:
        stream.append(Rows.seal(np.ones((64, 2)), users=users))
    most = flat.loss().zcdp()
    assert mechanism.loss().zcdp() == most
    for user in users:
        own = (2 * factorization.column_norm_at(user + 1) / 10.0) ** 2 / 2
        assert float(most or 0) * (1 + 1e-9) >= float(book.spent(user).rho) >= own * (1 - 1e-12)
    assert float(book.spent(63).rho) < 0.5 * float(most or 0)
    assert len(book.spend_by_arrival()) < 40
    assert book.certificate().problems == []


def test_a_profile_that_the_noise_does_not_earn_is_a_problem(tmp_path: Path) -> None:
    mechanism = PrefixSum(Ball(1.0, 2), BinaryTree(16), 10.0, by_arrival=True)
    book = central()
    with mechanism.open(book.issue(mechanism.loss(), users=USERS, label="s")) as stream:
        stream.append(Rows.seal(np.ones((16, 2)), users=USERS))
    bodies = [dict(record.body) for record in book.ledger.records]
    (spend,) = [body for body in bodies if body["entry"] == "spend"]
    assert certify(chained(bodies)).problems == []
    honest = spend["loss"]
    parts = [dict(part) for part in honest["parts"]]
    parts[-1] = {**parts[-1], "loss": {**parts[-1]["loss"], "mu_squared": "0.000001"}}
    spend["loss"] = {**honest, "parts": parts}
    assert any("noise and domain" in problem for problem in certify(chained(bodies)).problems)
    spend["loss"] = honest
    spend["profile"] = [[n, gain / 2] for n, gain in spend["profile"]]
    spend["gain"] = max(gain for _, gain in spend["profile"])
    assert certify(chained(bodies)).problems
    spend["profile"], spend["gain"] = [[16, 99.0]], 1.0
    assert certify(chained(bodies)).problems


def test_a_stream_of_unknown_length_costs_all_users_nearly_the_same() -> None:
    """Columns are infinite; late users pay for the rounding of fewer rows, which is little."""
    stream = PrefixSum(Ball(1.0, 2), AnytimeBLT(), 10.0, by_arrival=True)
    gains = [gain for _, gain in stream.spend().profile]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < gains[0] < gains[-1] * (1 + 1e-7)


# Certificates for one user --------------------------------------------------------------------


def test_a_certificate_for_one_user_counts_what_may_touch_this_user(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = central(ledger=Ledger.create(path))
    book.commit(
        [Plan("a", GaussianLoss("0.4"), range(4)), Plan("b", GaussianLoss("0.1"), USERS, 2)]
    )
    early, late = book.certificate(user=0), book.certificate(user=15)
    assert early.guarantees[0].rho == pytest.approx(0.3)
    assert late.guarantees[0].rho == pytest.approx(0.1)
    assert book.certificate().guarantees[0].rho == early.guarantees[0].rho
    assert (late.guarantees[0].user, book.certificate().guarantees[0].user) == (15, None)
    # what happens later changes nothing that was promised at arrival
    token = book.issue(GaussianLoss("0.1"), users=USERS, label="b")
    token.retire()
    with book.issue(GaussianLoss("0.1"), users=USERS, label="b").spend(
        Spend("box", Ball(1.0, 2), GaussianNoise(1.0), own_loss=GaussianLoss("0.1"))
    ):
        pass
    book.close()
    again = audit(path, user=15)
    assert again.guarantees[0].epsilon == late.guarantees[0].epsilon
    assert again.spent[0].rho == pytest.approx(0.05)
    assert any("depends on the user" in line for line in again.guarantees[0].assumptions)
    everybody = [audit(path, user=user).guarantees[0].epsilon for user in (0, 3, 4, 15)]
    assert max(everybody) == audit(path).guarantees[0].epsilon


def test_an_unknown_user_is_an_error() -> None:
    book = central()
    with pytest.raises(UsersError, match="user = 16: no accountant has this user"):
        book.certificate(user=16)
    with pytest.raises(ValueError, match="user"):
        book.certificate(user=-1)
    with pytest.raises(UsersError):
        book.spent(16)


def test_without_a_plan_every_user_is_promised_the_cap() -> None:
    book = central()
    book.issue(ZCDP("0.5"), users=range(4), label="x")
    assert book.certificate(user=0).guarantees[0].rho == 1
    assert book.certificate(user=15).guarantees[0].rho == 1


def test_spend_by_arrival_is_what_each_certificate_says(tmp_path: Path) -> None:
    book = central()
    book.commit([Plan("a", PROFILE, USERS), Plan("b", GaussianLoss("0.1"), range(2, 6))])
    with book.issue(PROFILE, users=USERS, label="a").spend(
        Spend("box", Ball(1.0, 2), GaussianNoise(1.0), own_loss=PROFILE)
    ):
        pass
    pieces = book.spend_by_arrival(1e-6)
    assert [user for piece in pieces for user in piece.users] == list(USERS)
    for piece in pieces:
        for user in (piece.users.start, piece.users.stop - 1):
            certificate = book.certificate(1e-6, user=user)
            assert piece.promised == certificate.guarantees[0].epsilon
            assert piece.spent == certificate.spent[0].epsilon
    assert max(piece.promised for piece in pieces) == book.epsilon(1e-6)
    assert pieces[-1].promised == epsilon_of(GaussianLoss("0.1"), 1e-6).value
    plot_arrivals(tmp_path / "arrivals.png", pieces, "a stream")
    assert (tmp_path / "arrivals.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="at least one"):
        plot_arrivals(tmp_path / "none.png", [])
    (open_cap,) = central().spend_by_arrival()
    assert open_cap.users == USERS
    assert open_cap.spent == 0
    assert open_cap.delta == 1e-6


def test_many_users_with_totals_of_their_own() -> None:
    users = range(200)
    book = central("100", users=users)
    book.commit(
        [
            Plan(f"p{user}", GaussianLoss(Fraction(user + 1, 1000)), range(user, user + 1))
            for user in users
        ]
    )
    pieces = book.spend_by_arrival()
    assert [piece.users for piece in pieces] == [range(user, user + 1) for user in users]
    values = [piece.promised for piece in pieces]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(book.epsilon(1e-6))


def test_words_of_the_report() -> None:
    book = central(odometer="1e-9", failure="1e-9")
    line = report.guarantee_line(book.certificate(user=3, rounds=1).guarantees[0])
    assert "for user 3" in line
    assert "failures of 1e-09 included" in line
    assert "3 rounds" in report.guarantee_line(book.certificate(rounds=3).guarantees[0])
    spent = book.certificate().spent[0]
    assert "at all times at once" in report.running_line(spent)
    assert "Odometer: privacy loss so far" in report.certificate_markdown(book.certificate())
    assert report.running_line(central().certificate().spent[0]) == ""
