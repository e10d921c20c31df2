"""A registry that is older than its ledger, and one that stands in place of a lost one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres import Server

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.contract.billboard import Billboard
from privlearn.errors import PeopleError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Clock, Participation

N = 20
SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)


def simulation() -> NoiseSource:
    return NoiseSource.simulation(0)


def ones(people: People, users: range, n: int) -> Rows[Any]:
    timed = people.rule.clock == "timetable"
    slots = np.sort(np.resize(np.arange(users.start, users.stop), n)) if timed else None
    return Rows.seal(np.ones((n, 2)), users=users, slots=slots)


def begun(folder: Path, rule: Participation, visits: int) -> str:
    """An accountant that released the sum over slots 0..9, when slots 0..11 were over; its head."""
    people = People.create(folder / "people.db", rule)
    made = CentralAccountant(
        ZCDP("1"),
        users=range(N),
        noise=simulation(),
        people=people,
        ledger=Ledger.create(folder / "book"),
    )
    if rule.batched:
        made.divide([0, 10])
    people.close()
    shutil.copy(folder / "people.db", folder / "old.db")
    with People.open(folder / "people.db") as people:
        made.issuer.people = people
        rows = people.admit(ones(people, range(10), visits), [f"p{i}" for i in range(visits)])
        if rule.pooled:
            rows = rows.pool(lambda block: block.mean(axis=0))
        people.skip_to(10)
        SUM.release(rows, made.issue(SUM.loss(), users=range(10), label="sum"))
        people.skip(range(10, 12))
    made.ledger.close()
    return made.id


RULES = [
    (Participation(1), 10),
    (Participation(1, clock="timetable"), 3),
    (Participation(1, clock="timetable", pooled=True), 30),
]


@pytest.mark.parametrize(("rule", "visits"), RULES, ids=str)
def test_an_older_copy_of_a_registry_is_refused(
    rule: Participation, visits: int, tmp_path: Path
) -> None:
    begun(tmp_path, rule, visits)
    old = People.open(tmp_path / "old.db", moved=True)
    with pytest.raises(PeopleError, match=r"older than its ledger.*slot 9"):
        CentralAccountant.resume(tmp_path / "book", noise=simulation(), people=old)
    old.close()
    with People.open(tmp_path / "people.db") as people:
        again: CentralAccountant[ZCDP] = CentralAccountant.resume(
            tmp_path / "book", noise=simulation(), people=people
        )
        assert again.spent() == ZCDP("1/2")
        again.ledger.close()


def test_what_the_ledger_says_of_the_registry_follows_from_the_slots_alone(tmp_path: Path) -> None:
    """On a timetable the registry's clock may be that of the last visit, which is nobody's."""
    cases: list[tuple[Clock, list[Any]]] = [
        ("arrivals", [None, 10, 10]),
        ("timetable", [None, 10, None, None]),  # with an entry on user code, always the same
    ]
    for clock, wanted in cases:
        rule, folder = Participation(1, clock=clock), tmp_path / clock
        folder.mkdir()
        begun(folder, rule, 10)
        with Ledger.open(folder / "book") as book:
            found = [(getattr(e, "admitted", None) or {}).get("clock") for e in book.entries[1:]]
        assert found == wanted


@pytest.mark.parametrize(("rule", "visits"), RULES, ids=str)
def test_in_place_of_a_lost_registry_everybody_is_served_and_nobody_learned(
    rule: Participation, visits: int, tmp_path: Path
) -> None:
    begun(tmp_path, rule, visits)
    with People.open(tmp_path / "people.db") as people:
        id = people.id

    def resumed(people: People) -> CentralAccountant[ZCDP]:
        return CentralAccountant.resume(tmp_path / "book", noise=simulation(), people=people)

    other = People.replace_lost(tmp_path / "other.db", rule, id="f" * 32, clock=12)
    with pytest.raises(PeopleError, match=id):
        resumed(other)
    early = People.replace_lost(tmp_path / "early.db", rule, id=id, clock=9)
    with pytest.raises(PeopleError, match="older than its ledger"):
        resumed(early)
    people = People.replace_lost(tmp_path / "new.db", rule, id=id, clock=12)
    made = resumed(people)
    assert made.people is people
    assert people.accountant == made.id
    people.skip(range(12, 14))
    rows = people.admit(ones(people, range(14, 20), 6), list("abcdef"))
    assert not any(chunk.valid.any() for chunk in Rows._unseal(rows))
    rows = Rows.concat([Rows.null(range(10, 14)), rows])
    if rule.pooled:
        rows = rows.pool(lambda block: block.mean(axis=0))
    total = SUM.partial(rows)
    assert type(total)._opened(total).tolist() == [0, 0]
    token = made.issue(SUM.loss(), users=range(10, 20), label="sum")
    people.skip_to(20)
    assert SUM.release(rows, token).value.shape == (2,)
    made.ledger.close()
    people.close()
    with People.open(tmp_path / "new.db") as people:
        assert resumed(people).people is people


@pytest.mark.parametrize("lost", ["key", "tables"])
def test_in_place_of_one_in_postgres_everybody_is_served_and_nobody_learned(
    postgres: Server, tmp_path: Path, lost: str
) -> None:
    rule, address = Participation(1), postgres.url(ledger=postgres.new_name())
    key, new = tmp_path / "key", tmp_path / "new.key"
    with (
        Ledger.postgres(address, "create") as book,
        People.postgres(book, "create", key=key, rule=rule) as people,
    ):
        made = CentralAccountant(
            ZCDP("1"), users=range(N), noise=simulation(), people=people, ledger=book
        )
        rows = people.admit(ones(people, range(10), 10), [f"p{i}" for i in range(10)])
        SUM.release(rows, made.issue(SUM.loss(), users=range(10), label="sum"))
        people.forget("p3")
        id = people.id
    if lost == "key":
        key.unlink()
    else:
        postgres.execute(f"DELETE FROM privlearn.registries WHERE id = '{id}'")
    with Ledger.postgres(address) as book:
        said = "cannot be read" if lost == "key" else "replace_lost"
        with pytest.raises(PeopleError, match=said):
            People.postgres(book, key=key)

        def replaced(**other: Any) -> People:
            how = {"key": new, "rule": rule, "id": id, "clock": 12, **other}
            return People.postgres(book, "replace_lost", **how)

        if lost == "key":
            for other, said in (
                ({"id": "f" * 32}, f"is registry {id}"),
                ({"clock": 9}, "has come to slot 10"),
                ({"clock": 21}, "has slots before 20 only"),  # which nothing would set right
                ({"rule": Participation(2)}, "keeps another"),
            ):
                with pytest.raises(PeopleError, match=said):
                    replaced(**other)
                assert not new.exists()
        else:
            replaced(key=tmp_path / "wrong.key", clock=21).close()
        with replaced() as people, People.postgres(book, key=new, rule=rule) as beside:
            assert people.serving_only
            again: CentralAccountant[ZCDP] = CentralAccountant.resume(
                book, noise=simulation(), people=people
            )
            assert people.accountant == again.id
            assert people.clock == beside.clock == 12
            assert people.forgotten(np.arange(5)).tolist() == [False] * 3 + [True, False]
            people.forget("p5")  # whom it does not know
            assert not beside.admit_next(["a", "b"]).learned.any()
            rows = people.admit(ones(people, range(14, 20), 6), list("abcdef"))
            assert not any(chunk.valid.any() for chunk in Rows._unseal(rows))
            rows = Rows.concat([Rows.null(range(10, 14)), rows])
            SUM.release(rows, again.issue(SUM.loss(), users=range(10, 20), label="sum"))
            assert again.certificate().problems == []


def test_a_registry_is_replaced_where_only_its_persons_are_left(
    postgres: Server, tmp_path: Path
) -> None:
    rule = Participation(1)
    with postgres.database() as database:
        address = postgres.url(database=database, ledger="book")
        with Ledger.postgres(address, "create") as book:
            how: dict[str, Any] = {"rule": rule, "clock": 1}
            with People.postgres(book, "create", key=tmp_path / "key", rule=rule) as people:
                people.bind("me", range(N))
                people.admit_next(["ann"])
                how["id"] = people.id
            postgres.execute("DROP TABLE privlearn.registries", database=database)
            with People.postgres(book, "replace_lost", key=tmp_path / "new", **how) as people:
                people.bind("me", range(N))
                assert not people.admit_next(["ann"]).learned.any()


def test_who_has_a_registry_open_that_is_replaced_admits_nobody(
    postgres: Server, tmp_path: Path
) -> None:
    rule, key, new = Participation(1), tmp_path / "key", tmp_path / "new.key"
    address = postgres.url(ledger=postgres.new_name())
    with (
        Ledger.postgres(address, "create") as book,
        People.postgres(book, "create", key=key, rule=rule) as people,
    ):
        people.bind("me", range(N))
        people.admit_next(["a"])
        with pytest.raises(ValueError, match="are for how = 'replace_lost'"):
            People.postgres(book, key=key, id=people.id)
        with pytest.raises(ValueError, match="clock = None"):
            People.postgres(book, "replace_lost", key=new, rule=rule, id=people.id)
        People.postgres(book, "replace_lost", key=new, rule=rule, id=people.id, clock=1).close()
        with pytest.raises(PeopleError, match=r"was made with another one.*'replace_lost'"):
            people.admit_next(["b"])


def test_tokens_of_a_timetable_are_spent_in_any_order(tmp_path: Path) -> None:
    people = People.memory(Participation(1, clock="timetable"))
    made = CentralAccountant(ZCDP("1"), users=range(N), noise=simulation(), people=people)
    half = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)
    rows = people.admit(ones(people, range(N), 40), [f"p{i}" for i in range(40)])
    people.skip_to(N)
    for users in (range(10, 20), range(10)):
        half.release(rows.slice(users), made.issue(half.loss(), users=users, label="sum"))
    assert made.certificate().problems == []
    assert [e.admitted for e in made.ledger.entries if e.entry == "spend"] == [{"clock": 20}] * 2


def test_a_new_accountant_takes_none_that_learns_nobody(tmp_path: Path) -> None:
    people = People.replace_lost(tmp_path / "new.db", Participation(1), id="0" * 32, clock=0)
    book = Ledger.memory()
    with pytest.raises(PeopleError, match="learns nobody"):
        CentralAccountant(ZCDP("1"), users=range(N), noise=simulation(), people=people, ledger=book)
    assert not book.entries


def test_a_further_accountant_learns_again_with_a_cap_of_its_own(tmp_path: Path) -> None:
    """Which a ledger adds up where it is told that the people are the same."""
    begun(tmp_path, Participation(1), 10)
    book = Ledger.open(tmp_path / "book")
    people = People.create(tmp_path / "second.db", Participation(1))
    made = CentralAccountant(
        ZCDP("1"), users=range(N), noise=simulation(), people=people, ledger=book, shared=True
    )
    rows = people.admit(ones(people, range(10), 10), [f"p{i}" for i in range(10)])
    SUM.release(rows, made.issue(SUM.loss(), users=range(10), label="sum"))
    assert made.spent() == ZCDP("1/2")
    assert len({each.accountant for each in book.entries}) == 2
    book.close()


def test_a_board_serves_a_slot_in_many_calls_and_time_passes_by_skips() -> None:
    people = People.memory(Participation(1, clock="timetable"))
    made = JointAccountant(ZCDP("1"), users=range(4), noise=simulation(), people=people)
    board = Billboard(made, made.users)

    def serve(users: range, slots: list[int], ids: list[str]) -> Any:
        block = np.arange(float(len(ids)))[:, None]
        return board.serve(
            Rows.seal(block, users=users, slots=slots), lambda own: own[:, 0] + 5, people=ids
        )

    one = serve(range(1), [0], ["a"])
    assert one.reveal() == 5.0
    assert repr(one) == "Shown(users=0..0, sealed)"
    more = serve(range(1), [0, 0], ["b", "a"])
    parts = [one, more, serve(range(2), [1], ["c"])]
    assert (board.clock, people.clock) == (2, 2)
    for users in (range(1), range(3, 4)):
        with pytest.raises(ValueError, match="the next is 2"):
            serve(users, [users.start], ["d"])
    rows = [each.deliver(lambda own, act: np.stack([act, own[:, 0]], axis=1)) for each in parts]
    with pytest.raises(ValueError, match="the same visits"):
        Rows.concat([rows[0], one.deliver(lambda own, act: own)])
    lost = board.skip(range(2, 4))
    assert (board.clock, people.clock) == (4, 4)
    whole = Rows.concat([*rows, lost])
    valid = [bool(v) for chunk in Rows._unseal(whole) for v in chunk.valid]
    assert valid == [True, True, False, True]
    token = made.issue(SUM.loss(), users=made.users, label="sum")
    board.post("sum", SUM.release(whole, token))
    assert board["sum"].shape == (2,)


def test_when_something_was_posted_does_not_tell_who_came_since() -> None:
    told = []
    for late in ([], [2]):
        people = People.memory(Participation(1, clock="timetable"))
        made = JointAccountant(ZCDP("1"), users=range(4), noise=simulation(), people=people)
        board = Billboard(made, made.users)
        rows = board.skip(range(2))
        for slot in late:
            row = Rows.seal(np.ones((1, 2)), users=range(2, slot + 1), slots=[slot])
            board.serve(row, lambda own: own, people=["a"])
        token = made.issue(SUM.loss(), users=range(2), label="sum")
        board.post("sum", SUM.release(rows, token))
        told.append([item["at"] for item in board.history()])
    assert told == [[2], [2]]


def test_a_board_takes_slots_on_a_timetable_only() -> None:
    def board(people: People | None) -> Billboard:
        made = JointAccountant(ZCDP("1"), users=range(4), noise=simulation(), people=people)
        return Billboard(made, made.users)

    timed = Rows.seal(np.ones((1, 1)), users=range(1), slots=[0])
    plain = Rows.seal(np.ones((1, 1)), users=range(1))
    for rule, rows, why in (
        (None, timed, "need an accountant"),
        (Participation(1), timed, "need an accountant"),
        (Participation(1, clock="timetable"), plain, "rows say the slot"),
    ):
        people = None if rule is None else People.memory(rule)
        made = board(people)
        with pytest.raises(ValueError, match=why):
            made.serve(rows, lambda own: own, people=None if people is None else ["a"])
        assert made.clock == 0


def test_the_policy_sees_one_visit_at_a_time() -> None:
    """What somebody is shown would else tell how many others came in the same slot."""
    people = People.memory(Participation(1, clock="timetable"))
    made = JointAccountant(ZCDP("1"), users=range(4), noise=simulation(), people=people)
    board = Billboard(made, made.users)
    rows = Rows.seal(np.full((3, 1), 6.0), users=range(1), slots=[0, 0, 0])
    shown = board.serve(rows, lambda own: own[:, 0] / len(own), people=["a", "b", "c"])
    seen: list[float] = []

    def answer(own: Any, act: Any) -> Any:
        seen.extend(act)
        return own / len(own)

    (chunk,) = Rows._unseal(shown.deliver(answer))
    assert seen == [6.0, 6.0, 6.0]
    assert np.asarray(chunk.block).tolist() == [[6.0]] * 3
