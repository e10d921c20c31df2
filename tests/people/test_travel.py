"""Rows and sums that a registry admitted, on their way to another process of the same registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from served_registries import served

from privlearn import NoiseSource
from privlearn.accountants import CentralAccountant
from privlearn.errors import PeopleError, ProvenanceError, UsersError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.people import People
from privlearn.rows import PartialSum, Rows, merge, rows_from_bytes, rows_to_bytes, travel
from privlearn.rows.domains import Ball
from privlearn.rows.partial_sums import cipher_of
from privlearn.rows.pooling import mean_of_visits
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

KEY = bytes(range(32))
SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)
TWICE = Participation(2)


def bound(rule: Participation = TWICE, stop: int = 40) -> People:
    people = People.memory(rule)
    people.bind("me", range(stop))
    if rule.batched:
        people.divide([0, 4])
    return people


def total_of(partial: PartialSum) -> list[int]:
    found: list[int] = PartialSum._opened(partial).tolist()
    return found


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Any]:
    """Connections to one registry."""
    with ExitStack() as stack:
        number = 0

        def make(people: People, count: int) -> list[People]:
            nonlocal number
            number += 1
            socket = tmp_path / f"{number}"
            stack.enter_context(served(people, socket))
            return [stack.enter_context(People.connect(socket)) for _ in range(count)]

        yield make


class Visit(NamedTuple):
    worker: int
    who: str | None
    value: tuple[float, float]


def story(seed: int, visits: int = 24) -> list[Visit]:
    rng = np.random.default_rng(seed)
    return [
        Visit(
            int(rng.integers(2)),
            ["maria", "kim", "zoe", None][rng.integers(4)],
            (float(rng.normal()), float(rng.normal())),
        )
        for _ in range(visits)
    ]


def merged(visits: Sequence[Visit], people: Sequence[People]) -> PartialSum:
    """Each worker sums what it admits, and sends the sums to the last of them."""
    sent = [
        SUM.partial(people[visit.worker].seal_next([visit.value], [visit.who])).to_bytes(KEY)
        for visit in visits
    ]
    rng = np.random.default_rng(1)
    order = rng.permutation(len(sent))
    return merge(*(PartialSum.from_bytes(sent[i], KEY, people=people[-1]) for i in order))


def in_exact_numbers(visits: Sequence[Visit], most: int) -> list[int]:
    """Every allowed row by itself, added up as whole numbers; nothing of a registry."""
    seen: dict[str, int] = {}
    total = [0, 0]
    for visit in visits:
        if visit.who is None:
            continue
        seen[visit.who] = seen.get(visit.who, 0) + 1
        if seen[visit.who] <= most:
            row = Rows.seal(np.array([visit.value]), users=range(1))
            total = [a + b for a, b in zip(total, total_of(SUM.partial(row)), strict=True)]
    return total


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_two_workers_hold_a_person_as_often_as_the_rule_allows(
    seed: int, several: Any
) -> None:
    visits = story(seed)
    found = merged(visits, several(bound(), 3))
    assert total_of(found) == in_exact_numbers(visits, 2)
    assert found.users == (range(24),)
    assert total_of(found) != in_exact_numbers(visits, 4)  # if each worker counted for itself


def test_what_one_person_moves_in_merged_sums_is_what_is_charged(several: Any) -> None:
    """Two rows of one person, one at each worker, as far out as they can be: 2², not 1."""
    far = [Visit(0, "maria", (9.0, 0.0)), Visit(1, "maria", (9.0, 0.0))]
    others = [Visit(i % 2, f"p{i}", (0.5, -0.5)) for i in range(6)]
    gone = [visit._replace(who=None) for visit in far]
    one, other = (
        total_of(merged([*others[:3], *two, *others[3:], *two], several(bound(), 3)))
        for two in (far, gone)
    )
    single = total_of(SUM.partial(Rows.seal(np.array([far[0].value]), users=range(1))))
    assert [a - b for a, b in zip(one, other, strict=True)] == [2 * x for x in single]
    account = CentralAccountant(
        ZCDP(2), users=range(40), people=People.memory(TWICE), noise=NoiseSource.simulation(0)
    )
    account.issue(SUM.loss(), users=range(40), label="sum")
    assert account.remaining() == ZCDP(0)  # 2² · 1/2


def test_a_merged_sum_is_released_where_the_registry_is(several: Any) -> None:
    rule = Participation(2)
    worker, owner = several(People.memory(rule), 2)
    account = CentralAccountant(
        ZCDP(2), users=range(6), people=owner, noise=NoiseSource.simulation(0)
    )
    values = np.arange(12.0).reshape(6, 2) / 20
    ids = ["a", "b", "a", "a", "c", None]
    sent = [
        SUM.partial(worker.seal_next(values[i : i + 2], ids[i : i + 2])).to_bytes(KEY)
        for i in (0, 2, 4)
    ]
    total = merge(*(PartialSum.from_bytes(data, KEY, people=owner) for data in sent))
    value = SUM.release_partial(total, account.issue(SUM.loss(), users=range(6), label="x")).value
    alone = People.memory(rule)
    account = CentralAccountant(
        ZCDP(2), users=range(6), people=alone, noise=NoiseSource.simulation(0)
    )
    rows = alone.admit(Rows.seal(values, users=range(6)), ids)
    token = account.issue(SUM.loss(), users=range(6), label="x")
    assert value.tolist() == SUM.release(rows, token).value.tolist()


def _sum_sent(people: People) -> bytes:
    return SUM.partial(people.seal_next(np.ones((2, 2)), ["a", "b"])).to_bytes(KEY)


def _rows_sent(people: People) -> bytes:
    return rows_to_bytes(people.seal_next(np.ones((2, 2)), ["a", "b"]), KEY)


@pytest.mark.parametrize(
    ("sent", "take"),
    [(_sum_sent, PartialSum.from_bytes), (_rows_sent, rows_from_bytes)],
    ids=["sum", "rows"],
)
def test_only_the_same_registry_takes_them(sent: Any, take: Any, tmp_path: Path) -> None:
    people = bound()
    data = sent(people)
    take(data, KEY, people=people)
    with pytest.raises(ProvenanceError, match=f"registry {people.id} admitted .*given was none"):
        take(data, KEY)
    other = bound()
    with pytest.raises(ProvenanceError, match=f"given was registry {other.id}"):
        take(data, KEY, people=other)
    instead = People.replace_lost(tmp_path / "people.db", TWICE, id=people.id, clock=9)
    with pytest.raises(ProvenanceError, match="stands in place of the one that admitted"):
        take(data, KEY, people=instead)
    instead.close()
    with pytest.raises(ValueError, match="under this key, or changed"):
        take(data, bytes(32), people=people)
    with pytest.raises(ValueError, match="under this key, or changed"):
        take(data[:-1] + bytes([data[-1] ^ 1]), KEY, people=people)


def test_an_older_registry_does_not_take_them(tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "people.db"
    with People.create(path, TWICE) as people:
        people.bind("me", range(9))
    shutil.copy(path, tmp_path / "old.db")
    with People.open(path) as people:
        sent = _sum_sent(people), _rows_sent(people)
    with People.open(tmp_path / "old.db", moved=True) as old:
        with pytest.raises(PeopleError, match=r"up to slot 1, and its next slot is 0"):
            PartialSum.from_bytes(sent[0], KEY, people=old)
        with pytest.raises(PeopleError, match=r"up to slot 3, and its next slot is 0"):
            rows_from_bytes(sent[1], KEY, people=old)


def test_the_same_sum_twice_is_not_merged() -> None:
    people = bound()
    data = _sum_sent(people)
    one, two = (PartialSum.from_bytes(data, KEY, people=people) for _ in range(2))
    with pytest.raises(UsersError, match=r"users 0\.\.1 are in two partial sums"):
        merge(one, two)


def test_a_partition_without_rows_takes_nothing_away() -> None:
    people = bound()
    one = PartialSum.from_bytes(_sum_sent(people), KEY, people=people)
    empty = PartialSum.from_bytes(PartialSum._of_nobody(one).to_bytes(KEY), KEY, people=people)
    for total in (merge(one, empty), merge(empty, one)):
        stamp = PartialSum._stamp_of(total)
        assert stamp is not None
        assert stamp.registry is people


def test_the_length_of_a_sum_tells_nothing_of_who_came() -> None:
    lengths = set()
    for ids in (["a", "b"], ["a", "a"], [None, None]):
        people = bound(Participation(1))
        lengths.add(len(SUM.partial(people.seal_next(np.ones((2, 2)), ids)).to_bytes(KEY)))
    assert len(lengths) == 1


def test_rows_of_a_pooled_rule_are_pooled_at_the_owner(several: Any) -> None:
    """A batch in pieces at two workers: each cannot pool; their rows together can be."""
    rule = Participation(2, pooled=True)
    values = np.arange(16.0).reshape(8, 2) / 40
    ids = ["a", "b", "a", "c", "a", "a", "b", None]
    workers = several(bound(rule, 8), 3)
    sent = []
    for i in range(8):
        rows = workers[i % 2].seal_next(values[i : i + 1], ids[i : i + 1])
        with pytest.raises(UsersError, match="whole batches"):
            rows.pool(mean_of_visits)
        sent.append(rows_to_bytes(rows, KEY))
    taken = [rows_from_bytes(data, KEY, people=workers[-1]) for data in reversed(sent)]
    together = Rows.concat(sorted(taken, key=lambda rows: rows.users.start))
    alone = bound(rule, 8).admit(Rows.seal(values, users=range(8)), ids)
    pooled = [total_of(SUM.partial(rows.pool(mean_of_visits))) for rows in (together, alone)]
    assert pooled[0] == pooled[1]
    # and such a sum goes on to the process that releases it
    data = SUM.partial(together.pool(mean_of_visits)).to_bytes(KEY)
    account = CentralAccountant(
        ZCDP(2),
        users=range(8),
        people=(people := People.memory(rule)),
        noise=NoiseSource.simulation(0),
    )
    with pytest.raises(ProvenanceError, match="given was registry"):
        PartialSum.from_bytes(data, KEY, people=people)
    assert account.people is people


def test_pooled_and_other_sums_stay_apart() -> None:
    rule = Participation(2, pooled=True)
    people = People.memory(rule)
    account = CentralAccountant(
        ZCDP(2), users=range(8), people=people, noise=NoiseSource.simulation(0)
    )
    account.divide([0, 4])
    rows = people.seal_next(np.ones((8, 2)), list("aabbabab"))
    unpooled, pooled = (
        PartialSum.from_bytes(SUM.partial(each).to_bytes(KEY), KEY, people=people)
        for each in (rows, rows.pool(mean_of_visits))
    )
    token = account.issue(SUM.loss(), users=range(8), label="sum")
    with pytest.raises(ProvenanceError, match="under a pooled rule"):
        SUM.release_partial(unpooled, token)
    SUM.release_partial(pooled, token)


def test_visits_on_a_timetable_travel_call_by_call(several: Any) -> None:
    rule = Participation(2, clock="timetable")
    kept = People.memory(rule)
    kept.bind("me", range(9))
    one, other, owner = several(kept, 3)
    parts = []
    for people, slots, ids in ((one, [3], ["a"]), (other, [3, 3], ["a", "b"]), (one, [3, 4], "ac")):
        users = range(slots[0], slots[-1] + 1) if people.clock else range(slots[-1] + 1)
        rows = Rows.seal(np.ones((len(slots), 2)), users=users, slots=slots)
        parts.append(people.admit(rows, list(ids)))
    sent = [rows_to_bytes(part, KEY) for part in parts]
    taken = [rows_from_bytes(data, KEY, people=owner) for data in sent]
    together = Rows.concat(taken)
    assert together.users == range(5)
    (chunk,) = Rows._unseal(together)
    assert chunk.valid.tolist() == [True, False, True, False, True]  # once in a slot
    with pytest.raises(UsersError, match="twice"):
        Rows.concat([taken[0], taken[1], taken[1]])
    with pytest.raises(ProvenanceError, match="those of each call"):
        rows_to_bytes(Rows.concat(taken[1:]), KEY)
    with pytest.raises(ProvenanceError, match="rows_to_bytes"):
        SUM.partial(parts[0]).to_bytes(KEY)


def test_rows_of_nobody_and_logged_rows_travel_too() -> None:
    values = np.ones((3, 2))
    for rows in (Rows.seal(values, users=range(3)), Rows.null(range(3))):
        found = rows_from_bytes(rows_to_bytes(rows, KEY), KEY)
        assert (found.users, Rows._stamp_of(found)) == (rows.users, Rows._stamp_of(rows))
        assert total_of(SUM.partial(found)) == total_of(SUM.partial(rows))
    assert b"users" not in rows_to_bytes(Rows.seal(values, users=range(3)), KEY)
    with pytest.raises(TypeError, match="rows: must be Rows"):
        rows_to_bytes(values, KEY)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be 32 bytes"):
        rows_to_bytes(Rows.null(range(3)), b"short")


@pytest.mark.parametrize(
    "change",
    [
        lambda head, body: ({"users": [0, 3]}, body),
        lambda head, body: ({**head, "users": [3, 0]}, body),
        lambda head, body: ({**head, "users": [0, 4]}, body),
        lambda head, body: ({**head, "call": "1"}, body),
        lambda head, body: (head, body.replace(b'"served":false', b'"served":true')),
        lambda head, body: (head, body.replace(b'"stamp":null', b'"stamp":3')),
        lambda head, body: (head, body[:-1]),
        lambda head, body: (
            head,
            body.replace(
                b'"stamp":null',
                b'"stamp":{"registry":null,"persons":null,"counted":null,"pooled":false}',
            ),
        ),
    ],
)
def test_other_bytes_under_the_key_are_refused(change: Any) -> None:
    data = rows_to_bytes(Rows.seal(np.ones((3, 2)), users=range(3)), KEY)
    cipher = cipher_of(KEY)
    head, _, body = cipher.decrypt(data[:12], data[12:], travel._FORMAT).partition(b"\n")
    made, rest = change(json.loads(head), body)
    text = json.dumps(made).encode() + b"\n" + rest
    forged = data[:12] + cipher.encrypt(data[:12], text, travel._FORMAT)
    with pytest.raises(ValueError, match="but no rows"):
        rows_from_bytes(forged, KEY)
