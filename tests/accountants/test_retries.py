"""A release that is asked for again under its nonce: the same value, paid for once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, dying_at, resumed
from shared_ledgers import MemoryStore, Place

from privlearn.accountants import CentralAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.retries import FirstTry, nonce_after
from privlearn.accountants.serving import default_socket, owning_ledger
from privlearn.contract.protocols import Plan
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.tokens import Token
from privlearn.errors import (
    InsufficientBudgetError,
    NonceBusyError,
    NonceReusedError,
    SpendLostError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisyReport, NoisySum, PrefixSum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(20)
MEAN = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.25"))
NONCE = "0123456789abcdef" * 2


def rows(value: float = 0.5, users: range = USERS) -> Rows[np.ndarray]:
    return Rows.seal(np.full((len(users), 2), value), users=users)


def in_memory() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))


def spends(accountant: Any) -> int:
    return sum(isinstance(entry, SpendEntry) for entry in accountant.ledger.entries)


def once(accountant: Any, nonce: str = NONCE, **other: Any) -> Released[Any]:
    named = {"mechanism": MEAN, "rows": rows(), "users": USERS, "label": "mean", **other}
    found: Released[Any] = accountant.release_once(nonce, **named)
    return found


@pytest.mark.parametrize("in_a_file", [False, True])
def test_the_same_nonce_returns_the_value_that_left_and_charges_nothing(
    tmp_path: Path, in_a_file: bool
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS)) if in_a_file else in_memory()
    first = once(accountant)
    head, spent = accountant.ledger.head, accountant.spent()
    again = once(accountant, rows=rows(0.9))
    assert np.array_equal(again.value, first.value)
    assert (again.paid_by, again.digest) == (first.paid_by, first.digest)
    assert (accountant.ledger.head, accountant.spent()) == (head, spent)
    other = once(accountant, secrets.token_hex(16))
    assert not np.array_equal(other.value, first.value)
    assert spends(accountant) == 2
    assert certify(accountant.ledger.records).problems == []


def test_a_committed_mechanism_is_asked_again_by_its_keyword(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    accountant.commit(mean=MEAN)
    first = accountant.release("mean", rows(), nonce=NONCE)
    assert np.array_equal(accountant.release("mean", rows(), nonce=NONCE).value, first.value)
    die(accountant)
    accountant = resumed(tmp_path / "l.db")
    accountant.commit(mean=MEAN)
    again = accountant.release("mean", rows(), nonce=NONCE)
    assert np.array_equal(again.value, first.value)
    assert spends(accountant) == 1
    assert accountant.certificate().problems == []


def test_what_was_spent_and_left_nothing_is_lost_and_a_new_nonce_pays_anew(
    tmp_path: Path,
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    token = accountant.issue(MEAN.loss(), users=USERS, label="mean", nonce=NONCE)
    token.spend(MEAN.spend())
    with pytest.raises(NonceBusyError, match="not done"):
        once(accountant)
    die(accountant)
    accountant = resumed(tmp_path / "l.db")
    before = accountant.ledger.head
    with pytest.raises(SpendLostError, match=r"ended lost.*stays charged.*a new nonce pays anew"):
        once(accountant)
    assert accountant.ledger.head == before
    assert accountant.spent() == ZCDP("0.25")
    once(accountant, secrets.token_hex(16))
    assert accountant.spent() == ZCDP("0.5")


def test_a_first_try_that_was_never_spent_is_free_and_the_retry_goes_on(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    accountant.issue(MEAN.loss(), users=USERS, label="mean", nonce=NONCE)
    die(accountant)
    for _ in range(2):  # and again
        accountant = resumed(tmp_path / "l.db")
        accountant.issue(MEAN.loss(), users=USERS, label="other")
        die(accountant)
    accountant = resumed(tmp_path / "l.db")
    with pytest.raises(UsersError):  # before it is spent
        once(accountant, rows=rows(users=range(30)))
    first = once(accountant)
    assert np.array_equal(once(accountant).value, first.value)
    assert (spends(accountant), accountant.spent()) == (1, ZCDP("0.25"))
    issued = next(accountant.ledger.since(nonce_after(nonce_after(NONCE))))
    assert isinstance(issued, IssueEntry)
    assert issued.token == first.paid_by
    assert accountant.certificate().problems == []


def other_parameters() -> dict[str, dict[str, Any]]:
    return {
        "label": {"label": "other"},
        "users": {"users": range(10), "rows": rows(users=range(10))},
        "loss": {"mechanism": NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.125"))},
        "domain": {"mechanism": NoisySum.calibrated(Ball(1.0, 3), ZCDP("0.25"))},
        "mechanism": {"mechanism": NoisySum(MEAN.domain, MEAN.noise, name="other-sum")},
    }


@pytest.mark.parametrize("what", other_parameters())
def test_a_nonce_used_for_another_spend_is_refused_before_anything_is_spent(what: str) -> None:
    accountant = in_memory()
    first = once(accountant)
    head = accountant.ledger.head
    with pytest.raises(NonceReusedError, match=rf"nonce {NONCE} .*nothing was spent"):
        once(accountant, **other_parameters()[what])
    assert accountant.ledger.head == head
    assert np.array_equal(once(accountant).value, first.value)


def test_a_token_that_was_never_spent_keeps_its_nonce_for_its_price() -> None:
    accountant = in_memory()
    accountant.issue(MEAN.loss(), users=USERS, label="mean", nonce=NONCE).retire()
    dearer = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5"))
    with pytest.raises(NonceReusedError, match="a token with budget"):
        once(accountant, mechanism=dearer)
    assert spends(accountant) == 0
    once(accountant)  # the same goes on
    assert spends(accountant) == 1


def test_a_token_that_may_fail_keeps_its_nonce_for_what_may() -> None:
    accountant = CentralAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(1), failure="1/1000"
    )
    accountant.issue(
        ZCDP("0.25"), users=USERS, label="mean", failure="1/2000", nonce=NONCE
    ).retire()
    with pytest.raises(NonceReusedError, match="a token with failure"):
        once(accountant)
    assert spends(accountant) == 0


def test_what_other_tokens_did_between_is_not_taken_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their spends, published values and ends, before its spend and behind it."""
    accountant = begun(tmp_path / "l.db", ZCDP(10), len(USERS))
    other = NoisySum(Ball(2.0, 2), MEAN.noise, name="other-sum")
    sums = PrefixSum(Ball(1.0, 2), BinaryTree(len(USERS)), 10.0)
    stream = sums.open(accountant.issue(sums.loss(), users=USERS, label="sums"))
    parts, draw = iter([range(3), range(3, 7)]), Receipt._noise

    def others() -> None:
        other.release(rows(), accountant.issue(other.loss(), users=USERS, label="other"))
        stream.append(rows(users=next(parts)))

    def drawn(receipt: Receipt, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        others()
        return draw(receipt, *arguments, **named)

    def before_its_spend() -> None:
        others()
        monkeypatch.setattr(Receipt, "_noise", drawn)

    first = once(accountant, mechanism=Slow(before_its_spend))
    kinds = [entry.entry for entry in accountant.ledger.entries]
    assert kinds.count("publish") == 2
    head = accountant.ledger.head
    assert np.array_equal(once(accountant).value, first.value)
    assert accountant.ledger.head == head


def test_all_values_that_left_are_read_again_with_their_users(tmp_path: Path) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(10), len(USERS))
    sums = PrefixSum(Ball(1.0, 2), BinaryTree(len(USERS)), 10.0)
    token = accountant.issue(sums.loss(), users=USERS, label="sums", nonce=NONCE)
    with sums.open(token) as stream:
        left = [stream.append(rows(users=users)).value for users in (range(3), range(3, 7))]
    issue, *others = accountant.ledger.since(NONCE)
    assert isinstance(issue, IssueEntry)
    found = FirstTry.read(NONCE, issue, iter(others), accountant.ledger)
    assert [upto for _, upto in found.values] == [3, 7]
    assert all(map(np.array_equal, (value for value, _ in found.values), left))
    digest = next(entry.digest for entry in others if entry.entry == "publish")
    (ended,) = (entry for entry in others if entry.entry == "retire")
    last = ended.model_copy(update={"outcome": "released", "value": {"digest": digest, "upto": 3}})
    found = FirstTry.read(NONCE, issue, iter([last]), accountant.ledger)
    assert [upto for _, upto in found.values] == [3]


@pytest.mark.parametrize(
    ("name", "value"), [("parameters", {"another": 1}), ("derived", False), ("gain", 2.0)]
)
def test_a_spend_is_the_same_only_with_all_that_it_states(name: str, value: object) -> None:
    accountant = in_memory()
    once(accountant)
    issue, spend = accountant.ledger.entries[1:3]
    assert isinstance(issue, IssueEntry)
    assert isinstance(spend, SpendEntry)
    first = FirstTry(NONCE, issue, spend)
    assert first.spent(spend.model_copy()) is first
    with pytest.raises(NonceReusedError, match=f"a spend with {name}"):
        first.spent(spend.model_copy(update={name: value}))


def test_a_nonce_of_another_accountant_of_the_ledger_is_refused() -> None:
    book = Ledger.memory()
    one = CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1), ledger=book)
    two = CentralAccountant(
        ZCDP(1), users=USERS, noise=NoiseSource.simulation(2), ledger=book, shared=True
    )
    once(one)
    with pytest.raises(NonceReusedError, match="accountant"):
        once(two)
    assert spends(two) == 1


def test_a_token_is_issued_once_under_a_nonce() -> None:
    accountant = in_memory()
    accountant.issue(ZCDP("0.1"), users=USERS, label="a", nonce=NONCE)
    with pytest.raises(NonceReusedError):
        accountant.issue(ZCDP("0.1"), users=USERS, label="a", nonce=NONCE)
    with pytest.raises(ValueError, match="32 lower-case"):
        accountant.issue(ZCDP("0.1"), users=USERS, label="a", nonce="today")
    assert accountant.spent() == ZCDP("0.1")


def test_a_nonce_does_not_go_round_the_cap_or_the_plan() -> None:
    accountant = in_memory()
    accountant.commit([Plan("mean", MEAN.loss(), USERS)])
    first = once(accountant)
    assert np.array_equal(once(accountant).value, first.value)
    with pytest.raises(ValueError, match="no longer"):
        once(accountant, secrets.token_hex(16))
    small = CentralAccountant(ZCDP("0.3"), users=USERS, noise=NoiseSource.simulation(1))
    once(small)
    with pytest.raises(InsufficientBudgetError):
        once(small, secrets.token_hex(16))


class Slow:
    """As `MEAN`, with something to be done between the token and the spend."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def loss(self) -> Any:
        return MEAN.loss()

    def release(self, rows: Rows[Any], token: Token[Any]) -> Released[Any]:
        self._before()
        return MEAN.release(rows, token)


def test_of_threads_with_one_nonce_exactly_one_pays() -> None:
    accountant = in_memory()
    n = 8
    together, found = threading.Barrier(n), list[Any]()

    def ask() -> None:
        together.wait()
        try:
            found.append(once(accountant))
        except NonceBusyError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [each.value for each in found if isinstance(each, Released)]
    assert len(found) == n
    assert len({value.tobytes() for value in values}) == 1
    assert (spends(accountant), accountant.spent()) == (1, ZCDP("0.25"))


def test_who_asks_while_the_first_try_is_out_is_told_to_ask_later() -> None:
    accountant = in_memory()
    errors = []

    def meanwhile() -> None:
        with pytest.raises(NonceBusyError) as error:
            once(accountant)
        errors.append(error)

    first = once(accountant, mechanism=Slow(meanwhile))
    assert len(errors) == 1
    assert np.array_equal(once(accountant).value, first.value)
    assert spends(accountant) == 1


def test_a_mechanism_that_fails_before_it_spends_leaves_the_nonce_free() -> None:
    accountant = in_memory()

    def fail() -> None:
        raise OSError("no connection")

    for _ in range(2):
        with pytest.raises(OSError, match="no connection"):
            once(accountant, mechanism=Slow(fail))
    first = once(accountant)
    assert np.array_equal(once(accountant).value, first.value)
    assert accountant.spent() == ZCDP("0.25")


def test_reports_of_devices_are_asked_for_again() -> None:
    report = NoisyReport.calibrated(Ball(1.0, 2), ZCDP("0.25"))
    accountant = LocalAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(1))
    first = once(accountant, mechanism=report)
    again = once(accountant, mechanism=report, rows=rows(-0.5))
    assert first.value.shape == (len(USERS), 2)
    assert np.array_equal(again.value, first.value)
    assert accountant.spent() == ZCDP("0.25")


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("entry", range(1, 5))
def test_wherever_the_first_try_dies_nothing_is_paid_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int, written: bool
) -> None:
    accountant = begun(tmp_path / "l.db", ZCDP(1), len(USERS))
    values: list[Any] = []
    with dying_at(monkeypatch, entry, written=written):
        values.append(once(accountant).value)
        once(accountant, secrets.token_hex(16))
    die(accountant)

    accountant = resumed(tmp_path / "l.db", seed=9)
    spent = accountant.spent()
    lost = (entry, written) in [(2, True), (3, False)]
    if lost:
        with pytest.raises(SpendLostError):
            once(accountant)
        assert accountant.spent() == spent == ZCDP("0.25")
        return
    found = once(accountant).value
    assert accountant.spent() == ZCDP("0.25")
    if values:
        assert np.array_equal(found, values[0])
    if (entry, written) >= (3, True):
        assert accountant.spent() == spent, "its value stood in the ledger"
    accountant.close()
    certificate = audit(tmp_path / "l.db")
    assert certificate.problems == []
    assert certificate.spends == 1


def shared(place: Place, *, join: bool) -> Any:
    if join:
        book = Ledger.over(MemoryStore(place))
        return CentralAccountant.join(book, noise=NoiseSource.simulation(2))
    book = Ledger.over(place.open())
    return CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=NoiseSource.simulation(1))


def test_of_processes_with_one_nonce_exactly_one_pays() -> None:
    place = Place()
    one, two = shared(place, join=False), shared(place, join=True)
    errors = []

    def meanwhile() -> None:
        with pytest.raises(NonceBusyError) as error:
            once(two)
        errors.append(error)

    first = once(one, mechanism=Slow(meanwhile))
    assert len(errors) == 1
    assert np.array_equal(once(two).value, first.value)
    assert np.array_equal(once(shared(place, join=True)).value, first.value)
    assert (spends(one), two.spent()) == (1, ZCDP("0.25"))
    with pytest.raises(NonceReusedError):
        once(two, label="other")


def test_what_a_process_was_not_told_yet_is_not_read_for_its_nonces() -> None:
    place = Place()
    one, two = shared(place, join=False), shared(place, join=True)
    once(one)
    known = len(list(one.ledger.since(NONCE)))
    once(two, secrets.token_hex(16))
    assert len(list(one.ledger.since(NONCE))) == known == 3


def test_of_processes_that_look_at_the_same_time_the_slower_one_finds_the_first_try() -> None:
    place = Place()
    one, two = shared(place, join=False), shared(place, join=True)
    look = two._first_try
    values: list[Any] = []

    def look_too_early(*asked: Any) -> Any:
        found = look(*asked)
        if not values:  # between the look and the issue
            values.append(once(one).value)
        return found

    two._first_try = look_too_early
    assert np.array_equal(once(two).value, values[0])
    assert spends(one) == 1


def test_what_a_process_that_died_spent_under_a_nonce_is_lost_to_the_others() -> None:
    place = Place()
    one, two = shared(place, join=False), shared(place, join=True)
    token = one.issue(MEAN.loss(), users=USERS, label="mean", nonce=NONCE)
    other = secrets.token_hex(16)
    one.issue(MEAN.loss(), users=USERS, label="mean", nonce=other)
    token.spend(MEAN.spend())
    one.ledger.close()
    with pytest.raises(SpendLostError):
        once(two)
    once(two, other)
    assert two.spent() == ZCDP("0.5")


def test_over_an_owner_the_value_comes_back_also_after_it_was_restarted(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    Ledger.create(path).close()
    values = []
    with owning_ledger(path):
        book = Ledger.connect(default_socket(path))
        one = CentralAccountant(ZCDP(1), users=USERS, ledger=book, noise=NoiseSource.simulation(1))
        values.append(once(one).value)
        book = Ledger.connect(default_socket(path))
        two = CentralAccountant[ZCDP].join(book, noise=NoiseSource.simulation(2))
        values.append(once(two).value)
        two.ledger.close()
        one.ledger.close()
    with owning_ledger(path):
        book = Ledger.connect(default_socket(path))
        again = CentralAccountant[ZCDP].join(book, noise=NoiseSource.simulation(3))
        values.append(once(again).value)
        assert again.spent() == ZCDP("0.25")
        again.ledger.close()
    assert len({value.tobytes() for value in values}) == 1
    assert audit(path).spends == 1
