"""Rows on a timetable: any number of visits in a slot, and nothing that tells how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.contract.tokens import Token
from privlearn.errors import (
    BudgetError,
    ProvenanceError,
    RowLocalityError,
    UsersError,
)
from privlearn.losses import GaussianLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import CrossPolytope, NoisySum, OneOfK, PrefixSum, ReportNoisyMax
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows, merge
from privlearn.rows.clipping import Clipping
from privlearn.rows.domains import Ball, Box, PSDTrace
from privlearn.rows.functions import NOT_NAMED, RowFunction
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.participation import Participation

N = 12
BATCH = range(6)
Block = NDArray[Any]
Account = CentralAccountant[ZCDP]


def registry(rule: Participation, stop: int = N) -> People:
    people = People.memory(rule)
    people.bind("account", range(stop))
    if rule.batched:
        people.divide([0, 6])
    return people


def timed(most: int = 3, **rule: Any) -> Participation:
    return Participation(most, clock="timetable", **rule)


def sealed(values: Any, users: range, slots: Any) -> Rows[Any]:
    block = np.asarray(values, dtype=float)
    return Rows.seal(block.reshape(len(slots), -1 if block.size else 1), users=users, slots=slots)


def opened(rows: Rows[Any]) -> list[Any]:
    """All records, None for null ones."""
    found: list[Any] = []
    for chunk in Rows._unseal(rows):
        for i, real in enumerate(chunk.valid):
            found.append(np.asarray(chunk.block)[i].tolist() if real else None)
    return found


def noisy_sum(budget: str = "1/4", domain: Any = None) -> NoisySum[Any]:
    ball: Any = Ball(1.0, 2) if domain is None else domain
    return NoisySum.calibrated(ball, ZCDP(budget), adjacency=Adjacency.ZERO_OUT)


def account(**rule: Any) -> tuple[Account, People]:
    people = People.memory(timed(**{"most": 1, **rule}))
    noise = NoiseSource.simulation(0)
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=noise, people=people)
    if people.rule.batched:
        made.divide([0, 6])
    return made, people


def token_of(made: Account, mechanism: Any, users: range = BATCH) -> Token[Any]:
    return made.issue(mechanism.loss(), users=users, label="sum")


# Sealing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slots",
    [
        [3, 2],
        np.array([5, 3], dtype=np.uint64),  # whose difference is a large number, not a negative one
        np.array([2, 200, 3], dtype=np.uint8),
        [-1, 2],
        [2, 6],
        [1.0, 2.0],
        [True, True],
        [[1], [2]],
        [[1], [1, 2]],
        ["1", "2"],
        2,
        [2**70, 2**70],
    ],
    ids=str,
)
def test_slots_ascend_within_the_users(slots: Any) -> None:
    n = len(slots) if isinstance(slots, list | np.ndarray) else 1
    with pytest.raises(UsersError, match="ascend within"):
        Rows.seal(np.zeros((n, 1)), users=range(6), slots=slots)


def test_no_message_says_how_many_came() -> None:
    people = registry(timed())
    texts = set()
    for n in (0, 1, 7):
        with pytest.raises(UsersError) as caught:
            Rows.seal(np.zeros((n + 1, 1)), users=range(6), slots=np.zeros(n, dtype=int))
        texts.add(str(caught.value))
        with pytest.raises(UsersError) as caught:
            people.admit_visits(["a"] * (n + 1), range(6), [0] * n)
        texts.add(str(caught.value))
    assert len(texts) == 2
    assert people.clock == 0


def test_lengths_and_names_are_those_of_slots() -> None:
    for n in (0, 1, 9):
        rows = sealed(np.ones(n), range(2, 6), np.full(n, 3))
        assert len(rows) == 4
        assert repr(rows) == "Rows(users=2..5, logged, sealed)"
    shown = registry(timed(), 6)
    assert repr(shown.admit_visits(["a"] * 5, range(4), [0, 1, 1, 1, 2])) == (
        "Admission(users=0..3, sealed)"
    )


def test_nobody_may_come() -> None:
    people = registry(timed(pooled=True))
    rows = people.admit(sealed([], range(6), []), [])
    for each in (rows, rows.map(np.square), rows.map_rows(np.square), rows.slice(range(2, 4))):
        assert opened(each) == []
    assert opened(rows.pool(np.sum)) == []
    assert opened(Rows.concat([rows, Rows.null(range(6, 7))])) == []
    assert noisy_sum().partial(rows).count == 6


# Parts --------------------------------------------------------------------------------------------


def test_parts_hold_the_visits_of_their_slots() -> None:
    rows = sealed(np.arange(7), range(1, 6), [1, 1, 3, 3, 3, 5, 5])
    expected = {1: [0, 1], 2: [], 3: [2, 3, 4], 4: [], 5: [5, 6]}
    for a in range(1, 6):
        for b in range(a + 1, 7):
            wanted = [[float(v)] for s in range(a, b) for v in expected[s]]
            assert opened(rows.slice(range(a, b))) == wanted
    cut = [rows.slice(range(a, a + 1)) for a in range(1, 6)]
    assert opened(Rows.concat(cut)) == [[float(v)] for v in range(7)]


def test_the_last_slot_goes_on_in_the_next_call() -> None:
    people = registry(timed(4))
    first = people.admit(sealed([1, 2], range(3), [0, 2]), ["a", "b"])
    more = people.admit(sealed([3, 4], range(2, 3), [2, 2]), ["b", "c"])
    last = people.admit(sealed([5, 6], range(2, 5), [2, 4]), ["d", "b"])
    rows = Rows.concat([first, more, last])
    assert rows.users == range(5)
    # b was learned in slot 2 before
    assert opened(rows) == [[1.0], [2.0], None, [4.0], [5.0], [6.0]]
    for again in (range(2, 5), range(3, 6), range(6, 7)):
        with pytest.raises(UsersError, match="next slot, 5"):
            people.admit(sealed([], again, []), [])
    assert people.clock == 5


def test_visits_cannot_be_joined_with_themselves() -> None:
    """One slot in two parts would otherwise let a visit stand in a sum twice."""
    people = registry(timed(4))
    first = people.admit(sealed([1, 2], range(3), [0, 2]), ["a", "b"])
    more = people.admit(sealed([3], range(2, 3), [2]), ["c"])
    nothing: Rows[Any] = Rows.null(range(2, 3))
    end, both = first.slice(range(2, 3)), Rows.concat([first, more])
    for parts in (
        [first, end],
        [end, end],
        [both, more],
        [both, both.slice(range(2, 3))],
        [more, end],
        [first, more, nothing, more],
        [first, more.map_rows(np.negative), more],
    ):
        with pytest.raises(UsersError, match="slot 2: the same visits"):
            Rows.concat(parts)
    assert opened(Rows.concat([both.slice(range(2)), both.slice(range(2, 3))])) == opened(both)
    # whether it is refused does not depend on whether anybody came
    empty = people.admit(sealed([], range(2, 4), []), [])
    with pytest.raises(UsersError, match="slot 3: the same visits"):
        Rows.concat([empty, empty.slice(range(3, 4))])


def test_pooled_rows_of_one_batch_are_not_joined() -> None:
    people = registry(timed(pooled=True), 12)
    rows = people.admit(sealed([1, 2], range(7), [0, 6]), ["a", "a"])
    more = people.admit(sealed([4], range(6, 7), [6]), ["a"])
    rest = people.admit(sealed([8], range(6, 12), [11]), ["a"])
    second = Rows.concat([rows.slice(range(6, 7)), more, rest]).pool(np.sum)
    assert opened(second)[0] == 14.0
    with pytest.raises(UsersError, match="whole batches"):
        Rows.concat([rows, more]).pool(np.sum)
    short = People.memory(timed(pooled=True))  # with batches of one slot
    short.bind("account", range(3))
    short.divide([0, 1, 2])
    parts = [short.admit(sealed([1], range(1), [0]), ["a"]).pool(np.sum) for _ in range(2)]
    with pytest.raises(ProvenanceError, match=r"slot 0.*pooled"):
        Rows.concat(parts)


def test_a_person_is_pooled_over_slots_and_calls() -> None:
    people = registry(timed(1, pooled=True))
    first = people.admit(sealed([1, 2, 4], range(3), [0, 2, 2]), ["a", "b", "a"])
    more = people.admit(sealed([8, 16, 32], range(2, 6), [2, 2, 5]), ["a", None, "b"])
    pooled = Rows.concat([first, more]).pool(np.sum)
    found = [r if r is None else float(np.sum(r)) for r in opened(pooled)]
    assert found == [1.0 + 4 + 8, 2.0 + 32, None, None, None, None]


# User code ----------------------------------------------------------------------------------------


def test_user_code_sees_one_visit_at_a_time() -> None:
    """The length of a block would tell how many came, in every row of it."""

    def shares(block: Block) -> Block:
        return np.asarray(block / len(block))

    people = registry(timed(9))
    rows = people.admit(sealed([3, 6, 9], range(4), [1, 1, 3]), list("abc"))
    assert opened(rows.map_rows(shares)) == [[3.0], [6.0], [9.0]]
    alone = registry(timed(9)).admit(sealed([6], range(4), [1]), ["b"])
    assert opened(alone.map_rows(shares)) == [[6.0]]


def test_a_function_that_remembers_is_found_out() -> None:
    seen: list[float] = []

    def remembers(block: Block) -> Block:
        seen.append(float(block[0, 0]))
        return np.asarray(block + len(seen))

    people = registry(timed(9))
    rows = people.admit(sealed([3, 6], range(4), [1, 1]), list("ab"))
    spoilt = rows.map_rows(remembers)
    with pytest.raises(RowLocalityError, match="remembers"):
        Rows._unseal(spoilt)
    for each in (spoilt.slice(range(2, 3)), Rows.concat([spoilt, Rows.null(range(4, 5))])):
        with pytest.raises(RowLocalityError):
            Rows._unseal(each)


def test_a_domain_of_ones_own_sees_one_visit_at_a_time() -> None:
    class Shares:
        """Whose clip divides by how many there are."""

        size = 2
        norm = "l2"

        def clip(self, block: Block) -> Block:
            return np.asarray(block / len(block))

    domain = Shares()
    clipping = Clipping(
        domain.clip, lambda: np.zeros(2), 2, 1, RowFunction(domain.clip, "clip", code=domain), False
    )
    people = registry(timed(9))
    rows = people.admit(sealed(np.ones((3, 2)), range(4), [1, 1, 3]), list("abc"))
    assert clipping.contributions(rows).tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("domain", "shape"),
    [
        (Ball(1.0, 15), (15,)),
        (Ball(1.0, 15, norm="l1"), (15,)),
        (Box(-1.0, 1.0, 7), (7,)),
        (PSDTrace(1.0, 12), (9, 12)),
    ],
    ids=str,
)
def test_our_own_clip_gives_the_same_bits_whoever_else_came(domain: Any, shape: Any) -> None:
    rng = np.random.default_rng(4)
    grid = noisy_sum(domain=domain).spend().grid
    for n in (1, 2, 3, 8, 17, 40, 65):
        block = rng.normal(size=(n, *shape)) * rng.choice([0.1, 1.0, 3.0], (n, *[1] * len(shape)))
        alone = [domain.integers(block[i : i + 1], grid) for i in range(n)]
        assert np.array_equal(domain.integers(block, grid), np.concatenate(alone))


# What is opened -----------------------------------------------------------------------------------


def test_all_visits_of_a_slot_are_added_up() -> None:
    made, people = account(most=2)
    mechanism = noisy_sum()
    rows = people.admit(
        sealed(np.tile([0.5, 0.0], (5, 1)), BATCH, [0, 0, 0, 4, 5]), ["a", "b", "a", "a", "a"]
    )
    total = mechanism.partial(rows)
    steps = type(total)._opened(total)
    grid = mechanism.spend().grid
    assert isinstance(grid, Grid)
    people.skip_to(6)
    # a: slots 0 and 4; b: slot 0
    assert grid.values(steps) == pytest.approx([1.5, 0.0])
    assert mechanism.release(rows, token_of(made, mechanism)).value.shape == (2,)


def test_the_ledger_does_not_tell_how_many_came() -> None:
    def told(n: int) -> list[Any]:
        made, people = account(most=2)
        mechanism = noisy_sum()
        values, slots = np.ones((n, 2)), np.sort(np.arange(n) % 5)
        rows = Rows[Any].null(BATCH)
        if n:
            rows = people.admit(sealed(values, BATCH, slots), list(range(n)))
            rows = rows.map_rows(lambda block: block * 2)
        people.skip_to(BATCH.stop)
        if n:  # somebody may have come since
            people.admit(sealed([1], range(5, 8), [7]), [0])
        mechanism.release(rows, token_of(made, mechanism))
        names = {"accountant", "token", "digest"}  # drawn, or of what was released
        return [
            [getattr(entry, "admitted", None), entry.model_dump(exclude=names)]
            for entry in made.ledger.entries[1:]
        ]

    assert [clock for clock, _ in told(0)] == [None, {"clock": 6}, None, None]
    assert told(0) == told(1) == told(60)
    assert NOT_NAMED in str(told(60))
    assert "lambda" not in str(told(60))


def test_rows_that_no_registry_admitted_are_refused_everywhere() -> None:
    rows = sealed(np.ones((3, 2)), BATCH, [0, 0, 5])
    plain: Account = CentralAccountant(
        ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0), adjacency=Adjacency.ZERO_OUT
    )
    mechanism = noisy_sum()
    token = token_of(plain, mechanism)
    with pytest.raises(ProvenanceError, match="timetable"):
        mechanism.release(rows, token)
    with pytest.raises(ProvenanceError, match="timetable"):
        mechanism.partial(rows)  # which would be one of six rows for anybody who takes it
    made, people = account()
    people.skip(BATCH)
    with pytest.raises(ProvenanceError, match=r"people\.admit"):
        mechanism.release(rows, token_of(made, mechanism))
    with pytest.raises(ProvenanceError, match="each visit says its slot"):
        people.admit(Rows.seal(np.ones((1, 2)), users=range(6, 7)), ["a"])
    arrivals = registry(Participation(2))
    with pytest.raises(ProvenanceError, match="none are given"):
        arrivals.admit(rows, list("abc"))
    assert arrivals.clock == 0


def test_sums_do_not_travel_and_are_of_whole_tokens() -> None:
    made, people = account()
    mechanism = noisy_sum()
    halves = [
        mechanism.partial(people.admit(sealed(np.ones((2, 2)), users, [users.start] * 2), ids))
        for users, ids in ((range(3), ["a", "b"]), (range(3, 6), ["a", "c"]))
    ]
    with pytest.raises(ProvenanceError, match="released where it is kept"):
        halves[0].to_bytes(bytes(32))
    token = token_of(made, mechanism)
    people.skip_to(6)
    with pytest.raises(UsersError, match="all slots of token"):
        mechanism.release_partial(halves[0], token)
    assert mechanism.release_partial(merge(*halves), token).value.shape == (2,)


def test_slots_are_over_and_opened_at_once() -> None:
    """Else the ranges that are opened, and when, would follow from who came last."""
    made, people = account()
    mechanism = noisy_sum()
    rows = people.admit(sealed(np.ones((1, 2)), range(4), [3]), ["a"])
    token = token_of(made, mechanism)
    with pytest.raises(UsersError, match="all slots of token"):
        mechanism.release(rows, token)
    with pytest.raises(UsersError, match="when its slots are over"):
        token.spend(mechanism.spend())
    people.skip(range(4, 6))
    rows = Rows.concat([rows, Rows.null(range(4, 6))])
    assert mechanism.release(rows, token).value.shape == (2,)


@pytest.mark.parametrize("last", [[], [5], [5, 5], [5, 6], [7]])
def test_that_slots_are_over_does_not_follow_from_who_came(last: list[int]) -> None:
    """A release that somebody's visit makes possible, or that fails without it, tells of it."""
    made, people = account(most=1)
    mechanism = noisy_sum()
    rows = people.admit(sealed(np.ones((1, 2)), range(4), [3]), ["a"])
    if last:
        people.admit(
            sealed(np.ones((len(last), 2)), range(4, last[-1] + 1), last), list("ppp")[: len(last)]
        )
    token = token_of(made, mechanism)
    rows = Rows.concat([rows, Rows.null(range(4, 6))])
    with pytest.raises(UsersError, match="when its slots are over") as caught:
        mechanism.release(rows, token)
    assert str(caught.value) == (
        "users = range(0, 6): on a timetable a token is spent when its slots are over; let time "
        "pass, people.skip_to(6), or skip of the billboard"
    )
    people.skip_to(6)
    assert people.passed == 6
    assert mechanism.release(rows, token).value.shape == (2,)


def test_what_does_not_add_up_is_refused_by_name_before_it_is_spent() -> None:
    made, people = account(most=1)
    rows = people.admit(sealed(np.ones((2, 2)) / 2, BATCH, [0, 0]), ["a", "b"])
    pick: Any = ReportNoisyMax(CrossPolytope(2), 1.0, 9.0, adjacency=Adjacency.ZERO_OUT)
    stream = PrefixSum.calibrated(
        Ball(1.0, 2), ZCDP("1/8"), horizon=6, adjacency=Adjacency.ZERO_OUT
    )
    with pytest.raises(ProvenanceError, match="noisy-max"):
        pick.release(rows, token_of(made, pick))
    with pytest.raises(ProvenanceError, match="prefix-sum"):
        stream.open(token_of(made, stream))
    arms: Any = OneOfK(pick, 2)
    with pytest.raises(ProvenanceError, match="one-of-k"):
        arms.release(
            rows.map_rows(lambda b: (b, np.zeros(len(b), dtype=int))), token_of(made, arms)
        )
    assert not [e for e in made.ledger.entries if e.entry == "spend"]


def test_sums_by_arm_add_up_on_a_timetable() -> None:
    made, people = account(most=1)
    rows = people.admit(sealed(np.eye(2)[[0, 0, 1]], BATCH, [0, 0, 5]), ["a", "b", "c"])
    arms = OneOfK.calibrated(Ball(1.0, 2), ZCDP("1/4"), arms=3, adjacency=Adjacency.ZERO_OUT)
    both = rows.map_rows(lambda block: (block, np.where(block[:, 0] > 0, 2, 1)))
    total = arms.partial(both)
    grid = arms.spend().grid
    assert grid is not None
    sums = grid.values(type(total)._opened(total)).reshape(3, 2)
    assert sums == pytest.approx(np.array([[0, 0], [0, 1], [2, 0]]))
    people.skip_to(6)
    assert arms.release(both, token_of(made, arms)).value.shape == (3, 2)


def test_a_domain_whose_null_is_not_zero_is_refused() -> None:
    """Who did not come adds nothing, and a null row would add that."""
    made, people = account(most=1)
    rows = people.admit(sealed(np.ones((2, 2)), BATCH, [0, 0]), ["a", "b"])
    mechanism = noisy_sum(domain=Box(0.5, 1.0, 2))
    with pytest.raises(ProvenanceError, match="not zero"):
        mechanism.release(rows, token_of(made, mechanism))
    fine = noisy_sum(domain=Box(-0.5, 1.0, 2))
    people.skip_to(6)
    assert fine.release(rows, token_of(made, fine)).value.shape == (2,)


def test_an_audit_finds_what_a_timetable_has_no_place_for() -> None:
    """The entries themselves are refused, whoever writes them."""
    made, people = account(most=1)
    people.skip(BATCH)
    stream = PrefixSum.calibrated(
        Ball(1.0, 2), ZCDP("1/8"), horizon=6, adjacency=Adjacency.ZERO_OUT
    )
    box = noisy_sum(domain=Box(0.5, 1.0, 2))
    cases: list[tuple[Any, str]] = [(stream, "are added up"), (box, "must be zero")]
    for mechanism, why in cases:
        token = token_of(made, mechanism)
        with pytest.raises(BudgetError, match=why):
            made.issuer.record_spend(token, mechanism.spend(), mechanism.loss())
        token.retire()


def test_local_messages_are_on_no_timetable() -> None:
    with pytest.raises(BudgetError, match="sees when a message comes"):
        LocalAccountant(
            PureDP(1),
            users=range(N),
            noise=NoiseSource.simulation(0),
            people=People.memory(timed()),
        )


# Forgetting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["arrivals", "timetable"])
def test_pending_rows_of_who_is_forgotten_are_null(clock: Any) -> None:
    people = registry(Participation(3, clock=clock))
    slots = None if clock == "arrivals" else np.arange(6)
    block = np.arange(6.0)[:, None]
    rows = people.admit(Rows.seal(block, users=BATCH, slots=slots), list("abcabc"))
    kept, part, later = rows.map_rows(np.negative), rows.slice(range(3, 5)), rows.map(np.square)
    before = noisy_sum(domain=Ball(9.0, 1)).partial(rows)
    people.forget("b")
    assert opened(rows) == [[0.0], None, [2.0], [3.0], None, [5.0]]
    assert opened(kept)[1] is opened(kept)[4] is None
    assert opened(part) == [[3.0], None]
    assert opened(Rows.concat([later.slice(range(3)), later.slice(range(3, 6))]))[1] is None
    assert opened(rows) == opened(rows.without_forgotten())
    sums = noisy_sum(domain=Ball(9.0, 1))
    grid = sums.spend().grid
    assert grid is not None
    left = sums.partial(rows)
    assert grid.values(type(left)._opened(left)) == pytest.approx([10.0])
    # a sum is one number, out of which nobody can be taken
    assert grid.values(type(before)._opened(before)) == pytest.approx([15.0])


def test_nobody_joins_what_a_forgotten_person_left() -> None:
    people = registry(Participation(2, pooled=True))
    rows = people.admit(Rows.seal(np.arange(1.0, 7.0)[:, None], users=BATCH), list("abcabc"))
    pooled = rows.pool(np.sum)
    people.forget("a")
    seen: list[float] = []

    def combine(block: Block) -> Block:
        seen.extend(block[:, 0])
        return np.asarray(block.sum())

    assert [r is None for r in opened(rows.pool(combine))] == [True, False, False, *[True] * 3]
    assert 1.0 not in seen
    assert 4.0 not in seen
    assert [r is None for r in opened(pooled)] == [True, False, False, *[True] * 3]


def test_what_is_without_forgotten_persons_holds_nothing_of_them() -> None:
    people = registry(Participation(3))
    rows = people.admit(Rows.seal(np.full((2, 1), 7.0), users=range(2)), ["a", "b"])
    people.forget("a")
    rows = rows.without_forgotten()
    held = rows._Rows__chunks  # type: ignore[attr-defined]
    assert [np.asarray(chunk.block).tolist() for chunk in held] == [[[0.0], [7.0]]]
    people.close()
    assert opened(rows) == [None, [7.0]]


def test_an_open_offer_of_who_is_forgotten_is_null() -> None:
    from privlearn.accountants import JointAccountant
    from privlearn.contract.billboard import Billboard

    people = People.memory(Participation(2))
    made = JointAccountant(
        ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0), people=people
    )
    board = Billboard(made, made.users)
    rows = Rows.seal(np.ones((2, 1)), users=range(2))
    shown = board.serve(rows, lambda block: block[:, 0], people=["a", "b"])
    people.forget("a")
    answers = shown.deliver(lambda own, act: own)
    assert opened(answers) == [None, [1.0]]


def test_a_loss_of_a_slot_is_that_of_one_visit() -> None:
    """What is charged: with at most one learned visit in a slot, as for arrivals."""
    made, _ = account(most=3, apart=2)
    loss = GaussianLoss("1/9", adjacency=Adjacency.ZERO_OUT)
    made.issue(loss, users=range(3), label="sum")  # room for two of them
    assert made.spent().rho == 4 * ZCDP("1/18").rho
