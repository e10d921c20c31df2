"""What the views of a report state agrees, and is what brute force finds in the entries."""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import person_ledgers
import pytest
from random_ledgers import (
    CAPS,
    FIRST_MINUTE,
    KINDS,
    ORDERS,
    Known,
    Told,
    Writer,
    random_records,
    told_by,
)
from rich.console import Console
from scipy.stats import norm
from typer.testing import CliRunner
from visit_patterns import patterns

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.accountants.shown_numbers import down, part, up
from privlearn.accountants.state import AccountState
from privlearn.cli.main import app
from privlearn.errors import BudgetError
from privlearn.ledger import GENESIS, Ledger, Record, write_export
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import chain_hash, chained, text_of_minute
from privlearn.losses.budgets import ZCDP, GaussianDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.reporting.figures import draw_spending
from privlearn.reporting.model import MOST_LISTED, Balance, Report, Spent
from privlearn.reporting.report import look_at, report, spending_of
from privlearn.reporting.spending import Spending
from privlearn.reporting.terminal import print_report
from privlearn.reporting.visible import visible
from privlearn.values.adjacency import Adjacency

SEEDS = (0, 2, 3, 4, 5, 8, 11, 13)
"""Together they have every kind of cap, plans, allowances, streams, failures and claims."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export for each seed."""
    made = tmp_path_factory.mktemp("ledgers")
    for seed in SEEDS:
        write_export(made / f"{seed}.jsonl", random_records(seed))
    return made


def binding(told: Told) -> int:
    """The order that is used up first; of equal ones, the one where Gaussian noise fits least."""
    most = [max(cost.amounts[k] for cost in told.charged.values()) for k in range(len(told.cap))]
    orders = ORDERS if told.kind == "renyi" else (Fraction(1),)
    return max(range(len(told.cap)),
               key=lambda k: (most[k] / told.cap[k], orders[k] / told.cap[k]))  # fmt: skip


def whose(told: Told, term: int) -> int:
    """The most charged user; of a closed plan, the one on whom most was spent."""
    if told.closed and told.planned:
        return max(told.users, key=lambda user: (told.spent(user).amounts[term], -user))
    return max(told.users, key=lambda user: (told.charged[user].amounts[term], -user))


def assert_balance(balance: Balance, told: Told, asked: int | None) -> None:
    term = binding(told)
    user = whose(told, term) if asked is None else asked
    charged, spent = told.charged[user].amounts[term], told.spent(user).amounts[term]
    if told.closed:
        charged = spent
    assert balance.user == user
    exactly = Fraction(balance.spent or 0), Fraction(balance.reserved or 0)
    assert 0 <= exactly[0] - spent <= spent / 2**52
    assert 0 <= exactly[1] - (charged - spent) <= charged / 2**52
    left = told.cap[term] - charged
    assert balance.remaining is not None
    assert 0 <= left - Fraction(balance.remaining) <= left / 2**52
    assert balance.cap == float(told.cap[term])
    assert balance.unknown == ""
    if not told.failure:
        assert balance.failing is None
        return
    failing = balance.failing
    assert failing is not None
    assert failing.user is not None
    ours = [told.charged[u].failure for u in told.users]
    if asked is None and not told.closed:
        assert told.charged[failing.user].failure == max(ours)
    paid, held = told.spent(failing.user).failure, told.charged[failing.user].failure
    held = paid if told.closed else held
    assert (failing.spent, failing.reserved) == pytest.approx((float(paid), float(held - paid)))
    assert failing.remaining == pytest.approx(float(told.failure - held), rel=1e-12)


def most_of(spends: list[Known], term: int) -> float:
    paid: dict[int, Fraction] = defaultdict(Fraction)
    for spend in spends:
        for user, cost in spend.costs.items():
            paid[user] += cost.amounts[term]
    return float(max(paid.values(), default=Fraction(0)))


def assert_lines(
    lines: list[Spent], told: Told, spends: list[Known], name: Callable[[Known], object]
) -> None:
    term = binding(told)
    groups: dict[object, list[Known]] = defaultdict(list)
    for spend in spends:
        groups[name(spend)].append(spend)
    found = {(line.mechanism, line.label): line for line in lines}
    assert len(found) == len(lines)
    assert found.keys() == groups.keys()
    for key, mine in groups.items():
        line = found[key]  # type: ignore[index]
        most = most_of(mine, term)
        assert line.spends == len(mine)
        assert line.most == pytest.approx(most, rel=1e-12)
        assert line.of_cap == pytest.approx(most / float(told.cap[term]), rel=1e-12)
        times = [spend.minute for spend in mine]
        assert (line.since, line.until) == (text_of_minute(min(times)), text_of_minute(max(times)))


def test_the_ledgers_are_of_every_kind() -> None:
    accounts = [told for seed in SEEDS for told in told_by(random_records(seed))]
    assert {told.kind for told in accounts} == set(CAPS)
    assert {told.closed for told in accounts} == {True, False}
    assert {told.planned for told in accounts} == {True, False}
    assert any(told.failure for told in accounts)
    kinds = {record.body["entry"] for seed in SEEDS for record in random_records(seed)}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_report_is_what_brute_force_finds(seed: int, folder: Path) -> None:
    records, random = random_records(seed), Random(seed)
    accounts = told_by(records)
    user = random.choice([None, 0, 3])
    label = random.choice([None, "week"])
    minute = random.choice([None, FIRST_MINUTE + 3000])
    since = None if minute is None else text_of_minute(minute)
    found = report(folder / f"{seed}.jsonl", user=user, label=label, since=since)
    assert found.problems == []
    assert found.exit_code == 0
    assert len(found.balances) == len(accounts)
    for number, (balance, told) in enumerate(zip(found.balances, accounts, strict=True), 1):
        assert_balance(balance, told, user)
        asked = [
            Known(s.seq, s.minute, s.mechanism, s.label,
                  s.costs if user is None else {u: c for u, c in s.costs.items() if u == user})
            for s in told.spends
            if (user is None or user in s.costs)
            and (label is None or s.label == label)
            and (minute is None or s.minute >= minute)
        ]  # fmt: skip

        def of(lines: list[Spent], number: int = number) -> list[Spent]:
            return [line for line in lines if line.accountant == number]

        assert_lines(of(found.by_label), told, asked, lambda s: (None, s.label))
        assert_lines(of(found.by_mechanism), told, asked, lambda s: (s.mechanism, None))
        assert_lines(
            of(found.by_mechanism_and_label), told, asked, lambda s: (s.mechanism, s.label)
        )
        assert_lines(of(found.total), told, asked, lambda s: (None, None))
        assert sum(line.spends for line in of(found.by_time)) == len(asked)
        whole = max((line.most or 0 for line in of(found.by_user_range)), default=0.0)
        assert whole == pytest.approx(most_of(asked, binding(told)), rel=1e-12)
        if found.asked:
            entries = [one.entry for one in found.listed if one.accountant == number]
            assert entries == [spend.seq for spend in asked]
    waiting = [users for told in accounts for users in told.unspent]
    assert found.unspent_tokens == sum(user is None or user in users for users in waiting)


def one_space(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("seed", SEEDS[1::3])
def test_terminal_and_json_state_the_same(seed: int, folder: Path) -> None:
    path = folder / f"{seed}.jsonl"
    found = report(path)
    told = CliRunner().invoke(app, ["audit", str(path), "--json"])
    assert told.exit_code == found.exit_code
    assert Report.model_validate_json(told.output) == found
    assert json.loads(told.output) == json.loads(found.model_dump_json())
    page = StringIO()
    print_report(found, Console(file=page, width=400), full=True)
    shown = one_space(page.getvalue())
    stated = [found.verdict, found.head, *found.weaknesses]
    for reading in found.readings:
        stated.append(f"in plain words {reading.sentence}")
    for balance in found.balances:
        stated += [
            f"budget cap {balance.unit} = {up(balance.cap)}",
            f"spent {up(balance.spent)} (user {balance.user}",
            f"reserved {up(balance.reserved)}",
            f"remaining {down(balance.remaining)}",
            *(purchase.what for purchase in balance.buys),
        ]
    for line in found.by_mechanism_and_label:
        of_cap = "" if line.of_cap is None else part(line.of_cap)
        stated.append(f"{line.mechanism} {line.label} {line.spends} {up(line.most)} {of_cap}")
    for token in found.open_tokens:
        stated.append(f"{token.token} {token.label} ")
    for text in stated:
        assert one_space(visible(text)) in shown, text


def changed(seed: int, change: Callable[[dict[str, Any]], None]) -> list[Record]:
    """A random ledger, each entry of which was changed before it was chained."""
    records, head = [], GENESIS
    for record in random_records(seed):
        body = copy.deepcopy(record.body)
        change(body)
        root = (record.envelope or {}).get("root")
        records.append(Record.make(head, record.seq, body, minute=FIRST_MINUTE, root=root))
        head = records[-1].hash
    return records


def many_labels(count: int) -> list[Record]:
    """A cap, and a spend of each of so many labels."""
    random = Random(0)
    writer = Writer(random, 1)
    while writer.kind != "zcdp" or writer.planned:
        writer = Writer(random, 1)
    loss = {"kind": "gaussian", "adjacency": "replace-one", "mu_squared": "1/999"}
    while len({body.get("label") for body in writer.bodies}) <= count:
        writer.token([0, 2], loss, f"label {len(writer.bodies)}")
    return chained(writer.bodies)


def test_of_very_many_labels_the_rest_is_one_line(tmp_path: Path) -> None:
    write_export(tmp_path / "a.jsonl", many_labels(400))
    found = report(tmp_path / "a.jsonl")
    assert len(found.by_label) == MOST_LISTED
    rest = found.by_label[-1]
    assert rest.label is None
    assert rest.others > 0
    spends = sum(line.spends for line in found.by_label)
    assert spends == found.spends == found.total[0].spends
    costs = [line.most or 0.0 for line in found.by_label]
    assert sum(costs) == pytest.approx(found.total[0].most), "all are on the same users"
    unspent = found.unspent_tokens
    assert len([t for t in found.open_tokens if t.mechanism is None]) == min(unspent, MOST_LISTED)


@pytest.mark.parametrize(
    "times",
    [
        ["2026-02-31T00:00Z", "2026-13-01T00:00Z", "yesterday", 7, None, ["x"]],
        ["0001-01-01T00:00Z", "9999-12-31T23:59Z", "1969-12-31T23:59Z", "1970-01-01T00:00Z"],
        ["2026-11-01T00:00Z", "2020-01-01T00:00Z", "2026-10-01T00:00Z", "9999-12-31T23:59Z"],
    ],
    ids=["no times", "far away", "back and forth"],
)
def test_times_that_lie_break_nothing(times: list[Any], tmp_path: Path) -> None:
    records, head = [], GENESIS
    for record in random_records(2):
        envelope = {**(record.envelope or {}), "at": times[record.seq % len(times)]}
        data = canonical({**envelope, "body": record.body})
        head = chain_hash(head, data)
        records.append(Record(record.seq, record.body, head, data, envelope))
    write_export(tmp_path / "a.jsonl", records)
    found = report(tmp_path / "a.jsonl")
    assert sum(line.spends for line in found.by_time) == found.spends
    assert len(found.by_time) <= 60 * len(found.balances)
    page = StringIO()
    print_report(found, Console(file=page, width=200), by="time")
    draw_spending(tmp_path / "a.svg", *drawn(tmp_path / "a.jsonl"))
    assert Report.model_validate_json(found.model_dump_json()) == found


def drawn(path: Path) -> tuple[list[Spending], Sequence[AccountState]]:
    looked = look_at(path)
    return spending_of(looked), looked.states


def test_what_has_no_price_is_unknown_and_not_zero(tmp_path: Path) -> None:
    def change(body: dict[str, Any]) -> None:
        if body["entry"] == "spend":
            body["loss"] = {"kind": "cauchy", "adjacency": "replace-one", "scale": "1"}

    write_export(tmp_path / "a.jsonl", changed(0, change))
    found = report(tmp_path / "a.jsonl")
    assert found.problems
    broken = [balance for balance in found.balances if balance.unknown]
    assert broken
    assert {(b.spent, b.reserved, b.remaining) for b in broken} == {(None, None, None)}
    page = StringIO()
    print_report(found, Console(file=page, width=400), full=True)
    assert "what is left is unknown" in page.getvalue()


def sentences(path: Path, **named: Any) -> list[str]:
    return [reading.sentence for reading in report(path, **named).readings]


def test_the_sentence_says_who_guesses_what_and_how_often(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    users = range(4)
    book = Ledger.memory()
    CentralAccountant(
        GaussianDP(1), users=users, ledger=book, shared=True, adjacency=Adjacency.ZERO_OUT
    )
    JointAccountant(GaussianDP(1), users=users, ledger=book, shared=True)
    LocalAccountant(PureDP(1), users=users, ledger=book, shared=True)
    LocalAccountant(PureDP(1), users=users, ledger=book, shared=True, attested=True)
    write_export(path, list(book.records))
    central, joint, local, attested = sentences(path)
    # a Gaussian of μ = 1: 2Φ(1/2) − 1 = 0.3829; pure ε = 1: e/(1 + e) = 0.7311
    assert central == (
        "Whoever sees all that was released under accountant 1 alone, knows all other records and "
        "guesses whether the record of a person was used or blanked out is right in at most 69.15 "
        "of 100 cases, where tossing a coin is right in 50."
    )
    assert joint.startswith(
        "Whoever sees all that was released under accountant 2 alone and what everybody else was "
    )
    assert "at most 69.15 of 100" in joint
    assert local.startswith("Whoever collects the messages under accountant 3 alone, and sees ")
    assert "at most 73.11 of 100" in local
    assert attested.startswith("If the clients do what they attest, which nobody has verified, who")
    assert "whether the record of user 3 was used" in sentences(path, user=3)[0]
    two = sentences(path, rounds=2)[0]
    assert "whether the 2 records of a person were used" in two
    chance = float(re.findall(r"at most ([\d.]+) of", two)[0])
    assert 2 * norm.cdf(1) - 1 <= 2 * chance / 100 - 1 < 1, "two rows have at least μ = 2"


def test_a_sentence_certifies_nothing_where_nothing_is(tmp_path: Path) -> None:
    records = random_records(0)
    write_export(tmp_path / "cut.jsonl", records[:1] + records[2:])
    book = Ledger.memory()
    simulated = NoiseSource.simulation(0)
    CentralAccountant(ZCDP(1), users=range(2), ledger=book, noise=simulated).close()
    write_export(tmp_path / "simulated.jsonl", list(book.records))
    book = Ledger.memory()
    CentralAccountant(ZCDP(1), users=range(2), ledger=book).close()
    write_export(tmp_path / "sound.jsonl", list(book.records))
    for name, delta, why in (
        ("cut", None, "the audit found"),
        ("simulated", None, "a simulation"),
        ("sound", 0.0, "no finite ε"),
    ):
        found = report(tmp_path / f"{name}.jsonl", delta=delta)
        for reading in found.readings:
            assert reading.sentence.startswith("Nothing is certified"), name
            assert why in reading.sentence
            assert (reading.guess, reading.alarm, reading.odds) == (1.0, 1.0, 100.0)
            assert reading.words == []
        assert found.curves == []


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_a_curve_holds_the_point_that_is_stated_and_bounds_it(seed: int, folder: Path) -> None:
    for delta in (None, 1e-3):
        found = report(folder / f"{seed}.jsonl", delta=delta)
        assert len(found.curves) == len(found.guarantees)
        for curve, guarantee in zip(found.curves, found.guarantees, strict=True):
            points = dict(zip(curve.epsilons, curve.deltas, strict=True))
            assert points[guarantee.epsilon] <= guarantee.delta
            assert curve.epsilons == sorted(curve.epsilons)
            assert curve.deltas == sorted(curve.deltas, reverse=True)
            assert curve.epsilons[0] == 0


def test_a_person_who_comes_back_is_charged_for_all_visits(tmp_path: Path) -> None:
    write_export(tmp_path / "a.jsonl", list(person_ledgers.sound()))
    found = report(tmp_path / "a.jsonl")
    (balance,) = found.balances
    assert balance.user is None
    assert (balance.cap, balance.reserved, balance.closed) == (4.0, 0.0, True)
    assert balance.spent == pytest.approx(found.spent[0].rho, rel=1e-9)
    assert balance.remaining == pytest.approx(4.0 - (balance.spent or 0.0))
    # of the slots 0 to 5, each pattern of visits takes some; a row that counts m times costs m² rho
    visits = patterns(12, person_ledgers.APART.most, 4)[:, :6].sum(axis=1)
    of_sum = float(max(visits) ** 2 / 32)
    lines = {line.label: line.most for line in found.by_label}
    assert lines["sum"] == pytest.approx(of_sum, rel=1e-9)
    assert sum(cost or 0.0 for cost in lines.values()) >= (balance.spent or 0.0) * (1 - 1e-9)
    with pytest.raises(BudgetError, match="user = 3"):
        report(tmp_path / "a.jsonl", user=3)
