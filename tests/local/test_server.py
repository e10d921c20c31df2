"""The server: learning from messages, the public clock, restarts, one claim for all users."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from privlearn.accountants import LocalAccountant
from privlearn.accountants.audit import audit, certify
from privlearn.contract.protocols import Plan
from privlearn.errors import BudgetError, DataError, UsersError
from privlearn.learners.local.batch_sums import BatchSums
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.form import GRID
from privlearn.learners.local.messages import REJECTION_REASONS
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig
from privlearn.learners.local.server import UNSEEN, LocalServer
from privlearn.ledger import Ledger
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import AttestEntry
from privlearn.losses import PureLoss
from privlearn.losses.budgets import GaussianDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.reporting.certificates import certificate_markdown, print_certificate

Make = Callable[..., LocalBanditConfig]


def claims(config: LocalBanditConfig, **more: Any) -> LocalAccountant[PureDP]:
    users = range(config.method.horizon)
    ledger = more.pop("ledger", None) or Ledger.memory()
    return LocalAccountant(PureDP(2), users=users, ledger=ledger, attested=True, **more)


def started(config: LocalBanditConfig) -> LocalServer:
    return LocalServer(config, claims(config), by="the tests, version 1")


def gateway(config: LocalBanditConfig, seed: int = 1) -> LocalClient[PureDP]:
    noise = NoiseSource.simulation(seed)
    users = range(config.method.horizon)
    return LocalClient(config, LocalAccountant(PureDP(2), users=users, noise=noise))


def answers(server: LocalServer, client: LocalClient[PureDP], seed: int = 0) -> list[bytes]:
    """One message of each user of the open batch, whose rewards are x₀ plus noise."""
    method, users = server.config.method, server.users
    rng = np.random.default_rng([seed, users.start])
    shape = (method.n_arms, method.dim) if method.shared else (method.dim,)
    contexts = rng.normal(size=(len(users), *shape)) / 2
    model = server.model()
    arms = client.choose_many(contexts, model, users=users)
    shown = contexts[np.arange(len(users)), arms] if method.shared else contexts
    sent = client.randomize_many(shown, arms, shown[:, 0], users=users, model=model)
    size = len(sent) // len(users)
    return [sent[i : i + size] for i in range(0, len(sent), size)]


SHAPES = [{}, {"shared": False}, {"shared": False, "warm": 10}, {"singly": True}]


def same(one: Arrays, two: Arrays) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)


# Learning -----------------------------------------------------------------------------------------


def test_the_mean_of_messages_is_the_mean_of_the_records(bandit: Make) -> None:
    n = 20_000
    config = bandit(horizon=n, width=n // 4, n_arms=1, dim=2)
    server, client = started(config), gateway(config)
    for batch in range(4):
        users = config.users_of(batch)
        arms = np.zeros(len(users))
        shown = np.tile([0.6, -0.3], (len(users), 1))
        model = server.model()
        sent = client.randomize_many(shown, arms, arms + 0.5, users=users, model=model)
        assert server.update_many(sent) == len(users)
        server.advance()
    assert server.heard == n
    assert server.batch == config.n_batches
    found = server.model().arrays["theta"][0]
    report = config.method.report()
    error = np.sqrt(report.mean_squared_error() / n)
    assert np.linalg.norm(found - [0.3, -0.15]) < 4 * error


def test_arms_learn_from_their_own_parts(bandit: Make) -> None:
    config = bandit(shared=False, horizon=8000, width=4000, warm=4000, n_arms=2, dim=1)
    server, client = started(config), gateway(config)
    for batch in range(2):
        users = config.users_of(batch)
        ones = np.ones((len(users), 1))
        arms = np.arange(users.start, users.stop) % 2
        rewards = np.where(arms == 0, 0.8, -0.4)
        model = server.model()
        server.update_many(client.randomize_many(ones, arms, rewards, users=users, model=model))
        server.advance()
    assert server.state["n"].tolist() == [6000, 6000]
    # of the later messages every second is a null part
    wanted = [0.8 * 4000 / 6000, -0.4 * 4000 / 6000]
    error = np.sqrt(config.method.report().mean_squared_error() / 6000)
    assert np.abs(server.model().arrays["theta"][:, 0] - wanted).max() < 4 * error


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_batch_may_come_in_any_way(bandit: Make, shape: dict[str, Any]) -> None:
    config = bandit(**shape)
    servers = [started(config) for _ in range(4)]
    client = gateway(config)
    while servers[0].batch < config.n_batches:
        sent = answers(servers[0], client)
        servers[0].update_many(b"".join(sent))
        for message in reversed(sent):
            assert servers[1].update(message)
        servers[2].update_many(sent[:2])
        rest = BatchSums(config, servers[0].batch)
        rest.update_many(sent[2:])
        servers[2].absorb(rest)
        halves = [BatchSums(config, servers[0].batch) for _ in range(2)]
        halves[0].update_many(sent[::2])
        halves[1].update_many(sent[1::2])
        for half in halves:
            servers[3].absorb(half.to_bytes())
        for server in servers:
            server.advance()
    for server in servers[1:]:
        assert same(server.state, servers[0].state)
        assert server.heard == config.method.horizon


def test_the_model_is_frozen_inside_a_batch(bandit: Make) -> None:
    config = bandit()
    server = started(config)
    before = server.model().model_dump_json()
    server.update_many(answers(server, gateway(config)))
    assert server.model().model_dump_json() == before
    server.advance()
    assert server.model().model_dump_json() != before
    with pytest.raises(ValueError, match="read-only"):
        server.state["sum"][0, 0] = 1.0


def test_with_per_message_each_is_a_step_in_the_order_of_arrival(bandit: Make) -> None:
    config = bandit(singly=True)
    server, client = started(config), gateway(config)
    (first,) = answers(server, client)
    assert server.update(first)
    assert server.state["n"].tolist() == [1]
    assert server.model().batch == 0
    server.advance(3)
    assert (server.batch, server.users) == (3, range(3, 4))
    (late,) = answers(started(config), gateway(config, 2))
    assert not server.update(late)
    assert server.rejected["late"] == 1
    (third,) = answers(server, client)
    assert server.update(third)
    assert not server.update(third)
    assert server.rejected["duplicate"] == 1
    server.advance()
    server.advance(2)
    assert server.batch == 4
    server.advance(10**9)
    assert server.batch == 20
    assert len(server.users) == 0
    assert not server.update(third)
    assert server.rejected["late"] == 2
    assert server.heard == 2


def test_with_per_message_there_is_nothing_to_merge(bandit: Make) -> None:
    with pytest.raises(ValueError, match="no partial sums"):
        started(bandit(singly=True)).absorb(b"")


# The clock ----------------------------------------------------------------------------------------


def test_absent_users_do_not_stop_the_clock_and_late_messages_are_counted(bandit: Make) -> None:
    config = bandit()
    server, client = started(config), gateway(config)
    sent = answers(server, client)
    server.update_many(sent[:2])
    server.advance()
    assert server.state["n"].tolist() == [2]
    assert server.update_many(sent[2:]) == 0
    assert server.rejected["late"] == 3
    server.advance(14)
    assert server.batch == 2
    server.advance(15)
    assert server.batch == 3
    server.advance(0)
    assert server.batch == 3
    server.advance()
    server.advance()
    assert (server.batch, len(server.users)) == (4, 0)
    assert server.update_many(sent) == 0
    assert server.rejected["late"] == 8
    assert server.model().batch == 4


def test_what_closed_batches_rejected_is_not_forgotten(bandit: Make) -> None:
    config = bandit()
    server = started(config)
    server.update(b"junk")
    server.advance()
    server.update(b"more")
    assert server.rejected["malformed"] == 2


def test_overlapping_sums_are_refused_and_change_nothing(bandit: Make) -> None:
    config = bandit()
    server, client = started(config), gateway(config)
    sent = answers(server, client)
    server.update_many(sent[:3])
    other = BatchSums(config, 0)
    other.update_many(sent[2:])
    with pytest.raises(UsersError, match="user 2 the first"):
        server.absorb(other)
    with pytest.raises(ValueError, match="of batch 1, these are of 0"):
        server.absorb(BatchSums(config, 1))
    with pytest.raises(DataError, match="torn"):
        server.absorb(other.to_bytes()[:-1])
    assert server.heard == 3


# No bytes can harm --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_no_bytes_drive_the_server_to_anything_but_finite_numbers(
    bandit: Make, shape: dict[str, Any], data: Any
) -> None:
    config = bandit(horizon=10, **shape)
    server = started(config)
    size = 24 + 4 * config.message_report(warming=server.config.warming(0)).size
    head = b"PLM\1" + bytes(4) + config.fingerprint[:8] + bytes(8)
    odd = st.sampled_from([0, 1, -1, GRID, -GRID, GRID + 1, 2**31 - 1, -(2**31)])
    n = (size - 24) // 4
    values = st.lists(odd, min_size=n, max_size=n)
    crafted = values.map(lambda numbers: head + struct.pack(f"<{n}i", *numbers))
    strings = st.lists(st.one_of(st.binary(max_size=2 * size), crafted), max_size=5)
    for _ in range(3):
        found = data.draw(strings)
        for one in found:
            server.update(one)
        server.update_many(b"".join(found))
        server.update_many(found)
        server.advance()
        for array in (*server.state.values(), *server.model().arrays.values()):
            assert np.isfinite(array).all()


def test_steps_and_models_that_are_not_finite_leave_the_last_ones(bandit: Make) -> None:
    mean = type(bandit().method)

    class Explosive(mean):  # type: ignore[misc, valid-type]
        kind: Literal["explosive"] = "explosive"
        how: str

        def step(self, state: Arrays, batch: int, sums: Any, counts: Any) -> Arrays:
            if self.how == "nan":
                return {**state, "sum": state["sum"] / 0.0}
            if self.how == "singular":
                np.linalg.inv(np.zeros((2, 2)))
            return {"sum": state["sum"] + 1e200, "n": state["n"]}

        def model(self, state: Arrays) -> Arrays:
            return {"theta": state["sum"] ** 2}

    for how, kept in (("nan", 1), ("singular", 1), ("model", 0)):
        method = Explosive(how=how, **bandit().method.model_dump(exclude={"kind"}))
        server = started(LocalBanditConfig(name="explosive", method=method))
        before = server.model().arrays
        server.advance()
        assert server.kept == kept
        assert same(server.model().arrays, before)
        assert all(np.isfinite(array).all() for array in server.state.values())


# Restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_restart_changes_nothing(bandit: Make, shape: dict[str, Any], tmp_path: Path) -> None:
    """At any moment of a batch; what was sent is sent again, and counts once."""
    config = bandit(**shape)
    path = tmp_path / "server.ledger"
    straight, client = started(config), gateway(config)
    broken = LocalServer(config, claims(config, ledger=Ledger.create(path)), by="the tests")
    while straight.batch < config.n_batches:
        sent = answers(straight, client)
        straight.update_many([*sent, b"junk"])
        broken.update_many(sent[:1])
        dies(broken)
        again: LocalAccountant[PureDP] = LocalAccountant.resume(path)
        broken = LocalServer.resume(config, again)
        assert broken.unheard.tolist()[: len(sent)] == list(straight.users)
        broken.update_many([*sent, b"junk"])
        broken.update(sent[0])
        if not config.method.per_message:
            assert not len(broken.unheard)
        straight.advance()
        broken.advance()
        assert same(broken.model().arrays, straight.model().arrays)
        assert same(broken.state, straight.state)
    for server in (broken, LocalServer.resume(config, reopened(broken, path))):
        assert same(server.state, straight.state)
        assert same(server.model().arrays, straight.model().arrays)
        assert server.model().batch == straight.model().batch
        assert server.heard == straight.heard
        assert server.rejected["malformed"] == config.n_batches
        assert server.rejected["duplicate"] == config.n_batches
    found = audit(path)
    assert found.problems == []
    assert found.attested


def dies(server: LocalServer) -> None:
    """As its process would: the connection is dropped, nothing is closed."""
    server._accountant.ledger._disk._end()  # type: ignore[attr-defined]


def reopened(server: LocalServer, path: Path) -> LocalAccountant[PureDP]:
    dies(server)
    return LocalAccountant.resume(path)


def test_a_server_that_died_in_its_first_batch_starts_over(bandit: Make, tmp_path: Path) -> None:
    config = bandit()
    path = tmp_path / "server.ledger"
    lost = LocalServer(config, claims(config, ledger=Ledger.create(path)), by="app", unseen=["a"])
    sent = answers(lost, gateway(config))
    lost.update_many(sent)
    again: LocalAccountant[PureDP] = LocalAccountant.resume(path)
    for words in ({"by": "another"}, {"by": "app"}):
        with pytest.raises(BudgetError, match=r"stands in the ledger by 'app', .*unseen \('a',\)"):
            LocalServer(config, again, **words)
    server = LocalServer(config, again, by="app", unseen=["a"])
    assert len(again.claims) == 1
    assert server.update_many(sent) == len(sent)
    assert same(server.state, lost.state)


def test_a_cap_of_two_messages_holds_one_claim_of_each_configuration(bandit: Make) -> None:
    config = bandit(epsilon=1.0)
    accountant = claims(config)
    for _ in range(3):
        LocalServer(config, accountant, by="app")
    assert accountant.spent().epsilon <= 1
    LocalServer(bandit(epsilon=1.0, name="next"), accountant, by="app")
    labels = [claim.label for claim in accountant.claims]
    assert labels == [config.label, bandit(epsilon=1.0, name="next").label]
    with pytest.raises(BudgetError, match="budget exceeded"):
        LocalServer(bandit(epsilon=1.0, name="third"), accountant, by="app")


def test_a_server_that_cannot_be_built_claims_nothing(
    bandit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bandit()
    accountant = claims(config)
    monkeypatch.setattr(type(config.method), "model", lambda self, state: state["nothing"])
    with pytest.raises(KeyError):
        LocalServer(config, accountant, by="app")
    assert accountant.claims == ()


def test_a_plan_holds_the_claim_under_its_label(bandit: Make) -> None:
    config = bandit()
    accountant = claims(config)
    accountant.commit([Plan(config.label, config.loss(), range(20))])
    LocalServer(config, accountant, by="app")
    assert accountant.left(config.label, range(20)) == 0


def test_sums_that_say_they_rejected_ever_so_many_harm_nothing(
    bandit: Make, tmp_path: Path
) -> None:
    config, path = bandit(), tmp_path / "server.ledger"
    server = LocalServer(config, claims(config, ledger=Ledger.create(path)), by="app")

    def resealed(late: int) -> bytes:
        body = bytearray(BatchSums(config, 0).to_bytes()[:-16])
        struct.pack_into("<Q", body, 16 + 8 * REJECTION_REASONS.index("late"), late)
        return bytes(body) + hashlib.sha256(body).digest()[:16]

    for late in (2**64 - 1, 2**53 + 1):
        with pytest.raises(DataError, match=f"rejected = {late}: must be at most"):
            server.absorb(resealed(late))
    for _ in range(3):
        server.absorb(resealed(2**53))
    server.advance()
    server.update(b"junk")
    server.advance()
    again = LocalServer.resume(config, reopened(server, path))
    assert again.rejected["late"] == server.rejected["late"] == 2**53 - 1
    assert again.rejected["malformed"] == 1


# One claim for all users --------------------------------------------------------------------------


def test_the_ledger_holds_one_claim_however_many_users(bandit: Make) -> None:
    config = bandit(horizon=10**6, width=10**6)
    accountant = claims(config)
    LocalServer(config, accountant, by="shop app 4.2")
    entries = accountant.ledger.entries
    assert len(entries) == 2
    claim = entries[1]
    assert isinstance(claim, AttestEntry)
    assert (claim.users, claim.count, claim.most_messages) == ((0, 10**6), 10**6, 1)
    assert (claim.by, claim.mechanism) == ("shop app 4.2", "running-mean/test")
    certificate = accountant.certificate()
    assert certificate.problems == []
    assert certificate.attested
    assert not certificate.holds
    (guarantee,) = certificate.guarantees
    (spent,) = certificate.spent
    assert guarantee.epsilon <= 2 * (1 + 1e-9)
    assert spent.epsilon <= 2 * (1 + 1e-9)
    assert any(line.startswith("ATTESTED, NOT VERIFIED") for line in guarantee.assumptions)


UNSAID = (
    "What the receiver is assumed not to see of a user besides the message was not said: whatever "
    "else it sees of the user is not protected from it."
)


def test_the_certificate_says_what_the_server_is_assumed_not_to_see(
    bandit: Make, tmp_path: Path
) -> None:
    config = bandit()
    path = tmp_path / "server.ledger"
    LocalServer(config, claims(config, ledger=Ledger.create(path)), by="app")
    found = audit(path)
    line = (
        "Of a user the receiver is assumed not to see, besides the message: the contexts; the "
        "action, where the server set the price or made the offer itself; the answer to it. Where "
        "it sees one of these, that is not protected from it."
    )
    assert line in found.guarantees[0].assumptions
    assert line in certificate_markdown(found)
    shown = StringIO()
    print_certificate(found, Console(file=shown, width=400), full=True)
    assert "assumed not to be seen by the receiver: the contexts; the action" in shown.getvalue()
    assert found.attestations[0].unseen[2] == "the answer to it"
    own = claims(config)
    LocalServer(config, own, by="app", unseen=("the shoe size",))
    assert any(
        "message: the shoe size. W" in t for t in own.certificate().guarantees[0].assumptions
    )
    none = claims(config)
    LocalServer(config, none, by="app", unseen=())
    assert UNSAID in none.certificate().guarantees[0].assumptions
    with pytest.raises(ValueError, match="unseen = ''"):
        LocalServer(config, claims(config), by="app", unseen=("",))


def test_ledgers_from_before_the_field_still_verify(bandit: Make) -> None:
    accountant = claims(bandit())
    LocalServer(bandit(), accountant, by="app")
    bodies = []
    for record in accountant.ledger.records:
        body = {key: value for key, value in record.body.items() if key != "unseen"}
        assert len(body) == len(record.body) - (body["entry"] == "attest")
        bodies.append(body)
    certificate = certify(chained(bodies), delta=None)
    assert certificate.problems == []
    assert certificate.attestations[0].unseen == ()
    assert UNSAID in certificate.guarantees[0].assumptions


def test_claims_that_cannot_be_recorded_are_refused(bandit: Make) -> None:
    config, noise = bandit(), NoiseSource.simulation(0)
    phone = LocalAccountant(PureDP(2), users=range(20), noise=noise)
    with pytest.raises(TypeError, match="attested=True"):
        LocalServer(config, phone, by="app")
    poor = LocalAccountant(PureDP(1), users=range(20), noise=noise, attested=True)
    with pytest.raises(BudgetError, match="budget exceeded"):
        LocalServer(config, poor, by="app")
    few = LocalAccountant(PureDP(2), users=range(10), noise=noise, attested=True)
    with pytest.raises(UsersError):
        LocalServer(config, few, by="app")


def test_gaussian_messages_are_claimed_by_their_mass(bandit: Make) -> None:
    config = bandit(mechanism="joint", shared=False, warm=10)
    accountant = LocalAccountant(
        GaussianDP("1"), users=range(20), noise=NoiseSource.simulation(0), attested=True
    )
    LocalServer(config, accountant, by="app")
    mu = accountant.certificate().spent[0].mu
    assert mu == pytest.approx(np.sqrt(2) * 2.0 / 4.0)


def test_a_cheaper_claim_under_the_same_label_is_refused(bandit: Make, tmp_path: Path) -> None:
    config = bandit(epsilon=1.0)
    cheap = claims(config, ledger=Ledger.create(tmp_path / "server.ledger"))
    cheap.attest(
        PureLoss("0.01"),
        users=range(config.method.horizon),
        most_messages=1,
        count=1,
        by="app",
        mechanism="nothing",
        label=config.label,
        unseen=UNSEEN,
    )
    with pytest.raises(BudgetError, match="must be the same"):
        LocalServer(config, cheap, by="app")
    with pytest.raises(BudgetError, match="must be the same"):
        LocalServer.resume(config, cheap)
