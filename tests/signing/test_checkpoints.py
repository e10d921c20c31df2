"""Checkpoints and cosignatures against published ones, and a witness that cannot be led astray."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, OTHER_LEDGER, WRONG_SIGNATURE
from privlearn.errors import (
    NotCertifiedError,
    OtherLedgerError,
    SigningError,
    WrongSignatureError,
)
from privlearn.ledger import read_records, write_export
from privlearn.signing import (
    Checkpoint,
    Note,
    PublicKey,
    Relation,
    Request,
    SigningKey,
    Witness,
    sign_checkpoint,
    verify,
)
from privlearn.signing.checkpoints import check_cosignature, cosign
from privlearn.signing.keys import SIGNER, WITNESS
from privlearn.signing.notes import sign_text
from privlearn.signing.witnesses import continuation

Written = Callable[..., Path]

# https://sum.golang.org/latest in September 2024, and the key in the source of Go
SUMDB_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
SUMDB = """go.sum database tree
30055305
mXfgRcJ0bG0j3CPdKwgGWtUzBUbX67saZGRmFuJGGsM=

— sum.golang.org Az3grpgEild5qw7+5dtV13Kf1C2Xurm8q4fhdxvcsDHnqNTaxL2AFjBY+2TyGKevucFcAAlWFJJYle3EJlDCrQ+y3A8=
"""  # noqa: E501
# of Sigsum's tests: the private key begins with 17 and goes on with zeros
SEED = bytes([17]) + bytes(31)
SIGSUM = """sigsum.org/v1/tree/e796172b92befd62d9dc67e41c2f5bc9d3100a3023b20b1ca40288dd1c679e69
10
HA5HAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=

— sigsum.org/v1/tree/e796172b92befd62d9dc67e41c2f5bc9d3100a3023b20b1ca40288dd1c679e69 gJ2ho0n8F8olcerUF1FFdv235A/5as/coWrpLrtE7ovMeP5whgwouYExowG/lTznxu6OUGjjt5yJQ6bXtTcf718MqAQ=
"""  # noqa: E501
COSIGNED_TEXT = "example.org/log\n10\nHA5HAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
COSIGNATURE = "— example.org/witness ys8uUAAAAAAAAATSftMzceM8zssdZ9jin9SjwIxzx9iADMf63VqirX2hafol9RsqNqbofIz0LVRqHXI2kpEBSki5RTXFtxz1vo9+Cg==\n"  # noqa: E501
# https://c2sp.org/tlog-cosignature
EXAMPLE = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"


def sigsum_key(name: str, use: int) -> SigningKey:
    return SigningKey(name, use, Ed25519PrivateKey.from_private_bytes(SEED))


def note(text: str) -> Note:
    return Note.parse(text.encode())


def test_published_checkpoints_verify_and_are_made_to_the_byte() -> None:
    note(SUMDB).check_text(PublicKey.parse(SUMDB_KEY))
    assert Checkpoint.parse(note(SUMDB).text).size == 30055305
    origin = SIGSUM.partition("\n")[0]
    found = Checkpoint(origin, 10, "1c0e47" + "00" * 29)
    assert sign_text(found.text, sigsum_key(origin, SIGNER)).encode() == SIGSUM.encode()
    assert Checkpoint.parse(EXAMPLE).text == EXAMPLE


def test_a_published_cosignature_verifies_and_is_made_to_the_byte() -> None:
    key = sigsum_key("example.org/witness", WITNESS)
    assert cosign(COSIGNED_TEXT, key, now=1234).line == COSIGNATURE
    cosigned = note(f"{COSIGNED_TEXT}\n{COSIGNATURE}")
    assert check_cosignature(cosigned, key.public, now=1234) == 1234


def test_a_cosignature_holds_for_its_time_and_text_only() -> None:
    key = sigsum_key("example.org/witness", WITNESS).public
    data = base64.b64decode(COSIGNATURE.split(" ")[2])
    later = data[:11] + bytes([data[11] + 1]) + data[12:]
    line = f"— example.org/witness {base64.b64encode(later).decode()}\n"
    with pytest.raises(WrongSignatureError, match="or its time was changed"):
        check_cosignature(note(f"{COSIGNED_TEXT}\n{line}"), key)
    larger = COSIGNED_TEXT.replace("\n10\n", "\n11\n")
    with pytest.raises(WrongSignatureError, match="is wrong"):
        check_cosignature(note(f"{larger}\n{COSIGNATURE}"), key)
    with pytest.raises(WrongSignatureError, match="second 1234 since 1970, and now is 900"):
        check_cosignature(note(f"{COSIGNED_TEXT}\n{COSIGNATURE}"), key, now=900)
    never = cosign(COSIGNED_TEXT, sigsum_key("example.org/witness", WITNESS), now=0)
    with pytest.raises(WrongSignatureError, match="second 0"):
        check_cosignature(note(f"{COSIGNED_TEXT}\n{never.line}"), key)


def test_a_short_cosignature_is_wrong() -> None:
    key = sigsum_key("example.org/witness", WITNESS).public
    line = f"— example.org/witness {base64.b64encode(key.id + b'1').decode()}\n"
    with pytest.raises(WrongSignatureError, match="is wrong"):
        check_cosignature(note(f"{COSIGNED_TEXT}\n{line}"), key)


@pytest.mark.parametrize(
    "text",
    [
        "o\n1\n",
        "o\n01\n" + "A" * 43 + "=\n",
        "o\n-1\n" + "A" * 43 + "=\n",
        "o\n+1\n" + "A" * 43 + "=\n",
        "o\n1_0\n" + "A" * 43 + "=\n",
        "o\n\u0661\n" + "A" * 43 + "=\n",
        f"o\n{2**63}\n" + "A" * 43 + "=\n",
        "o\n" + "9" * 5000 + "\n" + "A" * 43 + "=\n",
        "\n1\n" + "A" * 43 + "=\n",
        "o\n1\nAAAA\n",
        "o\n1\n" + "A" * 43 + "=\n\n",
        "o\n1\n" + "A" * 43 + "=\nmore\n\nmore\n",
        "o\n0\n" + "A" * 43 + "=\n",
        "cosignature/v1\ntime 1234\n" + COSIGNED_TEXT,
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(SigningError):
        Checkpoint.parse(text)


def test_each_key_signs_what_it_is_for(
    write: Written, signer: SigningKey, witness_key: SigningKey
) -> None:
    """A cosignature is not taken for a signature, nor the other way round."""
    with pytest.raises(SigningError, match="signs cosignatures only"):
        sign_checkpoint(write(), witness_key)
    with pytest.raises(SigningError, match="no witness's key"):
        cosign(COSIGNED_TEXT, signer)
    with pytest.raises(SigningError, match="no checkpoint"):
        cosign("privlearn certificate v1\n{}\n", witness_key)


# A witness ----------------------------------------------------------------------------------------


class Told:
    """A ledger whose checkpoints a witness cosigns."""

    def __init__(self, write: Written, signer: SigningKey, key: SigningKey, folder: Path) -> None:
        self.write, self.signer, self.key = write, signer, key
        self.ledger = write()
        self.first = sign_checkpoint(self.ledger, signer)
        self.witness = Witness(folder / "witness.db", key)
        self.witness.begin()
        request = Request.parse(continuation(self.ledger, None, self.first))
        self.cosigned = self.witness.cosign(request, signer.public)

    def later(self) -> Note:
        self.write()
        return sign_checkpoint(self.ledger, self.signer)

    def request(self, later: Note) -> Request:
        return Request.parse(continuation(self.ledger, self.cosigned, later, self.signer.public))


@pytest.fixture
def told(write: Written, signer: SigningKey, witness_key: SigningKey, tmp_path: Path) -> Told:
    return Told(write, signer, witness_key, tmp_path)


def test_a_witness_cosigns_what_continues(told: Told) -> None:
    later = told.later()
    cosigned = told.witness.cosign(told.request(later), told.signer.public)
    found = verify(cosigned, [told.signer.public, told.key.public], told.ledger)
    assert found.relation is Relation.SAME
    assert [key for key, _ in found.cosigned] == [told.key.public]
    before = verify(told.cosigned, [told.signer.public], told.ledger)
    assert before.relation is Relation.CONTINUES
    assert before.unknown == (told.key.public.name,)
    again = Request.parse(continuation(told.ledger, later, later))
    assert told.witness.cosign(again, told.signer.public).text == later.text


def test_a_witness_cosigns_no_second_history(told: Told, tmp_path: Path) -> None:
    fork = tmp_path / "fork.db"
    shutil.copy(told.ledger, fork)
    shutil.copy(f"{told.ledger}.head", f"{fork}.head")
    later = told.later()
    told.witness.cosign(told.request(later), told.signer.public)
    forked = sign_checkpoint(told.write("fork.db", releases=4), told.signer)
    assert Checkpoint.parse(forked.text).origin == Checkpoint.parse(later.text).origin
    with pytest.raises(OtherLedgerError, match="is another ledger, or was rewritten"):
        continuation(fork, later, forked)
    honest_of_the_fork = Request.parse(continuation(fork, told.cosigned, forked))
    with pytest.raises(OtherLedgerError, match="the last checkpoint that"):
        told.witness.cosign(honest_of_the_fork, told.signer.public)
    size = Checkpoint.parse(later.text).size
    for proof in (honest_of_the_fork.proof, [], [bytes(32)] * 3):
        with pytest.raises(OtherLedgerError, match="rewritten or rolled back"):
            told.witness.cosign(Request(size, proof, forked), told.signer.public)
    with pytest.raises(OtherLedgerError, match="the last checkpoint that"):
        told.witness.cosign(Request(0, [], forked), told.signer.public)


def test_a_witness_goes_not_back(told: Told) -> None:
    later = told.later()
    told.witness.cosign(told.request(later), told.signer.public)
    size = Checkpoint.parse(later.text).size
    with pytest.raises(OtherLedgerError, match="rewritten or rolled back"):
        told.witness.cosign(Request(size, [], told.first), told.signer.public)
    with pytest.raises(OtherLedgerError, match="fewer than"):
        continuation(told.ledger, later, told.first)


def test_a_refused_request_changes_nothing(told: Told) -> None:
    later = told.later()
    request = told.request(later)
    with pytest.raises(OtherLedgerError):
        told.witness.cosign(Request(request.old, [bytes(32)], later), told.signer.public)
    assert told.witness.cosign(request, told.signer.public).text == later.text


def test_a_witness_knows_whose_ledger_it_is(told: Told) -> None:
    stranger = SigningKey.new("example.com/audits")
    request = told.request(told.later())
    with pytest.raises(WrongSignatureError):
        told.witness.cosign(request, stranger.public)
    name = told.signer.public.name
    for origin in (f"{name}-of-others", f"{name}/others/{'0' * 32}", f"{name}/{'0' * 31}", "x"):
        foreign = Request(0, [], sign_text(Checkpoint(origin, 1, "00" * 32).text, told.signer))
        with pytest.raises(OtherLedgerError, match=r"ledgers of .* are named"):
            told.witness.cosign(foreign, told.signer.public)
    with pytest.raises(SigningError, match="is a witness's key"):
        told.witness.cosign(request, told.key.public)
    fresh = sign_text(Checkpoint(f"{name}/{'0' * 32}", 1, "00" * 32).text, told.signer)
    with pytest.raises(OtherLedgerError, match="a first checkpoint has no proof"):
        told.witness.cosign(Request(0, [bytes(32)], fresh), told.signer.public)


def test_a_witness_does_not_begin_again_by_itself(
    told: Told, signer: SigningKey, witness_key: SigningKey, tmp_path: Path
) -> None:
    request = told.request(told.later())
    with pytest.raises(SigningError, match="could cosign a second history"):
        Witness(tmp_path / "lost.db", witness_key).cosign(request, signer.public)
    with pytest.raises(SigningError, match="has begun"):
        told.witness.begin()
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.write_bytes(b"")
    with pytest.raises(SigningError, match="no witness's file"):
        Witness(other, witness_key).cosign(request, signer.public)
    other.write_bytes(b"text " * 1000)
    with pytest.raises(SigningError, match="cannot be used"):
        Witness(other, witness_key).cosign(request, signer.public)


@pytest.mark.parametrize(
    "head",
    [
        "",
        "old\n",
        "old 01\n",
        "old -1\n",
        "new 1\n",
        "old 1\nAAAA=\n",
        "old 1\nx\n",
        "old 1\n" + ("A" * 43 + "=\n") * 64,
        "old 1\n\u00e9\n",
    ],
)
def test_what_asks_no_witness_is_refused(head: str) -> None:
    with pytest.raises(SigningError):
        Request.parse(f"{head}\n{SUMDB}".encode())


def test_a_request_has_the_published_form() -> None:
    """https://c2sp.org/tlog-witness"""
    first = base64.b64encode(sha256(b"1").digest()).decode()
    data = f"old 20852014\n{first}\n\n{SUMDB}".encode()
    request = Request.parse(data)
    assert (request.old, request.proof) == (20852014, [sha256(b"1").digest()])
    assert request.encode() == data


# Against ledgers ----------------------------------------------------------------------------------


def test_a_checkpoint_of_another_ledger_is_told(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    one, other = write("one.db"), write("other.db")
    signed = sign_checkpoint(one, signer)
    with pytest.raises(OtherLedgerError, match="another ledger, or was rewritten"):
        verify(signed, [signer.public], other)
    with pytest.raises(OtherLedgerError, match="an older copy, was cut"):
        verify(signed, [signer.public], write("short.db", releases=1))
    with pytest.raises(SigningError, match="does not hold the key"):
        verify(signed, [], one)
    found = Checkpoint.parse(signed.text)
    renamed = sign_text(Checkpoint(found.origin[:-1] + "x", found.size, found.root).text, signer)
    with pytest.raises(OtherLedgerError, match="hash of the first entry"):
        verify(renamed, [signer.public], one)


def test_no_checkpoint_of_a_broken_chain(
    write: Written, signer: SigningKey, tmp_path: Path
) -> None:
    export = tmp_path / "cut.jsonl"

    records = read_records(write())
    write_export(export, [*records[:3], *records[4:]])
    with pytest.raises(NotCertifiedError, match="nothing was signed: entry 3: its hash"):
        sign_checkpoint(export, signer)
    export.write_text('{"privlearn_ledger":2}\n')
    with pytest.raises(NotCertifiedError, match="no entries"):
        sign_checkpoint(export, signer)


def test_the_whole_way_from_the_command_line(write: Written, tmp_path: Path) -> None:
    """Each step with what goes wrong in it, and its exit code."""
    ledger = write()

    def run(*arguments: str | Path, into: str = "") -> Result:
        out = ("--out", tmp_path / into) if into else ()
        return CliRunner().invoke(app, [str(one) for one in (*arguments, *out)])

    audit, witness = tmp_path / "audit.key", tmp_path / "witness.key"
    assert run("key", "new", audit, "--name", "example.com/audits").exit_code == 0
    assert run("key", "new", audit, "--name", "example.com/audits").exit_code == BAD_INPUT
    assert run("key", "new", tmp_path / "x", "--name", "a b").exit_code == BAD_INPUT
    made = run("key", "new", witness, "--name", "witness.example/w1", "--witness")
    assert run("key", "show", witness).output == (
        f"{made.output}name  witness.example/w1\nfor   cosignatures of a witness\n"
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("ledger", "checkpoint", ledger, "--key", audit, into="one").exit_code == 0
    first = run("ledger", "consistency", ledger, "--to", one, into="first.request")
    assert first.exit_code == 0
    asked = tmp_path / "first.request"
    cosigning = ("--key", witness, "--signer", f"{audit}.pub", "--state", tmp_path / "seen.db")
    assert run("witness", asked, *cosigning).exit_code == BAD_INPUT, "not begun"
    assert run("witness", asked, *cosigning, "--begin", into="cosigned").exit_code == 0
    cosigned = tmp_path / "cosigned"
    write()
    assert run("ledger", "checkpoint", ledger, "--key", audit, into="two").exit_code == 0
    far = run("ledger", "consistency", ledger, "--from", cosigned, "--key", f"{audit}.pub")
    near = run("ledger", "consistency", ledger, "--from", cosigned, "--to", two, into="request")
    assert (far.exit_code, near.exit_code) == (0, 0)
    request = tmp_path / "request"
    assert request.read_text() == f"{far.output}\n{two.read_text()}"
    other = write("other.db", releases=4)
    assert run("ledger", "consistency", other, "--from", one).exit_code == OTHER_LEDGER
    assert run("ledger", "consistency", ledger).exit_code == BAD_INPUT
    strange = run("ledger", "consistency", ledger, "--from", one, "--key", made.output.strip())
    assert strange.exit_code == WRONG_SIGNATURE
    for taken in ("two", "none/both"):  # what cannot be delivered is not remembered as cosigned
        assert run("witness", request, *cosigning, into=taken).exit_code == BAD_INPUT
    assert run("witness", request, *cosigning, into="both").exit_code == 0
    assert run("witness", request, *cosigning).exit_code == OTHER_LEDGER, "a second time"
    assert run("witness", two, *cosigning).exit_code == BAD_INPUT, "no request"
    both, keys = tmp_path / "both", ("--key", f"{audit}.pub", "--key", f"{witness}.pub")
    told = run("verify", both, ledger, *keys)
    assert told.exit_code == 0, told.output
    assert "witness      witness.example/w1+" in told.output
    assert run("verify", two, ledger, *keys).exit_code == WRONG_SIGNATURE, "not cosigned"
    assert run("verify", both, other, *keys).exit_code == OTHER_LEDGER
    assert run("verify", both, "--key", f"{witness}.pub").exit_code == BAD_INPUT
    found = json.loads(run("verify", cosigned, ledger, *keys, "--json").output)
    assert found["relation"] == "continues"
    assert found["checkpoint"]["size"] < found["ledger_entries"] == 13
