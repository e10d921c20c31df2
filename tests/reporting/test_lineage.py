"""Every spend is told once, in order, and nothing that is told can stop or delay a release."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from privlearn import ZCDP, Ball, Ledger, Rows
from privlearn.accountants import CentralAccountant
from privlearn.mechanisms import NoisySum
from privlearn.reporting.lineage import (
    LoggedSpend,
    MlflowSpends,
    NotLoggedWarning,
    OpenLineageSpends,
    log_spends,
)

SUM = NoisySum.calibrated(Ball(2.0, 3), ZCDP("0.1"))


class Noted:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.spends: list[LoggedSpend] = []
        self.failed: bool | None = None

    def spent(self, spend: LoggedSpend) -> None:
        self.spends.append(spend)

    def end(self, failed: bool) -> None:
        self.failed = failed


def opened(path: Path | None = None) -> CentralAccountant[ZCDP]:
    ledger = Ledger.memory() if path is None else Ledger.create(path)
    return CentralAccountant(ZCDP("1"), users=range(20), ledger=ledger)


def release(accountant: CentralAccountant[ZCDP], users: range, label: str) -> None:
    rows = Rows.seal(np.zeros((len(users), 3)), users=users)
    SUM.release(rows, accountant.issue(SUM.loss(), users=users, label=label))


@pytest.mark.parametrize("file", [False, True])
def test_spends_are_told_once_and_in_order(file: bool, tmp_path: Path) -> None:
    accountant, noted = opened(tmp_path / "l.db" if file else None), Noted()
    release(accountant, range(20), "before")
    with log_spends(accountant, noted):
        release(accountant, range(10), "first")
        accountant.issue(SUM.loss(), users=range(20), label="unspent")
        release(accountant, range(10, 20), "second")
    release(accountant, range(20), "after")
    assert [(s.number, s.label, s.users) for s in noted.spends] == [
        (2, "first", (0, 10)),
        (3, "second", (10, 20)),
    ]
    assert noted.failed is False
    assert all(s.cost is not None and s.cost >= 0.1 - 1e-12 for s in noted.spends)
    # the one before, this one, and what is reserved by then
    assert [round(s.charged, 9) for s in noted.spends] == [0.2, 0.3]
    assert {(s.unit, s.cap, s.simulated) for s in noted.spends} == {("ρ", 1.0, False)}


def test_another_process_counts_what_the_one_before_spent(tmp_path: Path) -> None:
    first = opened(tmp_path / "l.db")
    release(first, range(20), "before")
    lost = first.issue(SUM.loss(), users=range(20), label="lost")
    assert lost.users == range(20)
    first.ledger.close()
    second: CentralAccountant[ZCDP] = CentralAccountant.resume(tmp_path / "l.db")
    noted = Noted()
    with log_spends(second, noted):
        release(second, range(20), "after")
    assert [(s.number, s.label, round(s.charged, 9)) for s in noted.spends] == [(2, "after", 0.2)]


def test_a_follower_that_cannot_begin_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accountant = opened()
    monkeypatch.setattr(Ledger, "entries", property(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError), log_spends(accountant, Noted()):
        pass
    assert accountant.ledger._listeners == []


def test_a_destination_that_fails_is_named_and_stops_nothing() -> None:
    class Down:
        def spent(self, spend: LoggedSpend) -> None:
            raise OSError("no route")

        def end(self, failed: bool) -> None:
            pass

    accountant, noted = opened(), Noted()
    says = r"Down did not take 2 .*no route"

    def run() -> None:
        with log_spends(accountant, Down(), noted):
            release(accountant, range(20), "one")
            release(accountant, range(20), "two")

    with pytest.warns(NotLoggedWarning, match=says):
        run()
    assert len(noted.spends) == 2


def test_a_slow_destination_delays_no_release() -> None:
    gate = threading.Event()

    class Slow(Noted):
        def spent(self, spend: LoggedSpend) -> None:
            assert gate.wait(10)
            super().spent(spend)

    accountant, slow = opened(), Slow()
    with log_spends(accountant, slow):
        release(accountant, range(20), "one")  # returns while the gate is closed
        release(accountant, range(20), "two")
        assert slow.spends == []
        gate.set()
    assert [s.label for s in slow.spends] == ["one", "two"]


def test_the_end_says_whether_the_block_failed() -> None:
    noted = Noted()
    with pytest.raises(RuntimeError), log_spends(opened(), noted):
        raise RuntimeError
    assert noted.failed is True


def test_mlflow_gets_one_step_a_spend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"file:{tmp_path}/runs")
    run = client.create_run(client.create_experiment("shop")).info.run_id
    accountant = opened()
    with log_spends(accountant, MlflowSpends(run, client)):
        release(accountant, range(20), "one")
        release(accountant, range(20), "two")
    history = client.get_metric_history(run, "privacy/charged")
    assert [(m.step, round(m.value, 9)) for m in history] == [(1, 0.1), (2, 0.2)]
    assert all(m.timestamp % 60_000 == 0 for m in history)  # no finer than the ledger
    assert client.get_run(run).data.tags["privacy.unit"] == "ρ"


def test_openlineage_gets_start_spends_and_end(tmp_path: Path) -> None:
    pytest.importorskip("openlineage.client")
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.file import FileConfig, FileTransport

    log = tmp_path / "events.json"
    transport = FileTransport(FileConfig(log_file_path=str(log), append=True))
    accountant = opened()
    spends = OpenLineageSpends("shop", "weekly", client=OpenLineageClient(transport=transport))
    with log_spends(accountant, spends):
        release(accountant, range(20), "one")
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert {event["run"]["runId"] for event in events} == {spends.run_id}
    facet = events[1]["run"]["facets"]["privlearn_spend"]
    assert (facet["label"], facet["charged"], facet["cap"]) == ("one", 0.1, 1.0)
