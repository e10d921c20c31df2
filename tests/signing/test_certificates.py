"""Signed certificates as a signer, a reader and a forger would use them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from ledgers_to_show import KINDS
from typer.testing import CliRunner, Result

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import Examination, Examined
from privlearn.cli.main import app
from privlearn.cli.output import (
    BAD_INPUT,
    OTHER_LEDGER,
    PROBLEMS,
    SIMULATION,
    UNREADABLE,
    WRONG_SIGNATURE,
)
from privlearn.errors import OtherLedgerError, SigningError, WrongSignatureError
from privlearn.ledger import Ledger, Record, canonical, read_records, write_export
from privlearn.losses.budgets import ZCDP
from privlearn.signing import (
    Note,
    Relation,
    SigningKey,
    Statement,
    certify_ledger,
    sign_checkpoint,
    verify,
)
from privlearn.signing.certificates import FORM
from privlearn.signing.notes import sign_text

Written = Callable[..., Path]
FORMAT_1 = Path(__file__).parents[1] / "ledger" / "format1"
runner = CliRunner()


def run(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def payload(note: Note) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(note.text.split("\n")[1])
    return found


def resigned(value: Any, key: SigningKey) -> Note:
    """As a signer with another program would sign it."""
    return sign_text(f"{FORM}\n{canonical(value).decode()}\n", key)


@pytest.fixture
def keys(tmp_path: Path, signer: SigningKey) -> Path:
    signer.save(tmp_path / "audit.key")
    return tmp_path / "audit.key"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory, signer: SigningKey) -> tuple[Path, Note]:
    """A ledger that no test changes, and its certificate."""
    ledger = tmp_path_factory.mktemp("certified") / "ledger.db"
    with Ledger.create(ledger) as book:
        account = CentralAccountant(ZCDP(1), users=range(4), ledger=book)
        account.issue(ZCDP("0.01"), users=range(4), label="sum").retire()
    return ledger, certify_ledger(ledger, signer)


# As it is meant -----------------------------------------------------------------------------------


def test_an_entry_is_audited_once(
    write: Written, signer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, audited = write(), list[int]()
    take = Examination.take

    def counted(self: Examination, records: Sequence[Record]) -> None:
        audited.extend(record.seq for record in records)
        take(self, records)

    def again(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the entries were audited again")

    monkeypatch.setattr(Examination, "take", counted)
    monkeypatch.setattr("privlearn.signing.certificates.certify", again)
    note = certify_ledger(ledger, signer)
    everything = list(range(len(read_records(ledger))))
    assert audited == everything
    audited.clear()
    assert verify(note, [signer.public], ledger).relation is Relation.SAME
    assert audited == everything


def test_a_certificate_says_what_by_whom_and_over_what(
    write: Written, keys: Path, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, signed = write(close=True), tmp_path / "ledger.certificate"
    made = run("certify", ledger, "--key", keys, "--out", signed)
    assert made.exit_code == 0, made.output
    assert "VERIFIED from the ledger alone (closed)" in made.output
    told = run("verify", signed, ledger, "--key", signer.public.text)
    assert told.exit_code == 0, told.output
    assert told.output.startswith(
        "VERIFIED: signed by example.com/audits; the ledger is exactly the one that was signed\n"
    )
    last = read_records(ledger)[-1]
    assert last.hash in told.output
    assert f"over         {last.seq + 1} entries, closed\n" in told.output
    again = run("certify", ledger, "--key", keys, "--out", signed)
    assert again.exit_code == BAD_INPUT
    assert "exists" in again.output
    printed = run("verify", signed, ledger, "--json")
    found = json.loads(printed.output)
    assert found["relation"] == "same"
    assert found["certificate"]["audit"]["head"] == last.hash
    assert found["known_keys"] == []


def test_a_certificate_of_an_open_ledger_is_so_far_and_is_continued(
    write: Written, keys: Path, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, signed = write(), tmp_path / "so-far.certificate"
    assert "entries so far" in run("certify", ledger, "--key", keys, "--out", signed).output
    write(releases=3, close=True)
    told = run("verify", signed, ledger, "--key", f"{keys}.pub")
    assert told.exit_code == 0, told.output
    assert "the ledger is a continuation of the one that was signed" in told.output
    assert "open: so far" in told.output
    assert "10 entries, which no signature here covers" in told.output
    assert "more may have been spent" in told.output


def test_without_a_known_key_it_is_only_unchanged(
    write: Written, keys: Path, tmp_path: Path
) -> None:
    ledger, signed = write(), tmp_path / "a.certificate"
    run("certify", ledger, "--key", keys, "--out", signed)
    told = run("verify", signed)
    assert told.exit_code == 0
    assert told.output.startswith("NOT CHANGED since it was signed; by whom is not known")
    assert "Anybody can make a key of that name" in told.output
    assert "nothing was recomputed" in told.output
    both = run("verify", signed, ledger)
    assert both.output.startswith("RECOMPUTED: who signed it is not known")
    named = run("verify", signed, "--key", f"{keys}.pub")
    assert named.output.startswith("SIGNED by example.com/audits; the ledger was not looked at\n")
    assert "Anybody" not in named.output


def test_an_export_and_its_ledger_have_one_certificate(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, export = write(close=True), tmp_path / "ledger.jsonl"
    write_export(export, read_records(ledger))
    notes = [certify_ledger(path, signer, delta=1e-8) for path in (ledger, export)]
    first, second = map(payload, notes)
    assert first["certificate"] == second["certificate"]
    assert first["delta"] == first["certificate"]["guarantees"][0]["delta"] == 1e-8
    found = verify(notes[1], [signer.public], ledger)
    assert (found.relation, found.differences, found.problems) == (Relation.SAME, [], [])


@pytest.mark.parametrize("path", sorted(FORMAT_1.glob("*.db")), ids=lambda path: path.stem)
def test_ledgers_of_format_1_are_certified_unless_simulated(
    path: Path, signer: SigningKey, tmp_path: Path
) -> None:
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    signer.save(tmp_path / "audit.key")
    made = run("certify", copy, "--key", tmp_path / "audit.key", "--out", tmp_path / "signed")
    if "local-attested" in path.name:
        assert made.exit_code == 0, made.output
        told = run("verify", tmp_path / "signed", copy, "--key", signer.public.text)
        assert told.exit_code == 0
        assert told.output.startswith("ATTESTED, NOT VERIFIED: signed by example.com/audits;")
    else:
        assert made.exit_code in (0, SIMULATION), made.output
        assert (tmp_path / "signed").exists() == (made.exit_code == 0)


# What is not certified ----------------------------------------------------------------------------


def test_problems_and_simulations_are_not_certified(
    write: Written, keys: Path, tmp_path: Path
) -> None:
    simulated = write("simulated.db", simulated=True)
    refused = run("certify", simulated, "--key", keys, "--out", tmp_path / "x")
    assert refused.exit_code == SIMULATION
    assert "protects nobody" in refused.output
    ledger, cut = write(), tmp_path / "cut.jsonl"
    records = read_records(ledger)
    write_export(cut, [*records[:4], *records[5:]])
    refused = run("certify", cut, "--key", keys, "--out", tmp_path / "x")
    assert refused.exit_code == PROBLEMS
    assert "nothing was signed: entry 4: its hash does not fit" in refused.output
    assert run("certify", tmp_path / "none.db", "--key", keys).exit_code == UNREADABLE
    assert not (tmp_path / "x").exists()


def test_a_ledger_that_lacks_its_head_is_not_certified(
    write: Written, keys: Path, tmp_path: Path
) -> None:
    """The entries are whole by themselves; the file is an older copy."""
    old = tmp_path / "old.db"
    shutil.copy(write(), old)
    ledger = write()
    shutil.copy(old, ledger)
    refused = run("certify", ledger, "--key", keys)
    assert refused.exit_code == PROBLEMS
    assert "older copy" in refused.output


def test_keys_that_may_not_sign_do_not(
    write: Written, keys: Path, witness_key: SigningKey, tmp_path: Path
) -> None:
    ledger = write()
    witness_key.save(tmp_path / "witness.key")
    refused = run("certify", ledger, "--key", tmp_path / "witness.key")
    assert refused.exit_code == BAD_INPUT
    assert "signs cosignatures only" in refused.output
    keys.chmod(0o644)
    refused = run("certify", ledger, "--key", keys)
    assert refused.exit_code == BAD_INPUT
    assert "chmod 600" in refused.output


def test_a_passphrase_comes_from_a_file_of_its_own(write: Written, tmp_path: Path) -> None:
    ledger, key, secret = write(), tmp_path / "audit.key", tmp_path / "passphrase"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    made = run("key", "new", key, "--name", "example.com/audits", "--passphrase-file", secret)
    assert made.exit_code == 0, made.output
    assert b"ENCRYPTED PRIVATE KEY" in key.read_bytes()
    refused = run("certify", ledger, "--key", key)
    assert refused.exit_code == BAD_INPUT
    assert "needs its passphrase" in refused.output
    assert run("certify", ledger, "--key", key, "--passphrase-file", secret).exit_code == 0
    shown = run("key", "show", key, "--passphrase-file", secret)
    assert shown.output.splitlines()[0] == made.output.strip()
    assert run("key", "show", f"{key}.pub").output == shown.output
    secret.chmod(0o644)
    assert run("key", "show", key, "--passphrase-file", secret).exit_code == BAD_INPUT


# A forger -----------------------------------------------------------------------------------------


def test_nothing_of_a_certificate_can_be_changed(
    write: Written, keys: Path, signer: SigningKey, tmp_path: Path
) -> None:
    signed, forged = tmp_path / "a.certificate", tmp_path / "forged.certificate"
    run("certify", write(), "--key", keys, "--out", signed)
    whole = signed.read_text()
    epsilon = payload(Note.parse(whole.encode()))["certificate"]["guarantees"][0]["epsilon"]
    changes = [
        (f'"epsilon":{canonical(epsilon).decode()}', '"epsilon":0.5'),
        ('"entries":7', '"entries":8'),
        ('"closed":false', '"closed":true'),
        ('"signed":"20', '"signed":"21'),
        ('"delta":null', '"delta":0.1'),
        (signer.public.text, SigningKey.new("example.com/audits").public.text),
    ]
    for old, new in changes:
        assert old in whole
        forged.write_text(whole.replace(old, new, 1))
        for known in ([], ["--key", signer.public.text]):
            refused = run("verify", forged, *known)
            assert refused.exit_code == WRONG_SIGNATURE, (old, refused.output)
            assert refused.output.startswith("error: ")


def test_a_ledger_that_was_changed_is_not_the_one_that_was_signed(
    write: Written, keys: Path, tmp_path: Path
) -> None:
    """The hashes that stand in it are still those of the certificate."""
    ledger, signed, edited = write(), tmp_path / "a.certificate", tmp_path / "edited.jsonl"
    run("certify", ledger, "--key", keys, "--out", signed)
    write_export(edited, read_records(ledger))
    whole = edited.read_text()
    edited.write_text(whole.replace('"label":"', '"label":"not ', 1))
    assert edited.read_text() != whole
    told = run("verify", signed, edited, "--key", f"{keys}.pub")
    assert told.exit_code == PROBLEMS
    assert told.output.startswith("NOT VERIFIED: 1 problem\n  • problem of the ledger: entry ")
    assert "exactly the one that was signed" not in told.output
    assert "ledger       broken: hashes that stand in it are not those of" in told.output
    found = json.loads(run("verify", signed, edited, "--json").output)
    assert found["relation"] == "broken"
    assert len(found["problems"]) == 1


def test_keys_are_printed_whole_and_sentences_fit_the_screen(
    write: Written, keys: Path, signer: SigningKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    signed = tmp_path / "a.certificate"
    run("certify", write(), "--key", keys, "--out", signed)
    lines = run("verify", signed).output.splitlines()
    long = [line for line in lines if len(line) > 72]
    assert long, "or it would not be tested"
    assert all(signer.public.text in line or len(line.split()[-1]) == 64 for line in long)
    assert any(line.startswith("weakened by  the ledger is open") for line in lines)


def test_a_wrong_file_is_named_once_and_for_what_it_is(
    write: Written, keys: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "none"
    assert run("verify", missing).output == f"error: {missing}: no such file\n"
    refused = run("certify", write(), "--key", f"{keys}.pub")
    assert refused.exit_code == BAD_INPUT
    assert refused.output == f"error: {keys}.pub is a public key: give its private one\n"


def test_another_key_of_the_same_name_is_another_signer(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, forged = write(), tmp_path / "forged.certificate"
    other = SigningKey.new(signer.public.name)
    forged.write_bytes(certify_ledger(ledger, other).encode())
    assert run("verify", forged, ledger).exit_code == 0, "integrity, and says so"
    refused = run("verify", forged, ledger, "--key", signer.public.text)
    assert refused.exit_code == WRONG_SIGNATURE
    assert "not signed by example.com/audits" in refused.output


def test_a_second_signature_does_not_cover_for_a_wrong_first(
    write: Written, signer: SigningKey
) -> None:
    note = certify_ledger(write(), signer)
    other = SigningKey.new("example.com/second")
    second = sign_text(note.text, other).signatures[0]
    both = note.with_signature(second)
    assert verify(both, [other.public]).known == (other.public,)
    assert verify(both, []).unknown == ("example.com/second",)
    alone = Note(note.text, (second,))
    broken = Note(
        note.text, (type(second)(signer.public.name, signer.public.id, b"x" * 64), second)
    )
    for bad in (alone, broken):
        with pytest.raises(SigningError, match=r"example\.com/audits"):
            verify(bad, [other.public])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda told: told["guarantees"][0].update(epsilon=0.001), "guarantees[0].epsilon"),
        (lambda told: told["guarantees"][0].update(delta=1e-12), "guarantees[0].delta"),
        (lambda told: told["guarantees"][0]["rests_on"].pop(), "guarantees[0].rests_on"),
        (lambda told: told.update(closed=True), "closed"),
        (lambda told: told.update(spends=7), "spends"),
        (lambda told: told.update(trusted_code=["none"]), "trusted_code"),
        (lambda told: told.update(certified_by="an authority"), "certified_by"),
        (lambda told: told.pop("interleaved"), "interleaved"),
        (lambda told: told["guarantees"][0].update(rounds=True), "guarantees[0].rounds"),
        (
            lambda told: told["guarantees"][0]["rests_on"][0].update(text="Nothing."),
            "guarantees[0].rests_on[0].text",
        ),
    ],
)
def test_a_signer_who_states_something_else_is_found_out(
    certified: tuple[Path, Note],
    signer: SigningKey,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    where: str,
) -> None:
    (ledger, note), signed = certified, tmp_path / "a.certificate"
    value = payload(note)
    change(value["certificate"])
    signed.write_bytes(resigned(value, signer).encode())
    told = run("verify", signed, ledger, "--key", signer.public.text)
    assert told.exit_code == PROBLEMS
    assert told.output.startswith("NOT VERIFIED: 1 problem")
    assert f"  • {where}: " in told.output


def test_words_of_another_version_are_told_apart_from_numbers(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    ledger = write()
    value = payload(certify_ledger(ledger, signer))
    value["software"] = "0.0.9"
    value["certificate"]["guarantees"][0]["rests_on"][0]["text"] = "In other words."
    found = verify(resigned(value, signer), [signer.public], ledger)
    assert (found.differences, found.rewordings) == ([], 1)
    signed = tmp_path / "a.certificate"
    signed.write_bytes(resigned(value, signer).encode())
    assert "1 texts stand in other words" in run("verify", signed, ledger).output
    value["certificate"]["guarantees"][0]["method"] = "trust me"
    found = verify(resigned(value, signer), [signer.public], ledger)
    assert len(found.differences) == 1
    value = payload(certify_ledger(ledger, signer))
    epsilon = value["certificate"]["guarantees"][0]["epsilon"]
    value["certificate"]["guarantees"][0]["epsilon"] = epsilon * (1 + 1e-9)
    found = verify(resigned(value, signer), [signer.public], ledger)
    assert found.differences == [], "two machines round in two ways"


def test_words_that_a_signer_chose_are_not_shown_as_verified(
    signer: SigningKey, tmp_path: Path
) -> None:
    """Whoever names another version may have signed any words, also about whom a sum is for."""
    ledger, signed = tmp_path / "l.db", tmp_path / "a.certificate"
    KINDS["several"](ledger)
    value = payload(certify_ledger(ledger, signer))
    value["software"] = "0.0.9"
    value["certificate"]["sums"][0]["who"] = "all of mankind, in everything"
    value["certificate"]["guarantees"][0]["rests_on"][-1]["text"] = "nobody can learn anything"
    signed.write_bytes(resigned(value, signer).encode())
    alone = run("verify", signed, "--key", signer.public.text).output
    assert "all of mankind" in alone, "as the signer says, and no ledger was looked at"
    told = run("verify", signed, ledger, "--key", signer.public.text)
    assert told.output.startswith("VERIFIED: ")
    assert "mankind" not in told.output
    assert "nobody can learn" not in told.output
    assert "each index of population" in told.output
    assert "texts stand in other words" in told.output


def test_a_signed_simulation_or_problem_is_shown_as_such(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    signed, value = tmp_path / "a.certificate", payload(certify_ledger(write(), signer))
    value["certificate"]["simulation"] = True
    signed.write_bytes(resigned(value, signer).encode())
    told = run("verify", signed, "--key", signer.public.text)
    assert told.exit_code == SIMULATION
    assert told.output.startswith("SIMULATION: ")
    value["certificate"]["problems"] = ["one\nVERIFIED: all is well\x1b[2J"]
    signed.write_bytes(resigned(value, signer).encode())
    told = run("verify", signed, "--key", signer.public.text)
    assert told.exit_code == PROBLEMS
    assert told.output.startswith("NOT VERIFIED: 1 problem\n")
    assert "\\nVERIFIED: all is well\\x1b[2J" in told.output


def test_a_certificate_of_another_ledger_or_of_a_rewritten_one(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    one, other, signed = write("one.db"), write("other.db"), tmp_path / "a.certificate"
    signed.write_bytes(certify_ledger(one, signer).encode())
    told = run("verify", signed, other, "--key", signer.public.text)
    assert told.exit_code == OTHER_LEDGER
    assert "is another ledger, or was rewritten" in told.output
    cut = tmp_path / "cut.jsonl"
    write_export(cut, read_records(one)[:-1])
    told = run("verify", signed, cut)
    assert told.exit_code == OTHER_LEDGER
    assert "an older copy, was cut" in told.output
    assert run("verify", signed, tmp_path / "none.db").exit_code == UNREADABLE


@pytest.mark.parametrize("name", ["head", "root"])
def test_head_and_root_must_both_be_the_ledgers(
    certified: tuple[Path, Note], signer: SigningKey, name: str
) -> None:
    ledger, note = certified
    value = payload(note)
    value["certificate"][name] = "0" * 64
    with pytest.raises(OtherLedgerError, match=f"the {name} of the ledger is"):
        verify(resigned(value, signer), [signer.public], ledger)


def test_a_ledger_with_the_same_hashes_and_another_body_is_found_out(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, signed, point = write(), tmp_path / "a.certificate", tmp_path / "a.checkpoint"
    signed.write_bytes(certify_ledger(ledger, signer).encode())
    point.write_bytes(sign_checkpoint(ledger, signer).encode())
    forged = tmp_path / "forged.db"
    shutil.copy(ledger, forged)
    with closing(sqlite3.connect(forged)) as database, database:
        (stored,) = database.execute("SELECT entry FROM entries WHERE seq = 2").fetchone()
        changed = stored.replace('"std":20', '"std":99')
        assert changed != stored
        database.execute("UPDATE entries SET entry = ? WHERE seq = 2", (changed,))
    for one in (signed, point):
        assert run("verify", one, ledger, "--key", signer.public.text).exit_code == 0
        told = run("verify", one, forged, "--key", signer.public.text)
        assert told.exit_code == PROBLEMS
        assert "problem of the ledger: entry 2: its hash does not fit" in told.output


def test_what_goes_wrong_after_the_certificate_is_a_problem(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    ledger, signed = write(), tmp_path / "a.certificate"
    signed.write_bytes(certify_ledger(ledger, signer).encode())
    records = read_records(write())
    later = tmp_path / "later.jsonl"
    write_export(later, [*records[:-2], records[-1]])
    told = run("verify", signed, later, "--key", signer.public.text)
    assert told.exit_code == PROBLEMS
    assert "problem of the ledger" in told.output


def test_a_witness_makes_no_certificate(
    write: Written, signer: SigningKey, witness_key: SigningKey
) -> None:
    value = payload(certify_ledger(write(), signer))
    value["key"] = witness_key.public.text
    forged = resigned(value, witness_key)
    with pytest.raises(WrongSignatureError, match="one of a witness"):
        verify(forged)
    with pytest.raises(WrongSignatureError, match="sign checkpoints only"):
        verify(certify_ledger(write(), signer), [witness_key.public])


# Hostile files ------------------------------------------------------------------------------------


def broken(text: str) -> Callable[[str], str]:
    return lambda _: text


@pytest.mark.parametrize(
    "change",
    [
        broken(""),
        broken("{}"),
        broken("not JSON"),
        broken("[" * 100_000),
        broken('{"a":' * 100_000),
        broken("null"),
        lambda json: json.replace('"delta":null', '"delta": null'),
        lambda json: json.replace('"delta":null', '"delta":0.10'),
        lambda json: json.replace('"delta":null', '"delta":null,"delta":null'),
        lambda json: json.replace('"delta":null', '"delta":"1e-6"'),
        lambda json: json.replace('"delta":null', '"delta":true'),
        lambda json: json.replace('"delta":null', '"delta":NaN'),
        lambda json: json.replace('"delta":null', '"delta":null,"note":1'),
        lambda json: json.replace('"entries":', '"entries":-'),
        lambda json: json.replace('"head":"', '"head":"f'),
        lambda json: json.replace('"signed":"', '"signed":"on '),
        lambda json: json.replace('"software":"', '"software":"\\u0041'),
        lambda json: json.replace('"lost":0,', ""),
        lambda json: json.replace('"lost":0', '"head_compared":true,"lost":0'),
        lambda json: json + " ",
        lambda json: json + "\nsecond",
    ],
)
def test_json_of_another_form_is_refused_though_it_is_signed(
    certified: tuple[Path, Note],
    signer: SigningKey,
    tmp_path: Path,
    change: Callable[[str], str],
) -> None:
    _, note = certified
    form, json_text, _ = note.text.split("\n")
    changed = change(json_text)
    assert changed != json_text
    signed = tmp_path / "a.certificate"
    signed.write_bytes(sign_text(f"{form}\n{changed}\n", signer).encode())
    refused = run("verify", signed, "--key", signer.public.text)
    assert refused.exit_code == BAD_INPUT, refused.output
    assert refused.output.startswith("error: ")
    assert len(refused.output) < 1000


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"{}\n", "— a b\n".encode(), b"\xff\xfe"])
def test_what_is_no_certificate_is_one_line(tmp_path: Path, data: bytes) -> None:
    signed = tmp_path / "a.certificate"
    signed.write_bytes(data)
    refused = run("verify", signed)
    assert refused.exit_code == BAD_INPUT
    assert refused.output.count("\n") == 1
    assert run("verify", tmp_path / "missing").exit_code == BAD_INPUT
    assert run("verify", tmp_path).exit_code == BAD_INPUT


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    signed = tmp_path / "a.certificate"
    with open(signed, "wb") as file:
        file.truncate(2**40)
    refused = run("verify", signed)
    assert refused.exit_code == BAD_INPUT
    assert f"{2**40} bytes, more than" in refused.output or "cannot be read" in refused.output


def test_names_of_others_are_shown_and_not_obeyed(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    note = certify_ledger(write(), signer)
    name = "\x7f\u202eevil\x9b2J"
    line = type(note.signatures[0])(name, b"1234", b"x" * 64)
    signed = tmp_path / "a.certificate"
    signed.write_bytes(note.with_signature(line).encode())
    told = run("verify", signed)
    assert told.exit_code == 0
    assert "a signature in the name of \\x7f\\u202eevil\\x9b2J" in told.output
    assert "\x9b" not in run("verify", signed, "--json").output


def test_a_later_form_is_not_guessed_at(write: Written, signer: SigningKey) -> None:
    note = certify_ledger(write(), signer)
    later = sign_text(note.text.replace("v1", "v2", 1), signer)
    with pytest.raises(SigningError, match="begins with 'privlearn certificate v2'"):
        verify(later)
    assert Statement.parse(note.text).text == note.text


def test_a_ledger_in_memory_has_nothing_to_certify(signer: SigningKey, tmp_path: Path) -> None:
    with Ledger.memory() as ledger:
        ledger.export(tmp_path / "empty.jsonl")
    signer.save(tmp_path / "audit.key")
    refused = run("certify", tmp_path / "empty.jsonl", "--key", tmp_path / "audit.key")
    assert refused.exit_code == PROBLEMS
    assert "there is nothing to guarantee" in refused.output


def test_every_key_that_is_given_must_have_signed(
    certified: tuple[Path, Note], signer: SigningKey
) -> None:
    _, note = certified
    other = SigningKey.new("example.com/second")
    verify(note, [signer.public])
    for asked in ([signer.public, other.public], [other.public, signer.public]):
        with pytest.raises(WrongSignatureError, match=r"not signed by example\.com/second"):
            verify(note, asked)
    both = note.with_signature(sign_text(note.text, other).signatures[0])
    assert verify(both, [signer.public, other.public]).known == (signer.public, other.public)


def test_what_is_written_while_it_is_audited_is_not_signed(
    write: Callable[..., Path], signer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    entries, read = len(read_records(path)), Examination.read

    def goes_on(self: Examination) -> Examined:
        found = read(self)
        write()
        return found

    monkeypatch.setattr(Examination, "read", goes_on)
    assert Statement.parse(certify_ledger(path, signer).text).certificate.entries == entries
    assert len(read_records(path)) > entries


@pytest.mark.parametrize(("factor", "same"), [(1 - 1e-5, False), (1 - 1e-9, True)])
def test_a_number_may_differ_by_rounding_only(
    certified: tuple[Path, Note], signer: SigningKey, factor: float, same: bool
) -> None:
    path, note = certified
    value = payload(note)
    value["certificate"]["guarantees"][0]["epsilon"] *= factor
    found = verify(resigned(value, signer), [signer.public], path)
    assert (found.differences == []) is same
