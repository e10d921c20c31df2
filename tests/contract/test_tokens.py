"""Tokens and receipts: spend once, before anything is opened, and never come back."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.contract.billboard import Billboard
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token, mint_token
from privlearn.errors import (
    CurrencyError,
    LossExceedsTokenError,
    ProvenanceError,
    TokenCopyError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses import ZCDPLoss
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Norm, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

USERS = range(10)
BALL = Ball(1.0, 2)
SPEND = Spend("probe", BALL, GaussianNoise(10.0))
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
may_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def accountant() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))


@pytest.fixture
def token(accountant: CentralAccountant[ZCDP]) -> Token[ZCDP]:
    return accountant.issue(ZCDP("0.1"), users=USERS, label="probe")


def rows(users: range = USERS) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 2)), users=users)


def spends(accountant: CentralAccountant[Any]) -> int:
    return sum(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)


def last_outcome(accountant: CentralAccountant[Any]) -> str:
    entry = accountant.ledger.entries[-1]
    assert isinstance(entry, RetireEntry)
    return entry.outcome


def opened(receipt: Receipt, rows: Rows[Any]) -> Any:
    """What a mechanism of its own arithmetic gets."""
    with receipt.round():
        return receipt.open(rows)


def test_a_token_is_spent_once(accountant: CentralAccountant[ZCDP], token: Token[ZCDP]) -> None:
    receipt = token.spend(SPEND)
    for again in (lambda: token.spend(SPEND), token.retire):
        with pytest.raises(TokenSpentError, match="'probe' was spent or retired before"):
            again()
    receipt.release(receipt.draw((2,)))
    with pytest.raises(TokenSpentError, match="was spent or retired before"):
        token.spend(SPEND)
    assert spends(accountant) == 1


def test_nothing_leaves_before_noise_was_drawn(token: Token[ZCDP]) -> None:
    receipt = token.spend(SPEND)
    total = opened(receipt, rows()).sum(axis=0)
    for leave in (receipt.publish, receipt.release):
        with pytest.raises(TokenError, match="drew no noise: nothing may leave"):
            leave(total)


def test_a_sum_that_the_receipt_makes_leaves_no_room_for_other_arithmetic(
    token: Token[ZCDP],
) -> None:
    receipt = token.spend(Spend("probe", BALL, GaussianNoise(10.0), arithmetic="sum"))
    for own in (
        lambda: receipt.open(rows()),
        lambda: receipt.draw((2,)),
        lambda: receipt.publish(np.zeros(2)),
        lambda: receipt.release(np.zeros(2)),
    ):
        with pytest.raises(TokenError, match=r"use receipt.release_sum"):
            own()
    assert receipt.release_sum(rows()).value.shape == (2,)
    assert receipt.closed
    with pytest.raises(ValueError, match="its gain is 1"):
        Spend("probe", BALL, GaussianNoise(10.0), gain=2.0, arithmetic="sum")


def test_a_retired_token_cannot_be_spent_and_its_budget_is_back(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    assert accountant.remaining() == ZCDP("0.9")
    token.retire()
    assert accountant.remaining() == ZCDP(1)
    with pytest.raises(TokenSpentError, match="was spent or retired before"):
        token.spend(SPEND)
    assert spends(accountant) == 0


def test_a_token_of_another_accountant_is_unknown(token: Token[ZCDP]) -> None:
    other = CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
    with pytest.raises(TokenError, match="was never issued here"):
        other.issuer.record_spend(token, SPEND, SPEND.loss(Adjacency.REPLACE_ONE))
    with pytest.raises(TokenError, match="was never issued here"):
        other.issuer.record_retire(token, "unused", None)
    assert len(other.ledger.entries) == 1


def test_a_smuggled_second_token_object_is_refused_by_the_ledger(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    """Two objects, one token: what counts is the ledger's state, not the object's flag."""
    twin = mint_token(accountant.issuer, token.id, ZCDP(1), USERS, "twin")
    token.spend(SPEND)
    with pytest.raises(TokenSpentError, match="was spent before: it stays charged"):
        twin.spend(SPEND)
    assert spends(accountant) == 1


def test_a_smuggled_token_cannot_hold_more_or_reach_further(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    rich = mint_token(accountant.issuer, token.id, ZCDP(1), USERS, "rich")
    with pytest.raises(LossExceedsTokenError, match="holds ZCDP"):
        rich.spend(Spend("probe", BALL, GaussianNoise(2.0)))
    wide = mint_token(accountant.issuer, token.id, ZCDP("0.1"), range(20), "wide")
    with pytest.raises(TokenError, match="was issued for users"):
        wide.spend(SPEND)
    assert spends(accountant) == 0


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tokens_and_receipts_cannot_be_copied(
    token: Token[ZCDP], copier: Callable[[object], object]
) -> None:
    with pytest.raises(TokenCopyError, match="a token cannot be copied or pickled"):
        copier(token)
    receipt = token.spend(SPEND)
    with pytest.raises(TokenCopyError, match="a receipt cannot be copied or pickled"):
        copier(receipt)


@pytest.mark.parametrize("name", ["budget", "users", "id", "label", "adjacency"])
def test_what_a_token_allows_cannot_be_changed(token: Token[ZCDP], name: str) -> None:
    with pytest.raises(AttributeError, match="cannot assign to field"):
        setattr(token, name, ZCDP(1))


def test_tokens_receipts_and_released_values_cannot_be_forged(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    forged: list[Callable[[], object]] = [
        lambda: Token(object(), accountant, "x", ZCDP(1), USERS, ""),  # type: ignore[arg-type]
        lambda: Receipt(object(), accountant, token, SPEND, None),  # type: ignore[arg-type]
        lambda: Released(object(), np.zeros(2), token.id, ""),  # type: ignore[arg-type]
    ]
    for make in forged:
        with pytest.raises(TypeError, match=r"are made by|come out of"):
            make()
    with pytest.raises(TypeError, match="must be a currency"):
        mint_token(accountant.issuer, "x", 0.1, USERS, "")  # type: ignore[type-var]


def test_a_released_value_is_read_only(token: Token[ZCDP]) -> None:
    value = np.zeros(2)
    receipt = token.spend(SPEND)
    receipt.draw((2,))
    released = receipt.release(value)
    value[0] = 7
    assert released.value.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        released.value[0] = 1
    with pytest.raises(AttributeError, match=r"cannot assign to field"):
        released.value = value  # type: ignore[misc]


def in_child(act: Callable[[], object]) -> str:
    """The name of the error that ``act`` raises in a forked child, or 'none'."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            name = "none"
        except BaseException as error:
            name = type(error).__name__
        os.write(write, name.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


@fork
@may_fork
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_forked_child_can_spend_nothing(kind: str, tmp_path: Any) -> None:
    book = Ledger.memory() if kind == "memory" else Ledger.create(tmp_path / "ledger.db")
    accountant = CentralAccountant(
        ZCDP(1), users=USERS, ledger=book, noise=NoiseSource.simulation(0)
    )
    unspent = accountant.issue(ZCDP("0.1"), users=USERS, label="unspent")
    receipt = accountant.issue(ZCDP("0.1"), users=USERS, label="open").spend(SPEND)
    before, pool = len(book.entries), accountant.noise.pool()
    acts: list[Callable[[], object]] = [
        lambda: unspent.spend(SPEND),
        unspent.retire,
        lambda: receipt.open(rows()),
        lambda: receipt.draw((2,)),
        lambda: receipt.publish(np.zeros(2)),
        receipt.close,
        lambda: accountant.issue(ZCDP("0.1"), users=USERS, label="child"),
        lambda: pool.floors("normal", 1),
        accountant.close,
    ]
    assert [in_child(act) for act in acts] == ["TokenCopyError"] * len(acts)
    assert in_child(lambda: 0) == "none"
    assert len(book.entries) == before
    if book.path is not None:
        assert len(Ledger.open(book.path).entries) == before
    NoisySum(BALL, GaussianNoise(10.0)).release(rows(), unspent)  # the parent still can
    receipt.release(opened(receipt, rows()).sum(axis=0) + receipt.draw((2,)))


def race(spend: Callable[[], object], threads: int = 16) -> list[str]:
    """What each of many threads gets that start at the same moment."""
    barrier, results = threading.Barrier(threads), list[str]()

    def run() -> None:
        barrier.wait()
        try:
            spend()
            results.append("spent")
        except TokenSpentError:
            results.append("refused")

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(results)


def test_of_many_threads_exactly_one_spends_a_token(accountant: CentralAccountant[ZCDP]) -> None:
    small = Spend("probe", BALL, GaussianNoise(20.0))
    for trial in range(10):
        token = accountant.issue(ZCDP("0.05"), users=USERS, label=f"trial {trial}")
        assert race(partial(token.spend, small)) == ["refused"] * 15 + ["spent"]
    assert spends(accountant) == 10


def test_of_many_threads_exactly_one_opens_the_same_users(
    accountant: CentralAccountant[ZCDP],
) -> None:
    interval, results = sys.getswitchinterval(), list[list[str]]()
    sys.setswitchinterval(1e-6)
    try:
        for trial in range(40):
            token = accountant.issue(
                SPEND.loss(accountant.adjacency), users=USERS, label=str(trial)
            )
            receipt, shared = token.spend(SPEND), rows()

            def opens(receipt: Receipt = receipt, shared: Rows[Any] = shared) -> None:
                try:
                    opened(receipt, shared)
                except UsersError:
                    raise TokenSpentError from None

            results.append(race(opens))
    finally:
        sys.setswitchinterval(interval)
    assert results == [["refused"] * 15 + ["spent"]] * 40


def test_the_race_is_real_for_a_flag_without_a_lock() -> None:
    """The planted defect: a token that looks at its flag and sets it in two steps."""
    used, gate = [False], threading.Barrier(16)

    def careless() -> None:
        if used[0]:
            raise TokenSpentError
        gate.wait()
        used[0] = True

    assert race(careless).count("spent") > 1


def test_threads_cannot_overdraw_the_cap(accountant: CentralAccountant[ZCDP]) -> None:
    def draw() -> None:
        try:
            accountant.issue(ZCDP("0.1"), users=USERS, label="part").spend(SPEND)
        except ValueError:
            raise TokenSpentError from None

    assert race(draw, 32).count("spent") <= 50  # SPEND costs 0.02
    assert ZCDP(1).covers(accountant.spent())


def test_a_loss_beyond_the_token_is_refused_and_the_token_is_still_good(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    with pytest.raises(LossExceedsTokenError, match=r"costs ZCDP\('2'\), the token 'probe' holds"):
        token.spend(Spend("probe", BALL, GaussianNoise(1.0)))
    with pytest.raises(LossExceedsTokenError, match="costs"):
        token.spend(Spend("probe", Ball(3.0, 2), GaussianNoise(10.0)))
    assert spends(accountant) == 0
    receipt = token.spend(SPEND)
    receipt.release(receipt.draw((2,)))
    assert accountant.spent() == ZCDP("0.02")  # (2/10)²/2, the rest of the 0.1 is free again


def test_a_loss_without_a_price_in_the_tokens_currency_is_refused() -> None:
    accountant = CentralAccountant(GaussianDP(1), users=USERS, noise=NoiseSource.simulation(0))
    token = accountant.issue(GaussianDP(1), users=USERS, label="probe")
    with pytest.raises(CurrencyError, match="not dominated by a Gaussian"):
        token.spend(Spend("box", BALL, GaussianNoise(1.0), own_loss=ZCDPLoss("0.1")))
    with pytest.raises(CurrencyError, match="not dominated by a Gaussian"):
        accountant.issue(ZCDPLoss(1), users=USERS, label="probe")
    assert spends(accountant) == 0


def test_a_spend_that_the_ledger_cannot_write_leaves_the_token_unspent(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(accountant.ledger, "append", full)
    with pytest.raises(OSError, match="disk full"):
        token.spend(SPEND)
    monkeypatch.undo()
    assert spends(accountant) == 0
    token.spend(SPEND)
    assert spends(accountant) == 1


def test_users_are_opened_in_order_each_once_and_none_outside() -> None:
    accountant = CentralAccountant(ZCDP(1), users=range(100), noise=NoiseSource.simulation(0))
    receipt = accountant.issue(ZCDP("0.1"), users=range(10, 20), label="probe").spend(SPEND)
    for outside in (range(5, 12), range(0, 5), range(15, 21), range(30, 31)):
        with pytest.raises(UsersError, match=r"10..19 are left, in order, each once"):
            opened(receipt, rows(outside))
    assert opened(receipt, rows(range(10, 13))).shape == (3, 2)
    for repeated in (range(10, 13), range(12, 14)):
        with pytest.raises(UsersError, match=r"13..19 are left"):
            opened(receipt, rows(repeated))
    opened(receipt, rows(range(15, 20)))
    with pytest.raises(UsersError, match="cannot be opened"):
        opened(receipt, rows(range(13, 15)))  # passed over: out of order


def test_nothing_opens_draws_or_leaves_after_the_close(token: Token[ZCDP]) -> None:
    receipt = token.spend(SPEND)
    receipt.release(receipt.draw((2,)))
    assert receipt.closed
    late: list[Callable[[], object]] = [
        lambda: receipt.open(rows()),
        lambda: receipt.draw((2,)),
        lambda: receipt.publish(np.zeros(2)),
        lambda: receipt.release(np.zeros(2)),
        receipt.close,
    ]
    for act in late:
        with pytest.raises(TokenSpentError, match="'probe' is closed"):
            act()


def test_nothing_leaves_after_the_accountant_has_closed_the_account(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    """The ledger then says that the outcome is lost; a release would contradict it."""
    receipt = token.spend(SPEND)
    accountant.close()
    late: list[Callable[[], object]] = [
        lambda: receipt.open(rows()),
        lambda: receipt.draw((2,)),
        lambda: receipt.publish(np.zeros(2)),
        receipt.close,
    ]
    for act in late:
        with pytest.raises((TokenSpentError, RuntimeError), match="closed"):
            act()


def test_an_interrupt_from_outside_ends_the_token_as_lost_and_charged(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    receipt = token.spend(SPEND)

    def interrupted() -> None:
        with receipt:
            receipt.open(rows())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert last_outcome(accountant) == "lost"
    assert accountant.spent() == ZCDP("0.02")
    with pytest.raises(TokenSpentError, match="is closed"):
        receipt.draw((2,))
    with pytest.raises(TokenSpentError, match="was spent"):
        token.spend(SPEND)


def _raises_at_zero(receipt: Receipt, sealed: Rows[Any]) -> None:
    with receipt:
        if (total := receipt.open(sealed).sum()) == 0:
            raise ValueError("nothing to release")
        receipt.release(total + receipt.draw((2,)))


def _leaves_at_zero(receipt: Receipt, sealed: Rows[Any]) -> None:
    with receipt:
        if (total := receipt.open(sealed).sum()) != 0:
            receipt.release(total + receipt.draw((2,)))


def _closes_at_zero(receipt: Receipt, sealed: Rows[Any]) -> None:
    with receipt:
        if (total := receipt.open(sealed).sum()) == 0:
            receipt.close()
        else:
            receipt.release(total + receipt.draw((2,)))


def _stream_raises_at_zero(receipt: Receipt, sealed: Rows[Any]) -> None:
    with receipt.round():
        if (total := receipt.open(sealed).sum()) == 0:
            raise ValueError("nothing to publish")
        receipt.publish(total + receipt.draw((2,)))
    receipt.close()


def _stream_closes_at_zero(receipt: Receipt, sealed: Rows[Any]) -> None:
    with receipt.round():
        if (total := receipt.open(sealed).sum()) == 0:
            receipt.close()
        else:
            receipt.publish(total + receipt.draw((2,)))
            receipt.close()


STREAMS = [_stream_raises_at_zero, _stream_closes_at_zero]


@pytest.mark.parametrize("run", [_raises_at_zero, _leaves_at_zero, _closes_at_zero, *STREAMS])
def test_a_failure_after_rows_were_opened_is_not_taken_for_a_loss(
    accountant: CentralAccountant[ZCDP], run: Callable[[Receipt, Rows[Any]], None]
) -> None:
    """A mechanism that stops when its sum is 0 would write one bit of data into the ledger."""
    spend = replace(SPEND, interactive=run in STREAMS)
    outcomes = []
    for value in (1.0, 0.0):
        token = accountant.issue(ZCDP("0.02"), users=range(1), label="gate")
        with suppress(ValueError):
            run(token.spend(spend), Rows.seal(np.array([[value, 0.0]]), users=range(1)))
        outcomes.append(last_outcome(accountant))
    assert outcomes == ["released", "uncovered"]
    (problem,) = accountant.certificate().problems
    assert "(gate): its mechanism stopped after it had opened rows" in problem


@pytest.mark.parametrize("error", [ValueError, SystemExit, MemoryError])
def test_an_error_before_rows_were_opened_or_in_the_receipts_own_sum_is_a_loss(
    accountant: CentralAccountant[ZCDP], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def early(receipt: Receipt) -> None:
        with receipt:
            receipt.draw((2,))
            raise error

    def within(receipt: Receipt) -> None:
        with receipt:
            receipt.release_sum(rows())

    def fails(*_: object) -> None:
        raise error

    for run, spend in ((early, SPEND), (within, replace(SPEND, arithmetic="sum"))):
        receipt = accountant.issue(ZCDP("0.02"), users=USERS, label="early").spend(spend)
        with monkeypatch.context() as broken:
            if run is within:
                broken.setattr(GaussianNoise, "draw", fails)
            with pytest.raises(error):
                run(receipt)
        assert last_outcome(accountant) == "lost"
    assert not accountant.certificate().problems


def test_rows_are_opened_only_where_a_failure_would_be_seen(token: Token[ZCDP]) -> None:
    receipt = token.spend(SPEND)
    with pytest.raises(TokenError, match=r"inside `with token.spend\(\.\.\.\) as receipt:`"):
        receipt.open(rows())
    with receipt:
        receipt.release(receipt.open(rows()).sum(axis=0) + receipt.draw((2,)))


def test_an_abandoned_stream_is_lost(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    receipt = token.spend(replace(SPEND, interactive=True))
    with receipt.round():
        receipt.open(rows())
    receipt.abandon()
    receipt.abandon()
    assert last_outcome(accountant) == "lost"


def test_leaving_without_a_release_is_lost_as_well(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    with token.spend(SPEND):
        pass
    assert last_outcome(accountant) == "lost"
    assert accountant.spent() == ZCDP("0.02")


@pytest.mark.parametrize("trust", ["central", "joint"])
def test_rows_that_cannot_be_opened_spend_nothing(trust: str) -> None:
    make = CentralAccountant if trust == "central" else JointAccountant
    accountant = make(ZCDP(1), users=range(20), noise=NoiseSource.simulation(0))
    token = accountant.issue(ZCDP("0.1"), users=USERS, label="probe")
    mechanism = NoisySum(BALL, GaussianNoise(10.0))
    with pytest.raises(UsersError, match="cannot be opened"):
        mechanism.release(rows(range(5, 15)), token)
    with pytest.raises(TypeError, match="rows: must be Rows"):
        mechanism.release(np.ones((10, 2)), token)  # type: ignore[arg-type]
    if trust == "joint":
        with pytest.raises(ProvenanceError, match="served by this accountant's billboard"):
            mechanism.release(rows(), token)
    assert not any(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)
    board = Billboard(accountant, range(20))
    served = board.serve(rows(), lambda own: own).deliver(lambda own, _: own)
    mechanism.release(served, token)


def test_a_joint_accountant_refuses_logged_rows_and_rows_of_another_board() -> None:
    accountants = [
        JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(k)) for k in (0, 1)
    ]
    theirs = Billboard(accountants[1], USERS).serve(rows(), lambda own: own)
    foreign = theirs.deliver(lambda own, _: own)
    receipt = accountants[0].issue(ZCDP("0.1"), users=USERS, label="probe").spend(SPEND)
    for refused in (rows(), foreign, foreign.map(lambda own: own)):
        with pytest.raises(ProvenanceError, match="a joint guarantee needs rows served by this"):
            opened(receipt, refused)
    ours = Billboard(accountants[0], USERS).serve(rows(), lambda own: own)
    assert opened(receipt, ours.deliver(lambda own, _: own)).shape == (10, 2)


def test_rows_come_out_clipped_whatever_went_in(token: Token[ZCDP]) -> None:
    data = np.array([[3.0, 4.0], [np.nan, 0], [np.inf, 0], [1e308, 1e308], [0.3, 0.4]])
    values = opened(token.spend(SPEND), Rows.seal(data, users=range(5)))
    assert np.linalg.norm(values, axis=1).max() <= 1.0
    expected = np.array([[0.6, 0.8], [0, 0], [0, 0], [0.5**0.5] * 2, [0.3, 0.4]])
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_a_failing_clip_of_a_third_party_makes_null_rows_one_by_one() -> None:
    class Picky:
        size = 1

        def clip(self, block: Any) -> Any:
            if (block == 3).any():
                raise ValueError("three")
            return np.clip(block, -1, 1)

        def null(self) -> Any:
            return np.zeros(1)

        def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
            return 2.0

        def decode(self, total: Any) -> Any:
            return total

        def to_dict(self) -> dict[str, Any]:
            return {"kind": "picky"}

    accountant = CentralAccountant(ZCDP(1), users=range(5), noise=NoiseSource.simulation(0))
    token = accountant.issue(ZCDP(1), users=range(5), label="picky")
    noise = GaussianNoise(10.0)
    own = noise.loss(2.0, Adjacency.REPLACE_ONE)
    receipt = token.spend(Spend("picky", Picky(), noise, own_loss=own))
    values = opened(receipt, Rows.seal(np.arange(5.0)[:, None], users=range(5)))
    assert values.ravel().tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("gain", [0.0, -1.0, float("nan"), float("inf")])
def test_a_spend_states_a_positive_finite_gain(gain: float) -> None:
    with pytest.raises(ValueError, match=r"gain = .*must be"):
        Spend("probe", BALL, GaussianNoise(1.0), gain=gain)
    with pytest.raises(ValueError, match="must name the mechanism"):
        Spend("", BALL, GaussianNoise(1.0))


def test_a_larger_gain_costs_its_square() -> None:
    one = Spend("probe", BALL, GaussianNoise(10.0)).loss(Adjacency.REPLACE_ONE)
    two = Spend("probe", BALL, GaussianNoise(10.0), gain=2.0)
    assert two.loss(Adjacency.REPLACE_ONE).zcdp() == 4 * (one.zcdp() or 0)
    assert two.derived


class Like:
    """Somebody's domain or noise that passes for another one: all but what it does is of that."""

    def __init__(self, of: Any, **does: Any) -> None:
        self._of, self._does = of, does

    def __getattr__(self, name: str) -> Any:
        return self._does.get(name) or getattr(self._of, name)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self._of)


def test_what_says_that_it_equals_a_shipped_one_is_not_shipped() -> None:
    """An audit must not take it for what anybody can rebuild."""
    faint = Like(LaplaceNoise(1.0), draw=lambda source, shape: np.zeros(shape))
    wide = Like(BALL, clip=lambda block: 100 * np.asarray(block))
    assert Spend("probe", BALL, LaplaceNoise(1.0)).derived
    for domain, noise in ((BALL, faint), (wide, LaplaceNoise(1.0))):
        accountant = CentralAccountant(PureDP(9), users=USERS, noise=NoiseSource.simulation(0))
        made: Any = NoisySum(domain, noise)
        accountant.commit(made=made)
        accountant.release("made", rows())
        trusted = accountant.certificate().trusted_code
        assert "laplace-sum: its loss, or its domain's or noise's, is its code's word" in trusted
    with pytest.raises(TypeError, match="must be a shipped domain"):
        OneOf(cast(Any, wide), 2)


def test_a_grid_is_a_grid() -> None:
    """Another class might clip in steps that are not those of the noise."""
    noise = GaussianNoise(10.0)

    class Finer:
        scale, bits, step = noise.unit, 30, 1e-18

    for grid in (Finer(), Finer, {"scale": 10.0, "bits": 30}):
        with pytest.raises(TypeError, match="must be a Grid"):
            Spend("probe", BALL, noise, grid=cast(Any, grid))


def test_somebodys_domain_that_fails_on_rows_leaves_the_token_uncovered(
    accountant: CentralAccountant[ZCDP], token: Token[ZCDP]
) -> None:
    """Where the receipt adds up itself, as well: that it failed may depend on the rows."""

    class Failing:
        size = 2

        def __init__(self) -> None:
            self.null, self.decode, self.to_dict = BALL.null, BALL.decode, lambda: {"kind": "own"}
            self.sensitivity, self.integer_bound = BALL.sensitivity, BALL.integer_bound
            self.clip, self.asked = BALL.clip, 0

        def integers(self, block: Any, grid: Grid) -> Any:
            if (block == 7).any():
                raise ValueError("7")
            return BALL.integers(block, grid)

        def null_integers(self, grid: Grid) -> Any:
            self.asked += 1
            if self.asked > 2:  # the mechanism and the spend ask for it, and then rows do
                raise RuntimeError("asked for too often")
            return BALL.null_integers(grid)

    mechanism = NoisySum(Failing(), GaussianNoise(10.0))
    values = np.ones((len(USERS), 2))
    values[3] = 7
    with pytest.raises(RuntimeError, match="too often"):
        mechanism.release(Rows.seal(values, users=USERS), token)
    assert last_outcome(accountant) == "uncovered"
