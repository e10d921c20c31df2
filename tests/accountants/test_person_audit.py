"""What an audit finds in an account of persons who may come back, and what it refuses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from person_ledgers import (
    APART,
    BATCH_FAULTS,
    BATCHED,
    FAULTS,
    SLOTS,
    STARTS,
    STREAM,
    SUM,
    account,
    admitted,
    batched,
    batches_twice,
    changed,
    sound,
)
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, Certificate, LocalAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.multiple_accountants import remarks
from privlearn.accountants.person_assumptions import rule_words
from privlearn.checking.budgets import assert_budget
from privlearn.cli.main import app
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CheckError,
    DataError,
    InsufficientBudgetError,
    LedgerFeatureError,
    LossExceedsTokenError,
    PeopleError,
    PrivacyViolation,
)
from privlearn.ledger import Ledger, Record, read_records, reader, write_export
from privlearn.losses import (
    BoundedRangeLoss,
    FailingLoss,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PerArrivalLoss,
    PureLoss,
    VisitsLoss,
    ZCDPLoss,
)
from privlearn.losses.budgets import ZCDP, PureDP, Renyi
from privlearn.mechanisms import BinaryTree, PrefixSum
from privlearn.mechanisms.recorded_streams import RecordedStreams
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.reporting.audits import audit
from privlearn.reporting.certificates import (
    certificate_markdown,
    guarantee_line,
    verdict,
    weaknesses,
)
from privlearn.reporting.figures import plot_spending
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation


def certified(records: list[Record]) -> Certificate:
    return certify(records, restate=RecordedStreams())


def texts(guarantee: Guarantee) -> str:
    return "\n".join(guarantee.assumptions)


# What stands there --------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [sound, batched], ids=["apart", "per batch"])
def test_a_sound_account_of_persons_is_verified(records: Callable[[], tuple[Record, ...]]) -> None:
    found = certified(list(records()))
    assert found.problems == []
    assert found.holds
    assert "worked out again, from the recorded factorisation" in texts(found.guarantees[0])
    assert "as recorded" not in texts(found.guarantees[0])
    assert Certificate.model_validate_json(found.model_dump_json()) == found


def test_without_the_mechanisms_a_gain_is_said_to_be_as_recorded() -> None:
    found = certify(sound())
    assert found.problems == []
    told = [a for a in found.guarantees[0].rests_on if "as recorded" in a.text]
    assert [a.kind for a in told] == ["trusted"]
    assert "prefix-sum" in told[0].text


def most_of_a_person(rule: Participation, tokens: list[tuple[range, Fraction, bool]]) -> Fraction:
    """By all patterns: r rows of one person cost r² in a token, or all in a stream at once."""
    best = Fraction(0)
    for size in range(1, rule.most + 1):
        for slots in itertools.combinations(SLOTS, size):
            if any(b - a < rule.apart for a, b in itertools.pairwise(slots)):
                continue
            if rule.per_batch and max(sum(t // 3 == b for t in slots) for b in range(4)) > 1:
                continue
            counts = [sum(t in users for t in slots) for users, _, _ in tokens]
            costs = [
                (rho if whole else rho * count**2) if count else Fraction(0)
                for (_, rho, whole), count in zip(tokens, counts, strict=True)
            ]
            best = max(best, sum(costs, Fraction(0)))
    return best


def test_what_was_spent_is_the_most_over_all_patterns() -> None:
    found = certified(list(sound()))
    stream = STREAM.loss().zcdp()
    assert stream is not None
    oracle = most_of_a_person(APART, [(range(6), Fraction(1, 32), False), (SLOTS, stream, True)])
    assert found.spent[0].rho == pytest.approx(float(oracle), rel=1e-12)
    assert found.guarantees[0].rho == 4  # the cap


def test_what_was_spent_never_exceeds_the_cap_of_an_honest_run() -> None:
    """Tokens hold budgets for whole ranges, and are spent on losses that are charged by visits."""
    cap = ZCDP("1/2")
    for seed in range(60):
        rng = np.random.default_rng([29, seed])
        rule = Participation(4, apart=int(rng.integers(2, 6)))
        ranges = [sorted(rng.choice(13, 2, replace=False).tolist()) for _ in range(6)]
        if not seed:
            rule, ranges = Participation(4, apart=4), [[3, 8], [10, 11], [0, 11]]
        book, tokens = account(rule, cap=cap, noise=NoiseSource.simulation(0)), []
        for first, stop in ranges:
            users, more = range(first, stop), Fraction(int(rng.integers(3)), 56)
            budget = ZCDP(Fraction(rule.visits(len(users)) ** 2, 32) + more)
            try:
                token = book.issue(budget, users=users, label="sum")
            except InsufficientBudgetError:
                continue
            held = book.spent()
            with token.spend(SUM.spend()):
                pass
            assert held.covers(book.spent()), seed
            tokens.append((users, Fraction(1, 32), False))
        book.close()
        assert most_of_a_person(rule, tokens) <= book.spent().rho <= cap.rho, seed
        assert seed or book.spent().rho == Fraction(3, 8)  # at slots 2, 6 and 10
        assert certify(book.ledger.records).problems == [], seed


@pytest.mark.parametrize("seed", range(25))
def test_no_pattern_costs_more_than_a_plan_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = (
        Participation(int(rng.integers(1, 5)), apart=int(rng.integers(1, 5)))
        if seed % 2
        else Participation(int(rng.integers(1, 5)), per_batch=1)
    )
    book = account(rule, cap=ZCDP("100"), noise=NoiseSource.simulation(0))
    edges = list(range(13))
    if rule.batched:
        book.divide(STARTS)
        edges = [*STARTS, 12]
    tokens, plan = [], []
    for i in range(int(rng.integers(1, 5))):
        low, high = sorted(int(e) for e in rng.choice(edges, 2, replace=False))
        rho, whole = Fraction(int(rng.integers(1, 9)), 16), bool(rng.integers(2))
        one: Loss = GaussianLoss(2 * rho, adjacency=Adjacency.ZERO_OUT)
        loss = VisitsLoss(one, rule.most, rule.apart) if whole else one
        count = int(rng.integers(1, 3))
        tokens += [(range(low, high), rho, whole)] * count
        plan.append(Plan(f"t{i}", loss, range(low, high), count))
    book.commit(plan)
    promised = book.certificate().guarantees[0].rho
    assert promised is not None
    assert promised * (1 + 1e-12) >= float(most_of_a_person(rule, tokens))


def test_the_rule_is_said_in_words() -> None:
    line = guarantee_line(certified(list(sound())).guarantees[0])
    assert line.startswith("DP of a person, person zero-out, for every public schedule of slots: ")
    assert "at most 3 visits are learned, at least 4 slots from each other" in line
    assert rule_words(Participation(1)) == "of one person at most 1 visit is learned"
    assert "at most 2 of them in one batch" in rule_words(Participation(5, per_batch=2))
    assert rule_words(Participation(2, pooled=True)).startswith("in at most 2 of the batches all")
    page = certificate_markdown(certified(list(sound())))
    assert "at most, of a person's total" in page
    assert "most charged user" not in page


RELATIONS = {
    "public": (Participation(2, pattern="public"), Adjacency.REPLACE_ONE),
    "public null": (Participation(2, pattern="public"), Adjacency.ZERO_OUT),
    "arrivals": (Participation(2), Adjacency.ZERO_OUT),
    "timetable": (Participation(2, clock="timetable"), Adjacency.ZERO_OUT),
}


@pytest.mark.parametrize("name", RELATIONS)
def test_each_relation_says_what_it_covers(name: str) -> None:
    rule, adjacency = RELATIONS[name]
    book = account(rule, adjacency=adjacency, noise=NoiseSource.simulation(0))
    found = book.certificate()
    said, weak = texts(found.guarantees[0]), "\n".join(weaknesses(found))
    returning = "because the last offer was good"
    assert said.count(returning) == 1  # said to be covered by the last one only
    (line,) = [text for text in said.split("\n") if returning in text]
    assert (returning in weak) is (name != "timetable")
    assert ("is covered, and so is when" in line) is (name == "timetable")
    assert ("Nothing is claimed about what the schedule tells" in said) is (name == "arrivals")
    assert ("records of one person are replaced" in said) is (name == "public")
    for trusted in ("one for each person", "whoever has j ids", "not reset, copied, forked"):
        assert trusted in said
    assert "masked by this code" in said
    assert "a person with k" not in said
    # somebody else kept who came
    if name == "public":
        real = found.model_copy(update={"simulation": False})
        assert "except what its registry of people kept" in verdict(real)


def test_several_rows_are_not_asked_of_persons(tmp_path: Path) -> None:
    book = account(APART, noise=NoiseSource.simulation(0), ledger=Ledger.create(tmp_path / "l.db"))
    with pytest.raises(BudgetError, match=r"rounds = 3.*with all visits"):
        book.epsilon(1e-6, rounds=3)
    with pytest.raises(BudgetError, match="rounds = 3"):
        book.certificate(rounds=3)
    with pytest.raises(BudgetError, match="rounds = 3"):
        audit(tmp_path / "l.db", rounds=3)
    for ask in (book.spent, book.remaining, book.failure):
        with pytest.raises(BudgetError, match=r"user = 4.*an index is a slot"):
            ask(4)
    with pytest.raises(BudgetError, match="user = 4"):
        book.certificate(user=4)
    with pytest.raises(BudgetError, match=r"by arrival.*an index is a slot"):
        book.spend_by_arrival()
    with pytest.raises(DataError, match="of persons"):
        plot_spending(tmp_path / "p.png", tmp_path / "l.db")
    with pytest.raises(CheckError, match=r"users = range\(0, 3\): .* an index is no person"):
        assert_budget(book, at_most=ZCDP("4"), users=range(3))
    with pytest.raises(PrivacyViolation, match=r"a person with all visits .*: the guarantee is"):
        assert_budget(book, at_most=ZCDP("0.1"), may_spend_nothing=True)
    for option in ("--rounds=3", "--user=4"):
        ran = CliRunner().invoke(app, ["audit", str(tmp_path / "l.db"), option])
        assert isinstance(ran.exception, BudgetError)
    shown = CliRunner().invoke(app, ["audit", str(tmp_path / "l.db"), "--full"])
    assert shown.exit_code == 3
    assert "DP of a person" in shown.stdout
    assert "timetable" in shown.stdout


def test_a_person_in_two_accounts_pays_both(tmp_path: Path) -> None:
    ledger = Ledger.memory()
    source = NoiseSource.simulation(0)
    one = account(APART, cap=ZCDP("1"), ledger=ledger, noise=source)
    two = account(BATCHED, cap=ZCDP("2"), ledger=ledger, noise=source, shared=True)
    rows = CentralAccountant(
        ZCDP("4"),
        users=SLOTS,
        ledger=ledger,
        noise=source,
        shared=True,
        adjacency=Adjacency.ZERO_OUT,
    )
    two.divide(STARTS)
    for users in (range(0, 3), range(3, 6)):
        two.issue(ZCDP("1/2"), users=users, label="x")
    SUM.release(admitted(one, range(6)), one.issue(SUM.loss(), users=range(6), label="sum"))
    found = rows.certificate()
    (total,), (spent,) = found.sums, found.sums_spent
    assert total.rho == 7
    assert spent.rho == pytest.approx(4 / 32)
    assert total.who == (
        "a person with all visits that are learned in each of accountants 1 and 2 and one row in "
        "accountant 3"
    )
    assert any("an index is no person (accountants 1 and 2)" in line for line in found.remarks)
    assert remarks([]) == []
    with pytest.raises(BudgetError, match=r"population = 'shop'.*no person"):
        account(APART, population="shop", noise=source)


# Faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_problem(name: str) -> None:
    change, problem = FAULTS[name]
    found = certified(changed(sound(), change))
    assert not found.holds
    assert [text for text in found.problems if _matches(problem, text)], found.problems


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.DOTALL) is not None


@pytest.mark.parametrize("name", BATCH_FAULTS)
def test_a_fault_of_batches_is_a_problem(name: str) -> None:
    change, problem = BATCH_FAULTS[name]
    found = certified(changed(batched(), change))
    assert not found.holds
    assert [text for text in found.problems if _matches(problem, text)], found.problems


def test_batches_that_come_late_change_no_price() -> None:
    """A second entry is a problem, and what was charged under the first one stays."""
    found = certified(changed(batched(), batches_twice))
    assert found.spent[0].rho == certified(list(batched())).spent[0].rho


def test_who_does_not_know_the_extension_understands_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    write_export(path, sound())
    assert len(read_records(path)) == len(sound())
    monkeypatch.setattr(reader, "KNOWN_FEATURES", frozenset({"exact/1"}))
    with pytest.raises(LedgerFeatureError, match="participation/1"):
        read_records(path)


# What the core refuses ----------------------------------------------------------------------------


def test_a_plan_for_growing_losses_pays_for_no_stream() -> None:
    """A stream costs all for one visit, where a sum costs 1/9 of what three visits cost."""
    book = account(Participation(3), noise=NoiseSource.simulation(0))
    whole = VisitsLoss(GaussianLoss("9/16", adjacency=Adjacency.ZERO_OUT), 3)
    book.commit([Plan("a", SUM.loss(), range(6)), Plan("b", SUM.loss(), range(6, 12))])
    with pytest.raises(BudgetError, match="not \\(or no longer\\) in the committed plan"):
        book.issue(whole, users=range(6), label="a")
    token = book.issue(SUM.loss(), users=range(6), label="a")
    stream = PrefixSum(
        Ball(1.0, 2), BinaryTree(6), 40.0, adjacency=book.adjacency, participation=Participation(3)
    )
    assert book.of_person(SUM.loss(), range(6)).gaussian() == Fraction(9, 16)
    with pytest.raises(BudgetError, match="its loss is not the planned one"):
        stream.open(token)


def test_a_profile_by_arrival_is_refused_in_a_plan_too() -> None:
    """Rows in two of its parts cost (a + b)², and not a² + b²."""
    parts = [(6, GaussianLoss("1/16", adjacency=Adjacency.ZERO_OUT))] * 2
    profile = PerArrivalLoss(parts)
    book = account(Participation(2), noise=NoiseSource.simulation(0))
    with pytest.raises(BudgetError, match="by arrival"):
        book.commit([Plan("stream", profile, SLOTS)])
    with pytest.raises(BudgetError, match="by arrival"):
        book.issue(profile, users=SLOTS, label="stream")


def test_a_stream_of_one_row_is_priced_as_a_group() -> None:
    rows = PrefixSum(Ball(1.0, 2), BinaryTree(12), 8.0, adjacency=Adjacency.ZERO_OUT)
    book = account(APART, noise=NoiseSource.simulation(0))
    rows.open(book.issue(rows.loss(), users=SLOTS, label="stream")).close()
    one = rows.loss().zcdp()
    assert one is not None
    assert book.spent().rho == 9 * one
    assert book.certificate().spent[0].rho == pytest.approx(float(9 * one))


def test_a_budget_without_a_loss_is_charged_to_whoever_comes() -> None:
    book = account(Participation(3), noise=NoiseSource.simulation(0))
    tokens = [book.issue(ZCDP("9/32"), users=range(a, a + 4), label="x") for a in (0, 4, 8)]
    assert book.spent() == ZCDP("27/32")
    SUM.release(admitted(book, range(4)), tokens[0])  # which costs 1/32, 4/32, 9/32
    assert book.spent() == ZCDP("9/32") * 2 + ZCDP("3/32")
    tokens[1].retire()
    tokens[2].retire()
    assert book.spent() == ZCDP("9/32")


def test_a_lost_spend_stays_charged_and_an_unspent_token_does_not(tmp_path: Path) -> None:
    people, ledger = People.memory(APART), Ledger.create(tmp_path / "l.db")
    book = CentralAccountant(ZCDP("4"), users=SLOTS, people=people, ledger=ledger)
    STREAM.open(book.issue(STREAM.loss(), users=SLOTS, label="stream"))
    book.issue(SUM.loss(), users=range(4), label="sum")
    ledger.close()
    with pytest.raises(PeopleError, match="given was none"):
        CentralAccountant.resume(tmp_path / "l.db")
    again: CentralAccountant[Any] = CentralAccountant.resume(tmp_path / "l.db", people=people)
    stream = STREAM.loss().zcdp()
    assert stream is not None
    assert again.spent().rho == stream
    assert again.certificate().lost == 1
    again.close()


def test_a_rényi_cap_holds_at_every_order() -> None:
    cap = Renyi({"2": "0.26", "8": "1.01"})  # room for ρ = 1/8
    book = account(Participation(2), cap=cap, noise=NoiseSource.simulation(0))
    loss = ZCDPLoss("1/32", adjacency=Adjacency.ZERO_OUT)
    for users in (range(4), range(4, 8), range(8, 12)):
        book.issue(loss, users=users, label="x")  # 1/8 for two visits, half of it for each
    assert float(book.spent().curve[Fraction(8)]) == pytest.approx(1)
    with pytest.raises(InsufficientBudgetError):
        book.issue(loss, users=range(4), label="y")
    ranged = BoundedRangeLoss("1/9", adjacency=Adjacency.ZERO_OUT)
    assert not book._state.prices.shares(ranged)
    assert account(Participation(2), noise=NoiseSource.simulation(0))._state.prices.shares(ranged)


@pytest.mark.parametrize(
    "one",
    [
        GaussianLoss("1/16"),
        PureLoss("0.4"),
        PureLoss("3"),
        LaplaceLoss("0.4"),
        LaplaceLoss("2"),
        BoundedRangeLoss("0.9"),
        ZCDPLoss("1/8"),
        FailingLoss(LaplaceLoss("0.4"), "1e-9"),
    ],
)
@pytest.mark.parametrize("cap", [ZCDP(1), PureDP(1), Renyi({"1.5": 1, "2": 1, "32": 1})])
def test_shared_losses_grow_at_least_as_fast_as_visits(one: Loss, cap: Any) -> None:
    """F(r) <= (r/m) F(m), which the sharing of charges rests on."""
    book = account(
        Participation(9, pattern="public"),
        cap=cap,
        adjacency=Adjacency.REPLACE_ONE,
        noise=NoiseSource.simulation(0),
    )
    if not book._state.prices.shares(one) or (
        isinstance(cap, PureDP) and one.unless_failed().pure() is None
    ):
        return
    prices = [
        (cap.price(many.unless_failed()).amounts, many.failure())
        for m in range(1, 10)
        for many in [one.for_visits(m)]
    ]
    for r, m in itertools.combinations(range(1, 10), 2):
        (few, f), (lots, g) = prices[r - 1], prices[m - 1]
        assert all(
            a * m <= b * r * (1 + Fraction(1, 2**40)) for a, b in zip(few, lots, strict=True)
        )
        assert f * m <= g * r


def test_a_budget_token_takes_no_more_than_it_holds_of_a_person() -> None:
    book = account(Participation(3), noise=NoiseSource.simulation(0))
    token = book.issue(ZCDP("1/32"), users=range(6), label="x")  # of one row
    with pytest.raises(LossExceedsTokenError):
        SUM.release(admitted(book, range(6)), token)


def test_local_messages_of_a_person_add_up() -> None:
    book = LocalAccountant(
        PureDP("2"),
        users=SLOTS,
        people=People.memory(Participation(4, pattern="public")),
        noise=NoiseSource.simulation(0),
    )
    book.issue(PureLoss("1/2"), users=SLOTS, label="x")
    assert book.spent() == PureDP("2")
    with pytest.raises(InsufficientBudgetError):
        book.issue(PureLoss("1/2"), users=range(1), label="y")


def test_a_private_pattern_goes_with_zero_out_only() -> None:
    with pytest.raises(AdjacencyError, match="zero-out"):
        account(APART, adjacency=Adjacency.REPLACE_ONE, noise=NoiseSource.simulation(0))


def test_pure_losses_add_up_as_such_and_with_others() -> None:
    relation, source = Adjacency.ZERO_OUT, NoiseSource.simulation(0)
    ledger = Ledger.memory()
    one = account(Participation(2), ledger=ledger, noise=source)
    loud, soft = PureLoss("0.1", adjacency=relation), LaplaceLoss("0.2", adjacency=relation)
    one.commit([Plan("a", loud, range(6), 3), Plan("b", soft, range(6, 12))])
    assert one.epsilon(0) == pytest.approx(0.6)  # two visits in the first half, three tokens
    two = account(Participation(3), ledger=ledger, noise=source, shared=True, failure="1e-7")
    two.commit([Plan("c", FailingLoss(loud, "1e-9"), SLOTS, 2)])
    certificate = two.certificate()
    assert certificate.problems == []
    # group privacy of (0.1, 1e-9), twice
    failing = 2e-9 * (1 + np.exp(0.1) + np.exp(0.2))
    assert certificate.guarantees[1].failure == pytest.approx(failing)
    (total,) = certificate.sums
    assert total.failure == pytest.approx(failing)
    assert total.epsilon <= 0.6 + 0.6 + 1e-9


def test_the_failure_of_a_person_stays_under_its_cap() -> None:
    loud = FailingLoss(PureLoss("0.1", adjacency=Adjacency.ZERO_OUT), "1e-9")
    book = account(Participation(3), failure="8e-9", noise=NoiseSource.simulation(0))
    for users in (range(4), range(4, 8), range(8, 12)):  # each for three rows; shared
        book.issue(loud, users=users, label="x")
        book.issue(loud, users=users, label="x")
    assert float(book.failure()) == pytest.approx(2e-9 * (1 + np.exp(0.1) + np.exp(0.2)))
    with pytest.raises(InsufficientBudgetError):
        book.issue(loud, users=SLOTS, label="x")
