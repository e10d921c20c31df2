"""What a registry takes, refuses and shows; the same in memory and on disk."""

from __future__ import annotations

import copy
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from served_registries import served

from privlearn import Ledger
from privlearn.errors import PeopleError, ReentryError, SealedError, UsersError
from privlearn.people import People, in_memory
from privlearn.people.identities import KEY_BYTES, hashes
from privlearn.values.participation import Participation

POOLED = Participation(2, pooled=True)
ONCE = Participation(1)
Make = Callable[[Participation], People]


@pytest.fixture(params=["memory", "file", "owner", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A registry of each kind; "owner": asked over a socket."""
    made: list[People] = []
    with ExitStack() as stack:
        if request.param == "postgres":
            address = request.getfixturevalue("postgres").url(ledger=secrets.token_hex(4))
            ledger = stack.enter_context(Ledger.postgres(address, "create"))

        def one(rule: Participation) -> People:
            if request.param == "postgres":
                name = f"{len(made)}"
                key = tmp_path / f"{name}.key"
                made.append(People.postgres(ledger, "create", rule=rule, key=key, name=name))
                return made[-1]
            if request.param == "file":
                made.append(People.create(tmp_path / f"{len(made)}.db", rule))
                return made[-1]
            made.append(People.memory(rule))
            if request.param == "owner":
                socket = tmp_path / f"{len(made)}.sock"
                stack.enter_context(served(made[-1], socket))
                made.append(stack.enter_context(People.connect(socket)))
            return made[-1]

        yield one
    for people in made:
        people.close()


class NAType:
    """As that of pandas."""


class Column:
    """As that of polars."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def to_list(self) -> list[Any]:
        return self._values

    def __len__(self) -> int:
        return len(self._values)


def bound(people: People, stop: int = 100) -> People:
    people.bind("me", range(stop))
    if people.rule.batched:
        people.divide([0, 10])
    return people


def test_a_registry_belongs_to_one_accountant(make: Make) -> None:
    people = make(ONCE)
    assert (people.accountant, people.clock) == (None, None)
    with pytest.raises(PeopleError, match="no accountant yet"):
        people.admit_visits(["a"], range(1))
    people.bind("me", range(5, 9))
    people.bind("me", range(5, 9))
    assert (people.accountant, people.clock, people.serving_only) == ("me", 5, False)
    with pytest.raises(PeopleError, match=r"'me', not to 'other'"):
        people.bind("other", range(5, 9))
    with pytest.raises(PeopleError, match=r"range\(0, 9\).*range\(5, 9\)"):
        people.bind("me", range(9))
    for bad in ("", 3):
        with pytest.raises(ValueError, match="accountant"):
            people.bind(bad, range(5))  # type: ignore[arg-type]


def test_batches_are_declared_once(make: Make) -> None:
    people = make(POOLED)
    with pytest.raises(PeopleError, match="no accountant yet"):
        people.divide([0])
    people.bind("me", range(2, 9))
    with pytest.raises(PeopleError, match="call divide first"):
        people.admit_visits(["a"], range(2, 3))
    for bad, why in (([], "first slot"), ([0, 3], "begin with 2"), ([2, 9], "end before 9")):
        with pytest.raises(ValueError, match=why):
            people.divide(bad)
    with pytest.raises(ValueError, match="ascend"):
        people.divide([2, 5, 5])
    with pytest.raises(TypeError, match=r"starts\[1\] = 5.5"):
        people.divide([2, 5.5])  # type: ignore[list-item]
    people.divide(np.array([2, 5]))  # type: ignore[arg-type]
    people.divide([2, 5])
    with pytest.raises(PeopleError, match="other batches"):
        people.divide([2, 6])
    with pytest.raises(ValueError, match="counts in no batches"):
        make(ONCE).divide([0])


def test_only_the_next_slots_are_taken(make: Make) -> None:
    people = bound(make(ONCE), 6)
    people.skip(range(2))
    assert people.clock == 2
    for bad in (range(1, 3), range(3, 4), range(2, 7)):
        with pytest.raises(UsersError, match="must begin with the next slot, 2, and end by 6"):
            people.skip(bad)
        with pytest.raises(UsersError, match="must begin with the next slot, 2, and end by 6"):
            people.admit_visits(["a"] * len(bad), bad)
    with pytest.raises(UsersError, match="2 slots, there are 3 ids"):
        people.admit_visits(["a", "b", "c"], range(2, 4))
    assert people.admit_visits(["a", "a"], range(2, 4)).learned.tolist() == [True, False]
    assert people.clock == 4


@pytest.mark.parametrize(
    ("ids", "persons"),
    [
        (["a", None, "", float("nan"), "b", "a", "A", "a ", NAType(), np.nan], "0---10 23--"),
        ((b"a", b"", None, b"b", b"a"), "0--10"),
        ([0, 1, -1, None, 0, 256, 2**80, np.int32(1)], "012-0341"),
        (np.array(["x", "", "x"]), "0-0"),
        (np.array([5, 6, 5]), "010"),
        (np.array(["x", None, float("nan")], dtype=object), "0--"),
        (pa.array(["x", None, "y", "x"]), "0-10"),
        (Column([3, None, 3]), "0-0"),
        (["é", "e\u0301", "\ud800", "é"], "0120"),
        ([None, ""], "--"),
    ],
)
def test_ids_are_taken_as_they_are(ids: Any, persons: str) -> None:
    people = bound(People.memory(Participation(50)))
    expected = [-1 if mark == "-" else int(mark) for mark in persons.replace(" ", "")]
    admission = people.admit_visits(ids, range(len(ids)))
    assert admission.persons.tolist() == expected
    assert admission.learned.tolist() == [number >= 0 for number in expected]
    assert admission.persons.dtype == np.int64
    assert admission.users == range(len(ids))


@pytest.mark.parametrize(
    ("first", "ids", "message"),
    [
        (None, ["secret", 4], "ids: int beside str"),
        (None, ["secret", b"secret"], "ids: bytes beside str"),
        (7, ["secret"], "ids: str beside int"),
        (None, [3.5, 4.0], "ids: float: an id is a str, bytes or an int"),
        (None, [True], "ids: bool: an id is"),
        (None, [np.True_], "ids: bool_?: an id is"),
        (None, [("secret",)], "ids: tuple: an id is"),
        (None, [bytearray(b"secret")], "ids: bytearray: an id is"),
        (None, "secret", "ids: str: must be a list"),
        (None, b"secret", "ids: bytes: must be a list"),
        (None, {"secret"}, "ids: set: must be a list"),
        (None, iter(["secret"]), "ids: list_iterator: must be a list"),
        (None, np.array("secret"), "ids: ndarray: must be a list"),
    ],
)
def test_what_is_no_id_is_named_by_its_type_and_nothing_is_debited(
    make: Make, first: Any, ids: Any, message: str
) -> None:
    people = bound(make(ONCE))
    people.admit_visits([first], range(1))
    with pytest.raises(TypeError, match=message) as caught:
        people.admit_visits(ids, range(1, 1 + len(ids) if isinstance(ids, list) else 3))
    assert "secret" not in str(caught.value)
    assert people.clock == 1
    admission = people.admit_visits([first if first else "secret"], range(1, 2))
    assert admission.learned.item() is (first is None)


def test_a_type_is_fixed_by_the_first_id_that_is_there(make: Make) -> None:
    people = bound(make(Participation(9)))
    people.admit_visits([None, "", b""], range(3))
    people.admit_visits([b"x"], range(3, 4))
    with pytest.raises(TypeError, match="str beside bytes"):
        people.forget("x")
    with pytest.raises(TypeError, match="int beside bytes"):
        people.admit_visits([None, 3], range(4, 6))


def test_hashes_are_keyed_and_tell_kinds_apart() -> None:
    one, other = bytes(KEY_BYTES), bytes([1]) * KEY_BYTES
    ids = ["1", b"1", 1, "", None, "11", -1, 49]
    made = hashes(one, ids)
    assert [each is None for each in made] == [False] * 3 + [True] * 2 + [False] * 3
    there = [each for each in made if each is not None]
    assert len(set(there)) == len(there)
    assert {len(each) for each in there} == {16}
    assert not set(there) & set(hashes(other, ids))
    data = b"s" + (1).to_bytes(8, "big") + b"1"
    assert made[0] == blake2b(data, key=one, digest_size=16).digest()


def test_it_is_sealed(make: Make) -> None:
    people = bound(make(ONCE))
    admission = people.admit_visits(["maria", "kim"], range(2))
    sealed: Any
    for sealed in (people, admission):
        look: Any
        for look in (len, iter, bool, list, hash, copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises((SealedError, TypeError)):
                look(sealed)
        for shown in (repr(sealed), str(sealed)):
            assert "maria" not in shown
            assert "sealed" in shown
    assert repr(admission) == "Admission(users=0..1, sealed)"
    assert repr(people) == f"People(id={people.id!r}, rule={people.rule!r}, sealed)"
    with pytest.raises(ValueError, match="read-only"):
        admission.learned[1] = False


def test_names_are_random() -> None:
    assert len({People.memory(ONCE).id for _ in range(8)}) == 8
    assert len(bytes.fromhex(People.memory(ONCE).id)) == 16


def test_a_rule_is_a_rule(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="rule = 3"):
        People.memory(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rule = 3"):
        People.create(tmp_path / "p.db", 3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_who_is_forgotten_is_learned_no_more(make: Make) -> None:
    people = bound(make(POOLED))
    before = people.admit_visits(["a", "b", None], range(3))
    people.forget("a")
    people.forget("never came")
    people.forget("a")
    assert people.forgotten(before.persons).tolist() == [True, False, False]
    after = people.admit_visits(["a", "b", "never came", "c"], range(3, 7))
    assert after.learned.tolist() == [False, True, False, True]
    assert people.forgotten(after.persons).tolist() == [True, False, True, False]
    assert after.persons.tolist() == [0, 1, 2, 3]
    later = people.admit_visits(["a", "b", "never came"], range(7, 10))
    assert later.learned.tolist() == [False, True, False]
    assert people.clock == 10
    for missing in (None, "", float("nan")):
        with pytest.raises(ValueError, match="there is none"):
            people.forget(missing)


def test_a_ledger_that_knows_of_later_rows_shows_that_it_is_older(make: Make) -> None:
    people = make(ONCE)
    with pytest.raises(PeopleError, match=r"older than its ledger.*slot 0.*next slot is None"):
        people.check_not_older(0)
    bound(people).skip(range(3))
    people.check_not_older(2)
    with pytest.raises(PeopleError, match=r"older than its ledger.*slot 3.*next slot is 3"):
        people.check_not_older(3)


def test_after_it_was_closed_nothing_is_learned(make: Make) -> None:
    people = bound(make(ONCE))
    people.close()
    people.close()
    for call in (
        lambda: people.skip(range(1)),
        lambda: people.admit_visits(["a"], range(1)),
        lambda: people.forget("a"),
    ):
        with pytest.raises(PeopleError, match="was closed"):
            call()
    assert people.clock == 0


def test_nothing_public_depends_on_ids(make: Make) -> None:
    """The same calls with other people: every exception, clock and size is the same."""

    def shown(ids: list[Any]) -> list[object]:
        people = bound(make(Participation(2, apart=2, per_batch=1)), 20)
        seen: list[object] = []
        for users in (range(0, 3), range(3, 9), range(8, 9), range(9, 16), range(16, 22)):
            try:
                admission = people.admit_visits(ids[users.start : users.stop], users)
                seen += [repr(admission), admission.learned.shape, admission.persons.dtype]
            except (TypeError, ValueError, RuntimeError) as error:
                seen += [type(error), str(error)]
            seen += [people.clock, repr(people).replace(people.id, ""), people.accountant]
        return seen

    world = [f"p{i}" for i in range(22)]
    for other in (["p0"] * 22, [None] * 22, ["p0", *world[1:]], [*world[:9], None, *world[10:]]):
        assert shown(world) == shown(other)


@pytest.mark.parametrize("make", ["memory", "file"], indirect=True)
def test_an_interruption_costs_visits_and_gives_none_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = bound(make(ONCE))

    def interrupted(standing: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(in_memory, "_is_forgotten", interrupted)
        with pytest.raises(KeyboardInterrupt):
            people.admit_visits(["a", "b"], range(2))
    assert people.clock == 2
    assert people.admit_visits(["a", "c"], range(2, 4)).learned.tolist() == [False, True]


def test_it_cannot_be_called_from_inside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    people = bound(People.memory(ONCE))

    def again(standing: object) -> bool:
        people.skip(range(1, 2))
        return False

    monkeypatch.setattr(in_memory, "_is_forgotten", again)
    with pytest.raises(ReentryError, match="a registry of people"):
        people.admit_visits(["a"], range(1))


def test_who_is_nobody_is_told_without_a_debit() -> None:
    people = People.memory(Participation(most=1))
    people.bind("accountant", range(4))
    assert people.nobody(["a", "", None, float("nan"), "b"]).tolist() == [False, *[True] * 3, False]
    with pytest.raises(TypeError, match="ids: int beside str"):
        people.nobody(["a", 1])
    assert people.clock == 0
    assert people.admit_visits([1], range(0, 1)).learned.tolist() == [True]
    with pytest.raises(TypeError, match="ids: str beside int"):
        people.nobody(["a"])


def test_slots_that_were_passed_stay_passed() -> None:
    people = People.memory(Participation(most=1))
    people.bind("accountant", range(9))
    people.admit_visits(["a", "b"], range(0, 2))
    for slot, clock in ((1, 2), (2, 2), (5, 5), (3, 5), (9, 9)):
        people.skip_to(slot)
        assert people.clock == clock
    with pytest.raises(UsersError):
        people.skip_to(10)
