"""Mistakes that are easily made in `Offers`: each is found by a test."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.errors import OfferError, UsersError
from privlearn.learners import AsyncOffers, Offers, OnePassNewtonMNL
from privlearn.learners.offers import Observing
from privlearn.learners.participation import NOT_GIVEN
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows, RowStore
from privlearn.values.participation import Participation

DIM, ITEMS = 3, 4


def offers_of(users: int = 60, wait: int = 0, **given: Any) -> Offers[OnePassNewtonMNL]:
    noise = NoiseSource.simulation(1)
    accountant = JointAccountant(ZCDP(50), users=range(users), noise=noise, **given)
    learner = OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2, first_batch=20, random_state=3)
    return Offers(learner.start(accountant), wait=wait)


def features(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(ITEMS, DIM))


def test_of_two_answers_that_come_together_the_first_counts() -> None:
    offers = offers_of()
    offer = offers.select(features(0))
    first, second = (Observing(offer.id, choice, NOT_GIVEN) for choice in (1, 2))
    offers.take([first, second])
    first.outcome()
    with pytest.raises(OfferError, match="answered before; the first answer counts"):
        second.outcome()
    assert offers._open._heard == {0: 1.0}


def test_what_is_no_offer_and_no_index_is_named() -> None:
    offers = offers_of()
    for what in (None, "7", 7):
        with pytest.raises(TypeError, match="must be an Offer, from select"):
            offers.is_open(what)  # type: ignore[arg-type]
    for first in ("0", None, -1, 0.0):
        with pytest.raises((TypeError, ValueError), match=r"first = .*: must be an integer"):
            offers.close_if_full(first)  # type: ignore[arg-type]
    assert offers.first_open == 0


def test_nothing_of_a_closed_batch_is_held() -> None:
    offers = offers_of(people=People.memory(Participation(most=5)))
    ids = [offers.select(features(i), person=i).id for i in range(20)]
    for each in ids[:10]:
        offers.observe(each, 1)
    assert len(offers._whose) == 20
    offers.select(features(20), person=20)
    assert list(offers._whose) == [20]
    assert offers._open._heard == {}
    assert [shown.users for shown in offers._open._shown] == [range(20, 21)]


def test_open_offers_are_held_in_few_arrays() -> None:
    offers = offers_of(users=200, wait=170)
    for i in range(130):
        offers.select(features(i))
    assert offers.first_open == 0
    assert [len(shown.users) for shown in offers._open._shown] == [64, 64, 1, 1]


def test_a_batch_whose_closing_was_interrupted_goes_on_in_no_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = offers_of()
    offers.select(features(0))

    def interrupted(stop: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(offers.learner._kept, "closing", interrupted)
    with pytest.raises(KeyboardInterrupt):
        offers.close_batch()
    monkeypatch.undo()
    for call in (offers.close_batch, lambda: offers.select(features(1))):
        with pytest.raises(RuntimeError, match="a round or release failed half-way"):
            call()


def test_no_index_is_given_out_twice_whatever_interrupts_the_end_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = offers_of(wait=5)
    before = [offers.select(features(i)).id for i in range(25)]

    def interrupted(stop: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(offers.learner._kept, "over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            offers.select(features(25))
    assert (offers.first_open, offers.clock_, offers.learner.clock_) == (20, 25, 25)
    assert offers.select(features(26)).id not in before
    assert offers.clock_ == 26


@pytest.mark.parametrize("name", ["close_batch", "public_state", "forget"])
def test_nothing_is_done_on_the_loops_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = offers_of()
    threads: list[int] = []
    monkeypatch.setattr(offers, name, lambda *_: threads.append(threading.get_ident()))

    async def main() -> None:
        async with AsyncOffers(offers) as served:
            await getattr(served, name)(*(["A"] if name == "forget" else []))

    asyncio.run(main())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_a_store_of_rows_never_takes_back_how_far_it_came(tmp_path: Path) -> None:
    def block(users: range) -> Rows[Any]:
        return Rows.seal(np.ones((len(users), 2)), users=users)

    with RowStore.create(tmp_path / "rows.db", RowStore.new_key()) as store:
        store.bind("account", ())
        store.pass_to(10)
        store.pass_to(5)
        assert store.clock == 10
        with pytest.raises(UsersError, match="rows up to user 9 were kept"):
            store.keep(block(range(7, 12)))
