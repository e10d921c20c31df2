"""Streams that end early: whom they are charged to, against a model that looks at every user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from one_line_faults import cases, is_found

from privlearn.accountants.audited_accounts import AuditedAccount
from privlearn.accountants.state import AccountState
from privlearn.accountants.streams import SEGMENT, Stream
from privlearn.errors import BudgetError, InsufficientBudgetError, PrivlearnError, UsersError
from privlearn.ledger.chain import GENESIS, Record
from privlearn.ledger.entries import (
    PARTICIPATION,
    RESUME,
    BatchesEntry,
    DelegateEntry,
    Entry,
    IssueEntry,
    OpenEntry,
    PlanEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
)
from privlearn.losses import ApproxLoss, GaussianLoss, Loss, PerArrivalLoss
from privlearn.losses.budgets import ZCDP
from privlearn.values.adjacency import Adjacency, Calibration, Trust
from privlearn.values.participation import Participation

N = 12
Rng = np.random.Generator
DIGEST = "0" * 64


def opened(
    cap: str = "1",
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    rule: Participation | None = None,
    failure: str = "0",
) -> OpenEntry:
    features: dict[str, Any] = {RESUME: "critical"}
    if rule is not None:
        features[PARTICIPATION] = "critical"
    return OpenEntry(
        accountant="a",
        software="x",
        trust=Trust.CENTRAL,
        adjacency=adjacency,
        users=(0, N),
        cap=ZCDP(cap).to_dict(),
        promise=None,
        noise="x",
        simulated=True,
        side_information=(),
        durable=True,
        failure=failure,
        features=features,
        participation=None if rule is None else {"rule": rule.to_dict(), "registry": "0" * 32},
    )


def gaussian(
    rho: str | int | Fraction, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> GaussianLoss:
    return GaussianLoss(2 * Fraction(rho), adjacency=adjacency)


def issue(token: str, users: tuple[int, int], rho: Any, **more: Any) -> IssueEntry:
    budget = ZCDP(Fraction(rho)).to_dict()
    label = more.pop("label", "stream")
    return IssueEntry(accountant="a", token=token, label=label, users=users, budget=budget, **more)


def spend(
    token: str, users: tuple[int, int], loss: Loss, *, interactive: bool = True, **more: Any
) -> SpendEntry:
    return SpendEntry(
        accountant="a",
        token=token,
        mechanism="sums",
        users=users,
        trust=Trust.CENTRAL,
        adjacency=loss.adjacency,
        domain={"kind": "mine"},
        noise={"family": "mine"},
        simulated=True,
        gain=1.0,
        loss=loss.to_dict(),
        arithmetic="own",
        derived=False,
        calibration=Calibration.PROVED,
        parameters={},
        interactive=interactive,
        **more,
    )


def reach(token: str, stop: int) -> ReachEntry:
    return ReachEntry(accountant="a", token=token, stop=stop)


def publish(token: str, upto: int) -> PublishEntry:
    return PublishEntry(accountant="a", token=token, digest=DIGEST, upto=upto)


def retire(token: str, outcome: Any, upto: int | None = None) -> RetireEntry:
    value = None if upto is None else {"digest": DIGEST, "upto": upto}
    return RetireEntry(accountant="a", token=token, outcome=outcome, value=value)


def stood(entries: Sequence[Any], **how: Any) -> AccountState:
    state = AccountState(opened(**how))
    for entry in entries:
        state.record(state.check(entry))
    return state


def charged(state: AccountState) -> list[Fraction]:
    """To each user, in ρ."""
    return [state.meter.largest(range(u, u + 1)).amounts[0] for u in range(N)]


def spent(state: AccountState) -> list[Fraction]:
    found = []
    for user in range(N):
        tally = state.charged.spent.of(user)
        found.append(Fraction(sum(n * (loss.zcdp() or 0) for loss, n in tally.items())))
    return found


def steps(*parts: tuple[int, Any]) -> list[Fraction]:
    return [Fraction(value) for n, value in parts for _ in range(n)]


# Cases --------------------------------------------------------------------------------------------


def test_a_stream_is_charged_to_users_below_its_reach() -> None:
    entries: list[Entry] = [
        issue("t", (2, 10), "1/4"),
        spend("t", (2, 10), gaussian("1/4")),
        reach("t", 5),
        publish("t", 4),
    ]
    assert charged(stood(entries)) == steps((2, 0), (8, "1/4"), (2, 0))
    for end in ("lost", "released"):
        state = stood([*entries, retire("t", end)])
        assert charged(state) == spent(state) == steps((2, 0), (3, "1/4"), (7, 0))


def test_an_end_that_may_depend_on_rows_frees_nobody() -> None:
    begun = [issue("t", (0, N), 1), spend("t", (0, N), gaussian(1))]
    state = stood([*begun, reach("t", 3), retire("t", "uncovered")])
    assert charged(state) == steps((N, 1))


def test_only_streams_end_early() -> None:
    loss = gaussian(1)
    one = [issue("t", (0, N), 1), spend("t", (0, N), loss, interactive=False), retire("t", "lost")]
    assert charged(stood(one)) == steps((N, 1))
    with pytest.raises(PrivlearnError, match="no reach"):
        stood([*one[:2], reach("t", 4)])


def test_what_may_fail_is_charged_whole() -> None:
    """(ε, δ) of a whole stream says nothing of its rest, given what left before."""
    issued = issue("t", (0, N), 1, failure="0.001")
    entries = [issued, spend("t", (0, N), ApproxLoss("0.1", "0.001")), retire("t", "lost")]
    state = stood(entries, failure="0.01")
    assert all(charged(state))
    assert {failed for _, failed in state.meter.failures()} == {Fraction(1, 1000)}


def test_under_add_remove_streams_are_charged_whole() -> None:
    loss = gaussian(1, Adjacency.ADD_REMOVE)
    entries = [issue("t", (0, N), 1), spend("t", (0, N), loss), retire("t", "lost")]
    assert charged(stood(entries, adjacency=Adjacency.ADD_REMOVE)) == steps((N, 1))


def persons(rule: Participation, *, starts: tuple[int, ...] = (), far: int = 0) -> AccountState:
    begun = [BatchesEntry(accountant="a", starts=starts)] if starts else []
    clock: dict[str, Any] = {"admitted": {"clock": 0}}
    loss = gaussian("1/4", Adjacency.ZERO_OUT)
    entries: list[Entry] = [
        *begun,
        issue("t", (0, N), 1),
        spend("t", (0, N), loss, **clock),
        *([reach("t", far)] if far else []),
        retire("t", "lost"),
    ]
    return stood(entries, adjacency=Adjacency.ZERO_OUT, rule=rule)


def test_a_person_with_several_visits_is_charged_whole() -> None:
    state = persons(Participation(2))
    assert state.meter.largest() == ZCDP(1)
    assert set(state.charged.runs_spent) == {(0, N, gaussian("1/4", Adjacency.ZERO_OUT))}


def test_a_person_with_one_visit_is_charged_by_whole_batches() -> None:
    for rule, starts, stop in (
        (Participation(1), (), 5),
        (Participation(1, pooled=True), (0, 4, 8), 8),
        (Participation(1, per_batch=1), (0, 8), 8),
        (Participation(1, per_batch=1), (0, 4), N),
    ):
        state = persons(rule, starts=starts, far=5)
        assert [n for (a, b, _), n in state.charged.runs_spent.items()] == [1]
        assert {(a, b) for a, b, _ in state.charged.runs_spent} == {(0, stop)}
        assert charged(state) == steps((stop, "1/4"), (N - stop, 0))


def test_by_arrival_everybody_in_it_pays_the_own_price() -> None:
    loss = PerArrivalLoss([(3, gaussian("1/2")), (9, gaussian("1/4"))])
    entries = [issue("t", (0, N), 1), spend("t", (0, N), loss), reach("t", 5), retire("t", "lost")]
    assert charged(stood(entries)) == steps((3, "1/2"), (2, "1/4"), (7, 0))


def test_a_stream_of_an_allowance_frees_what_the_allowance_holds() -> None:
    part: dict[str, Any] = {"accountant": "a", "allowance": "p", "label": "p", "users": (0, N)}
    begun = [
        DelegateEntry(**part, budget=ZCDP("1/2").to_dict()),
        issue("t", (0, N), "1/2", allowance="p"),
        spend("t", (0, N), gaussian("1/2")),
        reach("t", 5),
    ]
    end, back = retire("t", "lost"), ReturnEntry(accountant="a", allowance="p")
    assert charged(stood([*begun, end])) == steps((N, "1/2"))  # the allowance's
    state = stood([*begun, end, issue("u", (5, N), "1/2", allowance="p")])
    assert charged(state) == steps((N, "1/2"))
    for order in ((end, back), (back, end)):
        assert charged(stood([*begun, *order])) == steps((5, "1/2"), (7, 0))


def planned(count: int = 1, loss: Loss | None = None) -> list[Entry]:
    form = (loss or gaussian("1/4")).to_dict()
    item = {"label": "stream", "users": (0, N), "loss": form, "count": count}
    return [PlanEntry.model_validate({"accountant": "a", "items": [item]})]


def test_a_planned_stream_goes_on_with_those_who_come_later() -> None:
    whole = [issue("t", (0, N), "1/4", planned=0), spend("t", (0, N), gaussian("1/4"))]
    ended = [*planned(), *whole, reach("t", 5), retire("t", "lost")]
    for first in (0, 4):  # users who were in it, or may have been
        with pytest.raises(BudgetError, match="does not match"):
            stood([*ended, issue("u", (first, N), "1/4", planned=0)])
    again = [issue("u", (6, N), "1/4", planned=0), spend("u", (6, N), gaussian("1/4"))]
    state = stood([*ended, *again, reach("u", 8), retire("u", "lost")])
    assert spent(state) == steps((5, "1/4"), (1, 0), (2, "1/4"), (4, 0))
    assert state.plan is not None
    assert state.plan[0].rest == range(8, N)
    with pytest.raises(BudgetError, match="does not match"):
        stood([*ended, *again, issue("v", (9, N), "1/4", planned=0)])  # it is still open
    back = [*ended, again[0], retire("u", "unused"), again[0].model_copy(update={"token": "v"})]
    assert len(stood(back).outstanding()) == 1
    with pytest.raises(BudgetError, match="does not match"):
        stood([*back[:-1], issue("v", (0, N), "1/4", planned=0)])


def test_a_planned_stream_by_arrival_has_no_rest() -> None:
    loss = PerArrivalLoss([(3, gaussian("1/2")), (9, gaussian("1/4"))])
    whole = [issue("t", (0, N), "1/2", planned=0), spend("t", (0, N), loss)]
    state = stood([*planned(loss=loss), *whole, reach("t", 5), retire("t", "lost")])
    assert state.plan is not None
    assert state.plan[0].rest is None


def test_values_are_of_rows_within_the_reach() -> None:
    begun = [issue("t", (2, 9), 1), spend("t", (2, 9), gaussian(1)), reach("t", 6)]
    for entries in (
        [publish("t", 7)],
        [publish("t", 1)],
        [publish("t", 5), publish("t", 4)],
        [retire("t", "released", 7)],
        [reach("t", 6)],
        [reach("t", 10)],
    ):
        with pytest.raises(UsersError, match=r"rows up to|reach"):
            stood([*begun, *entries])
    stood([*begun, publish("t", 6), retire("t", "released", 6)])


# Entries that do not check ------------------------------------------------------------------------


def record_of(entry: Entry) -> Record:
    """An entry as it would stand at a ledger's beginning."""
    return Record.make(GENESIS, 0, entry.body(), ext=entry.ext())


def heard(*entries: Entry, **how: Any) -> tuple[AuditedAccount, list[str]]:
    """As an audit takes them; whatever is wrong is recorded, too."""
    book = AuditedAccount(AccountState(opened(**how)))
    return book, [book.take(entry, record_of(entry)) for entry in entries]


BEGUN: tuple[Entry, ...] = (issue("t", (0, N), 1), spend("t", (0, N), gaussian("1/2")))
WRONG: dict[str, tuple[Entry, ...]] = {
    "a value of later rows": (reach("t", 4), publish("t", 9), retire("t", "lost")),
    "a last value of later rows": (reach("t", 4), retire("t", "released", 9)),
    "a value and no outcome": (reach("t", 4), retire("t", "lost", 4)),
    "a reach that goes back": (reach("t", 4), reach("t", 2), retire("t", "lost")),
    "a reach beyond its users": (reach("t", N + 1), retire("t", "lost")),
    "a second spend": (BEGUN[1], retire("t", "lost")),
    "a second spend for others": (spend("t", (3, 5), gaussian("1/2")), retire("t", "lost")),
    "a second spend that is no stream": (
        spend("t", (0, N), gaussian("1/2"), interactive=False),
        retire("t", "lost"),
    ),
    "an end that cannot be": (reach("t", 4), retire("t", "unused")),
    "an end that is none": (reach("t", 4), retire("t", "unused", 4), retire("t", "lost")),
    "a second token of the name": (issue("t", (0, N), "1/4"), retire("t", "unused")),
}


def test_entries_that_do_not_check_free_nobody() -> None:
    for name, entries in WRONG.items():
        book, problems = heard(*BEGUN, *entries)
        assert any(problems), name
        assert min(spent(book.state)) >= Fraction(1, 2), name
        assert min(charged(book.state)) >= Fraction(1, 2), name
        assert book.totals.ended_early == 0


def test_what_is_wrong_with_a_token_keeps_what_it_holds() -> None:
    issued = issue("t", (0, N), "3/4")
    wrong = spend("t", (0, N), gaussian("1/4", Adjacency.ZERO_OUT))  # another relation
    for entries in (
        (issued, retire("t", "unused", 3)),
        (issued, wrong),
        (issued, wrong, retire("t", "unused")),
        (issued, reach("t", 3), retire("t", "unused")),
        (issue("t", (0, N), "3/4", planned=0), retire("t", "unused")),  # there is no plan
    ):
        book, problems = heard(*entries)
        assert any(problems)
        assert min(charged(book.state)) >= Fraction(3, 4)


def test_an_allowance_that_is_delegated_twice_frees_once() -> None:
    part: dict[str, Any] = {"accountant": "a", "allowance": "p", "label": "p", "users": (0, N)}
    twice = DelegateEntry(**part, budget=ZCDP("1/8").to_dict())
    first = DelegateEntry(**part, budget=ZCDP("1/2").to_dict())
    back = ReturnEntry(accountant="a", allowance="p")
    inner = issue("t", (0, N), "1/4", allowance="p")
    book, problems = heard(first, inner, twice, back, retire("t", "unused"), back)
    assert sum(map(bool, problems)) == 2
    assert charged(book.state) == steps((N, "1/8"))


# A model ------------------------------------------------------------------------------------------


@dataclass
class Token:
    """What the model knows of a token: it looks at its users one by one."""

    users: tuple[int, int]
    holds: Fraction
    planned: bool
    part: str | None
    price: Fraction | None = None
    stream: bool = False
    reach: int = 0
    end: str | None = None

    def pays(self, user: int) -> Fraction:
        """What a user is charged who may be in it."""
        if not self.users[0] <= user < self.users[1] or self.end == "unused":
            return Fraction(0)
        if self.price is None:
            return self.holds
        came = not self.stream or self.end in (None, "uncovered") or user < self.reach
        return self.price if came else Fraction(0)


class History:
    """A random history, entry by entry, and its model."""

    def __init__(self, rng: Rng, *, plan: bool) -> None:
        self.rng, self.plan = rng, plan
        self.tokens: dict[str, Token] = {}
        self.parts: dict[str, list[Any]] = {}
        self.last: Entry | None = None

    def entry(self) -> Entry:
        """One that may or may not be right."""
        rng = self.rng
        names = [*self.tokens] or ["none"]
        token = names[rng.integers(len(names))]
        users = self.tokens[token].users if token in self.tokens else (0, N)
        match rng.integers(9):
            case 0 | 1:
                return self._issue()
            case 2 | 3:
                price = gaussian(Fraction(int(rng.integers(1, 4)), 16))
                return spend(token, users, price, interactive=bool(rng.random() < 0.8))
            case 4:
                return reach(token, int(rng.integers(1, N + 2)))
            case 5:
                return publish(token, int(rng.integers(0, N + 1)))
            case 6 | 7:
                ends = ["released", "lost", "unused", "uncovered"]
                end = str(rng.choice(ends, p=[0.3, 0.4, 0.2, 0.1]))
                value = int(rng.integers(0, N)) if rng.random() < 0.1 else None
                return retire(token, end, value)
        name = f"p{rng.integers(3)}"
        if self.plan or rng.random() < 0.5:
            return ReturnEntry(accountant="a", allowance=name)
        a, b = sorted(rng.choice(N + 1, 2, replace=False).tolist())
        budget = ZCDP("1/4").to_dict()
        return DelegateEntry(accountant="a", allowance=name, label="p", users=(a, b), budget=budget)

    def _issue(self) -> IssueEntry:
        rng, name = self.rng, f"t{len(self.tokens)}"
        a, b = sorted(rng.choice(N + 1, 2, replace=False).tolist())
        if self.plan:
            a, b = (0, N) if rng.random() < 0.3 else (a, N)
        part = f"p{rng.integers(3)}" if not self.plan and rng.random() < 0.3 else None
        if part in self.parts and b - a > 1:
            (first, stop), *_ = self.parts[part]
            a, b = max(a, first), min(b, stop)
            a, b = (a, b) if a < b else (first, stop)
        rho = Fraction(int(rng.integers(1, 4)), 16)
        if self.plan:
            rho = Fraction(3, 16)
        position = 0 if self.plan else None
        return issue(name, (min(a, b - 1), b), rho, planned=position, allowance=part)

    def take(self, entry: Entry) -> None:
        """Takes a right entry into the model."""
        match entry:
            case IssueEntry():
                rho = Fraction(entry.budget["rho"])
                made = Token(entry.users, rho, entry.planned is not None, entry.allowance)
                self.tokens[entry.token] = made
            case SpendEntry():
                found = self.tokens[entry.token]
                found.price = Fraction(entry.loss["mu_squared"]) / 2
                found.stream, found.reach = entry.interactive, entry.users[0]
            case ReachEntry():
                self.tokens[entry.token].reach = entry.stop
            case RetireEntry():
                self.tokens[entry.token].end = entry.outcome
            case DelegateEntry():
                self.parts[entry.allowance] = [entry.users, Fraction(entry.budget["rho"]), False]
            case ReturnEntry():
                self.parts[entry.allowance][2] = True

    def charged(self, user: int) -> Fraction:
        found = Fraction(0)
        for token in self.tokens.values():
            if token.part is None or self.parts[token.part][2]:
                found += token.pays(user)
        for (first, stop), budget, returned in self.parts.values():
            if not returned and first <= user < stop:
                found += budget
        return found

    def spent(self, user: int) -> Fraction:
        return sum((t.pays(user) for t in self.tokens.values() if t.price is not None), Fraction(0))

    def runs(self, user: int) -> int:
        """Tokens that a user's row may be in, or may come into."""
        return sum(token.pays(user) > 0 for token in self.tokens.values())


COUNT = 2


def histories(*, plan: bool, number: int, length: int) -> Iterator[tuple[History, AccountState]]:
    """All prefixes of random histories."""
    for seed in range(number):
        story = History(np.random.default_rng([seed, plan]), plan=plan)
        state = stood(planned(COUNT, gaussian("3/16")) if plan else [])
        for _ in range(length):
            entry = story.entry()
            try:
                checked = state.check(entry)
            except PrivlearnError:
                continue
            state.record(checked)
            story.take(entry)
            yield story, state


def test_charges_are_those_of_a_model_that_looks_at_every_user() -> None:
    ended = 0
    for story, state in histories(plan=False, number=25, length=90):
        assert charged(state) == [story.charged(user) for user in range(N)]
        assert spent(state) == [story.spent(user) for user in range(N)]
        assert max(charged(state)) <= 1
        ended += any(t.end and t.stream and t.reach < t.users[1] for t in story.tokens.values())
    assert ended > 300


def test_nobody_is_in_more_runs_than_were_planned() -> None:
    most, further = 0, 0
    for story, state in histories(plan=True, number=25, length=70):
        runs = [story.runs(user) for user in range(N)]
        most = max(most, *runs)
        assert most <= COUNT
        assert spent(state) == [story.spent(user) for user in range(N)]
        further = max(further, len([t for t in story.tokens.values() if t.end != "unused"]))
    assert most == COUNT
    assert further > COUNT + 2  # rests were taken


def test_shares_of_mechanisms_follow_what_streams_are_charged() -> None:
    """The audit's totals, which count by themselves, against those of the state."""
    compared = 0
    for seed in range(12):
        story = History(np.random.default_rng([seed, 9]), plan=False)
        book = AuditedAccount(AccountState(opened()))
        for _ in range(80):
            entry = story.entry()
            try:
                book.state.check(entry)
            except PrivlearnError:
                continue
            assert book.take(entry, record_of(entry)) == ""
            story.take(entry)
            per_user = [Fraction(0)] * N
            for runs in book.totals._runs.values():
                for loss, edges in runs.items():
                    for at, change in edges.items():
                        for user in range(at, N):
                            per_user[user] += change * (loss.zcdp() or 0)
            assert per_user == spent(book.state)
            parts = [share for _, share in book.totals.shares(book.state)]
            if any(per_user):
                compared += 1
                assert abs(sum(parts) - 1) < 1e-9
    assert compared > 100


# Planted faults -----------------------------------------------------------------------------------

STATE = "privlearn.accountants.state:AccountState"
ACCOUNT = "privlearn.accountants.charged:Account"
CHARGED = "privlearn.accountants.charged:Charged"
STREAMS, PLANNED = "privlearn.accountants.streams", "privlearn.accountants.charged:Planned"
MODEL = test_charges_are_those_of_a_model_that_looks_at_every_user
RUNS = test_nobody_is_in_more_runs_than_were_planned
FAULTS: list[tuple[str, str, str, Callable[[], None]]] = [
    (f"{STREAMS}:ends_early", "not entry.interactive or", "", test_only_streams_end_early),
    (
        f"{STREAMS}:ends_early",
        "opened.adjacency is Adjacency.ADD_REMOVE",
        "False",
        test_under_add_remove_streams_are_charged_whole,
    ),
    (
        f"{STREAMS}:ends_early",
        "visits.rule.most > 1",
        "False",
        test_a_person_with_several_visits_is_charged_whole,
    ),
    (f"{STREAMS}:ends_early", "not loss.failure()", "True", test_what_may_fail_is_charged_whole),
    (
        f"{STREAMS}:kept_until",
        "visits is None or not visits.starts",
        "True",
        test_a_person_with_one_visit_is_charged_by_whole_batches,
    ),
    (
        f"{STREAMS}:freed_after",
        "max(users.start, stop)",
        "users.start",
        test_a_stream_is_charged_to_users_below_its_reach,
    ),
    (
        f"{STREAMS}:freed_after",
        "if users.stop > stop",
        "if users.start >= stop",
        test_a_stream_is_charged_to_users_below_its_reach,
    ),
    (
        f"{STREAMS}:frees",
        'outcome != "uncovered"',
        "True",
        test_an_end_that_may_depend_on_rows_frees_nobody,
    ),
    (f"{STREAMS}:Stream.come_to", "max(self.reach, stop)", "max(self.reach, stop - 1)", MODEL),
    (
        f"{CHARGED}.end_early",
        "self.charge(meter, [(kept, part)]",
        "self.charge(self._meter, [(kept, part)]",
        test_a_stream_of_an_allowance_frees_what_the_allowance_holds,
    ),
    (f"{CHARGED}.end_early", "self._add(kept, part)", "pass", MODEL),
    (f"{CHARGED}.end_early", "self._add(users, part, -1)", "pass", MODEL),
    (f"{CHARGED}.end_early", "self.charge(meter, [(users, part)], off=True)", "pass", MODEL),
    (
        f"{STATE}._end_early",
        "and not by_arrival(stream.loss)",
        "",
        test_a_planned_stream_by_arrival_has_no_rest,
    ),
    (f"{STATE}._end_early", "item.end_early(stop)", "item.end_early(stop - 1)", RUNS),
    (f"{STATE}._end_early", "item.end_early(stop)", "item.give_back(item.users)", RUNS),
    (f"{PLANNED}.take", "self.rests.remove(rest)", "pass", RUNS),
    (f"{PLANNED}.take", "self.left -= 1", "pass", RUNS),
    (f"{PLANNED}._rest", "start <= users.start", "True", RUNS),
    (
        f"{PLANNED}.give_back",
        "if users == self.users",
        "if True",
        test_a_planned_stream_goes_on_with_those_who_come_later,
    ),
    (
        f"{STATE}.record_wrong",
        "before.wrong, before.stream = True, None",
        "pass",
        test_entries_that_do_not_check_free_nobody,
    ),
    (
        f"{STATE}.record_wrong",
        "after.wrong = True",
        "pass",
        test_what_is_wrong_with_a_token_keeps_what_it_holds,
    ),
    (
        f"{ACCOUNT}._check_upto",
        "stop if self.stream is None else self.stream.reach",
        "stop",
        test_values_are_of_rows_within_the_reach,
    ),
    (
        "privlearn.accountants.spend_totals:SpendTotals._end_early",
        "_change(edges, kept.stop, -1)",
        "_change(edges, users.start, -1)",
        test_shares_of_mechanisms_follow_what_streams_are_charged,
    ),
]


@cases(FAULTS)
def test_planted_faults_are_found(
    target: str, old: str, new: str, test: Callable[[], None]
) -> None:
    assert is_found(target, old, new, test)


def test_a_cap_is_not_exceeded_by_what_is_given_again() -> None:
    ended = [
        issue("t", (0, N), 1),
        spend("t", (0, N), gaussian(1)),
        reach("t", 5),
        retire("t", "lost"),
    ]
    stood([*ended, issue("u", (5, N), 1)])
    with pytest.raises(InsufficientBudgetError):
        stood([*ended, issue("u", (4, N), 1)])


def test_streams_say_little_more_than_they_take() -> None:
    """An eighth of the users so far for single rows, nothing for blocks, a segment for reports."""
    sums = Stream("sums", GaussianLoss("0.1"), True, range(100, 10_000), 100)
    assert sums.ahead(101) == 101
    sums.come_to(180)
    assert sums.ahead(181) == 181 + 81 // 8
    assert sums.ahead(180 + 16) == 180 + 16
    sums.come_to(9_000)
    assert sums.ahead(9_001) == 9_001 + SEGMENT
    reports = Stream("reports", GaussianLoss("0.1"), True, range(100, 10_000), 100, each=True)
    assert reports.ahead(101) == 100 + SEGMENT
    assert reports.ahead(1_000) == 1_000
