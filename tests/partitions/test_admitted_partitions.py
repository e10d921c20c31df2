"""Partitions under a rule of participation: a person counts in all of them together."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from participation_oracle import Visits, rules

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.prices import Prices
from privlearn.accountants.serving import owning_ledger
from privlearn.errors import PartitionError, ProvenanceError, UsersError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    LinearObjective,
    NoisySum,
    ObjectivePerturbation,
    OneOfK,
)
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import PartialSum, Rows, merge, rows_from_bytes, rows_to_bytes
from privlearn.rows.domains import Ball
from privlearn.rows.partitions import InProcess, JobKey, PartitionedRows, SumJob
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

SLOTS = 24
STARTS = (0, 8, 16)
STD = 4.0
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(STD), Adjacency.ZERO_OUT)
NAMES = ["maria", "kim", "zoe", None]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return JobKey.create(tmp_path_factory.mktemp("job") / "key")


def data(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(SLOTS, 2))


def account(rule: Participation, **more: Any) -> CentralAccountant[ZCDP]:
    named = {"noise": NoiseSource.simulation(1), "people": People.memory(rule), **more}
    book = CentralAccountant(ZCDP(100), users=range(SLOTS), **named)
    if rule.batched:
        book.divide(STARTS)
    return book


def registry(book: CentralAccountant[Any]) -> People:
    assert book.people is not None
    return book.people


def token_for(book: Any, mechanism: Any = SUM) -> Any:
    return book.issue(mechanism.loss(), users=book.users, label="sum")


def cut(block: Any, cuts: Sequence[int], key: JobKey, **more: Any) -> PartitionedRows[Any]:
    return PartitionedRows.of_blocks(np.split(block, sorted(cuts)), key=key, **more)


def learned(rule: Participation, ids: Sequence[str | None]) -> list[bool]:
    """As the rule is written down."""
    oracle = Visits(rule, STARTS)
    return [oracle.learns(who, slot) for slot, who in enumerate(ids)]


def price(rule: Participation) -> Fraction:
    """ρ of one sum over all slots, for the most rows that any person can have in it.

    A person who comes at every slot is learned as often as any, as the first that can be taken is.
    """
    most = sum(learned(rule, ["maria"] * SLOTS))
    return Fraction(most**2) / (2 * Fraction(STD) ** 2)


# The same as in one process -------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    rule=rules().filter(lambda rule: not rule.pooled),
    who=st.lists(st.integers(0, 3), min_size=SLOTS, max_size=SLOTS),
    cuts=st.lists(st.integers(0, SLOTS), max_size=5),
)
def test_a_release_is_that_of_one_process_under_the_same_rule_bit_for_bit(
    rule: Participation, who: list[int], cuts: list[int], key: JobKey
) -> None:
    ids = [NAMES[i] for i in who]
    one, other = account(rule), account(rule)
    rows = registry(one).admit(Rows.seal(data(), users=range(SLOTS)), ids)
    whole = SUM.release(rows, token_for(one)).value
    parts = cut(data(), cuts, key).admitted(registry(other), ids)
    total = parts.partial(SUM)
    counted = np.where(np.array(learned(rule, ids))[:, None], data(), np.nan)
    expected = PartialSum._opened(SUM.partial(Rows.seal(counted, users=range(SLOTS))))
    assert PartialSum._opened(total).tolist() == expected.tolist()
    released = SUM.release_partial(total, token_for(other)).value
    assert released.tobytes() == whole.tobytes()
    assert other.spent() == one.spent() == ZCDP(price(rule))
    assert certify(other.ledger.records).problems == []


def halves(block: Any) -> Any:
    return block / 2


def test_functions_parts_and_slices(key: JobKey) -> None:
    rule, ids = Participation(2, apart=3), ["maria", "kim", "kim"] * 8
    one, other = account(rule), account(rule)
    rows = registry(one).admit(Rows.seal(data(), users=range(SLOTS)), ids).map_rows(halves)
    parts = cut(data(), [5, 11], key).map_rows(halves).admitted(registry(other), ids)
    for piece in (range(3, 14), range(14, 20)):
        whole = SUM.release(rows.slice(piece), token_for(one)).value
        total = parts.slice(piece).map_rows(np.asarray).partial(SUM)
        assert total.users == (piece,)
        assert SUM.release_partial(total, token_for(other)).value.tobytes() == whole.tobytes()
    pairs = [data(), np.arange(SLOTS) % 3]
    arms = OneOfK.calibrated(Ball(1.0, 2), ZCDP(2), arms=3, adjacency=Adjacency.ZERO_OUT)
    one, other = account(rule), account(rule)
    rows = registry(one).admit(Rows.seal((pairs[0], pairs[1]), users=range(SLOTS)), ids)
    blocks = [(pairs[0][a:b], pairs[1][a:b]) for a, b in ((0, 7), (7, SLOTS))]
    split = PartitionedRows.of_blocks(blocks, key=key).admitted(registry(other), ids)
    left = arms.release(rows, token_for(one, arms)).value
    right = arms.release_partial(split.partial(arms), token_for(other, arms)).value
    assert left.tobytes() == right.tobytes()


def test_running_sums_over_batches(key: JobKey) -> None:
    rule, ids = Participation(2, per_batch=1), ["maria", "kim"] * 12
    stream = BatchedPrefixSum.calibrated(
        Ball(1.0, 2), ZCDP(1), sizes=(8, 8, 8), adjacency=Adjacency.ZERO_OUT, participation=rule
    )
    one, other = account(rule), account(rule)
    rows = registry(one).admit(Rows.seal(data(), users=range(SLOTS)), ids)
    parts = cut(data(), [3, 12, 19], key).admitted(registry(other), ids)
    with stream.open(token_for(one, stream)) as here, stream.open(token_for(other, stream)) as sums:
        for start in STARTS:
            batch = range(start, start + 8)
            whole, found = here.append(rows.slice(batch)), parts.slice(batch).partial(stream)
            released = sums.append_partial(found)
            assert whole is not None
            assert released is not None
            assert released.value.tobytes() == whole.value.tobytes()
    assert other.spent() == one.spent()


def test_a_fit_is_that_of_one_process_and_is_charged_for_all_rows_of_a_person(key: JobKey) -> None:
    rule, ids = Participation(3, apart=2), (["maria"] * 3 + ["kim"]) * 6
    fit = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(2),
        ZCDP(5),
        max_rows=SLOTS,
        adjacency=Adjacency.ZERO_OUT,
        visits=3,
    )
    block = data(), (data(1)[:, 0] > 0).astype(float)
    one, other, free = account(rule), account(rule), account(Participation(9))
    rows: Rows[Any] = registry(one).admit(Rows.seal(block, users=range(SLOTS)), ids)
    whole = fit.release(rows, token_for(one, fit)).value
    blocks = [(block[0][a:b], block[1][a:b]) for a, b in ((0, 10), (10, 11), (11, SLOTS))]

    class Forgetting(InProcess):
        """Somebody asks to be forgotten before a pass."""

        def __init__(self, people: People, before: int) -> None:
            self.people, self.left = people, before

        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            if not self.left:
                self.people.forget("maria")
            self.left -= 1
            return super().add_up(work, parts, merge)

    def released(book: CentralAccountant[Any], before: int = 99) -> Any:
        engine = Forgetting(registry(book), before)
        parts = PartitionedRows.of_blocks(blocks, key=key, engine=engine)
        parts = parts.admitted(registry(book), ids)
        if before < 0:
            registry(book).forget("maria")
        return fit.release_partitions(parts, token_for(book, fit)).value

    assert np.linalg.norm(released(other) - whole) <= 2 * fit.solver_error
    between = released(account(rule), 4)
    assert np.linalg.norm(between - whole) <= 2 * fit.solver_error, "the same rows in all passes"
    assert np.linalg.norm(released(account(rule), -1) - whole) > 2 * fit.solver_error
    assert np.linalg.norm(released(free) - whole) > 2 * fit.solver_error, "of all rows"
    assert one.spent() == other.spent()
    assert ZCDP(5).covers(other.spent())
    assert not ZCDP(5).covers(free.spent())


# One person in several partitions -------------------------------------------------------------


def moved(rule: Participation, key: JobKey) -> float:
    """Squared move of the sum over twice the variance, where all of one person's rows go.

    The person stands in all partitions; the noise of both worlds is the same.
    """
    values = []
    for block in (np.tile([1.0, 0.0], (SLOTS, 1)), np.full((SLOTS, 2), np.nan)):
        own = account(rule)
        parts = cut(block, [6, 12, 18], key).admitted(registry(own), ["maria"] * SLOTS)
        values.append(SUM.release_partial(parts.partial(SUM), token_for(own)).value)
    return float(np.sum((values[0] - values[1]) ** 2) / (2 * STD**2))


@pytest.mark.parametrize(
    "rule", [Participation(1), Participation(3, apart=5), Participation(3, 2, 2)], ids=repr
)
def test_what_a_person_in_several_partitions_moves_is_what_is_charged(
    rule: Participation, key: JobKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charged() -> float:
        book = account(rule)
        parts = cut(data(), [6], key).admitted(registry(book), ["maria"] * SLOTS)
        SUM.release_partial(parts.partial(SUM), token_for(book))
        return float(book.spent().rho)

    divergence = moved(rule, key)
    assert divergence == pytest.approx(float(price(rule)))
    assert charged() >= divergence * (1 - 1e-9)
    # an account that forgets that a person has several rows
    monkeypatch.setattr(Prices, "loss_of_person", lambda self, loss, users: loss)
    assert (charged() < divergence * (1 - 1e-9)) is (rule.most > 1)


def test_registries_that_each_judge_a_partition_would_be_found(key: JobKey) -> None:
    rule, ids = Participation(2), ["maria"] * SLOTS
    sums = []
    for start in (0, 12):  # as if each worker had one of its own
        book = account(rule)
        registry(book).skip_to(start)
        part = PartitionedRows.of_blocks([data()[start : start + 12]], key=key, first=start)
        sums.append(part.admitted(registry(book), ids[:12]).partial(SUM))
    apart = np.sum([PartialSum._opened(each) for each in sums], axis=0)
    together = cut(data(), [12], key).admitted(registry(account(rule)), ids).partial(SUM)
    assert apart.tolist() != PartialSum._opened(together).tolist()
    total, book = merge(*sums), account(rule)
    head = len(book.ledger.entries)
    with pytest.raises(ProvenanceError, match="admitted by the accountant's registry"):
        SUM.release_partial(total, token_for(book))
    assert [e.entry for e in book.ledger.entries[head:]] == ["issue"], "nothing is spent"


def test_a_worker_that_forgets_who_is_learned_would_be_found(
    key: JobKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, ids = Participation(1), ["maria", "kim"] * 12
    right = cut(data(), [7], key).admitted(registry(account(rule)), ids).partial(SUM)
    forgetting = Rows._admitted_elsewhere
    monkeypatch.setattr(
        Rows,
        "_admitted_elsewhere",
        lambda rows, known, learned: forgetting(rows, known, np.ones_like(learned)),
    )
    wrong = cut(data(), [7], key).admitted(registry(account(rule)), ids).partial(SUM)
    assert PartialSum._opened(wrong).tolist() != PartialSum._opened(right).tolist()


class Unasked(InProcess):
    """A cluster that adds up partitions as they are, without who is learned."""

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        job: SumJob[Any] = work.__self__
        plain = SumJob(job.job, job.mechanism, job.steps, job.only)
        sums = [plain.partial(part.users, part.source.source) for part in parts]
        total = sums[0]
        for each in sums[1:]:
            total = plain.merge(total, each)
        return total


class Swapped(InProcess):
    """A cluster that hands a partition what was said of another one."""

    def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
        one, other = parts
        told = type(one.source)(one.source.source, other.source.learned)
        return bytes(merge(work(one.users, told), work(other.users, other.source)))


@pytest.mark.parametrize(
    ("engine", "match"),
    [(Unasked(), "did not say that they are learned"), (Swapped(), "a frame of learned")],
)
def test_sums_without_what_the_registry_said_are_refused(
    engine: Any, match: str, key: JobKey
) -> None:
    book = account(Participation(2))
    parts = cut(data(), [12], key, engine=engine).admitted(registry(book), ["maria"] * SLOTS)
    with pytest.raises(PartitionError, match=match):
        parts.partial(SUM)


def test_a_person_at_a_worker_of_its_own_and_in_two_partitions(key: JobKey, tmp_path: Path) -> None:
    """The owner of the registry judges for all of them, also for the runs of a lease."""
    rule, secret = Participation(3, apart=2), bytes(32)
    ids = ["maria"] * 6 + ["kim", "maria"] * 9
    kept = People.create(tmp_path / "people.db", rule)
    with owning_ledger(tmp_path / "l.db", new=True, people=kept) as socket:
        people, worker = People.connect(socket), People.connect(socket)
        book = CentralAccountant(
            ZCDP(100),
            users=range(SLOTS),
            people=people,
            ledger=Ledger.connect(socket),
            noise=NoiseSource.simulation(1),
        )
        rows = worker.seal_next(data()[:3], ids[:3])
        sent = SUM.partial(rows).to_bytes(secret)
        taken = PartitionedRows.of_blocks([data()[:2]], key=key)
        with pytest.raises(UsersError):
            taken.admitted(people, ids[:2])
        rest = PartitionedRows.of_blocks([data()[3:5], data()[5:]], key=key, first=3)
        here = rest.admitted(people, ids[3:]).partial(SUM)
        total = merge(PartialSum.from_bytes(sent, secret, people=people), here)
        counted = np.where(np.array(learned(rule, ids))[:, None], data(), np.nan)
        expected = PartialSum._opened(SUM.partial(Rows.seal(counted, users=range(SLOTS))))
        assert PartialSum._opened(total).tolist() == expected.tolist()
        SUM.release_partial(total, token_for(book))
        with book.lease(SUM, runs=2, users=range(3), label="worker's") as lease:
            lease.release(rows_from_bytes(rows_to_bytes(rows, secret), secret, people=people))
        assert book.certificate().problems == []
        for each in (people, worker, book.ledger):
            each.close()
    kept.close()


# What is refused, before anybody is debited ---------------------------------------------------


def test_slots_that_overlap_are_refused(key: JobKey) -> None:
    book = account(Participation(1))
    people = registry(book)
    first = cut(data()[:12], [], key).admitted(people, ["maria"] * 12)
    again = PartitionedRows.of_blocks([data()[:6]], key=key, first=8)
    with pytest.raises(UsersError):
        again.admitted(people, ["kim"] * 6)
    assert people.clock == 12
    rest = PartitionedRows.of_blocks([data()[12:]], key=key, first=12)
    with pytest.raises(UsersError):
        rest.admitted(people, ["kim"] * 3)
    one, other = first.partial(SUM), rest.admitted(people, ["kim"] * 12).partial(SUM)
    with pytest.raises(UsersError, match=r"users 0\.\.11 are in two partial sums"):
        merge(one, other, first.partial(SUM))
    whole = account(Participation(1))
    rows = registry(whole).admit(
        Rows.seal(data(), users=range(SLOTS)), ["maria"] * 12 + ["kim"] * 12
    )
    released = SUM.release_partial(merge(one, other), token_for(book)).value
    assert released.tobytes() == SUM.release(rows, token_for(whole)).value.tobytes()


def test_what_cannot_be_admitted_over_partitions(key: JobKey) -> None:
    rows, ids = cut(data(), [12], key), ["maria"] * SLOTS
    pooled, timed = Participation(2, pooled=True), Participation(2, clock="timetable")
    for rule, match in ((pooled, "per_batch=1 costs as much"), (timed, "sizes of partitions")):
        book = account(rule)
        with pytest.raises(ProvenanceError, match=match):
            rows.admitted(registry(book), ids)
        assert registry(book).clock == 0
    people = registry(account(Participation(2)))
    with pytest.raises(TypeError, match="must be a registry, People, not list"):
        rows.admitted(ids, ids)  # type: ignore[arg-type]
    alike: Any = SimpleNamespace(rule=people.rule, clock=0, admit_visits=people.admit_visits)
    with pytest.raises(TypeError, match="must be a registry, People, not SimpleNamespace"):
        rows.admitted(alike, ids)  # which rows count would follow from code that nobody names
    admitted = rows.admitted(people, ids)
    with pytest.raises(ProvenanceError, match="a registry admitted these rows before"):
        admitted.admitted(registry(account(Participation(2))), ids)
    other = account(Participation(2))
    with pytest.raises(ProvenanceError, match=r"of partitions rows\.admitted\(people, ids\)"):
        SUM.release_partial(admitted.partial(SUM), token_for(other))
    fit = ObjectivePerturbation.calibrated(
        LinearObjective.logistic(1), ZCDP(5), max_rows=SLOTS, adjacency=Adjacency.ZERO_OUT
    )
    for given_rows in (rows, admitted):
        with pytest.raises(ProvenanceError, match="admitted by the accountant's registry"):
            fit.release_partitions(given_rows, token_for(other, fit))


def test_who_asks_to_be_forgotten_is_null_from_then_on(key: JobKey) -> None:
    book, ids = account(Participation(2)), ["maria", "kim"] * 12
    parts = cut(data(), [1], key).admitted(registry(book), ids)
    before = PartialSum._opened(parts.partial(SUM))
    registry(book).forget("maria")
    after = PartialSum._opened(parts.partial(SUM))
    kim = np.full((SLOTS, 2), np.nan)
    kim[[1, 3]] = data()[[1, 3]]
    alone = PartialSum._opened(SUM.partial(Rows.seal(kim, users=range(SLOTS))))
    assert after.tolist() == alone.tolist() != before.tolist()


def test_ids_and_who_is_learned_do_not_travel_in_clear(key: JobKey) -> None:
    seen: list[bytes] = []

    class Watched(InProcess):
        def add_up(self, work: Any, parts: Any, merge: Any) -> bytes:
            seen.append(pickle.dumps((work, list(parts), merge)))
            return super().add_up(work, parts, merge)

    sizes = []
    for ids in (["maria@example.org"] * SLOTS, [f"{i}" for i in range(SLOTS)], [None] * SLOTS):
        book = account(Participation(1))
        parts = cut(data(), [12], key, engine=Watched()).admitted(registry(book), ids)
        parts.partial(SUM)
        assert b"maria" not in seen[-1]
        told = [part.source for part in parts._told(parts._stamp_of(parts), "a" * 32)]  # type: ignore[arg-type]
        assert all(repr(each) == f"Admitted({len(each.learned)} bytes, encrypted)" for each in told)
        sizes.append([len(each.learned) for each in told])
    assert sizes[0] == sizes[1] == sizes[2]
    assert len({len(each) for each in seen}) == 1, "which rows are learned is not told by a length"
