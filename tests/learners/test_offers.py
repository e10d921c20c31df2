"""Many open users: equal to one after the other where they answer at once, and clear where not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import (
    HorizonError,
    OfferError,
    ProvenanceError,
    ReentryError,
    UsersError,
)
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPTOFW,
    AsyncOffers,
    Offers,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
)
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.offers import Observing, Selecting
from privlearn.learners.participation import NOT_GIVEN
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.values.participation import Participation

USERS, DIM, ITEMS = 60, 3, 4
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(USERS, ITEMS, DIM)) / 2
FEATURES[7, 1, 1] = np.nan
PRICES = RNG.uniform(1, 2, size=(USERS, ITEMS))
CONTEXTS = FEATURES[:, 0]
ANSWERS = RNG.integers(-1, ITEMS + 1, USERS)  # some name no item, or none that was shown
REWARDS = [float(x) for x in RNG.uniform(-1, 1, USERS)]
REWARDS[11] = np.nan


def account(users: int = USERS, **given: Any) -> JointAccountant[Any]:
    return JointAccountant(ZCDP(50), users=range(users), noise=NoiseSource.simulation(1), **given)


def newton(**given: Any) -> OnePassNewtonMNL:
    settings = {"first_batch": 20, "random_state": 3, **given}
    return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2, **settings)


def dpmnl() -> DPMNL:
    return DPMNL(n_items=ITEMS, dim=DIM, max_items=2, initial_rounds=20, max_updates=3)


def hdb() -> DPHDB:
    return DPHDB(n_arms=3, dim=DIM, first_epoch=20)


def squares() -> PrivateLeastSquares:
    return PrivateLeastSquares(n_arms=3, dim=DIM)


def glm(**given: Any) -> OnePassNewtonGLM:
    settings = {"link": "linear", "reward_range": (-1, 1), "first_batch": 20, **given}
    return OnePassNewtonGLM(ITEMS, DIM, **settings)


def glm_by_context() -> OnePassNewtonGLM:
    return glm(per_action=True, policy="thompson")


MNL: dict[str, Callable[[], Any]] = {"newton": newton, "dpmnl": dpmnl}
BANDITS: dict[str, Callable[[], Any]] = {
    "hdb": hdb,
    "least squares": squares,
    "slates": glm,
    "actions by context": glm_by_context,
}
ALL = MNL | BANDITS


def sent(name: str, user: int) -> tuple[Any, ...]:
    if name == "slates":  # of any length
        return (FEATURES[user, : 1 + user % ITEMS],)
    return (FEATURES[user], PRICES[user]) if name in MNL else (CONTEXTS[user],)


def answer(name: str, user: int) -> Any:
    if name in BANDITS:
        return REWARDS[user]
    return None if ANSWERS[user] < 0 else int(ANSWERS[user])


def told(learner: Any) -> tuple[Any, ...]:
    """All that is public, and the private messages, which come at the end of a batch."""
    posted = [(item["name"], item["at"], item["digest"]) for item in learner.billboard_.history()]
    return learner.public_state(), posted, sorted(learner.private_messages_)


def rest(offers: Offers[Any]) -> None:
    """Closes all that is open."""
    while True:
        try:
            offers.close_batch()
        except HorizonError:
            return


# Equal to one after the other ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_answers_at_once_are_as_select_and_observe_of_the_learner(name: str) -> None:
    one, other = ALL[name]().start(account()), ALL[name]().start(account())
    offers = Offers(other)
    for user in range(USERS):
        shown = one.select(*sent(name, user))
        one.observe(answer(name, user))
        offer = offers.select(*sent(name, user))
        assert np.array_equal(offer.items, shown)
        assert offers.clock_ == user + 1
        offers.observe(offer.id, answer(name, user))
    rest(offers)
    assert told(one) == told(other)


@pytest.mark.parametrize("name", MNL)
def test_answers_at_once_are_as_play(name: str) -> None:
    one, other = ALL[name]().start(account()), ALL[name]().start(account())
    one.play(FEATURES, lambda own, shown: own.private[:, 0], PRICES, ANSWERS[:, None] * 1.0)
    offers = Offers(other)
    for user in range(USERS):
        offers.observe(offers.select(*sent(name, user)).id, ANSWERS[user])
    rest(offers)
    assert told(one)[:2] == told(other)[:2]


@pytest.mark.parametrize("name", ALL)
def test_requests_that_are_served_together_are_as_those_one_by_one(name: str) -> None:
    one, other = ALL[name]().start(account()), ALL[name]().start(account())
    single, together = Offers(one, wait=7), Offers(other, wait=7)
    ids = [single.select(*sent(name, user)).id for user in range(40)]
    for user in reversed(range(35, 40)):
        single.observe(ids[user], answer(name, user))
    requests = [asking(together, name, user) for user in range(40)]
    together.take(requests)
    made = [request.outcome().id for request in requests]
    answers = [Observing(made[user], answer(name, user), NOT_GIVEN) for user in range(35, 40)]
    together.take(answers)
    assert [request.outcome() for request in answers] == [None] * 5
    for offers in (single, together):
        rest(offers)
    assert told(one) == told(other)


def asking(offers: Offers[Any], name: str, user: int) -> Selecting:
    features, revenues = (*sent(name, user), None)[:2]
    return offers.selecting(features, revenues, NOT_GIVEN)


# When batches close -------------------------------------------------------------------------------


def served(offers: Offers[Any], users: range) -> list[str]:
    return [offers.select(FEATURES[user]).id for user in users]


@pytest.mark.parametrize("wait", [0, 1, 6, 25])
def test_a_full_batch_is_closed_when_one_more_than_it_waits_for_asks(wait: int) -> None:
    learner = newton().start(account())
    ends = [batch.stop for batch in learner._batches]
    offers = Offers(learner, wait=wait)
    for user in range(USERS):
        due = sum(end + wait <= user for end in ends)
        ids = served(offers, range(user, user + 1))
        assert learner.public_state() == {**learner.public_state(), "batch": due, "clock": user + 1}
        offers.observe(ids[0], None)
    assert sum(end + wait < USERS for end in ends) == learner._batch
    with pytest.raises(HorizonError, match="all users"):
        offers.select(FEATURES[0])
    assert learner._batch == len(ends)  # nobody is left to wait for


def test_answers_count_until_their_batch_is_closed_and_no_longer() -> None:
    def learned(late: int) -> Any:
        learner = newton(prior_precision=1e-3).start(account())
        offers = Offers(learner, wait=5)
        ids = served(offers, range(20))
        ids += served(offers, range(20, 20 + late))
        if late > 5:
            with pytest.raises(OfferError, match="closed with its batch before the answer came"):
                offers.observe(ids[3], None)
        else:
            offers.observe(ids[3], None)
        served(offers, range(20 + late, 27))
        return learner.theta_.tolist()

    assert learned(0) == learned(5) != learned(6)


def test_who_never_answered_is_null() -> None:
    """As somebody who answered what was not on offer; only the private message is another."""
    one, other = newton().start(account()), newton().start(account())
    offers, controls = Offers(one), Offers(other)
    for user in range(20):
        offer, control = offers.select(FEATURES[user]), controls.select(FEATURES[user])
        if user % 3:
            offers.observe(offer.id, None)
        controls.observe(control.id, None if user % 3 else ITEMS)
    offers.close_batch()
    controls.close_batch()
    assert told(one)[:2] == told(other)[:2]
    (_, message), *_ = [each for each in one.private_messages_ if each[0] == 0]
    assert message.startswith("no answer came before the batch was closed")


def test_an_operator_may_close_a_batch_before_it_is_full() -> None:
    """The places of those who have not come are used up, as with the learner's skip."""
    one, other = newton().start(account()), newton().start(account())
    offers = Offers(one, wait=3)
    for user in range(13):
        offer = offers.select(FEATURES[user])
        offers.observe(offer.id, None)
        other.select(FEATURES[user])
        other.observe(None)
    offers.close_batch()
    other.skip(7)
    assert one._batch == 1
    assert told(one) == told(other)
    assert offers.clock_ == 20


@pytest.mark.parametrize("name", ALL)
def test_a_learner_that_was_in_the_middle_of_a_batch_goes_on_with_it(name: str) -> None:
    one, other = ALL[name]().start(account()), ALL[name]().start(account())
    for learner in (one, other):
        for user in range(13):
            learner.select(*sent(name, user))
            learner.observe(answer(name, user))
    offers = Offers(other)
    for user in range(13, 50):
        one.select(*sent(name, user))
        one.observe(answer(name, user))
        offers.observe(offers.select(*sent(name, user)).id, answer(name, user))
    one.skip(10)
    rest(offers)
    assert told(one)[:2] == told(other)[:2]


# Errors, each for the caller alone ----------------------------------------------------------------


def test_errors_name_what_is_wrong_and_change_nothing() -> None:
    learner = newton().start(account())
    offers, others = Offers(learner, wait=2), Offers(newton().start(account()))
    first = offers.select(FEATURES[0])
    foreign = others.select(FEATURES[0])
    offers.observe(first.id, None)
    before = told(learner)
    tag, index, code = first.id.split("-")
    wrong = [
        (foreign.id, "not one of these Offers, but another learner's, or of a process before"),
        ("", "unknown; give the id of an offer"),
        ("7", "unknown"),
        (None, "unknown"),
        (f"{tag}-{index}-{code[:-1]}", "unknown"),
        (f"{tag}-1-{code}", "unknown"),
        (f"{tag}-1-{code[:-1]}é", "unknown"),
        (f"{tag}-1-{code[:-1]}\ud800", "unknown"),
        (f"{tag}-0{index}-{code}", "unknown"),
        (f"{tag}-{'f' * 400}-{code}", "unknown"),
        (first.id, "answered before; the first answer counts"),
    ]
    for offer_id, message in wrong:
        with pytest.raises(OfferError, match=message):
            offers.observe(offer_id, None)  # type: ignore[arg-type]
    with pytest.raises(ProvenanceError, match="no rule of participation"):
        offers.observe(first.id, None, person="A")
    assert told(learner) == before
    served(offers, range(1, 23))
    with pytest.raises(OfferError, match="closed with its batch"):
        offers.observe(first.id, None)


def test_ids_cannot_be_guessed_from_ids() -> None:
    offers = Offers(newton().start(account()))
    codes = [offer_id.rpartition("-")[2] for offer_id in served(offers, range(20))]
    assert len(set(codes)) == 20
    assert {len(code) for code in codes} == {32}


def test_what_is_no_answer_is_null_and_raises_nothing() -> None:
    """Also when answers are taken together, of which one is odd."""

    class Odd:
        def __array__(self, *_: object, **__: object) -> Any:
            raise ValueError("what was sent")

    learner = newton().start(account())
    offers = Offers(learner)
    ids = served(offers, range(6))
    odd = [Odd(), "three", object(), 10**40, [1, 2], np.nan]
    requests = [Observing(each, what, NOT_GIVEN) for each, what in zip(ids, odd, strict=True)]
    offers.take(requests)
    assert [request.outcome() for request in requests] == [None] * 6
    offers.close_batch()
    assert [user for user, _ in learner.private_messages_][:6] == list(range(6))


class Choosy(OnePassNewtonMNL):  # type: ignore[misc]
    """Somebody's own learner, with a fault that one user's data bring out."""

    fault: type[BaseException] = LookupError

    def _to_show(self, action: Any, user: int) -> Any:
        if action is not None and 3 in action:
            raise self.fault("no picture of item 3")
        return super()._to_show(action, user)


def test_what_one_user_cannot_be_told_is_an_error_of_that_user_alone() -> None:
    learner = Choosy(n_items=ITEMS, dim=DIM, max_items=1, first_batch=20).start(account())
    offers = Offers(learner)
    price = np.eye(ITEMS)[[0, 3, 1]]
    requests = [offers.selecting(FEATURES[0], revenues, NOT_GIVEN) for revenues in price]
    offers.take(requests)
    with pytest.raises(LookupError, match="item 3"):
        requests[1].outcome()
    assert [requests[i].outcome().items.tolist() for i in (0, 2)] == [[0], [1]]
    assert offers.clock_ == 3
    offers.observe(requests[2].outcome().id, 1)
    rest(offers)


def test_no_error_of_one_user_leaves_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choosy, "fault", StopIteration)
    learner = Choosy(n_items=ITEMS, dim=DIM, max_items=1, first_batch=20).start(account())
    price = np.eye(ITEMS)[[0, 3, 1]]

    async def served() -> list[Any]:
        async with AsyncOffers(Offers(learner)) as offers, asyncio.timeout(5):
            asked = [offers.select(FEATURES[0], revenues) for revenues in price]
            return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = asyncio.run(served())
    assert "StopIteration" in str(second)
    assert (first.items.tolist(), third.items.tolist()) == ([0], [1])
    monkeypatch.setattr(Choosy, "fault", SystemExit)
    learner = Choosy(n_items=ITEMS, dim=DIM, max_items=1, first_batch=20).start(account())
    first, second, third = asyncio.run(served())
    assert "cannot be told" in str(second), "and no error that would end the service"
    assert (first.items.tolist(), third.items.tolist()) == ([0], [1])


def test_offers_need_a_learner_that_serves() -> None:
    with pytest.raises(TypeError, match="learner = DPTOFW: must be one that serves users"):
        Offers(DPTOFW(DIM))  # type: ignore[type-var]
    with pytest.raises(RuntimeError, match="has no accountant"):
        Offers(newton())
    with pytest.raises(ValueError, match="wait = -1"):
        Offers(newton().start(account()), wait=-1)
    central = CentralAccountant(ZCDP(1), users=range(USERS), noise=NoiseSource.simulation(0))
    with pytest.raises(ProvenanceError, match="JointAccountant"):
        Offers(newton().start(central))
    rule = Participation(1, pooled=True, clock="timetable")
    timed = newton().start(account(people=People.memory(rule)))
    with pytest.raises(ProvenanceError, match="clock = 'timetable': a slot may hold any number"):
        Offers(timed)
    waiting = newton().start(account())
    waiting.select(FEATURES[0])
    with pytest.raises(UsersError, match="has not answered"):
        Offers(waiting)
    with pytest.raises(TypeError, match="offers = OnePassNewtonMNL: must be Offers"):
        AsyncOffers(newton())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="revenues: a bandit takes none"):
        Offers(hdb().start(account())).select(CONTEXTS[0], [1.0])


def test_a_learner_with_offers_takes_users_in_no_other_way() -> None:
    learner = newton().start(account())
    Offers(learner)
    for call in (
        lambda: learner.select(FEATURES[0]),
        lambda: learner.play(FEATURES, lambda own, shown: shown[:, 0]),
        lambda: learner.skip(3),
        lambda: Offers(learner),
    ):
        with pytest.raises(RuntimeError, match="serves its users through Offers"):
            call()
    with pytest.raises(UsersError, match="no user is waiting"):
        learner.observe(None)


def test_when_all_users_were_served_nobody_is() -> None:
    learner = newton().start(account())
    learner.skip(USERS)
    offers = Offers(learner)  # as after a restart
    for call in (lambda: offers.select(FEATURES[0]), offers.close_batch):
        with pytest.raises(HorizonError, match="all users of"):
            call()


def test_after_a_release_that_failed_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = newton().start(account())
    offers = Offers(learner)
    ids = served(offers, range(20))

    def fails(*_: object) -> None:
        raise ValueError("the disk is full")

    monkeypatch.setattr(learner, "_release", fails)
    with pytest.raises(ValueError, match="the disk is full"):
        offers.select(FEATURES[20])
    for call in (
        lambda: offers.select(FEATURES[20]),
        lambda: offers.observe(ids[3], None),
        offers.close_batch,
    ):
        with pytest.raises(RuntimeError, match="a round or release failed half-way"):
            call()


# People -------------------------------------------------------------------------------------------


def with_people(rule: Participation) -> tuple[Any, Offers[Any]]:
    learner = newton().start(account(people=People.memory(rule)))
    return learner, Offers(learner)


def test_a_person_with_two_open_offers_has_two_visits() -> None:
    rule = Participation(1, pooled=True)
    learner, offers = with_people(rule)
    control = newton().start(account(people=People.memory(rule)))
    ids = ["A", "B", "A", "C", None, "A", *(f"p{i}" for i in range(14))]
    made = [offers.select(FEATURES[i], person=who).id for i, who in enumerate(ids)]
    for i in (5, 2, 0, *range(19, 5, -1), 1, 4, 3):
        offers.observe(made[i], 1, person=ids[i])
    offers.close_batch()
    for i, who in enumerate(ids):
        control.select(FEATURES[i], person=who)
        control.observe(1)
    assert told(learner)[:2] == told(control)[:2]


def test_an_answer_in_the_name_of_somebody_else_is_refused() -> None:
    _, offers = with_people(Participation(2))
    a, b, nobody = (offers.select(FEATURES[0], person=who).id for who in ("A", "B", None))
    for offer_id, who in ((a, "B"), (b, "A"), (a, None), (nobody, "A"), (a, b"A")):
        with pytest.raises(OfferError, match="this offer was made to another person"):
            offers.observe(offer_id, None, person=who)
    for offer_id, who in ((a, "A"), (b, "B"), (nobody, None)):
        offers.observe(offer_id, None, person=who)


def test_an_id_of_another_kind_is_an_error_for_its_sender_alone() -> None:
    _, offers = with_people(Participation(2))
    requests = [
        offers.selecting(FEATURES[i], None, who) for i, who in enumerate(["A", 7, "B", True, None])
    ]
    offers.take(requests)
    for request in (requests[1], requests[3]):
        with pytest.raises(TypeError, match="ids: "):
            request.outcome()
    assert [len(requests[i].outcome().items) for i in (0, 2, 4)] == [2, 2, 2]
    assert offers.clock_ == 3
    for who in ("nobody is named", None):
        with pytest.raises(ProvenanceError):
            Offers(newton().start(account())).select(FEATURES[0], person=who)
    with pytest.raises(ProvenanceError):
        offers.select(FEATURES[0])


def test_a_person_who_is_forgotten_is_not_learned_from_open_offers() -> None:
    rule = Participation(3)

    def learned(forget: bool, answers: bool) -> Any:
        learner, offers = with_people(rule)
        made = [offers.select(FEATURES[i], person="AB"[i % 2]).id for i in range(6)]
        offers.observe(made[0], 1)
        if forget:
            offers.forget("A")
            chunks = [
                chunk
                for part in cast("Any", offers._open)._shown
                for chunk in Rows._unseal(part._Shown__both)
            ]
            held = [None if chunk.block is None else chunk.block[0][0].features for chunk in chunks]
            assert [part is None or not np.any(part) for part in held] == [True, False] * 3
        if answers:
            offers.observe(made[2], 1)
            offers.observe(made[4], 1)
        offers.observe(made[1], 0)
        offers.close_batch()
        return learner.theta_.tolist()

    without = learned(True, True)
    assert without == learned(True, False)
    assert without != learned(False, True)
    learner, _ = with_people(rule)
    with pytest.raises(RuntimeError, match="ask them to forget"):
        learner.forget("A")


# Threads ------------------------------------------------------------------------------------------


def test_threads_are_served_without_failures() -> None:
    users = 160
    learner = newton(first_batch=200).start(account(300))
    offers = Offers(learner)
    came: list[tuple[int, Any]] = []

    def shopper(number: int) -> None:
        rng = np.random.default_rng(number)
        mine = []
        for _ in range(20):
            features = rng.normal(size=(ITEMS, DIM))
            offer = offers.select(features)
            mine.append((offer, features))
            if rng.random() < 0.5:
                offer, features = mine.pop(int(rng.integers(len(mine))))
                offers.observe(offer.id, int(offer.items[0]))
                came.append((int(offer.id.split("-")[1], 16), features))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shopper, range(8)))
    assert offers.clock_ == users
    control = newton(first_batch=200).start(account(300))
    answered = dict(came)
    one_by_one = Offers(control)
    for user in range(users):
        offer = one_by_one.select(answered.get(user, np.zeros((ITEMS, DIM))))
        if user in answered:
            one_by_one.observe(offer.id, int(offer.items[0]))
    for each in (offers, one_by_one):
        each.close_batch()
    # coins break ties before the first batch ends, so that both were shown the same
    assert told(learner)[:2] == told(control)[:2]


def test_requests_that_wait_for_each_other_are_served_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = Offers(newton().start(account()), wait=5)
    blocks: list[int] = []
    inside, go_on = threading.Event(), threading.Event()
    serve = offers._open.serve

    def slow(sent: Any, *rest: Any) -> Any:
        blocks.append(len(sent))
        inside.set()
        go_on.wait(10)
        return serve(sent, *rest)

    monkeypatch.setattr(offers._open, "serve", slow)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(offers.select, FEATURES[0])
        assert inside.wait(10)
        others = [pool.submit(offers.select, FEATURES[i]) for i in range(1, 9)]
        while len(offers._queue) < 8:
            time.sleep(0.001)
        go_on.set()
        ids = {first.result(10).id, *(other.result(10).id for other in others)}
    assert blocks == [1, 8]
    assert len(ids) == 9


def test_a_call_from_inside_a_call_is_refused_and_serves_nobody() -> None:
    learner = newton().start(account())
    offers = Offers(learner)
    caught: list[BaseException] = []

    def again(user: int, text: str) -> None:
        try:
            offers.select(FEATURES[0])
        except ReentryError as error:
            caught.append(error)

    learner.on_private_message = again
    offers.select(FEATURES[7])  # not usable, which a private message says
    assert len(caught) == 1
    offers.select(FEATURES[0])
    assert offers.clock_ == 2


def test_an_interrupt_ends_the_round_for_all_who_were_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = Offers(newton().start(account()))

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(offers._learner, "_arriving", interrupted)
    requests = [asking(offers, "newton", user) for user in range(2)]
    with pytest.raises(KeyboardInterrupt):
        offers.take(requests[:1])
    offers._queue.extend(requests[1:])
    with pytest.raises(RuntimeError, match="half-way"):
        offers.select(FEATURES[0])


@pytest.mark.parametrize("name", ALL)
def test_what_callers_write_to_their_arrays_later_changes_nothing(name: str) -> None:
    one, other = ALL[name]().start(account()), ALL[name]().start(account())
    for learner, reused in ((one, False), (other, True)):
        offers = Offers(learner)
        for user in range(30):
            data = [part.copy() for part in sent(name, user)]
            offer = offers.select(*data)
            choice = np.array(answer(name, user), dtype=np.float64)
            offers.observe(offer.id, choice)
            if reused:
                for part in (*data, choice, np.asarray(offer.items)):
                    part[...] = 7
        rest(offers)
    assert told(one) == told(other)


# asyncio ------------------------------------------------------------------------------------------


def test_coroutines_are_served_in_blocks_and_learn_the_same() -> None:
    learner = newton().start(account())
    control = newton().start(account())

    async def main() -> list[int]:
        async with AsyncOffers(Offers(learner, wait=3)) as offers:

            async def shopper(user: int) -> int:
                features = FEATURES[user].copy()
                making = asyncio.ensure_future(offers.select(features, PRICES[user]))
                await asyncio.sleep(0)
                features[:] = 0  # the caller's own array again
                offer = await making
                await offers.observe(offer.id, int(offer.items[0]))
                return int(offer.id.split("-")[1], 16)

            indices = await asyncio.gather(*(shopper(user) for user in range(18)))
            await offers.close_batch()
            assert (await offers.public_state())["batch"] == 1
            assert offers.clock_ == 20
        with pytest.raises(RuntimeError, match="were closed"):
            await offers.select(FEATURES[0])
        return list(indices)

    assert asyncio.run(main()) == list(range(18))
    for user in range(18):
        shown = control.select(FEATURES[user], PRICES[user])
        control.observe(int(shown[0]))
    control.skip(2)
    assert told(learner) == told(control)


def test_the_event_loop_goes_on_while_something_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = Offers(newton().start(account()), wait=5)
    inside, go_on = threading.Event(), threading.Event()
    serve = offers._open.serve

    def slow(*given: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return serve(*given)

    monkeypatch.setattr(offers._open, "serve", slow)

    async def main() -> None:
        async with AsyncOffers(offers) as served:
            making = asyncio.ensure_future(served.select(FEATURES[0]))
            while not inside.is_set():
                await asyncio.sleep(0)
            never = asyncio.ensure_future(served.select(FEATURES[1]))
            await asyncio.sleep(0)
            never.cancel()  # before its turn: nobody was served
            go_on.set()
            offer = await making
            with pytest.raises(asyncio.CancelledError):
                await never
            with pytest.raises(OfferError, match="unknown"):
                await served.observe("7", None)
            await served.observe(offer.id, None)
            with pytest.raises(ProvenanceError, match="no rule of participation"):
                await served.forget("A")

    asyncio.run(main())
    assert offers.clock_ == 1


def test_offers_are_refused_in_a_forked_process() -> None:
    offers = Offers(newton().start(account()))
    offers._turn.made_in = (0, 0)  # as after a fork
    with pytest.raises(Exception, match="cannot be used in a forked process"):
        offers.select(FEATURES[0])
    assert not [each for each in offers._queue if each.state == each.WAITING]
