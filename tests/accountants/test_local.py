"""Local privacy: devices spend for one user each; servers record claims, labelled as claims."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.cli.main import app
from privlearn.contract.protocols import Plan
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    CurrencyError,
    InsufficientBudgetError,
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    UsersError,
)
from privlearn.ledger import Ledger, Record, canonical, read_records
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import AttestEntry, parse_entry
from privlearn.losses import GaussianLoss, LaplaceLoss, Loss, PureLoss, RandomizedResponse
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.reporting.certificates import (
    certificate_markdown,
    guarantee_line,
    print_certificate,
    verdict,
)
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency, Trust

USERS = range(100)
MESSAGE = PureLoss("0.5")


def device(budget: Any = None, users: range = range(1), **more: Any) -> LocalAccountant[Any]:
    cap = ZCDP(1) if budget is None else budget
    return LocalAccountant(cap, users=users, noise=NoiseSource.simulation(0), **more)


def server(budget: Any = None, ledger: Ledger | None = None, **more: Any) -> LocalAccountant[Any]:
    book = Ledger.memory() if ledger is None else ledger
    cap = PureDP(2) if budget is None else budget
    return LocalAccountant(cap, users=USERS, ledger=book, attested=True, **more)


def claim(accountant: LocalAccountant[Any], loss: Loss = MESSAGE, **changes: Any) -> None:
    words: dict[str, Any] = {
        "users": USERS,
        "most_messages": 2,
        "count": 150,
        "by": "app 4.2, build 77",
        "mechanism": "randomized-response",
        **changes,
    }
    accountant.attest(loss, **words)


def send(accountant: LocalAccountant[Any], price: Any, user: int = 0) -> Released[Any]:
    token: Token[Any] = accountant.issue(price, users=range(user, user + 1), label="message")
    with token.spend(Spend("laplace", Ball(1.0, 1), LaplaceNoise(10.0), arithmetic="sum")) as it:
        return it.release_sum(Rows.seal(np.ones((1, 1)), users=range(user, user + 1)))


# On the device ------------------------------------------------------------------------------------


LAPLACE = LaplaceLoss("0.2")  # the loss of `send`: diameter 2 in l1, scale 10


@pytest.mark.parametrize(
    "cap",
    [
        PureDP("0.4"),
        ZCDP.price(ZCDP(1), LAPLACE) * 2,
        Renyi({2: 1, 8: 2}).price(LAPLACE) * 2,
    ],
)
def test_a_users_own_messages_compose_until_the_cap(cap: Currency) -> None:
    phone = device(cap)
    for _ in range(2):
        send(phone, LAPLACE)
    assert phone.spent() == cap
    with pytest.raises(InsufficientBudgetError):
        send(phone, LAPLACE)
    certificate = phone.certificate()
    assert certificate.problems == []
    (guarantee,) = certificate.guarantees
    assert guarantee.trust is Trust.LOCAL
    assert not guarantee.attested
    assert guarantee.users == (0, 1)
    assert "local DP, replace-one: (" in guarantee_line(guarantee)
    assert any("the user's own device" in line for line in guarantee.assumptions)


def test_gaussian_messages_compose_on_a_device() -> None:
    phone = device(GaussianDP(1))
    for _ in range(4):
        phone.issue(GaussianLoss("1/4"), users=range(1), label="message")
    assert phone.remaining() == GaussianDP.from_mu_squared(0)


def test_messages_of_other_users_cost_a_user_nothing() -> None:
    household = device(PureDP("0.4"), users=range(3, 6))
    for user in (3, 4, 3, 5):
        send(household, LAPLACE, user)
    assert [household.spent(user) for user in (3, 4, 5)] == [
        PureDP("0.4"),
        PureDP("0.2"),
        PureDP("0.2"),
    ]
    (guarantee,) = household.certificate().guarantees
    assert any("share this device" in line for line in guarantee.assumptions)


@pytest.mark.parametrize("arithmetic", ["sum", "own"])
def test_noise_that_users_share_is_not_local(arithmetic: Any) -> None:
    """The planted defect: one noise on the sum of two users' rows is a curator's mechanism."""
    household = device(users=range(3))
    spend = Spend("laplace", Ball(1.0, 1), LaplaceNoise(10.0), arithmetic=arithmetic)
    for users in (range(3), range(1, 3)):
        token = household.issue(LAPLACE, users=users, label="sum")
        with pytest.raises(UsersError, match="every user draws noise alone"):
            token.spend(spend)
        token.retire()  # nothing was recorded, so that nothing is charged
    assert household.spent() == ZCDP(0)
    with household.issue(LAPLACE, users=range(1), label="message").spend(spend):
        pass
    bodies = [record.body for record in household.ledger.records]
    at = [i for i, body in enumerate(bodies) if body["entry"] in ("issue", "spend")]
    for i in at[-2:]:
        bodies[i] = {**bodies[i], "users": [0, 3]}
    assert any("every user draws noise alone" in p for p in certify(chained(bodies)).problems)


def test_a_token_for_several_users_pays_for_a_report_of_each() -> None:
    """One entry for all; every one of the users is charged the loss once."""
    household = device(PureDP("0.4"), users=range(5))
    household.commit([Plan("message", LAPLACE, range(1, 4), count=2)])
    each = Spend("laplace", Ball(1.0, 1), LaplaceNoise(10.0), arithmetic="each")
    rows = Rows.seal(np.zeros((3, 1)), users=range(1, 4))
    for _ in range(2):
        with household.issue(LAPLACE, users=range(1, 4), label="message").spend(each) as receipt:
            noisy = receipt.open(rows) + receipt.draw((3, 1))
            assert receipt.release(noisy).value.shape == (3, 1)
    assert [household.spent(user) for user in range(5)] == [
        PureDP(0),
        *[PureDP("0.4")] * 3,
        PureDP(0),
    ]
    spends = [r.body for r in household.ledger.records if r.body["entry"] == "spend"]
    assert [body["arithmetic"] for body in spends] == ["each", "each"]
    household.close()
    certificate = certify(household.ledger.records)
    assert not certificate.problems
    assert certificate.guarantees[0].epsilon == pytest.approx(0.4, abs=1e-5)


def test_a_committed_plan_on_a_device_is_its_guarantee() -> None:
    phone = device(PureDP(1))
    phone.commit([Plan("message", LAPLACE, range(1), count=2)])
    send(phone, LAPLACE)
    (guarantee,) = phone.certificate().guarantees
    assert guarantee.epsilon <= 0.4 * (1 + 1e-9)


@pytest.mark.parametrize("attested", [False, True])
def test_local_privacy_has_no_add_remove(attested: bool) -> None:
    with pytest.raises(AdjacencyError, match="who sends a message is seen to take part"):
        device(adjacency=Adjacency.ADD_REMOVE, attested=attested)


def test_local_privacy_under_zero_out_is_a_relation_of_its_own() -> None:
    phone = device(PureDP("0.1"), adjacency=Adjacency.ZERO_OUT)
    out = LaplaceLoss("0.1", adjacency=Adjacency.ZERO_OUT)  # the radius, not the diameter
    send(phone, out)
    (guarantee,) = phone.certificate().guarantees
    assert guarantee.adjacency is Adjacency.ZERO_OUT
    other = device(PureDP(1), adjacency=Adjacency.ZERO_OUT, attested=True)
    with pytest.raises(AdjacencyError, match="convert it explicitly"):
        other.attest(LAPLACE, users=range(1), most_messages=1, count=1, by="x", mechanism="y")
    with pytest.raises(AdjacencyError, match="add-remove"):
        device(PureDP(1)).commit(
            [Plan("m", LaplaceLoss("0.1", adjacency=Adjacency.ADD_REMOVE), range(1))]
        )


def test_other_accountants_cannot_be_resumed_as_local_ones() -> None:
    book = Ledger.memory()
    CentralAccountant(ZCDP(1), users=range(1), ledger=book)
    with pytest.raises(LedgerError, match="holds no local accountant"):
        LocalAccountant.resume(book)


# The theorem, by enumeration ----------------------------------------------------------------------


def transcripts(rows: tuple[int, ...], epsilon: float, skips: bool = False) -> dict[Any, float]:
    """Laws of all messages: two rounds of randomized response, the second adaptive to the first.

    With ``skips`` a user of row 0 sends nothing in the second round: a leak of the count.
    """
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))

    def law(bit: int, sent: int) -> float:
        return keep if bit == sent else 1 - keep

    found: dict[Any, float] = {}
    for first in itertools.product((0, 1), repeat=len(rows)):
        flip = sum(first) % 2  # the second question depends on everybody's first answers
        options = [(0, 1) if not skips or row else (None,) for row in rows]
        for second in itertools.product(*options):
            weight = math.prod(law(row, a) for row, a in zip(rows, first, strict=True))
            for row, a in zip(rows, second, strict=True):
                weight *= 1.0 if a is None else law(row ^ flip, a)
            found[first, second] = found.get((first, second), 0.0) + weight
    return found


def worst_loss(one: dict[Any, float], other: dict[Any, float]) -> float:
    ratios = [
        math.log(one[key] / other[key]) if other.get(key) else math.inf
        for key in one
        if one[key] > 0
    ]
    return max(ratios)


def test_replacing_one_user_costs_that_users_own_messages() -> None:
    book = server(PureDP(1))
    claim(book, most_messages=2, count=3, users=range(3))
    for rows in itertools.product((0, 1), repeat=3):
        for user in range(3):
            other = tuple(1 - row if i == user else row for i, row in enumerate(rows))
            found = worst_loss(transcripts(rows, 0.5), transcripts(other, 0.5))
            assert found == pytest.approx(float(book.spent(user).epsilon))


def test_a_count_that_depends_on_the_row_would_be_seen() -> None:
    """What the certificate assumes away, and rightly: it has no finite loss."""
    rows, other = (1, 1, 1), (0, 1, 1)
    assert worst_loss(transcripts(rows, 0.5, True), transcripts(other, 0.5, True)) == math.inf


# Attestations -------------------------------------------------------------------------------------


def test_attestations_charge_the_most_messages_of_one_user() -> None:
    book = server()
    claim(book)
    assert book.attested
    assert book.spent() == PureDP(1)
    claim(book, LaplaceLoss("0.25"), users=range(50, 100), most_messages=4, count=200)
    assert (book.spent(0), book.spent(99)) == (PureDP(1), PureDP(2))
    with pytest.raises(InsufficientBudgetError, match=r"users 50\.\.59.*nothing was charged"):
        claim(book, users=range(40, 60), most_messages=1, count=1)
    claim(book, users=range(50), count=100)
    assert book.remaining().is_zero
    certificate = book.certificate()
    assert certificate.problems == []
    assert [(c.count, c.most_messages, c.users) for c in certificate.attestations] == [
        (150, 2, (0, 100)),
        (200, 4, (50, 100)),
        (100, 2, (0, 50)),
    ]


def test_pure_accounts_are_stated_without_a_delta(tmp_path: Path) -> None:
    path = tmp_path / "claims.ledger"
    book = server(PureDP("1.5"), Ledger.create(path))
    claim(book)
    for rounds in (1, 3):
        found = audit(path, delta=0, rounds=rounds)
        assert found.problems == []
        assert (found.guarantees[0].epsilon, found.guarantees[0].delta) == (1.5 * rounds, 0)
        assert (found.spent[0].epsilon, found.spent[0].method) == (1.0 * rounds, "pure")
    assert book.epsilon(0, of="spent") == 1
    assert book.epsilon(0) == 1.5
    for more in (ZCDP(1), GaussianDP(1), Renyi({2: "0.5"})):
        other = server(more)
        assert other.epsilon(0) == math.inf
        stated = other.certificate(0)
        assert stated.problems == []  # of the record; that ε is infinite says the guarantee
        assert stated.guarantees[0].epsilon == math.inf
        assert type(stated).model_validate_json(stated.model_dump_json()) == stated
    with pytest.raises(ValueError, match=r"delta = -0\.1"):
        audit(path, delta=-0.1)


@pytest.mark.parametrize(
    ("cap", "loss"),
    [
        (PureDP(1), RandomizedResponse("0.5")),
        (ZCDP("0.25"), GaussianLoss("0.25")),
        (GaussianDP.from_mu_squared("0.5"), GaussianLoss("0.25")),
        (Renyi({2: "0.5"}), GaussianLoss("0.25")),
    ],
)
def test_attestations_in_every_currency(cap: Currency, loss: Loss) -> None:
    book = server(cap)
    claim(book, loss)
    assert book.remaining().is_zero
    with pytest.raises(InsufficientBudgetError):
        claim(book, loss, most_messages=1, count=1)
    certificate = book.certificate()
    assert certificate.problems == []
    assert certificate.spent[0].epsilon <= certificate.guarantees[0].epsilon * (1 + 1e-9)


def test_an_epsilon_delta_budget_is_counted_by_the_server_too() -> None:
    book = server(ApproxDP(2, "1e-6"), currency=GaussianDP)
    claim(book, GaussianLoss("0.01"))
    (guarantee,) = book.certificate().guarantees
    assert guarantee.delta == 1e-6
    assert guarantee.epsilon == pytest.approx(2, rel=1e-6)


def test_more_messages_than_users_can_send_are_refused() -> None:
    book = server()
    claim(book, count=200)
    with pytest.raises(
        BudgetError, match="100 users with at most 2 messages each send at most 200"
    ):
        claim(book, count=201)
    with pytest.raises(BudgetError, match="count = 3: 1 users"):
        claim(book, users=range(7, 8), count=3)
    assert len(book.ledger.entries) == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"most_messages": 0}, ValueError, "most_messages = 0"),
        ({"count": 0}, ValueError, "count = 0"),
        ({"count": 1.5}, TypeError, "count = 1.5"),
        ({"by": ""}, ValueError, "by = ''"),
        ({"mechanism": ""}, ValueError, "mechanism = ''"),
        ({"users": range(50, 200)}, UsersError, "non-empty part"),
        ({"loss": GaussianLoss("0.1")}, CurrencyError, "a gaussian loss"),
    ],
)
def test_claims_that_make_no_sense_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    book = server()
    with pytest.raises(error, match=message):
        claim(book, **changes)
    assert len(book.ledger.entries) == 1


def test_claims_and_spends_do_not_mix_in_one_account() -> None:
    book = server()
    with pytest.raises(BudgetError, match="an accountant of attestations issues no tokens"):
        book.issue(MESSAGE, users=range(1), label="message")
    with pytest.raises(BudgetError, match="needs a local accountant with attested=True"):
        claim(device(users=USERS))
    central = CentralAccountant(PureDP(1), users=USERS, ledger=Ledger.memory())
    entry = book_entry(server())
    with pytest.raises(BudgetError, match="an attestation is no spend"):
        central._log.append(entry.model_copy(update={"accountant": central.id}))


def book_entry(book: LocalAccountant[Any]) -> AttestEntry:
    claim(book)
    entry = book.ledger.entries[-1]
    assert isinstance(entry, AttestEntry)
    return entry


def test_a_plan_binds_what_clients_may_attest() -> None:
    book = server()
    book.commit([Plan("round", MESSAGE, USERS, 3), Plan("other", LaplaceLoss("0.1"), range(50), 1)])
    claim(book, label="round")
    with pytest.raises(BudgetError, match="is not in the committed plan"):
        claim(book, label="round")
    others: list[dict[str, Any]] = [{"label": "x"}, {"label": "round", "users": range(50)}]
    for wrong in others:
        with pytest.raises(BudgetError, match="is not in the committed plan"):
            claim(book, most_messages=1, count=1, **wrong)
    with pytest.raises(BudgetError, match="does not fit plan item"):
        claim(book, PureLoss("0.6"), label="round", most_messages=1, count=1)
    claim(book, label="round", most_messages=1, count=100)
    certificate = book.certificate()
    assert certificate.problems == []
    assert certificate.guarantees[0].epsilon == pytest.approx(1.6, rel=1e-4)
    assert certificate.spent[0].epsilon == pytest.approx(1.5, rel=1e-4)


def test_a_claim_is_labelled_as_a_claim_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with server(ledger=Ledger.create(path)) as book:
        claim(book)
    found = audit(path)
    assert found.problems == []
    assert found.attested
    assert not found.holds
    (guarantee,), (spent,) = found.guarantees, found.spent
    assert guarantee.attested
    assert spent.attested
    assert any("ATTESTED, NOT VERIFIED" in line for line in guarantee.assumptions)
    assert not any("solver" in line for line in guarantee.assumptions)
    assert found.trusted_code == [
        "randomized-response: attested by app 4.2, build 77, not verified"
    ]
    assert found.spends == 0
    assert "on the users' devices" in found.noise
    assert verdict(found).startswith("ATTESTED, NOT VERIFIED")
    assert "attested, not verified" in guarantee_line(guarantee)
    text = certificate_markdown(found)
    assert (
        "| randomized-response | app 4.2, build 77 | 0..99 | 150 | 2 | pure epsilon 0.5 |" in text
    )
    console = Console(file=StringIO(), width=200)
    print_certificate(found, console, full=True)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "ATTESTED, NOT VERIFIED" in printed
    assert "app 4.2, build 77" in printed
    done = CliRunner().invoke(app, ["audit", str(path), "--json"])
    assert done.exit_code == 0
    told = json.loads(done.output)
    assert told["guarantees"][0]["attested"] is True
    assert told["attestations"][0]["loss"] == MESSAGE.to_dict()


def test_the_label_does_not_go_away_with_the_ledgers_tail() -> None:
    book = server()
    claim(book)
    records = book.ledger.records
    assert certify(records[:1]).guarantees == certify(records).guarantees
    assert certify(records[:1]).attested


def test_a_simulated_server_is_a_simulation() -> None:
    book = server(noise=NoiseSource.simulation(3))
    claim(book)
    certificate = book.certificate()
    assert certificate.simulation
    assert verdict(certificate).startswith("SIMULATION")


def test_attest_entries_go_through_json() -> None:
    entry = book_entry(server())
    body = json.loads(canonical(entry.body()))
    assert parse_entry(body) == entry
    assert body["entry"] == "attest"
    assert body["planned"] is None


def bodies_of_a_server() -> list[dict[str, Any]]:
    book = server()
    claim(book)
    claim(book, LaplaceLoss("0.25"), users=range(50), most_messages=1, count=7)
    book.close()
    return [copy.deepcopy(record.body) for record in book.ledger.records]


Rewrite = Callable[[list[dict[str, Any]]], Any]
LIES: dict[str, tuple[Rewrite, str]] = {
    "more messages": (lambda b: b[1].update(count=201), "send at most 200"),
    "more per user": (lambda b: b[1].update(most_messages=5), "budget exceeded"),
    "very many per user": (lambda b: b[1].update(most_messages=2**53 - 1), "budget exceeded"),
    "a larger loss": (lambda b: b[1]["loss"].update(epsilon="1.5"), "budget exceeded"),
    "an unknown loss": (lambda b: b[1]["loss"].update(kind="magic"), "'magic' is unknown"),
    "another adjacency": (lambda b: b[1].update(adjacency="zero-out"), "attestation for zero-out"),
    "a loss for another adjacency": (
        lambda b: b[1]["loss"].update(adjacency="zero-out"),
        "convert it explicitly",
    ),
    "strangers": (lambda b: b[1].update(users=[0, 200]), "must be a non-empty part"),
    "nobody attests": (lambda b: b[1].update(by=""), "'attest.by'"),
    "no messages": (lambda b: b[1].update(count=0), "'attest.count'"),
    "a plan that is none": (lambda b: b[1].update(planned=0), "names a plan"),
    "an account of spends": (lambda b: b[0].update(attested=False), "attested=True"),
    "a central account": (lambda b: b[0].update(trust="central"), "clients attest local privacy"),
    "add-remove": (lambda b: b[0].update(adjacency="add-remove"), "seen to take part"),
    "after the close": (lambda b: b.append(copy.deepcopy(b[1])), "no entry may follow"),
    "an unknown field": (lambda b: b[1].update(extra=1), "'attest.extra'"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_rewritten_attestation_that_does_not_add_up_has_a_problem(lie: str) -> None:
    bodies = bodies_of_a_server()
    rewrite, message = LIES[lie]
    rewrite(bodies)
    found = certify(chained(bodies))
    assert any(message in problem for problem in found.problems), found.problems
    assert not found.holds


def test_a_changed_field_of_an_attestation_is_found() -> None:
    book = server()
    claim(book)
    records = book.ledger.records
    for name, value in records[1].body.items():
        forged = Record.make(records[0].hash, 1, {**records[1].body, name: [value, "x"]})
        changed = [records[0], replace(forged, hash=records[1].hash)]
        assert any(p.startswith("entry 1: its hash") for p in certify(changed).problems)


@pytest.mark.parametrize("value", [None, True, -1, 2**53 - 1, "", "nan", [], {}, [3, 1], 1e308])
def test_nothing_in_an_attestation_can_crash_an_audit(value: Any) -> None:
    original = bodies_of_a_server()
    names = [(name,) for name in original[1]] + [("loss", name) for name in original[1]["loss"]]
    for path in names:
        bodies = copy.deepcopy(original)
        inside = bodies[1]
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        certify(chained(bodies))


# After a restart ----------------------------------------------------------------------------------


KILLED = """
    import os, signal, sys
    import numpy as np
    from privlearn.accountants import LocalAccountant
    from privlearn.losses.budgets import PureDP
    from privlearn.rows.domains import Ball
    from privlearn.ledger import Ledger
    from privlearn.losses import LaplaceLoss
    from privlearn.losses import PureLoss
    from privlearn.noise import LaplaceNoise
    from privlearn.rows import Rows
    from privlearn.contract.receipts import Receipt
    from privlearn.contract.spends import Spend

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    path, who = sys.argv[1:]
    if who == "server":
        book = LocalAccountant(
            PureDP(1), users=range(100), ledger=Ledger.create(path), attested=True
        )
        book.attest(
            PureLoss("0.5"), users=range(100), most_messages=1, count=9, by="app", mechanism="rr"
        )
        die()
    Receipt._released = die
    book = LocalAccountant(PureDP(1), users=range(1), ledger=Ledger.create(path))
    token = book.issue(LaplaceLoss("0.2"), users=range(1), label="message")
    with token.spend(Spend("laplace", Ball(1.0, 1), LaplaceNoise(10.0), arithmetic="sum")) as it:
        it.release_sum(Rows.seal(np.ones((1, 1)), users=range(1)))
"""


def killed(path: Path, who: str) -> None:
    script = textwrap.dedent(KILLED)
    done = subprocess.run([sys.executable, "-c", script, str(path), who], env=os.environ)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_server_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    killed(path, "server")
    book: LocalAccountant[PureDP] = LocalAccountant.resume(path)
    assert book.attested
    assert book.spent() == PureDP("0.5")
    claim(book, most_messages=1, count=9)
    with pytest.raises(InsufficientBudgetError):
        claim(book, most_messages=1, count=9)
    with pytest.raises(BudgetError, match="issues no tokens"):
        book.issue(MESSAGE, users=range(1), label="message")
    assert audit(path).problems == []
    book.close()
    with pytest.raises(LedgerClosedError):
        claim(book)
    with pytest.raises(LedgerError, match="was closed"):
        LocalAccountant.resume(path)


def test_a_killed_device_has_lost_its_message_and_paid_for_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    killed(path, "device")
    book: LocalAccountant[PureDP] = LocalAccountant.resume(path)
    assert not book.attested
    assert book.spent() == PureDP("0.2")
    assert audit(path).lost == 1
    send(book, LAPLACE)
    assert audit(path).problems == []
    assert len(read_records(path)) == 1 + 3 + 3


def test_the_first_server_writes_no_more_after_it_was_resumed(tmp_path: Path) -> None:
    book = server(ledger=Ledger.memory())
    again: LocalAccountant[PureDP] = LocalAccountant.resume(book.ledger)
    claim(again)
    with pytest.raises(LedgerBusyError, match="only the last one may write"):
        claim(book)


def test_a_loss_of_its_own_does_not_hide_that_outputs_of_each_are_taken_on_trust() -> None:
    phone = device(GaussianDP(9), users=range(3))
    spend = Spend(
        "my-report",
        Ball(1.0, 1),
        GaussianNoise(1.0),
        arithmetic="each",
        own_loss=GaussianLoss("4"),
    )
    token = phone.issue(spend.loss(Adjacency.REPLACE_ONE), users=range(3), label="message")
    with token.spend(spend) as receipt:
        opened = receipt.open(Rows.seal(np.ones((3, 1)), users=range(3)))
        receipt.release(opened + receipt.draw((3, 1)))
    notes = phone.certificate().trusted_code
    assert any("own noise alone is its code's word" in note for note in notes)
    assert any("its loss, or its domain's or noise's" in note for note in notes)
