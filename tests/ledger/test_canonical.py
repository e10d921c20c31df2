"""Canonical JSON is what `rfc8785` writes, to the byte, whoever writes it."""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import rfc8785

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger, canonical_json
from privlearn.ledger.canonical_json import canonical, canonical_in_order
from privlearn.ledger.entries import Entry, SpendEntry, parse_entry
from privlearn.ledger.entry_log import EntryLog
from privlearn.ledger.spend_forms import form_of
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Random JSON: mostly what entries hold, and some of everything else."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return rng.choice(
            [None, True, False, "", "replace-one", "Größe", '\u0001\n"', "\U0001f600"]
        )
    if kind == 1:
        return rng.randrange(-(2**53) + 1, 2**53)
    if kind == 2:
        (value,) = struct.unpack("d", rng.randbytes(8))
        return value if math.isfinite(value) else 0.0
    if kind == 3:
        return round(rng.uniform(-10, 10) * 10.0 ** rng.randrange(-6, 18), rng.randrange(9))
    if kind < 6:
        return "".join(map(chr, rng.choices(range(0x20, 0x7F), k=rng.randrange(12))))
    if kind == 6:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return tuple(anything(rng, depth + 1) for _ in range(rng.randrange(4)))
    names = ["users", "a", "B", "_x", "", "10", "2", "é", "\ue000", "\U00010000"]
    chosen = rng.sample(names[: 7 + 3 * (rng.random() < 0.2)], rng.randrange(6))
    return {name: anything(rng, depth + 1) for name in chosen}


def test_any_json_is_written_as_by_the_library() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        value = anything(rng)
        assert canonical(value) == rfc8785.dumps(value), value
        if isinstance(value, dict):
            assert canonical_in_order(value) == rfc8785.dumps(value), value


def edges() -> list[float]:
    powers = [10.0**k for k in range(-9, 23)] + [2.0**k for k in range(-30, 60)]
    near = [x * f for x in powers for f in (1.0, 0.5, 1 / 3, 0.99, 7.0)]
    beside = [math.nextafter(x, to) for x in powers for to in (0.0, math.inf)]
    return [sign * x for x in (*near, *beside, 0.0, sys.float_info.max) for sign in (1, -1)]


def test_numbers_at_every_edge_of_a_notation_are_written_as_by_the_library() -> None:
    for value in edges():
        assert canonical(value) == rfc8785.dumps(value), value


def test_every_character_is_written_as_by_the_library() -> None:
    texts = [chr(i) for i in range(0x300)]
    texts += [chr(i) for i in (0x2028, 0x2029, 0xD7FF, 0xE000, 0xFEFF, 0xFFFF, 0x10000, 0x10FFFF)]
    whole = "".join(texts)
    for value in (whole, {whole: 1}, {text: i for i, text in enumerate(texts)}):
        assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [2**53, -(2**53), math.nan, math.inf, "\ud800", {"\ud800": 1}, {1: 2}, {"a": object()}, b"a"],
)
def test_what_is_no_json_is_refused_as_by_the_library(value: Any) -> None:
    for write in (canonical, rfc8785.dumps):
        with pytest.raises(ValueError, match=r".|\n"):
            write(value)


def test_the_library_is_not_asked_about_an_ordinary_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_json, "rfc8785", None)
    body = {"entry": "spend", "users": (0, 2), "gain": 1.5, "noise": {"std": 20.0}, "sum": True}
    written = b'{"entry":"spend","gain":1.5,"noise":{"std":20},"sum":true,"users":[0,2]}'
    assert canonical(body) == written


@pytest.mark.parametrize("wrong", [1e-6, 1e-8])
def test_these_tests_see_a_notation_that_is_another_in_pydantic(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: small numbers, which pydantic writes with an exponent too early."""
    monkeypatch.setattr(canonical_json, "_SMALLEST", wrong)
    with pytest.raises(AssertionError):
        test_numbers_at_every_edge_of_a_notation_are_written_as_by_the_library()


def test_spends_that_have_much_in_common_are_written_as_if_each_were_alone(tmp_path: Path) -> None:
    users = range(3)
    book = Ledger.create(tmp_path / "ledger")
    noise = NoiseSource.simulation(0)
    accounts = [
        CentralAccountant(ZCDP(9), users=users, ledger=book, noise=noise, shared=number > 0)
        for number in range(2)
    ]
    sums = [NoisySum.calibrated(Ball(1.0, dim), ZCDP("0.1")) for dim in (2, 3)]
    seen: list[SpendEntry] = []
    with patch.object(EntryLog, "add", autospec=True, side_effect=_noting(seen)):
        for each, account in [*product(sums, accounts)] * 3:
            rows = Rows.seal(np.ones((3, each.domain.size)), users=users)
            each.release(rows, account.issue(each.loss(), users=users, label="é"))
    assert [form_of(entry) is None for entry in seen] == [True] * 8 + [False] * 4
    wrong = seen[-1].model_copy(update={"gain": 2.0})
    assert form_of(wrong) is None  # all but one thing is the same
    records = [record for record in book.records if record.body["entry"] == "spend"]
    for entry, record in zip(seen, records, strict=True):
        assert rfc8785.dumps(json.loads(record.data)) == record.data
        assert parse_entry(record.body, record.ext) == SpendEntry(**entry.__dict__) == entry
    book.close()


def _noting(seen: list[SpendEntry]) -> Callable[..., None]:
    add = EntryLog.add

    def noted(log: EntryLog, entry: Entry, *rest: Any) -> None:
        add(log, entry, *rest)
        if isinstance(entry, SpendEntry):
            seen.append(entry)

    return noted
