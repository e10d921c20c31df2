"""A caller's nonce is that of the entry's envelope, once in a ledger, and found after a restart."""

from __future__ import annotations

import importlib.util
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import NonceReusedError
from privlearn.ledger import Ledger, Record
from privlearn.ledger.chain import GENESIS, minute_of
from privlearn.ledger.entries import Entry, IssueEntry
from privlearn.ledger.exports import write_export
from privlearn.ledger.nonces import IssueNonces
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

USERS = range(10)


def issue(accountant: str, number: int) -> IssueEntry:
    return IssueEntry(
        accountant=accountant,
        token=f"{accountant}/{number}",
        label=f"label {number}",
        users=(0, 10),
        budget=ZCDP("0.1").to_dict(),
    )


def first_since(ledger: Ledger, nonce: Any) -> Entry | None:
    return next(ledger.since(nonce), None)


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_entry_is_found_under_the_nonce_that_it_was_given(
    tmp_path: Path, in_memory: bool
) -> None:
    ledger = Ledger.memory() if in_memory else Ledger.create(tmp_path / "a.ledger")
    accountant = CentralAccountant(ZCDP("1"), users=USERS, ledger=ledger)
    nonces = [secrets.token_hex(16) for _ in range(3)]
    entries = [issue(accountant.id, number) for number in range(1, 4)]
    for entry, nonce in zip(entries, nonces, strict=True):
        assert first_since(ledger, nonce) is None
        ledger.append(entry, nonce=nonce)
    drawn = issue(accountant.id, 4)
    ledger.append(drawn)
    assert [first_since(ledger, nonce) for nonce in nonces] == entries
    envelopes = [record.envelope or {} for record in ledger.records]
    assert [each["nonce"] for each in envelopes[1:4]] == nonces
    assert first_since(ledger, envelopes[4]["nonce"]) == drawn
    assert first_since(ledger, envelopes[0]["nonce"]) is None, "an open entry issues nothing"
    before = ledger.head
    with pytest.raises(NonceReusedError, match=nonces[1]):
        ledger.append(issue(accountant.id, 5), nonce=nonces[1])
    assert ledger.head == before


def test_a_nonce_is_found_in_a_ledger_that_was_opened_again(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    accountant = CentralAccountant(ZCDP("1"), users=USERS, ledger=ledger)
    nonce, other = secrets.token_hex(16), secrets.token_hex(16)
    ledger.append(issue(accountant.id, 1), nonce=nonce)
    ledger.close()
    with Ledger.open(tmp_path / "a.ledger") as again:
        assert first_since(again, nonce) == issue(accountant.id, 1)
        again.append(issue(accountant.id, 2), nonce=other)
        assert first_since(again, nonce) == issue(accountant.id, 1)
        assert first_since(again, other) == issue(accountant.id, 2)
        with pytest.raises(NonceReusedError):
            again.append(issue(accountant.id, 3), nonce=nonce)


@pytest.mark.parametrize(
    "wrong", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, 7, None, "a" * 31 + "\n"]
)
def test_what_is_no_nonce_is_refused_before_anything_is_written(wrong: object) -> None:
    ledger = Ledger.memory()
    with pytest.raises(ValueError, match=r"nonce = .*32 lower-case hexadecimal digits"):
        first_since(ledger, wrong)


def repeating(path: Path) -> str:
    """A ledger in which the second token was issued under the nonce of the first."""
    accountant = CentralAccountant(ZCDP("1"), users=USERS, noise=NoiseSource.simulation(1))
    for _ in range(3):
        accountant.issue(ZCDP("0.1"), users=USERS, label="a").retire()
    records, head = list(accountant.ledger.records), ""
    nonce = (records[1].envelope or {})["nonce"]
    made: list[Record] = []
    for record in records:
        envelope = record.envelope or {}
        made.append(
            Record.make(
                made[-1].hash if made else GENESIS,
                record.seq,
                record.body,
                ext=record.ext,
                writer=envelope["writer"],
                minute=minute_of(envelope["at"]) if "at" in envelope else None,
                nonce=nonce if record.seq == 3 else envelope["nonce"],
            )
        )
        head = made[-1].hash
    write_export(path, made)
    return head


def test_an_audit_names_a_nonce_that_issued_two_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    head = repeating(path)
    problem = "entry 3: its nonce issued a token before, in entry 1"
    assert [p for p in audit(path).problems if problem in p]
    assert [p for p in audit(path, head=head).problems if problem in p]
    (said,) = audit(path).problems
    assert said.startswith(problem)
    file = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", file)
    assert spec is not None
    assert spec.loader is not None
    verifier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verifier)
    assert verifier.verify(path)["problems"] == ["entry 3: nonce twice"]


def test_repeated_nonces_are_found_among_many_whatever_their_halves_are() -> None:
    rng = np.random.default_rng(1)
    nonces = IssueNonces()
    drawn = [bytes(rng.bytes(16)).hex() for _ in range(3000)]
    drawn[7] = drawn[5][:16] + drawn[7][16:]  # one half alone is no repetition
    for position, nonce in enumerate(drawn):
        nonces.note(2 * position, nonce)
    assert nonces.repeated() == []
    nonces.note(9000, drawn[100])
    nonces.note(9001, drawn[2000])
    nonces.note(9002, drawn[100])
    assert nonces.repeated() == [(200, 9000), (4000, 9001), (9000, 9002)]
    assert nonces.position(drawn[100]) == 200
