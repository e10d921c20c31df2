"""Ledgers of persons who may come back, sound ones and such as an auditor must refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger, Record
from privlearn.ledger.chain import chained
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BatchedPrefixSum, BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

SLOTS = range(12)
STARTS = (0, 3, 6, 9)
APART = Participation(most=3, apart=4)
BATCHED = Participation(most=3, per_batch=1)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(4.0), adjacency=Adjacency.ZERO_OUT)  # rho = 1/32
STREAM = PrefixSum(
    Ball(1.0, 2), BinaryTree(12), 8.0, adjacency=Adjacency.ZERO_OUT, participation=APART
)
BATCHES = BatchedPrefixSum(
    Ball(1.0, 2), (3, 3, 3, 3), BinaryTree(4), 8.0, Adjacency.ZERO_OUT, BATCHED
)
Bodies = list[dict[str, Any]]
Data = dict[int, dict[str, Any]]


def account(rule: Participation, *, cap: object = None, **more: Any) -> CentralAccountant[Any]:
    return CentralAccountant(
        ZCDP("4") if cap is None else cap, users=SLOTS, people=People.memory(rule), **more
    )


def admitted(book: CentralAccountant[Any], users: range) -> Rows[Any]:
    rows = Rows.seal(np.ones((len(users), 2)), users=users)
    assert book.people is not None
    return book.people.admit(rows, [f"p{t % 5}" for t in users])


@cache
def sound() -> tuple[Record, ...]:
    """Sums over parts and a stream, of persons under `APART`; real noise."""
    book = account(APART, ledger=Ledger.memory())
    SUM.release(admitted(book, range(6)), book.issue(SUM.loss(), users=range(6), label="sum"))
    token = book.issue(STREAM.loss(), users=SLOTS, label="stream")
    with STREAM.open(token) as stream:
        stream.append(Rows.null(SLOTS))
    book.close()
    return tuple(book.ledger.records)


@cache
def batched() -> tuple[Record, ...]:
    """A stream of batches of persons under `BATCHED`."""
    book = account(BATCHED, ledger=Ledger.memory())
    book.divide(STARTS)
    token = book.issue(BATCHES.loss(), users=SLOTS, label="stream")
    with BATCHES.open(token) as stream:
        for start in STARTS:
            stream.append(admitted(book, range(start, start + 3)))
    book.close()
    return tuple(book.ledger.records)


@cache
def leased_runs() -> tuple[Record, ...]:
    """A lease of five sums over the first six slots, of persons under `APART`."""
    book = account(APART, ledger=Ledger.memory())
    rows = admitted(book, range(6))
    with book.lease(SUM, runs=5, users=range(6), label="sums") as lease:
        lease.release(rows)
    book.close()
    return tuple(book.ledger.records)


def a_lease_ahead(bodies: Bodies, data: Data) -> None:
    """Of slots that were not over when it was spent."""
    data[at(bodies, "spend")]["participation/1"]["clock"] = 3


def changed(records: tuple[Record, ...], change: Callable[[Bodies, Data], object]) -> list[Record]:
    """The same ledger with other entries, and a chain that fits them."""
    bodies = [copy.deepcopy(record.body) for record in records]
    data = {record.seq: copy.deepcopy(dict(record.ext)) for record in records if record.ext}
    change(bodies, data)
    return chained(bodies, data)


def at(bodies: Bodies, entry: str, which: int = 0) -> int:
    return [i for i, body in enumerate(bodies) if body["entry"] == entry][which]


def smaller_gain(bodies: Bodies, _: Data) -> None:
    spend = bodies[at(bodies, "spend", 1)]
    spend["gain"] = 1.0
    spend["loss"]["loss"]["mu_squared"] = "1/64"


def fewer_rows_in_the_parameters(bodies: Bodies, _: Data) -> None:
    bodies[at(bodies, "spend", 1)]["parameters"]["participation"]["most"] = 2


def no_rule_in_the_parameters(bodies: Bodies, _: Data) -> None:
    del bodies[at(bodies, "spend", 1)]["parameters"]["participation"]


def no_horizon(bodies: Bodies, _: Data) -> None:
    bodies[at(bodies, "spend", 1)]["parameters"]["horizon"] = 0


def for_fewer_visits(bodies: Bodies, _: Data) -> None:
    bodies[at(bodies, "spend", 1)]["loss"]["most"] = 2


def for_visits_that_are_further_apart(bodies: Bodies, _: Data) -> None:
    bodies[at(bodies, "spend", 1)]["loss"]["apart"] = 6


def a_sum_of_visits(bodies: Bodies, data: Data) -> None:
    del data[at(bodies, "issue")]
    spend = bodies[at(bodies, "spend")]
    spend["loss"] = {
        **spend["loss"],
        "kind": "visits",
        "loss": spend["loss"],
        "most": 9,
        "apart": 1,
    }
    del spend["loss"]["mu_squared"]


def a_loss_without_a_price(bodies: Bodies, _: Data) -> None:
    spend = bodies[at(bodies, "spend")]
    inner = spend["loss"]
    spend["loss"] = {**inner, "kind": "may-fail", "loss": inner, "failure": "1e-9"}
    del spend["loss"]["mu_squared"]


def shared_without_reason(bodies: Bodies, data: Data) -> None:
    data[at(bodies, "issue", 1)] = {"participation/1": {}}


def shared_with_data(bodies: Bodies, data: Data) -> None:
    data[at(bodies, "issue")] = {"participation/1": {"visits": 3}}


def another_rule_later(bodies: Bodies, data: Data) -> None:
    rule = {**APART.to_dict(), "most": 1}
    bodies.insert(len(bodies) - 1, bodies[0])
    moved = data.pop(len(bodies) - 2, None)
    assert moved is None
    data[len(bodies) - 2] = {"participation/1": {**data[0]["participation/1"], "rule": rule}}


def no_data_of_the_rule(_: Bodies, data: Data) -> None:
    del data[0]


def a_rule_that_may_be_left_aside(bodies: Bodies, _: Data) -> None:
    bodies[0]["features"]["participation/1"] = "optional"


def a_rule_with_more(_: Bodies, data: Data) -> None:
    data[0]["participation/1"]["persons"] = 5


def no_such_rule(_: Bodies, data: Data) -> None:
    data[0]["participation/1"]["rule"]["most"] = 0


def no_registry(_: Bodies, data: Data) -> None:
    data[0]["participation/1"]["registry"] = "maria"


def replaced_in_private(bodies: Bodies, _: Data) -> None:
    bodies[0]["adjacency"] = "replace-one"


def an_odometer(bodies: Bodies, _: Data) -> None:
    bodies[0]["odometer"] = "1e-6"


def an_older_registry(bodies: Bodies, data: Data) -> None:
    data[at(bodies, "retire", 1)]["participation/1"]["clock"] = 3


def no_clock(bodies: Bodies, data: Data) -> None:
    del data[at(bodies, "spend")]["participation/1"]


def no_such_clock(bodies: Bodies, data: Data) -> None:
    data[at(bodies, "spend")]["participation/1"]["clock"] = 99


FAULTS: dict[str, tuple[Callable[[Bodies, Data], object], str]] = {
    "wrong S": (smaller_gain, "gain = 1.*a person's visits can move it by"),
    "wrong kappa": (fewer_rows_in_the_parameters, "a loss of 3 visits.*the gain is for 2"),
    "gain of one row": (no_rule_in_the_parameters, "its gain is of one row"),
    "no factorisation": (no_horizon, "its parameters do not give its price.*horizon"),
    "most below the rule": (for_fewer_visits, "prefix-sum costs"),
    "apart beyond the rule": (for_visits_that_are_further_apart, "prefix-sum costs"),
    "a sum of visits": (
        a_sum_of_visits,
        "a plain sum, without a profile, and its loss that of one row",
    ),
    "no price": (a_loss_without_a_price, "may fail is not priced for a person with several rows"),
    "shared without reason": (shared_without_reason, "is for a loss that grows with a person's"),
    "shared with data": (shared_with_data, "must be an object with no name in it"),
    "rule changed": (another_rule_later, "was opened before"),
    "rule missing": (no_data_of_the_rule, "its data are missing"),
    "rule optional": (a_rule_that_may_be_left_aside, "must be critical"),
    "rule with more": (a_rule_with_more, "must be rule and registry"),
    "no such rule": (no_such_rule, "rule: most = 0"),
    "no registry": (no_registry, "must be rule and registry"),
    "replace-one in private": (replaced_in_private, "must be zero-out, as a person's slots stay"),
    "odometer": (an_odometer, "none is known for a person who comes back"),
    "older registry": (an_older_registry, "is at slot 3, and was at 6: an older copy"),
    "no clock": (no_clock, "must state the clock of the registry"),
    "no such clock": (no_such_clock, "one of the slots 0 to 12"),
}


def batches_twice(bodies: Bodies, data: Data) -> None:
    _insert(bodies, data, 2, {**bodies[1], "starts": [0, 6]})


def batches_after_a_token(bodies: Bodies, data: Data) -> None:
    bodies[1], bodies[2] = bodies[2], bodies[1]


def batches_that_begin_late(bodies: Bodies, _: Data) -> None:
    bodies[1]["starts"] = [3, 6, 9]


def a_token_for_half_a_batch(bodies: Bodies, _: Data) -> None:
    bodies[2]["users"] = bodies[3]["users"] = [0, 11]


def batches_of_the_rule_within(bodies: Bodies, _: Data) -> None:
    bodies[1]["starts"] = [0, 3, 5, 9]


def a_rule_with_more_in_a_batch(_: Bodies, data: Data) -> None:
    data[0]["participation/1"]["rule"]["per_batch"] = 2


def _insert(bodies: Bodies, data: Data, place: int, body: dict[str, Any]) -> None:
    bodies.insert(place, body)
    for seq in sorted((seq for seq in data if seq >= place), reverse=True):
        data[seq + 1] = data.pop(seq)


BATCH_FAULTS: dict[str, tuple[Callable[[Bodies, Data], object], str]] = {
    "a second entry": (batches_twice, "batches are declared once"),
    "after a token": (batches_after_a_token, "before the plan and the first token"),
    "not from the first slot": (batches_that_begin_late, "must ascend from 0"),
    "a token cuts one": (a_token_for_half_a_batch, "cuts a batch of the rule"),
    "batches within": (batches_of_the_rule_within, "a batch of the rule begins at slot 5, within"),
    "more in a batch": (a_rule_with_more_in_a_batch, "a person may have more rows in a batch"),
}
