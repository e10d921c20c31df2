"""The billboard: paid values up, each user served once, in order, from public state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.contract.billboard import Billboard
from privlearn.errors import ForeignTokenError, ProvenanceError, UsersError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows, Source
from privlearn.rows.domains import Ball

Array = NDArray[np.float64]
USERS = range(6)


@pytest.fixture
def accountant() -> JointAccountant[ZCDP]:
    return JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))


@pytest.fixture
def board(accountant: JointAccountant[ZCDP]) -> Billboard:
    return Billboard(accountant, USERS)


def own(users: range) -> Rows[Array]:
    return Rows.seal(np.arange(6.0)[users.start : users.stop, None], users=users)


def answers(board: Billboard, users: range) -> Rows[Array]:
    return board.serve(own(users), lambda block: block).deliver(lambda block, _: block)


def test_only_released_values_of_this_accountant_can_be_posted(
    accountant: JointAccountant[ZCDP], board: Billboard
) -> None:
    for unpaid in (np.zeros(1), 3.0, own(USERS)):
        with pytest.raises(TypeError, match="only released values can be posted"):
            board.post("sum", unpaid)  # type: ignore[arg-type]
    other = JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
    mechanism = NoisySum(Ball(1.0, 1), GaussianNoise(10.0))

    def paid(payer: JointAccountant[ZCDP], where: Billboard) -> Any:
        token = payer.issue(mechanism.loss(), users=USERS, label="sum")
        return mechanism.release(answers(where, USERS), token)

    with pytest.raises(ForeignTokenError, match="another accountant"):
        board.post("sum", paid(other, Billboard(other, USERS)))
    assert len(board) == 0
    released = paid(accountant, board)
    value = board.post("sum", released)
    assert board["sum"] is value is released.value
    assert list(board) == ["sum"]
    (entry,) = board.history()
    assert (entry["name"], entry["at"]) == ("sum", 6)
    assert (entry["paid_by"], entry["digest"]) == (released.paid_by, released.digest)


def test_users_are_served_once_and_in_order(board: Billboard) -> None:
    board.serve(own(range(0, 2)), lambda block: block)
    for wrong in (range(0, 2), range(1, 3), range(3, 5)):
        with pytest.raises(UsersError, match="the next is 2"):
            board.serve(own(wrong), lambda block: block)
    assert board.clock == 2
    board.skip(range(2, 4))
    with pytest.raises(UsersError, match="the next is 4"):
        board.skip(range(4, 9))
    board.serve(own(range(4, 6)), lambda block: block)
    assert board.clock == 6


@pytest.mark.parametrize("bad", [range(0, 4, 2), range(0), range(-1, 2)])
def test_a_skip_of_something_else_than_the_next_users_stops_no_clock(
    board: Billboard, bad: range
) -> None:
    with pytest.raises(ValueError, match=r"must be a non-empty range|cannot be served"):
        board.skip(bad)
    assert board.clock == 0


def test_skipped_users_enter_as_null_rows(
    accountant: JointAccountant[ZCDP], board: Billboard
) -> None:
    parts = [answers(board, range(0, 2)), board.skip(range(2, 3)), answers(board, range(3, 6))]
    together = Rows.concat(parts)
    assert together.source is Source.SERVED
    mechanism = NoisySum(Ball(9.0, 1), GaussianNoise(1e-6))
    big = JointAccountant(ZCDP("1e30"), users=USERS, noise=NoiseSource.simulation(0))
    board = Billboard(big, USERS)
    parts = [answers(board, range(0, 2)), board.skip(range(2, 3)), answers(board, range(3, 6))]
    token = big.issue(mechanism.loss(), users=USERS, label="sum")
    total = mechanism.release(Rows.concat(parts), token).value
    np.testing.assert_allclose(total, [0 + 1 + 3 + 4 + 5], atol=1e-4)


def test_an_action_is_revealed_to_one_user_at_a_time(board: Billboard) -> None:
    shown = board.serve(own(range(0, 1)), lambda block: 10 * block + 1)
    assert shown.reveal() == 1.0
    two = board.serve(own(range(1, 3)), lambda block: block)
    with pytest.raises(UsersError, match="an action is revealed to one user at a time"):
        two.reveal()


def test_a_policy_that_fails_on_a_user_serves_the_others_and_the_clock_goes_on(
    board: Billboard,
) -> None:
    def picky(block: Array) -> Array:
        if (block == 1).any():
            raise ValueError("one")
        return block

    alone = board.serve(own(range(0, 1)), picky)
    assert alone.reveal() == 0.0
    assert board.serve(own(range(1, 2)), picky).reveal() is None
    assert board.clock == 2


def test_the_policy_sees_public_state_and_each_row_by_itself(board: Billboard) -> None:
    """What user 2 gets does not depend on the other rows of the block."""
    first = Billboard(board.accountant, USERS)
    changed = np.arange(6.0)[:, None]
    changed[0] = 99.0

    def act(which: Billboard, data: Array) -> Any:
        shown = which.serve(Rows.seal(data, users=USERS), lambda block: block**2)
        answered = shown.deliver(lambda block, action: action)
        return answered.slice(range(2, 3))

    a, b = act(board, np.arange(6.0)[:, None]), act(first, changed)
    chunk_a, chunk_b = (np.asarray(Rows._unseal(rows)[0].block) for rows in (a, b))
    assert np.array_equal(chunk_a, chunk_b)


# Whose arrays they are, and who may see an action ------------------------------------------------


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_action_is_revealed_under_a_joint_guarantee_alone(trust: str) -> None:
    """The defect: raw rows came out under central trust, and nothing was spent."""
    kind: Any = CentralAccountant if trust == "central" else LocalAccountant
    accountant = kind(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
    for issuer in (accountant, accountant.delegate(ZCDP("0.5"), users=USERS, label="part")):
        shown = Billboard(issuer, USERS).serve(own(range(0, 1)), lambda block: block)
        with pytest.raises(ProvenanceError, match=rf"trust = {trust}: .*JointAccountant, or"):
            shown.reveal()
        assert shown.deliver(lambda block, _: block).users == range(0, 1)
    assert accountant.spent() == ZCDP("0.5")


def sums(rows: Rows[Array]) -> Array:
    """What a mechanism sees, nearly without noise."""
    accountant = rows_accountant(rows)
    mechanism = NoisySum(Ball(1e3, 1), GaussianNoise(1e-6))
    token = accountant.issue(mechanism.loss(), users=rows.users, label="sum")
    return mechanism.release(rows, token).value


def rows_accountant(rows: Rows[Array]) -> Any:
    board: Any = Rows._board_of(rows)
    return board.accountant


def rich_board() -> Billboard:
    rich = JointAccountant(ZCDP("1e30"), users=USERS, noise=NoiseSource.simulation(0))
    return Billboard(rich, USERS)


def test_what_was_revealed_can_be_written_to_and_changes_no_record() -> None:
    shown = rich_board().serve(own(range(0, 1)), lambda block: block[:, None] + 1)
    action: Any = shown.reveal()
    action[...] = 99.0
    answered = shown.deliver(lambda _, action: action[:, 0])
    np.testing.assert_allclose(sums(answered), [1.0], atol=1e-4)


def test_the_users_side_may_write_to_all_it_gets_and_gave() -> None:
    board, kept = rich_board(), list[Any]()

    def environment(rows: Array, action: Array) -> Array:
        answer = rows + action
        kept.extend([rows, action, answer])
        return answer

    shown = board.serve(own(USERS), lambda block: block)
    answered = shown.deliver(environment)
    for array in kept:
        array[...] = 99.0
    again = shown.deliver(lambda rows, action: rows + action)
    for each in (answered, again):
        np.testing.assert_allclose(sums(each), [30.0], atol=1e-4)


def test_an_answer_in_the_same_array_every_time_is_each_users_own() -> None:
    board, reused = rich_board(), np.zeros((1, 1))
    answered = []
    for t in USERS:
        reused[...] = t
        answered.append(board.serve(own(range(t, t + 1)), lambda x: x).deliver(lambda *_: reused))
    np.testing.assert_allclose(sums(Rows.concat(answered)), [15.0], atol=1e-4)


def test_the_history_is_not_changed_through_what_it_gave() -> None:
    board = rich_board()
    answered = board.serve(own(USERS), lambda block: block).deliver(lambda block, _: block)
    mechanism = NoisySum(Ball(1e3, 1), GaussianNoise(1e-6))
    token = rows_accountant(answered).issue(mechanism.loss(), users=USERS, label="sum")
    value = board.post("sum", mechanism.release(answered, token)).tolist()
    board.history()[0]["value"][0] = 99.0
    assert board.history()[0]["value"] == value
    with pytest.raises(ValueError, match="read-only"):
        board["sum"][0] = 99.0
