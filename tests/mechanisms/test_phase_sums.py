"""Sums over phases: exact sums, the price of one, and phases that nobody can choose after rows."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, dying_at, resumed

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.state import AccountState
from privlearn.contract.protocols import Plan
from privlearn.errors import BudgetError, LedgerError, PrivlearnError, TokenError, UsersError
from privlearn.learners.participation import one_row_budget
from privlearn.learners.planned_phases import PlannedPhases
from privlearn.ledger import Ledger
from privlearn.ledger.entries import (
    RESUME,
    Entry,
    OpenEntry,
    PhaseEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.losses import LaplaceLoss, PureLoss, VisitsLoss
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.mechanisms import NoisySum, PhaseStream, PhaseSum
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

VERIFIER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "verify_ledger.py"))
N = 12
USERS = range(N)
BOX = Box(-0.5, 0.5, 1)
SUMS = PhaseSum(BOX, LaplaceNoise(1.0), N)


def opened(mechanism: PhaseSum[Any], seed: int = 0, users: range = USERS) -> PhaseStream[Any]:
    book = CentralAccountant(PureDP(9), users=users, noise=NoiseSource.simulation(seed))
    return mechanism.open(book.issue(mechanism.loss(), users=users, label="sums"))


def sealed(values: Array, users: range) -> Rows[Any]:
    return Rows.seal(values[users.start : users.stop], users=users)


# Sums and noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_what_leaves_is_the_exact_sum_of_what_the_signs_say(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    values = rng.normal(size=(N, 1))  # some beyond the box, which clips them
    values[3] = np.nan
    mechanism = PhaseSum(BOX, LaplaceNoise(1.0), N, outputs)
    signs = np.zeros((N, outputs), dtype=np.int8)
    signs[USERS, rng.integers(outputs, size=N)] = rng.integers(-1, 2, size=N)
    streams = opened(mechanism), opened(mechanism)  # of the same noise
    grid = mechanism.spend().grid
    assert grid is not None
    clipped = np.trunc(np.clip(np.nan_to_num(values), -0.5, 0.5) / grid.step)
    for phase in (range(0, 1), range(1, 8), range(8, N)):
        mine = signs[phase.start : phase.stop]
        found = []
        for stream, data in zip(streams, (values, 0 * values), strict=True):
            stream.begin(phase.stop, mine)
            found.append(stream.end(sealed(data, phase)).value / grid.step)
        assert found[0].shape == (outputs,)
        expected = mine.T.astype(np.float64) @ clipped[phase.start : phase.stop, 0]
        assert (found[0] - found[1]).tolist() == expected.tolist()
    assert streams[0].closed


def test_sums_have_the_shape_of_what_they_are_of() -> None:
    stream = opened(PhaseSum(PSDTrace(1.0, 2), LaplaceNoise(2.0), N, 2))
    stream.begin(3, np.eye(2, dtype=np.int8)[[0, 1, 1]])
    assert stream.end(Rows.null(range(3))).value.shape == (2, 2, 2)


@pytest.mark.parametrize("noise", [LaplaceNoise(2.0), GaussianNoise(2.0)])
def test_noise_is_fresh_for_every_number_of_every_phase(noise: Any) -> None:
    mechanism = PhaseSum(BOX, noise, 500, 2)
    stream = opened(mechanism, users=range(500)) if isinstance(noise, LaplaceNoise) else None
    if stream is None:
        book = CentralAccountant(ZCDP(1), users=range(500), noise=NoiseSource.simulation(1))
        token = book.issue(mechanism.loss(), users=range(500), label="sums")
        stream = mechanism.open(token)
    found = []
    for user in range(500):
        stream.begin(user + 1, np.array([[1, 0]]))
        found.append(stream.end(Rows.null(range(user, user + 1))).value)
    numbers = np.array(found)
    assert numbers.std(axis=0) == pytest.approx(mechanism.error_std(), rel=0.2)
    later = np.corrcoef(np.hstack([numbers[1:], numbers[:-1]]), rowvar=False)
    assert np.abs(later - np.eye(4)).max() < 0.2


def test_all_phases_cost_what_one_sum_does() -> None:
    for budget, noise in ((PureDP(1), "laplace"), (ZCDP("1/2"), "gaussian"), (GaussianDP(1), None)):
        mechanism = PhaseSum.calibrated(BOX, budget, horizon=N, outputs=2)
        one = NoisySum.calibrated(BOX, budget, noise=noise or "gaussian")  # type: ignore[arg-type]
        assert (mechanism.noise, mechanism.loss()) == (one.noise, one.loss())
        book = CentralAccountant(budget, users=USERS, noise=NoiseSource.simulation(0))
        phases = PlannedPhases(book, "sums", USERS, mechanism)
        book.commit([phases.plan()])
        for start in USERS:
            phases.begin(range(start, start + 1), np.array([[0, -1]]))
            phases.end(Rows.null(range(start, start + 1)))
        assert [book.spent(user) for user in USERS] == [budget] * N
        said = book.certificate()
        assert said.problems == []
        assert any("is in one of its phases" in text for text in said.trusted_code)  # in memory


@pytest.mark.parametrize(
    ("signs", "error"),
    [
        (None, ValueError),
        (np.ones((3, 2), dtype=np.int8), ValueError),  # a row in both sums
        (np.full((3, 2), [2, 0]), ValueError),
        (np.full((3, 2), [-(2**63), 0]), ValueError),  # of which int64 has no size
        (np.ones((2, 2), dtype=np.int8), ValueError),
        (np.eye(3, 2), TypeError),
        ([[1, 0]] * 3, TypeError),
    ],
)
def test_signs_are_minus_one_zero_or_one_and_one_a_row(signs: Any, error: Any) -> None:
    stream = opened(PhaseSum(BOX, LaplaceNoise(1.0), N, 2))
    with pytest.raises(error, match="signs"):
        stream.begin(3, signs)
    assert stream.phase is None
    stream.begin(3, np.eye(3, 2, dtype=np.int8))


def test_signs_are_those_that_were_given_before_the_rows() -> None:
    signs = np.ones((1, 1), dtype=np.int8)
    streams = opened(SUMS), opened(SUMS)
    streams[0].begin(1, signs)
    signs[0] = -1
    streams[1].begin(1)
    rows = Rows.seal(np.full((1, 1), 0.5), users=range(1))
    assert streams[0].end(rows).value == streams[1].end(rows).value


def test_phases_follow_each_other_and_are_taken_whole() -> None:
    stream = opened(SUMS)
    with pytest.raises(UsersError, match="phase"):
        stream.end(Rows.null(range(1)))
    for stop in (0, N + 1, 2.0):
        with pytest.raises(UsersError, match="stop"):
            stream.begin(stop)  # type: ignore[arg-type]
    stream.begin(4)
    with pytest.raises(UsersError, match="is open"):
        stream.begin(5)
    for users in (range(3), range(5), range(1, 4)):
        with pytest.raises(UsersError, match="open phase"):
            stream.end(Rows.null(users))
    assert stream.end(Rows.null(range(4))).value.shape == (1,)
    assert stream.phase is None


def test_what_phases_cannot_be_of_is_refused() -> None:
    with pytest.raises(TypeError, match="LaplaceNoise or GaussianNoise"):
        PhaseSum(BOX, 1.0, N)  # type: ignore[arg-type]
    with pytest.raises(PrivlearnError, match="add-remove"):
        PhaseSum(BOX, LaplaceNoise(1.0), N, adjacency=Adjacency.ADD_REMOVE)
    with pytest.raises(ValueError, match="add"):  # no grid has room for the sums
        PhaseSum(Box(-1e9, 1e9, 1), LaplaceNoise(1.0), 10)
    with pytest.raises(PrivlearnError, match="horizon"):
        opened(PhaseSum(BOX, LaplaceNoise(1.0), N - 1))


def test_the_receipt_itself_holds_a_mechanism_to_its_phases() -> None:
    book = CentralAccountant(PureDP(9), users=USERS, noise=NoiseSource.simulation(0))
    token = book.issue(SUMS.loss(), users=USERS, label="sums")
    with token.spend(SUMS.spend()) as receipt:
        receipt.begin_phase(5)
        receipt.draw_integers((1,))
        for unpaid in (receipt.publish, receipt.release):
            with pytest.raises(TokenError):
                unpaid(np.zeros(1))
        with pytest.raises(TokenError, match="has not ended"):
            receipt.begin_phase(6)
        for users in (range(4), range(6)):
            with pytest.raises(UsersError, match="phase"):
                receipt.open_integers(Rows.null(users))
        receipt.open_integers(Rows.null(range(5)))
        with pytest.raises(TokenError, match="has not ended"):
            receipt.begin_phase(6)
        with pytest.raises(TokenError, match="for each phase"):
            receipt.release(np.zeros(1))
        receipt.publish(np.zeros(1))
        with pytest.raises(TokenError, match="for each phase"):
            receipt.publish(np.zeros(1))


# The ledger ---------------------------------------------------------------------------------------


def begun_entries(rule: Participation | None = None, **changes: Any) -> list[Entry]:
    """The first entries of an account in a file: opened, a plan, a token, and its spend."""
    people = None if rule is None else People.memory(rule)
    relation = Adjacency.REPLACE_ONE if rule is None else Adjacency.ZERO_OUT
    mechanism = PhaseSum(BOX, LaplaceNoise(1.0), N, adjacency=relation)
    book = CentralAccountant(
        PureDP(3), users=USERS, noise=NoiseSource.simulation(0), adjacency=relation, people=people
    )
    book.commit([Plan("sums", mechanism.loss(), USERS)])
    mechanism.open(book.issue(mechanism.loss(), users=USERS, label="sums"))
    found = list(book.ledger.entries)
    features = {**found[0].features, RESUME: "critical"}  # type: ignore[union-attr]
    found[0] = found[0].model_copy(update={"features": features, "durable": True})
    found[-1] = found[-1].model_copy(update=changes)
    return found


def stood(entries: Sequence[Entry]) -> AccountState:
    first = entries[0]
    assert isinstance(first, OpenEntry)
    state = AccountState(first)
    for entry in entries[1:]:
        state.record(state.check(entry))
    return state


def told(spend: Entry, *steps: tuple[str, Any]) -> list[Entry]:
    """Entries of a token."""
    assert isinstance(spend, SpendEntry)
    of: dict[str, Any] = {"accountant": spend.accountant, "token": spend.token}
    found: list[Entry] = []
    for kind, number in steps:
        match kind:
            case "phase":
                found.append(PhaseEntry(**of, stop=number))
            case "reach":
                found.append(ReachEntry(**of, stop=number))
            case "publish":
                found.append(PublishEntry(**of, digest="0" * 64, upto=number))
            case _:
                found.append(RetireEntry(**of, outcome=number))
    return found


def verified(entries: Sequence[Entry], folder: Path) -> list[str]:
    """What the verifier that shares no code with the library finds."""
    ledger, path = Ledger.memory(), folder / f"{len(list(folder.iterdir()))}.jsonl"
    for entry in entries:
        ledger.append(entry)
    ledger.export(path)
    found: list[str] = VERIFIER["verify"](path)["problems"]
    return found


FIRST = ("phase", 5), ("reach", 5), ("publish", 5)
LAST = ("phase", N), ("reach", N), ("publish", N)


def test_an_honest_sequence_of_phases_stands(tmp_path: Path) -> None:
    entries = begun_entries()
    entries += told(entries[-1], *FIRST, *LAST, ("retire", "released"))
    assert stood(entries).open_phases == []
    assert verified(entries, tmp_path) == []


@pytest.mark.parametrize(
    "steps",
    [
        [("reach", 5)],  # no phase was announced
        [("phase", N + 1)],
        [("phase", 5), ("phase", 7)],  # a second one before the first has released
        [("phase", 5), ("reach", 4)],  # a shorter one
        [("phase", 5), ("reach", 6)],  # a longer one
        [("phase", 5), ("publish", 0)],
        [("phase", 5), ("publish", 5)],  # rows that were not opened
        [("phase", 5), ("reach", 5), ("publish", 4)],
        [*FIRST, ("publish", 5)],  # a second value
        [*FIRST, ("reach", 6)],
        [*FIRST, ("phase", 5)],
        [*FIRST, ("phase", 4)],  # one that overlaps
        [("phase", 5), ("reach", 5), ("phase", 7)],  # whose value did not leave
        [*FIRST, ("retire", "released")],  # users are left
        [*FIRST, ("phase", N), ("reach", N), ("retire", "released")],
    ],
)
def test_phases_that_overlap_or_were_not_announced_are_refused(steps: Any, tmp_path: Path) -> None:
    entries = begun_entries()
    told_so = told(entries[-1], *steps)
    state = stood([*entries, *told_so[:-1]])
    with pytest.raises(PrivlearnError):
        state.check(told_so[-1])
    assert verified([*entries, *told_so[:-1]], tmp_path) == []
    assert len(verified([*entries, *told_so], tmp_path)) == 1


def _in_phases(horizon: Any, outputs: Any = 1) -> dict[str, Any]:
    return {"parameters": {"phases": {"horizon": horizon, "outputs": outputs}}}


@pytest.mark.parametrize(
    "changes",
    [
        _in_phases(N - 1),
        _in_phases(N, 0),
        {"parameters": {"phases": {"horizon": N}}},
        {"parameters": {"phases": True}},
        {"interactive": False},
        {"gain": 0.5},
        {"arithmetic": "each"},
    ],
)
def test_a_spend_says_in_full_that_it_is_in_phases(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PrivlearnError, match="phase"):
        stood(begun_entries(**changes))
    assert len(verified(begun_entries(**changes), tmp_path)) == 1


def test_a_loss_below_what_the_noise_has_is_refused(tmp_path: Path) -> None:
    entries = begun_entries(loss=LaplaceLoss(Fraction(99, 100)).to_dict())
    with pytest.raises(PrivlearnError, match="loss"):
        stood(entries)
    assert len(verified(entries, tmp_path)) == 1


def test_the_loss_of_a_spend_in_phases_is_that_of_one_row(tmp_path: Path) -> None:
    for rule, relation in ((Participation(2), Adjacency.ZERO_OUT), (None, Adjacency.REPLACE_ONE)):
        loss = VisitsLoss(PureLoss(Fraction(1), adjacency=relation), 2, 1).to_dict()
        opened, plan, issue, spend = begun_entries(rule)
        item = plan.items[0].model_copy(update={"loss": loss})  # type: ignore[union-attr]
        plan = plan.model_copy(update={"items": (item,)})
        entries = [opened, plan, issue, spend.model_copy(update={"loss": loss, "derived": False})]
        with pytest.raises(BudgetError, match="is that of one row"):
            stood(entries)
    assert any("no such phases" in problem for problem in verified(entries, tmp_path))


def test_a_spend_in_phases_of_a_file_needs_entries_for_them() -> None:
    entries = begun_entries()
    features = {n: v for n, v in entries[0].features.items() if n != RESUME}  # type: ignore[union-attr]
    without = entries[0].model_copy(update={"features": features})
    with pytest.raises(BudgetError, match="resume/1"):
        stood([without, *entries[1:]])


def test_a_phase_that_was_begun_ends_where_it_was_to_end(tmp_path: Path) -> None:
    entries = begun_entries()
    issue, spend = entries[-2:]
    entries += told(spend, *FIRST, ("phase", 9), ("retire", "lost"))
    of = {"token": "next", "users": (5, N)}
    entries += [issue.model_copy(update=of), spend.model_copy(update=of)]
    state = stood(entries)
    for stop in (8, 10):
        with pytest.raises(UsersError, match="an end stays"):
            state.check(told(entries[-1], ("phase", stop))[0])
        assert len(verified([*entries, *told(entries[-1], ("phase", stop))], tmp_path)) == 1
    assert verified([*entries, *told(entries[-1], ("phase", 9))], tmp_path) == []
    again = told(entries[-1], ("phase", 9), ("reach", 9), ("publish", 9), *LAST)
    assert stood([*entries, *again]).open_phases == []


# Persons who return -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "times"), [(PureDP(1), 3), (ZCDP("1/2"), 9), (GaussianDP(1), 9)]
)
def test_a_person_with_k_rows_pays_k_epsilon_or_k_squared_rho(budget: Any, times: int) -> None:
    book = CentralAccountant(
        budget,
        users=USERS,
        people=People.memory(Participation(3)),
        adjacency=Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(0),
    )
    row = one_row_budget(book, [USERS])
    assert row == budget.share(Fraction(1, times))
    mechanism = PhaseSum.calibrated(BOX, row, horizon=N, adjacency=Adjacency.ZERO_OUT)
    phases = PlannedPhases(book, "sums", USERS, mechanism)
    book.commit([phases.plan()])
    price = book.budget.price(book.of_person(mechanism.loss(), USERS))
    assert budget.covers(price)
    assert price.amounts[0] == budget.price(mechanism.loss()).amounts[0] * times
    assert price.amounts[0] > budget.amounts[0] * Fraction(999, 1000)


@pytest.mark.parametrize(
    "rule", [Participation(3, per_batch=1), Participation(3, pooled=True)], ids=str
)
def test_rules_that_count_within_batches_are_refused_by_name(rule: Participation) -> None:
    book = CentralAccountant(
        PureDP(1),
        users=USERS,
        people=People.memory(rule),
        adjacency=Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(0),
    )
    with pytest.raises(ValueError, match="no batches can be declared"):
        PlannedPhases(book, "sums", USERS, SUMS)
    book.divide([0, 6])
    mechanism = PhaseSum(BOX, LaplaceNoise(9.0), N, adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(BudgetError, match="phases are not known"):
        mechanism.open(book.issue(mechanism.loss(), users=USERS, label="sums"))


# After a kill -------------------------------------------------------------------------------------


def walk(phases: PlannedPhases[Any], seen: list[tuple[range, bool]], stop: int, rows: Any) -> None:
    """Phases up to a user, whose ends follow from what was released."""
    while (users := phases.phase) is not None and users.stop <= stop:
        released = phases.end(rows(users))
        seen.append((users, released is not None))
        size = 2 if released is None else 1 + int(abs(released.value[0]) * 10) % 4
        if users.stop < N:
            phases.begin(range(users.stop, min(users.stop + size, N)))


def halves(users: range) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 1), 0.5), users=users)


def life(book: Any, seen: list[tuple[range, bool]]) -> None:
    """What a learner does."""
    phases: PlannedPhases[Any] = PlannedPhases(book, "sums", USERS, SUMS)
    if book.learner is None:
        book.record_learner("L", {}, {})
    book.commit([phases.plan()])
    phases.begin(range(3))
    if book.resumed:
        with book.replaying() as past:
            walk(phases, seen, max(past.points(), default=0), Rows.null)
        phases.go_on()
    walk(phases, seen, N, halves)


@pytest.mark.parametrize("entry", [3, 4, 5, 6, 7, 8, 10, 11])
@pytest.mark.parametrize("written", [False, True])
def test_after_a_kill_phases_go_on_and_no_row_is_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int, written: bool
) -> None:
    path = tmp_path / "ledger.db"
    seen: list[tuple[range, bool]] = []
    again: list[tuple[range, bool]] = []
    book = begun(path, PureDP(9), N)
    with dying_at(monkeypatch, entry, written=written):
        life(book, seen)
    die(book)
    book = resumed(path)
    declared = {e.stop for e in book.ledger.entries if isinstance(e, PhaseEntry)}
    life(book, again)
    book.close()
    assert again[: len(seen)] == seen
    assert [user for users, _ in again for user in users] == list(USERS)
    found = audit(path)
    assert found.problems == []
    assert found.spent[0].epsilon <= 1
    lost = [users for users, left in again if not left]
    assert len(lost) <= 1
    assert declared <= {users.stop for users, _ in again}
    assert any("phases began" in one.text for one in found.guarantees[0].rests_on)


def test_a_replay_whose_phases_end_elsewhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = begun(path, PureDP(9), N)
    phases: PlannedPhases[Any] = PlannedPhases(book, "sums", USERS, SUMS)
    book.record_learner("L", {}, {})
    book.commit([phases.plan()])
    phases.begin(range(3))
    phases.end(Rows.null(range(3)))
    die(book)
    book = resumed(path)
    phases = PlannedPhases(book, "sums", USERS, SUMS)
    book.commit([phases.plan()])
    phases.begin(range(4))
    with pytest.raises(LedgerError, match="the phase ended at 3"), book.replaying():
        phases.end(Rows.null(range(4)))


def test_phases_that_end_early_free_whoever_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    book = begun(path, PureDP(1), N)
    phases: PlannedPhases[Any] = PlannedPhases(book, "sums", USERS, SUMS)
    book.record_learner("L", {}, {})
    book.commit([phases.plan()])
    phases.begin(range(3))
    phases.end(Rows.null(range(3)))
    phases.begin(range(3, N))
    book.close()
    found = audit(path)
    # nothing else can have left of rows that were opened: no outcome is unknown
    assert (found.problems, found.freed, found.lost) == ([], N - 3, 0)
