"""Streams that are made again from what a ledger records of them."""

from __future__ import annotations

from typing import Any

import pytest

from privlearn.accountants import CentralAccountant
from privlearn.ledger.entries import SpendEntry, parse_entry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    PrefixSum,
)
from privlearn.mechanisms.banded_blt import BandedBLT
from privlearn.mechanisms.recorded_streams import RecordedStreams
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

SLOTS = range(64)
RULE = Participation(3, apart=16)
BATCHED = Participation(3, per_batch=1)
FALLING = BandedBLT.fitted(64, Participation(4, apart=16), "mean")
FACTORS = [
    BinaryTree(64),
    BufferedToeplitz.fitted(64),
    AnytimeBLT(),
    BandedBLT.fitted(64, RULE),
    FALLING,
]


def recorded(mechanism: Any, rule: Participation) -> SpendEntry:
    book = CentralAccountant(
        ZCDP("100"), users=SLOTS, people=People.memory(rule), noise=NoiseSource.simulation(0)
    )
    if rule.batched:
        book.divide(range(0, 64, 8))
    mechanism.open(book.issue(mechanism.loss(), users=SLOTS, label="stream")).close()
    records = [record for record in book.ledger.records if record.body["entry"] == "spend"]
    entry = parse_entry(records[0].body, records[0].ext)
    assert isinstance(entry, SpendEntry)
    return entry


@pytest.mark.parametrize("factors", FACTORS, ids=lambda f: f.kind)
@pytest.mark.parametrize("exponent", [2.0, 4.0])
def test_what_was_stated_is_stated_again(factors: Any, exponent: float) -> None:
    relation = Adjacency.ZERO_OUT
    stream = PrefixSum(Ball(1.0, 2), factors, 16.0, relation, exponent=exponent, participation=RULE)
    found = RecordedStreams()(recorded(stream, RULE))
    assert found is not None
    assert (found.gain, found.visits) == (stream.spend().gain, (3, 16))
    # and it is that of several visits
    assert found.gain > 1.2 * PrefixSum(Ball(1.0, 2), factors, 16.0, relation).spend().gain


def test_norms_of_columns_count() -> None:
    assert len(FALLING.column_scales) > 1
    stream = PrefixSum(Ball(1.0, 2), FALLING, 16.0, Adjacency.ZERO_OUT, participation=RULE)
    entry = recorded(stream, RULE)

    def again(scales: list[float]) -> Any:
        parameters = {**entry.parameters, "column_scales": scales}
        return RecordedStreams()(entry.model_copy(update={"parameters": parameters}))

    assert again(entry.parameters["column_scales"]).gain == stream.spend().gain
    assert again([1.0]).gain > stream.spend().gain
    with pytest.raises(ValueError, match="none above the one before"):
        again([1.0, 0.5, 0.6])


def test_so_are_sums_of_batches() -> None:
    stream = BatchedPrefixSum(
        Ball(1.0, 2), (8,) * 8, BinaryTree(8), 16.0, Adjacency.ZERO_OUT, BATCHED
    )
    found = RecordedStreams()(recorded(stream, BATCHED))
    assert found is not None
    assert found.gain == stream.spend().gain


def test_what_is_not_known_is_left_as_recorded() -> None:
    entry = recorded(
        PrefixSum(Ball(1.0, 2), BinaryTree(64), 16.0, Adjacency.ZERO_OUT, participation=RULE), RULE
    )
    again = RecordedStreams()
    for change in ({"mechanism": "mine"}, {"parameters": {**entry.parameters, "factorization": 7}}):
        assert again(entry.model_copy(update=change)) is None
    with pytest.raises(ValueError, match="horizon"):
        again(entry.model_copy(update={"parameters": {**entry.parameters, "horizon": -1}}))


def test_the_work_for_one_ledger_has_an_end() -> None:
    entry = recorded(
        PrefixSum(Ball(1.0, 2), BinaryTree(64), 16.0, Adjacency.ZERO_OUT, participation=RULE), RULE
    )
    again = RecordedStreams()
    again._left = 64 * 3
    assert again(entry) is not None
    assert again(entry) is None
