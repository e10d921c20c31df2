"""Small ledgers whose ranges of users lie in one another: the work of an audit does not multiply.

Work is counted in calls of Python functions, which do not depend on the machine.
"""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from privlearn.accountants import CentralAccountant, account_totals
from privlearn.accountants.audit import _Audit, certify
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.charged import Tallies
from privlearn.accountants.per_user_charge import Charges
from privlearn.errors import InsufficientBudgetError
from privlearn.ledger import Ledger
from privlearn.ledger.chain import Record, chained
from privlearn.ledger.entries import Entry, parse_entry
from privlearn.losses import GaussianLoss, LaplaceLoss, Loss
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = range(1000)
Body = dict[str, Any]
Range = tuple[int, int]


@pytest.fixture(scope="module")
def one() -> list[Body]:
    """The entries of one spend: open, issue, spend, retire, close."""
    book = Ledger.memory()
    with CentralAccountant(ZCDP(1000), users=USERS, ledger=book) as accountant:
        mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
        token = accountant.issue(mechanism.loss(), users=range(8), label="sum")
        mechanism.release(Rows.seal(np.ones((8, 2)), users=range(8)), token)
    return [record.body for record in book.records]


def _loss(k: int) -> Loss:
    return GaussianLoss(Fraction(k + 1, 1000))


def _laplace(k: int) -> Loss:
    return LaplaceLoss(Fraction(k + 1, 1000))


def tokens(
    one: list[Body], ranges: list[Range], loss: Callable[[int], Loss] = _loss
) -> list[Record]:
    opened, issue, spend, retire, close = one
    bodies = [opened]
    for k, users in enumerate(ranges):
        price = ZCDP(loss(k).zcdp() or 0).to_dict()
        named = {"token": f"t{k}", "users": list(users)}
        bodies.append({**issue, **named, "budget": price})
        bodies.append({**spend, **named, "loss": loss(k).to_dict(), "derived": False})
        bodies.append({**retire, "token": f"t{k}"})
    return chained([*bodies, close])


def delegations(one: list[Body], ranges: list[Range]) -> list[Record]:
    account = {"accountant": one[0]["accountant"]}
    parts = [
        {
            **account,
            "entry": "delegate",
            "allowance": f"a{k}",
            "label": "part",
            "users": list(users),
            "budget": ZCDP(_loss(k).zcdp() or 0).to_dict(),
            "failure": "0",
        }
        for k, users in enumerate(ranges)
    ]
    back = [{**account, "entry": "return", "allowance": part["allowance"]} for part in parts]
    return chained([one[0], *parts, *back, one[-1]])


def plan_items(
    one: list[Body], ranges: list[Range], loss: Callable[[int], Loss] = _loss
) -> list[Record]:
    items = [
        {"label": "item", "users": list(users), "loss": loss(k).to_dict(), "count": 1}
        for k, users in enumerate(ranges)
    ]
    body = {"accountant": one[0]["accountant"], "entry": "plan", "items": items}
    return chained([one[0], body, one[-1]])


def nested(n: int) -> list[Range]:
    return [(k, USERS.stop - k) for k in range(n)]


def sliding(n: int) -> list[Range]:
    return [(k, k + n // 2) for k in range(n)]


def work(records: list[Record]) -> tuple[int, Certificate]:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        found = certify(records)
    finally:
        sys.setprofile(None)
    return calls, found


@pytest.mark.parametrize("ranges", [nested, sliding])
@pytest.mark.parametrize("shape", [tokens, delegations, plan_items])
def test_ranges_in_one_another_take_hardly_more_work_each(
    shape: Callable[[list[Body], list[Range]], list[Record]],
    ranges: Callable[[int], list[Range]],
    one: list[Body],
) -> None:
    certify(shape(one, ranges(2)))  # imports
    few, _ = work(shape(one, ranges(80)))
    many, found = work(shape(one, ranges(320)))
    assert found.problems == []
    assert many < 8 * few  # quadratic: 16


def test_the_largest_sum_of_ranges_in_one_another_is_exact(one: list[Body]) -> None:
    for ranges in (nested(60), sliding(60)):
        paid = [Fraction(0)] * USERS.stop
        for k, users in enumerate(ranges):
            for user in range(*users):
                paid[user] += Fraction(k + 1, 2000)
        for found in (
            certify(tokens(one, ranges)).spent,
            certify(plan_items(one, ranges)).guarantees,
        ):
            assert found[0].rho == pytest.approx(float(max(paid)), rel=1e-15)
            assert found[0].method == "gaussian"


def test_very_many_totals_are_bounded_by_their_sums(
    one: list[Body], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the bound is no less than the exact answer, close to it, and said."""
    records = tokens(one, sliding(40), _laplace)
    exact = certify(records)
    monkeypatch.setattr(account_totals, "MOST_TERMS", 60)
    bounded = certify(records)
    assert bounded.problems == exact.problems == []
    assert exact.spent[0].epsilon <= bounded.spent[0].epsilon < 1.3 * exact.spent[0].epsilon
    assert bounded.spent[0].rho == exact.spent[0].rho
    said = [line for line in bounded.spent[0].assumptions if "different totals" in line]
    assert len(said) == 1
    assert not any("different totals" in line for line in exact.spent[0].assumptions)


def test_of_spends_without_an_end_only_one_is_kept(one: list[Body]) -> None:
    audited = _Audit()
    for record in tokens(one, nested(5)):
        if record.body["entry"] != "retire":
            audited.take([record])
    (book,) = audited.books
    assert len(book.state.accounts) == book.lost == 5
    assert len({id(account.spend) for account in book.state.accounts.values()}) == 1


@pytest.mark.parametrize("ends", [("retire",), ("retire", "spend")])
def test_entries_of_tokens_without_an_end_are_not_kept(
    one: list[Body], ends: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a million of them would take more memory than an audit may."""
    seen: list[weakref.ref[Entry]] = []

    def read(body: Body, ext: Mapping[str, Any]) -> Entry:
        entry = parse_entry(body, ext)
        seen.append(weakref.ref(entry))
        return entry

    monkeypatch.setattr("privlearn.ledger.entries.parse_entry", read)
    audited = _Audit()
    for record in tokens(one, nested(40)):
        if record.body["entry"] not in (*ends, "close"):
            audited.take([record])
    gc.collect()
    kept = [entry for ref in seen if (entry := ref()) is not None]
    assert len(seen) == 1 + 40 * (3 - len(ends))
    # the opening, and of spends the first, which stands for all, and the last
    assert len(kept) <= 3


def test_sliding_windows_of_a_live_accountant_take_hardly_more_work_each() -> None:
    def issued(n: int) -> int:
        calls = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event == "call"

        with CentralAccountant(ZCDP(1000), users=USERS, noise=NoiseSource.simulation(0)) as book:
            sys.setprofile(count)
            try:
                for k, users in enumerate(sliding(n)):
                    book.issue(_loss(k), users=range(*users), label="window").retire()
            finally:
                sys.setprofile(None)
        return calls

    issued(2)
    assert issued(320) < 8 * issued(80)


def test_amounts_without_a_short_common_denominator_are_refused(one: list[Body]) -> None:
    """Sums of such fractions would have as many digits as all denominators together."""
    opened, issue, *_, close = copy.deepcopy(one)
    bodies = [
        {**issue, "token": f"t{k}", "budget": {"kind": "zcdp", "rho": f"1/{10**399 + 2 * k + 1}"}}
        for k in range(50)
    ]
    found = certify(chained([opened, *bodies, close]))
    assert any("a common denominator of all amounts" in problem for problem in found.problems)
    refused = sum(p.startswith("entry ") and "denominator" in p for p in found.problems)
    assert refused >= 45
    # what was refused counts for nothing: the next plain amount fits
    book = CentralAccountant(ZCDP(1), users=range(3), noise=NoiseSource.simulation(0))
    book.issue(ZCDP(Fraction(1, 3)), users=range(3), label="a")
    with pytest.raises(InsufficientBudgetError):
        book.issue(ZCDP(Fraction(2, 3) + Fraction(1, 10**9)), users=range(3), label="b")


RANGES = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda r: range(min(r), max(r)))


AMOUNTS = st.builds(Fraction, st.integers(0, 5), st.sampled_from([1, 1, 1, 2, 3, 4, 5, 14]))


@given(
    st.lists(st.tuples(RANGES, AMOUNTS, AMOUNTS, st.booleans()), max_size=120),
    RANGES,
    st.sampled_from([1, 2]),
)
def test_charges_are_what_an_array_says(
    charges: list[tuple[range, Fraction, Fraction, bool]], asked: range, terms: int
) -> None:
    """Whatever their denominators, and in deep trees: what is kept are the exact sums."""
    with patch.multiple("privlearn.accountants.per_user_charge", _LONGEST_LEAF=4, _LONGEST=3):
        users = range(2, 28)
        book = Charges(users, terms)
        array = {user: [Fraction(0)] * terms for user in users}
        for where, *both, released in charges:
            amounts = tuple(both[:terms])
            book.charge(where, amounts, released=released)
            for user in set(where) & set(users):
                pairs = zip(array[user], amounts, strict=True)
                array[user] = [value + (-a if released else a) for value, a in pairs]
        assert {user: [*value] for piece, value in book.pieces() for user in piece} == array
        inside = range(max(asked.start, 2), min(asked.stop, 28))
        if not inside:
            return
        assert book.largest(inside) == tuple(
            map(max, zip(*(array[u] for u in inside), strict=True))
        )
        for most in (-3, Fraction(1, 3), 4):
            more = Fraction(8, 7)
            above = book.first_above((Fraction(most),) * terms, (more,) * terms, inside)
            over = [u for u in inside if any(value + more > most for value in array[u])]
            assert (above is None) is not bool(over)
            if above is not None:
                assert above[0].start == over[0]
                assert [*above[1]] == array[over[0]]


def test_denominators_that_keep_growing_do_not_touch_every_piece() -> None:
    """A file could else make an audit as long as the number of its users times that of amounts."""
    users = range(4000)
    book = Charges(users)
    for user in users:
        book.charge(range(user, user + 1), (Fraction(1),))
    visited = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal visited
        if event == "call" and frame.f_code.co_name == "multiply":
            visited += 1

    sys.setprofile(count)
    try:
        for k in range(1, 200):
            book.charge(range(k, k + 1), (Fraction(1, 2**k),))
    finally:
        sys.setprofile(None)
    assert visited < 200 * 3 * 32
    assert [value for _, (value,) in book.pieces(range(199, 201))] == [1 + Fraction(1, 2**199), 1]
    assert book.largest() == (Fraction(3, 2),)


@given(st.lists(st.tuples(RANGES, st.sampled_from("abc"), st.integers(1, 2)), max_size=12))
def test_tops_hold_every_tally(charges: list[tuple[range, str, int]]) -> None:
    users = range(3, 25)
    book: Tallies[str] = Tallies(users)
    array: dict[int, dict[str, int]] = {user: {} for user in users}
    for where, what, count in charges:
        book.add(where, what, count)
        for user in set(where) & set(users):
            array[user][what] = array[user].get(what, 0) + count
    assert {user: tally for piece, tally in book.pieces() for user in piece} == array
    assert all(book.of(user) == array[user] for user in users)
    tops = book.tops()
    found = book.at([top.first for top in tops])
    assert found == [array[top.first] for top in tops]
    assert [len(tally) for tally in found] == [top.terms for top in tops]
    for tally in array.values():
        assert any(all(top.get(w, 0) >= n for w, n in tally.items()) for top in found)
    value = {
        "a": (Fraction(1), Fraction(0)),
        "b": (Fraction(2), Fraction(1)),
        "c": (Fraction(1, 3),) * 2,
    }
    sums = book.sums(value.__getitem__, [top.first for top in tops])
    for tally, amounts in zip(found, sums, strict=True):
        for i, amount in enumerate(amounts):
            assert amount == sum(value[w][i] * n for w, n in tally.items())
