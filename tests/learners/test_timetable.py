"""Learners on a timetable, where a slot takes any number of visits; persons who are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choosing_users import DIM, N_ITEMS, SHOWN, Crowd, choose
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.contract.billboard import Billboard
from privlearn.errors import HorizonError, ProvenanceError, UsersError
from privlearn.learners import DPHDB, DPMNL, DPTOFW, OnePassNewtonMNL
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.participation import Clock, Participation

SLOTS = 20
POOLED = Participation(1, pooled=True, clock="timetable")
ONCE = Participation(1, clock="timetable")
Block = NDArray[Any]


def joint(rule: Participation, **how: Any) -> JointAccountant[ZCDP]:
    people = how.pop("people", None)
    people = People.memory(rule) if people is None else people
    return JointAccountant(
        ZCDP(1), users=range(SLOTS), noise=NoiseSource.simulation(0), people=people, **how
    )


def central(rule: Participation) -> CentralAccountant[ZCDP]:
    return CentralAccountant(
        ZCDP(1), users=range(SLOTS), noise=NoiseSource.simulation(0), people=People.memory(rule)
    )


def fresh(account: Any, **how: Any) -> OnePassNewtonMNL:
    learner = OnePassNewtonMNL(
        n_items=N_ITEMS, dim=DIM, max_items=SHOWN, first_batch=6, random_state=3, **how
    )
    return learner.start(account)


class Visits:
    """About three visits in a slot, some slots empty; five persons and nobody."""

    def __init__(self, seed: int = 0, n: int = 50) -> None:
        rng = np.random.default_rng(seed)
        self.slots = np.sort(rng.integers(0, SLOTS - 1, n))
        self.slots = self.slots[(self.slots < 3) | (self.slots > 5)]
        n = len(self.slots)
        self.features = rng.normal(size=(n, N_ITEMS, DIM))
        self.uniforms = rng.random((n, 1))
        self.ids: list[str | None] = [f"p{i}" if i else None for i in rng.integers(0, 6, n)]

    def without(self, person: str) -> Visits:
        """The same without those of one person."""
        other, kept = Visits(), [i for i, who in enumerate(self.ids) if who != person]
        other.slots, other.features = self.slots[kept], self.features[kept]
        other.uniforms, other.ids = self.uniforms[kept], [self.ids[i] for i in kept]
        return other


def played(learner: OnePassNewtonMNL, visits: Visits, end: int = SLOTS) -> list[list[int]]:
    crowd = Crowd()
    learner.play(
        visits.features,
        crowd.respond,
        private=visits.uniforms,
        people=visits.ids,
        slots=visits.slots,
    )
    if learner.clock_ < end:
        learner.skip(end - learner.clock_)
    return crowd.shown


def told(account: Any) -> list[Any]:
    """The ledger without random names, and digests of what was released."""
    names = {"accountant", "token", "digest", "participation"}
    return [
        [getattr(entry, "admitted", None), entry.model_dump(exclude=names)]
        for entry in account.ledger.entries
    ]


@pytest.mark.parametrize("rule", [POOLED, ONCE], ids=str)
def test_visits_one_by_one_are_as_in_blocks(rule: Participation) -> None:
    visits = Visits()
    fast, slow = fresh(joint(rule)), fresh(joint(rule))
    shown = played(fast, visits)
    seen = []
    for slot in range(SLOTS):
        assert slow.clock_ == slot
        for i in np.flatnonzero(visits.slots == slot):
            items = slow.select(visits.features[i], person=visits.ids[i])
            seen.append(items.tolist())
            slow.observe(choose(visits.features[i], items, float(visits.uniforms[i, 0])))
        slow.skip(1)
    assert seen == shown
    assert np.array_equal(slow.theta_, fast.theta_)
    assert slow.public_state() == fast.public_state()
    assert told(slow._accountant) == told(fast._accountant)
    assert slow.private_messages_ == fast.private_messages_
    with pytest.raises(HorizonError):
        slow.select(visits.features[0], person="a")


def test_one_visit_in_each_slot_is_as_with_arrivals() -> None:
    rng = np.random.default_rng(1)
    features, choices = rng.normal(size=(SLOTS, N_ITEMS, DIM)), rng.integers(-1, N_ITEMS, SLOTS)
    ids = rng.integers(0, 9, SLOTS).tolist()
    found = []
    clocks: tuple[Clock, ...] = ("arrivals", "timetable")
    for clock in clocks:
        rule = Participation(2, pooled=True, clock=clock)
        learner = fresh(central(rule))
        if clock == "arrivals":
            learner.partial_fit(features, choices, people=ids)
        else:
            learner.partial_fit(features, choices, people=ids, slots=range(SLOTS)).skip(1)
        found.append(learner)
    assert np.array_equal(found[0].theta_, found[1].theta_)
    assert found[0].clock_ == found[1].clock_ == SLOTS


def test_nothing_public_or_of_others_tells_whether_somebody_came() -> None:
    """Before the first release everybody else is shown the same, and so is the ledger always."""
    visits = Visits()
    account, other = joint(POOLED), joint(POOLED)
    with_me, without = fresh(account), fresh(other)
    shown, fewer = played(with_me, visits), played(without, visits.without("p1"))
    early = int((visits.slots < 6).sum())
    mine = [who == "p1" for who in visits.ids]
    assert any(mine[:early])
    others = [items for items, me in zip(shown[:early], mine, strict=False) if not me]
    assert others == fewer[: len(others)]
    assert len({tuple(items) for items in others}) > 1
    assert told(account) == told(other)
    one, two = with_me.public_state(), without.public_state()
    assert one["coins"] == two["coins"]
    assert one["clock"] == two["clock"]


def test_time_passes_where_nobody_comes() -> None:
    account, busy = joint(POOLED), joint(POOLED)
    learner = fresh(account).skip(SLOTS)
    assert learner.clock_ == learner.billboard_.clock == SLOTS
    assert not learner.private_messages_
    played(fresh(busy), Visits())
    assert told(account) == told(busy)


def test_slots_are_the_present_or_later_ones() -> None:
    learner, visits = fresh(joint(ONCE)), Visits()
    learner.skip(4)
    for bad in ([3, 4], [5, 4], [19, 20], [4, 4, 4]):
        with pytest.raises(UsersError, match=r"slots.*range\(4, 20\)"):
            learner.play(visits.features[:2], Crowd().respond, people=["a", "b"], slots=bad)
    learner.play(visits.features[:0], Crowd().respond, private=visits.uniforms[:0], people=[])
    plain = fresh(joint(Participation(1)))
    with pytest.raises(ProvenanceError, match="no rule with clock = 'timetable'"):
        plain.play(visits.features[:1], Crowd().respond, people=["a"], slots=[0])
    assert (learner.clock_, plain.clock_) == (4, 0)


@pytest.mark.parametrize("served", [4, 7])
def test_it_goes_on_after_a_crash_in_the_middle_of_a_slot(served: int, tmp_path: Path) -> None:
    people = People.memory(POOLED)
    book = Ledger.create(tmp_path / "book")
    learner = fresh(joint(POOLED, people=people, ledger=book))
    features = Visits().features
    for i in range(served):
        while learner.clock_ < 2 * i:
            learner.skip(1)
        learner.select(features[i], person="a")
        learner.observe(0)
    present = learner.clock_
    book.close()
    again: JointAccountant[ZCDP] = JointAccountant.resume(
        tmp_path / "book", noise=NoiseSource.simulation(1), people=people
    )
    back = OnePassNewtonMNL.resume(again)
    assert back.clock_ == present
    back.select(features[0], person="b")
    back.observe(1)
    back.skip(SLOTS - present)
    assert back.clock_ == SLOTS
    assert again.certificate().problems == []
    again.ledger.close()


def test_the_public_state_does_not_tell_who_came_last() -> None:
    """The public clock is what was let pass, also before the present slot is over."""
    found = []
    for slots in ([3], [3, 4], [3, 5]):
        learner = fresh(joint(POOLED)).skip(2)
        visits = Visits(n=40)
        learner.play(
            visits.features[: len(slots)],
            Crowd().respond,
            private=visits.uniforms[: len(slots)],
            people=["a", "b"][: len(slots)],
            slots=slots,
        )
        found.append(learner.public_state())
    assert found[0] == found[1] == found[2]
    assert found[0]["clock"] == 2


def test_it_goes_on_while_time_has_not_passed(tmp_path: Path) -> None:
    """Neither slots that were visited nor batches that were released come again."""
    people, visits = People.memory(POOLED), Visits(n=40)
    book = Ledger.create(tmp_path / "book")
    learner = fresh(joint(POOLED, people=people, ledger=book))
    learner.play(
        visits.features[:2],
        Crowd().respond,
        private=visits.uniforms[:2],
        people=["a", "b"],
        slots=[3, 9],
    )
    assert learner.public_state()["clock"] == 6  # the first batch was released
    book.close()
    again: JointAccountant[ZCDP] = JointAccountant.resume(
        tmp_path / "book", noise=NoiseSource.simulation(1), people=people
    )
    back = OnePassNewtonMNL.resume(again)
    assert back.clock_ == 9
    assert back.public_state()["clock"] == 6
    back.skip(SLOTS - 9)
    assert again.certificate().problems == []
    again.ledger.close()


LEARNERS: dict[str, Callable[[], Any]] = {
    "DPMNL": lambda: DPMNL(n_items=N_ITEMS, dim=DIM),
    "DPHDB": lambda: DPHDB(n_arms=N_ITEMS, dim=DIM),
    "DPTOFW": lambda: DPTOFW(DIM),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_of_one_row_for_each_slot_refuse_by_name(name: str) -> None:
    account: Any = central(ONCE) if name == "DPTOFW" else joint(ONCE)
    before = len(account.ledger.entries)
    with pytest.raises(ValueError, match=f"{name}|this learner takes one row") as caught:
        LEARNERS[name]().start(account)
    assert "timetable" in str(caught.value)
    assert len(account.ledger.entries) == before


# Forgetting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["arrivals", "timetable"])
@pytest.mark.parametrize("pooled", [False, True])
def test_rows_of_an_open_batch_are_as_if_nobody_had_come(clock: Clock, pooled: bool) -> None:
    """To the last bit of what is released, with the noise kept."""
    rng = np.random.default_rng(2)
    features, choices = rng.normal(size=(SLOTS, N_ITEMS, DIM)), rng.integers(-1, N_ITEMS, SLOTS)
    ids = [f"p{i}" for i in rng.integers(0, 5, SLOTS)]
    found = []
    for forgotten in (True, False):
        rule = Participation(2, pooled=pooled, clock=clock)
        learner = fresh(central(rule))
        named = ids if forgotten else [None if who == "p1" else who for who in ids]
        for i in range(SLOTS):
            if i == 4 and forgotten:
                learner.forget("p1")
                assert any(who == "p1" for who in ids[:4])
                held = [chunk for rows in learner._pending for chunk in rows._Rows__chunks]  # type: ignore[attr-defined]
                for chunk, who in zip(held, ids[: len(held)], strict=True):
                    if who == "p1":
                        assert not chunk.valid.any()
                        assert chunk.block is None or not chunk.block.features.any()
            learner.partial_fit(features[i : i + 1], choices[i : i + 1], people=[named[i]])
            if clock == "timetable":
                learner.skip(1)
        found.append(learner.theta_)
    assert np.array_equal(found[0], found[1])
    assert np.any(found[0])


def test_fits_of_all_rows_leave_out_who_was_forgotten() -> None:
    people = People.memory(Participation(1))
    account = JointAccountant(
        ZCDP(1), users=range(40), noise=NoiseSource.simulation(0), people=people
    )
    learner = DPMNL(n_items=N_ITEMS, dim=DIM, max_items=SHOWN).start(account)
    visits = Visits(n=60)
    learner.play(
        visits.features[:20],
        Crowd().respond,
        private=visits.uniforms[:20],
        people=[f"p{i}" for i in range(20)],
    )
    rows = [*learner._answers, *learner._pending]
    assert rows
    learner.forget("p3")

    def real(parts: Any) -> int:
        return sum(int(c.valid.sum()) for part in parts for c in part._Rows__chunks)

    assert real([*learner._answers, *learner._pending]) == real(rows) - 1
    with pytest.raises(ValueError, match="there is none"):
        learner.forget(None)


def test_without_a_rule_nobody_is_known() -> None:
    account = CentralAccountant(PureDP(1), users=range(20), noise=NoiseSource.simulation(0))
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM)
    with pytest.raises(RuntimeError, match="no accountant"):
        learner.forget("a")
    zcdp = CentralAccountant(ZCDP(1), users=account.users, noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="knows nobody"):
        learner.start(zcdp).forget("a")


@pytest.mark.parametrize("slot", [2, 5, SLOTS - 1])
def test_the_billboard_does_not_tell_that_somebody_came_last(slot: int) -> None:
    """Time passes for whoever lets it pass, also over a slot that somebody came in."""
    features = np.random.default_rng(0).normal(size=(SLOTS, N_ITEMS, DIM))

    def posted(who: dict[int, str]) -> list[Any]:
        learner = fresh(joint(POOLED))
        for now in range(SLOTS):
            if now in who:
                learner.select(features[now], person=who[now])
                learner.observe(0)
            learner.skip(1)
        return [(one["name"], one["at"]) for one in learner.billboard_.history()]

    assert posted({1: "a", slot: "p"}) == posted({1: "a"}) == posted({})


def test_time_passes_once_and_in_order() -> None:
    board = Billboard(joint(ONCE), range(SLOTS))
    rows = Rows.seal(np.ones((2, 1)), users=range(4), slots=[1, 3])
    shown = board.serve(rows, lambda own: own, people=["a", "b"])
    passed = board.skip(range(3))
    assert board.clock == 4
    for again in (range(3), range(2, 5), range(5, 6)):
        with pytest.raises(UsersError, match="cannot be served"):
            board.skip(again)
    more = board.skip(range(3, 6))
    assert board.clock == 6
    assert passed.users == range(3)
    served = shown.deliver(lambda own, shown: own)
    both = Rows.concat([served, more])  # slot 3 goes on, in which nobody came any more
    assert both.users == range(6)
    assert sum(int(chunk.valid.sum()) for chunk in Rows._unseal(both)) == 2
