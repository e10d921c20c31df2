"""The format of ledgers: old ones, hostile ones, extensions, and a verifier that is not ours."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import resource
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.cli.main import app
from privlearn.errors import LedgerFeatureError, LedgerSchemaError, LedgerUnreadableError
from privlearn.ledger import (
    GENESIS,
    Ledger,
    MerkleTree,
    Record,
    canonical,
    chain_problems,
    iterate_records,
    read_records,
    write_export,
)
from privlearn.ledger.chain import MOST_BYTES, chain_hash, chained
from privlearn.ledger.entries import CloseEntry, OpenEntry
from privlearn.ledger.records import MOST_DEPTH, parse
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows.domains import Ball
from privlearn.values.exact import exact

ROOT = Path(__file__).resolve().parents[2]
OLD = Path(__file__).parent / "format1"
OLD_NAMES = ["one-pass-newton-joint", "tofw-central", "local-attested"]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger of five entries."""
    path = tmp_path_factory.mktemp("small") / "ledger.db"
    with CentralAccountant(
        ZCDP(1), users=range(4), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ) as book:
        for _ in range(2):
            book.issue(ZCDP("0.1"), users=range(4), label="spare").retire()
    return path


def sql(path: Path, *commands: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for command in commands:
        connection.execute(command)
    connection.close()


# Format 1 -----------------------------------------------------------------------------------------


def told(certificate: Any, then: Any) -> Any:
    """Of a certificate what one of the old code said, less its words and how it found numbers."""
    if isinstance(then, dict):
        names = then.keys() - {"assumptions", "method", "error_bound"}
        return {name: told(certificate.get(name), then[name]) for name in names}
    if isinstance(then, list) and isinstance(certificate, list) and len(then) == len(certificate):
        return [told(one, other) for one, other in zip(certificate, then, strict=True)]
    close = isinstance(then, float) and then == pytest.approx(certificate, rel=1e-9)
    return then if close else certificate


@pytest.mark.parametrize("name", OLD_NAMES)
def test_ledgers_of_format_1_audit_as_they_did_when_they_were_written(
    name: str, tmp_path: Path
) -> None:
    """Beside each stands the certificate of the code that wrote it (commit 83c62fe)."""
    then = json.loads((OLD / f"{name}.json").read_text(encoding="utf-8"))
    found = audit(OLD / f"{name}.db", head=then["head"])
    assert told(json.loads(found.model_dump_json()), then) == told(then, then)
    assert (found.format, found.problems) == (1, [])
    export = tmp_path / "export.jsonl"
    write_export(export, iterate_records(OLD / f"{name}.db"))
    assert json.loads(export.read_text(encoding="utf-8").splitlines()[0]) == {"privlearn_ledger": 1}
    assert audit(export, head=then["head"]) == found
    done = CliRunner().invoke(app, ["audit", str(OLD / f"{name}.db"), "--full"])
    assert done.exit_code == 0
    assert re.search(r"^format +1$", done.output, re.MULTILINE)


@pytest.mark.parametrize("name", OLD_NAMES)
def test_a_change_in_a_ledger_of_format_1_names_the_field(name: str) -> None:
    records = read_records(OLD / f"{name}.db")
    for record in records[:: len(records) // 3]:
        for field in record.body:
            changed = replace(record, body={**record.body, field: [record.body[field], "x"]})
            problems = chain_problems([*records[: record.seq], changed, *records[record.seq + 1 :]])
            assert problems == [f"entry {record.seq}: field {field!r} was changed"]


def test_a_ledger_of_format_1_takes_no_further_entries(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes((OLD / "tofw-central.db").read_bytes())
    for resume in (Ledger.open, CentralAccountant.resume):
        with pytest.raises(LedgerSchemaError, match="format 1, which is read and audited but"):
            resume(path)
    assert path.read_bytes() == (OLD / "tofw-central.db").read_bytes()


def test_format_1_is_never_extended() -> None:
    (first, *_) = read_records(OLD / "tofw-central.db")
    for body in (
        {**first.body, "features": {}},
        {"accountant": "a", "entry": "functions", "token": "a/1", "names": ["f"]},
    ):
        assert any("format 1 has no" in p for p in chain_problems([replace(first, body=body)]))


# Golden vectors -----------------------------------------------------------------------------------


def golden() -> list[tuple[bytes, str]]:
    """Stored bytes and hashes as docs/ledger.md prints them."""
    text = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    lines = text.partition("```jsonl\n")[2].partition("```")[0].splitlines()
    assert lines[0] == '{"privlearn_ledger":2}'
    return [(line[9:-75].encode(), line[-66:-2]) for line in lines[1:]]


def test_the_golden_ledger_of_the_documentation_is_one(tmp_path: Path) -> None:
    lines = golden()
    assert len(lines) == 5
    previous = bytes(32)
    for data, told in lines:
        previous = hashlib.sha256(previous + data).digest()
        assert previous.hex() == told
        assert canonical(parse(data)) == data
    path = tmp_path / "golden.jsonl"
    path.write_bytes(
        b"".join(
            [b'{"privlearn_ledger":2}\n']
            + [b'{"entry":' + data + b',"hash":"' + told.encode() + b'"}\n' for data, told in lines]
        )
    )
    found = audit(path)
    assert found.problems == []
    assert found.head == lines[-1][1]
    text = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    assert f"`{found.root}`" in text
    heard = load("docs/verify_ledger.py").verify(path)
    assert (heard["head"], heard["root"], heard["problems"]) == (found.head, found.root, [])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (1.0, "1"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-7, "1e-7"),
        (0.000001, "0.000001"),
        (5e-324, "5e-324"),
        ("Größe\n\x7f", '"Größe\\n\x7f"'),
        ({"\U0001f600": 1, "\ufb33": 2}, '{"\U0001f600":1,"\ufb33":2}'),  # by UTF-16 units
    ],
)
def test_stored_bytes_are_those_of_rfc_8785(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


@pytest.mark.parametrize("value", [2**53, float("nan"), float("inf"), "\ud800", {1: 2}, b"x"])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"domain|JCS|UTF-8|must be strings|unsupported type"):
        canonical(value)


def test_merkle_roots_of_all_lengths_are_those_of_rfc_6962() -> None:
    def root(leaves: list[bytes]) -> bytes:
        if not leaves:
            return hashlib.sha256(b"").digest()
        if len(leaves) == 1:
            return hashlib.sha256(b"\0" + leaves[0]).digest()
        k = 1 << ((len(leaves) - 1).bit_length() - 1)
        return hashlib.sha256(b"\1" + root(leaves[:k]) + root(leaves[k:])).digest()

    tree, leaves = MerkleTree(), list[bytes]()
    for n in range(70):
        assert tree.root == root(leaves).hex()
        leaves.append(hashlib.sha256(bytes([n])).digest())
        tree.add(leaves[-1])


def test_a_root_on_demand_is_what_a_close_would_state(tmp_path: Path) -> None:
    for ledger in (Ledger.memory(), Ledger.create(tmp_path / "ledger.db")):
        assert ledger.root == hashlib.sha256(b"").hexdigest()
        book: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(1), users=range(4), ledger=ledger, noise=NoiseSource.simulation(0)
        )
        token = book.issue(ZCDP("0.1"), users=range(4), label="x")
        token.retire()
        stated = ledger.root
        book.close()
        assert (ledger.records[-1].envelope or {})["root"] == stated != ledger.root


# Extensions ---------------------------------------------------------------------------------------


def with_features(features: dict[str, str], small: Path, path: Path) -> Path:
    bodies = [record.body for record in read_records(small)]
    write_export(path, chained([{**bodies[0], "features": features}, *bodies[1:]]))
    return path


def test_an_unknown_critical_extension_has_its_own_error_and_exit_code(
    small: Path, tmp_path: Path
) -> None:
    features = {"curve/1": "critical", "values/1": "optional", "exact/1": "critical"}
    path = with_features(features, small, tmp_path / "x.jsonl")
    for read in (read_records, audit, Ledger.open):
        with pytest.raises(LedgerFeatureError, match="needs the extensions 'curve/1', which"):
            read(path)
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 6
    assert "curve/1" in done.output
    verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(path)]
    assert subprocess.run(verify, capture_output=True).returncode == 6


def test_an_unknown_optional_extension_is_shown_and_its_data_left_aside(
    small: Path, tmp_path: Path
) -> None:
    path = with_features({"values/1": "optional"}, small, tmp_path / "x.jsonl")
    found = audit(path)
    assert (found.problems, found.features) == ([], ["values/1"])
    assert "values/1" in CliRunner().invoke(app, ["audit", str(path), "--full"]).output
    records = read_records(path)
    for ext, fits in (({"values/1": {"digest": "x"}}, True), ({"curve/1": {}}, False)):
        second = records[1]
        envelope = {**(second.envelope or {}), "ext": ext}
        data = canonical({**envelope, "body": second.body})
        changed = Record(1, second.body, chain_hash(records[0].hash, data), data, envelope)
        assert (chain_problems([records[0], changed]) == []) is fits


@pytest.mark.parametrize(
    "features", [{"values": "optional"}, {"Values/1": "optional"}, {"values/1": "yes"}, [], None]
)
def test_features_of_a_wrong_form_are_problems(features: Any, small: Path, tmp_path: Path) -> None:
    found = audit(with_features(features, small, tmp_path / "x.jsonl"))
    assert any("field 'open.features" in problem for problem in found.problems)


def test_the_table_of_public_values_may_be_dropped(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(small.read_bytes())
    whole = audit(path)
    sql(path, "INSERT INTO released VALUES ('0', x'00')")
    assert audit(path) == whole
    sql(path, "DROP TABLE released")
    assert audit(path) == whole


# Hostile files ------------------------------------------------------------------------------------

Build = Callable[[Path], Any]


def _views(query: str) -> Build:
    return lambda path: sql(
        path, "ALTER TABLE entries RENAME TO hidden", f"CREATE VIEW entries AS {query}"
    )


def _value(column: str, value: str) -> Build:
    return lambda path: sql(path, f"UPDATE entries SET {column} = {value} WHERE seq = 2")


def _body(text: str) -> Build:
    return lambda path: sql(
        path, f"UPDATE entries SET entry = replace(entry, '\"label\":\"spare\"', '{text}')"
    )


def _pages(path: Path, *, inside: bool) -> None:
    """A tree whose children are all one: the first leaf, or the root itself."""
    with Ledger.create(path.with_name("large.db")) as ledger:
        ledger.append(OPEN)
        for _ in range(40):
            ledger.append(OPEN.model_copy(update={"software": "x" * 900}))
    content = bytearray(path.with_name("large.db").read_bytes())
    with closing(sqlite3.connect(path.with_name("large.db"))) as database:
        asked = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entries'")
        root = int(asked.fetchone()[0])
    at = (root - 1) * 4096
    assert content[at] == 5, "an interior page"
    (first,) = struct.unpack(">H", content[at + 12 : at + 14])
    content[at + 3 : at + 5] = struct.pack(">H", 200)
    content[at + 12 : at + 412] = struct.pack(">H", first) * 200
    if inside:
        content[at + first : at + first + 4] = struct.pack(">I", root)
    path.write_bytes(content)


def _export(*lines: bytes) -> Build:
    return lambda path: path.write_bytes(b'{"privlearn_ledger":2}\n' + b"".join(lines))


def _long_line(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b'{"privlearn_ledger":2}\n{"entry":"')
        file.truncate(3 * 2**30)  # a hole: it needs no room on disk


OPEN = OpenEntry.model_validate(
    {
        "accountant": "a",
        "software": "x",
        "trust": "central",
        "adjacency": "replace-one",
        "users": (0, 4),
        "cap": {"kind": "zcdp", "rho": "1"},
        "promise": None,
        "noise": "x",
        "simulated": True,
        "side_information": (),
        "durable": True,
    }
)
OTHER_TABLES = "its tables are not those of a ledger"
HOSTILE: dict[str, tuple[Build, str]] = {
    "a recursive view": (
        _views(
            "WITH RECURSIVE c(seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM c) "
            "SELECT seq, 'x' AS entry, 'y' AS hash FROM c"
        ),
        OTHER_TABLES,
    ),
    "a view that tells the time": (
        _views("SELECT seq, entry, hash FROM hidden WHERE strftime('%s') % 2"),
        OTHER_TABLES,
    ),
    "a view of a huge value": (
        _views("SELECT 0 AS seq, hex(zeroblob(450000000)) AS entry, 'y' AS hash"),
        OTHER_TABLES,
    ),
    "a trigger": (
        lambda p: sql(p, "CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END"),
        OTHER_TABLES,
    ),
    "a further table": (lambda p: sql(p, "CREATE TABLE more (a)"), OTHER_TABLES),
    "many tables": (
        lambda p: sql(p, "BEGIN", *[f"CREATE TABLE t{i} (a)" for i in range(3000)], "COMMIT"),
        r"takes more steps than|its tables are not",
    ),
    "an index": (lambda p: sql(p, "CREATE INDEX i ON entries (hash)"), OTHER_TABLES),
    "an index on an expression": (
        lambda p: sql(p, "CREATE INDEX i ON entries (length(entry))"),
        OTHER_TABLES,
    ),
    "a generated column": (
        lambda p: sql(p, "ALTER TABLE entries ADD COLUMN more TEXT AS (hash || hash)"),
        OTHER_TABLES,
    ),
    "another order of rows": (
        lambda p: sql(
            p,
            "ALTER TABLE entries RENAME TO hidden",
            "CREATE TABLE entries (seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT) "
            "WITHOUT ROWID",
        ),
        OTHER_TABLES,
    ),
    "the tables of format 1": (lambda p: sql(p, "PRAGMA user_version = 1"), OTHER_TABLES),
    "a large value": (_value("entry", "hex(zeroblob(9000000))"), "an entry of more than 8388608"),
    "a blob for text": (
        lambda p: sql(
            p,
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'entry TEXT', 'entry BLOB')",
        ),
        OTHER_TABLES,
    ),
    "deep nesting": (_value("entry", "'" + "[" * 100_000 + "'"), "nested more than 64 levels"),
    "a name twice": (_body('"label":"a","label":"b"'), "the name 'label' stands twice"),
    "no number": (_body('"label":NaN'), "NaN is no JSON"),
    "a large integer": (_body('"label":9007199254740993'), "not below 2\\^53"),
    "a large real number": (_body('"label":1e400'), "too large or too long"),
    "a long number": (_body(f'"label":{"1" * 5000}'), "not below 2\\^53"),
    "half a surrogate pair": (_body('"label":"\\ud800"'), "surrogates not allowed"),
    "no UTF-8": (_value("entry", "CAST(x'ff' AS TEXT)"), "can't decode byte 0xff"),
    "an unknown part": (
        _value("entry", """'{"body":{},"x":1}'"""),
        "no envelope, or one with unknown parts",
    ),
    "no body": (_value("entry", """'{"epoch":1}'"""), "has no body"),
    "a hash of another form": (_value("hash", "upper(hash)"), "64 hexadecimal digits"),
    "one page for all": (
        lambda p: _pages(p, inside=False),
        "larger than the file that they stand in",
    ),
    "a page inside itself": (lambda p: _pages(p, inside=True), "malformed"),
    "a line of three gigabytes": (_long_line, "line 2 is longer than"),
    "a line that is no entry": (_export(b'{"body":1}\n'), "line 2 is no entry, or is torn"),
    "a line without end": (_export(b'{"entry":{},"hash":"' + b"0" * 64 + b'"}'), "is torn"),
    "a first line without end": (
        lambda p: p.write_bytes(b'{"privlearn_ledger":' + b" " * 10**6 + b"2}\n"),
        "is not a readable ledger",
    ),
    "a first line of another form": (
        lambda p: p.write_bytes(b'{"privlearn_ledger":true}\n'),
        "is not a ledger",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_hostile_corpus_is_refused_by_name(name: str, small: Path, tmp_path: Path) -> None:
    build, message = HOSTILE[name]
    path = tmp_path / "hostile"
    path.write_bytes(small.read_bytes())
    build(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (read_records, audit, Ledger.open):
        with pytest.raises(LedgerUnreadableError, match=message):
            read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # kB
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 4
    assert done.output.startswith("error: ")


def test_sixteen_bit_text_is_refused(tmp_path: Path, small: Path) -> None:
    path = tmp_path / "wide.db"
    with closing(sqlite3.connect(small)) as database:
        schema = [row[0] for row in database.execute("SELECT sql FROM sqlite_schema")]
    sql(
        path,
        "PRAGMA encoding = 'UTF-16'",
        "PRAGMA application_id = 1886547054",
        "PRAGMA user_version = 2",
        *schema,
    )
    with pytest.raises(LedgerUnreadableError, match="its text is not UTF-8"):
        read_records(path)


def test_nesting_is_counted_outside_of_text() -> None:
    brackets = "[" * 200
    assert parse(json.dumps({"a": brackets, "b": '\\"' + brackets}).encode()) is not None
    deep = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert parse(deep) is not None
    assert len(parse(b"[" + b"[]," * 100 + b"[]]")) == 101
    with pytest.raises(ValueError, match="nested more than"):
        parse(b"[" + deep + b"]")


def test_an_entry_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db")
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES} can be stored"):
        ledger.append(OPEN.model_copy(update={"software": "x" * MOST_BYTES}))
    assert ledger.head == GENESIS
    ledger.append(OPEN)
    ledger.append(CloseEntry(accountant="a"))
    assert chain_problems(ledger.records) == []


LONG_NUMBERS = [
    "1e99999999", "-1e99999999", "1e-99999999", "1e401", "1" * 401, "0." + "1" * 401,
    "1/" + "3" * 401, "1e1000000000000000000000000",
]  # fmt: skip


@pytest.mark.parametrize("text", [*LONG_NUMBERS, "1_000", " 1", "1/ 3", "١", "0x10", "1e", "."])
def test_exact_numbers_have_a_pattern_and_a_length(text: str) -> None:
    with pytest.raises(ValueError, match=r"rho = .*: must be a finite number of at most 400"):
        exact("rho", text)


@pytest.mark.parametrize("text", ["1", "-0.5", ".5", "5.", "1/3", "1e-400", "1E+0400", "9" * 400])
def test_exact_numbers_within_it_are_read(text: str) -> None:
    exact("rho", text)


@pytest.mark.parametrize("field", ["cap", "failure", "budget"])
@pytest.mark.parametrize("text", LONG_NUMBERS)
def test_a_long_number_in_a_ledger_is_a_problem_at_once(field: str, text: str, small: Path) -> None:
    bodies = [json.loads(json.dumps(record.body)) for record in read_records(small)]
    if field == "failure":
        bodies[0]["failure"] = text
    else:
        bodies[0 if field == "cap" else 1][field]["rho"] = text
    assert certify(chained(bodies)).problems


def test_a_cap_beyond_all_floats_under_a_promise_is_a_problem() -> None:
    bodies = [record.body for record in read_records(OLD / "one-pass-newton-joint.db")]
    assert certify(chained(bodies)).problems == []
    bodies[0]["cap"]["rho"] = "1e400"
    assert any("is not kept" in problem for problem in certify(chained(bodies)).problems)


def test_mutated_files_of_every_kind_are_read_or_refused(tmp_path: Path) -> None:
    fuzz = load("benchmarks/ledger_fuzz.py")
    seeds = fuzz.make_seeds(tmp_path, OLD / "local-attested.db")
    found = set()
    for number in range(400):
        rng = np.random.default_rng([7, number])
        found.add(fuzz.read(fuzz.mutate(seeds, tmp_path / "mutated", rng)))
    assert found >= {"whole", "problems", "LedgerUnreadableError"}


# Another verifier ---------------------------------------------------------------------------------


def test_a_verifier_that_is_not_ours_says_the_same(tmp_path: Path) -> None:
    agreement = load("benchmarks/ledger_agreement.py")
    found, counts = agreement.disagreements(tmp_path, 150, 8)
    assert found == []
    verdicts = {text.partition(": ")[2].partition(",")[0] for text in counts}
    assert verdicts == {"whole", "problems", "unreadable", "extension", "unchecked"}
    assert counts["rechained: problems, overspent"]
    assert 5 * counts["rechained: unchecked"] < counts["rechained: problems"]


@pytest.mark.parametrize(
    ("name", "blind"), [("exact", lambda text: 0), ("fits", lambda kind, value: True)]
)
def test_a_verifier_that_does_not_look_would_be_told(
    name: str, blind: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = load("benchmarks/ledger_agreement.py")
    module = agreement.verifier("verify_ledger")
    monkeypatch.setattr(module, name, blind)
    found, _ = agreement.disagreements(tmp_path, 50, 18)
    assert found


Change = Callable[[list[dict[str, Any]]], Any]


def _at(entry: int, *path: str, value: Any) -> Change:
    """A value in one of the golden entries: open, issue, spend, retire, close."""

    def change(bodies: list[dict[str, Any]]) -> None:
        place = bodies[entry]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


LAPLACE = {"kind": "laplace", "adjacency": "replace-one", "epsilon": "1"}
PART: dict[str, Any] = {"loss": LAPLACE, "count": 2}
COMPOSED: dict[str, Any] = {"kind": "composed", "adjacency": "replace-one", "parts": [PART]}
WRONG_FORMS: dict[str, Change] = {
    "users of text": _at(0, "users", value=["0", "4"]),
    "users of booleans": _at(1, "users", value=[False, True]),
    "users of real numbers": _at(1, "users", value=[0, 2.5]),
    "users beyond 2^53": _at(0, "users", value=[0, 2.0**53]),
    "three users": _at(1, "users", value=[0, 1, 2]),
    "simulated as text": _at(0, "simulated", value="no"),
    "durable as a number": _at(0, "durable", value=1),
    "attested as text": _at(0, "attested", value="false"),
    "side information as text": _at(0, "side_information", value="prices"),
    "failure as a number": _at(0, "failure", value=0),
    "a cap of a number": _at(0, "cap", "rho", value=0.1),
    "a cap of more": _at(0, "cap", "epsilon", value="1"),
    "a cap of no kind": _at(0, "cap", "kind", value=["zcdp"]),
    "named functions": _at(0, "functions_named", value=True),
    "planned as a boolean": _at(1, "planned", value=True),
    "planned as text": _at(1, "planned", value="0"),
    "a budget of a number": _at(1, "budget", "rho", value=1),
    "a budget of more": _at(1, "budget", "more", value=None),
    "gain as text": _at(2, "gain", value="1"),
    "gain as a boolean": _at(2, "gain", value=True),
    "derived as a number": _at(2, "derived", value=1),
    "interactive as text": _at(2, "interactive", value=""),
    "radius as a boolean": _at(2, "domain", "radius", value=True),
    "radius as text": _at(2, "domain", "radius", value="1"),
    "size as a real number": _at(2, "domain", "size", value=2.5),
    "a domain of more": _at(2, "domain", "more", value=1),
    "a domain of a kind that is none": _at(2, "domain", "kind", value=["ball"]),
    "std as text": _at(2, "noise", "std", value="20"),
    "noise of more": _at(2, "noise", "scale", value=20),
    "noise of a family that is none": _at(2, "noise", "family", value=7),
    "a loss of a number": _at(2, "loss", "mu_squared", value=0.01),
    "a loss of more": _at(2, "loss", "epsilon", value="1"),
    "a profile of booleans": _at(2, "profile", value=[[True, 1]]),
    "a digest of a number": _at(3, "digest", value=5),
    "parts of more": _at(2, "loss", value={**COMPOSED, "parts": [{**PART, "more": 1}]}),
    "parts of another count": _at(2, "loss", value={**COMPOSED, "parts": [{**PART, "count": 2.5}]}),
    "parts that are none": _at(2, "loss", value={**COMPOSED, "parts": ["x"]}),
    "parts for others": _at(2, "loss", value={**COMPOSED, "adjacency": "zero-out"}),
    "a curve of words": _at(0, "cap", value={"kind": "renyi", "curve": ["21", "31"]}),
    "a curve of numbers": _at(0, "cap", value={"kind": "renyi", "curve": [[2, "1"]]}),
    "a plan of text": lambda b: b.insert(1, _plan(count="2")),
    "a plan of more": lambda b: b.insert(1, _plan(more=2)),
    "a plan without a loss": lambda b: b.insert(1, _plan(loss=None)),
    "a plan of fewer": lambda b: _put(
        b, [_plan(), {**b[1], "planned": 0}, {**b[1], "planned": 0, "token": "golden/2"}]
    ),
    "an allowance that nobody made": _at(1, "allowance", value="none"),
    "an allowance beside a plan": lambda b: _put(
        b, [_plan(), {**b[1], "planned": 0, "allowance": "part"}]
    ),
    "a promise of numbers": _at(0, "promise", value={"kind": "approx", "epsilon": 1, "delta": 0.1}),
    "an allowance that went back": lambda b: _put(b, _allowance(b[1], back=True)),
    "an allowance of less": lambda b: _put(b, _allowance(b[1], back=False)),
}


def _put(bodies: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    bodies[1:2] = others


def _plan(**more: Any) -> dict[str, Any]:
    loss = {"kind": "gaussian", "adjacency": "replace-one", "mu_squared": "0.01"}
    item = {"label": "sum", "users": [0, 2], "loss": loss, "count": 1, **more}
    return {"accountant": "golden", "entry": "plan", "items": [item]}


def _allowance(issue: dict[str, Any], *, back: bool) -> list[dict[str, Any]]:
    """The golden token out of an allowance: one that was returned, or one of less than it holds."""
    made = {
        "accountant": "golden",
        "entry": "delegate",
        "allowance": "part",
        "label": "part",
        "users": [0, 2],
        "budget": {"kind": "zcdp", "rho": "0.01" if back else "0.001"},
        "failure": "0",
    }
    returned = {"accountant": "golden", "entry": "return", "allowance": "part"}
    return [made, *[returned] * back, {**issue, "allowance": "part"}, *[returned] * (not back)]


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_values_of_other_types_and_unknown_names_are_problems(name: str, tmp_path: Path) -> None:
    """Also for the other verifier, unless it says that it did not look."""
    bodies = [parse(data)["body"] for data, _ in golden()]
    WRONG_FORMS[name](bodies)
    path = tmp_path / "wrong.jsonl"
    write_export(path, chained(bodies))
    found = certify(iterate_records(path))
    assert found.problems
    heard = VERIFIER.verify(path)
    problems = [*found.problems, *found.consequences]
    assert heard["problems"] or AGREEMENT.excused(problems, heard["unchecked"])


AGREEMENT = load("benchmarks/ledger_agreement.py")
VERIFIER = load("docs/verify_ledger.py")


def test_a_plan_and_an_allowance_that_are_kept_are_no_problem(tmp_path: Path) -> None:
    """The plan and the allowances above, without what is wrong with them."""
    bodies = [parse(data)["body"] for data, _ in golden()]
    planned = [bodies[0], _plan(), {**bodies[1], "planned": 0}, *bodies[2:]]
    made, returned, token = _allowance(bodies[1], back=True)
    delegated = [bodies[0], made, token, *bodies[2:4], returned, bodies[4]]
    for honest, looked in ((planned, True), (delegated, False)):
        path = tmp_path / "honest.jsonl"
        write_export(path, chained(honest))
        assert certify(iterate_records(path)).problems == []
        heard = VERIFIER.verify(path)
        assert heard["problems"] == []
        assert (len(heard["unchecked"]) == 1) is looked


def test_the_verifier_knows_which_accountant_declared_an_extension(tmp_path: Path) -> None:
    bodies = [parse(data)["body"] for data, _ in golden()]
    other = {**bodies[0], "accountant": "other", "features": {"values/1": "optional"}}
    records = chained([bodies[0], other, bodies[1]])
    for owner in ("golden", "other"):
        head, made = GENESIS, []
        for record in records:
            envelope = dict(record.envelope or {})
            body = {**record.body, "accountant": owner} if record.seq == 2 else record.body
            if record.seq == 2:
                envelope["ext"] = {"values/1": {}}
            data = canonical({**envelope, "body": body})
            head = chain_hash(head, data)
            made.append(Record(record.seq, body, head, data, envelope))
        path = tmp_path / "extended.jsonl"
        write_export(path, made)
        declared = owner == "other"
        assert (certify(made).problems == []) is declared
        assert (VERIFIER.verify(path)["problems"] == []) is declared


@pytest.mark.parametrize("name", ["many tables", "a recursive view", "one page for all"])
def test_the_verifier_ends_where_ours_ends(name: str, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "a name?mode=rw#%20.db"
    path.write_bytes(small.read_bytes())
    assert VERIFIER.verify(path)["problems"] == []
    HOSTILE[name][0](path)
    with pytest.raises(VERIFIER.Unreadable):
        VERIFIER.verify(path)


def test_a_large_whole_radius_is_recorded_and_verified(tmp_path: Path) -> None:
    """RFC 8785 writes 1e20 as an integer, which a reader must take for the number that it is."""
    path = tmp_path / "large.db"
    with CentralAccountant(
        ZCDP(1), users=range(4), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ) as book:
        mechanism = NoisySum(Ball(1e20, 2), GaussianNoise(2e20))
        token = book.issue(mechanism.loss(), users=range(4), label="large")
        with token.spend(mechanism.spend()):
            pass
    assert b'"radius":100000000000000000000,' in read_records(path)[2].data
    assert audit(path).problems == VERIFIER.verify(path)["problems"] == []


@pytest.mark.parametrize("text", ["1e99999999", "1e-99999999"])
@pytest.mark.parametrize("field", ["radius", "gain", "std"])
def test_no_number_of_a_spend_makes_the_verifier_wait(
    field: str, text: str, tmp_path: Path
) -> None:
    bodies = [parse(data)["body"] for data, _ in golden()]
    spend = bodies[2]
    place = {"radius": spend["domain"], "gain": spend, "std": spend["noise"]}[field]
    place[field] = text
    write_export(tmp_path / "bad.jsonl", chained(bodies))
    verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(tmp_path / "bad.jsonl")]
    assert subprocess.run(verify, capture_output=True, timeout=20).returncode == 1


def test_the_verifier_keeps_pace_with_tokens_of_disjoint_users(tmp_path: Path) -> None:
    opened, issue = (parse(data)["body"] for data, _ in golden()[:2])
    tokens = [issue | {"token": f"t{n}", "users": [n, n + 1]} for n in range(800)]
    write_export(tmp_path / "many.jsonl", chained([opened | {"users": [0, 800]}, *tokens]))
    verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(tmp_path / "many.jsonl")]
    assert subprocess.run(verify, capture_output=True, timeout=10).returncode == 0


def test_the_verifier_keeps_pace_with_ranges_of_users_around_one_another(tmp_path: Path) -> None:
    opened, issue = (parse(data)["body"] for data, _ in golden()[:2])
    opened = opened | {"users": [0, 1000], "cap": {"kind": "zcdp", "rho": "2.5"}}
    tokens = [issue | {"token": f"t{n}", "users": [499 - n, 500 + n]} for n in range(500)]
    unused = {"entry": "retire", "accountant": "golden", "token": "t0", "outcome": "unused"}
    further = issue | {"token": "t500", "users": [499, 500]}
    bodies = [opened, *tokens, unused, further]
    for path, more in ("fits.jsonl", []), ("exceeds.jsonl", [further | {"token": "t501"}]):
        write_export(tmp_path / path, chained([*bodies, *more]))
        verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(tmp_path / path)]
        done = subprocess.run(verify, capture_output=True, timeout=10, text=True)
        found = ["the cap is exceeded at index 499"] if more else []
        assert json.loads(done.stdout)["problems"] == found
        assert len(audit(tmp_path / path).problems) == len(found)


def test_the_verifier_wants_amounts_with_a_short_common_denominator(tmp_path: Path) -> None:
    opened, issue = (parse(data)["body"] for data, _ in golden()[:2])
    tokens = [
        issue | {"token": f"t{n}", "budget": {"kind": "zcdp", "rho": f"1/{10**399 + n}"}}
        for n in range(5)
    ]
    write_export(tmp_path / "long.jsonl", chained([opened, *tokens]))
    verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(tmp_path / "long.jsonl")]
    done = subprocess.run(verify, capture_output=True, timeout=10, text=True)
    problems = json.loads(done.stdout)["problems"]
    assert len(problems) == len(audit(tmp_path / "long.jsonl").problems) > 0
    assert all("common denominator" in problem for problem in problems)


def test_texts_without_an_end_are_looked_through_once(tmp_path: Path) -> None:
    quotes = b'{"a":"' + b"[" * 65 + b'\\"' * 100_000
    (tmp_path / "torn.jsonl").write_bytes(
        b'{"privlearn_ledger":2}\n{"entry":' + quotes + b',"hash":"' + b"0" * 64 + b'"}\n'
    )
    with pytest.raises(LedgerUnreadableError):
        audit(tmp_path / "torn.jsonl")
    verify = [sys.executable, str(ROOT / "docs" / "verify_ledger.py"), str(tmp_path / "torn.jsonl")]
    assert subprocess.run(verify, capture_output=True, timeout=10).returncode == 4


def test_the_verifier_is_short_and_imports_nothing_of_ours(small: Path) -> None:
    source = (ROOT / "docs" / "verify_ledger.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 551  # with caps inside caps, how deep, and when grants end
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "docs" / "verify_ledger.py"), str(small)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ours = audit(small)
    assert (told["head"], told["root"], told["entries"]) == (ours.head, ours.root, ours.entries)
