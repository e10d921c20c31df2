"""Audits: every changed field is found, nothing in a file can crash one or lower a claim."""

from __future__ import annotations

import copy
import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, Certificate, JointAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState, Checked
from privlearn.cli.main import app
from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Plan
from privlearn.errors import LedgerUnreadableError
from privlearn.ledger import (
    GENESIS,
    Ledger,
    Record,
    canonical,
    chain_hash,
    chain_problems,
    read_records,
    write_export,
)
from privlearn.ledger.chain import chained
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.losses.budgets import ZCDP, ApproxDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, PSDTrace

USERS = range(8)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))  # rho = 0.005


def _use(accountant: JointAccountant[ZCDP]) -> None:
    """Two sums, a stream, one token lost and one unused: every kind of entry."""
    board = Billboard(accountant, USERS)
    rows = board.serve(Rows.seal(np.ones((8, 2)), users=USERS), lambda own: own)
    served = rows.deliver(lambda own, _: own)
    for part in (range(0, 4), range(4, 8)):
        token = accountant.issue(SUM.loss(), users=part, label="sum")
        board.post("sum", SUM.release(served.slice(part), token))
    gram = PrefixSum.calibrated(PSDTrace(1.0, 2), ZCDP("0.3"), horizon=8)
    with gram.open(accountant.issue(gram.loss(), users=USERS, label="gram")) as stream:
        stream.append(served.map_rows(lambda own: own[:, None, :]))
    accountant.issue(SUM.loss(), users=USERS, label="spare").retire()
    with accountant.issue(SUM.loss(), users=USERS, label="spare").spend(SUM.spend()):
        pass


def make_ledger(path: Path, planned: bool) -> None:
    with JointAccountant(
        ZCDP(1),
        users=USERS,
        ledger=Ledger.create(path),
        noise=NoiseSource.secure(),
        side_information=["item prices"],
    ) as accountant:
        if planned:
            gram = PrefixSum.calibrated(PSDTrace(1.0, 2), ZCDP("0.3"), horizon=8)
            accountant.commit(
                [
                    Plan("sum", SUM.loss(), range(0, 4)),
                    Plan("sum", SUM.loss(), range(4, 8)),
                    Plan("gram", gram.loss(), USERS),
                    Plan("spare", SUM.loss(), USERS, count=2),
                ]
            )
        _use(accountant)


@pytest.fixture(scope="module", params=["planned", "ad hoc"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    make_ledger(path, request.param == "planned")
    return path


@pytest.fixture
def ledger(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    path.write_bytes(original.read_bytes())
    return path


def other_value(value: object) -> object:
    """Something else of the same form, where possible."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "0"
        case None:
            return "x"
        case list():
            return [*value, "x"] if value else ["x"]
        case dict():
            return {**value, "x": 1}
    raise AssertionError(value)


def sql(path: Path, command: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        connection.execute(command, values)
    connection.close()


def test_an_untouched_ledger_is_whole(ledger: Path, tmp_path: Path) -> None:
    found = audit(ledger)
    assert found.problems == []
    assert found.holds
    assert found.closed
    assert (found.spends, found.lost) == (4, 1)
    assert not found.simulation
    Ledger.open(ledger, head=found.head).export(tmp_path / "export.jsonl")
    again = audit(tmp_path / "export.jsonl", head=found.head)
    assert again == found.model_copy(update={"head_compared": True, "head_at": found.entries})
    assert json.loads(found.model_dump_json())["entries"] == found.entries


def restated(record: Record, body: dict[str, Any]) -> bytes:
    """The stored bytes with another body."""
    return canonical({**(record.envelope or {}), "body": body})


def test_a_change_of_any_field_of_any_entry_is_found_there(ledger: Path) -> None:
    records = read_records(ledger)
    kinds = {record.body["entry"] for record in records}
    assert kinds >= {"open", "issue", "spend", "retire", "close"}
    update = "UPDATE entries SET entry = ? WHERE seq = ?"
    changes = 0
    for record in records:
        for name, value in record.body.items():
            changed = restated(record, {**record.body, name: other_value(value)})
            sql(ledger, update, changed.decode(), record.seq)
            found = audit(ledger)
            assert any(p.startswith(f"entry {record.seq}: its hash") for p in found.problems)
            assert not found.holds
            changes += 1
        sql(ledger, update, record.data.decode(), record.seq)
    assert changes > 100
    assert audit(ledger).problems == []


def test_so_does_a_change_in_an_export(ledger: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    records = read_records(ledger)
    for position, record in enumerate(records):
        bodies = [
            {key: value for key, value in record.body.items() if key != name}
            for name in record.body
        ]
        for body in [*bodies, {**record.body, "extra": 1}]:
            changed = replace(record, body=body, data=restated(record, body))
            write_export(export, [*records[:position], changed, *records[position + 1 :]])
            problems = [p for p in audit(export).problems if "its hash" in p]
            assert [p.partition(":")[0] for p in problems] == [f"entry {record.seq}"]


@pytest.mark.parametrize(
    ("part", "value", "kinds"),
    [
        ("writer", "f" * 16, {"issue", "spend", "retire", "close"}),
        ("writer", "F" * 16, {"open"}),
        ("epoch", 0, {"open", "issue"}),
        ("epoch", True, {"open"}),
        ("epoch", 2, {"issue"}),
        ("nonce", "0", {"open", "issue", "retire"}),
        ("at", None, {"open", "issue", "spend", "close"}),
        ("at", "2026-11-22T16:21:33Z", {"issue", "spend"}),
        ("at", "2026-11-22T16:21Z", {"retire"}),
        ("root", None, {"close"}),
        ("root", "0" * 64, {"close", "issue"}),
        ("ext", {"values/1": 1}, {"issue"}),
        ("ext", [], {"close"}),
    ],
)
def test_an_envelope_that_breaks_the_rules_is_a_problem_although_the_chain_fits(
    original: Path, part: str, value: Any, kinds: set[str]
) -> None:
    records = read_records(original)
    for record in {r.body["entry"]: r for r in records if r.body["entry"] in kinds}.values():
        head = records[record.seq - 1].hash if record.seq else GENESIS
        envelope = {k: v for k, v in (record.envelope or {}).items() if k != part}
        if value is not None:
            envelope[part] = value
        data = canonical({**envelope, "body": record.body})
        forged = replace(record, envelope=envelope, data=data, hash=chain_hash(head, data))
        problems = chain_problems([*records[: record.seq], forged])
        (problem,) = problems
        assert problem.startswith(f"entry {record.seq}: ")


def test_another_hash_breaks_the_chain(ledger: Path) -> None:
    for record in read_records(ledger):
        sql(ledger, "UPDATE entries SET hash = ? WHERE seq = ?", "f" * 64, record.seq)
        assert any(p.startswith(f"entry {record.seq}: ") for p in audit(ledger).problems)
        sql(ledger, "UPDATE entries SET hash = ? WHERE seq = ?", record.hash, record.seq)


def test_a_cut_in_the_middle_and_moved_entries_are_found(ledger: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    records = read_records(ledger)
    for k in range(len(records) - 1):
        write_export(export, records[:k] + records[k + 1 :])
        (problem,) = chain_problems(read_records(export))  # one fault is one problem
        assert problem.startswith(f"entry {k}: its hash does not fit")
        write_export(export, [*records[:k], records[k + 1], records[k], *records[k + 2 :]])
        assert any("cut or moved" in p for p in audit(export).problems)
    sql(ledger, "DELETE FROM entries WHERE seq = 3")
    (problem,) = chain_problems(read_records(ledger))
    assert problem == "entry 4: stands at position 3; entries were cut or moved"


def test_a_close_states_the_root_of_what_stands_before_it(original: Path) -> None:
    records = read_records(original)
    close = records[-1]
    assert close.envelope is not None
    assert close.envelope["root"] == audited_root([record.hash for record in records[:-1]])
    found = audit(original)
    assert found.root == audited_root([record.hash for record in records])
    assert (found.format, found.features) == (2, [])


def audited_root(hashes: list[str]) -> str:
    """RFC 6962, section 2.1, word by word."""

    def root(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return hashlib.sha256(b"\0" + leaves[0]).digest()
        k = 1 << ((len(leaves) - 1).bit_length() - 1)
        return hashlib.sha256(b"\1" + root(leaves[:k]) + root(leaves[k:])).digest()

    return root([bytes.fromhex(text) for text in hashes]).hex()


def stated(guarantee: Guarantee) -> Guarantee:
    """Less what it rests on, of which the part on exact noise counts only what stands there."""
    return guarantee.model_copy(update={"rests_on": []})


def test_cutting_the_tail_lowers_no_claim_and_the_head_finds_it(ledger: Path) -> None:
    whole = audit(ledger)
    claims = [stated(guarantee) for guarantee in whole.guarantees]
    assert not any("What is spent later may be" in a for a in whole.guarantees[0].assumptions)
    records = read_records(ledger)
    opened = 2 if records[1].body["entry"] == "plan" else 1
    for kept in range(len(records) - 1, opened - 1, -1):
        sql(ledger, "DELETE FROM entries WHERE seq >= ?", kept)
        cut = audit(ledger)
        assert cut.problems == []
        assert not cut.closed
        assert [stated(guarantee) for guarantee in cut.guarantees] == claims
        assert any("What is spent later may be" in a for a in cut.guarantees[0].assumptions)
        assert cut.spent[0].epsilon <= whole.spent[0].epsilon
        assert any(
            "the ledger was cut or rewritten" in p for p in audit(ledger, head=whole.head).problems
        )
    if opened == 2:  # without the plan the cap stands, which is larger
        sql(ledger, "DELETE FROM entries WHERE seq >= 1")
        assert audit(ledger).guarantees[0].epsilon > whole.guarantees[0].epsilon


def test_an_earlier_head_is_found_where_the_ledger_continues_it(ledger: Path) -> None:
    records = read_records(ledger)
    for at in (0, 1, len(records) // 2, len(records) - 1, len(records)):
        head = records[at - 1].hash if at else GENESIS
        found = audit(ledger, head=head)
        assert (found.problems, found.head_at, found.head_compared) == ([], at, True)
    printed = CliRunner().invoke(app, ["audit", str(ledger), "--head", records[2].hash]).output
    said = f"the one given stands after entry 3 of {len(records)}, which continue it"
    assert said in " ".join(printed.split())


def test_an_earlier_head_vouches_for_no_other_beginning(ledger: Path) -> None:
    """Not even where an entry of another beginning says that it has this hash."""
    records = read_records(ledger)
    kept, bodies = records[2].hash, [copy.deepcopy(record.body) for record in records]
    bodies[0]["side_information"] = []
    forged = chained(bodies)
    assert audit_of(forged, kept) == (None, 1)
    at, problems = audit_of([*forged[:2], replace(forged[2], hash=kept), *forged[3:]], kept)
    assert at == 3
    assert problems > 0


def audit_of(records: list[Record], head: str) -> tuple[int | None, int]:
    found = certify(records, head=head)
    return found.head_at, len(found.problems)


def test_rewriting_the_whole_chain_is_found_by_the_head(ledger: Path) -> None:
    whole = audit(ledger)
    bodies = [copy.deepcopy(record.body) for record in read_records(ledger)]
    bodies[0]["side_information"] = []
    forged = chained(bodies)
    assert certify(forged).problems == []
    (problem,) = certify(forged, head=whole.head).problems
    assert "cut or rewritten" in problem


def _position(bodies: list[dict[str, Any]], kind: str) -> int:
    return next(i for i, body in enumerate(bodies) if body["entry"] == kind)


def _spend(change: Callable[[dict[str, Any]], None]) -> Callable[[list[dict[str, Any]]], None]:
    return lambda bodies: change(bodies[_position(bodies, "spend")])


def _twice(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def repeat(bodies: list[dict[str, Any]]) -> None:
        position = _position(bodies, kind)
        bodies.insert(position + 1, copy.deepcopy(bodies[position]))

    return repeat


def _drop(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def remove(bodies: list[dict[str, Any]]) -> None:
        del bodies[_position(bodies, kind)]

    return remove


LIES: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "unknown loss kind": (_spend(lambda b: b["loss"].update(kind="magic")), "'magic' is unknown"),
    "a larger loss": (_spend(lambda b: b["loss"].update(mu_squared="3")), "costs"),
    "a smaller loss": (_spend(lambda b: b["loss"].update(mu_squared="0.0001")), "noise and domain"),
    "less noise": (_spend(lambda b: b["noise"].update(std=1.0)), "noise and domain"),
    "a larger domain": (_spend(lambda b: b["domain"].update(radius=9.0)), "noise and domain"),
    "a gain": (_spend(lambda b: b.update(gain=2.0)), "noise and domain"),
    "other users": (_spend(lambda b: b.update(users=[0, 8])), "was issued for users"),
    "another trust": (_spend(lambda b: b.update(trust="central")), "under central trust"),
    "another adjacency": (_spend(lambda b: b.update(adjacency="zero-out")), "zero-out"),
    "a loss for another adjacency": (
        _spend(lambda b: b["loss"].update(adjacency="zero-out")),
        "convert it explicitly",
    ),
    "simulated noise": (_spend(lambda b: b.update(simulated=True)), "noise source"),
    "no loss at all": (_spend(lambda b: b.update(loss={})), "unknown"),
    "a curve without a price": (
        _spend(
            lambda b: b.update(
                loss={"kind": "renyi-curve", "adjacency": "replace-one", "curve": [["2", "0.001"]]}
            )
        ),
        "no zCDP constant",
    ),
    "a token spent twice": (
        _twice("spend"),
        "before: it stays charged",
    ),
    "a token issued twice": (_twice("issue"), "was issued before"),
    "a token retired twice": (_twice("retire"), "was retired before"),
    "opened twice": (_twice("open"), "was opened before"),
    "entries after the close": (_twice("close"), "no entry may follow"),
    "a spend without a token": (_drop("issue"), "was never issued here"),
    "no open": (_drop("open"), "is not open"),
    "a close with open tokens": (_drop("retire"), "retire them before closing"),
    "a release without a spend": (_drop("spend"), "is unspent: it cannot end as released"),
    "a token for strangers": (
        lambda bodies: bodies[_position(bodies, "issue")].update(users=[0, 99]),
        "must be a non-empty part",
    ),
    "a cap of nothing": (lambda bodies: bodies[0]["cap"].update(rho="0"), "above zero"),
    "an account of nobody": (lambda bodies: bodies[0].update(users=[5, 3]), "users"),
    "a missing field": (lambda bodies: bodies[0].pop("noise") and None, "'open.noise'"),
    "an unknown field": (lambda bodies: bodies[0].update(extra=1), "'open.extra'"),
    "an unknown entry": (lambda bodies: bodies[1].update(entry="wish"), "wish"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_rewritten_ledger_that_does_not_add_up_has_a_problem(original: Path, lie: str) -> None:
    bodies = [copy.deepcopy(record.body) for record in read_records(original)]
    rewrite, message = LIES[lie]
    rewrite(bodies)
    found = certify(chained(bodies))
    assert any(message in problem for problem in found.problems), found.problems
    assert all(
        problem.startswith(("entry", "accountant", "no accountant")) for problem in found.problems
    )
    assert not found.holds


@pytest.mark.parametrize("cap", ["0.309", "0.005", "1e-9"])
def test_a_rewritten_cap_that_the_spends_exceed_is_a_problem(original: Path, cap: str) -> None:
    bodies = [copy.deepcopy(record.body) for record in read_records(original)]
    bodies[0]["cap"]["rho"] = cap
    found = certify(chained(bodies))
    assert any("budget exceeded" in problem for problem in found.problems)


HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**53 - 1,
    1e308,
    -0.5,
    "",
    "x",
    "1/0",
    "nan",
    "1e400",
    "-1",
    [],
    [[]],
    ["x"],
    [3, 1],
    [[1, 1], [1, 1]],
    {},
    {"kind": "composed"},
    {"kind": "gaussian"},
    {"kind": "composed", "adjacency": "replace-one", "parts": []},
    {"kind": "composed", "adjacency": "replace-one", "parts": ["x"]},
    {"kind": "composed", "adjacency": "replace-one", "parts": [{"loss": "x", "count": 1}]},
    {
        "kind": "composed",
        "adjacency": "replace-one",
        "parts": [
            {
                "loss": {"kind": "laplace", "adjacency": "replace-one", "epsilon": "1"},
                "count": 2**53 - 1,
            }
        ],
    },
    {"kind": "gaussian", "adjacency": "replace-one", "mu_squared": "1e400"},
    {"kind": "renyi", "curve": [["2", "1"]]},
    {"kind": "zcdp", "rho": "1e400"},
    {"kind": "pure", "epsilon": []},
    {"kind": []},
]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inside in items:
        if isinstance(inside, dict | list):
            yield from leaves(inside, (*path, key))
        else:
            yield (*path, key)


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(body)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    result: dict[str, Any] = changed
    return result


def test_nothing_that_stands_in_an_entry_can_crash_an_audit(original: Path) -> None:
    bodies = [record.body for record in read_records(original)][:5]
    first_of_kind = {body["entry"]: i for i, body in reversed(list(enumerate(bodies)))}
    for position in first_of_kind.values():
        for path in leaves(bodies[position]):
            for number, value in enumerate(HOSTILE):
                if (number + len(str(path))) % 3:  # a third of the pairs, every value somewhere
                    continue
                changed = [*bodies]
                changed[position] = replaced(bodies[position], path, value)
                where = f"{bodies[position]['entry']}.{'.'.join(map(str, path))} = {value!r:.80}"
                try:
                    found = certify(chained(changed))
                except Exception as error:
                    raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
                assert isinstance(found, Certificate)


@pytest.mark.parametrize("column", ["entry", "hash"])
@pytest.mark.parametrize(
    "text", ["null", "[]", "5", '"x"', "{}", '{"entry": NaN}', '{"entry": "\\ud800"}']
)
def test_records_of_a_wrong_form_are_unreadable(ledger: Path, column: str, text: str) -> None:
    sql(ledger, f"UPDATE entries SET {column} = ? WHERE seq = 2", text)
    with pytest.raises(LedgerUnreadableError):
        audit(ledger)


def test_shares_say_who_spent_the_budget(original: Path) -> None:
    shares = {share.label: share for share in audit(original).mechanisms}
    assert set(shares) == {"sum", "gram", "spare"}
    assert shares["sum"].spends == 2
    assert sum(share.share or 0 for share in shares.values()) == pytest.approx(1.0)
    assert shares["gram"].share == pytest.approx(0.3 / 0.31, rel=1e-6)
    notes = [note.partition("(")[0] for note in audit(original).trusted_code]
    assert list(dict.fromkeys(note.partition(":")[0] for note in notes)) == [
        "deliver",
        "map_rows",
        "prefix-sum",
        "serve",
    ]


def _spends(users: list[range], labels: list[str], population: range) -> CentralAccountant[ZCDP]:
    accountant: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(10_000), users=population, ledger=Ledger.memory(), noise=NoiseSource.secure()
    )
    for whom, label in zip(users, labels, strict=True):
        with accountant.issue(SUM.loss(), users=whom, label=label).spend(SUM.spend()):
            pass
    return accountant


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.sampled_from("abc")), min_size=1)
)
def test_shares_are_those_of_the_most_charged_user(drawn: list[tuple[int, int, str]]) -> None:
    spends = [(label, range(first, min(first + n, 12))) for first, n, label in drawn]
    labels = [label for label, _ in spends]
    shares = _spends([whom for _, whom in spends], labels, range(12)).certificate().mechanisms
    counts = [sum(user in whom for _, whom in spends) for user in range(12)]
    most = counts.index(max(counts))
    expected = {
        label: sum(other == label and most in whom for other, whom in spends) / counts[most]
        for label in labels
    }
    assert {share.label: share.share for share in shares} == pytest.approx(expected)
    assert {share.label: share.spends for share in shares} == {x: labels.count(x) for x in labels}


def test_shares_of_disjoint_users_take_work_in_proportion() -> None:
    """Calls are counted, which are the same on every machine."""

    def calls(spends: int) -> int:
        users = [range(2 * (k * 7 % spends), 2 * (k * 7 % spends) + 1) for k in range(spends)]
        accountant = _spends(users, ["x"] * spends, range(2 * spends))
        state, totals = AccountState(accountant.ledger.entries[0]), SpendTotals()  # type: ignore[arg-type]
        for entry in accountant.ledger.entries[1:]:
            state.record(Checked(entry))
            totals.add(state, entry)
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            ((_, share),) = totals.shares(state)
        finally:
            sys.setprofile(before)
        assert share == 1
        return counted

    assert calls(200) < 2.5 * calls(100)


def test_records_are_read_once_and_tokens_that_ended_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    record_entry = AccountState.record

    def counting(state: AccountState, entry: Any) -> None:
        record_entry(state, entry)
        kept.append(len(state.accounts))

    monkeypatch.setattr(AccountState, "record", counting)
    records = _spends([range(k, k + 1) for k in range(50)], ["x"] * 50, range(50)).ledger.records
    kept.clear()
    assert certify(iter(records)) == certify(records)
    assert max(kept) == 1  # the one that is open


@pytest.mark.parametrize("kind", ["issue", "spend", "functions", "retire"])
def test_what_comes_after_a_token_ended_is_a_problem_and_counts(original: Path, kind: str) -> None:
    bodies = [copy.deepcopy(record.body) for record in read_records(original)]
    end = max(i for i, body in enumerate(bodies) if body["entry"] == "retire")
    again = next(body for body in bodies if body["entry"] == kind)
    found = certify(chained([*bodies[: end + 1], again, *bodies[end + 1 :]]))
    assert f"token {again['token']} was" in found.problems[0]
    before, after = certify(chained(bodies)).spent[0].rho, found.spent[0].rho
    assert before is not None
    assert after == pytest.approx(before + 0.005 if kind == "spend" else before)


def test_ex_post_is_never_above_the_guarantee(original: Path) -> None:
    found = audit(original, delta=1e-9)
    (promised,), (spent,) = found.guarantees, found.spent
    assert spent.epsilon <= promised.epsilon
    assert spent.rho is not None
    assert promised.rho is not None
    assert spent.rho <= promised.rho
    assert promised.delta == 1e-9


def test_a_simulation_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with JointAccountant(
        ZCDP(1), users=USERS, ledger=Ledger.create(path), noise=NoiseSource.simulation(3)
    ) as accountant:
        _use(accountant)
    found = audit(path)
    assert found.problems == []
    assert found.simulation
    assert not found.holds


def test_mixed_kinds_of_losses_are_counted_in_one_guarantee(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with JointAccountant(ZCDP(2), users=USERS, ledger=Ledger.create(path)) as accountant:
        accountant.commit(
            [Plan("a", GaussianLoss("0.1"), USERS, 3), Plan("b", LaplaceLoss("0.5"), range(4), 2)]
        )
    (guarantee,) = audit(path).guarantees
    assert guarantee.mu is None  # the Laplace has none
    expected = 3 * GaussianLoss("0.1").zcdp() + 2 * LaplaceLoss("0.5").zcdp()
    assert guarantee.rho == pytest.approx(float(expected))


def test_a_cap_that_does_not_keep_its_promise_is_a_problem(tmp_path: Path) -> None:
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ApproxDP(1, "1e-6"), users=range(4), ledger=Ledger.create(tmp_path / "l.db")
    )
    book.close()
    assert audit(tmp_path / "l.db").holds
    bodies = [record.body for record in read_records(tmp_path / "l.db")]
    bodies[0]["cap"]["rho"] = "1"
    (problem,) = certify(chained(bodies)).problems
    assert "not the promised ApproxDP" in problem


def test_two_accountants_in_one_ledger_are_stated_one_by_one(tmp_path: Path) -> None:
    bodies = []
    for name in ("a.db", "b.db"):
        CentralAccountant(ZCDP(1), users=range(4), ledger=Ledger.create(tmp_path / name)).close()
        bodies += [record.body for record in read_records(tmp_path / name)]
    certificate = certify(chained(bodies))
    assert [guarantee.rho for guarantee in certificate.guarantees] == [1, 1]
    assert certificate.problems == []
    (together,), (remark,) = certificate.sums, certificate.remarks
    assert together.rho == 2
    assert "not declared" in remark
