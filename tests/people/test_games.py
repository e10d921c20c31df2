"""One person against the guarantee, in small games that are enumerated to the end.

The rules as they are reach what is claimed for them and no more.  Each fault that is planted in the
package lets some strategy of the same game see more than is claimed: what they guard is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_games import (
    NULL,
    Game,
    Observer,
    Table,
    Visit,
    nulled,
    other,
    replaced,
    summing,
)
from mutation import Edit

from privlearn.accountants import CentralAccountant
from privlearn.errors import BudgetError, PrivlearnError, ProvenanceError, UsersError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation as Rule

PAIRS = [(range(0, 2), 1), (range(2, 4), 1)]
COME_OR_NOT = [nulled("i"), nulled("i", -1.0), other("q")]


@contextmanager
def planted(*edits: Edit) -> Iterator[None]:
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(edit.applied())
        yield


def pooling(table: Table, visits: Sequence[Visit]) -> None:
    """Each batch becomes one row of each person, at its end."""
    for users, price in table.game.tokens:
        rows = table.answers(visits[users.start : users.stop], users)
        table.release(users, price, rows.pool(_total))


def _total(block: Any) -> Any:
    return block.sum(axis=0)


def at_once(table: Table, visits: Sequence[Visit]) -> None:
    """All are served in one call, and the batches are cut from what it delivers."""
    rows = table.answers(visits, range(table.game.slots))
    for users, price in table.game.tokens:
        table.release(users, price, rows.slice(users))


def answering_late(table: Table, visits: Sequence[Visit]) -> None:
    """The last answer of the first batch is late, and offered with those of the second."""
    (first, price), (second, more) = table.game.tokens
    early = table.answers(visits[: first.stop - 1], range(first.start, first.stop - 1))
    late = table.answers(visits[first.stop - 1 : first.stop], range(first.stop - 1, first.stop))
    table.release(first, price, early)
    rows = table.answers(visits[first.stop :], second)
    try:
        table.release(second, more, Rows.concat([late, rows]))
    except PrivlearnError:  # refused: it is null
        table.release(second, more, rows)


def edit(target: str, old: str, new: str) -> Edit:
    return Edit(f"privlearn.{target}", old, new)


ONCE_PER_BATCH = Game(
    Rule(3, per_batch=1),
    [(range(0, 2), 1), (range(2, 4), 1), (range(4, 6), 1)],
    [[nulled("i")], *[[nulled("i"), other("q")]] * 4, [nulled("i", -1.0)]],
    (0, 2, 4),
)
TWICE_IN_ONE = Game(Rule(2), [(range(0, 4), 1)], [COME_OR_NOT] * 4)
REPLACED = Game(
    Rule(2, pattern="public"),
    [(range(0, 2), 1), (range(2, 4), 1)],
    [[replaced("i", 1.0, -1.0), other("q")]] * 4,
    adjacency=Adjacency.REPLACE_ONE,
)
POOLED = Game(
    Rule(2, pooled=True),
    PAIRS,
    [[nulled("i"), nulled("i", -1.0)]] * 3 + [[nulled("i"), other("q")]],
    (0, 2),
    player=pooling,
)
APART = Game(
    Rule(3, apart=3), [(range(0, 3), 1), (range(3, 5), 1)], [[nulled("i"), other("q")]] * 5
)
TIMETABLE = Game(
    Rule(2, apart=2, clock="timetable"),
    [(range(0, 2), 1)],
    [COME_OR_NOT] * 4,
    at=(0, 0, 0, 1),
)


@pytest.mark.parametrize(
    ("game", "claim"),
    [
        pytest.param(ONCE_PER_BATCH, 3, id="once in each of three batches"),
        pytest.param(TWICE_IN_ONE, 2, id="twice"),
        pytest.param(REPLACED, 4, id="twice, replaced"),
        pytest.param(POOLED, 2, id="pooled, two batches"),
        pytest.param(APART, 2, id="apart"),
        pytest.param(TIMETABLE, 1, id="timetable"),
    ],
)
def test_rules_reach_what_is_claimed_and_no_more(game: Game, claim: int) -> None:
    assert game.claim() == claim
    assert game.worst() == 2**claim


JUDGE = "people.quotas:judge"
DOUBLE = edit(JUDGE, "if within > per_batch:", "if False:")
SHARED = edit(JUDGE, "standing = changed.get(key)", "key = b'all'; standing = changed.get(key)")
BY_OWN_VISITS = edit(JUDGE, "persons[place] = number", "persons[place] = number; slot = place")
FROM_THE_FIRST = edit(
    JUDGE,
    "Standing(number, used + 1, slot, within)",
    "Standing(number, used + 1, last if used else slot, within)",
)
DROPPED = edit(
    "rows.sealed:Rows._admitted",
    "_kept(rows.__chunks, learned)",
    "[_Chunk(record_at(c.block, order), learned[order]) for c in rows.__chunks"
    " for order in [np.argsort((found.persons >= 0) & ~learned, kind='stable')]]",
)
ONLY_VALID = edit(
    "contract.billboard:Billboard.serve",
    "registry.admit_visits(people, users, slots)",
    "registry.admit_visits([i if ok else None for i, ok"
    " in zip(people, Rows._unseal(rows)[0].valid)], users, slots)",
)
NEXT_BATCH = edit(
    "contract.openings:check_rows", "users.start < first or users.stop > last", "False"
)

TWICE_IN_A_BATCH = replace(
    ONCE_PER_BATCH, tokens=PAIRS, moves=[[nulled("i"), other("q")]] * 4, starts=(0, 2)
)
SURPLUS = Game(
    Rule(1),
    PAIRS,
    [[nulled("i")], [nulled("i"), other("q")], *([other(id), other(id, -1.0)] for id in "rs")],
    player=at_once,
)
VALID = Game(
    Rule(1, pattern="public"),
    [(range(t, t + 1), 1) for t in range(2)],
    [[replaced("i", 1.0, NULL), replaced("i", NULL, 1.0), other("q")]] * 2,
)
LATE = Game(
    Rule(2, per_batch=1),
    [(range(0, 2), 1), (range(2, 4), 2)],
    [[nulled("i"), other("q")]] * 4,
    (0, 2),
    player=answering_late,
)


@pytest.mark.parametrize(
    ("game", "fault", "claim", "worst"),
    [
        pytest.param(TWICE_IN_A_BATCH, DOUBLE, 2, 3, id="twice in a batch"),
        pytest.param(SURPLUS, DROPPED, 1, 3, id="surplus visits dropped in place of null"),
        pytest.param(TWICE_IN_ONE, SHARED, 2, 4, id="a quota of all persons together"),
        pytest.param(TIMETABLE, BY_OWN_VISITS, 1, 2, id="own visits in place of slots"),
        pytest.param(APART, FROM_THE_FIRST, 2, 3, id="apart from the first visit only"),
        pytest.param(VALID, ONLY_VALID, 1, 2, id="only valid visits count"),
        pytest.param(LATE, NEXT_BATCH, 3, 4, id="late answers in the next batch"),
    ],
)
def test_what_is_guarded_is_needed(game: Game, fault: Edit, claim: int, worst: int) -> None:
    assert game.claim() == claim
    if game not in (TWICE_IN_ONE, TIMETABLE, APART):  # which were played above
        assert game.worst() <= 2**claim
    with planted(fault):
        assert game.claim() == claim
        assert game.worst() == 2**worst


def test_pooling_inside_of_an_epoch_that_releases() -> None:
    whole = replace(POOLED, rule=Rule(1, pooled=True), tokens=[(range(0, 4), 1)], starts=(0,))
    assert whole.claim() == 1
    assert whole.worst() == 2
    halves = replace(whole, tokens=PAIRS)
    with pytest.raises(BudgetError, match="cuts a batch"):
        halves.claim()
    priced = edit(
        "accountants.persons:Visits.most",
        "visits(len(users), self._batches(users))",
        "visits(len(users))",
    )
    with planted(priced):
        assert halves.claim() == 1
        with pytest.raises(UsersError, match="whole batches"):
            halves.worst()
    cut = edit("people.registry:People.batches", "starts = seen.starts or ()", "return [users]")
    with planted(priced, cut):
        assert halves.worst() == 2  # a person's row is where the batch was debited
    anew = edit("rows.pooling:pool", " or not counted[group[0]]", "")
    with planted(priced, cut, anew):
        assert halves.worst() == 2**2


def test_an_id_that_two_share_counts_for_both() -> None:
    """Of two ids, one of somebody else: 2 is claimed for groups of two, if debits are kept."""
    mine, theirs = nulled("i"), nulled("q")
    game = Game(Rule(1), [(range(0, 4), 1)], [[mine, theirs, other("q", -1.0)]] * 3 + [[mine]])
    assert game.claim() == 1
    assert game.worst() == 2**3
    kept = [[replaced("i", 1.0, NULL), replaced("q", 1.0, NULL), other("q", -1.0)]] * 3
    assert replace(game, moves=[*kept, kept[0][:1]]).worst() == 2**2


@dataclass(frozen=True)
class LostRegistry(Game):
    """The registry is lost after the first slot, whose row is pending, and another takes over."""

    folder: Path = Path()

    def sums(self, visits: Sequence[Visit], outputs: Sequence[int]) -> tuple[int, ...]:
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        watcher = Observer(outputs)
        lost = People.create(folder / "lost", self.rule)
        account: CentralAccountant[PureDP] = CentralAccountant(
            PureDP(100),
            users=range(self.slots),
            people=lost,
            ledger=Ledger.create(folder / "ledger"),
            noise=NoiseSource.simulation(0),
        )
        account.divide(self.starts)
        pending = _logged(lost, visits, range(0, 1))
        account.ledger.close()
        lost.close()
        people = People.replace_lost(folder / "next", self.rule, id=lost.id, clock=1)
        account = CentralAccountant.resume(
            folder / "ledger", noise=NoiseSource.simulation(0), people=people
        )
        account.issuer.observer = watcher
        account.divide(self.starts)
        for users, price in self.tokens:
            mechanism = summing(price, self.adjacency)
            token = account.issue(mechanism.loss(), users=users, label="sum")
            new = _logged(people, visits, range(max(users.start, 1), users.stop))
            rows = new if users.start else Rows.concat([pending, new])
            try:
                mechanism.release(rows, token)
            except ProvenanceError:  # refused: what was pending is null
                mechanism.release(Rows.concat([Rows.null(range(0, 1)), new]), token)
        account.ledger.close()
        people.close()
        return tuple(watcher.sums)


def _logged(people: People, visits: Sequence[Visit], users: range) -> Rows[Any]:
    own = visits[users.start : users.stop]
    rows = Rows.seal(np.array([[visit.value] for visit in own]), users=users)
    return people.admit(rows, [visit.id for visit in own])


def test_a_registry_that_begins_anew_with_rows_pending(tmp_path: Path) -> None:
    game = LostRegistry(Rule(2, per_batch=1), PAIRS[:1], [[nulled("i")]] * 2, (0,), folder=tmp_path)
    assert game.claim() == 1
    assert game.worst() == 1  # nobody is learned any more
    anew = edit("people.keeper:_admit", "if head.serving_only:", "if False:")
    with planted(anew):
        assert game.worst() == 2  # as rows of the lost registry are refused
    joined = edit("rows.stamps:joined", "stamp.registry is not first.registry or", "False or")
    checked = edit("contract.openings:_check_stamp", "stamp.registry is not people", "False")
    with planted(anew, joined, checked):
        assert game.worst() == 2**2  # in one sum: a Gaussian mass of 4
