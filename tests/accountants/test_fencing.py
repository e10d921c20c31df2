"""After another process resumed a ledger, no value leaves the one that had it before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from reaching import far_ahead

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import LedgerBusyError, LedgerError, PrivlearnError, TokenSpentError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import PublishEntry, RetireEntry
from privlearn.ledger.tail import Tail
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    BinaryTree,
    CrossPolytope,
    NoisyMaxStream,
    NoisyReport,
    NoisySum,
    OneOfK,
    PrefixSum,
    ReportNoisyMax,
    mechanism,
)
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(8)
BALL = Ball(1.0, 2)

OTHER = textwrap.dedent("""
    import json, sys
    from privlearn.accountants import CentralAccountant
    from privlearn.noise import NoiseSource

    for line in sys.stdin:
        try:
            accountant = CentralAccountant.resume(line.strip(), noise=NoiseSource.simulation(1))
        except Exception as error:
            print(json.dumps(repr(error)), flush=True)
            continue
        ends = [e for e in accountant.ledger.entries if e.entry == "retire"]
        accountant.ledger.close()
        print(json.dumps([e.outcome for e in ends]), flush=True)
""")


@pytest.fixture(autouse=True)
def _whole_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    far_ahead(monkeypatch)


class Other(NamedTuple):
    """Another process, which resumes what it is told to."""

    process: subprocess.Popen[str]

    def resume(self, path: Path | None) -> list[str]:
        """How the tokens of a ledger ended, once it was resumed there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        told: list[str] = json.loads(self.process.stdout.readline())
        return told


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OTHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Other(process)
        assert process.stdin is not None
        process.stdin.close()


def begun(path: Path, ledger: Ledger | None = None) -> CentralAccountant[ZCDP]:
    return CentralAccountant(
        ZCDP(10**6),
        users=USERS,
        ledger=Ledger.create(path) if ledger is None else ledger,
        noise=NoiseSource.simulation(0),
    )


def rows(users: range) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 2), 0.25), users=users)


STREAMS: dict[str, Any] = {
    "prefix sum": PrefixSum(BALL, BinaryTree(8), 10.0),
    "batched sum": BatchedPrefixSum(BALL, (2, 2, 4), BinaryTree(3), 10.0),
    "picks": NoisyMaxStream(CrossPolytope(2, 1.0), 1.0, 10.0, 8),
    "reports": NoisyReport(BALL, GaussianNoise(10.0)),
}


def stream_of(name: str, accountant: CentralAccountant[ZCDP]) -> Any:
    made = STREAMS[name]
    return made.open(accountant.issue(made.loss(), users=USERS, label=name))


def outcomes(ledger: Ledger) -> list[str]:
    return [entry.outcome for entry in ledger.entries if isinstance(entry, RetireEntry)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_publishes_nothing_after_another_process_resumed(
    name: str, tmp_path: Path, other: Other
) -> None:
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    stream = stream_of(name, accountant)
    assert stream.append(rows(range(2))) is not None
    assert other.resume(path) == ["lost"]
    with pytest.raises(LedgerBusyError, match="written to by another process"):
        stream.append(rows(range(2, 4)))
    with pytest.raises((LedgerBusyError, TokenSpentError)):  # reports: again, for later users
        stream.append(rows(range(4, 8)))
    with suppress(PrivlearnError):
        stream.close()
    assert stream.closed
    accountant.ledger._disk._end()  # type: ignore[union-attr]
    with Ledger.open(path) as after:
        published = [entry for entry in after.entries if isinstance(entry, PublishEntry)]
        assert [entry.upto for entry in published] == [2]
        assert outcomes(after) == ["lost"]


@mechanism(domain=BALL, noise=GaussianNoise(10.0))
def own(values: Any, draw: Any) -> Any:
    return values.sum(axis=0) + draw((2,))


ONCE: dict[str, Any] = {
    "sum": NoisySum(BALL, GaussianNoise(10.0)),
    "choice": ReportNoisyMax(CrossPolytope(2, 1.0), 1.0, 10.0),
    "function": own,
    "one of k": OneOfK(NoisySum(BALL, GaussianNoise(10.0)), 3),
    "reports": STREAMS["reports"],
}


@pytest.mark.parametrize("name", ONCE)
def test_no_value_leaves_a_spend_that_another_process_took_for_lost(
    name: str, tmp_path: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes when the spend stands, and no noise was drawn yet."""
    path, drawn, made = tmp_path / "ledger.db", list[list[str]](), ONCE[name]
    accountant = begun(path)
    pool = NoiseSource.pool

    def resumed_first(source: NoiseSource) -> Any:
        drawn.append(other.resume(path))
        return pool(source)

    monkeypatch.setattr(NoiseSource, "pool", resumed_first)
    given = rows(USERS)
    if name == "one of k":
        arms = np.zeros(len(USERS), np.int64)
        given = Rows.seal((np.full((len(USERS), 2), 0.25), arms), users=USERS)
    token = accountant.issue(made.loss(), users=USERS, label=name)
    with pytest.raises(LedgerBusyError, match="written to by another process"):
        made.release(given, token)
    assert drawn == [["lost"]]
    with pytest.raises(TokenSpentError):
        made.release(given, token)


def test_a_thread_that_publishes_while_the_ledger_is_resumed(tmp_path: Path) -> None:
    """All that left stands in the ledger, before the end of its token."""
    path = tmp_path / "ledger.db"
    first = begun(path)
    made = PrefixSum(BALL, BinaryTree(8), 10.0)
    stream = made.open(first.issue(made.loss(), users=USERS, label="sum"))
    left, errors, some = list[str](), list[Exception](), threading.Event()

    def publish() -> None:
        try:
            for user in USERS:
                left.append(stream.append(rows(range(user, user + 1))).digest)
                if user == 2:
                    some.set()
        except PrivlearnError as error:
            errors.append(error)
            some.set()

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert some.wait(30)
    second: CentralAccountant[ZCDP] | None = None
    while second is None:  # whoever publishes between reading and writing goes first
        with suppress(LedgerBusyError, LedgerError):
            second = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    for thread in threads:
        thread.join()
    kinds = [e for e in second.ledger.entries if isinstance(e, PublishEntry | RetireEntry)]
    stand = [e.digest for e in kinds[:-1]]
    # one that was written just before the end may stand, and its writer lets nothing out
    assert stand[: len(left)] == left
    assert len(stand) <= len(left) + 1
    assert isinstance(kinds[-1], RetireEntry)
    assert errors
    second.ledger.close()


# What the ledger refuses --------------------------------------------------------------------------


def disk_full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger._disk, "last", full, raising=False)
    monkeypatch.setattr(Tail, "add", full)


def moved_away(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger.path is not None
    os.rename(ledger.path, f"{ledger.path}.gone")


def closed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.close()


FAULTS: list[Callable[[Ledger, pytest.MonkeyPatch], None]] = [disk_full, moved_away, closed]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_value_that_cannot_be_recorded_does_not_leave(
    name: str,
    fault: Callable[[Ledger, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accountant = begun(tmp_path / "ledger.db")
    stream = stream_of(name, accountant)
    stream.append(rows(range(2)))
    fault(accountant.ledger, monkeypatch)
    with pytest.raises(LedgerError):
        stream.append(rows(range(2, 4)))
    with suppress(PrivlearnError):
        stream.close()
    assert stream.closed
    with pytest.raises(TokenSpentError):
        stream.append(rows(range(4, 8)))


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "reports"])
def test_it_ends_lost_as_nothing_depended_on_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the ledger can be written again at once."""
    accountant = begun(tmp_path / "ledger.db")
    stream = stream_of(name, accountant)
    stream.append(rows(range(2)))
    append = Ledger.append

    def refuse(self: Ledger, entry: Any, **options: Any) -> None:
        if isinstance(entry, PublishEntry):
            raise LedgerError("disk full")
        append(self, entry, **options)

    monkeypatch.setattr(Ledger, "append", refuse)
    with pytest.raises(LedgerError, match="disk full"):
        stream.append(rows(range(2, 4)))
    assert stream.closed
    assert outcomes(accountant.ledger) == ["lost"]
    accountant.close()
    assert not audit(tmp_path / "ledger.db").problems


def test_another_error_of_the_same_kind_may_tell(tmp_path: Path) -> None:
    """A domain that raises what the ledger raises is no ledger."""
    accountant = begun(tmp_path / "ledger.db")
    made = PrefixSum(BALL, BinaryTree(8), 10.0)
    stream = made.open(accountant.issue(made.loss(), users=USERS, label="sum"))
    receipt = stream._receipt

    def fail_on_a_row() -> None:
        with receipt.round():
            receipt.open_integers(rows(range(1)))
            raise LedgerError("of a row")

    with pytest.raises(LedgerError, match="of a row"):
        fail_on_a_row()
    assert outcomes(accountant.ledger) == ["uncovered"]
    accountant.close()


def test_an_account_without_publish_entries_looks_whether_the_ledger_is_its_own(
    tmp_path: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those were begun that earlier versions made."""
    path = tmp_path / "ledger.db"
    accountant = begun(path)
    accountant._state.resumable = False
    made = PrefixSum(BALL, BinaryTree(8), 10.0)
    stream = made.open(accountant.issue(made.loss(), users=USERS, label="sum"))
    stream.append(rows(range(1)))
    assert not [e for e in accountant.ledger.entries if isinstance(e, PublishEntry)]
    assert other.resume(path) == ["lost"]
    with pytest.raises(LedgerBusyError, match="written to by another process"):
        stream.append(rows(range(1, 2)))
    assert stream.closed
