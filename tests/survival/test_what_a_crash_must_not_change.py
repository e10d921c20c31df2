"""Small mistakes around a restart, each of which only one of these tests finds."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, resumed

from privlearn.accountants import CentralAccountant, streams
from privlearn.accountants.state import AccountState, Checked
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError, LedgerError, LedgerHeadError, RowStoreError
from privlearn.learners import DPTOFW
from privlearn.learners.kept_rows import KeptRows
from privlearn.ledger import Ledger
from privlearn.ledger.entries import SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BatchedPrefixSum, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.rows import PartialSum, Rows, RowStore
from privlearn.rows.domains import Ball

USERS = 60
DOMAIN = Ball(1.0, 2)
MEAN = NoisySum(DOMAIN, GaussianNoise(4.0))


def rows(users: range) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 2), 0.5), users=users)


def kinds(account: Any) -> list[str]:
    return [entry.entry for entry in account.ledger.entries]


@pytest.mark.parametrize("deaths", [(20, 40), (40, 20)])
def test_of_several_runs_that_ended_the_rest_is_the_longest(
    deaths: tuple[int, int], tmp_path: Path
) -> None:
    """Whichever of them ended last; then come those that are shorter."""
    path, everybody = tmp_path / "ledger", range(USERS)
    sums = PrefixSum.calibrated(DOMAIN, ZCDP("1/4"), horizon=USERS)
    account = begun(path, ZCDP(1), USERS)
    account.commit([Plan("sums", sums.loss(), everybody, 2)])
    for stop in deaths:
        stream = sums.open(account.issue(sums.loss(), users=everybody, label="sums"))
        stream.append(rows(range(stop)))
    die(account)
    account = resumed(path)
    for stop in sorted(deaths):
        left = account.rest("sums", everybody)
        assert left == range(stop, USERS)
        last = sums.for_last(left)
        last.open(account.issue(last.loss(), users=left, label="sums"))
    assert account.rest("sums", everybody) is None
    account.close()


@pytest.mark.parametrize("partial", [False, True])
def test_a_stream_says_how_far_it_comes_before_it_opens_rows(
    partial: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = BatchedPrefixSum.calibrated(DOMAIN, ZCDP(1), sizes=[USERS])
    account = begun(tmp_path / "ledger", ZCDP(1), USERS)
    account.commit(sums=sums)
    stream = account.open("sums")
    reached: list[int] = []

    def seen() -> None:
        assert not account.ledger._disk.pending
        reached.append(
            max((e.stop for e in account.ledger.entries if e.entry == "reach"), default=0)
        )

    clipping = type(stream._receipt._clipping)
    contributions = clipping.contributions

    def opened_rows(self: Any, rows: Rows[Any]) -> Any:
        seen()
        return contributions(self, rows)

    opened = PartialSum._opened

    def opened_partial(total: PartialSum) -> Any:
        seen()
        return opened(total)

    monkeypatch.setattr(PartialSum, "_opened", staticmethod(opened_partial))
    totals = [sums.partial(rows(part)) for part in (range(20), range(20, 45))]
    monkeypatch.setattr(clipping, "contributions", opened_rows)
    for part, total in zip((range(20), range(20, 45)), totals, strict=True):
        before = len(reached)
        if partial:
            stream.append_partial(total)
        else:
            stream.append(rows(part))
        assert reached[before:]
        assert min(reached[before:]) >= part.stop
    account.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError, "uncovered"),
        (SystemExit, "uncovered"),
        (GeneratorExit, "uncovered"),
        (KeyboardInterrupt, "lost"),
    ],
)
@pytest.mark.parametrize("interactive", [False, True])
def test_only_an_interrupt_comes_from_outside(
    error: type[BaseException], outcome: str, interactive: bool, tmp_path: Path
) -> None:
    """Records can be so large that the memory is full, or end a program that reads them."""
    account = begun(tmp_path / "ledger", ZCDP(1), USERS)
    spend = Spend("mine", DOMAIN, GaussianNoise(4.0), arithmetic="own", interactive=interactive)
    token = account.issue(ZCDP("1/2"), users=range(USERS), label="mine")
    receipt = token.spend(spend)

    def failing() -> None:
        with receipt.round() if interactive else receipt:
            receipt.open(rows(range(20)))
            raise error

    with pytest.raises(error):
        failing()
    account.ledger.head  # noqa: B018 - brings the last entry to disk
    end = account.ledger.entries[-1]
    assert (end.entry, end.outcome) == ("retire", outcome)
    account.close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Keys that were drawn, each with the number of spends that were on disk by then."""
    found: list[tuple[bytes, int]] = []
    ledgers: list[Ledger] = []
    draw, made = secrets.token_bytes, Ledger.create

    def created(*args: Any, **more: Any) -> Ledger:
        ledgers.append(made(*args, **more))
        return ledgers[-1]

    def keyed(n: int | None = None) -> bytes:
        key = draw(n)
        if n == 32:
            ledger = ledgers[-1]
            assert ledger._disk is not None
            assert not ledger._disk.pending
            found.append((key, sum(isinstance(e, SpendEntry) for e in ledger.entries)))
        return key

    monkeypatch.setattr(Ledger, "create", created)
    monkeypatch.setattr(secrets, "token_bytes", keyed)
    return found


def test_every_spend_has_a_key_that_was_drawn_when_it_stood_on_disk(
    drawn: list[tuple[bytes, int]], tmp_path: Path
) -> None:
    """So a machine image that is restored before a spend holds none of its noise."""
    ledger = Ledger.create(tmp_path / "ledger")
    account = CentralAccountant(ZCDP(1), users=range(USERS), ledger=ledger)
    for start in (0, 20, 40):
        users = range(start, start + 20)
        token = account.issue(MEAN.loss(), users=users, label="mean")
        MEAN.release(rows(users), token)
    assert [spends for _, spends in drawn] == [1, 2, 3]
    assert len({key for key, _ in drawn}) == 3
    account.close()


def released_again(account: Any, mechanism: NoisySum[Any]) -> Any:
    users = range(USERS)
    with account.replaying():
        token = account.issue(MEAN.loss(), users=users, label="mean")
        return mechanism.release(Rows.null(users), token).value


def test_a_value_is_handed_out_again_to_the_mechanism_that_released_it_only(
    tmp_path: Path,
) -> None:
    """Another one would take it for its own: for a value with less noise, say."""
    path, users = tmp_path / "ledger", range(USERS)
    plan = [Plan("mean", MEAN.loss(), users)]
    for other in (NoisySum(DOMAIN, GaussianNoise(5.0)), MEAN):
        if other is not MEAN:
            account = begun(path, ZCDP(1), USERS)
            account.record_learner("Mine", {}, {})
            account.commit(plan)
            token = account.issue(MEAN.loss(), users=users, label="mean")
            value = MEAN.release(rows(users), token).value
        die(account)
        account = resumed(path)
        account.commit(plan)
        if other is MEAN:
            assert np.array_equal(released_again(account, other), value)
        else:
            with pytest.raises(LedgerError, match="was spent with"):
                released_again(account, other)
    account.close()


@pytest.mark.parametrize("behind", [0, 1])
def test_a_store_that_lacks_one_user_is_older_than_its_ledger(behind: int, tmp_path: Path) -> None:
    account: Any = SimpleNamespace(id="a", users=range(USERS), people=None)
    with RowStore.create(tmp_path / "rows", bytes(32)) as store:
        KeptRows(store, account, ()).begin()
        store.keep(rows(range(20)))
        kept = KeptRows(store, account, ())
        kept.begin()
        if behind:
            with pytest.raises(RowStoreError, match=r"up to 20 were learned, .* before user 20"):
                kept.check(20 + behind)
        else:
            kept.check(20)


# Ledgers ------------------------------------------------------------------------------------------


def test_another_ledger_of_as_many_entries_is_told_by_its_head(tmp_path: Path) -> None:
    """A number of entries says nothing of which they are."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        account = begun(tmp_path / folder / "ledger", ZCDP(1), USERS)
        account.commit(mean=MEAN)
        account.release("mean", rows(range(USERS)))
        account.ledger.close()
    (tmp_path / "there" / "ledger").replace(tmp_path / "here" / "ledger")
    with pytest.raises(LedgerHeadError, match=r"not the head .* that ledger.head keeps"):
        resumed(tmp_path / "here" / "ledger")


def test_entries_that_chain_and_do_not_check_are_not_gone_on_with(tmp_path: Path) -> None:
    """Somebody's program wrote a spend of more than its token holds."""
    path, users = tmp_path / "ledger", range(USERS)
    account = begun(path, ZCDP(1), USERS)
    account.issue(ZCDP("0.001"), users=users, label="mean")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AccountState, "check", lambda self, entry, minute=None: Checked(entry))
        token = account.issue(ZCDP(9), users=users, label="mean")  # above the cap
        MEAN.release(rows(users), token)
    account.ledger.close()
    with pytest.raises(BudgetError):
        resumed(path)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_goes_while_it_is_synced_holds_no_spend(how: str, tmp_path: Path) -> None:
    """The entry is then in a file that nobody finds."""
    path = tmp_path / "ledger"
    account = begun(path, ZCDP(1), USERS)
    token = account.issue(MEAN.loss(), users=range(USERS), label="mean")
    settle = account.ledger._disk.settle

    def settled(written: Any) -> None:
        settle(written)
        data = path.read_bytes()
        path.unlink()
        if how == "replaced":
            path.write_bytes(data)

    account.ledger._disk.settle = settled
    spend = Spend("mine", DOMAIN, GaussianNoise(4.0), arithmetic="own")
    with pytest.raises(LedgerError, match=r"was moved, deleted or replaced"):
        token.spend(spend)


# Learners -----------------------------------------------------------------------------------------


def test_a_stream_that_begins_within_a_block_is_aimed_at_what_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of that block, with rows alike and no noise, the running sum is the gradient."""
    monkeypatch.setattr(streams, "SEGMENT", 4)
    path, users = tmp_path / "ledger", 400
    x, y = np.tile([0.3, -0.2, 0.4], (users, 1)), np.full(users, 0.7)

    def alike(learner: Any, stop: int) -> None:
        part = slice(learner.clock_, stop)
        learner.partial_fit(x[part], y[part])

    account = begun(path, ZCDP(10**9), users)
    learner: Any = DPTOFW(3, method="plain", clip=5.0).start(account)
    alike(learner, 300)
    while learner._strategy.next_change() - learner.clock_ < 12:
        alike(learner, learner.clock_ + 1)
    for _ in range(2):  # one by one, so that the stream says little more than it takes
        alike(learner, learner.clock_ + 1)
    die(account)
    account = resumed(path)
    learner = DPTOFW.resume(account)
    strategy = learner._strategy
    end, begins = strategy.next_change(), learner.clock_
    assert 4 <= end - begins < strategy._size
    alike(learner, end - 1)
    stream, theta = strategy.streams()[0], strategy._aimed.theta
    alike(learner, end)
    assert stream.first == begins
    found = stream._before + np.asarray(stream._total).reshape(-1)
    gradient = (x[0] @ theta - y[0]) * x[0]
    np.testing.assert_allclose(found, stream.learned * gradient, atol=0.02)
    account.close()
