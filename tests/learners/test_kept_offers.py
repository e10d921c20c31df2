"""Offers with files: what was answered is there after a crash, in whatever order it came.

Noise is set to zero here, in the receipts, so that what a run learned can be compared number by
number with a run that was not interrupted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import JointAccountant, audit
from privlearn.contract.receipts import Receipt
from privlearn.errors import OfferError, RowStoreError
from privlearn.learners import DPHDB, DPMNL, AsyncOffers, Offers, OnePassNewtonMNL
from privlearn.learners.kept_rows import KeptRows, Recovered
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.people import People
from privlearn.rows import Rows, RowStore
from privlearn.storage.held_file import HeldFile
from privlearn.values.participation import Participation

KEY = bytes(range(32))
USERS, DIM, ITEMS = 50, 3, 4
FEATURES = np.random.default_rng(0).normal(size=(USERS, ITEMS, DIM)) / 2
RULE = Participation(2, pooled=True)


@pytest.fixture(autouse=True)
def _noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receipt, "_integers", lambda self, shape, grid: np.zeros(shape, np.int64))


def newton() -> OnePassNewtonMNL:
    return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2, first_batch=20, random_state=3)


def dpmnl() -> DPMNL:
    return DPMNL(n_items=ITEMS, dim=DIM, max_items=2, initial_rounds=20, max_updates=2)


def hdb() -> DPHDB:
    return DPHDB(n_arms=3, dim=DIM, first_epoch=20)


def person(user: int) -> str:
    return f"person {user * 7 % 45}"


class Shop:
    """Offers over files, in processes that end."""

    def __init__(
        self, folder: Path, make: Callable[[], Any] = newton, *, rule: bool = False, wait: int = 0
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.make, self.wait, self.ruled = folder, make, wait, rule
        people = People.create(folder / "people", RULE) if rule else None
        account: JointAccountant[Any] = JointAccountant(
            ZCDP(50), users=range(USERS), ledger=Ledger.create(folder / "ledger"), people=people
        )
        self._begin(account, RowStore.create(folder / "rows", KEY), people)

    def _begin(self, account: Any, store: RowStore, people: People | None) -> None:
        self.account, self.store, self.people = account, store, people
        self.learner = self.make().start(account, store=store)
        self.offers = Offers(self.learner, wait=self.wait)
        self.ids: dict[int, str] = {}

    def again(self) -> None:
        """The process is gone, the files are as it left them; another one goes on."""
        self.end()
        people = People.open(self.folder / "people") if self.ruled else None
        account: JointAccountant[Any] = JointAccountant.resume(
            self.folder / "ledger", people=people
        )
        self._begin(account, RowStore.open(self.folder / "rows", KEY), people)

    def end(self) -> None:
        self.account.ledger._disk._end()
        self.store.close()
        if self.people is not None:
            self.people.close()

    def select(self, *users: int) -> None:
        for user in users:
            who = {"person": person(user)} if self.ruled else {}
            data = FEATURES[user, 0] if self.make is hdb else FEATURES[user]
            self.ids[user] = self.offers.select(data, **who).id
            assert self.offers.clock_ == user + 1

    def observe(self, *users: int) -> None:
        for user in users:
            self.offers.observe(self.ids[user], user % ITEMS)

    def finish(self, first: int) -> None:
        """The rest of the users, each of whom answers; and what was open."""
        for user in range(first, USERS):
            self.select(user)
            self.observe(user)
        while self.offers._open.first < USERS:
            self.offers.close_batch()


@pytest.mark.parametrize(("make", "rule"), [(newton, False), (newton, True), (hdb, False)])
def test_answers_in_any_order_come_back_after_a_crash(
    tmp_path: Path, make: Callable[[], Any], rule: bool
) -> None:
    whole, parts = (Shop(tmp_path / name, make, rule=rule) for name in ("whole", "parts"))
    order = [9, 2, 11, 0, 5, 10, 3]  # of 13 offers; the others never answer
    for shop in (whole, parts):
        shop.select(*range(13))
        shop.observe(*order)
    old = parts.ids[4]
    parts.again()
    assert parts.offers.clock_ == 13  # as many as were served, whoever answered
    assert parts.learner.recovered_ == Recovered(
        rows=(range(0, 1), range(2, 4), range(5, 6), range(9, 12)),
        null=(range(1, 2), range(4, 5), range(6, 9), range(12, 13)),
    )
    with pytest.raises(OfferError, match="of a process before a restart, with which all open"):
        parts.offers.observe(old, None)
    for shop in (whole, parts):
        shop.select(*range(13, 18))
        shop.observe(15, 13)
    parts.again()
    for shop in (whole, parts):
        shop.finish(18)
    assert whole.learner.public_state() == parts.learner.public_state()
    for shop in (whole, parts):
        shop.account.close()
        found = audit(shop.folder / "ledger")
        assert (list(found.problems), found.lost) == ([], 0)
        assert shop.store.within(range(USERS)) == []  # what is not needed is not kept
        shop.end()


def test_fits_have_the_answers_of_open_users_from_before_the_crash(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop", dpmnl)
    shop.select(*range(14))
    shop.observe(13, 2, 7)
    shop.again()
    shop.select(14, 15)
    shop.observe(15)
    shop.offers.close_batch()
    chunks = Rows._unseal(Rows.concat(shop.learner._answers))
    real = np.concatenate([chunk.valid for chunk in chunks])
    assert np.flatnonzero(real).tolist() == [2, 7, 13, 15]
    assert len(real) == 20
    shop.end()


def test_where_a_restart_goes_on_follows_from_who_was_served_alone(tmp_path: Path) -> None:
    for number, (rule, answered) in enumerate(
        [(False, ()), (False, (6,)), (True, ()), (True, (6,))]
    ):
        shop = Shop(tmp_path / str(number), rule=rule)
        shop.select(*range(7))
        shop.observe(*answered)
        shop.again()
        assert shop.offers.clock_ == 7
        shop.end()


class OwnNewton(OnePassNewtonMNL):  # type: ignore[misc]
    """Somebody's own, so that the ledger names it."""


def own_newton() -> OwnNewton:
    return OwnNewton(n_items=ITEMS, dim=DIM, max_items=2, first_batch=20, random_state=3)


@pytest.mark.parametrize("rule", [False, True])
def test_what_the_ledger_names_after_a_crash_tells_not_whether_anybody_answered(
    tmp_path: Path, rule: bool
) -> None:
    written = []
    for answered in ((), (3,)):
        shop = Shop(tmp_path / f"{answered}", own_newton, rule=rule, wait=9)
        shop.select(*range(22))
        shop.observe(*answered)
        shop.again()
        bodies = [dict(record.body) for record in shop.account.ledger.iterate()]
        written.append([(body["entry"], body.get("names"), body.get("outcome")) for body in bodies])
        shop.end()
    assert written[0] == written[1]
    assert [names for entry, names, _ in written[0] if entry == "functions"] == [
        [f"{role}({__name__}.OwnNewton)" for role in ("serve", "deliver")]
    ]


def test_a_full_batch_that_waits_is_learned_after_a_crash_from_what_was_answered(
    tmp_path: Path,
) -> None:
    whole, parts = (Shop(tmp_path / name, wait=5) for name in ("whole", "parts"))
    for shop in (whole, parts):
        shop.select(*range(23))  # three more than the first batch holds
        shop.observe(21, 4, 20, 19)
    parts.again()
    assert parts.learner._batch == 1
    whole.offers.close_batch()
    assert whole.learner.theta_.tolist() == parts.learner.theta_.tolist()
    for shop in (whole, parts):
        shop.finish(23)
    assert whole.learner._batch == parts.learner._batch
    assert whole.learner.theta_.tolist() == parts.learner.theta_.tolist()
    for shop in (whole, parts):
        shop.end()


def test_a_batch_whose_last_users_never_answered_is_not_taken_for_an_older_store(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop", rule=True)
    shop.select(*range(20))
    shop.observe(3)
    shop.select(20)
    shop.again()
    assert (shop.learner._batch, shop.offers.clock_) == (1, 21)
    shop.end()


class Killed(BaseException):
    """Here the process ends."""


@pytest.mark.parametrize("rule", [False, True])
def test_a_kill_while_a_batch_is_closed_by_hand_leaves_files_that_fit(
    tmp_path: Path, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody came for its last places: the store must not be ahead of the registry."""
    closing = KeptRows.closing

    def last(self: KeptRows, clock: int) -> None:
        closing(self, clock)
        raise Killed

    shop = Shop(tmp_path / "shop", rule=rule)
    shop.select(*range(5))
    shop.observe(3, 1)
    with monkeypatch.context() as patch:
        patch.setattr(KeptRows, "closing", last)
        with pytest.raises(Killed):
            shop.offers.close_batch()
    shop.again()
    assert shop.learner._batch == 1
    assert shop.learner.clock_ == 20
    shop.end()
    told = audit(tmp_path / "shop" / "ledger")
    assert not told.problems
    assert told.spends == 1


@pytest.mark.parametrize("rule", [False, True])
def test_a_kill_after_the_release_that_a_restart_makes_up_for_leaves_files_that_fit(
    tmp_path: Path, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch's last users had not answered, so that the store had nothing of them."""
    release, begin = OnePassNewtonMNL._release, Shop._begin

    def last(self: OnePassNewtonMNL, *given: Any) -> None:
        release(self, *given)
        raise Killed

    def begun(self: Shop, *given: Any) -> None:
        self.account, self.store, self.people = given
        begin(self, *given)

    monkeypatch.setattr(Shop, "_begin", begun)
    shop = Shop(tmp_path / "shop", rule=rule, wait=9)
    shop.select(*range(22))
    shop.observe(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(OnePassNewtonMNL, "_release", last)
        with pytest.raises(Killed):
            shop.again()
    shop.again()
    assert shop.learner._batch == 1
    assert shop.learner.clock_ == (22 if rule else shop.store.clock)
    shop.end()
    told = audit(tmp_path / "shop" / "ledger")
    assert not told.problems
    assert told.spends == 1


def test_a_forgotten_person_leaves_the_store_and_the_open_offers(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop", rule=True)
    shop.select(*range(6))
    shop.observe(4, 1)
    shop.offers.forget(person(4))
    shop.offers.forget(person(0))
    shop.observe(0, 2)
    shop.again()
    assert shop.learner.recovered_.rows == (range(0, 3), range(4, 5))
    shop.finish(6)
    shop.end()


def test_one_select_and_one_answer_are_two_synced_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[str] = []
    transaction = HeldFile.transaction

    def counted(file: HeldFile) -> Any:
        changes.append(file.path.name)
        return transaction(file)

    monkeypatch.setattr(HeldFile, "transaction", counted)
    for rule in (False, True):
        shop = Shop(tmp_path / str(rule), rule=rule)
        changes.clear()
        shop.select(0)
        shop.observe(0)
        assert changes == ["people" if rule else "rows", "rows"]
        changes.clear()
        who = person(0) if rule else None
        asked = [shop.offers.selecting(FEATURES[0], None, who) for _ in range(9)] if rule else []
        shop.offers.take(asked)
        assert changes == ["people"] * rule  # one for all of them
        shop.end()


def test_coroutines_write_in_another_thread_and_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "shop", rule=True, wait=9)
    changes: list[int] = []
    transaction = HeldFile.transaction

    def noted(file: HeldFile) -> Any:
        changes.append(threading.get_ident())
        return transaction(file)

    monkeypatch.setattr(HeldFile, "transaction", noted)

    async def main() -> None:
        async with AsyncOffers(shop.offers) as offers:

            async def shopper(user: int) -> None:
                offer = await offers.select(FEATURES[user], person=person(user))
                if user % 4:
                    await offers.observe(offer.id, int(offer.items[0]))

            await asyncio.gather(*map(shopper, range(16)))

    asyncio.run(main())
    assert threading.get_ident() not in changes
    assert len(changes) <= 10  # of 16 users and 12 answers
    shop.again()
    assert shop.offers.clock_ == 16
    assert shop.learner.recovered_.rows == tuple(range(i + 1, i + 4) for i in range(0, 16, 4))
    shop.end()


def test_a_store_that_cannot_be_written_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "shop")
    shop.select(0, 1)
    full = RowStoreError("the disk is full: make room")

    def fails(*_: object) -> Any:
        raise full

    with monkeypatch.context() as broken:
        broken.setattr(HeldFile, "transaction", fails)
        with pytest.raises(RowStoreError, match="make room"):
            shop.observe(0)
    for call in (shop.select, shop.observe):
        with pytest.raises(RuntimeError, match="half-way: resume its ledger"):
            call(1)
    shop.again()
    assert shop.offers.clock_ == 2
    shop.end()


def killed(folder: Path, rule: bool) -> list[str]:
    script = f"""
        import sys
        from pathlib import Path
        from test_kept_offers import Shop

        shop = Shop(Path(sys.argv[1]), rule={rule})
        for user in range(0, 36, 4):
            shop.select(*range(user, user + 4))
            for late in (user + 2, user, user + 1):
                shop.observe(late)
                print(late, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 8:
                process.kill()
                break
        lines += [line for line in process.stdout if line.endswith("\n")]
        return lines


def test_a_kill_loses_no_answer_that_was_acknowledged(tmp_path: Path) -> None:
    lines = killed(tmp_path / "shop", rule=True)
    acknowledged = {int(line) for line in lines}
    shop = Shop.__new__(Shop)
    shop.folder, shop.make, shop.wait, shop.ruled = tmp_path / "shop", newton, 0, True
    shop.people = shop.account = None
    people = People.open(shop.folder / "people")
    account: JointAccountant[Any] = JointAccountant.resume(shop.folder / "ledger", people=people)
    shop._begin(account, RowStore.open(shop.folder / "rows", KEY), people)
    came = {user for part in shop.learner.recovered_.rows for user in part}
    assert acknowledged <= came or shop.learner._batch > 0
    assert shop.offers.clock_ > max(acknowledged)
    shop.finish(shop.offers.clock_)
    shop.account.close()
    found = audit(shop.folder / "ledger")
    assert (list(found.problems), found.lost) == ([], 0)
    shop.end()
