"""What a public clock asks of Offers: which batch is open and full, and to close just that one."""

from __future__ import annotations

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.errors import OfferError
from privlearn.learners import Offers, OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

BATCH, USERS = 5, 12
FEATURES = np.random.default_rng(0).normal(size=(3, 2))


def offers(wait: int = 0) -> Offers[OnePassNewtonMNL]:
    account = JointAccountant(ZCDP(1), users=range(USERS), noise=NoiseSource.simulation(1))
    learner = OnePassNewtonMNL(n_items=3, dim=2, max_items=2, first_batch=BATCH, growth=1.1)
    return Offers(learner.start(account), wait=wait)


def test_a_batch_is_full_by_offers_whoever_answers() -> None:
    for answers in (False, True):
        made = offers()
        for visit in range(BATCH):
            assert not made.full
            assert made.first_open == 0
            offer = made.select(FEATURES)
            if answers:
                made.observe(offer.id, visit % 3)
        assert made.full
        assert made.is_open(offer)
        made.select(FEATURES)  # which closes it
        assert (made.full, made.first_open) == (False, BATCH)
        assert not made.is_open(offer)


def test_a_clock_closes_the_full_batch_that_it_saw_and_no_other() -> None:
    made = offers(wait=USERS)
    made.close_if_full(0)
    assert made.first_open == 0  # it was not full
    for _ in range(BATCH):
        made.select(FEATURES)
    made.close_if_full(BATCH)
    assert made.first_open == 0  # it was another one
    made.close_if_full(0)
    assert (made.first_open, made.clock_) == (BATCH, BATCH)
    made.close_if_full(0)  # it was closed in between
    assert (made.first_open, made.clock_) == (BATCH, BATCH)
    while made.clock_ < USERS:
        made.select(FEATURES)
    while made.first_open < USERS:
        assert made.full
        made.close_if_full(made.first_open)
    assert not made.full


def test_a_refused_answer_says_why() -> None:
    made = offers()
    first, second = made.select(FEATURES), made.select(FEATURES)
    made.observe(first.id, 0)
    made.close_batch()
    found = {}
    for name, id in (
        ("nothing", "x"),
        ("closed", second.id),
        ("other", offers().select(FEATURES).id),
    ):
        with pytest.raises(OfferError) as error:
            made.observe(id, 0)
        found[name] = error.value.reason
    assert found == {"nothing": "unknown", "closed": "closed", "other": "unknown"}
    third = made.select(FEATURES)
    made.observe(third.id, 0)
    with pytest.raises(OfferError) as error:
        made.observe(third.id, 0)
    assert error.value.reason == "answered"
