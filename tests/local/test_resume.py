"""Servers, gateways and devices that are killed, and go on from their ledgers."""

from __future__ import annotations

import importlib.util
import os
import signal
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from grids import thinned

from privlearn.accountants import LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.charged import Account
from privlearn.accountants.state import AccountState
from privlearn.accountants.streams import SEGMENT
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    InsufficientBudgetError,
    LedgerError,
    LedgerUnreadableError,
    TokenSpentError,
)
from privlearn.learners.ldp_ols import LDPOLS
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig, Model
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger, iterate_records, tail, write_export
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import IssueEntry, SumsEntry
from privlearn.ledger.values import digest_of
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

Make = Callable[..., LocalBanditConfig]
Tell = Callable[[bytes], None]


def killed(work: Callable[[Tell], None], at: int | None) -> tuple[bytes, bool]:
    """What a process lets out that is killed at a point, and whether it was; None: it is not.

    Points lie before and after each entry of a ledger, each sync, and each thing that is let out.
    """
    ours, theirs = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        points, append, fsync = 0, Ledger.append, os.fsync

        def around(function: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*given: Any, **named: Any) -> Any:
                point()
                found = function(*given, **named)
                point()
                return found

            return watched

        def point() -> None:
            nonlocal points
            points += 1
            if points == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            os.close(ours)
            Ledger.append = around(append)  # type: ignore[method-assign]
            os.fsync = around(fsync)
            work(around(lambda data: os.write(theirs, data)))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(theirs)
    told = bytearray()
    while part := os.read(ours, 1 << 16):
        told += part
    os.close(ours)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return bytes(told), True
    assert os.WEXITSTATUS(status) == 0
    return bytes(told), False


def dies(accountant: Any) -> None:
    """As with its process: the connection is dropped, nothing is closed."""
    accountant.ledger._disk._end()


def _verifier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_ledger", ROOT / "docs/verify_ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROOT = Path(__file__).parents[2]
VERIFIER = _verifier()


def agreed(path: Path) -> Certificate:
    """What an audit finds, of which the other verifier finds no more problems."""
    found, heard = audit(path, delta=1e-9), VERIFIER.verify(path)
    assert (heard["entries"], heard["head"]) == (found.entries, found.head)
    assert bool(heard["problems"]) == bool(found.problems)
    return found


def blank(config: LocalBanditConfig, batch: int) -> Model:
    arrays = config.method.model(config.method.start())
    return Model(fingerprint=config.fingerprint.hex(), batch=batch, arrays=arrays)


# Gateways and devices -----------------------------------------------------------------------------

BLOCK = 40


def answered(client: LocalClient[Any], first: int) -> tuple[range, bytes]:
    """The messages of some users of one batch, from ``first`` on."""
    config = client.config
    batch = config.batch_of(first)
    users = range(first, min(first + BLOCK, config.users_of(batch).stop, client.users.stop))
    rng = np.random.default_rng(first)
    shown, arms = rng.normal(size=(len(users), config.method.dim)) / 2, np.zeros(len(users), int)
    model = blank(config, batch)
    sent = client.randomize_many(shown, arms, shown[:, 0], users=users, model=model)
    return users, sent


def gateway(config: LocalBanditConfig, path: Path) -> Callable[[Tell], None]:
    """Sends again what stands in its ledger, and goes on with the users who are left."""

    def work(tell: Tell) -> None:
        account: LocalAccountant[Any] = LocalAccountant.resume(path)
        with LocalClient(config, account) as client:
            for messages in client.recorded():
                tell(messages)
            while client.left:
                tell(answered(client, client.left.start)[1])

    return work


def by_user(config: LocalBanditConfig, told: bytes) -> dict[int, set[bytes]]:
    """What was seen of each user outside."""
    found = defaultdict(set)
    for record in np.frombuffer(told, dtype=config.forms[False].dtype):
        found[int(record["user"])].add(record.tobytes())
    return found


def outlived(
    config: LocalBanditConfig, path: Path, users: range, deaths: tuple[int, ...]
) -> tuple[dict[int, set[bytes]], LocalClient[Any], int]:
    """What was seen of a gateway that died so often and went on; the last client, and deaths."""
    account = LocalAccountant.for_device(config, path, user=users)
    dies(account)
    told, died = b"", 0
    for at in (*deaths, None):
        seen, was = killed(gateway(config, path), at)
        told, died = told + seen, died + was
        if at is None or not was:
            break
    return by_user(config, told), resumed(config, path), died


def resumed(config: LocalBanditConfig, path: Path) -> LocalClient[Any]:
    account: LocalAccountant[Any] = LocalAccountant.resume(path)
    return LocalClient(config, account)


def two_different(seen: dict[int, set[bytes]]) -> list[int]:
    return [user for user, messages in seen.items() if len(messages) > 1]


@pytest.mark.parametrize("users", [range(520), range(3, 4)])
def test_a_device_that_is_killed_sends_one_message_of_each_user(
    bandit: Make, users: range, tmp_path: Path
) -> None:
    config = bandit(horizon=520, width=90)
    most = 0.0
    for at in range(1, 60, 8) if len(users) > 1 else range(1, 10):
        path = tmp_path / f"{at}.ledger"
        seen, client, died = outlived(config, path, users, (at, 1 + (at * 7) % 31))
        assert died
        assert two_different(seen) == []
        lost = client.lost.tolist()
        assert not client.left
        assert sorted([*seen, *lost]) == list(users)
        most = max(most, len(lost) / died)
        assert len(lost) <= SEGMENT * died
        found = agreed(path)
        assert found.problems == []
        assert found.spent[0].epsilon <= 2
    assert most > 0


def test_a_gateway_that_begins_before_its_reach_is_refused_and_seen(
    bandit: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: who was the last that the dead stream may have taken is asked again."""
    right = AccountState.users_of

    def wrong(self: AccountState, account: Account) -> range:
        found = right(self, account)
        early = account.outcome is not None and found.stop < account.users[1]
        return range(found.start, found.stop - early)

    monkeypatch.setattr(AccountState, "users_of", wrong)
    config = bandit(horizon=520, width=SEGMENT)
    for cap in (2, 4):
        path = tmp_path / f"{cap}.ledger"
        account = LocalAccountant(PureDP(cap), users=range(520), ledger=Ledger.create(path))
        client = LocalClient(config, account)
        told = b""
        while client.left.start < SEGMENT:
            told += answered(client, client.left.start)[1]
        dies(account)
        client = resumed(config, path)
        if cap == 2:
            with pytest.raises(InsufficientBudgetError):
                answered(client, client.left.start)
        else:
            told += answered(client, client.left.start)[1]
            assert two_different(by_user(config, told)) == [SEGMENT - 1]
            assert audit(path, delta=1e-9).spent[0].epsilon > 3


def test_what_left_a_device_is_sent_again_as_it_was(bandit: Make, tmp_path: Path) -> None:
    """With a warm-up, in blocks and one by one; users in between who stayed away are lost."""
    config = bandit(shared=False, warm=10, width=5, horizon=300)
    path = tmp_path / "gateway.ledger"
    account = LocalAccountant.for_device(config, path, user=range(300))
    client, sent = LocalClient(config, account), []
    x = np.array([0.6, 0.0, -0.8])
    for batch in (0, 1, 2, 4):
        users, model = config.users_of(batch), blank(config, batch)
        if batch == 2:
            for user in users[1:]:
                message = client.randomize(x, 1, 0.5, user=user, model=model)
                sent.append(message.to_bytes())
        else:
            arms = client.choose_many(np.tile(x, (5, 1)), model, users=users)
            sent.append(client.randomize_many(np.tile(x, (5, 1)), arms, np.ones(5), users=users))
    assert [*client.recorded()] == sent
    assert client.left == range(25, 300)
    dies(account)
    again: LocalAccountant[Any] = LocalAccountant.resume(path)
    client = LocalClient(config, again)
    assert [*client.recorded()] == sent
    assert b"".join(client.recorded(range(3, 7))) == (sent[0] + sent[1])[3 * 36 : 7 * 36]
    assert client.left == range(10 + SEGMENT, 300)
    lost = [10, *range(15, 20), *range(25, 10 + SEGMENT)]
    assert client.lost.tolist() == lost
    for user in (0, 12, 10 + SEGMENT - 1):
        with pytest.raises(TokenSpentError, match=r"each sends one message; client\.left can"):
            client.randomize(x, 1, 0.5, user=user, model=blank(config, user // 5))
    user = client.left.start
    assert client.randomize(x, 1, 0.5, user=user, model=blank(config, user // 5)).user == user
    entries = again.ledger.entries
    issues = [entry.users for entry in entries if isinstance(entry, IssueEntry)]
    assert issues == [(0, 10), (10, 300), (10 + SEGMENT, 300)]
    client.close()
    assert agreed(path).problems == []


def test_a_device_of_one_user_writes_three_entries_and_can_send_again(
    bandit: Make, tmp_path: Path
) -> None:
    config, path = bandit(), tmp_path / "phone.ledger"
    account = LocalAccountant.for_device(config, path, user=3)
    model = blank(config, 0)
    sent = LocalClient(config, account).randomize([0.1, 0.2, 0.3], 0, 0.5, model=model)
    kinds = [entry.entry for entry in account.ledger.entries]
    assert kinds == ["open", "issue", "spend", "functions", "retire"]  # the learner is the tests'
    dies(account)
    client = resumed(config, path)
    assert [*client.recorded()] == [sent.to_bytes()]
    assert (len(client.left), len(client.lost)) == (0, 0)
    with pytest.raises(TokenSpentError):
        client.randomize([0.1, 0.2, 0.3], 0, 0.5, model=model)


def test_a_ledger_in_memory_keeps_no_reports_and_says_so(bandit: Make) -> None:
    config = bandit()
    account = LocalAccountant.for_device(config, Ledger.memory(), user=config.users)
    client = LocalClient(config, account)
    answered(client, 0)
    with pytest.raises(LedgerError, match="keeps no reports: only one in a file"):
        next(client.recorded())
    client.close()
    assert not client.left
    assert not LocalClient(config, account).left


def test_a_report_that_was_changed_is_not_sent_again(bandit: Make, tmp_path: Path) -> None:
    config, path = bandit(), tmp_path / "gateway.ledger"
    account = LocalAccountant.for_device(config, path, user=config.users)
    answered(LocalClient(config, account), 0)
    account.ledger.close()  # so that no value waits beside the database
    flip(path)
    client = resumed(config, path)
    with pytest.raises(LedgerUnreadableError, match="was changed"):
        next(client.recorded())


def test_a_planned_gateway_goes_on_under_its_plan(bandit: Make, tmp_path: Path) -> None:
    config, path = bandit(horizon=400, width=400), tmp_path / "gateway.ledger"
    account = LocalAccountant.for_device(config, path, user=config.users)
    account.commit([Plan(config.label, config.loss(), config.users)])
    answered(LocalClient(config, account), 0)
    dies(account)
    again: LocalAccountant[Any] = LocalAccountant.resume(path)
    client = LocalClient(config, again)
    assert client.left == range(SEGMENT, 400) == again.rest(config.label, config.users)
    answered(client, SEGMENT)
    client.close()
    assert agreed(path).problems == []


def test_of_persons_who_come_back_a_crash_costs_one_segment(bandit: Make, tmp_path: Path) -> None:
    config = LocalBanditConfig("twice", bandit(horizon=700, width=300).method, most_messages=2)
    path, people = (
        tmp_path / "gateway.ledger",
        People.create(tmp_path / "people.db", Participation(most=2, pattern="public")),
    )
    account = LocalAccountant.for_device(config, path, user=config.users, people=people)

    def answers(client: LocalClient[Any], users: range) -> bytes:
        n = len(users)
        shown, arms = np.full((n, 3), 0.5), np.zeros(n, int)
        model = blank(config, config.batch_of(users.start))
        return client.randomize_many(
            shown, arms, np.ones(n), users=users, model=model, people=[f"p{u % 350}" for u in users]
        )

    client = LocalClient(config, account)
    told = answers(client, range(200))
    told += answers(client, range(200, 300))  # beyond the first token, within the second
    told += answers(client, range(300, 310))
    assert [e.users for e in entries_of(account, IssueEntry)] == [(0, 256), (256, 512)]
    dies(account)
    people.close()
    people = People.open(tmp_path / "people.db")
    again: LocalAccountant[Any] = LocalAccountant.resume(path, people=people)
    client = LocalClient(config, again)
    assert b"".join(client.recorded()) == told
    assert client.left == range(512, 700)
    assert client.lost.tolist() == list(range(310, 512))
    told += answers(client, range(512, 600)) + answers(client, range(600, 700))
    client.close()
    again.close()
    assert two_different(by_user(config, told)) == []
    found = agreed(path)
    assert found.problems == []
    assert found.spent[0].epsilon <= 4


def entries_of(account: Any, kind: type[Any]) -> list[Any]:
    return [entry for entry in account.ledger.entries if isinstance(entry, kind)]


def flip(path: Path) -> None:
    """Changes the last byte of every value that a ledger keeps."""
    with closing(sqlite3.connect(path)) as connection, connection:
        found = connection.execute("SELECT digest, value FROM released").fetchall()
        for digest, value in found:
            other = value[:-1] + bytes([value[-1] ^ 1])
            connection.execute("UPDATE released SET value = ? WHERE digest = ?", (other, digest))


# Servers ------------------------------------------------------------------------------------------


def configured(bandit: Make, kind: str) -> LocalBanditConfig:
    sizes: dict[str, Any] = {"dim": 3, "n_arms": 4, "horizon": 100, "epsilon": 2.0}
    match kind:
        case "ldp-sgd":
            return LocalBanditConfig(kind, LDPSGD(shared=True, **sizes))
        case "ldp-ols":
            return LocalBanditConfig(kind, LDPOLS(shared=False, **sizes))
        case "per message":
            return bandit(singly=True, horizon=30)
    return bandit(horizon=100, width=20)


def sent_of(config: LocalBanditConfig) -> list[list[bytes]]:
    """A message of each user, by batch, whatever models are."""
    noise = NoiseSource.simulation(5)
    account = LocalAccountant.for_device(config, Ledger.memory(), user=config.users, noise=noise)
    client, found = LocalClient(config, account), []
    rng = np.random.default_rng(2)
    for batch in range(config.n_batches):
        users = config.users_of(batch)
        n, model = len(users), blank(config, batch)
        shown = rng.normal(size=(n, config.method.dim)) / 2
        arms = np.array([user % config.method.n_arms for user in users])
        many = client.randomize_many(shown, arms, shown[:, 0], users=users, model=model)
        size = len(many) // n
        found.append([many[i : i + size] for i in range(0, len(many), size)])
    return found


def summary(arrays: Arrays) -> str:
    return "".join(digest_of(array)[:16] for _, array in sorted(arrays.items()))


def shown(server: LocalServer) -> str:
    model = server.model()
    return f"{model.batch} {summary(server.state)} {summary(model.arrays)} {server.heard}"


def serve(server: LocalServer, sent: list[list[bytes]]) -> Iterator[str]:
    """What is public, before each batch and at the end."""
    while len(server.users):
        yield shown(server)
        messages = sent[server.batch]
        server.update_many(messages[:2])
        server.update_many([*messages, b"junk"])
        server.advance()
    yield shown(server)


KINDS = ["running mean", "per message", "ldp-sgd", "ldp-ols"]


@pytest.mark.parametrize("kind", thinned(KINDS))
def test_a_server_that_is_killed_goes_on_from_its_last_batch(
    bandit: Make, kind: str, tmp_path: Path
) -> None:
    """Bit by bit, wherever it died; nobody saw a model that it does not have any more."""
    config = configured(bandit, kind)
    sent = sent_of(config)
    memory = LocalAccountant.for_server(config, Ledger.memory())
    whole = list(serve(LocalServer(config, memory, by="tests"), sent))

    def work(tell: Tell) -> None:
        account: LocalAccountant[Any] = LocalAccountant.resume(path)
        tell(b"begun\n")
        for line in serve(LocalServer(config, account, by="tests"), sent):
            tell(line.encode() + b"\n")
        account.close()

    for at in (1, 2, 3, 4, 5, 8, 11, 15) if kind in KINDS[:2] else (4, 9, 14):
        path = tmp_path / f"{at}.ledger"
        dies(LocalAccountant.for_server(config, path))
        lines: list[str] = []
        died = 0
        for death in (at, 13, None):
            told, was = killed(work, death)
            died += was
            new = [line for line in told.decode().splitlines() if line != "begun"]
            if new and lines:  # what was shown last, or what stood in the ledger by then
                assert int(new[0].split()[0]) in range(len(lines) - 1, len(lines) + 1)
                lines = lines[: int(new[0].split()[0])]
            lines += new
            assert lines == whole[: len(lines)]
            if not was:
                break
        assert died
        assert lines == whole
        found = agreed(path)
        assert found.problems == []
        assert found.closed
        assert found.attested


@pytest.mark.parametrize("kind", ["running mean", "per message"])
def test_no_model_shows_what_the_ledger_does_not_have(
    bandit: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = configured(bandit, kind), tmp_path / "server.ledger"
    account = LocalAccountant.for_server(config, path)
    server, sent = LocalServer(config, account, by="tests"), sent_of(config)
    before = server.model()
    server.update_many(sent[0])

    def full(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(account, "record_sums", full)

    def publish() -> Model:
        server.advance()
        return server.model()

    with pytest.raises(LedgerError, match="full"):
        publish()
    if kind == "running mean":
        assert summary(server.model().arrays) == summary(before.arrays)
        assert (server.batch, server.model().batch) == (0, 0)
    monkeypatch.undo()
    publish()
    now = shown(server)
    dies(account)
    assert shown(LocalServer.resume(config, LocalAccountant.resume(path))) == now


def finished(config: LocalBanditConfig, path: Path) -> LocalAccountant[Any]:
    account = LocalAccountant.for_server(config, path)
    for _ in serve(LocalServer(config, account, by="tests"), sent_of(config)):
        pass
    return account


@pytest.mark.parametrize("kind", ["running mean", "per message"])
def test_sums_that_were_changed_are_not_believed(
    bandit: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "LARGEST_TAIL", 0)  # all goes into the database at once
    config, path = configured(bandit, kind), tmp_path / "server.ledger"
    dies(finished(config, path))
    flip(path)
    with pytest.raises(LedgerUnreadableError, match="was changed: its bytes have another hash"):
        LocalServer.resume(config, LocalAccountant.resume(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM released")
    with pytest.raises(LedgerUnreadableError, match="is missing"):
        LocalServer.resume(config, LocalAccountant.resume(path))


def test_a_batch_counts_once(bandit: Make, tmp_path: Path) -> None:
    """A planted fault: the second of two servers, or one whose counter stands still."""
    config, path = bandit(horizon=100, width=20), tmp_path / "server.ledger"
    account = LocalAccountant.for_server(config, path)
    first, second = (LocalServer(config, account, by="tests") for _ in range(2))
    sent = sent_of(config)
    first.update_many(sent[0])
    first.advance()
    second.update_many(sent[0])
    with pytest.raises(LedgerError, match=r"sums 0 of .*: 1 stand in the ledger; a batch counts"):
        second.advance()
    assert second.batch == 0
    assert len(entries_of(account, SumsEntry)) == 1
    again = LocalServer.resume(config, account)
    assert summary(again.state) == summary(first.state)


def test_an_audit_finds_sums_that_cannot_be(bandit: Make, tmp_path: Path) -> None:
    config, path = bandit(horizon=100, width=20), tmp_path / "server.ledger"
    account = finished(config, path)
    bodies = [record.body for record in account.ledger.records]
    assert certify(chained(bodies), delta=None).problems == []
    last = bodies[-1]
    assert last["entry"] == "sums"
    changes: list[tuple[dict[str, Any], str]] = [
        ({}, r"sums 4 of .*: 5 stand in the ledger"),
        ({"number": 6}, "5 stand in the ledger"),
        ({"number": 5, "upto": 101}, r"up to user 101: must lie in 100..100"),
        ({"number": 5, "upto": 99}, "up to user 99"),
        ({"number": 5, "heard": 1}, "101 messages, where 100 were attested"),
        ({"number": 5, "heard": 0, "label": "messages/0"}, "no such messages were attested"),
        ({"number": 5, "heard": -1}, "heard"),
        ({"number": 5, "heard": 0, "step": 0.0}, "step"),
        ({"number": 5, "heard": 0, "digest": "0"}, "digest"),
    ]
    for change, said in changes:
        (problem,) = certify(chained([*bodies, {**last, **change}]), delta=None).problems
        assert np.any([part in problem for part in (said, said.split(".*: ")[-1])]), problem


@pytest.mark.parametrize("kind", ["running mean", "per message"])
def test_records_of_a_server_that_cannot_count_are_refused(
    bandit: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(bandit, kind)
    single = kind == "per message"
    good: dict[str, Any] = {"number": 0, "upto": 1 if single else 20, "heard": 1, "rejected": {}}
    good |= {"step": 0.5, "value": np.array([[0 if single else 1, 5, 5, 5]])}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"value": np.array([[0, 5, 5]])}, "a value of shape"),
        ({"value": np.array([[0.0, 5, 5, 5]])}, "a value of shape"),
        ({"value": np.array([[0 if single else 1, 2**23 + 1, 0, 0]])}, "grid|so many messages"),
        ({"rejected": {"odd": 1}}, "unknown reasons"),
        ({"value": np.array([[-1, 0, 0, 0]])}, "turn is over|counts"),
    ]
    if single:
        changes.append(({"value": np.array([[2, 5, 5, 5]] * 2), "heard": 2}, "two messages of one"))
        changes.append(({"value": np.array([[30, 5, 5, 5]])}, "turn is over before 0, or none"))
    else:
        changes.append(({"upto": 21}, "up to user 21, where batch 0 is range"))
        changes.append(({"heard": 2}, "where 2 messages were heard"))
        changes.append(({"heard": 21, "value": np.array([[21, 0, 0, 0]])}, "21 messages"))
    for i, (change, said) in enumerate([({}, ""), *changes]):
        account = LocalAccountant.for_server(config, tmp_path / f"{i}.ledger")
        LocalServer(config, account, by="tests")
        record = {**good, **change}
        whole = record["value"].dtype.kind == "i"
        record["value"] = record["value"].astype(("<i4" if single else "<i8") if whole else "<f8")
        account.record_sums(config.label, **record, waits=False)
        if said:
            with pytest.raises(LedgerError, match=said):
                LocalServer.resume(config, account)
        else:
            assert LocalServer.resume(config, account).state["sum"].tolist() == [[2.5] * 3]


def test_a_server_resumes_with_its_own_configuration_only(bandit: Make, tmp_path: Path) -> None:
    config, path = bandit(), tmp_path / "server.ledger"
    account = finished(config, path)
    with pytest.raises(LedgerError, match="are claimed in the ledger of accountant"):
        LocalServer.resume(bandit(name="other"), account)
    forgetful = LocalAccountant.for_server(config, Ledger.memory())
    LocalServer(config, forgetful, by="tests")
    with pytest.raises(LedgerError, match="keeps no sums, as it is in memory"):
        LocalServer.resume(config, forgetful)
    phone: Any = LocalAccountant.for_device(config, Ledger.memory(), user=0)
    with pytest.raises(TypeError, match="attested=True"):
        LocalServer.resume(config, phone)


def test_both_verifiers_count_what_a_gateway_paid_and_find_one_user_too_many(
    bandit: Make, tmp_path: Path
) -> None:
    """In zCDP, which both can add up; the planted fault is one of the whole ledger."""
    config = bandit(mechanism="joint", horizon=400, width=200)
    path, users = tmp_path / "gateway.ledger", range(400)
    cap = ZCDP(0).price(config.loss())
    account = LocalAccountant(cap, users=users, ledger=Ledger.create(path))
    answered(LocalClient(config, account), 0)
    dies(account)
    again: LocalAccountant[Any] = LocalAccountant.resume(path)
    with LocalClient(config, again) as client:
        answered(client, SEGMENT)
    again.close()
    assert agreed(path).problems == []
    bodies = [record.body for record in again.ledger.records]
    extensions = {record.seq: record.ext for record in again.ledger.records if record.ext}
    for shift in (0, 1):
        for body in bodies:
            if body.get("users") == [SEGMENT, 400]:
                body["users"][0] -= shift
        forged = tmp_path / f"{shift}.jsonl"
        write_export(forged, chained(bodies, extensions))
        heard = VERIFIER.verify(forged)["problems"]
        found = certify(iterate_records(forged)).problems
        assert bool(heard) == bool(found) == bool(shift), (heard, found)
