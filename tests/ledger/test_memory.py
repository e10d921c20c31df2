"""A ledger in memory: what has ended takes little room, and is told as if it stood there."""

from __future__ import annotations

import gc

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.ledger import Ledger
from privlearn.ledger.chain import chain_problems
from privlearn.ledger.entries import Entry, IssueEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(4)
SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.01"))
ROWS = Rows.seal(np.ones((4, 2)), users=USERS)


class Seen(list[Entry]):
    """What is appended, as its writer made it."""

    put = list.append


def account() -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(0)
    return CentralAccountant(ZCDP(100), users=USERS, ledger=Ledger.memory(), noise=noise)


def release(spender: CentralAccountant[ZCDP], times: int) -> None:
    for _ in range(times):
        SUM.release(ROWS, spender.issue(SUM.loss(), users=USERS, label="sum"))


def test_a_long_run_keeps_few_entries_and_tells_all_of_them() -> None:
    def standing() -> int:
        return sum(isinstance(each, SpendEntry) for each in gc.get_objects())

    before, spender, seen = standing(), account(), Seen()
    ledger = spender.ledger
    ledger.listen(seen)
    release(spender, 300)
    half = ledger.records  # in the middle of what is packed together
    spender.release_once("ab" * 16, SUM, ROWS, users=USERS, label="sum")
    release(spender, 300)
    told = spender.certificate()
    spender.close()
    opened, *entries = ledger.entries
    assert [entry.body() for entry in entries] == [entry.body() for entry in seen]
    assert [entry.ext() for entry in entries] == [entry.ext() for entry in seen]
    records = ledger.records
    assert [record.hash for record in records[: len(half)]] == [record.hash for record in half]
    assert [record.body["entry"] for record in records] == [e.entry for e in ledger.entries]
    assert chain_problems(records, ledger.head) == []
    found = certify(records)
    assert (found.problems, found.spends, found.closed) == ([], 601, True)
    assert found.spent[0].epsilon == told.spent[0].epsilon
    assert next(ledger.since("ab" * 16)) == records_issue(ledger, 301)
    del opened, entries, records, half
    seen.clear()
    gc.collect()
    assert standing() - before < 512 / 3 + 10


def records_issue(ledger: Ledger, number: int) -> Entry:
    """The issue of a token, by its number."""
    return next(e for e in ledger.entries if e.entry == "issue" and e.token.endswith(f"/{number}"))


def test_what_is_no_plain_json_stands_as_a_reader_finds_it() -> None:
    class Text(str):
        """Of a class that is no one else's."""

    spender = account()
    token = spender.issue(ZCDP("0.01"), users=USERS, label="sum")
    budget = {"kind": "zcdp", "rho": Text("0.01")}
    issue = IssueEntry(
        accountant=spender.id, token=f"{token.id}0", label="sum", users=(0, 4), budget=budget
    )
    spender.ledger.append(issue)
    for number in range(600):
        spender.ledger.append(issue.model_copy(update={"token": f"{token.id}1{number}"}))
    assert issue in spender.ledger.entries
    assert {type(e.budget["rho"]) for e in spender.ledger.entries if e.entry == "issue"} == {str}
    assert chain_problems(spender.ledger.records) == []
